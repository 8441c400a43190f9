# SPDX-License-Identifier: Apache-2.0
"""Real-time scheduling: the runtime budget, RT groups, the fair server, and a real SCHED_FIFO attempt."""

from __future__ import annotations

from collections.abc import Iterator

from . import _sched, _sysctl_foreign
from ._checks_host import RT_RUNTIME, Check, Context, Unreadable
from ._cpulist import parse
from ._verdict import Result, judge, not_applicable, skipped

_RUNTIME = "/proc/sys/kernel/sched_rt_runtime_us"
_PERIOD = "/proc/sys/kernel/sched_rt_period_us"
_KEY = "kernel.sched_rt_runtime_us"


def wanted_runtime(ctx: Context) -> int | None:
    """The RT runtime of the plan in microseconds; None when nobody asks. -1 is a value: throttling off."""
    value = (ctx.section("rt_scheduling").get("sysctls") or {}).get(_KEY)
    return None if value is None else int(value)


def _asked(ctx: Context) -> bool:
    return wanted_runtime(ctx) is not None


def check_throttling(ctx: Context) -> Iterator[Result]:
    """Whether the kernel limits real-time threads at all; off (-1) is named even where it is wanted.

    The value itself is one of the plan's sysctls and checked there.
    """
    identity, wanted, live = "rt_scheduling.throttling", wanted_runtime(ctx), ctx.parsed(_RUNTIME, int)
    if live is None:
        yield skipped(identity, "running", "not_available", source=_RUNTIME, intended=_asked(ctx))
        return
    period = _period(ctx)
    on = _throttles(live, period)
    if on or wanted is None or _throttles(wanted, period):
        yield judge(
            identity,
            "running",
            None if wanted is None else "on",
            "on" if on else "off",
            good=on,
            reason="rt_throttling_off",
            source=_RUNTIME,
            remedy=f"A runaway real-time thread can take a whole CPU: set {RT_RUNTIME} below {period}.",
            intended=_asked(ctx),
        )
        return
    note = f"As asked by {RT_RUNTIME}: a runaway real-time thread can take a whole CPU."
    yield Result(identity, "pass", "running", "off", "off", "rt_throttling_off", _RUNTIME, note)


def _period(ctx: Context) -> int:
    """The RT period in microseconds; the kernel's default where no file shows it."""
    period = ctx.parsed(_PERIOD, int)
    return 1000000 if period is None else period


def _throttles(runtime: int, period: int) -> bool:
    return 0 <= runtime < period


def check_groups(ctx: Context) -> Iterator[Result]:
    """RT group scheduling: a group without RT time gets EPERM for SCHED_FIFO whatever the global budget says.

    cgroup v1 shows each group's budget; under v2 there is none to read, only whether the kernel has the
    feature (cgroup-v2.rst, "CPU"). The real attempt decides; this tells why.
    """
    identity = "rt_scheduling.groups"
    starved = _sysctl_foreign.rt_groups(ctx.root)
    for finding in starved:
        yield Result(
            f"{identity}.{finding['group']}",
            "warn",
            "running",
            None,
            {"group": finding["group"], "rt_runtime_us": 0},
            finding["reason"],
            str(finding.get("file") or ""),
            "SCHED_FIFO fails there with EPERM: give the group a part of its parent's cpu.rt_runtime_us.",
            _asked(ctx),
        )
    if starved:
        return
    built_in, source = _sched.rt_group_sched(ctx.root, ctx.facts().release or "")
    if built_in is None:
        yield skipped(identity, "running", "not_available", source=source, intended=False)
        return
    yield judge(
        identity,
        "running",
        None,
        f"CONFIG_RT_GROUP_SCHED={'y' if built_in else 'n'}",
        good=not built_in,
        reason="rt_group_sched",
        source=source,
        remedy="RT group scheduling is built in: each group with SCHED_FIFO threads needs a budget.",
        intended=_asked(ctx),
        soft=True,
    )


def check_fair_server(ctx: Context) -> Iterator[Result]:
    """From Linux 6.12 the fair server decides what a busy FIFO thread leaves to others."""
    identity, path = "rt_scheduling.fair_server", _sched.FAIR_SERVER_DIR
    facts = ctx.facts()
    if not facts.version_known:
        yield skipped(
            identity, "running", "kernel_unknown", source="/proc/sys/kernel/osrelease", intended=False
        )
        return
    if facts.version < _sched.FAIR_SERVER_SINCE:
        yield not_applicable(identity, "running", "kernel_older_than_6_12", observed=facts.release)
        return
    try:
        cpus = _sched.fair_server(ctx.root)
    except OSError as exc:
        reason = Unreadable(path, exc).reason
        yield skipped(identity, "running", reason, observed=str(exc), source=path, intended=False)
        return
    if not cpus:
        yield skipped(identity, "running", "not_available", source=path, intended=False)
        return
    period = _period(ctx)
    wanted = wanted_runtime(ctx)
    share = None if wanted is None else 0.0 if wanted == -1 else 1 - wanted / period
    seen = sorted({runtime / length for runtime, length in cpus.values() if length})
    good = bool(seen) and (
        all(part > 0 for part in seen) if share is None else all(abs(p - share) < 1e-6 for p in seen)
    )
    yield judge(
        identity,
        "running",
        None if share is None else {"share": round(share, 6)},
        {"shares": [round(part, 6) for part in seen], "cpus": len(cpus)},
        good=good,
        reason="fair_server_differs",
        source=path,
        remedy=f"Write the share that {RT_RUNTIME} leaves to others into {path}/cpuN/runtime.",
        intended=_asked(ctx),
        soft=True,
    )


def check_fifo(ctx: Context) -> Iterator[Result]:
    """Whether the kernel grants SCHED_FIFO to a process here: the only proof there is."""
    identity, wanted = "rt_scheduling.fifo", _asked(ctx)
    if not ctx.live:
        yield skipped(identity, "measured", "offline", expected="granted", intended=False)
        return
    avoid = ctx.parsed("/sys/devices/system/cpu/isolated", parse) or frozenset()
    attempt = _sched.try_fifo(avoid_cpus=avoid)
    observed = {"answer": "granted" if attempt.granted else attempt.error, "cgroup": attempt.cgroup}
    if attempt.granted is None:
        yield skipped(
            identity,
            "measured",
            attempt.error.lower(),
            expected="granted",
            observed=observed,
            intended=wanted,
        )
    elif not attempt.granted and not attempt.capable:
        yield skipped(
            identity,
            "measured",
            "permission_denied",
            expected="granted",
            observed=observed,
            intended=wanted,
            remedy="Run the verification as root: without CAP_SYS_NICE a refusal says nothing.",
        )
    else:
        yield judge(
            identity,
            "measured",
            "granted",
            observed,
            good=attempt.granted,
            reason="fifo_refused",
            source=attempt.cgroup,
            intended=wanted,
            remedy=f"{RT_RUNTIME} must not be 0, and RT group scheduling must give this cgroup a budget.",
        )


CHECKS = (
    Check("rt_scheduling.throttling", ("running",), check_throttling, _asked),
    Check("rt_scheduling.groups", ("running",), check_groups, lambda ctx: False),
    Check("rt_scheduling.fair_server", ("running",), check_fair_server, lambda ctx: False),
    Check("rt_scheduling.fifo", ("measured",), check_fifo, _asked),
)
