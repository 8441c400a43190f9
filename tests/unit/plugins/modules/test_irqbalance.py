# SPDX-License-Identifier: GPL-3.0-or-later
"""irqbalance: only files of ours, exact check mode, and everything back with keep."""

from __future__ import annotations

from pathlib import Path

from support import put, run_module

DROPIN = "etc/systemd/system/irqbalance.service.d/zz-firsttouch.conf"
ENVIRONMENT = "etc/firsttouch/irqbalance.env"


def files(root: Path) -> dict[str, str]:
    return {str(p.relative_to(root)): p.read_text() for p in root.rglob("*") if p.is_file()}


def host(root: Path) -> Path:
    put(root, "/usr/lib/systemd/system/irqbalance.service", "[Service]\nExecStart=/usr/sbin/irqbalance\n")
    return root


def test_check_mode_predicts_and_writes_nothing(tmp_path: Path) -> None:
    args = {"mode": "ban_isolated", "isolated": "2-3", "sysroot": str(host(tmp_path))}
    before = files(tmp_path)
    predicted = run_module("irqbalance", args, check=True)
    assert files(tmp_path) == before
    done = run_module("irqbalance", args)
    assert predicted["changes"] == done["changes"] and done["changed"]
    assert "IRQBALANCE_BANNED_CPULIST=2-3" in (tmp_path / ENVIRONMENT).read_text()
    assert "/etc/firsttouch/irqbalance.env" in (tmp_path / DROPIN).read_text()
    assert not run_module("irqbalance", args)["changed"]


def test_keep_removes_only_what_is_ours(tmp_path: Path) -> None:
    root = str(host(tmp_path))
    before = files(tmp_path)
    run_module("irqbalance", {"mode": "ban_isolated", "isolated": "2-3", "sysroot": root})
    assert run_module("irqbalance", {"mode": "keep", "sysroot": root})["changed"]
    assert files(tmp_path) == before
    assert not (tmp_path / DROPIN).parent.exists()


def test_off_is_a_condition_that_never_holds(tmp_path: Path) -> None:
    run_module("irqbalance", {"mode": "off", "sysroot": str(host(tmp_path))})
    assert "ConditionPathExists=!/\n" in (tmp_path / DROPIN).read_text()
    assert not (tmp_path / ENVIRONMENT).exists()


def test_a_foreign_file_is_refused_unchanged(tmp_path: Path) -> None:
    put(host(tmp_path), "/" + DROPIN, "[Service]\nNice=5\n")
    result = run_module("irqbalance", {"mode": "off", "sysroot": str(tmp_path)})
    assert result["failed"] and result["reason"] == "foreign_file" and "/" + DROPIN in result["msg"]
    assert (tmp_path / DROPIN).read_text() == "[Service]\nNice=5\n"


def test_without_irqbalance_nothing_happens(tmp_path: Path) -> None:
    result = run_module("irqbalance", {"mode": "off", "sysroot": str(tmp_path)})
    assert not result["changed"] and not result["installed"] and files(tmp_path) == {}


def test_a_list_that_is_none_is_refused(tmp_path: Path) -> None:
    result = run_module("irqbalance", {"mode": "ban_isolated", "isolated": "4-3", "sysroot": str(host(tmp_path))})
    assert result["failed"] and result["reason"] == "bad_value"
