# SPDX-License-Identifier: Apache-2.0
"""What a load may take, from recorded hosts and made-up counters: each shortage has its own error and remedy."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from firsttouch import _pool, _shortage, errors
from firsttouch._pool import Facts, Limit, Mount, Placement, Pool

PAGE = 2 << 20
CASES = Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "cases"
MOUNT = Mount("/m", _pool.HUGETLBFS, "0:50", PAGE)
TMPFS = dataclasses.replace(MOUNT, backend=_pool.TMPFS_HUGE)
FREE = OSError(12, "Cannot allocate memory")


def facts(**changes: Any) -> Facts:
    """100 free pages, 60 on node 0 and 40 on node 1, 10 of them reserved."""
    numbers = {"total": 120, "free": 100, "reserved": 10, "surplus": 0, "overcommit": 0, "nodes": {0: 60, 1: 40}}
    rest = {key: changes.pop(key) for key in ("mount", "mount_free", "limits") if key in changes}
    pool = Pool(PAGE, **{**numbers, **changes})
    return Facts(pool, rest.get("mount", MOUNT), rest.get("mount_free"), rest.get("limits", ()))


BIND0, BOTH = Placement("bind", (0,)), Placement("interleave", (0, 1))
FITS = [
    (90, facts(), Placement()),
    (60, facts(), BIND0),
    (80, facts(), BOTH),
    (90, facts(), Placement("prefer", (1,))),
    (90, facts(), Placement("bind", (0, 1))),
    (110, facts(overcommit=20), Placement()),
    (100, facts(mount=dataclasses.replace(MOUNT, min_size=10 * PAGE)), Placement()),
    (90, facts(mount_free=90), Placement()),
    (90, facts(limits=(Limit("f", 95, 5),)), Placement()),
    (500, facts(mount=TMPFS), Placement()),
]
SHORT = [
    (91, facts(), Placement(), errors.PoolTooSmallError, "nr_hugepages"),
    (61, facts(), BIND0, errors.NodeExhaustedError, "node0"),
    (82, facts(), BOTH, errors.NodeExhaustedError, "node1"),
    (41, facts(), Placement("bind", (1,)), errors.NodeExhaustedError, "+ 1 "),
    (1, facts(), Placement("bind", (7,)), errors.NodeExhaustedError, "0, 1"),
    (111, facts(overcommit=20, surplus=1), Placement(), errors.PoolTooSmallError, ""),
    (90, facts(mount_free=89), Placement(), errors.MountTooSmallError, "size="),
    (90, facts(limits=(Limit("f", 94, 5),)), Placement(), errors.CgroupLimitError, f"echo {95 * PAGE} > f"),
    (91, facts(mount=TMPFS, mount_free=90), Placement(), errors.MountTooSmallError, ""),
]


@pytest.mark.parametrize(("need", "found", "placement"), FITS)
def test_fits(need: int, found: Facts, placement: Placement) -> None:
    """As many as there are, and not one more than is asked for."""
    _shortage.check(need, found, placement)


@pytest.mark.parametrize(("need", "found", "placement", "kind", "hint"), SHORT)
def test_short(need: int, found: Facts, placement: Placement, kind: type[errors.WeightsError], hint: str) -> None:
    """One page more is the error of what is short, with its numbers and a command."""
    with pytest.raises(kind) as caught:
        _shortage.check(need, found, placement)
    assert type(caught.value) is kind and hint in caught.value.hint and caught.value.hint
    assert caught.value.facts["need"] == need and json.dumps(caught.value.facts)


AFTER = [
    (91, facts(), Placement(), errors.PoolTooSmallError),
    (90, facts(), Placement(), errors.PoolTooSmallError),
    (100, facts(overcommit=20), Placement(), errors.FragmentedError),
    (60, facts(), BIND0, errors.NodeExhaustedError),
    (60, facts(limits=(Limit("f", 5, 5),)), BIND0, errors.CgroupLimitError),
]


@pytest.mark.parametrize(("need", "found", "placement", "kind"), AFTER)
def test_shortage_after_the_fact(need: int, found: Facts, placement: Placement, kind: type[Exception]) -> None:
    """When the kernel refuses although the check passed, the error is of what may have been short."""
    error = _shortage.shortage(need, found, placement, FREE)
    assert type(error) is kind and error.hint


SHARES = [(5, (0, 1), {0: 3, 1: 2}), (0, (0,), {0: 0}), (2, (3, 1, 2), {3: 1, 1: 1, 2: 0})]


@pytest.mark.parametrize(("pages", "nodes", "shares"), SHARES)
def test_node_shares(pages: int, nodes: tuple[int, ...], shares: dict[int, int]) -> None:
    """Interleaving is exact."""
    assert _shortage.node_shares(pages, nodes) == shares


def put(root: Path, path: str, text: str) -> None:
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


V2 = "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1 = "41 31 0:38 / /sys/fs/cgroup/hugetlb rw - cgroup cgroup rw,hugetlb\n"


@pytest.mark.parametrize(("file", "mountinfo"), [("sysfs.tsv", V2), ("cgroup-v1.tsv", V1)])
def test_recorded_group_limit(tmp_path: Path, file: str, mountinfo: str) -> None:
    """A limit of 0 bytes with a free pool is found before anything is mapped, and is no signal later; v1 alike."""
    case = CASES / "hugetlb-cgroup-limit-sigbus"
    for line in (case / file).read_text().splitlines():
        path, _, value = line.partition("\t")
        put(tmp_path, path, value + "\n")
    if file == "cgroup-v1.tsv":
        put(tmp_path, "/proc/self/cgroup", "3:hugetlb:/pod/app\n0::/\n")
    put(tmp_path, "/proc/self/mountinfo", mountinfo)
    limits = _pool.read_limits(PAGE, str(tmp_path))
    expected = json.loads((case / "expected.json").read_text())
    pool = Pool(PAGE, 2048, 2048, 0, 0, 0)
    with pytest.raises(errors.CgroupLimitError) as caught:
        _shortage.check(expected.pop("need_bytes") // PAGE, Facts(pool, MOUNT, None, limits), Placement())
    assert expected.pop("reason_class") == f"hugetlb_{caught.value.code}"
    assert caught.value.facts["cgroup"][0]["limit"] == expected.pop("limit_bytes")
    assert expected == {"verdict": "fail"}


def test_limits_of_a_v1_group_and_those_above(tmp_path: Path) -> None:
    """v1 has other names; every group up to the mount counts; one without a limit is left out."""
    put(tmp_path, "/proc/self/cgroup", "5:hugetlb,cpu:/a/b\n0::/x\n")
    put(tmp_path, "/proc/self/mountinfo", "1 1 0:1 / /cg rw - cgroup cgroup rw,cpu,hugetlb\n")
    for folder, limit in (("/cg/a/b", 3 * PAGE), ("/cg/a", 2 * PAGE), ("/cg", 9223372036854771712)):
        put(tmp_path, f"{folder}/hugetlb.2MB.limit_in_bytes", f"{limit}\n")
        put(tmp_path, f"{folder}/hugetlb.2MB.usage_in_bytes", f"{PAGE}\n")
    assert [(row.limit, row.used, row.room) for row in _pool.read_limits(PAGE, str(tmp_path))] == [(3, 1, 2), (2, 1, 1)]


MOUNTINFO = """30 23 0:27 / /dev/shm rw - tmpfs tmpfs rw,size=24684084k
31 23 0:28 / /mnt/huge rw shared:4 - tmpfs none rw,huge=always,size=1g
40 23 0:40 / /dev/hugepages rw - hugetlbfs hugetlbfs rw,pagesize=2M
41 23 0:41 / /mnt/a\\040b rw - hugetlbfs none rw,gid=27,pagesize=1024M,size=2048M,min_size=1048576K
42 23 0:42 / /mnt/half rw - hugetlbfs none rw,pagesize=2M,size=50%
43 23 8:1 / / rw - ext4 /dev/vda rw
44 23 0:44 / /dev/hugepages/firsttouch rw - hugetlbfs none rw,pagesize=2M
"""


def test_mounts(tmp_path: Path) -> None:
    """Mounts in all their spellings; ours is preferred."""
    rows = _pool.parse_mounts(MOUNTINFO, {PAGE: 100})
    assert [(row.path, row.backend, row.page_bytes, row.size, row.min_size) for row in rows] == [
        ("/mnt/huge", "tmpfs-huge", PAGE, 1 << 30, None),
        ("/dev/hugepages", "hugetlbfs", PAGE, None, None),
        ("/mnt/a b", "hugetlbfs", 1 << 30, 2 << 30, 1 << 30),
        ("/mnt/half", "hugetlbfs", PAGE, 50 * PAGE, None),
        ("/dev/hugepages/firsttouch", "hugetlbfs", PAGE, None, None),
    ]
    put(tmp_path, "/proc/self/mountinfo", MOUNTINFO)
    assert _pool.find_mount(None, PAGE, root=str(tmp_path)).path == "/dev/hugepages/firsttouch"
    assert _pool.find_mount(None, 1 << 30, root=str(tmp_path)).path == "/mnt/a b"
    assert _pool.find_mount(None, PAGE, _pool.TMPFS_HUGE, str(tmp_path)).path == "/mnt/huge"
    assert _pool.image_directories(str(tmp_path))[0] == "/dev/hugepages/firsttouch"
    with pytest.raises(errors.MountMissingError, match="64K"):
        _pool.find_mount(None, 64 << 10, root=str(tmp_path))
    with pytest.raises(errors.MountMissingError):
        _pool.find_mount(str(tmp_path / "absent"), PAGE, root=str(tmp_path))


def test_a_mount_that_is_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount that another filesystem lies over is neither loaded into nor searched: its path leads elsewhere."""
    here = os.stat("/").st_dev
    rows = [
        Mount("/", "hugetlbfs", "0:9999", PAGE),
        Mount("/gone", "hugetlbfs", "0:9999", PAGE),
        Mount("/", "hugetlbfs", f"{os.major(here)}:{os.minor(here)}", PAGE, size=PAGE),
    ]
    monkeypatch.setattr(_pool, "parse_mounts", lambda *_: rows)
    monkeypatch.delenv(_pool.DIRECTORY_ENV, raising=False)
    assert _pool.find_mount(None, PAGE).size == PAGE
    assert _pool.image_directories() == ["/"]
    rows.pop()
    with pytest.raises(errors.MountMissingError):
        _pool.find_mount(None, PAGE)


