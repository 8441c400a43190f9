# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller side of host_verify: which plan and which checks, what it keeps, and that no host ends the run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ansible.plugins.action", reason="runs on the controller only")

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.firsttouch.host.plugins.action import host_verify
from ansible_collections.firsttouch.host.plugins.module_utils._checks import CONCERNS
from verify_records import HOSTILE, answer

RESULT = {"verdict": "pass", "results": [answer("boot.a")], "summary": {"pass": 1}, "host": {}, "plan_used": {}}


@pytest.fixture(autouse=True)
def _no_base_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActionBase, "run", lambda self, tmp=None, task_vars=None: {})


def action(args: dict[str, Any], result: Any) -> tuple[host_verify.ActionModule, list[dict[str, Any]]]:
    plugin, calls = host_verify.ActionModule.__new__(host_verify.ActionModule), []
    plugin._task = SimpleNamespace(args=args, async_val=0)
    plugin._templar = SimpleNamespace(template=lambda value: value)

    def execute(**given: Any) -> Any:
        calls.append(given["module_args"])
        if isinstance(result, Exception):
            raise result
        return result

    plugin._execute_module = execute
    return plugin, calls


def kept(returned: dict[str, Any]) -> dict[str, Any]:
    assert set(returned) == {"changed", "state", "file"} and not returned["changed"]
    entry: dict[str, Any] = json.loads(Path(returned["file"]).read_text())
    return entry


def test_without_a_report_it_is_the_module_and_nothing_else() -> None:
    plugin, calls = action({"fail": True, "report_dir": ""}, {"failed": True, "msg": "2 checks"})
    assert plugin.run(task_vars={"inventory_hostname": "a", "firsttouch_vm_sysctls": {}}) == {
        "failed": True,
        "msg": "2 checks",
    }
    assert calls == [{"fail": True}]


def test_answers_are_kept_and_only_their_place_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin, calls = action({"report_dir": str(tmp_path), "layers": ["running"]}, RESULT)
    entry = kept(plugin.run(task_vars={"inventory_hostname": HOSTILE}))
    assert entry["host"] == HOSTILE and entry["state"] == "pass" and entry["origin"] == "plan.json"
    assert calls == [{"layers": ["running"], "concerns": []}]
    assert [path.parent for path in tmp_path.glob("**/*.json")] == [tmp_path / "hosts"]
    assert capsys.readouterr().out.startswith("PASS        evil/")


def test_a_misspelt_variable_fails_its_host_whatever_else_is_right(tmp_path: Path) -> None:
    plugin, _calls = action({"report_dir": str(tmp_path), "concerns": ["boot"]}, dict(RESULT))
    variables = {"firsttouch_hugepage": [], "firsttouch_report_dir": "x", "__firsttouch_x": 1}
    entry = kept(plugin.run(task_vars={"inventory_hostname": "a", **variables}))
    (row,) = [row for row in entry["results"] if row["id"] == "plan.variables"]
    assert entry["state"] == row["status"] == "fail" and len(entry["results"]) == 2
    assert (row["expected"], row["observed"]) == (["firsttouch_hugepages"], ["firsttouch_hugepage"])
    assert "firsttouch_hugepage (is firsttouch_hugepages meant?)" in row["remedy"]


@pytest.mark.parametrize(
    ("result", "state", "text"),
    [
        (AnsibleConnectionFailure("no route"), "unreachable", "no route"),
        (AnsibleError("no interpreter"), "error", "no interpreter"),
        ({"failed": True, "msg": "MODULE FAILURE", "module_stderr": "x\nKeyError: 1"}, "error", "KeyError: 1"),
        ({"unreachable": True, "msg": "gone"}, "unreachable", "gone"),
        ({}, "error", "no answer"),
    ],
)
def test_no_fault_of_a_host_ends_the_run(tmp_path: Path, result: Any, state: str, text: str) -> None:
    plugin, _calls = action({"report_dir": str(tmp_path)}, result)
    returned = plugin.run(task_vars={"inventory_hostname": "a"})
    assert returned["state"] == state and text in kept(returned)["message"]


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    plugin, _calls = action({"report_dir": str(tmp_path / "file")}, RESULT)
    with pytest.raises(AnsibleActionFail, match="firsttouch_report_dir"):
        plugin.run(task_vars={"inventory_hostname": "a"})


