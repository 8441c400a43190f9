# SPDX-License-Identifier: Apache-2.0
"""What `firsttouch doctor` finds out: transport, pages, node and pinning that would be used here, and why. Tries, and
puts everything back.
"""

from __future__ import annotations

import os
import platform
import resource
import socket
from pathlib import Path
from typing import Any

from firsttouch import _linux, _shm, affinity
from firsttouch._waiting import fence
from firsttouch._wire import Schema
from firsttouch.errors import AffinityError, FirstTouchError, PlanError
from firsttouch.plan import choose_transport, load_plan, run_folders

_SMALL = Schema.of({"x": ("float32", (1024,))}, {"y": ("float32", (1024,))})


def report(plan_path: str | None, latency_target_us: float | None) -> dict[str, Any]:
    """Everything as JSON values. A part that cannot be found out says why instead."""
    return {
        "host": {
            "kernel": platform.release(),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        },
        "transport": _transport(plan_path, latency_target_us),
        "shared_memory": _shared_memory(),
        "pages": _pages(),
        "pinning": _pinning(plan_path),
        "folders": {str(folder): _access(folder) for folder in run_folders()},
    }


def _transport(plan_path: str | None, latency_target_us: float | None) -> dict[str, Any]:
    """The choice for a peer on this host."""
    try:
        plan = load_plan(plan_path)
        return {"plan": plan.source or None, **choose_transport(plan, "", latency_target_us).as_dict()}
    except PlanError as error:
        return {"error": str(error)}


def _shared_memory() -> dict[str, Any]:
    """Whether shared memory can be had, and how both sides sleep and notice deaths."""
    try:
        rule = fence()
    except FirstTouchError as error:
        return {"usable": False, "reason": str(error)}
    return {"usable": True, "wake_up": rule.reason, "death": _death()}


def _death() -> str:
    """How the death of a peer is noticed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        try:
            os.close(_linux.peer_pidfd(ours))
        except OSError:
            return "pidfd of the peer's pid, checked by its start time (no SO_PEERPIDFD before Linux 6.5)"
        return "pidfd of the socket's peer (SO_PEERPIDFD)"


def _pages() -> dict[str, Any]:
    """A small segment, made and given back."""
    cpu = _linux.current_cpu()
    node = affinity.node_of(cpu)
    try:
        segment = _shm.create(_SMALL, 4, node=node)
    except FirstTouchError as error:
        return {"error": str(error)}
    found = segment.report
    segment.close()
    assert found is not None
    return {
        "kind": found.kind,
        "node": node,
        "bound": found.bound,
        "pages_on_node": {str(key): value for key, value in found.pages_on_node.items()},
        "remarks": found.remarks,
    }


def _pinning(plan_path: str | None) -> dict[str, Any]:
    """What a server's thread would get on its CPU."""
    # A process begins beside the isolated CPUs, and may move there all the same.
    try:
        plan = load_plan(plan_path)
        planned = [cpu for node in plan.nodes for cpu in sorted(plan.cpus(node))]
    except PlanError:
        planned = []
    can = [cpu for cpu in planned if _can_run_on(cpu)]
    cpu = can[0] if can else max(os.sched_getaffinity(0))
    with affinity.pin(cpu, fifo_priority=1, switch_seconds=affinity.SERVER_SWITCH_SECONDS) as pinned:
        steps = [step.as_dict() for step in pinned.steps]
    why = "the first isolated CPU of the plan"
    if not can:
        why = "this process may run on no isolated CPU" if planned else "there is no isolated CPU"
        why = f"{why} of a plan: the last allowed"
    return {"cpu": cpu, "why": why, "steps": steps}


def _can_run_on(cpu: int) -> bool:
    try:
        affinity.try_cpus([cpu])
    except AffinityError:
        return False
    return True


def _access(folder: Path) -> str:
    """What this user can do with FOLDER."""
    if not folder.is_dir():
        return "not there"
    return "can listen and connect" if os.access(folder, os.W_OK | os.X_OK) else "can connect only"


def text(found: dict[str, Any]) -> str:
    """The report for people."""
    lines = []
    for part, values in found.items():
        lines.append(f"{part}")
        for name, value in values.items():
            if isinstance(value, list):
                lines += [f"  {name}"] if value else []
                lines += [f"    {_line(item)}" for item in value]
            elif value not in ("", None):
                lines.append(f"  {name}: {value}")
    return "\n".join(lines)


def _line(item: Any) -> str:
    """One item of a list."""
    if not isinstance(item, dict):
        return str(item)
    state = "yes" if item["done"] else f"refused: {item['reason']}"
    return f"{item['name']} {item['wanted']}: {state}"
