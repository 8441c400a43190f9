# SPDX-License-Identifier: Apache-2.0
"""Does the NUMA topology that the kernel shows exist? A verdict, with every piece of evidence and where it points.

exposed: bare metal whose sources agree; or a guest whose sources agree and whose measured remote/local latency is at
least 1.2; or what the operator vouches for. consistent: a guest whose sources agree, unmeasured or flat. hidden: fewer
nodes are shown than there must be, or one node by a hypervisor that says nothing about nodes. contradictory: two
sources cannot both be right. unknown: the evidence does not carry any of these.

Where nothing tells a guest from bare metal, both readings are made and the answer holds for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ._cpu_models import front_side_bus
from ._cpulist import format_list
from ._topology import Topology
from ._topology_host import DMI_DIR
from ._topology_nodes import NODE_DIR
from ._trust_cosched import CoScheduling, co_scheduling
from ._trust_rows import Evidence, contradictions, remarks
from ._trust_signs import ACPI_DIR, CMDLINE, Signs

VERDICTS = ("exposed", "consistent", "hidden", "contradictory", "unknown")
# Remote over local latency from which a measured matrix shows two memories; an emulated one has about 1.0.
REAL_RATIO = 1.2
VARIABLE = "firsttouch_numa"


@dataclass(frozen=True)
class Trust:
    """The verdict, the rule that decided, the evidence, the co-scheduling risk; who vouches, where that decided."""

    verdict: str
    words: str
    evidence: tuple[Evidence, ...]
    co_scheduling: CoScheduling
    asserted_by: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "verdict": self.verdict,
            "words": self.words,
            "evidence": [row.as_dict() for row in self.evidence],
            "co_scheduling": self.co_scheduling.as_dict(),
            "asserted_by": self.asserted_by,
        }


@dataclass(frozen=True)
class _Case:
    topology: Topology
    signs: Signs
    risk: CoScheduling
    ratio: float | None

    @property
    def one_node(self) -> bool:
        return len(self.topology.ids("cpu")) < 2

    @property
    def sockets(self) -> int:
        """Sockets that are more than a hypervisor's default of one core each; at least 1."""
        packages = self.topology.cpus.packages
        if not packages:
            return self.topology.cpus.counts.get("sockets") or 1
        several = any((package.cores or len(package.cpus)) > 1 for package in packages)
        return len(packages) if several or self.topology.virtualization.bare_metal else 1

    @property
    def compared(self) -> bool:
        """Whether there is anything to hold the nodes against."""
        cpus = self.topology.cpus
        return bool(cpus.packages or cpus.l3 or cpus.counts.get("sockets"))


@dataclass(frozen=True)
class _Reading:
    verdict: str
    words: str
    rows: tuple[Evidence, ...] = field(default=())


def assess(
    topology: Topology,
    signs: Signs,
    *,
    measured: Mapping[str, Any] | None = None,
    asserted_by: str | None = None,
    cores_per_socket: int | None = None,
) -> Trust:
    """The trust verdict of one host.

    MEASURED is {"ratio": remote/local latency, "source": who measured}. ASSERTED_BY names who vouches for the topology.
    CORES_PER_SOCKET, of the physical machine, goes before what the model name says. Raises ValueError for a MEASURED
    without a positive ratio.
    """
    risk = co_scheduling(topology, signs, cores_per_socket)
    ratio = _ratio(measured)
    case = _Case(topology, signs, risk, ratio)
    rows = [*_kind(topology), *remarks(topology, signs), *risk.evidence(), *_measured(ratio, measured)]
    reading = _blind(case) or _read(case)
    rows += reading.rows
    verdict, words = reading.verdict, reading.words
    if asserted_by is None:
        return Trust(verdict, words, tuple(rows), risk)
    rows.append(Evidence(asserted_by, "trust: asserted", "exposed"))
    if verdict == "contradictory" or _blind(case):
        words = f"{words}; that {asserted_by} vouches for it does not change that"
        return Trust(verdict, words, tuple(rows), risk)
    if verdict != "exposed":
        words = f"{asserted_by} vouches for it; without that: {verdict}, {words}"
        return Trust("exposed", words, tuple(rows), risk, asserted_by)
    return Trust(verdict, words, tuple(rows), risk)


