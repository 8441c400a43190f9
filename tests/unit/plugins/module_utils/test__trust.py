# SPDX-License-Identifier: GPL-3.0-or-later
"""Trust: the hosts that people really have, one by one; what each verdict rests on; who may vouch for what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils._collect import collect
from ansible_collections.firsttouch.host.plugins.module_utils._topology import (
    Topology,
    judge_distances,
    read_topology,
)
from ansible_collections.firsttouch.host.plugins.module_utils._topology_cpus import Cpus, Package
from ansible_collections.firsttouch.host.plugins.module_utils._topology_host import Virtualization
from ansible_collections.firsttouch.host.plugins.module_utils._topology_nodes import Node, NodeLists
from ansible_collections.firsttouch.host.plugins.module_utils._topology_text import read_lscpu, read_numactl
from ansible_collections.firsttouch.host.plugins.module_utils._trust import (
    REAL_RATIO,
    VERDICTS,
    Trust,
    assess,
)
from ansible_collections.firsttouch.host.plugins.module_utils._trust_signs import Signs, read_signs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan_host import make_host
from support import CASES, put, sysroot_from_tsv
from test_recorded_hosts import OWN, unpack

METAL = Virtualization(None, True, ())
UNTOLD = Virtualization(None, None, ())
EPYC_84 = "AMD EPYC 9634 84-Core Processor"
STATED = frozenset({"APIC", "SRAT", "SLIT"})
SILENT = frozenset({"APIC", "FACP"})
SLIT = {(0, 0): 10, (1, 1): 10, (0, 1): 21, (1, 0): 21}


def guest(name: str) -> Virtualization:
    return Virtualization(name, False, ((name, "/sys/class/dmi/id/sys_vendor", name),))


def host(
    virtualization: Virtualization,
    nodes: Iterable[Iterable[int]],
    packages: Iterable[Iterable[int]] | None = None,
    l3: Iterable[Iterable[int]] | None = None,
    *,
    threads: int = 1,
    remote: int = 21,
    memory: Mapping[int, int] | None = None,
    source: str = "sysfs",
    distances: bool = True,
    warnings: Iterable[dict[str, str]] = (),
    possible: Iterable[int] = (),
) -> Topology:
    """A host of NODES (their CPUs) and PACKAGES, one of all CPUs where none is given; L3 is that of the packages."""
    sets = [frozenset(cpus) for cpus in nodes]
    online = frozenset().union(*sets)
    sockets = [frozenset(cpus) for cpus in packages] if packages is not None else [online]
    caches = tuple(frozenset(cpus) for cpus in l3) if l3 is not None else tuple(sockets)
    rank = {cpu: place for cpus in sockets for place, cpu in enumerate(sorted(cpus))}
    siblings = {
        cpu: frozenset(other for other in cpus if rank[other] // threads == rank[cpu] // threads)
        for cpus in sockets
        for cpu in cpus
    }
    rows = tuple(
        Node(
            number,
            cpus,
            (memory or {}).get(number, 1 << 36),
            (memory or {}).get(number, 1) > 0,
            True,
            {},
            {other: 10 if other == number else remote for other in range(len(sets))} if distances else None,
        )
        for number, cpus in enumerate(sets)
    )
    cpus = Cpus(
        online=online,
        possible=online | frozenset(possible),
        present=online,
        siblings=siblings,
        packages=tuple(Package(number, cpus, len({siblings[c] for c in cpus})) for number, cpus in enumerate(sockets)),
        l3=caches,
        counts={"sockets": len(sockets)},
    )
    return Topology(
        source=source,
        cpus=cpus,
        nodes=rows,
        lists=NodeLists(frozenset(range(len(sets)))),
        virtualization=virtualization,
        warnings=(*warnings, *judge_distances(rows, virtualization)),
    )


def spans(*bounds: int) -> list[range]:
    """spans(0, 4, 8): [0-3], [4-7]."""
    return [range(a, b) for a, b in zip(bounds, bounds[1:])]


TWO = (spans(0, 44, 88), spans(0, 44, 88))
ONE_OF_88 = ([range(88)],)
XEON = "Intel(R) Xeon(R) Platinum 8480+"
FAMOUS: dict[str, tuple[Topology, Signs, str]] = {
    "the seed: VMware, one node, 88 vCPUs on an 84-core part": (
        host(guest("vmware"), *ONE_OF_88), Signs(EPYC_84, acpi=STATED), "hidden",
    ),
    "VMware with CPU hot add: one socket per vCPU, one node": (
        host(guest("vmware"), [range(88)], [[cpu] for cpu in range(88)], possible=range(128)),
        Signs(EPYC_84, acpi=STATED), "hidden",
    ),
    "VMware with virtual nodes": (host(guest("vmware"), *TWO), Signs(EPYC_84, acpi=STATED), "consistent"),
    "VMware, two virtual nodes, each wider than a socket": (
        host(guest("vmware"), spans(0, 88, 176), spans(0, 88, 176)), Signs(EPYC_84, acpi=STATED), "hidden",
    ),
    "KVM without -numa": (host(guest("kvm"), [range(16)]), Signs(EPYC_84, acpi=SILENT), "hidden"),
    "KVM without -numa, each vCPU a socket": (
        host(guest("kvm"), [range(16)], [[cpu] for cpu in range(16)]), Signs("QEMU Virtual CPU", acpi=SILENT), "hidden",
    ),
    "KVM without -numa, two sockets": (
        host(guest("kvm"), [range(16)], spans(0, 8, 16)), Signs(EPYC_84), "hidden",
    ),
    "KVM with -numa, a made-up model name": (
        host(guest("kvm"), spans(0, 8, 16), spans(0, 8, 16)), Signs("AMD EPYC-Rome Processor", acpi=STATED),
        "consistent",
    ),
    "KVM with -numa, each vCPU a socket": (
        host(guest("kvm"), spans(0, 8, 16), [[cpu] for cpu in range(16)], []), Signs(acpi=STATED), "consistent",
    ),
    "KVM with two nodes in one socket: the cache spans them": (
        host(guest("kvm"), spans(0, 8, 16), [range(16)]), Signs(acpi=STATED), "contradictory",
    ),
    "Hyper-V, a small instance whose firmware states one node": (
        host(guest("microsoft"), [range(4)], threads=2), Signs("Intel(R) Xeon(R) Platinum 8380 CPU @ 2.30GHz",
        acpi=STATED), "consistent",
    ),
    "Hyper-V, eight nodes without a SLIT": (
        host(guest("microsoft"), spans(*range(0, 417, 52)), spans(*range(0, 417, 52)), remote=20),
        Signs(acpi=STATED), "consistent",
    ),
    "a cloud that hides the model": (
        host(guest("google"), [range(8)], threads=2), Signs("Intel(R) Xeon(R) CPU @ 2.20GHz", acpi=STATED), "unknown",
    ),
    "a cloud instance as large as the machine": (
        host(guest("amazon"), spans(0, 48, 96), spans(0, 48, 96), threads=2),
        Signs("Intel(R) Xeon(R) Platinum 8175M CPU @ 2.50GHz", acpi=STATED), "consistent",
    ),
    "Xen domain 0: the hypervisor hides the nodes of real hardware": (
        host(guest("xen"), [range(32)], spans(0, 16, 32)), Signs(XEON, acpi=STATED), "hidden",
    ),
    "a guest that fits a socket, of which nobody says where it is": (
        host(guest("kvm"), [range(8)]), Signs(EPYC_84), "unknown",
    ),
    "nodes that the kernel was told to make up": (
        host(guest("kvm"), spans(0, 4, 8), spans(0, 4, 8)), Signs(boot=("numa=fake=2",)), "contradictory",
    ),
    "two nodes that no firmware table names": (
        host(guest("kvm"), spans(0, 4, 8), spans(0, 4, 8)), Signs(acpi=SILENT), "contradictory",
    ),
    "a node that crosses two sockets": (
        host(guest("kvm"), spans(0, 6, 8), spans(0, 4, 8), []), Signs(acpi=STATED), "contradictory",
    ),
    "another node as near as the own": (
        host(guest("kvm"), spans(0, 4, 8), spans(0, 4, 8), remote=10), Signs(acpi=STATED), "contradictory",
    ),
    "a device on a node that cannot be": (
        host(guest("kvm"), spans(0, 4, 8), spans(0, 4, 8)), Signs(pci={0: 3, 7: 1}), "contradictory",
    ),
    "a guest with a node without memory": (
        host(guest("kvm"), spans(0, 4, 8), spans(0, 4, 8), memory={1: 0}), Signs(acpi=STATED), "consistent",
    ),
    "bare metal, a node per socket": (host(METAL, *TWO), Signs(XEON, acpi=STATED), "exposed"),
    "bare metal, one socket": (host(METAL, [range(8)]), Signs(XEON), "exposed"),
    "bare metal, SNC: Intel's cache spans the nodes of a socket": (
        host(METAL, spans(0, 4, 8, 12, 16), spans(0, 8, 16)), Signs(XEON, "GenuineIntel"), "exposed",
    ),
    "bare metal, NPS4": (
        host(METAL, spans(*range(0, 65, 8)), spans(0, 32, 64), spans(*range(0, 65, 8))),
        Signs("AMD EPYC 7543 32-Core Processor", "AuthenticAMD"), "exposed",
    ),
    "bare metal, AMD, a cache wider than a node": (
        host(METAL, spans(0, 4, 8), [range(8)]), Signs(None, "AuthenticAMD"), "contradictory",
    ),
    "bare metal, interleaved by firmware": (
        host(METAL, [range(16)], spans(0, 8, 16)), Signs(XEON, "GenuineIntel", 6, 143), "hidden",
    ),
    "bare metal, numa=off": (
        host(METAL, [range(16)], spans(0, 8, 16)), Signs(XEON, boot=("numa=off",)), "hidden",
    ),
    "bare metal, one socket, numa=off: its nodes cannot show": (
        host(METAL, [range(16)]), Signs(XEON, boot=("numa=off",)), "hidden",
    ),
    "bare metal, single-core sockets interleaved by firmware": (
        host(METAL, [range(2)], spans(0, 1, 2)), Signs("AMD Opteron(tm) Processor 248", "AuthenticAMD"), "hidden",
    ),
    "a guest whose kernel was told not to look": (
        host(guest("vmware"), [range(8)]), Signs(EPYC_84, acpi=STATED, boot=("acpi=off",)), "hidden",
    ),
    "bare metal with a front-side bus: two sockets have one memory": (
        host(METAL, [range(8)], spans(0, 4, 8)), Signs("Intel(R) Xeon(R) CPU E5345", "GenuineIntel", 6, 15), "exposed",
    ),
    "bare metal, a kernel without NUMA": (host(METAL, [range(8)], source="no_numa"), Signs(XEON), "unknown"),
    "bare metal, more cores in a socket than its name says": (
        host(METAL, [range(32)]), Signs("AMD EPYC 7251 8-Core Processor"), "contradictory",
    ),
    "who knows what, a node per socket": (host(UNTOLD, *TWO), Signs(XEON), "consistent"),
    "who knows what, one node": (host(UNTOLD, [range(8)]), Signs("QEMU"), "unknown"),
    "who knows what, SNC": (
        host(UNTOLD, spans(0, 4, 8), [range(8)]), Signs(XEON, "GenuineIntel"), "unknown",
    ),
    "a container": (host(METAL, *TWO), Signs(XEON, container=("/run/systemd/container", "lxc")), "unknown"),
    "nothing but nodes": (host(guest("kvm"), spans(0, 4, 8), [], []), Signs(), "unknown"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(FAMOUS))
def test_a_host_that_people_have(name: str) -> None:
    topology, signs, verdict = FAMOUS[name]
    trust = assess(topology, signs)
    assert trust.verdict == verdict, trust.as_dict()
    assert trust.words
    assert all(row.source and row.seen for row in trust.evidence)


@pytest.mark.parametrize("name", sorted(FAMOUS))
def test_no_guest_is_exposed_without_measurement_or_word(name: str) -> None:
    topology, signs, verdict = FAMOUS[name]
    flat = assess(topology, signs, measured={"ratio": 1.0, "source": "test"})
    if topology.virtualization.bare_metal is not True:
        assert flat.verdict != "exposed"
    assert verdict in VERDICTS


@pytest.mark.parametrize("name", sorted(FAMOUS))
def test_a_measurement_lifts_only_what_is_consistent(name: str) -> None:
    topology, signs, verdict = FAMOUS[name]
    trust = assess(topology, signs, measured={"ratio": REAL_RATIO, "source": "numa_placement_verify"})
    several = len(topology.ids("cpu")) > 1
    assert trust.verdict == ("exposed" if verdict == "consistent" and several else verdict)
    assert any(row.source == "numa_placement_verify" and "1.20" in row.seen for row in trust.evidence)


@pytest.mark.parametrize("name", sorted(FAMOUS))
def test_an_operator_may_vouch_but_not_for_contradictions(name: str) -> None:
    topology, signs, verdict = FAMOUS[name]
    trust = assess(topology, signs, asserted_by="firsttouch_numa")
    stays = verdict in ("contradictory", "exposed") or signs.container is not None
    assert trust.verdict == (verdict if stays else "exposed")
    assert any(row.source == "firsttouch_numa" for row in trust.evidence)
    if not stays:
        assert trust.asserted_by == "firsttouch_numa" and verdict in trust.words and "firsttouch_numa" in trust.words
    else:
        assert trust.asserted_by is None


def test_words_have_no_figures_that_differ_from_boot_to_boot() -> None:
    row = {"reason": "node_memory_disagrees", "text": "the nodes have 123 bytes of memory together"}
    trust = assess(host(METAL, *TWO, warnings=[row]), Signs(XEON))
    assert trust.verdict == "contradictory" and "123" not in trust.words
    assert any("123" in evidence.seen for evidence in trust.evidence)
    assert assess(host(METAL, [range(8)], warnings=[row]), Signs(XEON)).verdict == "exposed"


@st.composite
def made_up(draw: st.DrawFn) -> tuple[Topology, Signs]:
    """Any host of 12 CPUs: nodes, sockets and caches cut at any places, any kind of host, any signs."""

    def cut() -> list[range]:
        inner = draw(st.sets(st.integers(1, 11), max_size=4))
        return spans(0, *sorted(inner), 12)

    topology = host(
        draw(st.sampled_from([METAL, UNTOLD, guest("kvm"), guest("vmware")])),
        cut(),
        draw(st.sampled_from([None, []])) if draw(st.booleans()) else cut(),
        cut() if draw(st.booleans()) else [],
        remote=draw(st.sampled_from([10, 20, 21])),
        distances=draw(st.booleans()),
        source=draw(st.sampled_from(["sysfs", "no_numa"])),
    )
    signs = Signs(
        draw(st.sampled_from([None, EPYC_84, "AMD EPYC 7251 8-Core Processor", "QEMU"])),
        draw(st.sampled_from([None, "GenuineIntel", "AuthenticAMD"])),
        draw(st.sampled_from([None, 6])),
        draw(st.sampled_from([None, 15, 143])),
        draw(st.sampled_from([None, STATED, SILENT])),
        draw(st.dictionaries(st.integers(-1, 5), st.integers(1, 3), max_size=2)),
        draw(st.sampled_from([(), ("numa=off",), ("numa=fake=2",)])),
    )
    return topology, signs


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(made_up())
def test_whatever_a_host_shows(shown: tuple[Topology, Signs]) -> None:
    """An answer, never better than the rules allow; more evidence never makes it worse."""
    topology, signs = shown
    trust = assess(topology, signs)
    assert trust.verdict in VERDICTS and trust.words and trust.asserted_by is None
    if trust.verdict == "exposed":
        assert topology.virtualization.bare_metal
    if trust.co_scheduling.risk and topology.virtualization.bare_metal is False:
        assert trust.verdict in ("hidden", "contradictory")
    if topology.virtualization.bare_metal is None:
        readings = {
            assess(replace(topology, virtualization=kind), signs).verdict for kind in (METAL, guest("kvm"))
        }
        better = {"exposed": 2, "consistent": 1}
        assert better.get(trust.verdict, 0) <= min(better.get(verdict, 0) for verdict in readings)
    far = assess(topology, signs, measured={"ratio": 2.0, "source": "test"})
    assert far.verdict in (trust.verdict, "exposed")
    if far.verdict != trust.verdict:
        assert trust.verdict == "consistent" and len(topology.ids("cpu")) > 1


def test_what_cannot_be_read_nobody_can_vouch_for(tmp_path: Path) -> None:
    put(tmp_path, "/proc/cpuinfo", "processor : 0\n")
    trust = assess(read_topology(str(tmp_path)), read_signs(str(tmp_path)), asserted_by="firsttouch_numa")
    assert trust.verdict == "unknown" and trust.asserted_by is None


def test_an_unreadable_node_file_is_not_trusted() -> None:
    row = {"reason": "unreadable", "text": "/sys/devices/system/node/node1/cpulist: Permission denied"}
    trust = assess(host(METAL, *TWO, warnings=[row]), Signs(XEON))
    assert trust.verdict == "unknown"
    assert any(row["text"] in evidence.seen for evidence in trust.evidence)


def test_sockets_of_bare_metal_that_measure_as_one_memory_are_not_exposed() -> None:
    trust = assess(host(METAL, *TWO), Signs(XEON), measured={"ratio": 1.05, "source": "test"})
    assert trust.verdict == "consistent" and "1.05" in trust.words


@pytest.mark.parametrize("ratio", [0, -1, True, "2", None, float("nan"), float("inf")])
def test_a_measurement_that_is_none_is_refused(ratio: object) -> None:
    with pytest.raises(ValueError, match="ratio"):
        assess(host(METAL, *TWO), Signs(), measured={"ratio": ratio})


@pytest.mark.parametrize(
    ("topology", "name", "given", "risk"),
    [
        (host(guest("vmware"), [range(88)]), EPYC_84, None, True),
        (host(guest("vmware"), [range(84)]), EPYC_84, None, False),
        (host(guest("vmware"), [range(85)]), EPYC_84, None, True),
        (host(guest("vmware"), [range(168)], threads=2), EPYC_84, None, False),
        (host(guest("vmware"), [range(170)], threads=2), EPYC_84, None, True),
        (host(guest("vmware"), spans(0, 80, 160), spans(0, 80, 160)), EPYC_84, None, False),
        (host(guest("vmware"), spans(0, 80, 160), [range(160)]), EPYC_84, None, True),
        (host(guest("vmware"), [range(160)], spans(0, 80, 160)), EPYC_84, None, True),
        (host(guest("vmware"), [range(8)]), "QEMU TCG CPU version 2.5+", None, None),
        (host(guest("vmware"), [range(8)]), "QEMU TCG CPU version 2.5+", 6, True),
        (host(guest("vmware"), [range(8)]), None, 8, False),
        (host(guest("vmware"), [range(88)]), EPYC_84, 96, False),
        (host(METAL, [range(88)]), EPYC_84, None, False),
    ],
)
def test_co_scheduling(topology: Topology, name: str | None, given: int | None, risk: bool | None) -> None:
    trust = assess(topology, Signs(name), cores_per_socket=given)
    assert trust.co_scheduling.risk is risk
    if topology.virtualization.bare_metal is False and risk:
        assert trust.verdict in ("hidden", "contradictory")
        assert str(trust.co_scheduling.vcpus) in trust.co_scheduling.text
        assert str(trust.co_scheduling.physical_cores) in trust.co_scheduling.text


def test_texts_are_judged_too() -> None:
    snc = read_lscpu((CASES / "numa-snc4-two-sockets" / "lscpu").read_text())
    assert assess(snc, Signs()).verdict in ("consistent", "unknown")
    alone = read_numactl((CASES / "numa-memoryless-nodes-nps4" / "numactl").read_text())
    assert assess(alone, Signs()).verdict == "unknown"


# The verdict of each recorded case, and why it can be defended.
CASE_VERDICTS = {
    # Neither sockets nor caches are in these tables: nodes alone prove nothing.
    "numa-cpu-only-and-memory-only-nodes": "unknown",
    "numa-flat-virtual-distances": "unknown",
    "numa-interleaved-cpu-numbers": "unknown",
    "numa-no-node-directory": "unknown",
    # CPUs 4,6,...,20 are online, and the only node does not have them.
    "numa-node0-and-cpu0-offline": "contradictory",
    "numa-online-node-without-cpu-or-memory": "unknown",
    "numa-power9-gpu-nodes": "unknown",
}


@pytest.mark.parametrize("case", sorted(CASE_VERDICTS))
def test_recorded_cases(case: str, tmp_path: Path) -> None:
    sysroot_from_tsv(tmp_path, CASES / case / "sysfs.tsv")
    assert verdict_of(tmp_path).verdict == CASE_VERDICTS[case]


OWN_VERDICTS = {
    "testhost-two-node": "consistent",
    "testhost-hidden": "hidden",
    # One node, the model name made up, no ACPI tables in the recording.
    "microvm-one-node": "hidden",
}


@pytest.mark.parametrize("name", sorted(OWN_VERDICTS))
def test_our_own_recordings(name: str, tmp_path: Path) -> None:
    assert verdict_of(unpack(OWN / f"{name}.tar.xz", tmp_path / "root")).verdict == OWN_VERDICTS[name]


def verdict_of(root: Path) -> Trust:
    trust = assess(read_topology(str(root)), read_signs(str(root)))
    document: dict[str, Any] = trust.as_dict()
    assert {row["points"] for row in document["evidence"]} <= {"guest", "bare_metal", "nothing", *VERDICTS}
    return trust


def test_all_that_was_seen_is_evidence() -> None:
    odd = {"reason": "distances_asymmetric", "text": "a distance differs from the one in the other direction"}
    topology = host(guest("kvm"), *TWO, memory={1: 0}, warnings=[odd], possible=range(128))
    trust = assess(topology, Signs("QEMU", acpi=STATED, pci={0: 3, 1: 2, -1: 1}))
    seen = {row.source: (row.seen, row.points) for row in trust.evidence}
    node, cpu = "/sys/devices/system/node", "/sys/devices/system/cpu"
    assert seen == {
        "/sys/class/dmi/id/sys_vendor": ("kvm (kvm)", "guest"),
        f"{node}/online": ("2 nodes, 2 with CPUs", "consistent"),
        f"{cpu}/cpu*/topology/physical_package_id": ("2 sockets, 2 nodes with CPUs", "consistent"),
        f"{cpu}/cpu*/cache/index3/shared_cpu_list": ("2 level 3 caches, 2 nodes with CPUs", "consistent"),
        f"{node}/node*/distance": ("distances 10, 21", "consistent"),
        f"{node}/node*/meminfo": ("nodes 1 have CPUs and no memory", "nothing"),
        "/sys/bus/pci/devices/*/numa_node": ("devices at 2 nodes: 0-1", "consistent"),
        "/sys/firmware/acpi/tables": ("the firmware names the nodes (SRAT), with distances (SLIT)", "consistent"),
        f"{node} or {cpu}": (odd["text"], "nothing"),
    }


@pytest.mark.parametrize(
    ("topology", "signs", "seen", "points"),
    [
        (host(guest("vmware"), [range(8)], possible=range(128)), Signs(), "CPUs 8-127 may be added", "nothing"),
        (host(guest("kvm"), *TWO, remote=20), Signs(), "distances 10, 20: the kernel's own", "nothing"),
        (host(guest("kvm"), *TWO, distances=False), Signs(), "distances are not known", "nothing"),
        (host(guest("kvm"), *TWO), Signs(pci={-1: 9}), "no device says which node it is at", "nothing"),
        (host(guest("kvm"), *TWO), Signs(pci={0: 9}), "devices at 1 node: 0", "nothing"),
        (host(guest("kvm"), [range(4)], [[cpu] for cpu in range(4)]), Signs(), "one core each", "nothing"),
        (host(METAL, [range(2)], spans(0, 1, 2)), Signs(), "2 sockets, 1 node with CPUs", "hidden"),
        (host(METAL, [range(4)], source="no_numa"), Signs(), "the kernel shows no nodes", "nothing"),
    ],
)
def test_single_pieces_of_evidence(topology: Topology, signs: Signs, seen: str, points: str) -> None:
    rows = [row for row in assess(topology, signs).evidence if seen in row.seen]
    assert [row.points for row in rows] == [points]


def test_signs(tmp_path: Path) -> None:
    cpuinfo = f"processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: {EPYC_84}\n"
    put(tmp_path, "/proc/cpuinfo", cpuinfo)
    put(tmp_path, "/proc/cmdline", "quiet numa=fake=2 acpi=off -- numa=off\n")
    put(tmp_path, "/sys/firmware/acpi/tables/SRAT", "")
    for device, node in (("0000:00:00.0", "0"), ("0000:00:01.0", "-1"), ("0000:01:00.0", "0")):
        put(tmp_path, f"/sys/bus/pci/devices/{device}/numa_node", f"{node}\n")
    assert read_signs(str(tmp_path)) == Signs(
        EPYC_84, "AuthenticAMD", 25, 17, frozenset({"SRAT"}), {0: 2, -1: 1}, ("numa=fake=2", "acpi=off")
    )
    assert read_signs(str(tmp_path / "nowhere")) == Signs()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/run/systemd/container", "docker\n"),
        ("/.dockerenv", ""),
        ("/run/.containerenv", ""),
        ("/proc/self/mounts", "lxcfs /proc/cpuinfo fuse.lxcfs rw,nosuid 0 0\n"),
        ("/proc/self/mounts", "lxcfs /sys/devices/system/cpu/online fuse.lxcfs rw 0 0\n"),
        (
            "/proc/self/mounts",
            "overlay / overlay rw,lowerdir=/var/lib/containerd/a/fs,upperdir=/var/lib/containerd/b/fs 0 0\n",
        ),
        ("/proc/self/mounts", "overlay / overlay rw,lowerdir=/var/lib/docker/overlay2/l/A:B 0 0\n"),
        ("/run/secrets/kubernetes.io/serviceaccount", None),
    ],
)
def test_containers_are_seen(tmp_path: Path, path: str, text: str | None) -> None:
    put(tmp_path, path if text is not None else f"{path}/token", text or "")
    found = read_signs(str(tmp_path)).container
    assert found and found[0] == path


def test_a_recording_is_trusted_like_its_host(tmp_path: Path) -> None:
    """The collector takes all of the signs along, the firmware's tables by name only."""
    root = make_host(tmp_path / "host")
    put(root, "/sys/firmware/acpi/tables/SRAT", "secret")
    put(root, "/sys/devices/pci0000:00/0000:00:01.0/numa_node", "1\n")
    (root / "sys/bus/pci/devices").mkdir(parents=True)
    (root / "sys/bus/pci/devices/0000:00:01.0").symlink_to("../../../devices/pci0000:00/0000:00:01.0")
    put(root, "/run/systemd/container", "lxc\n")
    (tmp_path / "tar.xz").write_bytes(collect(str(root)).archive)
    copy = unpack(tmp_path / "tar.xz", tmp_path / "copy")
    signs = read_signs(str(copy))
    assert signs == read_signs(str(root))
    assert signs.acpi == frozenset({"SRAT"}) and signs.pci == {1: 1}
    assert signs.container == ("/run/systemd/container", "lxc")
    assert (copy / "sys/firmware/acpi/tables/SRAT").read_text() == ""


@pytest.mark.parametrize(
    "text",
    [
        "/dev/vda1 / ext4 rw 0 0\noverlay /var/lib/docker/a/merged overlay rw,upperdir=/var/lib/docker/b 0 0\n",
        "overlayroot / overlay rw,lowerdir=/media/root-ro,upperdir=/media/root-rw/overlay 0 0\n",
        "tmpfs /run/user/0 tmpfs rw 0 0\n",
    ],
)
def test_a_host_of_containers_is_none(tmp_path: Path, text: str) -> None:
    put(tmp_path, "/proc/self/mounts", text)
    assert read_signs(str(tmp_path)).container is None
