# SPDX-License-Identifier: Apache-2.0
"""Huge page pools: the intent on a topology becomes counts per node, boot arguments or a reservation unit.

Rules of the kernel: mm/hugetlb.c (hugepages_setup, hugepagesz_setup, hugetlb_hstate_alloc_pages),
Documentation/admin-guide/mm/hugetlbpage.rst.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from . import _systemd
from ._intent import IntentError, Judge, byte_size, format_size, integer, listing, mapping, page_size_kb
from ._plan_facts import Facts, refuse_without_nodes
from ._plan_fit import check_fit, check_sizes
from ._plan_fit import count as pages_of
from ._topology import Topology, even_split

VARIABLE = "hugepages"
METHODS = ("auto", "cmdline", "unit")


@dataclass(frozen=True)
class Request:
    """One pool of the intent. nodes: None for all memory nodes, ids for an even split, or counts per id."""

    size_kb: int
    count: int
    nodes: tuple[int, ...] | None
    per_node: Mapping[int, int] | None


def plan_pools(
    intent: Mapping[str, Any], facts: Facts, floors: Mapping[int, int], recorded: Iterable[int], judge: Judge
) -> dict[str, Any]:
    """The part of the hugepages section that `hugepages` and `hugepages_method` decide.

    FLOORS are the bytes per node that stay free of pages, RECORDED the sizes in kB of the pools that are ours
    already. Refusals go to JUDGE; the result is then of no use.
    """
    before = len(judge.refusals)
    method = intent.get("hugepages_method") or "auto"
    if method not in METHODS:
        judge.refuse("bad_value", "hugepages_method", f"{method!r} is not one of {', '.join(METHODS)}")
    requests = parse_pools(intent["hugepages"], judge)
    if refuse_without_nodes(VARIABLE, facts, judge):
        return {}
    pools: dict[int, dict[int, int]] = {}
    for request in requests:
        for node, count in _split(request, facts.topology, judge).items():
            table = pools.setdefault(request.size_kb, {})
            table[node] = table.get(node, 0) + count
    check_sizes(pools, facts, judge)
    budget = check_fit(pools, facts, floors, recorded, judge)
    if len(judge.refusals) > before or not pools:
        return {"pools": _rows(pools)}
    return {**_means(method, pools, facts, judge), "pools": _rows(pools), "budget": budget}


def parse_pools(value: Any, judge: Judge) -> list[Request]:
    """The pools of the intent in their order; each that cannot be read is a refusal."""
    try:
        rows = listing(value, "pools")
    except IntentError as exc:
        judge.refuse("bad_value", VARIABLE, f"{exc}; write [{{size: 2M, count: 512}}]")
        return []
    requests = []
    for position, row in enumerate(rows, 1):
        try:
            requests.append(_parse_pool(row, f"pool {position}"))
        except IntentError as exc:
            judge.refuse("bad_value", VARIABLE, str(exc))
    return requests


def _parse_pool(row: Any, what: str) -> Request:
    pool = mapping(row, ("size", "count", "bytes", "nodes"), what)
    if "size" not in pool:
        raise IntentError(f"{what} has no size")
    try:
        size_kb = page_size_kb(pool["size"])
        nodes = pool.get("nodes", "all")
        if isinstance(nodes, Mapping):
            if "count" in pool or "bytes" in pool:
                raise IntentError("nodes with counts leave no place for count or bytes")
            per_node = {integer(node, least=0): integer(count, least=0) for node, count in nodes.items()}
            if len(per_node) != len(nodes) or not per_node:
                raise IntentError("nodes is empty or names a node twice")
            return Request(size_kb, sum(per_node.values()), None, per_node)
        if ("count" in pool) == ("bytes" in pool):
            raise IntentError("want exactly one of count and bytes")
        count = integer(pool["count"], least=0) if "count" in pool else _pages(pool["bytes"], size_kb)
        return Request(size_kb, count, _node_ids(nodes), None)
    except IntentError as exc:
        raise IntentError(f"{what} ({pool['size']}): {exc}") from None


def _pages(value: Any, size_kb: int) -> int:
    return -(-byte_size(value) // (size_kb * 1024))


def _node_ids(nodes: Any) -> tuple[int, ...] | None:
    if nodes == "all":
        return None
    ids = tuple(integer(node, least=0) for node in listing(nodes, "node ids"))
    if len(set(ids)) != len(ids) or not ids:
        raise IntentError("nodes is empty or names a node twice; write all, [0, 1] or {0: 300, 1: 200}")
    return ids


def _split(request: Request, topology: Topology, judge: Judge) -> dict[int, int]:
    size = format_size(request.size_kb)
    if request.per_node is not None:
        wanted = dict(request.per_node)
    else:
        nodes = request.nodes if request.nodes is not None else memory_nodes(topology)
        if not nodes:
            judge.refuse(
                "node_without_memory", VARIABLE, "no node of this host is known to have memory", size=size
            )
            return {}
        wanted = even_split(request.count, nodes)
    for node, count in wanted.items():
        if count:
            _check_node(node, count, size, topology, judge)
    return wanted


def memory_nodes(topology: Topology) -> tuple[int, ...]:
    """The nodes that `all` means: online, with normal memory, or where nothing tells, not known to be without."""
    sure = topology.ids("hugepage")
    if sure:
        return tuple(sure)
    return tuple(n.id for n in topology.nodes if n.has_memory is not False and n.normal_memory is not False)


def _check_node(number: int, count: int, size: str, topology: Topology, judge: Judge) -> None:
    node = topology.node(number)
    asked = f"{pages_of(count, size)} on node {number}"
    usable = ", ".join(map(str, memory_nodes(topology))) or "none"
    details = {"node": number, "size": size, "asked": count, "available": 0}
    if node is None:
        text = f"{asked}, but this host has no node {number}; nodes with memory: {usable}"
        judge.refuse("no_such_node", VARIABLE, text, **details)
    elif node.has_memory is False:
        text = f"{asked}, which has 0 kB of memory; nodes with memory: {usable}"
        judge.refuse("node_without_memory", VARIABLE, text, **details)
    elif node.normal_memory is False:
        text = (
            f"{asked}, whose memory is not normal memory (a device's or movable only); usable nodes: {usable}"
        )
        judge.refuse("not_normal_memory", VARIABLE, text, **details)


def _rows(pools: Mapping[int, Mapping[int, int]]) -> list[dict[str, Any]]:
    return [
        {
            "size": format_size(size_kb),
            "size_kb": size_kb,
            "total": sum(nodes.values()),
            "nodes": {str(node): nodes[node] for node in sorted(nodes)},
        }
        for size_kb, nodes in pools.items()
    ]


def _means(method: str, pools: Mapping[int, Mapping[int, int]], facts: Facts, judge: Judge) -> dict[str, Any]:
    """Method, default size, boot arguments and units."""
    default = next(iter(pools))
    natural = facts.kernels[0].facts.default_huge_kb if facts.kernels else None
    if natural not in (None, default):
        text = (
            f"the first pool makes {format_size(default)} the default huge page size of this host instead of "
            f"{format_size(natural or 0)}; programs and sysctls that name no size then mean that one"
        )
        judge.note("default_size_changes", VARIABLE, text)
    many = len(memory_nodes(facts.topology)) > 1
    lacking = [kernel for kernel in facts.kernels if not kernel.node_format]
    proven = bool(facts.kernels) and not lacking
    if many and not proven and method != "unit":
        _report_lacking(method, lacking, judge)
    if method == "auto":
        method = "cmdline" if proven or not many else "unit"
    if method == "cmdline":
        tokens = pool_tokens(pools, per_node=many)
        return {"method": method, "default_size": format_size(default), "tokens": tokens, "units": {}}
    rows = [{"size_kb": size, "nodes": _given(nodes)} for size, nodes in pools.items() if any(nodes.values())]
    units = {_systemd.HUGEPAGES_SERVICE: _systemd.render_hugepages_service(rows)} if rows else {}
    tokens = _size_tokens(pools, natural)
    return {"method": method, "default_size": format_size(default), "tokens": tokens, "units": units}


def _report_lacking(method: str, lacking: Iterable[Any], judge: Judge) -> None:
    reasons = (
        "; ".join(f"{kernel.release}: {kernel.why}" for kernel in lacking) or "no installed kernel was found"
    )
    text = f"page counts per node on the kernel command line need Linux 5.16 on every installed kernel ({reasons})"
    if method == "cmdline":
        remedy = "use auto or unit, or remove the old kernels"
        details = {"kernels": [kernel.release for kernel in lacking]}
        judge.refuse("node_format_unsupported", "hugepages_method", f"{text}; {remedy}", **details)
    else:
        judge.note(
            "node_format_unsupported", "hugepages_method", f"{text}; an early unit reserves the pages instead"
        )


def _given(nodes: Mapping[int, int]) -> dict[int, int]:
    return {node: count for node, count in nodes.items() if count}


def pool_tokens(pools: Mapping[int, Mapping[int, int]], per_node: bool) -> list[str]:
    """The boot arguments of POOLS (size in kB -> node -> count) in the order that gives them their meaning.

    The first size becomes the default one. Nodes with 0 are left out: one node that the kernel does not take
    voids the whole parameter.
    """
    sizes = list(pools)
    tokens = [f"default_hugepagesz={format_size(sizes[0])}"] if sizes else []
    for size in sizes:
        given = _given(pools[size])
        counts = ",".join(f"{node}:{given[node]}" for node in sorted(given))
        count = counts if per_node and counts else str(sum(given.values()))
        tokens += [f"hugepagesz={format_size(size)}", f"hugepages={count}"]
    return tokens


def _size_tokens(sizes: Iterable[int], natural: int | None) -> list[str]:
    """What the kernel must know at boot where a unit reserves the pages: the default and the sizes besides it.

    NATURAL is the default of the architecture and not of what runs, or the arguments would vanish once they are
    in force.
    """
    ordered = list(sizes)
    tokens = [] if ordered[0] == natural else [f"default_hugepagesz={format_size(ordered[0])}"]
    return tokens + [
        f"hugepagesz={format_size(size)}" for size in ordered if size not in (natural, ordered[0])
    ]


def size_only_tokens(sizes: Iterable[int]) -> list[str]:
    """Boot arguments that register SIZES (kB) without a page, for mounts of a size that has no pool.

    Some kernels register only the sizes that the command line names.
    """
    return [token for size in sizes for token in (f"hugepagesz={format_size(size)}", "hugepages=0")]
