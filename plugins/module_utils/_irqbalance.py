# SPDX-License-Identifier: Apache-2.0
"""What irqbalance may do on a host with isolated CPUs, as files of ours beside the distribution's.

A drop-in of irqbalance.service names an environment file of ours. systemd.exec(5): of several EnvironmentFile= the
later one wins, so that a list left in /etc/default or /etc/sysconfig cannot override ours, and the distribution's stay
untouched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ._cpulist import CpuListError, parse
from ._service_state import Plan, State, Step, differences, is_enabled, read_states
from ._services import DROPIN_TEXT, IRQBALANCE_MODES, unit_file
from ._systemd import MARKER
from ._systemd_units import Run

SERVICE = "irqbalance.service"
DROPIN = f"/etc/systemd/system/{SERVICE}.d/zz-firsttouch.conf"
ENVIRONMENT = "/etc/firsttouch/irqbalance.env"
# The services of systemd, where the unified hierarchy is mounted and where only its own of version 1 is.
SLICES = ("/sys/fs/cgroup/system.slice", "/sys/fs/cgroup/systemd/system.slice")
MODES = IRQBALANCE_MODES
_LIST = "IRQBALANCE_BANNED_CPULIST"


def installed(root: str) -> bool:
    """Whether the host at ROOT has irqbalance.service, and it is not masked."""
    return unit_file(root, SERVICE) is not None


def wanted_files(mode: str, isolated: str) -> dict[str, str | None]:
    """{path: text, or None for absent} of MODE with the CPU list ISOLATED. Raises ValueError."""
    if mode not in MODES:
        raise ValueError(f"{mode!r} is not one of {', '.join(MODES)}")
    if mode == "off":
        return {DROPIN: DROPIN_TEXT, ENVIRONMENT: None}
    if mode == "keep" or not parse(isolated):
        return {DROPIN: None, ENVIRONMENT: None}
    return {
        DROPIN: f"{MARKER}\n[Service]\nEnvironmentFile={ENVIRONMENT}\n",
        ENVIRONMENT: f"{MARKER}\n{_LIST}={isolated}\n",
    }


def banned_by(environ: str | None) -> frozenset[int] | None:
    """The CPUs of our list in a process environment; None when it has none, or one that cannot be read."""
    match = re.search(rf"(?:^|\0){_LIST}=([^\0]*)", environ or "")
    try:
        return parse(match.group(1)) if match else None
    except CpuListError:
        return None


def make_plan(
    root: str,
    mode: str,
    isolated: str,
    found: Mapping[str, Any],
    run: Run | None,
    environ: Callable[[int], str | None],
) -> Plan:
    """Plan MODE with the CPU list ISOLATED below ROOT; reads only.

    FOUND is what the service was before it was ours, ENVIRON gives the environment of a process. Raises ValueError
    for a bad list, UnitError (`foreign_file`, `systemctl_failed`), OSError.
    """
    there = installed(root)
    wanted = wanted_files(mode if there else "keep", isolated)
    step = Step(SERVICE, differences(root, SERVICE, wanted))
    state = read_states(run, [SERVICE])[SERVICE] if run and there else None
    if state:
        banned = parse(isolated) if wanted[ENVIRONMENT] else None
        _plan_run(step, state, mode == "off", banned, environ)
        was_off = (step.files.get(DROPIN) or (None,))[0] == DROPIN_TEXT
        if was_off and not state.active and mode != "off":
            step.active = (False, bool(found.get("active", is_enabled(root, SERVICE))))
    return Plan(root, [step])


def _plan_run(
    step: Step, state: State, off: bool, banned: frozenset[int] | None, environ: Callable[[int], str | None]
) -> None:
    """What becomes of the running daemon: it reads its list, BANNED where there is one, at its start only."""
    step.reload = state.stale
    step.active = (state.active, state.active and not off)
    if state.active and not off:
        has = banned_by(environ(state.pid)) if state.pid else None
        step.restart = bool(step.files) or (banned is not None and has != banned)
