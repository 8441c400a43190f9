# SPDX-License-Identifier: GPL-3.0-or-later
"""What an image is made of. The bytes of this file and of image/ are the key that images are kept by."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import tarfile
import uuid
from collections.abc import Callable
from pathlib import Path

from . import apt, probe, qemu
from .errors import HostError
from .paths import PACKAGE_DIR
from .steps import run

PACKAGES = (
    "linux-image-amd64",
    "grub-pc",
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
# 1 MiB before the partition: the gap that GRUB's core image goes into.
PARTITION_OFFSET = 1 << 20
_EXCLUDED = ("doc", "man", "info", "locale")
CUSTOMIZE = PACKAGE_DIR / "image"
FINISH_LIMIT = 420.0

Say = Callable[[str], None]


def key(release: str) -> str:
    """Content hash of everything that decides what an image holds, except the mirror."""
    digest = hashlib.sha256(release.encode())
    for path in (Path(__file__), *sorted(CUSTOMIZE.iterdir())):
        digest.update(b"\0" + path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def make(release: str, work: Path, say: Say) -> None:
    """Make disk.raw, vmlinuz and initrd.img in an empty directory."""
    root_uuid = str(uuid.uuid4())
    _debootstrap(release, work, root_uuid, say)
    _extract_boot(work)
    _lay_out(release, work, root_uuid, say)
    _finish(release, work, say)


def mbr(partition_sectors: int) -> bytes:
    """A master boot record with one active Linux partition from PARTITION_OFFSET on."""
    start = PARTITION_OFFSET // 512
    entry = b"\x80\xfe\xff\xff\x83\xfe\xff\xff" + start.to_bytes(4, "little")
    entry += partition_sectors.to_bytes(4, "little")
    return bytes(440) + os.urandom(4) + bytes(2) + entry + bytes(48) + b"\x55\xaa"


def _debootstrap(release: str, work: Path, root_uuid: str, say: Say) -> None:
    source = apt.host_source()
    if not source.keyrings:
        raise HostError(
            "no keyring of the Debian archive; on Debian or Ubuntu: apt-get install debian-archive-keyring"
        )
    argv = [qemu.find_tools("mmdebstrap")["mmdebstrap"], "--mode=auto", "--variant=minbase", "--format=tar"]
    argv += [f"--include={','.join(PACKAGES)}"]
    argv += [f"--keyring={path}" for path in source.keyrings]
    argv += [f"--aptopt={option}" for option in (*source.options, 'Acquire::Languages "none";')]
    argv += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _EXCLUDED]
    # Without root, the hooks run as an id that may not read this directory; mmdebstrap itself may.
    argv += [f"--customize-hook=copy-in {shlex.quote(str(CUSTOMIZE))} /root"]
    argv += [f'--customize-hook=chroot "$1" env ROOT_UUID={root_uuid} sh /root/{CUSTOMIZE.name}/customize.sh']
    argv += [f'--customize-hook=rm -r "$1/root/{CUSTOMIZE.name}"']
    argv += [release, str(work / "root.tar")] + ([source.mirror] if source.mirror else [])
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    if os.geteuid() == 0:
        # In here it is removed with the rest if mmdebstrap is killed; only root may pass through it.
        environment["TMPDIR"] = str(work)
    say(f"{release}: installing {len(PACKAGES)} packages and what they need")
    run(argv, work / "build.log", f"{release}: mmdebstrap", say, environment)


def _lay_out(release: str, work: Path, root_uuid: str, say: Say) -> None:
    """Turn the tarball into a raw disk. Neither a loop device nor a mount is needed: mke2fs fills the
    partition at its offset. Without root, a user namespace keeps the owners of the files; device nodes it
    cannot make, and nobody misses them: devtmpfs covers /dev."""
    mke2fs = qemu.find_tools("mke2fs")["mke2fs"]
    disk = work / "disk.raw"
    sectors = (DISK_MIB << 20) // 512 - PARTITION_OFFSET // 512
    with disk.open("wb") as stream:
        stream.write(mbr(sectors))
        stream.truncate(DISK_MIB << 20)
    script = (
        "set -eu; mkdir root; tar -xf root.tar -C root --numeric-owner --exclude='./dev/*'; rm root.tar; "
        f"{mke2fs} -q -t ext4 -U {root_uuid} -L root -d root "
        f"-E offset={PARTITION_OFFSET},lazy_itable_init=0,lazy_journal_init=0 disk.raw {sectors // 2}k; "
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


def _finish(release: str, work: Path, say: Say) -> None:
    """Boot the disk once, past GRUB, to install GRUB on it."""
    accel = probe.accelerator(work / "vmlinuz", say)
    log = work / "first-boot.log"
    argv = [qemu.find_tools(qemu.QEMU)[qemu.QEMU], *qemu.machine_args(accel)]
    argv += ["-cpu", "max,la57=off", "-smp", "2", "-m", "1024M", "-no-reboot", *qemu.serial_args(log)]
    argv += qemu.disk_args(work / "disk.raw", "raw")
    argv += ["-kernel", str(work / "vmlinuz"), "-initrd", str(work / "initrd.img")]
    argv += [
        "-append",
        "root=/dev/vda1 console=ttyS0,115200 panic=-1 quiet init=/usr/local/sbin/firsttouch-finish",
    ]
    say(f"{release}: first boot ({accel}), to install GRUB")
    with qemu.foreground(argv) as guest:
        qemu.await_exit(guest, FINISH_LIMIT, log, f"{release}: first boot", say)
    if "firsttouch: image finished" not in log.read_text("utf-8", "replace"):
        raise HostError(f"{release}: GRUB could not be installed; the serial log ends:\n{qemu.tail(log)}")
