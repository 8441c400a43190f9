# SPDX-License-Identifier: GPL-3.0-or-later
"""Transparent huge pages as planned, then wrong in one way at a time; and the boot argument that needs no boot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import verified_host as vh
from ansible_collections.firsttouch.host.plugins.module_utils import _checks_thp, _thp
from ansible_collections.firsttouch.host.plugins.module_utils._checks_host import Context, answered
from ansible_collections.firsttouch.host.plugins.module_utils._systemd import MARKER
from support import put, run_module

SYSFS = _thp.DIRECTORY
WISH: dict[str, Any] = {"thp": {"enabled": "madvise", "defrag": "defer"}}
Answers = dict[str, tuple[str, str, str]]


@pytest.fixture
def host(tmp_path: Path) -> Path:
    vh.bare_host(tmp_path)
    put(tmp_path, f"{SYSFS}/enabled", "always [madvise] never\n")
    put(tmp_path, f"{SYSFS}/defrag", "always [defer] madvise never\n")
    put(tmp_path, f"{SYSFS}/hugepages-64kB/enabled", "always inherit madvise [never]\n")
    put(tmp_path, f"{SYSFS}/hugepages-2048kB/enabled", "always [inherit] madvise never\n")
    values = WISH["thp"]
    run_module("thp", {"values": values, "sysroot": str(tmp_path)})
    return tmp_path


def ask(root: Path, plan: dict[str, Any], live: bool = False) -> Answers:
    ctx = Context(plan, str(root))
    ctx.live = live
    rows = [row for check in _checks_thp.CHECKS for row in answered(check, ctx)]
    assert all("firsttouch_thp" in row.remedy for row in rows if row.status in ("fail", "warn"))
    return {row.id: (row.status, row.reason, row.source) for row in rows}


def wrong(answers: Answers) -> Answers:
    return {name: row for name, row in answers.items() if row[0] != "pass"}


def test_as_planned(host: Path) -> None:
    found = ask(host, vh.plan_for(host, WISH))
    assert sorted(found) == [
        "thp.defrag", "thp.file", "thp.mode", "thp.next_boot.defrag", "thp.next_boot.enabled", "thp.sizes",
    ]  # fmt: skip
    assert wrong(found) == {}


@pytest.mark.parametrize(
    ("path", "text", "answer"),
    [
        (
            f"{SYSFS}/enabled",
            "[always] madvise never\n",
            {"thp.mode": ("fail", "wrong_value", f"{SYSFS}/enabled")},
        ),
        (
            f"{SYSFS}/defrag",
            "always defer [madvise] never\n",
            {"thp.defrag": ("fail", "wrong_value", f"{SYSFS}/defrag")},
        ),
        (
            f"{SYSFS}/hugepages-64kB/enabled",
            "[always] inherit madvise never\n",
            {"thp.sizes": ("warn", "overridden_by", f"{SYSFS}/hugepages-64kB/enabled")},
        ),
        (
            _thp.FILE,
            f"{MARKER}\nw {SYSFS}/defrag - - - - never\n",
            {"thp.file": ("fail", "changed_by_hand", _thp.FILE)},
        ),
        (
            "/etc/sysfs.conf",
            "kernel/mm/transparent_hugepage/enabled = always\n",
            {"thp.next_boot.enabled": ("fail", "overridden_by", "/etc/sysfs.conf:1")},
        ),
    ],
)
def test_wrong_in_one_way(host: Path, path: str, text: str, answer: Answers) -> None:
    plan = vh.plan_for(host, WISH)
    put(host, path, text)
    assert wrong(ask(host, plan)) == answer


def test_absent_and_not_recorded_are_two_answers(host: Path) -> None:
    plan = vh.plan_for(host, WISH)
    (host / _thp.FILE[1:]).unlink()
    (host / SYSFS[1:] / "enabled").unlink()
    assert wrong(ask(host, plan))["thp.mode"][:2] == ("not_evaluated", "not_recorded")
    found = wrong(ask(host, plan, live=True))
    assert found["thp.mode"][:2] == ("fail", "unsupported")
    assert found["thp.file"][:2] == ("fail", "not_configured")


def test_what_is_to_go_must_be_gone(host: Path) -> None:
    assert wrong(ask(host, vh.plan_for(host, {"thp": "absent"})))["thp.file"][:2] == ("fail", "not_removed")
    assert wrong(ask(host, vh.plan_for(host, {})))["thp.file"][:2] == ("warn", "not_removed")


def test_a_kernel_without_them_is_as_asked(tmp_path: Path) -> None:
    vh.bare_host(tmp_path)
    plan = vh.plan_for(tmp_path, {"thp": "never"})
    assert plan["sections"]["thp"]["settings"] == {}
    assert ask(tmp_path, plan)["thp.mode"][:2] == ("not_evaluated", "not_recorded")
    assert ask(tmp_path, plan, live=True)["thp.mode"][:2] == ("pass", "")
    put(tmp_path, f"{SYSFS}/enabled", "[always] madvise never\n")
    assert ask(tmp_path, plan)["thp.mode"][:2] == ("fail", "wrong_value")


def test_the_boot_argument_needs_no_boot_of_its_own(host: Path) -> None:
    """It is checked in the files; what runs is what the live mode says."""
    plan = vh.plan_for(host, {"thp": "madvise"})
    put(host, "/etc/firsttouch/plan.json", json.dumps(plan))
    wanted = {"tokens": plan["boot"]["tokens"], "keys": plan["boot"]["keys"], "sysroot": str(host)}
    done = run_module("kernel_cmdline", wanted)
    assert done["changed"] and done["reboot_due"] is False
    vh.grub_cfg(host, "quiet transparent_hugepage=madvise")
    put(host, vh.DROPIN, 'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT transparent_hugepage=madvise"\n')
    rows = {row["id"]: row for row in run_module("host_verify", {"sysroot": str(host)})["results"]}
    boot = {name: row["status"] for name, row in rows.items() if name.startswith(("boot.tokens", "boot.pending"))}
    assert boot == {
        "boot.tokens.configured": "pass",
        "boot.tokens.next_boot": "pass",
        "boot.pending_reboot": "pass",
    }
    vh.grub_cfg(host, "quiet")
    rows = {row["id"]: row for row in run_module("host_verify", {"sysroot": str(host)})["results"]}
    assert rows["boot.tokens.next_boot"]["status"] == "fail"
    assert "firsttouch_thp" in rows["boot.tokens.next_boot"]["remedy"]


@pytest.mark.parametrize(
    ("foreign", "reason"),
    [("transparent_hugepage=madvise", None), ("transparent_hugepage=bad", "foreign_token"),
     ("transparent_hugepage=always", "foreign_token")],
)  # fmt: skip
def test_the_argument_of_somebody_else(host: Path, foreign: str, reason: str | None) -> None:
    """The same one is no conflict, also beside other arguments of ours; another one is named, never taken over."""
    put(host, "/etc/default/grub", f'GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX="{foreign}"\n')
    tokens = ["nohz_full=1,3", "transparent_hugepage=madvise"]
    done = run_module("kernel_cmdline", {"tokens": tokens, "sysroot": str(host)})
    assert done.get("reason") == reason, done
    assert bool(done.get("failed")) is (reason is not None)
