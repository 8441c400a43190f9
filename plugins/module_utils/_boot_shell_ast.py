# SPDX-License-Identifier: Apache-2.0
"""The syntax tree of the shell subset: what _boot_shell parses and _grub_default evaluates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Union


class ShellError(Exception):
    """The text cannot be parsed, or holds a construct outside the subset. `line` counts from 1."""

    def __init__(self, reason: str, line: int, text: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.line = line
        self.text = text


@dataclass(frozen=True)
class Char:
    """One literal character and the span of source it was written as."""

    char: str
    start: int
    end: int
    quoted: bool


@dataclass(frozen=True)
class Param:
    """`$name` or `${name OP word}`."""

    name: str
    op: str
    word: Word | None
    quoted: bool
    line: int


@dataclass(frozen=True)
class Opaque:
    """A part whose value only running it could tell."""

    kind: str
    line: int
    quoted: bool


@dataclass(frozen=True)
class Arith:
    """`$((expression))`."""

    expression: str
    quoted: bool
    line: int


Part = Union[Char, Param, Arith, Opaque]


@dataclass(frozen=True)
class Word:
    """A shell word; text[start:end] is its source."""

    parts: tuple[Part, ...]
    start: int
    end: int
    line: int

    def literal(self) -> str | None:
        """The text when the word is literal throughout, quoted or not."""
        if all(isinstance(part, Char) for part in self.parts):
            return "".join(part.char for part in self.parts if isinstance(part, Char))
        return None


@dataclass(frozen=True)
class Assign:
    """`name=word`, or `name+=word`."""

    name: str
    word: Word
    line: int
    append: bool = False


@dataclass
class Simple:
    """A simple command: assignments, words (the command and its arguments), `export name=word` pairs.

    reads: one of its redirections is of its input.
    """

    line: int
    assigns: list[Assign] = field(default_factory=list)
    words: list[Word | Assign] = field(default_factory=list)
    redirected: bool = False
    reads: bool = False


@dataclass
class Group:
    """`{ list; }`."""

    body: list[AndOr]
    line: int


@dataclass
class If:
    """Conditions with their bodies; the `else` body has the condition None."""

    branches: list[tuple[list[AndOr] | None, list[AndOr]]]
    line: int


@dataclass
class Case:
    """`case word in (patterns) list ;; esac`."""

    word: Word
    items: list[tuple[list[Word], list[AndOr]]]
    line: int


Command = Union[Simple, Group, If, Case]


@dataclass
class Pipeline:
    """Commands joined by `|`, negated or not."""

    commands: list[Command]
    negated: bool


@dataclass
class AndOr:
    """Pipelines joined by `&&` and `||`; the first operator is empty."""

    parts: list[tuple[str, Pipeline]]
    line: int
