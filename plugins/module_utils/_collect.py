# SPDX-License-Identifier: Apache-2.0
"""Record a host as a small sysroot: the files our readers look at, scrubbed, as one tar archive in memory.

Only reads. Never opens anything but regular files, never waits for one, and stays within limits of size,
number and time; what is left out is listed in the archive's own manifest.
"""

from __future__ import annotations

import fnmatch
import io
import json
import os
import re
import stat
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from . import _collect_paths as paths
from ._collect_scrub import Scrubber
from ._files import inside, resolve
from ._kernel_packages import DPKG, packages
from ._threads import PROC, read_threads
from ._topology_host import MANIFEST
from ._tree import Tree

SCHEMA = 1
_LEVELS = 3
# Compressions in the order in which they are tried, with the mode of each.
_PACKED: tuple[tuple[str, Literal["w:xz", "w:gz"]], ...] = (("xz", "w:xz"), ("gz", "w:gz"))
_CONFIG = "/proc/config.gz"


@dataclass(frozen=True)
class Limits:
    """Bytes of one file and of all, number of entries, seconds."""

    file_bytes: int = 1 << 20
    total_bytes: int = 32 << 20
    entries: int = 100_000
    seconds: float = 60.0


@dataclass
class Recording:
    """The archive, compressed by `compression` (xz or gz), what it holds, what was left out and why."""

    archive: bytes
    compression: str
    entries: int
    skipped: dict[str, str]
    complete: bool


class _Full(Exception):
    """A limit was hit."""


