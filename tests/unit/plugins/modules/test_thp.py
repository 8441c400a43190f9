# SPDX-License-Identifier: GPL-3.0-or-later
"""The module thp on a tree that is not the running host: only its file, exact check mode, foreign files kept."""

from __future__ import annotations

from pathlib import Path

from support import put, run_module

FILE = "/etc/tmpfiles.d/00-firsttouch-thp.conf"


def files(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def test_check_mode_predicts_and_writes_nothing(tmp_path: Path) -> None:
    args = {"values": {"enabled": "madvise", "defrag": "defer+madvise"}, "sysroot": str(tmp_path)}
    predicted = run_module("thp", args, check=True)
    assert files(tmp_path) == {}
    done = run_module("thp", args)
    assert predicted["changes"] == done["changes"] and predicted["diff"] == done["diff"] and done["changed"]
    assert set(files(tmp_path)) == {FILE[1:]}
    assert not run_module("thp", args)["changed"]


def test_without_values_what_is_ours_goes(tmp_path: Path) -> None:
    run_module("thp", {"values": {"enabled": "never"}, "sysroot": str(tmp_path)})
    result = run_module("thp", {"restore": {"enabled": "always"}, "sysroot": str(tmp_path)})
    assert result["changes"][0]["after"] is None and files(tmp_path) == {}
    assert not run_module("thp", {"sysroot": str(tmp_path)})["changed"]


def test_a_foreign_file_is_refused_unchanged(tmp_path: Path) -> None:
    put(tmp_path, FILE, "w /sys/x - - - - 1\n")
    result = run_module("thp", {"values": {"enabled": "never"}, "sysroot": str(tmp_path)})
    assert result["failed"] and result["reason"] == "foreign_file" and result["file"] == FILE
    assert not run_module("thp", {"sysroot": str(tmp_path)})["changed"], "nothing of ours is to go"
    assert files(tmp_path) == {FILE[1:]: "w /sys/x - - - - 1\n"}


def test_other_words_are_refused(tmp_path: Path) -> None:
    for values in ({"enabled": "on"}, {"mode": "never"}):
        assert run_module("thp", {"values": values, "sysroot": str(tmp_path)})["failed"]
    assert files(tmp_path) == {}
