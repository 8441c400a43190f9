# SPDX-License-Identifier: GPL-3.0-or-later
"""The watermark arithmetic, against what kernels themselves showed for several factors.

tests/fixtures/zoneinfo holds one recording per kernel: its vm.min_free_kbytes, then the zones of
/proc/zoneinfo under several values of vm.watermark_scale_factor.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _watermark as wm
from support import ROOT, put

RECORDED = sorted((ROOT / "tests/fixtures/zoneinfo").glob("*.txt"))
GIB = 1 << 30


def recording(path: Path) -> tuple[int, dict[int, list[wm.Zone]]]:
    text = path.read_text()
    kbytes = re.search(r"^min_free_kbytes (\d+)$", text, re.MULTILINE)
    assert kbytes
    parts = re.split(r"^=== (\d+)$", text, flags=re.MULTILINE)[1:]
    return int(kbytes[1]), {int(parts[i]): wm.parse_zones(parts[i + 1]) for i in range(0, len(parts), 2)}


def test_there_are_recordings() -> None:
    assert len(RECORDED) >= 5


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_every_watermark_is_the_kernels(path: Path) -> None:
    kbytes, factors = recording(path)
    assert len(factors) >= 3
    for now, zones in factors.items():
        for factor, shown in factors.items():
            rows = wm.predict(zones, factor, kbytes)
            got = [(zone.min - zone.boost, zone.low - zone.boost, zone.high - zone.boost) for zone in shown]
            names = [f"{zone.node}/{zone.name}" for zone in zones]
            assert dict(zip(names, rows)) == dict(zip(names, got)), (now, factor)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_rule_for_movable_memory_is_recognised(path: Path) -> None:
    kbytes, factors = recording(path)
    version = re.search(r"^kernel (\d+)\.(\d+)$", path.read_text(), re.MULTILINE)
    assert version
    since_6_6 = (int(version[1]), int(version[2])) >= (6, 6)
    assert {wm.movable_is_capped(zones, kbytes) for zones in factors.values()} == {since_6_6}


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_smallest_factor_that_reaches_it(path: Path) -> None:
    kbytes, factors = recording(path)
    zones = factors[10]
    for asked in (64 << 20, 100_000_000, 200_000_001):
        plan = wm.scale_factor_for(asked, zones, kbytes, room_bytes=0)
        assert plan.predicted_bytes >= asked
        assert wm.DEFAULT_FACTOR < plan.scale_factor <= 3000
        less = wm.predict(zones, plan.scale_factor - 1, kbytes)
        assert sum(row[1] - row[0] for row in less) * 4096 < asked
    for factor, shown in factors.items():
        plan = wm.scale_factor_for(wm.distance(shown), zones, kbytes, room_bytes=0)
        # At a small factor a quarter of vm.min_free_kbytes is more, and that does not last.
        if plan.scale_factor <= factor:
            assert plan.predicted_bytes == wm.distance(shown)
        else:
            assert factor * 4 < 10 * wm.DEFAULT_FACTOR and plan.predicted_bytes > wm.distance(shown)


def zone(node: int, name: str, managed: int) -> wm.Zone:
    return wm.Zone(node, name, managed, 0, 0, 0)


def test_never_below_the_kernels_default() -> None:
    for asked in (0, 1, 4096):
        assert wm.scale_factor_for(asked, [zone(0, "Normal", 1 << 20)], 67584).scale_factor == 10


def test_more_than_the_kernel_can() -> None:
    zones = [zone(0, "Normal", 1 << 20)]
    reach = (1 << 20) * 750 // 10000 * 4096
    assert wm.scale_factor_for(reach, zones, 67584, max_factor=1000).scale_factor == 750
    assert wm.scale_factor_for(reach + 1, zones, 67584, max_factor=1000).scale_factor == 751
    with pytest.raises(wm.WatermarkError) as caught:
        wm.scale_factor_for(GIB, zones, 67584, max_factor=1000)
    assert caught.value.reason == "extra_free_above_max"
    numbers = caught.value.numbers
    assert numbers == {"asked_bytes": GIB, "max_bytes": (1 << 20) * 1000 // 10000 * 4096, "max_factor": 1000}
    assert str(numbers["max_bytes"]) in str(caught.value)
    assert "firsttouch_extra_free_bytes" in str(caught.value)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
@pytest.mark.parametrize("later", [0, 4096, 67584, 262144])
def test_the_distance_lasts_when_the_kernel_computes_min_free_anew(path: Path, later: int) -> None:
    """As it does when transparent huge pages are switched."""
    kbytes, factors = recording(path)
    zones = factors[10]
    capped = wm.movable_is_capped(zones, kbytes)
    for asked in (1 << 20, 16 << 20, 20 << 20, 64 << 20):
        factor = wm.scale_factor_for(asked, zones, kbytes, room_bytes=0).scale_factor
        rows = wm.predict(zones, factor, later, movable_capped=capped)
        assert sum(low - low_min for low_min, low, _high in rows) * 4096 >= asked


def test_high_watermark_beside_the_pages() -> None:
    zones = [zone(0, "Normal", 1 << 20), zone(1, "Normal", 1 << 20)]
    asked = GIB // 2  # a quarter GiB per node between min and low, the same again up to high
    assert wm.scale_factor_for(asked, zones, 67584, pages_bytes={0: 3 * GIB, 1: 3 * GIB})
    with pytest.raises(wm.WatermarkError) as caught:
        wm.scale_factor_for(asked, zones, 67584, pages_bytes={0: 0, 1: 3 * GIB + GIB // 2})
    assert caught.value.reason == "high_watermark_does_not_fit"
    numbers = caught.value.numbers
    assert numbers["node"] == 1
    assert numbers["managed_bytes"] == 4 * GIB
    left = numbers["managed_bytes"] - numbers["pages_bytes"]
    assert left < numbers["high_bytes"] + numbers["room_bytes"]


@pytest.mark.parametrize(("room", "fits"), [(0, True), (GIB, False), ({0: 0}, True), ({0: GIB}, False)])
def test_room(room: int | dict[int, int], fits: bool) -> None:
    zones = [zone(0, "Normal", 1 << 20)]
    args: dict[str, Any] = {"pages_bytes": {0: 3 * GIB}, "room_bytes": room}
    if fits:
        assert wm.scale_factor_for(GIB // 4, zones, 67584, **args)
    else:
        with pytest.raises(wm.WatermarkError):
            wm.scale_factor_for(GIB // 4, zones, 67584, **args)


def test_larger_pages_count_in_bytes() -> None:
    zones = [zone(0, "Normal", 1 << 16)]
    plan = wm.scale_factor_for(GIB // 4, zones, 67584, page_bytes=65536)
    assert plan.scale_factor == 625
    assert plan.predicted_bytes == GIB // 4


@pytest.mark.parametrize("asked", [-1])
def test_nonsense(asked: int) -> None:
    with pytest.raises(ValueError, match="negative"):
        wm.scale_factor_for(asked, [zone(0, "Normal", 1 << 20)], 67584)


def test_no_zone(tmp_path: Path) -> None:
    assert wm.read_zones(str(tmp_path)) == []
    with pytest.raises(ValueError, match="no populated zone"):
        wm.scale_factor_for(1, [zone(0, "Movable", 0)], 67584)


@pytest.mark.parametrize(
    ("version", "factor"),
    [((4, 18), 1000), ((5, 16), 1000), ((5, 17), 3000), ((6, 1), 3000), ((6, 18), 3000)],
)
def test_largest_factor(version: tuple[int, int], factor: int) -> None:
    assert wm.max_factor_for(version) == factor


def test_reading(tmp_path: Path) -> None:
    text = (
        "Node 0, zone   Normal\n  per-node stats\n      nr_min 7\n  pages free     3840\n        min      51\n"
        "        low      63\n        high     75\n        managed  3840\n  pagesets\n    cpu: 0\n"
        "              high: 9\n"
        "              low 99\nNode 2, zone  Movable\n        boost    5\n        min      37\n        low      37\n"
        "        high     37\n        managed  0\n"
    )
    put(tmp_path, "/proc/zoneinfo", text)
    put(tmp_path, "/proc/sys/vm/min_free_kbytes", "204\n")
    zones = wm.read_zones(str(tmp_path))
    assert zones == [wm.Zone(0, "Normal", 3840, 51, 63, 75), wm.Zone(2, "Movable", 0, 37, 37, 37, 5)]
    assert wm.distance(zones) == 12 * 4096
    assert wm.read_min_free_kbytes(str(tmp_path)) == 204
    assert wm.movable_is_capped(zones, 204)
    with pytest.raises(ValueError, match="managed"):
        wm.parse_zones("Node 0, zone Normal\n min 1\n low 2\n high 3\n")


def test_min_free_kbytes_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="min_free_kbytes"):
        wm.read_min_free_kbytes(str(tmp_path))
