# SPDX-License-Identifier: Apache-2.0
"""Boot arguments that drifted apart between settings, next boot and running kernel, and whose they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from . import _cmdline
from ._boot_effect import beyond, split_line, token_key
from ._boot_owners import OURS, TunedArgument, owner_of, tuned_arguments
from ._checks_boot import own_keys, variable_of
from ._checks_host import Check, Context
from ._checks_lines import Line, NoLine, layers_of, line_of
from ._verdict import Result, judge, skipped

# Arguments that decide about latency and memory.
TUNING_KEYS = (
    *("hugepages", "hugepagesz", "default_hugepagesz", "hugetlb_cma", "hugetlb_free_vmemmap"),
    *("transparent_hugepage", "transparent_hugepage_shmem", "transparent_hugepage_tmpfs"),
    *("isolcpus", "nohz_full", "nohz", "rcu_nocbs", "rcu_nocb_poll", "irqaffinity", "kthread_cpus"),
    *("mem", "memmap", "crashkernel", "movablecore", "kernelcore", "numa", "numa_balancing"),
    *("nosmt", "maxcpus", "nr_cpus", "mitigations", "idle", "processor.max_cstate", "intel_idle.max_cstate"),
    *("intel_pstate", "amd_pstate", "cpufreq.default_governor", "skew_tick", "tsc", "clocksource", "preempt"),
    *("threadirqs", "nowatchdog", "nmi_watchdog", "nosoftlockup", "rcutree.kthread_prio", "audit", "iommu"),
    *("intel_iommu", "amd_iommu", "cgroup_disable", "systemd.unified_cgroup_hierarchy", "psi"),
)
_LAYERS = ("configured", "next_boot", "running")


def _of_keys(tokens: Iterable[str], keys: Iterable[str]) -> list[str]:
    """Those of TOKENS that have one of KEYS, in order."""
    wanted = {_cmdline.normal_key(key) for key in keys}
    return [token for token in tokens if token_key(token) in wanted]


def check_drift(ctx: Context) -> Iterator[Result]:
    """Tuning arguments, ours or not, that one of two neighbouring layers has and the other has not."""
    for before, after in (("configured", "next_boot"), ("next_boot", "running")):
        first, second, identity = line_of(ctx, before), line_of(ctx, after), f"boot.drift.{after}"
        if isinstance(first, Line) and isinstance(second, Line):
            yield _drift(ctx, identity, (before, first), (after, second))
            continue
        none = first if isinstance(first, NoLine) else second
        if isinstance(none, NoLine):
            yield skipped(identity, after, none.reason, observed=none.text, source=none.file, intended=False)


def _drift(ctx: Context, identity: str, before: tuple[str, Line], after: tuple[str, Line]) -> Result:
    entry = layers_of(ctx).entry
    maybe = set(entry.unresolved) if entry else set()
    left, right = (
        [t for t in _of_keys(split_line(line.text), (*TUNING_KEYS, *own_keys(ctx))) if t not in maybe]
        for _layer, line in (before, after)
    )
    rows: dict[str, list[dict[str, Any]]] = {}
    for (layer, line), mine, other in ((before, left, right), (after, right, left)):
        found = [_row(ctx, token, line) for token in beyond(mine, other)]
        if found:
            rows[f"only_{layer}"] = found
    return judge(
        identity,
        after[0],
        {},
        rows,
        reason="not_generated" if before[0] == "configured" else "pending_reboot",
        source=next((str(row["file"]) for found in rows.values() for row in found), after[1].file),
        remedy=_drift_remedy(before[0], [row for found in rows.values() for row in found]),
        intended=False,
    )


def _row(ctx: Context, token: str, line: Line) -> dict[str, Any]:
    place = line.sources.get(token, line.file)
    return {"token": token, "file": place, "owner": _owner(ctx, token, place)}


def _owner(ctx: Context, token: str, place: str) -> str:
    """Who asks for TOKEN, which stands at PLACE (FILE or FILE:LINE)."""
    if token in ctx.tokens() or token in ctx.left_over("tokens"):
        return OURS
    if any(argument.text == token for argument in _tuned(ctx)):
        return "tuned"
    path, _colon, number = place.rpartition(":")
    file = path if path and number.isdigit() else place
    found: str = ctx.keep(f"owner:{file}", lambda: owner_of(ctx.root, file))
    return found


def _tuned(ctx: Context) -> list[TunedArgument]:
    found: list[TunedArgument] = ctx.keep("tuned_arguments", lambda: tuned_arguments(ctx.root))
    return found


def _drift_remedy(before: str, rows: list[dict[str, Any]]) -> str:
    owners = ", ".join(sorted({str(row["owner"]) for row in rows}))
    ours = {variable_of(str(row["token"])) for row in rows if row["owner"] == OURS}
    rest = f"; run provision with {' and '.join(sorted(ours))} for ours" if ours else ""
    if before == "configured":
        return f"Settings and boot entry differ ({owners}): generate the entries anew{rest}."
    return f"The next boot changes them ({owners}): reboot, or take them back where they are set{rest}."


def check_owners(ctx: Context) -> Iterator[Result]:
    """Arguments of others with one of our keys, in each layer: whoever comes last decides which of them boots."""
    if not ctx.tokens():
        return
    for layer in _LAYERS:
        line, identity = line_of(ctx, layer), f"boot.owner.{layer}"
        if isinstance(line, NoLine):
            continue  # boot.tokens says why
        foreign = beyond(_of_keys(line.tokens, own_keys(ctx)), ctx.tokens())
        rows = [_row(ctx, token, line) for token in foreign]
        yield _foreign(identity, layer, rows, line.file)
    rows = [
        {"token": item.text, "file": f"{item.file}:{item.line}", "owner": "tuned"}
        for item in _tuned(ctx)
        if _of_keys([item.text], own_keys(ctx)) and item.text not in ctx.tokens()
    ]
    yield _foreign("boot.owner.tuned", "configured", rows, "/etc/tuned/active_profile")


def _foreign(identity: str, layer: str, rows: list[dict[str, Any]], source: str) -> Result:
    owners = ", ".join(dict.fromkeys(str(row["owner"]) for row in rows))
    names = " and ".join(dict.fromkeys(variable_of(str(row["token"])) for row in rows))
    return judge(
        identity,
        layer,
        [],
        rows,
        reason="foreign_owner",
        source=str(rows[0]["file"]) if rows else source,
        remedy=f"Take them out there ({owners}): {names} asks for them too.",
        intended=False,
    )


CHECKS = (
    Check("boot.drift", ("next_boot", "running"), check_drift, lambda ctx: False),
    Check("boot.owner", ("configured", "next_boot", "running"), check_owners, lambda ctx: False),
)
