# SPDX-License-Identifier: GPL-3.0-or-later
"""The recorded hugepage argument troubles through kernel_cmdline_info, hugepages_info and host_plan, and neighbours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from support import CASES, case_expected, put, run_module, sysroot_from_tsv

ORDER = case_expected("hp-args-order-table")["lines"]


def predicted(root: Path, line: str) -> dict[str, Any]:
    """What kernel_cmdline_info says that the kernel makes of LINE."""
    put(root, "/proc/cmdline", line)
    result = run_module("kernel_cmdline_info", {"sysroot": str(root)})
    assert not result.get("failed"), result
    found: dict[str, Any] = result["predicted"]["running"]
    return found


def totals(doc: dict[str, Any]) -> dict[str, dict[str, int]]:
    return {size: {"total": pool["total"]} for size, pool in doc["pools"].items()}


def texts(doc: dict[str, Any]) -> list[str]:
    return [row["text"] for row in doc["warnings"]]


def plan(root: Path, **intent: Any) -> dict[str, Any]:
    return run_module("host_plan", {"sysroot": str(root), "intent": intent})


def request_of(case: str, name: str = "request.yml") -> Any:
    return yaml.safe_load((CASES / case / name).read_text())["pools"]


@pytest.mark.parametrize("row", ORDER, ids=[row["cmdline"] for row in ORDER])
def test_order_table(tmp_path: Path, row: dict[str, Any]) -> None:
    doc = predicted(tmp_path, row["cmdline"])
    assert row == {
        "cmdline": row["cmdline"],
        "pools": totals(doc),
        "default_kB": doc["default_kb"],
        "warnings": texts(doc),
    }


def test_order_table_has_every_line_of_the_case() -> None:
    lines = (CASES / "hp-args-order-table" / "cmdlines.txt").read_text().splitlines()
    assert [row["cmdline"] for row in ORDER] == lines


def test_repeated_count(tmp_path: Path) -> None:
    case = "hp-args-repeated-count"
    sysroot_from_tsv(tmp_path, CASES / case / "sysfs.tsv")
    doc = predicted(tmp_path, (CASES / case / "cmdline").read_text())
    judged = run_module("hugepages_info", {"sysroot": str(tmp_path), "pools": [{"size": "2M", "count": 5}]})
    assert case_expected(case) == {
        "pools": totals(doc),
        "default_kB": doc["default_kb"],
        "warnings": texts(doc),
        "sysfs_2M": judged["pools"]["2048kB"]["total"],
        "verdict_for_request_5": judged["verdict"],
        "reason_class": judged["reason"],
    }
    assert doc["ignored"] == ["hugepages=5"]


@pytest.mark.parametrize("host", ["A", "B"])
def test_memoryless_or_missing_node(tmp_path: Path, host: str) -> None:
    case = "hp-args-memoryless-or-missing-node"
    sysroot_from_tsv(tmp_path, CASES / case / f"{host}.tsv")
    want = case_expected(case)[host]
    before = sorted((path, path.read_bytes()) for path in tmp_path.rglob("*") if path.is_file())
    pools = [
        {"size": entry["size"], "nodes": {entry["node"]: entry["count"]}}
        for entry in request_of(case, f"request-{host}.yml")
    ]
    result = plan(tmp_path, hugepages=pools)
    refusal = next(row for row in result["refusals"] if row["reason"] == want["reason_class"])
    assert want == {
        "verdict": "fail" if result["failed"] else "pass",
        "reason_class": result["reason"],
        "node": refusal["node"],
    }
    assert "plan" not in result
    assert sorted((path, path.read_bytes()) for path in tmp_path.rglob("*") if path.is_file()) == before


def test_the_kernel_drops_what_the_plan_refuses(tmp_path: Path) -> None:
    case = "hp-args-memoryless-or-missing-node"
    sysroot_from_tsv(tmp_path, CASES / case / "B.tsv")
    doc = predicted(tmp_path, "hugepagesz=2M hugepages=0:512,3:512")
    assert (totals(doc), doc["warnings"][0]["reason"]) == ({"2048kB": {"total": 0}}, "no_such_node")
    assert predicted(tmp_path, "hugepages=0:512,1:512")["pools"]["2048kB"]["nodes"] == {"0": 512, "1": 512}


def test_flag_present_but_the_kernel_lacks_1g(tmp_path: Path) -> None:
    case = "hp-flag-present-kernel-lacks-1g"
    sysroot_from_tsv(tmp_path, CASES / case / "sysfs.tsv")
    put(tmp_path, "/proc/cpuinfo", (CASES / case / "cpuinfo").read_text())
    result = run_module("hugepages_info", {"sysroot": str(tmp_path), "pools": request_of(case)})
    assert case_expected(case) == {
        "verdict": result["verdict"],
        "reason_class": result["reason"],
        "cpu_has_pdpe1gb": result["cpu_has_pdpe1gb"],
    }
    assert "1048576kB" in result["message"] and "CPU lacks" not in result["message"]
    assert [row["reason"] for row in predicted(tmp_path, "hugepagesz=1G hugepages=4")["warnings"]] == [
        "pool_directory_missing"
    ]


def test_sysctl_follows_the_default_size(tmp_path: Path) -> None:
    case = "hp-nr_hugepages-sysctl-follows-default-size"
    folder = CASES / case
    put(tmp_path, "/proc/meminfo", (folder / "meminfo").read_text())
    put(tmp_path, "/proc/cmdline", (folder / "cmdline").read_text())
    put(tmp_path, "/etc/sysctl.d/90-hugepages.conf", (folder / "sysctl.d/90-hugepages.conf").read_text())
    result = run_module("sysctl_info", {"sysroot": str(tmp_path)})
    finding = next(row for row in result["findings"] if row["key"] == "vm.nr_hugepages")
    assert case_expected(case) == {
        "verdict": result["verdict"],
        "reason_class": finding["reason"],
        "bytes_requested": finding["bytes_requested"],
        "mem_total_kB": finding["mem_total_kB"],
    }
    assert "/etc/sysctl.d/90-hugepages.conf:1" in finding["text"] and "1048576 kB" in finding["text"]
    doc = predicted(tmp_path, (folder / "cmdline").read_text())
    assert (doc["default_kb"], doc["memory"]["crashkernel_bytes"]) == (1048576, 0)


ONE_GIB = 1 << 30
# Neighbours: (line, pages per size that are not zero, default size in kB, reasons).
NEIGHBOURS: list[tuple[str, dict[str, int], int, list[str]]] = [
    ("quiet", {}, 2048, []),
    ("hugepages=0", {}, 2048, []),
    ("hugepagesz=1G hugepages=1 default_hugepagesz=1G", {"1048576kB": 1}, 1048576, []),
    ("hugepagesz=2M hugepagesz=1G hugepages=3", {"1048576kB": 3}, 2048, []),
    ("hugepagesz=1G hugepagesz=2M hugepages=3", {"2048kB": 3}, 2048, []),
    (
        "hugepages=7 default_hugepagesz=1G hugepagesz=2M hugepages=9",
        {"1048576kB": 7, "2048kB": 9},
        1048576,
        [],
    ),
    ("hugepages=7 hugepagesz=2M hugepages=9", {"2048kB": 7}, 2048, ["count_before_size_wins"]),
    ("default_hugepagesz=2M hugepagesz=2M hugepages=9", {"2048kB": 9}, 2048, []),
    (
        "default_hugepagesz=2M hugepages=9 hugepagesz=2M hugepages=5",
        {"2048kB": 9},
        2048,
        ["hugepagesz_specified_twice", "no_valid_hugepagesz"],
    ),
    (
        "default_hugepagesz=64K hugepages=9",
        {},
        2048,
        ["unsupported_default_hugepagesz", "no_valid_hugepagesz"],
    ),
    ("hugepagesz=1g hugepages=2 hugepagesz=2048k hugepages=3", {"1048576kB": 2, "2048kB": 3}, 2048, []),
    ("hugepages=5 hugepages=6 hugepages=7", {"2048kB": 5}, 2048, ["repeated_hugepages_ignored"] * 2),
    ('hugepages="5"', {"2048kB": 5}, 2048, []),
    ('"hugepages=5"', {"2048kB": 5}, 2048, []),
    ("hugepages='5'", {}, 2048, ["invalid_hugepages"]),
    ("default-hugepagesz=1G hugepages=2", {"1048576kB": 2}, 1048576, []),
]


@pytest.mark.parametrize(
    ("line", "pages", "default_kb", "reasons"), NEIGHBOURS, ids=[row[0] for row in NEIGHBOURS]
)
def test_neighbours_of_the_order_table(
    tmp_path: Path, line: str, pages: dict[str, int], default_kb: int, reasons: list[str]
) -> None:
    doc = predicted(tmp_path, line)
    assert {size: pool["total"] for size, pool in doc["pools"].items() if pool["total"]} == pages
    assert (doc["default_kb"], [row["reason"] for row in doc["warnings"]]) == (default_kb, reasons)


@pytest.mark.parametrize(
    ("release", "pages", "reason"),
    [
        ("5.14.0-427.el9.x86_64", 0, "node_format_unsupported"),
        ("5.15.0-91-generic", 0, "node_format_unsupported"),
        ("6.1.0-18-amd64", 300, None),
    ],
)
def test_node_format_by_kernel(tmp_path: Path, release: str, pages: int, reason: str | None) -> None:
    put(tmp_path, "/proc/sys/kernel/osrelease", f"{release}\n")
    doc = predicted(tmp_path, "hugepages=0:100,1:200")
    assert doc["pools"]["2048kB"]["total"] == pages
    assert [row["reason"] for row in doc["warnings"]] == ([reason] if reason else [])


def test_a_sixth_argument_is_lost_from_6_15_on(tmp_path: Path) -> None:
    line = "default_hugepagesz=2M hugepagesz=2M hugepagesz=2M hugepages=2 hugepagesz=1G hugepages=3"
    put(tmp_path, "/proc/sys/kernel/osrelease", "6.14.0-1-amd64\n")
    assert predicted(tmp_path, line)["pools"]["1048576kB"]["total"] == 3
    put(tmp_path, "/proc/sys/kernel/osrelease", "6.15.0-1-amd64\n")
    doc = predicted(tmp_path, line)
    assert doc["pools"].get("1048576kB", {"total": 0})["total"] == 0
    assert doc["ignored"] == ["hugepages=3"]


def test_cpu_without_1g(tmp_path: Path) -> None:
    put(tmp_path, "/proc/cpuinfo", "flags : fpu pse lm\n")
    doc = predicted(tmp_path, "hugepagesz=1G hugepages=4 hugepages=8")
    assert totals(doc) == {"2048kB": {"total": 8}}
    assert doc["ignored"] == ["hugepagesz=1G", "hugepages=4"]


@pytest.mark.parametrize(
    ("nodes", "memory", "asked", "reason", "node"),
    [
        ("0-1", "0", {0: 4, 1: 4}, "node_without_memory", 1),
        ("0,2", "0,2", {0: 4, 1: 4}, "no_such_node", 1),
        ("0", "0", {0: 4, 1: 4}, "no_such_node", 1),
        ("0-1", "0-1", {5: 4}, "no_such_node", 5),
    ],
)
def test_neighbours_of_the_missing_node(
    tmp_path: Path, nodes: str, memory: str, asked: dict[int, int], reason: str, node: int
) -> None:
    put(tmp_path, "/sys/devices/system/node/online", f"{nodes}\n")
    put(tmp_path, "/sys/devices/system/node/has_memory", f"{memory}\n")
    result = plan(tmp_path, hugepages=[{"size": "2M", "nodes": asked}])
    assert (result["failed"], result["reason"]) == (True, reason)
    assert result["refusals"][0]["node"] == node


def test_memory_that_the_whole_line_takes(tmp_path: Path) -> None:
    put(tmp_path, "/proc/meminfo", "MemTotal:       65850368 kB\n")
    put(tmp_path, "/sys/devices/system/node/online", "0-1\n")
    put(tmp_path, "/sys/devices/system/node/has_memory", "0-1\n")
    line = (
        "crashkernel=1G-4G:192M,4G-64G:256M,64G-:512M hugepagesz=1G hugepages=1:2 hugepagesz=2M hugepages=512"
    )
    memory = predicted(tmp_path, line)["memory"]
    assert memory["crashkernel_bytes"] == 256 << 20
    assert memory["hugetlb_bytes"] == 3 * ONE_GIB
    assert memory["hugetlb_bytes_per_node"] == {"0": ONE_GIB // 2, "1": 2 * ONE_GIB + ONE_GIB // 2}
