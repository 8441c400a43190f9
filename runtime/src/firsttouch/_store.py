# SPDX-License-Identifier: Apache-2.0
"""The images of a folder: list, find by name, lock, remove, collect.

A name stands for its newest complete generation; of several replicas all must be there. Nothing is ever locked on
an image itself, which a reader could lock for good.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firsttouch import _image, _linux
from firsttouch._image import ImageName, Superblock
from firsttouch.errors import LoaderBusyError, NotReadyError, WeightsError

RUN_ENV = "FIRSTTOUCH_RUN_DIR"
RUN_DIRECTORY = "/run/firsttouch"
# How often in a row a swap may come between a list and a look before it is taken for what is there.
RACES = 100
# proc_pid_maps(5): range, rights, offset, device, inode.
_MAP_LINE = re.compile(r"\S+ \S+ \S+ (\S+) ([0-9]+)")


@dataclass(frozen=True)
class Entry:
    """A file of a folder that has the name of an image; trouble says why it cannot be opened, empty when it can."""

    path: str
    name: ImageName
    bytes: int
    dev: int
    ino: int
    block: Superblock | None
    manifest: dict[str, Any]
    trouble: str = ""

    @property
    def nodes(self) -> dict[str, int]:
        """Pages by node, as they were when it was loaded."""
        return dict(self.manifest.get("pages_by_node", {}))


def entries(directories: Iterable[str], model: str | None = None) -> list[Entry]:
    """All images in DIRECTORIES (of MODEL), the newest generation of each model first.

    Of several folders, which then are all mounts of this host, one that may not be read is left out.
    """
    found: list[Entry] = []
    directories = list(directories)
    for directory in directories:
        found += _entries_of(directory, model, strict=len(directories) == 1)
    return sorted(found, key=lambda row: (row.name.model, -row.name.generation, row.name.node or 0, row.path))


def _entries_of(directory: str, model: str | None, strict: bool) -> list[Entry]:
    """The images of one folder. One that went away since the folder was listed made room for one that was not in
    the list, so it is listed again: a model that is swapped over and over is always there.
    """
    found: list[Entry] = []
    for _ in range(RACES):
        names = [(file, _image.parse_image_name(file)) for file in _listed(directory, strict)]
        wanted = [(file, name) for file, name in names if name and model in (None, name.model)]
        found = []
        for file, name in wanted:
            with contextlib.suppress(FileNotFoundError):
                found.append(read_entry(os.path.join(directory, file), name))
        if len(found) == len(wanted):
            break
    return found


def _listed(directory: str, strict: bool) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    except OSError as error:
        if not strict:
            return []
        raise WeightsError(
            f"{directory} cannot be listed: {error.strerror}",
            hint="become a member of its group",
            facts={"path": directory, "errno": error.errno},
        ) from error


def read_entry(path: str, name: ImageName) -> Entry:
    """The image at PATH, valid or not. Raises FileNotFoundError when it went away."""
    # Of the name itself: a link that leads nowhere is there, and would hide the others as one that went away.
    status = os.lstat(path)
    facts = (path, name, status.st_size, status.st_dev, status.st_ino)
    if stat.S_ISLNK(status.st_mode):
        return Entry(*facts, None, {}, "it is a symbolic link")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        return Entry(*facts, None, {}, f"{error.strerror}")
    try:
        block, manifest = read_tables(fd, path)
    except NotReadyError as error:
        return Entry(*facts, None, {}, error.message)
    finally:
        os.close(fd)
    return Entry(*facts, block, manifest)


def read_tables(fd: int, path: str) -> tuple[Superblock, dict[str, Any]]:
    """Superblock and manifest of an open image, by read(2). Raises NotReadyError unless the image is complete.

    A hole in it would take a page from the pool at the first touch, so there may be none.
    """
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise not_ready(path, "it is no regular file", "kind")
    _check_owner(status, path)
    block = _image.unpack_superblock(os.pread(fd, _image.SUPERBLOCK_BYTES, 0), status.st_size, path)
    if status.st_blocks * 512 < status.st_size:
        raise not_ready(path, "parts of it are missing", "holes")
    manifest = _image.unpack_manifest(os.pread(fd, block.manifest_bytes, block.manifest_offset), block, path)
    wanted = {"hugetlbfs": _linux.HUGETLBFS_MAGIC, "tmpfs-huge": _linux.TMPFS_MAGIC}.get(manifest.get("backend", ""))
    if wanted != _linux.filesystem_magic(fd):
        raise not_ready(path, f"it does not lie on the {manifest.get('backend')} that it was made on", "filesystem")
    return block, manifest


def _check_owner(status: os.stat_result, path: str) -> None:
    """Weights are code: they decide what a model does. So nobody but its loader may write an image, and in a folder
    where everybody may make files it is root's, this user's or that of whoever owns the folder.
    """
    strange = False
    with contextlib.suppress(OSError):
        folder = os.stat(os.path.dirname(path))
        strange = bool(folder.st_mode & 0o002) and status.st_uid not in (0, os.geteuid(), folder.st_uid)
    if strange or status.st_mode & 0o022:
        raise not_ready(path, f"it is of user {status.st_uid}, mode {status.st_mode & 0o7777:o}", "owner")


def not_ready(path: str, text: str, reason: str) -> NotReadyError:
    """The error for an image that cannot be opened."""
    return NotReadyError(
        f"{path} cannot be opened: {text}", hint="load the model again", facts={"reason": reason, "image": path}
    )


def complete_sets(rows: Iterable[Entry]) -> list[list[Entry]]:
    """The generations that can be opened, newest first; each with one entry, or one for each of its replicas."""
    groups: dict[tuple[str, str, int], list[Entry]] = {}
    for row in rows:
        if not row.trouble:
            groups.setdefault((os.path.dirname(row.path), row.name.model, row.name.generation), []).append(row)
    whole = [group for group in groups.values() if _is_whole(group)]
    return sorted(whole, key=lambda group: -group[0].name.generation)


def _is_whole(group: list[Entry]) -> bool:
    there = {row.name.node for row in group}
    return all(set(row.manifest.get("replicas", [])) <= there for row in group)


def resolve(name: str, directories: Iterable[str]) -> Entry:
    """The newest complete image of model NAME, the replica of this CPU's node if there are several.

    Raises NotReadyError.
    """
    directories = list(directories)
    found = entries(directories, name) if _image.is_model_name(name) else []
    whole = complete_sets(found)
    if whole:
        return nearest(whole[0])
    if found:
        raise not_ready(found[0].path, found[0].trouble or "replicas of it are missing", "incomplete")
    raise absent(name, directories)


def absent(name: str, directories: list[str]) -> NotReadyError:
    """The error for a name that nothing is loaded under."""
    hidden = [path for path in directories if os.path.isdir(path) and not os.access(path, os.R_OK | os.X_OK)]
    said = f"; not readable: {', '.join(hidden)}" if hidden else ""
    return NotReadyError(
        f"no model {_printable(name)} is loaded in {', '.join(directories) or 'any hugetlbfs'}{said}",
        hint="see what is there: firsttouch weights ls",
        facts={"reason": "absent", "model": name},
    )


def nearest(group: list[Entry]) -> Entry:
    """The replica of the node of this thread's CPU, else the first one."""
    if len(group) == 1:
        return group[0]
    node = current_node()
    return next((row for row in group if row.name.node == node), group[0])


