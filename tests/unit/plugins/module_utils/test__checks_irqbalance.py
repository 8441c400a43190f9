# SPDX-License-Identifier: GPL-3.0-or-later
"""Each mode of firsttouch_irqbalance as the verification sees it: right, then undone."""

from __future__ import annotations

from pathlib import Path

import pytest
import verified_host as vh
from ansible_collections.firsttouch.host.plugins.module_utils import _checks_irqbalance, _irqbalance
from ansible_collections.firsttouch.host.plugins.module_utils._checks_host import Context, answered
from support import put, run_module

MODES = {
    "off": {"isolated_cpus": "1,3", "irqbalance": "off"},
    "ban_isolated": {"isolated_cpus": "1,3", "irqbalance": "ban_isolated"},
    "keep": {"isolated_cpus": "1,3", "irqbalance": "keep"},
}
OFF_FOR_YAML = {"isolated_cpus": "1,3", "irqbalance": False}


def host(root: Path, applied: str) -> Path:
    vh.bare_host(root)
    put(root, "/sys/fs/cgroup/system.slice/other.service/cgroup.procs", "1\n")
    run_module("irqbalance", {"mode": applied, "isolated": "1,3", "sysroot": str(root)})
    return root


def ask(root: Path, intent: dict[str, object]) -> dict[str, tuple[str, str]]:
    ctx = Context(vh.plan_for(root, intent), str(root))
    rows = [row for check in _checks_irqbalance.CHECKS for row in answered(check, ctx)]
    assert all("firsttouch_irqbalance" in row.remedy for row in rows if row.status in ("fail", "warn"))
    return {row.id.rpartition(".")[2]: (row.status, row.reason) for row in rows}


def wrong(root: Path, intent: dict[str, object]) -> dict[str, tuple[str, str]]:
    return {name: row for name, row in ask(root, intent).items() if row[0] in ("fail", "warn")}


@pytest.mark.parametrize("mode", sorted(MODES))
@pytest.mark.parametrize("applied", sorted(MODES))
def test_only_the_mode_that_was_applied_is_right(tmp_path: Path, mode: str, applied: str) -> None:
    found = wrong(host(tmp_path, applied), dict(MODES[mode]))
    assert bool(found) is (mode != applied), found


def test_off_without_quotes_is_off(tmp_path: Path) -> None:
    found = ask(host(tmp_path, "off"), dict(OFF_FOR_YAML))
    assert found["dropin"] == ("pass", "") and found["running"] == ("pass", "")
    assert found["irqbalance"] == ("not_applicable", "no_setting")


def test_off_and_running_is_wrong(tmp_path: Path) -> None:
    put(host(tmp_path, "off"), f"{vh.IRQBALANCE_GROUP}/cgroup.procs", "612\n")
    assert wrong(tmp_path, dict(MODES["off"])) == {"running": ("fail", "running")}


@pytest.mark.parametrize("folder", ["/sys/fs/cgroup/system.slice", "/sys/fs/cgroup/systemd/system.slice"])
def test_the_daemon_is_found_in_either_version_of_control_groups(tmp_path: Path, folder: str) -> None:
    vh.bare_host(tmp_path)
    run_module("irqbalance", {"mode": "off", "sysroot": str(tmp_path)})
    assert ask(tmp_path, dict(MODES["off"]))["running"] == ("not_evaluated", "not_available")
    put(tmp_path, f"{folder}/other.service/cgroup.procs", "1\n")
    assert ask(tmp_path, dict(MODES["off"]))["running"] == ("pass", "")
    put(tmp_path, f"{folder}/irqbalance.service/cgroup.procs", "612\n")
    assert wrong(tmp_path, dict(MODES["off"])) == {"running": ("fail", "running")}


def test_a_bad_list_of_others_means_nothing_when_it_is_off(tmp_path: Path) -> None:
    put(host(tmp_path, "off"), "/etc/default/irqbalance", "IRQBALANCE_BANNED_CPULIST=9-\n")
    assert ask(tmp_path, dict(MODES["off"]))["irqbalance"] == ("not_applicable", "switched_off")
    assert "irqbalance" in wrong(tmp_path, dict(MODES["keep"]))


def test_what_is_left_is_a_failure_only_where_it_was_asked_for(tmp_path: Path) -> None:
    host(tmp_path, "ban_isolated")
    assert set(wrong(tmp_path, {"irqbalance": "keep"}).values()) == {("fail", "not_removed")}
    assert set(wrong(tmp_path, {}).values()) == {("warn", "not_removed")}
    put(tmp_path, _irqbalance.DROPIN, "[Service]\nNice=5\n")
    assert set(wrong(tmp_path, {"irqbalance": "keep"})) == {"environment"}
