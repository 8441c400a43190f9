# SPDX-License-Identifier: GPL-3.0-or-later
"""Isolated CPUs of the plan: lists, housekeeping cores per node, and every way to ask for too much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from plan_host import SYSTEM, make_host, plan, reasons, refused
from support import CASES, case_expected, put, sysroot_from_tsv

SECTION = {"sections": ["cpu_isolation"]}
SMT = ("0,4", "1,5", "2,6", "3,7")


def smt_host(root: Path) -> Path:
    """Two nodes of two cores with two threads each."""
    nodes = {0: ("0-1,4-5", 2_000_000), 1: ("2-3,6-7", 2_000_000)}
    return make_host(root, nodes, cpus="0-7", siblings=SMT, zones="")


def isolation(root: Path, value: Any) -> dict[str, Any]:
    section: dict[str, Any] = plan(root, {"isolated_cpus": value}, **SECTION)["plan"]["sections"][
        "cpu_isolation"
    ]
    return section


@pytest.mark.parametrize(
    ("value", "isolated", "housekeeping"),
    [
        ("1,3", "1,3", "0,2"),
        ("3,1", "1,3", "0,2"),
        (" 1 , 3 ", "1,3", "0,2"),
        ([1, "3"], "1,3", "0,2"),
        (3, "3", "0-2"),
        ("1-3:1/2", "1,3", "0,2"),
        ({"housekeeping_per_node": 1}, "1,3", "0,2"),
        ({"housekeeping_per_node": "1"}, "1,3", "0,2"),
    ],
)
def test_a_list_becomes_canonical(tmp_path: Path, value: Any, isolated: str, housekeeping: str) -> None:
    section = isolation(make_host(tmp_path), value)
    assert (section["isolated"], section["housekeeping"]) == (isolated, housekeeping)
    assert section["tokens"] == [
        f"isolcpus=managed_irq,domain,{isolated}", f"nohz_full={isolated}", f"rcu_nocbs={isolated}",
        f"irqaffinity={housekeeping}",
    ]  # fmt: skip


def test_whole_cores_are_kept_on_each_node(tmp_path: Path) -> None:
    section = isolation(smt_host(tmp_path), {"housekeeping_per_node": 1})
    assert section["housekeeping"] == "0,2,4,6" and section["isolated_by_node"] == {"0": "1,5", "1": "3,7"}


def test_the_core_of_the_boot_cpu_is_kept_wherever_it_is(tmp_path: Path) -> None:
    nodes = {0: ("4-7", 2_000_000), 1: ("1-3", 2_000_000)}
    root = make_host(tmp_path, nodes, cpus="1-7", siblings=("1,6", "2,7", "3", "4", "5"), zones="")
    section = isolation(root, {"housekeeping_per_node": 1})
    assert {"1", "6"} <= set(section["housekeeping"].replace("-", ",").split(","))
    assert section["housekeeping"] == "1,6" and section["isolated"] == "2-5,7"


def test_nodes_without_cpus_keep_nothing(tmp_path: Path) -> None:
    nodes = {0: ("0-1", 2_000_000), 1: ("2-3", 2_000_000), 2: ("", 2_000_000)}
    assert isolation(make_host(tmp_path, nodes, zones=""), {"housekeeping_per_node": 1})["isolated"] == "1,3"


def test_cpus_of_no_node_keep_house(tmp_path: Path) -> None:
    nodes = {0: ("0-1", 2_000_000), 1: ("2", 2_000_000)}
    section = isolation(make_host(tmp_path, nodes, zones=""), {"housekeeping_per_node": 1})
    assert (section["isolated"], section["housekeeping"]) == ("1", "0,2-3")


def test_more_housekeeping_than_cores_is_refused(tmp_path: Path) -> None:
    rows = refused(make_host(tmp_path), {"isolated_cpus": {"housekeeping_per_node": 2}}, **SECTION)
    assert reasons(rows) == ["nothing_to_isolate"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1-9", [("cpu_out_of_range", 4)]),
        ("1-100000", [("cpu_out_of_range", 4)]),
        ("9,4294967296", [("cpu_out_of_range", 9)]),
        ("0", [("boot_cpu_isolated", 0)]),
        ("2-3", [("no_housekeeping_cpu", None)]),
        ("0-3", [("no_housekeeping_cpu", None), ("boot_cpu_isolated", 0)]),
        ("all", [("no_housekeeping_cpu", None), ("boot_cpu_isolated", 0)]),
        ("0-N", [("no_housekeeping_cpu", None), ("boot_cpu_isolated", 0)]),
        ("3-1", [("bad_value", None)]),
        ("1-", [("bad_value", None)]),
        ("one", [("bad_value", None)]),
        (True, [("bad_value", None)]),
        (1.5, [("bad_value", None)]),
        ([1, None], [("bad_value", None)]),
        (",", [("bad_value", None)]),
        ({"housekeeping_per_node": 0}, [("bad_value", None)]),
        ({"housekeeping_per_node": "max"}, [("bad_value", None)]),
        ({"housekeeping": 1}, [("bad_value", None)]),
    ],
)
def test_what_cannot_be_isolated_is_refused(
    tmp_path: Path, value: Any, expected: list[tuple[str, int | None]]
) -> None:
    rows = refused(make_host(tmp_path), {"isolated_cpus": value}, **SECTION)
    assert [(row["reason"], row.get("cpu")) for row in rows] == expected
    assert {row["variable"] for row in rows} == {"firsttouch_isolated_cpus"}


def test_the_node_without_housekeeping_is_named(tmp_path: Path) -> None:
    rows = refused(make_host(tmp_path), {"isolated_cpus": "2-3"}, **SECTION)
    assert rows[0]["node"] == 1 and rows[0]["cpus"] == "2-3"


def test_half_a_core_is_refused_with_its_siblings(tmp_path: Path) -> None:
    rows = refused(smt_host(tmp_path), {"isolated_cpus": "1,3,7"}, **SECTION)
    assert [(row["reason"], row["cpus"], row["missing_siblings"]) for row in rows] == [
        ("split_core", "1", "5")
    ]


def test_an_offline_sibling_does_not_split_a_core(tmp_path: Path) -> None:
    root = smt_host(tmp_path)
    put(root, f"{SYSTEM}/cpu/online", "0-4,6-7\n")
    assert isolation(root, "1,3,7")["isolated"] == "1,3,7"
    rows = refused(root, {"isolated_cpus": "1,5"}, **SECTION)
    assert [(row["reason"], row["cpu"]) for row in rows] == [("cpu_offline", 5)]


def test_hot_addable_cpus_stay_housekeeping(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    put(root, f"{SYSTEM}/cpu/possible", "0-7\n")
    assert isolation(root, {"housekeeping_per_node": 1})["isolated"] == "1,3"
    result = plan(root, {"isolated_cpus": "3-N"}, **SECTION)
    assert result["plan"]["sections"]["cpu_isolation"]["isolated"] == "3"
    assert reasons(result["notes"]) == ["cpu_offline"]
    assert reasons(refused(root, {"isolated_cpus": "3-7"}, **SECTION)) == ["cpu_offline"]


def test_a_kernel_without_nohz_full_gets_no_argument_it_does_not_know(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    (root / f"{SYSTEM}/cpu/nohz_full".lstrip("/")).unlink()
    result = plan(root, {"isolated_cpus": "1,3"}, **SECTION)
    assert result["plan"]["boot"]["tokens"] == ["isolcpus=managed_irq,domain,1,3", "irqaffinity=0,2"]
    assert reasons(result["notes"]) == ["nohz_full_unsupported"]


@pytest.mark.parametrize("value", [[], "", "absent", {}])
def test_an_empty_list_emits_no_argument(tmp_path: Path, value: Any) -> None:
    result = plan(make_host(tmp_path), {"isolated_cpus": value}, **SECTION)
    assert (
        result["plan"]["boot"]["tokens"]
        == case_expected("isolcpus-empty-list")["args_emitted_for_empty_request"]
    )
    assert result["plan"]["sections"]["cpu_isolation"]["state"] == "absent"


def test_arguments_that_an_old_kernel_drops_are_refused(tmp_path: Path) -> None:
    """managed_irq came with Linux 5.6; a kernel that does not know a flag drops the whole argument."""
    rows = refused(make_host(tmp_path, release="4.19.0-26-amd64"), {"isolated_cpus": "1,3"}, **SECTION)
    assert reasons(rows) == ["dropped_by_kernel"] and rows[0]["token"] == "isolcpus=managed_irq,domain,1,3"


def test_a_foreign_limit_of_the_cpus_is_seen(tmp_path: Path) -> None:
    rows = refused(make_host(tmp_path, cmdline="ro nr_cpus=2"), {"isolated_cpus": "1,3"}, **SECTION)
    assert reasons(rows) == ["dropped_by_kernel"]


def test_cpus_can_be_judged_alone(tmp_path: Path) -> None:
    """A tree that shows CPUs and nothing else."""
    put(tmp_path, f"{SYSTEM}/cpu/online", "0-7\n")
    assert isolation(tmp_path, "2-7")["housekeeping"] == "0-1"
    assert reasons(refused(tmp_path / "empty", {"isolated_cpus": "2-7"}, **SECTION)) == ["cpu_unknown"]


def test_case_all_cpus(tmp_path: Path) -> None:
    expected = case_expected("isolcpus-all-cpus")
    root = sysroot_from_tsv(tmp_path, CASES / "isolcpus-all-cpus" / "sysfs.tsv")
    for value, verdict in expected["rows"].items():
        if verdict == "pass":
            assert plan(root, {"isolated_cpus": value}, **SECTION)
        else:
            assert refused(root, {"isolated_cpus": value}, **SECTION)[0]["reason"] == expected["reason_class"]


def test_case_half_a_core(tmp_path: Path) -> None:
    root = sysroot_from_tsv(tmp_path, CASES / "isolcpus-half-a-core" / "sysfs.tsv")
    for value, row in case_expected("isolcpus-half-a-core")["rows"].items():
        if row["verdict"] == "pass":
            assert plan(root, {"isolated_cpus": value}, **SECTION)
        else:
            found = refused(root, {"isolated_cpus": value}, **SECTION)
            assert [(r["reason"], r["missing_siblings"]) for r in found] == [
                ("split_core", row["missing_siblings"])
            ]


def test_case_beyond_the_last_cpu(tmp_path: Path) -> None:
    expected = case_expected("isolcpus-beyond-last-cpu")
    root = sysroot_from_tsv(tmp_path, CASES / "isolcpus-beyond-last-cpu" / "sysfs.tsv")
    row = refused(root, {"isolated_cpus": "2-300"}, **SECTION)[0]
    assert (row["reason"], row["cpu"], row["cpus"]) == (
        expected["reason_class"],
        expected["first_bad_cpu"],
        "16-300",
    )


@pytest.mark.parametrize("value", ["keep", "ban_isolated", "off", False])
def test_irqbalance_is_carried(tmp_path: Path, value: Any) -> None:
    result = plan(make_host(tmp_path), {"isolated_cpus": "1", "irqbalance": value}, **SECTION)
    assert result["plan"]["sections"]["cpu_isolation"]["irqbalance"] == (value or "off")


def test_another_irqbalance_is_refused(tmp_path: Path) -> None:
    rows = refused(make_host(tmp_path), {"isolated_cpus": "1", "irqbalance": "ban"}, **SECTION)
    assert [(row["reason"], row["variable"]) for row in rows] == [("bad_value", "firsttouch_irqbalance")]


def test_a_ban_without_isolated_cpus_is_noted(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    for cpus, notes in (({}, ["nothing_to_ban"]), ({"isolated_cpus": "1,3"}, [])):
        result = plan(root, {"irqbalance": "ban_isolated", **cpus}, sections=["cpu_isolation"])
        assert reasons(result["notes"]) == notes
