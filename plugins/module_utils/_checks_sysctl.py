# SPDX-License-Identifier: Apache-2.0
"""Sysctls: the live value, who wins at the next boot, and the watermark distance they are there for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from . import _services, _sysctl, _sysctl_foreign, _sysctl_judge, _tmpfiles, _watermark
from ._checks_host import (
    EXTRA_FREE,
    HUGEPAGES,
    NUMA_BALANCING,
    RT_RUNTIME,
    VM_SYSCTLS,
    Check,
    Context,
    Unreadable,
)
from ._checks_units import link_target
from ._verdict import Result, judge, skipped

DROPIN = "/etc/sysctl.d/zz-firsttouch.conf"
# The variable that usually asks for a key that no section of the plan holds any more.
_USUAL = {
    "kernel.sched_rt_runtime_us": RT_RUNTIME,
    "kernel.numa_balancing": NUMA_BALANCING,
    "vm.watermark_scale_factor": EXTRA_FREE,
}


def _planned(ctx: Context) -> dict[str, str]:
    """{dotted key: value} of the plan's managed sysctls."""
    found: dict[str, str] = {}
    for name in ctx.plan.get("sections") or {}:
        found.update(
            {str(key): str(value) for key, value in (ctx.section(name).get("sysctls") or {}).items()}
        )
    return {**{str(k): str(v) for k, v in (ctx.plan.get("sysctls") or {}).items()}, **found}


def _any_planned(ctx: Context) -> bool:
    return bool(_planned(ctx))


def _variable(ctx: Context, key: str) -> str:
    if key in (ctx.section("rt_scheduling").get("sysctls") or {}):
        return RT_RUNTIME
    if key == "kernel.numa_balancing":
        return NUMA_BALANCING
    extra = ctx.section("vm_sysctls").get("extra_free")
    return EXTRA_FREE if extra and key == "vm.watermark_scale_factor" else VM_SYSCTLS


def _identity(ctx: Context, kind: str, key: str) -> str:
    concern = "rt_scheduling" if _variable(ctx, key) == RT_RUNTIME else "vm_sysctls"
    return f"{concern}.{kind}.{key}"


def resolution(ctx: Context) -> _sysctl.Resolution:
    """All sysctl files of the host, read once."""
    found: _sysctl.Resolution = ctx.keep("sysctls", lambda: _sysctl.resolve_sysctls(ctx.root))
    return found


def _report(ctx: Context) -> dict[str, dict[str, Any]]:
    """{dotted key: facts and verdict} of the plan's sysctls."""

    def read() -> dict[str, dict[str, Any]]:
        want = {_sysctl.normalize(key): value for key, value in _planned(ctx).items()}
        return _sysctl_judge.report(resolution(ctx), want, foreign=_foreign(ctx)[0]) if want else {}

    found: dict[str, dict[str, Any]] = ctx.keep("sysctl_report", read)
    return found


def _foreign(ctx: Context) -> tuple[list[_sysctl_foreign.Foreign], dict[str, OSError]]:
    """Who else sets sysctls, and the files and folders that hide whether they do."""

    def read() -> tuple[list[_sysctl_foreign.Foreign], dict[str, OSError]]:
        hidden: dict[str, OSError] = {}
        return _sysctl_foreign.writers(ctx.root, hidden), hidden

    found: tuple[list[_sysctl_foreign.Foreign], dict[str, OSError]] = ctx.keep("sysctl_foreign", read)
    return found


