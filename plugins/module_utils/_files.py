# SPDX-License-Identifier: Apache-2.0
"""Files inside a sysroot: resolved without leaving it, read byte-exactly, replaced atomically.

Text is UTF-8 with surrogateescape and no newline translation, so that what was read can be written
back byte for byte whatever its encoding was.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator

from . import _sosreport

_LIMIT = 64 << 20
_PIECE = 1 << 16
_NOT_REGULAR = "not a regular file"
# errno -> the code (None: the caller's) and what to do about it
_ROOT, _ROOM = "run this as root (become: true)", "make room on that file system"
_REMEDIES: dict[int, tuple[str | None, str]] = {
    errno.EROFS: ("read_only", "make the file system it is on writable"),
    errno.EACCES: ("permission_denied", _ROOT),
    errno.EPERM: ("permission_denied", f"{_ROOT}, and see whether the file is immutable (lsattr)"),
    errno.ENOSPC: ("no_space", _ROOM),
    errno.EDQUOT: ("no_space", _ROOM),
    errno.ELOOP: (None, "mend the loop of symbolic links"),
    errno.ENOENT: (None, "see whether sysroot is right"),
    errno.EISDIR: (None, "a file belongs there: move the directory away"),
    errno.ENOTDIR: (None, "a directory belongs in its path: move the file that is there away"),
    errno.EFBIG: (None, "that is no file of its kind: move it away"),
    errno.ENODATA: (None, "this sosreport does not have it: look at the host itself"),
    errno.EIO: (None, "the device under it fails: see the kernel's log"),
}
_MAX_LINKS = 40
_NULL = os.makedev(1, 3)  # Documentation/admin-guide/devices.txt
_NOT_SUPPORTED = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


def check_root(root: str) -> None:
    """Raise OSError unless ROOT is a directory: below a misspelt one everything would be made anew."""
    if not stat.S_ISDIR(os.stat(root).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), root)


def resolve(root: str, path: str) -> str:
    """Return the real path of the absolute PATH seen from inside ROOT.

    Symbolic links are followed as a process chrooted into ROOT would: absolute targets start at ROOT and
    `..` stops there. Components that do not exist are kept as they are. Raises OSError(ELOOP), and OSError(ENODATA) in
    an unpacked sosreport for what is not there and may be on the host.
    """
    base = os.path.realpath(root)
    pending = [part for part in reversed(path.split("/")) if part]
    done: list[str] = []
    links = 0
    while pending:
        part = pending.pop()
        if part == ".":
            continue
        if part == "..":
            if done:
                done.pop()
            continue
        here = os.path.join(base, *done, part)
        try:
            target = os.readlink(here)
        except OSError as exc:
            # EINVAL: not a link. EACCES and the like surface when the caller opens the result.
            if exc.errno not in (errno.EINVAL, errno.ENOENT, errno.ENOTDIR, errno.EACCES):
                raise
            done.append(part)
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        if target.startswith("/"):
            done = []
        pending.extend(step for step in reversed(target.split("/")) if step)
    real = os.path.join(base, *done)
    report = _sosreport.of(base)
    if report is not None and not os.path.lexists(real):
        report.check("/" + "/".join(done))
    return real


def listing(root: str, real: str) -> list[str]:
    """The names in the folder REAL, a result of resolve(). Raises OSError, also where a sosreport may lack some."""
    names = os.listdir(real)
    report = _sosreport.of(os.path.realpath(root))
    if report is not None:
        path = inside(root, real)
        report.check_listing(path)
        names = list({*names, *report.names(path)})
    return names


def inside(root: str, real: str) -> str:
    """Return REAL (a result of resolve()) as the absolute path it has inside ROOT."""
    base = os.path.realpath(root)
    if base == "/":
        return real
    return real[len(base) :] or "/"


def read_bytes(root: str, path: str) -> bytes | None:
    """Return the content of PATH inside ROOT; None when it does not exist. Other OSErrors propagate.

    Never waits: what is neither a regular file nor /dev/null, as a FIFO, is an OSError. /dev/null is empty. A file of
    more than 64 MiB is an OSError too: none of those that are read here gets near it.
    """
    try:
        fd = os.open(resolve(root, path), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not _is_regular(fd, path):
        return b""
    data = bytearray()
    # Piece by piece: files of /proc/sys answer ENOMEM to who asks for some MiB at once (fs/proc/proc_sysctl.c).
    with os.fdopen(fd, "rb", buffering=0) as handle, named(path):
        while len(data) <= _LIMIT:
            piece = handle.read(_PIECE)
            if not piece:
                return bytes(data)
            data += piece
    raise OSError(errno.EFBIG, f"longer than {_LIMIT >> 20} MiB", path)


def _is_regular(fd: int, path: str) -> bool:
    """Whether FD, PATH opened, is a regular file; closed and False for /dev/null, closed and an OSError for others."""
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode):
        return True
    os.close(fd)
    if stat.S_ISCHR(status.st_mode) and status.st_rdev == _NULL:
        return False
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, _NOT_REGULAR, path)


def read_text(root: str, path: str) -> str | None:
    """Return the text of PATH inside ROOT; None when it does not exist. Other OSErrors propagate."""
    data = read_bytes(root, path)
    return None if data is None else decode(data)


def exists(root: str, path: str) -> bool:
    """Whether PATH exists inside ROOT (a dangling link does not). Raises OSError when that cannot be told."""
    try:
        os.stat(resolve(root, path))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def list_dir(root: str, path: str) -> list[str] | None:
    """Return the names in the directory PATH inside ROOT in C (byte) order; None when it does not exist."""
    try:
        names = listing(root, resolve(root, path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return sorted(names, key=os.fsencode)


@contextlib.contextmanager
def named(path: str) -> Iterator[None]:
    """Give PATH to an OSError of the block that names no file, as one of a write or a flush does not."""
    try:
        yield
    except OSError as exc:
        exc.filename = exc.filename or path
        raise


def check_writable(real: str) -> None:
    """Raise the OSError that writing the existing real path REAL would meet, as far as that can be told before."""
    if os.access(real, os.W_OK):
        return
    code = errno.EROFS if os.statvfs(real).f_flag & os.ST_RDONLY else errno.EACCES
    raise OSError(code, os.strerror(code), real)


def refusal(exc: OSError, reason: str) -> dict[str, str | None]:
    """What a module answers to EXC: `msg` with the path, the system's words and a remedy, `reason` and `file`.

    REASON is the code where the errno has none of its own.
    """
    code, remedy = _REMEDIES.get(exc.errno or 0, (None, "look at that path, then run this again"))
    if exc.strerror == _NOT_REGULAR:
        remedy = "a regular file belongs there: move what is there away"
    # of a link or a renamed file the second name is the place
    named_path = exc.filename2 or exc.filename
    path = os.fsdecode(named_path) if isinstance(named_path, (str, bytes)) else "a file"
    return {"msg": f"{path}: {exc.strerror or exc}; {remedy}", "reason": code or reason, "file": path}


def decode(data: bytes) -> str:
    """Bytes to text, reversibly."""
    return data.decode("utf-8", "surrogateescape")


def encode(data: str | bytes) -> bytes:
    """Text to bytes, the inverse of decode()."""
    return data if isinstance(data, bytes) else data.encode("utf-8", "surrogateescape")


def fsync_dir(path: str) -> None:
    """Make the directory entries of PATH durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as exc:
        if exc.errno != errno.EINVAL:  # a filesystem that cannot sync a directory (FAT)
            exc.filename = exc.filename or path
            raise
    finally:
        os.close(fd)


