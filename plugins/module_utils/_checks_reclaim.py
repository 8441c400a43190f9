# SPDX-License-Identifier: Apache-2.0
"""Reclaim behind the back of a serving process: vm.zone_reclaim_mode where nobody manages it."""

from __future__ import annotations

from collections.abc import Iterator

from ._checks_host import VM_SYSCTLS, Check, Context
from ._cpulist import parse
from ._verdict import Result, judge, not_applicable, skipped

_ZONE = "/proc/sys/vm/zone_reclaim_mode"
_NODES = "/sys/devices/system/node/has_memory"
_KEY = "vm.zone_reclaim_mode"
_BITS = (
    (1, "reclaims before it takes memory of another node"),
    (2, "writes pages out"),
    (4, "swaps pages out"),
)


def check_zone_reclaim(ctx: Context) -> Iterator[Result]:
    """Bit 1 makes an allocation reclaim on its own node first, and stall (admin-guide/sysctl/vm.rst).

    Where a variable asks for a value it is one of the plan's sysctls and checked there.
    """
    identity = "memory.zone_reclaim"
    if _KEY in (ctx.section("vm_sysctls").get("sysctls") or {}):
        return
    value, nodes = ctx.parsed(_ZONE, int), ctx.parsed(_NODES, parse)
    if value is None:
        # CONFIG_NUMA only; without /proc/sys at all nothing is said.
        if ctx.names("/proc/sys/vm") is None:
            yield skipped(identity, "running", "not_available", source=_ZONE, intended=False)
        else:
            yield not_applicable(identity, "running", "no_numa", source=_ZONE)
        return
    if nodes is not None and len(nodes) < 2:
        yield not_applicable(identity, "running", "one_memory_node", observed=value, source=_ZONE)
        return
    does = ", ".join(words for bit, words in _BITS if value & bit)
    yield judge(
        identity,
        "running",
        None,
        value,
        good=value == 0,
        reason="zone_reclaim_on",
        source=_ZONE,
        remedy=f"The kernel {does}: set {_KEY} to 0 in {VM_SYSCTLS}.",
        intended=False,
    )


CHECKS = (Check("memory.zone_reclaim", ("running",), check_zone_reclaim, lambda ctx: False),)
