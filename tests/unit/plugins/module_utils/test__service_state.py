# SPDX-License-Identifier: GPL-3.0-or-later
"""Services are held and let go: exact plans, nothing outside the table, and what ran before runs again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _service_state as ss
from ansible_collections.firsttouch.host.plugins.module_utils import _services
from ansible_collections.firsttouch.host.plugins.module_utils._systemd_units import UnitError
from fake_systemd import Systemd
from support import put

TUNED, NUMAD = "tuned.service", "numad.service"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    for unit in (TUNED, NUMAD):
        put(tmp_path, f"/usr/lib/systemd/system/{unit}", "[Service]\nExecStart=/usr/sbin/x\n")
    return tmp_path


def hold(root: Path, stop: Sequence[str], systemd: Systemd | None, found: Sequence[str] = ()) -> list[str]:
    """Plan and apply; the resources that changed, which a second plan must leave empty."""
    rows = {unit: {"enabled": True, "active": True} for unit in found}
    plan = ss.hold_plan(str(root), stop, rows, systemd)
    ss.apply_plan(plan, systemd)
    assert ss.hold_plan(str(root), stop, rows, systemd).changes == []
    return [str(row["resource"]) for row in plan.changes]


def test_held_and_let_go(host: Path) -> None:
    systemd = Systemd(host, [TUNED, NUMAD])
    assert hold(host, [TUNED], systemd) == [f"file:{_services.dropin(TUNED)}", f"unit:{TUNED}"]
    assert systemd.active == {NUMAD} and systemd.calls == ["daemon-reload", f"stop {TUNED}"]
    assert _services.held(str(host)) == [TUNED]
    assert hold(host, [], systemd, found=[TUNED]) == [f"file:{_services.dropin(TUNED)}", f"unit:{TUNED}"]
    assert systemd.active == {TUNED, NUMAD} and _services.held(str(host)) == []
    assert not (host / _services.dropin(TUNED)[1:]).parent.exists()


def test_what_did_not_run_is_not_started(host: Path) -> None:
    systemd = Systemd(host)
    assert hold(host, [TUNED], systemd) == [f"file:{_services.dropin(TUNED)}"]
    assert hold(host, [], systemd) == [f"file:{_services.dropin(TUNED)}"]
    assert systemd.active == set() and systemd.calls == ["daemon-reload", "daemon-reload"]


def test_a_held_service_that_runs_again_is_stopped(host: Path) -> None:
    hold(host, [TUNED], Systemd(host))
    systemd = Systemd(host, [TUNED])
    assert hold(host, [TUNED], systemd) == [f"unit:{TUNED}"] and systemd.calls == [f"stop {TUNED}"]


def test_a_reload_that_a_killed_run_left_is_made_up_for(host: Path) -> None:
    hold(host, [TUNED], Systemd(host))
    systemd = Systemd(host, unloaded=[TUNED])
    plan = ss.hold_plan(str(host), [TUNED], {}, systemd)
    assert plan.changes == [] and plan.due
    ss.apply_plan(plan, systemd)
    assert systemd.calls == ["daemon-reload"]
    assert not ss.hold_plan(str(host), [TUNED], {}, systemd).due


def test_a_service_that_was_never_held_is_never_started(host: Path) -> None:
    systemd = Systemd(host)
    assert hold(host, [], systemd, found=[TUNED]) == [] and systemd.calls == []


def test_a_service_outside_the_table_is_refused(host: Path) -> None:
    put(host, "/usr/lib/systemd/system/ssh.service", "[Service]\n")
    systemd = Systemd(host, ["ssh.service", TUNED])
    with pytest.raises(UnitError, match=r"ssh\.service is none of tuned") as info:
        hold(host, [TUNED, "ssh.service"], systemd)
    assert info.value.reason == "not_in_table" and systemd.calls == [] and not (host / "etc").exists()


def test_what_is_not_installed_is_left_out(tmp_path: Path) -> None:
    assert hold(tmp_path, [TUNED], Systemd(tmp_path)) == [] and not (tmp_path / "etc").exists()


def test_a_foreign_dropin_is_refused(host: Path) -> None:
    put(host, _services.dropin(TUNED), "[Service]\nNice=5\n")
    with pytest.raises(UnitError, match="is not ours") as info:
        hold(host, [TUNED], Systemd(host))
    assert info.value.reason == "foreign_file"
    assert hold(host, [], Systemd(host)) == []


def test_a_service_that_runs_on_is_an_error(host: Path) -> None:
    with pytest.raises(UnitError, match="runs on after") as info:
        hold(host, [TUNED], Systemd(host, [TUNED], stubborn=[TUNED]))
    assert info.value.reason == "unit_failed"


def test_an_offline_tree_has_files_only(host: Path) -> None:
    assert hold(host, [TUNED], None) == [f"file:{_services.dropin(TUNED)}"]


def test_enabled_and_active_by_files(host: Path) -> None:
    assert not ss.is_enabled(str(host), TUNED) and not ss.is_active(str(host), TUNED)
    wants = host / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True)
    (wants / TUNED).symlink_to(f"/usr/lib/systemd/system/{TUNED}")
    (host / "run/systemd/units").mkdir(parents=True)
    (host / f"run/systemd/units/invocation:{TUNED}").symlink_to("0123")
    assert ss.is_enabled(str(host), TUNED) and ss.is_active(str(host), TUNED)
