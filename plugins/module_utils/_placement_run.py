# SPDX-License-Identifier: Apache-2.0
"""Jobs in forked children: affinity, memory policy and a SIGBUS stay there, this process stays as it is."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from ._placement_work import Job, refused

SECONDS_PER_CPU = 2.0
_GRACE = 0.25
_NICE = 10
Work = Callable[[Job, float], "dict[str, Any]"]


def run(
    jobs: Sequence[Job],
    work: Work,
    seconds_per_cpu: float = SECONDS_PER_CPU,
    prepare: Callable[[], None] = lambda: None,
) -> list[dict[str, Any]]:
    """WORK's answer to each of JOBS, one after the other in a child, at most SECONDS_PER_CPU for each CPU.

    A child that dies has answered the job it was at (reason `sigbus`, `sigkill`, ..., `timeout`), and another
    one goes on behind it. PREPARE is called first in each child. Raises OSError when no child can be made.
    """
    answers: list[dict[str, Any]] = []
    spent: dict[int, float] = {}
    while len(answers) < len(jobs):
        answers += _one_child(jobs[len(answers) :], work, seconds_per_cpu, spent, prepare)
    return answers


def _one_child(
    jobs: Sequence[Job], work: Work, limit: float, spent: dict[int, float], prepare: Callable[[], None]
) -> list[dict[str, Any]]:
    """Answers to the first of JOBS, one at least: until the child is through, dead, or out of time.

    SPENT, seconds per CPU, goes on counting.
    """
    reader, writer = os.pipe()
    try:
        child = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        raise
    if child == 0:
        _work_and_exit(reader, writer, jobs, work, limit, dict(spent), prepare)
    os.close(writer)
    answers: list[dict[str, Any]] = []
    lost = ""
    lines = _Lines(reader)
    try:
        for job in jobs:
            begin = time.monotonic()
            try:
                line = lines.next(max(0.0, limit - spent.get(job.cpu, 0.0)) + _GRACE)
            except TimeoutError:
                lost = "timeout"
            spent[job.cpu] = spent.get(job.cpu, 0.0) + time.monotonic() - begin
            if lost or line is None:
                break
            answers.append(line)
    finally:
        os.close(reader)
        status = _reap(child, kill=bool(lost) or len(answers) == len(jobs))
    if len(answers) < len(jobs):
        answers.append(_lost(lost, status, limit))
    return answers


class _Lines:
    """JSON objects, one a line, from a pipe."""

    def __init__(self, reader: int) -> None:
        self._reader = reader
        self._data = b""

    def next(self, timeout: float) -> dict[str, Any] | None:
        """The next one; None when the writer is gone. Raises TimeoutError."""
        deadline = time.monotonic() + timeout
        while b"\n" not in self._data:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._reader], [], [], left)[0]:
                raise TimeoutError
            chunk = os.read(self._reader, 65536)
            if not chunk:
                return None
            self._data += chunk
        line, _newline, self._data = self._data.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found


def _work_and_exit(
    reader: int,
    writer: int,
    jobs: Sequence[Job],
    work: Work,
    limit: float,
    spent: dict[int, float],
    prepare: Callable[[], None],
) -> None:
    """In the child: answer job by job, leave without running any of the parent's exit code."""
    try:
        os.close(reader)
        _stay_small()
        prepare()
        for job in jobs:
            begin = time.monotonic()
            try:
                answer = work(job, limit - spent.get(job.cpu, 0.0))
            except Exception as exc:  # noqa: BLE001  one broken job must not take the others with it
                text = f"{type(exc).__name__}: {exc}"
                answer = {"status": "error", "reason": "check_broke", "detail": text}
            spent[job.cpu] = spent.get(job.cpu, 0.0) + time.monotonic() - begin
            os.write(writer, json.dumps(answer).encode() + b"\n")
        os._exit(0)
    finally:
        os._exit(1)


def _stay_small() -> None:
    """Die by signals as the kernel does it, leave no core, go first when memory is short, wait for others."""
    for number in (signal.SIGBUS, signal.SIGSEGV, signal.SIGILL, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    with contextlib.suppress(OSError):
        os.nice(_NICE)


def _reap(child: int, kill: bool) -> int:
    """The wait status of CHILD, which is killed first if KILL or if it does not end by itself."""
    deadline = time.monotonic() + _GRACE
    while not kill:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status
        kill = time.monotonic() > deadline
        time.sleep(0.001)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def _lost(reason: str, status: int, limit: float) -> dict[str, Any]:
    """The answer of a job whose child did not say anything."""
    if reason == "timeout":
        return refused(reason, f"no answer within {limit:g} s for this CPU")
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return refused(name.lower(), f"the process that tried it was ended by {name}")
    return refused("child_failed", f"the process that tried it ended with wait status {status}")
