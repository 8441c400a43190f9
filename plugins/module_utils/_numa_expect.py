# SPDX-License-Identifier: Apache-2.0
"""What an operator expects of the topology (firsttouch_numa), read strictly, and what the kernel shows instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ._cpulist import CpuListError, format_list, parse
from ._intent import IntentError, byte_size, integer, listing, mapping
from ._topology import Topology
from ._topology_cpus import CPU_DIR
from ._topology_nodes import NODE_DIR
from ._verdict import Result, judge, skipped

VARIABLE = "firsttouch_numa"
ASSERTED = "asserted"
KEYS = ("nodes", "cpus", "memory", "distances", "smt", "sockets", "cores_per_socket", "trust")
# MemTotal leaves out what firmware and kernel keep, which weighs more on a small node.
_KEPT_SHARE, _KEPT_BYTES = 10, 256 << 20
_MOST_NODES = 1 << 10
_MOST_CPUS = 1 << 16
_PACKAGE = f"{CPU_DIR}/cpu*/topology/physical_package_id"
_SIBLINGS = f"{CPU_DIR}/cpu*/topology/thread_siblings_list"


def read_expected(value: Any) -> dict[str, Any]:
    """VALUE, a mapping of KEYS, with lists, ids and sizes in one spelling; JSON values. Raises IntentError.

    nodes: a number or a list of ids; cpus: per node a CPU list or a number; memory: per node bytes, plain or with a
    unit; distances: per node a mapping, or the rows of the matrix in order of the nodes; smt: true, false or the
    number of threads per core.
    """
    given = mapping(value, KEYS, "the value")
    readers: dict[str, Callable[[Any], Any]] = {
        "nodes": _nodes,
        "cpus": lambda item: _per_node(item, "cpus", _cpus),
        "memory": lambda item: _per_node(item, "memory", byte_size),
        "distances": _distances,
        "smt": _smt,
        "sockets": lambda item: integer(item, 1, _MOST_CPUS),
        "cores_per_socket": lambda item: integer(item, 1, _MOST_CPUS),
        "trust": _trust,
    }
    found = {}
    for key in KEYS:
        if key in given:
            try:
                found[key] = readers[key](given[key])
            except IntentError as exc:
                raise IntentError(f"{key}: {exc}") from None
    return found


def _nodes(value: Any) -> int | list[int]:
    if isinstance(value, (list, tuple)):
        ids = sorted({integer(item, 0, _MOST_NODES) for item in value})
        if not ids:
            raise IntentError("no node is named")
        return ids
    return integer(value, 1, _MOST_NODES)


def _per_node(value: Any, what: str, read: Callable[[Any], Any]) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not value:
        raise IntentError(f"{value!r} is not a mapping of node id to {what}")
    rows = {integer(node, 0, _MOST_NODES): item for node, item in value.items()}
    return {str(node): read(rows[node]) for node in sorted(rows)}


def _cpus(value: Any) -> int | str:
    """A number of CPUs, or a CPU list; a plain number in text is a list of one CPU."""
    if isinstance(value, int) and not isinstance(value, bool):
        return integer(value, 0, _MOST_CPUS)
    if not isinstance(value, str):
        raise IntentError(f"{value!r} is neither a CPU list nor a number of CPUs")
    try:
        return format_list(parse(value, aliases=()))
    except CpuListError as exc:
        raise IntentError(str(exc)) from None


def _distances(value: Any) -> Any:
    def number(item: Any) -> int:
        return integer(item, 1, 255)

    if isinstance(value, Mapping):
        return _per_node(value, "distances", lambda row: _per_node(row, "distances", number))
    rows = [[number(item) for item in listing(row, "distances")] for row in listing(value, "rows of distances")]
    if not rows or any(len(row) != len(rows) for row in rows):
        raise IntentError("the matrix is not square")
    return rows


def _smt(value: Any) -> bool | int:
    return value if isinstance(value, bool) else integer(value, 1, 8)


def _trust(value: Any) -> str:
    if value != ASSERTED:
        raise IntentError(f"{value!r} is not {ASSERTED!r}, the only thing to say here")
    return ASSERTED


def judge_expected(expected: Mapping[str, Any], topology: Topology) -> list[Result]:
    """One Result per expectation of read_expected(); what the kernel does not show is not_evaluated, never pass."""
    return list(_judged(expected, topology))


def vouched(expected: Mapping[str, Any], results: list[Result]) -> str | None:
    """Who vouches for the topology: VARIABLE where it says so and nothing else that it says is wrong."""
    if expected.get("trust") != ASSERTED or any(result.status == "fail" for result in results):
        return None
    return VARIABLE


def _judged(expected: Mapping[str, Any], topology: Topology) -> Iterator[Result]:
    if "nodes" in expected:
        yield _count(expected["nodes"], topology)
    for node, cpus in (expected.get("cpus") or {}).items():
        yield _node_cpus(node, cpus, topology)
    for node, size in (expected.get("memory") or {}).items():
        yield _node_memory(node, size, topology)
    if "distances" in expected:
        yield _matrix(expected["distances"], topology)
    if "smt" in expected:
        yield _threads(expected["smt"], topology)
    if "sockets" in expected:
        observed = len(topology.cpus.packages) or topology.cpus.counts.get("sockets")
        yield _answer("numa.sockets", expected["sockets"], observed, _PACKAGE, "sockets_differ", "sockets")
    if "cores_per_socket" in expected:
        yield from _cores(expected["cores_per_socket"], topology)


def _answer(
    identity: str,
    expected: Any,
    observed: Any,
    source: str,
    reason: str,
    key: str,
    good: bool | None = None,
) -> Result:
    if observed is None:
        return skipped(identity, "running", "not_available", expected=expected, source=source)
    remedy = f"Correct {VARIABLE}.{key}, or the firmware or hypervisor settings that decide what the kernel shows."
    return judge(identity, "running", expected, observed, good=good, reason=reason, source=source, remedy=remedy)


def _count(expected: int | list[int], topology: Topology) -> Result:
    source = NODE_DIR if topology.source == "no_numa" else f"{NODE_DIR}/online"
    observed: Any = topology.ids() if isinstance(expected, list) else len(topology.nodes)
    if not topology.readable:
        observed = None
    reason = "no_numa" if topology.source == "no_numa" else "nodes_differ"
    return _answer("numa.nodes", expected, observed, source, reason, "nodes")


def _node_cpus(number: str, expected: int | str, topology: Topology) -> Result:
    node = topology.node(int(number)) if topology.readable else None
    source = f"{NODE_DIR}/node{number}/cpulist"
    identity = f"numa.cpus.node{number}"
    if node is None:
        return _missing(identity, expected, number, "cpus", topology)
    observed = len(node.cpus) if isinstance(expected, int) else format_list(node.cpus)
    return _answer(identity, expected, observed, source, "cpus_differ", "cpus")


def _node_memory(number: str, expected: int, topology: Topology) -> Result:
    node = topology.node(int(number)) if topology.readable else None
    source = f"{NODE_DIR}/node{number}/meminfo"
    identity = f"numa.memory.node{number}"
    if node is None:
        return _missing(identity, expected, number, "memory", topology)
    observed = node.memory_bytes
    good = None
    if observed is not None:
        kept = max(expected // _KEPT_SHARE, _KEPT_BYTES)
        good = observed <= expected and (observed >= expected - kept) and (observed > 0 or not expected)
    return _answer(identity, expected, observed, source, "memory_differs", "memory", good)


def _missing(identity: str, expected: Any, number: str, key: str, topology: Topology) -> Result:
    observed = "no such node" if topology.readable else None
    return _answer(identity, expected, observed, f"{NODE_DIR}/online", "node_missing", key, good=False)


def _matrix(expected: Any, topology: Topology) -> Result:
    """A mapping is compared where it says something, a matrix as a whole, in order of the online nodes."""
    tables = {str(node.id): node.distances for node in topology.nodes}
    source = f"{NODE_DIR}/node*/distance"
    if isinstance(expected, Mapping):
        observed: Any = {
            node: {other: (tables.get(node) or {}).get(int(other)) for other in row}
            for node, row in expected.items()
        }
        unknown = any(node in tables and tables[node] is None for node in expected)
    else:
        ids = topology.ids()
        observed = [[(tables[str(node)] or {}).get(other) for other in ids] for node in ids]
        unknown = any(table is None for table in tables.values())
    if unknown or not topology.readable:
        observed = None
    return _answer("numa.distances", expected, observed, source, "distances_differ", "distances")


def _threads(expected: bool | int, topology: Topology) -> Result:
    widest = max(map(len, topology.cpus.siblings.values()), default=None)
    threads = widest if widest is not None else topology.cpus.counts.get("threads_per_core")
    observed: Any = threads
    if threads is not None and isinstance(expected, bool):
        observed = threads > 1
    return _answer("numa.smt", expected, observed, _SIBLINGS, "smt_differs", "smt")


def _cores(expected: int, topology: Topology) -> Iterator[Result]:
    """Of the physical machine: what a guest shows is not it, and decides the co-scheduling risk instead."""
    if topology.virtualization.bare_metal is False:
        return
    observed = topology.cpus.counts.get("cores_per_socket")
    identity = "numa.cores_per_socket"
    if topology.virtualization.bare_metal is None and observed != expected:
        yield skipped(identity, "running", "not_available", expected=expected, observed=observed, source=_PACKAGE)
        return
    yield _answer(identity, expected, observed, _PACKAGE, "cores_differ", "cores_per_socket")