def _ratio(measured: Mapping[str, Any] | None) -> float | None:
    if measured is None:
        return None
    ratio = measured.get("ratio")
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 < ratio < float("inf"):
        raise ValueError(f"measured: ratio is {ratio!r}, not a number above 0 (remote latency over local latency)")
    return float(ratio)


def _kind(topology: Topology) -> Iterator[Evidence]:
    """Guest or bare metal: every sign that was seen."""
    guest = topology.virtualization
    for name, source, value in guest.evidence:
        yield Evidence(source, f"{value} ({name})", "guest")
    if guest.bare_metal:
        yield Evidence(DMI_DIR, "DMI and CPUID are readable and name no hypervisor", "bare_metal")
    elif guest.bare_metal is None:
        yield Evidence(DMI_DIR, "nothing readable tells a guest from bare metal", "nothing")


def _measured(ratio: float | None, measured: Mapping[str, Any] | None) -> Iterator[Evidence]:
    if ratio is None or measured is None:
        return
    text = f"remote access takes {ratio:.2f} times as long as local access"
    points = "exposed" if ratio >= REAL_RATIO else "nothing"
    if points == "nothing":
        text += f", below {REAL_RATIO}: no second memory is seen"
    yield Evidence(str(measured.get("source") or "measured"), text, points)


def _unreadable(topology: Topology) -> bool:
    """Whether the kernel's files about CPUs and nodes were not there, or could not be read or understood."""
    own = ("/sys/devices/system/node", "/sys/devices/system/cpu")
    return not topology.readable or any(
        row["reason"] == "unreadable" and row["text"].startswith(own) for row in topology.warnings
    )


def _blind(case: _Case) -> _Reading | None:
    """`unknown` where what is read is not the host's, or was not readable."""
    if case.signs.container:
        path, text = case.signs.container
        row = Evidence(path, text, "unknown")
        words = "this is a container: what it sees of CPUs and memory may be made up for it; ask on its host"
        return _Reading("unknown", words, (row,))
    if _unreadable(case.topology):
        rows = tuple(
            Evidence(NODE_DIR, row["text"], "unknown")
            for row in case.topology.warnings
            if row["reason"] in ("no_sysfs", "unreadable")
        )
        return _Reading("unknown", "the kernel's files about CPUs and nodes cannot be read", rows)
    return None


def _switched_off(case: _Case) -> _Reading | None:
    """`hidden` where this kernel was told not to look for nodes and shows one."""
    told = [token for token in case.signs.boot if not token.startswith("numa=fake")]
    if not told or not case.one_node:
        return None
    row = Evidence(CMDLINE, told[0], "hidden")
    return _Reading("hidden", f"the kernel was told not to look for nodes ({told[0]})", (row,))


def _read(case: _Case) -> _Reading:
    bare_metal = case.topology.virtualization.bare_metal
    if bare_metal is not None:
        return _as_metal(case) if bare_metal else _as_guest(case)
    metal, guest = _as_metal(case), _as_guest(case)
    if metal.verdict == guest.verdict:
        return guest
    if {metal.verdict, guest.verdict} == {"exposed", "consistent"}:
        words = "the sources agree, and whether this is a guest is not known"
        return _Reading("consistent", words, guest.rows)
    words = f"as bare metal it would be {metal.verdict}, as a guest {guest.verdict}, and nothing tells which it is"
    shared = tuple(row for row in guest.rows if row in metal.rows)
    return _Reading("unknown", words, shared)