def test_read_pool(tmp_path: Path) -> None:
    """Counters of the pool and of its nodes; a size that the kernel lacks is an error."""
    base = "/sys/kernel/mm/hugepages/hugepages-2048kB"
    for name, value in zip(_pool._POOL_FILES, (9, 7, 2, 1, 3), strict=True):
        put(tmp_path, f"{base}/{name}", f"{value}\n")
    for node, free in ((0, 3), (1, 4), (10, 0)):
        put(tmp_path, f"/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/free_hugepages", f"{free}\n")
    pool = _pool.read_pool(PAGE, str(tmp_path))
    assert pool == Pool(PAGE, 9, 7, 2, 1, 3, {0: 3, 1: 4, 10: 0}) and (pool.available, pool.growable) == (5, 2)
    with pytest.raises(errors.PoolTooSmallError, match="1G"):
        _pool.read_pool(1 << 30, str(tmp_path))


SIZES = [("2M", PAGE), ("1G", 1 << 30), ("2048k", PAGE), ("2MiB", PAGE), ("4096", 4096)]


@pytest.mark.parametrize(("text", "count"), SIZES)
def test_sizes(text: str, count: int) -> None:
    """Sizes are read and written as the kernel does."""
    assert _pool.parse_bytes(text) == count and _pool.parse_bytes(_pool.size_text(count)) == count


@pytest.mark.parametrize("text", ["", "M", "-2M", "2X", "1.5G"])
def test_no_sizes(text: str) -> None:
    """Anything else is refused."""
    with pytest.raises(ValueError, match="no size"):
        _pool.parse_bytes(text)
