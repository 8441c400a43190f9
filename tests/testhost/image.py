# SPDX-License-Identifier: GPL-3.0-or-later
"""Debian images: built once by mmdebstrap, finished by a first boot, kept by the hash of their recipe."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import apt, probe, qemu
from .errors import HostError
from .paths import PACKAGE_DIR, hosts_dir, images_dir

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
_CUSTOMIZE = PACKAGE_DIR / "image"
FINISH_LIMIT = 420.0
BUILD_LIMIT = 1800.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Image:
    """A finished image: the raw disk, and the kernel out of it for ``ask``."""

    release: str
    directory: Path

    @property
    def disk(self) -> Path:
        return self.directory / "disk.raw"

    @property
    def kernel(self) -> Path:
        return self.directory / "vmlinuz"


def recipe_key(release: str) -> str:
    """Content hash of everything that decides what an image holds, except the mirror."""
    digest = hashlib.sha256(repr((release, PACKAGES, DISK_MIB, PARTITION_OFFSET, _EXCLUDED)).encode())
    for path in sorted(_CUSTOMIZE.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def image_of(release: str) -> Image:
    """The image of a release, built or not."""
    if release not in apt.RELEASES:
        raise HostError(f"no release {release!r}; known are: {', '.join(apt.RELEASES)}")
    return Image(release, images_dir() / f"{release}-{recipe_key(release)}")


def is_built(image: Image) -> bool:
    # The directory appears whole, by a rename.
    return image.directory.is_dir()


def mbr(partition_sectors: int) -> bytes:
    """A master boot record with one active Linux partition from PARTITION_OFFSET on."""
    start = PARTITION_OFFSET // 512
    entry = b"\x80\xfe\xff\xff\x83\xfe\xff\xff" + start.to_bytes(4, "little")
    entry += partition_sectors.to_bytes(4, "little")
    return bytes(440) + os.urandom(4) + bytes(2) + entry + bytes(48) + b"\x55\xaa"


@contextmanager
def _lock(say: Say) -> Iterator[None]:
    images_dir().mkdir(parents=True, exist_ok=True)
    with (images_dir() / ".lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another build runs; waiting for it")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _run(argv: list[str], log: Path, what: str, say: Say, environment: dict[str, str]) -> None:
    """Run a build step with its output in a log; the end of that log is in the error."""
    begin = time.monotonic()
    reported = begin
    with log.open("ab") as stream:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=environment,
            start_new_session=True,
        )
        try:
            while process.poll() is None:
                time.sleep(0.2)
                now = time.monotonic()
                if now - begin > BUILD_LIMIT:
                    raise HostError(f"{what} took longer than {BUILD_LIMIT:.0f} s:\n{qemu.tail(log)}")
                if now - reported >= 10:
                    reported = now
                    say(f"{what}: {now - begin:.0f} s ({qemu.tail(log, 1)[:100]})")
        finally:
            if process.poll() is None:
                _interrupt(process)
    if process.returncode != 0:
        raise HostError(f"{what} failed with status {process.returncode}:\n{qemu.tail(log)}")


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """Let mmdebstrap undo its mounts and remove its directory, then make sure that it is gone."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


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
    argv += [f"--customize-hook=copy-in {shlex.quote(str(_CUSTOMIZE))} /root"]
    argv += [
        f'--customize-hook=chroot "$1" env ROOT_UUID={root_uuid} sh /root/{_CUSTOMIZE.name}/customize.sh'
    ]
    argv += [f'--customize-hook=rm -r "$1/root/{_CUSTOMIZE.name}"']
    argv += [release, str(work / "root.tar")] + ([source.mirror] if source.mirror else [])
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    if os.geteuid() == 0:
        # In here it is removed with the rest if mmdebstrap is killed; only root may pass through it.
        environment["TMPDIR"] = str(work)
    say(f"{release}: installing {len(PACKAGES)} packages and what they need")
    _run(argv, work / "build.log", f"{release}: mmdebstrap", say, environment)


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
    _run(argv, work / "build.log", f"{release}: mke2fs", say, {**os.environ, "LC_ALL": "C.UTF-8"})


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


def build(release: str, say: Say, force: bool = False) -> Image:
    """The image of a release, built when it is not there. A failed or interrupted build leaves nothing."""
    image = image_of(release)
    if is_built(image) and not force:
        return image
    qemu.find_tools(qemu.QEMU, "qemu-img", "mmdebstrap", "mke2fs")
    with _lock(say):
        if is_built(image):
            if not force:
                return image
            if str(image.directory) in _used_images():
                raise HostError(f"hosts stand on {image.directory}; end them first: testhost down --all")
        for stale in images_dir().glob(".build-*"):
            shutil.rmtree(stale, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=".build-", dir=images_dir()))
        begin = time.monotonic()
        try:
            root_uuid = str(uuid.uuid4())
            _debootstrap(release, work, root_uuid, say)
            _extract_boot(work)
            _lay_out(release, work, root_uuid, say)
            _finish(release, work, say)
            work.chmod(0o755)
            facts = {
                "release": release,
                "key": recipe_key(release),
                "seconds": round(time.monotonic() - begin),
            }
            (work / "image.json").write_text(json.dumps(facts) + "\n")
            _remove_old(release)
            work.rename(image.directory)
        except BaseException:
            _remove_tree(work)
            raise
    say(f"{release}: built in {time.monotonic() - begin:.0f} s: {image.directory}")
    return image


def _remove_tree(work: Path) -> None:
    """Without root, unpacked files belong to other ids of the user namespace, and go by way of it."""
    if os.geteuid() != 0:
        argv = ["unshare", "--user", "--map-root-user", "--map-auto", "rm", "-rf", str(work)]
        subprocess.run(argv, check=False, stderr=subprocess.DEVNULL)
    shutil.rmtree(work, ignore_errors=True)


def _used_images() -> set[str]:
    """The images that the overlay of a host stands on."""
    used = set()
    for state in hosts_dir().glob("*/state.json"):
        try:
            used.add(str(json.loads(state.read_text())["image"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return used


def _remove_old(release: str) -> None:
    """Drop earlier images of the release that no host stands on."""
    used = _used_images()
    for directory in images_dir().glob(f"{release}-*"):
        if str(directory) not in used:
            shutil.rmtree(directory)
