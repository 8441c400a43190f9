# SPDX-License-Identifier: Apache-2.0
"""Whether huge pages fit: sizes the host has, memory per node above its floor, aligned slots for gigantic ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ._intent import IntentError, Judge, byte_size, format_size
from ._kernel_facts import architecture_sizes
from ._plan_facts import SLOT_SIZE_KB, Facts
from ._topology import Topology

Pools = Mapping[int, Mapping[int, int]]
_VARIABLE = "hugepages"
_MIB = 1 << 20
_FLOOR_LEAST = 384 * _MIB
_FLOOR_SHARE = 20
_GIB_KB = 1 << 20
_CPU_FLAG = {2048: "pse", _GIB_KB: "pdpe1gb"}


def floors(value: Any, topology: Topology, judge: Judge) -> dict[int, int]:
    """Bytes per node that no huge page may take: as asked, else 384 MiB or 5 % of the node, the larger."""
    asked: int | None = None
    if value is not None and value != "auto":
        try:
            asked = byte_size(value)
        except IntentError as exc:
            judge.refuse("bad_value", "reserve_floor_bytes", str(exc))
    return {
        node.id: asked if asked is not None else max(_FLOOR_LEAST, (node.memory_bytes or 0) // _FLOOR_SHARE)
        for node in topology.nodes
    }


def check_sizes(pools: Pools, facts: Facts, judge: Judge) -> None:
    """Refuse sizes that kernel or CPU lack, and say which of the two."""
    for size_kb in pools:
        unsupported = size_problem(size_kb, facts)
        size = format_size(size_kb)
        if unsupported:
            cause, text = unsupported
            judge.refuse(
                "page_size_unsupported", _VARIABLE, f"pages of {size}: {text}", size=size, cause=cause
            )
        elif only_by_boot(size_kb, facts):
            text = f"the kernel shows no pool of {size} now; the CPU has the flag, so hugepagesz={size} may make it"
            judge.note("page_size_unproven", _VARIABLE, text)
        elif not facts.sizes_known:
            judge.note("page_size_unproven", _VARIABLE, f"nothing shows that this host has pages of {size}")


def size_problem(size_kb: int, facts: Facts) -> tuple[str, str] | None:
    """(cause, text) when the host has no pages of SIZE_KB; None when it has them, a boot may, or nothing tells."""
    offered = facts.topology.hugepage_sizes_kb
    if size_kb in offered:
        return None
    flag = _CPU_FLAG.get(size_kb) if facts.cpu_flags is not None else None
    if flag and flag not in (facts.cpu_flags or ()):
        return "cpu_flag_missing", f"the CPU lacks the flag {flag}"
    if not facts.sizes_known:
        page = facts.topology.page_size_bytes
        known = architecture_sizes(facts.topology.arch or "", page // 1024 if page else None)
        if known and size_kb not in known:
            return "not_of_architecture", f"{facts.topology.arch} has {', '.join(map(format_size, known))}"
        return None
    if only_by_boot(size_kb, facts):
        return None
    sizes = ", ".join(format_size(size) for size in offered) or "none"
    text = (
        f"the kernel offers no directory /sys/kernel/mm/hugepages/hugepages-{size_kb}kB"
        f"{f', although the CPU has the flag {flag}' if flag else ''}; sizes it has: {sizes}"
    )
    return "pool_directory_missing", text


def only_by_boot(size_kb: int, facts: Facts) -> bool:
    """Whether a boot argument can give the host pages of SIZE_KB that it does not list now.

    arch/x86/mm/hugetlbpage.c: with CONFIG_CONTIG_ALLOC a kernel makes the 1G pool by itself where the CPU has
    pdpe1gb, without it only when the command line names the size.
    """
    flag = _CPU_FLAG[_GIB_KB]
    if size_kb != _GIB_KB or size_kb in facts.topology.hugepage_sizes_kb or flag not in (facts.cpu_flags or ()):
        return False
    running = facts.topology.kernel_release
    configs = [kernel.facts.config for kernel in facts.kernels if kernel.release == running]
    return bool(facts.sizes_known) and not any(
        config is not None and config.get("CONFIG_CONTIG_ALLOC") == "y" for config in configs
    )


def check_fit(
    pools: Pools, facts: Facts, floor: Mapping[int, int], ours_kb: Iterable[int], judge: Judge
) -> dict[str, dict[str, int]]:
    """Refuse what does not fit on a node; return the budget in bytes of each node whose memory is known.

    Pages that are reserved now count too, unless their size is planned or one of OURS_KB, the recorded sizes.
    """
    others = foreign_pages(facts.topology, {*pools, *ours_kb})
    budget = {}
    nodes = sorted({node for counts in pools.values() for node in counts})
    for number in nodes:
        node = facts.topology.node(number)
        if node is None or node.has_memory is False:
            continue
        pages = sum(counts.get(number, 0) * size_kb * 1024 for size_kb, counts in pools.items())
        if node.memory_bytes is None:
            if pages:
                judge.note(
                    "memory_unknown", _VARIABLE, f"the memory of node {number} is not known: not checked"
                )
            continue
        foreign = others.get(number, 0)
        left = node.memory_bytes - foreign - pages - floor[number]
        budget[str(number)] = {
            "memory_bytes": node.memory_bytes,
            "pages_bytes": pages,
            "floor_bytes": floor[number],
            "foreign_bytes": foreign,
            "left_bytes": left,
        }
        if pages and left < 0:
            _refuse_node(number, budget[str(number)], pools, judge)
        _check_slots(number, pools, facts, judge)
    return budget


def foreign_pages(topology: Topology, ours_kb: Iterable[int]) -> dict[int, int]:
    """Bytes per node in persistent huge pages of sizes other than OURS_KB, as the kernel shows them now."""
    ours = {f"{size}kB" for size in ours_kb}
    found = {}
    for node in topology.nodes:
        rows = [(int(name[:-2]), row) for name, row in node.pools.items() if name not in ours]
        found[node.id] = sum(
            size * 1024 * max(row.get("total", 0) - row.get("surplus", 0), 0) for size, row in rows
        )
    return found


def _refuse_node(number: int, row: Mapping[str, int], pools: Pools, judge: Judge) -> None:
    room = max(row["memory_bytes"] - row["foreign_bytes"] - row["floor_bytes"], 0)
    wants = " and ".join(
        count(counts[number], format_size(size_kb)) for size_kb, counts in pools.items() if counts.get(number)
    )
    taken = f", {mib(row['foreign_bytes'])} are in huge pages of other sizes" if row["foreign_bytes"] else ""
    text = (
        f"node {number}: {wants} are {mib(row['pages_bytes'])}, the node has {mib(row['memory_bytes'])}{taken} "
        f"and {mib(row['floor_bytes'])} stay free (firsttouch_reserve_floor_bytes), so at most {mib(room)} fit; "
        "ask for fewer pages"
    )
    details = {"node": number, "asked": row["pages_bytes"], "available": room, **row}
    judge.refuse("pages_exceed_node", _VARIABLE, text, **details)


def count(pages: int, size: str) -> str:
    """`1 page of 2M`, `300 pages of 2M`."""
    return f"{pages} page{'' if pages == 1 else 's'} of {size}"


def mib(number: int) -> str:
    """A number of bytes in whole MiB, for messages."""
    return f"{number // _MIB} MiB"


def _check_slots(number: int, pools: Pools, facts: Facts, judge: Judge) -> None:
    for size_kb, counts in pools.items():
        asked = counts.get(number, 0)
        if size_kb < SLOT_SIZE_KB or not asked:
            continue
        slots, how = usable_slots(number, size_kb, facts)
        room = max(slots - 1, 0)
        if asked > room:
            size = format_size(size_kb)
            text = (
                f"node {number}: {count(asked, size)} need as many aligned free slots and one to spare, because "
                f"the kernel may land in any at boot; the node has {slots} ({how}), so at most {room} fit"
            )
            details = {"node": number, "size": size, "asked": asked, "available": room, "slots": slots}
            judge.refuse("no_aligned_slots", _VARIABLE, text, **details)


def usable_slots(number: int, size_kb: int, facts: Facts) -> tuple[int, str]:
    """Aligned windows of SIZE_KB on a node that a boot leaves free, and what the number rests on."""
    slots = facts.slots.get(size_kb, {}).get(number)
    if slots is not None:
        return slots.usable, f"from {slots.source}"
    node = facts.topology.node(number)
    estimate = max(((node.memory_bytes if node else None) or 0) // (size_kb * 1024) - 1, 0)
    return estimate, "estimated from its memory: its physical ranges are not known"
