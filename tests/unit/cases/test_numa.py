# SPDX-License-Identifier: GPL-3.0-or-later
"""The recorded NUMA troubles, through numa_topology_info; then neighbours of each that were not recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import CASES, case_expected, put, run_module, sysroot_from_tsv

NODE = "/sys/devices/system/node"
CPU = "/sys/devices/system/cpu"


def read(tmp_path: Path, case: str = "", **args: Any) -> dict[str, Any]:
    """numa_topology_info on the sysfs table of CASE (or what a test put below TMP_PATH)."""
    if case:
        sysroot_from_tsv(tmp_path, CASES / case / "sysfs.tsv")
    result = run_module("numa_topology_info", {"sysroot": str(tmp_path), **args})
    assert not result.get("failed"), result
    return result


def nodes_of(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {str(node["id"]): node for node in result["topology"]["nodes"]}


def cpus_of(result: dict[str, Any], keys: Any) -> dict[str, str]:
    return {key: nodes_of(result)[key]["cpus"] for key in keys}


def reasons(result: dict[str, Any]) -> set[str]:
    return {row["reason"] for row in result["topology"]["warnings"]}


def lists(result: dict[str, Any]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = result["topology"]["node_lists"]
    return found


def all_of(expected: dict[str, Any], got: dict[str, Any]) -> None:
    """GOT answers every key of expected.json, and nothing else."""
    assert got == expected


def test_cpu_only_and_memory_only_nodes(tmp_path: Path) -> None:
    case = "numa-cpu-only-and-memory-only-nodes"
    want, result = case_expected(case), read(tmp_path, case)
    all_of(
        want,
        {
            "nodes": lists(result)["online"],
            "cpus": cpus_of(result, want["cpus"]),
            "memory_nodes": lists(result)["memory"],
            "normal_memory_nodes": lists(result)["normal_memory"],
            "nearest_normal_memory": {
                key: result["nearest_normal_memory"][key] for key in want["nearest_normal_memory"]
            },
        },
    )
    assert nodes_of(result)["0"]["distances"]["5"] == 11
    assert lists(result)["empty"] == [4]


def test_flat_virtual_distances(tmp_path: Path) -> None:
    case = "numa-flat-virtual-distances"
    facts = json.loads((CASES / case / "facts.json").read_text())
    want, result = case_expected(case), read(tmp_path, case, facts=facts, expect_nodes=8)
    assert want["warning_class"] in reasons(result)
    all_of(
        want,
        {
            "nodes": result["node_count"]["online"],
            "warning_class": want["warning_class"],
            "verdict": result["verdict"],
        },
    )
    strict = read(tmp_path, expect_nodes=8, require_distances=True, facts=facts)
    assert (strict["verdict"], strict["reason"]) == ("fail", "flat_distances")


def test_flat_distances_are_nothing_special_on_bare_metal(tmp_path: Path) -> None:
    text = (CASES / "numa-memoryless-nodes-nps4" / "numactl").read_text()
    assert "flat_distances" not in reasons(read(tmp_path, numactl=text))
    assert "flat_distances" not in reasons(read(tmp_path, "numa-flat-virtual-distances"))


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/sys/class/dmi/id/product_name", "VMware7,1"),
        ("/sys/class/dmi/id/sys_vendor", "QEMU"),
        ("/proc/cpuinfo", "flags\t\t: fpu lm hypervisor"),
        ("/sys/hypervisor/type", "xen"),
        ("/proc/device-tree/hypervisor/compatible", "linux,kvm\0"),
    ],
)
def test_flat_distances_of_a_guest_known_by_its_files(tmp_path: Path, path: str, content: str) -> None:
    put(tmp_path, path, content)
    assert "flat_distances" in reasons(read(tmp_path, "numa-flat-virtual-distances"))


def test_interleaved_cpu_numbers(tmp_path: Path) -> None:
    case = "numa-interleaved-cpu-numbers"
    want, result = case_expected(case), read(tmp_path, case, isolated_cpus="40-79")
    nodes = nodes_of(result)
    all_of(
        want,
        {
            "cpus": cpus_of(result, want["cpus"]),
            "isolate_40_79_per_node": result["isolated_by_node"],
            "distance": {
                key: nodes[key.split(",")[0]]["distances"][key.split(",")[1]] for key in want["distance"]
            },
        },
    )
    assert not reasons(result)


def test_memoryless_nodes(tmp_path: Path) -> None:
    case = "numa-memoryless-nodes-nps4"
    text = (CASES / case / "numactl").read_text()
    want, result = case_expected(case), read(tmp_path, numactl=text, even_split=1024)
    all_of(
        want,
        {
            "nodes": lists(result)["online"],
            "memory_nodes": lists(result)["memory"],
            "cpus": cpus_of(result, want["cpus"]),
            "nearest_memory_node": {
                key: result["nearest_memory"][key] for key in want["nearest_memory_node"]
            },
            "even_split_1024": result["even_split"],
        },
    )


def test_no_node_directory(tmp_path: Path) -> None:
    case = "numa-no-node-directory"
    want, result = case_expected(case), read(tmp_path, case, expect_nodes=2)
    all_of(
        want,
        {
            "nodes": lists(result)["online"],
            "cpus": cpus_of(result, want["cpus"]),
            "source": result["topology"]["source"],
            "expect_2": result["verdict"],
            "first_online_cpu": result["topology"]["cpus"]["boot_cpu"],
        },
    )
    assert result["reason"] == "no_numa"
    assert "kernel exposes no NUMA" in result["message"]


def test_node0_and_cpu0_offline(tmp_path: Path) -> None:
    case = "numa-node0-and-cpu0-offline"
    want, result = case_expected(case), read(tmp_path, case)
    distance = (nodes_of(result)["1"]["distances"] or {}).get("1")
    assert distance in want["distance_1_1_any_of"]
    all_of(
        want,
        {
            "nodes": lists(result)["online"],
            "cpus": cpus_of(result, want["cpus"]),
            "cpu_online": result["topology"]["cpus"]["online"],
            "distance_1_1_any_of": want["distance_1_1_any_of"],
        },
    )
    assert lists(result)["memory"] == [1]
    assert lists(result)["offline"] == [0]
    assert {"has_memory_lists_offline_node", "cpulist_disagrees_with_cpumap"} <= reasons(result)


def test_online_node_without_cpu_or_memory(tmp_path: Path) -> None:
    case = "numa-online-node-without-cpu-or-memory"
    want, result = case_expected(case), read(tmp_path, case, expect_nodes=1, count="cpu_nodes")
    all_of(
        want,
        {
            "nodes": result["node_count"]["online"],
            "memory_nodes": lists(result)["memory"],
            "cpu_nodes": lists(result)["cpu"],
            "empty_nodes": lists(result)["empty"],
            "count_by_policy": result["node_count"],
        },
    )
    assert result["verdict"] == "pass"
    assert "count=cpu_nodes" in result["message"]
    online = read(tmp_path, expect_nodes=1)
    assert (online["verdict"], online["reason"]) == ("fail", "node_count")
    assert "count=online" in online["message"] and "9" in online["message"]


def test_power_numactl_text(tmp_path: Path) -> None:
    want = case_expected("numa-power8-9-numactl-text")
    got = {}
    for machine, keys in want.items():
        text = (CASES / "numa-power8-9-numactl-text" / f"numactl.{machine}").read_text()
        result = read(tmp_path, numactl=text)
        got[machine] = {
            "nodes": lists(result)["online"],
            "memory_nodes": lists(result)["memory"],
            "cpus": cpus_of(result, keys["cpus"]),
        }
        assert lists(result)["hugepage"] == keys["memory_nodes"]
    all_of(want, got)


def test_power9_gpu_nodes(tmp_path: Path) -> None:
    case = "numa-power9-gpu-nodes"
    want, result = case_expected(case), read(tmp_path, case)
    nodes = nodes_of(result)
    all_of(
        want,
        {
            "nodes": lists(result)["online"],
            "hugepage_nodes": lists(result)["hugepage"],
            "cpus": cpus_of(result, want["cpus"]),
            "distance": {
                key: nodes[key.split(",")[0]]["distances"][key.split(",")[1]] for key in want["distance"]
            },
            "mem_total_kB": {key: nodes[key]["memory_bytes"] // 1024 for key in want["mem_total_kB"]},
        },
    )
    assert "cpulist_disagrees_with_cpumap" in reasons(result)


def test_snc4_two_sockets(tmp_path: Path) -> None:
    case = "numa-snc4-two-sockets"
    text = (CASES / case / "lscpu").read_text()
    want, result = case_expected(case), read(tmp_path, lscpu=text, expect_nodes=2)
    all_of(
        want,
        {
            "nodes": result["node_count"]["online"],
            "sockets": result["topology"]["cpus"]["sockets"],
            "nodes_per_socket": result["nodes_per_socket"],
            "cpus": cpus_of(result, want["cpus"]),
            "expect_2": result["verdict"],
            "expect_8": read(tmp_path, lscpu=text, expect_nodes=8)["verdict"],
        },
    )
    assert result["reason"] == "snc_suspected"
    assert "SNC/NPS suspected (4 nodes per socket)" in result["message"]


# Neighbours


def two_nodes(root: Path, **files: str) -> None:
    """Two nodes of two CPUs each; FILES replaces by the last part of the path (`node0_cpumap`)."""
    table = {
        f"{CPU}/online": "0-3",
        f"{CPU}/possible": "0-3",
        f"{CPU}/present": "0-3",
        f"{NODE}/online": "0-1",
        f"{NODE}/possible": "0-1",
        f"{NODE}/has_memory": "0-1",
    }
    for node, cpus, mask in ((0, "0-1", "3"), (1, "2-3", "c")):
        table[f"{NODE}/node{node}/cpulist"] = cpus
        table[f"{NODE}/node{node}/cpumap"] = mask
        table[f"{NODE}/node{node}/distance"] = "10 21" if node == 0 else "21 10"
        table[f"{NODE}/node{node}/meminfo"] = f"Node {node} MemTotal:  4194304 kB"
    for path, content in table.items():
        short = "_".join(path.split("/")[-2:])
        put(root, path, files.get(short, files.get(path.rpartition("/")[2], content)))


def test_expected_nodes_pass_and_say_the_policy(tmp_path: Path) -> None:
    two_nodes(tmp_path)
    result = read(tmp_path, expect_nodes=2, count="memory_nodes", require_distances=True)
    assert result["verdict"] == "pass" and "reason" not in result
    assert not reasons(result)


def test_unknown_memory_is_never_a_pass(tmp_path: Path) -> None:
    put(tmp_path, f"{CPU}/online", "0-1")
    put(tmp_path, f"{NODE}/online", "0-1")
    put(tmp_path, f"{NODE}/node0/cpulist", "0")
    put(tmp_path, f"{NODE}/node1/cpulist", "1")
    result = read(tmp_path, expect_nodes=2, count="memory_nodes")
    assert (result["verdict"], result["reason"]) == ("not_evaluated", "memory_not_known")
    strict = read(tmp_path, expect_nodes=2, require_distances=True)
    assert (strict["verdict"], strict["reason"]) == ("not_evaluated", "distances_not_known")


def test_identical_distances_are_no_table(tmp_path: Path) -> None:
    two_nodes(tmp_path, distance="10 10")
    result = read(tmp_path, require_distances=True)
    assert (result["verdict"], result["reason"]) == ("fail", "distances_identical")


def test_asymmetric_distances_are_named(tmp_path: Path) -> None:
    two_nodes(tmp_path, node1_distance="12 10")
    assert "distances_asymmetric" in reasons(read(tmp_path))


@pytest.mark.parametrize("row", ["10", "10 21 31", "10 x", ""])
def test_a_row_that_fits_no_node_list_says_nothing(tmp_path: Path, row: str) -> None:
    two_nodes(tmp_path, node0_distance=row)
    result = read(tmp_path)
    assert nodes_of(result)["0"]["distances"] is None
    assert "distance_columns_unknown" in reasons(result)
    assert result["nearest_memory"] == {"0": 0, "1": 1}


def test_columns_belong_to_online_nodes_when_ids_are_sparse(tmp_path: Path) -> None:
    put(tmp_path, f"{CPU}/online", "0-1")
    put(tmp_path, f"{NODE}/online", "2,5")
    put(tmp_path, f"{NODE}/possible", "0-7")
    put(tmp_path, f"{NODE}/has_memory", "5")
    put(tmp_path, f"{NODE}/node2/cpulist", "0-1")
    put(tmp_path, f"{NODE}/node2/distance", "10 40")
    put(tmp_path, f"{NODE}/node5/cpulist", "")
    put(tmp_path, f"{NODE}/node5/distance", "40 10")
    result = read(tmp_path, even_split=7)
    assert nodes_of(result)["2"]["distances"] == {"2": 10, "5": 40}
    assert result["nearest_memory"] == {"2": 5, "5": 5}
    assert result["even_split"] == {"5": 7}


def test_links_decide_between_cpulist_and_cpumap(tmp_path: Path) -> None:
    two_nodes(tmp_path, node0_cpulist="0,2")
    (tmp_path / f"{NODE}/node0/cpu0".lstrip("/")).symlink_to("../../cpu/cpu0")
    (tmp_path / f"{NODE}/node0/cpu1".lstrip("/")).symlink_to("../../cpu/cpu1")
    result = read(tmp_path)
    assert cpus_of(result, "01") == {"0": "0-1", "1": "2-3"}
    assert "cpulist_disagrees_with_cpumap" in reasons(result)


def test_a_cpu_of_two_nodes_is_named(tmp_path: Path) -> None:
    two_nodes(tmp_path, cpulist="0-3", cpumap="f")
    assert "cpu_in_several_nodes" in reasons(read(tmp_path))


def test_online_cpus_without_a_node_are_named(tmp_path: Path) -> None:
    two_nodes(tmp_path, cpu_online="0-5", possible="0-5", present="0-5")
    result = read(tmp_path)
    assert "cpu_without_node" in reasons(result)
    assert result["topology"]["cpus"]["online"] == "0-5"


def test_offline_cpus_are_in_no_node(tmp_path: Path) -> None:
    two_nodes(tmp_path, cpu_online="0-2")
    result = read(tmp_path)
    assert cpus_of(result, "01") == {"0": "0-1", "1": "2"}
    assert result["topology"]["cpus"]["offline"] == "3"


def test_has_memory_against_meminfo(tmp_path: Path) -> None:
    two_nodes(tmp_path, node1_meminfo="Node 1 MemTotal: 0 kB")
    result = read(tmp_path)
    assert lists(result)["memory"] == [0]
    assert "has_memory_disagrees_with_meminfo" in reasons(result)


@pytest.mark.parametrize("text", ["0-1-2", "3-1", "banana", "0-99999999999", "\x00\x00"])
def test_a_list_that_cannot_be_read_is_said_not_guessed(tmp_path: Path, text: str) -> None:
    two_nodes(tmp_path, node0_cpulist=text)
    result = read(tmp_path)
    assert cpus_of(result, "01") == ({"0": "0-1", "1": "2-3"})
    assert reasons(result) & {"unreadable", "cpulist_disagrees_with_cpumap"}


@pytest.mark.parametrize("text", ["(null)", "  (null)", ""])
def test_lists_that_are_not_set(tmp_path: Path, text: str) -> None:
    two_nodes(tmp_path)
    put(tmp_path, f"{CPU}/nohz_full", text)
    result = read(tmp_path)
    assert result["topology"]["cpus"]["nohz_full"] == ""
    assert not reasons(result)


def test_isolated_cpus_beyond_the_last_are_refused(tmp_path: Path) -> None:
    two_nodes(tmp_path)
    result = run_module("numa_topology_info", {"sysroot": str(tmp_path), "isolated_cpus": "2-4"})
    assert result["failed"] and result["reason"] == "cpu_out_of_range"
    good = read(tmp_path, isolated_cpus="1-N")
    assert good["isolated_by_node"] == {"0": 1, "1": 2}


def test_isolated_cpus_that_are_offline_are_listed(tmp_path: Path) -> None:
    two_nodes(tmp_path, possible="0-7", present="0-7")
    result = read(tmp_path, isolated_cpus="3-5")
    assert (result["isolated_by_node"], result["isolated_not_online"]) == ({"0": 0, "1": 1}, "4-5")


def test_texts_are_compared_with_a_recorded_tree(tmp_path: Path) -> None:
    two_nodes(tmp_path)
    (tmp_path / f"{CPU}/cpu0".lstrip("/")).mkdir()
    text = (
        "available: 2 nodes (0-1)\nnode 0 cpus: 0 2\nnode 0 size: 4096 MB\n"
        "node 1 cpus: 1 3\nnode 1 size: 99 MB\n"
    )
    result = read(tmp_path, numactl=text)
    assert result["topology"]["source"] == "sysfs"
    assert cpus_of(result, "01") == {"0": "0-1", "1": "2-3"}
    rows = [
        row["text"]
        for row in result["topology"]["warnings"]
        if row["reason"] == "numactl_disagrees_with_sysfs"
    ]
    assert len(rows) == 3
    alone = read(tmp_path, numactl=text, cross_check=False)
    assert cpus_of(alone, "01") == {"0": "0,2", "1": "1,3"}


def test_two_texts_are_compared_with_each_other(tmp_path: Path) -> None:
    numactl = "available: 1 nodes (0)\nnode 0 cpus: 0 1\nnode 0 size: 4096 MB\n"
    lscpu = (
        "CPU(s): 2\nOn-line CPU(s) list: 0,1\nSocket(s): 2\nNUMA node(s): 2\n"
        "NUMA node0 CPU(s): 0\nNUMA node1 CPU(s): 1\n"
    )
    result = read(tmp_path, numactl=numactl, lscpu=lscpu)
    assert result["topology"]["source"] == "numactl"
    assert "lscpu_disagrees_with_numactl" in reasons(result)
    assert result["topology"]["cpus"]["sockets"] == 2


@pytest.mark.parametrize(
    ("option", "text", "reason"),
    [
        ("numactl", "", "not_numactl"),
        ("numactl", "bash: numactl: command not found", "not_numactl"),
        ("lscpu", "Architecture: x86_64\n", "not_lscpu"),
    ],
)
def test_a_text_without_nodes_is_refused(tmp_path: Path, option: str, text: str, reason: str) -> None:
    result = run_module("numa_topology_info", {"sysroot": str(tmp_path), option: text})
    assert result["failed"] and result["reason"] == reason


@pytest.mark.parametrize("header", ["available: 3 nodes (0-1)", "available: 2 nodes (0,2)"])
def test_a_numactl_header_that_lies_is_named(tmp_path: Path, header: str) -> None:
    text = f"{header}\nnode 0 cpus: 0\nnode 0 size: 10 MB\nnode 1 cpus: 1\nnode 1 size: 10 MB\n"
    assert "numactl_disagrees_with_itself" in reasons(read(tmp_path, numactl=text))


def test_numactl_without_distances_or_with_ranges(tmp_path: Path) -> None:
    text = (
        "available: 2 nodes (0-1)\nnode 0 cpus: 0-3\nnode 0 size: 0 MB\nnode 1 cpus:\nnode 1 size: 5 GB\n"
        "No distance information available.\n"
    )
    result = read(tmp_path, numactl=text)
    assert cpus_of(result, "01") == {"0": "0-3", "1": ""}
    assert result["nearest_memory"] == {"0": 1, "1": 1}
    assert nodes_of(result)["1"]["memory_bytes"] == 5 << 30


TWO = (
    "available: 2 nodes (0,17)\nnode 0 cpus: 0 1 2 3\nnode 0 size: 32000 MB\nnode 0 free: 100 MB\n"
    "node 17 cpus:\nnode 17 size: 0 MB\nnode distances:\nnode   0  17 \n  0:  10  40 \n 17:  40  10 \n"
)


@pytest.mark.parametrize(
    "text",
    [
        TWO,
        TWO.replace("\n", "\r\n"),
        "\ufeff" + TWO,
        "$ numactl -H\nlibnuma: Warning: x\n" + TWO + "$ \n",
        TWO.replace("0 1 2 3", "0 1 \n2\n 3"),
        TWO.rstrip("\n"),
        "\n".join(f"  {line}" for line in TWO.splitlines()),
    ],
)
def test_a_copied_text_of_numactl(text: str, tmp_path: Path) -> None:
    result = read(tmp_path, numactl=text)
    nodes = nodes_of(result)
    assert cpus_of(result, nodes) == {"0": "0-3", "17": ""}
    assert (nodes["0"]["distances"], nodes["17"]["distances"]) == ({"0": 10, "17": 40}, {"0": 40, "17": 10})
    assert (lists(result)["memory"], reasons(result)) == ([0], set())


def test_lscpu_as_json(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {
            "field": "Architecture:",
            "data": "x86_64",
            "children": [{"field": "CPU op-mode(s):", "data": "64-bit"}],
        },
        {"field": "CPU(s):", "data": "4", "children": [{"field": "On-line CPU(s) list:", "data": "0-3"}]},
        {"field": "Socket(s):", "data": "2"},
        {
            "field": "NUMA:",
            "data": None,
            "children": [
                {"field": "NUMA node(s):", "data": "2"},
                {"field": "NUMA node0 CPU(s):", "data": "0,2"},
                {"field": "NUMA node8 CPU(s):", "data": "1,3"},
            ],
        },
    ]
    result = read(tmp_path, lscpu=json.dumps({"lscpu": rows}))
    assert cpus_of(result, ["0", "8"]) == {"0": "0,2", "8": "1,3"}
    topology = result["topology"]
    assert (topology["cpus"]["sockets"], topology["arch"], topology["cpus"]["online"]) == (2, "x86_64", "0-3")
    empty = run_module("numa_topology_info", {"sysroot": str(tmp_path), "lscpu": '{"lscpu": [1]}'})
    assert empty["failed"] and empty["reason"] == "not_lscpu"


def test_children_of_lscpu_that_are_no_list_are_none(tmp_path: Path) -> None:
    rows = [{"field": "On-line CPU(s) list:", "data": "0-3", "children": 5}]
    result = read(tmp_path, lscpu=json.dumps({"lscpu": rows}))
    assert result["topology"]["cpus"]["online"] == "0-3"


def test_lscpu_hierarchical_masks_and_hypervisor(tmp_path: Path) -> None:
    text = (
        "Architecture:            ppc64le\n"
        "  CPU op-mode(s):        32-bit, 64-bit\n"
        "CPU(s):                  8\n"
        "  On-line CPU(s) mask:   0xff\n"
        "Hypervisor vendor:       KVM\n"
        "Virtualization type:     para\n"
        "NUMA:                    \n"
        "  NUMA node(s):          2\n"
        "  NUMA node0 CPU(s):     0xf\n"
        "  NUMA node250 CPU(s):   \n"
    )
    result = read(tmp_path, lscpu=text)
    assert lists(result)["online"] == [0, 250]
    assert cpus_of(result, ["0", "250"]) == {"0": "0-3", "250": ""}
    assert result["topology"]["virtualization"]["hypervisor"] == "kvm"
    assert result["topology"]["arch"] == "ppc64le"


def test_lscpu_of_a_kernel_without_numa(tmp_path: Path) -> None:
    text = "CPU(s): 4\nOn-line CPU(s) list: 1-3\nSocket(s) per book: 2\nBook(s): 2\n"
    result = read(tmp_path, lscpu=text, expect_nodes=2)
    assert (result["topology"]["source"], result["reason"]) == ("no_numa", "no_numa")
    assert result["topology"]["cpus"]["sockets"] == 4


def test_a_node_directory_that_is_not_online_is_not_used(tmp_path: Path) -> None:
    two_nodes(tmp_path, node_online="0")
    result = read(tmp_path)
    assert lists(result)["online"] == [0]
    assert "node_directory_offline" in reasons(result)


def test_snc_from_sysfs(tmp_path: Path) -> None:
    two_nodes(tmp_path)
    for cpu in range(4):
        put(tmp_path, f"{CPU}/cpu{cpu}/topology/package_cpus_list", "0-3")
        put(tmp_path, f"{CPU}/cpu{cpu}/topology/physical_package_id", "0")
        put(tmp_path, f"{CPU}/cpu{cpu}/topology/core_cpus_list", str(cpu))
    result = read(tmp_path, expect_nodes=1)
    assert (result["verdict"], result["reason"], result["nodes_per_socket"]) == ("fail", "snc_suspected", 2)


def test_split_without_a_node_that_can_hold_pages_is_an_error(tmp_path: Path) -> None:
    two_nodes(tmp_path, meminfo="Node 0 MemTotal: 0 kB", has_memory="")
    result = run_module("numa_topology_info", {"sysroot": str(tmp_path), "even_split": 8})
    assert result["failed"] and result["reason"] == "invalid_value"


def test_check_mode_reads_too(tmp_path: Path) -> None:
    two_nodes(tmp_path)
    result = run_module("numa_topology_info", {"sysroot": str(tmp_path)}, check=True)
    assert result["changed"] is False and lists(result)["online"] == [0, 1]


@pytest.mark.parametrize("cpuinfo", ["", "processor : 0\nflags : fpu\n"])
def test_a_tree_without_sys_is_not_a_host_without_numa(tmp_path: Path, cpuinfo: str) -> None:
    put(tmp_path, "/proc/cpuinfo", cpuinfo)
    result = read(tmp_path, expect_nodes=1)
    assert (result["verdict"], result["reason"]) == ("not_evaluated", "no_sysfs")
    assert lists(result)["hugepage"] == []
