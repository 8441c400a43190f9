# SPDX-License-Identifier: GPL-3.0-or-later
"""The rows of a run, the ratio that they make and what it may be used for, and a real run on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _placement, _placement_host
from ansible_collections.firsttouch.host.plugins.module_utils._placement import (
    Measurement,
    measure,
    measurement,
    ratio,
)
from ansible_collections.firsttouch.host.plugins.module_utils._placement_host import Blocked
from ansible_collections.firsttouch.host.plugins.module_utils._placement_kernel import Unsupported
from ansible_collections.firsttouch.host.plugins.module_utils._placement_work import Job
from ansible_collections.firsttouch.host.plugins.module_utils._topology import Topology, read_topology
from ansible_collections.firsttouch.host.plugins.module_utils._topology_cpus import Cpus
from ansible_collections.firsttouch.host.plugins.module_utils._topology_nodes import Node, NodeLists

PLACED = {"status": "placed", "found": {"move_pages": {"0": 8}, "get_mempolicy": {"0": 8}}, "silent": {}}


def topology(nodes: int = 2, slit: int = 21) -> Topology:
    """NODES nodes of two CPUs each."""
    shown = tuple(
        Node(
            n,
            frozenset((2 * n, 2 * n + 1)),
            1 << 32,
            True,
            True,
            {},
            {m: 10 if m == n else slit for m in range(nodes)},
        )
        for n in range(nodes)
    )
    cpus = replace(read_topology("/").cpus, online=frozenset(range(2 * nodes)))
    assert isinstance(cpus, Cpus)
    return replace(
        read_topology("/"), source="sysfs", cpus=cpus, nodes=shown, lists=NodeLists(frozenset(range(nodes)))
    )


def timed(ns: Mapping[tuple[int, int], float], mad: float = 2.0, cache_ns: float = 1.5) -> Measurement:
    """A run in which CPU 2 * N of node N took ns[N, M] for a load from node M."""
    nodes = max(max(pair) for pair in ns) + 1
    jobs: list[Job] = []
    answers: list[dict[str, Any]] = []
    for cpu_node in sorted({pair[0] for pair in ns}):
        rows = {str(m): {"ns": t, "mad": mad, "samples": 56} for (n, m), t in ns.items() if n == cpu_node}
        jobs.append(Job("latency", 2 * cpu_node, tuple(map(int, rows))))
        answers.append(
            {"status": "measured", "nodes": rows, "cache_ns": cache_ns, "passes": 7, "trouble": {}}
        )
    return measurement(topology(nodes), "consistent", jobs, answers)


def test_rows_name_the_cpu_its_node_the_page_size_and_what_happened() -> None:
    jobs = [Job("place", 2, (0,), 0, 8), Job("place", 2, (1,), 2048, 2)]
    answers: list[dict[str, Any]] = [
        PLACED,
        {"status": "not_evaluated", "reason": "sigbus", "detail": "ended by SIGBUS"},
    ]
    first, second = measurement(topology(), "exposed", jobs, answers).placements
    assert (first["cpu"], first["cpu_node"], first["node"], first["pages"], first["reason"]) == (
        2,
        1,
        0,
        8,
        "",
    )
    assert first["page_size_kb"] * 1024 == os.sysconf("SC_PAGE_SIZE")
    assert (second["page_size"], second["status"], second["reason"]) == ("2M", "not_evaluated", "sigbus")


def test_the_matrix_is_the_median_over_the_cpus_of_a_node() -> None:
    rows = tuple(
        {"cpu": cpu, "cpu_node": 0, "node": 1, "ns": ns} for cpu, ns in enumerate((100.0, 140.0, 120.0))
    )
    assert Measurement(topology(), latencies=rows).matrix() == {"0": {"1": 120.0}}


def test_a_far_node_is_evidence_with_its_numbers() -> None:
    found = ratio(timed({(0, 0): 90, (0, 1): 140, (1, 0): 150, (1, 1): 100}))
    assert found is not None
    assert (round(found.ratio, 2), found.problem) == (1.5, "")
    assert found.low < found.ratio < found.high
    evidence = found.evidence()
    assert evidence is not None
    assert evidence["ratio"] == 1.5
    assert (
        "CPU 2" in evidence["source"]
        and "100.0 ns" in evidence["source"]
        and "150.0 ns" in evidence["source"]
    )


def test_the_least_ratio_counts_because_real_nodes_are_far_from_every_side() -> None:
    found = ratio(timed({(0, 0): 90, (0, 1): 180, (1, 0): 101, (1, 1): 100}))
    assert found is not None and round(found.ratio, 2) == 1.01


def test_a_near_part_of_the_own_socket_does_not_hide_the_other_socket() -> None:
    times = {(0, 0): 100.0, (0, 1): 105.0, (0, 2): 180.0, (0, 3): 185.0}
    found = ratio(timed(times))
    assert found is not None and round(found.ratio, 2) == 1.8


@pytest.mark.parametrize(
    ("remote", "mad", "cache_ns", "problem", "evidence"),
    [
        (101, 2, 1.5, "", 1.01),
        (140, 2, 1.5, "", 1.4),
        (122, 20, 1.5, "latency_noisy", None),
        (118, 20, 1.5, "latency_noisy", None),
        (140, 2, 30, "latency_of_cache", None),
        (101, 2, 30, "latency_of_cache", 1.01),
    ],
)
def test_noise_and_caches_are_no_distance(
    remote: float, mad: float, cache_ns: float, problem: str, evidence: float | None
) -> None:
    found = ratio(timed({(0, 0): 100, (0, 1): remote}, mad, cache_ns))
    assert found is not None
    assert found.problem == problem
    assert (found.evidence() or {}).get("ratio") == evidence
    assert bool(problem) == (";" in found.source), "the words say why"


def test_an_emulated_cpu_on_which_all_loads_are_quick_is_told_by_the_time_alone() -> None:
    found = ratio(timed({(0, 0): 12, (0, 1): 20}, mad=0.1, cache_ns=0.5))
    assert found is not None and found.problem == "latency_of_cache" and found.evidence() is None


def test_one_node_has_no_ratio() -> None:
    assert ratio(timed({(0, 0): 100})) is None
    assert ratio(Measurement(topology())) is None


def test_a_node_that_could_not_be_measured_is_kept_with_its_reason() -> None:
    answer = {
        "status": "measured",
        "nodes": {"0": {"ns": 100.0, "mad": 1.0, "samples": 56}},
        "cache_ns": 1.5,
        "trouble": {"1": {"status": "not_evaluated", "reason": "mems_not_allowed", "detail": "EINVAL"}},
    }
    found = measurement(topology(), "consistent", [Job("latency", 0, (0, 1))], [answer])
    assert [(row["node"], row["reason"]) for row in found.unmeasured] == [(1, "mems_not_allowed")]
    assert [row["node"] for row in found.latencies] == [0]


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine may be busy; and its huge pages are not ours to take, not even for a moment."""
    monkeypatch.setattr(_placement, "blocked", lambda *args: None)
    monkeypatch.setattr(_placement_host, "pools_of", lambda tree: {})


