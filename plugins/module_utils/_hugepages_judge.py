# SPDX-License-Identifier: Apache-2.0
"""Wanted huge page pools against the pools there are, with the cause of each difference.

Equality is the rule, per node where a node was named: a page too many belongs to somebody else or to a wrong
count, a page too few is missing where it is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ._cmdline import normal_key, split
from ._kernel_args import KernelFacts, Prediction, Warn, format_size, parse_size, predict
from ._kernel_hugetlb import KEYS
from ._topology import Topology, even_split, read_topology
from ._tree import Tree

PASS, FAIL, UNKNOWN, NOT_REQUESTED = "pass", "fail", "not_evaluated", "not_requested"
_KEYS = {"size", "count", "bytes", "node", "nodes"}


@dataclass
class Want:
    """Pages wanted of one size; `nodes` is None where the kernel may place them as it likes.

    `unplaced`: an even split over all nodes was asked for, and no node with memory is known.
    """

    size_kb: int
    total: int = 0
    nodes: dict[int, int] | None = None
    unplaced: bool = False


@dataclass
class Context:
    """What a difference is explained with.

    predicted: what the kernel makes of the command line it was booted with, None where that is not known.
    cpu_has_1g: the CPU's flag for 1 GiB pages, None where the architecture has no such flag.
    """

    topology: Topology
    predicted: Prediction | None = None
    cpu_has_1g: bool | None = None
    pool_nodes: list[int] = field(default_factory=list)

    def hugepage_nodes(self) -> list[int]:
        """Nodes the kernel spreads a pool over; where no memory is known, those with a pool directory."""
        return self.topology.ids("hugepage") or self.pool_nodes


def parse_wanted(entries: Sequence[Mapping[str, Any]], spread: list[int]) -> list[Want]:
    """The request, one Want per size in order of first mention.

    An entry has `size`, `count` or `bytes`, and optionally `node` (one id) or `nodes`: `all` or a list of ids
    (an even split over SPREAD or these), or a mapping of id to count. Raises ValueError.
    """
    wants: dict[int, Want] = {}
    for entry in entries:
        unknown = set(entry) - _KEYS
        if unknown:
            raise ValueError(f"pools: unknown key {', '.join(sorted(unknown))} in {dict(entry)}")
        size_kb = parse_size(str(entry.get("size", "")))
        total, nodes = _placed(entry, size_kb, spread)
        new = size_kb not in wants
        want = wants.setdefault(size_kb, Want(size_kb))
        if not new and (want.nodes is None) != (nodes is None):
            raise ValueError(f"pools: {format_size(size_kb)} is asked for both with and without nodes")
        want.total += total
        want.unplaced |= entry.get("nodes") == "all" and not spread
        if nodes is not None:
            merged = want.nodes or {}
            want.nodes = {node: merged.get(node, 0) + nodes.get(node, 0) for node in {**merged, **nodes}}
    return list(wants.values())


def judge(
    wants: list[Want], pools: Mapping[str, Mapping[str, Any]], context: Context
) -> list[dict[str, Any]]:
    """One row per wanted size, then one with status not_requested per other size that the kernel offers.

    A row: size, size_kb, status, reason, text, asked, got (persistent pages), total, surplus, persistent,
    total_matches, nodes {id: {asked, got}}, even_split {id: pages} of what was asked.
    """
    rows = [_judge_size(want, pools.get(f"{want.size_kb}kB"), context, pools) for want in wants]
    wanted = {want.size_kb for want in wants}
    for pool in pools.values():
        if pool["size_kb"] not in wanted:
            row = _row(Want(pool["size_kb"]), pool, context)
            rows.append({**row, "asked": None, "total_matches": None, "status": NOT_REQUESTED})
    return rows


def judge_mounts(wants: list[Want], mounts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Per wanted size: whether a hugetlbfs mount of that size can be reached."""
    rows = []
    for want in wants:
        size, found = (
            format_size(want.size_kb),
            [row for row in mounts if row["page_size"] == want.size_kb * 1024],
        )
        row = {
            "size": size,
            "size_kb": want.size_kb,
            "paths": [row["path"] for row in found if not row["covered"]],
        }
        if row["paths"]:
            rows.append({**row, "status": PASS})
            continue
        text = f"no hugetlbfs of page size {size} is mounted"
        if found:
            text = f"{found[0]['path']} has page size {size}, but another filesystem is mounted over it"
        rows.append({**row, "status": FAIL, "reason": "no_mount_for_size", "text": text})
    return rows


