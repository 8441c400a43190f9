# SPDX-License-Identifier: Apache-2.0
"""Whether a guest is wider than a socket of its machine, so that its CPUs cannot all run at once on one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ._cpu_models import cores_per_socket as by_model
from ._topology import Topology
from ._trust_rows import Evidence
from ._trust_signs import CPUINFO, Signs

GIVEN = "firsttouch_numa.cores_per_socket"


@dataclass(frozen=True)
class CoScheduling:
    """risk: None where it is not known. vcpus and cores (the threads of a core that the kernel shows count once) are
    those of the widest node or socket, `where`; physical_cores: what a socket of the machine has, by `source`."""

    risk: bool | None
    text: str
    where: str = ""
    vcpus: int | None = None
    cores: int | None = None
    physical_cores: int | None = None
    source: str = ""

    def as_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    def evidence(self) -> Iterator[Evidence]:
        """The comparison as a piece of evidence, where it was made."""
        if self.risk is not None and self.physical_cores is not None:
            yield Evidence(self.source, self.text, "hidden" if self.risk else "consistent")


def co_scheduling(topology: Topology, signs: Signs, cores_per_socket: int | None = None) -> CoScheduling:
    """The risk of the host of TOPOLOGY; CORES_PER_SOCKET of the physical machine goes before its model name."""
    if topology.virtualization.bare_metal:
        return CoScheduling(False, "bare metal: every CPU is one")
    where, vcpus, cores = _widest(topology)
    known = by_model(signs.model_name)
    physical = cores_per_socket or known
    source = GIVEN if cores_per_socket else CPUINFO
    if not vcpus:
        return CoScheduling(None, "no CPU is known")
    if physical is None:
        name = f"the model name {signs.model_name!r} does not tell" if signs.model_name else "nothing tells"
        text = f"{_count(vcpus, cores)} in {where}; {name} how many cores a socket has"
        return CoScheduling(None, text, where, vcpus, cores)
    by = GIVEN if cores_per_socket else f"{signs.model_name}"
    risk = cores > physical
    text = f"{_count(vcpus, cores)} in {where}, a socket has {physical} cores ({by})"
    if risk:
        text += ": the hypervisor cannot run them all at once on one socket"
    return CoScheduling(risk, text, where, vcpus, cores, physical, source)


def _widest(topology: Topology) -> tuple[str, int, int]:
    groups = [(f"node {node.id}", node.cpus) for node in topology.nodes if node.cpus]
    groups += [
        (f"socket {package.id if package.id is not None else number}", package.cpus)
        for number, package in enumerate(topology.cpus.packages)
    ]
    rows = [(_cores(topology, cpus), len(cpus), where) for where, cpus in groups]
    cores, vcpus, where = max(rows, key=lambda row: row[:2], default=(0, 0, ""))
    return where, vcpus, cores


def _cores(topology: Topology, cpus: frozenset[int]) -> int:
    """Cores that the kernel shows among CPUS; a hypervisor that hides threads shows each as a core."""
    if topology.cpus.siblings:
        return len({topology.cpus.core(cpu) for cpu in cpus})
    threads = topology.cpus.counts.get("threads_per_core") or 1
    return -(-len(cpus) // threads)


def _count(vcpus: int, cores: int) -> str:
    return f"{vcpus} vCPUs" if vcpus == cores else f"{vcpus} vCPUs shown as {cores} cores"
