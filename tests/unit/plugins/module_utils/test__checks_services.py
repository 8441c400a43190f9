# SPDX-License-Identifier: GPL-3.0-or-later
"""Conflicting services in the verification: named with file and settings, stopped when asked, never a false ok."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import verified_host as vh
from ansible_collections.firsttouch.host.plugins.module_utils import _checks_services, _services
from ansible_collections.firsttouch.host.plugins.module_utils._checks_host import Context, answered
from ansible_collections.firsttouch.host.plugins.module_utils._verdict import Result
from plan_host import record
from support import put, run_module

TUNED = "tuned.service"
PROFILE = "/etc/tuned/ours/tuned.conf"
WANTS = "etc/systemd/system/multi-user.target.wants/tuned.service"
MARK = "run/systemd/units/invocation:tuned.service"
Wish = dict[str, Any]


def wish(mode: str | None) -> Wish:
    return {"vm_sysctls": {"vm.swappiness": 0}, "conflicting_services": mode}


def link(root: Path, path: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).symlink_to("/usr/lib/systemd/system/tuned.service")


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """tuned is enabled and runs, and its profile sets a sysctl."""
    vh.bare_host(tmp_path)
    put(tmp_path, "/usr/lib/systemd/system/tuned.service", "[Service]\nExecStart=/usr/sbin/tuned\n")
    put(tmp_path, "/etc/tuned/active_profile", "ours\n")
    put(tmp_path, PROFILE, "[sysctl]\nvm.swappiness=10\n")
    for path in (WANTS, MARK):
        link(tmp_path, path)
    return tmp_path


def ask(root: Path, intent: Wish) -> dict[str, Result]:
    ctx = Context(vh.plan_for(root, intent), str(root))
    rows = [row for check in _checks_services.CHECKS for row in answered(check, ctx)]
    return {row.id: row for row in rows}


def stop(root: Path) -> None:
    """As provisioning does, and systemd on a host: the mark of a stopped unit goes."""
    run_module("conflicting_services", {"stop": [TUNED], "sysroot": str(root)})
    (root / MARK).unlink()


@pytest.mark.parametrize("mode", [None, "report"])
def test_report_warns_and_names_file_and_settings(host: Path, mode: str | None) -> None:
    found = ask(host, wish(mode))
    assert list(found) == ["services.tuned"]
    row = found["services.tuned"]
    assert (row.status, row.reason, row.source) == ("warn", "foreign_owner", f"{PROFILE}:2")
    assert row.observed == {
        "state": "enabled, active",
        "overrides": ["vm.swappiness=10 against vm.swappiness=0"],
    }
    assert "firsttouch_conflicting_services" in row.remedy and "firsttouch_vm_sysctls" in row.remedy


def test_stop_fails_until_it_is_stopped(host: Path) -> None:
    found = ask(host, wish("stop"))
    assert {name: (row.status, row.reason) for name, row in found.items()} == {
        "services.tuned": ("fail", "foreign_owner"),
        "services.tuned.dropin": ("fail", "not_configured"),
        "services.tuned.running": ("fail", "running"),
    }
    stop(host)
    found = ask(host, wish("stop"))
    assert sorted(found) == ["services.conflicts", "services.tuned.dropin", "services.tuned.running"]
    assert {row.status for row in found.values()} == {"pass"}


def test_one_that_neither_runs_nor_will_is_no_conflict(host: Path) -> None:
    for path in (WANTS, MARK):
        (host / path).unlink()
    assert [row.status for row in ask(host, wish("report")).values()] == ["pass"]
    assert ask(host, wish(None)) == {}


def test_one_that_sets_nothing_of_ours_is_no_conflict(host: Path) -> None:
    put(host, PROFILE, "[sysctl]\nvm.swappiness=0\nnet.core.somaxconn=5\n")
    assert [row.status for row in ask(host, wish("stop")).values()] == ["pass"]


def test_what_is_held_and_not_asked_for_is_left_over(host: Path) -> None:
    stop(host)
    row = ask(host, wish("report"))["services.tuned.dropin"]
    assert (row.status, row.reason) == ("fail", "not_removed")
    assert ask(host, {"vm_sysctls": {"vm.swappiness": 0}})["services.tuned.dropin"].status == "warn"


def test_a_recording_without_units_tells_nothing(host: Path) -> None:
    (host / f"usr/lib/systemd/system/{TUNED}").unlink()
    row = ask(host, wish("report"))["services.conflicts"]
    assert (row.status, row.reason, row.intended) == ("not_evaluated", "not_recorded", True)


def test_a_held_tuned_does_not_set_sysctls_any_more(host: Path) -> None:
    plan = vh.plan_for(host, wish("stop"))
    put(host, vh.SYSCTL, "vm.swappiness = 0\n")

    def warnings() -> list[str]:
        results = run_module("host_verify", {"plan": plan, "sysroot": str(host)})["results"]
        return [row["id"] for row in results if row["id"].startswith("vm_sysctls.tuned")]

    assert warnings() == ["vm_sysctls.tuned.vm.swappiness"]
    stop(host)
    assert warnings() == []


def test_the_plan_stops_by_what_is_set_and_is_the_same_afterwards(host: Path) -> None:
    result = run_module("host_plan", {"intent": wish("stop"), "sysroot": str(host)})
    assert result["plan"]["sections"]["services"]["stop"] == [TUNED]
    before = record(host, result)["before"]
    assert before["services"] == {TUNED: {"enabled": True, "active": True}}
    stop(host)
    again = run_module("host_plan", {"intent": wish("stop"), "sysroot": str(host)})
    done = record(host, again)
    assert not done["changed"] and done["before"]["services"] == before["services"]
    back = run_module("host_plan", {"intent": {}, "revert": True, "sysroot": str(host)})
    assert back["plan"]["sections"]["services"]["stop"] == []
    assert record(host, back)["before"]["services"] == before["services"], "still held: needed to start it"
    run_module("conflicting_services", {"found": before["services"], "sysroot": str(host)})
    assert _services.held(str(host)) == []
    assert record(host, back)["before"]["services"] == {}


def test_irqbalance_off_is_remembered_too(host: Path) -> None:
    result = run_module("host_plan", {"intent": {"irqbalance": "off"}, "sysroot": str(host)})
    assert record(host, result)["before"]["services"] == {
        "irqbalance.service": {"enabled": False, "active": False}
    }


@pytest.mark.parametrize("value", ["on", True, "Stop", ["stop"], 1])
def test_other_words_are_refused(host: Path, value: object) -> None:
    result = run_module("host_plan", {"intent": {"conflicting_services": value}, "sysroot": str(host)})
    assert [(row["reason"], row["variable"]) for row in result["refusals"]] == [
        ("bad_value", "firsttouch_conflicting_services")
    ]


def test_what_cannot_be_read_is_not_taken_for_harmless(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(root: str) -> None:
        raise PermissionError(13, "Permission denied", PROFILE)

    monkeypatch.setattr(_services, "read_claims", refuse)
    result = run_module("host_plan", {"intent": wish("stop"), "sysroot": str(host)})
    assert [row["reason"] for row in result["refusals"]] == ["services_unknown"]
    row = ask(host, wish("report"))["services.read"]
    assert (row.status, row.reason, row.source, row.intended) == (
        "not_evaluated",
        "permission_denied",
        PROFILE,
        True,
    )
