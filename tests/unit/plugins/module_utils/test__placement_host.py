# SPDX-License-Identifier: GPL-3.0-or-later
"""What is tried on a host: nothing on a busy one, nothing outside its cpuset, never the last page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _placement_host as ph
from ansible_collections.firsttouch.host.plugins.module_utils._placement_work import Job
from ansible_collections.firsttouch.host.plugins.module_utils._topology import read_topology
from ansible_collections.firsttouch.host.plugins.module_utils._tree import Tree
from support import put
from verified_host import CPU, NODE, bare_host, pool

STATUS = "Cpus_allowed:\tf\nCpus_allowed_list:\t{cpus}\nMems_allowed:\t3\nMems_allowed_list:\t{mems}\n"
KTHREADD = (2, "kthreadd", "S", 0, 0x208040)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    bare_host(tmp_path)
    put(tmp_path, "/proc/loadavg", "0.50 0.40 0.30 1/200 4321\n")
    put(tmp_path, "/proc/self/status", STATUS.format(cpus="0-3", mems="0-1"))
    thread(tmp_path, *KTHREADD)
    for node in (0, 1):
        text = f"Node {node} MemTotal: 1572864 kB\nNode {node} MemFree: 800000 kB\n"
        put(tmp_path, f"{NODE}/node{node}/meminfo", text)
    return tmp_path


def thread(root: Path, pid: int, command: str, state: str, cpu: int, flags: int = 0x400000) -> None:
    fields = [state, *["0"] * 5, str(flags), *["0"] * 29, str(cpu), "0", "0"]
    put(root, f"/proc/{pid}/task/{pid}/stat", f"{pid} ({command}) {' '.join(fields)}\n")


def isolate(root: Path, cpus: str, allowed: str) -> None:
    put(root, f"{CPU}/isolated", cpus + "\n")
    put(root, "/proc/self/status", STATUS.format(cpus=allowed, mems="0-1"))


def reserve(root: Path, pages: int) -> None:
    put(root, "/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", f"{pages}\n")


def free(root: Path, node: int, pages: int) -> None:
    """Let NODE have PAGES free pages of 2M of those that it has."""
    files = [f"{NODE}/node{number}/hugepages/hugepages-2048kB/free_hugepages" for number in (0, 1)]
    put(root, files[node], f"{pages}\n")
    total = sum(int((root / file[1:]).read_text()) for file in files)
    put(root, "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", f"{total}\n")


def busy(root: Path) -> ph.Blocked | None:
    tree = Tree(str(root))
    return ph.blocked(tree, ph.reach(tree).isolated, frozenset(range(4)), ph.MAX_LOAD)


def plan(root: Path, *, every_cpu: bool = False, gigantic: bool = True) -> tuple[list[Job], list[ph.Skip]]:
    tree = Tree(str(root))
    return ph.jobs_for(tree, read_topology(str(root)), ph.reach(tree), every_cpu=every_cpu, gigantic=gigantic)


def test_a_quiet_host_is_not_busy(host: Path) -> None:
    isolate(host, "1,3", "0,2")
    thread(host, 50, "sshd", "S", 0)
    thread(host, 51, "migration/3", "S", 3, 0x208040)
    thread(host, 52, "gone", "Z", 3)
    thread(host, os.getpid(), "python3", "R", 3)
    pool(host, 0, "2048kB", 3)
    assert busy(host) is None


def unreadable_thread(root: Path) -> None:
    isolate(root, "1,3", "0,2")
    thread(root, 50, "sshd", "S", 0)
    shutil.rmtree(root / "proc/2")


def server(root: Path) -> None:
    isolate(root, "1,3", "0,2")
    thread(root, 77, "infer", "S", 3)


def taken_pool(root: Path) -> None:
    pool(root, 0, "2048kB", 5)
    free(root, 0, 0)


def promised_pool(root: Path) -> None:
    pool(root, 0, "2048kB", 5)
    reserve(root, 5)


BUSY: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "a thread sleeps on an isolated CPU": (
        server,
        "host_busy",
        "thread 77 (infer) is on isolated CPU 3",
    ),
    "not all threads can be seen": (unreadable_thread, "hidden_processes", "not all threads"),
    "all pages are taken": (taken_pool, "host_busy", "0 pages of 2048kB are free"),
    "all free pages are promised": (promised_pool, "host_busy", "5 reserved"),
    "the load is high": (lambda root: put(root, "/proc/loadavg", "3.30 1 1 1/2 3\n"), "host_busy", "3.30"),
    "the load is not known": (
        lambda root: (root / "proc/loadavg").unlink(),
        "not_available",
        "load is not known",
    ),
}


@pytest.mark.parametrize("case", BUSY)
def test_nothing_is_tried(host: Path, case: str) -> None:
    break_it, reason, words = BUSY[case]
    break_it(host)
    found = busy(host)
    assert found is not None
    assert (found.reason, words in found.text, bool(found.source)) == (reason, True, True), found


def test_a_thread_on_the_same_cpu_is_nothing_where_no_cpu_is_isolated(host: Path) -> None:
    thread(host, 77, "infer", "R", 3)
    assert busy(host) is None


def test_one_housekeeping_cpu_for_each_node_and_each_node_from_it(host: Path) -> None:
    isolate(host, "1,3", "0,2")
    jobs, skips = plan(host)
    assert jobs == [
        Job("place", 0, (0,), 0, 8),
        Job("place", 0, (1,), 0, 8),
        Job("latency", 0, (0, 1)),
        Job("place", 2, (0,), 0, 8),
        Job("place", 2, (1,), 0, 8),
        Job("latency", 2, (0, 1)),
    ]
    assert skips == []


def test_every_cpu_that_may_be_used_isolated_ones_too(host: Path) -> None:
    isolate(host, "1,3", "0,2")
    assert sorted({job.cpu for job in plan(host, every_cpu=True)[0]}) == [0, 1, 2, 3]


def test_a_node_of_isolated_cpus_only_is_worked_from_one_of_them(host: Path) -> None:
    isolate(host, "2-3", "0-1")
    assert sorted({job.cpu for job in plan(host)[0]}) == [1, 3]


def test_cpus_outside_the_affinity_are_not_used_and_it_says_so(host: Path) -> None:
    put(host, "/proc/self/status", STATUS.format(cpus="1", mems="0-1"))
    jobs, skips = plan(host, every_cpu=True)
    assert {job.cpu for job in jobs} == {1}
    assert [(skip.cpu_node, skip.blocked.reason) for skip in skips] == [(1, "cpus_not_allowed")]


def test_nodes_outside_the_cpuset_are_not_used_and_it_says_so(host: Path) -> None:
    put(host, "/proc/self/status", STATUS.format(cpus="0-3", mems="1"))
    jobs, skips = plan(host)
    assert {job.nodes for job in jobs} == {(1,)}
    assert [(skip.node, skip.blocked.reason) for skip in skips] == [(0, "mems_not_allowed")]


def test_a_node_without_room_is_left_alone(host: Path) -> None:
    put(host, f"{NODE}/node1/meminfo", "Node 1 MemTotal: 1572864 kB\nNode 1 MemFree: 65000 kB\n")
    jobs, skips = plan(host)
    assert {job.nodes for job in jobs} == {(0,)}
    assert [(skip.node, skip.blocked.reason) for skip in skips] == [(1, "host_busy")]


def test_sparse_nodes_and_a_node_without_memory(host: Path) -> None:
    (host / f"{NODE[1:]}/node1").rename(host / f"{NODE[1:]}/node8")
    for name in ("online", "possible", "has_cpu"):
        put(host, f"{NODE}/{name}", "0,8\n")
    for name in ("has_memory", "has_normal_memory"):
        put(host, f"{NODE}/{name}", "0\n")
    put(host, f"{NODE}/node8/meminfo", "Node 8 MemTotal: 0 kB\nNode 8 MemFree: 0 kB\n")
    put(host, "/proc/self/status", STATUS.format(cpus="0-3", mems="0"))
    jobs, skips = plan(host)
    assert [(job.kind, job.cpu, job.nodes) for job in jobs] == [
        ("place", 1, (0,)),
        ("latency", 1, (0,)),
        ("place", 3, (0,)),
        ("latency", 3, (0,)),
    ]
    assert skips == []


@pytest.mark.parametrize(
    ("pages", "left", "reserved", "taken", "reason"),
    [
        (10, 10, 0, 2, None),
        (10, 3, 0, 2, None),
        (10, 2, 0, 1, None),
        (10, 5, 3, 1, None),
        (10, 1, 0, 0, "last_page"),
        (10, 5, 4, 0, "last_page"),
        (1, 1, 0, 0, "last_page"),
        (10, 5, 5, 0, "host_busy"),
        (10, 0, 0, 0, "host_busy"),
        (10, 4, 7, 0, "host_busy"),
    ],
)
def test_pages_to_spare_never_the_last(
    host: Path, pages: int, left: int, reserved: int, taken: int, reason: str | None
) -> None:
    pool(host, 0, "2048kB", 20)
    pool(host, 1, "2048kB", pages)
    free(host, 1, left)
    reserve(host, reserved)
    jobs, skips = plan(host)
    found = {job.pages for job in jobs if job.size_kb == 2048 and job.nodes == (1,)}
    assert found == ({taken} if taken else set())
    assert [(skip.node, skip.size_kb, skip.blocked.reason) for skip in skips] == (
        [(1, 2048, reason)] if reason else []
    )


def test_one_gigantic_page_and_only_where_its_cost_is_wanted(host: Path) -> None:
    pool(host, 1, "1048576kB", 4)
    jobs, _skips = plan(host)
    assert {(job.nodes, job.pages) for job in jobs if job.size_kb == 1 << 20} == {((1,), 1)}
    kinds = [(job.kind, job.size_kb) for job in jobs if job.cpu == 1]
    assert kinds[-2:] == [("latency", 0), ("place", 1 << 20)], "what costs most comes last"
    jobs, skips = plan(host, gigantic=False)
    assert not [job for job in jobs if job.size_kb]
    assert [(skip.node, skip.size_kb, skip.blocked.reason) for skip in skips] == [(1, 1 << 20, "too_costly")]


def test_counters_that_are_not_known_are_not_taken_for_room(host: Path) -> None:
    pool(host, 0, "2048kB", 10)
    (host / "sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages").unlink()
    jobs, skips = plan(host)
    assert not [job for job in jobs if job.size_kb]
    assert [(skip.node, skip.blocked.reason) for skip in skips] == [(0, "not_available")]


@pytest.mark.parametrize(
    ("groups", "limits", "reason"),
    [
        ("0::/a/b\n", {"/a/b/hugetlb.2MB": ("max", "max", "current", "0")}, None),
        ("0::/a/b\n", {"/a/b/hugetlb.2MB": ("max", "8388608", "current", "0")}, None),
        ("0::/a/b\n", {"/a/b/hugetlb.2MB": ("max", "8388608", "current", "6291456")}, "cgroup_limit"),
        ("0::/a/b\n", {"/a/hugetlb.2MB": ("max", "0", "current", "0")}, "cgroup_limit"),
        (
            "7:hugetlb:/k\n1:name=systemd:/x\n",
            {"/hugetlb/k/hugetlb.2MB": ("limit_in_bytes", "0", "usage_in_bytes", "0")},
            "cgroup_limit",
        ),
    ],
)
def test_a_limit_of_the_own_control_group_is_seen_before_it_kills(
    host: Path, groups: str, limits: dict[str, tuple[str, str, str, str]], reason: str | None
) -> None:
    pool(host, 0, "2048kB", 10)
    put(host, "/proc/self/cgroup", groups)
    for base, (most, limit, used, now) in limits.items():
        put(host, f"/sys/fs/cgroup{base}.{most}", limit + "\n")
        put(host, f"/sys/fs/cgroup{base}.{used}", now + "\n")
    jobs, skips = plan(host)
    assert bool([job for job in jobs if job.size_kb]) == (reason is None)
    assert [skip.blocked.reason for skip in skips] == ([reason] if reason else [])


def test_a_kernel_without_nodes_is_one_node(tmp_path: Path) -> None:
    put(tmp_path, f"{CPU}/online", "0-1\n")
    put(tmp_path, "/proc/meminfo", "MemTotal: 4000000 kB\n")
    put(tmp_path, "/proc/self/status", STATUS.format(cpus="0-1", mems="0"))
    assert plan(tmp_path) == ([Job("place", 1, (0,), 0, 8), Job("latency", 1, (0,))], [])


@pytest.mark.parametrize(
    ("trust", "reason"),
    [
        ("exposed", None),
        ("consistent", None),
        ("hidden", "topology_hidden"),
        ("contradictory", "topology_contradictory"),
        ("unknown", "trust_unknown"),
        (None, "trust_unknown"),
    ],
)
def test_what_proves_nothing(host: Path, trust: str | None, reason: str | None) -> None:
    found = ph.no_proof(trust, read_topology(str(host)))
    assert (found.reason if found else None) == reason
    assert found is None or "(0-1)" in found.text
