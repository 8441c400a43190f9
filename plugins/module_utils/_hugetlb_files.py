# SPDX-License-Identifier: Apache-2.0
"""Files on hugetlbfs mounts and who holds them: a file keeps its pages after the last process that used it.

Documentation/admin-guide/mm/hugetlbpage.rst; st_blocks of a hugetlbfs file counts the pages that it has
(fs/hugetlbfs/inode.c), st_size those that it may have reserved.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ._files import inside, resolve
from ._mounts import Mount, parse_mounts, read_mounts
from ._threads import read_threads
from ._topology_host import read_host
from ._tree import Tree

PROC = "/proc"
_MOST_FILES = 20_000
_GONE = (errno.ENOENT, errno.ESRCH, errno.ENOTDIR)
# Temporary names of the runtime's weight loader; more may be given as patterns with {pid}.
PATTERNS = (".tmp.{boot_id}.{pid}.{starttime}",)
_FIELDS = {"boot_id": r"[0-9a-f-]{32,36}", "pid": r"(?P<pid>[0-9]{1,7})", "starttime": r"[0-9]+"}

# The first bytes of a model that the runtime loaded: it waits for its workers, and is nobody's remains.
IMAGE_MAGIC = b"FTWEIGHT"

Key = tuple[int, int]


@dataclass(frozen=True)
class HugeFile:
    """One file: `key` is (device, inode); `bytes` are the pages it has, `size` its length in bytes."""

    path: str
    key: Key
    bytes: int
    size: int
    page_size: int | None
    uid: int

    @property
    def pages(self) -> int | None:
        """Pages that it has, None where the page size of its mount is not known."""
        return -(-self.bytes // self.page_size) if self.page_size else None


@dataclass
class Listing:
    """The files that could be seen; `refused` are directories that could not be read, with the reason."""

    files: list[HugeFile] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Held:
    """Which files some process has open or mapped; `hidden` (reason, path): not every process could be asked."""

    keys: frozenset[Key]
    hidden: tuple[str, str] | None = None


def list_files(root: str, mounts: Iterable[Mount], live: bool) -> Listing:
    """The non-empty files below MOUNTS, each once, by path; what another mount covers cannot be listed.

    On a recorded host (not LIVE) a file has the pages of its length.
    """
    listing = Listing()
    seen: set[Key] = set()
    for mount in mounts:
        if mount.covered:
            listing.refused[mount.path] = "covered"
            continue
        for path, found in _walk(root, mount.path, listing.refused):
            key = (found.st_dev, found.st_ino)
            if key in seen or not found.st_size:
                continue
            if len(seen) >= _MOST_FILES:
                listing.refused[mount.path] = "too_many_files"
                break
            seen.add(key)
            size = found.st_blocks * 512 if live else found.st_size
            file = HugeFile(path, key, size, found.st_size, mount.page_size, found.st_uid)
            listing.files.append(file)
    listing.files.sort(key=lambda file: file.path)
    return listing


def _walk(root: str, top: str, refused: dict[str, str]) -> Iterator[tuple[str, os.stat_result]]:
    """(path inside ROOT, lstat) of the regular files below TOP, on TOP's own filesystem only."""

    def refuse(exc: OSError) -> None:
        if exc.errno != errno.ENOENT:
            path = inside(root, str(exc.filename or top))
            refused[path] = "permission_denied" if isinstance(exc, PermissionError) else "unreadable"

    real = resolve(root, top)
    try:
        device = os.stat(real).st_dev
    except OSError as exc:
        refuse(exc)
        return
    for parent, directories, names in os.walk(real, onerror=refuse):
        directories[:] = [name for name in directories if _device(os.path.join(parent, name)) == device]
        for name in names:
            try:
                found = os.lstat(os.path.join(parent, name))
            except OSError as exc:
                refuse(exc)
                continue
            if stat.S_ISREG(found.st_mode):
                yield inside(root, os.path.join(parent, name)), found


def _device(path: str) -> int | None:
    try:
        return os.lstat(path).st_dev
    except OSError:
        return None


