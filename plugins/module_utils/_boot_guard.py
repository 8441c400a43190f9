# SPDX-License-Identifier: Apache-2.0
"""Refuse a command line whose huge pages would leave the host without memory to boot with."""

from __future__ import annotations

from typing import Any

from ._boot_types import BootError
from ._intent import Judge
from ._kernel_args import KernelFacts, predict
from ._plan_fit import floors as node_floors
from ._topology import read_topology

_MIB = 1 << 20


def check_memory(
    line: str, running: str | None, facts: KernelFacts, root: str, floor_bytes: int | None
) -> dict[str, Any]:
    """Compare what LINE reserves with the memory of the host, whole and per node. Bytes throughout.

    Returns what was compared; `evaluated` is false where the memory is not known (an offline tree). Raises
    BootError `memory_guard` when less than FLOOR_BYTES per node (None: the plan's own floor) would be left.
    """
    prediction = predict(line, facts)
    memory = prediction.memory
    other = (memory.crashkernel or 0) + memory.memmap_reserved + memory.cma + memory.hugetlb_cma
    pages = prediction.hugetlb_bytes
    result: dict[str, Any] = {"evaluated": False, "hugetlb_bytes": pages, "other_bytes": other}
    if not pages or facts.memory_bytes is None:
        return {**result, "evaluated": not pages}
    # MemTotal does not count what the running kernel has set aside for a crash kernel
    before = predict(running, facts).memory.crashkernel or 0 if running else 0
    total = facts.memory_bytes + before
    if memory.mem_limit is not None:
        total = min(total, memory.mem_limit)
    topology = read_topology(root)
    floors = node_floors(floor_bytes, topology, Judge())
    floor = sum(floors.values())
    result.update(evaluated=True, memory_bytes=total, floor_bytes=floor)
    if pages + other + floor > total:
        raise BootError(
            "memory_guard",
            f"the complete command line reserves {_mib(pages)} of huge pages and {_mib(other)} otherwise; "
            f"with {_mib(floor)} to stay free that is more than the {_mib(total)} of the host: ask for fewer "
            "pages (firsttouch_hugepages) or a lower firsttouch_reserve_floor_bytes",
            **result,
        )
    for node, wanted in prediction.hugetlb_bytes_by_node.items():
        found = topology.node(node)
        has = found.memory_bytes if found else None
        if has is not None and wanted + floors[node] > has:
            raise BootError(
                "memory_guard",
                f"the complete command line reserves {_mib(wanted)} of huge pages on node {node}, which has "
                f"{_mib(has)} and must keep {_mib(floors[node])} free: ask for fewer pages there "
                "(firsttouch_hugepages) or a lower firsttouch_reserve_floor_bytes",
                node=node,
                **result,
            )
    return result


def _mib(size: int) -> str:
    return f"{size / _MIB:.0f} MiB"
