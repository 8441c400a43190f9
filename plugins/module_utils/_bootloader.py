# SPDX-License-Identifier: Apache-2.0
"""Find out which boot loader a sysroot uses, by what is there; refuse what is not known to be right."""

from __future__ import annotations

import re

from ._boot_backend import Backend, running_line
from ._boot_bls import ENTRIES, PREFIX, BlsBackend
from ._boot_grub import GRUB_CFG, GrubBackend
from ._boot_systemd import SystemdBootBackend, efi_loader, loader_places
from ._boot_types import BootError
from ._files import exists, list_dir, read_text
from ._grub_default import DEFAULT, DROPINS, read_default

__all__ = ["Backend", "BootError", "detect", "running_line"]

_RHEL = {"rhel", "fedora", "centos", "rocky", "almalinux", "ol", "amzn", "scientific", "cloudlinux"}
_DEBIAN = {"debian", "ubuntu"}
_BIN = ("/usr/sbin", "/usr/bin", "/sbin")
_MKCONFIG = tuple(f"{folder}/{name}" for name in ("grub-mkconfig", "grub2-mkconfig") for folder in _BIN)
# What is there -> what it means.
_UNSUPPORTED = (
    ("/etc/zipl.conf", "zipl (s390)"),
    (
        "/etc/kernel/proxmox-boot-uuids",
        "proxmox-boot-tool, which copies the boot files to several partitions",
    ),
    ("/ostree/repo", "ostree, which owns the boot entries (rpm-ostree kargs)"),
    ("/run/ostree-booted", "ostree, which owns the boot entries (rpm-ostree kargs)"),
    ("/boot/extlinux/extlinux.conf", "extlinux"),
    ("/boot/syslinux/syslinux.cfg", "syslinux"),
    ("/boot/firmware/cmdline.txt", "the Raspberry Pi firmware"),
    ("/boot/limine.conf", "limine"),
    ("/boot/refind_linux.conf", "rEFInd"),
)


def detect(root: str = "/") -> Backend:
    """The back end for the sysroot ROOT. Raises BootError `unsupported_bootloader`, with what was seen.

    Only with ROOT `/` may the boot loader's tools run.
    """
    live = root == "/"
    for path, meaning in _UNSUPPORTED:
        if _there(root, path):
            raise BootError("unsupported_bootloader", f"the host boots with {meaning}", path)
    layout = _install_layout(root)
    if layout and layout[0] not in ("bls", "auto", "other"):
        raise BootError("unsupported_bootloader", f"kernel-install makes {layout[0]} images", layout[1])
    found: list[type[Backend]] = []
    refused: BootError | None = None
    try:
        if _bls(root):
            found.append(BlsBackend)
        elif _grub(root):
            found.append(GrubBackend)
    except BootError as exc:
        refused = exc
    if _systemd_boot(root):
        found.append(SystemdBootBackend)
    # A GRUB that is left over, whatever it is like, is no matter where systemd-boot ran.
    if refused and not _ran_systemd_boot(root):
        raise refused
    if len(found) > 1:
        found = [_arbitrate(root, found)]
    if not found:
        raise BootError("unsupported_bootloader", "neither GRUB nor systemd-boot was found")
    return found[0](root, live)


def _arbitrate(root: str, found: list[type[Backend]]) -> type[Backend]:
    """GRUB and systemd-boot are both installed: what ran says which one it is."""
    if _ran_systemd_boot(root):
        return SystemdBootBackend
    info = efi_loader(root)
    if info and info.lower().startswith("grub"):
        return found[0]
    raise BootError(
        "unsupported_bootloader",
        "GRUB and systemd-boot are both installed, and nothing tells which one boots",
    )


def _bls(root: str) -> bool:
    """GRUB that makes its menu of entry files (blscfg)."""
    grub = read_default(root, dropins=False)
    enabled = grub.flag("GRUB_ENABLE_BLSCFG")
    if enabled is False and "GRUB_ENABLE_BLSCFG" in grub.variables and not grub.error:
        return False
    entries = any(name.endswith(".conf") for name in _names(root, ENTRIES))
    grub2 = _there(root, PREFIX) or _there(root, "/usr/sbin/grubby") or _there(root, "/sbin/grubby")
    if entries and (grub2 or enabled):
        return True
    if entries or grub2:
        return bool(entries and _family(root) & _RHEL) or bool(enabled)
    return bool(enabled)


def _grub(root: str) -> bool:
    """GRUB with a grub.cfg made by a grub-mkconfig that reads the drop-ins."""
    family = _family(root)
    if not (_there(root, GRUB_CFG) or _there(root, DEFAULT)):
        return False
    if family & _RHEL and not family & _DEBIAN:
        raise BootError(
            "unsupported_bootloader",
            "GRUB of the RHEL family without boot entry files (GRUB_ENABLE_BLSCFG=false)",
        )
    for path in _MKCONFIG:
        script = read_text(root, path) if _there(root, path) else None
        if script is not None:
            if DROPINS.partition("/etc")[2] in script:
                return True
            name = path.rpartition("/")[2]
            raise BootError("unsupported_bootloader", f"{name} does not read {DROPINS}", path)
    # No script to look at: what the distribution is, or the name it gives GRUB, tells as much.
    elsewhere = _there(root, f"{PREFIX}/grub.cfg") and not _there(root, GRUB_CFG)
    if (family and not family & _DEBIAN) or elsewhere:
        what = "GRUB of a distribution other than Debian and its relatives" if family else f"GRUB below {PREFIX}"
        raise BootError("unsupported_bootloader", f"{what}: nothing shows that it reads {DROPINS}")
    return True


def _systemd_boot(root: str) -> bool:
    for place in loader_places(root):
        entries = any(name.endswith(".conf") for name in _names(root, f"{place}/loader/entries"))
        installed = any(
            name.lower().startswith("systemd-boot") for name in _names(root, f"{place}/EFI/systemd")
        )
        if installed or (entries and _there(root, f"{place}/loader/loader.conf")):
            return True
    return _ran_systemd_boot(root)


def _ran_systemd_boot(root: str) -> bool:
    return (efi_loader(root) or "").lower().startswith("systemd-boot")


def _family(root: str) -> set[str]:
    text = _text(root, "/etc/os-release") or _text(root, "/usr/lib/os-release") or ""
    words: set[str] = set()
    for _key, value in re.findall(r"^(ID|ID_LIKE)=(.*)$", text, re.MULTILINE):
        words.update(value.strip().strip("\"'").lower().split())
    return words


def _install_layout(root: str) -> tuple[str, str] | None:
    """layout= of install.conf(5) of kernel-install and its file."""
    for path in ("/etc/kernel/install.conf", "/usr/lib/kernel/install.conf"):
        match = re.search(r"^[ \t]*layout=[ \t]*(\S+)", _text(root, path) or "", re.MULTILINE)
        if match:
            return match.group(1), path
    return None


def _there(root: str, path: str) -> bool:
    try:
        return exists(root, path)
    except OSError:
        return False


def _names(root: str, path: str) -> list[str]:
    try:
        return list_dir(root, path) or []
    except OSError:
        return []


def _text(root: str, path: str) -> str | None:
    try:
        return read_text(root, path)
    except OSError:
        return None
