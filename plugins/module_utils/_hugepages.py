# SPDX-License-Identifier: Apache-2.0
"""Huge page pools of a host as the kernel counts them, whole and per node.

Documentation/admin-guide/mm/hugetlbpage.rst: nr_hugepages counts persistent and surplus pages together, so a
pool can look full while nothing of it is reserved for good.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ._memory_slots import free_blocks, read_slots
from ._mounts import read_mounts
from ._topology_host import read_host
from ._topology_nodes import NODE_DIR, POOL_DIR
from ._tree import Tree

_FILES = {
    "total": "nr_hugepages",
    "free": "free_hugepages",
    "reserved": "resv_hugepages",
    "surplus": "surplus_hugepages",
    "overcommit": "nr_overcommit_hugepages",
}
_NODE_FILES = ("total", "free", "surplus")
_MEMINFO = {"total": "Total", "free": "Free", "reserved": "Rsvd", "surplus": "Surp"}


def read_pools(root: str = "/") -> dict[str, dict[str, Any]]:
    """The pools of the host below ROOT by size (`2048kB`), ascending; see pools_of()."""
    return pools_of(Tree(root))


def pools_of(tree: Tree) -> dict[str, dict[str, Any]]:
    """Per size: size_kb, total, persistent (total - surplus), free, reserved, surplus, overcommit, available
    (free and not reserved by a mapping yet) in pages, and `nodes`: the same of each node that has a pool.

    A counter that is absent or unreadable is None, also everything computed from it; an absent surplus is 0.
    Without sysfs (kernels before 2.6.27) the default size of /proc/meminfo is all there is.
    """
    nodes = {
        node: tree.numbered_sizes(f"{NODE_DIR}/node{node}/hugepages")
        for node in tree.numbered(NODE_DIR, "node")
    }
    sizes = set(tree.numbered_sizes(POOL_DIR)).union(*nodes.values())
    pools: dict[str, dict[str, Any]] = {}
    for size_kb in sorted(sizes):
        pool = _counters(tree, f"{POOL_DIR}/hugepages-{size_kb}kB", tuple(_FILES))
        by_node = {
            str(node): _counters(tree, f"{NODE_DIR}/node{node}/hugepages/hugepages-{size_kb}kB", _NODE_FILES)
            for node, found in nodes.items()
            if size_kb in found
        }
        pools[f"{size_kb}kB"] = {"size_kb": size_kb, **pool, "nodes": by_node}
    return pools or _from_meminfo(tree.text("/proc/meminfo") or "")


def pool_warnings(pools: Mapping[str, Mapping[str, Any]]) -> list[dict[str, str]]:
    """Where the counters contradict each other: nodes that do not add up, more free pages than there are."""
    found = []
    for size, pool in pools.items():
        totals = [node["total"] for node in pool["nodes"].values()]
        if totals and pool["total"] is not None and None not in totals and sum(totals) != pool["total"]:
            text = f"{size}: the nodes have {sum(totals)} pages together, the pool has {pool['total']}"
            found.append({"reason": "node_pools_disagree", "text": text})
        for place, row in (
            ("the pool", pool),
            *((f"node {node}", row) for node, row in pool["nodes"].items()),
        ):
            if None not in (row["free"], row["total"]) and row["free"] > row["total"]:
                text = f"{size}: {place} has {row['free']} free pages of {row['total']}"
                found.append({"reason": "more_free_than_total", "text": text})
    return found


def _counters(tree: Tree, base: str, keys: tuple[str, ...]) -> dict[str, int | None]:
    row: dict[str, int | None] = {key: tree.number(f"{base}/{_FILES[key]}") for key in keys}
    if row["surplus"] is None and f"{base}/{_FILES['surplus']}" not in tree.trouble:
        row["surplus"] = 0
    return _computed(row)


def _computed(row: dict[str, int | None]) -> dict[str, int | None]:
    row["persistent"] = _minus(row["total"], row["surplus"])
    if "reserved" in row:
        row["available"] = _minus(row["free"], row["reserved"])
    return row


def _minus(left: int | None, right: int | None) -> int | None:
    """Counters are read one by one while they move, so that a difference may dip below zero."""
    return None if left is None or right is None else max(0, left - right)


def _from_meminfo(text: str) -> dict[str, dict[str, Any]]:
    size = re.search(r"(?m)^Hugepagesize:\s*(\d+) kB", text)
    if not size:
        return {}
    row: dict[str, int | None] = {"overcommit": None}
    for key, name in _MEMINFO.items():
        match = re.search(rf"(?m)^HugePages_{name}:\s*(\d+)", text)
        row[key] = int(match.group(1)) if match else None
    if row["total"] is None:
        return {}
    row["surplus"] = row["surplus"] or 0
    return {f"{size.group(1)}kB": {"size_kb": int(size.group(1)), **_computed(row), "nodes": {}}}


def survey(root: str = "/") -> dict[str, Any]:
    """Everything that hugepages_info tells of the host below ROOT without being asked for a pool."""
    tree = Tree(root)
    host = read_host(tree)
    pools = pools_of(tree)
    pages = {pool["size_kb"] * 1024: pool["total"] for pool in pools.values() if pool["total"] is not None}
    slots: dict[str, dict[str, dict[str, int]]] = {}
    blocks: dict[str, dict[str, int]] = {}
    for size, pool in pools.items():
        size_bytes, page = pool["size_kb"] * 1024, host.page_size_bytes
        free = free_blocks(tree, size_bytes, page) if page else {}
        if free:
            blocks[size] = {str(node): count for node, count in sorted(free.items())}
            continue
        found = {
            str(node): {"total": row.total, "occupied": row.occupied}
            for node, row in read_slots(tree, size_bytes, page).items()
            if row.occupied is not None
        }
        if found:
            slots[size] = found
    return {
        "pools": pools,
        "default_size_kb": host.default_hugepage_kb,
        "mounts": [mount.as_dict() for mount in read_mounts(tree, host.default_hugepage_kb, pages)],
        "aligned_slots": slots,
        "free_blocks": blocks,
        "warnings_found": pool_warnings(pools)
        + [{"reason": "unreadable", "text": f"{path}: {why}"} for path, why in tree.trouble.items()],
    }
