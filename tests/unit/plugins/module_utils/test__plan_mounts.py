# SPDX-License-Identifier: GPL-3.0-or-later
"""hugetlbfs mounts of the plan: units, defaults, and mounts that would hide or starve something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from plan_host import make_host, plan, reasons, refused
from support import put

SECTION = {"sections": ["hugepages"]}
POOL = {"size": "2M", "count": 100}


def asked(*mounts: Any, pools: list[Any] | None = None) -> dict[str, Any]:
    return {"hugepages": [POOL] if pools is None else pools, "hugetlbfs_mounts": list(mounts)}


def test_a_mount_with_its_defaults(tmp_path: Path) -> None:
    result = plan(make_host(tmp_path), asked({"path": "/dev/hugepages-2M"}), **SECTION)
    section = result["plan"]["sections"]["hugepages"]
    name = "dev-hugepages\\x2d2M.mount"
    assert section["mounts"] == [{
        "path": "/dev/hugepages-2M", "page_size": "2M", "size_bytes": None, "min_size_bytes": None, "owner": "root",
        "group": "firsttouch", "mode": "0770", "unit": name,
    }]  # fmt: skip
    options = "Options=pagesize=2M,mode=0770,uid=root,gid=firsttouch,nofail"
    assert options in section["units"][name].splitlines()
    assert result["groups"] == ["firsttouch"]
    assert result["units"] == [
        {"name": name, "content": section["units"][name], "enabled": True, "restart_on_change": True}
    ]


def test_a_mount_with_everything(tmp_path: Path) -> None:
    mount = {
        "path": "//mnt//huge/", "pagesize": "2048kB", "size": "64M", "min_size": 4194304, "owner": 1000, "group": "0",
        "mode": "0750",
    }  # fmt: skip
    section = plan(make_host(tmp_path), asked(mount), **SECTION)["plan"]["sections"]["hugepages"]
    text = section["units"]["mnt-huge.mount"]
    assert (
        "Options=pagesize=2M,mode=0750,uid=1000,gid=0,size=67108864,min_size=4194304,nofail"
        in text.splitlines()
    )
    assert "Where=/mnt/huge" in text.splitlines()


def test_the_first_pool_gives_the_page_size(tmp_path: Path) -> None:
    pools = [{"size": "1G", "nodes": {"1": 1}}, POOL]
    section = plan(make_host(tmp_path), asked({"path": "/mnt/a"}, pools=pools), **SECTION)["plan"][
        "sections"
    ]["hugepages"]
    assert section["mounts"][0]["page_size"] == "1G"


def test_a_size_without_pool_is_registered_at_boot(tmp_path: Path) -> None:
    intent = asked({"path": "/mnt/a", "pagesize": "2M"}, pools=[{"size": "1G", "nodes": {"1": 1}}])
    result = plan(make_host(tmp_path), intent, **SECTION)
    assert result["plan"]["boot"]["tokens"] == [
        "default_hugepagesz=1G", "hugepagesz=1G", "hugepages=1:1", "hugepagesz=2M", "hugepages=0",
    ]  # fmt: skip
    assert "mount_without_pool" in reasons(result["notes"])


def test_mounts_alone_need_no_boot_argument(tmp_path: Path) -> None:
    result = plan(make_host(tmp_path), {"hugetlbfs_mounts": [{"path": "/mnt/a"}]}, **SECTION)
    assert result["plan"]["boot"]["tokens"] == [] and result["plan"]["sections"]["hugepages"]["mounts"]


def test_a_mount_that_waits_for_its_pages_is_not_mounted_anew(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    intent = asked({"path": "/mnt/a", "min_size": "20M"})
    assert plan(root, intent, **SECTION)["units"][0]["restart_on_change"] is False
    put(root, "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages", "10\n")
    assert plan(root, intent, **SECTION)["units"][0]["restart_on_change"] is True


@pytest.mark.parametrize(
    "mount",
    [
        {}, {"path": "mnt/a"}, {"path": "/mnt/../etc"}, {"path": "/mnt/a b"}, {"path": "/mnt/a,b"}, {"path": "/"},
        {"path": "/etc"}, {"path": "/usr/lib/x"}, {"path": "/dev/shm"}, {"path": 5}, {"path": "/" + "a" * 300},
        {"path": "/mnt/a", "pagesize": "2"}, {"path": "/mnt/a", "size": "3M"}, {"path": "/mnt/a", "size": 0},
        {"path": "/mnt/a", "size": "50%"}, {"path": "/mnt/a", "min_size": "1M"},
        {"path": "/mnt/a", "size": "4M", "min_size": "8M"}, {"path": "/mnt/a", "mode": 770},
        {"path": "/mnt/a", "mode": "rwx"}, {"path": "/mnt/a", "owner": "no body"}, {"path": "/mnt/a", "group": -1},
        {"path": "/mnt/a", "page_size": "2M"}, "/mnt/a",
    ],
)  # fmt: skip
def test_what_is_no_mount_is_refused_by_name(tmp_path: Path, mount: Any) -> None:
    rows = refused(make_host(tmp_path), asked(mount), **SECTION)
    assert {(row["reason"], row["variable"]) for row in rows} == {
        ("bad_value", "firsttouch_hugetlbfs_mounts")
    }


@pytest.mark.parametrize(
    ("mounts", "reason"),
    [
        ([{"path": "/mnt/a"}, {"path": "/mnt/a/"}], "mount_path_conflict"),
        ([{"path": "/mnt/a/b"}, {"path": "/mnt/a"}], "mount_path_conflict"),
        ([{"path": "/mnt/a", "pagesize": "16G"}], "page_size_unsupported"),
        (
            [{"path": "/mnt/a", "min_size": "120M"}, {"path": "/mnt/b", "min_size": "120M"}],
            "min_size_exceeds_pool",
        ),
        ([{"path": "/mnt/a", "owner": "nobody-here"}], "no_such_user"),
        ([{"path": "/mnt/full"}], "mount_point_in_use"),
        ([{"path": "/mnt/disk"}], "mount_point_in_use"),
    ],
)
def test_mounts_in_each_others_or_somebodys_way(tmp_path: Path, mounts: list[Any], reason: str) -> None:
    root = make_host(tmp_path)
    put(root, "/etc/passwd", "root:x:0:0::/root:/bin/sh\n")
    put(root, "/mnt/full/file", "")
    put(root, "/proc/self/mounts", "/dev/sda1 /mnt/disk ext4 rw 0 0\nhugetlbfs /mnt/ours hugetlbfs rw 0 0\n")
    put(root, "/mnt/ours/segment", "")
    assert reasons(refused(root, asked(*mounts), **SECTION)) == [reason]
    assert plan(root, asked({"path": "/mnt/ours"}, {"path": "/mnt/ab"}, {"path": "/mnt/a"}), **SECTION)


def test_a_size_above_the_pool_is_told(tmp_path: Path) -> None:
    assert reasons(
        plan(make_host(tmp_path), asked({"path": "/mnt/a", "size": "1G"}), **SECTION)["notes"]
    ) == ["mount_size_above_pool"]


def test_a_refused_pool_is_not_blamed_on_its_mounts(tmp_path: Path) -> None:
    pools = [{"size": "2M", "count": 90000}]
    rows = refused(make_host(tmp_path), asked({"path": "/mnt/a", "min_size": "20M"}, pools=pools), **SECTION)
    assert set(reasons(rows)) == {"pages_exceed_node"}
