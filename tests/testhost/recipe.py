# SPDX-License-Identifier: GPL-3.0-or-later
"""What an image is made of. The bytes of this file and of what it uses of image/ are the key images are kept by."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tarfile
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import apt, probe, qemu
from .errors import HostError
from .paths import PACKAGE_DIR
from .steps import run

PACKAGES = (
    "linux-image-amd64",
    "systemd-sysv",
    "dbus",
    "openssh-server",
    "python3",
    "udev",
    "kmod",
    "iproute2",
    "procps",
    "irqbalance",
    "zstd",
)  # fmt: skip
DISK_MIB = 4096
_EXCLUDED = ("doc", "man", "info", "locale")
CUSTOMIZE = PACKAGE_DIR / "image"
FINISH_LIMIT = 420.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Firmware:
    """What starts the machine, and with it the boot loader and the layout of the disk. ``partitions`` is a script of
    sfdisk(8); the root file system fills ``root_mib`` MiB from ``root_at_mib`` on, as partition ``root_number``."""

    name: str
    packages: tuple[str, ...]
    partitions: str
    root_number: int
    root_at_mib: int
    root_mib: int


FIRMWARES = {
    "bios": Firmware(
        name="bios",
        packages=("grub-pc",),
        # 1 MiB before the partition: the gap that GRUB's core image goes into.
        partitions=f"label: dos\nstart=1MiB, size={DISK_MIB - 1}MiB, type=83, bootable\n",
        root_number=1,
        root_at_mib=1,
        root_mib=DISK_MIB - 1,
    ),
    "uefi": Firmware(
        name="uefi",
        packages=("systemd-boot", "dosfstools"),
        # The last MiB holds the second copy of the table.
        partitions=f"label: gpt\nstart=1MiB, size=255MiB, type=U\nstart=256MiB, size={DISK_MIB - 257}MiB, type=L\n",
        root_number=2,
        root_at_mib=256,
        root_mib=DISK_MIB - 257,
    ),
}


def key(release: str, firmware: str) -> str:
    """Content hash of everything that decides what an image holds, except the mirror."""
    digest = hashlib.sha256(f"{release} {firmware}".encode())
    shared = (path for path in CUSTOMIZE.iterdir() if path.is_file())
    for path in (Path(__file__), *sorted(shared), *sorted((CUSTOMIZE / firmware).iterdir())):
        digest.update(b"\0" + path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def make(release: str, firmware: Firmware, work: Path, say: Say) -> None:
    """Make disk.raw, vmlinuz, initrd.img and, for UEFI, the firmware's variables in an empty directory."""
    root_uuid = str(uuid.uuid4())
    _debootstrap(release, firmware, work, root_uuid, say)
    _extract_boot(work)
    _lay_out(release, firmware, work, root_uuid, say)
    _finish(release, firmware, work, say)


def _debootstrap(release: str, firmware: Firmware, work: Path, root_uuid: str, say: Say) -> None:
    source = apt.host_source()
    if not source.keyrings:
        raise HostError(
            "no keyring of the Debian archive; on Debian or Ubuntu: apt-get install debian-archive-keyring"
        )
    argv = [qemu.find_tools("mmdebstrap")["mmdebstrap"], "--mode=auto", "--variant=minbase", "--format=tar"]
    packages = (*PACKAGES, *firmware.packages)
    argv += [f"--include={','.join(packages)}"]
    argv += [f"--keyring={path}" for path in source.keyrings]
    argv += [f"--aptopt={option}" for option in (*source.options, 'Acquire::Languages "none";')]
    argv += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _EXCLUDED]
    # Without root, the hooks run as an id that may not read this directory; mmdebstrap itself may.
    argv += [f"--customize-hook=copy-in {shlex.quote(str(CUSTOMIZE))} /root"]
    environ = f"env ROOT_UUID={root_uuid} FIRMWARE={firmware.name}"
    argv += [f'--customize-hook=chroot "$1" {environ} sh /root/{CUSTOMIZE.name}/customize.sh']
    argv += [f'--customize-hook=rm -r "$1/root/{CUSTOMIZE.name}"']
    argv += [release, str(work / "root.tar")] + ([source.mirror] if source.mirror else [])
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    if os.geteuid() == 0:
        # In here it is removed with the rest if mmdebstrap is killed; only root may pass through it.
        environment["TMPDIR"] = str(work)
    say(f"{release}: installing {len(packages)} packages and what they need")
    run(argv, work / "build.log", f"{release}: mmdebstrap", say, environment)


