# SPDX-License-Identifier: GPL-3.0-or-later
"""What each step of a call over shared memory costs: both sides in turns on one CPU, so that nobody waits.

What a call takes beyond their sum is the time until each side sees the other's word, on another CPU.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "runtime" / "src"))

from firsttouch import InferenceClient, InferenceServer
from firsttouch._session import answer
from firsttouch._wire import Schema
from firsttouch.bench import ACTION, OBSERVATION, cpus

CALLS = 20_000
STEPS = (
    "client: lease a lane",
    "client: write the request",
    "client: publish it",
    "server: see it",
    "server: take it, copy it",
    "server: the handler",
    "server: check the answer, copy it, publish it",
    "server: count it, beside the client",
    "client: yield, beside the server, and see it",
    "client: take it, copy it",
    "client: give the lane back",
)
# Floats of a request and of an answer.
LOADS = {"no data": (1, 1), "48 KiB there, 4 KiB back": (OBSERVATION, ACTION)}


def schema_of(request: int, reply: int) -> Schema:
    """float32[REQUEST] there, float32[REPLY] back."""
    return Schema.of({"obs": ("float32", (request,))}, {"act": ("float32", (reply,))})


def connected(server: InferenceServer, address: str) -> InferenceClient:
    """A client of SERVER, which runs in this thread and shakes hands meanwhile."""
    found: list[InferenceClient] = []
    thread = threading.Thread(target=lambda: found.append(InferenceClient(address)))
    thread.start()
    while thread.is_alive():
        server._poller.run(0.01)
    return found[0]


def steps(request: int, reply: int) -> list[float]:
    """The median us of each of STEPS."""
    with tempfile.TemporaryDirectory(prefix="firsttouch-") as folder:
        address = f"shm://{folder}/s"
        with InferenceServer(address, schema_of(request, reply)) as server:
            client = connected(server, address)
            try:
                return _steps(server, client, np.ones(request, np.float32), np.zeros((1, reply), np.float32))
            finally:
                client.close()


def _steps(server: InferenceServer, client: InferenceClient, obs: Any, act: Any) -> list[float]:
    clock = time.perf_counter_ns
    session, (port,) = client._connector.session(), server.ports
    arrays, answers = {"obs": obs}, {"act": act}
    marks: list[int] = []
    count = server._answered

    def mark() -> None:
        marks.append(clock())

    def counted(slots: Any, taken_ns: int) -> None:
        stops[0]()
        count(slots, taken_ns)

    def call() -> None:
        """What InferenceClient.infer() and InferenceServer.batches() do, in the order in which it happens."""
        (stop,) = stops
        stop()
        lane = session.lease()
        assert lane is not None
        stop()
        lane.write(arrays)
        stop()
        lane.submit(b"", clock() + 10**10)
        stop()
        slots = port.spin(64, 50_000)
        stop()
        batch = server._take(slots)
        assert batch is not None
        stop()
        act[...] = batch.arrays["obs"][:, :1]
        stop()
        batch.reply(answers)
        stop()
        assert lane.spin()
        stop()
        answer(lane)
        stop()
        session.release(lane)
        stop()

    # What the server does after the answer is a step of its own.
    server._answered = counted  # type: ignore[method-assign]
    stops: list[Any] = [mark]
    rows = np.empty((CALLS, len(STEPS)))
    for i in range(CALLS):
        marks.clear()
        call()
        rows[i] = [late - early for early, late in pairwise(marks)]
    marks.clear()
    for _ in range(CALLS):
        mark()
    # A mark of its own is in each step.
    between = float(np.median(np.diff(marks)))
    return [(float(one) - between) / 1e3 for one in np.median(rows, axis=0)]


def rows() -> list[tuple[str, float, str]]:
    """(figure, value, unit) of each step and of their sum."""
    found = []
    for load, values in samples().items():
        found += [(f"step, {load}: {step}", value, "us") for step, value in zip(STEPS, values, strict=True)]
        found.append((f"steps in all, {load}", sum(values), "us"))
    return found


def samples() -> dict[str, list[float]]:
    """The us of each step, by load: in a process of its own, on the server's CPU."""
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=True)
    found: dict[str, list[float]] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    os.sched_setaffinity(0, {cpus()[0]})
    gc.disable()
    print(json.dumps({name: steps(*load) for name, load in LOADS.items()}))