def refused(*args: Any) -> Any:
    raise AssertionError("nothing may be tried")


def test_nothing_is_tried_on_a_busy_host(monkeypatch: pytest.MonkeyPatch) -> None:
    why = Blocked("host_busy", "a server", "/proc/1")
    monkeypatch.setattr(_placement, "blocked", lambda *args: why)
    monkeypatch.setattr(_placement, "run", refused)
    found = measure(lambda measured: "exposed")
    assert (found.blocked, found.placements) == (why, ())


def test_without_the_system_calls_nothing_is_tried(monkeypatch: pytest.MonkeyPatch, quiet: None) -> None:
    def kernel() -> None:
        raise Unsupported("unsupported_architecture", "riscv64")

    monkeypatch.setattr(_placement, "Kernel", kernel)
    monkeypatch.setattr(_placement, "run", refused)
    found = measure(lambda measured: "exposed")
    assert found.blocked is not None and found.blocked.reason == "unsupported_architecture"


def test_the_verdict_is_asked_again_with_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, quiet: None
) -> None:
    asked: list[Any] = []

    def judge(measured: Mapping[str, Any] | None) -> str:
        asked.append(measured)
        return "exposed" if measured else "consistent"

    far = timed({(0, 0): 90, (0, 1): 140})
    monkeypatch.setattr(_placement, "Kernel", lambda: None)
    monkeypatch.setattr(_placement, "Worker", lambda kernel, page: type("W", (), {"work": None}))
    monkeypatch.setattr(_placement, "run", lambda *args: [])
    monkeypatch.setattr(_placement, "measurement", lambda *args: far)
    monkeypatch.setattr(_placement, "Kernel", type("K", (), {"end_with_parent": None}))
    assert measure(judge).trust == "exposed"
    assert asked[0] is None and asked[1]["ratio"] == pytest.approx(1.556, abs=0.001)


def test_a_real_run_places_pages_here_and_leaves_this_process_alone(quiet: None) -> None:
    before = os.sched_getaffinity(0), os.nice(0), sorted(os.listdir("/proc/self/fd"))
    found = measure(lambda measured: "consistent", gigantic=False)
    assert (os.sched_getaffinity(0), os.nice(0), sorted(os.listdir("/proc/self/fd"))) == before
    if found.blocked:
        pytest.skip(found.blocked.text)
    rows = [row for row in found.placements if row["page_size_kb"] * 1024 == os.sysconf("SC_PAGE_SIZE")]
    assert rows
    for row in rows:
        if row["reason"] in ("permission_denied", "unsupported"):
            pytest.skip(f"not allowed here: {row['detail']}")
        assert (row["status"], row["found"].get("move_pages", {str(row["node"]): 8})) == (
            "placed",
            {str(row["node"]): 8},
        )


def test_a_real_run_over_two_nodes(quiet: None) -> None:
    if len(read_topology("/").ids("memory")) < 2:
        pytest.skip("this machine has one node: nothing here can be remote")
    found = measure(lambda measured: "consistent", gigantic=False)
    assert {row["node"] for row in found.placements if row["status"] == "placed"} >= set(
        read_topology("/").ids("memory")
    )
    assert ratio(found) is not None