def current_node() -> int | None:
    """The node of the CPU that this thread may run on, None when there are several or none is known."""
    try:
        cpus = os.sched_getaffinity(0)
        folders = [Path(f"/sys/devices/system/cpu/cpu{cpu}") for cpu in cpus]
        nodes = {int(link.name[4:]) for folder in folders for link in folder.glob("node[0-9]*")}
    except OSError:
        return None
    return nodes.pop() if len(nodes) == 1 else None


@contextlib.contextmanager
def locked(model: str, directory: str, run_directory: str | None = None) -> Iterator[None]:
    """Hold the lock of MODEL in the folder of images DIRECTORY; the kernel frees it when this process dies.

    Raises LoaderBusyError at once when somebody else has it.
    """
    place = run_directory or os.environ.get(RUN_ENV) or RUN_DIRECTORY
    try:
        status = os.stat(directory)
    except OSError as error:
        raise WeightsError(f"{directory}: {error.strerror}", facts={"path": directory}) from error
    path = os.path.join(place, f"weights-{status.st_dev:x}-{status.st_ino:x}-{model}.lock")
    try:
        os.makedirs(place, mode=0o755, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise WeightsError(
            f"the lock {path} cannot be opened: {error.strerror}",
            hint=f"set {RUN_ENV} to a folder that only loaders may write",
            facts={"path": path, "errno": error.errno},
        ) from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LoaderBusyError(
                f"another process is loading, replacing or removing {model}",
                hint=f"wait for it, or see who it is: fuser {path}",
                facts={"model": model, "lock": path},
            ) from error
        yield
    finally:
        os.close(fd)


def remove(rows: Iterable[Entry]) -> list[str]:
    """Unlink images; whoever has one mapped keeps it until the mapping goes. Returns the paths."""
    gone = []
    for row in rows:
        try:
            os.unlink(row.path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise WeightsError(f"{row.path} cannot be removed: {error.strerror}", facts={"path": row.path}) from error
        gone.append(row.path)
    return gone


def garbage(rows: Iterable[Entry]) -> dict[str, list[Entry]]:
    """What may be removed: generations that a newer complete one replaced, parts of a set, damaged images."""
    found: dict[str, list[Entry]] = {"superseded": [], "incomplete": [], "damaged": []}
    whole: dict[tuple[str, str], int] = {}
    rows = list(rows)
    members = {row.path for group in complete_sets(rows) for row in group}
    for row in rows:
        if row.path in members:
            key = (os.path.dirname(row.path), row.name.model)
            whole[key] = max(whole.get(key, 0), row.name.generation)
    for row in rows:
        newest = whole.get((os.path.dirname(row.path), row.name.model), 0)
        # A file that may not be read is not known to be damaged. A link is, wherever it leads.
        readable = os.path.islink(row.path) or os.access(row.path, os.R_OK)
        if row.trouble and row.block is None and not readable:
            continue
        if row.trouble:
            found["damaged"].append(row)
        elif row.name.generation < newest:
            found["superseded"].append(row)
        elif row.path not in members:
            found["incomplete"].append(row)
    return found


def mappers(rows: Iterable[Entry], proc: str = "/proc") -> tuple[dict[str, list[int]], int]:
    """Processes that have each image mapped, by path; and how many processes could not be looked at."""
    keys = {(f"{os.major(row.dev):02x}:{os.minor(row.dev):02x}", str(row.ino)): row.path for row in rows}
    found: dict[str, list[int]] = {path: [] for path in keys.values()}
    hidden = 0
    for pid in sorted(int(name) for name in os.listdir(proc) if name.isdigit()):
        try:
            lines = Path(proc, str(pid), "maps").read_text(errors="replace").splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:
            hidden += 1
            continue
        places = {(match[1], match[2]) for match in map(_MAP_LINE.match, lines) if match}
        for key in sorted(places & keys.keys()):
            found[keys[key]].append(pid)
    return found, hidden


def _printable(name: str) -> str:
    return ascii(name[:100])
