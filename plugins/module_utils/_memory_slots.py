# SPDX-License-Identifier: Apache-2.0
"""How many aligned windows of memory each node has: the most gigantic pages that it can ever hold."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ._topology_nodes import NODE_DIR
from ._tree import Tree

MEMORY_DIR = "/sys/devices/system/memory"
Range = tuple[int, int]  # first byte, first byte behind


@dataclass(frozen=True)
class Slots:
    """Of one node: aligned windows that are memory throughout, and how many of them are taken.

    The running kernel, its crash kernel or firmware sits on a taken one. KASLR moves the kernel at each boot,
    so `occupied` is a hint of how many to leave, not which.
    """

    total: int
    occupied: int


def aligned_slots(tree: Tree, size_bytes: int, page_bytes: int | None) -> dict[int, Slots] | None:
    """Slots of SIZE_BYTES per node id; None when the physical memory map is not readable.

    /proc/iomem says what is memory (it shows zeros to anyone but root), the zones' start and span which node
    it belongs to. PAGE_BYTES is the base page size, the unit of zoneinfo.
    """
    ram, taken = memory_ranges(tree.text("/proc/iomem") or "")
    if not ram:
        return None
    spans = _node_spans(tree, page_bytes)
    if not spans:
        return None
    slots = {}
    for node, ranges in sorted(spans.items()):
        windows = [
            start
            for area in _merge([piece for span in ranges for piece in _cut(ram, span)])
            for start in range(-(-area[0] // size_bytes) * size_bytes, area[1] - size_bytes + 1, size_bytes)
        ]
        occupied = sum(1 for start in windows if _cut(taken, (start, start + size_bytes)))
        slots[node] = Slots(len(windows), occupied)
    return slots


def free_blocks(tree: Tree, size_bytes: int, page_bytes: int) -> dict[int, int]:
    """Per node the blocks of SIZE_BYTES that /proc/buddyinfo has free right now; {} above its largest order.

    What a running kernel can turn into huge pages without moving anything: it may free more by compaction.
    """
    order = (size_bytes // page_bytes).bit_length() - 1
    found: dict[int, int] = {}
    for line in (tree.text("/proc/buddyinfo") or "").splitlines():
        match = re.match(r"Node (\d+), zone\s+\S+((?:\s+\d+)+)\s*$", line)
        counts = [int(count) for count in match.group(2).split()] if match else []
        if match and order < len(counts):
            blocks = sum(count << (at - order) for at, count in enumerate(counts) if at >= order)
            found[int(match.group(1))] = found.get(int(match.group(1)), 0) + blocks
    return found


def memory_ranges(text: str) -> tuple[list[Range], list[Range]]:
    """The `System RAM` of /proc/iomem, and what lies in it (kernel, crash kernel, reserved)."""
    ram: list[Range] = []
    taken: list[Range] = []
    inside = False
    for line in text.splitlines():
        match = re.fullmatch(r"(\s*)([0-9a-f]+)-([0-9a-f]+) : (.*)", line)
        if not match:
            continue
        area = (int(match.group(2), 16), int(match.group(3), 16) + 1)
        if not match.group(1):
            inside = match.group(4) == "System RAM"
        if area == (0, 1):
            continue
        if inside:
            (taken if match.group(1) else ram).append(area)
    return _merge(ram), _merge(taken)


def _node_spans(tree: Tree, page_bytes: int | None) -> dict[int, list[Range]]:
    """Physical ranges per node: from the memory blocks where the kernel has them, else from the zones."""
    block = tree.text(f"{MEMORY_DIR}/block_size_bytes") or ""
    spans: dict[int, list[Range]] = {}
    if re.fullmatch(r"[0-9a-f]+", block):
        size = int(block, 16)
        for node in tree.numbered(NODE_DIR, "node"):
            blocks = tree.numbered(f"{NODE_DIR}/node{node}", "memory")
            if blocks:
                spans[node] = _merge([(number * size, (number + 1) * size) for number in blocks])
    return spans or (zone_spans(tree.text("/proc/zoneinfo") or "", page_bytes) if page_bytes else {})


def zone_spans(text: str, page_bytes: int) -> dict[int, list[Range]]:
    """Physical ranges of the zones of each node in /proc/zoneinfo."""
    spans: dict[int, list[Range]] = {}
    for zone in re.split(r"(?m)^(?=Node \d+, zone)", text):
        node = re.match(r"Node (\d+), zone", zone)
        spanned = re.search(r"(?m)^\s+spanned\s+(\d+)", zone)
        start = re.search(r"(?m)^\s+start_pfn:\s+(\d+)", zone)
        if node and spanned and start and int(spanned.group(1)):
            first = int(start.group(1)) * page_bytes
            spans.setdefault(int(node.group(1)), []).append(
                (first, first + int(spanned.group(1)) * page_bytes)
            )
    return {node: _merge(ranges) for node, ranges in spans.items()}


def _merge(ranges: list[Range]) -> list[Range]:
    merged: list[Range] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif end > start:
            merged.append((start, end))
    return merged


def _cut(ranges: list[Range], window: Range) -> list[Range]:
    """The parts of RANGES inside of WINDOW."""
    cut = ((max(start, window[0]), min(end, window[1])) for start, end in ranges)
    return [area for area in cut if area[0] < area[1]]
