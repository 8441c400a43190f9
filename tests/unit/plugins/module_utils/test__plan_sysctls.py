# SPDX-License-Identifier: GPL-3.0-or-later
"""Sysctls of the plan: values as the kernel takes them, watermarks that keep their meaning, the RT runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from plan_host import make_host, plan, reasons, record, refused, zone
from support import CASES, case_expected, put, sysroot_from_tsv

VM = {"sections": ["vm_sysctls"]}
RT = {"sections": ["rt_scheduling"]}


def sysctls(root: Path, intent: dict[str, Any], **options: Any) -> dict[str, str]:
    found: dict[str, str] = plan(root, intent, **options)["plan"]["sysctls"]
    return found


def test_values_become_text(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    put(root, "/proc/sys/vm/lowmem_reserve_ratio", "256\t256\t32\n")
    intent = {
        "vm_sysctls": {"vm.swappiness": 0, "vm/dirty_ratio": "8", "vm.lowmem_reserve_ratio": "256 128  32"}
    }
    assert sysctls(root, intent, **VM) == {
        "vm.swappiness": "0", "vm.dirty_ratio": "8", "vm.lowmem_reserve_ratio": "256 128 32",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("values", "reason", "sysctl"),
    [
        ({"vm.swapiness": 0}, "sysctl_unknown", "vm.swapiness"),
        ({"vm.extra_free_kbytes": 5}, "sysctl_unknown", "vm.extra_free_kbytes"),
        ({"vm.nr_hugepages": 5}, "sysctl_conflict", "vm.nr_hugepages"),
        ({"vm.nr_hugepages_mempolicy": 5}, "sysctl_conflict", "vm.nr_hugepages_mempolicy"),
        ({"vm.nr_overcommit_hugepages": 5}, "sysctl_conflict", "vm.nr_overcommit_hugepages"),
        ({"vm.dirty_ratio": 5, "vm.dirty_bytes": 4096}, "sysctl_conflict", "vm.dirty_bytes"),
        ({"net.core.somaxconn": 5}, "bad_value", "net.core.somaxconn"),
        ({"kernel.sched_rt_runtime_us": 5}, "bad_value", "kernel.sched_rt_runtime_us"),
        ({"vm.swappiness": 1, "vm/swappiness": 2}, "bad_value", "vm.swappiness"),
        ({"vm.swappiness": 201}, "bad_value", "vm.swappiness"),
        ({"vm.swappiness": -1}, "bad_value", "vm.swappiness"),
        ({"vm.swappiness": "max"}, "bad_value", "vm.swappiness"),
        ({"vm.swappiness": None}, "bad_value", "vm.swappiness"),
        ({"vm.swappiness": True}, "bad_value", "vm.swappiness"),
        ({"vm.../kernel/x": 1}, "bad_value", None),
    ],
)
def test_what_the_kernel_would_not_take_is_refused(
    tmp_path: Path, values: dict[str, Any], reason: str, sysctl: str | None
) -> None:
    root = make_host(tmp_path)
    put(root, "/proc/sys/vm/dirty_bytes", "0\n")
    rows = refused(root, {"vm_sysctls": values}, **VM)
    assert reasons(rows) == [reason] and (sysctl is None or rows[0]["sysctl"] == sysctl)


def test_the_replacement_for_extra_free_kbytes_is_named(tmp_path: Path) -> None:
    rows = refused(make_host(tmp_path), {"vm_sysctls": {"vm.extra_free_kbytes": 5}}, **VM)
    assert "firsttouch_extra_free_bytes" in rows[0]["text"]


@pytest.mark.parametrize("value", ["swappiness=0", 5, ["vm.swappiness"], True])
def test_what_is_no_mapping_is_refused(tmp_path: Path, value: Any) -> None:
    assert reasons(refused(make_host(tmp_path), {"vm_sysctls": value}, **VM)) == ["bad_value"]


def test_a_tree_without_proc_sys_cannot_judge_names(tmp_path: Path) -> None:
    assert sysctls(tmp_path, {"vm_sysctls": {"vm.whatever": 1}}, **VM) == {"vm.whatever": "1"}


@pytest.mark.parametrize(
    ("value", "text"), [(False, "0"), (True, "1"), ("2", "2"), (0, "0"), ("on", "1"), ("off", "0")]
)
def test_numa_balancing(tmp_path: Path, value: Any, text: str) -> None:
    assert sysctls(make_host(tmp_path), {"numa_balancing": value}, **VM) == {"kernel.numa_balancing": text}


@pytest.mark.parametrize("value", ["never", 4, -1, 0.5, [1]])
def test_other_numa_balancing_is_refused(tmp_path: Path, value: Any) -> None:
    assert reasons(refused(make_host(tmp_path), {"numa_balancing": value}, **VM)) == ["bad_value"]


def test_numa_balancing_that_the_kernel_lacks_is_off(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    (root / "proc/sys/kernel/numa_balancing").unlink()
    assert reasons(refused(root, {"numa_balancing": True}, **VM)) == ["unsupported"]
    result = plan(root, {"numa_balancing": False}, **VM)
    assert result["plan"]["sysctls"] == {} and reasons(result["notes"]) == ["unsupported"]
    assert "CONFIG_NUMA_BALANCING" in result["notes"][0]["text"]


def test_extra_free_memory_becomes_a_factor_that_keeps_it(tmp_path: Path) -> None:
    section = plan(make_host(tmp_path), {"extra_free_bytes": "64M"}, **VM)["plan"]["sections"]["vm_sysctls"]
    extra = section["extra_free"]
    assert extra["asked_bytes"] == 64 << 20
    assert 64 << 20 <= extra["predicted_bytes"] < 66 << 20
    assert section["sysctls"] == {"vm.watermark_scale_factor": str(extra["scale_factor"])}


def test_the_factor_has_a_margin_for_the_next_boot(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    for asked in range(300 << 20, 310 << 20, 1 << 20):
        section = plan(root, {"extra_free_bytes": asked}, **VM)["plan"]["sections"]["vm_sysctls"]
        assert section["extra_free"]["predicted_bytes"] >= asked + asked // 500


def test_the_factor_stays_while_it_serves(tmp_path: Path) -> None:
    """Memory differs by some pages from boot to boot; the plan must not follow that."""
    root = make_host(tmp_path)
    intent = {"extra_free_bytes": "64M"}
    first = plan(root, intent, **VM)
    record(root, first)
    for pages in (389120 - 300, 389120 + 300):
        put(root, "/proc/zoneinfo", zone(0, "DMA32", 4096, pages) + zone(1, "Normal", 1048576, 917504))
        again = plan(root, intent, **VM)
        assert again["plan"]["sysctls"] == first["plan"]["sysctls"]
        assert not record(root, again)["changed"]
    other = plan(root, {"extra_free_bytes": "128M"}, **VM)["plan"]["sysctls"]
    assert int(other["vm.watermark_scale_factor"]) > int(
        first["plan"]["sysctls"]["vm.watermark_scale_factor"]
    )


@pytest.mark.parametrize(
    ("intent", "reason"),
    [
        ({"extra_free_bytes": "max"}, "bad_value"),
        ({"extra_free_bytes": -1}, "bad_value"),
        ({"extra_free_bytes": "64M", "vm_sysctls": {"vm.watermark_scale_factor": 20}}, "sysctl_conflict"),
        ({"extra_free_bytes": "100G"}, "extra_free_above_max"),
    ],
)
def test_extra_free_memory_that_cannot_be_is_refused(
    tmp_path: Path, intent: dict[str, Any], reason: str
) -> None:
    rows = refused(make_host(tmp_path), intent, **VM)
    assert [(row["reason"], row["variable"]) for row in rows] == [(reason, "firsttouch_extra_free_bytes")]


def test_watermarks_and_pages_share_the_memory(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    intent: dict[str, Any] = {"extra_free_bytes": "512M"}
    assert plan(root, intent, **VM)
    intent["hugepages"] = [{"size": "2M", "nodes": {"0": 500}}]
    sections = {"sections": ["hugepages", "vm_sysctls"]}
    rows = refused(root, intent, **sections)
    assert reasons(rows) == ["high_watermark_does_not_fit"] and rows[0]["node"] == 0
    record(root, plan(root, {"hugepages": intent["hugepages"]}, sections=["hugepages"]))
    assert reasons(refused(root, {"extra_free_bytes": "512M"}, **VM)) == ["high_watermark_does_not_fit"]


def test_without_zones_no_watermark_is_guessed(tmp_path: Path) -> None:
    assert reasons(refused(make_host(tmp_path, zones=""), {"extra_free_bytes": 1}, **VM)) == ["zones_unknown"]


@pytest.mark.parametrize(("value", "text"), [(950000, "950000"), ("950000", "950000"), (1000000, "1000000")])
def test_rt_runtime(tmp_path: Path, value: Any, text: str) -> None:
    result = plan(make_host(tmp_path), {"rt_runtime_us": value}, **RT)
    assert result["plan"]["sysctls"] == {"kernel.sched_rt_runtime_us": text} and result["notes"] == []


@pytest.mark.parametrize("value", [0, -2, 1000001, "max", "", True, 0.95])
def test_rt_runtime_that_cannot_be_is_refused(tmp_path: Path, value: Any) -> None:
    rows = refused(make_host(tmp_path), {"rt_runtime_us": value}, **RT)
    assert [(row["reason"], row["variable"]) for row in rows] == [("bad_value", "firsttouch_rt_runtime_us")]


def test_the_live_period_bounds_the_runtime(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    put(root, "/proc/sys/kernel/sched_rt_period_us", "500000\n")
    assert refused(root, {"rt_runtime_us": 950000}, **RT)[0]["available"] == 500000


def test_minus_one_is_a_value_with_a_note(tmp_path: Path) -> None:
    root = sysroot_from_tsv(tmp_path, CASES / "rt-runtime-minus-one" / "proc.tsv")
    result = plan(root, {"rt_runtime_us": -1}, **RT)
    assert result["plan"]["sysctls"] == {"kernel.sched_rt_runtime_us": "-1"}
    assert reasons(result["notes"]) == [case_expected("rt-runtime-minus-one")["note_class"]]
    assert plan(root, {"rt_runtime_us": 950000}, **RT)["plan"]["sysctls"] == {
        "kernel.sched_rt_runtime_us": "950000"
    }
