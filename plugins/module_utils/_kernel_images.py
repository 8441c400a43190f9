# SPDX-License-Identifier: Apache-2.0
"""Which kernels a boot loader of a host can start. A modules directory alone, left behind by a package, is none.

Places: Debian, Fedora, SUSE and Arch packages, `make install`, kernel-install(8), GRUB's 10_linux.
"""

from __future__ import annotations

import re

from ._tree import Tree

_MODULES = ("/usr/lib/modules", "/lib/modules")
_IMAGES = ("vmlinuz", "vmlinux", "kernel", "Image", "Image.gz", "bzImage", "zImage", "image")
_BOOT = ("/boot", "/efi", "/boot/efi")
_IN_BOOT = re.compile(rf"(?:{'|'.join(map(re.escape, _IMAGES))})-(\d+\.\d.*?)(?:\.efi)?(?:\.signed)?(?:\.old)?")
_UNIFIED = re.compile(r"(?:.*-)?(\d+\.\d+.*?)(?:\+\d+(?:-\d+)?)?\.efi")
_ENTRY = re.compile(r"(?m)^version[ \t]+(\d+\.\d\S*)")
_ENTRY_IMAGE = re.compile(r"(?m)^(?:linux|efi|uki)[ \t]+\S")


def installed_releases(tree: Tree) -> set[str]:
    """The releases with a kernel image, or with a boot loader entry that names one.

    Where there is not one image (a kernel from outside, a tree without /boot), the modules are all that tells.
    """
    bootable = _in_boot(tree) | _with_modules(tree) | _by_kernel_install(tree)
    modules = {name for base in _MODULES for name in tree.names(base) if re.match(r"\d+\.\d", name)}
    return bootable or modules


def _in_boot(tree: Tree) -> set[str]:
    matches = (_IN_BOOT.fullmatch(name) for folder in ("/boot", "/") for name in tree.names(folder))
    return {match[1] for match in matches if match}


def _with_modules(tree: Tree) -> set[str]:
    """The image beside its modules, where Fedora, SUSE and Arch have it."""
    return {
        name
        for base in _MODULES
        for name in tree.names(base)
        if re.match(r"\d+\.\d", name) and not set(_IMAGES).isdisjoint(tree.names(f"{base}/{name}"))
    }


def _by_kernel_install(tree: Tree) -> set[str]:
    """Entries of type #1, unified images of type #2, and the layout ENTRY-TOKEN/RELEASE/linux."""
    found: set[str] = set()
    for base in _BOOT:
        for name in tree.names(f"{base}/loader/entries"):
            text = tree.text(f"{base}/loader/entries/{name}") or "" if name.endswith(".conf") else ""
            version = _ENTRY.search(text)
            if version and _ENTRY_IMAGE.search(text):
                found.add(version[1])
        unified = (_UNIFIED.fullmatch(name) for name in tree.names(f"{base}/EFI/Linux"))
        found |= {match[1] for match in unified if match}
        for token in tree.names(base):
            for name in tree.names(f"{base}/{token}"):
                if re.match(r"\d+\.\d", name) and "linux" in tree.names(f"{base}/{token}/{name}"):
                    found.add(name)
    return found
