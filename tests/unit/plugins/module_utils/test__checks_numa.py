# SPDX-License-Identifier: GPL-3.0-or-later
"""The numa checks through host_verify: real, hidden, vouched for, too wide; never a failure that nobody asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from plan_host import SYSTEM, make_host
from support import put, run_module

RT = {"rt_runtime_us": 950000}
EPYC = "AMD EPYC 9634 84-Core Processor"


def two_nodes(root: Path, vendor: str = "QEMU", name: str = "") -> Path:
    """Two sockets of two CPUs, a node each, by VENDOR."""
    make_host(root)
    metal = vendor == "Dell Inc."
    put(root, "/sys/class/dmi/id/sys_vendor", vendor)
    put(root, "/proc/cpuinfo", f"processor : 0\nmodel name : {name}\nflags : lm{'' if metal else ' hypervisor'}\n")
    for cpu in range(4):
        put(root, f"{SYSTEM}/cpu/cpu{cpu}/topology/physical_package_id", f"{cpu // 2}\n")
    for node, row in ((0, "10 21"), (1, "21 10")):
        put(root, f"{SYSTEM}/node/node{node}/distance", f"{row}\n")
    return root


def one_node(root: Path, vcpus: int, name: str = "", vendor: str = "VMware, Inc.") -> Path:
    """A guest of one socket and one node."""
    cpus = f"0-{vcpus - 1}"
    make_host(root, {0: (cpus, 4_000_000)}, cpus=cpus, siblings=[str(cpu) for cpu in range(vcpus)])
    put(root, "/sys/class/dmi/id/sys_vendor", vendor)
    put(root, "/proc/cpuinfo", f"processor : 0\nmodel name : {name}\nflags : lm hypervisor\n")
    for cpu in range(vcpus):
        put(root, f"{SYSTEM}/cpu/cpu{cpu}/topology/physical_package_id", "0\n")
    return root


def answers(root: Path, intent: dict[str, Any] | None = None, **args: Any) -> dict[str, dict[str, Any]]:
    """The numa results of host_verify by id."""
    given = {"intent": {**RT, **(intent or {})}} if "plan" not in args else {}
    only = {"sysroot": str(root), "concerns": ["numa"], "layers": ["running"]}
    result = run_module("host_verify", {**only, **given, **args})
    assert not result.get("failed"), result
    assert all(row["concern"] == "numa" for row in result["results"])
    return {row["id"]: row for row in result["results"]}


def states(rows: dict[str, dict[str, Any]]) -> dict[str, tuple[str, str]]:
    return {key: (row["status"], row["reason"]) for key, row in rows.items()}


def test_a_guest_whose_sources_agree(tmp_path: Path) -> None:
    rows = answers(two_nodes(tmp_path))
    assert states(rows) == {
        "numa.trust": ("pass", ""),
        "numa.co_scheduling": ("not_evaluated", "cores_unknown"),
        "numa.transport": ("pass", ""),
    }
    assert rows["numa.trust"]["observed"]["trust"] == "consistent" and not rows["numa.trust"]["intended"]
    assert rows["numa.transport"]["expected"] == "shm"


def test_bare_metal(tmp_path: Path) -> None:
    rows = answers(two_nodes(tmp_path, "Dell Inc."), {"numa": {"trust": "asserted", "nodes": 2}})
    assert states(rows) == {
        "numa.nodes": ("pass", ""),
        "numa.trust": ("pass", ""),
        "numa.co_scheduling": ("not_applicable", "bare_metal"),
        "numa.transport": ("pass", ""),
    }
    assert rows["numa.trust"]["observed"]["trust"] == "exposed"


def test_the_seed_of_the_project(tmp_path: Path) -> None:
    """One node, 88 vCPUs, VMware, 84 cores: a warning each, since nobody asked; the transport is a socket."""
    rows = answers(one_node(tmp_path, 88, EPYC))
    assert states(rows) == {
        "numa.trust": ("warn", "topology_hidden"),
        "numa.co_scheduling": ("warn", "co_scheduling"),
        "numa.transport": ("pass", ""),
    }
    assert rows["numa.transport"]["expected"] == "unix"
    assert "88" in rows["numa.co_scheduling"]["remedy"] and "84" in rows["numa.co_scheduling"]["remedy"]
    for row in rows.values():
        assert row["source"] and (row["status"] == "pass" or "firsttouch_numa" in row["remedy"])


def test_who_vouches_is_told(tmp_path: Path) -> None:
    rows = answers(one_node(tmp_path, 8), {"numa": {"trust": "asserted", "cores_per_socket": 6}})
    assert rows["numa.trust"]["status"] == "pass" and rows["numa.trust"]["intended"]
    assert rows["numa.trust"]["observed"]["trust"] == "exposed"
    assert "firsttouch_numa vouches" in rows["numa.trust"]["observed"]["because"]
    assert rows["numa.co_scheduling"]["status"] == "warn", "who vouches for nodes does not make them wider"
    assert rows["numa.transport"]["expected"] == "shm"


@pytest.mark.parametrize(
    ("numa", "identity", "reason"),
    [
        ({"nodes": 2}, "numa.nodes", "nodes_differ"),
        ({"sockets": 2}, "numa.sockets", "sockets_differ"),
        ({"cpus": {"0": "0-3"}}, "numa.cpus.node0", "cpus_differ"),
        ({"memory": {"0": "64G"}}, "numa.memory.node0", "memory_differs"),
        ({"smt": True}, "numa.smt", "smt_differs"),
    ],
)
def test_an_expectation_that_is_not_met_fails_and_nobody_vouches(
    tmp_path: Path, numa: dict[str, Any], identity: str, reason: str
) -> None:
    rows = answers(one_node(tmp_path, 8), {"numa": {**numa, "trust": "asserted"}})
    assert states(rows)[identity] == ("fail", reason)
    assert states(rows)["numa.trust"] == ("fail", "topology_hidden")
    assert rows["numa.transport"]["expected"] == "unix"


def test_a_contradiction(tmp_path: Path) -> None:
    root = two_nodes(tmp_path)
    for node in (0, 1):
        put(root, f"{SYSTEM}/node/node{node}/distance", "10 10\n")
    assert states(answers(root))["numa.trust"] == ("warn", "topology_contradictory")
    rows = answers(root, {"numa": {"trust": "asserted"}})
    assert states(rows)["numa.trust"] == ("fail", "topology_contradictory")
    assert "distance" in rows["numa.trust"]["source"]


def test_who_vouches_for_another_topology(tmp_path: Path) -> None:
    rows = answers(two_nodes(tmp_path), {"numa": {"trust": "asserted", "nodes": 4}})
    assert states(rows)["numa.trust"] == ("fail", "assertion_not_met")


def test_a_host_that_moved(tmp_path: Path) -> None:
    """The plan was made where two nodes were; where one is, its transport does not hold."""
    made = run_module("host_plan", {"sysroot": str(two_nodes(tmp_path / "a")), "intent": RT})
    plan = json.loads(json.dumps(made["plan"]))
    rows = answers(one_node(tmp_path / "b", 4), plan=plan)
    assert states(rows)["numa.transport"] == ("fail", "transport_differs")
    assert (rows["numa.transport"]["expected"], rows["numa.transport"]["observed"]) == ("shm", "unix")
    put(tmp_path / "b", "/run/systemd/container", "docker\n")
    rows = answers(tmp_path / "b", plan=plan)
    assert states(rows)["numa.transport"] == ("not_evaluated", "topology_unknown")
    assert rows["numa.transport"]["intended"]


def test_the_nodes_are_those_of_the_record_also_where_the_plan_is_made_anew(tmp_path: Path) -> None:
    """A firmware numbered the nodes anew: each CPU list and pool of the record stands for another node."""
    made = run_module("host_plan", {"sysroot": str(two_nodes(tmp_path)), "intent": RT})
    assert "numa.planned" not in answers(tmp_path), "a plan of now has nothing to be held against"
    put(tmp_path, "/etc/firsttouch/plan.json", json.dumps(made["plan"]))
    assert states(answers(tmp_path))["numa.planned"] == ("pass", "")
    for node, cpus in enumerate(("2-3", "0-1")):
        put(tmp_path, f"{SYSTEM}/node/node{node}/cpulist", f"{cpus}\n")
    row = answers(tmp_path)["numa.planned"]
    assert (row["status"], row["reason"], row["intended"]) == ("fail", "nodes_changed", True)
    assert row["expected"] == {"0": "0-1", "1": "2-3"} and row["observed"] == {"0": "2-3", "1": "0-1"}


@pytest.mark.parametrize(
    ("node1", "online", "status"),
    [("2", "0-2", "warn"), ("2-4", "0-4", "warn"), ("2", "0-3", "fail")],
    ids=["a CPU is offline", "a CPU came online", "a CPU is no node's"],
)
def test_cpus_that_go_and_come(node1: str, online: str, status: str, tmp_path: Path) -> None:
    made = run_module("host_plan", {"sysroot": str(two_nodes(tmp_path)), "intent": RT})
    put(tmp_path, "/etc/firsttouch/plan.json", json.dumps(made["plan"]))
    put(tmp_path, f"{SYSTEM}/node/node1/cpulist", f"{node1}\n")
    put(tmp_path, f"{SYSTEM}/cpu/online", f"{online}\n")
    assert answers(tmp_path)["numa.planned"]["status"] == status


def test_the_fastest_transport_is_unbound_on_a_hidden_topology(tmp_path: Path) -> None:
    rows = answers(one_node(tmp_path, 4), {"transport_policy": "fastest"})
    assert states(rows)["numa.transport"] == ("pass", "")
    assert states(rows)["numa.transport.bound"] == ("warn", "transport_unbound")
    rows = answers(two_nodes(tmp_path / "b"), {"transport_policy": "fastest"})
    assert "numa.transport.bound" not in rows


def test_what_cannot_be_told_is_not_a_pass(tmp_path: Path) -> None:
    put(tmp_path, "/proc/cpuinfo", "processor : 0\n")
    rows = answers(tmp_path, plan={"numa": {"expected": {"nodes": 2, "trust": "asserted"}}})
    assert states(rows)["numa.nodes"] == ("not_evaluated", "not_available")
    assert states(rows)["numa.trust"] == ("not_evaluated", "topology_unknown")
    assert rows["numa.trust"]["intended"]


def test_a_plan_without_these_parts_asks_for_nothing(tmp_path: Path) -> None:
    rows = answers(two_nodes(tmp_path), plan={"sections": {}})
    assert "numa.transport" not in rows and not any(row["intended"] for row in rows.values())


def test_a_plan_that_somebody_broke_is_an_error(tmp_path: Path) -> None:
    rows = answers(two_nodes(tmp_path), plan={"numa": {"expected": {"nodes": "many"}}})
    assert rows["numa.expected.read"]["status"] == "error" and "many" in rows["numa.expected.read"]["observed"]


def test_another_transport_than_the_recorded_one_is_drift(tmp_path: Path) -> None:
    """The runtime reads the record, so an inventory that asks for something else must not look fine."""
    made = run_module("host_plan", {"sysroot": str(two_nodes(tmp_path)), "intent": RT})
    put(tmp_path, "/etc/firsttouch/plan.json", json.dumps(made["plan"]))
    for intent, changed in (
        ({}, []),
        ({"latency_target_us": 500}, ["transport"]),
        ({"numa": {"nodes": 2}}, ["numa"]),
        ({"numa": {"trust": "asserted"}}, ["numa", "transport"]),  # the words of the transport say exposed
    ):
        given = {"sysroot": str(tmp_path), "intent": {**RT, **intent}, "concerns": ["plan"]}
        rows = {row["id"]: row for row in run_module("host_verify", given)["results"]}
        assert rows["plan.drift"]["observed"] == changed
