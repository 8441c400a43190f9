# SPDX-License-Identifier: GPL-3.0-or-later
"""The hooks of two rollouts in their order, and what the host has that was not reached."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

HOSTS = ["rollout-a", "rollout-b", "rollout-c"]
HIDDEN = "rollout-c"
KEPT = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"])


def hooks(rollout: str) -> list[str]:
    lines = (KEPT / "hooks.log").read_text().splitlines()
    return [line.partition(" ")[2] for line in lines if line.startswith(f"{rollout} ")]


def test_a_canary_that_fails_stays_drained_and_stops_the_rollout() -> None:
    assert hooks("first") == ["drain rollout-a", "failed rollout-a"]
    for name in HOSTS[1:]:
        assert json.loads((KEPT / f"untouched-{name}.json").read_text()) == []


def test_each_host_runs_between_its_hooks_one_after_the_other() -> None:
    assert hooks("second") == [f"{hook} {name}" for name in HOSTS for hook in ("drain", "uncordon")]


def test_the_setting_is_live(host: Any) -> None:
    assert host.file("/proc/sys/vm/swappiness").content_string.strip() == "0"


def test_the_topology_decides_the_transport(host: Any) -> None:
    name = host.backend.get_hostname()
    plan = json.loads(host.file("/etc/firsttouch/plan.json").content_string)
    wanted = "unix" if name == HIDDEN else "shm"
    assert plan["transport"]["transport"] == wanted, plan["transport"]


def test_the_host_that_hides_its_nodes_serves_at_a_socket(host: Any) -> None:
    if host.backend.get_hostname() != HIDDEN:
        assert not host.file("/etc/firsttouch/servers").exists
        return
    asked = json.loads(host.check_output("/opt/firsttouch/current/bin/firsttouch ping --server fleet --json"))
    assert (asked["ok"], asked["transport"]) == (True, "unix")


def test_the_report_has_all_three() -> None:
    report = json.loads((KEPT / "report" / "report.json").read_text())
    assert sorted(row["name"] for row in report["hosts"]) == HOSTS
    assert report["outcome"] == "pass", report["outcome"]
