# SPDX-License-Identifier: Apache-2.0
"""Whether irqbalance stays off the isolated CPUs: the list it is given, read as it reads it.

irqbalance(1): IRQBALANCE_BANNED_CPULIST, else the mask IRQBALANCE_BANNED_CPUS; without either it leaves the
CPUs of isolcpus= and nohz_full= alone by itself. A list it cannot read bans nothing, and it knows neither `N`
nor `all`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ._checks_host import ISOLATED, Check, Context
from ._cpulist import CpuListError, format_list, parse, parse_mask
from ._irqbalance import DROPIN, ENVIRONMENT
from ._verdict import Result, judge, not_applicable

_FILES = ("/etc/default/irqbalance", "/etc/sysconfig/irqbalance", "/etc/irqbalance.env")
_SET = re.compile(r"^\s*(IRQBALANCE_BANNED_CPULIST|IRQBALANCE_BANNED_CPUS)=(.*)$")
_IDENTITY = "cpu_isolation.irqbalance"


def _wanted(ctx: Context) -> frozenset[int]:
    return parse(str(ctx.section("cpu_isolation").get("isolated") or ""))


def _asked(ctx: Context) -> bool:
    return bool(_wanted(ctx))


def check_banned(ctx: Context) -> Iterator[Result]:
    """The CPUs that irqbalance is told to leave alone, against those of the plan."""
    found = _setting(ctx)
    if found is None:
        yield not_applicable(_IDENTITY, "configured", "no_setting")
        return
    name, value, source = found
    wanted = _wanted(ctx)
    remedy = f"Mend {name}, or set {ISOLATED} and firsttouch_irqbalance: ban_isolated, which overrides it."
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
        for number, line in enumerate((ctx.text(path) or "").splitlines(), 1):
            match = _SET.match(line)
            if match:
                values[match.group(1)] = (match.group(2).strip().strip("\"'"), f"{path}:{number}")
    for name in ("IRQBALANCE_BANNED_CPULIST", "IRQBALANCE_BANNED_CPUS"):
        if values.get(name, ("", ""))[0]:
            return (name, *values[name])
    return None


CHECKS = (Check(_IDENTITY, ("configured",), check_banned, _asked),)
