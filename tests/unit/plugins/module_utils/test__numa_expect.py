# SPDX-License-Identifier: GPL-3.0-or-later
"""firsttouch_numa: what is read of it, what is refused, and each expectation met, missed and unknowable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils._intent import IntentError
from ansible_collections.firsttouch.host.plugins.module_utils._numa_expect import (
    judge_expected,
    read_expected,
    vouched,
)
from ansible_collections.firsttouch.host.plugins.module_utils._topology import Topology, read_topology
from ansible_collections.firsttouch.host.plugins.module_utils._topology_text import read_lscpu
from plan_host import make_host
from support import CASES, put

CPU = "/sys/devices/system/cpu"
NODE = "/sys/devices/system/node"
GIB = 1 << 30


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"nodes": 2}, {"nodes": 2}),
        ({"nodes": "2"}, {"nodes": 2}),
        ({"nodes": [8, 0]}, {"nodes": [0, 8]}),
        ({"cpus": {0: "0,1,2-3", "1": 4}}, {"cpus": {"0": "0-3", "1": 4}}),
        ({"cpus": {"10": "8", "9": "7"}}, {"cpus": {"9": "7", "10": "8"}}),
        ({"memory": {0: "64G", 1: 1024}}, {"memory": {"0": 64 * GIB, "1": 1024}}),
        ({"distances": [[10, 21], [21, 10]]}, {"distances": [[10, 21], [21, 10]]}),
        ({"distances": {0: {1: 21}}}, {"distances": {"0": {"1": 21}}}),
        ({"smt": True, "sockets": 2, "cores_per_socket": 84}, {"smt": True, "sockets": 2, "cores_per_socket": 84}),
        ({"smt": 4}, {"smt": 4}),
        ({"trust": "asserted"}, {"trust": "asserted"}),
        ({"nodes": None}, {}),
    ],
)
def test_what_is_read(value: dict[str, Any], expected: dict[str, Any]) -> None:
    found = read_expected(value)
    assert found == expected
    assert read_expected(json.loads(json.dumps(found))) == found, "the plan's own spelling reads back"


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (2, "not a mapping"),
        ({"node": 2}, "node"),
        ({"nodes": 0}, "nodes"),
        ({"nodes": True}, "nodes"),
        ({"nodes": []}, "nodes"),
        ({"nodes": "two"}, "nodes"),
        ({"cpus": "0-3"}, "cpus"),
        ({"cpus": {}}, "cpus"),
        ({"cpus": {"a": "0-3"}}, "cpus"),
        ({"cpus": {0: "3-0"}}, "cpus"),
        ({"cpus": {0: "0-N"}}, "cpus"),
        ({"cpus": {0: True}}, "cpus"),
        ({"cpus": {0: ["0"]}}, "cpus"),
        ({"memory": {0: "64 gigs"}}, "memory"),
        ({"memory": {0: -1}}, "memory"),
        ({"distances": [[10, 21]]}, "distances"),
        ({"distances": [[10, "x"], [21, 10]]}, "distances"),
        ({"distances": []}, "distances"),
        ({"distances": {0: 21}}, "distances"),
        ({"distances": {0: {1: 256}}}, "distances"),
        ({"smt": "on"}, "smt"),
        ({"sockets": 0}, "sockets"),
        ({"cores_per_socket": 1.5}, "cores_per_socket"),
        ({"trust": "yes"}, "trust"),
    ],
)
def test_what_is_refused(value: Any, named: str) -> None:
    with pytest.raises(IntentError, match=named):
        read_expected(value)


MET: dict[str, Any] = {
    "nodes": [0, 1],
    "cpus": {"0": "0-3", "1": 4},
    "memory": {"0": "2G", "1": "2200M"},
    "distances": [[10, 21], [21, 10]],
    "smt": True,
    "sockets": 2,
    "cores_per_socket": 2,
}
WRONG: dict[str, tuple[Any, str, str]] = {
    "nodes": (3, "numa.nodes", "nodes_differ"),
    "cpus": ({"0": "0-2"}, "numa.cpus.node0", "cpus_differ"),
    "memory": ({"1": "4G"}, "numa.memory.node1", "memory_differs"),
    "distances": ({"0": {"1": 20}}, "numa.distances", "distances_differ"),
    "smt": (False, "numa.smt", "smt_differs"),
    "sockets": (1, "numa.sockets", "sockets_differ"),
    "cores_per_socket": (4, "numa.cores_per_socket", "cores_differ"),
}


def two_nodes(root: Path, vendor: str | None = "Dell Inc.", memory_kb: int = 2 << 20) -> Topology:
    """Two sockets of two cores of two threads, a node each, by VENDOR; MEMORY_KB on node 1."""
    cores = [f"{cpu},{cpu + 1}" for cpu in range(0, 8, 2)]
    nodes = {0: ("0-3", 2 << 20), 1: ("4-7", memory_kb)}
    make_host(root, nodes, cpus="0-7", siblings=cores, flags="lm hypervisor" if vendor == "QEMU" else "lm")
    for cpu in range(8):
        put(root, f"{CPU}/cpu{cpu}/topology/physical_package_id", f"{cpu // 4}\n")
    for node, row in ((0, "10 21"), (1, "21 10")):
        put(root, f"{NODE}/node{node}/distance", f"{row}\n")
    if vendor:
        put(root, "/sys/class/dmi/id/sys_vendor", vendor)
    return read_topology(str(root))


def test_every_expectation_met(tmp_path: Path) -> None:
    results = judge_expected(read_expected(MET), two_nodes(tmp_path))
    assert {result.status for result in results} == {"pass"}
    assert len(results) == len({result.id for result in results}) == 9


@pytest.mark.parametrize("key", sorted(WRONG))
def test_one_expectation_missed(tmp_path: Path, key: str) -> None:
    value, identity, reason = WRONG[key]
    results = judge_expected(read_expected({**MET, key: value}), two_nodes(tmp_path))
    failed = [result for result in results if result.status != "pass"]
    assert [(result.id, result.status, result.reason) for result in failed] == [(identity, "fail", reason)]
    assert f"firsttouch_numa.{key}" in failed[0].remedy and failed[0].source


@pytest.mark.parametrize(
    ("expected", "status"),
    [
        ({"cpus": {"7": "0-3"}}, "fail"),
        ({"memory": {"7": "1G"}}, "fail"),
        ({"distances": {"0": {"7": 21}}}, "fail"),
        ({"memory": {"0": "2G"}}, "pass"),
        ({"memory": {"0": 2 * GIB - 1}}, "fail"),  # more than is expected
        ({"memory": {"0": "2304M"}}, "pass"),
        ({"memory": {"0": "2305M"}}, "fail"),
        ({"nodes": [0, 8]}, "fail"),
        ({"smt": 2}, "pass"),
        ({"smt": 4}, "fail"),
    ],
)
def test_bounds(tmp_path: Path, expected: dict[str, Any], status: str) -> None:
    (result,) = judge_expected(read_expected(expected), two_nodes(tmp_path))
    assert result.status == status


def test_memory_of_a_node_without_any_is_not_right(tmp_path: Path) -> None:
    (result,) = judge_expected(read_expected({"memory": {"1": "200M"}}), two_nodes(tmp_path, memory_kb=0))
    assert result.status == "fail"


def test_what_the_kernel_does_not_show_is_not_evaluated(tmp_path: Path) -> None:
    put(tmp_path, "/proc/cpuinfo", "processor : 0\n")
    results = judge_expected(read_expected(MET), read_topology(str(tmp_path)))
    assert {result.status for result in results} == {"not_evaluated"}


def test_a_kernel_without_numa_fails_and_says_so(tmp_path: Path) -> None:
    put(tmp_path, f"{CPU}/online", "0-3\n")
    (result,) = judge_expected(read_expected({"nodes": 2}), read_topology(str(tmp_path)))
    assert (result.status, result.reason, result.source) == ("fail", "no_numa", NODE)


def test_cores_of_the_machine_are_not_those_that_a_guest_shows(tmp_path: Path) -> None:
    guest = two_nodes(tmp_path / "a", "QEMU")
    assert guest.virtualization.bare_metal is False
    assert judge_expected(read_expected({"cores_per_socket": 84}), guest) == []
    (result,) = judge_expected(read_expected({"cores_per_socket": 84}), two_nodes(tmp_path / "b", None))
    assert result.status == "not_evaluated"


def test_sub_numa_clustering_is_not_two_nodes() -> None:
    snc = read_lscpu((CASES / "numa-snc4-two-sockets" / "lscpu").read_text())
    results = judge_expected(read_expected({"nodes": 2, "sockets": 2}), snc)
    assert [(result.id, result.status) for result in results] == [("numa.nodes", "fail"), ("numa.sockets", "pass")]


def test_who_vouches(tmp_path: Path) -> None:
    topology = two_nodes(tmp_path)
    for expected, who in (
        ({"trust": "asserted"}, "firsttouch_numa"),
        ({"trust": "asserted", "nodes": 2}, "firsttouch_numa"),
        ({"trust": "asserted", "nodes": 1}, None),  # what is vouched for is another topology
        ({"nodes": 2}, None),
    ):
        assert vouched(expected, judge_expected(expected, topology)) == who
