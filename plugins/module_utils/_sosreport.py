# SPDX-License-Identifier: Apache-2.0
"""An unpacked sosreport as a sysroot: which files of the host it would hold, had the host had them.

`sos report` copies files to their own path, and what it does not copy is not there either. So a file that is missing
was missing on the host only where sos copies such files; of every other one nothing is known. The table is of the
plugins of sos 4.0 (sos/report/plugins); what newer versions copy beside that is known where it is there.
"""

from __future__ import annotations

import errno
import fnmatch
import functools
import os
import re

VERSION = "version.txt"
COMMANDS = "sos_commands"
UNKNOWN = "not in the sosreport"
# A last component `**` is everything below; `*` is one component. Both /lib and /usr/lib: one may be a link.
_COPIED: dict[str, tuple[str, ...]] = {
    "kernel": (
        *("/proc/cmdline", "/proc/buddyinfo", "/proc/zoneinfo", "/proc/modules", "/proc/sys/kernel/random/boot_id"),
        *("/etc/sysctl.conf", "/etc/sysctl.d/**", "/lib/sysctl.d/**", "/usr/lib/sysctl.d/**"),
        *("/sys/module/*/version", "/sys/firmware/acpi/*"),
        *(f"/sys/devices/system/clocksource/clocksource0/{name}_clocksource" for name in ("available", "current")),
    ),
    "memory": (
        *("/proc/meminfo", "/proc/swaps", "/sys/kernel/mm/hugepages/**"),
        "/sys/kernel/mm/transparent_hugepage/enabled",
    ),
    "processor": ("/proc/cpuinfo", "/sys/devices/system/cpu/**"),
    "numa": (
        *(f"/sys/devices/system/node/node*/{name}" for name in ("meminfo", "cpulist", "distance")),
        "/sys/devices/system/node/node*/hugepages/hugepages-*/*",
    ),
    "system": ("/proc/sys/**", "/etc/sysconfig/**", "/etc/default/**"),
    "hardware": ("/proc/interrupts", "/proc/irq/**", "/sys/class/dmi/id/*", "/sys/devices/virtual/dmi/id/*"),
    "filesys": (
        *("/proc/self/mountinfo", "/proc/self/mounts", "/proc/mounts", "/etc/fstab"),
        *("/proc/[0-9]*/mountinfo", "/proc/[0-9]*/mounts"),
    ),
    "grub2": (
        *("/boot/efi/EFI/*/grub.cfg", "/boot/grub2/grub.cfg", "/boot/grub2/grubenv", "/boot/grub/grub.cfg"),
        *("/boot/loader/entries/*", "/etc/default/grub", "/etc/grub.d/**"),
    ),
    "systemd": (
        *("/etc/systemd/**", "/lib/systemd/system/**", "/usr/lib/systemd/system/**", "/run/systemd/system/**"),
    ),
    "tuned": ("/etc/tuned/**", "/usr/lib/tuned/**"),
    "cgroups": ("/sys/fs/cgroup/**",),
    "pci": ("/proc/iomem", "/proc/bus/pci/**"),
    "release": ("/etc/*release", "/etc/debian_version"),
}
# What `ls -lanR /boot` tells of a folder: eight columns, then the name.
_LS_ROW = re.compile(r"[-bcdlps]\S{9,10}\s+(?:\S+\s+){7}(?P<name>\S.*?)(?: -> .*)?")
# Ours, in trees that our own collector made.
_OURS = "/firsttouch-recording.json"
# Copied up to a limit of bytes: whoever has no such folder was left out, and not without one.
_LIMITED = re.compile(r"(/sys/devices/system/cpu/cpu\d+)/(?:topology|cache)(?:/.*)?")


