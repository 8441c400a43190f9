# SPDX-License-Identifier: GPL-3.0-or-later
"""host_plan as a whole: sections, variables that are not set, removal, revert, stability, odd hosts."""

from __future__ import annotations

import itertools
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from plan_host import make_host, plan, reasons, record, refused
from support import CASES, case_expected, put, run_module, sysroot_from_tsv

ALL = ["hugepages", "vm_sysctls", "cpu_isolation", "rt_scheduling", "thp", "services", "runtime", "kubelet"]
INTENT: dict[str, Any] = {
    "hugepages": [{"size": "2M", "nodes": {"0": 300, "1": 200}}, {"size": "1G", "nodes": {"1": 1}}],
    "hugetlbfs_mounts": [{"path": "/dev/hugepages-2M"}],
    "vm_sysctls": {"vm.swappiness": 0},
    "extra_free_bytes": "64M",
    "isolated_cpus": "1,3",
    "irqbalance": "ban_isolated",
    "rt_runtime_us": 950000,
    "thp": "madvise",
    "conflicting_services": "report",
    "runtime_state": "present",
    "kubelet": {"config_dir": "/etc/kubelet.d", "kube_reserved": "64M", "system_reserved": 0, "eviction_hard": "36M"},
}
TOKENS = [
    "default_hugepagesz=2M", "hugepagesz=2M", "hugepages=0:300,1:200", "hugepagesz=1G", "hugepages=1:1",
    "isolcpus=managed_irq,domain,1,3", "nohz_full=1,3", "rcu_nocbs=1,3", "irqaffinity=0,2",
    "transparent_hugepage=madvise",
]  # fmt: skip
HOSTS = Path(__file__).resolve().parents[5] / "shared" / "hosts"


def test_the_whole_plan(tmp_path: Path) -> None:
    result = plan(make_host(tmp_path), INTENT)
    document = result["plan"]
    assert document["schema"] == 1 and document["host"] == {"kernel": "6.1.0-25-amd64", "arch": "x86_64"}
    assert document["intent"] == INTENT and result["intent_given"] == INTENT and result["planned"] == ALL
    assert document["boot"]["tokens"] == TOKENS
    assert document["boot"]["keys"] == [
        "default_hugepagesz", "hugepagesz", "hugepages", "isolcpus", "nohz_full", "rcu_nocbs", "irqaffinity",
        "transparent_hugepage",
    ]  # fmt: skip
    assert document["sysctls"]["vm.swappiness"] == "0" and len(document["sysctls"]) == 3
    assert document["topology"]["nodes"]["1"]["cpus"] == "2-3" and document["topology"]["boot_cpu"] == 0
    assert document["topology"]["siblings_split"] is False
    assert result["notes"] == [] and result["units_absent"] == [] and result["groups"] == ["firsttouch"]
    assert {name: section["state"] for name, section in document["sections"].items()} == dict.fromkeys(
        ALL, "present"
    )


