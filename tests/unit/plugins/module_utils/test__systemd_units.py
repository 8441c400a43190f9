# SPDX-License-Identifier: GPL-3.0-or-later
"""Bringing units to their state, against a stand-in for systemctl."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _systemd_units as units
from ansible_collections.firsttouch.host.plugins.module_utils._systemd import MARKER
from support import put

DIR = "/etc/systemd/system"
TEXT = "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"


class Systemctl:
    """Answers like systemctl; `active` are the active units, `busy` those that do not stop, `broken` do not start."""

    def __init__(self) -> None:
        self.active: set[str] = set()
        self.busy: set[str] = set()
        self.broken: set[str] = set()
        self.calls: list[str] = []
        self.need_reload = "no"
        self.idle: dict[str, str] = {}

    def __call__(self, arguments: Sequence[str]) -> tuple[int, str, str]:
        verb, names = arguments[0], [word for word in arguments[1:] if not word.startswith("--")]
        if verb not in ("show", "status"):
            self.calls.append(" ".join([verb, *names]))
        if verb == "show":
            states = [
                ("active" if name in self.active else self.idle.get(name, "inactive"), name) for name in names
            ]
            blocks = [
                f"Id={name}\nActiveState={state}\nNeedDaemonReload={self.need_reload}"
                for state, name in states
            ]
            return 0, "\n\n".join(blocks) + "\n", ""
        if verb == "status":
            return 3, "\n".join(f"line {i}" for i in range(40)), ""
        bad = [name for name in names if name in (self.busy if verb == "stop" else self.broken)]
        good = {name for name in names if name not in bad}
        if verb == "stop":
            self.active -= good
        elif verb in ("start", "restart"):
            self.active |= good
        return (1 if bad else 0), "", "Job failed." if bad else ""


def go(root: Path, wanted: list[units.Wanted], absent: Sequence[str] = (), run: Any = None) -> units.Plan:
    plan = units.make_plan(str(root), wanted, absent, run)
    predicted = plan.changes
    units.apply_plan(plan, run)
    if not plan.pending:
        assert plan.changes == predicted
    return plan


def unit(name: str = "a.service", content: str = TEXT, **args: Any) -> units.Wanted:
    return units.Wanted(name, content, **args)


def links(root: Path) -> dict[str, str]:
    base = root / DIR[1:]
    return {
        str(path.relative_to(base)): str(path.readlink())
        for path in sorted(base.rglob("*"))
        if path.is_symlink()
    }


def test_write_enable_start_once(tmp_path: Path) -> None:
    ctl = Systemctl()
    wanted = [unit(enabled=True, state="started"), unit("b.mount", enabled=True, state="started")]
    plan = go(tmp_path, wanted, run=ctl)
    assert ctl.calls == ["daemon-reload", "start a.service b.mount"]
    assert [row["resource"] for row in plan.changes] == [
        f"file:{DIR}/a.service",
        f"file:{DIR}/b.mount",
        "unit:a.service",
        "unit:b.mount",
    ]
    assert plan.changes[2] == {
        "resource": "unit:a.service",
        "before": "disabled, inactive",
        "after": "enabled, active",
    }
    assert (tmp_path / DIR[1:] / "a.service").read_text() == f"{MARKER}\n{TEXT}"
    assert links(tmp_path) == {
        "multi-user.target.wants/a.service": f"{DIR}/a.service",
        "multi-user.target.wants/b.mount": f"{DIR}/b.mount",
    }
    ctl.calls.clear()
    assert go(tmp_path, wanted, run=ctl).changes == []
    assert ctl.calls == []


def test_planning_writes_nothing(tmp_path: Path) -> None:
    ctl = Systemctl()
    plan = units.make_plan(str(tmp_path), [unit(enabled=True, state="started")], [], ctl)
    assert len(plan.changes) == 2
    assert ctl.calls == []
    assert list(tmp_path.iterdir()) == []


def test_nothing_asked_nothing_touched(tmp_path: Path) -> None:
    ctl = Systemctl()
    plan = go(tmp_path, [unit()], run=ctl)
    assert [row["resource"] for row in plan.changes] == [f"file:{DIR}/a.service"]
    assert ctl.calls == ["daemon-reload"]
    assert links(tmp_path) == {}


@pytest.mark.parametrize("target", [f"{DIR}/a.service", "../a.service"])
def test_link_of_systemctl_counts(tmp_path: Path, target: str) -> None:
    go(tmp_path, [unit()])
    (tmp_path / DIR[1:] / "multi-user.target.wants").mkdir()
    (tmp_path / DIR[1:] / "multi-user.target.wants/a.service").symlink_to(target)
    assert go(tmp_path, [unit(enabled=True)]).changes == []
    plan = go(tmp_path, [unit(enabled=False)])
    assert plan.changes == [{"resource": "unit:a.service", "before": "enabled", "after": "disabled"}]
    assert links(tmp_path) == {}


def test_new_install_section_moves_the_link_and_keeps_foreign_ones(tmp_path: Path) -> None:
    go(tmp_path, [unit(enabled=True)])
    (tmp_path / DIR[1:] / "x.target.wants").mkdir()
    (tmp_path / DIR[1:] / "x.target.wants/a.service").symlink_to(f"{DIR}/a.service")
    go(tmp_path, [unit(content=TEXT.replace("multi-user", "basic"), enabled=True)])
    assert sorted(links(tmp_path)) == ["basic.target.wants/a.service", "x.target.wants/a.service"]


@pytest.mark.parametrize(
    ("restart", "calls", "pending"),
    [(True, ["daemon-reload", "restart a.service"], []), (False, ["daemon-reload"], ["a.service"])],
)
def test_changed_service(tmp_path: Path, restart: bool, calls: list[str], pending: list[str]) -> None:
    ctl = Systemctl()
    go(tmp_path, [unit(state="started")], run=ctl)
    ctl.calls.clear()
    changed = unit(content=TEXT + "# new\n", state="started", restart_on_change=restart)
    plan = go(tmp_path, [changed], run=ctl)
    assert (ctl.calls, plan.pending) == (calls, pending)


@pytest.mark.parametrize(("running", "calls"), [(True, ["restart a.service"]), (False, [])])
def test_a_unit_restarts_when_what_it_reads_has_changed(
    tmp_path: Path, running: bool, calls: list[str]
) -> None:
    ctl = Systemctl()
    go(tmp_path, [unit(state="started" if running else None)], run=ctl)
    ctl.calls.clear()
    plan = go(tmp_path, [unit(restart=True)], run=ctl)
    assert (ctl.calls, plan.changes) == (calls, [])


def test_changed_mount_stops_and_starts(tmp_path: Path) -> None:
    ctl = Systemctl()
    go(tmp_path, [unit("a.mount", state="started")], run=ctl)
    ctl.calls.clear()
    changed = unit("a.mount", TEXT + "# new\n", state="started", restart_on_change=True)
    go(tmp_path, [changed], run=ctl)
    assert ctl.calls == ["daemon-reload", "stop a.mount", "start a.mount"]


def test_busy_mount_is_pending(tmp_path: Path) -> None:
    ctl = Systemctl()
    go(tmp_path, [unit("a.mount", enabled=True, state="started")], run=ctl)
    ctl.calls.clear()
    ctl.busy = {"a.mount"}
    changed = unit("a.mount", TEXT + "# new\n", enabled=True, state="started", restart_on_change=True)
    plan = go(tmp_path, [changed], run=ctl)
    assert ctl.calls == ["daemon-reload", "stop a.mount"]
    assert plan.pending == ["a.mount"]
    plan = go(tmp_path, [], ["a.mount"], run=ctl)
    assert plan.pending == ["a.mount"]
    assert not (tmp_path / DIR[1:] / "a.mount").exists()
    assert plan.changes[-1] == {"resource": "unit:a.mount", "before": "enabled", "after": "disabled"}


def test_service_that_does_not_stop_is_an_error(tmp_path: Path) -> None:
    ctl = Systemctl()
    go(tmp_path, [unit(state="started")], run=ctl)
    ctl.busy = {"a.service"}
    with pytest.raises(units.UnitError) as caught:
        go(tmp_path, [], ["a.service"], run=ctl)
    assert caught.value.reason == "unit_failed"
    assert (tmp_path / DIR[1:] / "a.service").exists()


def test_failed_start_shows_the_end_of_the_status(tmp_path: Path) -> None:
    ctl = Systemctl()
    ctl.broken = {"b.mount"}
    with pytest.raises(units.UnitError) as caught:
        go(tmp_path, [unit(state="started"), unit("b.mount", state="started")], run=ctl)
    assert (caught.value.reason, caught.value.unit) == ("unit_failed", "b.mount")
    assert "Job failed." in str(caught.value)
    assert "line 39" in str(caught.value)
    assert "line 20" not in str(caught.value)


def test_absent(tmp_path: Path) -> None:
    ctl = Systemctl()
    go(tmp_path, [unit(content=TEXT + "Alias=b.service\n", enabled=True, state="started")], run=ctl)
    ctl.calls.clear()
    plan = go(tmp_path, [], ["a.service", "never.mount"], run=ctl)
    assert ctl.calls == ["stop a.service", "daemon-reload"]
    assert [(row["resource"], row["after"]) for row in plan.changes] == [
        (f"file:{DIR}/a.service", None),
        ("unit:a.service", "disabled, inactive"),
    ]
    assert links(tmp_path) == {}
    assert not (tmp_path / DIR[1:] / "a.service").exists()
    ctl.calls.clear()
    assert go(tmp_path, [], ["a.service"], run=ctl).changes == []
    assert ctl.calls == []


def test_absent_forgets_a_failure(tmp_path: Path) -> None:
    ctl = Systemctl()
    go(tmp_path, [unit("a.mount")], run=ctl)
    ctl.calls.clear()
    ctl.idle = {"a.mount": "failed"}
    go(tmp_path, [], ["a.mount"], run=ctl)
    assert ctl.calls == ["daemon-reload", "reset-failed a.mount"]


def test_absent_never_stops_what_is_not_ours(tmp_path: Path) -> None:
    ctl = Systemctl()
    ctl.active = {"dev-hugepages.mount"}
    assert go(tmp_path, [], ["dev-hugepages.mount"], run=ctl).changes == []
    assert ctl.active == {"dev-hugepages.mount"}
    assert ctl.calls == []


@pytest.mark.parametrize("absent", [False, True])
def test_foreign_file_is_refused(tmp_path: Path, absent: bool) -> None:
    put(tmp_path, f"{DIR}/a.service", f"# mine\n{MARKER}\n")
    with pytest.raises(units.UnitError) as caught:
        go(tmp_path, [] if absent else [unit()], ["a.service"] if absent else [])
    assert caught.value.reason == "foreign_file"
    assert (tmp_path / DIR[1:] / "a.service").read_text() == f"# mine\n{MARKER}\n"


def test_nothing_is_written_when_one_is_refused(tmp_path: Path) -> None:
    put(tmp_path, f"{DIR}/b.service", "# mine\n")
    with pytest.raises(units.UnitError):
        go(tmp_path, [unit(), unit("b.service")])
    assert not (tmp_path / DIR[1:] / "a.service").exists()


@pytest.mark.parametrize(("target", "reason"), [("/dev/null", "masked"), ("/opt/a.service", "foreign_file")])
def test_links_in_place_of_units(tmp_path: Path, target: str, reason: str) -> None:
    (tmp_path / DIR[1:]).mkdir(parents=True)
    (tmp_path / DIR[1:] / "a.service").symlink_to(target)
    put(tmp_path, "/opt/a.service", f"{MARKER}\n")
    with pytest.raises(units.UnitError) as caught:
        go(tmp_path, [unit()])
    assert caught.value.reason == reason
    if reason == "masked":
        assert go(tmp_path, [], ["a.service"]).changes == []
    assert (tmp_path / DIR[1:] / "a.service").is_symlink()


def test_foreign_link_in_the_way(tmp_path: Path) -> None:
    put(tmp_path, f"{DIR}/multi-user.target.wants/a.service", "")
    with pytest.raises(units.UnitError) as caught:
        go(tmp_path, [unit(enabled=True)])
    assert caught.value.reason == "foreign_file"
    assert not (tmp_path / DIR[1:] / "a.service").exists()


@pytest.mark.parametrize(
    ("wanted", "absent", "reason"),
    [
        ([unit("../a.service")], [], "bad_name"),
        ([unit("a.txt")], [], "bad_name"),
        ([], ["a b.mount"], "bad_name"),
        ([unit(), unit()], [], "duplicate_unit"),
        ([unit()], ["a.service"], "duplicate_unit"),
        ([unit(content="[Unit]\n", enabled=True)], [], "no_install_section"),
    ],
)
def test_requests_that_cannot_be(
    tmp_path: Path, wanted: list[units.Wanted], absent: list[str], reason: str
) -> None:
    with pytest.raises(units.UnitError) as caught:
        go(tmp_path, wanted, absent)
    assert caught.value.reason == reason


def test_vendor_unit_is_named(tmp_path: Path) -> None:
    put(tmp_path, "/usr/lib/systemd/system/dev-hugepages.mount", "")
    plan = go(tmp_path, [unit("dev-hugepages.mount")])
    assert plan.overrides == {"dev-hugepages.mount": "/usr/lib/systemd/system/dev-hugepages.mount"}


def test_reload_left_over_from_before(tmp_path: Path) -> None:
    ctl = Systemctl()
    go(tmp_path, [unit()], run=ctl)
    ctl.calls.clear()
    ctl.need_reload = "yes"
    assert go(tmp_path, [unit()], run=ctl).changes == []
    assert ctl.calls == ["daemon-reload"]


def test_systemctl_that_does_not_answer(tmp_path: Path) -> None:
    with pytest.raises(units.UnitError) as caught:
        go(tmp_path, [unit()], run=lambda arguments: (1, "", "Failed to connect to bus"))
    assert caught.value.reason == "systemctl_failed"
    assert "connect to bus" in str(caught.value)


def test_what_is_enabled_runs_after_a_boot_that_comes_first(tmp_path: Path) -> None:
    """Predicted with `boots` before the boot, and done after it: the same rows."""
    run, new = Systemctl(), TEXT + "# new\n"
    kept = [unit("waits.service", enabled=True), unit("off.service"), unit("a.slice", "[Slice]\n")]
    go(tmp_path, [*kept, unit("gone.service", enabled=True)], run=run)
    run.active = {"off.service"}
    wanted = [
        unit("waits.service", new, enabled=True, state="started", restart_on_change=True),
        unit("new.service", enabled=True, state="started"),
        unit("off.service", enabled=True, state="started"),
        unit("a.slice", "[Slice]\n", state="started"),
    ]
    predicted = units.make_plan(str(tmp_path), wanted, ["gone.service"], run, boots=True)
    run.active = {"waits.service", "gone.service", "a.slice"}
    done = go(tmp_path, wanted, ["gone.service"], run)
    assert predicted.changes == done.changes
    rows = {row["resource"]: row["before"] for row in done.changes if row["resource"].startswith("unit:")}
    assert rows == {
        "unit:gone.service": "enabled, active",
        "unit:new.service": "disabled, inactive",
        "unit:off.service": "disabled, inactive",
    }