@dataclass
class _Collector:
    root: str
    limits: Limits
    scrubber: Scrubber | None
    clock: Callable[[], float] = time.monotonic
    files: dict[str, tuple[str, bytes]] = field(
        default_factory=dict
    )  # path -> (kind, content or link target)
    skipped: dict[str, str] = field(default_factory=dict)
    reals: dict[str, str] = field(default_factory=dict)
    size: int = 0

    def __post_init__(self) -> None:
        self.tree = Tree(self.root)
        self.deadline = self.clock() + self.limits.seconds

    def name(self, path: str) -> str:
        """PATH as it is called in the recording."""
        return self.scrubber.path(path) if self.scrubber and not path.startswith(("/sys/", "/proc/")) else path

    def add(self, path: str, kind: str, content: bytes = b"") -> None:
        name = self.name(path)
        if name in self.files:
            return
        if len(self.files) >= self.limits.entries:
            raise _Full(f"more than {self.limits.entries} entries")
        if self.size + len(content) > self.limits.total_bytes:
            raise _Full(f"more than {self.limits.total_bytes} bytes")
        if self.clock() > self.deadline:
            raise _Full(f"took more than {self.limits.seconds:g} s")
        self.size += len(content)
        self.files[name] = (kind, content)

    def real(self, path: str) -> str:
        """The path of PATH without links, inside the root; each link on the way is recorded as it is."""
        known = self.reals.get(path)
        if known is not None:
            return known
        head, _slash, tail = path.rpartition("/")
        here = f"{self.real(head)}/{tail}" if head else path
        target = None if here == "/proc/self" else self._link(here)  # that is the number of this process
        if target is not None:
            self.add(here, "link", os.fsencode(target))
            there = inside(self.root, resolve(self.root, here))
            here = self.real(there) if there != here else here
        self.reals[path] = here
        return here

    def _link(self, path: str) -> str | None:
        try:
            return os.readlink(self._beside(path))
        except OSError:
            return None

    def content(self, path: str) -> None:
        status = self._status(path)
        if status is None or not stat.S_ISREG(status.st_mode) or not status.st_mode & 0o444:
            self._dangling(path)
            return
        real = self.real(path)
        if any(fnmatch.fnmatchcase(name, pattern) for name in (path, real) for pattern in paths.NEVER):
            return
        data = self.tree.data(real)
        if data is None:
            return
        if len(data) > self.limits.file_bytes:
            self.skipped[real] = f"larger than {self.limits.file_bytes} bytes"
            return
        if self.scrubber:
            data = self.scrubber.data(real, data)
        self.add(real, "script" if status.st_mode & 0o111 else "file", data)

    def _dangling(self, path: str) -> None:
        """A link to a device or to nothing says something too: sysctl.d and systemd mask files by one."""
        if path.startswith(("/etc/", "/run/", "/usr/lib/")) and self._link(path) is not None:
            self.link(path)

    def presence(self, path: str) -> None:
        if self._status(path) is not None:
            self.add(self.real(path), "file")

    def directory(self, path: str) -> None:
        status = self._status(path)
        if status is not None and stat.S_ISDIR(status.st_mode):
            self.add(self.real(path), "dir")

    def link(self, path: str) -> None:
        head, _slash, tail = path.rpartition("/")
        target = self._link(path)
        if target is not None:
            self.add(f"{self.real(head)}/{tail}", "link", os.fsencode(target))

    def _status(self, path: str) -> os.stat_result | None:
        try:
            return os.stat(resolve(self.root, path) if self._link(path) else self._beside(path))
        except PermissionError as exc:  # the directory is closed: whether it is there cannot be told
            self.skipped[path] = exc.strerror or str(exc)
            return None
        except OSError:
            return None

    def _beside(self, path: str) -> str:
        head, _slash, tail = path.rpartition("/")
        return os.path.join(self.tree.directory(head), tail)

    def expand(self, pattern: str) -> Iterator[str]:
        """The paths that match PATTERN, in order."""
        found = [""]
        for part in pattern.strip("/").split("/"):
            if part == "**":
                found = [path for base in found for path in self._below(base, _LEVELS)]
            elif any(letter in part for letter in "*?["):
                names = ((base, name) for base in found for name in self.tree.names(base))
                found = [f"{base}/{name}" for base, name in names if fnmatch.fnmatchcase(name, part)]
            else:
                found = [f"{base}/{part}" for base in found]
        yield from found

    def _below(self, base: str, levels: int) -> Iterator[str]:
        for name in self.tree.names(base):
            path = f"{base}/{name}"
            status = self._status(path)
            if status is not None and stat.S_ISDIR(status.st_mode):
                if levels > 1 and self._link(path) is None:
                    yield from self._below(path, levels - 1)
            else:
                yield path

    def mounts(self) -> None:
        """Mount units of hugetlbfs, whatever they are called, with what changes and enables them."""
        units = {
            path.rpartition("/")[2]
            for base in paths.UNIT_DIRS
            for path in self.expand(f"{base}/*.mount")
            if "hugetlbfs" in (self.tree.text(path) or "")
        }
        for name in sorted(units):
            words = name.split("-")
            above = ["-".join(words[:count]) + "-.mount" for count in range(1, len(words))]
            for base in (*paths.CONTROL_DIRS, *paths.UNIT_DIRS):
                for unit in (name, *above):
                    for path in (f"{base}/{unit}", *self.expand(f"{base}/{unit}.d/*.conf")):
                        self.content(path)
                for path in self.expand(f"{base}/*.wants/*.mount"):
                    if path.rpartition("/")[2] == name:
                        self.link(path)

    def dpkg(self) -> None:
        """Of dpkg's status only the packages that our readers know: all of it is large, and tells what runs here."""
        text = self.tree.text(DPKG)
        if text is None:
            return
        rows = [
            f"Package: {row.name}\nStatus: install ok {row.state}\nVersion: {row.version}\n" for row in packages(text)
        ]
        self.add(DPKG, "file", "\n".join(rows).encode("utf-8", "surrogateescape"))

    def irqbalance(self) -> None:
        """Of the environment of irqbalance only its own variables."""
        for pid in " ".join(self.tree.text(path) or "" for path in paths.IRQBALANCE_PROCS).split():
            environ = self.tree.data(f"{PROC}/{pid}/environ") if pid.isdigit() else None
            if environ is not None:
                kept = [part for part in environ.split(b"\0") if part.startswith(b"IRQBALANCE_")]
                self.add(f"{PROC}/{pid}/environ", "file", b"\0".join(kept))

    def threads(self) -> None:
        """The state of each thread on an isolated CPU, and of the kernel's own for RCU; nothing where some are hidden.

        A recording of a part of them would pass for all.
        """
        isolated = self.tree.ids(f"{paths.CPU}/isolated")
        if not isolated:
            return
        seen = read_threads(self.tree, live=os.path.realpath(self.root) == "/")
        if seen.hidden:
            self.skipped[f"{PROC}/*/task"] = f"{seen.hidden[0]}: {seen.hidden[1]}"
            return
        for thread in seen.found:
            base = f"{PROC}/{thread.pid}/task/{thread.tid}"
            if thread.cpu in isolated or (thread.kernel and thread.command.startswith("rcuo")):
                self.content(f"{base}/stat")
                if not thread.kernel:
                    self._status_of(base)
                    self.content(f"{PROC}/{thread.pid}/cgroup")

    def _status_of(self, base: str) -> None:
        """Which CPUs a thread may run on; the rest of its status is nobody's business."""
        lines = (self.tree.text(f"{base}/status") or "").splitlines()
        kept = [line for line in lines if line.startswith(("Name:", "Cpus_allowed_list:"))]
        if kept:
            text = "\n".join(kept) + "\n"
            text = self.scrubber.text(f"{base}/status", text) if self.scrubber else text
            self.add(f"{base}/status", "file", text.encode("utf-8", "surrogateescape"))

    def config(self) -> None:
        """The running kernel's own configuration, compressed as it is, where no file of /boot says the same."""
        release = self.tree.text("/proc/sys/kernel/osrelease")
        data = None if f"/boot/config-{release}" in self.files else self.tree.data(_CONFIG)
        if data is not None:
            self.add(_CONFIG, "file", data)

    def unread(self) -> None:
        """What is there and could not be read: a link to itself, which each reader finds, and cannot read either.

        Without it the recording of a user would say that these files are not there.
        """
        own = re.compile(rf"{PROC}/\d+/")  # a process that ended meanwhile, or that belongs to somebody else
        for path, why in self.tree.trouble.items():
            if not own.match(path) and self.name(path) not in self.files:  # what is not understood is recorded
                self.skipped.setdefault(path, why)
        closed: list[str] = []
        for path in sorted(self.skipped):
            head, _slash, tail = path.rpartition("/")
            name = self.name(path)
            if "*" in path or any(name.startswith(f"{above}/") for above in closed):
                continue
            if not any(other.startswith(f"{name}/") for other in self.files):
                self.add(f"{self.real(head)}/{tail}", "link", os.fsencode(name.rpartition("/")[2]))
                closed.append(name)

    def run(self) -> str | None:
        """Record everything; return why it stopped early, if it did."""
        steps = (
            (paths.CONTENT, self.content),
            (paths.DIRECTORIES, self.directory),
            (paths.PRESENCE, self.presence),
            (paths.LINKS, self.link),
        )
        try:
            for patterns, record in steps:
                for pattern in patterns:
                    for path in self.expand(pattern):
                        record(path)
            self.mounts()
            self.dpkg()
            self.config()
            self.irqbalance()
            self.threads()
            self.unread()
        except _Full as exc:
            return str(exc)
        return None


