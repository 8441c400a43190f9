# SPDX-License-Identifier: GPL-3.0-or-later
"""A host as a sysroot, for the tests of the plan: as little of /proc and /sys as the plan reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from support import put, run_module

SYSTEM = "/sys/devices/system"
GIB_PAGES = 262144


def zone(node: int, name: str, start: int, spanned: int, present: int | None = None) -> str:
    """One zone of /proc/zoneinfo; figures in pages."""
    there = spanned if present is None else present
    low = max(there // 400, 1)
    return (
        f"Node {node}, zone {name:>8}\n  pages free     {there // 2}\n        boost    0\n        min      {low}\n"
        f"        low      {low + low // 4}\n        high     {low + low // 2}\n        spanned  {spanned}\n"
        f"        present  {there}\n        managed  {there - there // 50}\n  start_pfn:           {start}\n"
    )


TWO_NODE_ZONES = (
    zone(0, "DMA", 1, 4095, 3998)
    + zone(0, "DMA32", 4096, 389120)
    + zone(1, "DMA32", 393216, 131072)
    + zone(1, "Normal", 1048576, 3 * GIB_PAGES)
)


def make_host(
    root: Path,
    nodes: Mapping[int, tuple[str, int]] | None = None,
    *,
    cpus: str = "0-3",
    siblings: Iterable[str] = ("0", "1", "2", "3"),
    sizes_kb: Iterable[int] = (2048, 1048576),
    release: str | None = "6.1.0-25-amd64",
    zones: str = TWO_NODE_ZONES,
    cmdline: str = "ro quiet",
    flags: str = "pse pdpe1gb lm",
) -> Path:
    """Lay out a host below ROOT; NODES: id -> (CPU list, MemTotal in kB); SIBLINGS: one list per core."""
    nodes = {0: ("0-1", 1_490_000), 1: ("2-3", 3_500_000)} if nodes is None else nodes
    for name in ("online", "possible", "present"):
        put(root, f"{SYSTEM}/cpu/{name}", cpus + "\n")
    put(root, f"{SYSTEM}/cpu/isolated", "\n")
    put(root, f"{SYSTEM}/cpu/nohz_full", "(null)\n")
    for core in siblings:
        for cpu in core.split(","):
            put(root, f"{SYSTEM}/cpu/cpu{cpu}/topology/thread_siblings_list", core + "\n")
    ids = ",".join(map(str, nodes))
    for name in ("online", "possible", "has_memory", "has_normal_memory", "has_cpu"):
        put(root, f"{SYSTEM}/node/{name}", ids + "\n")
    for node, (cpulist, memory_kb) in nodes.items():
        put(root, f"{SYSTEM}/node/node{node}/cpulist", cpulist + "\n")
        put(root, f"{SYSTEM}/node/node{node}/meminfo", f"Node {node} MemTotal: {memory_kb} kB\n")
        for size in sizes_kb:
            put(root, f"{SYSTEM}/node/node{node}/hugepages/hugepages-{size}kB/nr_hugepages", "0\n")
    for size in sizes_kb:
        put(root, f"/sys/kernel/mm/hugepages/hugepages-{size}kB/nr_hugepages", "0\n")
    put(root, "/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    if release:
        put(root, "/proc/sys/kernel/osrelease", release + "\n")
    put(root, "/proc/cpuinfo", f"processor : 0\nflags : {flags}\n")
    total = sum(memory_kb for _cpus, memory_kb in nodes.values())
    put(root, "/proc/meminfo", f"MemTotal: {total} kB\nHugepagesize: 2048 kB\n")
    put(root, "/proc/cmdline", cmdline + "\n")
    put(root, "/proc/zoneinfo", zones)
    live = {
        "swappiness": "60",
        "dirty_ratio": "20",
        "min_free_kbytes": "16000",
        "watermark_scale_factor": "10",
    }
    for key, value in live.items():
        put(root, f"/proc/sys/vm/{key}", value + "\n")
    for key, value in {
        "sched_rt_runtime_us": "950000",
        "sched_rt_period_us": "1000000",
        "numa_balancing": "1",
    }.items():
        put(root, f"/proc/sys/kernel/{key}", value + "\n")
    return root


def plan(root: Path, intent: dict[str, Any], **options: Any) -> dict[str, Any]:
    """The result of host_plan, which must not have failed."""
    result = run_module("host_plan", {"intent": intent, "sysroot": str(root), **options})
    assert not result.get("failed"), result.get("msg")
    assert result["changed"] is False
    return result


def refused(root: Path, intent: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    """The refusals of host_plan, which must have failed; every one names its variable in its text."""
    result = run_module("host_plan", {"intent": intent, "sysroot": str(root), **options})
    assert result.get("failed"), result
    rows: list[dict[str, Any]] = result["refusals"]
    assert result["reason"] == rows[0]["reason"]
    for row in rows:
        assert row["text"].startswith(row["variable"] + ": ") and row["text"] in result["msg"]
    return rows


def reasons(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The codes of refusals or notes."""
    return [str(row["reason"]) for row in rows]


def record(root: Path, result: Mapping[str, Any], *, check: bool = False, **options: Any) -> dict[str, Any]:
    """The result of plan_record for a RESULT of host_plan, which must not have failed."""
    args = {"plan": result["plan"], "sections": result["planned"], "sysroot": str(root), **options}
    done = run_module("plan_record", args, check=check)
    assert not done.get("failed"), done.get("msg")
    return done
