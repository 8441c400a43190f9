# SPDX-License-Identifier: GPL-3.0-or-later
"""systemd_units as a module, on an offline tree; starting and stopping is tested on the test host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from support import put, run_module

DIR = "etc/systemd/system"
TEXT = "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"


def run(root: Path | str, check: bool = False, **args: Any) -> dict[str, Any]:
    return run_module("systemd_units", {"sysroot": str(root), **args}, check=check)


def snapshot(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): os.readlink(path) if path.is_symlink() else path.read_text()
        for path in root.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def test_check_predicts_run_and_run_twice(tmp_path: Path) -> None:
    wanted = [{"name": "a.service", "content": TEXT, "enabled": True, "state": "started"}]
    predicted = run(tmp_path, check=True, units=wanted)
    assert snapshot(tmp_path) == {}
    done = run(tmp_path, units=wanted)
    assert predicted["changes"] == done["changes"]
    assert predicted["diff"] == done["diff"]
    assert done["changed"]
    assert [row["resource"] for row in done["changes"]] == [
        "file:/etc/systemd/system/a.service",
        "unit:a.service",
    ]
    assert sorted(snapshot(tmp_path)) == [f"{DIR}/a.service", f"{DIR}/multi-user.target.wants/a.service"]
    assert done["diff"][0]["after"].endswith(TEXT)
    assert done["pending"] == []
    again = run(tmp_path, units=wanted)
    assert not again["changed"]
    assert again["changes"] == []
    gone = run(tmp_path, absent=["a.service"])
    assert gone["changed"]
    assert snapshot(tmp_path) == {}
    assert not run(tmp_path, absent=["a.service"])["changed"]


def test_foreign_file(tmp_path: Path) -> None:
    put(tmp_path, f"/{DIR}/a.service", "# mine\n")
    result = run(tmp_path, units=[{"name": "a.service", "content": TEXT}])
    assert result["failed"]
    assert (result["reason"], result["unit"]) == ("foreign_file", "a.service")
    assert "/etc/systemd/system/a.service" in result["msg"]


def test_running_host_without_systemd() -> None:
    real = os.path.isdir
    with mock.patch("os.path.isdir", lambda path: False if path == "/run/systemd/system" else real(path)):
        result = run("/", check=True, units=[{"name": "a.service", "content": TEXT}])
    assert result["failed"]
    assert result["reason"] == "no_systemd"


@pytest.mark.parametrize("name", ["a", "../x.service", "a.service/b"])
def test_bad_names(tmp_path: Path, name: str) -> None:
    assert run(tmp_path, absent=[name])["reason"] == "bad_name"
