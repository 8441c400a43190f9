# SPDX-License-Identifier: Apache-2.0
"""Threads of a host and the CPUs they run on: /proc/PID/task/TID/stat, as in proc_pid_stat(5)."""

from __future__ import annotations

from dataclasses import dataclass, field

from ._tree import Tree

PROC = "/proc"
_PF_KTHREAD = 0x00200000
_KTHREADD = 2
_GONE = ("No such process", "No such file or directory")
# Offsets behind the closing parenthesis of the command.
_STATE, _FLAGS, _PROCESSOR = 0, 6, 36


@dataclass(frozen=True)
class Thread:
    """One thread: `cpu` is the CPU it runs on, or ran on last while it sleeps; `kernel` is PF_KTHREAD."""

    pid: int
    tid: int
    command: str
    state: str
    cpu: int
    kernel: bool

    @property
    def stat(self) -> str:
        """The file that says so."""
        return f"{PROC}/{self.pid}/task/{self.tid}/stat"


@dataclass
class Threads:
    """All threads that could be seen, and why that may not be all (`hidden`: a code and the path)."""

    found: list[Thread] = field(default_factory=list)
    hidden: tuple[str, str] | None = None


def read_threads(tree: Tree, live: bool) -> Threads:
    """The threads below TREE. LIVE: on a running host, where thread 2 is kthreadd unless we are in a container.

    What ends while we look is no trouble. `hidden` is not_recorded, pid_namespace, hidden_processes (hidepid=),
    permission_denied or unreadable.
    """
    pids = _numbers(tree, PROC)
    threads = Threads()
    for pid in pids:
        base = f"{PROC}/{pid}/task"
        for tid in _numbers(tree, base):
            path = f"{base}/{tid}/stat"
            text = tree.text(path)
            thread = parse_stat(pid, text) if text else None
            if thread:
                threads.found.append(thread)
            elif text or (text is not None and not live):
                threads.hidden = ("unreadable", path)
            elif tree.trouble.get(path, _GONE[0]) not in _GONE:
                threads.hidden = (tree.reason(path), path)
        if base in tree.trouble and tree.trouble[base] not in _GONE:
            threads.hidden = (tree.reason(base), base)
    if not threads.found:
        threads.hidden = threads.hidden or ("not_available" if live else "not_recorded", PROC)
    elif live and not any(thread.pid == _KTHREADD and thread.kernel for thread in threads.found):
        reason = "pid_namespace" if _KTHREADD in pids or 1 in pids else "hidden_processes"
        threads.hidden = threads.hidden or (reason, f"{PROC}/{_KTHREADD}/stat")
    return threads


def _numbers(tree: Tree, path: str) -> list[int]:
    """The process numbers in the directory PATH; they go up to 4194304."""
    return sorted(int(name) for name in tree.names(path) if name.isdigit())


def parse_stat(pid: int, text: str) -> Thread | None:
    """The thread that TEXT, one line of a stat file, describes; None when it is no such line.

    The command stands in parentheses and may hold blanks and parentheses itself.
    """
    head, opened, rest = text.partition(" (")
    command, closed, tail = rest.rpartition(") ")
    fields = tail.split()
    if not opened or not closed or not head.isdigit() or len(fields) <= _PROCESSOR:
        return None
    if not fields[_FLAGS].isdigit() or not fields[_PROCESSOR].isdigit():
        return None
    kernel = bool(int(fields[_FLAGS]) & _PF_KTHREAD)
    return Thread(pid, int(head), command, fields[_STATE], int(fields[_PROCESSOR]), kernel)


def allowed_cpus(tree: Tree, thread: Thread) -> str:
    """Cpus_allowed_list of THREAD as the kernel prints it; empty when it is gone."""
    for line in (tree.text(f"{PROC}/{thread.pid}/task/{thread.tid}/status") or "").splitlines():
        name, _colon, value = line.partition(":")
        if name == "Cpus_allowed_list":
            return value.strip()
    return ""


def control_group(tree: Tree, pid: int) -> str:
    """The path of process PID in the unified hierarchy, else in the first one that is listed; empty when gone."""
    lines = (tree.text(f"{PROC}/{pid}/cgroup") or "").splitlines()
    paths = {line.split(":", 2)[0]: line.split(":", 2)[2] for line in lines if line.count(":") >= 2}
    return paths.get("0") or next(iter(paths.values()), "")
