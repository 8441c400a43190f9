# SPDX-License-Identifier: Apache-2.0
"""Digests by name. All of them let other threads run while they work on large pieces."""

from __future__ import annotations

import hashlib
import importlib
import zlib
from collections.abc import Callable
from typing import Any

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


def digest(name: str) -> Digest:
    """The function from a buffer to hex digits. Raises UnsupportedError when its library is missing."""
    if name == "none":
        return lambda data: ""
    if name == "crc32":
        return lambda data: f"{zlib.crc32(data):08x}"
    if name == "sha256":
        return lambda data: hashlib.sha256(data).hexdigest()
    wanted = {"xxh3": "xxhash", "blake3": "blake3"}[name]
    library = _module(wanted)
    if library is None:
        raise UnsupportedError(f"checksum {name} needs its library", hint=f"pip install {wanted}")
    function = library.xxh3_128 if name == "xxh3" else library.blake3
    return lambda data: str(function(data).hexdigest())


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
