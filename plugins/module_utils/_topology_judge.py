# SPDX-License-Identifier: Apache-2.0
"""What a topology is held against: an expected number of nodes, a real distance table, a CPU list."""

from __future__ import annotations

from typing import Any

from ._cpulist import parse
from ._topology import Topology
from ._topology_nodes import NODE_DIR

_WORDS = {"online": "online nodes", "cpu_nodes": "nodes with CPUs", "memory_nodes": "nodes with memory"}


def node_count(topology: Topology) -> dict[str, int | None]:
    """Number of nodes by counting policy; memory_nodes is None where a node's memory is not known."""
    if topology.source == "unknown":
        return dict.fromkeys(_WORDS)
    known = all(node.has_memory is not None for node in topology.nodes)
    return {
        "online": len(topology.nodes),
        "cpu_nodes": len(topology.ids("cpu")),
        "memory_nodes": len(topology.ids("memory")) if known else None,
    }


def nodes_per_socket(topology: Topology) -> int | None:
    """Nodes with CPUs per socket, where every socket has as many and no node spans two; else None."""
    nodes = [node for node in topology.nodes if node.cpus]
    packages = topology.cpus.packages
    if packages:
        counts = [sum(1 for node in nodes if node.cpus & package.cpus) for package in packages]
        return counts[0] if len(set(counts)) == 1 and sum(counts) == len(nodes) else None
    sockets = topology.cpus.counts.get("sockets")
    return len(nodes) // sockets if sockets and nodes and len(nodes) % sockets == 0 else None


def judge_expectation(
    topology: Topology, expected: int | None, policy: str, require_distances: bool
) -> dict[str, Any]:
    """{verdict, reason, message} of EXPECTED nodes under POLICY and, if asked, of the distances.

    A number that is not known is `not_evaluated`, never `pass`.
    """
    rows = []
    if expected is not None:
        rows.append(_judge_count(topology, expected, policy))
    if require_distances:
        rows.append(_judge_distances(topology))
    if rows and not topology.readable:
        if topology.source == "unknown":
            text = f"{NODE_DIR} cannot be read, so nothing is known of nodes"
            return _verdict("not_evaluated", "nodes_unknown", text)
        return _verdict(
            "not_evaluated", "no_sysfs", "the tree has no /sys/devices/system/cpu, so nothing is known"
        )
    if not rows:
        return _verdict("not_evaluated", "nothing_expected", "nothing was expected of the topology")
    rank = {"fail": 0, "not_evaluated": 1, "pass": 2}
    return min(rows, key=lambda row: rank[row["verdict"]])


def isolated_by_node(topology: Topology, text: str) -> tuple[dict[int, int], frozenset[int]]:
    """CPUs of the list TEXT per online node, and those of it that are not online. Raises CpuListError.

    Without `possible` CPUs (a text as source) the highest CPU known bounds the list.
    """
    limit = max(topology.cpus.possible, default=0) + 1
    cpus = parse(text, limit)
    counts = {node.id: len(node.cpus & cpus) for node in topology.nodes}
    return counts, cpus - topology.cpus.online


def _judge_count(topology: Topology, expected: int, policy: str) -> dict[str, Any]:
    got = node_count(topology)[policy]
    what = _WORDS[policy]
    if got is None:
        text = f"expected {expected} {what} (count={policy}), but the memory of a node is not known"
        return _verdict("not_evaluated", "memory_not_known", text)
    if got == expected:
        return _verdict("pass", None, f"{got} {what} (count={policy}), as expected")
    text = f"expected {expected} {what} (count={policy}), the kernel shows {got}"
    if topology.source == "no_numa":
        return _verdict("fail", "no_numa", f"kernel exposes no NUMA: {text}")
    per_socket = nodes_per_socket(topology)
    if per_socket and per_socket > 1 and expected * per_socket == len(topology.ids("cpu")):
        text = f"SNC/NPS suspected ({per_socket} nodes per socket): {text}"
        return _verdict("fail", "snc_suspected", text)
    return _verdict("fail", "node_count", text)


def _judge_distances(topology: Topology) -> dict[str, Any]:
    if any(node.distances is None for node in topology.nodes):
        return _verdict("not_evaluated", "distances_not_known", "a node's distances are not known")
    for row in topology.warnings:
        if row["reason"] in ("distances_identical", "flat_distances"):
            return _verdict("fail", row["reason"], row["text"])
    return _verdict("pass", None, "the distances may be a real table")


def _verdict(verdict: str, reason: str | None, message: str) -> dict[str, Any]:
    row = {"verdict": verdict, "message": message}
    return {**row, "reason": reason} if reason else row
