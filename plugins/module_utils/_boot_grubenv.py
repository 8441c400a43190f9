# SPDX-License-Identifier: Apache-2.0
"""GRUB's environment block: a file of fixed size, NAME=VALUE lines padded with `#` (lib/envblk.c)."""

from __future__ import annotations

from ._boot_types import BootError
from ._files import decode, encode, read_bytes

HEADER = b"# GRUB Environment Block\n"
SIZE = 1024


def read_grubenv(root: str, path: str) -> dict[str, str]:
    """The variables of the block at PATH, none when it is absent. Raises BootError when it is no block."""
    data = read_bytes(root, path)
    return {} if data is None else parse(data, path)


def parse(data: bytes, path: str) -> dict[str, str]:
    """The variables in DATA. A backslash takes the next character literally, also a newline.

    Of a name that is there twice the last one counts: GRUB's load_env sets one after the other.
    """
    if not data.startswith(HEADER):
        raise BootError("grubenv_invalid", "the file does not begin as a GRUB environment block", path, 1)
    values: dict[str, str] = {}
    for line in _lines(data[len(HEADER) :]):
        if line.startswith(b"#") or b"=" not in line:
            continue
        name, _equals, raw = line.partition(b"=")
        values[decode(name)] = decode(_unescape(raw))
    return values


def line_of(data: bytes, name: str) -> int:
    """The line number NAME is set on, from 1."""
    at = data.rfind(b"\n" + encode(name) + b"=")
    return data.count(b"\n", 0, at + 1) + 1 if at >= 0 else 1


def set_variable(data: bytes, name: str, value: str, path: str) -> bytes:
    """Return the block DATA with NAME set to VALUE, other variables as they were.

    Raises BootError `grubenv_full` when the result would not fit; the block never grows.
    """
    parse(data, path)
    key = encode(name) + b"="
    new = key + _escape(encode(value))
    rows = [row for row in _lines(data[len(HEADER) :]) if row.strip(b"#")]
    if any(row.startswith(key) for row in rows):
        rows = [new if row.startswith(key) else row for row in rows]
    else:
        rows.append(new)
    body = HEADER + b"".join(row + b"\n" for row in rows)
    limit = len(data)
    if len(body) > limit:
        raise BootError(
            "grubenv_full",
            f"{name} does not fit into the environment block: {len(body)} bytes are needed, it has {limit}; "
            "write CPU lists as ranges, or remove what else is stored there",
            path,
            line_of(data, name),
            needed=len(body),
            limit=limit,
        )
    return body + b"#" * (limit - len(body))


def _lines(data: bytes) -> list[bytes]:
    found, start, at = [], 0, 0
    while at < len(data):
        if data[at : at + 1] == b"\\":
            at += 2
            continue
        if data[at : at + 1] == b"\n":
            found.append(data[start:at])
            start = at + 1
        at += 1
    return [*found, data[start:]]


def _unescape(raw: bytes) -> bytes:
    out, at = bytearray(), 0
    while at < len(raw):
        if raw[at : at + 1] == b"\\" and at + 1 < len(raw):
            at += 1
        out += raw[at : at + 1]
        at += 1
    return bytes(out)


def _escape(raw: bytes) -> bytes:
    return raw.replace(b"\\", b"\\\\").replace(b"\n", b"\\\n")
