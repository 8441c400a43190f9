# SPDX-License-Identifier: GPL-3.0-or-later
"""sysctl_info as a module: its edges; what it says is tested in tests/unit/cases."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from support import put, run_module


def info(root: Path, **args: Any) -> dict[str, Any]:
    return run_module("sysctl_info", {"sysroot": str(root), **args})


def test_empty_tree(tmp_path: Path) -> None:
    result = info(tmp_path)
    assert not result.get("failed")
    assert not result["changed"]
    for key in ("order", "masked", "foreign_unsupported", "foreign_writers", "findings", "notes"):
        assert result[key] == []
    assert result["sysctls"] == {}
    assert result["verdict"] is None


def test_no_writes(tmp_path: Path) -> None:
    put(tmp_path, "/etc/sysctl.d/a.conf", "vm.swappiness = 1\n")
    put(tmp_path, "/proc/sys/vm/swappiness", "1\n")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    info(tmp_path, want={"vm.swappiness": 1})
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ({"want": {"vm.swappiness": True}}, "bad_value"),
        ({"want": {"vm.*": 1}}, "bad_key"),
        ({"want": {"vm.a": 1, "vm/a": 1}}, "duplicate_key"),
        ({"optional": ["nodots"]}, "bad_key"),
        ({"default_hugepage_size": "huge"}, "bad_value"),
    ],
)
def test_bad_requests(tmp_path: Path, args: dict[str, Any], reason: str) -> None:
    result = info(tmp_path, **args)
    assert result["failed"]
    assert result["reason"] == reason
    assert result["msg"]


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        (None, "nr_hugepages_in_sysctl"),
        ("2M", "nr_hugepages_in_sysctl"),
        ("1G", "nr_hugepages_default_size_overcommit"),
    ],
)
def test_default_size_of_the_next_boot(tmp_path: Path, size: str | None, reason: str) -> None:
    put(tmp_path, "/etc/sysctl.d/a.conf", "vm.nr_hugepages = 2048\n")
    put(tmp_path, "/proc/meminfo", "MemTotal: 65850368 kB\nHugepagesize: 2048 kB\n")
    assert info(tmp_path, default_hugepage_size=size)["findings"][0]["reason"] == reason


def test_unreadable_file_is_a_note_and_no_pass(tmp_path: Path) -> None:
    put(tmp_path, "/etc/sysctl.d/50-a.conf", "vm.swappiness = 1\n")
    put(tmp_path, "/etc/sysctl.d/60-b.conf", "vm.swappiness = 2\n")
    put(tmp_path, "/proc/sys/vm/swappiness", "1\n")
    real_open = os.open

    def guarded(path: Any, *args: Any, **kwargs: Any) -> Any:
        if str(path).endswith("60-b.conf"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real_open(path, *args, **kwargs)

    with mock.patch("os.open", guarded):
        result = info(tmp_path, want={"vm.swappiness": 1})
    row = result["sysctls"]["vm.swappiness"]
    assert (row["verdict"], row["reason"], row["file"]) == (
        "unknown",
        "permission_denied",
        "/etc/sysctl.d/60-b.conf",
    )
    assert [(note["reason"], note["file"]) for note in result["notes"]] == [
        ("permission_denied", "/etc/sysctl.d/60-b.conf")
    ]


def test_notes_name_lines(tmp_path: Path) -> None:
    put(tmp_path, "/usr/lib/sysctl.d/50-a.conf", "junk\nnet.bridge.x = 1\nvm.swappiness = 1\n")
    put(tmp_path, "/proc/sys/vm/swappiness", "1\n")
    result = info(tmp_path, want={"vm.swappiness": 1})
    assert [(note["reason"], note["line"]) for note in result["notes"]] == [
        ("foreign_unsupported", 2),
        ("not_an_assignment", 1),
    ]
    assert result["verdict"] == "pass"


@pytest.mark.parametrize("path", ["/etc/tmpfiles.d/x.conf", "/etc/tmpfiles.d", "/etc/ufw/ufw.conf"])
def test_what_is_closed_of_another_writer_is_a_note(tmp_path: Path, path: str) -> None:
    put(tmp_path, "/etc/sysctl.d/50-a.conf", "vm.swappiness = 1\n")
    put(tmp_path, "/proc/sys/vm/swappiness", "1\n")
    closed = tmp_path / path.lstrip("/")
    closed.parent.mkdir(parents=True, exist_ok=True)
    closed.symlink_to(closed.name)
    result = info(tmp_path, want={"vm.swappiness": 1})
    assert result["verdict"] == "pass"
    (row,) = result["notes"]
    assert row["reason"] == "read_error" and row["file"].endswith(path), row
