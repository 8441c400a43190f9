# SPDX-License-Identifier: Apache-2.0
"""Numbers and sizes: as the kernel reads them from its command line, and as people write them to us."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SHIFT = {letter: 10 * (index + 1) for index, letter in enumerate("KMGTPE")}
_WORD = 2**64


@dataclass(frozen=True)
class Warn:
    """One thing the kernel refuses, drops or changes: the token, a stable reason code, and one sentence.

    dropped: the kernel takes nothing from the token.
    """

    token: str
    reason: str
    text: str
    dropped: bool = False

    def as_dict(self) -> dict[str, str]:
        """The row that modules return."""
        return {"token": self.token, "reason": self.reason, "text": self.text}


def memparse(text: str) -> tuple[int, str]:
    """lib/cmdline.c memparse: the number TEXT begins with (0x.. and 0.. count), times K, M, G, T, P or E.

    Return the value, 0 when there is no number, and the rest of TEXT. What follows the one letter is not
    looked at by most callers, so `1GB` and `1Gfoo` are 1G.
    """
    match = re.match(r"0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*", text)
    if not match:
        return 0, text
    digits = match.group(0)
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[0] == "0" else 10
    value = int(digits, base)
    rest = text[match.end() :]
    shift = _SHIFT.get(rest[:1].upper(), 0)
    return (value << shift) % _WORD, rest[1:] if shift else rest


def scan_unsigned(text: str) -> tuple[int, str] | None:
    """sscanf("%lu%n") of the kernel: decimal digits behind optional blanks; None when there are none."""
    match = re.match(r"[ \t\n\v\f\r]*([0-9]+)", text)
    return (int(match.group(1)) % _WORD, text[match.end() :]) if match else None


def get_option(text: str) -> int | None:
    """lib/cmdline.c get_option: the integer TEXT begins with (sign, 0x.. and 0.. count); None without one."""
    sign = -1 if text[:1] == "-" else 1
    digits = text[1:] if sign < 0 else text
    if not re.match(r"[0-9]", digits):
        return None
    plain = re.match(r"0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*", digits)
    return sign * memparse(plain.group(0))[0] if plain else None


def parse_size(text: str) -> int:
    """Return the huge page size that TEXT names, in kB: `2M`, `1G`, `1GB`, `2048kB`, `2MiB`, `1073741824`.

    A bare number is bytes, as for the kernel. Raises ValueError for anything else, and for less than 1 kB.
    """
    match = re.fullmatch(r"\s*([0-9]+)\s*(?:([KMGTkmgt])(?:i?[Bb])?)?\s*", text)
    if not match:
        raise ValueError(f"{text!r} is not a page size such as 2M, 1G or 2048kB")
    value = int(match.group(1)) << _SHIFT.get((match.group(2) or "").upper(), 0)
    if value < 1024 or value % 1024:
        raise ValueError(f"{text!r} is not a whole number of kB")
    return value // 1024


def format_size(size_kb: int) -> str:
    """Return SIZE_KB in the shortest form the kernel reads: 2048 -> `2M`, 1048576 -> `1G`, 64 -> `64K`."""
    for letter, step in (("T", 30), ("G", 20), ("M", 10)):
        if size_kb and size_kb % (1 << step) == 0:
            return f"{size_kb >> step}{letter}"
    return f"{size_kb}K"