def check_live(ctx: Context) -> Iterator[Result]:
    """The running value of every sysctl of the plan; a key the kernel lacks is wrong."""
    for key, wanted in sorted(_planned(ctx).items()):
        live = _sysctl.read_live(ctx.root, key)
        identity, variable = _identity(ctx, "sysctl", key), _variable(ctx, key)
        path = "/proc/sys/" + _sysctl.normalize(key)
        if live.state == "unknown_key":
            remedy = f"This kernel has no {key}: remove it from {variable}."
            yield judge(identity, "running", wanted, None, reason="unknown_key", source=path, remedy=remedy)
        elif live.value is None:
            yield skipped(identity, "running", live.state, expected=wanted, source=path)
        else:
            good = _sysctl.same_value(wanted, live.value)
            reason, source = ("", path) if good else _blame(ctx, key)
            yield judge(
                identity,
                "running",
                wanted,
                live.value,
                good=good,
                reason=reason,
                source=source or path,
                remedy=f"Run provision with {variable}; it takes effect without a reboot.",
            )


def _blame(ctx: Context, key: str) -> tuple[str, str]:
    """(reason, FILE or FILE:LINE) for a live value that is not the wanted one."""
    facts = _report(ctx).get(_sysctl.dotted(_sysctl.normalize(key)), {})
    if facts.get("verdict") != "fail":
        return "wrong_value", ""
    source = str(facts.get("file") or "")
    if source and source == facts.get("winner"):
        source = f"{source}:{facts['line']}"
    return str(facts["reason"]), source


def _at(line: _sysctl.Assignment) -> str:
    return f"{line.real}:{line.line}"


def check_winner(ctx: Context) -> Iterator[Result]:
    """What systemd-sysctl leaves at the next boot, and `sysctl --system` now, with file and line."""
    for key, wanted in sorted(_planned(ctx).items()):
        files, slash = resolution(ctx), _sysctl.normalize(key)
        identity, variable = _identity(ctx, "next_boot", key), _variable(ctx, key)
        if ctx.unrecorded(*_sysctl.DIRECTORIES):
            yield skipped(
                identity, "next_boot", "not_recorded", expected=wanted, source=_sysctl.DIRECTORIES[0]
            )
            continue
        if files.unreadable:
            path, why = min(files.unreadable.items())
            yield skipped(identity, "next_boot", why.replace(" ", "_"), expected=wanted, source=path)
            continue
        boot = _sysctl_judge.effect(files, slash)
        last = boot.zeroed_by or boot.by
        reason = "counterpart_set" if boot.zeroed_by else "overridden_by" if last else "not_configured"
        source = _at(last) if last else DROPIN
        remedy = f"Take the line out of that file: {variable} owns {key}."
        if reason == "not_configured":
            remedy = f"Run provision with {variable}: no file sets {key}."
            if link_target(ctx, DROPIN) is not None:
                reason, remedy = "masked", f"Delete that link, then run provision with {variable}: it hides our file."
        yield judge(
            identity,
            "next_boot",
            wanted,
            boot.value,
            good=boot.value is not None and _sysctl.same_value(wanted, boot.value),
            reason=reason,
            source=source,
            remedy=remedy,
        )
        procps = _sysctl_judge.effect(files, slash, procps=True)
        last = procps.zeroed_by or procps.by
        if last and procps.value is not None and not _sysctl.same_value(wanted, procps.value):
            yield judge(
                _identity(ctx, "procps", key),
                "configured",
                wanted,
                procps.value,
                reason="procps_overrides",
                source=_at(last),
                remedy=f"`sysctl --system` would undo {variable}: take the line out of that file.",
                soft=True,
            )
        yield from _other_writers(ctx, slash, wanted, variable)


