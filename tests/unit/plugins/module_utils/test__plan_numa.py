# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan's numa and transport: what the runtime reads, and that both stay as they are on an unchanged host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils._transport_choice import choose_by_plan
from plan_host import SYSTEM, make_host, plan, refused
from support import put, run_module

PAGES = {"hugepages": [{"size": "2M", "nodes": {0: 30, 1: 20}}], "isolated_cpus": "1,3"}


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A guest of two sockets and two nodes."""
    root = make_host(tmp_path, flags="lm pse pdpe1gb hypervisor")
    for cpu in range(4):
        put(root, f"{SYSTEM}/cpu/cpu{cpu}/topology/physical_package_id", f"{cpu // 2}\n")
    for node in (0, 1):
        put(root, f"{SYSTEM}/node/node{node}/distance", "10 21\n" if node == 0 else "21 10\n")
    return root


def planned(root: Path, intent: dict[str, Any], **options: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(plan(root, intent, **options)["plan"]))
    return document


def hide(root: Path) -> None:
    """Make the host one of one node."""
    for name in ("online", "possible", "has_memory", "has_normal_memory", "has_cpu"):
        put(root, f"{SYSTEM}/node/{name}", "0\n")
    put(root, f"{SYSTEM}/node/node0/cpulist", "0-3\n")
    put(root, f"{SYSTEM}/node/node0/distance", "10\n")
    put(root, f"{SYSTEM}/node/node0/meminfo", "Node 0 MemTotal: 4990000 kB\n")


def test_what_the_runtime_reads(host: Path) -> None:
    document = planned(host, PAGES)
    assert {node: (row["cpus"], row["isolated"], row["housekeeping"], row["distances"])
            for node, row in document["topology"]["nodes"].items()} == {
        "0": ("0-1", "1", "0", {"0": 10, "1": 21}),
        "1": ("2-3", "3", "2", {"0": 21, "1": 10}),
    }  # fmt: skip
    assert document["sections"]["hugepages"]["pools"][0]["nodes"] == {"0": 30, "1": 20}
    assert document["numa"]["trust"]["verdict"] == "consistent"
    transport = document["transport"]
    assert (transport["transport"], transport["bound"], transport["policy"]) == ("shm", True, "topology")
    assert "consistent" in transport["words"]
    assert choose_by_plan(document).as_dict() == {key: transport[key] for key in choose_by_plan(document).as_dict()}


def test_without_isolation_every_cpu_keeps_house(host: Path) -> None:
    nodes = planned(host, {"rt_runtime_us": 950000})["topology"]["nodes"]
    assert [(row["isolated"], row["housekeeping"]) for row in nodes.values()] == [("", "0-1"), ("", "2-3")]


@pytest.mark.parametrize(
    ("intent", "verdict", "transport"),
    [
        ({}, "hidden", "unix"),
        ({"transport_policy": "fastest"}, "hidden", "shm"),
        ({"numa": {"trust": "asserted"}}, "exposed", "shm"),
        ({"numa": {"trust": "asserted", "nodes": 2}}, "hidden", "unix"),
        ({"numa": {"trust": "asserted"}, "latency_target_us": 500}, "exposed", "unix"),
    ],
)
def test_a_hidden_topology(host: Path, intent: dict[str, Any], verdict: str, transport: str) -> None:
    hide(host)
    document = planned(host, {"rt_runtime_us": 950000, **intent})
    assert document["numa"]["trust"]["verdict"] == verdict
    assert document["transport"]["transport"] == transport
    assert bool(document["transport"]["warning"]) is (intent.get("transport_policy") == "fastest")
    if verdict == "exposed":
        assert document["numa"]["trust"]["asserted_by"] == "firsttouch_numa"
        assert "firsttouch_numa" in document["numa"]["trust"]["words"]


def test_co_scheduling_by_the_given_cores(host: Path) -> None:
    document = planned(host, {"rt_runtime_us": 950000, "numa": {"cores_per_socket": 1}})
    assert document["numa"]["co_scheduling"]["risk"] is True
    assert document["numa"]["trust"]["verdict"] == "hidden"


def test_a_kernel_without_nodes_cannot_bind(host: Path) -> None:
    for path in sorted((host / SYSTEM.lstrip("/") / "node").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    document = planned(host, {"rt_runtime_us": 950000, "numa": {"trust": "asserted"}})
    assert document["numa"]["memory_bindable"] is False
    assert (document["transport"]["transport"], document["transport"]["rule"]) == ("unix", "not_bindable")


def test_what_differs_from_the_expectation_is_a_note_and_stops_nothing(host: Path) -> None:
    result = plan(host, {"rt_runtime_us": 950000, "numa": {"nodes": 4}})
    (note,) = [row for row in result["notes"] if row["variable"] == "firsttouch_numa"]
    assert note["reason"] == "nodes_differ" and "4" in note["text"]


@pytest.mark.parametrize(
    ("intent", "variable"),
    [
        ({"numa": {"sockets": "x"}}, "firsttouch_numa"),
        ({"numa": 2}, "firsttouch_numa"),
        ({"transport_policy": "best"}, "firsttouch_transport_policy"),
        ({"latency_target_us": 0}, "firsttouch_latency_target_us"),
        ({"latency_target_us": "soon"}, "firsttouch_latency_target_us"),
    ],
)
def test_what_is_refused(host: Path, intent: dict[str, Any], variable: str) -> None:
    (row,) = refused(host, {"rt_runtime_us": 950000, **intent})
    assert (row["variable"], row["reason"]) == (variable, "bad_value")


@pytest.mark.parametrize("value", ["absent", [], {}, None])
def test_nothing_expected(host: Path, value: Any) -> None:
    assert planned(host, {"rt_runtime_us": 950000, "numa": value})["numa"]["expected"] == {}


def record(root: Path, intent: dict[str, Any], sections: list[str]) -> bool:
    """Plan and record SECTIONS; whether plan.json changed."""
    document = plan(root, intent, sections=sections)["plan"]
    result = run_module("plan_record", {"plan": document, "sections": sections, "sysroot": str(root)})
    assert not result.get("failed"), result
    return bool(result["changed"])


def recorded(root: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((root / "etc/firsttouch/plan.json").read_text())
    return document


def test_the_record_does_not_change_on_an_unchanged_host(host: Path) -> None:
    intent = {**PAGES, "numa": {"nodes": 2, "memory": {0: "1500M"}}, "transport_policy": "topology"}
    assert record(host, intent, ["hugepages", "cpu_isolation"])
    # The next boot: other figures of memory, nothing else.
    put(host, f"{SYSTEM}/node/node0/meminfo", "Node 0 MemTotal: 1489000 kB\n")
    assert not record(host, intent, ["hugepages", "cpu_isolation"])
    assert not record(host, intent, ["cpu_isolation"])
    assert recorded(host)["numa"]["expected"]["nodes"] == 2
    assert recorded(host)["intent"]["transport_policy"] == "topology"


def test_the_record_follows_the_host_and_the_intent(host: Path) -> None:
    record(host, PAGES, ["hugepages", "cpu_isolation"])
    assert record(host, {**PAGES, "latency_target_us": 500}, ["cpu_isolation"])
    assert recorded(host)["transport"]["transport"] == "unix"
    assert record(host, {**PAGES, "numa": {"trust": "asserted"}}, ["hugepages"])
    assert recorded(host)["numa"]["trust"]["verdict"] == "exposed"
    assert record(host, PAGES, ["hugepages"])
    assert recorded(host)["numa"]["trust"]["verdict"] == "consistent"
    assert "numa" not in recorded(host)["intent"]
