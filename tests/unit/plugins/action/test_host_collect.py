# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller side of host_collect: what it writes, where, and what it leaves of the result."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ansible.plugins.action", reason="runs on the controller only")

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.firsttouch.host.plugins.action import host_collect


def action(
    dest: str, basedir: Path, result: dict[str, Any], check: bool = False
) -> host_collect.ActionModule:
    plugin = host_collect.ActionModule.__new__(host_collect.ActionModule)
    plugin._task = SimpleNamespace(args={"dest": dest}, check_mode=check, async_val=0)
    plugin._loader = SimpleNamespace(get_basedir=lambda: str(basedir))
    plugin._execute_module = lambda task_vars=None, **_kw: dict(result)
    return plugin


@pytest.fixture(autouse=True)
def _no_base_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActionBase, "run", lambda self, tmp=None, task_vars=None: {})


ARCHIVE = {"archive": base64.b64encode(b"data").decode(), "compression": "xz", "entries": 3, "invocation": {}}


def test_the_archive_is_written_once_and_not_returned(tmp_path: Path) -> None:
    first = action("rec/a.tar.xz", tmp_path, ARCHIVE).run()
    path = tmp_path / "rec/a.tar.xz"
    assert path.read_bytes() == b"data" and first["changed"] and first["dest"] == str(path)
    assert first["changes"] == [{"resource": f"file:{path}", "before": None, "after": "written"}]
    assert not {"archive", "compression", "invocation"} & set(first)
    again = action("rec/a.tar.xz", tmp_path, ARCHIVE).run()
    assert not again["changed"] and again["changes"] == []
    assert [entry.name for entry in path.parent.iterdir()] == ["a.tar.xz"]


def test_check_mode_predicts_and_writes_nothing(tmp_path: Path) -> None:
    result = action("rec/a", tmp_path, ARCHIVE, check=True).run()
    assert result["changed"] and list(tmp_path.iterdir()) == []
    real = action("rec/a", tmp_path, ARCHIVE).run()
    assert real["changes"] == result["changes"]


@pytest.mark.parametrize(
    ("dest", "compression", "name"),
    [
        ("a", "xz", "a.tar.xz"),
        ("a.tar.xz", "gz", "a.tar.gz"),
        ("host.example.org", "xz", "host.example.org.tar.xz"),
        ("a.tar.gz", "gz", "a.tar.gz"),
    ],
)
def test_the_suffix_says_how_it_is_compressed(tmp_path: Path, dest: str, compression: str, name: str) -> None:
    assert host_collect.target(dest, str(tmp_path), compression, "x") == str(tmp_path / name)


def test_a_directory_has_one_file_for_each_host_and_none_leaves_it(tmp_path: Path) -> None:
    hosts = ("a", "web17.example.org", "../x", "..", "/etc/x", "a/../../b", "a.tar.xz", "a.tar.gz", "", "x\ny")
    for host in hosts:
        returned = action("rec/", tmp_path, ARCHIVE).run(task_vars={"inventory_hostname": host})
        assert returned["changed"], host
    assert {path.parent for path in tmp_path.rglob("*.tar.xz")} == {tmp_path / "rec"}
    found = {path.name for path in (tmp_path / "rec").iterdir()}
    assert len(found) == len(hosts) and {"a.tar.xz", "web17.example.org.tar.xz"} <= found


def test_a_failed_module_stays_failed(tmp_path: Path) -> None:
    result = action("a", tmp_path, {"failed": True, "msg": "no"}).run()
    assert result == {"failed": True, "msg": "no"} and list(tmp_path.iterdir()) == []


def test_a_destination_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AnsibleActionFail, match="dest:"):
        action("file/a", tmp_path, ARCHIVE).run()


def test_half_an_archive_is_never_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_old: str, _new: str) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(OSError, match="no space"):
        host_collect.write(str(tmp_path / "a"), b"data")
    assert list(tmp_path.iterdir()) == []