def is_image(root: str, file: HugeFile) -> bool:
    """Whether FILE is a model of the runtime; False when it cannot be read. A hole reads as zeros, at no cost."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(resolve(root, file.path), flags)
    except OSError:
        return False
    try:
        return os.read(fd, len(IMAGE_MAGIC)) == IMAGE_MAGIC
    except OSError:
        return False
    finally:
        os.close(fd)


def holders(root: str, files: Iterable[HugeFile], live: bool) -> Held:
    """Which of FILES a process has open or mapped, by /proc/PID/fd and /proc/PID/maps of every process.

    On a recorded host (not LIVE) a process of which these are not recorded is hidden.
    """
    wanted = {file.key for file in files}
    found: set[Key] = set()
    tree = Tree(root)
    hidden = read_threads(tree, True).hidden if live else None
    pids = process_ids(tree)
    if not pids:
        hidden = ("not_recorded", PROC)
    for pid in pids:
        for what, ask in (("maps", _mapped), ("fd", _opened)):
            try:
                found |= ask(root, pid, wanted, live)
            except OSError as exc:
                hidden = hidden or _refused(exc, f"{PROC}/{pid}/{what}", live)
    return Held(frozenset(found), hidden)


def process_ids(tree: Tree) -> list[int]:
    """The processes of TREE, ascending."""
    return sorted(int(name) for name in tree.names(PROC) if name.isdigit())


def _refused(exc: OSError, path: str, live: bool) -> tuple[str, str] | None:
    if isinstance(exc, PermissionError):
        return "permission_denied", path
    if exc.errno in _GONE:
        return None if live else ("not_recorded", path)
    return "unreadable", path


def _mapped(root: str, pid: int, wanted: set[Key], live: bool) -> set[Key]:
    """The keys of WANTED that process PID has mapped. Raises OSError."""
    places = {
        (f"{os.major(device):02x}:{os.minor(device):02x}".encode(), str(inode).encode()): (device, inode)
        for device, inode in wanted
    }
    devices = tuple({device for device, _inode in places})
    found = set()
    with open(resolve(root, f"{PROC}/{pid}/maps"), "rb") as stream:
        for line in stream:
            if not any(device in line for device in devices):
                continue  # most lines of a large process, quickly
            fields = line.split(None, 5)
            if len(fields) > 4 and (fields[3], fields[4]) in places:
                found.add(places[fields[3], fields[4]])
    return found


def _opened(root: str, pid: int, wanted: set[Key], live: bool) -> set[Key]:
    """The keys of WANTED that process PID has a descriptor of. Raises OSError."""
    folder = f"{PROC}/{pid}/fd"
    found = set()
    for name in os.listdir(resolve(root, folder)):
        # Of a running process the link itself leads to the file, whatever its text says.
        path = f"{folder}/{name}" if live else resolve(root, f"{folder}/{name}")
        try:
            status = os.stat(path)
        except OSError as exc:
            if exc.errno in (*_GONE, errno.ELOOP):
                continue
            raise
        if (status.st_dev, status.st_ino) in wanted:
            found.add((status.st_dev, status.st_ino))
    return found


@dataclass(frozen=True)
class Elsewhere:
    """hugetlbfs mounts that only other mount namespaces have: {path: a process that sees it}.

    `refused`: the file of a process that did not tell its namespace, so that there may be more.
    """

    mounts: dict[str, int]
    refused: str = ""


def other_namespaces(root: str) -> Elsewhere:
    """What is mounted elsewhere; of each namespace one process is asked.

    A hugetlbfs that is also mounted here, by its device number, is none. A recording has no namespaces.
    """
    tree = Tree(root)
    here = {device for device, _path in _hugetlbfs(tree.text(f"{PROC}/self/mountinfo") or "")}
    asked: set[str] = set()
    found: dict[str, int] = {}
    refused = ""
    for pid in process_ids(tree):
        link = f"{PROC}/{pid}/ns/mnt"
        try:
            namespace = os.readlink(os.path.join(resolve(root, f"{PROC}/{pid}/ns"), "mnt"))
        except PermissionError:
            refused = refused or link
            continue
        except OSError:
            continue
        if namespace in asked:
            continue
        asked.add(namespace)
        for device, path in _hugetlbfs(tree.text(f"{PROC}/{pid}/mountinfo") or ""):
            if device not in here:
                here.add(device)
                found[path] = pid
    return Elsewhere(found, refused)


def _hugetlbfs(mountinfo: str) -> list[tuple[str, str]]:
    """(major:minor, path) of each hugetlbfs in MOUNTINFO."""
    rows = []
    for line in mountinfo.splitlines():
        if " - hugetlbfs " in line:
            rows += [(line.split(" ")[2], mount.path) for mount in parse_mounts(line, None)]
    return rows


def owner_pid(name: str, patterns: Iterable[str] = PATTERNS) -> int | None:
    """The process that a file NAME of ours belongs to, by the {pid} of the first of PATTERNS that it fits.

    Patterns are literal but for {pid}, {boot_id} and {starttime}. Raises ValueError for one without {pid}.
    """
    for pattern in patterns:
        if pattern.count("{pid}") != 1:
            raise ValueError(f"{pattern!r} needs {{pid}} once")
        parts = re.split(r"\{(pid|boot_id|starttime)\}", pattern)
        text = "".join(_FIELDS[part] if index % 2 else re.escape(part) for index, part in enumerate(parts))
        match = re.fullmatch(text, name)
        if match:
            return int(match.group("pid"))
    return None


def sort_out(
    files: Iterable[HugeFile], held: Held, alive: Iterable[int], patterns: Iterable[str]
) -> dict[str, list[HugeFile]]:
    """FILES by what may be done with them: `reclaimable`, `kept` and `foreign`.

    Ours is what one of PATTERNS names; it is reclaimable when its process is not ALIVE and nobody holds it.
    Of others we never say more than that they are there.
    """
    living, shapes = set(alive), list(patterns)
    rows: dict[str, list[HugeFile]] = {"reclaimable": [], "kept": [], "foreign": []}
    for file in files:
        pid = owner_pid(os.path.basename(file.path), shapes)
        if pid is None:
            rows["foreign"].append(file)
        elif pid in living or file.key in held.keys or held.hidden:
            rows["kept"].append(file)
        else:
            rows["reclaimable"].append(file)
    return rows


def stale_report(root: str, patterns: Sequence[str]) -> dict[str, Any]:
    """What hugepages_info returns as stale_files, of the host below ROOT. Raises ValueError for a bad pattern."""
    for pattern in patterns:
        owner_pid("", [pattern])
    live, tree = os.path.realpath(root) == "/", Tree(root)
    listing = list_files(root, read_mounts(tree, read_host(tree).default_hugepage_kb), live)
    held = holders(root, listing.files, live)
    rows = sort_out(listing.files, held, process_ids(tree), patterns)
    pages: dict[str, int] = {}
    for file in rows["reclaimable"]:
        if file.page_size:
            size = f"{file.page_size // 1024}kB"
            pages[size] = pages.get(size, 0) + (file.pages or 0)
    unknown = dict(listing.refused)
    if held.hidden and listing.files:
        unknown[held.hidden[1]] = held.hidden[0]
    elsewhere = other_namespaces(root)
    unknown.update({f"/proc/{pid}/root{path}": "other_mount_namespace" for path, pid in elsewhere.mounts.items()})
    if elsewhere.refused:
        unknown[elsewhere.refused] = "permission_denied"
    return {
        **{kind: [_as_dict(file, held) for file in files] for kind, files in rows.items()},
        "reclaimable_pages": pages,
        "not_evaluated": unknown,
    }


def _as_dict(file: HugeFile, held: Held) -> dict[str, Any]:
    known = file.key in held.keys or not held.hidden
    return {
        "path": file.path,
        "bytes": file.bytes,
        "pages": file.pages,
        "uid": file.uid,
        "held": file.key in held.keys if known else None,
    }
