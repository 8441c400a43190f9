# SPDX-License-Identifier: GPL-3.0-or-later
"""Make of a host's tree what `sos report` would, by the copy specs and commands of its plugins.

No sosreport of a host of ours exists: this is made from a tree of the tests, by the documented layout. The specs are
those of sos 4.0's sos/report/plugins/*.py; the layout (version.txt, sos_commands/PLUGIN/COMMAND with `/` as `.` and
blanks as `_`, links at the top, /proc/self as a link to a number) is that of a report which sos 4.0 made elsewhere.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from support import put

PLUGINS: dict[str, tuple[str, ...]] = {
    "boot": (),
    "cgroups": ("/sys/fs/cgroup",),
    "filesys": ("/proc/mounts", "/proc/self/mounts", "/proc/self/mountinfo", "/proc/[0-9]*/mountinfo", "/etc/fstab"),
    "grub2": (
        *("/boot/efi/EFI/*/grub.cfg", "/boot/grub2/grub.cfg", "/boot/grub2/grubenv", "/boot/grub/grub.cfg"),
        *("/boot/loader/entries", "/etc/default/grub", "/etc/grub2.cfg", "/etc/grub.d"),
    ),
    "hardware": ("/proc/interrupts", "/proc/irq", "/proc/dma", "/proc/devices", "/sys/class/dmi/id/*"),
    "kernel": (
        *("/proc/modules", "/proc/sys/kernel/random/boot_id", "/sys/module/*/version", "/sys/firmware/acpi/*"),
        *("/proc/buddyinfo", "/proc/zoneinfo", "/etc/sysctl.conf", "/etc/sysctl.d", "/lib/sysctl.d", "/proc/cmdline"),
        "/sys/devices/system/clocksource/clocksource0/available_clocksource",
        "/sys/devices/system/clocksource/clocksource0/current_clocksource",
    ),
    "memory": (
        *("/proc/meminfo", "/proc/swaps", "/sys/kernel/mm/ksm", "/sys/kernel/mm/transparent_hugepage/enabled"),
        "/sys/kernel/mm/hugepages",
    ),
    "numa": (
        *(f"/sys/devices/system/node/node*/{name}" for name in ("meminfo", "cpulist", "distance")),
        "/sys/devices/system/node/node*/hugepages/hugepages-*/*",
    ),
    "pci": ("/proc/ioports", "/proc/iomem", "/proc/bus/pci"),
    "processor": ("/proc/cpuinfo", "/sys/class/cpuid", "/sys/devices/system/cpu"),
    "release": ("/etc/*release", "/etc/debian_version"),
    "system": ("/proc/sys", "/etc/sysconfig", "/etc/default", "/etc/environment"),
    "systemd": ("/etc/systemd", "/lib/systemd/system", "/lib/systemd/user", "/run/systemd/system"),
    "tuned": ("/etc/tuned", "/usr/lib/tuned"),
}
COMMANDS = {
    "filesys": {"mount_-l": "/dev/vda1 on / type ext4 (rw,relatime)\n", "findmnt": "TARGET SOURCE FSTYPE OPTIONS\n"},
    "kernel": {"sysctl_-a": "vm.swappiness = 0\n", "uname_-a": "Linux h 6.12.0-1-amd64 #1 SMP x86_64 GNU/Linux\n"},
    "memory": {"free": "Mem: 5000000\n", "free_-m": "Mem: 4882\n"},
    "numa": {"numactl_--hardware": "available: 2 nodes (0-1)\n"},
    "processor": {"lscpu": "Architecture: x86_64\nCPU(s): 4\n"},
    "systemd": {"systemctl_list-units": "UNIT LOAD ACTIVE SUB DESCRIPTION\n"},
}


def sosreport(host: Path, target: Path, without: tuple[str, ...] = ()) -> Path:
    """What sos would copy of HOST, as an unpacked report at TARGET; plugins that are WITHOUT did not run."""
    ran = [name for name in PLUGINS if name not in without]
    for specs in (PLUGINS[name] for name in ran):
        for spec in specs:
            for found in sorted(host.glob(spec.lstrip("/"))):
                _links_to(found, host, target)
                _copy(found.parent.resolve() / found.name, host, target)
    own = target / "proc/self"
    if own.is_dir():
        own.rename(target / "proc/5560")
        own.symlink_to("5560")
    for name in ran:
        for command, text in COMMANDS.get(name, {}).items():
            put(target, f"/sos_commands/{name}/{command}", text)
    if "boot" in ran:
        put(target, "/sos_commands/boot/ls_-lanR_.boot", "\n".join(_list(host / "boot", "/boot")))
    (target / "sos_commands").mkdir(parents=True, exist_ok=True)
    put(target, "/version.txt", "\n".join(["sosreport: 4.0", *(f"{name}: unversioned" for name in ran)]))
    put(target, "/sos_reports/manifest.json", '{"version": "4.0"}\n')
    put(target, "/sos_logs/sos.log", "INFO: [archive:TarFileArchive] initialised empty FileCacheArchive\n")
    return target


def _links_to(found: Path, host: Path, target: Path) -> None:
    """The links among the folders above FOUND, as sos keeps /lib and /sys/class/dmi/id."""
    for folder in found.parents:
        if folder.is_symlink():
            _copy(folder, host, target)
            return


def _copy(found: Path, host: Path, target: Path) -> None:
    """One file or folder, with links as they are; folders without a file in them are not made."""
    if found.is_symlink():
        there = target / found.relative_to(host)
        there.parent.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(there):
            there.symlink_to(os.readlink(found))
    elif found.is_dir():
        for child in sorted(found.iterdir()):
            _copy(child, host, target)
    elif found.is_file():
        there = target / found.relative_to(host)
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(found, there)


def _list(folder: Path, name: str) -> list[str]:
    """The lines of `ls -lanR FOLDER`, as if it were called NAME."""
    rows = [f"{name}:", "total 8", "drwxr-xr-x  3 0 0 4096 Nov 30 10:00 .", "drwxr-xr-x 19 0 0 4096 Nov 30 10:00 .."]
    children = sorted(folder.iterdir())
    for child in children:
        kind, link = ("l", f" -> {os.readlink(child)}") if child.is_symlink() else ("d" if child.is_dir() else "-", "")
        rows.append(f"{kind}rw-r--r--  1 0 0 {child.lstat().st_size:8} Nov 30 10:00 {child.name}{link}")
    for child in children:
        if child.is_dir() and not child.is_symlink():
            rows += ["", *_list(child, f"{name}/{child.name}")]
    return rows
