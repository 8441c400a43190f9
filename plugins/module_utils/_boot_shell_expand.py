# SPDX-License-Identifier: Apache-2.0
"""Arithmetic, the removal of prefixes and suffixes (POSIX.1-2017, XCU 2.6), and `echo TEXT | grep PATTERN`.

Only what dash and bash, and every grep, take for the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_TOKEN = re.compile(r"\s*(?:(0[xX][0-9a-fA-F]+|[0-9]+)|(\$?\{?[A-Za-z_][A-Za-z0-9_]*\}?)|([-+*/%()]))")
_NAME = re.compile(r"\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)|([A-Za-z_]\w*)", re.ASCII)
_WORD = re.compile(r"(?<!\w)[A-Za-z_]\w*", re.ASCII)
_ASSIGNS = re.compile(r"(?<![=!<>])=(?!=)|<<=|>>=|\+\+|--")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]+")
_LIMIT = 1 << 63


class _Unclear(Exception):
    """Not an expression that every shell takes for the same."""


def arithmetic(text: str, lookup: Callable[[str], str | None]) -> int | None:
    """The value of TEXT between `$((` and `))`; None where it is not known to be the same in every shell.

    Only whole numbers, variables that hold one, + - * / % and parentheses. LOOKUP: the text of a variable, empty where
    it is unset, None where it cannot be told.
    """
    try:
        tokens = _tokens(text, lookup)
        value, rest = _sum(tokens)
    except (_Unclear, RecursionError):
        return None
    return None if rest else value


def assigned(text: str, lookup: Callable[[str], str | None]) -> set[str]:
    """The variables that TEXT between `$((` and `))` may give a value, by itself or by what is in its variables."""
    names: set[str] = set()
    texts = [text]
    assigns = False
    while texts:
        here = texts.pop()
        assigns = assigns or bool(_ASSIGNS.search(here))
        more = set(_WORD.findall(here)) - names
        names |= more
        texts += [lookup(name) or "" for name in sorted(more)]
    return names if assigns else set()


def _tokens(text: str, lookup: Callable[[str], str | None]) -> list[int | str]:
    found: list[int | str] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if not match:
            raise _Unclear
        at = match.end()
        digits, name, sign = match.groups()
        if sign:
            if sign in "+-*/" and found and found[-1] == sign and match.start(3) == match.start():
                raise _Unclear  # ++, --, ** and // are operators of their own
            found.append(sign)
        else:
            found.append(_number(digits) if digits else _variable(name, lookup))
    return found


def _number(digits: str) -> int:
    if not _NUMBER.fullmatch(digits) or (
        digits[0] == "0" and re.search("[89]", digits) and "x" not in digits.lower()
    ):
        raise _Unclear
    value = int(digits, 16 if digits[:2] in ("0x", "0X") else 8 if digits[0] == "0" else 10)
    if value >= _LIMIT:
        raise _Unclear
    return value


def _variable(name: str, lookup: Callable[[str], str | None]) -> int:
    match = _NAME.fullmatch(name)
    text = lookup(next(filter(None, match.groups()))) if match else None
    if text is None or (not text and name[0] == "$"):
        raise _Unclear
    return _number(text) if text else 0


def _sum(tokens: list[int | str]) -> tuple[int, list[int | str]]:
    value, rest = _product(tokens)
    while rest and rest[0] in ("+", "-"):
        right, after = _product(rest[1:])
        value, rest = _bounded(value + right if rest[0] == "+" else value - right), after
    return value, rest


def _product(tokens: list[int | str]) -> tuple[int, list[int | str]]:
    value, rest = _factor(tokens)
    while rest and rest[0] in ("*", "/", "%"):
        right, after = _factor(rest[1:])
        if rest[0] == "*":
            value = _bounded(value * right)
        elif right == 0:
            raise _Unclear
        else:
            quotient = abs(value) // abs(right) * (1 if (value < 0) == (right < 0) else -1)
            value = quotient if rest[0] == "/" else value - quotient * right
        rest = after
    return value, rest


def _factor(tokens: list[int | str]) -> tuple[int, list[int | str]]:
    if not tokens:
        raise _Unclear
    first, rest = tokens[0], tokens[1:]
    if isinstance(first, int):
        return first, rest
    if first in ("+", "-"):
        value, rest = _factor(rest)
        return (value if first == "+" else -value), rest
    if first != "(":
        raise _Unclear
    value, rest = _sum(rest)
    if not rest or rest[0] != ")":
        raise _Unclear
    return value, rest[1:]


def _bounded(value: int) -> int:
    if abs(value) >= _LIMIT:
        raise _Unclear
    return value


def kept(text: str, operator: str, pattern: str) -> tuple[int, int]:
    """(start, end) of what is left of TEXT by `#`, `##`, `%` or `%%` with PATTERN, a regular expression."""
    ends = range(len(text) + 1)
    if operator[0] == "#":
        cuts = ends if operator == "#" else reversed(ends)
        return next((at for at in cuts if re.fullmatch(pattern, text[:at], re.DOTALL)), 0), len(text)
    cuts = reversed(ends) if operator == "%" else ends
    return 0, next((at for at in cuts if re.fullmatch(pattern, text[at:], re.DOTALL)), len(text))


def printed(fields: list[str]) -> str | None:
    """What `echo` or `printf` with these FIELDS prints; None where shells do not agree, and for other commands."""
    if any("\\" in field for field in fields[1:] if field != "%s\\n"):
        return None
    if fields[0] == "echo" and not "".join(fields[1:2]).startswith("-"):
        return " ".join(fields[1:])
    if fields[:2] in (["printf", "%s"], ["printf", "%s\\n"]) and len(fields) == 3:
        return fields[2]
    return None


def grep_finds(text: str, fields: list[str]) -> bool | None:
    """Whether `grep` with these FIELDS finds something in TEXT; None where that takes more than a plain pattern."""
    options = "".join(field[1:] for field in fields[1:] if field.startswith("-"))
    patterns = [field for field in fields[1:] if not field.startswith("-")]
    if fields[0] != "grep" or set(options) - set("qsiwFEe") or len(patterns) != 1 or not text.isascii():
        return None
    fixed, plain = "F" in options, r"[A-Za-z0-9_.=,:/@% -]+"
    if not re.fullmatch(plain if fixed else rf"\^?{plain}\$?", patterns[0]):
        return None
    pattern = re.escape(patterns[0])
    if not fixed:
        pattern = re.sub(r"\\([.^$])", r"\1", pattern)
    if "w" in options:
        pattern = rf"(?<!\w)(?:{pattern})(?!\w)"
    flags = re.ASCII | (re.IGNORECASE if "i" in options else 0)
    return any(re.search(pattern, line, flags) for line in text.split("\n"))
