# SPDX-License-Identifier: GPL-3.0-or-later
"""The module kubelet_config and what it does to a kubelet: exact check mode, never undrained, back on failure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _kubelet_apply
from ansible_collections.firsttouch.host.plugins.module_utils._topology import read_topology
from fake_kubelet import HEAD_CONFIG, Node, start
from plan_host import make_host, plan
from support import put, run_module

FILE = "/etc/kubernetes/kubelet.conf.d/zz-firsttouch.conf"
VALUE = {
    "config_dir": "/etc/kubernetes/kubelet.conf.d",
    "kube_reserved": "1G",
    "system_reserved": 0,
    "eviction_hard": "100M",
}
NODES = {0: 1_490_000 << 10, 1: 3_500_000 << 10}
CPU, MEMORY = (f"/var/lib/kubelet/{name}" for name in _kubelet_apply.STATES)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A node whose kubelet runs with the default policies."""
    make_host(tmp_path)
    put(tmp_path, "/var/lib/kubelet/config.yaml", HEAD_CONFIG)
    (tmp_path / FILE[1:]).parent.mkdir(parents=True)
    start(tmp_path, NODES)
    return tmp_path


def config(root: Path, **more: Any) -> dict[str, Any]:
    intent = {"isolated_cpus": "1,3", "kubelet": {**VALUE, **more}}
    found: dict[str, Any] = plan(root, intent)["plan"]["sections"]["kubelet"]["config"]
    return found


