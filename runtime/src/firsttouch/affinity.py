# SPDX-License-Identifier: Apache-2.0
"""pin(): one CPU for the calling thread, and what belongs to it; undo() takes all of it back.

Isolated CPUs are not load-balanced: a thread that may run on several of them stays on the one where it woke up. So a
thread gets exactly one. What the kernel refuses is in the report with its reason, and the rest is done all the same.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final

from firsttouch import _linux
from firsttouch.errors import AffinityError

# A thread that waits for the GIL asks for it after this time: 5 ms by default, which is many round trips.
SERVER_SWITCH_SECONDS: Final = 1e-4
_CPUS: Final = Path("/sys/devices/system/cpu")
_POOL_VARIABLES: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_OPENBLAS_PREFIXES: Final = ("scipy_openblas", "openblas")


@dataclass
class Step:
    """One thing that was asked for: whether it is so now, and why not."""

    name: str
    wanted: str
    done: bool
    reason: str = ""
    undo: Callable[[], object] | None = field(default=None, repr=False)

    def as_dict(self) -> dict[str, object]:
        """As JSON values."""
        return {"name": self.name, "wanted": self.wanted, "done": self.done, "reason": self.reason}


@dataclass
class Pinned:
    """What pin() did. A context manager: leaving it is undo()."""

    steps: list[Step] = field(default_factory=list)

    @property
    def refused(self) -> list[Step]:
        """What could not be done."""
        return [step for step in self.steps if not step.done]

    def undo(self) -> None:
        """Put everything back as it was, last things first. In the thread that called pin(); a second time is fine."""
        for step in reversed(self.steps):
            undo, step.undo = step.undo, None
            if undo is not None:
                undo()

    def __enter__(self) -> Pinned:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


def pin(
    cpu: int,
    *,
    worker_cpus: Iterable[int] = (),
    fifo_priority: int | None = None,
    bind_memory: bool = True,
    switch_seconds: float | None = None,
) -> Pinned:
    """Give the calling thread CPU alone, and what belongs to it.

    WORKER_CPUS: those that BLAS and OpenMP pools may use, as many threads as CPUs; none for one thread. FIFO_PRIORITY:
    real-time priority 1 to 99. BIND_MEMORY: prefer memory of the CPU's node from now on. SWITCH_SECONDS: the
    interpreter's switch interval, SERVER_SWITCH_SECONDS for a server.

    Raises AffinityError when the thread cannot run on CPU at all; nothing is changed then.
    """
    done = Pinned()
    try:
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {cpu})
    except (OSError, ValueError, OverflowError) as error:
        raise _no_cpu(cpu, error) from error
    done.steps.append(Step("cpu", str(cpu), True, undo=lambda: os.sched_setaffinity(0, before)))
    done.steps.append(_bound_pools(sorted(set(worker_cpus)) or [cpu]))
    if fifo_priority is not None:
        done.steps.append(set_fifo(fifo_priority))
    if bind_memory:
        done.steps.append(_prefer_node(cpu))
    if switch_seconds is not None:
        old = sys.getswitchinterval()
        sys.setswitchinterval(switch_seconds)
        done.steps.append(
            Step("switch_interval", f"{switch_seconds:g} s", True, undo=lambda: sys.setswitchinterval(old))
        )
    return done


def try_cpus(cpus: Iterable[int]) -> None:
    """Raise AffinityError when the calling thread cannot run on one of CPUS; it stays where it is."""
    before = os.sched_getaffinity(0)
    try:
        for cpu in cpus:
            try:
                os.sched_setaffinity(0, {cpu})
            except (OSError, ValueError, OverflowError) as error:
                raise _no_cpu(cpu, error) from error
    finally:
        os.sched_setaffinity(0, before)


def _no_cpu(cpu: int, error: Exception) -> AffinityError:
    return AffinityError(
        f"this thread cannot run on CPU {cpu}: {error}",
        hint="choose one of its cpuset (/proc/self/status, Cpus_allowed_list)",
        facts={"cpu": cpu},
    )


def spread(cpus: Sequence[int], home: Set[int], keep: Iterable[int] = ()) -> None:
    """Give each thread of this process that has no CPU of its own yet one of CPUS[1:], in the order they began.

    CPUS[0] is the serving thread's alone; threads that it starts (of BLAS, of torch) begin on it as well. Those for
    which there is no CPU go to HOME; those in KEEP (native ids) are left alone.
    """
    free, kept = list(cpus[1:]), set(keep)
    for tid in sorted(int(name) for name in os.listdir("/proc/self/task")):
        if tid in kept:
            continue
        wanted = {free.pop(0)} if free else home
        # A thread may be gone by now.
        with contextlib.suppress(OSError):
            if os.sched_getaffinity(tid) != wanted:
                os.sched_setaffinity(tid, wanted)


def node_of(cpu: int) -> int | None:
    """The memory node of CPU, None where the kernel has no nodes."""
    with contextlib.suppress(OSError):
        for entry in os.listdir(_CPUS / f"cpu{cpu}"):
            if re.fullmatch(r"node[0-9]+", entry):
                return int(entry[4:])
    return None


def set_fifo(priority: int) -> Step:
    """SCHED_FIFO for the calling thread, by trying. Children do not inherit it."""
    wanted = f"SCHED_FIFO {priority}"
    try:
        policy, param = os.sched_getscheduler(0), os.sched_getparam(0)
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(priority))
    except (OSError, ValueError) as error:
        return Step("scheduler", wanted, False, f"{error}; needs CAP_SYS_NICE or LimitRTPRIO={priority}")
    return Step("scheduler", wanted, True, undo=lambda: os.sched_setscheduler(0, policy, param))


def _prefer_node(cpu: int) -> Step:
    """Memory of the CPU's node first."""
    node = node_of(cpu)
    if node is None:
        return Step("memory", f"node of CPU {cpu}", False, "the kernel tells of no node")
    try:
        mode, nodes = _linux.get_mempolicy()
        _linux.set_mempolicy(_linux.Mpol.PREFERRED, [node])
    except OSError as error:
        return Step("memory", f"node {node}", False, str(error))
    return Step("memory", f"node {node}", True, undo=lambda: _linux.set_mempolicy(_linux.Mpol(mode), nodes))


