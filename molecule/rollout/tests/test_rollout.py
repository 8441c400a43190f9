# SPDX-License-Identifier: GPL-3.0-or-later
"""The hooks of two rollouts in their order, and what the host has that was not reached."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

KEPT = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"])


def hooks(rollout: str) -> list[str]:
    lines = (KEPT / "hooks.log").read_text().splitlines()
    return [line.partition(" ")[2] for line in lines if line.startswith(f"{rollout} ")]


def test_a_canary_that_fails_stays_drained_and_stops_the_rollout() -> None:
    assert hooks("first") == ["drain rollout-a", "failed rollout-a"]
    assert json.loads((KEPT / "untouched.json").read_text()) == []


def test_each_host_runs_between_its_hooks_one_after_the_other() -> None:
    assert hooks("second") == ["drain rollout-a", "uncordon rollout-a", "drain rollout-b", "uncordon rollout-b"]


def test_the_setting_is_live(host: Any) -> None:
    assert host.file("/proc/sys/vm/swappiness").content_string.strip() == "0"