def test_the_intent_is_that_of_the_inventory_when_something_is_managed(tmp_path: Path) -> None:
    variables = {
        "firsttouch_vm_sysctls": {"vm.swappiness": 0},
        "firsttouch_hugepages": None,
        "firsttouch_reserve_floor_bytes": "1G",
        "firsttouch_reboot": "never",
        "firsttouch_numa": {"trust": "asserted"},
        "unrelated": 1,
    }
    plugin, calls = action({"report_dir": str(tmp_path)}, RESULT)
    entry = kept(plugin.run(task_vars={"inventory_hostname": "a", **variables}))
    assert calls[0]["intent"] == {
        "vm_sysctls": {"vm.swappiness": 0},
        "reserve_floor_bytes": "1G",
        "numa": {"trust": "asserted"},
    }
    assert entry["origin"] == "variables"


@pytest.mark.parametrize("variables", [{}, {"firsttouch_vm_sysctls": None}, {"firsttouch_reserve_floor_bytes": "1G"}])
def test_without_a_managing_variable_the_host_knows_its_plan(variables: dict[str, Any]) -> None:
    assert host_verify.intent_of(variables, lambda value: value) is None


@pytest.mark.parametrize("name", ["numa", "transport_policy", "latency_target_us"])
def test_what_is_expected_of_the_nodes_is_held_against_the_host(name: str) -> None:
    assert host_verify.intent_of({f"firsttouch_{name}": 1}, lambda value: value) == {name: 1}


def test_given_plans_and_intents_are_taken(tmp_path: Path) -> None:
    variables = {"inventory_hostname": "a", "firsttouch_vm_sysctls": {"vm.swappiness": 0}}
    both: list[dict[str, Any]] = [{"plan": {"sections": {}}}, {"intent": {"rt_runtime_us": 1}}]
    for given in both:
        plugin, calls = action({"report_dir": str(tmp_path), **given}, RESULT)
        plugin.run(task_vars=variables)
        assert calls == [{**given, "concerns": []}]


def test_a_broken_variable_is_that_hosts_error(tmp_path: Path) -> None:
    plugin, calls = action({"report_dir": str(tmp_path)}, RESULT)

    def undefined(_value: Any) -> Any:
        raise AnsibleError("'nope' is undefined")

    plugin._templar = SimpleNamespace(template=undefined)
    returned = plugin.run(task_vars={"inventory_hostname": "a", "firsttouch_vm_sysctls": "{{ nope }}"})
    assert returned["state"] == "error" and calls == []


@pytest.mark.parametrize(
    ("run", "skip", "concerns"),
    [
        (["all"], [], []),
        (["hugepages"], [], ["hugepages"]),
        (["boot", "hugepages", "always"], [], ["hugepages", "boot"]),
        (["hugepages", "boot"], ["boot"], ["hugepages"]),
        (["tagged"], [], []),
    ],
)
def test_tags_choose_concerns(run: list[str], skip: list[str], concerns: list[str]) -> None:
    assert host_verify.concerns_of({"ansible_run_tags": run, "ansible_skip_tags": skip}) == concerns


def test_skipping_keeps_all_others() -> None:
    left = host_verify.concerns_of({"ansible_run_tags": ["all"], "ansible_skip_tags": ["boot"]})
    assert left == [name for name in CONCERNS if name != "boot"]


@pytest.mark.parametrize(
    ("run", "skip"), [(["hugepags"], []), (["hugepages", "bot"], []), (["all"], ["bot"]), (["boot"], ["boot"])]
)
def test_a_misspelt_tag_never_checks_less(run: list[str], skip: list[str]) -> None:
    with pytest.raises(AnsibleActionFail, match=r"--tags|--skip-tags"):
        host_verify.concerns_of({"ansible_run_tags": run, "ansible_skip_tags": skip})
