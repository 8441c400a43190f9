# SPDX-License-Identifier: GPL-3.0-or-later
"""What the kernel says about pages, and what is made of it: two sources, refusals, wrong nodes, latency."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _placement_work
from ansible_collections.firsttouch.host.plugins.module_utils._placement_chase import BUFFER_BYTES
from ansible_collections.firsttouch.host.plugins.module_utils._placement_kernel import (
    SYSCALLS,
    Kernel,
    Unsupported,
)
from ansible_collections.firsttouch.host.plugins.module_utils._placement_run import run
from ansible_collections.firsttouch.host.plugins.module_utils._placement_work import Job, Worker, judged

PAGE = 4096
EPERM, ENOSYS = OSError(errno.EPERM, "move_pages: no"), OSError(errno.ENOSYS, "get_mempolicy: none")


class FakeKernel:
    """A kernel with pages on nodes: mappings are bound, touched, asked about; `refuse`: an errno per call."""

    def __init__(self, refuse: dict[str, int] | None = None, misplace: int | None = None) -> None:
        self.refuse, self.misplace = refuse or {}, misplace
        self.calls: list[tuple[Any, ...]] = []
        self.mapped: dict[int, int] = {}
        self.bound: dict[int, int] = {}
        self.pages: dict[int, int] = {}

    def _called(self, name: str, *arguments: Any) -> None:
        self.calls.append((name, *arguments))
        if name in self.refuse:
            raise OSError(self.refuse[name], f"{name}: refused")

    def map(self, length: int, huge_kb: int = 0) -> int:
        self._called("map", length, huge_kb)
        base = 1 << 30 | len(self.calls) << 24
        self.mapped[base] = length
        return base

    def unmap(self, address: int, length: int) -> None:
        assert self.mapped.pop(address) == length

    def small_pages(self, address: int, length: int) -> None:
        self._called("small_pages")

    def bind(self, address: int, length: int, node: int) -> None:
        self._called("bind", node)
        assert self.mapped[address] == length
        self.bound[address] = node

    def bind_task(self, node: int | None) -> None:
        self._called("bind_task", node)

    def touch(self, address: int) -> None:
        base = max(base for base in self.mapped if base <= address)
        assert address < base + self.mapped[base]
        self.pages[address] = self.bound[base] if self.misplace is None else self.misplace

    def write(self, address: int, data: bytes) -> None:
        for page in range(address, address + len(data), PAGE):
            self.touch(page)

    def nodes_of(self, addresses: Sequence[int]) -> list[int]:
        self._called("move_pages")
        return [self.pages.get(address, -errno.ENOENT) for address in addresses]

    def node_of(self, address: int) -> int:
        self._called("get_mempolicy")
        return self.pages[address]


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    taken: list[set[int]] = [{0, 1}]
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: taken.append(set(cpus)))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: taken[-1])
    return taken


def work(kernel: FakeKernel, job: Job, seconds: float = 1.0) -> dict[str, Any]:
    return Worker(cast(Kernel, kernel), PAGE).work(job, seconds)


def test_ordinary_pages_are_bound_touched_and_found_where_they_should_be(pinned: list[set[int]]) -> None:
    kernel = FakeKernel()
    answer = work(kernel, Job("place", 5, (8,), 0, 8))
    assert (answer["status"], answer["found"]) == (
        "placed",
        {"move_pages": {"8": 8}, "get_mempolicy": {"8": 8}},
    )
    assert (pinned[-1], kernel.mapped, len(kernel.pages)) == ({5}, {}, 8)
    assert ("map", 8 * PAGE, 0) in kernel.calls and ("bind", 8) in kernel.calls
    assert "bind_task" not in [call[0] for call in kernel.calls]


def test_huge_pages_are_mapped_under_a_policy_that_is_gone_again(pinned: list[set[int]]) -> None:
    kernel = FakeKernel()
    assert work(kernel, Job("place", 0, (1,), 2048, 2))["status"] == "placed"
    assert kernel.calls[:4] == [("bind_task", 1), ("map", 4 << 20, 2048), ("bind_task", None), ("bind", 1)]
    assert max(kernel.pages) - min(kernel.pages) == 2 << 20


def test_the_policy_goes_back_also_when_the_mapping_is_refused(pinned: list[set[int]]) -> None:
    kernel = FakeKernel({"map": errno.ENOMEM})
    answer = work(kernel, Job("place", 0, (1,), 2048, 2))
    assert (answer["status"], answer["reason"]) == ("not_evaluated", "no_memory")
    assert kernel.calls[-1] == ("bind_task", None)


@pytest.mark.parametrize(
    ("call", "number", "reason"),
    [
        ("bind", errno.EINVAL, "mems_not_allowed"),
        ("bind", errno.EPERM, "permission_denied"),
        ("bind", errno.ENOSYS, "unsupported"),
        ("bind", errno.EIO, "kernel_refused"),
        ("map", errno.ENOMEM, "no_memory"),
        ("small_pages", errno.EACCES, "permission_denied"),
    ],
)
def test_a_refusal_is_an_answer_and_gives_the_mapping_back(
    pinned: list[set[int]], call: str, number: int, reason: str
) -> None:
    kernel = FakeKernel({call: number})
    answer = work(kernel, Job("place", 0, (0,), 0, 8))
    assert (answer["status"], answer["reason"], kernel.mapped) == ("not_evaluated", reason, {})
    assert errno.errorcode[number] in answer["detail"]


def test_pages_on_another_node_are_wrong(pinned: list[set[int]]) -> None:
    answer = work(FakeKernel(misplace=0), Job("place", 0, (1,), 0, 8))
    assert (answer["status"], answer["reason"]) == ("wrong", "wrong_node")


@pytest.mark.parametrize(
    ("moved", "policy", "status", "reason"),
    [
        ([1, 1], [1, 1], "placed", None),
        ([1, 1], ENOSYS, "placed", None),
        (EPERM, [1, 1], "placed", None),
        ([-errno.ENOENT, 1], [1, 1], "placed", None),
        ([1, 0], [1, 1], "wrong", "contradictory_sources"),
        ([0, 0], [0, 0], "wrong", "wrong_node"),
        ([0, 0], ENOSYS, "wrong", "wrong_node"),
        (EPERM, ENOSYS, "not_evaluated", "permission_denied"),
        ([-errno.EFAULT, 1], ENOSYS, "not_evaluated", "kernel_refused"),
    ],
)
def test_two_sources(moved: Any, policy: Any, status: str, reason: str | None) -> None:
    row = judged(1, moved, policy)
    assert (row["status"], row.get("reason")) == (status, reason)
    silent = [s for s, a in (("move_pages", moved), ("get_mempolicy", policy)) if isinstance(a, OSError)]
    if status != "not_evaluated":
        assert set(silent) <= set(row["silent"]), "who said nothing is named"


def test_a_cpu_outside_the_cpuset_is_not_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, cpus: set[int]) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    answer = work(FakeKernel(), Job("place", 7, (0,), 0, 8))
    assert (answer["status"], answer["reason"]) == ("not_evaluated", "cpus_not_allowed")


def test_a_cpu_that_was_not_taken_is_not_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    assert work(FakeKernel(), Job("place", 0, (0,), 0, 8))["reason"] == "cpus_not_allowed"


@pytest.mark.parametrize(("size_kb", "seconds"), [(1 << 20, 0.5), (0, 0.0), (0, -0.1)])
def test_what_does_not_fit_the_time_of_the_cpu_is_not_begun(size_kb: int, seconds: float) -> None:
    kernel = FakeKernel()
    assert work(kernel, Job("place", 0, (0,), size_kb, 1), seconds)["reason"] == "time_budget"
    assert kernel.calls == []


class FakeChase:
    """Loads that take as many ns as the node of the buffer says."""

    refuse = False

    def __init__(self, kernel: FakeKernel, cycles: bytes) -> None:
        if self.refuse:
            raise OSError(errno.EACCES, "mprotect: Permission denied")
        assert len(cycles) == BUFFER_BYTES
        self.kernel, self.image = kernel, cycles

    def pass_ns(self, base: int) -> list[float]:
        return [100.0 + 50 * self.kernel.bound[base]] * 7 + [5000.0]

    def cached_ns(self, base: int) -> float:
        return 1.5


@pytest.fixture
def chase(monkeypatch: pytest.MonkeyPatch) -> type[FakeChase]:
    monkeypatch.setattr(_placement_work, "Chase", FakeChase)
    return FakeChase


def test_latency_of_each_node_with_the_disturbed_parts_voted_down(pinned: Any, chase: Any) -> None:
    kernel = FakeKernel()
    answer = work(kernel, Job("latency", 0, (0, 3)))
    assert (answer["status"], answer["trouble"], answer["cache_ns"]) == ("measured", {}, 1.5)
    assert {node: (row["ns"], row["mad"], row["samples"]) for node, row in answer["nodes"].items()} == {
        "0": (100.0, 0.0, 56),
        "3": (250.0, 0.0, 56),
    }
    assert kernel.mapped == {}


def test_latency_counts_only_from_memory_that_is_on_its_node(pinned: Any, chase: Any) -> None:
    kernel = FakeKernel(misplace=0)
    answer = work(kernel, Job("latency", 0, (0, 1)))
    assert sorted(answer["nodes"]) == ["0"]
    assert answer["trouble"]["1"]["reason"] == "wrong_node"
    assert kernel.mapped == {}


def test_latency_is_not_measured_without_executable_memory(
    pinned: Any, chase: type[FakeChase], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chase, "refuse", True)
    answer = work(FakeKernel(), Job("latency", 0, (0,)))
    assert (answer["status"], answer["reason"]) == ("not_evaluated", "no_executable_memory")
    assert "EACCES" in answer["detail"]


def test_latency_without_memory_or_time_is_not_measured(pinned: Any, chase: Any) -> None:
    kernel = FakeKernel({"bind": errno.EINVAL})
    answer = work(kernel, Job("latency", 0, (0, 1)))
    assert (answer["status"], answer["reason"]) == ("not_evaluated", "no_memory")
    assert {row["reason"] for row in answer["trouble"].values()} == {"mems_not_allowed"}
    assert work(FakeKernel(), Job("latency", 0, (0,)), 1e-9)["reason"] == "time_budget"


def seccomp(number: int, action: int) -> Callable[[], None]:
    """What makes the kernel answer system call NUMBER with ACTION in this process (seccomp(2))."""

    def install() -> None:
        rules = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, action), (0x06, 0, 0, ALLOW)]
        program = b"".join(struct.pack("HBBI", *rule) for rule in rules)
        code = ctypes.create_string_buffer(program, len(program))
        filters = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(rules), ctypes.addressof(code)))
        libc = ctypes.CDLL(None, use_errno=True)
        unsigned = ctypes.c_ulong
        assert libc.prctl(38, unsigned(1), unsigned(0), unsigned(0), unsigned(0)) == 0  # PR_SET_NO_NEW_PRIVS
        assert libc.prctl(22, unsigned(2), filters, unsigned(0), unsigned(0)) == 0  # PR_SET_SECCOMP

    return install


def really(job: Job, prepare: Callable[[], None]) -> dict[str, Any]:
    """The answer of this machine's kernel to JOB after PREPARE."""
    try:
        kernel = Kernel()
    except Unsupported as exc:
        pytest.skip(str(exc))
    return run([job], Worker(kernel, os.sysconf("SC_PAGE_SIZE")).work, prepare=prepare)[0]


ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000, 0x80000000
HERE = min(os.sched_getaffinity(0))
PLACE = Job("place", HERE, (0,), 0, 8)


