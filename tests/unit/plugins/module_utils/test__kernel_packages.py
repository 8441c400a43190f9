# SPDX-License-Identifier: GPL-3.0-or-later
"""Installed kernels and drivers, by files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _kernel_packages as kp
from ansible_collections.firsttouch.host.plugins.module_utils._tree import Tree
from support import put


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("6.1.0-9-amd64", "6.1.0-10-amd64"),
        ("6.1.0-10-amd64", "6.12.0-1-amd64"),
        ("6.8.0-31-generic", "6.11.0-8-generic"),
        ("6.12.0-rc7-amd64", "6.12.0-amd64"),
        ("6.12~rc7", "6.12"),
        ("5.14.0-427.el9.x86_64", "5.14.0-503.el9.x86_64"),
        ("6.1.0-18-amd64", "6.1.0-18-rt-amd64"),
    ],
)
def test_order(older: str, newer: str) -> None:
    assert kp.kernel_order(older) < kp.kernel_order(newer)
    assert kp.newest([newer, older]) == kp.newest([older, newer]) == newer


def test_images_that_could_boot(tmp_path: Path) -> None:
    for name in (
        *("vmlinuz-6.1.0-10-amd64", "vmlinuz-6.1.0-9-amd64", "vmlinux-6.12.1", "vmlinuz", "vmlinuz-6.0.old"),
        *("vmlinuz-0-rescue-0123456789abcdef", "config-6.14.0", "vmlinuz-6.13.0.dpkg-new", "memtest86+.bin"),
    ):
        put(tmp_path, f"/boot/{name}", "")
    assert kp.kernels(Tree(str(tmp_path))) == ["6.1.0-9-amd64", "6.1.0-10-amd64", "6.12.1"]
    assert kp.newest([]) is None


@pytest.mark.parametrize("name", ["initrd.img-6.1.0", "initramfs-6.1.0.img", "initrd-6.1.0"])
def test_initrd_by_any_name(tmp_path: Path, name: str) -> None:
    put(tmp_path, "/boot/initrd.img-6.1.0-old", "")
    assert kp.initrd_of(Tree(str(tmp_path)), "6.1.0") is None
    put(tmp_path, f"/boot/{name}", "")
    assert kp.initrd_of(Tree(str(tmp_path)), "6.1.0") == f"/boot/{name}"


def test_a_recording_has_no_times(tmp_path: Path) -> None:
    path = put(tmp_path, "/boot/a", "")
    assert kp.changed_at(str(tmp_path), "/boot/a") == path.stat().st_mtime
    os.utime(path, (0, 0))
    assert kp.changed_at(str(tmp_path), "/boot/a") is None
    assert kp.changed_at(str(tmp_path), "/boot/b") is None


STATUS = """Package: linux-image-6.12.0-1-amd64
Status: install ok installed
Version: 6.12.1-1
Description: kernel
 Package: not-this-one

Package: linux-image-amd64
Status: install ok unpacked
Version: 6.12.1-1

Package: nvidia-driver
Status: install ok half-configured
Version: 550.54-1

Package: linux-image-6.1.0-1-amd64
Status: deinstall ok config-files
Version: 6.1.1-1

Package: bash
Status: install ok half-configured
Version: 5.2
"""


def test_packages_of_the_next_boot() -> None:
    assert kp.packages(STATUS) == [
        kp.Package("linux-image-6.12.0-1-amd64", "6.12.1-1", "installed"),
        kp.Package("linux-image-amd64", "6.12.1-1", "unpacked"),
        kp.Package("nvidia-driver", "550.54-1", "half-configured"),
    ]
    assert kp.packages("") == []


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("linux-image-6.12.0-1-amd64", "6.12.0-1-amd64"),
        ("linux-image-6.12.0-1-amd64-unsigned", "6.12.0-1-amd64"),
        ("linux-image-unsigned-6.8.0-31-generic", "6.8.0-31-generic"),
        ("linux-image-6.12.0-1-amd64-dbg", None),
        ("linux-image-amd64", None),
        ("linux-image-generic", None),
        ("nvidia-dkms-550", None),
    ],
)
def test_the_kernel_of_a_package(name: str, version: str | None) -> None:
    assert kp.image_version(kp.Package(name, "1", "installed")) == version


def test_drivers_with_the_kernels_they_are_built_for(tmp_path: Path) -> None:
    base = "/var/lib/dkms/nvidia-current/550.54"
    put(tmp_path, f"{base}/6.1.0-1-amd64/x86_64/module/nvidia.ko", "")
    (tmp_path / base[1:] / "6.12.0-1-amd64/x86_64/log").mkdir(parents=True)
    (tmp_path / base[1:] / "source").symlink_to("/usr/src/nvidia-current-550.54")
    (tmp_path / "var/lib/dkms/nvidia-current/kernel-6.1.0-1-amd64-x86_64").symlink_to("550.54/6.1.0-1-amd64")
    tree = Tree(str(tmp_path))
    assert list(kp.drivers(tree)) == [kp.Driver("nvidia-current", "550.54", ("6.1.0-1-amd64",))]


@pytest.mark.parametrize(
    ("driver", "module", "found"),
    [
        ("nvidia-current", "nvidia", "535.1"),
        ("mlnx-ofa_kernel", "mlnx_ofa_kernel", "535.1"),
        ("zfs", "spl", None),
    ],
)
def test_what_is_loaded(tmp_path: Path, driver: str, module: str, found: str | None) -> None:
    put(tmp_path, f"/sys/module/{module}/version", "535.1\n")
    assert kp.loaded_version(Tree(str(tmp_path)), driver) == found