def make_dirs(path: str, mode: int = 0o755) -> None:
    """Create the real directory PATH and its parents durably; existing ones are left as they are."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    make_dirs(parent, 0o755)
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
        return
    os.chmod(path, mode)
    fsync_dir(parent)


def atomic_write(
    path: str,
    data: str | bytes,
    mode: int = 0o644,
    *,
    uid: int | None = None,
    gid: int | None = None,
    force_mode: bool = False,
) -> None:
    """Replace the real PATH (see resolve()) with DATA: written beside it, fsynced, renamed, durable.

    A file that is replaced keeps its owner, its mode (unless force_mode) and its extended attributes, the
    SELinux context and ACLs among them; uid and gid override the owner. MODE is that of a new file. Missing
    parent directories are created with mode 0755. Raises OSError; the old file is then untouched.
    """
    directory, name = os.path.split(path)
    make_dirs(directory)
    try:
        old: os.stat_result | None = os.lstat(path)
    except FileNotFoundError:
        old = None
    if old is not None and not stat.S_ISREG(old.st_mode):
        raise OSError(errno.EINVAL, _NOT_REGULAR, path)
    temp = None
    try:
        fd, temp = tempfile.mkstemp(prefix=f".{name}.", suffix=".tmp", dir=directory)
        with os.fdopen(fd, "wb") as handle:
            handle.write(encode(data))
            handle.flush()
            copy_attributes(path if old else None, temp, mode, uid=uid, gid=gid, force_mode=force_mode)
            os.fsync(handle.fileno())
        os.rename(temp, path)
    except BaseException as exc:
        if temp is not None:
            _unlink_quietly(temp)
        if isinstance(exc, OSError):  # it is about the file, not about its copy
            exc.filename, exc.filename2 = path, None
        raise
    fsync_dir(directory)


def copy_attributes(
    source: str | None,
    target: str,
    mode: int,
    *,
    uid: int | None = None,
    gid: int | None = None,
    force_mode: bool = False,
) -> None:
    """Give TARGET the owner, mode and extended attributes of SOURCE, or MODE where there is no SOURCE."""
    now = os.stat(target)
    old = os.stat(source) if source else None
    want_uid = uid if uid is not None else old.st_uid if old else now.st_uid
    want_gid = gid if gid is not None else old.st_gid if old else now.st_gid
    if (want_uid, want_gid) != (now.st_uid, now.st_gid):
        os.chown(target, want_uid, want_gid)
    wanted_mode = mode if old is None or force_mode else stat.S_IMODE(old.st_mode)
    os.chmod(target, wanted_mode)
    if source is None:
        return
    try:
        names = os.listxattr(source)
    except OSError as exc:
        if exc.errno in _NOT_SUPPORTED:
            return
        raise
    for name in names:
        value = os.getxattr(source, name)
        try:
            same = os.getxattr(target, name) == value
        except OSError:
            same = False
        if not same:
            os.setxattr(target, name, value)


def remove(path: str) -> bool:
    """Remove the real PATH durably; return whether it was there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    fsync_dir(os.path.dirname(path))
    return True


def _unlink_quietly(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
