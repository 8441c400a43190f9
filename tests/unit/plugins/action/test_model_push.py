# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller side of model_push: what it sends, in which order. The host's side is the real one below a sysroot."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ansible.plugins.action", reason="runs on the controller only")

from ansible.errors import AnsibleActionFail
from ansible.module_utils.basic import AnsibleModule
from ansible.plugins.action import ActionBase
from ansible_collections.firsttouch.host.plugins.action import host_plan, model_push
from ansible_collections.firsttouch.host.plugins.module_utils import _model_push as mp
from ansible_collections.firsttouch.host.plugins.plugin_utils import _model_source
from support import run_module

INDEX = "model.safetensors.index.json"


@pytest.fixture(autouse=True)
def _no_base_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActionBase, "run", lambda self, tmp=None, task_vars=None: {})


class Host:
    """Runs the module below ROOT instead of /, and records what comes."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.tmp = root / "host", root / "remote tmp"
        for folder in (self.root / "var/lib", self.tmp):
            folder.mkdir(parents=True)
        self.sent: list[str] = []
        self.steps: list[str] = []
        self.removed: list[str] = []
        self.damaged = False
        for name in ("make_plan", "check_space", "place", "finish"):
            real = getattr(mp, name)
            monkeypatch.setattr(mp, name, lambda _root, *given, real=real: real(str(self.root), *given))

    def execute(self, module_args: dict[str, Any], task_vars: Any = None) -> dict[str, Any]:
        self.steps.append(module_args["step"])
        return run_module("model_push", module_args)

    def transfer(self, local: str, remote: str) -> None:
        assert not Path(remote).exists(), "one file after the other: there may be no room for two"
        self.sent.append(Path(local).name)
        shutil.copyfile(local, remote)
        if self.damaged:
            Path(remote).write_bytes(b"?")

    def model(self, name: str) -> dict[str, bytes]:
        folder = self.root / mp.folder(name)[1:]
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != mp.MANIFEST}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    """An inventory with the models one (a file) and two (an index with two shards) beside it."""
    inventory = tmp_path / "inventory"
    for name in ("one/model", "two/a", "two/b", "two/other"):
        path = inventory / f"{name}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        model(path, name.encode())
    weights = {"two/b": "b.safetensors", "two/a": "a.safetensors"}
    (inventory / "two" / INDEX).write_text(json.dumps({"weight_map": weights}))
    return inventory


def model(path: Path, data: bytes) -> None:
    """A file of one tensor that has the name of its DATA, up to the first blank."""
    header = json.dumps({data.decode().partition(" ")[0]: {"data_offsets": [0, len(data)]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


def go(inventory: Path, host: Host, check: bool = False, **args: Any) -> dict[str, Any]:
    plugin = model_push.ActionModule.__new__(model_push.ActionModule)
    plugin._task = SimpleNamespace(args=args, check_mode=check)
    plugin._connection = SimpleNamespace(
        _shell=SimpleNamespace(tmpdir=str(host.tmp), join_path=lambda *parts: "/".join(parts))
    )
    plugin._execute_module = host.execute
    plugin._remove_tmp_path = host.removed.append
    plugin._transfer_file = host.transfer
    plugin._fixup_perms2 = lambda paths: None
    return plugin.run(task_vars={"ansible_inventory_sources": [str(inventory)]})


BOTH = {"one": "one/model.safetensors", "two": "two"}


def test_what_the_host_lacks_is_sent_the_index_last(inventory: Path, host: Host) -> None:
    result = go(inventory, host, models=BOTH)
    assert result["changed"] and host.sent == ["model.safetensors", "a.safetensors", "b.safetensors", INDEX]
    assert host.model("two") == {name: (inventory / "two" / name).read_bytes() for name in host.sent[1:]}
    assert host.model("one") == {host.sent[0]: (inventory / "one" / host.sent[0]).read_bytes()}
    assert host.removed == [str(host.tmp)] and list(host.tmp.iterdir()) == []
    assert result["restart"] == ["firsttouch-weights@one.service", "firsttouch-weights@two.service"]
    assert "missing" not in result and "make" not in result


def test_a_second_run_asks_once_and_sends_nothing(inventory: Path, host: Host) -> None:
    go(inventory, host, models=BOTH)
    host.sent, host.steps = [], []
    result = go(inventory, host, models=BOTH)
    assert (result["changed"], result["changes"], result["restart"]) == (False, [], [])
    assert (host.sent, host.steps) == ([], ["plan"])


def test_a_check_predicts_the_change_set_and_sends_nothing(inventory: Path, host: Host) -> None:
    predicted = go(inventory, host, check=True, models=BOTH)
    assert (host.sent, host.steps) == ([], ["plan"]) and not (host.root / mp.TOP[1:]).exists()
    done = go(inventory, host, models=BOTH)
    for part in ("changed", "changes", "restart", "diff"):
        assert predicted[part] == done[part] != []
    text = json.dumps(done["diff"])
    assert "a.safetensors" in text and "sha256" in text and "two/a" not in text, "not what is in the files"


def test_a_file_that_changed_is_sent_alone(inventory: Path, host: Host) -> None:
    go(inventory, host, models=BOTH)
    host.sent = []
    model(inventory / "two/b.safetensors", b"two/b and more")
    result = go(inventory, host, models=BOTH)
    assert host.sent == ["b.safetensors"] and result["restart"] == ["firsttouch-weights@two.service"]
    assert host.model("two")["b.safetensors"].endswith(b"more")


def test_what_is_not_asked_for_any_more_goes(inventory: Path, host: Host) -> None:
    go(inventory, host, models=BOTH)
    predicted = go(inventory, host, check=True, absent=["one"])
    assert host.model("one")
    result = go(inventory, host, absent=["one"])
    assert result["changed"] and result["changes"] == predicted["changes"]
    assert sorted(path.name for path in (host.root / mp.TOP[1:]).iterdir()) == ["two"]
    assert go(inventory, host, absent=["one"])["changed"] is False


def test_what_is_of_somebody_else_ends_a_push_and_stays_where_a_model_goes(
    inventory: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda self, text: said.append(text))
    go(inventory, host, models=BOTH)
    lora = host.root / mp.folder("one")[1:] / "lora.safetensors"
    lora.write_bytes(b"mine")
    for check in (True, False):
        host.steps = []
        result = go(inventory, host, check, models=BOTH)
        assert (result["failed"], result["reason"], host.steps) == (True, "foreign_file", ["plan"])
        assert f"{mp.folder('one')}/lora.safetensors was not pushed by us; move it" in result["msg"]
    for check in (True, False):
        result = go(inventory, host, check, absent=["one"])
        assert result["left"] == [f"{mp.folder('one')}/lora.safetensors was not pushed by us"]
        assert said.pop().startswith(f"{result['left'][0]}; it stays")
    assert host.model("one") == {lora.name: b"mine"}
    again = go(inventory, host, absent=["one"])
    assert (again["changed"], again["left"]) == (False, [])


def test_a_file_that_arrives_broken_ends_it_and_nothing_takes_its_place(inventory: Path, host: Host) -> None:
    host.damaged = True
    result = go(inventory, host, models=BOTH)
    assert (
        result["failed"] and result["reason"] == "push_broken" and "model.safetensors of one" in result["msg"]
    )
    assert host.steps == ["plan", "place"] and host.removed == [str(host.tmp)]


def test_without_room_nothing_is_sent(inventory: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(*_given: Any) -> None:
        raise mp.PushError("no_space", "too little")

    monkeypatch.setattr(mp, "check_space", check)
    result = go(inventory, host, models=BOTH)
    assert (result["failed"], result["reason"], host.sent, host.steps) == (True, "no_space", [], ["plan"])


def test_room_is_looked_at_where_files_arrive(
    inventory: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(mp, "check_space", lambda root, plan, temporary: seen.append(temporary))
    go(inventory, host, models=BOTH)
    assert seen == [str(host.tmp)]


def test_a_model_that_is_not_there_is_named(inventory: Path, host: Host) -> None:
    result = go(inventory, host, models={"toy": "models/toy"})
    assert result["failed"] and result["reason"] == "bad_value" and host.steps == []
    assert result["msg"].startswith("firsttouch_models: push of toy is 'models/toy'")
    assert f"looked for {inventory}/models/toy" in result["msg"]


def test_one_that_cannot_be_read_is_named(
    inventory: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str) -> str:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(_model_source, "digest", fail)
    with pytest.raises(AnsibleActionFail, match=r"one/model\.safetensors: Permission denied"):
        go(inventory, host, models=BOTH)


def planned(inventory: Path, **args: Any) -> Any:
    plugin = host_plan.ActionModule.__new__(host_plan.ActionModule)
    plugin._task = SimpleNamespace(async_val=0, args=args)
    plugin._execute_module = lambda module_args, **given: {"ran": True, **module_args["push_bytes"]}
    return plugin.run(task_vars={"ansible_inventory_sources": [str(inventory)]})


def test_a_host_is_not_planned_with_a_model_that_is_not_there(inventory: Path) -> None:
    """Before anything is written and long before the reboot after which it would be pushed."""
    intent = {"models": [{"name": "toy", "push": "models/toy"}]}
    result = planned(inventory, intent=intent)
    assert result["failed"] and "push of toy is 'models/toy'" in result["msg"]
    assert planned(inventory, intent=intent, sections=["runtime", "thp"])["failed"]


def test_the_plan_is_told_how_large_the_files_are(inventory: Path) -> None:
    models = [{"name": "one", "push": "one"}, {"name": "two", "push": "two"}, {"name": "b", "source": "/srv/b"}]
    shards = [(inventory / "two" / f"{name}.safetensors").stat().st_size for name in "ab"]
    one = (inventory / "one/model.safetensors").stat().st_size
    assert planned(inventory, intent={"models": models}) == {"ran": True, "one": one, "two": sum(shards)}


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"intent": {"models": [{"name": "toy", "push": "models/toy"}]}, "revert": True},
        {"intent": {"models": [{"name": "toy", "push": "models/toy"}]}, "sections": ["thp"]},
        {"intent": {"models": "absent"}},
        {"intent": {"models": ["toy", {"name": "toy", "push": 7}]}},
    ],
)
def test_what_is_there_or_not_to_be_pushed_is_left_to_the_plan(inventory: Path, args: dict[str, Any]) -> None:
    assert planned(inventory, **args) == {"ran": True}


@pytest.mark.parametrize("revert", [False, "no"])
def test_an_intent_as_text_is_read_as_the_module_reads_it(revert: object, tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    intent = json.dumps({"models": [{"name": "m", "push": str(tmp_path / "m.safetensors")}]})
    assert host_plan.pushed({"intent": intent, "revert": revert}, []) == {"m": 10}


@pytest.mark.parametrize("args", [{"intent": "no dictionary"}, {"intent": []}, {"intent": {}, "revert": "perhaps"}])
def test_what_is_no_intent_is_left_to_the_module_to_refuse(args: dict[str, Any]) -> None:
    assert host_plan.pushed(args, []) == {}
