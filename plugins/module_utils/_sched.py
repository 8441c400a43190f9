# SPDX-License-Identifier: Apache-2.0
"""Real-time scheduling: what the kernel's switches say, and whether it really grants SCHED_FIFO.

Sources: Documentation/scheduler/sched-rt-group.rst, sched-deadline.rst, kernel/sched/debug.c (fair_server,
Linux 6.12), cgroup-v2.rst ("CPU"), sched(7).
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import json
import os
import select
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass

from . import _files

FIFO_PRIORITY = 1
_CAP_SYS_NICE = 23


@dataclass(frozen=True)
class FifoAttempt:
    """Outcome of one attempt. `granted` None: it could not be made; `error` is an errno name or a reason."""

    granted: bool | None
    error: str = ""
    cgroup: str = ""
    capable: bool = False


def try_fifo(timeout: float = 30.0, avoid_cpus: Collection[int] = ()) -> FifoAttempt:
    """Ask the kernel for SCHED_FIFO priority 1 in a forked child and return what it said.

    The child leaves the CPUs of AVOID_CPUS when it may run elsewhere, takes the policy, reads it back and
    exits; it never runs anything else at that priority. This process keeps its policy and affinity. A child
    that has not answered after TIMEOUT seconds is killed and reaped.
    """
    capable, cgroup = _can_nice(), _own_cgroup()
    reader, writer = os.pipe()
    try:
        child = os.fork()
    except OSError as exc:
        os.close(reader)
        os.close(writer)
        return FifoAttempt(None, errno.errorcode.get(exc.errno or 0, "fork"), cgroup, capable)
    if child == 0:
        _attempt_and_exit(reader, writer, avoid_cpus)
    os.close(writer)
    try:
        answer = _answer(reader, timeout)
    finally:
        os.close(reader)
        _reap(child)
    if not answer:
        return FifoAttempt(None, "timeout", cgroup, capable)
    return FifoAttempt(bool(answer.get("granted")), str(answer.get("error", "")), cgroup, capable)


def _attempt_and_exit(reader: int, writer: int, avoid: Collection[int]) -> None:
    """In the child: try, write the answer, leave without running any of the parent's exit code."""
    answer: dict[str, object] = {"granted": False, "error": "unknown"}
    try:
        os.close(reader)
        elsewhere = os.sched_getaffinity(0) - set(avoid)
        if elsewhere:
            os.sched_setaffinity(0, elsewhere)
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(FIFO_PRIORITY))
        took = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_FIFO
        answer = {"granted": took, "error": "" if took else "policy_not_taken"}
    except OSError as exc:
        answer = {"granted": False, "error": errno.errorcode.get(exc.errno or 0, str(exc.errno))}
    finally:
        try:
            os.write(writer, json.dumps(answer).encode())
        finally:
            os._exit(0)


def _answer(reader: int, timeout: float) -> dict[str, object]:
    data = b""
    deadline = time.monotonic() + timeout
    while True:
        left = deadline - time.monotonic()
        ready = select.select([reader], [], [], left)[0] if left > 0 else []
        if not ready:
            return {}
        chunk = os.read(reader, 4096)
        if not chunk:
            break
        data += chunk
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _reap(child: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)


def _can_nice() -> bool:
    """Whether this process holds CAP_SYS_NICE, without which EPERM says nothing about the host."""
    for line in (_files.read_text("/", "/proc/self/status") or "").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_SYS_NICE & 1)
    return False


def _own_cgroup() -> str:
    lines = (_files.read_text("/", "/proc/self/cgroup") or "").splitlines()
    for line in lines:
        _hierarchy, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            return path
    return ""


def rt_group_sched(root: str, release: str) -> tuple[bool | None, str]:
    """(whether kernel RELEASE was built with RT group scheduling, the file that says so); None: no file says.

    Raises OSError.
    """
    for path in (f"/boot/config-{release}", f"/lib/modules/{release}/config", "/proc/config.gz"):
        data = _files.read_bytes(root, path)
        if data is not None:
            text = gzip.decompress(data) if path.endswith(".gz") else data
            return b"\nCONFIG_RT_GROUP_SCHED=y\n" in b"\n" + text + b"\n", path
    return None, f"/boot/config-{release}"


FAIR_SERVER_DIR = "/sys/kernel/debug/sched/fair_server"
FAIR_SERVER_SINCE = (6, 12)


def fair_server(root: str) -> dict[int, tuple[int, int]] | None:
    """The budget of the deadline server that keeps fair tasks alive below busy FIFO threads.

    {cpu: (runtime, period)} in ns; None when the directory is absent (debugfs not mounted). Raises OSError.
    """
    names = _files.list_dir(root, FAIR_SERVER_DIR)
    if names is None:
        return None
    cpus = {}
    for name in names:
        if name.startswith("cpu") and name[3:].isdigit():
            runtime = _files.read_text(root, f"{FAIR_SERVER_DIR}/{name}/runtime")
            period = _files.read_text(root, f"{FAIR_SERVER_DIR}/{name}/period")
            if runtime is not None and period is not None:
                cpus[int(name[3:])] = (int(runtime), int(period))
    return cpus
