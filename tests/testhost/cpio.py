# SPDX-License-Identifier: GPL-3.0-or-later
"""An initramfs archive: cpio in the "newc" format (Documentation/driver-api/early-userspace/buffer-format.rst)."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass

_PT_INTERP = 3


@dataclass(frozen=True)
class Entry:
    """A file, directory or device: path without a leading slash, st_mode, content, (major, minor)."""

    path: str
    mode: int
    data: bytes = b""
    rdev: tuple[int, int] = (0, 0)


def _record(inode: int, entry: Entry) -> bytes:
    name = entry.path.encode() + b"\0"
    fields = (inode, entry.mode, 0, 0, 1, 0, len(entry.data), 0, 0, *entry.rdev, len(name), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name
    return head + bytes(-len(head) % 4) + entry.data + bytes(-len(entry.data) % 4)


def pack(entries: Iterable[Entry]) -> bytes:
    """The archive; the same entries give the same bytes."""
    records = [_record(inode, entry) for inode, entry in enumerate(entries, 1)]
    return b"".join(records) + _record(0, Entry("TRAILER!!!", 0))


def digest(archive: bytes) -> str:
    return hashlib.sha256(archive).hexdigest()[:12]


def is_dynamic(program: bytes) -> bool:
    """Whether a 64-bit little-endian ELF file asks for a dynamic loader, which an initramfs lacks."""
    if program[:6] != b"\x7fELF\x02\x01":
        return False
    offset, size, count = (
        struct.unpack_from("<Q", program, 32)[0],
        struct.unpack_from("<H", program, 54)[0],
        struct.unpack_from("<H", program, 56)[0],
    )
    kinds = (struct.unpack_from("<I", program, offset + index * size)[0] for index in range(count))
    return _PT_INTERP in kinds
