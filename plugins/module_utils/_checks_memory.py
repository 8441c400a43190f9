# SPDX-License-Identifier: Apache-2.0
"""Memory behaviour around the pools: NUMA balancing, swap, what is left for the system."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ._checks_host import FLOOR, HUGEPAGES, NUMA_BALANCING, Check, Context
from ._cpulist import parse
from ._verdict import Result, judge, not_applicable, skipped

_BALANCING = "/proc/sys/kernel/numa_balancing"
_MEMINFO = "/proc/meminfo"
# Shares of what the pools leave over: below the first the host reclaims all the time, below the second soon.
_AVAILABLE_FAIL = 0.05
_AVAILABLE_WARN = 0.15


def check_numa_balancing(ctx: Context) -> Iterator[Result]:
    """Automatic NUMA balancing unmaps pages to sample them: faults in the middle of a request.

    Where a variable asks for a value it is one of the plan's sysctls and checked there. Asked to be off on a kernel
    that has none it is in no plan, and off.
    """
    if "kernel.numa_balancing" in (ctx.section("vm_sysctls").get("sysctls") or {}):
        return
    live = ctx.parsed(_BALANCING, int)
    if "numa_balancing" in (ctx.section("vm_sysctls").get("variables") or ()):
        yield _balancing_as_planned(ctx, live)
        return
    if live is None or len(ctx.parsed("/sys/devices/system/node/has_memory", parse) or ()) < 2:
        reason = "not_available" if live is None else "one_memory_node"
        yield not_applicable("numa_balancing.mode", "running", reason, observed=live, source=_BALANCING)
        return
    yield judge(
        "numa_balancing.mode",
        "running",
        None,
        live,
        good=live == 0,
        reason="numa_balancing_on",
        source=_BALANCING,
        remedy=f"Set {NUMA_BALANCING} to false.",
        intended=False,
    )


def _balancing_as_planned(ctx: Context, live: int | None) -> Result:
    """The answer where the plan holds no sysctl because the kernel it was made on has none."""
    identity = "numa_balancing.mode"
    if live is None and not ctx.live:
        return skipped(identity, "running", "not_recorded", expected=0, source=_BALANCING)
    return judge(
        identity,
        "running",
        0,
        live or 0,
        reason="numa_balancing_on",
        source=_BALANCING,
        remedy=f"Run provision with {NUMA_BALANCING}: this kernel has it, the one planned for had not.",
    )


def check_swap(ctx: Context) -> Iterator[Result]:
    """Active swap: a page fault may then wait for a disk. Nothing of ours turns swap off."""
    text = ctx.text("/proc/swaps")
    if text is None:
        yield skipped("memory.swap", "running", "not_available", source="/proc/swaps", intended=False)
        return
    if not text.startswith("Filename"):
        yield skipped("memory.swap", "running", "unreadable", observed=text[:80], source="/proc/swaps", intended=False)
        return
    active = [line.split()[0] for line in text.splitlines()[1:] if line.split()]
    yield judge(
        "memory.swap",
        "running",
        [],
        active,
        reason="swap_active",
        source="/proc/swaps",
        remedy="Pages of a serving process can be swapped out: swapoff, and take the entry out of fstab.",
        intended=False,
    )


def meminfo(text: str) -> dict[str, int]:
    """/proc/meminfo as {name: value in bytes, or a bare number where there is no kB}."""
    found = {}
    for line in text.splitlines():
        name, _colon, rest = line.partition(":")
        parts = rest.split()
        if parts and parts[0].isdigit():
            found[name.strip()] = int(parts[0]) * (1024 if parts[1:] == ["kB"] else 1)
    return found


def check_available(ctx: Context) -> Iterator[Result]:
    """Memory left beside the pools: page counts can be right on a host about to fall over."""
    text = ctx.text(_MEMINFO)
    values = meminfo(text or "")
    intended = bool(ctx.section("hugepages"))
    if "MemAvailable" not in values or "MemTotal" not in values:
        yield skipped("memory.available", "running", "not_available", source=_MEMINFO, intended=intended)
        return
    pools = values.get("Hugetlb", values.get("HugePages_Total", 0) * values.get("Hugepagesize", 0))
    left = max(values["MemTotal"] - pools, 1)
    share = values["MemAvailable"] / left
    floors = _floors(ctx.section("hugepages").get("budget"))
    observed = {
        "available_bytes": values["MemAvailable"],
        "left_beside_pools_bytes": left,
        "floors_bytes": floors,
    }
    yield judge(
        "memory.available",
        "running",
        {"at_least_bytes": int(left * _AVAILABLE_FAIL)},
        observed,
        good=share >= _AVAILABLE_WARN,
        reason="memory_short",
        source=_MEMINFO,
        remedy=f"Ask for fewer pages in {HUGEPAGES}, or raise {FLOOR}.",
        intended=intended,
        soft=share >= _AVAILABLE_FAIL,
    )


def _floors(budget: object) -> int | None:
    if not isinstance(budget, Mapping):
        return None
    return sum(int(node.get("floor_bytes") or 0) for node in budget.values() if isinstance(node, Mapping))


CHECKS = (
    Check(
        "numa_balancing.mode",
        ("running",),
        check_numa_balancing,
        lambda ctx: "numa_balancing" in (ctx.section("vm_sysctls").get("variables") or ()),
    ),
    Check("memory.swap", ("running",), check_swap, lambda ctx: False),
    Check("memory.available", ("running",), check_available, lambda ctx: bool(ctx.section("hugepages"))),
)
