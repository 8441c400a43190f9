# SPDX-License-Identifier: Apache-2.0
"""Models that the controller pushes: a folder for each below /var/lib/firsttouch/models.

A file that arrives is checked and kept under its digest, so that a push that was cut off goes on where it was. When
all are there, the folder is made beside, of links to them and to those of the folder before that stay as they are, and
takes its place: whoever loads finds the files of one push, never some of two.

What somebody else put into a folder of ours is never removed: a push is refused, and what goes leaves it behind.
"""

from __future__ import annotations

import contextlib
import grp
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ._files import atomic_write, fsync_dir, inside, list_dir, make_dirs, read_text, resolve
from ._runtime_install import ACCOUNT, changed_since
from ._runtime_units import weights_unit

TOP = "/var/lib/firsttouch/models"
# In each folder: what was pushed. Without it a folder is somebody else's.
MANIFEST = "firsttouch-push.json"
# Beside a folder: what arrived, the next folder, the one before.
_BESIDE = ("part", "new", "gone")
_LEFT_OVER = re.compile(rf"\..+\.({'|'.join(_BESIDE)})")
# What a push has beside a folder for a while, after place() and atomic_write().
_PASSING = re.compile(rf"[0-9a-f]{{64}}(\.part)?|\.{re.escape(MANIFEST)}\..+\.tmp")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")
_MOUNTS, _MOUNTED = "/proc/self/mountinfo", " is mounted there"
# What is there instead of the file.
_OTHER, _NO_FILE, _NO_FOLDER = "other content", "no regular file", "no folder"
_FOLDER_MODE, _FILE_MODE, _MANIFEST_MODE = 0o755, 0o640, 0o644
_PIECE = 8 << 20


