# SPDX-License-Identifier: Apache-2.0
"""CPU isolation as it is in force: the kernel's own masks, not the words on its command line."""

from __future__ import annotations

from collections.abc import Iterator

from ._checks_host import ISOLATED, Check, Context
from ._checks_lines import predicted
from ._cpulist import format_list, parse, parse_mask
from ._verdict import Result, judge, not_applicable, skipped

_CPU = "/sys/devices/system/cpu"
_IRQ = "/proc/irq/default_smp_affinity"


def _wanted(ctx: Context) -> frozenset[int] | None:
    """The isolated CPUs of the plan; None when nobody asks."""
    text = ctx.section("cpu_isolation").get("isolated")
    return parse(str(text)) if text else None


def asked(ctx: Context) -> bool:
    return _wanted(ctx) is not None


def listed(ctx: Context, path: str) -> frozenset[int] | None:
    """The CPU list in PATH, None when absent; the kernel writes `(null)` for a mask it never allocated."""
    return ctx.parsed(path, lambda text: parse("" if text == "(null)" else text))


def asked_by(ctx: Context, key: str) -> frozenset[int] | None:
    """The CPUs that the plan's KEY= token names; None when the plan has no such token."""
    for token in ctx.section("cpu_isolation").get("tokens") or []:
        name, _equals, value = str(token).partition("=")
        if name == key:
            return parse(value)
    return None


def _mask_check(
    ctx: Context, name: str, path: str, wanted: frozenset[int] | None, effect: str
) -> Iterator[Result]:
    identity = f"cpu_isolation.{name}"
    live = listed(ctx, path)
    if live is None:
        reason = "unsupported" if ctx.live else "not_available"
        if wanted and ctx.live:
            remedy = f"This kernel was built without it: leave it out of {ISOLATED}."
            yield judge(
                identity, "running", format_list(wanted), None, reason=reason, source=path, remedy=remedy
            )
        else:
            yield skipped(
                identity,
                "running",
                reason,
                expected=None if wanted is None else format_list(wanted),
                source=path,
                intended=bool(wanted),
            )
        return
    if wanted is None:
        yield Result(identity, "pass", "running", None, format_list(live), "", path, "", False)
        return
    yield _as_wanted(ctx, identity, live, wanted, effect, path)


def _as_wanted(
    ctx: Context, identity: str, live: frozenset[int], wanted: frozenset[int], effect: str, source: str
) -> Result:
    """Whether the LIVE CPUs are those WANTED, but for those that are not online."""
    return judge(
        identity,
        "running",
        format_list(wanted),
        _with_offline(ctx, live),
        good=_online(ctx, live) == wanted,
        reason=_why_not(ctx, effect, wanted),
        source=source,
        remedy=f"Run provision with {ISOLATED} and let it reboot; the boot.* results name the cause.",
    )


def _online(ctx: Context, cpus: frozenset[int]) -> frozenset[int]:
    """CPUS without those that are possible but not online: `N` on the command line names them too."""
    online = listed(ctx, f"{_CPU}/online")
    return cpus & online if online else cpus


def _with_offline(ctx: Context, cpus: frozenset[int]) -> str:
    """CPUS as a list, those that are not online set apart."""
    online = _online(ctx, cpus)
    if online == cpus:
        return format_list(cpus)
    return f"{format_list(online)} (and {format_list(cpus - online)}, not online)"


def _why_not(ctx: Context, effect: str, wanted: frozenset[int]) -> str:
    """Why a mask is not as wanted: staged for the next boot, refused by the kernel, or never asked for."""
    answers = {}
    for layer in ("running", "next_boot"):
        prediction = predicted(ctx, layer)
        answers[layer] = (
            prediction is not None and _online(ctx, getattr(prediction.isolation, effect)) == wanted
        )
    if answers["running"]:
        return "kernel_refused"
    return "pending_reboot" if answers["next_boot"] else "not_configured"


def check_isolated(ctx: Context) -> Iterator[Result]:
    """CPUs outside the scheduler's domains (isolcpus=domain)."""
    yield from _mask_check(ctx, "isolated", f"{_CPU}/isolated", _wanted(ctx), "domain")


def check_nohz_full(ctx: Context) -> Iterator[Result]:
    """CPUs whose tick stops while they run one task."""
    wanted = asked_by(ctx, "nohz_full")
    if wanted is None and not asked(ctx):
        path = f"{_CPU}/nohz_full"
        live = listed(ctx, path)
        if live is None:
            yield not_applicable("cpu_isolation.nohz_full", "running", "not_available", source=path)
            return
    yield from _mask_check(ctx, "nohz_full", f"{_CPU}/nohz_full", wanted, "nohz_full")


