# SPDX-License-Identifier: GPL-3.0-or-later
"""The checks of the kubelet: each fault is named with its file, and none of them passes for another."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _checks_kubelet
from ansible_collections.firsttouch.host.plugins.module_utils._checks_host import Context
from ansible_collections.firsttouch.host.plugins.module_utils._verdict import Result
from fake_kubelet import start
from plan_host import make_host, plan
from support import put, run_module

HEAD = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
FILE = "/etc/kubernetes/kubelet.conf.d/zz-firsttouch.conf"
UNIT = "/usr/lib/systemd/system/kubelet.service"
STATE = "/var/lib/kubelet/memory_manager_state"
FLAGS = "--config=/var/lib/kubelet/config.yaml --config-dir=/etc/kubernetes/kubelet.conf.d"
START = f"[Service]\nExecStart=/usr/bin/kubelet {FLAGS}"
NODES = {0: 1_490_000 << 10, 1: 3_500_000 << 10}
PASSES = {
    "kubelet.file": "pass", "kubelet.effective": "pass", "kubelet.reserved": "pass", "kubelet.cpu_manager": "pass",
    "kubelet.memory_manager": "pass",
}  # fmt: skip


@pytest.fixture
def host(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    make_host(tmp_path)
    put(tmp_path, UNIT, f"{START}\n")
    put(tmp_path, "/var/lib/kubelet/config.yaml", HEAD + "kubeReserved: {memory: 1Gi}\n")
    (tmp_path / FILE[1:]).parent.mkdir(parents=True)
    made = plan(tmp_path, {"isolated_cpus": "1,3", "kubelet": "present"})["plan"]
    section = made["sections"]["kubelet"]
    args = {"file": FILE, "config": section["config"], "sysroot": str(tmp_path)}
    assert run_module("kubelet_config", args)["changed"]
    start(tmp_path, NODES)
    return tmp_path, made


def rows(root: Path, made: dict[str, Any]) -> dict[str, Result]:
    ctx = Context(made, str(root))
    return {row.id: row for check in _checks_kubelet.CHECKS for row in check.ask(ctx)}


def test_a_node_as_planned_passes(host: tuple[Path, dict[str, Any]]) -> None:
    assert {name: row.status for name, row in rows(*host).items()} == PASSES


def _more_reserved(root: Path) -> None:
    put(root, "/var/lib/kubelet/config.yaml", HEAD + "kubeReserved: {memory: 2Gi}\n")


def _old_state(root: Path) -> None:
    state = json.loads((root / STATE[1:]).read_text())
    state["machineState"]["1"]["memoryMap"]["memory"]["total"] -= 4096
    put(root, STATE, json.dumps(state))


@pytest.mark.parametrize(
    ("fault", "check", "reason", "source"),
    [
        (lambda root: put(root, FILE, "# x\n"), "kubelet.file", "changed_by_hand", FILE),
        (lambda root: (root / FILE[1:]).unlink(), "kubelet.file", "not_configured", FILE),
        (lambda root: put(root, UNIT, f"{START} --reserved-cpus=0\n"), "kubelet.effective", "overridden_by", UNIT),
        (lambda root: put(root, UNIT, f"{START.replace('kubelet.conf.d', 'other.d')}\n"), "kubelet.effective",
         "overridden_by", UNIT),
        (lambda root: put(root, FILE.replace("zz-", "zzz-"), HEAD + "memoryManagerPolicy: None\n"), "kubelet.effective",
         "overridden_by", FILE.replace("zz-", "zzz-")),
        (_more_reserved, "kubelet.reserved", "reserved_differs", "/var/lib/kubelet/config.yaml"),
        (_old_state, "kubelet.memory_manager", "state_stale", STATE),
        (lambda root: put(root, STATE.replace("memory", "cpu"), '{"policyName": "none"}'), "kubelet.cpu_manager",
         "state_stale", STATE.replace("memory", "cpu")),
    ],
)  # fmt: skip
def test_each_fault_is_named_with_its_file(
    host: tuple[Path, dict[str, Any]], fault: Callable[[Path], object], check: str, reason: str, source: str
) -> None:
    root, made = host
    fault(root)
    found = rows(root, made)
    assert {name: row.status for name, row in found.items()} == {**PASSES, check: "fail"}
    assert (found[check].reason, found[check].source) == (reason, source)
    assert "firsttouch_kubelet" in found[check].remedy


def test_what_cannot_be_told_is_not_evaluated(host: tuple[Path, dict[str, Any]]) -> None:
    root, made = host
    put(root, UNIT, "[Service]\nExecStart=/bin/sh -c kubelet\n")
    (root / STATE[1:]).unlink()
    put(root, STATE.replace("memory", "cpu"), '{"policyName": "none"}')
    found = rows(root, made)
    assert (found["kubelet.effective"].status, found["kubelet.effective"].reason) == (
        "not_evaluated",
        "kubelet_unknown",
    )
    state = found["kubelet.memory_manager"]
    assert (state.status, state.reason, state.source, state.intended) == ("not_evaluated", "not_available", STATE, True)
    assert found["kubelet.cpu_manager"].status == "fail", "which the other one says nothing about"


def test_a_kubelet_that_is_gone_is_not_one_that_is_yet_to_come(host: tuple[Path, dict[str, Any]]) -> None:
    root, made = host
    (root / UNIT[1:]).unlink()
    for name in ("memory", "cpu"):
        effective = rows(root, made)["kubelet.effective"]
        assert (effective.status, effective.reason) == ("fail", "not_installed")
        (root / STATE.replace("memory", name)[1:]).unlink()
    found = {name: (row.status, row.reason) for name, row in rows(root, made).items()}
    assert found["kubelet.effective"] == ("not_applicable", "not_installed")
    assert found["kubelet.state"] == ("not_applicable", "not_available")


def test_a_file_that_should_be_gone(host: tuple[Path, dict[str, Any]]) -> None:
    root, made = host
    section = {**made["sections"]["kubelet"], "state": "absent", "config": None}
    gone = {**made, "sections": {**made["sections"], "kubelet": section}}
    assert {name: (row.status, row.reason) for name, row in rows(root, gone).items()} == {
        "kubelet.file": ("fail", "not_removed")
    }
    (root / FILE[1:]).unlink()
    assert rows(root, gone) == {} == rows(root, {"sections": {"kubelet": None}})
