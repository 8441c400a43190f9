# SPDX-License-Identifier: GPL-3.0-or-later
"""Every reader on recorded machines: our own recordings, and the neighbouring folder where it exists.

The neighbouring recordings (hwloc's and util-linux's public test data) come with what hwloc reads from them.
Where we answer otherwise, DIFFERENT says what and why; anything else that differs fails.
"""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils._topology import read_topology
from ansible_collections.firsttouch.host.plugins.module_utils._trust import assess
from ansible_collections.firsttouch.host.plugins.module_utils._trust_signs import read_signs
from ansible_collections.firsttouch.host.plugins.plugin_utils._verify_answer import fault
from support import ROOT, run_module

SHARED = Path(os.environ.get("FIRSTTOUCH_RECORDED_HOSTS", ROOT.parent / "shared" / "hosts"))
OWN = ROOT / "tests" / "fixtures" / "hosts"

# machine -> what differs -> (ours, why)
DIFFERENT: dict[str, dict[str, tuple[Any, str]]] = {
    "hwloc-40intel64-4n10c+pci-conflicts": {
        "packages": (
            4,
            (
                "the core_siblings mask of CPU 39 was cut to 0000000f, which hwloc believes; its list and "
                "physical_package_id name four packages of ten CPUs, as the machine (PowerEdge R910) has"
            ),
        ),
    },
    "hwloc-8em64t-2s2ca2c-buggynuma": {
        "nodes": (
            {str(node): (str(node), size) for node, size in enumerate((2096684, 2096128, *[2097152] * 6))},
            (
                "numa=fake: cpulist and cpumap give all CPUs to each of the eight nodes, so hwloc drops all but "
                "the first; the cpuN links in the node directories say which node has which CPU"
            ),
        ),
        "distances": (
            [[10] * 8] * 8,
            "hwloc drops the table with the nodes; we return it with the warning distances_identical",
        ),
    },
}

# machine -> the verdict about its nodes (_trust), and why where that is not plain
TRUST = {
    "hwloc-16amd64-8n2c": "consistent",  # neither DMI vendor nor product recorded: metal or guest, both agree
    "hwloc-16em64t-4s2ca2c-cpusetreorder": "unknown",  # a front-side bus if metal, four sockets in one node if a guest
    "hwloc-16ia64-8n2s": "consistent",
    "hwloc-256ia64-64n2s2c": "consistent",
    "hwloc-2arm-2c": "unknown",  # a kernel without NUMA
    "hwloc-2i386-2c-nohugepage": "exposed",  # Xeon 5130: one memory behind the front-side bus
    "hwloc-2pa-pcidomain32bits": "hidden",  # CloudStack KVM, one node, a made-up model name
    "hwloc-2ps3-2t": "hidden",  # below the lv1 hypervisor
    "hwloc-32em64t-2n8c+dax+nvme+mic+dimms": "exposed",
    "hwloc-40intel64-2g2n4c+pcilocality": "exposed",
    "hwloc-40intel64-4n10c+pci-conflicts": "consistent",  # no DMI recorded
    "hwloc-8em64t-2s2ca2c": "exposed",  # Xeon E5345: front-side bus
    "hwloc-8em64t-2s2ca2c-buggynuma": "contradictory",  # numa=fake: each node has all CPUs, all distances are 10
    "hwloc-8ia64-2n2s2c": "consistent",
    "hwloc-96em64t-4no4pa3ca2co": "consistent",
    "hwloc-memorysidecaches": "exposed",  # SNC: the cache of a socket spans its two nodes
    "hwloc-nvidia-dgx-gb10": "exposed",  # one socket, one node
    "lscpu-loongarch-kvm_on_loongson_3c6000": "contradictory",  # 32 sockets share one level 3 cache
    "lscpu-loongarch-loongson_3a5000_hv": "unknown",  # neither DMI nor a device tree recorded
    "lscpu-ppc64-POWER7": "hidden",  # an LPAR with one node
    "lscpu-ppc64-POWER7-64cpu": "hidden",
    "lscpu-rv64-visionfive2": "unknown",
    "lscpu-s390-lpar": "hidden",  # PR/SM: seven sockets, no nodes
    "lscpu-s390-zvm": "hidden",
    "lscpu-sparc64": "unknown",  # a kernel without NUMA, metal or guest not known
    "lscpu-vmware_fpe": "consistent",  # bare metal by its name, but no DMI recorded that says so
    "lscpu-x86_64-dell_e4310": "unknown",  # the same, with one node
    "lscpu-x86_64-epyc_7451": "consistent",
}


def machines(folder: Path) -> list[str]:
    """Names of the recordings in FOLDER; one marker that skips, where the folder does not exist."""
    return sorted(path.parent.name for path in folder.glob("*/tree.tar.xz")) if folder.is_dir() else []


def unpack(archive: Path, target: Path) -> Path:
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(target, filter="tar")
        else:
            tar.extractall(target)
    return target


def topology_of(root: Path) -> dict[str, Any]:
    result = run_module("numa_topology_info", {"sysroot": str(root)})
    assert not result.get("failed"), result
    topology: dict[str, Any] = result["topology"]
    return topology


