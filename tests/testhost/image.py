# SPDX-License-Identifier: GPL-3.0-or-later
"""Debian images: built once, kept by the hash of their recipe, dropped when the recipe changes."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import apt, qemu, recipe, room
from .errors import HostError
from .paths import cache_dir, hosts_dir, images_dir

Say = Callable[[str], None]
# The archive of the new system beside what it unpacks to and the disk that takes it.
BUILD_MIB = 3072


@dataclass(frozen=True)
class Image:
    """A finished image: the raw disk, and the kernel out of it for ``ask``."""

    release: str
    firmware: str
    directory: Path

    @property
    def disk(self) -> Path:
        return self.directory / "disk.raw"

    @property
    def kernel(self) -> Path:
        return self.directory / "vmlinuz"


def image_of(release: str, firmware: str = "bios") -> Image:
    """The image of a release for a firmware, built or not."""
    if release not in apt.RELEASES:
        raise HostError(f"no release {release!r}; known are: {', '.join(apt.RELEASES)}")
    if firmware not in recipe.FIRMWARES:
        raise HostError(f"no firmware {firmware!r}; known are: {', '.join(recipe.FIRMWARES)}")
    return Image(
        release, firmware, images_dir() / f"{_stem(release, firmware)}{recipe.key(release, firmware)}"
    )


def _stem(release: str, firmware: str) -> str:
    """What the directories of a release and firmware, of whatever recipe, begin with; and no other's."""
    return f"{release}-" if firmware == "bios" else f"{firmware}-{release}-"


def is_built(image: Image) -> bool:
    # The directory appears whole, by a rename.
    return image.directory.is_dir()


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


def build(release: str, say: Say, force: bool = False, firmware: str = "bios") -> Image:
    """The image of a release, built when it is not there. A failed or interrupted build leaves nothing."""
    image = image_of(release, firmware)
    if is_built(image) and not force:
        return image
    qemu.find_tools(qemu.QEMU, "qemu-img", "mmdebstrap", "mke2fs", "sfdisk")
    if firmware == "uefi":
        qemu.uefi()
    room.need(cache_dir(), BUILD_MIB, "building an image")
    with _lock(say):
        if is_built(image):
            if not force:
                return image
            if str(image.directory) in _used_images():
                raise HostError(f"hosts stand on {image.directory}; end them first: testhost down --all")
        for stale in images_dir().glob(".build-*"):
            _remove_tree(stale)
        work = Path(tempfile.mkdtemp(prefix=".build-", dir=images_dir()))
        begin = time.monotonic()
        try:
            recipe.make(release, recipe.FIRMWARES[firmware], work, say)
            work.chmod(0o755)
            facts = {
                "release": release,
                "firmware": firmware,
                "key": recipe.key(release, firmware),
                "seconds": round(time.monotonic() - begin),
            }
            (work / "image.json").write_text(json.dumps(facts) + "\n")
            _remove_old(release, firmware)
            work.rename(image.directory)
        except BaseException:
            _remove_tree(work)
            raise
    say(f"{release} ({firmware}): built in {time.monotonic() - begin:.0f} s: {image.directory}")
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


def _remove_old(release: str, firmware: str) -> None:
    """Drop earlier images of the release and firmware that no host stands on."""
    used = _used_images()
    for directory in images_dir().glob(f"{_stem(release, firmware)}*"):
        if str(directory) not in used:
            shutil.rmtree(directory)
