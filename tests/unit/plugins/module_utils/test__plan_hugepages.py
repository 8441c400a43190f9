# SPDX-License-Identifier: GPL-3.0-or-later
"""Huge pages of the plan: splits, boot arguments, methods, and what is refused with which numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from plan_host import GIB_PAGES, make_host, plan, reasons, refused, zone
from support import put

SECTION = {"sections": ["hugepages"]}
OLD = "5.10.0-28-amd64"


def pools(root: Path, *rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The hugepages section for the pools ROWS."""
    section: dict[str, Any] = plan(root, {"hugepages": list(rows), **more}, **SECTION)["plan"]["sections"][
        "hugepages"
    ]
    return section


@pytest.mark.parametrize(
    ("pool", "nodes", "tokens"),
    [
        ({"size": "2M", "count": 500}, {"0": 250, "1": 250}, "0:250,1:250"),
        ({"size": "2M", "count": 501}, {"0": 251, "1": 250}, "0:251,1:250"),
        ({"size": "2M", "count": 1}, {"0": 1, "1": 0}, "0:1"),
        ({"size": "2M", "count": "40", "nodes": "all"}, {"0": 20, "1": 20}, "0:20,1:20"),
        ({"size": "2M", "count": 7, "nodes": [1]}, {"1": 7}, "1:7"),
        ({"size": "2M", "count": 7, "nodes": ["1", 0]}, {"0": 4, "1": 3}, "0:4,1:3"),
        ({"size": "2M", "nodes": {"0": 300, "1": 200}}, {"0": 300, "1": 200}, "0:300,1:200"),
        ({"size": "2M", "nodes": {"1": "8"}}, {"1": 8}, "1:8"),
        ({"size": "2M", "nodes": {"0": 0, "1": 8}}, {"0": 0, "1": 8}, "1:8"),
        ({"size": "2048kB", "bytes": 4194305, "nodes": [0]}, {"0": 3}, "0:3"),
        ({"size": "2MB", "bytes": "1G", "nodes": [0]}, {"0": 512}, "0:512"),
        ({"size": "2M", "count": 0}, {"0": 0, "1": 0}, "0"),
    ],
)
def test_a_pool_is_split_as_asked(
    tmp_path: Path, pool: dict[str, Any], nodes: dict[str, int], tokens: str
) -> None:
    section = pools(make_host(tmp_path), pool)
    assert section["pools"] == [{"size": "2M", "size_kb": 2048, "total": sum(nodes.values()), "nodes": nodes}]
    assert section["tokens"] == ["default_hugepagesz=2M", "hugepagesz=2M", f"hugepages={tokens}"]
    assert section["method"] == "cmdline" and section["units"] == {}


def test_sizes_keep_their_order_and_pools_of_one_size_add_up(tmp_path: Path) -> None:
    section = pools(
        make_host(tmp_path),
        {"size": "1G", "nodes": {"1": 1}},
        {"size": "2M", "count": 20},
        {"size": "2M", "nodes": {"0": 5}},
    )
    assert section["tokens"] == [
        "default_hugepagesz=1G", "hugepagesz=1G", "hugepages=1:1", "hugepagesz=2M", "hugepages=0:15,1:10",
    ]  # fmt: skip
    assert section["default_size"] == "1G" and [pool["total"] for pool in section["pools"]] == [1, 25]