def check_rcu_nocbs(ctx: Context) -> Iterator[Result]:
    """CPUs whose RCU callbacks run elsewhere, by the running line: no kernel file shows them."""
    wanted = asked_by(ctx, "rcu_nocbs")
    if wanted is None:
        return
    prediction = predicted(ctx, "running")
    identity = "cpu_isolation.rcu_nocbs"
    if prediction is None:
        yield skipped(
            identity, "running", "not_available", expected=format_list(wanted), source="/proc/cmdline"
        )
        return
    yield _as_wanted(ctx, identity, prediction.isolation.rcu_nocbs, wanted, "rcu_nocbs", "/proc/cmdline")


def check_default_irq_affinity(ctx: Context) -> Iterator[Result]:
    """Where interrupts requested from now on may go; isolated CPUs among them are never good."""
    wanted = asked_by(ctx, "irqaffinity")
    identity = "cpu_isolation.default_irq_affinity"
    live = ctx.parsed(_IRQ, parse_mask)
    if live is None:
        expected = None if wanted is None else format_list(wanted)
        yield skipped(
            identity, "running", "not_available", expected=expected, source=_IRQ, intended=wanted is not None
        )
        return
    isolated = listed(ctx, f"{_CPU}/isolated") or frozenset()
    if wanted is None:
        yield judge(
            identity,
            "running",
            None,
            format_list(live),
            good=not live & isolated,
            reason="irq_on_isolated_cpu",
            source=_IRQ,
            remedy=f"New interrupts may land on isolated CPUs: manage them with {ISOLATED}.",
            intended=False,
        )
        return
    reason = _why_not(ctx, "irqaffinity", wanted)
    remedy = f"Run provision with {ISOLATED} and let it reboot."
    if reason == "kernel_refused":
        # irqaffinity= is taken wherever there is SMP, and root may write another mask at any time.
        mask = f"{sum(1 << cpu for cpu in wanted):x}"
        reason = "live_differs"
        remedy = f"Somebody wrote it since the boot, {ISOLATED} is in force: echo {mask} > {_IRQ}, or reboot."
    yield judge(
        identity,
        "running",
        format_list(wanted),
        format_list(live),
        reason=reason,
        source=_IRQ,
        remedy=remedy,
    )


def check_half_cores(ctx: Context) -> Iterator[Result]:
    """No isolated CPU may share its core with a housekeeping CPU (thread_siblings_list, any spelling)."""
    isolated = listed(ctx, f"{_CPU}/isolated")
    identity = "cpu_isolation.half_cores"
    if isolated is None:
        yield skipped(identity, "running", "not_available", source=f"{_CPU}/isolated", intended=asked(ctx))
        return
    missing: set[int] = set()
    unknown = []
    online = listed(ctx, f"{_CPU}/online")  # an offline CPU has no siblings
    for cpu in sorted(isolated & online if online else isolated):
        path = f"{_CPU}/cpu{cpu}/topology/thread_siblings_list"
        siblings = listed(ctx, path)
        if siblings is None or cpu not in siblings:  # every CPU is its own sibling
            unknown.append(path)
        else:
            missing |= siblings - isolated
    if unknown:
        yield skipped(
            identity,
            "running",
            "not_available",
            expected="",
            observed=unknown,
            source=unknown[0],
            intended=asked(ctx),
        )
        return
    split_on_purpose = bool((ctx.plan.get("topology") or {}).get("siblings_split"))
    yield judge(
        identity,
        "running",
        {"missing_siblings": ""},
        {"missing_siblings": format_list(missing)},
        good=not missing,
        reason="split_core",
        source=f"{_CPU}/isolated",
        remedy=f"Add the siblings to {ISOLATED}, or take their partners out: they share a core.",
        intended=asked(ctx),
        soft=split_on_purpose,
    )


CHECKS = (
    Check("cpu_isolation.isolated", ("running",), check_isolated, asked),
    Check("cpu_isolation.nohz_full", ("running",), check_nohz_full, asked),
    Check("cpu_isolation.rcu_nocbs", ("running",), check_rcu_nocbs, asked),
    Check("cpu_isolation.default_irq_affinity", ("running",), check_default_irq_affinity, asked),
    Check("cpu_isolation.half_cores", ("running",), check_half_cores, asked),
)
