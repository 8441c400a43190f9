# SPDX-License-Identifier: Apache-2.0
"""Our file of the kubelet's configuration, and the state files that must go when it changes.

cpu_manager_state and memory_manager_state hold the policy that they were written under, and the latter the memory of
each node too: a kubelet that finds another policy, another reservation, another number of huge pages or another
MemTotal there does not start. They also hold which container has which CPUs, so they may go only when the node is
drained: kubelet stopped, state removed, file written, kubelet started. In this order each run that is killed leaves
something that the next one finds due: the file, or the mark that the kubelet was stopped and not started again.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import _yaml_text
from ._files import atomic_write, read_text, remove, resolve
from ._kubelet import page_kb, quantity
from ._kubelet_host import UNIT
from ._service_state import read_states
from ._systemd import MARKER, is_ours
from ._systemd_units import Run, UnitError
from ._topology import Topology

CPU_STATE = "cpu_manager_state"
MEMORY_STATE = "memory_manager_state"
STATES = (CPU_STATE, MEMORY_STATE)
_FIELDS = {CPU_STATE: "cpuManagerPolicy", MEMORY_STATE: "memoryManagerPolicy"}
# pkg/kubelet/cm/{cpumanager,memorymanager}: the names of the default policies, as the state files have them.
_DEFAULTS = {CPU_STATE: "none", MEMORY_STATE: "None"}
_POLL_SECONDS = 0.5
# Outlives a run that is killed, and no boot: that starts the kubelet by itself.
STOPPED = "/run/firsttouch-kubelet-stopped"


class KubeletApplyError(ValueError):
    """Why the kubelet is not as planned; `reason` is a code, `path` the file."""

    def __init__(self, reason: str, text: str, path: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.path = path


@dataclass
class Plan:
    """Everything that one call changes. files: {path: (before, after)}; states: {path: (before, after)} in words."""

    root: str
    root_dir: str
    files: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)
    states: dict[str, tuple[str, str]] = field(default_factory=dict)
    # By state file the policy with which a kubelet that has taken our file writes it.
    proof: dict[str, str] = field(default_factory=dict)
    active: bool | None = None
    # An earlier run has stopped it and was killed.
    interrupted: bool = False

    @property
    def due(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.files or self.states or self.interrupted)

    @property
    def drain_due(self) -> bool:
        """Whether state goes that says which container has which CPUs, or may have gone in a run that was killed."""
        return bool(self.states or self.interrupted)

    @property
    def changes(self) -> list[dict[str, Any]]:
        """The change set as `{resource, before, after}`, sorted."""
        rows: list[dict[str, Any]] = [
            {"resource": f"file:{path}", "before": before, "after": after}
            for path, (before, after) in self.files.items()
        ]
        rows += [
            {"resource": f"kubelet_state:{path}", "before": before, "after": after}
            for path, (before, after) in self.states.items()
        ]
        if (self.active and self.due) or self.interrupted:
            before = "active, old settings" if self.active else "inactive"
            row = {"before": before, "after": "active, new settings"}
            rows.append({"resource": f"unit:{UNIT}", **row})
        return sorted(rows, key=lambda row: str(row["resource"]))

    @property
    def diff(self) -> list[dict[str, str]]:
        """The file before and after."""
        return [
            {"before_header": path, "after_header": path, "before": before or "", "after": after or ""}
            for path, (before, after) in sorted(self.files.items())
        ]


def render(config: Mapping[str, Any] | None) -> str | None:
    """The text of our file for CONFIG; None (no file) for none."""
    return _yaml_text.dump(config, MARKER) if config else None


def make_plan(
    root: str,
    file: str | None,
    config: Mapping[str, Any] | None,
    root_dir: str,
    topology: Topology,
    pages: Mapping[str, Mapping[str, int]],
    run: Run | None,
) -> Plan:
    """Plan that FILE has CONFIG (None: that it is gone) below ROOT, and that no state is left which it contradicts.

    PAGES: per page size (`2048kB`) and node the huge pages that there will be, where they differ from those in
    TOPOLOGY. Raises KubeletApplyError `foreign_file`, UnitError, OSError.
    """
    plan = Plan(root, root_dir)
    if file is not None:
        before, after = read_text(root, file), render(config)
        if before is not None and not is_ours(before):
            if config:
                text = f"{file} is not ours: its first line is not {MARKER!r}; move it away first"
                raise KubeletApplyError("foreign_file", text, file)
        elif before != after:
            plan.files[file] = (before, after)
    if config:
        plan.proof = {f"{root_dir}/{name}": config[key] for name, key in _FIELDS.items() if key in config}
    if plan.files or config:
        _plan_states(plan, config or {}, topology, pages)
    stopped = run is not None and os.path.exists(resolve(root, STOPPED))
    if run is not None and (plan.due or stopped):
        plan.active = read_states(run, [UNIT])[UNIT].active
        plan.interrupted = stopped and not plan.active
    return plan


def _plan_states(
    plan: Plan, config: Mapping[str, Any], topology: Topology, pages: Mapping[str, Mapping[str, int]]
) -> None:
    for name in STATES:
        path = f"{plan.root_dir}/{name}"
        text = read_text(plan.root, path)
        if text is None:
            continue
        state = _parse(text)
        policy = state.get("policyName")
        wanted = config.get(_FIELDS[name], _DEFAULTS[name])
        why = ""
        if policy != wanted:
            why = str(policy)
        elif name == MEMORY_STATE and config:
            try:
                why = _memory_differs(state, config, topology, pages)
            except (
                AttributeError,
                TypeError,
                ValueError,
            ):  # written by a kubelet that has another form of it
                why = ""
        if not why and plan.files:
            why = f"{policy}, of other settings"
        if why:
            plan.states[path] = (why, str(wanted))


def _parse(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _memory_differs(
    state: Mapping[str, Any],
    config: Mapping[str, Any],
    topology: Topology,
    pages: Mapping[str, Mapping[str, int]],
) -> str:
    """In what the memory of STATE is not that of the host, or not what CONFIG reserves of it; empty: in nothing.

    Only what both tell is compared: MemTotal, pages and reservation of the nodes that are in both.
    """
    reserved = {
        int(row["numaNode"]): quantity(row["limits"]["memory"]) for row in config.get("reservedMemory") or ()
    }
    machine = state.get("machineState")
    for node in topology.nodes:
        table = ((machine if isinstance(machine, dict) else {}).get(str(node.id)) or {}).get(
            "memoryMap"
        ) or {}
        for resource, row in table.items():
            total, kept = (
                value if isinstance(value, int) else None
                for value in (row.get("total"), row.get("systemReserved"))
            )
            if resource == "memory":
                if kept is not None and kept != reserved.get(node.id, 0):
                    return f"node {node.id}: {kept} bytes reserved"
                if None not in (total, node.memory_bytes) and total != node.memory_bytes:
                    return f"node {node.id}: {total} bytes of memory"
                continue
            size = page_kb(resource)
            name = f"{size}kB"
            there = node.pools.get(name, {}).get("total")
            if name in pages:
                there = pages[name].get(str(node.id), 0)
            if None not in (total, there, size) and total != int(there or 0) * int(size or 0) * 1024:
                return f"node {node.id}: {total} bytes of {resource}"
    return ""


def apply_plan(
    plan: Plan, run: Run | None, seconds: float, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Stop the kubelet, remove the state, write or remove the file, start it, and see that it took the settings.

    A kubelet that was not running is not started, unless an earlier run of ours had stopped it. One that does not come
    up within SECONDS gets the old file back. Raises KubeletApplyError, UnitError, OSError.
    """
    mark = resolve(plan.root, STOPPED)
    systemd = run if plan.due and (plan.active or plan.interrupted) else None
    written = False
    try:
        if systemd is not None:
            atomic_write(mark, "", 0o600)
            _systemctl(systemd, "stop")
        written = True
        _write(plan, after=True)
        if systemd is not None:
            _systemctl(systemd, "start")
            _wait(plan, systemd, seconds, sleep)
    except BaseException:  # also a signal must not leave the node without a kubelet
        _take_back(plan, systemd, written)
        raise
    if run is not None:
        remove(mark)


