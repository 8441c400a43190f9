# SPDX-License-Identifier: GPL-3.0-or-later
"""How soon a dead peer is noticed, and how soon a restarted server answers what was pending."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "runtime" / "src"))

from firsttouch import InferenceClient, InferenceServer, Options
from firsttouch._holder import Holder
from firsttouch._ports import KeptPort
from firsttouch.bench import ACTION, OBSERVATION, SCHEMA, child
from firsttouch.errors import BrokenError

TRIALS = 60
_LIMIT_SECONDS = 5.0
_BETWEEN_SECONDS = 0.1

# What is measured: how it is called, what is taken of the samples, and what it is at most. The last is what the kernel
# takes by itself.
FIGURES: tuple[tuple[str, float, float | None], ...] = (
    ("death of a client noticed", 99, 2),
    ("death of a server's holder noticed", 99, 2),
    ("server killed to first answer", 50, 10),
    ("death of an idle child as the kernel tells it", 50, None),
    ("death of an idle child as the kernel tells it", 99, None),
)


def samples() -> dict[str, list[float]]:
    """The ms of each trial, by the name of the figure.

    In a process of its own: those that die are forked from it, and how long the kernel takes to end a process depends
    on how much memory it has.
    """
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=True)
    found: dict[str, list[float]] = json.loads(done.stdout)
    return found


def rows(rounds: list[dict[str, list[float]]]) -> list[tuple[str, float, str, str | None, bool | None]]:
    """(figure, value, unit, goal, met) of each: the median of what the rounds say."""
    found: list[tuple[str, float, str, str | None, bool | None]] = []
    for name, percent, most in FIGURES:
        value = statistics.median(float(np.percentile(one[name], percent, method="nearest")) for one in rounds)
        figure = f"{name}, p{percent:g} of {len(rounds[0][name])}"
        goal, met = (f"at most {most:g}", value <= most) if most else (None, None)
        found.append((figure, value, "ms", goal, met))
    return found


def _measure() -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory(prefix="firsttouch-") as folder:
        found = [_client_deaths(folder), _holder_deaths(folder), _restarts(folder), _idle_deaths()]
    return dict(zip(dict.fromkeys(name for name, *_ in FIGURES), found, strict=True))


def _idle_deaths() -> list[float]:
    """ms from the SIGKILL of a forked child that does nothing to its pidfd: the kernel takes its memory down first."""
    times = []
    for _ in range(TRIALS):
        pid = child(lambda: time.sleep(60))
        time.sleep(0.02)
        fd = os.pidfd_open(pid)
        with select.epoll() as poll:
            poll.register(fd, select.EPOLLIN)
            when = _kill(pid)
            poll.poll(_LIMIT_SECONDS)
            times.append((time.monotonic() - when) * 1e3)
        os.close(fd)
        os.waitpid(pid, 0)
    return times


def _until(condition: object, seconds: float = _LIMIT_SECONDS) -> None:
    """Wait for CONDITION() to be true. Raises TimeoutError."""
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.0002)


def _kill(pid: int) -> float:
    """Kill PID; when, on the monotonic clock."""
    when = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return when


def _client_deaths(folder: str) -> list[float]:
    """ms from the SIGKILL of a client to the keeper's notice."""
    times = []
    with InferenceServer(f"shm://{folder}/c", SCHEMA, options=Options(lanes=2)) as server:
        (port,) = server.ports
        assert isinstance(port, KeptPort)
        seen: list[float] = []
        port.keeper.on_death = lambda pid, name: seen.append(time.monotonic())
        for _ in range(TRIALS):
            reader, writer = os.pipe()

            def attach(writer: int = writer) -> None:
                _client = InferenceClient(f"shm://{folder}/c")
                os.write(writer, b"x")
                time.sleep(60)

            pid = child(attach)
            os.read(reader, 1)
            os.close(reader)
            os.close(writer)
            seen.clear()
            when = _kill(pid)
            _until(lambda: seen)
            os.waitpid(pid, 0)
            times.append((seen[0] - when) * 1e3)
    return times


def _holder_deaths(folder: str) -> list[float]:
    """ms from the SIGKILL of the server (which holds the memory) to the error in a client that waits for it."""
    times = []
    obs = np.zeros(OBSERVATION, np.float32)
    for trial in range(TRIALS):
        place = f"shm://{folder}/h{trial}"
        board = mmap.mmap(-1, 16)

        def serve(place: str = place, board: mmap.mmap = board) -> None:
            with InferenceServer(place, SCHEMA, options=Options(lanes=2)) as server:
                board[0] = 1
                for _batch in server.batches():
                    board[1] = 1
                    time.sleep(60)

        pid = child(serve)
        _until(lambda board=board: board[0])

        def kill(pid: int = pid, board: mmap.mmap = board) -> None:
            _until(lambda: board[1])
            time.sleep(0.005)
            struct.pack_into("d", board, 8, _kill(pid))
            # The end of this process takes as long as the other's, and perhaps its CPU.
            time.sleep(0.02)

        killer = child(kill)
        with InferenceClient(place, reconnect=False) as client:
            with contextlib.suppress(BrokenError):
                client.infer({"obs": obs}, timeout=_LIMIT_SECONDS)
            noticed = time.monotonic()
        os.waitpid(killer, 0)
        os.waitpid(pid, 0)
        times.append((noticed - struct.unpack_from("d", board, 8)[0]) * 1e3)
    return times


def _restarts(folder: str) -> list[float]:
    """ms from the SIGKILL of a server to the answer of the request that it had."""
    times: list[float] = []
    obs = np.zeros(OBSERVATION, np.float32)
    board = mmap.mmap(-1, 16)
    place = f"shm://{folder}/r"

    def worker(server: InferenceServer) -> None:
        for batch in server.batches():
            if batch.arrays["obs"][0, 0] == 1 and not board[1]:
                # Killed with the request in hand; the next server gets it.
                board[1] = 1
                struct.pack_into("d", board, 8, time.monotonic())
                os.kill(os.getpid(), signal.SIGKILL)
            batch.reply({"act": np.zeros((len(batch), ACTION), np.float32)})

    def hold() -> None:
        holder = Holder([place], SCHEMA, worker, Options(lanes=2))
        signal.signal(signal.SIGTERM, holder.stop)
        board[0] = 1
        holder.run()

    pid = child(hold)
    _until(lambda: board[0])
    with InferenceClient(place) as client:
        for _ in range(TRIALS // 3):
            obs[0] = 0
            client.infer({"obs": obs})
            # Servers do not die one after the other at once: there is time for the next spare.
            time.sleep(_BETWEEN_SECONDS)
            obs[0], board[1] = 1, 0
            client.infer({"obs": obs})
            times.append((time.monotonic() - struct.unpack_from("d", board, 8)[0]) * 1e3)
    os.kill(pid, signal.SIGTERM)
    os.waitpid(pid, 0)
    return times


if __name__ == "__main__":
    print(json.dumps(_measure()))