def collect(root: str = "/", *, scrub: bool = True, limits: Limits | None = None) -> Recording:
    """Record the host below ROOT. With SCRUB, host names, addresses, ids, serials, people and secrets go.

    Never raises for what a host shows; what could not be read is in `skipped`, and a limit that was hit makes
    the recording incomplete.
    """
    tree = Tree(root)
    names = [
        tree.text(path) or ""
        for path in ("/proc/sys/kernel/hostname", "/etc/hostname", "/proc/sys/kernel/domainname")
    ]
    keep = f"{tree.text('/proc/sys/kernel/osrelease')} {tree.text('/proc/version')}"
    collector = _Collector(root, limits or Limits(), Scrubber(names, keep) if scrub else None)
    stopped = collector.run()
    skipped = {collector.name(path): why for path, why in collector.skipped.items()}
    manifest: dict[str, object] = {
        "schema": SCHEMA,
        "scrubbed": scrub,
        "complete": stopped is None,
        "stopped": stopped,
        "skipped": skipped,
    }
    if os.path.realpath(root) == "/":
        manifest["page_size_bytes"] = os.sysconf("SC_PAGE_SIZE")
        manifest["arch"] = os.uname().machine
    text = json.dumps(manifest, indent=1, sort_keys=True) + "\n"
    archive, compression = _pack({**collector.files, MANIFEST: ("file", text.encode())})
    return Recording(archive, compression, len(collector.files), skipped, stopped is None)


def _pack(files: dict[str, tuple[str, bytes]]) -> tuple[bytes, str]:
    """A reproducible archive: sorted, no times, no owners; xz where this Python has it."""
    for compression, mode in _PACKED:
        buffer = io.BytesIO()
        try:
            with tarfile.open(fileobj=buffer, mode=mode, format=tarfile.GNU_FORMAT) as tar:
                for path in sorted(files):
                    _add(tar, path, *files[path])
        except tarfile.CompressionError:
            continue
        return buffer.getvalue(), compression
    raise RuntimeError("this Python can compress neither with xz nor with gz")


def _add(tar: tarfile.TarFile, path: str, kind: str, content: bytes) -> None:
    info = tarfile.TarInfo(path.lstrip("/"))
    info.mode = 0o755 if kind in ("dir", "script") else 0o644
    if kind == "link":
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, os.fsdecode(content), 0o777
        tar.addfile(info)
    elif kind == "dir":
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
    else:
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
