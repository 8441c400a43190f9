# SPDX-License-Identifier: Apache-2.0
"""Services that fight settings of ours: which run, what of ours they override, and whether those held do not run."""

from __future__ import annotations

from collections.abc import Iterator

from . import _service_state, _services
from ._checks_host import SERVICES, Check, Context
from ._intent import PREFIX
from ._verdict import Result, judge, skipped


def _mode(ctx: Context) -> str | None:
    found = ctx.section("services").get("mode")
    return str(found) if found else None


def _short(unit: str) -> str:
    return unit.rpartition(".")[0]


def check_fights(ctx: Context) -> Iterator[Result]:
    """Each service of the table that sets what contradicts the plan, and is enabled or runs."""
    found: dict[str, list[_services.Fight]] = {}
    for fight in _services.fights(_services.read_claims(ctx.root), ctx.plan.get("sections") or {}):
        found.setdefault(fight.claim.unit, []).append(fight)
    held = _services.held(ctx.root)
    mode = _mode(ctx)
    if _not_recorded(ctx):
        yield skipped(
            "services.conflicts",
            "configured",
            "not_recorded",
            source=_services.UNIT_DIRS[0],
            intended=mode is not None,
        )
        return
    running = []
    for unit, rows in found.items():
        states = _states(ctx, unit)
        if unit in held or not states:
            continue
        running.append(unit)
        variables = ", ".join(dict.fromkeys(PREFIX + row.variable for row in rows))
        yield Result(
            f"services.{_short(unit)}",
            "fail" if mode == "stop" else "warn",
            "configured",
            f"nothing against {variables}",
            {"state": states, "overrides": [row.text for row in rows]},
            "foreign_owner",
            rows[0].claim.source,
            _remedy(unit, variables, mode),
            mode is not None,
        )
    if mode is not None and not running:
        yield Result("services.conflicts", "pass", "configured", [], [], source=_services.UNIT_DIRS[0])


def _not_recorded(ctx: Context) -> bool:
    """Whether a recording cannot tell: no unit directory, or tuned's settings without its unit."""
    if ctx.live:
        return False
    tuned = ctx.text("/etc/tuned/active_profile") and _services.unit_file(ctx.root, "tuned.service") is None
    return bool(tuned) or ctx.unrecorded(*_services.UNIT_DIRS)


def _remedy(unit: str, variables: str, mode: str | None) -> str:
    if mode == "stop":
        return f"Run provision with {SERVICES}: stop, which keeps {unit} from running."
    why = f"{unit} {_services.TABLE[unit]}"
    return f"Take it out there, or set {SERVICES} to stop: {why}, against {variables}."


def _states(ctx: Context, unit: str) -> str:
    """In words whether UNIT runs, and will at boot; empty when neither."""
    words = [
        word
        for word, holds in (
            ("enabled", _service_state.is_enabled(ctx.root, unit)),
            ("active", _service_state.is_active(ctx.root, unit)),
        )
        if holds
    ]
    return ", ".join(words)


def check_held(ctx: Context) -> Iterator[Result]:
    """What the plan stops has our drop-in and does not run; what it does not stop has none."""
    stop = [str(unit) for unit in ctx.section("services").get("stop") or []]
    for unit in _services.TABLE:
        path = _services.dropin(unit)
        text = ctx.raw(path)
        wanted = unit in stop and _services.unit_file(ctx.root, unit) is not None
        if text is None and not wanted:
            continue
        yield judge(
            f"services.{_short(unit)}.dropin",
            "configured",
            "as planned" if wanted else None,
            None if text is None else "as planned" if text == _services.DROPIN_TEXT else "different",
            reason="not_removed" if not wanted else "not_configured" if text is None else "changed_by_hand",
            source=path,
            remedy=f"Run provision with {SERVICES} as it is, absent included.",
            intended=(ctx.plan.get("sections") or {}).get("services") is not None,
        )
        if wanted:
            active = _service_state.is_active(ctx.root, unit)
            yield judge(
                f"services.{_short(unit)}.running",
                "running",
                "stopped",
                "running" if active else "stopped",
                reason="running",
                source=path,
                remedy=f"Run provision with {SERVICES}: stop.",
            )


CHECKS = (
    Check("services", ("configured",), check_fights, lambda ctx: _mode(ctx) is not None),
    Check(
        "services.held",
        ("configured", "running"),
        check_held,
        lambda ctx: bool(ctx.section("services").get("stop")),
    ),
)