def nodes_of(topology: dict[str, Any]) -> dict[str, tuple[str, int]]:
    return {str(n["id"]): (n["cpus"], (n["memory_bytes"] or 0) // 1024) for n in topology["nodes"]}


def distances_of(topology: dict[str, Any], ids: list[int]) -> list[list[int | None]]:
    tables = {node["id"]: node["distances"] or {} for node in topology["nodes"]}
    return [[tables[a].get(str(b)) for b in ids] for a in ids]


def pages_of(topology: dict[str, Any]) -> dict[str, dict[str, int]]:
    return {
        str(node["id"]): {size[:-2]: pool["total"] for size, pool in node["pools"].items()}
        for node in topology["nodes"]
    }


@pytest.fixture(scope="session")
def shared_trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("recorded")
    return {name: unpack(SHARED / name / "tree.tar.xz", base / name) for name in machines(SHARED)}


@pytest.mark.skipif(
    not machines(SHARED), reason=f"no recordings in {SHARED}: they are not part of this project"
)
@pytest.mark.parametrize("machine", machines(SHARED))
def test_topology_is_what_hwloc_reads(shared_trees: dict[str, Path], machine: str) -> None:
    want = json.loads((SHARED / machine / "expected.json").read_text())
    topology = topology_of(shared_trees[machine])
    got = {
        "packages": topology["cpus"]["sockets"] or 0,
        "online_cpus": count(topology["cpus"]["online"]),
        "cores": topology["cpus"]["cores"],
        "nodes": nodes_of(topology),
    }
    expected: dict[str, Any] = {key: want[key] for key in ("packages", "online_cpus", "cores")}
    expected["nodes"] = {node: (row["cpus"], row["memory_kB"]) for node, row in want["nodes"].items()}
    if want["distances"]:
        got["distances"] = distances_of(topology, want["distances"]["nodes"])
        expected["distances"] = want["distances"]["values"]
    explained = DIFFERENT.get(machine, {})
    if "distances" in explained:
        got["distances"] = distances_of(topology, [node["id"] for node in topology["nodes"]])
    for key, (value, _why) in explained.items():
        assert expected.get(key) != value, f"{key} no longer differs"
        expected[key] = value
    assert got == expected
    assert {node: row["pages"] for node, row in want["nodes"].items()} == {
        node: pages for node, pages in pages_of(topology).items() if node in want["nodes"]
    }


@pytest.mark.skipif(
    not machines(SHARED), reason=f"no recordings in {SHARED}: they are not part of this project"
)
@pytest.mark.parametrize("machine", machines(SHARED))
def test_no_reader_fails_on_any_machine(shared_trees: dict[str, Path], machine: str) -> None:
    readers_answer(shared_trees[machine])


@pytest.mark.skipif(
    not machines(SHARED), reason=f"no recordings in {SHARED}: they are not part of this project"
)
@pytest.mark.parametrize("machine", machines(SHARED))
def test_each_machine_is_trusted_as_far_as_it_shows(shared_trees: dict[str, Path], machine: str) -> None:
    root = str(shared_trees[machine])
    trust = assess(read_topology(root), read_signs(root))
    assert trust.verdict == TRUST[machine], trust.as_dict()


@pytest.mark.parametrize("name", sorted(path.name for path in OWN.glob("*.tar.*")))
def test_our_own_recordings_work_as_sysroots(name: str, tmp_path: Path) -> None:
    root = unpack(OWN / name, tmp_path / "root")
    readers_answer(root)
    want = json.loads((OWN / name).with_suffix("").with_suffix(".json").read_text())
    topology = topology_of(root)
    got = {
        "source": topology["source"],
        "nodes": {node: list(row) for node, row in nodes_of(topology).items()},
        "sockets": topology["cpus"]["sockets"],
        "cores": topology["cpus"]["cores"],
        "distances": distances_of(topology, [node["id"] for node in topology["nodes"]]),
        "hypervisor": topology["virtualization"]["hypervisor"],
        "pages": pages_of(topology),
    }
    if "boot" in want:
        told = run_module("kernel_cmdline_info", {"sysroot": str(root)})
        got["boot"] = {"bootloader": told["bootloader"], "default_entry": told["default_entry"]}
        got["boot"]["line"] = told["next_boot"]["line"]
        running = (root / "proc/cmdline").read_text().split()
        assert [word for word in running if not word.startswith("initrd=")] == want["boot"]["line"].split()
    assert got == want


def readers_answer(root: Path) -> None:
    """Every reader, and the plan, gives an answer on ROOT or refuses with a reason, whatever ROOT lacks."""
    topology = topology_of(root)
    assert topology["nodes"] and topology["cpus"]["online"]
    request = [{"size": "2M", "count": 0}]
    result = run_module("hugepages_info", {"sysroot": str(root), "pools": request, "mount": True})
    assert not result.get("failed") and result["verdict"] in ("pass", "fail"), result
    assert not run_module("sysctl_info", {"sysroot": str(root)}).get("failed")
    answered(run_module("kernel_cmdline_info", {"sysroot": str(root)}))
    answered(run_module("host_plan", {"sysroot": str(root), "intent": {"rt_runtime_us": 950000}}))
    pages = {"hugepages": [{"size": "2M", "count": 2, "nodes": "all"}], "isolated_cpus": "1"}
    answered(run_module("host_plan", {"sysroot": str(root), "intent": pages, "topology": topology}))
    verified = run_module("host_verify", {"sysroot": str(root), "intent": {"vm_sysctls": {"vm.swappiness": 0}}})
    assert verified["results"] and fault(verified) == "", "the report must take what host_verify says of any host"


def answered(result: dict[str, Any]) -> None:
    assert "exception" not in result
    assert result.get("reason") if result.get("failed") else result, result


def count(cpu_list: str) -> int:
    spans = [piece.split("-") for piece in cpu_list.split(",") if piece]
    return sum(int(span[-1]) - int(span[0]) + 1 for span in spans)
