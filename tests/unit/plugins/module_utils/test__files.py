# SPDX-License-Identifier: GPL-3.0-or-later
"""Files inside a sysroot, and their replacement in one step."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _files


@pytest.mark.parametrize(
    ("link", "target", "path", "real"),
    [
        ("etc", "/private/etc", "/etc/x", "private/etc/x"),
        ("etc", "../../../up", "/etc/x", "up/x"),
        ("a", "b/./c", "/a//x", "b/c/x"),
        ("d/l", "../m", "/d/l/x", "m/x"),
        ("d/l", "/", "/d/l/x", "x"),
    ],
)
def test_links_stay_inside_of_the_root(link: str, target: str, path: str, real: str, tmp_path: Path) -> None:
    (tmp_path / link).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / link).symlink_to(target)
    assert _files.resolve(str(tmp_path), path) == str(tmp_path / real)


def test_a_loop_of_links_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        _files.resolve(str(tmp_path), "/a")


def test_paths_that_lead_out_of_the_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret").write_text("no")
    assert _files.read_text(str(root), "/../secret") is None
    assert _files.inside(str(root), _files.resolve(str(root), "/../a/../b")) == "/b"
    assert _files.inside("/", "/a/b") == "/a/b" and _files.inside(str(root), str(root)) == "/"


def test_reading(tmp_path: Path) -> None:
    root = str(tmp_path)
    (tmp_path / "a").write_bytes(b"x\xff\r\n")
    assert _files.read_text(root, "/a") == "x\udcff\r\n"
    assert _files.encode(_files.read_text(root, "/a") or "") == b"x\xff\r\n"
    assert _files.read_text(root, "/none") is None and _files.read_text(root, "/a/b") is None
    with pytest.raises(IsADirectoryError):
        _files.read_text(root, "/")
    (tmp_path / "dangling").symlink_to("gone")
    assert _files.exists(root, "/a") and not _files.exists(root, "/dangling")
    assert not _files.exists(root, "/a/b")


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    for name in ("/fifo", "/link"):
        with pytest.raises(OSError, match="not a regular file"):
            _files.read_bytes(str(tmp_path), name)
    assert _files.read_bytes("/", "/dev/null") == b""
    with pytest.raises(OSError, match="not a regular file"):
        _files.read_bytes("/", "/dev/zero")


@pytest.mark.parametrize("path", ["/proc/sys/vm/swappiness", "/proc/cpuinfo", "/sys/devices/system/cpu/online"])
def test_files_of_the_kernel_can_be_read(path: str) -> None:
    """/proc/sys refuses to be read in large pieces, which no file of a test's tree does."""
    assert _files.read_bytes("/", path) == Path(path).read_bytes() != b""


def test_names_come_in_byte_order(tmp_path: Path) -> None:
    for name in ("b", "B", "_", "é", "10", "9", "zzz"):
        (tmp_path / name).touch()
    assert _files.list_dir(str(tmp_path), "/") == ["10", "9", "B", "_", "b", "zzz", "é"]
    assert _files.list_dir(str(tmp_path), "/none") is None


def test_a_new_file_gets_its_mode_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        _files.atomic_write(str(tmp_path / "d/e/f"), "text", 0o644)
    finally:
        os.umask(old)
    assert (tmp_path / "d/e/f").read_text() == "text"
    assert os.stat(tmp_path / "d/e/f").st_mode & 0o777 == 0o644
    assert os.stat(tmp_path / "d/e").st_mode & 0o777 == 0o755


def test_a_replaced_file_keeps_mode_and_attributes(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("old")
    path.chmod(0o640)
    try:
        os.setxattr(path, "user.test", b"kept")
    except OSError:
        pytest.skip("no extended attributes here")
    inode = path.stat().st_ino
    _files.atomic_write(str(path), b"new", 0o600)
    assert path.read_text() == "new" and path.stat().st_mode & 0o777 == 0o640
    assert os.getxattr(path, "user.test") == b"kept" and path.stat().st_ino != inode
    _files.atomic_write(str(path), "newer", 0o600, force_mode=True)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_text("old")

    def failing(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(OSError, match="No space"):
        _files.atomic_write(str(path), "new")
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("x", path)])
def test_only_regular_files_are_replaced(make: Callable[[str], None], tmp_path: Path) -> None:
    make(str(tmp_path / "f"))
    with pytest.raises(OSError, match="not a regular file"):
        _files.atomic_write(str(tmp_path / "f"), "new")


def test_remove(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    assert _files.remove(str(tmp_path / "f")) and not _files.remove(str(tmp_path / "f"))