def partition(disk: Path, firmware: Firmware) -> None:
    """Make DISK, empty but for its partition table."""
    with disk.open("wb") as stream:
        stream.truncate(DISK_MIB << 20)
    argv = [qemu.find_tools("sfdisk")["sfdisk"], "--quiet", "--no-reread", "--no-tell-kernel", str(disk)]
    done = subprocess.run(argv, input=firmware.partitions, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise HostError(f"sfdisk: {done.stderr.strip()}")


def _lay_out(release: str, firmware: Firmware, work: Path, root_uuid: str, say: Say) -> None:
    """Turn the tarball into a raw disk. Neither a loop device nor a mount is needed: mke2fs fills the
    partition at its offset. Without root, a user namespace keeps the owners of the files; device nodes it
    cannot make, and nobody misses them: devtmpfs covers /dev."""
    mke2fs = qemu.find_tools("mke2fs")["mke2fs"]
    partition(work / "disk.raw", firmware)
    script = (
        "set -eu; mkdir root; tar -xf root.tar -C root --numeric-owner --exclude='./dev/*'; rm root.tar; "
        f"{mke2fs} -q -t ext4 -U {root_uuid} -L root -d root "
        f"-E offset={firmware.root_at_mib << 20},lazy_itable_init=0,lazy_journal_init=0 disk.raw {firmware.root_mib}M; "
        "rm -rf root"
    )
    prefix = [] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--map-auto"]
    say(f"{release}: writing the file system")
    argv = [*prefix, "sh", "-c", f"cd {shlex.quote(str(work))} && {script}"]
    run(argv, work / "build.log", f"{release}: mke2fs", say, {**os.environ, "LC_ALL": "C.UTF-8"})


def _extract_boot(work: Path) -> None:
    """Put the kernel and its initramfs beside the disk."""
    with tarfile.open(work / "root.tar") as archive:
        for member in archive:
            name = os.path.basename(member.name)
            for prefix, target in (("vmlinuz-", "vmlinuz"), ("initrd.img-", "initrd.img")):
                stream = archive.extractfile(member) if member.isfile() else None
                if name.startswith(prefix) and "/boot/" in f"/{member.name}" and stream:
                    with (work / target).open("wb") as out:
                        shutil.copyfileobj(stream, out)
    if not (work / "vmlinuz").exists() or not (work / "initrd.img").exists():
        raise HostError("the new system has no kernel or no initramfs in /boot")


def _finish(release: str, firmware: Firmware, work: Path, say: Say) -> None:
    """Boot the disk once, past its boot loader, to install that on it."""
    accel = probe.accelerator(work / "vmlinuz", say)
    log = work / "first-boot.log"
    argv = [qemu.find_tools(qemu.QEMU)[qemu.QEMU], *qemu.machine_args(accel)]
    argv += ["-cpu", "max,la57=off", "-smp", "2", "-m", "1024M", "-no-reboot", *qemu.serial_args(log)]
    argv += qemu.disk_args(work / "disk.raw", "raw")
    if firmware.name == "uefi":
        shutil.copyfile(qemu.uefi()[1], work / qemu.UEFI_VARIABLES)
        argv += qemu.uefi_args(work / qemu.UEFI_VARIABLES)
    argv += ["-kernel", str(work / "vmlinuz"), "-initrd", str(work / "initrd.img")]
    line = f"root=/dev/vda{firmware.root_number} console=ttyS0,115200 panic=-1 quiet"
    argv += ["-append", f"{line} init=/usr/local/sbin/firsttouch-finish"]
    say(f"{release}: first boot ({accel}), to install the boot loader")
    with qemu.foreground(argv) as guest:
        qemu.await_exit(guest, FINISH_LIMIT, log, f"{release}: first boot", say)
    if "firsttouch: image finished" not in log.read_text("utf-8", "replace"):
        raise HostError(
            f"{release}: the boot loader could not be installed; the serial log ends:\n{qemu.tail(log)}"
        )
