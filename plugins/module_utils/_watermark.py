# SPDX-License-Identifier: Apache-2.0
"""Free memory kept for bursts: vm.extra_free_kbytes by way of vm.watermark_scale_factor.

Mainline has no vm.extra_free_kbytes. What it meant, memory that kswapd keeps free above the emergency
reserve, is the distance from the min to the low watermark, summed over all zones. The arithmetic here is
that of the kernel's __setup_per_zone_wmarks() (mm/page_alloc.c); all counts are pages unless a name says
bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ._files import read_text

DEFAULT_FACTOR = 10  # the kernel's own default, and the least this module ever asks for
DEFAULT_ROOM_BYTES = 256 << 20
_DENOMINATOR = 10000
_CAPPED = ("HighMem", "Movable")
_ZONE = re.compile(r"^Node (\d+), zone\s+(\S+)\s*$", re.MULTILINE)
_FIELD = re.compile(r"^\s+(boost|min|low|high|managed)\s+(\d+)\s*$", re.MULTILINE)


class WatermarkError(ValueError):
    """The asked distance cannot be had; `reason` is a code, `numbers` the figures (bytes)."""

    def __init__(self, reason: str, text: str, numbers: Mapping[str, int]) -> None:
        super().__init__(text)
        self.reason = reason
        self.numbers = dict(numbers)


@dataclass(frozen=True)
class Zone:
    """One zone of /proc/zoneinfo, in pages; `boost` is the temporary part of all three watermarks."""

    node: int
    name: str
    managed: int
    min: int
    low: int
    high: int
    boost: int = 0


@dataclass(frozen=True)
class WatermarkPlan:
    """What one vm.watermark_scale_factor gives: the summed (low - min) and, per node, the high watermark."""

    scale_factor: int
    predicted_bytes: int
    max_factor: int
    max_bytes: int
    high_bytes: dict[int, int]


def parse_zones(text: str) -> list[Zone]:
    """Parse the text of /proc/zoneinfo. Raises ValueError when a zone lacks one of its figures."""
    zones = []
    heads = list(_ZONE.finditer(text))
    for i, head in enumerate(heads):
        body = text[head.end() : heads[i + 1].start() if i + 1 < len(heads) else len(text)]
        fields: dict[str, int] = {}
        for name, number in _FIELD.findall(body):
            fields.setdefault(name, int(number))
        missing = {"min", "low", "high", "managed"} - fields.keys()
        if missing:
            raise ValueError(f"/proc/zoneinfo: node {head[1]} zone {head[2]} has no {min(missing)!r}")
        zones.append(Zone(node=int(head[1]), name=head[2], **fields))
    return zones


def read_zones(root: str = "/") -> list[Zone]:
    """Read ROOT/proc/zoneinfo; an empty list when there is none. Raises OSError, ValueError."""
    text = read_text(root, "/proc/zoneinfo")
    return [] if text is None else parse_zones(text)


def read_min_free_kbytes(root: str = "/") -> int:
    """Read vm.min_free_kbytes. Raises ValueError when it is absent or not a number, OSError."""
    text = read_text(root, "/proc/sys/vm/min_free_kbytes")
    if text is None:
        raise ValueError("/proc/sys/vm/min_free_kbytes does not exist")
    return int(text)


def distance(zones: Iterable[Zone], page_bytes: int = 4096) -> int:
    """Return the live sum over all zones of (low - min), in bytes."""
    return sum(zone.low - zone.min for zone in zones) * page_bytes


def max_factor_for(version: tuple[int, int]) -> int:
    """Return the largest vm.watermark_scale_factor that a kernel is sure to accept.

    3000 since 5.17 ("mm/pagealloc: sysctl: change watermark_scale_factor max limit to 30%"), 1000 before;
    some older kernels carry a backport, which their version does not tell.
    """
    return 3000 if version >= (5, 17) else 1000


def movable_is_capped(zones: Iterable[Zone], min_free_kbytes: int, page_bytes: int = 4096) -> bool:
    """Tell from the live watermarks whether ZONE_MOVABLE is left out of the low memory (since 6.6).

    An unpopulated Movable zone shows the clamp as min=32 on a kernel with that rule and 0 on one without.
    """
    listed = list(zones)
    if not any(zone.name == "Movable" for zone in listed):
        return True

    def misses(capped: bool) -> int:
        rows = _watermarks(listed, DEFAULT_FACTOR, min_free_kbytes, page_bytes, capped)
        return sum(abs(row[0] - (zone.min - zone.boost)) for zone, row in zip(listed, rows))

    return misses(True) <= misses(False)


def _watermarks(
    zones: list[Zone], factor: int, min_free_kbytes: int, page_bytes: int, movable_capped: bool
) -> list[tuple[int, int, int]]:
    """(min, low, high) of each zone in pages, as __setup_per_zone_wmarks() computes them."""
    pages_min = min_free_kbytes * 1024 // page_bytes
    capped = _CAPPED if movable_capped else _CAPPED[:1]
    lowmem = sum(zone.managed for zone in zones if zone.name not in capped) or 1
    rows = []
    for zone in zones:
        share = pages_min * zone.managed // lowmem
        low_min = min(max(zone.managed // 1024, 32), 128) if zone.name in capped else share
        # mult_frac(): whole and remainder apart, so it rounds like the kernel
        whole, rest = divmod(zone.managed, _DENOMINATOR)
        step = max(share >> 2, whole * factor + rest * factor // _DENOMINATOR)
        rows.append((low_min, low_min + step, low_min + 2 * step))
    return rows


def predict(
    zones: Iterable[Zone],
    factor: int,
    min_free_kbytes: int,
    *,
    page_bytes: int = 4096,
    movable_capped: bool | None = None,
) -> list[tuple[int, int, int]]:
    """Return (min, low, high) in pages of each zone under vm.watermark_scale_factor=FACTOR, no boost."""
    listed = list(zones)
    if movable_capped is None:
        movable_capped = movable_is_capped(listed, min_free_kbytes, page_bytes)
    return _watermarks(listed, factor, min_free_kbytes, page_bytes, movable_capped)


def _plan(rows: list[tuple[int, int, int]], zones: list[Zone], page: int) -> tuple[int, dict[int, int]]:
    high: dict[int, int] = {}
    for zone, row in zip(zones, rows):
        if zone.managed:
            high[zone.node] = high.get(zone.node, 0) + row[2] * page
    return sum(low - low_min for low_min, low, _high in rows) * page, high


def scale_factor_for(
    extra_free_bytes: int,
    zones: Iterable[Zone],
    min_free_kbytes: int,
    *,
    page_bytes: int = 4096,
    max_factor: int = 3000,
    pages_bytes: Mapping[int, int] | None = None,
    room_bytes: int | Mapping[int, int] = DEFAULT_ROOM_BYTES,
    movable_capped: bool | None = None,
) -> WatermarkPlan:
    """Return the smallest factor (at least the kernel's default) that keeps EXTRA_FREE_BYTES free.

    The factor alone has to do it. A quarter of vm.min_free_kbytes is a distance too where the factor is small, but the
    kernel computes that anew whenever transparent huge pages are switched (mm/khugepaged.c,
    set_recommended_min_free_kbytes()) or memory is added, and may then lower it.
    PAGES_BYTES are the huge pages planned per node: what they leave of the node's managed memory must hold
    the high watermark, up to which kswapd reclaims, and ROOM_BYTES besides (one figure, or one per node).
    Raises WatermarkError with reason `extra_free_above_max` or `high_watermark_does_not_fit`, ValueError
    without a populated zone or with a negative amount.
    """
    listed = list(zones)
    if extra_free_bytes < 0:
        raise ValueError(f"{extra_free_bytes} bytes of extra free memory: must not be negative")
    if not any(zone.managed for zone in listed):
        raise ValueError("/proc/zoneinfo shows no populated zone")
    capped = movable_capped
    if capped is None:
        capped = movable_is_capped(listed, min_free_kbytes, page_bytes)

    def at(factor: int) -> tuple[int, dict[int, int]]:
        return _plan(_watermarks(listed, factor, min_free_kbytes, page_bytes, capped), listed, page_bytes)

    def lasting(factor: int) -> int:
        return _plan(_watermarks(listed, factor, 0, page_bytes, capped), listed, page_bytes)[0]

    max_bytes = lasting(max_factor)
    if max_bytes < extra_free_bytes:
        raise WatermarkError(
            "extra_free_above_max",
            f"firsttouch_extra_free_bytes={extra_free_bytes}: vm.watermark_scale_factor={max_factor}, "
            f"the most this kernel takes, keeps {max_bytes} bytes free",
            {"asked_bytes": extra_free_bytes, "max_bytes": max_bytes, "max_factor": max_factor},
        )
    low, top = DEFAULT_FACTOR, max(max_factor, DEFAULT_FACTOR)
    while low < top:
        middle = (low + top) // 2
        if lasting(middle) >= extra_free_bytes:
            top = middle
        else:
            low = middle + 1
    predicted, high = at(low)
    _check_room(extra_free_bytes, listed, high, pages_bytes or {}, room_bytes, page_bytes)
    return WatermarkPlan(low, predicted, max_factor, max_bytes, high)


def _check_room(
    asked: int,
    zones: list[Zone],
    high: Mapping[int, int],
    pages_bytes: Mapping[int, int],
    room_bytes: int | Mapping[int, int],
    page: int,
) -> None:
    for node, high_bytes in sorted(high.items()):
        managed = sum(zone.managed for zone in zones if zone.node == node) * page
        pages = pages_bytes.get(node, 0)
        room = room_bytes if isinstance(room_bytes, int) else room_bytes.get(node, DEFAULT_ROOM_BYTES)
        if managed - pages < high_bytes + room:
            raise WatermarkError(
                "high_watermark_does_not_fit",
                f"firsttouch_extra_free_bytes={asked}: node {node} has {managed} bytes, huge pages take "
                f"{pages}, and the {managed - pages} left do not hold the high watermark of {high_bytes} "
                f"bytes and {room} bytes of room; ask for less, or for fewer pages in firsttouch_hugepages",
                {
                    "asked_bytes": asked,
                    "node": node,
                    "managed_bytes": managed,
                    "pages_bytes": pages,
                    "high_bytes": high_bytes,
                    "room_bytes": room,
                },
            )
