# SPDX-License-Identifier: Apache-2.0
"""NUMA nodes of a host: CPUs, memory, distances and huge page pools of each online node."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ._cpulist import format_list
from ._topology_cpus import Warnings
from ._tree import Tree, id_list

NODE_DIR = "/sys/devices/system/node"
POOL_DIR = "/sys/kernel/mm/hugepages"
_POOL = re.compile(r"hugepages-(\d+kB)")
_POOL_FILES = {"total": "nr_hugepages", "free": "free_hugepages", "surplus": "surplus_hugepages"}


@dataclass(frozen=True)
class Node:
    """An online node. has_memory, normal_memory and memory_bytes are None when nothing says."""

    id: int
    cpus: frozenset[int]
    memory_bytes: int | None = None
    has_memory: bool | None = None
    normal_memory: bool | None = None
    pools: dict[str, dict[str, int]] = field(default_factory=dict)
    distances: dict[int, int] | None = None

    def as_dict(self) -> dict[str, Any]:
        """The node as in the topology document."""
        table = self.distances
        return {
            "id": self.id,
            "online": True,
            "cpus": format_list(self.cpus),
            "memory_bytes": self.memory_bytes,
            "has_memory": self.has_memory,
            "normal_memory": self.normal_memory,
            "pools": {size: dict(pool) for size, pool in self.pools.items()},
            "distances": None if table is None else {str(other): table[other] for other in sorted(table)},
        }

    @classmethod
    def from_dict(cls, doc: Mapping[str, Any]) -> Node:
        """The inverse of as_dict()."""
        table = doc["distances"]
        return cls(
            id=doc["id"],
            cpus=id_list(doc["cpus"]),
            memory_bytes=doc["memory_bytes"],
            has_memory=doc["has_memory"],
            normal_memory=doc["normal_memory"],
            pools={size: dict(pool) for size, pool in doc["pools"].items()},
            distances=None if table is None else {int(other): value for other, value in table.items()},
        )


@dataclass(frozen=True)
class NodeLists:
    """Node id sets that are about more than the online nodes."""

    possible: frozenset[int] = frozenset()


def read_nodes(
    tree: Tree, online_cpus: frozenset[int], warnings: Warnings
) -> tuple[tuple[Node, ...], NodeLists]:
    """The online nodes in ascending order, and the node lists; no nodes when the kernel has no NUMA."""
    directories = frozenset(tree.numbered(NODE_DIR, "node"))
    listed = tree.ids(f"{NODE_DIR}/online")
    online = listed or directories
    if listed and directories - listed:
        text = (
            f"node directories {format_list(directories - listed)} exist but node/online does not list them"
        )
        warnings.append({"reason": "node_directory_offline", "text": text})
    possible = (tree.ids(f"{NODE_DIR}/possible") or online) | online
    if not online:
        return (), NodeLists()
    memory = _memory_list(tree, "has_memory", online, warnings)
    normal = _memory_list(tree, "has_normal_memory", online, warnings)
    claims = {number: _claimed_cpus(tree, number, online_cpus, warnings) for number in sorted(online)}
    cpus = _settle_cpus(tree, claims, online_cpus, warnings)
    nodes = []
    for number in sorted(online):
        size = _memory_bytes(tree, number)
        nodes.append(_node(tree, number, cpus[number], size, memory, normal, online, possible, warnings))
    return tuple(nodes), NodeLists(possible=possible)


def _node(
    tree: Tree,
    number: int,
    cpus: frozenset[int],
    size: int | None,
    memory: frozenset[int] | None,
    normal: frozenset[int] | None,
    online: frozenset[int],
    possible: frozenset[int],
    warnings: Warnings,
) -> Node:
    # has_normal_memory without has_memory: kernels before 3.8, where they were the same set.
    lists = memory if memory is not None else normal
    has_memory = None if lists is None else number in lists
    if size is not None:
        if has_memory and not size:
            text = f"node {number} is listed as having memory, its meminfo says 0 kB"
            warnings.append({"reason": "has_memory_disagrees_with_meminfo", "text": text})
        has_memory = size > 0
    is_normal = has_memory if normal is None else number in normal and has_memory is not False
    return Node(
        id=number,
        cpus=cpus,
        memory_bytes=size,
        has_memory=has_memory,
        normal_memory=is_normal,
        pools=read_node_pools(tree, f"{NODE_DIR}/node{number}/hugepages"),
        distances=_distances(tree, number, online, possible, warnings),
    )


def _memory_list(tree: Tree, name: str, online: frozenset[int], warnings: Warnings) -> frozenset[int] | None:
    """The nodes of node/NAME that are online; None when the file is absent."""
    found = tree.ids(f"{NODE_DIR}/{name}")
    if found is not None and found - online:
        text = f"{name} lists node {format_list(found - online)}, which is not online: not used"
        warnings.append({"reason": f"{name}_lists_offline_node", "text": text})
    return None if found is None else found & online


def _memory_bytes(tree: Tree, number: int) -> int | None:
    text = tree.text(f"{NODE_DIR}/node{number}/meminfo") or ""
    match = re.search(r"MemTotal:\s*(\d+)\s*kB", text)
    return int(match.group(1)) * 1024 if match else None


def _claimed_cpus(tree: Tree, number: int, online_cpus: frozenset[int], warnings: Warnings) -> frozenset[int]:
    """Online CPUs of a node by cpulist, cpumap or, where these differ, by the cpuN links in its directory."""
    base = f"{NODE_DIR}/node{number}"
    listed, mapped = tree.ids(f"{base}/cpulist"), tree.mask(f"{base}/cpumap")
    linked = frozenset(tree.numbered(base, "cpu"))
    if listed is None or mapped is None or listed == mapped:
        one = listed if listed is not None else mapped if mapped is not None else linked
        return one & online_cpus
    settled = listed & online_cpus == mapped & online_cpus
    text = f"node {number}: cpulist {format_list(listed)} is not cpumap {format_list(mapped)}; " + (
        "their online CPUs are the same" if settled else "the links decide" if linked else "cpumap is used"
    )
    warnings.append({"reason": "cpulist_disagrees_with_cpumap", "text": text})
    if settled:
        return listed & online_cpus
    return (linked or mapped) & online_cpus


def _settle_cpus(
    tree: Tree, claims: dict[int, frozenset[int]], online_cpus: frozenset[int], warnings: Warnings
) -> dict[int, frozenset[int]]:
    """Each online CPU in at most one node: where nodes overlap, the cpuN links decide if they do not."""
    counted = sum(len(cpus) for cpus in claims.values())
    covered = frozenset().union(*claims.values())
    if counted > len(covered):
        linked = {
            number: frozenset(tree.numbered(f"{NODE_DIR}/node{number}", "cpu")) & online_cpus
            for number in claims
        }
        decided = (
            sum(map(len, linked.values())) == len(frozenset().union(*linked.values())) == len(online_cpus)
        )
        text = "a CPU is listed by more than one node; " + (
            "the links in the node directories decide" if decided else "nothing tells which one is right"
        )
        warnings.append({"reason": "cpu_in_several_nodes", "text": text})
        claims = linked if decided else claims
        covered = frozenset().union(*claims.values())
    has_cpu = tree.ids(f"{NODE_DIR}/has_cpu")
    with_cpus = frozenset(number for number, cpus in claims.items() if cpus)
    if has_cpu and has_cpu != with_cpus:  # always empty on many older kernels
        text = f"has_cpu lists nodes {format_list(has_cpu)}, CPUs are in {format_list(with_cpus) or 'none'}"
        warnings.append({"reason": "has_cpu_disagrees", "text": text})
    if online_cpus - covered:
        text = f"online CPUs {format_list(online_cpus - covered)} belong to no node"
        warnings.append({"reason": "cpu_without_node", "text": text})
    return claims


def _distances(
    tree: Tree, number: int, online: frozenset[int], possible: frozenset[int], warnings: Warnings
) -> dict[int, int] | None:
    """node/nodeN/distance by node id: node_read_distance() prints one column per ONLINE node.

    A row of another length is read against the possible nodes if it fits those, else it says nothing.
    """
    text = tree.text(f"{NODE_DIR}/node{number}/distance")
    if text is None:
        return None
    row = text.split()
    columns = sorted(online) if len(row) == len(online) else sorted(possible)
    if len(row) != len(columns) or not all(value.isdigit() for value in row):
        reason = f"node {number}: {len(row)} distances for {len(online)} online nodes"
        warnings.append({"reason": "distance_columns_unknown", "text": reason})
        return None
    table = {node: int(value) for node, value in zip(columns, row) if node in online}
    if table[number] != min(int(value) for value in row):
        reason = f"node {number}: its distance to itself ({table[number]}) is not the least of its row"
        warnings.append({"reason": "distance_self_not_least", "text": reason})
    return table


def read_node_pools(tree: Tree, base: str) -> dict[str, dict[str, int]]:
    """Huge page counters per size (`2048kB`) in the directory BASE; files that are absent are left out."""
    pools: dict[str, dict[str, int]] = {}
    sizes = [match.group(1) for match in map(_POOL.fullmatch, tree.names(base)) if match]
    for size in sorted(sizes, key=lambda text: int(text[:-2])):
        values = {key: tree.number(f"{base}/hugepages-{size}/{name}") for key, name in _POOL_FILES.items()}
        pools[size] = {key: value for key, value in values.items() if value is not None}
    return pools
