# SPDX-License-Identifier: GPL-3.0-or-later
"""What a rollout refuses before its first host: batch sizes where nothing reads them, hooks that are none."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ansible.plugins.action", reason="runs on the controller only")

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.action import ActionBase
from ansible_collections.firsttouch.host.plugins.action import rollout_check

TASKS = "- name: Drain\n  ansible.builtin.command: drain-node\n"


def resolve(path: str, *dirs: Path) -> str:
    return rollout_check.resolve_hook("before", path, [str(base) for base in dirs], DataLoader())


def test_no_hook_is_no_file() -> None:
    assert resolve("") == ""


def test_a_relative_hook_is_beside_the_inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the current folder; of several inventories the first that has it."""
    here, first, second = (tmp_path / name for name in ("here", "first", "second"))
    for base in (here, first, second):
        (base / "hooks").mkdir(parents=True)
    monkeypatch.chdir(here)
    (here / "hooks/drain.yml").write_text(TASKS)
    with pytest.raises(AnsibleActionFail) as refused:
        resolve("hooks/drain.yml", first, second)
    assert str(refused.value) == (
        f"firsttouch_hook_before: 'hooks/drain.yml' is not a file; looked for {first}/hooks/drain.yml, "
        f"{second}/hooks/drain.yml"
    )
    (second / "hooks/drain.yml").write_text(TASKS)
    assert resolve("hooks/drain.yml", first, second) == f"{second}/hooks/drain.yml"
    (first / "hooks/drain.yml").write_text(TASKS)
    assert resolve("hooks/drain.yml", first, second) == f"{first}/hooks/drain.yml"
    assert resolve("hooks/drain.yml", Path("../first")) == f"{first}/hooks/drain.yml"


def test_an_absolute_hook_is_where_it_says(tmp_path: Path) -> None:
    (tmp_path / "drain.yml").write_text(TASKS)
    other = tmp_path / "inventory"
    other.mkdir()
    assert (
        resolve(f"{tmp_path}/drain.yml", other) == resolve(f"{tmp_path}/drain.yml") == f"{tmp_path}/drain.yml"
    )
    missing = f"{tmp_path}/missing.yml"
    with pytest.raises(AnsibleActionFail) as refused:
        resolve(missing, other)
    assert str(refused.value) == f"firsttouch_hook_before: '{missing}' is not a file; looked for {missing}"


def test_a_relative_hook_without_an_inventory_on_disk() -> None:
    with pytest.raises(AnsibleActionFail, match=r"looked for nothing, as the inventory has no directory"):
        resolve("drain.yml")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"- name: [\n", "cannot be read as YAML"),
        (b"- name: a\n  - b\n", "cannot be read as YAML"),
        (b"\xff\xfe\x00", "cannot be read as YAML"),
        (b"", "is not a list of tasks"),
        (b"name: Drain\n", "is not a list of tasks"),
        (b"- drain\n", "is not a list of tasks"),
        (b"- hosts: all\n  tasks: []\n", "is a playbook"),
        (b"- ansible.builtin.import_playbook: drain.yml\n", "is a playbook"),
    ],
)
def test_a_hook_that_is_no_list_of_tasks(tmp_path: Path, content: bytes, reason: str) -> None:
    hook = tmp_path / "drain.yml"
    hook.write_bytes(content)
    with pytest.raises(AnsibleActionFail) as refused:
        resolve(str(hook))
    assert str(refused.value).startswith(f"firsttouch_hook_before: {hook} {reason}")


