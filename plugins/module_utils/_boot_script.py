# SPDX-License-Identifier: Apache-2.0
"""A parser for GRUB's own script language, the one grub.cfg is written in.

By grub-core/script/yylex.l and parser.y of GRUB 2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Union

from ._boot_types import BootError

_VARIABLE = re.compile(
    r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[?#*@])\}|([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[?#*@]))"
)
_BREAKS = "{}|&;<> \t\n"
_KEYWORD = re.compile(r"[a-z]+(?=[{}|&;<> \t\n]|$)")
_PLAIN = re.compile(r"[^{}|&;<> \t\n\\'\"$]+")
_PLAIN_QUOTED = re.compile(r"[^\\\"$]+")
_LOOPS = ("for", "while", "until")


@dataclass(frozen=True)
class Piece:
    """A part of a word: literal text, or a variable's name; quoted ones are not split."""

    text: str
    variable: bool
    quoted: bool


Word = tuple[Piece, ...]


@dataclass
class Command:
    """A command with its words and, for menuentry and submenu, its block."""

    words: list[Word]
    line: int
    block: list[Statement] | None = None

    def name(self) -> str:
        """The literal first word, or an empty string."""
        first = self.words[0] if self.words else ()
        return "" if any(piece.variable for piece in first) else "".join(piece.text for piece in first)


@dataclass
class Branch:
    """`if`: conditions with their bodies; `else` has no condition."""

    branches: list[tuple[list[Statement], list[Statement]]]
    otherwise: list[Statement]
    line: int


@dataclass
class Loop:
    """A loop: how often it runs is not evaluated."""

    body: list[Statement]
    line: int


@dataclass
class Function:
    """A function definition."""

    name: str
    body: list[Statement]
    line: int


Statement = Union[Command, Branch, Loop, Function]


@dataclass
class Script:
    """The parsed text and, per line number, the generator that wrote it (`### BEGIN path ###`)."""

    statements: list[Statement]
    sections: dict[int, str] = field(default_factory=dict)

    def section(self, line: int) -> str | None:
        """The /etc/grub.d script that wrote LINE."""
        starts = [start for start in self.sections if start <= line]
        return self.sections[max(starts)] or None if starts else None


