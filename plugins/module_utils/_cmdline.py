# SPDX-License-Identifier: Apache-2.0
"""The kernel command line as an ordered list of tokens (lib/cmdline.c next_arg, kernel/params.c parse_args).

Tokens are never sorted, grouped or de-duplicated, and each keeps its exact text, so that a token that is not
ours is written back as it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

# isspace() of lib/ctype.c, which counts the byte 0xa0 as a blank, also inside of a UTF-8 letter such as "à".
_SPACE = frozenset(b" \t\n\v\f\r\xa0")
_ASCII_SPACE = frozenset(b" \t\n\v\f\r")


@dataclass(frozen=True)
class Token:
    """One argument: its exact text, and key and value as the kernel sees them (value None: no `=`).

    after_dashes: the token stands behind a bare `--`, so it goes to init and the kernel does not read it.
    gap: what to write in front of it: one space, unless the blanks there were not plain ones.
    """

    text: str
    key: str
    value: str | None
    after_dashes: bool = False
    gap: str = field(default=" ", compare=False, repr=False)

    @property
    def is_separator(self) -> bool:
        """Whether this is the bare `--` at which the kernel stops reading (kernel/params.c parse_args)."""
        return self.key == "--" and self.value is None and not self.after_dashes


def split(line: str) -> list[Token]:
    """Return the tokens of LINE in order, by the kernel's own rules.

    Only double quotes group, there is no escape character, the first `=` that is not the first character
    splits key from value, quotes around a whole argument or a whole value are not part of them. LINE is text
    decoded as UTF-8 with surrogateescape. Never raises: an unterminated quote runs to the end of the line.
    """
    data = line.encode("utf-8", "surrogateescape")
    tokens: list[Token] = []
    pos, after_dashes = 0, False
    while True:
        start = pos
        while pos < len(data) and data[pos] in _SPACE:
            pos += 1
        gap = data[start:pos]
        if pos >= len(data):
            return tokens
        end, key, value = _next_arg(data, pos)
        token = Token(
            text=_text(data[pos:end]),
            key=_text(key),
            value=None if value is None else _text(value),
            after_dashes=after_dashes,
            gap=" " if all(byte in _ASCII_SPACE for byte in gap) else _text(gap),
        )
        tokens.append(token)
        after_dashes = after_dashes or token.is_separator
        pos = end


def make(text: str) -> Token:
    """Return the one token that TEXT is. Raises ValueError when TEXT is not exactly one argument."""
    tokens = split(text)
    if len(tokens) != 1 or tokens[0].text != text or text.count('"') % 2:
        raise ValueError(f"{text!r} is not exactly one kernel argument")
    return tokens[0]


def join(tokens: Iterable[Token]) -> str:
    """Return TOKENS as one line; the text of each is kept byte for byte, so split() gives the same tokens."""
    parts: list[str] = []
    for token in tokens:
        if parts:
            parts.append(token.gap)
        parts.append(token.text)
    # A gap inside of a UTF-8 letter was cut out as single bytes: bytes put them together again.
    return _text("".join(parts).encode("utf-8", "surrogateescape"))


def same_key(a: str, b: str) -> bool:
    """Whether A and B are the same parameter: `-` and `_` are equal (kernel/params.c parameq)."""
    return normal_key(a) == normal_key(b)


def normal_key(key: str) -> str:
    """KEY with `-` written as `_`, for use in sets and dictionaries."""
    return key.replace("-", "_")


def _next_arg(data: bytes, pos: int) -> tuple[int, bytes, bytes | None]:
    """next_arg of lib/cmdline.c from POS: the end of the argument, its key and its value."""
    quoted = data[pos : pos + 1] == b'"'
    begin = pos + 1 if quoted else pos
    in_quote, equals, end = quoted, begin, begin
    while end < len(data) and (in_quote or data[end] not in _SPACE):
        byte = data[end : end + 1]
        if equals == begin and byte == b"=":
            equals = end
        if byte == b'"':
            in_quote = not in_quote
        end += 1
    stop = end
    if equals == begin:
        if quoted and end > begin and data[end - 1 : end] == b'"':
            stop -= 1
        return end, data[begin:stop], None
    value_at = equals + 1
    strip_value = data[value_at : value_at + 1] == b'"'
    if strip_value:
        value_at += 1
    if (strip_value or quoted) and data[end - 1 : end] == b'"':
        stop -= 1
    return end, data[begin:equals], data[value_at : max(stop, value_at)]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
