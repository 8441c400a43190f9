# SPDX-License-Identifier: GPL-3.0-or-later
"""Aligned windows of memory: hugepages_info and the plan count them by one function."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils._memory_slots import (
    Slots,
    parse_spans,
    read_slots,
)
from ansible_collections.firsttouch.host.plugins.module_utils._tree import Tree
from plan_host import GIB_PAGES, make_host, refused, zone
from support import put, run_module

GIB = 1 << 30
CRASH = "  180000000-18fffffff : Crash kernel\n"


def slots(root: Path, iomem: str = "", zones: str = "") -> dict[int, Slots]:
    put(root, "/proc/iomem", iomem)
    put(root, "/proc/zoneinfo", zones)
    return read_slots(Tree(str(root)), GIB, 4096)


@pytest.mark.parametrize(
    ("iomem", "total", "occupied", "usable"),
    [
        ("100000000-2ffffffff : System RAM\n", 8, 0, 7),
        ("100000000-2ffffffff : System RAM\n" + CRASH, 8, 1, 6),
        # The memory above the last window holds the map of 8.5 GiB: twice 136 MiB.
        ("100000000-31fffffff : System RAM\n", 8, 0, 8),
        ("100000000-30fffffff : System RAM\n", 8, 0, 7),
        # No x86: memory from 0 on.
        ("00000000-ffffffff : System RAM\n", 4, 0, 2),
        ("00001000-0009ffff : System RAM\n00100000-ffffffff : System RAM\n", 3, 0, 2),
        # A crash kernel across two windows costs both.
        ("100000000-2ffffffff : System RAM\n  17fff0000-18fffffff : Crash kernel\n", 8, 2, 5),
        ("100000000-2ffffffff : System RAM\n  180000000-18fffffff : Kernel code\n", 8, 1, 7),
    ],
)  # fmt: skip
def test_windows_of_the_memory_map(
    tmp_path: Path, iomem: str, total: int, occupied: int, usable: int
) -> None:
    found = slots(tmp_path, iomem, zone(0, "Normal", 0, 16 * GIB_PAGES))
    assert found == {0: Slots(total, occupied, usable, "/proc/iomem")}


def test_zones_are_the_second_source(tmp_path: Path) -> None:
    found = slots(tmp_path, "", zone(1, "Normal", 4 * GIB_PAGES, 8 * GIB_PAGES))
    assert found == {1: Slots(8, None, 7, "/proc/zoneinfo")}
    assert slots(tmp_path) == {}


def test_a_zone_without_pages_is_no_span() -> None:
    text = zone(0, "DMA", 1, 4095, 3998) + zone(0, "Movable", 0, 0) + "Node 1, zone   Normal\n  pages free 0\n"
    assert [(span.start, span.end, span.present) for span in parse_spans(text)[0]] == [(1, 4096, 3998)]
    assert list(parse_spans(text)) == [0]


def test_the_plan_and_hugepages_info_see_the_same_windows(tmp_path: Path) -> None:
    root = make_host(tmp_path, {0: ("0-3", 8 << 20)}, zones=zone(0, "Normal", 4 * GIB_PAGES, 8 * GIB_PAGES))
    put(root, "/proc/iomem", "100000000-1bfffffff : System RAM\n" + CRASH + "200000000-2ffffffff : System RAM\n")
    info = run_module("hugepages_info", {"sysroot": str(root)})
    assert info["aligned_slots"]["1048576kB"] == {"0": {"total": 7, "occupied": 1}}
    intent = {"hugepages": [{"size": "1G", "count": 9}], "reserve_floor_bytes": 0}
    rows = refused(root, intent, sections=["hugepages"])
    # Of the seven one is the crash kernel's and one the memory map's.
    assert [row["slots"] for row in rows if row["reason"] == "no_aligned_slots"] == [5]
