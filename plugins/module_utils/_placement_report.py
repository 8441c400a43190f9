# SPDX-License-Identifier: Apache-2.0
"""What a placement run says: results of the measured layer, a document, a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ._cpulist import format_list
from ._intent import format_size
from ._placement import Measurement, ratio
from ._placement_host import Blocked, Skip
from ._topology import Topology
from ._topology_nodes import NODE_DIR
from ._trust import REAL_RATIO, VARIABLE
from ._verdict import Result, not_applicable, skipped

# A SLIT distance of 1.5 times the local one or more: another socket, not another part of the same one.
_SLIT_FAR = 1.5
_PLACEMENT, _LATENCY = "numa.placement", "numa.latency"
_WORST = ("error", "wrong", "not_evaluated", "placed")


def results(found: Measurement, intended: bool = False, required: bool = False) -> Iterator[Result]:
    """The answers of the measured layer. INTENDED: the intent describes the nodes, so a wrong one fails.

    REQUIRED: the measurement itself was asked for, so that leaving a part of it out counts.
    """
    if found.blocked:
        for identity in (_PLACEMENT, _LATENCY):
            yield _left_out(identity, found.blocked, required)
        return
    for (node, size), rows in sorted(_groups(found).items()):
        yield _placed(found, f"{_PLACEMENT}.{format_size(size)}.node{node}", rows, intended, required)
    for skip in found.skips:
        yield _left_out(_skip_id(skip), skip.blocked, required)
    yield _latency(found, required)


def _left_out(identity: str, why: Blocked, required: bool, expected: Any = None) -> Result:
    return skipped(
        identity,
        "measured",
        why.reason,
        expected=expected,
        observed=why.text,
        source=why.source,
        remedy=_REMEDIES.get(why.reason, ""),
        intended=required,
    )


_REMEDIES = {
    "host_busy": "Measure while nothing is served.",
    "permission_denied": "Run it as root on the host itself, outside of a container.",
    "no_executable_memory": "A security policy (SELinux execmem, seccomp) forbids new machine code here.",
    "cpus_not_allowed": "Run it outside of this cpuset, or without taskset.",
    "mems_not_allowed": "Run it outside of this cpuset.",
    "trust_unknown": f"{VARIABLE} says what the machine has; with trust: asserted somebody vouches for it.",
}


def _skip_id(skip: Skip) -> str:
    if skip.cpu_node is not None:
        return f"{_PLACEMENT}.from_node{skip.cpu_node}"
    if skip.size_kb is not None:
        return f"{_PLACEMENT}.{format_size(skip.size_kb)}.node{skip.node}"
    return f"{_PLACEMENT}.node{skip.node}"


def _groups(found: Measurement) -> dict[tuple[int, int], list[dict[str, Any]]]:
    groups: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in found.placements:
        groups.setdefault((row["node"], row["page_size_kb"]), []).append(row)
    return groups


def _placed(
    found: Measurement, identity: str, rows: Sequence[Mapping[str, Any]], intended: bool, required: bool
) -> Result:
    """One node and page size over all CPUs: proven only when every CPU's row is."""
    node = rows[0]["node"]
    worst = min(rows, key=lambda row: _WORST.index(row["status"]))
    text = f"from CPU {worst['cpu']}: {worst['detail']}"
    if worst["status"] == "error":
        return Result(identity, "error", "measured", node, text, worst["reason"])
    if worst["status"] == "wrong":
        remedy = f"Pages do not go where they are bound: compare the nodes with what {VARIABLE} expects."
        status = "fail" if intended else "warn"
        return Result(identity, status, "measured", node, text, worst["reason"], NODE_DIR, remedy, intended)
    if worst["status"] == "not_evaluated":
        return _left_out(identity, Blocked(worst["reason"], text, NODE_DIR), required, node)
    nothing = found.no_proof
    if nothing:
        text = f"node {node} by the kernel, but {nothing.text}"
        return _left_out(identity, Blocked(nothing.reason, text, nothing.source), required, node)
    sources = set.intersection(*(set(row["found"]) for row in rows))
    cpus = format_list(row["cpu"] for row in rows)
    seen = {"node": node, "from_cpus": cpus, "pages": rows[0]["pages"], "sources": sorted(sources)}
    return Result(identity, "pass", "measured", node, seen, "", NODE_DIR, "", intended)


