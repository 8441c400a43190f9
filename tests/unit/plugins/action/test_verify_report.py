# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller side of verify_report: where reports go, and that every host of the play is in them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ansible.plugins.action", reason="runs on the controller only")

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.firsttouch.host.plugins.action import verify_outcome, verify_report
from verify_records import HOSTILE, answer, broken, verified


@pytest.fixture(autouse=True)
def _no_base_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActionBase, "run", lambda self, tmp=None, task_vars=None: {})


def plugin_of(module: Any, **args: Any) -> Any:
    plugin = module.ActionModule.__new__(module.ActionModule)
    plugin._task = SimpleNamespace(args=args)
    return plugin


def play(tmp_path: Path, *entries: dict[str, Any], **others: Any) -> dict[str, Any]:
    hostvars: dict[str, Any] = dict(others)
    for number, entry in enumerate(entries):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(entry))
        hostvars[entry["host"]] = {verify_report.RESULT: {"state": entry["state"], "file": str(path)}}
    return {"hostvars": hostvars, "ansible_play_hosts_all": list(hostvars), "ansible_inventory_sources": ["a,b"]}


def test_all_hosts_are_in_the_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = (
        verified("good", answer("boot.a")),
        verified(HOSTILE, answer("boot.a", "fail")),
        broken("dark", unreachable=True, msg="no\x1broute"),
    )
    lost = {
        "never": {},
        "crashed": {verify_report.RESULT: {"failed": True, "msg": "templating failed"}},
        "vanished": {verify_report.RESULT: {"state": "pass", "file": str(tmp_path / "gone.json")}},
    }
    variables = play(tmp_path, *entries, **lost)
    returned = plugin_of(verify_report, report_dir=str(tmp_path / "out")).run(task_vars=variables)
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    states = {host["name"]: host["state"] for host in document["hosts"]}
    assert states == {
        "good": "pass",
        HOSTILE: "fail",
        "dark": "unreachable",
        "never": "error",
        "crashed": "error",
        "vanished": "error",
    }
    assert returned["outcome"] == "failed_and_unreachable" == document["outcome"]
    assert set(returned["failed_hosts"]) == {"never", "crashed", "vanished", HOSTILE}
    assert returned["unreachable_hosts"] == {"dark": "no\ufffdroute"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"hosts", *verify_report.NAMES}
    out = capsys.readouterr().out
    assert all(str(tmp_path / "out" / name) in out for name in verify_report.NAMES)
    assert "Verified 6 hosts: 1 pass, 1 fail, 3 error, 1 unreachable. Outcome: 4 failed, 1 unreachable." in out


def test_a_host_without_an_answer_does_not_keep_the_record_of_yesterday(tmp_path: Path) -> None:
    hosts = tmp_path / "out" / "hosts"
    hosts.mkdir(parents=True)
    for name in ("hangs", "vanished", "other"):
        (hosts / f"{name}.json").write_text(json.dumps(verified(name, answer("boot.a"))))
    lost = {
        "hangs": {verify_report.RESULT: {"failed": True, "msg": "timed out after 300 seconds"}},
        "vanished": {verify_report.RESULT: {"state": "pass", "file": str(tmp_path / "gone.json")}},
    }
    plugin_of(verify_report, report_dir=str(tmp_path / "out")).run(task_vars=play(tmp_path, **lost))
    kept = {path.stem: json.loads(path.read_text()) for path in hosts.iterdir()}
    assert {name: entry["state"] for name, entry in kept.items()} == {
        "hangs": "error",
        "vanished": "error",
        "other": "pass",
    }
    assert kept["hangs"]["message"] == "timed out after 300 seconds"


def test_an_incomplete_host_is_not_called_fine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = verified("a", answer("boot.a"), answer("boot.b", "not_evaluated"))
    entry["state"] = "incomplete"
    variables, out = play(tmp_path, entry), str(tmp_path / "out")
    returned = plugin_of(verify_report, report_dir=out).run(task_vars=variables)
    assert returned["failed_hosts"] == {"a": "1 check(s) could not be evaluated; see above and the report"}
    assert returned["outcome"] == "failed" and "Incomplete is not as planned" in capsys.readouterr().out
    lenient = plugin_of(verify_report, report_dir=out, fail_on=["fail"]).run(task_vars=variables)
    assert lenient["failed_hosts"] == {} and "Incomplete is not as planned" in capsys.readouterr().out


