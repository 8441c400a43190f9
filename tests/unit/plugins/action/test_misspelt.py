# SPDX-License-Identifier: GPL-3.0-or-later
"""No host is planned, and no rollout begins, with a variable that nothing reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ansible.plugins.action", reason="runs on the controller only")

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.firsttouch.host.plugins.action import host_plan, rollout_check


@pytest.fixture(autouse=True)
def _no_base_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActionBase, "run", lambda self, tmp=None, task_vars=None: {})


def planned(variables: dict[str, Any]) -> Any:
    plugin = host_plan.ActionModule.__new__(host_plan.ActionModule)
    plugin._task = SimpleNamespace(async_val=0, args={})
    plugin._execute_module = lambda **given: {"ran": True}
    return plugin.run(task_vars=variables)


def test_a_host_with_a_misspelt_variable_is_not_planned() -> None:
    assert planned({"firsttouch_hugepages": [], "__firsttouch_sections": [], "other": 1}) == {"ran": True}
    with pytest.raises(AnsibleActionFail, match=r"firsttouch_hugepage \(is firsttouch_hugepages meant\?\)"):
        planned({"firsttouch_hugepage": []})


def test_a_rollout_names_the_hosts_with_misspelt_variables() -> None:
    fleet = {f"node{number}": ["firsttouch_thp", "firsttouch_isolated_cpu"] for number in range(8)}
    rollout_check.refuse_unknown({"a": ["firsttouch_thp", "ansible_host"]})
    with pytest.raises(AnsibleActionFail, match=r"firsttouch_isolated_cpus meant.*node0, .*node4 and 3 more"):
        rollout_check.refuse_unknown({"a": ["firsttouch_thp"], **fleet})
