# SPDX-License-Identifier: Apache-2.0
"""Whether irqbalance stays off the isolated CPUs: the list it is given, read as it reads it.

irqbalance(1): IRQBALANCE_BANNED_CPULIST, else the mask IRQBALANCE_BANNED_CPUS; without either it leaves the
CPUs of isolcpus= and nohz_full= alone by itself. A list it cannot read bans nothing, and it knows neither `N`
nor `all`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from . import _env_file, _irqbalance
from ._checks_host import IRQBALANCE, ISOLATED, REMEDIES, Check, Context, Unreadable
from ._checks_units import beside
from ._cpulist import CpuListError, format_list, parse, parse_mask
from ._irqbalance import DROPIN, ENVIRONMENT
from ._systemd import is_ours
from ._verdict import Result, judge, not_applicable, skipped

_FILES = ("/etc/default/irqbalance", "/etc/sysconfig/irqbalance", "/etc/irqbalance.env")
_IDENTITY = "cpu_isolation.irqbalance"
_MODE = "cpu_isolation.irqbalance.mode"


def _wanted(ctx: Context) -> frozenset[int]:
    return parse(str(ctx.section("cpu_isolation").get("isolated") or ""))


def _asked(ctx: Context) -> bool:
    return bool(_wanted(ctx))


def check_banned(ctx: Context) -> Iterator[Result]:
    """The CPUs that irqbalance is told to leave alone, against those of the plan."""
    found = _setting(ctx)
    if _mode(ctx) == "off" or found is None:
        yield not_applicable(_IDENTITY, "configured", "no_setting" if found is None else "switched_off")
        return
    name, value, source = found
    wanted = _wanted(ctx)
    remedy = f"Mend {name}, or set {ISOLATED} and {IRQBALANCE}: ban_isolated, which overrides it."
    try:
        banned = parse(value, aliases=()) if name.endswith("LIST") else parse_mask(value or "0")
    except CpuListError as exc:
        yield judge(
            _IDENTITY,
            "configured",
            format_list(wanted) or None,
            value,
            good=False,
            reason=exc.reason,
            source=source,
            remedy=remedy,
            intended=bool(wanted),
        )
        return
    yield judge(
        _IDENTITY,
        "configured",
        format_list(wanted) or None,
        format_list(banned),
        good=not wanted - banned,
        reason="irq_on_isolated_cpu",
        source=source,
        remedy=remedy,
        intended=bool(wanted),
    )


def _setting(ctx: Context) -> tuple[str, str, str] | None:
    """(name, value, file:line) of the setting that counts; None when irqbalance decides by itself."""
    values: dict[str, tuple[str, str]] = {}
    ours = (ENVIRONMENT,) if ctx.text(DROPIN) is not None else ()
    for path in (*_FILES, *ours):
        for name, value, number in _env_file.assignments(ctx.raw(path) or ""):
            values[name] = (value, f"{path}:{number}")
    for name in ("IRQBALANCE_BANNED_CPULIST", "IRQBALANCE_BANNED_CPUS"):
        if values.get(name, ("", ""))[0]:
            return (name, *values[name])
    return None


def _mode(ctx: Context) -> str:
    return str(ctx.section("cpu_isolation").get("irqbalance") or "keep")


def _variables(ctx: Context) -> list[str]:
    return list(ctx.section("cpu_isolation").get("variables") or ())


def check_mode(ctx: Context) -> Iterator[Result]:
    """irqbalance as asked for: our files, and the environment of the daemon that runs."""
    mode, identity = _mode(ctx), _MODE
    if mode == "keep":
        yield from _left(ctx)
        return
    if not _irqbalance.installed(ctx.root):
        if ctx.unrecorded("/usr/lib/systemd/system", "/lib/systemd/system"):
            yield skipped(
                identity, "configured", "not_recorded", expected=mode, source="/usr/lib/systemd/system"
            )
        else:
            yield not_applicable(identity, "configured", "not_installed")
        return
    remedy = f"Run provision with {IRQBALANCE}: {mode}."
    wanted = _irqbalance.wanted_files(mode, str(ctx.section("cpu_isolation").get("isolated") or ""))
    for path, text in sorted(wanted.items()):
        name = f"cpu_isolation.irqbalance.{'dropin' if path == DROPIN else 'environment'}"
        try:
            found = ctx.text(path)
        except Unreadable as exc:
            yield skipped(name, "configured", exc.reason, source=path, remedy=REMEDIES.get(exc.reason, ""))
            continue
        yield judge(
            name,
            "configured",
            "absent" if text is None else "as planned",
            "absent" if found is None else "as planned" if text and found == text.strip() else "different",
            reason="not_configured" if found is None else "changed_by_hand",
            source=path,
            remedy=remedy,
        )
    yield from _overridden(ctx, wanted[DROPIN], remedy)
    yield from _running(ctx, "cpu_isolation.irqbalance.running", mode, remedy)


def _overridden(ctx: Context, ours: str | None, remedy: str) -> Iterator[Result]:
    """Drop-ins that are read after ours and take its lines away with an empty assignment."""
    keys = set(re.findall(r"(?m)^(\w+)=", ours or ""))
    name = DROPIN.rpartition("/")[2]
    for path, text in beside(ctx, _irqbalance.SERVICE):
        for number, line in enumerate(text.splitlines(), 1):
            key, equals, value = (part.strip() for part in line.partition("="))
            if key in keys and equals and not value and path.rpartition("/")[2] > name:
                yield judge(
                    "cpu_isolation.irqbalance.overridden",
                    "configured",
                    None,
                    line.strip(),
                    reason="overridden_by",
                    source=f"{path}:{number}",
                    remedy=f"Take it out there. {remedy}",
                )
                return


def _left(ctx: Context) -> Iterator[Result]:
    """Files of ours on a host whose irqbalance is to be as it was."""
    for path in (DROPIN, ENVIRONMENT):
        found = ctx.text(path)
        if found is not None and is_ours(found):
            yield judge(
                f"cpu_isolation.irqbalance.{'dropin' if path == DROPIN else 'environment'}",
                "configured",
                "absent",
                "present",
                reason="not_removed",
                source=path,
                remedy=f"Run provision with {IRQBALANCE}: keep, or absent.",
                intended=(ctx.plan.get("sections") or {}).get("cpu_isolation") is not None,
            )


def _running(ctx: Context, identity: str, mode: str, remedy: str) -> Iterator[Result]:
    """Whether the daemon runs, and with our list, by its control group and its environment."""
    there = next((folder for folder in _irqbalance.SLICES if ctx.names(folder) is not None), None)
    if there is None:
        yield skipped(identity, "running", "not_available", source=_irqbalance.SLICES[0], intended=ctx.live)
        return
    source = f"{there}/{_irqbalance.SERVICE}/cgroup.procs"
    pids = (ctx.text(source) or "").split()
    if mode == "off":
        observed = "running" if pids else "stopped"
        yield judge(identity, "running", "stopped", observed, reason="running", source=source, remedy=remedy)
        return
    isolated = _wanted(ctx)
    for pid in pids[:1]:
        path = f"/proc/{pid}/environ"
        banned = _irqbalance.banned_by(ctx.raw(path)) or frozenset()
        yield judge(
            identity,
            "running",
            {"banned": format_list(isolated)},
            {"banned": format_list(banned)},
            good=isolated <= banned,
            reason="wrong_value",
            source=path,
            remedy=remedy,
        )
    if not pids:
        yield Result(identity, "pass", "running", "not on isolated CPUs", "stopped", "", source)


CHECKS = (
    Check(_IDENTITY, ("configured",), check_banned, _asked),
    Check(_MODE, ("configured", "running"), check_mode, lambda ctx: "irqbalance" in _variables(ctx)),
)