def summary(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """{verdict, reason, message} of the worst row; not_evaluated when nothing was requested."""
    judged = [row for row in rows if row["status"] != NOT_REQUESTED]
    for status in (FAIL, UNKNOWN):
        for row in judged:
            if row["status"] == status:
                return {"verdict": status, "reason": row["reason"], "message": row["text"]}
    if judged:
        return {"verdict": PASS, "message": "every requested pool is as asked for"}
    return {"verdict": UNKNOWN, "reason": "nothing_requested", "message": "no pool was requested"}


def _placed(entry: Mapping[str, Any], size_kb: int, spread: list[int]) -> tuple[int, dict[int, int] | None]:
    node, nodes = entry.get("node"), entry.get("nodes")
    if node is not None and nodes is not None:
        raise ValueError("pools: give node or nodes, not both")
    if isinstance(nodes, Mapping):
        counts = {_id(key): _count(value, "nodes") for key, value in nodes.items()}
        total = sum(counts.values())
        if entry.get("count") is not None and _count(entry["count"], "count") != total:
            raise ValueError(f"pools: count is {entry['count']}, the nodes add up to {total}")
        return total, counts
    total = _total(entry, size_kb)
    if node is not None:
        return total, {_id(node): total}
    if nodes is None:
        return total, None
    if nodes == "all":
        return total, even_split(total, spread) if spread else {}
    if isinstance(nodes, list) and nodes:
        return total, even_split(total, [_id(value) for value in nodes])
    raise ValueError(f"pools: nodes is {nodes!r}, not all, a list of node ids or a mapping of them to counts")


def _total(entry: Mapping[str, Any], size_kb: int) -> int:
    if (entry.get("count") is None) == (entry.get("bytes") is None):
        raise ValueError("pools: give count or bytes, one of them")
    if entry.get("count") is not None:
        return _count(entry["count"], "count")
    size = _count(entry["bytes"], "bytes")
    if size % (size_kb * 1024):
        raise ValueError(f"pools: {size} bytes are not a whole number of pages of {format_size(size_kb)}")
    return size // (size_kb * 1024)


def _count(value: Any, name: str) -> int:
    text = str(value)
    if isinstance(value, bool) or not text.isascii() or not text.isdigit():
        raise ValueError(f"pools: {name} is {value!r}, not a whole number")
    return int(text)


def _id(value: Any) -> int:
    return _count(value, "a node id")


def _row(want: Want, pool: Mapping[str, Any] | None, context: Context) -> dict[str, Any]:
    got = pool or {"total": 0, "surplus": 0, "persistent": 0, "nodes": {}}
    ids = sorted({*map(int, got["nodes"]), *(want.nodes or {})})
    nodes = {}
    for node in ids:
        have = _pages_on(got, node, context)
        nodes[str(node)] = {"asked": None if want.nodes is None else want.nodes.get(node, 0), "got": have}
    spread = context.hugepage_nodes()
    return {
        "size": format_size(want.size_kb),
        "size_kb": want.size_kb,
        "asked": want.total,
        "got": got["persistent"],
        "total": got["total"],
        "surplus": got["surplus"],
        "persistent": got["persistent"],
        "total_matches": got["persistent"] == want.total,
        "nodes": nodes,
        "even_split": {str(node): pages for node, pages in even_split(want.total, spread).items()}
        if spread
        else {},
    }


def _pages_on(pool: Mapping[str, Any], node: int, context: Context) -> int | None:
    """Persistent pages of POOL on NODE; None where the files of its node directory are missing and could tell more.

    A node without memory has no such files on many kernels, and a kernel without NUMA has them for no node.
    """
    counted, total = pool["nodes"], pool["persistent"]
    if str(node) in counted:
        found: int | None = counted[str(node)]["persistent"]
        return found
    if not counted and context.topology.source == "no_numa":
        return total if node == 0 else 0
    known = [row["persistent"] for row in counted.values()]
    return 0 if None not in known and sum(known) == total else None


def _judge_size(
    want: Want, pool: Mapping[str, Any] | None, context: Context, pools: Mapping[str, Any]
) -> dict[str, Any]:
    row = _row(want, pool, context)
    reason, text = _impossible(want, context) or _missing(want, pool, context, pools) or ("", "")
    if not reason and want.unplaced:
        text = f"{row['size']}: nodes is all, but no node with memory is known"
        return {**row, "status": UNKNOWN, "reason": "memory_not_known", "text": text}
    if not reason:
        counters = [row["got"], *(node["got"] for node in row["nodes"].values())]
        if None in counters:
            text = f"{row['size']}: a counter of the pool could not be read"
            return {**row, "status": UNKNOWN, "reason": "unreadable", "text": text}
        off = [node for node, pages in row["nodes"].items() if pages["asked"] not in (None, pages["got"])]
        if row["total_matches"] and not off:
            return {**row, "status": PASS}
        reason, text = _cause(want, row, off, context)
    return {**row, "status": FAIL, "reason": reason, "text": text}


def _impossible(want: Want, context: Context) -> tuple[str, str] | None:
    """A node that cannot hold pages, whatever the pools say."""
    if context.topology.source == "unknown":
        return None
    online = (
        context.topology.ids("online") if context.topology.source != "no_numa" else context.pool_nodes or [0]
    )
    for node, pages in sorted((want.nodes or {}).items()):
        if not pages:
            continue
        known = context.topology.node(node)
        if node not in online:
            return "no_such_node", f"{pages} pages are wanted on node {node}, which does not exist"
        if known and known.has_memory is False:
            return "node_without_memory", f"{pages} pages are wanted on node {node}, which has 0 kB of memory"
        if known and known.normal_memory is False:
            text = f"{pages} pages are wanted on node {node}, whose memory is not for general use"
            return "node_without_normal_memory", text
    return None


def _missing(
    want: Want, pool: Mapping[str, Any] | None, context: Context, pools: Mapping[str, Any]
) -> tuple[str, str] | None:
    if pool is not None or want.total == 0:
        return None
    name = f"hugepages-{want.size_kb}kB"
    offers = ", ".join(pools) or "no huge pages at all"
    text = f"the running kernel has no {name} directory, it offers {offers}"
    if want.size_kb == 1 << 20 and context.cpu_has_1g is not None:
        text += (
            "; the CPU has the flag for 1 GiB pages"
            if context.cpu_has_1g
            else "; the CPU lacks the flag pdpe1gb"
        )
    return "pool_directory_missing", text


def _cause(want: Want, row: Mapping[str, Any], off: list[str], context: Context) -> tuple[str, str]:
    """Why the pages differ: what was never asked of the kernel comes before what the kernel could not do."""
    size, asked, got = row["size"], row["asked"], row["got"]
    text = f"{size}: asked {asked} pages, got {got}"
    if row["surplus"] and row["total"] >= asked > got:
        return (
            "surplus_counted",
            f"{text}: {row['total']} less {row['surplus']} surplus pages, which are not kept",
        )
    if off:
        per_node = (
            f"node {node} asked {row['nodes'][node]['asked']} got {row['nodes'][node]['got']}" for node in off
        )
        text = f"{text}; {', '.join(per_node)}"
    told = _told(want, context)
    # The right number of pages came from somewhere else than the command line: its silence explains nothing.
    if told and not (row["total_matches"] and told[0] == "not_on_command_line"):
        return told[0], f"{text}: {told[1]}"
    if row["total_matches"]:
        return "wrong_node", f"{text}: the total is right, the nodes are not"
    if got > asked:
        return "more_than_asked", f"{text}: something else adds pages"
    return "allocation_short", f"{text}: the kernel did not find the memory, or somebody gave pages back"


def _told(want: Want, context: Context) -> tuple[str, str] | None:
    """How the command line asks for something else than what is wanted; None when it asks for just that."""
    if context.predicted is None:
        return None
    pool = context.predicted.pools.get(want.size_kb)
    total, nodes = (pool.total, pool.nodes) if pool else (0, {})
    wanted_nodes = {node: pages for node, pages in (want.nodes or {}).items() if pages}
    if total == want.total and (want.nodes is None or not nodes or nodes == wanted_nodes):
        return None
    warnings = [warn for warn in context.predicted.warnings if _key(warn) in KEYS]
    found = next((warn for warn in warnings if _explains(warn, want)), None)
    if found is None and sum(1 for other in context.predicted.pools.values() if other.named) == 1:
        found = next(iter(warnings), None)
    if found:
        return found.reason, found.text
    asked = f"the command line asks for {total}" + (f", {nodes} by node" if nodes else "")
    return ("command_line_differs" if total else "not_on_command_line"), asked


def _key(warn: Warn) -> str:
    tokens = split(warn.token)
    return normal_key(tokens[0].key) if tokens else ""


def _explains(warn: Warn, want: Want) -> bool:
    """Whether the token of WARN is the one that was to ask for WANT: its count, or its size."""
    value = split(warn.token)[0].value or ""
    if _key(warn) != "hugepages":
        try:
            return parse_size(value) == want.size_kb
        except ValueError:
            return False
    by_node = {int(node): int(pages) for node, pages in re.findall(r"(\d+):(\d+)", value)}
    if by_node:
        return by_node == want.nodes or sum(by_node.values()) == want.total
    return value.strip() == str(want.total)


def explain(root: str, pools: Mapping[str, Mapping[str, Any]]) -> Context:
    """The Context of the host below ROOT, whose pools are POOLS."""
    tree = Tree(root)
    line = tree.text("/proc/cmdline")
    flags = re.search(r"(?m)^flags\s*:(.*)$", tree.text("/proc/cpuinfo") or "")
    return Context(
        topology=read_topology(root),
        predicted=None if line is None else predict(line, KernelFacts.from_sysroot(root)),
        cpu_has_1g="pdpe1gb" in flags.group(1).split() if flags else None,
        pool_nodes=sorted({int(node) for pool in pools.values() for node in pool["nodes"]}),
    )