def files(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def run(root: Path, wanted: dict[str, Any] | None, *, check: bool = False, **more: Any) -> dict[str, Any]:
    args = {"file": FILE, "config": wanted, "sysroot": str(root), "drained": True, **more}
    return run_module(
        "kubelet_config", {name: value for name, value in args.items() if value is not None}, check=check
    )


def resources(result: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    return [
        (row["resource"], row["before"], row["after"])
        for row in result["changes"]
        if "state" in row["resource"]
    ]


def test_check_mode_predicts_and_writes_nothing(host: Path) -> None:
    before = files(host)
    predicted = run(host, config(host), check=True)
    assert files(host) == before
    done = run(host, config(host))
    assert predicted["changes"] == done["changes"] and predicted["diff"] == done["diff"] and done["changed"]
    assert resources(done) == [
        (f"kubelet_state:{CPU}", "none", "static"),
        (f"kubelet_state:{MEMORY}", "None", "Static"),
    ]
    start(host, NODES)
    assert not run(host, config(host), check=True)["changed"] and not run(host, config(host))["changed"]


def test_nothing_happens_to_a_node_that_is_not_drained(host: Path) -> None:
    before = files(host)
    for check in (True, False):
        result = run(host, config(host), drained=False, check=check)
        assert (result["failed"], result["reason"], result["file"]) == (True, "not_drained", CPU)
        assert "firsttouch_hook_before" in result["msg"] and "revert" not in result["msg"]
        assert files(host) == before
    run(host, config(host))
    start(host, NODES)
    text = run(host, None, drained=False)["msg"]
    assert (
        "say to the revert playbook, or in a run before firsttouch_kubelet is absent, that it is drained"
        in text
    )


def test_a_node_that_never_ran_a_pod_needs_no_drain(tmp_path: Path) -> None:
    make_host(tmp_path)
    result = run(tmp_path, config(tmp_path), drained=False)
    assert result["changed"] and not result["drain_due"]


def test_a_foreign_file_is_refused_unchanged(host: Path) -> None:
    put(host, FILE, "kind: KubeletConfiguration\n")
    before = files(host)
    assert run(host, config(host))["reason"] == "foreign_file"
    assert not run(host, None)["changed"] and files(host) == before


def test_removal_takes_file_and_state_and_leaves_the_directory(host: Path) -> None:
    run(host, config(host))
    start(host, NODES)
    done = run(host, None)
    assert resources(done) == [
        (f"kubelet_state:{CPU}", "static", "none"),
        (f"kubelet_state:{MEMORY}", "Static", "None"),
    ]
    assert not (host / FILE[1:]).exists() and (host / FILE[1:]).parent.is_dir()
    start(host, NODES)
    assert not run(host, None)["changed"]


@pytest.mark.parametrize(
    ("what", "word"), [("pages", "hugepages-2Mi"), ("memory", "bytes of memory"), ("share", "reserved")]
)
def test_state_of_another_host_goes(host: Path, what: str, word: str) -> None:
    """The kubelet that finds it does not start; nothing but the state is changed."""
    wanted = config(host)
    run(host, wanted)
    (host / CPU[1:]).unlink(missing_ok=True)
    (host / MEMORY[1:]).unlink(missing_ok=True)
    start(host, NODES, {0: 0})
    state = json.loads((host / MEMORY[1:]).read_text())
    table = state["machineState"]["0"]["memoryMap"]
    if what == "pages":
        put(host, "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages", "300\n")
    else:
        table["memory"]["total" if what == "memory" else "systemReserved"] += 4096
    put(host, MEMORY, json.dumps(state))
    predicted = run(host, wanted, check=True)
    done = run(host, wanted)
    assert predicted["changes"] == done["changes"]
    ((resource, before, after),) = resources(done)
    assert (
        (resource, after) == (f"kubelet_state:{MEMORY}", "Static")
        and before.startswith("node 0")
        and word in before
    )
    assert [row["resource"] for row in done["changes"]] == [resource]


def test_pages_that_come_with_a_predicted_reboot_count_in_check_mode(host: Path) -> None:
    wanted = config(host)
    run(host, wanted)
    start(host, NODES)
    pools = [{"size_kb": 2048, "nodes": {"1": 64}}]
    assert resources(run(host, wanted, check=True, pools=pools))
    assert not run(host, wanted, pools=pools)["changed"]


@pytest.mark.parametrize(
    "text", ["", "no json", "[]", "{}", '{"policyName": "static", "machineState": {"0": null}}']
)
def test_state_that_is_not_understood_goes_with_its_policy_only(host: Path, text: str) -> None:
    wanted = config(host)
    run(host, wanted)
    start(host, NODES)
    put(host, CPU, text)
    assert bool(resources(run(host, wanted, check=True))) is ("static" not in text)


def make(root: Path, wanted: dict[str, Any] | None, node: Node | Ending) -> _kubelet_apply.Plan:
    return _kubelet_apply.make_plan(
        str(root), FILE, wanted, "/var/lib/kubelet", read_topology(str(root)), {}, node
    )


def apply(root: Path, wanted: dict[str, Any] | None, node: Node | Ending) -> _kubelet_apply.Plan:
    made = make(root, wanted, node)
    _kubelet_apply.apply_plan(made, node, 0.0, lambda _seconds: None)
    return made


def test_stopped_written_removed_started(host: Path) -> None:
    node = Node(host, NODES)
    node.active = True
    made = apply(host, config(host), node)
    assert node.active and not node.crash
    name = Path(FILE).name
    assert node.events == ["stop  cpu_manager_state,memory_manager_state", f"start {name}"]
    assert ("unit:kubelet.service", "active, old settings") in [
        (row["resource"], row["before"]) for row in made.changes
    ]
    apply(host, None, node)
    assert node.active and node.events[2:] == [f"stop {name} cpu_manager_state,memory_manager_state", "start"]


def test_a_kubelet_that_does_not_come_up_gets_its_old_file_back(host: Path) -> None:
    node = Node(host, NODES)
    node.active = True
    apply(host, config(host), node)
    before = files(host)
    node.sabotage = "1076Mi"
    wanted = config(host, reserved_memory={"0": "48M", "1": "1076M"})
    with pytest.raises(
        _kubelet_apply.KubeletApplyError, match=r"did not take .*zz-firsttouch\.conf"
    ) as caught:
        apply(host, wanted, node)
    assert caught.value.reason == "kubelet_not_started"
    assert node.active and files(host) == before


@pytest.mark.parametrize("error", [OSError, SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("step", range(6))
def test_whatever_ends_a_run_the_kubelet_has_its_old_file_and_runs(
    host: Path, monkeypatch: pytest.MonkeyPatch, step: int, error: type[BaseException]
) -> None:
    node = Node(host, NODES)
    node.active = True
    apply(host, config(host), node)
    before = files(host)
    wanted = config(host, reserved_memory={"0": "48M", "1": "1076M"})
    with monkeypatch.context() as patch, pytest.raises(error):
        apply(host, wanted, Ending(patch, node, step, error))
    assert node.active and not node.crash and files(host) == before
    apply(host, wanted, node)
    assert node.active and not node.crash and files(host) != before


@pytest.mark.parametrize("removal", [False, True])
def test_a_run_that_is_killed_is_finished_by_the_next(
    host: Path, monkeypatch: pytest.MonkeyPatch, removal: bool
) -> None:
    node = Node(host, NODES)
    node.active = True
    steps = 0
    while True:
        apply(host, config(host) if removal else None, node)
        wanted = None if removal else config(host)
        with monkeypatch.context() as patch:
            patch.setattr(_kubelet_apply, "_take_back", lambda *_all: None)
            try:
                apply(host, wanted, Ending(patch, node, steps, KeyboardInterrupt))
                break
            except KeyboardInterrupt:
                steps += 1
        assert make(host, wanted, node).drain_due or node.active, steps
        apply(host, wanted, node)
        assert node.active and not node.crash, steps
        assert (host / FILE[1:]).exists() is not removal
        assert not (host / _kubelet_apply.STOPPED[1:]).exists()
        left = make(host, wanted, node)
        assert not left.due and left.changes == []
    assert steps == 7


def test_a_mark_of_a_kubelet_that_runs_again_means_nothing(host: Path) -> None:
    """Somebody started it: when it is stopped on purpose later, it stays stopped."""
    node = Node(host, NODES)
    node.active = True
    apply(host, config(host), node)
    put(host, _kubelet_apply.STOPPED, "")
    assert not make(host, config(host), node).due
    apply(host, config(host), node)
    node.active = False
    apply(host, None, node)
    assert not node.active


class Ending:
    """A run that ends with an error before what it does as number STEP: systemctl, writing or removing a file."""

    def __init__(self, patch: pytest.MonkeyPatch, node: Node, step: int, error: type[BaseException]) -> None:
        self.node, self.left, self.error = node, step, error
        for name in ("atomic_write", "remove"):
            patch.setattr(_kubelet_apply, name, self.counted(getattr(_kubelet_apply, name)))

    def counted(self, function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            self.left -= 1
            if self.left == -1:
                raise self.error
            return function(*arguments)

        return call

    def __call__(self, arguments: Any) -> tuple[int, str, str]:
        found: tuple[int, str, str] = (
            self.node(arguments) if arguments[0] == "show" else self.counted(self.node)(arguments)
        )
        return found


def test_a_kubelet_that_does_not_run_is_not_started(host: Path) -> None:
    node = Node(host, NODES)
    made = apply(host, config(host), node)
    assert node.events == [] and not node.active and (host / FILE[1:]).exists()
    assert "unit:kubelet.service" not in [row["resource"] for row in made.changes]


@pytest.mark.parametrize(
    "table", ["[1]", '{"memory": 7}', '{"hugepages-x": {"total": 1}}', '{"memory": {"total": "x"}}']
)
def test_memory_of_another_form_is_left_alone(host: Path, table: str) -> None:
    """What is not understood is no reason to drain a node."""
    wanted = config(host)
    run(host, wanted)
    start(host, NODES)
    put(host, MEMORY, f'{{"policyName": "Static", "machineState": {{"0": {{"memoryMap": {table}}}}}}}')
    found = run(host, wanted, check=True)
    assert not found.get("failed") and not found["changed"]
