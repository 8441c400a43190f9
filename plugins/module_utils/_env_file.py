# SPDX-License-Identifier: Apache-2.0
"""Environment files, read as systemd reads those of EnvironmentFile= (systemd.exec(5), src/basic/env-file.c).

Blanks around name and value go. What is in quotes may have several lines, and more of it may follow; a quote further
on in a plain value is a character like any other. A backslash joins two lines and gives the next character as it is,
between double quotes only what a shell would read there. A comment ends with its line, as it does since systemd 254;
before, a backslash at its end took the next line into it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_QUOTED = r"""'([^']*)(?:'|\Z) | "((?:[^"\\]|\\.|\\\Z)*)(?:"|\Z)"""
_ENTRY = re.compile(
    rf"""
      [\#;] [^\n\r]*
    | (?P<name> [^ \t\n\r] [^=\n\r]* ) = [ \t]*
      (?P<quoted> (?: (?: {_QUOTED} ) [ \t]* )* )
      (?P<plain> (?: [ \t]* (?: [^\\ \t\n\r] | \\. | \\\Z ) )* )
    | [^ \t\n\r] [^\n\r]*
    """,
    re.VERBOSE | re.DOTALL,
)
_QUOTES = re.compile(_QUOTED, re.VERBOSE | re.DOTALL)
_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)


def assignments(text: str) -> Iterator[tuple[str, str, int]]:
    """(name, value, number of its first line) of each assignment in TEXT; of those of one name the last one counts."""
    for entry in _ENTRY.finditer(text):
        if not entry["name"]:
            continue
        parts = [
            single if double is None else _ESCAPE.sub(_quoted_escape, double)
            for single, double in (part.groups() for part in _QUOTES.finditer(entry["quoted"]))
        ]
        value = "".join(parts) + _ESCAPE.sub(_plain_escape, entry["plain"])
        yield entry["name"].rstrip(" \t"), value, text.count("\n", 0, entry.start()) + 1


def _plain_escape(escape: re.Match[str]) -> str:
    return "" if escape[1] in "\n\r" else escape[1]


def _quoted_escape(escape: re.Match[str]) -> str:
    if escape[1] in ("", "\n"):
        return ""
    return escape[1] if escape[1] in '"\\`$' else escape[0]