def _bound_pools(cpus: list[int]) -> Step:
    """As many threads in BLAS and OpenMP pools as there are CPUS: of libraries that are loaded, and of later ones."""
    count = len(cpus)
    before = {name: os.environ.get(name) for name in _POOL_VARIABLES}
    os.environ.update(dict.fromkeys(_POOL_VARIABLES, str(count)))
    undo: list[Callable[[], object]] = [lambda: _restore(before)]
    reasons = []
    for path in _loaded("openblas"):
        back = _set_openblas(path, count)
        if back is None:
            reasons.append(f"{os.path.basename(path)} has no call for its number of threads")
        else:
            undo.append(back)
    torch = sys.modules.get("torch")
    if torch is not None:
        old = torch.get_num_threads()
        torch.set_num_threads(count)
        undo.append(lambda: torch.set_num_threads(old))
    reasons += [f"{os.path.basename(path)} is loaded and cannot be changed" for path in _loaded("mkl_rt")]
    return Step(
        "thread_pools", f"{count} threads", not reasons, "; ".join(reasons), lambda: [call() for call in reversed(undo)]
    )


def _restore(before: dict[str, str | None]) -> None:
    """Put environment variables back."""
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _loaded(word: str) -> list[str]:
    """Shared libraries of this process with WORD in their name."""
    found = set()
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            path = line.rstrip("\n").partition("/")[2]
            if word in os.path.basename(path) and ".so" in path:
                found.add("/" + path)
    return sorted(found)


def _set_openblas(path: str, count: int) -> Callable[[], object] | None:
    """Set the threads of the OpenBLAS at PATH; the call that takes it back, None where it has none."""
    try:
        library = ctypes.CDLL(path)
    except OSError:
        return None
    for prefix in _OPENBLAS_PREFIXES:
        for suffix in ("", "64_", "_64"):
            setter = getattr(library, f"{prefix}_set_num_threads{suffix}", None)
            getter = getattr(library, f"{prefix}_get_num_threads{suffix}", None)
            if setter is not None and getter is not None:
                old = int(getter())
                setter(count)
                return lambda: setter(old)
    return None
