# SPDX-License-Identifier: Apache-2.0
"""Small kernel files (/proc, /sys) below a sysroot, for readers that must go on when one of them lies.

Absent and unreadable are different answers: both read as None, and what could not be read or understood is
kept in `trouble`, so that a caller can say so instead of taking a default for the truth.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable
from typing import TypeVar

from ._cpulist import parse, parse_mask
from ._files import listing, resolve
from ._sosreport import UNKNOWN

# /proc/interrupts of 512 CPUs and 3000 interrupts has 17 MB; what is longer than this is unreadable, never cut off.
_LIMIT = 64 << 20
_MOST_IDS = 1 << 16
_DENIED = (os.strerror(errno.EACCES), os.strerror(errno.EPERM))
_T = TypeVar("_T")


class Tree:
    """Read-only view of the kernel files of the host whose root directory is ROOT."""

    def __init__(self, root: str = "/") -> None:
        self.root = root
        self.trouble: dict[str, str] = {}
        self._dirs: dict[str, str] = {}

    def data(self, path: str) -> bytes | None:
        """Content of the regular file PATH; None when it is absent or unreadable (then in `trouble`).

        Never blocks on a FIFO or a device. A file of more than 64 MiB is unreadable.
        """
        try:
            return self._open(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as exc:
            self.trouble[path] = exc.strerror or str(exc)
            return None

    def text(self, path: str) -> str | None:
        """Stripped text of PATH. NUL bytes go: recorded sysfs files are often padded to their page."""
        data = self.data(path)
        return None if data is None else data.replace(b"\0", b"").decode("utf-8", "replace").strip()

    def number(self, path: str) -> int | None:
        """The decimal integer that PATH consists of; None when absent or something else (in `trouble`)."""
        return self._parsed(path, int)

    def ids(self, path: str) -> frozenset[int] | None:
        """The list of CPUs or nodes in PATH (`0-3,8`), empty for an empty file or the kernel's `(null)`."""
        return self._parsed(path, id_list)

    def mask(self, path: str) -> frozenset[int] | None:
        """The bits set in the hexadecimal mask in PATH."""
        return self._parsed(path, _mask)

    def names(self, path: str) -> list[str]:
        """Sorted names in the directory PATH; none when it is absent or unreadable (then in `trouble`)."""
        try:
            return sorted(listing(self.root, self.directory(path)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as exc:
            self.trouble[path] = exc.strerror or str(exc)
            return []

    def numbered(self, path: str, prefix: str) -> list[int]:
        """Ascending N of the entries PREFIX + N in the directory PATH."""
        pattern = re.compile(re.escape(prefix) + r"(\d{1,5})")
        found = (pattern.fullmatch(name) for name in self.names(path))
        return sorted(int(match.group(1)) for match in found if match)

    def numbered_sizes(self, path: str) -> list[int]:
        """Ascending sizes in kB of the huge page directories `hugepages-<N>kB` in PATH."""
        found = (re.fullmatch(r"hugepages-(\d{1,12})kB", name) for name in self.names(path))
        return sorted(int(match.group(1)) for match in found if match)

    def reason(self, path: str) -> str:
        """The code for what is in `trouble` for PATH: permission_denied, not_recorded or unreadable."""
        why = self.trouble[path]
        if why == UNKNOWN:
            return "not_recorded"
        return "permission_denied" if why in _DENIED else "unreadable"

    def directory(self, path: str) -> str:
        """The real path of the directory PATH, looked up once. Raises OSError for a loop of links."""
        real = self._dirs.get(path)
        if real is None:
            real = self._dirs[path] = resolve(self.root, path)
        return real

    def _parsed(self, path: str, convert: Callable[[str], _T]) -> _T | None:
        text = self.text(path)
        if text is None:
            return None
        try:
            return convert(text)
        except ValueError as exc:
            self.trouble[path] = f"not understood: {exc}"
            return None

    def _open(self, path: str) -> bytes:
        head, _slash, tail = path.rpartition("/")
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        try:
            # Thousands of reads on a large machine: resolve a directory once, its plain files directly.
            fd = os.open(os.path.join(self.directory(head), tail), flags | os.O_NOFOLLOW)
        except (FileNotFoundError, NotADirectoryError):
            resolve(self.root, path)  # raises where a sosreport does not tell whether it is there
            raise
        except OSError:
            fd = os.open(resolve(self.root, path), flags)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(0, "not a regular file")
            chunks: list[bytes] = []
            left = _LIMIT
            while left >= 0:
                chunk = os.read(fd, 1 << 16)
                if not chunk:
                    return b"".join(chunks)
                chunks.append(chunk)
                left -= len(chunk)
            raise OSError(0, f"longer than {_LIMIT} bytes")
        finally:
            os.close(fd)


def id_list(text: str) -> frozenset[int]:
    """Parse a CPU or node list as the kernel or a tool prints it; raises ValueError.

    Commas, blanks or both separate. Numbers past 65535 are refused: no kernel has that many CPUs or nodes.
    """
    text = text.strip()
    if not text or text == "(null)":
        return frozenset()
    if any(int(number) >= _MOST_IDS for number in re.findall(r"\d+", text)):
        raise ValueError(f"number out of range in {text[:80]!r}")
    return parse(",".join(text.replace(",", " ").split()))


def _mask(text: str) -> frozenset[int]:
    if len(text) > _MOST_IDS // 2:
        raise ValueError("mask of more bits than any kernel has CPUs")
    return parse_mask(text)
