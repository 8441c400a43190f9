# SPDX-License-Identifier: Apache-2.0
"""Bring a set of owned systemd units to a wanted state: what would change, and doing it.

Only files that carry the marker of this collection are replaced or removed. `systemctl` is called through a
function that the caller gives, so that nothing here depends on how commands are run; without it (an offline
tree) only files and links are handled.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ._files import atomic_write, fsync_dir, list_dir, make_dirs, read_text, remove, resolve
from ._systemd import UNIT_DIR, check_unit_name, install_links, is_ours, with_marker

Run = Callable[[Sequence[str]], "tuple[int, str, str]"]
_FOLDERS = (".wants", ".requires", ".upholds")
_VENDOR_DIRS = tuple(f"{top}/systemd/system" for top in ("/run", "/usr/local/lib", "/usr/lib", "/lib"))
_ACTIVE = ("active", "reloading", "refreshing")
_STATUS_LINES = 12
_SHOWN = "Id,ActiveState,SubState,LoadState,NeedDaemonReload"


class UnitError(ValueError):
    """Why a unit cannot be brought to its state; `reason` is a code, `unit` its name."""

    def __init__(self, reason: str, text: str, unit: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.unit = unit


@dataclass(frozen=True)
class Wanted:
    """One unit as it should be. None leaves the enablement or the state alone; restart: what it reads has changed."""

    name: str
    content: str
    enabled: bool | None = None
    state: str | None = None
    restart_on_change: bool = False
    restart: bool = False


@dataclass
class Step:
    """What one unit needs. `links`: {path: target} to make; `unlink`: link paths to remove."""

    name: str
    before: str | None
    after: str | None
    links: dict[str, str] = field(default_factory=dict)
    unlink: list[str] = field(default_factory=list)
    enabled: tuple[bool, bool] | None = None
    active: tuple[bool, bool] | None = None
    restart: bool = False
    stale: bool = False
    failed: bool = False

    @property
    def path(self) -> str:
        return f"{UNIT_DIR}/{self.name}"

    @property
    def changes_files(self) -> bool:
        return self.before != self.after or bool(self.links or self.unlink)

    def changes(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        if self.before != self.after:
            rows.append({"resource": f"file:{self.path}", "before": self.before, "after": self.after})
        words = []
        for which in (0, 1):
            enabled = "" if self.enabled is None else ("disabled", "enabled")[self.enabled[which]]
            active = "" if self.active is None else ("inactive", "active")[self.active[which]]
            words.append(", ".join(word for word in (enabled, active) if word))
        if words[0] != words[1]:
            rows.append({"resource": f"unit:{self.name}", "before": words[0], "after": words[1]})
        elif self.links or self.unlink:
            links = {path: f"-> {target}" for path, target in self.links.items()}
            rows.extend(
                {"resource": f"file:{path}", "before": None, "after": to} for path, to in links.items()
            )
            rows.extend({"resource": f"file:{path}", "before": "link", "after": None} for path in self.unlink)
        return rows


@dataclass
class Plan:
    """All steps of one call.

    `pending`: units whose change waits for their next start. `overrides`: {unit: the vendor file it hides}.
    `boots`: what is predicted comes after a boot.
    """

    root: str
    steps: list[Step]
    boots: bool = False
    reload_needed: bool = False
    pending: list[str] = field(default_factory=list)
    overrides: dict[str, str] = field(default_factory=dict)

    @property
    def changes(self) -> list[dict[str, Any]]:
        """The change set as `{resource, before, after}`, sorted."""
        rows = [row for step in self.steps for row in step.changes()]
        return sorted(rows, key=lambda row: str(row["resource"]))


def systemctl(module: Any, **options: Any) -> Run | None:
    """A function that runs systemctl by run_command() of MODULE, an AnsibleModule, with OPTIONS.

    None for an offline tree, and for a host that systemd does not run.
    """
    if os.path.realpath(module.params["sysroot"]) != "/" or not os.path.isdir("/run/systemd/system"):
        return None
    program = module.get_bin_path("systemctl", required=True)

    def run(arguments: Sequence[str]) -> tuple[int, str, str]:
        code, out, err = module.run_command([program, *arguments], environ_update={"LC_ALL": "C"}, **options)
        return code, out, err

    return run


def show(run: Run, names: Sequence[str], fields: str) -> dict[str, dict[str, str]]:
    """The FIELDS of each of the units NAMES as systemd has them. Raises UnitError `systemctl_failed`."""
    code, out, err = run(["show", f"--property={fields}", "--", *names])
    texts = [text for text in out.split("\n\n") if text.strip()]
    blocks = [dict(line.split("=", 1) for line in text.splitlines() if "=" in line) for text in texts]
    if code != 0 or len(blocks) != len(names):
        raise UnitError("systemctl_failed", f"systemctl show: {(err or out).strip()}", names[0])
    return dict(zip(names, blocks))


def make_plan(
    root: str, units: Sequence[Wanted], absent: Iterable[str], run: Run | None, boots: bool = False
) -> Plan:
    """Plan UNITS and the removal of ABSENT below ROOT; reads only.

    BOOTS: for a prediction, that the host boots before: what is enabled runs then, and nothing else.
    Raises UnitError: `bad_name`, `duplicate_unit`, `foreign_file`, `masked`, `no_install_section`,
    `systemctl_failed`.
    """
    gone = list(absent)
    names = [unit.name for unit in units] + gone
    for name in names:
        try:
            check_unit_name(name)
        except ValueError as exc:
            raise UnitError("bad_name", str(exc), name) from exc
        if names.count(name) > 1:
            raise UnitError("duplicate_unit", f"{name} is named twice", name)
    states = show(run, names, _SHOWN) if run and names else {}
    plan = Plan(root, [], boots)
    for unit in units:
        plan.steps.append(_wanted_step(plan, unit, states.get(unit.name) if run else None))
    for name in gone:
        plan.steps.append(_absent_step(plan, name, states.get(name) if run else None))
    plan.reload_needed = any(state.get("NeedDaemonReload") == "yes" for state in states.values())
    return plan


def _wanted_step(plan: Plan, unit: Wanted, state: dict[str, str] | None) -> Step:
    step = Step(unit.name, _owned_text(plan.root, unit.name), with_marker(unit.content))
    if "\0" in unit.content:
        raise UnitError("bad_content", f"the text of {unit.name} holds a NUL byte", unit.name)
    there = _links_to(plan.root, unit.name)
    try:
        links = install_links(unit.name, step.after or "")
    except ValueError as exc:
        raise UnitError("bad_name", str(exc), unit.name) from exc
    if unit.enabled:
        if not links:
            raise UnitError(
                "no_install_section", f"{unit.name} has no [Install] section to enable", unit.name
            )
        step.links = {path: target for path, target in links.items() if path not in there}
        for path in step.links:
            if os.path.lexists(_real(plan.root, path)):
                raise UnitError("foreign_file", f"{path} exists and does not lead to {unit.name}", unit.name)
        old = install_links(unit.name, step.before or "")
        step.unlink = sorted(path for path in there if path in old and path not in links)
        step.enabled = (not step.links, True)
    elif unit.enabled is False:
        step.unlink = there
        step.enabled = (bool(there), False)
    vendor = next(
        (f"{path}/{unit.name}" for path in _VENDOR_DIRS if _is_there(plan.root, path, unit.name)), None
    )
    if vendor:
        plan.overrides[unit.name] = vendor
    if state is None:
        return step
    active = _is_active(plan, step, state, there)
    changed = step.before != step.after
    if unit.state is not None:
        step.active = (active, unit.state == "started")
    again = unit.restart or (changed and unit.restart_on_change)
    step.restart = active and again and unit.state != "stopped"
    step.stale = active and changed and not step.restart and unit.state != "stopped"
    return step


def _is_active(plan: Plan, step: Step, state: Mapping[str, str], links: Sequence[str]) -> bool:
    """Whether the unit runs when the plan is carried out; LINKS enable it."""
    active = state.get("ActiveState") in _ACTIVE
    if not plan.boots:
        return active
    # Nothing enables a slice: it comes with the first unit in it.
    return bool(links) or (step.name.endswith(".slice") and (active or step.before is not None))


def _absent_step(plan: Plan, name: str, state: dict[str, str] | None) -> Step:
    try:
        before = _owned_text(plan.root, name)
    except UnitError as exc:
        if exc.reason != "masked":  # a mask of the operator is nothing of ours
            raise
        before = None
    step = Step(name, before, None)
    if before is None:
        return step
    step.unlink = _links_to(plan.root, name)
    step.enabled = (bool(step.unlink), False)
    if state is not None:
        step.active = (_is_active(plan, step, state, step.unlink), False)
        step.failed = state.get("ActiveState") == "failed"
    return step


def _owned_text(root: str, name: str) -> str | None:
    path = f"{UNIT_DIR}/{name}"
    try:
        mode = os.lstat(_real(root, path)).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(mode):
        target = os.readlink(_real(root, path))
        reason = "masked" if target == "/dev/null" else "foreign_file"
        raise UnitError(reason, f"{path} is a symbolic link to {target}; remove it first", name)
    text = read_text(root, path) if stat.S_ISREG(mode) else None
    if text is None or not is_ours(text):
        raise UnitError("foreign_file", f"{path} was not written by this module; move it away first", name)
    return text


def _real(root: str, path: str) -> str:
    directory, name = os.path.split(path)
    return os.path.join(resolve(root, directory), name)


def _is_there(root: str, directory: str, name: str) -> bool:
    return os.path.lexists(_real(root, f"{directory}/{name}"))


def _links_to(root: str, name: str) -> list[str]:
    """All links in the unit directory that enable NAME, aliases included."""
    found = []
    for entry in list_dir(root, UNIT_DIR) or []:
        path = f"{UNIT_DIR}/{entry}"
        candidates = [f"{path}/{name}"] if entry.endswith(_FOLDERS) else [path] if entry != name else []
        for link in candidates:
            real = _real(root, link)
            if os.path.islink(real) and os.path.basename(os.readlink(real)) == name:
                found.append(link)
    return found


def apply_plan(plan: Plan, run: Run | None) -> None:
    """Carry PLAN out: stop, write, link, reload once, start. Raises UnitError (`unit_failed`), OSError."""
    if run:
        _stop(plan, run, [step for step in plan.steps if step.active == (True, False)])
    for step in plan.steps:
        _write(plan.root, step)
    if not run:
        return
    if plan.reload_needed or any(step.changes_files for step in plan.steps):
        code, out, err = run(["daemon-reload"])
        if code != 0:
            raise UnitError("systemctl_failed", f"systemctl daemon-reload: {(err or out).strip()}", "")
    failed = [step.name for step in plan.steps if step.failed]
    if failed:  # or systemd keeps listing a unit that is gone
        run(["reset-failed", "--", *failed])
    plan.pending.extend(step.name for step in plan.steps if step.stale)
    restarts = [step for step in plan.steps if step.restart]
    mounts = [step for step in restarts if step.name.endswith(".mount")]
    _stop(plan, run, mounts)  # a restart of a busy mount would leave the unit failed
    again = [step for step in mounts if step.name not in plan.pending]
    _start(run, "restart", [step for step in restarts if step not in mounts])
    _start(run, "start", [*again, *(step for step in plan.steps if step.active == (False, True))])


def _stop(plan: Plan, run: Run, steps: Sequence[Step]) -> None:
    for step in steps:
        code, out, err = run(["stop", "--", step.name])
        if code == 0 and show(run, [step.name], _SHOWN)[step.name].get("ActiveState") not in _ACTIVE:
            continue
        if not step.name.endswith(".mount"):
            raise UnitError("unit_failed", f"{step.name} does not stop: {(err or out).strip()}", step.name)
        plan.pending.append(step.name)  # busy: it goes when its users go, at the latest at the next boot
        if step.active == (True, False):
            step.active = None


def _start(run: Run, verb: str, steps: Sequence[Step]) -> None:
    names = [step.name for step in steps]
    if not names:
        return
    code, out, err = run([verb, "--", *names])
    states = show(run, names, _SHOWN)
    for name in names:
        if states[name].get("ActiveState") in _ACTIVE:
            continue
        # a oneshot without RemainAfterExit= is inactive again after it succeeded
        if code == 0 and states[name].get("ActiveState") == "inactive" and name.endswith(".service"):
            continue
        _code, status, _err = run(["status", "--no-pager", "--full", f"--lines={_STATUS_LINES}", "--", name])
        tail = "\n".join(status.strip().splitlines()[-_STATUS_LINES:])
        text = f"{name} does not {verb}: {(err or out).strip()}\n{tail}".rstrip()
        raise UnitError("unit_failed", text, name)


def _write(root: str, step: Step) -> None:
    for link in step.unlink:
        remove(_real(root, link))
    if step.after is None:
        if step.before is not None:
            remove(_real(root, step.path))
    elif step.before != step.after:
        atomic_write(_real(root, step.path), step.after, 0o644)
    for link, target in step.links.items():
        real = _real(root, link)
        make_dirs(os.path.dirname(real))
        os.symlink(target, real)
        fsync_dir(os.path.dirname(real))
