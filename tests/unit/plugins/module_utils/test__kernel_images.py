# SPDX-License-Identifier: GPL-3.0-or-later
"""Which kernels a boot loader can start."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils._kernel_images import installed_releases
from ansible_collections.firsttouch.host.plugins.module_utils._tree import Tree
from support import put

NEW, OLD = "6.12.9-amd64", "5.10.0-28-amd64"
ID = "0123456789abcdef0123456789abcdef"


def found(root: Path, *files: str, text: str = "") -> set[str]:
    for path in files:
        put(root, path, text)
    return installed_releases(Tree(str(root)))


@pytest.mark.parametrize(
    "path",
    [
        f"/boot/vmlinuz-{OLD}",
        f"/boot/vmlinux-{OLD}",
        f"/boot/Image-{OLD}",
        f"/boot/kernel-{OLD}",
        f"/boot/vmlinuz-{OLD}.efi.signed",
        f"/boot/vmlinuz-{OLD}.old",
        f"/vmlinuz-{OLD}",
        f"/lib/modules/{OLD}/vmlinuz",
        f"/usr/lib/modules/{OLD}/Image",
        f"/boot/{ID}/{OLD}/linux",
        f"/efi/debian/{OLD}/linux",
        f"/efi/EFI/Linux/{ID}-{OLD}.efi",
        f"/boot/efi/EFI/Linux/{ID}-{OLD}+3-1.efi",
    ],
)
def test_a_kernel_image_is_an_installed_kernel(tmp_path: Path, path: str) -> None:
    assert found(tmp_path, path, f"/lib/modules/{NEW}/modules.dep") == {OLD}


def test_an_entry_is_an_installed_kernel(tmp_path: Path) -> None:
    text = f"title Linux\nversion {OLD}\nlinux /vmlinuz\noptions ro\n"
    put(tmp_path, f"/lib/modules/{NEW}/modules.dep", "")
    assert found(tmp_path, f"/boot/loader/entries/{ID}-{OLD}.conf", text=text) == {OLD}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (f"/lib/modules/{OLD}/modules.dep", ""),
        (f"/usr/lib/modules/{OLD}/build/Makefile", ""),
        (f"/boot/config-{OLD}", ""),
        (f"/boot/initrd.img-{OLD}", ""),
        (f"/boot/System.map-{OLD}", ""),
        ("/boot/vmlinuz", ""),
        (f"/boot/vmlinuz-0-rescue-{ID}", ""),
        (f"/boot/{ID}/{OLD}/initrd", ""),
        (f"/boot/loader/entries/{OLD}.conf.bak", f"version {OLD}\nlinux /x\n"),
        (f"/boot/loader/entries/{OLD}.conf", f"#version {OLD}\nlinux /x\n"),
        ("/efi/EFI/Linux/shim.efi", ""),
    ],
)
def test_leftovers_are_no_kernel(tmp_path: Path, path: str, text: str) -> None:
    put(tmp_path, path, text)
    assert found(tmp_path, f"/boot/vmlinuz-{NEW}") == {NEW}


def test_modules_are_all_that_tells_where_no_image_is_seen(tmp_path: Path) -> None:
    assert found(tmp_path, f"/lib/modules/{OLD}/modules.dep", f"/lib/modules/{NEW}/modules.dep") == {OLD, NEW}
    assert found(tmp_path / "empty") == set()
