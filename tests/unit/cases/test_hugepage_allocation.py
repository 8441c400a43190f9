# SPDX-License-Identifier: GPL-3.0-or-later
"""The recorded huge page shortfalls, through hugepages_info; then neighbours that were not recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from support import CASES, case_expected, put, run_module, sysroot_from_tsv

POOLS = "/sys/kernel/mm/hugepages"
NODE = "/sys/devices/system/node"


def read(tmp_path: Path, case: str = "", **args: Any) -> dict[str, Any]:
    """hugepages_info on the files of CASE with the request of CASE, or with ARGS."""
    folder = CASES / case
    if case:
        sysroot_from_tsv(tmp_path, folder / "sysfs.tsv")
        for name, path in (
            ("cmdline", "/proc/cmdline"),
            ("cpuinfo", "/proc/cpuinfo"),
            ("mounts", "/proc/mounts"),
        ):
            if (folder / name).exists():
                put(tmp_path, path, (folder / name).read_text())
        if not args and (folder / "request.yml").exists():
            args = yaml.safe_load((folder / "request.yml").read_text())
    result = run_module("hugepages_info", {"sysroot": str(tmp_path), **args})
    assert not result.get("failed"), result
    return result


def row(result: dict[str, Any], size: str = "2M") -> dict[str, Any]:
    return next(line for line in result["results"] if line["size"] == size)


def pool(root: Path, total: int, kb: int = 2048, node: int | None = None, **counters: int) -> None:
    base = POOLS if node is None else f"{NODE}/node{node}/hugepages"
    put(root, f"{base}/hugepages-{kb}kB/nr_hugepages", f"{total}\n")
    for name, value in counters.items():
        put(root, f"{base}/hugepages-{kb}kB/{name}_hugepages", f"{value}\n")


def test_all_on_one_node(tmp_path: Path) -> None:
    result = read(tmp_path, "hp-all-on-one-node")
    want = case_expected("hp-all-on-one-node")
    assert want == {
        "verdict": result["verdict"],
        "nodes": row(result)["nodes"],
        "total_matches": row(result)["total_matches"],
    }
    assert result["reason"] == "wrong_node"


def test_boot_shortfall_on_one_node(tmp_path: Path) -> None:
    result = read(tmp_path, "hp-boot-shortfall-one-node")
    want = case_expected("hp-boot-shortfall-one-node")
    line = row(result)
    assert set(line["even_split"].values()) == {want["even_split"]}
    assert want == {
        "verdict": result["verdict"],
        "asked": line["asked"],
        "got": line["got"],
        "nodes": {node: pages["got"] for node, pages in line["nodes"].items()},
        "even_split": line["even_split"]["1"],
    }
    assert result["reason"] == "allocation_short"


def test_surplus_counted_as_reserved(tmp_path: Path) -> None:
    result = read(tmp_path, "hp-surplus-counted-as-reserved")
    line = row(result)
    assert case_expected("hp-surplus-counted-as-reserved") == {
        "verdict": result["verdict"],
        "asked": line["asked"],
        "persistent": line["persistent"],
        "surplus": line["surplus"],
    }
    assert result["reason"] == "surplus_counted"
    assert result["pools"]["2048kB"]["available"] == 1022


def test_repeated_count(tmp_path: Path) -> None:
    want = case_expected("hp-args-repeated-count")
    result = read(tmp_path, "hp-args-repeated-count", pools=[{"size": "2M", "count": 5}])
    assert (result["verdict"], result["reason"]) == (want["verdict_for_request_5"], want["reason_class"])
    assert result["pools"]["2048kB"]["total"] == want["sysfs_2M"]
    assert read(tmp_path, pools=[{"size": "2M", "count": 2}])["verdict"] == "pass"


def test_flag_present_but_the_kernel_lacks_1g(tmp_path: Path) -> None:
    want = case_expected("hp-flag-present-kernel-lacks-1g")
    result = read(tmp_path, "hp-flag-present-kernel-lacks-1g")
    assert want == {
        "verdict": result["verdict"],
        "reason_class": result["reason"],
        "cpu_has_pdpe1gb": result["cpu_has_pdpe1gb"],
    }
    assert "hugepages-1048576kB" in result["message"] and "lacks" not in result["message"]


def test_no_mount_for_a_pool(tmp_path: Path) -> None:
    want = case_expected("hugetlbfs-no-mount-for-pool")
    result = read(tmp_path, "hugetlbfs-no-mount-for-pool")
    assert want == {
        "verdict": result["verdict"],
        "reason_class": result["reason"],
        "pool_2M": row(result)["status"],
        "pool_1G": row(result, "1G")["status"],
    }


def test_mount_line_spellings(tmp_path: Path) -> None:
    case = "hugetlbfs-mount-line-spellings"
    put(tmp_path, "/proc/mounts", (CASES / case / "mounts").read_text())
    put(tmp_path, "/proc/meminfo", (CASES / case / "meminfo").read_text())
    mounts = read(tmp_path)["mounts"]
    want = case_expected(case)["rows"]
    assert [{key: mount[key] for key in line} for mount, line in zip(mounts, want)] == want
    assert len(mounts) == len(want)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({"size": "2M", "node": 3, "count": 512}, "no_such_node"),
        ({"size": "2M", "nodes": {"0": 512, "1": 512}}, "node_without_memory"),
    ],
)
def test_pages_on_a_node_that_cannot_hold_them(tmp_path: Path, request_: dict[str, Any], reason: str) -> None:
    sysroot_from_tsv(tmp_path, CASES / "hp-args-memoryless-or-missing-node" / "A.tsv")
    pool(tmp_path, 1024)
    result = read(tmp_path, pools=[request_])
    assert (result["verdict"], result["reason"]) == ("fail", reason)


# Neighbours


def two_pools(root: Path, first: int, second: int) -> None:
    pool(root, first + second)
    pool(root, first, node=0)
    pool(root, second, node=1)


def test_exact_pools_pass_per_node(tmp_path: Path) -> None:
    two_pools(tmp_path, 300, 200)
    result = read(tmp_path, pools=[{"size": "2048kB", "nodes": {"0": 300, "1": 200}}])
    assert result["verdict"] == "pass" and "reason" not in result
    split = read(tmp_path, pools=[{"size": "2M", "count": 500, "nodes": "all"}])
    assert (split["verdict"], split["reason"]) == ("fail", "wrong_node")
    one = read(tmp_path, pools=[{"size": "2M", "count": 300, "node": 0}])
    assert (one["verdict"], one["reason"]) == ("fail", "more_than_asked")
    assert row(one)["nodes"]["1"] == {"asked": 0, "got": 200}


@pytest.mark.parametrize("counted", [{}, {0: 30}])
def test_nodes_without_counters_are_not_evaluated(tmp_path: Path, counted: dict[int, int]) -> None:
    put(tmp_path, f"{NODE}/online", "0-1")
    put(tmp_path, f"{NODE}/has_memory", "0-1")
    pool(tmp_path, 100)
    for node, pages in counted.items():
        pool(tmp_path, pages, node=node)
    result = read(tmp_path, pools=[{"size": "2M", "nodes": {"0": 30, "1": 70}}])
    assert (result["verdict"], result["reason"]) == ("not_evaluated", "unreadable")
    assert row(result)["nodes"]["1"] == {"asked": 70, "got": None}
    assert read(tmp_path, pools=[{"size": "2M", "count": 100}])["verdict"] == "pass"
    assert read(tmp_path, pools=[{"size": "2M", "count": 99}])["verdict"] == "fail"


def test_a_node_without_counters_has_no_pages_where_the_others_have_all(tmp_path: Path) -> None:
    put(tmp_path, f"{NODE}/online", "0-1")
    pool(tmp_path, 100)
    pool(tmp_path, 100, node=0)
    result = read(tmp_path, pools=[{"size": "2M", "nodes": {"0": 50, "1": 50}}])
    assert (result["verdict"], result["reason"]) == ("fail", "wrong_node")
    assert read(tmp_path, pools=[{"size": "2M", "nodes": {"0": 100, "1": 0}}])["verdict"] == "pass"


@pytest.mark.parametrize(("node", "verdict"), [(0, "pass"), (1, "fail")])
def test_all_pages_of_a_kernel_without_numa_are_on_node_0(tmp_path: Path, node: int, verdict: str) -> None:
    put(tmp_path, "/sys/devices/system/cpu/online", "0-3")
    pool(tmp_path, 100)
    assert read(tmp_path, pools=[{"size": "2M", "count": 100, "node": node}])["verdict"] == verdict
    assert read(tmp_path, pools=[{"size": "2M", "count": 99, "node": 0}])["verdict"] == "fail"


@pytest.mark.parametrize("got", [99, 101])
def test_no_tolerance(tmp_path: Path, got: int) -> None:
    pool(tmp_path, got)
    result = read(tmp_path, pools=[{"size": "2M", "count": 100}])
    assert (result["verdict"], row(result)["got"]) == ("fail", got)


def test_surplus_of_one_node_only(tmp_path: Path) -> None:
    two_pools(tmp_path, 64, 64)
    pool(tmp_path, 64, node=1, surplus=8)
    result = read(
        tmp_path, pools=[{"size": "2M", "node": 0, "count": 64}, {"size": "2M", "node": 1, "count": 64}]
    )
    assert result["verdict"] == "fail"
    assert row(result)["nodes"]["1"] == {"asked": 64, "got": 56}


def test_surplus_on_top_of_enough_is_no_fault(tmp_path: Path) -> None:
    pool(tmp_path, 110, surplus=10)
    assert read(tmp_path, pools=[{"size": "2M", "count": 100}])["verdict"] == "pass"


@pytest.mark.parametrize(
    ("cmdline", "asked", "reason"),
    [
        ("ro quiet", 8, "not_on_command_line"),
        ("ro -- hugepages=8", 8, "after_double_dash"),
        ("hugepages=6", 8, "command_line_differs"),
        ("hugepages=8", 8, "allocation_short"),
        ("hugepagesz=2M hugepages=4 hugepagesz=2M hugepages=8", 8, "hugepagesz_specified_twice"),
        (
            "hugepagesz=1G hugepages=4 hugepagesz=1G hugepages=8 hugepagesz=2M hugepages=6",
            10,
            "command_line_differs",
        ),
        ("hugepagesz=2M hugepages=0:4,7:4", 8, "no_such_node"),
    ],
)
def test_the_cause_is_looked_for_on_the_command_line(
    tmp_path: Path, cmdline: str, asked: int, reason: str
) -> None:
    put(tmp_path, f"{NODE}/online", "0-1")
    put(tmp_path, "/proc/sys/kernel/osrelease", "6.1.0")
    put(tmp_path, "/proc/cmdline", cmdline)
    two_pools(tmp_path, 1, 1)
    result = read(tmp_path, pools=[{"size": "2M", "count": asked}])
    assert (result["verdict"], result["reason"]) == ("fail", reason), result["message"]


@pytest.mark.parametrize(
    ("cmdline", "reason"),
    [("quiet", "wrong_node"), ("hugepagesz=2M hugepages=0:70,1:40", "command_line_differs")],
)
def test_the_right_number_on_the_wrong_nodes(tmp_path: Path, cmdline: str, reason: str) -> None:
    put(tmp_path, "/proc/cmdline", cmdline)
    two_pools(tmp_path, 70, 40)
    result = read(tmp_path, pools=[{"size": "2M", "nodes": {"0": 55, "1": 55}}])
    assert (result["verdict"], result["reason"]) == ("fail", reason)


def test_the_node_format_on_an_old_kernel(tmp_path: Path) -> None:
    put(tmp_path, "/proc/sys/kernel/osrelease", "5.10.0-30-amd64")
    put(tmp_path, "/proc/cmdline", "hugepagesz=2M hugepages=0:40,1:40")
    two_pools(tmp_path, 0, 0)
    result = read(tmp_path, pools=[{"size": "2M", "nodes": {"0": 40, "1": 40}}])
    assert (result["verdict"], result["reason"]) == ("fail", "node_format_unsupported")


def test_unreadable_counters_are_not_evaluated(tmp_path: Path) -> None:
    put(tmp_path, f"{POOLS}/hugepages-2048kB/nr_hugepages", "many")
    result = read(tmp_path, pools=[{"size": "2M", "count": 1}])
    assert (result["verdict"], result["reason"]) == ("not_evaluated", "unreadable")
    assert result["warnings_found"]


def test_an_even_split_over_nodes_that_are_not_known_is_not_evaluated(tmp_path: Path) -> None:
    put(tmp_path, f"{NODE}/online", "0-1")
    pool(tmp_path, 4)
    result = read(tmp_path, pools=[{"size": "2M", "count": 4, "nodes": "all"}])
    assert (result["verdict"], result["reason"]) == ("not_evaluated", "memory_not_known")


def test_nothing_requested_is_no_pass(tmp_path: Path) -> None:
    pool(tmp_path, 4)
    assert read(tmp_path)["verdict"] == "not_evaluated"


def test_zero_pages_of_a_size_the_kernel_lacks(tmp_path: Path) -> None:
    pool(tmp_path, 0)
    assert read(tmp_path, pools=[{"size": "1G", "count": 0}])["verdict"] == "pass"


def test_a_kernel_without_huge_pages(tmp_path: Path) -> None:
    put(tmp_path, "/proc/meminfo", "MemTotal: 1000 kB\n")
    result = read(tmp_path, pools=[{"size": "2M", "count": 1}])
    assert (result["verdict"], result["reason"], result["pools"]) == ("fail", "pool_directory_missing", {})


def test_a_kernel_without_sysfs_pools(tmp_path: Path) -> None:
    meminfo = "HugePages_Total: 8\nHugePages_Free: 8\nHugePages_Rsvd: 1\nHugepagesize: 262144 kB\n"
    put(tmp_path, "/proc/meminfo", meminfo)
    result = read(tmp_path, pools=[{"size": "256M", "count": 8}])
    assert (result["verdict"], result["pools"]["262144kB"]["available"]) == ("pass", 7)


def test_bytes_and_several_entries_of_one_size_add_up(tmp_path: Path) -> None:
    two_pools(tmp_path, 512, 512)
    request = [{"size": "2M", "bytes": 1 << 30, "nodes": [0, 1]}, {"size": "2M", "node": 1, "count": 256}]
    result = read(tmp_path, pools=request)
    assert row(result)["nodes"] == {"0": {"asked": 256, "got": 512}, "1": {"asked": 512, "got": 512}}


@pytest.mark.parametrize(
    "request_",
    [
        [{"size": "3X", "count": 1}],
        [{"size": "2M"}],
        [{"size": "2M", "count": 1, "bytes": 2097152}],
        [{"size": "2M", "bytes": 2097153}],
        [{"size": "2M", "count": -1}],
        [{"size": "2M", "count": 4, "nodes": {"0": 1}}],
        [{"size": "2M", "count": 4, "nodes": "some"}],
        [{"size": "2M", "count": 4, "nodes": []}],
        [{"size": "2M", "count": 4, "nodes": [0], "node": 0}],
        [{"size": "2M", "count": 4}, {"size": "2048kB", "node": 0, "count": 4}],
        [{"size": "2M", "nodes": {"zero": 4}}],
    ],
)
def test_a_request_that_says_nothing_clear_is_refused(tmp_path: Path, request_: list[dict[str, Any]]) -> None:
    pool(tmp_path, 4)
    result = run_module("hugepages_info", {"sysroot": str(tmp_path), "pools": request_})
    assert result["failed"] and result["reason"] == "invalid_value"


def test_counters_that_contradict_each_other_are_named(tmp_path: Path) -> None:
    two_pools(tmp_path, 10, 10)
    pool(tmp_path, 30, free=40)
    found = {line["reason"] for line in read(tmp_path)["warnings_found"]}
    assert found == {"node_pools_disagree", "more_free_than_total"}


MOUNTINFO = """\
22 27 0:21 / /proc rw,relatime shared:1 - proc proc rw
25 27 0:23 / /dev/hugepages rw,nosuid shared:2 - hugetlbfs hugetlbfs rw,gid=1001,mode=2770,min_size=1048576
26 27 0:24 / /mnt/over rw - hugetlbfs none rw,pagesize=0x40000000,size=50%
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
28 26 0:25 / /mnt/over rw - tmpfs tmpfs rw
29 27 0:26 / /mnt/hash\\043tag rw - hugetlbfs none rw,pagesize=1024M,size=lots
"""


def test_mountinfo_covered_mounts_and_odd_options(tmp_path: Path) -> None:
    put(tmp_path, "/proc/self/mountinfo", MOUNTINFO)
    put(tmp_path, "/proc/mounts", "hugetlbfs /not/read hugetlbfs rw 0 0\n")
    pool(tmp_path, 4, kb=1048576)
    result = read(tmp_path, pools=[{"size": "1G", "count": 4}], mount=True)
    first, over, odd = result["mounts"]
    assert (first["path"], first["mode"], first["gid"], first["min_size"]) == (
        "/dev/hugepages",
        "2770",
        1001,
        1 << 20,
    )
    assert (over["covered"], over["page_size"], over["size"]) == (True, 1 << 30, 2 << 30)
    assert (odd["path"], odd["covered"], odd["problem"]) == ("/mnt/hash#tag", False, "size=lots")
    assert result["mount_results"][0]["paths"] == ["/mnt/hash#tag"]
    assert result["verdict"] == "pass"


def test_only_a_covered_mount_is_no_mount(tmp_path: Path) -> None:
    put(tmp_path, "/proc/mounts", "none /huge hugetlbfs rw,pagesize=2M 0 0\ntmpfs /huge tmpfs rw 0 0\n")
    pool(tmp_path, 4)
    result = read(tmp_path, pools=[{"size": "2M", "count": 4}], mount=True)
    assert (result["verdict"], result["reason"]) == ("fail", "no_mount_for_size")
    assert "mounted over" in result["message"]


def test_a_mount_without_size_and_without_a_default_fits_nothing(tmp_path: Path) -> None:
    put(tmp_path, "/proc/mounts", "none /huge hugetlbfs rw 0 0\n")
    pool(tmp_path, 4)
    result = read(tmp_path, pools=[{"size": "2M", "count": 4}], mount=True)
    assert result["mounts"][0]["page_size"] is None
    assert result["reason"] == "no_mount_for_size"


IOMEM = """\
00001000-0009fbff : System RAM
00100000-bfffffff : System RAM
  01000000-02208d87 : Kernel code
  60000000-6fffffff : Crash kernel
