# SPDX-License-Identifier: Apache-2.0
"""Placement proven: pages asked for on a node, the kernel's word where they are, and how far away they are.

All is tried in a child process (_placement_run); what may be tried is decided in _placement_host.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from ._intent import format_size
from ._placement_host import MAX_LOAD, Blocked, Skip, blocked, jobs_for, no_proof, reach
from ._placement_kernel import Kernel, Unsupported
from ._placement_run import SECONDS_PER_CPU, run
from ._placement_work import Job, Worker
from ._topology import Topology, read_topology
from ._tree import Tree
from ._trust import REAL_RATIO

# Loads that reach memory take longer than this on any machine, and than this many loads from the cache.
_MEMORY_NS, _MEMORY_TO_CACHE = 40.0, 8.0
# Standard error of a median in terms of the MAD, for a normal distribution: 1.4826 * sqrt(pi / 2).
_MEDIAN_ERROR = 1.858


@dataclass(frozen=True)
class Measurement:
    """One run. `placements` and `latencies` are rows per CPU, times in ns; `blocked`: nothing was tried."""

    topology: Topology
    trust: str | None = None
    blocked: Blocked | None = None
    placements: tuple[dict[str, Any], ...] = ()
    latencies: tuple[dict[str, Any], ...] = ()
    skips: tuple[Skip, ...] = ()
    unmeasured: tuple[dict[str, Any], ...] = field(default=())

    @property
    def no_proof(self) -> Blocked | None:
        """Why the rows prove nothing about the machine, however they look."""
        return no_proof(self.trust, self.topology)

    def matrix(self) -> dict[str, dict[str, float]]:
        """ns per load by node of the CPU and node of the memory: the median over the CPUs of the node."""
        found: dict[str, dict[str, list[float]]] = {}
        for row in self.latencies:
            found.setdefault(str(row["cpu_node"]), {}).setdefault(str(row["node"]), []).append(row["ns"])
        return {
            cpu_node: {node: round(median(values), 1) for node, values in nodes.items()}
            for cpu_node, nodes in found.items()
        }


def measure(
    judge: Callable[[Mapping[str, Any] | None], str | None],
    *,
    topology: Topology | None = None,
    every_cpu: bool = False,
    gigantic: bool = True,
    seconds_per_cpu: float = SECONDS_PER_CPU,
    max_load: float = MAX_LOAD,
) -> Measurement:
    """Try it on this host, unless that would disturb it. This process keeps its affinity and policy.

    JUDGE returns the trust verdict about the topology, given the evidence of a measurement (Ratio.evidence())
    or None: it is asked before and, where there is a ratio, once more after it.
    """
    tree = Tree("/")
    topology = topology or read_topology("/")
    trust, may = judge(None), reach(tree)
    busy = blocked(tree, may.isolated, topology.cpus.online, max_load)
    if busy:
        return Measurement(topology, trust, busy)
    try:
        kernel = Kernel()
    except Unsupported as exc:
        return Measurement(topology, trust, Blocked(exc.reason, str(exc), ""))
    jobs, skips = jobs_for(tree, topology, may, every_cpu=every_cpu, gigantic=gigantic)
    worker = Worker(kernel, os.sysconf("SC_PAGE_SIZE"))
    try:
        answers = run(jobs, worker.work, seconds_per_cpu, kernel.end_with_parent)
    except OSError as exc:
        return Measurement(topology, trust, Blocked("no_child", f"no child process: {exc.strerror}", ""))
    found = measurement(topology, trust, jobs, answers, skips)
    remote = ratio(found)
    evidence = remote.evidence() if remote else None
    return replace(found, trust=judge(evidence)) if evidence else found


def measurement(
    topology: Topology,
    trust: str | None,
    jobs: Sequence[Job],
    answers: Sequence[Mapping[str, Any]],
    skips: Sequence[Skip] = (),
) -> Measurement:
    """The rows that ANSWERS to JOBS make."""
    placements, latencies, unmeasured = [], [], []
    page_kb = os.sysconf("SC_PAGE_SIZE") // 1024
    for job, answer in zip(jobs, answers):
        where = {"cpu": job.cpu, "cpu_node": topology.node_of(job.cpu)}
        if job.kind == "place":
            size_kb = job.size_kb or page_kb
            row = {**where, "node": job.nodes[0], "page_size_kb": size_kb, "page_size": format_size(size_kb)}
            placements.append({**row, "pages": job.pages, "reason": "", "detail": "", **answer})
            continue
        for node, times in (answer.get("nodes") or {}).items():
            latencies.append({**where, "node": int(node), **times, "cache_ns": answer["cache_ns"]})
        for node, trouble in (answer.get("trouble") or {}).items():
            unmeasured.append({**where, "node": int(node), **trouble})
        if answer["status"] != "measured":
            unmeasured.append({**where, "node": None, **answer})
    return Measurement(
        topology, trust, None, tuple(placements), tuple(latencies), tuple(skips), tuple(unmeasured)
    )


@dataclass(frozen=True)
class Ratio:
    """Latency of remote over local memory, between `low` and `high`; `problem`: why it proves no distance."""

    ratio: float
    low: float
    high: float
    source: str
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        """As JSON values."""
        numbers = {"ratio": self.ratio, "low": self.low, "high": self.high}
        rounded = {name: round(value, 3) for name, value in numbers.items()}
        return {**rounded, "source": self.source, "problem": self.problem}

    def evidence(self) -> dict[str, Any] | None:
        """For the trust verdict: `ratio` and `source`; None when noise, or a cache, may have made it so.

        Loads that are as fast from every node are evidence wherever they come from.
        """
        if self.problem == "latency_noisy" or (self.problem and self.ratio >= REAL_RATIO):
            return None
        return {"ratio": round(self.ratio, 3), "source": self.source}


def ratio(found: Measurement) -> Ratio | None:
    """The least of the nodes' ratios, each the median over its remote nodes; None when there is no pair.

    The least, because a topology that exists is far away from every side. It proves neither near nor far when
    three standard errors lie across REAL_RATIO, or when the loads did not go to memory.
    """
    pairs = {(row["cpu"], row["node"]): row for row in found.latencies}
    ratios: list[tuple[float, float, float, str]] = []
    for (cpu, node), local in sorted(pairs.items()):
        if node != local["cpu_node"]:
            continue
        remote = [row for (other, there), row in sorted(pairs.items()) if other == cpu and there != node]
        if remote:
            ratios.append(_of_cpu(cpu, local, remote))
    if not ratios:
        return None
    value, low, high, text = min(ratios)
    problem = ""
    if any(not _of_memory(row) for row in found.latencies):
        problem = "latency_of_cache"
        text += "; the loads did not reach memory, as on an emulated CPU"
    elif low < REAL_RATIO <= high:
        problem = "latency_noisy"
        text += f"; within the noise the ratio is {low:.2f} to {high:.2f}"
    return Ratio(value, low, high, text, problem)


def _of_cpu(
    cpu: int, local: Mapping[str, Any], remote: Sequence[Mapping[str, Any]]
) -> tuple[float, float, float, str]:
    """(ratio, the least and the most that it may be, words) of one CPU."""
    value = median(row["ns"] / local["ns"] for row in remote)
    low = median((row["ns"] - _error(row)) / (local["ns"] + _error(local)) for row in remote)
    near = max(local["ns"] - _error(local), 1e-3)
    high = median((row["ns"] + _error(row)) / near for row in remote)
    far = median(row["ns"] for row in remote)
    text = (
        f"dependent loads on CPU {cpu}, {local['samples']} samples a node: node {local['node']} (local) "
        f"{local['ns']:.1f} ns, remote {far:.1f} ns"
    )
    return value, low, high, text


def _error(row: Mapping[str, Any]) -> float:
    return float(3 * _MEDIAN_ERROR * row["mad"] / math.sqrt(row["samples"]))


def _of_memory(row: Mapping[str, Any]) -> bool:
    return bool(row["ns"] >= _MEMORY_NS and row["ns"] >= _MEMORY_TO_CACHE * row["cache_ns"])