@pytest.mark.parametrize(
    ("call", "action", "status", "reason"),
    [
        ("mbind", REFUSE | errno.EPERM, "not_evaluated", "permission_denied"),
        ("mbind", REFUSE | errno.ENOSYS, "not_evaluated", "unsupported"),
        ("mbind", KILL, "not_evaluated", "sigsys"),
        ("move_pages", REFUSE | errno.EPERM, "placed", ""),
        ("get_mempolicy", REFUSE | errno.EPERM, "placed", ""),
    ],
)
def test_a_seccomp_filter_is_an_answer(call: str, action: int, status: str, reason: str) -> None:
    numbers = SYSCALLS.get(os.uname().machine)
    if numbers is None:
        pytest.skip(f"no system call numbers for {os.uname().machine}")
    plain = really(PLACE, lambda: None)
    if plain["status"] != "placed":
        pytest.skip(f"not allowed here: {plain}")
    answer = really(PLACE, seccomp(numbers[call], action))
    assert (answer["status"], answer.get("reason", "")) == (status, reason)
    if status == "placed":
        assert set(answer["silent"]) == {call}
        assert set(answer["found"]) == {"move_pages", "get_mempolicy"} - {call}


def test_a_process_that_may_not_make_code_has_no_latency() -> None:
    def forbid() -> None:
        unsigned = ctypes.c_ulong
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(65, unsigned(1), unsigned(0), unsigned(0), unsigned(0)):  # PR_SET_MDWE, Linux 6.3
            os._exit(77)

    answer = really(Job("latency", HERE, (0,)), forbid)
    if answer["reason"] == "child_failed":
        pytest.skip("this kernel has no PR_SET_MDWE")
    assert (answer["status"], answer["reason"]) == ("not_evaluated", "no_executable_memory")
    assert "mprotect" in answer["detail"]
