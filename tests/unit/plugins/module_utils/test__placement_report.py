# SPDX-License-Identifier: GPL-3.0-or-later
"""What is made of a run: nothing is `pass` that was not placed and tried, on a topology that may exist."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils._placement import Measurement
from ansible_collections.firsttouch.host.plugins.module_utils._placement_host import Blocked, Skip
from ansible_collections.firsttouch.host.plugins.module_utils._placement_report import (
    document,
    message,
    results,
)
from ansible_collections.firsttouch.host.plugins.module_utils._topology import read_topology
from ansible_collections.firsttouch.host.plugins.module_utils._topology_nodes import Node
from ansible_collections.firsttouch.host.plugins.module_utils._verdict import Result, verdict

BUSY = Blocked("host_busy", "thread 7 (infer) is on isolated CPU 3", "/proc/7/task/7/stat")


def placed(cpu: int, node: int, size_kb: int = 4, **more: Any) -> dict[str, Any]:
    row = {
        "cpu": cpu,
        "cpu_node": cpu // 2,
        "node": node,
        "page_size_kb": size_kb,
        "page_size": "x",
        "pages": 8,
    }
    found = {"move_pages": {str(node): 8}, "get_mempolicy": {str(node): 8}}
    return {**row, "status": "placed", "reason": "", "detail": "", "found": found, "silent": {}, **more}


def refused(cpu: int, node: int, reason: str, status: str = "not_evaluated") -> dict[str, Any]:
    return placed(cpu, node, status=status, reason=reason, detail=f"it said {reason}", found={})


def run(ns: float = 150.0, slit: int = 21, trust: str | None = "consistent", **more: Any) -> Measurement:
    """Two nodes, all pages where they should be, remote loads of NS ns beside local ones of 100 ns."""
    nodes = tuple(
        Node(n, frozenset((2 * n, 2 * n + 1)), 1 << 32, True, True, {}, {n: 10, 1 - n: slit}) for n in (0, 1)
    )
    times = {"mad": 1.0, "samples": 56, "cache_ns": more.pop("cache_ns", 1.5)}
    given: dict[str, Any] = {
        "placements": tuple(placed(cpu, node) for cpu in (0, 2) for node in (0, 1)),
        "latencies": tuple(
            {"cpu": cpu, "cpu_node": cpu // 2, "node": node, "ns": 100.0 if cpu // 2 == node else ns, **times}
            for cpu in (0, 2)
            for node in (0, 1)
        ),
        **more,
    }
    return Measurement(replace(read_topology("/"), nodes=nodes), trust, **given)


def by_id(found: Measurement, **how: bool) -> dict[str, Result]:
    rows = list(results(found, **how))
    assert {row.layer for row in rows} == {"measured"}
    assert {row.concern for row in rows} == {"numa"}
    named = {row.id: row for row in rows}
    assert len(named) == len(rows), "two results have one id"
    return named


def test_all_pages_where_they_were_bound_to_pass() -> None:
    rows = by_id(run())
    assert {name: row.status for name, row in rows.items()} == {
        "numa.placement.4K.node0": "pass",
        "numa.placement.4K.node1": "pass",
        "numa.latency": "pass",
    }
    seen = rows["numa.placement.4K.node1"].observed
    assert (seen["node"], seen["from_cpus"], seen["sources"]) == (1, "0,2", ["get_mempolicy", "move_pages"])
    assert rows["numa.latency"].observed["ratio"] == 1.5


@pytest.mark.parametrize(
    ("trust", "reason"),
    [("hidden", "topology_hidden"), ("contradictory", "topology_contradictory"), (None, "trust_unknown")],
)
def test_nothing_passes_where_it_proves_nothing(trust: str | None, reason: str) -> None:
    found = run(trust=trust)
    assert {(row.status, row.reason) for row in by_id(found).values()} == {("not_evaluated", reason)}
    assert message(found).startswith("This proves nothing about the machine: ")
    told = document(found)
    assert (told["proves"], bool(told["proves_nothing_because"])) == (False, True)


@pytest.mark.parametrize(
    "reason", ["sigbus", "permission_denied", "time_budget", "timeout", "cpus_not_allowed"]
)
def test_one_cpu_without_an_answer_keeps_the_node_from_passing(reason: str) -> None:
    rows = by_id(run(placements=(placed(0, 0), placed(0, 1), placed(2, 0), refused(2, 1, reason))))
    assert rows["numa.placement.4K.node0"].status == "pass"
    row = rows["numa.placement.4K.node1"]
    assert (row.status, row.reason, row.observed) == (
        "not_evaluated",
        reason,
        f"from CPU 2: it said {reason}",
    )


@pytest.mark.parametrize(("intended", "status"), [(True, "fail"), (False, "warn")])
@pytest.mark.parametrize("reason", ["wrong_node", "contradictory_sources"])
def test_pages_elsewhere_fail_when_the_intent_describes_the_nodes(
    reason: str, intended: bool, status: str
) -> None:
    found = run(
        placements=(placed(0, 1), refused(2, 1, "timeout"), refused(1, 1, reason, "wrong")), trust="hidden"
    )
    row = by_id(found, intended=intended)["numa.placement.4K.node1"]
    assert (row.status, row.reason) == (status, reason)
    assert "firsttouch_numa" in row.remedy


def test_a_defect_is_an_error() -> None:
    found = run(placements=(placed(0, 1), refused(2, 1, "check_broke", "error")))
    assert by_id(found)["numa.placement.4K.node1"].status == "error"


def test_one_source_alone_is_named() -> None:
    rows = (placed(0, 0), placed(2, 0, found={"get_mempolicy": {"0": 8}}, silent={"move_pages": "EPERM"}))
    assert by_id(run(placements=rows))["numa.placement.4K.node0"].observed["sources"] == ["get_mempolicy"]


def test_what_was_left_out_is_an_answer_of_its_own() -> None:
    skips = (
        Skip(Blocked("cpus_not_allowed", "a", "/s"), cpu_node=1),
        Skip(Blocked("mems_not_allowed", "b", "/s"), node=1),
        Skip(Blocked("host_busy", "c", "/s"), node=0, size_kb=2048),
    )
    rows = by_id(run(skips=skips), required=True)
    left = {
        name: (row.status, row.reason, row.intended) for name, row in rows.items() if row.status != "pass"
    }
    assert left == {
        "numa.placement.from_node1": ("not_evaluated", "cpus_not_allowed", True),
        "numa.placement.node1": ("not_evaluated", "mems_not_allowed", True),
        "numa.placement.2M.node0": ("not_evaluated", "host_busy", True),
    }
    assert [row["reason"] for row in document(run(skips=skips))["left_out"]] == [
        "cpus_not_allowed",
        "mems_not_allowed",
        "host_busy",
    ]


@pytest.mark.parametrize("required", [True, False])
def test_a_busy_host_is_not_evaluated(required: bool) -> None:
    found = Measurement(read_topology("/"), "exposed", BUSY)
    rows = by_id(found, required=required)
    assert {(row.status, row.reason, row.intended) for row in rows.values()} == {
        ("not_evaluated", "host_busy", required)
    }
    assert sorted(rows) == ["numa.latency", "numa.placement"]
    assert "infer" in message(found)
    assert document(found)["proves"] is False
    assert verdict(list(rows.values())) == "incomplete"


LATENCY: dict[str, tuple[Measurement, str, str]] = {
    "far": (run(150), "pass", ""),
    "flat where the firmware says far": (run(101), "warn", "latency_flat"),
    "flat within a socket": (run(105, slit=12), "pass", ""),
    "of the cache": (run(101, cache_ns=40.0), "not_evaluated", "latency_of_cache"),
    "one node could not be measured": (
        run(unmeasured=({"cpu": 0, "node": 1, "reason": "mems_not_allowed", "detail": "d"},)),
        "not_evaluated",
        "mems_not_allowed",
    ),
    "not measured at all": (
        run(
            latencies=(),
            unmeasured=({"cpu": 0, "node": None, "reason": "no_executable_memory", "detail": "d"},),
        ),
        "not_evaluated",
        "no_executable_memory",
    ),
    "no CPU to measure on": (run(latencies=()), "not_evaluated", "no_cpu"),
    "nothing to compare with": (
        run(
            latencies=(
                {"cpu": 0, "cpu_node": 0, "node": 1, "ns": 99.0, "mad": 1.0, "samples": 56, "cache_ns": 1.0},
            )
        ),
        "not_evaluated",
        "no_pair",
    ),
}


@pytest.mark.parametrize("case", LATENCY)
def test_latency(case: str) -> None:
    found, status, reason = LATENCY[case]
    row = by_id(found)["numa.latency"]
    assert (row.status, row.reason) == (status, reason), row


def test_a_run_in_which_nothing_was_placed_proves_nothing() -> None:
    assert document(run(placements=(refused(0, 0, "permission_denied"),)))["proves"] is False


def test_one_node_of_a_machine_with_one_has_no_latency_to_compare() -> None:
    found = run()
    one = replace(found.topology, nodes=found.topology.nodes[:1])
    alone = replace(found, topology=one, latencies=found.latencies[:1])
    assert by_id(alone)["numa.latency"].reason == "one_node"
    assert by_id(replace(alone, trust="hidden"))["numa.latency"].reason == "topology_hidden"


def test_the_document_is_json_and_holds_matrix_and_ratio() -> None:
    told = json.loads(json.dumps(document(run())))
    assert told["latency"]["matrix"] == {"0": {"0": 100.0, "1": 150.0}, "1": {"0": 150.0, "1": 100.0}}
    assert (told["ratio"]["ratio"], told["ratio"]["problem"]) == (1.5, "")
    assert told["evidence"]["ratio"] == 1.5 and told["evidence"]["source"] == told["ratio"]["source"]
    assert told["proves"] is True
    assert message(run()).startswith(
        "4 of 4 placements are where they were asked for. Remote memory takes 1.50"
    )
