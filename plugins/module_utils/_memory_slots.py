# SPDX-License-Identifier: Apache-2.0
"""Aligned windows of memory of each node: what can ever hold gigantic pages, and what a boot leaves of it.

The one place that counts them: hugepages_info shows `total` and `occupied`, the plan goes by `usable`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ._topology_nodes import NODE_DIR
from ._tree import Tree

MEMORY_DIR = "/sys/devices/system/memory"
Range = tuple[int, int]  # first byte, first byte behind
_CRASH = "Crash kernel"
_STRUCT_PAGE = 64
_LOW_FRAMES = 4096
_ZONE = re.compile(r"(?m)^Node (\d+), zone\s+\S+\s*$")
_FIELD = re.compile(r"(?m)^\s+(spanned|present|start_pfn):?\s+(\d+)\s*$")


@dataclass(frozen=True)
class Span:
    """The page frames [start, end) of one zone of a node; PRESENT of them exist."""

    start: int
    end: int
    present: int


@dataclass(frozen=True)
class Slots:
    """Of one node: aligned windows that are memory throughout, how many are taken now, how many a boot leaves.

    `occupied`: the running kernel, its crash kernel or firmware sits there; None where /proc/iomem does not tell.
    KASLR moves the kernel at each boot, so this is a hint of how many to leave, not which, and `usable` does not
    know of it: that is the total without the window at physical 0, those of the crash kernel, and one for the
    node's memory map (allocated from the top down) unless the memory above the last window holds it.
    """

    total: int
    occupied: int | None
    usable: int
    source: str


def read_slots(tree: Tree, size_bytes: int, page_bytes: int | None) -> dict[int, Slots]:
    """Slots of SIZE_BYTES per node id; nodes are left out whose physical ranges nothing shows.

    /proc/iomem says what is memory (it shows zeros to anyone but root), the memory blocks or the zones which node
    it belongs to. Without it the zones are all there is. PAGE_BYTES is the base page size, the unit of zoneinfo.
    """
    zones = parse_spans(tree.text("/proc/zoneinfo") or "") if page_bytes else {}
    slots = {node: _by_zones(spans, size_bytes, page_bytes or 0) for node, spans in zones.items()}
    iomem = tree.text("/proc/iomem") or ""
    ram, taken = memory_ranges(iomem)
    if not ram:
        return slots
    crash = memory_ranges(iomem, _CRASH)[1]
    for node, ranges in sorted(_node_ranges(tree, zones, page_bytes).items()):
        areas = _merge([piece for span in ranges for piece in _cut(ram, span)])
        slots[node] = _by_map(areas, taken, crash, size_bytes, page_bytes or 4096)
    return slots


def _by_map(areas: list[Range], taken: list[Range], crash: list[Range], size: int, page: int) -> Slots:
    windows = [
        (start, start + size)
        for area in areas
        for start in range(-(-area[0] // size) * size, area[1] - size + 1, size)
    ]
    lost = sum(1 for window in windows if not window[0] or _cut(crash, window))
    above = _cut(areas, (windows[-1][1], areas[-1][1])) if windows else []
    lost += _bytes(above) < 2 * _bytes(areas) // page * _STRUCT_PAGE
    occupied = sum(1 for window in windows if _cut(taken, window))
    return Slots(len(windows), occupied, max(len(windows) - lost, 0), "/proc/iomem")


def _bytes(areas: list[Range]) -> int:
    return sum(end - start for start, end in areas)


def _by_zones(zones: tuple[Span, ...], size: int, page: int) -> Slots:
    slot = size // page
    spans = _joined(zones)
    total = sum(_whole(span, slot) for span in spans)
    map_frames = 2 * sum(span.present for span in spans) * _STRUCT_PAGE // page
    lost = not spans or spans[-1].end % slot < map_frames
    return Slots(total, None, max(total - lost, 0), "/proc/zoneinfo")


def _whole(span: Span, slot: int) -> int:
    """Whole slots of SLOT page frames in SPAN, without the one at frame 0 and those that holes may break."""
    first, last = -(-span.start // slot), span.end // slot
    if span.start < slot:
        first = max(first, 1)
    count = max(last - first, 0)
    holes = span.end - span.start - span.present
    if holes <= 0:
        return count
    return max(count - (-(-holes // slot)) - 1, 0)


def _joined(spans: tuple[Span, ...]) -> list[Span]:
    """Zones that touch are one range: memory is reserved before zones exist. Frames below 16 MiB are left out."""
    joined: list[Span] = []
    for span in spans:
        if span.end <= _LOW_FRAMES:
            continue
        if joined and joined[-1].end == span.start:
            before = joined.pop()
            joined.append(Span(before.start, span.end, before.present + span.present))
        else:
            joined.append(span)
    return joined


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


def memory_ranges(text: str, name: str | None = None) -> tuple[list[Range], list[Range]]:
    """The `System RAM` of /proc/iomem, and what lies in it (kernel, crash kernel, reserved), or of that only NAME."""
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
        if inside and not match.group(1):
            ram.append(area)
        elif inside and name in (None, match.group(4)):
            taken.append(area)
    return _merge(ram), _merge(taken)


def _node_ranges(
    tree: Tree, zones: dict[int, tuple[Span, ...]], page_bytes: int | None
) -> dict[int, list[Range]]:
    """Physical ranges per node: from the memory blocks where the kernel has them, else from the zones."""
    block = tree.text(f"{MEMORY_DIR}/block_size_bytes") or ""
    ranges: dict[int, list[Range]] = {}
    if re.fullmatch(r"[0-9a-f]+", block):
        size = int(block, 16)
        for node in tree.numbered(NODE_DIR, "node"):
            blocks = tree.numbered(f"{NODE_DIR}/node{node}", "memory")
            if blocks:
                ranges[node] = _merge([(number * size, (number + 1) * size) for number in blocks])
    page = page_bytes or 0
    by_zone = {
        node: _merge([(span.start * page, span.end * page) for span in spans]) for node, spans in zones.items()
    }
    return ranges or by_zone


def parse_spans(text: str) -> dict[int, tuple[Span, ...]]:
    """The populated zone spans per node of a /proc/zoneinfo text, ascending; zones without pages are left out."""
    found: dict[int, list[Span]] = {}
    heads = list(_ZONE.finditer(text))
    for i, head in enumerate(heads):
        body = text[head.end() : heads[i + 1].start() if i + 1 < len(heads) else len(text)]
        values = {name: int(number) for name, number in _FIELD.findall(body)}
        present = values.get("present", values.get("spanned"))
        if present and {"spanned", "start_pfn"} <= values.keys():
            start = values["start_pfn"]
            found.setdefault(int(head[1]), []).append(Span(start, start + values["spanned"], present))
    return {node: tuple(sorted(spans, key=lambda span: span.start)) for node, spans in found.items()}


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