def _latency(found: Measurement, required: bool) -> Result:
    """Whether other nodes are as far away as the firmware's table says."""
    matrix, remote = found.matrix(), ratio(found)
    nothing = found.no_proof
    if nothing:
        return _left_out(_LATENCY, nothing, required)
    if found.unmeasured or not found.latencies:
        why = {"reason": "no_cpu", "detail": "there was no CPU to measure on"}
        why = found.unmeasured[0] if found.unmeasured else why
        where = f"from CPU {why['cpu']}: " if "cpu" in why else ""
        return _left_out(_LATENCY, Blocked(why["reason"], where + why["detail"], ""), required)
    if remote is None and len(found.topology.nodes) < 2:
        return not_applicable(_LATENCY, "measured", "one_node", observed={"ns": matrix})
    if remote is None:
        text = "no node has both a CPU and memory to compare with those of others"
        return _left_out(_LATENCY, Blocked("no_pair", text, NODE_DIR), required)
    seen = {"ratio": round(remote.ratio, 2), "ns": matrix}
    if remote.problem:
        seen["why"] = remote.source
        return skipped(_LATENCY, "measured", remote.problem, observed=seen, intended=required)
    if remote.ratio < REAL_RATIO and _said_far(found.topology):
        remedy = (
            "The firmware says that other nodes are far away, and they are as near as the own: the "
            f"hypervisor may make the nodes up. {VARIABLE} with trust: asserted is for who knows better."
        )
        return Result(_LATENCY, "warn", "measured", None, seen, "latency_flat", NODE_DIR, remedy, required)
    return Result(_LATENCY, "pass", "measured", None, seen, "", NODE_DIR, "", required)


def _said_far(topology: Topology) -> bool:
    """Whether the distance tables have a node as far away as another socket."""
    for node in topology.nodes:
        table = node.distances or {}
        remote = [value for other, value in table.items() if other != node.id]
        if remote and max(remote) >= _SLIT_FAR * table.get(node.id, 10):
            return True
    return False


def document(found: Measurement) -> dict[str, Any]:
    """The run as JSON values: placements and latencies row by row, the matrix in ns, what is left out."""
    remote, nothing = ratio(found), found.no_proof
    times = ("ns", "mad", "cache_ns")
    rows = [{**row, **{name: round(row[name], 2) for name in times}} for row in found.latencies]
    placed = any(row["status"] == "placed" for row in found.placements)
    return {
        "trust": found.trust,
        "proves": placed and nothing is None,
        "proves_nothing_because": nothing.text if nothing else "",
        "placements": [dict(row) for row in found.placements],
        "latency": {
            "matrix": found.matrix(),
            "rows": rows,
            "unmeasured": [dict(row) for row in found.unmeasured],
        },
        "ratio": None if remote is None else remote.as_dict(),
        "evidence": remote.evidence() if remote else None,
        "left_out": [_skip_row(skip) for skip in found.skips],
    }


def _skip_row(skip: Skip) -> dict[str, Any]:
    why = skip.blocked
    return {
        "cpu_node": skip.cpu_node,
        "node": skip.node,
        "page_size_kb": skip.size_kb,
        "reason": why.reason,
        "detail": why.text,
        "source": why.source,
    }


def message(found: Measurement) -> str:
    """The run in words, what it cannot prove first."""
    if found.blocked:
        return f"Nothing was tried: {found.blocked.text}."
    proven = [row for row in found.placements if row["status"] == "placed"]
    parts = [f"{len(proven)} of {len(found.placements)} placements are where they were asked for"]
    remote = ratio(found)
    if remote:
        parts.append(f"remote memory takes {remote.ratio:.2f} times as long as local ({remote.source})")
    if found.skips:
        parts.append(f"left out: {'; '.join(skip.blocked.text for skip in found.skips)}")
    text = ". ".join(part[0].upper() + part[1:] for part in parts) + "."
    nothing = found.no_proof
    return f"This proves nothing about the machine: {nothing.text}. {text}" if nothing else text