def test_a_folder_is_no_hook(tmp_path: Path) -> None:
    with pytest.raises(AnsibleActionFail, match="is not a file"):
        resolve(str(tmp_path))


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the plugin with these variables of the hosts, and these of the command line."""
    monkeypatch.setattr(ActionBase, "run", lambda self, tmp=None, task_vars=None: {})

    def run(hosts: dict[str, dict[str, Any]], extra: dict[str, Any], **hooks: str) -> Any:
        monkeypatch.setattr(rollout_check, "load_extra_vars", lambda loader: extra)
        plugin = rollout_check.ActionModule.__new__(rollout_check.ActionModule)
        plugin._task = SimpleNamespace(args={"hooks": hooks})
        plugin._loader = DataLoader()
        seen = {
            "hostvars": {name: {**values, **extra} for name, values in hosts.items()},
            "ansible_play_hosts_all": list(hosts),
            "ansible_inventory_sources": [str(tmp_path / "hosts.yml")],
        }
        return plugin.run(task_vars=seen)

    (tmp_path / "hosts.yml").touch()
    return run


def test_a_serial_in_the_inventory_is_refused(check: Any) -> None:
    with pytest.raises(AnsibleActionFail) as refused:
        check({"a": {}, "b": {"firsttouch_serial": 1}, "c": {"firsttouch_serial": [1]}}, {})
    text = str(refused.value)
    assert text.startswith("firsttouch_serial is set in the inventory (of b, c), where it has no effect")
    assert "Remove it there and pass -e firsttouch_serial=... instead" in text


def test_a_serial_of_the_command_line_is_taken(check: Any) -> None:
    hooks = {moment: {"": ""} for moment in ("before", "after", "failed")}
    assert check({"a": {}}, {}) == {"hooks": hooks, "changed": False}
    assert check({"a": {}, "b": {}}, {"firsttouch_serial": "5"}) == {"hooks": hooks, "changed": False}


@pytest.mark.parametrize(
    "value",
    [0, -1, "0", "0%", "101%", "abc", "", None, True, [], [1, 0], [1, "x"], {"a": 1}, 1.5, "[1, 2]", "1,2", "٣"],
)
def test_a_serial_that_is_no_batch_size_is_refused(check: Any, value: Any) -> None:
    with pytest.raises(AnsibleActionFail, match=r"firsttouch_serial: .* is no batch size.*100%.*as JSON"):
        check({"a": {}}, {"firsttouch_serial": value})


@pytest.mark.parametrize("value", [1, "7", "25%", "100%", [1, "10%", 25], ["50%"], "{{ groups['all'] | length }}"])
def test_a_batch_size_is_one(check: Any, value: Any) -> None:
    assert check({"a": {}}, {"firsttouch_serial": value})["changed"] is False


@pytest.mark.parametrize(("hosts", "refused"), [(None, True), ("nobody", True), ("localhost", False)])
def test_without_an_inventory_only_the_controller_can_be_meant(
    check: Any, monkeypatch: pytest.MonkeyPatch, hosts: str | None, refused: bool
) -> None:
    run = rollout_check.ActionModule.run
    more: dict[str, Any] = {"groups": {"all": []}, "firsttouch_hosts": hosts}
    monkeypatch.setattr(
        rollout_check.ActionModule, "run", lambda self, tmp=None, task_vars=None: run(self, tmp, {**task_vars, **more})
    )
    with pytest.raises(AnsibleActionFail, match="no hosts") if refused else contextlib.nullcontext():
        check({"localhost": {}}, {})


def test_hooks_are_looked_for_beside_the_inventory(check: Any, tmp_path: Path) -> None:
    (tmp_path / "drain.yml").write_text(TASKS)
    found = check({"a": {}}, {}, before="drain.yml", failed=os.path.join(tmp_path, "drain.yml"))["hooks"]
    drain = f"{tmp_path}/drain.yml"
    assert found == {
        "before": {"": "", "drain.yml": drain},
        "after": {"": ""},
        "failed": {"": "", drain: drain},
    }
    with pytest.raises(AnsibleActionFail, match=r"firsttouch_hook_after: 'uncordon.yml' is not a file"):
        check({"a": {}}, {}, before="drain.yml", after="uncordon.yml")
    with pytest.raises(AnsibleActionFail, match=r"hooks: unknown during; known are before, after, failed"):
        check({"a": {}}, {}, during="drain.yml")


def test_each_host_has_hooks_of_its_own(check: Any, tmp_path: Path) -> None:
    """The task runs once, with the variables of the first host."""
    (tmp_path / "drain.yml").write_text(TASKS)
    hosts: dict[str, dict[str, Any]] = {"a": {}, "b": {"firsttouch_hook_before": "drain.yml"}}
    hosts["c"] = {"firsttouch_hook_before": None}
    assert check(hosts, {}, before="")["hooks"]["before"] == {"": "", "drain.yml": f"{tmp_path}/drain.yml"}
    hosts["d"] = {"firsttouch_hook_before": "dran.yml"}
    with pytest.raises(AnsibleActionFail, match=r"firsttouch_hook_before: 'dran.yml' is not a file"):
        check(hosts, {}, before="")


def test_a_hook_that_cannot_be_told_names_its_host() -> None:
    class Broken(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            raise AnsibleError("undefined")

    hosts = {"a": Broken(firsttouch_hook_after="{{ nothing }}")}
    with pytest.raises(AnsibleActionFail, match="firsttouch_hook_after of a: undefined"):
        rollout_check.hook_paths("after", "", hosts, {"a": {"firsttouch_hook_after"}})
