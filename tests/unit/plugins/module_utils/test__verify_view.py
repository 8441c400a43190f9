# SPDX-License-Identifier: GPL-3.0-or-later
"""What a report draws of a host: pools against the plan, CPUs, and plans that can be told apart."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils._checks_host import Context
from ansible_collections.firsttouch.host.plugins.module_utils._verify_view import host_view, plan_view
from support import put
from verified_host import CPU, bare_host, plan_for, pool


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_host(tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module")
def plan(bare: Path) -> dict[str, Any]:
    return plan_for(bare)


def test_pools_tell_what_was_asked_and_what_is_there(tmp_path: Path, plan: dict[str, Any]) -> None:
    root = bare_host(tmp_path)
    pool(root, 0, "2048kB", 99, surplus=1)
    pool(root, 0, "1048576kB", 2)
    rows = {(row["size"], row["node"]): row for row in host_view(Context(plan, str(root)))["pools"]}
    assert rows["2M", 0] == {"size": "2M", "node": 0, "asked": 100, "got": 99, "free": 99, "surplus": 1}
    assert rows["2M", 1]["asked"] == 160 and rows["2M", 1]["got"] == 0
    assert rows["1G", 0]["asked"] == 0 and rows["1G", 0]["got"] == 2
    assert rows["1G", 1]["asked"] == 1


def test_a_pool_that_nobody_asked_for_has_no_wish(tmp_path: Path) -> None:
    root = bare_host(tmp_path)
    pool(root, 1, "2048kB", 5)
    assert host_view(Context({}, str(root)))["pools"] == [
        {"size": "2M", "node": 1, "asked": None, "got": 5, "free": 5, "surplus": 0}
    ]


def test_a_node_of_the_plan_that_the_host_lacks_is_not_known(bare: Path, plan: dict[str, Any]) -> None:
    other = copy.deepcopy(plan)
    other["sections"]["hugepages"]["pools"][0]["nodes"]["7"] = 4
    row = next(row for row in host_view(Context(other, str(bare)))["pools"] if row["node"] == 7)
    assert row == {"size": "2M", "node": 7, "asked": 4, "got": None, "free": None, "surplus": None}


def test_only_cores_with_several_threads_are_listed(tmp_path: Path) -> None:
    root = bare_host(tmp_path)
    for cpu in (0, 1):
        put(root, f"{CPU}/cpu{cpu}/topology/thread_siblings_list", "0-1\n")
        put(root, f"{CPU}/cpu{cpu}/topology/core_id", "0\n")
    view = host_view(Context({}, str(root)))
    assert view["cores"] == ["0-1"] and [row["cpus"] for row in view["sockets"]] == ["0-1", "2-3"]
    assert [row["distances"] for row in view["nodes"]] == [{"0": 10, "1": 21}, {"0": 21, "1": 10}]


def test_the_verdict_about_the_topology_has_its_evidence(bare: Path, plan: dict[str, Any]) -> None:
    trust = host_view(Context(plan, str(bare)))["trust"]
    assert trust["verdict"] == plan["numa"]["trust"]["verdict"] and trust["words"] and trust["evidence"]
    assert trust["transport"] == plan["transport"] and trust["asserted_by"] is None
    broken = {"numa": {"expected": {"nodes": "many"}}, "transport": "shm"}
    assert host_view(Context(broken, str(bare)))["trust"]["transport"] is None


def test_an_empty_tree_is_not_known(tmp_path: Path) -> None:
    view = host_view(Context({}, str(tmp_path)))
    assert view["kernel"] is None and view["pools"] == [] and view["warnings"]


def test_plans_differ_where_it_counts(plan: dict[str, Any]) -> None:
    view, other = plan_view(plan), copy.deepcopy(plan)
    other["sections"]["hugepages"]["budget"]["0"]["left_bytes"] = 1
    assert plan_view(other) == view
    other["sections"]["hugepages"]["pools"][0]["total"] = 1
    changed = plan_view(other)
    assert changed["digest"] != view["digest"]
    different = [name for name in view["sections"] if view["sections"][name] != changed["sections"][name]]
    assert different == ["hugepages"]
    assert plan_view({})["intent"] == {}
