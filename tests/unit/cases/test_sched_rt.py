# SPDX-License-Identifier: GPL-3.0-or-later
"""The recorded real-time scheduling troubles, through sysctl_info; then neighbours that were not recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import CASES, case_expected, put, run_module, sysroot_from_tsv

RUNTIME = "kernel.sched_rt_runtime_us"


def info(root: Path, want: Any = None) -> dict[str, Any]:
    wanted = {} if want is None else {RUNTIME: want}
    result = run_module("sysctl_info", {"sysroot": str(root), "want": wanted})
    assert not result.get("failed"), result
    return result


def reasons(rows: list[dict[str, Any]]) -> list[str]:
    return [row["reason"] for row in rows]


def test_minus_one(tmp_path: Path) -> None:
    case = "rt-runtime-minus-one"
    root = sysroot_from_tsv(tmp_path, CASES / case / "proc.tsv")
    asked, off = info(root, 950000), info(root, -1)
    got = {
        "asked_950000_got_-1": asked["sysctls"][RUNTIME]["verdict"],
        "asked_-1_got_-1": off["sysctls"][RUNTIME]["verdict"],
        "note_class": off["notes"][0]["reason"],
    }
    assert got == case_expected(case)
    assert asked["sysctls"][RUNTIME]["reason"] == "live_differs"
    assert asked["sysctls"][RUNTIME]["got"] == "-1"


def test_group_without_run_time(tmp_path: Path) -> None:
    case = "rt-container-group-zero"
    root = sysroot_from_tsv(tmp_path, CASES / case / "sysfs.tsv")
    put(root, "/boot/config-6.1.0", (CASES / case / "config").read_text())
    result = info(root, 950000)
    finding = result["findings"][0]
    got = {
        "sysctl": result["sysctls"][RUNTIME]["verdict"],
        "finding": finding["reason"],
        "group": finding["group"],
    }
    assert got == case_expected(case)
    assert finding["verdict"] == "warn"
    assert len(result["findings"]) == 1


@pytest.mark.parametrize(
    ("live", "period", "asked", "verdict", "notes"),
    [
        ("950000", "1000000", 950000, "pass", 0),
        ("950000", "1000000", "0xe7ef0", "pass", 0),
        ("950000", "1000000", -1, "fail", 1),
        ("1000000", "1000000", 1000000, "pass", 2),
        ("500000", "500000", 500000, "pass", 2),
        ("0", "1000000", 950000, "fail", 0),
        ("0", "1000000", 0, "pass", 0),
    ],
)
def test_run_time(tmp_path: Path, live: str, period: str, asked: Any, verdict: str, notes: int) -> None:
    put(tmp_path, "/proc/sys/kernel/sched_rt_runtime_us", f"{live}\n")
    put(tmp_path, "/proc/sys/kernel/sched_rt_period_us", f"{period}\n")
    result = info(tmp_path, asked)
    assert result["sysctls"][RUNTIME]["verdict"] == verdict
    assert reasons(result["notes"]) == ["rt_throttling_off"] * notes


def test_minus_one_in_a_file_is_a_value(tmp_path: Path) -> None:
    put(tmp_path, "/etc/sysctl.d/99-rt.conf", "kernel.sched_rt_runtime_us = -1\n")
    put(tmp_path, "/proc/sys/kernel/sched_rt_runtime_us", "950000\n")
    row = info(tmp_path, 950000)["sysctls"][RUNTIME]
    assert (row["boot_value"], row["verdict"], row["reason"]) == ("-1", "fail", "configured_differs")
    assert row["file"] == "/etc/sysctl.d/99-rt.conf"


def test_nested_groups_are_named_once(tmp_path: Path) -> None:
    base = "/sys/fs/cgroup/cpu,cpuacct"
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu").symlink_to("cpu,cpuacct")
    for group, value in [("", 950000), ("/a", 0), ("/a/b", 0), ("/c", 1000), ("/c/d", 0), ("/e", 0)]:
        put(tmp_path, f"{base}{group}/cpu.rt_runtime_us", f"{value}\n")
    findings = info(tmp_path)["findings"]
    assert [row["group"] for row in findings] == ["/a", "/c/d", "/e"]


def test_no_group_scheduling_no_finding(tmp_path: Path) -> None:
    put(tmp_path, "/sys/fs/cgroup/cpu/docker/cpu.shares", "1024\n")
    assert info(tmp_path)["findings"] == []


@pytest.mark.parametrize("place", ["cpu", "cpu,cpuacct", "cpuacct,cpu", "cpu,cpuacct,cpuset", ""])
def test_wherever_the_cpu_controller_is_mounted(place: str, tmp_path: Path) -> None:
    base = f"/sys/fs/cgroup/{place}".rstrip("/")
    for group, value in [("", 950000), ("/kubepods", 1000), ("/kubepods/pod1", 0), ("/system.slice", 0)]:
        put(tmp_path, f"{base}{group}/cpu.rt_runtime_us", f"{value}\n")
    put(tmp_path, "/sys/fs/cgroup/cpuset/docker/cpuset.cpus", "0\n")
    findings = info(tmp_path)["findings"]
    assert [row["group"] for row in findings] == ["/kubepods/pod1", "/system.slice"]
    assert findings[0]["file"] == f"{base}/kubepods/pod1/cpu.rt_runtime_us"


def test_a_container_sees_its_own_group_as_the_topmost(tmp_path: Path) -> None:
    put(tmp_path, "/sys/fs/cgroup/cpu/cpu.rt_runtime_us", "0\n")
    put(tmp_path, "/sys/fs/cgroup/cpu/app/cpu.rt_runtime_us", "0\n")
    assert [row["group"] for row in info(tmp_path)["findings"]] == ["/"]


@pytest.mark.parametrize(("runtime", "groups"), [("-1", []), ("0", ["/docker"]), ("1000000", ["/docker"])])
def test_minus_one_switches_the_budgets_of_groups_off_too(
    runtime: str, groups: list[str], tmp_path: Path
) -> None:
    put(tmp_path, "/proc/sys/kernel/sched_rt_runtime_us", f"{runtime}\n")
    put(tmp_path, "/sys/fs/cgroup/cpu/cpu.rt_runtime_us", "950000\n")
    put(tmp_path, "/sys/fs/cgroup/cpu/docker/cpu.rt_runtime_us", "0\n")
    assert [row["group"] for row in info(tmp_path)["findings"]] == groups


@pytest.mark.parametrize("period", ["", "many\n", "-1\n"])
def test_a_period_that_is_no_number_is_the_default(period: str, tmp_path: Path) -> None:
    put(tmp_path, "/proc/sys/kernel/sched_rt_runtime_us", "1000000\n")
    put(tmp_path, "/proc/sys/kernel/sched_rt_period_us", period)
    assert reasons(info(tmp_path, 950000)["notes"]) == ["rt_throttling_off"]
