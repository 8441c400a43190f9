# SPDX-License-Identifier: GPL-3.0-or-later
"""The recorded hugetlbfs troubles, through hugepages_info; then neighbours that were not recorded.

Mount line spellings and the pool without a mount are in test_hugepage_allocation.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import verified_host as vh
from support import CASES, case_expected, put, run_module, sysroot_from_tsv

GIB = 1 << 30
STALE = "hugetlbfs-stale-files"
SIGBUS = "hugetlb-cgroup-limit-sigbus"
OURS = ["hugellm.w.{pid}.bin"]


def info(root: Path, *, check: bool = False, **args: Any) -> dict[str, Any]:
    result = run_module("hugepages_info", {"sysroot": str(root), **args}, check=check)
    assert not result.get("failed"), result
    return result


def stale_host(root: Path) -> list[Path]:
    """The mount with the files of the case, and its processes, which use nothing; return the files."""
    folder = CASES / STALE
    put(root, "/proc/meminfo", (folder / "meminfo").read_text())
    put(root, "/proc/mounts", "hugetlbfs /dev/hugepages hugetlbfs rw,relatime,pagesize=2M 0 0\n")
    for pid in (folder / "live_pids.txt").read_text().split():
        vh.uses(root, int(pid))
    rows = [line.split("\t") for line in (folder / "listing.tsv").read_text().splitlines()]
    return [vh.huge_file(root, f"/dev/hugepages/{name}", int(size)) for name, size in rows]


def names(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(row["path"].rpartition("/")[2] for row in rows)


@pytest.mark.parametrize("check", [True, False])
def test_stale_files(tmp_path: Path, check: bool) -> None:
    files = stale_host(tmp_path)
    found = info(tmp_path, check=check, stale_files=True, file_patterns=OURS)["stale_files"]
    want = case_expected(STALE)
    assert {**want, "foreign": sorted(want["foreign"])} == {
        "reclaimable": names(found["reclaimable"]),
        "reclaimable_pages": found["reclaimable_pages"]["2048kB"],
        "foreign": names(found["foreign"]),
        "kept": names(found["kept"]),
        "check_mode_deletes": [file.name for file in files if not file.exists()],
    }
    assert found["not_evaluated"] == {}


def test_a_file_of_ours_that_somebody_has_open_is_kept(tmp_path: Path) -> None:
    files = {file.name: file for file in stale_host(tmp_path)}
    vh.uses(tmp_path, 1, files["hugellm.w.4242.bin"], mapped=False)
    found = info(tmp_path, stale_files=True, file_patterns=OURS)["stale_files"]
    assert names(found["kept"]) == ["hugellm.w.4242.bin", "hugellm.w.777.bin"]
    assert (found["reclaimable"], found["reclaimable_pages"]) == ([], {})
    assert [row["held"] for row in found["kept"]] == [True, False]


def test_what_nobody_may_ask_is_kept_and_told(tmp_path: Path) -> None:
    stale_host(tmp_path)
    (tmp_path / "proc/777/maps").unlink()
    found = info(tmp_path, stale_files=True, file_patterns=OURS)["stale_files"]
    assert found["reclaimable"] == []
    assert found["not_evaluated"] == {"/proc/777/maps": "not_recorded"}
    assert {row["held"] for row in found["kept"] + found["foreign"]} == {None}


def test_without_the_option_no_process_is_asked(tmp_path: Path) -> None:
    stale_host(tmp_path)
    assert "stale_files" not in info(tmp_path)


def test_a_pattern_without_a_process_is_refused(tmp_path: Path) -> None:
    result = run_module(
        "hugepages_info", {"sysroot": str(tmp_path), "stale_files": True, "file_patterns": ["*.bin"]}
    )
    assert (result["failed"], result["reason"]) == (True, "invalid_value")


def need(root: Path, size: str = "2M", count: int = GIB) -> dict[str, Any]:
    row: dict[str, Any] = info(root, need={"size": size, "bytes": count})["need"]
    return row


@pytest.mark.parametrize("version", [2, 1])
def test_a_control_group_that_allows_nothing(tmp_path: Path, version: int) -> None:
    sysroot_from_tsv(tmp_path, CASES / SIGBUS / "sysfs.tsv")
    file = "/sys/fs/cgroup/pod/app/hugetlb.2MB.max"
    if version == 1:
        (tmp_path / file[1:]).unlink()
        sysroot_from_tsv(tmp_path, CASES / SIGBUS / "cgroup-v1.tsv")
        put(tmp_path, "/proc/self/cgroup", "9:hugetlb:/pod/app\n1:name=systemd:/x\n0::/\n")
        file = "/sys/fs/cgroup/hugetlb/pod/app/hugetlb.2MB.limit_in_bytes"
    put(tmp_path, "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "2048\n")
    row = need(tmp_path)
    assert case_expected(SIGBUS) == {
        "verdict": row["verdict"],
        "reason_class": row["reason"],
        "limit_bytes": row["limit_bytes"],
        "need_bytes": row["need_bytes"],
    }
    assert row["file"] == file
    assert "SIGBUS" in row["text"]


@pytest.mark.parametrize(
    ("files", "verdict", "reason", "limit"),
    [
        ({"pod/app/hugetlb.2MB.max": "max"}, "pass", None, None),
        ({"pod/app/hugetlb.2MB.max": GIB}, "pass", None, GIB),
        ({"pod/app/hugetlb.2MB.max": GIB - 1}, "fail", "hugetlb_cgroup_limit", GIB - 1),
        ({"pod/app/hugetlb.2MB.max": GIB, "pod/hugetlb.2MB.max": 5}, "fail", "hugetlb_cgroup_limit", 5),
        (
            {"pod/app/hugetlb.2MB.max": 2 * GIB, "pod/app/hugetlb.2MB.current": GIB + 1},
            "fail",
            "hugetlb_cgroup_limit",
            2 * GIB,
        ),
        ({"pod/app/hugetlb.2MB.rsvd.max": 0}, "fail", "hugetlb_cgroup_limit", 0),
        ({"pod/app/hugetlb.1GB.max": 0}, "pass", None, None),
    ],
)
def test_limits(
    tmp_path: Path, files: dict[str, Any], verdict: str, reason: str | None, limit: int | None
) -> None:
    vh.pool(tmp_path, 0, "2048kB", 512)
    vh.pool(tmp_path, 1, "2048kB", 0)
    put(tmp_path, "/proc/self/cgroup", "0::/pod/app\n")
    for name, value in files.items():
        put(tmp_path, f"/sys/fs/cgroup/{name}", f"{value}\n")
    row = need(tmp_path)
    assert (row["verdict"], row["reason"], row["limit_bytes"]) == (verdict, reason, limit)


@pytest.mark.parametrize(
    ("line", "files", "limit"),
    [
        ("9:hugetlb:/pod", {"hugetlb/pod/hugetlb.2MB.limit_in_bytes": 9223372036854771712}, None),
        ("9:hugetlb:/pod", {"hugetlb/pod/hugetlb.2MB.limit_in_bytes": 9223372036852678656}, None),
        ("4:cpu,hugetlb:/pod", {"cpu,hugetlb/pod/hugetlb.2MB.limit_in_bytes": 4096}, 4096),
        ("9:hugetlb:/docker/1f", {"hugetlb/hugetlb.2MB.limit_in_bytes": 2097152}, 2097152),
        ("0::/../../pod", {"pod/hugetlb.2MB.max": 7}, 7),
        ("0::/pod", {"unified/pod/hugetlb.2MB.max": 5, "pod/hugetlb.2MB.max": "max"}, 5),
        ("12:hugetlb_x:/pod\n0::/", {"hugetlb/pod/hugetlb.2MB.limit_in_bytes": 4}, None),
    ],
)
def test_limits_wherever_the_controller_is(
    tmp_path: Path, line: str, files: dict[str, Any], limit: int | None
) -> None:
    vh.pool(tmp_path, 0, "2048kB", 512)
    vh.pool(tmp_path, 1, "2048kB", 0)
    put(tmp_path, "/proc/self/cgroup", f"{line}\n")
    for name, value in files.items():
        put(tmp_path, f"/sys/fs/cgroup/{name}", f"{value}\n")
    row = need(tmp_path)
    assert (row["limit_bytes"], row["verdict"]) == (limit, "pass" if limit is None else "fail")


def test_reserved_pages_cannot_be_had(tmp_path: Path) -> None:
    vh.pool(tmp_path, 0, "2048kB", 512)
    vh.pool(tmp_path, 1, "2048kB", 0)
    put(tmp_path, "/proc/self/cgroup", "0::/\n")
    put(tmp_path, "/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "1\n")
    row = need(tmp_path)
    assert (row["verdict"], row["reason"], row["available_bytes"]) == ("fail", "pool_short", 511 << 21)


def test_unknown_is_not_enough(tmp_path: Path) -> None:
    put(tmp_path, "/proc/self/cgroup", "0::/\n")
    assert (need(tmp_path)["verdict"], need(tmp_path)["reason"]) == ("not_evaluated", "not_available")
    vh.pool(tmp_path, 0, "2048kB", 512)
    vh.pool(tmp_path, 1, "2048kB", 0)
    assert need(tmp_path)["verdict"] == "pass"
    (tmp_path / "proc/self/cgroup").unlink()
    assert need(tmp_path)["verdict"] == "not_evaluated"
