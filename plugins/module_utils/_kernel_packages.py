# SPDX-License-Identifier: Apache-2.0
"""Kernels and drivers that are installed: the files of /boot, dpkg's status, DKMS's tree."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ._files import resolve
from ._tree import Tree

BOOT = "/boot"
DPKG = "/var/lib/dpkg/status"
DKMS = "/var/lib/dkms"
_KERNEL = re.compile(r"vmlinu[xz]-(\d.*)")
_INITRD = ("initrd.img-{}", "initramfs-{}.img", "initrd-{}")
_LEFT_OVER = re.compile(r"\.(?:old|bak|dpkg-\w+|rpm\w+)$|~$")
# Packages of which a half-done change leaves the next boot with a kernel that does not fit its files.
_OF_INTEREST = re.compile(
    r"linux-image-.+|linux-modules-.+|initramfs-tools(?:-core)?|dracut|dkms|nvidia-.+|.+-dkms"
)


@dataclass(frozen=True)
class Package:
    """One package of dpkg's status: `state` is the last word of its Status line."""

    name: str
    version: str
    state: str


@dataclass(frozen=True)
class Driver:
    """A driver that DKMS has: `built_for` are the kernels that it has a module for."""

    name: str
    version: str
    built_for: tuple[str, ...]


def kernel_order(version: str) -> tuple[tuple[int, int, str], ...]:
    """A key that sorts kernel versions as GRUB's menu does: numbers by value, a release after its `rc`."""
    return (*(_part(part) for part in re.findall(r"\d+|~|[A-Za-z]+", version)), (0, 0, ""))


def _part(part: str) -> tuple[int, int, str]:
    """Numbers after words after the end of the text after what comes before a release."""
    if part.isdigit():
        return (2, int(part), "")
    return (-1 if part in ("~", "rc") else 1, 0, part)


def kernels(tree: Tree) -> list[str]:
    """The versions that /boot has an image of, ascending; rescue images and backups are none."""
    found = (_KERNEL.fullmatch(name) for name in tree.names(BOOT))
    versions = {match.group(1) for match in found if match and not _LEFT_OVER.search(match.group(1))}
    return sorted((version for version in versions if "rescue" not in version), key=kernel_order)


def initrd_of(tree: Tree, version: str) -> str | None:
    """The path of the initial RAM disk of kernel VERSION."""
    names = set(tree.names(BOOT))
    wanted = [pattern.format(version) for pattern in _INITRD]
    return next((f"{BOOT}/{name}" for name in wanted if name in names), None)


def changed_at(root: str, path: str) -> float | None:
    """When PATH was changed, in seconds; None when it is absent or, as in recordings, has no time."""
    try:
        return os.stat(resolve(root, path)).st_mtime or None
    except (FileNotFoundError, NotADirectoryError):
        return None


def packages(text: str) -> list[Package]:
    """The packages of TEXT, dpkg's status file, that decide what the next boot is made of, removed ones not."""
    found = []
    for block in re.split(r"\n\n+", text):
        fields = dict(re.findall(r"(?m)^(Package|Version|Status):[ \t]*(.*)$", block))
        words = fields.get("Status", "").split()
        name = fields.get("Package", "")
        there = len(words) == 3 and words[2] not in ("not-installed", "config-files")
        if there and _OF_INTEREST.fullmatch(name):
            found.append(Package(name, fields.get("Version", ""), words[2]))
    return found


def image_version(package: Package) -> str | None:
    """The kernel version that PACKAGE brings an image of; None for a package that only depends on one."""
    match = re.fullmatch(r"linux-image-(?:unsigned-)?(\d.*?)(?:-unsigned|-dbg)?", package.name)
    if not match or package.name.endswith("-dbg"):
        return None
    return match.group(1)


def drivers(tree: Tree) -> Iterator[Driver]:
    """The drivers of DKMS: /var/lib/dkms/NAME/VERSION/KERNEL/ARCH/module."""
    for name in tree.names(DKMS):
        for version in tree.names(f"{DKMS}/{name}"):
            if version.startswith("kernel-") or not version[:1].isdigit():
                continue
            built = tree.names(f"{DKMS}/{name}/{version}")
            kernels_ = tuple(kernel for kernel in built if _has_module(tree, name, version, kernel))
            yield Driver(name, version, kernels_)


def _has_module(tree: Tree, name: str, version: str, kernel: str) -> bool:
    base = f"{DKMS}/{name}/{version}/{kernel}"
    return any(tree.names(f"{base}/{arch}/module") for arch in tree.names(base))


def loaded_version(tree: Tree, driver: str) -> str | None:
    """The version of the module of DRIVER that is loaded; None when it is not, or does not say."""
    names = [driver.replace("-", "_")] + (["nvidia"] if driver.startswith("nvidia") else [])
    return next((text for text in (tree.text(f"/sys/module/{name}/version") for name in names) if text), None)


def newest(versions: Iterable[str]) -> str | None:
    """The newest of kernel VERSIONS."""
    found = sorted(versions, key=kernel_order)
    return found[-1] if found else None