def _other_writers(ctx: Context, slash: str, wanted: str, variable: str) -> Iterator[Result]:
    """Daemons that set the key after systemd-sysctl; the command line, read before it, and a held tuned are none.

    A file that cannot be read leaves only this open: what the sysctl files come to is told all the same. Another
    writer is no more than a warning, so that none can be ruled out is not what the plan asks for either.
    """
    name = _sysctl.dotted(slash)
    try:
        held = _services.held(ctx.root)
    except OSError as exc:
        why = Unreadable(str(exc.filename), exc)
        identity = _identity(ctx, "other_writers", name)
        yield skipped(identity, "configured", why.reason, source=why.path, intended=False)
        return
    found, hidden = _foreign(ctx)
    blamed = set()
    for item in found:
        late = item.writer != "kernel_command_line" and f"{item.writer}.service" not in held
        if late and item.key == slash and not _sysctl.same_value(wanted, item.value):
            blamed.add(item.writer)
            yield judge(
                _identity(ctx, item.writer, name),
                "configured",
                wanted,
                item.value,
                reason="foreign_owner",
                source=f"{item.file}:{item.line}",
                remedy=f"{item.writer} sets it too: take it out there, {variable} owns it.",
                soft=True,
            )
    gaps = {"tmpfiles" if path.startswith(_tmpfiles.DIRS) else "other_writers": path for path in sorted(hidden)[::-1]}
    for kind, path in sorted(gaps.items()):
        if kind not in blamed:
            reason = Unreadable(path, hidden[path]).reason
            yield skipped(_identity(ctx, kind, name), "configured", reason, source=path, intended=False)


def check_pool_keys(ctx: Context) -> Iterator[Result]:
    """vm.nr_hugepages* in a file changes the boot reservation, and counts pages of the default size only."""
    intended = bool(ctx.section("hugepages").get("pools"))
    for finding in _sysctl_judge.pool_findings(resolution(ctx), *_sysctl_judge.memory_facts(ctx.root)):
        yield judge(
            f"hugepages.sysctl.{finding['key']}",
            "next_boot",
            None,
            finding["value"],
            reason=finding["reason"],
            source=f"{finding['file']}:{finding['line']}",
            remedy=f"Take the line out of that file: {HUGEPAGES} owns the pools.",
            intended=intended,
        )


def check_removed_keys(ctx: Context) -> Iterator[Result]:
    """Keys that were ours and are not asked for any more must be gone from our file."""
    for key in ctx.left_over("sysctls"):
        lines = [line for line in resolution(ctx).definers(_sysctl.normalize(key)) if line.real == DROPIN]
        variable = _USUAL.get(key, VM_SYSCTLS)
        yield judge(
            f"vm_sysctls.removed.{key}",
            "configured",
            None,
            lines[-1].value if lines else None,
            reason="not_removed",
            source=_at(lines[-1]) if lines else DROPIN,
            remedy=f"Run provision with {variable} as it is, absent included.",
        )


def _asked_extra(ctx: Context) -> Mapping[str, Any]:
    found = ctx.section("vm_sysctls").get("extra_free")
    return found if isinstance(found, Mapping) else {}


def check_watermark(ctx: Context) -> Iterator[Result]:
    """The live sum over zones of (low - min) in bytes: what vm.extra_free_kbytes used to mean."""
    asked = _asked_extra(ctx).get("asked_bytes")
    if asked is None:
        return
    zones = _watermark.read_zones(ctx.root)
    identity = "vm_sysctls.watermark_distance"
    if not zones:
        yield skipped(identity, "running", "not_available", expected=int(asked), source="/proc/zoneinfo")
        return
    live = _watermark.distance(zones, ctx.facts().page_kb * 1024)
    yield judge(
        identity,
        "running",
        {"at_least_bytes": int(asked)},
        {"bytes": live},
        good=live >= int(asked),
        reason="watermark_short",
        source="/proc/zoneinfo",
        remedy=f"Run provision with {EXTRA_FREE}: memory changed since the factor was computed.",
    )


CHECKS = (
    Check("vm_sysctls.live", ("running",), check_live, _any_planned, ("rt_scheduling",)),
    Check("vm_sysctls.winner", ("next_boot", "configured"), check_winner, _any_planned, ("rt_scheduling",)),
    Check(
        "vm_sysctls.removed", ("configured",), check_removed_keys, lambda ctx: bool(ctx.left_over("sysctls"))
    ),
    Check("hugepages.sysctl", ("next_boot",), check_pool_keys, lambda ctx: bool(ctx.section("hugepages"))),
    Check(
        "vm_sysctls.watermark_distance", ("running",), check_watermark, lambda ctx: bool(_asked_extra(ctx))
    ),
)
