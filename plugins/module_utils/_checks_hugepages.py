# SPDX-License-Identifier: Apache-2.0
"""Huge page pools: pages asked for against pages that are really reserved, per size and node, to the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from . import _hugepages, _hugepages_judge
from ._checks_host import HUGEPAGES, Check, Context
from ._checks_lines import predicted
from ._topology import read_topology
from ._topology_nodes import NODE_DIR, POOL_DIR
from ._verdict import Result, judge, skipped

_STAGED = ("not_on_command_line", "command_line_differs")


def _planned(ctx: Context) -> list[Mapping[str, Any]]:
    return [dict(pool) for pool in ctx.section("hugepages").get("pools") or []]


def _asked(ctx: Context) -> bool:
    return bool(_planned(ctx))


def _wants(ctx: Context) -> list[_hugepages_judge.Want]:
    wants = []
    for pool in _planned(ctx):
        nodes = {int(node): int(pages) for node, pages in (pool.get("nodes") or {}).items()}
        wants.append(_hugepages_judge.Want(int(pool["size_kb"]), int(pool["total"]), nodes or None))
    return wants


def _pools(ctx: Context) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = ctx.keep("pools", lambda: _hugepages.read_pools(ctx.root))
    return found


def _source(size_kb: int, node: str | None = None) -> str:
    base = POOL_DIR if node is None else f"{NODE_DIR}/node{node}/hugepages"
    return f"{base}/hugepages-{size_kb}kB/nr_hugepages"


def check_pools(ctx: Context) -> Iterator[Result]:
    """Persistent pages of every planned size, whole and per node, exactly as asked."""
    wants = _wants(ctx)
    if not wants:
        return
    pools = _pools(ctx)
    if not pools and not ctx.live:
        for want in wants:
            source = _source(want.size_kb)
            yield skipped(
                f"hugepages.pool.{want.size_kb}kB",
                "running",
                "not_available",
                expected=want.total,
                source=source,
            )
        return
    by_cmdline = ctx.section("hugepages").get("method") != "unit"
    context = _hugepages_judge.Context(
        ctx.keep("topology", lambda: read_topology(ctx.root)),
        predicted(ctx, "running") if by_cmdline else None,
        pool_nodes=sorted({int(node) for pool in pools.values() for node in pool["nodes"]}),
    )
    for row in _hugepages_judge.judge(wants, pools, context):
        if row["status"] != _hugepages_judge.NOT_REQUESTED:
            yield from _answers(ctx, row, pools.get(f"{row['size_kb']}kB", {}))


def _answers(ctx: Context, row: Mapping[str, Any], pool: Mapping[str, Any]) -> Iterator[Result]:
    """One result for the size and one per node, from a row of _hugepages_judge.judge()."""
    identity, size_kb = f"hugepages.pool.{row['size']}", int(row["size_kb"])
    observed = {"pages": row["got"]}
    observed.update(
        {key: pool[key] for key in ("free", "reserved", "surplus", "overcommit") if pool.get(key) is not None}
    )
    if row["status"] == _hugepages_judge.UNKNOWN:
        expected = {"pages": row["asked"]}
        yield skipped(
            identity, "running", row["reason"], expected=expected, observed=observed, source=_source(size_kb)
        )
        return
    reason, text = row.get("reason", ""), row.get("text", "")
    if reason in _STAGED and _staged(ctx, row):
        reason, text = "pending_reboot", f"{text}; the next boot asks for it"
    remedy = f"{text}. Run provision with {HUGEPAGES}."
    if reason == "allocation_short":
        remedy = f"{remedy[:-1]}; ask for fewer pages where the memory is not there."
    yield judge(
        identity,
        "running",
        {"pages": row["asked"]},
        observed,
        good=row["status"] == _hugepages_judge.PASS
        or (row["total_matches"] and reason != "pool_directory_missing"),
        reason=reason,
        source=_source(size_kb),
        remedy=remedy,
    )
    for node, pages in row["nodes"].items():
        if pages["asked"] is not None:
            yield judge(
                f"{identity}.node{node}",
                "running",
                pages["asked"],
                pages["got"],
                reason=reason or "wrong_node",
                source=_source(size_kb, node),
                remedy=f"See {identity}; {HUGEPAGES} asks for these pages on this node.",
            )


def _staged(ctx: Context, row: Mapping[str, Any]) -> bool:
    """Whether the entry that boots next asks for the pages of ROW."""
    following = predicted(ctx, "next_boot")
    pool = following.pools.get(row["size_kb"]) if following else None
    if pool is None:
        return False
    nodes = {node: pages for node, pages in pool.nodes.items() if pages}
    asked = {int(node): pages["asked"] for node, pages in row["nodes"].items() if pages["asked"]}
    return pool.total == row["asked"] and (not nodes or not asked or nodes == asked)


def check_other_pools(ctx: Context) -> Iterator[Result]:
    """Pools of a size that the plan does not know hold memory that nobody planned with."""
    planned = {int(pool["size_kb"]) for pool in _planned(ctx)}
    for pool in _pools(ctx).values():
        if pool["size_kb"] not in planned and pool["persistent"]:
            yield judge(
                f"hugepages.other_pool.{pool['size_kb']}kB",
                "running",
                0,
                pool["persistent"],
                reason="foreign_owner",
                source=_source(pool["size_kb"]),
                remedy=f"Somebody reserved these pages: name them in {HUGEPAGES}, or give them back.",
                intended=False,
            )


CHECKS = (
    Check("hugepages.pool", ("running",), check_pools, _asked),
    Check("hugepages.other_pool", ("running",), check_other_pools, lambda ctx: False),
)
