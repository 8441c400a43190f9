# SPDX-License-Identifier: GPL-3.0-or-later
"""irqbalance: each mode brings files and daemon to one state, from wherever they are, and says exactly what changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _irqbalance, _service_state
from fake_systemd import Systemd
from support import put

UNIT = _irqbalance.SERVICE
FILES = [f"file:{_irqbalance.ENVIRONMENT}", f"file:{_irqbalance.DROPIN}"]


class Host:
    """A host with irqbalance, whose daemon reads its environment file when it starts."""

    def __init__(self, root: Path, active: bool) -> None:
        self.root = root
        put(root, f"/usr/lib/systemd/system/{UNIT}", "[Service]\nExecStart=/usr/sbin/irqbalance\n")
        self.systemd = Systemd(root, [UNIT] if active else [])
        self.environ = "LANG=C\0"

    def plan(self, mode: str, isolated: str, found: dict[str, Any]) -> _service_state.Plan:
        def environ(_pid: int) -> str:
            return self.environ

        return _irqbalance.make_plan(str(self.root), mode, isolated, found, self.systemd, environ)

    def run(self, mode: str, isolated: str = "2-3", **found: Any) -> list[str]:
        plan = self.plan(mode, isolated, found)
        self.systemd.calls.clear()
        _service_state.apply_plan(plan, self.systemd)
        if any(call.startswith(("start", "restart")) for call in self.systemd.calls):
            path = self.root / _irqbalance.ENVIRONMENT[1:]
            line = path.read_text().splitlines()[1] if path.exists() else ""
            self.environ = f"LANG=C\0{line}\0"
        if mode == "off":
            assert UNIT not in self.systemd.active
        assert self.plan(mode, isolated, found).changes == [], "the second time nothing changes"
        return [str(row["resource"]) for row in plan.changes]


def test_a_running_daemon_gets_the_list(tmp_path: Path) -> None:
    host = Host(tmp_path, active=True)
    assert host.run("ban_isolated") == [*FILES, f"unit:{UNIT}"]
    assert host.systemd.calls == ["daemon-reload", f"restart {UNIT}"]
    assert host.run("ban_isolated", "3") == [FILES[0], f"unit:{UNIT}"]


def test_a_daemon_with_another_list_is_restarted(tmp_path: Path) -> None:
    """A run that was killed between the files and the restart is completed."""
    host = Host(tmp_path, active=True)
    host.run("ban_isolated")
    host.environ = "IRQBALANCE_BANNED_CPULIST=7\0"
    assert host.run("ban_isolated") == [f"unit:{UNIT}"] and host.systemd.calls == [f"restart {UNIT}"]


def test_one_that_is_not_running_stays_so(tmp_path: Path) -> None:
    host = Host(tmp_path, active=False)
    for mode in ("ban_isolated", "off", "keep"):
        host.run(mode, active=False)
        assert host.systemd.active == set()


def test_off_stops_it_and_keep_starts_what_ran(tmp_path: Path) -> None:
    host = Host(tmp_path, active=True)
    assert host.run("off") == [FILES[1], f"unit:{UNIT}"]
    assert host.systemd.calls == ["daemon-reload", f"stop {UNIT}"]
    host.systemd.active.add(UNIT)
    assert host.run("off") == [f"unit:{UNIT}"], "one that runs nevertheless is stopped"
    assert host.run("keep", active=True) == [FILES[1], f"unit:{UNIT}"]
    assert host.systemd.active == {UNIT}


def test_from_off_to_a_ban(tmp_path: Path) -> None:
    host = Host(tmp_path, active=True)
    host.run("off")
    host.run("ban_isolated", active=True)
    assert host.systemd.active == {UNIT} and "BANNED_CPULIST=2-3" in host.environ


def test_without_a_record_one_that_is_enabled_is_started(tmp_path: Path) -> None:
    host = Host(tmp_path, active=True)
    host.run("off")
    wants = tmp_path / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True)
    (wants / UNIT).symlink_to(f"/usr/lib/systemd/system/{UNIT}")
    host.run("keep")
    assert host.systemd.active == {UNIT}


def test_without_isolated_cpus_there_is_nothing_to_ban(tmp_path: Path) -> None:
    host = Host(tmp_path, active=True)
    assert host.run("ban_isolated", "") == [] and host.systemd.active == {UNIT}


@pytest.mark.parametrize(
    ("environ", "banned"),
    [
        ("A=1\0IRQBALANCE_BANNED_CPULIST=2-3\0", frozenset((2, 3))),
        ("XIRQBALANCE_BANNED_CPULIST=2\0", None),
        ("IRQBALANCE_BANNED_CPULIST=x\0", None),
        ("", None),
        (None, None),
    ],
)
def test_the_list_of_a_process(environ: str | None, banned: frozenset[int] | None) -> None:
    assert _irqbalance.banned_by(environ) == banned