def _as_metal(case: _Case) -> _Reading:
    found = tuple(contradictions(case.topology, case.signs, guest=False))
    if found:
        return _Reading("contradictory", found[0].seen, found)
    signs = case.signs
    if front_side_bus(signs.vendor, signs.family, signs.model):
        return _Reading("exposed", "bare metal of the time of the front-side bus: what is shown is all there is")
    if case.topology.source == "no_numa":
        return _Reading("unknown", "this kernel shows no nodes whatever the machine has")
    off = _switched_off(case)
    if off:
        return off
    if case.one_node and case.sockets > 1:
        words = f"bare metal with {case.sockets} sockets in one node: interleaved by firmware"
        return _Reading("hidden", words)
    if not case.compared:
        return _Reading("unknown", "nothing is known of sockets or caches to hold the nodes against")
    if case.ratio is not None and case.ratio < REAL_RATIO and not case.one_node and _one_each(case.topology):
        words = f"the sources of this bare metal agree, but its sockets measure as one memory ({case.ratio:.2f})"
        return _Reading("consistent", words)
    return _Reading("exposed", "bare metal whose sources agree")


def _as_guest(case: _Case) -> _Reading:
    found = tuple(contradictions(case.topology, case.signs, guest=True))
    if found:
        return _Reading("contradictory", found[0].seen, found)
    if case.risk.risk:
        return _Reading("hidden", case.risk.text)
    if case.one_node:
        return _one_node_guest(case)
    if not case.compared:
        return _Reading("unknown", "nothing is known of sockets or caches to hold the nodes against")
    if case.ratio is None:
        return _Reading("consistent", "a guest whose sources agree; its memory latency was not measured")
    if case.ratio >= REAL_RATIO:
        words = f"a guest whose sources agree and whose remote memory takes {case.ratio:.2f} times as long"
        return _Reading("exposed", words)
    words = f"a guest whose sources agree, but remote memory takes {case.ratio:.2f} times as long: as good as flat"
    return _Reading("consistent", words)


def _one_node_guest(case: _Case) -> _Reading:
    """One node is also what a hypervisor shows that passes no NUMA on, so it takes more than agreement.

    A firmware that says "one node" (SRAT) and a size that fits one socket, both: consistent; one of them: unknown.
    Without SRAT the hypervisor says nothing of nodes (QEMU without -numa), and may put the memory anywhere.
    """
    if case.sockets > 1:
        return _Reading("hidden", f"the guest has {case.sockets} sockets and shows one node")
    off = _switched_off(case)
    if off:
        return off
    acpi = case.signs.acpi
    stated = None if acpi is None else "SRAT" in acpi
    fits = case.risk.risk is False
    if stated is False:
        row = Evidence(ACPI_DIR, "no SRAT: the hypervisor says nothing about nodes", "hidden")
        words = "the guest shows one node because its hypervisor tells of none: its memory may be on any"
        return _Reading("hidden", words, (row,))
    rows = (Evidence(f"{ACPI_DIR}/SRAT", "the hypervisor states the nodes", "consistent"),) if stated else ()
    if stated and fits:
        return _Reading("consistent", "the hypervisor states one node, and the guest fits one socket", rows)
    if stated:
        words = f"the hypervisor states one node, and the cores of a socket are not known ({VARIABLE}.cores_per_socket)"
        return _Reading("unknown", words, rows)
    if fits:
        return _Reading("unknown", "the guest shows one node and fits one socket; nothing tells where it was put")
    row = Evidence(f"{NODE_DIR}/online", "one node, in a guest", "hidden")
    words = "the guest shows one node, as every guest does whose hypervisor hides them, and nothing speaks against that"
    return _Reading("hidden", words, (row,))


def _one_each(topology: Topology) -> bool:
    """Whether each socket is one node."""
    nodes = [node.cpus for node in topology.nodes if node.cpus]
    sockets = [package.cpus for package in topology.cpus.packages]
    return sorted(map(format_list, nodes)) == sorted(map(format_list, sockets))