100000000-27fffffff : System RAM
  1c0000000-1c00fffff : Reserved
"""
ZONEINFO = """\
Node 0, zone      DMA
        spanned  4095
        managed  3840
  start_pfn:           1
Node 0, zone   Normal
        spanned  1044480
        managed  900000
  start_pfn:           4096
Node 1, zone   Normal
        spanned  1572864
        managed  1500000
  start_pfn:           1048576
Node 1, zone  Movable
        spanned  0
        managed  0
  start_pfn:           0
"""


def test_aligned_slots_of_gigantic_pages(tmp_path: Path) -> None:
    put(tmp_path, "/proc/cpuinfo", "flags : fpu lm\n")
    put(tmp_path, "/proc/iomem", IOMEM)
    put(tmp_path, "/proc/zoneinfo", ZONEINFO)
    put(
        tmp_path,
        "/proc/buddyinfo",
        "Node 0, zone Normal 9 8 7 6 5 4 3 2 1 2 3\nNode 0, zone DMA 0 0 0 0 0 0 0 0 0 1 0\n",
    )
    pool(tmp_path, 0)
    pool(tmp_path, 0, kb=1048576)
    result = read(tmp_path)
    assert result["aligned_slots"] == {
        "1048576kB": {"0": {"total": 2, "occupied": 1}, "1": {"total": 6, "occupied": 1}}
    }
    assert result["free_blocks"] == {"2048kB": {"0": 9}}
    assert result["cpu_has_pdpe1gb"] is False


def test_memory_blocks_say_which_node_memory_is_of(tmp_path: Path) -> None:
    put(tmp_path, "/proc/cpuinfo", "flags : fpu lm\n")
    put(tmp_path, "/proc/iomem", IOMEM)
    put(tmp_path, "/sys/devices/system/memory/block_size_bytes", "40000000")
    for node, block in ((0, 0), (0, 1), (1, 2), (1, 4), (1, 5)):
        put(tmp_path, f"{NODE}/node{node}/memory{block}", "")
    pool(tmp_path, 0, kb=1048576)
    assert read(tmp_path)["aligned_slots"]["1048576kB"] == {
        "0": {"total": 1, "occupied": 1},
        "1": {"total": 3, "occupied": 0},
    }


def test_zeroed_iomem_is_not_known(tmp_path: Path) -> None:
    put(tmp_path, "/proc/cpuinfo", "flags : fpu lm\n")
    put(tmp_path, "/proc/iomem", "00000000-00000000 : System RAM\n  00000000-00000000 : Kernel code\n")
    put(tmp_path, "/proc/zoneinfo", ZONEINFO)
    pool(tmp_path, 0, kb=1048576)
    assert read(tmp_path)["aligned_slots"] == {}