class PushError(ValueError):
    """A model cannot be brought to the host; `reason` is a code."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True)
class File:
    """A file of a model as the controller has it."""

    name: str
    size: int
    sha256: str


@dataclass
class Plan:
    """What a push comes to. missing: files to send, by model; make: models whose folder is made; rows: the change set;
    texts: manifests before and after, by path; left: what stays in a folder that goes, as it is not ours.
    """

    missing: list[tuple[str, File]] = field(default_factory=list)
    make: list[str] = field(default_factory=list)
    restart: list[str] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    texts: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)

    def row(self, path: str, before: str | None, after: str | None) -> None:
        """Add PATH to the change set."""
        self.rows.append({"resource": f"file:{path}", "before": before, "after": after})


def folder(name: str) -> str:
    """Where the files of model NAME lie: the `source` of a model that is pushed."""
    return f"{TOP}/{name}"


def parts(name: str) -> list[str]:
    """All that a push of model NAME makes below TOP."""
    return [folder(name), *(f"{TOP}/.{name}.{part}" for part in _BESIDE)]


def is_left_over(root: str, name: str, wanted: Iterable[str]) -> bool:
    """Whether NAME of TOP is ours and of no model that is WANTED, or of a push that was cut off."""
    return _LEFT_OVER.fullmatch(name) is not None or (name not in set(wanted) and _is_ours(root, name))


def manifest(files: Sequence[File]) -> str:
    """The text of the manifest of FILES."""
    rows = [{"name": one.name, "bytes": one.size, "sha256": one.sha256} for one in files]
    return json.dumps({"schema": 1, "files": rows}, indent=1) + "\n"


def parse_manifest(text: str) -> list[File]:
    """The files of the manifest TEXT. Raises ValueError."""
    try:
        return [
            File(str(row["name"]), int(row["bytes"]), str(row["sha256"])) for row in json.loads(text)["files"]
        ]
    except (KeyError, TypeError, ValueError, RecursionError) as exc:
        raise ValueError(f"no manifest of a push: {exc!r}") from exc


def make_plan(root: str, models: Mapping[str, Sequence[File]], absent: Iterable[str] = ()) -> Plan:
    """Plan the folders of MODELS, and that those of ABSENT go. Reads only; each file that is there is read whole.

    Raises PushError (`foreign_file`, `bad_file`), OSError.
    """
    plan = Plan()
    for name, files in models.items():
        _check_names(name, files)
        _plan_model(plan, root, name, files)
        if name in plan.make or changed_since(root, weights_unit(name), [folder(name)]):
            plan.restart.append(weights_unit(name))
    for name in absent:
        _check_names(name, ())
        if _is_ours(root, name):
            here = folder(name)
            foreign = _foreign(root, here)
            for entry in list_dir(root, here) or []:
                if entry not in foreign:
                    plan.row(f"{here}/{entry}", "present", None)
            if MANIFEST not in foreign:
                plan.texts[f"{here}/{MANIFEST}"] = (read_text(root, f"{here}/{MANIFEST}"), None)
            plan.left += foreign.values()
        _plan_left_over(plan, root, name)
    return plan


def check_space(root: str, plan: Plan, temporary: str | None) -> None:
    """Raise PushError where what is to be sent does not fit. TEMPORARY: where each file arrives first."""
    if not plan.missing:
        return
    there = resolve(root, TOP)
    while not os.path.isdir(there):
        there = os.path.dirname(there)
    need = sum(file.size for _name, file in plan.missing)
    largest = max(file.size for _name, file in plan.missing)
    models = sorted({name for name, _file in plan.missing})
    names = ", ".join(models)
    begun = [path for name in models for path in parts(name)[1:] if list_dir(root, path) is not None]
    rooms = [(there, need)]
    if temporary is not None:
        if _share_room(temporary, there):
            rooms = [(there, need + largest)]
        else:
            rooms.append((temporary, largest))
    for where, bytes_needed in rooms:
        status = os.statvfs(where)
        free = status.f_bavail * status.f_frsize
        if free < bytes_needed:
            text = f"firsttouch_models: the files of {names} need {_human(bytes_needed)} on the file system of {where}"
            remedy = "make room there, or put the model on the host and name it with source instead of push"
            if begun:
                remedy = f"{', '.join(begun)} holds what a push that was cut off left: rm -r it, or {remedy}"
            raise PushError("no_space", f"{text}, and {_human(free)} are free; {remedy}")


def _share_room(first: str, second: str) -> bool:
    """Whether two directories have one room: subvolumes of btrfs have device numbers of their own, and share theirs."""
    rooms = [os.statvfs(path) for path in (first, second)]
    figures = {(room.f_blocks, room.f_bfree, room.f_frsize) for room in rooms}
    return len(figures) == 1 or os.stat(first).st_dev == os.stat(second).st_dev


def place(root: str, name: str, file: File, path: str) -> None:
    """Keep what arrived at PATH as FILE of model NAME, durably. Raises PushError for another content, OSError."""
    _check_names(name, [file])
    real = resolve(root, f"{TOP}/.{name}.part")
    make_dirs(real, 0o700)
    target = os.path.join(real, file.sha256)
    scratch = f"{target}.part"
    try:
        digest = hashlib.sha256()
        source = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(source, "rb") as reader, open(scratch, "wb") as writer:
            for piece in iter(lambda: reader.read(_PIECE), b""):
                digest.update(piece)
                writer.write(piece)
            writer.flush()
            os.fsync(writer.fileno())
            _drop_cache(writer.fileno())
        if digest.hexdigest() != file.sha256:
            text = f"firsttouch_models: {file.name} of {name} arrived with sha256 {digest.hexdigest()}"
            raise PushError("push_broken", f"{text}, not {file.sha256}: it changed meanwhile; run again")
        os.rename(scratch, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(scratch)
    os.unlink(path)
    fsync_dir(real)


def finish(
    root: str, models: Mapping[str, Sequence[File]], make: Iterable[str], absent: Iterable[str] = ()
) -> None:
    """Give the folders of MODELS that are to MAKE their place, and remove what is left over, and ABSENT.

    All that make_plan() had missing must have been placed. Raises PushError, OSError.
    """
    # Much time may have passed since the plan.
    for name, files in models.items():
        _refuse_foreign(root, name, files)
    for name in make:
        _make(root, name, models[name])
    for name, files in models.items():
        _mend(root, name, files)
    for name in (*models, *absent):
        if name not in models and _is_ours(root, name):
            _remove(root, folder(name))
        for path in parts(name)[1:]:
            _remove(root, path, models.get(name, ()))
    _drop_top(root)


def _drop_top(root: str) -> None:
    """Remove TOP where nothing is in it: the folder that we made, not what a link or a mount of the host leads to."""
    real = _real(root, TOP)
    own = not os.path.islink(_real(root, os.path.dirname(TOP))) and inside(root, real) not in _mount_points(root)
    if own and _entries(root, TOP) == []:
        os.rmdir(real)


def _make(root: str, name: str, files: Sequence[File]) -> None:
    """Make the folder of model NAME beside the one that is there, and let it take its place."""
    top = resolve(root, TOP)
    final, new, gone = (os.path.join(top, entry) for entry in (name, f".{name}.new", f".{name}.gone"))
    arrived = os.path.join(top, f".{name}.part")
    make_dirs(top)
    for part in ("new", "gone"):
        _remove(root, f"{TOP}/.{name}.{part}", files)
    os.mkdir(new)
    # It comes first: whatever is in the folder, its manifest tells whose it is.
    atomic_write(os.path.join(new, MANIFEST), manifest(files), _MANIFEST_MODE)
    owner = _owner(root)
    for file in files:
        source = next(
            (
                path
                for path in (os.path.join(arrived, file.sha256), os.path.join(final, file.name))
                if _is_size(path, file)
            ),
            None,
        )
        if source is None:
            raise PushError(
                "push_broken", f"firsttouch_models: {file.name} of {name} has not arrived; run again"
            )
        target = os.path.join(new, file.name)
        os.link(source, target)
        os.chmod(target, _FILE_MODE)
        if owner is not None:
            os.chown(target, *owner)
    if owner is not None:
        for path in (new, os.path.join(new, MANIFEST)):
            os.chown(path, 0, 0)
    os.chmod(new, _FOLDER_MODE)
    fsync_dir(new)
    before = os.path.lexists(final)
    if before:
        os.rename(final, gone)
    try:
        os.rename(new, final)
    except BaseException:
        if before:
            os.rename(gone, final)
        raise
    fsync_dir(top)


def _plan_model(plan: Plan, root: str, name: str, files: Sequence[File]) -> None:
    here = folder(name)
    if os.path.lexists(_real(root, here)) and not _is_ours(root, name):
        text = f"firsttouch_models: {here} is there and was not pushed by us"
        raise PushError(
            "foreign_file", f"{text}; move it away, or name it with source instead of push of {name}"
        )
    _refuse_foreign(root, name, files)
    wrong = {path: (found, right) for path, found, right in differing(root, name, files) if found is not None}
    rows, sent = len(plan.rows), set()
    for file in files:
        path, right = f"{here}/{file.name}", f"sha256:{file.sha256}"
        found = _content(root, path, file)
        if found == right:
            continue
        plan.row(path, found, right)
        wrong.pop(path, None)
        if file.sha256 not in sent:
            sent.add(file.sha256)
            if not _is_size(os.path.join(resolve(root, f"{TOP}/.{name}.part"), file.sha256), file):
                plan.missing.append((name, file))
    for entry in list_dir(root, here) or []:
        if entry != MANIFEST and entry not in {file.name for file in files}:
            plan.row(f"{here}/{entry}", "present", None)
    path = f"{here}/{MANIFEST}"
    old, new = read_text(root, path), manifest(files)
    if old != new or wrong.get(path, ("",))[0] == _NO_FILE:
        plan.row(path, old if old != new else _NO_FILE, new)
        plan.texts[path] = (old, new)
        wrong.pop(path, None)
    if len(plan.rows) > rows:
        plan.make.append(name)
    else:
        _plan_left_over(plan, root, name, files)
    # What is right but for these need not be made, nor loaded, anew.
    for path, (found, right) in wrong.items():
        if path != TOP or not any(row["resource"] == f"file:{TOP}" for row in plan.rows):
            plan.row(path, found, right)


def _plan_left_over(plan: Plan, root: str, name: str, files: Sequence[File] = ()) -> None:
    for path in parts(name)[1:]:
        foreign = _foreign(root, path, files)
        if set(_entries(root, path) or ()) - set(foreign) or (not foreign and os.path.lexists(_real(root, path))):
            plan.row(path, "left over", None)
        plan.left += foreign.values()


def _refuse_foreign(root: str, name: str, files: Sequence[File]) -> None:
    """Raise PushError where something is in the way of a push of FILES as model NAME that no push has written."""
    for path in parts(name):
        for text in _foreign(root, path, files).values():
            way = "unmount it" if text.endswith(_MOUNTED) else "move it elsewhere"
            remedy = f"{way}, or name the model with source instead of push of {name}"
            raise PushError("foreign_file", f"firsttouch_models: {text}; {remedy}")


def _foreign(root: str, path: str, files: Sequence[File] = ()) -> dict[str, str]:
    """What is in the folder PATH and not of FILES or a push before, by name, with what it is; by "" PATH itself.

    A folder is never ours, nor is what is mounted: what is in it may be anybody's.
    """
    entries = _entries(root, path)
    if entries is None:
        return {"": f"{path} is no folder of a push"} if os.path.lexists(_real(root, path)) else {}
    names = {MANIFEST, *(file.name for file in (*files, *_pushed_before(root, path)))}
    passing = os.path.basename(path).startswith(".")
    mounted = _mount_points(root)
    found = {"": f"{path}{_MOUNTED}"} if inside(root, _real(root, path)) in mounted else {}
    for entry in entries:
        real = os.path.join(_real(root, path), entry)
        if inside(root, real) in mounted:
            found[entry] = f"{path}/{entry}{_MOUNTED}"
        elif stat.S_ISDIR(os.lstat(real).st_mode):
            found[entry] = f"{path}/{entry} is a folder, which no push makes"
        elif entry not in names and not (passing and _PASSING.fullmatch(entry)):
            found[entry] = f"{path}/{entry} was not pushed by us"
    return found


def _pushed_before(root: str, path: str) -> list[File]:
    """The files of the push that made the folder PATH; none where its manifest is lost."""
    try:
        if not stat.S_ISREG(os.lstat(os.path.join(_real(root, path), MANIFEST)).st_mode):
            return []
        return parse_manifest(read_text(root, f"{path}/{MANIFEST}") or "")
    except (FileNotFoundError, ValueError):
        return []


def _mount_points(root: str) -> set[str]:
    """Where something is mounted. A device number tells nothing of a bind mount, and is one of its own on overlayfs."""
    fields = (line.split(" ") for line in (read_text(root, _MOUNTS) or "").splitlines())
    return {re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), row[4]) for row in fields if len(row) > 4}


def _entries(root: str, path: str) -> list[str] | None:
    """The names in PATH; None where it is no folder, a link to one included."""
    real = _real(root, path)
    return sorted(os.listdir(real)) if os.path.isdir(real) and not os.path.islink(real) else None


def _real(root: str, path: str) -> str:
    """PATH of TOP as the host has it; a link there is not followed."""
    return os.path.join(resolve(root, os.path.dirname(path)), os.path.basename(path))


def _remove(root: str, path: str, files: Sequence[File] = ()) -> None:
    """Take what is ours from the folder PATH, and the folder where nothing else is in it. Raises OSError."""
    entries, foreign = _entries(root, path), _foreign(root, path, files)
    if entries is None:
        return
    # Without its manifest it is somebody else's: who goes on after a kill needs it.
    for entry in sorted(set(entries) - set(foreign), key=lambda name: (name == MANIFEST, name)):
        os.unlink(os.path.join(_real(root, path), entry))
    if not foreign:
        os.rmdir(_real(root, path))


def _content(root: str, path: str, file: File) -> str | None:
    """What is at PATH: None for nothing, or that it is not FILE, or its digest."""
    real = _real(root, path)
    try:
        status = os.lstat(real)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(status.st_mode) or status.st_size != file.size or _digest(real) != file.sha256:
        return _OTHER
    return f"sha256:{file.sha256}"


def differing(root: str, name: str, files: Sequence[File]) -> list[tuple[str, str | None, str]]:
    """(path, what is there, what it should be) of all that a push of FILES as model NAME leaves otherwise: what kind of
    file it is, its mode and its owner. None is there where nothing is. No file is read.
    """
    found = []
    for path, folder_too, mode, owner in _placed(root, name, files):
        there: str | None
        try:
            status = os.lstat(_real(root, path))
        except (FileNotFoundError, NotADirectoryError):
            there = None
        else:
            there = _attributes(stat.S_IMODE(status.st_mode), owner and (status.st_uid, status.st_gid))
            if not (stat.S_ISDIR if folder_too else stat.S_ISREG)(status.st_mode):
                there = _NO_FOLDER if folder_too else _NO_FILE
        right = _attributes(mode, owner)
        if there != right:
            found.append((path, there, right))
    return found


def _placed(
    root: str, name: str, files: Sequence[File]
) -> list[tuple[str, bool, int, tuple[int, int] | None]]:
    """(path, whether it is a folder, mode, owner) of what a push leaves, as it leaves it."""
    reads = _owner(root, planned=True)
    owner = None if reads is None else (0, 0)
    here = folder(name)
    # Behind a link it is a folder of somebody else.
    top = [] if os.path.islink(_real(root, TOP)) else [(TOP, True, _FOLDER_MODE, owner)]
    rows = [(f"{here}/{file.name}", False, _FILE_MODE, reads) for file in files]
    return [*top, (here, True, _FOLDER_MODE, owner), (f"{here}/{MANIFEST}", False, _MANIFEST_MODE, owner), *rows]


def _mend(root: str, name: str, files: Sequence[File]) -> None:
    """Give what is of model NAME the mode and the owner that it should have, from above. Raises PushError, OSError."""
    _owner(root)
    wrong = {path: there for path, there, _right in differing(root, name, files)}
    for path, folder_too, mode, owner in _placed(root, name, files):
        if path not in wrong:
            continue
        if wrong[path] in (None, _NO_FILE, _NO_FOLDER):
            raise PushError("push_broken", f"firsttouch_models: {path} changed meanwhile; run again")
        kind = os.O_DIRECTORY if folder_too else os.O_NONBLOCK
        fd = os.open(_real(root, path), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | kind)
        try:
            if owner is not None:
                os.fchown(fd, *owner)
            os.fchmod(fd, mode)
        finally:
            os.close(fd)


def _attributes(mode: int, owner: tuple[int, int] | None) -> str:
    if owner is None:
        return f"{mode:04o}"
    return f"{mode:04o} {owner[0]}:{ACCOUNT if owner[1] == -1 else owner[1]}"


def _owner(root: str, planned: bool = False) -> tuple[int, int] | None:
    """(user, group) of a file: root writes it, the service reads it. None below another root than /.

    The group may be missing as long as it is only PLANNED: then no file is there either.
    """
    if os.path.realpath(root) != "/":
        return None
    try:
        return 0, grp.getgrnam(ACCOUNT).gr_gid
    except KeyError:
        if planned:
            return 0, -1
        text = f"the group {ACCOUNT} is not there, which the role runtime makes; run provision"
        raise PushError("account_failed", text) from None


def _digest(real: str) -> str:
    digest = hashlib.sha256()
    with open(real, "rb") as handle:
        for piece in iter(lambda: handle.read(_PIECE), b""):
            digest.update(piece)
            # Nobody needs it in memory: who serves here needs the memory.
            _drop_cache(handle.fileno())
    return digest.hexdigest()


def _drop_cache(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _is_size(real: str, file: File) -> bool:
    try:
        status = os.lstat(real)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == file.size


def _is_ours(root: str, name: str) -> bool:
    """Whether the folder of model NAME is there, no link, with a manifest of ours."""
    real = _real(root, folder(name))
    return os.path.isdir(real) and not os.path.islink(real) and os.path.lexists(os.path.join(real, MANIFEST))


def _check_names(name: str, files: Sequence[File]) -> None:
    """Nothing that comes from a controller may lead out of its folder."""
    for file in files:
        plain = file.name.isprintable() and not set(file.name) & set("/\\") and not file.name.startswith(".")
        if (
            not plain
            or not file.name
            or file.name == MANIFEST
            or not re.fullmatch("[0-9a-f]{64}", file.sha256)
        ):
            raise PushError("bad_file", f"{file.name!r} of {name} is no plain file name with a sha256")
    if not _NAME.fullmatch(name):
        raise PushError("bad_file", f"{name!r} is no name of a model")


def _human(count: int) -> str:
    size, units = float(count), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{count} bytes" if units[0] == "bytes" else f"{size:.1f} {units[0]} ({count} bytes)"
