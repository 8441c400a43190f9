# SPDX-License-Identifier: GPL-3.0-or-later
"""Files on hugetlbfs mounts: which hold pages, who uses them, and when nobody can tell."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import verified_host as vh
from ansible_collections.firsttouch.host.plugins.module_utils import _hugetlb_files as hf
from ansible_collections.firsttouch.host.plugins.module_utils._mounts import Mount
from support import put

PAGE = 2 << 20
MOUNT = Mount("/dev/hp", PAGE)


def listed(root: Path, *mounts: Mount, live: bool = False) -> hf.Listing:
    return hf.list_files(str(root), mounts or [MOUNT], live)


def names(listing: hf.Listing) -> list[str]:
    return [file.path for file in listing.files]


def test_files_below_a_mount_with_their_pages(tmp_path: Path) -> None:
    vh.huge_file(tmp_path, "/dev/hp/b/model", 3 * PAGE)
    vh.huge_file(tmp_path, "/dev/hp/a", PAGE)
    put(tmp_path, "/dev/hp/empty", "")
    (tmp_path / "dev/hp/link").symlink_to("a")
    listing = listed(tmp_path)
    assert [(file.path, file.bytes, file.pages) for file in listing.files] == [
        ("/dev/hp/a", PAGE, 1),
        ("/dev/hp/b/model", 3 * PAGE, 3),
    ]
    assert listing.refused == {}


def test_a_live_file_has_the_blocks_that_it_has(tmp_path: Path) -> None:
    target = vh.huge_file(tmp_path, "/dev/hp/sparse", 3 * PAGE)
    target.open("r+b").write(b"x" * 4096)
    assert listed(tmp_path, live=True).files[0].bytes == target.stat().st_blocks * 512 < PAGE


def test_a_mount_at_two_places_is_listed_once_and_a_covered_one_not_at_all(tmp_path: Path) -> None:
    vh.huge_file(tmp_path, "/dev/hp/a", PAGE)
    (tmp_path / "mnt").symlink_to("dev/hp")
    listing = listed(tmp_path, MOUNT, Mount("/mnt", PAGE), Mount("/dev/hp", PAGE, covered=True))
    assert names(listing) == ["/dev/hp/a"]
    assert listing.refused == {"/dev/hp": "covered"}


def test_a_directory_that_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vh.huge_file(tmp_path, "/dev/hp/a", PAGE)
    vh.huge_file(tmp_path, "/dev/hp/private/b", PAGE)
    scan = os.scandir

    def refusing(path: str) -> object:
        if path.endswith("private"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refusing)
    listing = listed(tmp_path)
    assert (names(listing), listing.refused) == (["/dev/hp/a"], {"/dev/hp/private": "permission_denied"})


@pytest.mark.parametrize("mapped", [True, False])
def test_who_has_it_mapped_or_open(tmp_path: Path, mapped: bool) -> None:
    used = vh.huge_file(tmp_path, "/dev/hp/used", PAGE)
    vh.huge_file(tmp_path, "/dev/hp/left", PAGE)
    vh.uses(tmp_path, 1)
    vh.uses(tmp_path, 1234567, used, mapped=mapped)
    files = listed(tmp_path).files
    held = hf.holders(str(tmp_path), files, False)
    assert (held.hidden, [file.path for file in files if file.key in held.keys]) == (None, ["/dev/hp/used"])


def test_a_process_that_was_not_recorded_may_use_it(tmp_path: Path) -> None:
    vh.huge_file(tmp_path, "/dev/hp/a", PAGE)
    files = listed(tmp_path).files
    assert hf.holders(str(tmp_path), files, False).hidden == ("not_recorded", "/proc")
    put(tmp_path, "/proc/7/maps", "")
    assert hf.holders(str(tmp_path), files, False).hidden == ("not_recorded", "/proc/7/fd")


def test_a_process_that_may_not_be_asked_may_use_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vh.huge_file(tmp_path, "/dev/hp/a", PAGE)
    vh.uses(tmp_path, 7)

    def refusing(*args: object) -> set[hf.Key]:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(hf, "_mapped", refusing)
    assert hf.holders(str(tmp_path), listed(tmp_path).files, False).hidden == (
        "permission_denied",
        "/proc/7/maps",
    )


def test_from_a_container_not_every_process_is_seen(tmp_path: Path) -> None:
    vh.huge_file(tmp_path, "/dev/hp/a", PAGE)
    vh.thread(tmp_path, 1, "init", 0)
    vh.uses(tmp_path, 1)
    held = hf.holders(str(tmp_path), listed(tmp_path).files, True)
    assert held.hidden == ("pid_namespace", "/proc/2/stat")


def test_the_real_process_table(tmp_path: Path) -> None:
    """This process holds a file; what the kernel says of it is what is compared."""
    target = vh.huge_file(tmp_path, "/dev/hp/a", 8192)
    files = listed(tmp_path).files
    with target.open("rb"):
        assert hf._opened("/", os.getpid(), {files[0].key}, True) == {files[0].key}
    assert hf._opened("/", os.getpid(), {files[0].key}, True) == set()


def mountinfo(*rows: tuple[str, str]) -> str:
    return "".join(
        f"{40 + n} 25 {device} / {path} rw - hugetlbfs none rw\n" for n, (device, path) in enumerate(rows)
    )


def namespace(root: Path, pid: int, number: int) -> None:
    (root / f"proc/{pid}/ns").mkdir(parents=True, exist_ok=True)
    (root / f"proc/{pid}/ns/mnt").symlink_to(f"mnt:[{number}]")


def test_mounts_that_only_a_container_has(tmp_path: Path) -> None:
    put(tmp_path, "/proc/self/mountinfo", mountinfo(("0:30", "/dev/hugepages")))
    put(tmp_path, "/proc/1/mountinfo", mountinfo(("0:30", "/dev/hugepages")))
    put(tmp_path, "/proc/50/mountinfo", mountinfo(("0:30", "/dev/hugepages"), ("0:77", "/hp\\040x")))
    for pid, number in ((1, 1), (50, 2), (51, 2), (52, 3)):
        namespace(tmp_path, pid, number)
    assert hf.other_namespaces(str(tmp_path)) == hf.Elsewhere({"/hp x": 50})


@pytest.mark.parametrize(
    ("name", "patterns", "pid"),
    [
        ("w.42.bin", ["w.{pid}.bin"], 42),
        ("w.42.bin.old", ["w.{pid}.bin"], None),
        ("wx42.bin", ["w.{pid}.bin"], None),
        ("b.7", ["w.{pid}.bin", "b.{pid}"], 7),
        (f".tmp.{'0f' * 16}.7.123", hf.PATTERNS, 7),
        (".tmp.other.7.123", hf.PATTERNS, None),
    ],
)
def test_the_owner_in_a_name(name: str, patterns: list[str], pid: int | None) -> None:
    assert hf.owner_pid(name, patterns) == pid


@pytest.mark.parametrize("pattern", ["x", "{pid}{pid}"])
def test_a_pattern_needs_one_pid(pattern: str) -> None:
    with pytest.raises(ValueError, match="needs"):
        hf.owner_pid("x", [pattern])


def test_nothing_is_reclaimable_while_somebody_may_use_it() -> None:
    files = [hf.HugeFile(f"/m/{name}", (1, n), 1, 1, PAGE, 0) for n, name in enumerate(("w.1", "w.2", "x"))]

    def sorted_out(held: hf.Held) -> dict[str, list[str]]:
        rows = hf.sort_out(files, held, [1], ["w.{pid}"])
        return {kind: [file.path for file in found] for kind, found in rows.items() if found}

    assert sorted_out(hf.Held(frozenset())) == {
        "reclaimable": ["/m/w.2"],
        "kept": ["/m/w.1"],
        "foreign": ["/m/x"],
    }
    for held in (hf.Held(frozenset({(1, 1)})), hf.Held(frozenset(), ("permission_denied", "/proc/9/fd"))):
        assert sorted_out(held) == {"kept": ["/m/w.1", "/m/w.2"], "foreign": ["/m/x"]}