def _take_back(plan: Plan, run: Run | None, written: bool) -> None:
    """Put the old file back if anything was WRITTEN, and have the kubelet run whether or not that succeeds."""
    try:
        if written:
            if run is not None:
                with contextlib.suppress(OSError):
                    run(["stop", UNIT])
            _write(plan, after=False)
    finally:
        if run is not None:
            _systemctl(run, "start")
    if run is not None:
        remove(resolve(plan.root, STOPPED))


def _write(plan: Plan, *, after: bool) -> None:
    # Also on the way back: what the kubelet has written in between is of the settings that are taken back.
    for path in plan.states:
        remove(resolve(plan.root, path))
    for path, (old, new) in plan.files.items():
        real = resolve(plan.root, path)
        text = new if after else old
        if text is None:
            # The directory stays: a kubelet whose --config-dir is not there does not start.
            remove(real)
        else:
            atomic_write(real, text, 0o644)


def _wait(plan: Plan, run: Run, seconds: float, sleep: Callable[[float], None]) -> None:
    """Wait for the state files, under the policies asked for: the kubelet writes them when it starts."""
    ends = time.monotonic() + seconds
    while True:
        missing = [path for path, policy in plan.proof.items() if not _took(plan.root, path, policy)]
        active = read_states(run, [UNIT])[UNIT].active
        if active and not missing:
            return
        if time.monotonic() >= ends:
            break
        sleep(_POLL_SECONDS)
    told = f"{', '.join(missing)} not written" if missing else "it is not active"
    path = next(iter(plan.files), missing[0] if missing else UNIT)
    kept = "the file is as it was before" if plan.files else "its file was there already"
    text = (
        f"the kubelet did not take {path} within {seconds:g} s ({told}); {kept}. "
        f"journalctl -u {UNIT} says why"
    )
    raise KubeletApplyError("kubelet_not_started", text, path)


def _took(root: str, path: str, policy: str) -> bool:
    text = read_text(root, path)
    return text is not None and _parse(text).get("policyName") == policy


def _systemctl(run: Run, verb: str) -> None:
    code, out, err = run([verb, UNIT])
    if code != 0:
        raise UnitError("systemctl_failed", f"systemctl {verb} {UNIT}: {(err or out).strip()}", UNIT)


def pages_of(pools: list[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """The pools of a plan as make_plan() takes them."""
    return {
        f"{row['size_kb']}kB": {str(node): int(count) for node, count in row["nodes"].items()}
        for row in pools
    }