class ScriptParser:
    """Recursive descent; parse() returns the Script. Raises BootError with the file and line."""

    def __init__(self, text: str, path: str) -> None:
        self.text = text
        self.path = path
        self.pos = 0

    def parse(self) -> Script:
        """Parse the whole text."""
        statements = self._statements(())
        if self.pos < len(self.text):
            raise self._error(f"unexpected {self.text[self.pos]!r}")
        sections: dict[int, str] = {}
        for number, line in enumerate(self.text.split("\n"), 1):
            match = re.match(r"### (BEGIN|END) (\S+) ###", line)
            if match:
                sections[number] = match.group(2) if match.group(1) == "BEGIN" else ""
        return Script(statements, sections)

    def _line(self) -> int:
        return self.text.count("\n", 0, self.pos) + 1

    def _error(self, text: str) -> BootError:
        return BootError("grub_script_syntax", text, self.path, self._line())

    def _peek(self) -> str:
        return self.text[self.pos : self.pos + 1]

    def _skip(self, separators: str) -> None:
        while self.pos < len(self.text):
            here = self.text[self.pos]
            if here in separators:
                self.pos += 1
            elif self.text.startswith("\\\n", self.pos):
                self.pos += 2
            elif here == "#":
                end = self.text.find("\n", self.pos)
                self.pos = len(self.text) if end < 0 else end
            else:
                return

    def _keyword(self) -> str:
        match = _KEYWORD.match(self.text, self.pos)
        return match.group() if match else ""

    def _statements(self, stops: tuple[str, ...]) -> list[Statement]:
        found: list[Statement] = []
        while True:
            self._skip(" \t\n;")
            if self.pos >= len(self.text) or self._peek() == "}":
                return found
            if self._keyword() in stops:
                return found
            found.append(self._statement())

    def _expect(self, keyword: str) -> None:
        self._skip(" \t\n;")
        if self._keyword() != keyword:
            raise self._error(f"{keyword!r} is missing")
        self.pos += len(keyword)

    def _statement(self) -> Statement:
        keyword, line = self._keyword(), self._line()
        if keyword == "if":
            return self._if()
        if keyword in _LOOPS:
            self.pos += len(keyword)
            self._statements(("do",))
            self._expect("do")
            body = self._statements(("done",))
            self._expect("done")
            return Loop(body, line)
        if keyword == "function":
            self.pos += len(keyword)
            self._skip(" \t")
            name = "".join(piece.text for piece in self._word())
            self._skip(" \t\n")
            return Function(name, self._block(), line)
        return self._command()

    def _if(self) -> Branch:
        line = self._line()
        branches: list[tuple[list[Statement], list[Statement]]] = []
        keyword = "if"
        while keyword in ("if", "elif"):
            self.pos += len(keyword)
            condition = self._statements(("then",))
            self._expect("then")
            branches.append((condition, self._statements(("elif", "else", "fi"))))
            keyword = self._keyword()
        otherwise: list[Statement] = []
        if keyword == "else":
            self.pos += 4
            otherwise = self._statements(("fi",))
        self._expect("fi")
        return Branch(branches, otherwise, line)

    def _block(self) -> list[Statement]:
        if self._peek() != "{":
            raise self._error("'{' is missing")
        self.pos += 1
        body = self._statements(())
        if self._peek() != "}":
            raise self._error("'}' is missing")
        self.pos += 1
        return body

    def _command(self) -> Command:
        command = Command([], self._line())
        while True:
            self._skip(" \t")
            here = self._peek()
            if not here or here in "\n;}":
                return command
            if here == "{":
                if not command.words:
                    raise self._error("unexpected '{'")
                command.block = self._block()
            elif here in "|&<>":
                raise self._error(f"{here!r} is not part of the language")
            else:
                command.words.append(self._word())

    def _word(self) -> Word:
        pieces: list[Piece] = []
        while self.pos < len(self.text) and self.text[self.pos] not in _BREAKS:
            here = self.text[self.pos]
            if here == "\\":
                escaped = self.text[self.pos + 1 : self.pos + 2]
                self.pos += 2
                if escaped != "\n":
                    pieces.append(Piece(escaped, False, True))
            elif here == "'":
                end = self.text.find("'", self.pos + 1)
                if end < 0:
                    raise self._error("a single quote is not closed")
                pieces.append(Piece(self.text[self.pos + 1 : end], False, True))
                self.pos = end + 1
            elif here == '"' or self.text.startswith('$"', self.pos):
                pieces.extend(self._double())
            else:
                pieces.append(self._plain(False))
        return tuple(pieces)

    def _double(self) -> list[Piece]:
        opened = self.pos
        self.pos = self.text.index('"', self.pos) + 1
        pieces = [Piece("", False, True)]
        while self.pos < len(self.text):
            here, after = self.text[self.pos], self.text[self.pos + 1 : self.pos + 2]
            if here == '"':
                self.pos += 1
                return pieces
            if here == "\\" and after and after in '\\"$\n':
                pieces.append(Piece("" if after == "\n" else after, False, True))
                self.pos += 2
            else:
                pieces.append(self._plain(True))
        self.pos = opened
        raise self._error("a double quote is not closed")

    def _plain(self, quoted: bool) -> Piece:
        match = _VARIABLE.match(self.text, self.pos)
        if match:
            self.pos = match.end()
            return Piece(match.group(1) or match.group(2), True, quoted)
        run = (_PLAIN_QUOTED if quoted else _PLAIN).match(self.text, self.pos)
        text = run.group() if run else self.text[self.pos]
        self.pos += len(text)
        return Piece(text, False, quoted)
