# SPDX-License-Identifier: Apache-2.0
"""Plain YAML, written and read without a library: hosts have none.

What is written is block style, and every string that YAML could take for something else is quoted. What is read is
the part of YAML in which kubelet configurations are written; the rest is told apart as `Opaque`, never guessed at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
# What YAML 1.1 readers take for a boolean or nothing; a number starts with none of the letters above but for .inf.
_WORDS = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null"])
_KEY = re.compile(r"(\"[^\"\\]*\"|'[^']*'|[A-Za-z_][\w./-]*):(?:\s+(.*))?")
# What begins an entry of a list, a key or a value is no text on the line of a key.
_ENTRY = re.compile(r"[-?:](?:\s|$)")
_OPENERS = tuple("&*!|>%@`{[?,]}#")
_FLOW_PAIR = re.compile(
    r"\s*(\"[^\"\\]*\"|'[^']*'|[\w./-]+):\s+(\"[^\"\\]*\"|'[^']*'|[^\s\"'{}\[\],&*!|>#]+)\s*"
)


class YamlError(ValueError):
    """A text that is no document of the kind that is read here."""


@dataclass(frozen=True)
class Opaque:
    """A value that is there and that is not understood; `line` is where it starts."""

    line: int


def dump(value: Mapping[str, Any], comment: str = "") -> str:
    """VALUE as a YAML document, COMMENT as the line before it."""
    return "\n".join([*([comment] if comment else []), *_lines(value, 0)]) + "\n"


def _lines(value: Any, depth: int) -> Iterator[str]:
    pad = "  " * depth
    rows = value.items() if isinstance(value, Mapping) else ((None, item) for item in value)
    for key, item in rows:
        lead = f"{pad}- " if key is None else f"{pad}{_scalar(key)}:"
        if not isinstance(item, (Mapping, list, tuple)):
            yield f"{lead}{_scalar(item)}" if key is None else f"{lead} {_scalar(item)}"
        elif not item:
            yield lead.rstrip() + (" {}" if isinstance(item, Mapping) else " []")
        elif key is None:
            inner = list(_lines(item, depth + 1))
            yield lead + inner[0].lstrip()
            yield from inner[1:]
        else:
            yield lead
            yield from _lines(item, depth + 1)


def _scalar(value: Any) -> str:
    if value is None or isinstance(value, (bool, int)):
        return json.dumps(value)
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    # JSON in ASCII is YAML, but for pairs of surrogates and for DEL.
    return '"' + "".join(f"\\U{ord(char):08x}" if char > "\uffff" or char == "\x7f" else json.dumps(char)[1:-1]
                         for char in text) + '"'  # fmt: skip


def read(text: str) -> dict[str, Any]:
    """The top level of TEXT, one mapping in YAML or JSON: strings, booleans, None, one level of mappings, or Opaque.

    Numbers stay text, as they are written. Raises YamlError for a text whose top level cannot be told.
    """
    if text.lstrip().startswith("{"):
        try:
            document = json.loads(text)
        except ValueError as exc:
            raise YamlError(f"neither JSON nor block YAML: {exc}") from None
        return {key: _from_json(value) for key, value in document.items()}
    found: dict[str, Any] = {}
    blocks: list[tuple[str, str | None, int, list[tuple[int, str]]]] = []
    started = False
    for number, raw in enumerate(text.splitlines(), 1):
        line = _without_comment(raw)
        if not line.strip():
            continue
        if line.startswith(("---", "...", "%")):
            if line == "---" and not started:
                started = True
                continue
            raise YamlError(f"line {number}: more than one document")
        started = True
        match = None if line[0] in " \t-" else _KEY.fullmatch(line)
        if match:
            blocks.append((_unquoted(match[1]), match[2], number, []))
        elif line[0] in " \t-" and blocks:
            blocks[-1][3].append((number, line))
        else:
            raise YamlError(f"line {number}: {raw.strip()!r} is no key")
    for key, inline, number, inner in blocks:
        if key in found:
            raise YamlError(f"line {number}: {key} is there twice")
        found[key] = _value(inline, number, inner)
    return found


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        plain = {key: _from_json(item) for key, item in value.items()}
        nested = any(isinstance(item, (dict, Opaque)) for item in plain.values())
        return Opaque(1) if nested else plain
    if isinstance(value, list):
        return Opaque(1) if value else []
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def _without_comment(line: str) -> str:
    """LINE without its comment and the blanks at its end; a `#` in quotes or inside a word is none."""
    quote = ""
    for position, char in enumerate(line):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'" and (position == 0 or line[position - 1] in " {[,:-"):
            quote = char
        elif char == "#" and (position == 0 or line[position - 1] in " \t"):
            return line[:position].rstrip()
    return line.rstrip()


def _value(inline: str | None, number: int, inner: list[tuple[int, str]]) -> Any:
    if inline and not inner:
        return _flow(inline, number)
    if inline:  # a scalar over several lines, a block scalar, an anchor
        return Opaque(number)
    if not inner:
        return None
    indent = len(inner[0][1]) - len(inner[0][1].lstrip(" "))
    rows: dict[str, Any] = {}
    for line_number, line in inner:
        match = _KEY.fullmatch(line[indent:])
        plain = line[:indent].strip(" ") == "" and indent and line[indent] not in " \t-"
        if not match or not plain or _unquoted(match[1]) in rows:
            return Opaque(number)
        rows[_unquoted(match[1])] = None if not match[2] else _plain(match[2], line_number)
    return Opaque(number) if any(isinstance(item, Opaque) for item in rows.values()) else rows


def _flow(text: str, number: int) -> Any:
    if text in ("{}", "[]"):
        return {} if text == "{}" else []
    if not (text.startswith("{") and text.endswith("}")):
        return _plain(text, number)
    rows: dict[str, Any] = {}
    for pair in text[1:-1].split(","):
        match = _FLOW_PAIR.fullmatch(pair)
        value = _plain(match[2], number) if match else Opaque(number)
        if not match or isinstance(value, Opaque) or _unquoted(match[1]) in rows:
            return Opaque(number)
        rows[_unquoted(match[1])] = value
    return rows


def _plain(text: str, number: int) -> Any:
    if text[0] in "\"'":
        body = text[1:-1]
        closed = len(text) > 1 and text[-1] == text[0] and text[0] not in body and "\\" not in body
        return body if closed else Opaque(number)
    # `0644` is octal to one reader and decimal to the next.
    if (
        text.startswith(_OPENERS)
        or _ENTRY.match(text)
        or re.search(r":(?:\s|$)", text)
        or re.fullmatch(r"[-+]?0[0-9_xob].*", text)
    ):
        return Opaque(number)
    if text in ("null", "Null", "NULL", "~"):
        return None
    lower = text.lower()
    if lower in ("true", "false"):
        return lower == "true"
    return Opaque(number) if lower in _WORDS else text


def _unquoted(text: str) -> str:
    return text[1:-1] if text[0] in "\"'" else text
