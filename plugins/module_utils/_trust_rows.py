# SPDX-License-Identifier: Apache-2.0
"""Pieces of evidence about a topology: what was seen, in which file, and which way it points."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from ._cpu_models import cores_per_socket
from ._cpulist import format_list
from ._topology import Topology
from ._topology_cpus import CPU_DIR
from ._topology_nodes import NODE_DIR
from ._trust_signs import ACPI_DIR, CMDLINE, CPUINFO, PCI_DIR, Signs

# Warnings of the topology's reader that mean that two files cannot both be right, and the file to look at.
_CONFLICTS = {
    "cpu_in_several_nodes": f"{NODE_DIR}/node*/cpulist",
    "cpu_without_node": f"{NODE_DIR}/node*/cpulist",
    "distances_identical": f"{NODE_DIR}/node*/distance",
    "distance_self_not_least": f"{NODE_DIR}/node*/distance",
    "l3_sets_disagree": f"{CPU_DIR}/cpu*/cache/index*/shared_cpu_list",
    "package_sets_disagree": f"{CPU_DIR}/cpu*/topology/package_cpus_list",
    "lscpu_disagrees_with_itself": "lscpu",
    "numactl_disagrees_with_itself": "numactl",
    "lscpu_disagrees_with_sysfs": "lscpu",
    "numactl_disagrees_with_sysfs": "numactl",
    "lscpu_disagrees_with_numactl": "lscpu",
}
# Warnings that are told elsewhere, or that say nothing about nodes.
_TOLD = ("node_memory_disagrees", "no_sysfs", "unreadable", "flat_distances")
_L3 = f"{CPU_DIR}/cpu*/cache/index3/shared_cpu_list"
_MEMINFO = f"{NODE_DIR}/node*/meminfo"
_PACKAGE = f"{CPU_DIR}/cpu*/topology/physical_package_id"
_DISTANCE = f"{NODE_DIR}/node*/distance"
_FILLER = {10, 20}  # LOCAL_DISTANCE and REMOTE_DISTANCE of include/linux/topology.h, where no SLIT is


@dataclass(frozen=True)
class Evidence:
    """`points`: guest, bare_metal, one of the verdicts, or nothing for what fits all of them."""

    source: str
    seen: str
    points: str

    def as_dict(self) -> dict[str, str]:
        """As JSON values."""
        return asdict(self)


def remarks(topology: Topology, signs: Signs) -> Iterator[Evidence]:
    """What nodes, sockets, caches, distances, memory and devices say, contradictions left out."""
    yield _nodes(topology)
    yield _sockets(topology)
    yield from _caches(topology)
    yield from _distances(topology)
    yield from _memory(topology)
    yield from _devices(topology, signs)
    yield from _firmware(topology, signs)
    yield from _hot_add(topology)
    yield from _oddities(topology)


def contradictions(topology: Topology, signs: Signs, *, guest: bool) -> Iterator[Evidence]:
    """Sources that cannot both be right, read as a GUEST or as bare metal."""
    for row in topology.warnings:
        source = _CONFLICTS.get(row["reason"])
        if source:
            yield Evidence(source, row["text"], "contradictory")
        elif row["reason"] == "node_memory_disagrees" and len(topology.nodes) > 1:
            # Without figures, which differ from boot to boot: the plan has these words.
            text = "the memory of the nodes does not add up to that of /proc/meminfo"
            yield Evidence(_MEMINFO, text, "contradictory")
    yield from _crossing(topology)
    yield from _shared_caches(topology, signs, guest)
    yield from _made_up(topology, signs, guest)
    beyond = sorted(node for node in signs.pci if node >= 0 and node not in topology.lists.possible)
    if beyond:
        text = f"devices are on node {format_list(beyond)}, possible are {format_list(topology.lists.possible)}"
        yield Evidence(f"{PCI_DIR}/*/numa_node", text, "contradictory")


def _nodes(topology: Topology) -> Evidence:
    nodes = topology.ids("cpu")
    if topology.source == "no_numa":
        return Evidence(NODE_DIR, "the kernel shows no nodes", "nothing")
    if topology.source == "unknown":
        return Evidence(NODE_DIR, "nodes are not known", "nothing")
    source = f"{NODE_DIR}/online" if topology.source == "sysfs" else topology.source
    text = f"{_some(len(topology.nodes), 'node')}, {len(nodes)} with CPUs"
    return Evidence(source, text, "consistent" if len(nodes) > 1 else "nothing")


def _sockets(topology: Topology) -> Evidence:
    packages = topology.cpus.packages
    count = len(packages) or topology.cpus.counts.get("sockets")
    source = _PACKAGE if topology.source in ("sysfs", "no_numa", "unknown") else topology.source
    nodes = len(topology.ids("cpu"))
    if not count:
        return Evidence(source, "sockets are not known", "nothing")
    if topology.source == "unknown":
        return Evidence(source, _some(count, "socket"), "nothing")
    text = f"{_some(count, 'socket')}, {_some(nodes, 'node')} with CPUs"
    guest = not topology.virtualization.bare_metal
    if guest and packages and count > 1 and all(package.cores == 1 for package in packages):
        return Evidence(source, f"{text}; one core each, a hypervisor's default, which says nothing", "nothing")
    if nodes < 2:
        return Evidence(source, text, "hidden" if count > 1 else "nothing")
    return Evidence(source, text, "consistent" if not nodes % count or not count % nodes else "nothing")


def _caches(topology: Topology) -> Iterator[Evidence]:
    domains, nodes = topology.cpus.l3, [node.cpus for node in topology.nodes if node.cpus]
    if not domains:
        yield Evidence(_L3, "no level 3 cache is known", "nothing")
        return
    text = f"{_some(len(domains), 'level 3 cache')}, {_some(len(nodes), 'node')} with CPUs"
    apart = all(any(domain <= node for node in nodes) for domain in domains)
    yield Evidence(_L3, text, "consistent" if apart and len(nodes) > 1 else "nothing")


def _distances(topology: Topology) -> Iterator[Evidence]:
    tables = [node.distances for node in topology.nodes if node.distances]
    if len(topology.nodes) < 2:
        return
    if len(tables) < len(topology.nodes):
        yield Evidence(_DISTANCE, "distances are not known", "nothing")
        return
    values = {value for table in tables for value in table.values()}
    text = f"distances {', '.join(map(str, sorted(values)))}"
    if values <= _FILLER:
        yield Evidence(_DISTANCE, f"{text}: the kernel's own where no SLIT is, they say nothing", "nothing")
    else:
        yield Evidence(_DISTANCE, text, "consistent")


def _memory(topology: Topology) -> Iterator[Evidence]:
    bare = [node.id for node in topology.nodes if node.cpus and node.has_memory is False]
    if bare:
        yield Evidence(_MEMINFO, f"nodes {format_list(bare)} have CPUs and no memory", "nothing")
    for row in topology.warnings:
        if row["reason"] == "node_memory_disagrees":
            yield Evidence(_MEMINFO, row["text"], "nothing")


def _devices(topology: Topology, signs: Signs) -> Iterator[Evidence]:
    source = f"{PCI_DIR}/*/numa_node"
    known = sorted(node for node in signs.pci if node >= 0)
    if not signs.pci or len(topology.nodes) < 2:
        return
    if not known:
        yield Evidence(source, "no device says which node it is at", "nothing")
    else:
        text = f"devices at {_some(len(known), 'node')}: {format_list(known)}"
        yield Evidence(source, text, "consistent" if len(known) > 1 else "nothing")


def _firmware(topology: Topology, signs: Signs) -> Iterator[Evidence]:
    if signs.acpi is not None and len(topology.nodes) > 1 and "SRAT" in signs.acpi:
        slit = "with" if "SLIT" in signs.acpi else "without"
        yield Evidence(ACPI_DIR, f"the firmware names the nodes (SRAT), {slit} distances (SLIT)", "consistent")


def _oddities(topology: Topology) -> Iterator[Evidence]:
    """What the reader of the topology found odd, and what does not decide anything."""
    for row in topology.warnings:
        if row["reason"] not in _CONFLICTS and row["reason"] not in _TOLD:
            yield Evidence(f"{NODE_DIR} or {CPU_DIR}", row["text"], "nothing")


def _hot_add(topology: Topology) -> Iterator[Evidence]:
    """VMware shows no virtual nodes to a guest with CPU hot add; the kernel then keeps room for more CPUs."""
    cpus = topology.cpus
    if topology.virtualization.hypervisor == "vmware" and cpus.possible > cpus.present:
        more = format_list(cpus.possible - cpus.present)
        text = f"CPUs {more} may be added: with CPU hot add on, VMware shows no nodes"
        yield Evidence(f"{CPU_DIR}/possible", text, "nothing")


def _crossing(topology: Topology) -> Iterator[Evidence]:
    """Nodes and sockets may hold one another, but not overlap."""
    for node in topology.nodes:
        for package in topology.cpus.packages:
            both = node.cpus & package.cpus
            if both and both not in (node.cpus, package.cpus):
                socket = f"a socket (CPUs {format_list(package.cpus)}) that it shares with another node"
                text = f"node {node.id} has CPUs {format_list(both)} of {socket}, and CPUs of other sockets"
                yield Evidence(_PACKAGE, text, "contradictory")
                return


def _shared_caches(topology: Topology, signs: Signs, guest: bool) -> Iterator[Evidence]:
    """No level 3 cache is shared by two sockets; none by two nodes either, but where Intel or others split a socket.

    AMD's is never wider than a node. For a guest the kernel itself says so: "llc-sibling is not on the same node".
    """
    packages = [package.cpus for package in topology.cpus.packages]
    nodes = [node.cpus for node in topology.nodes if node.cpus]
    for domain in topology.cpus.l3:
        if packages and not any(domain <= cpus for cpus in packages):
            text = f"CPUs {format_list(domain)} share a level 3 cache and are in several sockets"
            yield Evidence(_L3, text, "contradictory")
            return
        split = not any(domain <= cpus for cpus in nodes)
        if split and (guest or signs.vendor in ("AuthenticAMD", "HygonGenuine")):
            text = f"CPUs {format_list(domain)} share a level 3 cache and are in several nodes"
            yield Evidence(_L3, text, "contradictory")
            return


def _made_up(topology: Topology, signs: Signs, guest: bool) -> Iterator[Evidence]:
    fake = [token for token in signs.boot if token.startswith("numa=fake")]
    if fake:
        yield Evidence(CMDLINE, f"{fake[0]}: the kernel was told to make nodes up", "contradictory")
    several = len(topology.ids("cpu")) > 1
    if guest and several and signs.acpi is not None and "SRAT" not in signs.acpi:
        text = "several nodes with CPUs, but the firmware has no SRAT that names them"
        yield Evidence(ACPI_DIR, text, "contradictory")
    named = cores_per_socket(signs.model_name)
    shown = max((package.cores or 0 for package in topology.cpus.packages), default=0)
    if not guest and named and "-Core" in (signs.model_name or "") and shown > named:
        text = f"{signs.model_name}, and a socket of {shown} cores"
        yield Evidence(CPUINFO, text, "contradictory")


def _some(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
