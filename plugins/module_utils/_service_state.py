# SPDX-License-Identifier: Apache-2.0
"""Services of others that files of ours hold or change: what would change, and doing it.

`systemctl` is called through a function that the caller gives; without it (an offline tree) only files change.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ._files import atomic_write, list_dir, read_text, remove, resolve
from ._services import DROPIN_TEXT, TABLE, dropin, unit_file
from ._systemd import MARKER, UNIT_DIR
from ._systemd_units import Run, UnitError, show

_RUNS = ("active", "reloading", "refreshing", "activating")
_WORDS = ("inactive", "active")
_FOLDERS = (".wants", ".requires", ".upholds")


@dataclass(frozen=True)
class State:
    """What systemd says of a service; pid 0: it has no main process."""

    active: bool
    pid: int = 0
    stale: bool = False


@dataclass
class Step:
    """What one service needs. `files`: {path: (before, after)} of those that differ.

    active: whether it runs before and after; None where nobody can tell.
    """

    unit: str
    files: dict[str, tuple[str | None, str | None]]
    active: tuple[bool, bool] | None = None
    restart: bool = False
    reload: bool = False

    def changes(self) -> list[dict[str, Any]]:
        """The change set as `{resource, before, after}`."""
        rows: list[dict[str, Any]] = [
            {"resource": f"file:{path}", "before": before, "after": after}
            for path, (before, after) in self.files.items()
        ]
        if self.active and self.active[0] != self.active[1]:
            before, after = (_WORDS[flag] for flag in self.active)
            rows.append({"resource": f"unit:{self.unit}", "before": before, "after": after})
        elif self.restart:
            rows.append(
                {
                    "resource": f"unit:{self.unit}",
                    "before": "active, old settings",
                    "after": "active, new settings",
                }
            )
        return rows


@dataclass
class Plan:
    """All steps of one call."""

    root: str
    steps: list[Step] = field(default_factory=list)

    @property
    def changes(self) -> list[dict[str, Any]]:
        """The change set, sorted."""
        rows = [row for step in self.steps for row in step.changes()]
        return sorted(rows, key=lambda row: str(row["resource"]))

    @property
    def due(self) -> bool:
        """Whether there is anything to do: a change, or a reload that a killed run has left."""
        return any(step.changes() or step.reload for step in self.steps)

    @property
    def diff(self) -> list[dict[str, str]]:
        """The files before and after."""
        return [
            {"before_header": path, "after_header": path, "before": before or "", "after": after or ""}
            for step in self.steps
            for path, (before, after) in sorted(step.files.items())
        ]


def differences(
    root: str, unit: str, wanted: Mapping[str, str | None]
) -> dict[str, tuple[str | None, str | None]]:
    """{path: (before, after)} of the files that differ below ROOT. Raises UnitError `foreign_file`, OSError."""
    found: dict[str, tuple[str | None, str | None]] = {}
    for path, after in wanted.items():
        before = read_text(root, path)
        if before == after:
            continue
        if before is not None and before.split("\n", 1)[0].rstrip() != MARKER:
            if after is None:
                continue
            text = f"{path} exists and is not ours: its first line is not {MARKER!r}. Move it away first."
            raise UnitError("foreign_file", text, unit)
        found[path] = (before, after)
    return found


def read_states(run: Run, units: Sequence[str]) -> dict[str, State]:
    """What systemd says of UNITS. Raises UnitError `systemctl_failed`."""
    return {
        unit: State(
            block.get("ActiveState") in _RUNS,
            int(block.get("MainPID") or 0),
            block.get("NeedDaemonReload") == "yes",
        )
        for unit, block in show(run, units, "ActiveState,MainPID,NeedDaemonReload").items()
    }


def is_enabled(root: str, unit: str) -> bool:
    """Whether a link of the operator's directory starts UNIT at boot. Raises OSError."""
    for entry in list_dir(root, UNIT_DIR) or []:
        folder = f"{UNIT_DIR}/{entry}"
        if entry.endswith(_FOLDERS) and os.path.islink(os.path.join(resolve(root, folder), unit)):
            return True
    return False


def is_active(root: str, unit: str) -> bool:
    """Whether UNIT runs, by the mark that systemd keeps of each start."""
    return os.path.islink(os.path.join(resolve(root, "/run/systemd/units"), f"invocation:{unit}"))


def hold_plan(
    root: str, stop: Iterable[str], found: Mapping[str, Mapping[str, Any]], run: Run | None
) -> Plan:
    """Plan that the services STOP of the table do not run, and that those held before are as FOUND; reads only.

    FOUND: {unit: {active: bool, ...}}, from before they were held. Raises UnitError (`not_in_table`,
    `foreign_file`, `systemctl_failed`), OSError.
    """
    wanted = set(stop)
    for unit in sorted(wanted - set(TABLE)):
        raise UnitError("not_in_table", f"{unit} is none of {', '.join(TABLE)}: it is not stopped", unit)
    installed = [unit for unit in TABLE if unit_file(root, unit) is not None]
    states = read_states(run, installed) if run and installed else {}
    plan = Plan(root)
    for unit in TABLE:
        hold = unit in wanted and unit in installed
        files = differences(root, unit, {dropin(unit): DROPIN_TEXT if hold else None})
        step = Step(unit, files)
        state = states.get(unit)
        if state:
            again = bool(files) and bool(found.get(unit, {}).get("active"))
            step.active = (state.active, False if hold else state.active or again)
            step.reload = state.stale
        plan.steps.append(step)
    return plan


def apply_plan(plan: Plan, run: Run | None) -> None:
    """Write the files, reload once, then stop, restart and start. Raises UnitError, OSError."""
    for step in plan.steps:
        for path, (_before, after) in step.files.items():
            real = resolve(plan.root, path)
            if after is not None:
                atomic_write(real, after)
                continue
            remove(real)
            _remove_empty(os.path.dirname(real))
    if not run:
        return
    changed = [step for step in plan.steps if step.changes()]
    if any(step.files or step.reload for step in plan.steps):
        _call(run, "", "daemon-reload")
    for step in changed:
        if step.active == (True, False):
            _call(run, step.unit, "stop", "--", step.unit)
        elif step.active == (False, True):
            _call(run, step.unit, "start", "--", step.unit)
        elif step.restart:
            _call(run, step.unit, "restart", "--", step.unit)
    _check(run, [step for step in changed if step.active == (True, False)])


def _call(run: Run, unit: str, *arguments: str) -> None:
    code, out, err = run(arguments)
    if code != 0:
        text = f"systemctl {' '.join(arguments)}: {(err or out).strip()}"
        raise UnitError("unit_failed" if unit else "systemctl_failed", text, unit)


def _check(run: Run, steps: Sequence[Step]) -> None:
    states = read_states(run, [step.unit for step in steps]) if steps else {}
    for unit, state in states.items():
        if state.active:
            raise UnitError("unit_failed", f"{unit} runs on after it was stopped", unit)


def _remove_empty(path: str) -> None:
    try:
        os.rmdir(path)
    except OSError:  # somebody else's files are in it
        return
