# SPDX-License-Identifier: Apache-2.0
"""The CPU, cache and memory topology of a host: what its kernel shows, cross-checked, as plain sets.

Nothing here assumes that node N or CPU N exists, that ids are dense, that a node has CPUs or memory, or
that a socket is a node. Documentation/ABI/stable/sysfs-devices-node and sysfs-devices-system-cpu name the
files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ._cpulist import format_list
from ._sosreport import UNKNOWN
from ._topology_cpus import CPU_DIR, Cpus, Warnings, read_cpus
from ._topology_host import Virtualization, read_host, read_virtualization
from ._topology_nodes import NODE_DIR, POOL_DIR, Node, NodeLists, read_node_pools, read_nodes
from ._tree import Tree, id_list


@dataclass(frozen=True)
class Topology:
    """One host. Memory in bytes, huge page sizes in kB; None is "not known", never "none"."""

    source: str
    cpus: Cpus
    nodes: tuple[Node, ...]
    lists: NodeLists
    arch: str | None = None
    kernel_release: str | None = None
    page_size_bytes: int | None = None
    hugepage_sizes_kb: tuple[int, ...] = ()
    default_hugepage_kb: int | None = None
    memory_bytes: int | None = None
    virtualization: Virtualization = field(default_factory=Virtualization)
    warnings: tuple[dict[str, str], ...] = ()

    @property
    def readable(self) -> bool:
        """Whether /sys was there, with CPUs and nodes: without it one node is all that is seen, and means nothing."""
        known = self.source != "unknown" and bool(self.cpus.online)
        return known and not any(row["reason"] == "no_sysfs" for row in self.warnings)

    def node(self, number: int) -> Node | None:
        """The online node NUMBER, or None."""
        return next((node for node in self.nodes if node.id == number), None)

    def node_of(self, cpu: int) -> int | None:
        """The lowest online node that lists CPU; None when no node does."""
        return next((node.id for node in self.nodes if cpu in node.cpus), None)

    def ids(self, kind: str = "online") -> list[int]:
        """Ascending node ids: online, possible, offline, cpu, memory, normal_memory, hugepage or empty.

        `hugepage` are the nodes whose memory a boot-time pool may use: online, with normal memory. Nodes
        whose memory is not known are in none but online.
        """
        rows = {
            "online": [node.id for node in self.nodes],
            "possible": sorted(self.lists.possible),
            "offline": sorted(self.lists.possible - {node.id for node in self.nodes}),
            "cpu": [node.id for node in self.nodes if node.cpus],
            "memory": [node.id for node in self.nodes if node.has_memory],
            "normal_memory": [node.id for node in self.nodes if node.normal_memory],
            "hugepage": [node.id for node in self.nodes if node.normal_memory and node.has_memory],
            "empty": [node.id for node in self.nodes if not node.cpus and node.has_memory is False],
        }
        return rows[kind]

    def nearest(self, number: int, among: Iterable[int]) -> int | None:
        """The node of AMONG at the least distance from node NUMBER, ties to the lowest id.

        A node is nearest to itself, whatever its table says. None where AMONG is empty or no distance is
        known (then any answer would be a guess), except when only one candidate exists.
        """
        choices = sorted(set(among))
        if number in choices:
            return number
        if len(choices) == 1:
            return choices[0]
        node = self.node(number)
        table = (node.distances if node else None) or {}
        known = [(table[other], other) for other in choices if other in table]
        return min(known)[1] if known else None

    def as_dict(self) -> dict[str, Any]:
        """The document that numa_topology_info returns as `topology`; Topology.from_dict() reads it back."""
        return {
            "source": self.source,
            "arch": self.arch,
            "kernel_release": self.kernel_release,
            "cpus": self.cpus.as_dict(),
            "nodes": [node.as_dict() for node in self.nodes],
            "node_lists": {kind: self.ids(kind) for kind in KINDS},
            "l3": [{"cpus": format_list(cpus)} for cpus in self.cpus.l3],
            "page_size_bytes": self.page_size_bytes,
            "hugepage_sizes_kb": list(self.hugepage_sizes_kb),
            "default_hugepage_kb": self.default_hugepage_kb,
            "memory_bytes": self.memory_bytes,
            "virtualization": self.virtualization.as_dict(),
            "warnings": [dict(row) for row in self.warnings],
        }

    @classmethod
    def from_dict(cls, doc: Mapping[str, Any]) -> Topology:
        """The Topology of a document of as_dict(). Raises KeyError or ValueError on another shape."""
        nodes = tuple(Node.from_dict(row) for row in doc["nodes"])
        cpus = Cpus.from_dict(doc["cpus"], [id_list(row["cpus"]) for row in doc["l3"]])
        return cls(
            source=doc["source"],
            cpus=cpus,
            nodes=nodes,
            lists=NodeLists(possible=frozenset(doc["node_lists"]["possible"])),
            arch=doc["arch"],
            kernel_release=doc["kernel_release"],
            page_size_bytes=doc["page_size_bytes"],
            hugepage_sizes_kb=tuple(doc["hugepage_sizes_kb"]),
            default_hugepage_kb=doc["default_hugepage_kb"],
            memory_bytes=doc["memory_bytes"],
            virtualization=Virtualization.from_dict(doc["virtualization"]),
            warnings=tuple(dict(row) for row in doc["warnings"]),
        )


def read_topology(root: str = "/", facts: Mapping[str, Any] | None = None) -> Topology:
    """Read the topology of the host whose root directory is ROOT; FACTS may add virtualization facts.

    A kernel that shows no nodes reads as one node 0 with all online CPUs and memory, source `no_numa`. Where nobody can
    tell whether it shows any there are none, source `unknown`. Never raises for what a host shows; contradictions and
    unreadable files are `warnings`.
    """
    tree = Tree(root)
    warnings: Warnings = []
    cpus = read_cpus(tree, warnings)
    nodes, lists = read_nodes(tree, cpus.online, warnings)
    host = read_host(tree)
    source = "sysfs"
    if not nodes and NODE_DIR in tree.trouble:
        source = "unknown"
    elif not nodes:
        source = "no_numa"
        shown = bool(tree.names(CPU_DIR))
        nodes = (_only_node(tree, cpus, host.memory_bytes, shown),)
        if not shown:
            text = f"{CPU_DIR} is not there, so that nothing is known of nodes"
            warnings.append({"reason": "no_sysfs", "text": text})
        lists = NodeLists(possible=frozenset((0,)))
    virtualization = read_virtualization(tree, facts)
    warnings.extend(judge_memory(nodes, host.memory_bytes))
    warnings.extend(judge_distances(nodes, virtualization))
    lacking = [path for path, why in tree.trouble.items() if why == UNKNOWN]
    if lacking:
        warnings.append({"reason": "not_recorded", "text": f"{UNKNOWN}: {', '.join(lacking)}"})
    warnings.extend(
        {"reason": "unreadable", "text": f"{path}: {why}"} for path, why in tree.trouble.items() if why != UNKNOWN
    )
    return Topology(
        source=source,
        cpus=cpus,
        nodes=nodes,
        lists=lists,
        arch=host.arch,
        kernel_release=host.kernel_release,
        page_size_bytes=host.page_size_bytes,
        hugepage_sizes_kb=host.hugepage_sizes_kb,
        default_hugepage_kb=host.default_hugepage_kb,
        memory_bytes=host.memory_bytes,
        virtualization=virtualization,
        warnings=tuple(warnings),
    )


def _only_node(tree: Tree, cpus: Cpus, memory_bytes: int | None, shown: bool) -> Node:
    memory = True if shown else None
    return Node(0, cpus.online, memory_bytes, memory, memory, read_node_pools(tree, POOL_DIR), {0: 10})


def judge_memory(nodes: tuple[Node, ...], memory_bytes: int | None) -> list[dict[str, str]]:
    """Warning `node_memory_disagrees` when the nodes' MemTotal do not add up to the host's, within 10 %.

    Both count pages of the page allocator; older kernels count holes and the kernel image on the nodes only.
    """
    sizes = [node.memory_bytes for node in nodes if node.memory_bytes is not None]
    if len(sizes) < max(len(nodes), 1) or not memory_bytes or abs(sum(sizes) - memory_bytes) * 10 <= memory_bytes:
        return []
    text = f"the nodes have {sum(sizes)} bytes of memory together, /proc/meminfo says {memory_bytes}"
    return [{"reason": "node_memory_disagrees", "text": text}]


def judge_distances(nodes: tuple[Node, ...], virtualization: Virtualization) -> list[dict[str, str]]:
    """Warnings about distances that cannot be a measured table.

    `distances_identical`: another node is as near as the own. `distances_asymmetric`. `flat_distances`: four
    or more nodes of a guest at one remote distance, the kernel's own filler (REMOTE_DISTANCE) where a
    hypervisor passes no SLIT on; a real machine with fully connected sockets may well look so.
    """
    tables = {node.id: node.distances for node in nodes if node.distances is not None}
    pairs = [(a, b, table[b]) for a, table in tables.items() for b in table if a != b]
    remote = {value for _a, _b, value in pairs}
    rows = []
    close = sorted({a for a, _b, value in pairs if value <= tables[a].get(a, 10)})
    if close:
        text = f"nodes {', '.join(map(str, close))} have another node as near as themselves"
        rows.append({"reason": "distances_identical", "text": text})
    if any(a in tables.get(b, {}) and tables[b][a] != value for a, b, value in pairs):
        text = "a distance differs from the one in the other direction"
        rows.append({"reason": "distances_asymmetric", "text": text})
    if len(tables) >= 4 and len(remote) == 1 and virtualization.hypervisor:
        text = (
            f"all remote distances are {remote.pop()} on a guest of {virtualization.hypervisor}: "
            "which node is nearest is arbitrary"
        )
        rows.append({"reason": "flat_distances", "text": text})
    return rows


def even_split(total: int, nodes: Iterable[int]) -> dict[int, int]:
    """TOTAL pages over NODES as the kernel deals them out, one per node in turn from the lowest id.

    Raises ValueError without a node or with a negative total.
    """
    order = sorted(set(nodes))
    if not order or total < 0:
        raise ValueError("pages can only be split over at least one node, and not a negative number of them")
    each, more = divmod(total, len(order))
    return {node: each + (1 if position < more else 0) for position, node in enumerate(order)}


KINDS = ("online", "possible", "offline", "cpu", "memory", "normal_memory", "hugepage", "empty")
