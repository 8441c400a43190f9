# SPDX-License-Identifier: Apache-2.0
"""Load generator: a server and clients in processes of their own, each on its CPU, and how long their calls take.

What is measured is a Peer; ours are here, others plug in the same way. A request is float32[12288] (48 KiB), an answer
float32[1024] (4 KiB); every server copies the request into a batch row and fills the answer from its first value.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from firsttouch._ports import Options
from firsttouch._wire import Array, Schema
from firsttouch.client import InferenceClient
from firsttouch.errors import FirstTouchError
from firsttouch.server import InferenceServer

__all__ = ["ACTION", "OBSERVATION", "SCHEMA", "Array", "Call", "Ours", "Peer", "Result", "child", "cpus", "measure"]
OBSERVATION, ACTION = 12288, 1024
SCHEMA = Schema.of({"obs": ("float32", (OBSERVATION,))}, {"act": ("float32", (ACTION,))})
# A measurement that takes longer has hung.
LIMIT_SECONDS = 120.0
Call = Callable[[Array], Any]


class Peer(Protocol):
    """A transport that can be measured."""

    name: str

    def serve(self, folder: str, started: Callable[[], None]) -> None:
        """Serve at FOLDER, call STARTED when clients may come, go on until killed."""

    def connect(self, folder: str) -> Call:
        """A call that sends float32[OBSERVATION] and returns float32[ACTION] (or its first value)."""


@dataclass(frozen=True)
class Result:
    """ns of each call (all clients, in no order), seconds in all, the server's CPU seconds, its idle CPU in percent."""

    ns: Array
    seconds: float
    server_cpu: float
    idle_percent: float

    @property
    def rate(self) -> float:
        """Calls per second, of all clients together."""
        return len(self.ns) / self.seconds

    def us(self, percent: float) -> float:
        """A percentile of the calls in us."""
        return float(np.percentile(self.ns, percent)) / 1e3


class Ours:
    """Our transport at an address of SCHEME.

    in_place: the sampler writes its observation into the lane. gathered: it writes it, by the same call, into an array
    of its own, which is then copied.
    """

    def __init__(
        self, scheme: str, *, in_place: bool = False, gathered: bool = False, spin_ns: int = 50_000
    ) -> None:
        how = {" in place": in_place, " gathered": gathered, " no spin": not spin_ns}
        self.name = f"firsttouch {scheme}" + "".join(word for word, is_so in how.items() if is_so)
        self._scheme, self._in_place, self._gathered, self._spin_ns = scheme, in_place, gathered, spin_ns

    def _address(self, folder: str) -> str:
        if self._scheme != "tcp":
            return f"{self._scheme}://{folder}/s"
        with contextlib.suppress(OSError), open(f"{folder}/port", encoding="ascii") as file:
            return f"tcp://127.0.0.1:{file.read()}"
        return "tcp://127.0.0.1:0"

    def serve(self, folder: str, started: Callable[[], None]) -> None:
        """See Peer."""
        answers = [{"act": np.zeros((count, ACTION), np.float32)} for count in range(65)]
        with InferenceServer(self._address(folder), SCHEMA, options=Options(spin_ns=self._spin_ns)) as server:
            if self._scheme == "tcp":
                with open(f"{folder}/port", "w", encoding="ascii") as file:
                    file.write(server.addresses[0].rpartition(":")[2])
            started()
            for batch in server.batches():
                answer = answers[len(batch)]
                answer["act"][...] = batch.arrays["obs"][:, :1]
                batch.reply(answer)

    def connect(self, folder: str) -> Call:
        """See Peer."""
        client = InferenceClient(self._address(folder))
        if self._gathered:
            own = np.empty(OBSERVATION, np.float32)

            def gather(obs: Array) -> Array:
                own[...] = obs
                return client.infer({"obs": own})[0]["act"]

            return gather
        if not self._in_place:
            return lambda obs: client.infer({"obs": obs})[0]["act"]
        session = contextlib.ExitStack()
        lane = session.enter_context(client.lane())
        target, answer = lane.request["obs"], lane.reply["act"]

        def call(obs: Array, _keep: Any = (client, session)) -> Array:
            # A sampler writes its observation here in the first place, all of it.
            target[...] = obs
            lane.infer()
            return answer

        return call


def child(target: Callable[[], None]) -> int:
    """Fork; TARGET runs in the child, which ends with it."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        target()
        status = 0
    except BaseException:  # noqa: BLE001  nothing may leave the child
        traceback.print_exc()
    finally:
        os._exit(status)


def cpu_seconds(pid: int) -> float:
    """CPU time of process PID, from the scheduler's count in ns, of all of its threads."""
    total = 0
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as file:
                total += int(file.read().split()[0])
    return total / 1e9


def cpus() -> tuple[int, int]:
    """The CPU of the server and the one that all clients share: two, if there are two."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[-1], allowed[0]


@contextlib.contextmanager
def serving(peer: Peer, folder: str) -> Iterator[int]:
    """PEER's server on its CPU: its pid. Raises FirstTouchError when it does not start."""
    reader, writer = os.pipe()

    def run() -> None:
        os.close(reader)
        os.setpgid(0, 0)
        os.sched_setaffinity(0, {cpus()[0]})
        gc.disable()
        peer.serve(folder, lambda: _say_ready(writer))

    pid = child(run)
    os.close(writer)
    try:
        with open(reader, "rb", buffering=0) as file:
            if not file.read(1):
                raise FirstTouchError(f"{peer.name} did not start")
        yield pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _say_ready(fd: int) -> None:
    os.write(fd, b"x")