def test_another_default_size_is_told(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    result = plan(root, {"hugepages": [{"size": "1G", "nodes": {"1": 1}}]}, **SECTION)
    assert reasons(result["notes"]) == ["default_size_changes"]
    assert plan(root, {"hugepages": [{"size": "2M", "count": 2}]}, **SECTION)["notes"] == []


def test_one_node_gets_a_plain_count_on_any_kernel(tmp_path: Path) -> None:
    root = make_host(tmp_path, {3: ("0-3", 4_000_000)}, release=OLD, zones="")
    section = pools(root, {"size": "2M", "nodes": {"3": 64}}, hugepages_method="cmdline")
    assert section["tokens"][-1] == "hugepages=64" and section["method"] == "cmdline"


def test_a_node_without_memory_gets_no_share(tmp_path: Path) -> None:
    root = make_host(tmp_path, {0: ("0-1", 0), 1: ("2", 2_000_000), 2: ("3", 2_000_000)}, zones="")
    put(root, "/sys/devices/system/node/has_memory", "1-2\n")
    put(root, "/sys/devices/system/node/has_normal_memory", "1-2\n")
    assert pools(root, {"size": "2M", "count": 64})["pools"][0]["nodes"] == {"1": 32, "2": 32}


@pytest.mark.parametrize(
    ("node", "reason"), [(0, "node_without_memory"), (3, "not_normal_memory"), (7, "no_such_node")]
)
def test_nodes_that_take_no_page_are_refused(tmp_path: Path, node: int, reason: str) -> None:
    root = make_host(tmp_path, {0: ("0-1", 0), 1: ("2-3", 2_000_000), 3: ("", 2_000_000)}, zones="")
    put(root, "/sys/devices/system/node/has_memory", "1,3\n")
    put(root, "/sys/devices/system/node/has_normal_memory", "1\n")
    rows = refused(root, {"hugepages": [{"size": "2M", "nodes": {str(node): 4}}]}, **SECTION)
    assert [(row["reason"], row["node"], row["asked"]) for row in rows] == [(reason, node, 4)]
    assert plan(root, {"hugepages": [{"size": "2M", "nodes": {str(node): 0, "1": 1}}]}, **SECTION)


def test_pages_above_the_floor_are_refused_per_node_with_numbers(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    rows = refused(root, {"hugepages": [{"size": "2M", "nodes": {"0": 600, "1": 4000}}]}, **SECTION)
    assert [(row["reason"], row["node"]) for row in rows] == [
        ("pages_exceed_node", 0),
        ("pages_exceed_node", 1),
    ]
    assert rows[0]["asked"] == 600 << 21 and rows[0]["available"] == 1_490_000 * 1024 - (384 << 20)
    fits = rows[0]["available"] >> 21
    assert plan(root, {"hugepages": [{"size": "2M", "nodes": {"0": fits}}]}, **SECTION)
    assert refused(root, {"hugepages": [{"size": "2M", "nodes": {"0": fits + 1}}]}, **SECTION)
    assert plan(
        root, {"hugepages": [{"size": "2M", "nodes": {"0": 600}}], "reserve_floor_bytes": "100M"}, **SECTION
    )


def test_sizes_share_the_memory_of_a_node(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    one = {"size": "1G", "nodes": {"1": 1}}
    assert pools(root, one, {"size": "2M", "nodes": {"1": 900}})
    rows = refused(root, {"hugepages": [one, {"size": "2M", "nodes": {"1": 1100}}]}, **SECTION)
    assert reasons(rows) == ["pages_exceed_node"] and "1 page of 1G and 1100 pages of 2M" in rows[0]["text"]


def test_pages_that_others_hold_count(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    put(root, "/sys/devices/system/node/node1/hugepages/hugepages-1048576kB/nr_hugepages", "2\n")
    rows = refused(root, {"hugepages": [{"size": "2M", "nodes": {"1": 900}}]}, **SECTION)
    assert reasons(rows) == ["pages_exceed_node"] and rows[0]["foreign_bytes"] == 2 << 30


def test_the_floor_grows_with_the_node(tmp_path: Path) -> None:
    root = make_host(tmp_path, {0: ("0-3", 64 << 20)}, zones="")
    budget = pools(root, {"size": "2M", "count": 1024})["budget"]["0"]
    assert budget["floor_bytes"] == (64 << 30) // 20


@pytest.mark.parametrize(("count", "fits"), [(1, True), (2, False)])
def test_gigantic_pages_need_aligned_slots_and_one_to_spare(tmp_path: Path, count: int, fits: bool) -> None:
    """Node 1 has three slots above 4 GiB; the top one holds its memory map, one is spared for the kernel."""
    intent = {"hugepages": [{"size": "1G", "nodes": {"1": count}}], "reserve_floor_bytes": 0}
    if fits:
        assert plan(make_host(tmp_path), intent, **SECTION)
        return
    rows = refused(make_host(tmp_path), intent, **SECTION)
    assert [(row["reason"], row["slots"], row["available"]) for row in rows] == [("no_aligned_slots", 2, 1)]


@pytest.mark.parametrize(
    ("zones", "available"),
    [
        (zone(0, "Normal", 4 * GIB_PAGES, 8 * GIB_PAGES), 6),
        (zone(0, "Normal", 4 * GIB_PAGES, 8 * GIB_PAGES + GIB_PAGES // 2), 7),
        (zone(0, "Normal", 4 * GIB_PAGES + 1, 8 * GIB_PAGES - 1), 5),
        (zone(0, "DMA", 1, 4095, 3998) + zone(0, "DMA32", 4096, 8 * GIB_PAGES - 4096), 5),
        (zone(0, "Normal", 4 * GIB_PAGES, 8 * GIB_PAGES, 7 * GIB_PAGES), 4),
        (zone(0, "Normal", 0, 8 * GIB_PAGES), 5),
        ("", 6),
    ],
)
def test_slots_by_the_shape_of_the_memory(tmp_path: Path, zones: str, available: int) -> None:
    root = make_host(tmp_path, {0: ("0-3", 8 << 20)}, zones=zones)
    intent = {"hugepages": [{"size": "1G", "count": 9}], "reserve_floor_bytes": 0}
    row = next(row for row in refused(root, intent, **SECTION) if row["reason"] == "no_aligned_slots")
    assert row["available"] == available


def test_the_map_of_physical_memory_decides_where_it_is_readable(tmp_path: Path) -> None:
    root = make_host(
        tmp_path, {0: ("0-3", 8 << 20)}, zones=zone(0, "Normal", 4 * GIB_PAGES, 8 * GIB_PAGES, 7 * GIB_PAGES)
    )
    put(
        root,
        "/proc/iomem",
        "100000000-1bfffffff : System RAM\n  180000000-18fffffff : Crash kernel\n200000000-2ffffffff : System RAM\n",
    )
    intent = {"hugepages": [{"size": "1G", "count": 9}], "reserve_floor_bytes": 0}
    row = next(row for row in refused(root, intent, **SECTION) if row["reason"] == "no_aligned_slots")
    assert row["slots"] == 7 - 1 - 1


def test_a_size_that_the_kernel_lacks_is_not_blamed_on_the_cpu(tmp_path: Path) -> None:
    """With CONFIG_CONTIG_ALLOC the pool would be there without an argument."""
    root = make_host(tmp_path, sizes_kb=(2048,))
    put(root, "/boot/config-6.1.0-25-amd64", "CONFIG_CONTIG_ALLOC=y\n")
    rows = refused(root, {"hugepages": [{"size": "1G", "nodes": {"1": 1}}]}, **SECTION)
    assert rows[0]["reason"] == "page_size_unsupported" and rows[0]["cause"] == "pool_directory_missing"
    assert "although the CPU has the flag pdpe1gb" in rows[0]["text"] and "sizes it has: 2M" in rows[0]["text"]


@pytest.mark.parametrize("config", ["# CONFIG_CONTIG_ALLOC is not set\n", None])
def test_a_size_that_only_the_command_line_makes_is_planned(tmp_path: Path, config: str | None) -> None:
    root = make_host(tmp_path, sizes_kb=(2048,))
    if config:
        put(root, "/boot/config-6.1.0-25-amd64", config)
    result = plan(root, {"hugepages": [{"size": "1G", "nodes": {"1": 1}}]}, **SECTION)
    assert "hugepagesz=1G" in result["plan"]["boot"]["tokens"]
    assert "page_size_unproven" in reasons(result["notes"])


@pytest.mark.parametrize("size", ["64K", "32M", "512M", "16G"])
def test_other_sizes_than_the_host_lists_are_refused_with_the_list(tmp_path: Path, size: str) -> None:
    rows = refused(make_host(tmp_path), {"hugepages": [{"size": size, "count": 1}]}, **SECTION)
    assert rows[0]["cause"] == "pool_directory_missing" and "sizes it has: 2M, 1G" in rows[0]["text"]


@pytest.mark.parametrize(
    ("arch", "size", "list_"),
    [("s390x", "2M", "1M, 2G"), ("x86_64", "64K", "2M, 1G"), ("ppc64le", "4M", "2M, 16M, 1G, 16G"),
     ("s390x", "1M", None), ("aarch64", "32M", None), ("sparc64", "8M", None)],
)  # fmt: skip
def test_sizes_of_the_architecture_where_the_host_lists_none(
    tmp_path: Path, arch: str, size: str, list_: str | None
) -> None:
    put(tmp_path, "/sys/devices/system/cpu/online", "0-1\n")
    put(tmp_path, "/proc/sys/kernel/arch", f"{arch}\n")
    intent = {"hugepages": [{"size": size, "count": 1}]}
    if list_ is None:
        assert "page_size_unproven" in reasons(plan(tmp_path, intent, **SECTION)["notes"])
        return
    rows = refused(tmp_path, intent, **SECTION)
    assert rows[0]["cause"] == "not_of_architecture" and f"{arch} has {list_}" in rows[0]["text"]


def test_a_size_that_the_cpu_lacks_is_said_to_be(tmp_path: Path) -> None:
    root = make_host(tmp_path, sizes_kb=(2048,), flags="pse lm")
    rows = refused(root, {"hugepages": [{"size": "1G", "nodes": {"1": 1}}]}, **SECTION)
    assert rows[0]["cause"] == "cpu_flag_missing" and "pdpe1gb" in rows[0]["text"]


@pytest.mark.parametrize(
    "place", ["/lib/modules/{}/modules.dep", "/boot/vmlinuz-{}", "/usr/lib/modules/{}/vmlinuz"]
)
def test_one_old_kernel_among_the_installed_ones_is_enough(tmp_path: Path, place: str) -> None:
    root = make_host(tmp_path)
    put(root, place.format(OLD), "")
    pool = {"size": "2M", "nodes": {"0": 30, "1": 20}}
    result = plan(root, {"hugepages": [pool, {"size": "1G", "nodes": {"1": 1}}]}, **SECTION)
    section = result["plan"]["sections"]["hugepages"]
    assert section["method"] == "unit" and section["tokens"] == ["hugepagesz=1G"]
    unit = section["units"]["firsttouch-hugepages.service"]
    assert "pages 0 2048 30;" in unit and "pages 1 2048 20;" in unit and "pages 1 1048576 1;" in unit
    assert reasons(result["notes"]) == ["node_format_unsupported"] and OLD in result["notes"][0]["text"]
    assert [row["name"] for row in result["units"]] == ["firsttouch-hugepages.service"]
    rows = refused(root, {"hugepages": [pool], "hugepages_method": "cmdline"}, **SECTION)
    assert reasons(rows) == ["node_format_unsupported"] and rows[0]["kernels"] == [OLD]


def test_modules_that_a_package_left_behind_are_no_kernel(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    put(root, f"/lib/modules/{OLD}/modules.dep", "")
    put(root, "/boot/vmlinuz-6.1.0-25-amd64", "")
    intent = {"hugepages": [{"size": "2M", "count": 4}]}
    assert plan(root, intent, **SECTION)["plan"]["sections"]["hugepages"]["method"] == "cmdline"


def test_a_kernel_override_stands_for_all(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    intent = {"hugepages": [{"size": "2M", "count": 4}]}
    assert plan(root, intent, kernel=OLD, **SECTION)["plan"]["sections"]["hugepages"]["method"] == "unit"


def test_a_backport_is_believed_when_it_is_seen_to_work(tmp_path: Path) -> None:
    line = "ro default_hugepagesz=2M hugepagesz=2M hugepages=0:30,1:20"
    root = make_host(tmp_path, release="5.14.0-427.el9.x86_64", cmdline=line)
    intent = {"hugepages": [{"size": "2M", "nodes": {"0": 30, "1": 20}}]}
    assert plan(root, intent, **SECTION)["plan"]["sections"]["hugepages"]["method"] == "unit"
    for node, count in ((0, 30), (1, 20)):
        put(
            root, f"/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages", f"{count}\n"
        )
    assert plan(root, intent, **SECTION)["plan"]["sections"]["hugepages"]["method"] == "cmdline"


def test_a_backport_is_not_believed_without_a_trace_of_it(tmp_path: Path) -> None:
    root = make_host(tmp_path, release="5.14.0-427.el9.x86_64", cmdline="ro hugepagesz=2M hugepages=50")
    put(root, "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages", "50\n")
    assert pools(root, {"size": "2M", "count": 50})["method"] == "unit"


def test_power_kernels_take_no_node_format(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    put(root, "/proc/sys/kernel/arch", "ppc64le\n")
    assert pools(root, {"size": "2M", "count": 4})["method"] == "unit"


def test_unit_on_request(tmp_path: Path) -> None:
    section = pools(make_host(tmp_path), {"size": "2M", "count": 4}, hugepages_method="unit")
    assert section["method"] == "unit" and section["tokens"] == [] and section["units"]


@pytest.mark.parametrize(
    "value",
    [
        "max", 5, True, {"size": "2M", "count": 1}, [5], [{}], [{"size": "2M"}], [{"count": 5}],
        [{"size": "2M", "count": "max"}], [{"size": "2M", "count": -1}], [{"size": "2M", "count": 1.5}],
        [{"size": "2M", "count": True}], [{"size": "2M", "count": 1, "bytes": 5}], [{"size": "2M", "bytes": "some"}],
        [{"size": 2, "count": 1}], [{"size": "2", "count": 1}], [{"size": "3M", "count": 1}],
        [{"size": "0M", "count": 1}], [{"size": "2M", "count": 1, "node": 0}], [{"sise": "2M", "count": 1}],
        [{"size": "2M", "count": 1, "nodes": []}], [{"size": "2M", "count": 1, "nodes": [0, 0]}],
        [{"size": "2M", "count": 1, "nodes": "0-1"}], [{"size": "2M", "count": 1, "nodes": ["a"]}],
        [{"size": "2M", "nodes": {}}], [{"size": "2M", "nodes": {"0": "max"}}],
        [{"size": "2M", "count": 5, "nodes": {"0": 5}}], [{"size": "2M", "count": None}],
    ],
)  # fmt: skip
def test_what_is_no_pool_is_refused_by_name(tmp_path: Path, value: Any) -> None:
    rows = refused(make_host(tmp_path), {"hugepages": value}, **SECTION)
    assert [(row["reason"], row["variable"]) for row in rows] == [("bad_value", "firsttouch_hugepages")]


@pytest.mark.parametrize(
    ("name", "value"),
    [("hugepages_method", "boot"), ("reserve_floor_bytes", "much"), ("reserve_floor_bytes", -1)],
)
def test_what_is_no_option_is_refused_by_name(tmp_path: Path, name: str, value: Any) -> None:
    rows = refused(make_host(tmp_path), {"hugepages": [{"size": "2M", "count": 4}], name: value}, **SECTION)
    assert ("bad_value", f"firsttouch_{name}") in [(row["reason"], row["variable"]) for row in rows]


def test_every_refusal_is_told_at_once(tmp_path: Path) -> None:
    rows = refused(
        make_host(tmp_path),
        {
            "hugepages": [
                {"size": "2M", "nodes": {"0": 9000, "5": 1}},
                {"size": "1G", "nodes": {"1": 2}},
                {"size": "x"},
            ]
        },
        **SECTION,
    )
    assert sorted(set(reasons(rows))) == [
        "bad_value",
        "no_aligned_slots",
        "no_such_node",
        "pages_exceed_node",
    ]


def test_unknown_memory_is_told_and_not_taken_for_enough(tmp_path: Path) -> None:
    put(tmp_path, "/sys/devices/system/node/online", "0-1\n")
    put(tmp_path, "/sys/devices/system/node/has_memory", "0-1\n")
    result = plan(tmp_path, {"hugepages": [{"size": "2M", "count": 4}]}, **SECTION)
    assert "memory_unknown" in reasons(result["notes"]) and "page_size_unproven" in reasons(result["notes"])
    assert result["plan"]["sections"]["hugepages"]["method"] == "unit"


def test_arguments_that_a_kernel_would_drop_are_no_plan(tmp_path: Path) -> None:
    """A line that is full keeps nothing of what is appended to it."""
    root = make_host(tmp_path, cmdline="ro " + " ".join(f"foreign.{n}=1" for n in range(160)))
    rows = refused(root, {"hugepages": [{"size": "2M", "count": 4}]}, **SECTION)
    assert reasons(rows) == ["dropped_by_kernel"] and rows[0]["kernel"] == "6.1.0-25-amd64"


def test_memory_that_the_running_line_cuts_off_is_reckoned_with(tmp_path: Path) -> None:
    root = make_host(tmp_path, cmdline="ro mem=2G")
    rows = refused(root, {"hugepages": [{"size": "2M", "nodes": {"0": 400, "1": 900}}]}, **SECTION)
    assert reasons(rows) == ["memory_guard"] and "mem=" in rows[0]["text"]
