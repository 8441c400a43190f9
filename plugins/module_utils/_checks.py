# SPDX-License-Identifier: Apache-2.0
"""All checks of a host against its plan: which there are, and one run over them that no single fault ends."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace

from . import (
    _checks_boot,
    _checks_cpus,
    _checks_drift,
    _checks_hugepages,
    _checks_irqbalance,
    _checks_isolated,
    _checks_kubelet,
    _checks_memory,
    _checks_mounts,
    _checks_numa,
    _checks_packages,
    _checks_placement,
    _checks_plan,
    _checks_pool_use,
    _checks_reclaim,
    _checks_rt,
    _checks_runtime,
    _checks_services,
    _checks_sysctl,
    _checks_thp,
    _checks_units,
)
from ._checks_host import Check, Context, answered
from ._intent import CONCERNS as CONCERN_VARIABLES
from ._intent import PREFIX
from ._verdict import LAYERS, Result

CHECKS: tuple[Check, ...] = (
    *_checks_plan.CHECKS,
    *_checks_hugepages.CHECKS,
    *_checks_pool_use.CHECKS,
    *_checks_mounts.CHECKS,
    *_checks_units.CHECKS,
    *_checks_boot.CHECKS,
    *_checks_drift.CHECKS,
    *_checks_packages.CHECKS,
    *_checks_cpus.CHECKS,
    *_checks_irqbalance.CHECKS,
    *_checks_isolated.CHECKS,
    *_checks_sysctl.CHECKS,
    *_checks_rt.CHECKS,
    *_checks_placement.CHECKS,
    *_checks_numa.CHECKS,
    *_checks_thp.CHECKS,
    *_checks_services.CHECKS,
    *_checks_kubelet.CHECKS,
    *_checks_memory.CHECKS,
    *_checks_reclaim.CHECKS,
    *_checks_runtime.CHECKS,
)
CONCERNS = (
    "plan",
    "hugepages",
    "units",
    "boot",
    "cpu_isolation",
    "vm_sysctls",
    "rt_scheduling",
    "numa",
    "thp",
    "services",
    "kubelet",
    "numa_balancing",
    "memory",
    "runtime",
)


def run(ctx: Context, layers: Collection[str] = LAYERS, concerns: Collection[str] = ()) -> list[Result]:
    """The answers about LAYERS, of CONCERNS only when there are any, in the order of CHECKS.

    A check of which no layer is wanted is not asked, so that without `measured` nothing is tried on the host.
    """
    return list(_run(ctx, layers, concerns))


def _run(ctx: Context, layers: Collection[str], concerns: Collection[str]) -> Iterator[Result]:
    orphaned = _orphaned(ctx)
    unplanned = frozenset(refusal.variable for refusal in ctx.unplanned)
    for check in CHECKS:
        if check.always:
            yield from answered(check, ctx)
            continue
        wanted = [layer for layer in check.layers if layer in layers]
        if not wanted or (concerns and not set(check.concerns) & set(concerns)):
            continue
        for result in answered(check, ctx, wanted[0]):
            ended = result.id == check.unanswered
            if ended or (result.layer in layers and (not concerns or result.concern in concerns)):
                yield _unasked(result, orphaned, unplanned)


def _orphaned(ctx: Context) -> frozenset[str]:
    """The variables that are not set any more although the plan still holds what they asked for."""
    sections = (ctx.plan.get("sections") or {}).values()
    names = [name for section in sections if section for name in section.get("orphaned") or []]
    return frozenset(f"{PREFIX}{name}" for name in names)


def _unasked(result: Result, orphaned: frozenset[str], unplanned: frozenset[str]) -> Result:
    """RESULT, a failure being a warning when every variable that would mend it is orphaned.

    Of what is UNPLANNED nobody can tell whether it is asked for: it is not_recorded like the variable.
    """
    if result.status not in ("fail", "warn") or not (orphaned or unplanned):
        return result
    concerns = {PREFIX + name for names in CONCERN_VARIABLES.values() for name in names}
    named = set(re.findall(rf"{PREFIX}\w+", result.remedy)) & concerns
    if named and named <= unplanned:
        return replace(result, status="not_evaluated", reason="not_recorded", intended=False)
    if result.status == "fail" and named and named <= orphaned:
        return replace(result, status="warn", intended=False)
    return result
