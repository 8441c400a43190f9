# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller side of runtime_install: which wheels it pushes, when, and what it says when there are none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ansible.plugins.action", reason="runs on the controller only")

from ansible.plugins.action import ActionBase
from ansible_collections.firsttouch.host.plugins.action import runtime_install

WHEELS = (
    "numpy-2.1.0-cp313-cp313-manylinux_2_28_x86_64.whl",
    "msgspec-0.19.0-cp313-cp313-manylinux2014_x86_64.whl",
)


class Host:
    """Records what the plugin does to a host that answers `query`."""

    def __init__(self, installed: list[str]) -> None:
        self.calls: list[dict[str, Any]] = []
        self.pushed: list[str] = []
        self.made: list[str] = []
        self.removed: list[str] = []
        self.found = {"python": [3, 13, 5], "machine": "x86_64", "glibc": [2, 41], "installed": installed}

    def execute(self, module_args: dict[str, Any], task_vars: Any = None) -> dict[str, Any]:
        self.calls.append(module_args)
        return dict(self.found) if module_args["state"] == "query" else {"changed": True}

    def make(self, shell: SimpleNamespace) -> str:
        """As the base class: the shell knows the directory from then on."""
        shell.tmpdir = "/remote"
        self.made.append(shell.tmpdir)
        return "/remote"


@pytest.fixture(autouse=True)
def _no_base_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActionBase, "run", lambda self, tmp=None, task_vars=None: {})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "wheels").mkdir()
    for name in WHEELS:
        (tmp_path / "wheels" / name).write_bytes(name.encode())
    return tmp_path


def go(
    folder: Path, host: Host, check: bool = False, tmpdir: str | None = None, **args: Any
) -> dict[str, Any]:
    plugin = runtime_install.ActionModule.__new__(runtime_install.ActionModule)
    plugin._task = SimpleNamespace(
        args={"wheels_dir": "wheels", "state": "present", **args}, check_mode=check
    )
    shell = SimpleNamespace(tmpdir=tmpdir, join_path=lambda *parts: "/".join(parts))
    plugin._connection = SimpleNamespace(_shell=shell)
    plugin._execute_module = host.execute
    plugin._make_tmp_path = lambda: host.make(shell)
    plugin._remove_tmp_path = host.removed.append
    plugin._transfer_file = lambda local, remote: host.pushed.append(remote)
    plugin._fixup_perms2 = lambda paths: None
    return plugin.run(task_vars={"inventory_dir": str(folder)})


def test_the_wheels_are_pushed_to_a_host_that_lacks_the_version(folder: Path) -> None:
    host = Host([])
    assert go(folder, host)["changed"]
    assert [path.rpartition("/")[2].partition("-")[0] for path in host.pushed] == [
        "firsttouch",
        "numpy",
        "msgspec",
    ]
    call = host.calls[-1]
    assert call["wheels_at"] == "/remote" and call["id"].startswith("0.1.0-")
    assert [row["name"] for row in call["wheels"]][1:] == list(WHEELS)
    assert "wheels_dir" not in call


def test_a_version_that_is_there_is_not_pushed_again(folder: Path) -> None:
    first = Host([])
    go(folder, first)
    again = Host([first.calls[-1]["id"]])
    go(folder, again)
    assert again.pushed == [] and again.calls[-1]["id"] == first.calls[-1]["id"]


def test_a_check_pushes_nothing_and_names_the_version(folder: Path) -> None:
    first, other = Host([]), Host([])
    go(folder, first)
    go(folder, other, check=True)
    assert other.pushed == [] and other.calls[-1]["id"] == first.calls[-1]["id"]


@pytest.mark.parametrize("state", ["absent", "rollback"])
def test_what_installs_nothing_asks_for_no_wheel(tmp_path: Path, state: str) -> None:
    host = Host([])
    assert go(tmp_path, host, state=state) == {"changed": True}
    assert host.calls == [{"state": state}]


def test_the_wheels_go_into_the_directory_that_is_removed_in_the_end(folder: Path) -> None:
    host = Host([])
    go(folder, host, tmpdir="/remote/first")
    assert host.calls[-1]["wheels_at"] == "/remote/first"
    assert {path.rpartition("/")[0] for path in host.pushed} == {"/remote/first"}
    assert host.removed == ["/remote/first"] and host.made == []
    other = Host([])
    go(folder, other)
    assert other.made == ["/remote"] and other.removed == ["/remote"], "made where there is none yet"


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = go(tmp_path, Host([]))
    assert result["failed"] and result["reason"] == "wheel_missing"
    assert "firsttouch_wheels_dir" in result["msg"] and str(tmp_path / "wheels") in result["msg"]
