# SPDX-License-Identifier: GPL-3.0-or-later
"""sysctl_dropin as a module: check mode, diff, idempotence, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import put, run_module

PATH = "/etc/sysctl.d/zz-firsttouch.conf"


def dropin(root: Path, check: bool = False, **args: Any) -> dict[str, Any]:
    return run_module("sysctl_dropin", {"sysroot": str(root), **args}, check=check)


def snapshot(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def host(tmp_path: Path) -> Path:
    for key, value in (("vm/swappiness", "60"), ("vm/laptop_mode", "0"), ("vm/stat_interval", "1")):
        put(tmp_path, f"/proc/sys/{key}", f"{value}\n")
    return tmp_path


def test_check_predicts_run_and_run_twice(host: Path) -> None:
    before = snapshot(host)
    values = {"vm.swappiness": 1, "vm.stat_interval": 1}
    predicted = dropin(host, check=True, values=values)
    assert snapshot(host) == before
    done = dropin(host, values=values)
    assert predicted["changed"]
    assert predicted["changes"] == done["changes"]
    assert predicted["diff"] == done["diff"]
    assert done["sysctls"] == {"vm.swappiness": "applied", "vm.stat_interval": "applied"}
    assert done["found"] == {"vm.swappiness": "60", "vm.stat_interval": "1"}
    assert [part["before_header"] for part in done["diff"]] == [PATH, "/proc/sys"]
    after = snapshot(host)
    for check in (True, False):
        again = dropin(host, check=check, values=values)
        assert not again["changed"]
        assert again["changes"] == []
        assert again["diff"] == []
    assert snapshot(host) == after
    assert (host / PATH[1:]).stat().st_mode & 0o777 == 0o644


def test_absent_restores(host: Path) -> None:
    before = snapshot(host)
    found = dropin(host, values={"vm.swappiness": 1, "vm.laptop_mode": 5})["found"]
    predicted = dropin(host, check=True, state="absent", restore=found)
    done = dropin(host, state="absent", restore=found)
    assert predicted["changes"] == done["changes"]
    assert done["changed"]
    assert snapshot(host) == before
    assert done["not_restored"] == []
    assert not dropin(host, state="absent", restore=found)["changed"]


def test_absent_without_values_to_restore_says_so(host: Path) -> None:
    dropin(host, values={"vm.swappiness": 1})
    done = dropin(host, state="absent")
    assert done["not_restored"] == ["vm.swappiness"]
    assert [row["resource"] for row in done["changes"]] == [f"file:{PATH}"]


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ({"values": {"vm.swappiness": "1\n2"}}, "bad_value"),
        ({"values": {"vm": 1}}, "bad_key"),
        ({"values": {"vm.nope": 1}}, "unknown_key"),
        ({"values": {"vm.swappiness": 1}, "state": "absent"}, "bad_value"),
        ({"values": {"vm.swappiness": 1}, "path": "/etc/sysctl.conf"}, "bad_path"),
        ({"values": {"vm.swappiness": 1}, "restore": {"vm.swappiness": None}}, "bad_value"),
        ({"values": {"vm.nr_hugepages": 1}}, "nr_hugepages_in_sysctl"),
    ],
)
def test_refusals_change_nothing(host: Path, args: dict[str, Any], reason: str) -> None:
    before = snapshot(host)
    for check in (True, False):
        result = dropin(host, check=check, **args)
        assert result["failed"]
        assert result["reason"] == reason
        assert result["msg"]
    assert snapshot(host) == before


def test_override_as_a_warning(host: Path) -> None:
    put(host, "/etc/sysctl.d/zzz-vendor.conf", "vm.swappiness = 30\n")
    refused = dropin(host, check=True, values={"vm.swappiness": 1})
    assert refused["failed"]
    assert refused["file"] == "/etc/sysctl.d/zzz-vendor.conf"
    assert "firsttouch_" in refused["msg"]
    assert "zzz-vendor.conf:1" in refused["msg"]
    done = dropin(host, values={"vm.swappiness": 1}, on_override="warn")
    assert done["sysctls"] == {"vm.swappiness": "overridden"}
    assert done["overridden"] == {"vm.swappiness": "/etc/sysctl.d/zzz-vendor.conf"}