def _client(peer: Peer, folder: str, calls: int, pause_s: float, go: int, end: int, report: int) -> None:
    """One client's process: warm up, say so, wait for the start, call, wait for the end, report."""
    os.sched_setaffinity(0, {cpus()[1]})
    obs = np.random.default_rng(os.getpid()).random(OBSERVATION, np.float32)
    call = peer.connect(folder)
    for number in range(max(20, min(calls // 10, 1000))):
        obs[0] = number
        call(obs)
    gc.disable()
    os.write(report, b"r")
    os.read(go, 1)
    clock, sleep = time.perf_counter_ns, time.sleep
    times = np.zeros(calls, np.int64)
    for number in range(calls):
        if pause_s:
            sleep(pause_s)
        obs[0] = number
        began = clock()
        answer = call(obs)
        times[number] = clock() - began
        if answer[0] != number:
            raise FirstTouchError(f"{peer.name} answered {answer[0]} to {number}")
    os.write(report, b"d")
    # Not before all others are done too: the end of a process takes 1 to 2 ms of the CPU that they share.
    os.read(end, 1)
    with open(report, "wb", closefd=False) as file:
        file.write(times.tobytes())


def measure(peer: Peer, *, calls: int, clients: int = 1, pause_s: float = 0.0, idle: bool = False) -> Result:
    """Let CLIENTS processes on one CPU make CALLS calls in all to a server on another CPU.

    IDLE: also how much CPU time the server takes from 100 ms after the last call. Raises FirstTouchError.
    """
    with tempfile.TemporaryDirectory(prefix="firsttouch-") as folder, serving(peer, folder) as server:
        each = max(1, calls // clients)
        go_reader, go_writer = os.pipe()
        end_reader, end_writer = os.pipe()
        pipes = [os.pipe() for _ in range(clients)]
        pids = []
        for i in range(clients):
            report = pipes[i][1]
            # mypy infers no type for a lambda with a default, which binds this turn's pipe.
            pids.append(
                child(lambda report=report: _client(peer, folder, each, pause_s, go_reader, end_reader, report))  # type: ignore[misc]
            )
        for _, report in pipes:
            os.close(report)
        try:
            signal.signal(signal.SIGALRM, _hung)
            signal.setitimer(signal.ITIMER_REAL, LIMIT_SECONDS)
            for reader, _ in pipes:
                _expect(reader, b"r", peer)
            cpu, began = cpu_seconds(server), time.perf_counter()
            os.write(go_writer, b"g" * clients)
            for reader, _ in pipes:
                _expect(reader, b"d", peer)
            seconds, cpu = time.perf_counter() - began, cpu_seconds(server) - cpu
            os.write(end_writer, b"e" * clients)
            parts = [_read_all(reader, 8 * each) for reader, _ in pipes]
            spent = _idle(server) if idle else 0.0
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for fd in (go_reader, go_writer, end_reader, end_writer, *(reader for reader, _ in pipes)):
                os.close(fd)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        return Result(np.frombuffer(b"".join(parts), np.int64), seconds, cpu, spent)


def _hung(*_: object) -> None:
    raise FirstTouchError(f"a measurement took more than {LIMIT_SECONDS:.0f} s")


def _expect(fd: int, word: bytes, peer: Peer) -> None:
    """Read WORD. Raises FirstTouchError when the client ended instead."""
    if os.read(fd, 1) != word:
        raise FirstTouchError(f"a client of {peer.name} failed")


def _read_all(fd: int, count: int) -> bytes:
    """COUNT bytes."""
    data = b""
    while len(data) < count:
        part = os.read(fd, count - len(data))
        if not part:
            raise FirstTouchError("a client ended before its report")
        data += part
    return data


def _idle(server: int) -> float:
    """CPU time of the server in percent, from 100 ms after the last call, over a second; its clients are there."""
    time.sleep(0.1)
    before, began = cpu_seconds(server), time.perf_counter()
    time.sleep(1.0)
    return 100 * (cpu_seconds(server) - before) / (time.perf_counter() - began)


def transports(calls: int, only: Sequence[str] = (), spin_ns: int = 50_000) -> list[dict[str, Any]]:
    """Rows of our own transports: p50, p90, p99 and p99.9 in us, calls per second, idle CPU in percent.

    ONLY: the schemes to measure, none of them in place; all when empty. SPIN_NS: how long both sides spin.
    """
    kinds = [(scheme, False) for scheme in only] or [("shm", False), ("shm", True), ("unix", False), ("tcp", False)]
    rows = []
    for scheme, in_place in kinds:
        peer = Ours(scheme, in_place=in_place, spin_ns=spin_ns)
        found = measure(peer, calls=calls, idle=True)
        rows.append(
            {
                "transport": peer.name,
                "p50_us": round(found.us(50), 1),
                "p90_us": round(found.us(90), 1),
                "p99_us": round(found.us(99), 1),
                "p999_us": round(found.us(99.9), 1),
                "per_second": round(found.rate),
                "idle_cpu_percent": round(found.idle_percent, 2),
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """ROWS for people."""
    names = list(rows[0])
    cells = [names, *([str(row[name]) for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells
    )