def test_a_fleet_in_the_dark_is_called_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = broken("dark", unreachable=True, msg="no route")
    returned = plugin_of(verify_report, report_dir=str(tmp_path / "out")).run(task_vars=play(tmp_path, entry))
    assert returned["outcome"] == "unreachable" and returned["failed_hosts"] == {}
    assert "no host could be reached, and nothing was verified" in capsys.readouterr().out


def test_before_the_first_host_mistakes_are_refused(tmp_path: Path) -> None:
    where = str(tmp_path / "out")
    some: dict[str, Any] = {"groups": {"all": ["a"]}}
    ready = plugin_of(verify_report, state="prepared", report_dir=where).run(task_vars=some)
    assert ready["report_dir"] == where and os.listdir(where) == ["hosts"] and os.listdir(f"{where}/hosts") == []
    with pytest.raises(AnsibleActionFail, match="firsttouch_verify_fail_on: unknown fial"):
        plugin_of(verify_report, state="prepared", report_dir=where, fail_on=["fial"]).run(task_vars=some)
    tagged = {**some, "ansible_run_tags": ["bot"]}
    with pytest.raises(AnsibleActionFail, match="no concern bot"):
        plugin_of(verify_report, state="prepared", report_dir=where).run(task_vars=tagged)
    (tmp_path / "file").write_text("")
    with pytest.raises(AnsibleActionFail, match="firsttouch_report_dir"):
        plugin_of(verify_report, state="prepared", report_dir=str(tmp_path / "file")).run(task_vars=some)
    with pytest.raises(AnsibleActionFail, match="the inventory has no hosts"):
        plugin_of(verify_report, state="prepared", report_dir=where).run(task_vars={"groups": {"all": []}})


def test_reports_lie_beside_the_inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inventory = tmp_path / "inventory" / "hosts.yml"
    inventory.parent.mkdir()
    inventory.write_text("")
    monkeypatch.chdir(tmp_path)
    beside = str(inventory.parent / "firsttouch-report")
    assert verify_report.report_dir("", ["a,b", str(inventory)]) == beside
    assert verify_report.report_dir("", [str(inventory.parent)]) == beside
    assert verify_report.report_dir("", ["inventory/hosts.yml"]) == beside
    assert verify_report.report_dir("", ["a,b"]) == str(tmp_path / "firsttouch-report")
    assert verify_report.report_dir("there", [str(inventory)]) == str(tmp_path / "there")


def test_the_outcome_of_a_host() -> None:
    assert plugin_of(verify_outcome, unreachable="", failed="").run() == {"changed": False}
    assert plugin_of(verify_outcome, failed="2 checks").run() == {"failed": True, "msg": "2 checks"}
    assert plugin_of(verify_outcome, unreachable="no route", failed="").run()["unreachable"] is True


def test_an_inventory_that_was_given_up_half_way_is_refused(tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in ("good.yml", "bad.yml", "absent")]
    for name in names[:2]:
        Path(name).write_text("all: {}\n")
    taken = SimpleNamespace(processed_sources=[names[0], "a,b"])
    hostvars = SimpleNamespace(_inventory=SimpleNamespace(_inventory=taken))
    variables = {
        "hostvars": hostvars,
        "groups": {"all": ["h"]},
        "ansible_inventory_sources": [*names, "a,b", str(tmp_path)],
    }
    plugin = plugin_of(verify_report, state="prepared", report_dir=str(tmp_path / "out"))
    with pytest.raises(AnsibleActionFail, match=r"bad\.yml could not be parsed"):
        plugin.run(task_vars=variables)
    assert not (tmp_path / "out").exists()
    taken.processed_sources.append(names[1])
    assert plugin.run(task_vars=variables)["report_dir"] == str(tmp_path / "out")


def test_the_inventory_of_ansible_itself_tells_what_it_took(tmp_path: Path) -> None:
    from ansible.inventory.manager import InventoryManager
    from ansible.parsing.dataloader import DataLoader
    from ansible.vars.hostvars import HostVars
    from ansible.vars.manager import VariableManager

    bad, good = tmp_path / "bad.yml", tmp_path / "good.yml"
    bad.write_text('all:\n  hosts:\n    first: {}\n    "x[31mX": {}\n')
    good.write_text("all:\n  hosts:\n    second: {}\n")
    loader = DataLoader()
    sources = [str(bad), str(good), "third,"]
    inventory = InventoryManager(loader=loader, sources=sources)
    hostvars = HostVars(inventory, VariableManager(loader=loader, inventory=inventory), loader)
    assert verify_report.unparsed({"hostvars": hostvars}, sources) == [str(bad)]