class Sosreport:
    """What the sosreport at ROOT would hold; PLUGINS are those that ran."""

    def __init__(self, root: str, plugins: frozenset[str]) -> None:
        self.root = root
        patterns = [pattern for name, copied in _COPIED.items() if name in plugins for pattern in copied]
        self._parts = [pattern.strip("/").split("/") for pattern in patterns]
        self._boot = self._boot_names()
        self._no_efi = not self._mounted("/efi")

    def _boot_names(self) -> dict[str, list[str]]:
        """The names in each folder below /boot by `ls -lanR /boot`; none where there is no complete answer."""
        for plugin in ("boot", "grub2"):
            text = self._text(f"{COMMANDS}/{plugin}/ls_-lanR_.boot")
            if text.startswith("/boot:\n") and not re.search(r"(?m)^ls: ", text):
                blocks = (block.split("\n") for block in re.split(r"\n\n+", text.rstrip("\n")))
                return {rows[0].rstrip(":"): _ls_names(rows[1:]) for rows in blocks}
        return {}

    def _mounted(self, path: str) -> bool:
        """Whether something is mounted at PATH; also where nothing tells of mounts."""
        text = self._text("proc/self/mountinfo") or self._text("proc/mounts")
        rows = [fields for fields in map(str.split, text.splitlines()) if len(fields) > 4]
        points = [fields[4] if fields[0].isdigit() else fields[1] for fields in rows]
        return not points or path in points

    def _text(self, path: str) -> str:
        try:
            with open(os.path.join(self.root, path), encoding="utf-8", errors="surrogateescape") as handle:
                return handle.read(1 << 24)
        except OSError:
            return ""

    def names(self, path: str) -> list[str]:
        """The names in PATH, a folder below /boot, that the report tells of without having the files."""
        return self._boot.get(path, [])

    def covers(self, path: str) -> bool:
        """Whether PATH would be there if the host had it; a folder counts where some file in it would."""
        if path == _OURS or (self._no_efi and f"{path}/".startswith("/efi/")):
            return True
        folder, _slash, name = path.rpartition("/")
        while folder.startswith("/boot"):
            if folder in self._boot and name not in self._boot[folder]:
                return True
            folder, _slash, name = folder.rpartition("/")
        limited = _LIMITED.fullmatch(path)
        if limited and not os.path.lexists(f"{self.root}{limited.group(1)}/topology"):
            return False
        parts = [part for part in path.split("/") if part]
        return any(_leads(parts, pattern) for pattern in self._parts)

    def lists(self, path: str) -> bool:
        """Whether every name in the folder PATH that is looked for there would be there."""
        if path in self._boot:
            return True
        parts = [part for part in path.split("/") if part]
        return any(_leads(parts, pattern) and _open_at(pattern, len(parts)) for pattern in self._parts)

    def check(self, path: str) -> None:
        """Raise OSError(ENODATA) where PATH, which is not there, may be on the host."""
        if not self.covers(path):
            raise _unknown(path)

    def check_listing(self, path: str) -> None:
        """Raise OSError(ENODATA) where the folder PATH may have more names on the host."""
        if not self.lists(path):
            raise _unknown(path)


def _ls_names(rows: list[str]) -> list[str]:
    found = (match["name"] for match in map(_LS_ROW.fullmatch, rows) if match)
    return [name for name in found if name not in (".", "..")]


def _unknown(path: str) -> OSError:
    return OSError(errno.ENODATA, UNKNOWN, path)


def _leads(parts: list[str], pattern: list[str]) -> bool:
    """Whether PARTS are a path of PATTERN, or a folder on the way to one."""
    if pattern[-1] == "**" and len(parts) >= len(pattern):
        parts, pattern = parts[: len(pattern) - 1], pattern[:-1]
    return len(parts) <= len(pattern) and all(map(fnmatch.fnmatchcase, parts, pattern))


def _open_at(pattern: list[str], depth: int) -> bool:
    """Whether PATTERN takes all names at DEPTH of its kind: `*release` of /etc is of none that is looked for."""
    if depth >= len(pattern):
        return True
    part = pattern[depth]
    return part in ("*", "**") or (part[0] != "*" and any(letter in part for letter in "*["))


@functools.lru_cache(maxsize=8)
def of(root: str) -> Sosreport | None:
    """The sosreport whose files lie directly below the real path ROOT; None for any other tree."""
    if root == "/" or not os.path.isdir(os.path.join(root, COMMANDS)):
        return None
    try:
        with open(os.path.join(root, VERSION), encoding="utf-8", errors="replace") as handle:
            lines = handle.read(1 << 16).splitlines()
    except OSError:
        return None
    if not lines or not lines[0].startswith("sosreport:"):
        return None
    named = {line.partition(":")[0].strip() for line in lines[1:]}
    # Newer versions may list no plugins there: one that ran a command has a folder of it.
    return Sosreport(root, frozenset({*named, *os.listdir(os.path.join(root, COMMANDS))}))
