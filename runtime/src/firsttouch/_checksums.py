# SPDX-License-Identifier: Apache-2.0
"""Digests by name. All of them let other threads run while they work on large pieces."""

from __future__ import annotations

import hashlib
import importlib
import zlib
from collections.abc import Callable
from typing import Any, Protocol

from firsttouch.errors import ArgumentError, UnsupportedError

# In the order of preference for finding damage; sha256 and blake3 also stand against intent.
NAMES = ("xxh3", "crc32", "sha256", "blake3", "none")
Digest = Callable[[Any], str]
# Hex digits of each, which the plan needs before there is a digest.
WIDTHS = {"xxh3": 32, "crc32": 8, "sha256": 64, "blake3": 64, "none": 0}


def resolve(name: str) -> tuple[str, str]:
    """The checksum to use for NAME, and a warning when it is not NAME: xxh3 without its library becomes crc32.

    Raises UnsupportedError for a library that is missing, ArgumentError for a name that is not known.
    """
    if name not in NAMES:
        raise ArgumentError(f"no checksum {name!r}", hint=f"there are {', '.join(NAMES)}")
    if name == "xxh3" and _module("xxhash") is None:
        return "crc32", "checksum crc32, because xxhash is not installed"
    if name == "blake3" and _module("blake3") is None:
        raise UnsupportedError("checksum blake3 needs its library", hint="pip install blake3")
    return name, ""


class Hasher(Protocol):
    """What takes bytes in pieces, as those of hashlib do."""

    def update(self, data: Any, /) -> Any:
        """Take the next piece."""

    def hexdigest(self) -> str:
        """The digest of all pieces as one."""


class _Nothing:
    """The digest of nothing, which is empty."""

    def update(self, data: Any, /) -> None:
        pass

    def hexdigest(self) -> str:
        return ""


class _Crc32:
    """zlib.crc32 in pieces."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: Any, /) -> None:
        self._value = zlib.crc32(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


def hasher(name: str) -> Callable[[], Hasher]:
    """What makes a new hasher of kind NAME. Raises UnsupportedError when its library is missing."""
    plain: dict[str, Callable[[], Hasher]] = {"none": _Nothing, "crc32": _Crc32, "sha256": hashlib.sha256}
    if name in plain:
        return plain[name]
    wanted = {"xxh3": "xxhash", "blake3": "blake3"}[name]
    library = _module(wanted)
    if library is None:
        raise UnsupportedError(f"checksum {name} needs its library", hint=f"pip install {wanted}")
    make: Callable[[], Hasher] = library.xxh3_128 if name == "xxh3" else library.blake3
    return make


def digest(name: str) -> Digest:
    """The function from a buffer to hex digits. Raises UnsupportedError when its library is missing."""
    make = hasher(name)

    def whole(data: Any) -> str:
        one = make()
        one.update(data)
        return one.hexdigest()

    return whole


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
