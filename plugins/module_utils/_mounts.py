# SPDX-License-Identifier: Apache-2.0
"""hugetlbfs mounts of a host, whatever spelling of their options the kernel or an administrator chose."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ._tree import Tree

# /proc/mounts is a link to self/mounts: a recorded tree may hold either, or the richer mountinfo.
SOURCES = ("/proc/self/mountinfo", "/proc/1/mountinfo", "/proc/self/mounts", "/proc/mounts")
_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50, "e": 60}
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """A mounted hugetlbfs; sizes in bytes, None for an option that is not there (no limit, no reservation).

    `covered`: another filesystem is mounted over it, so that its path does not reach it. `mode` is the octal
    text of the option. `problem` says which option could not be read.
    """

    path: str
    page_size: int | None
    size: int | None = None
    min_size: int | None = None
    uid: int | None = None
    gid: int | None = None
    mode: str | None = None
    options: str = ""
    covered: bool = False
    problem: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The mount as hugepages_info returns it."""
        return dict(self.__dict__)


def read_mounts(tree: Tree, default_kb: int | None, pool_pages: dict[int, int] | None = None) -> list[Mount]:
    """The hugetlbfs mounts below TREE in mount order; [] when no mount table is there.

    DEFAULT_KB is the default huge page size, which a mount without `pagesize=` has; POOL_PAGES, pages per
    size in bytes, resolves `size=50%`.
    """
    for source in SOURCES:
        text = tree.text(source)
        if text:
            return parse_mounts(text, default_kb, pool_pages)
    return []


def parse_mounts(text: str, default_kb: int | None, pool_pages: dict[int, int] | None = None) -> list[Mount]:
    """The hugetlbfs mounts of TEXT, /proc/PID/mountinfo or /proc/PID/mounts (told apart per line)."""
    rows = [row for row in (_row(line) for line in text.splitlines()) if row]
    return [
        _mount(row, _covered(row, index, rows), default_kb, pool_pages or {})
        for index, row in enumerate(rows)
        if row.fstype == "hugetlbfs"
    ]


def size_bytes(text: str) -> int:
    """Bytes of a size as memparse() of the kernel reads it: decimal, 0x or octal, then k, m, g, t, p or e.

    A trailing B or iB, which people write and the kernel drops, is allowed. Raises ValueError.
    """
    match = re.fullmatch(r"(0[xX][0-9a-fA-F]+|\d+)([kmgtpeKMGTPE]?)(?:i?[bB])?", text.strip())
    if not match:
        raise ValueError(f"not a size: {text!r}")
    digits = match.group(1)
    base = 16 if digits[:2] in ("0x", "0X") else 8 if len(digits) > 1 and digits[0] == "0" else 10
    return int(digits, base) << _SHIFTS[match.group(2).lower()]


@dataclass(frozen=True)
class _Row:
    """One line of a mount table; mount and parent ids only in mountinfo."""

    path: str
    fstype: str
    options: str
    id: int | None = None
    parent: int | None = None


def _row(line: str) -> _Row | None:
    fields = line.split(" ")
    if " - " in line and len(fields) > 6 and fields[0].isdigit() and fields[1].isdigit():
        right = line.partition(" - ")[2].split(" ")
        options = ",".join((fields[5], *right[2:3]))
        return _Row(_plain(fields[4]), right[0], options, int(fields[0]), int(fields[1]))
    fields = line.split()
    if len(fields) < 4 or fields[0].startswith("#"):
        return None
    return _Row(_plain(fields[1]), fields[2], fields[3])


def _covered(row: _Row, index: int, rows: list[_Row]) -> bool:
    """Whether another mount hides ROW: on its path, or on a directory above it that is not below one of its
    own parents. Without ids only the order of two mounts on one path tells."""
    if row.id is None:
        return any(later.path == row.path for later in rows[index + 1 :])
    parents = {other.id: other.parent for other in rows}
    chain: set[int | None] = {row.id}
    above = row.parent
    while above in parents and above not in chain:
        chain.add(above)
        above = parents[above]
    return any(
        other.id not in chain and (row.path + "/").startswith(other.path.rstrip("/") + "/") for other in rows
    )


def _plain(text: str) -> str:
    """Undo mangle_path(): blank, tab, newline, backslash and # are written as \\ooo."""
    return _OCTAL.sub(lambda match: chr(int(match.group(1), 8)), text)


def _mount(row: _Row, covered: bool, default_kb: int | None, pool_pages: dict[int, int]) -> Mount:
    named = dict(item.partition("=")[::2] for item in row.options.split(",") if "=" in item)
    problems: list[str] = []

    def read(key: str, convert: Any) -> Any:
        if key not in named:
            return None
        try:
            return convert(named[key])
        except ValueError:
            problems.append(f"{key}={named[key]}")
            return None

    page = read("pagesize", size_bytes)
    if page is None and "pagesize" not in named and default_kb:
        page = default_kb * 1024

    def limit(text: str) -> int:
        if not text.endswith("%"):
            return size_bytes(text)
        if page not in pool_pages:
            raise ValueError(text)
        pages: int = int(text[:-1]) * pool_pages[page] // 100
        return pages * int(page)

    return Mount(
        path=row.path,
        page_size=page,
        size=read("size", limit),
        min_size=read("min_size", limit),
        uid=read("uid", int),
        gid=read("gid", int),
        mode=read("mode", lambda text: f"{int(text, 8):o}"),
        options=row.options,
        covered=covered,
        problem=", ".join(problems) or None,
    )
