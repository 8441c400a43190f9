# SPDX-License-Identifier: Apache-2.0
"""What may be tried on a host without disturbing it: which CPUs and nodes, how many pages, or nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ._cpulist import format_list
from ._hugepages import pools_of
from ._placement_work import Job
from ._threads import read_threads
from ._topology import Topology
from ._topology_cpus import CPU_DIR
from ._topology_nodes import NODE_DIR, POOL_DIR, Node
from ._tree import Tree, id_list

MOST_PAGES = 8
MAX_LOAD = 0.8
# A load of its own that Ansible makes on any host.
_OWN_LOAD = 1.5
_GIGANTIC_KB = 64 << 10
_ROOM_BYTES = 64 << 20
_CGROUP_UNITS = ((1 << 20, "GB"), (1 << 10, "MB"), (1, "KB"))
_STATUS, _LOAD = "/proc/self/status", "/proc/loadavg"


@dataclass(frozen=True)
class Blocked:
    """Why something is not tried: a reason code, words, and the file that shows it."""

    reason: str
    text: str
    source: str


@dataclass(frozen=True)
class Skip:
    """A part of the matrix that is left out; None: all of it."""

    blocked: Blocked
    cpu_node: int | None = None
    node: int | None = None
    size_kb: int | None = None


def blocked(
    tree: Tree, isolated: frozenset[int], online: frozenset[int], max_load: float, live: bool = True
) -> Blocked | None:
    """Why nothing at all should be tried on this host now; None when it may be.

    A pool whose pages are all taken or promised serves somebody. MAX_LOAD: of one minute, per online CPU.
    """
    for size, pool in pools_of(tree).items():
        if pool["persistent"] and pool["available"] == 0:
            text = f"{pool['free']} pages of {size} are free and {pool['reserved']} reserved: none to spare"
            return Blocked("host_busy", text, f"{POOL_DIR}/hugepages-{size}/free_hugepages")
    load = re.match(r"(\d+\.\d+) ", tree.text(_LOAD) or "")
    if not load:
        return Blocked("not_available", "the load is not known", _LOAD)
    limit = max(max_load * len(online), _OWN_LOAD)
    if float(load.group(1)) > limit:
        text = f"the load of one minute is {load.group(1)}, more than {limit:g} on {len(online)} CPUs"
        return Blocked("host_busy", text, _LOAD)
    return _on_isolated(tree, isolated, live) if isolated else None


def _on_isolated(tree: Tree, isolated: frozenset[int], live: bool) -> Blocked | None:
    """The first user thread on an isolated CPU; asleep or not, it is served from there."""
    threads = read_threads(tree, live)
    for thread in threads.found:
        alive = thread.cpu in isolated and not thread.kernel and thread.state not in ("Z", "X")
        if alive and thread.pid != os.getpid():
            text = f"thread {thread.tid} ({thread.command}) is on isolated CPU {thread.cpu}"
            return Blocked("host_busy", text, thread.stat)
    if threads.hidden:
        reason, path = threads.hidden
        return Blocked(reason, "not all threads can be seen, so one may be on an isolated CPU", path)
    return None


@dataclass(frozen=True)
class Reach:
    """What this process may use, by its own status file; None where the file does not say."""

    cpus: frozenset[int] | None
    mems: frozenset[int] | None
    isolated: frozenset[int]


def reach(tree: Tree) -> Reach:
    """The CPUs and nodes that affinity and cpuset leave to this process, and the isolated CPUs."""
    lists = dict(re.findall(r"(?m)^(Cpus|Mems)_allowed_list:[ \t]*(\S*)$", tree.text(_STATUS) or ""))
    cpus, mems = (id_list(lists[name]) if name in lists else None for name in ("Cpus", "Mems"))
    return Reach(cpus, mems, tree.ids(f"{CPU_DIR}/isolated") or frozenset())


def choose_cpus(node: Node, may: Reach, every: bool) -> list[int]:
    """CPUs of NODE to work from: one housekeeping CPU, else an isolated one; EVERY: all that may be used.

    Isolated CPUs are in no ordinary task's affinity but still in its cpuset, whose word is had by trying.
    """
    allowed = node.cpus if may.cpus is None else node.cpus & may.cpus
    usable = allowed | node.cpus & may.isolated
    if every or not usable:
        return sorted(usable)
    return [max(usable - may.isolated or usable)]


def jobs_for(
    tree: Tree, topology: Topology, may: Reach, *, every_cpu: bool, gigantic: bool
) -> tuple[list[Job], list[Skip]]:
    """What to do on this host, CPU by CPU, and what is left out. GIGANTIC: also pages over 64 MiB."""
    skips: list[Skip] = []
    places = [
        (node.id, size_kb, pages)
        for node in topology.nodes
        if node.has_memory is not False
        for size_kb, pages in _pages_on(tree, node, may, gigantic, skips)
    ]
    ordinary = tuple(node for node, size_kb, _pages in places if not size_kb)
    jobs: list[Job] = []
    for node in topology.nodes:
        cpus = choose_cpus(node, may, every_cpu)
        if node.cpus and not cpus:
            text = f"none of CPUs {format_list(node.cpus)} of node {node.id} may be used"
            skips.append(Skip(Blocked("cpus_not_allowed", text, _STATUS), cpu_node=node.id))
        for cpu in cpus:
            placing = [Job("place", cpu, (place,), size_kb, pages) for place, size_kb, pages in places]
            jobs += [job for job in placing if job.size_kb <= _GIGANTIC_KB]
            jobs += [Job("latency", cpu, ordinary)] if ordinary else []
            jobs += [job for job in placing if job.size_kb > _GIGANTIC_KB]  # they may use up the time
    return jobs, skips


def _pages_on(
    tree: Tree, node: Node, may: Reach, gigantic: bool, skips: list[Skip]
) -> Iterator[tuple[int, int]]:
    """(page size in kB, pages) to try on NODE, size 0 being ordinary pages; the rest goes to SKIPS."""
    if may.mems is not None and node.id not in may.mems:
        text = f"this process may use memory of nodes {format_list(may.mems)} only"
        skips.append(Skip(Blocked("mems_not_allowed", text, _STATUS), node=node.id))
        return
    free = re.search(r"MemFree:\s*(\d+)\s*kB", tree.text(f"{NODE_DIR}/node{node.id}/meminfo") or "")
    if free and int(free.group(1)) * 1024 < _ROOM_BYTES:
        text = f"node {node.id} has {free.group(1)} kB free"
        skips.append(Skip(Blocked("host_busy", text, f"{NODE_DIR}/node{node.id}/meminfo"), node=node.id))
        return
    yield 0, MOST_PAGES
    for size, pool in pools_of(tree).items():
        row = pool["nodes"].get(str(node.id)) or (pool if not pool["nodes"] else {})
        answer = _spare(row, pool, size, node.id, gigantic)
        if not isinstance(answer, Blocked) and answer:
            answer = _cgroup_limit(tree, pool["size_kb"], answer) or answer
        if isinstance(answer, Blocked):
            skips.append(Skip(answer, node=node.id, size_kb=pool["size_kb"]))
        elif answer:
            yield pool["size_kb"], answer


def _spare(
    row: Mapping[str, Any], pool: Mapping[str, Any], size: str, node: int, gigantic: bool
) -> int | Blocked:
    """Pages of a pool that may be taken on one node, 0 where it has none at all; never its last one.

    The kernel does not say on which node reserved pages will be taken: all count against each node.
    """
    path = f"{NODE_DIR}/node{node}/hugepages/hugepages-{size}/free_hugepages"
    if not row or row.get("total") == 0:
        return 0
    if row["free"] is None or pool["reserved"] is None:
        return Blocked("not_available", f"free or reserved pages of {size} are not known", path)
    spare = int(row["free"]) - int(pool["reserved"]) - 1
    if spare < 1:
        text = f"node {node} has {row['free']} free pages of {size} and {pool['reserved']} are reserved"
        if spare == 0:
            return Blocked("last_page", f"{text}: the last one is not taken", path)
        return Blocked("host_busy", f"{text}: none to spare", path)
    if pool["size_kb"] <= _GIGANTIC_KB:
        return min(spare, 2)
    if not gigantic:
        return Blocked("too_costly", f"a page of {size} is zeroed first", path)
    return 1


def _cgroup_limit(tree: Tree, size_kb: int, pages: int) -> Blocked | None:
    """Whether a control group of this process allows fewer than PAGES more pages, which would be a SIGBUS.

    hugetlb.<size>.max and .current, .limit_in_bytes and .usage_in_bytes in the older hierarchy, also of the
    groups above (Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/hugetlb.rst).
    """
    size = next(f"{size_kb // kb}{unit}" for kb, unit in _CGROUP_UNITS if size_kb >= kb)
    for line in (tree.text("/proc/self/cgroup") or "").splitlines():
        number, _colon, rest = line.partition(":")
        controllers, _colon, group = rest.partition(":")
        old = "hugetlb" in controllers.split(",")
        if not old and number != "0":
            continue
        limit, used = ("limit_in_bytes", "usage_in_bytes") if old else ("max", "current")
        while True:
            base = f"/sys/fs/cgroup{'/hugetlb' if old else ''}{group.rstrip('/')}/hugetlb.{size}"
            most, now = (tree.text(f"{base}.{name}") or "" for name in (limit, used))
            if most.isdigit() and now.isdigit() and int(most) - int(now) < pages * size_kb * 1024:
                text = f"its control group allows {most} bytes of {size} pages, {now} are in use"
                return Blocked("cgroup_limit", text, f"{base}.{limit}")
            if not group.strip("/"):
                break
            group = group.rpartition("/")[0]
    return None


def no_proof(trust: str | None, topology: Topology) -> Blocked | None:
    """Why placements prove nothing about the machine below a topology of verdict TRUST; None when they do."""
    nodes = format_list(node.id for node in topology.nodes)
    if trust in ("exposed", "consistent"):
        return None
    if trust == "hidden":
        text = (
            f"the machine has more nodes than the kernel shows ({nodes}): a page that is on one of them "
            "for the kernel may be anywhere"
        )
        return Blocked("topology_hidden", text, NODE_DIR)
    if trust == "contradictory":
        text = f"the sources contradict each other about the nodes ({nodes}), so that a node means nothing"
        return Blocked("topology_contradictory", text, NODE_DIR)
    text = f"nothing tells whether the nodes that the kernel shows ({nodes}) are those of the machine"
    return Blocked("trust_unknown", text, NODE_DIR)