def test_the_plan_is_the_same_each_time(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    assert plan(root, INTENT)["plan"] == plan(root, INTENT)["plan"]
    record(root, plan(root, INTENT))
    assert plan(root, INTENT)["plan"] == plan(root, INTENT)["plan"]


def test_nothing_is_managed_without_variables(tmp_path: Path) -> None:
    for intent in ({}, dict.fromkeys(INTENT), {"hugepages_method": "auto", "reserve_floor_bytes": "auto"}):
        result = plan(make_host(tmp_path), intent)
        assert result["plan"]["sections"] == dict.fromkeys(ALL)
        assert result["plan"]["boot"] == {"tokens": [], "keys": [], "owned": []}
        assert result["plan"]["sysctls"] == {} and result["units"] == []


@pytest.mark.parametrize("section", [name for name in ALL if name != "kubelet"])
def test_a_section_alone_touches_nothing_else(tmp_path: Path, section: str) -> None:
    result = plan(make_host(tmp_path), INTENT, sections=[section])
    assert result["planned"] == [section]
    assert [name for name in ALL if result["plan"]["sections"][name]] == [section]
    # What roles write is made of the sections, and is of this one alone.
    assert result["plan"]["sysctls"] == result["plan"]["sections"][section].get("sysctls", {})
    assert bool(result["plan"]["sysctls"]) == (section in ("vm_sysctls", "rt_scheduling"))
    assert bool(result["plan"]["boot"]["tokens"]) == (section in ("hugepages", "cpu_isolation", "thp"))
    assert bool(result["units"]) == (section == "hugepages")
    assert (result["runtime"]["state"] is not None) == (section == "runtime")


def test_a_section_alone_is_not_stopped_by_another(tmp_path: Path) -> None:
    wrong = {**INTENT, "hugepages": [{"size": "2M", "count": 10**9}], "isolated_cpus": "0-99"}
    assert plan(make_host(tmp_path), wrong, sections=["vm_sysctls"])
    assert {row["variable"] for row in refused(make_host(tmp_path), wrong)} == {
        "firsttouch_hugepages", "firsttouch_isolated_cpus",
    }  # fmt: skip


def test_no_section_gives_what_is_recorded(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    first = plan(root, INTENT)
    record(root, first)
    again = plan(root, INTENT, sections=[])
    assert again["planned"] == [] and again["plan"]["boot"] == first["plan"]["boot"]
    assert again["plan"]["sections"] == first["plan"]["sections"]


def test_sections_planned_one_by_one_end_as_the_whole(tmp_path: Path) -> None:
    whole = plan(make_host(tmp_path / "whole"), INTENT)["plan"]
    root = make_host(tmp_path / "parts")
    # the kubelet keeps the CPUs that are planned already
    for section in (*(name for name in reversed(ALL) if name != "kubelet"), "kubelet"):
        part = plan(root, INTENT, sections=[section])
        record(root, part)
    assert part["plan"]["boot"]["tokens"] == whole["boot"]["tokens"]
    assert part["plan"]["sysctls"] == whole["sysctls"]


def test_what_is_not_asked_for_any_more_is_kept_and_marked(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    first = plan(root, INTENT)
    record(root, first)
    result = plan(root, {})
    assert (
        result["plan"]["boot"]["tokens"] == TOKENS and result["plan"]["sysctls"] == first["plan"]["sysctls"]
    )
    assert result["units"] == [] and result["units_absent"] == [] and result["groups"] == []
    assert result["plan"]["sections"]["hugepages"]["orphaned"] == ["hugepages", "hugetlbfs_mounts"]
    assert result["plan"]["sections"]["cpu_isolation"]["orphaned"] == ["irqbalance", "isolated_cpus"]
    assert not record(root, result)["changed"]


@pytest.mark.parametrize(
    ("left", "section", "kept"),
    [
        ("hugepages", "hugepages", "hugetlbfs_mounts"),
        ("hugetlbfs_mounts", "hugepages", "hugepages"),
        ("vm_sysctls", "vm_sysctls", "extra_free_bytes"),
        ("extra_free_bytes", "vm_sysctls", "vm_sysctls"),
        ("isolated_cpus", "cpu_isolation", "irqbalance"),
        ("irqbalance", "cpu_isolation", "isolated_cpus"),
    ],
)
def test_of_one_section_the_variable_that_is_not_set_keeps_its_part(
    tmp_path: Path, left: str, section: str, kept: str
) -> None:
    root = make_host(tmp_path)
    first = plan(root, INTENT)
    record(root, first)
    result = plan(root, {left: INTENT[left]})
    found, before = result["plan"]["sections"][section], first["plan"]["sections"][section]
    assert found["orphaned"] == [kept] and found["variables"] == before["variables"]
    assert {key: value for key, value in found.items() if key != "orphaned"} == {
        key: value for key, value in before.items() if key != "orphaned"
    }
    assert result["plan"]["intent"] == INTENT


def test_one_variable_of_a_section_can_be_removed(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    record(root, plan(root, INTENT))
    result = plan(root, {**INTENT, "hugetlbfs_mounts": [], "extra_free_bytes": "absent"})
    assert result["plan"]["boot"]["tokens"] == TOKENS
    assert result["units"] == [] and result["units_absent"] == ["dev-hugepages\\x2d2M.mount"]
    assert result["plan"]["sections"]["hugepages"]["orphaned"] == []
    assert list(result["plan"]["sections"]["vm_sysctls"]["sysctls"]) == ["vm.swappiness"]


def test_absent_removes_what_is_ours(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    record(root, plan(root, INTENT))
    result = plan(root, {"hugepages": "absent", "hugetlbfs_mounts": [], "isolated_cpus": [], "thp": "absent"})
    assert result["plan"]["sections"]["hugepages"]["state"] == "absent"
    assert result["plan"]["sections"]["hugepages"]["pools"] == []
    assert result["plan"]["boot"]["tokens"] == []
    assert result["plan"]["boot"]["owned"] == TOKENS, "still on the host, so the next step must know it"
    assert result["units_absent"] == ["dev-hugepages\\x2d2M.mount"]
    assert result["plan"]["sections"]["cpu_isolation"]["orphaned"] == ["irqbalance"]


def test_revert_needs_neither_intent_nor_topology(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    record(root, plan(root, INTENT))
    for name in ("sys", "proc"):
        (root / name).rename(root / f"gone-{name}")
    result = plan(root, {"hugepages": "nonsense", "unknown": 1}, revert=True)
    assert {section["state"] for section in result["plan"]["sections"].values()} == {"absent"}
    assert result["plan"]["boot"]["tokens"] == [] and result["plan"]["boot"]["owned"] == TOKENS
    assert (
        result["plan"]["sysctls"] == {}
        and result["plan"]["sections"]["cpu_isolation"]["irqbalance"] == "keep"
    )
    assert result["units_absent"] == ["dev-hugepages\\x2d2M.mount"]


def test_figures_of_another_boot_change_nothing(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    first = plan(root, INTENT)
    record(root, first)
    put(root, "/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 3500012 kB\n")
    put(root, "/proc/sys/kernel/osrelease", "6.1.0-26-amd64\n")
    again = plan(root, INTENT)
    assert again["plan"]["sections"] == first["plan"]["sections"]
    assert again["plan"]["topology"] == first["plan"]["topology"]
    assert not record(root, again)["changed"]


@pytest.mark.parametrize("name", ["hugepage", "isolated_cpu", "thps", "firsttouch_hugepages"])
def test_an_unknown_variable_is_refused(tmp_path: Path, name: str) -> None:
    rows = refused(make_host(tmp_path), {name: None, **INTENT})
    assert reasons(rows) == ["bad_value"] and rows[0]["variable"] == f"firsttouch_{name}"


@pytest.mark.parametrize(
    ("intent", "text"),
    [
        ({"hugepages": [{"size": "2M", "cout": 1}]}, "unknown key 'cout' (is count meant?)"),
        ({"hugetlbfs_mounts": [{"path": "/x", "page_size": "2M"}]}, "unknown key 'page_size' (is pagesize meant?)"),
        ({"numa": {"nodez": 2}}, "unknown key 'nodez' (is nodes meant?)"),
        ({"thp": {"enable": "never"}}, "unknown key 'enable' (is enabled meant?)"),
        ({"numa": {"zzz": 2}}, "unknown key 'zzz'; known are"),
    ],
)
def test_a_misspelt_key_is_named_with_the_nearest_right_one(tmp_path: Path, intent: dict[str, Any], text: str) -> None:
    result = run_module("host_plan", {"intent": intent, "sysroot": str(make_host(tmp_path))})
    assert result["failed"] and text in result["msg"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "record_unreadable"),
        ("[]", "record_unreadable"),
        ("{}", "record_unreadable"),
        ('{"schema": 2}', "record_newer"),
        ('{"schema": true}', "record_unreadable"),
        ('{"schema": 1}', "record_unreadable"),
        ('{"schema": 1, "sections": {"hugepages": 5}}', "record_unreadable"),
    ],
)
def test_a_record_that_cannot_be_read_stops_everything(tmp_path: Path, text: str, reason: str) -> None:
    put(make_host(tmp_path), "/etc/firsttouch/plan.json", text)
    for options in ({"intent": INTENT}, {"revert": True}):
        result = run_module("host_plan", {**options, "sysroot": str(tmp_path)})
        assert (
            result["failed"] and result["reason"] == reason and "/etc/firsttouch/plan.json" in result["msg"]
        )


def test_a_topology_can_be_given(tmp_path: Path) -> None:
    topology = run_module("numa_topology_info", {"sysroot": str(make_host(tmp_path / "host"))})["topology"]
    result = plan(tmp_path / "empty", {"isolated_cpus": {"housekeeping_per_node": 1}}, topology=topology)
    assert result["plan"]["sections"]["cpu_isolation"]["isolated"] == "1,3"
    wrong = run_module("host_plan", {"topology": {"nodes": 5}, "sysroot": str(tmp_path)})
    assert wrong["failed"] and wrong["reason"] == "bad_topology"


def test_case_memoryless_nodes_of_a_numactl_text(tmp_path: Path) -> None:
    text = (CASES / "numa-memoryless-nodes-nps4" / "numactl").read_text()
    topology = run_module("numa_topology_info", {"numactl": text, "sysroot": str(tmp_path)})["topology"]
    result = plan(tmp_path, {"hugepages": [{"size": "2M", "count": 1024}]}, topology=topology)
    split = result["plan"]["sections"]["hugepages"]["pools"][0]["nodes"]
    assert split == case_expected("numa-memoryless-nodes-nps4")["even_split_1024"]


@pytest.mark.parametrize("letter", ["A", "B"])
def test_case_memoryless_or_missing_node(tmp_path: Path, letter: str) -> None:
    expected = case_expected("hp-args-memoryless-or-missing-node")[letter]
    root = sysroot_from_tsv(tmp_path, CASES / "hp-args-memoryless-or-missing-node" / f"{letter}.tsv")
    counts = {"A": {"0": 512, "1": 512}, "B": {"0": 512, "3": 512}}[letter]
    rows = refused(root, {"hugepages": [{"size": "2M", "nodes": counts}]})
    assert [(row["reason"], row["node"]) for row in rows] == [(expected["reason_class"], expected["node"])]


def test_case_gpu_nodes(tmp_path: Path) -> None:
    root = sysroot_from_tsv(tmp_path, CASES / "numa-power9-gpu-nodes" / "sysfs.tsv")
    rows = refused(root, {"hugepages": [{"size": "2M", "nodes": {"250": 1, "8": 1}}]})
    assert [(row["reason"], row["node"]) for row in rows] == [("not_normal_memory", 250)]
    expected = case_expected("numa-power9-gpu-nodes")["hugepage_nodes"]
    split = plan(root, {"hugepages": [{"size": "2M", "count": 3}]})["plan"]["sections"]["hugepages"]["pools"][
        0
    ]["nodes"]
    assert split == {str(expected[0]): 2, str(expected[1]): 1}


VALUES: list[Any] = [
    None,
    [],
    {},
    "",
    "absent",
    "max",
    True,
    0,
    -1,
    1.5,
    10**30,
    "0-3",
    [None],
    [{}],
    {"a": None},
    "\0",
]


@pytest.mark.parametrize("name", [*INTENT, "numa_balancing", "hugepages_method", "reserve_floor_bytes"])
def test_no_value_breaks_the_planner(tmp_path: Path, name: str) -> None:
    root = make_host(tmp_path)
    for value in VALUES:
        result = run_module("host_plan", {"intent": {**INTENT, name: value}, "sysroot": str(root)})
        if result.get("failed"):
            assert all(row["variable"].startswith("firsttouch_") for row in result["refusals"]), value


@pytest.mark.skipif(not HOSTS.is_dir(), reason="the recorded hosts are not there")
@pytest.mark.parametrize("host", sorted(path.parent.name for path in HOSTS.glob("*/tree.tar.xz")))
def test_recorded_hosts_are_planned_or_refused_in_words(tmp_path: Path, host: str) -> None:
    with tarfile.open(HOSTS / host / "tree.tar.xz") as tree:
        tree.extraction_filter = getattr(tarfile, "tar_filter", None)
        for member in tree.getmembers():
            if member.isfile() or member.issym() or member.isdir():
                tree.extract(member, tmp_path)
    wishes: dict[str, list[Any]] = {
        "hugepages": [
            [{"size": "2M", "count": 5}],
            [{"size": "1G", "count": 2}],
            [{"size": "64K", "nodes": [0]}],
        ],
        "isolated_cpus": [{"housekeeping_per_node": 1}, "1", "0-N"],
    }
    for pools, cpus in itertools.product(*wishes.values()):
        intent = {"hugepages": pools, "isolated_cpus": cpus, "extra_free_bytes": 1, "rt_runtime_us": -1}
        result = run_module("host_plan", {"intent": intent, "sysroot": str(tmp_path)})
        json.dumps(result)
        if result.get("failed"):
            assert result["refusals"] and all(row["text"] for row in result["refusals"])
