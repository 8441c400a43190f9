# SPDX-License-Identifier: Apache-2.0
"""Words of the shell subset: quoting, escapes, expansions (POSIX.1-2017, XCU 2.2 and 2.6)."""

from __future__ import annotations

import re

from ._boot_shell_ast import Arith, Char, Opaque, Param, Part, ShellError, Word

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME_GOES_ON = re.compile(r"[A-Za-z0-9_]+")
META = " \t\n;&|<>()"
_BLANK = " \t"
_KEYWORD = re.compile(r"[a-z]+|[{}!]|\[\[")
_OPERATOR = re.compile(r":?[-+=?]|%%?|##?")


class WordReader:
    """Reads words from `text` at `pos`; `bash`: as that shell does, None where nobody knows. Raises ShellError."""

    def __init__(self, text: str, bash: bool | None = False) -> None:
        self.text = text
        self.bash = bash
        self.pos = 0

    def _line(self, pos: int | None = None) -> int:
        return self.text.count("\n", 0, self.pos if pos is None else pos) + 1

    def _peek(self, count: int = 1) -> str:
        return self.text[self.pos : self.pos + count]

    def _refuse(self, what: str, pos: int | None = None) -> ShellError:
        return ShellError("unsupported_shell_construct", self._line(pos), what)

    def _unexpected(self) -> ShellError:
        found = self._peek() or "the end of the file"
        return ShellError("syntax_error", self._line(), f"unexpected {found!r}")

    def _skip_blanks(self) -> None:
        while True:
            if self._peek() and self._peek() in _BLANK:
                self.pos += 1
            elif self._peek(2) == "\\\n":
                self.pos += 2
            elif self._peek() == "#":
                end = self.text.find("\n", self.pos)
                self.pos = len(self.text) if end < 0 else end
            else:
                return

    def _past_continuations(self, pos: int) -> int:
        """The shell takes every unquoted backslash and newline out before it looks for words and names."""
        while self.text.startswith("\\\n", pos):
            pos += 2
        return pos

    def _name(self, pos: int) -> tuple[str, int]:
        """The parameter name at POS, empty when there is none, and the position after it."""
        name = ""
        while True:
            pattern = _NAME_GOES_ON if name else NAME
            match = pattern.match(self.text, self._past_continuations(pos))
            if not match:
                return name, pos
            name, pos = name + match.group(), match.end()

    def _keyword(self) -> str:
        """The unquoted word at the position when it could be a reserved word."""
        match = _KEYWORD.match(self.text, self.pos)
        if not match:
            return ""
        end = self._past_continuations(match.end())
        after = self.text[end : end + 1]
        return match.group() if not after or after in META else ""

    def _word(self, tilde: bool = False) -> Word:
        start, line = self.pos, self._line()
        parts: list[Part] = []
        while self.pos < len(self.text) and self.text[self.pos] not in META:
            here = self.text[self.pos]
            before = self.text[self.pos - 1] if self.pos > start else ""
            if here == "~" and (not parts or (tilde and before == ":")):
                parts.append(Opaque("a tilde", self._line(), False))
                self.pos += 1
            else:
                parts.extend(self._piece(False))
        if self.pos == start and not tilde:
            raise self._unexpected()
        return Word(tuple(parts), start, self.pos, line)

    def _piece(self, quoted: bool) -> list[Part]:
        """One character, quotation or expansion outside double quotes."""
        here, start = self.text[self.pos], self.pos
        if here == "\\":
            if self._peek(2) == "\\\n":
                self.pos += 2
                return []
            self.pos += 2 if self.pos + 1 < len(self.text) else 1
            return [Char(self.text[self.pos - 1], start, self.pos, True)]
        if here == "'":
            end = self.text.find("'", start + 1)
            if end < 0:
                raise ShellError("unterminated_quote", self._line(), "a single quote is not closed")
            self.pos = end + 1
            return [Char(self.text[at], at, at + 1, True) for at in range(start + 1, end)]
        if here == '"':
            return self._double()
        if here == "$":
            return [self._dollar(quoted)]
        if here == "`":
            return [self._backticks(quoted)]
        self.pos += 1
        return [Char(here, start, self.pos, quoted)]

    def _double(self) -> list[Part]:
        opened = self.pos
        self.pos += 1
        parts: list[Part] = []
        while self.pos < len(self.text):
            if self.text[self.pos] == '"':
                self.pos += 1
                return parts
            parts.extend(self._quoted_piece('$`"\\'))
        raise ShellError("unterminated_quote", self._line(opened), "a double quote is not closed")

    def _quoted_piece(self, escapable: str) -> list[Part]:
        """One character or expansion inside double quotes."""
        here, start = self.text[self.pos], self.pos
        after = self.text[start + 1 : start + 2]
        if here == "\\" and after == "\n":
            self.pos += 2
            return []
        if here == "\\" and after and after in escapable:
            self.pos += 2
            return [Char(after, start, self.pos, True)]
        if here == "$":
            return [self._dollar(True)]
        if here == "`":
            return [self._backticks(True)]
        self.pos += 1
        return [Char(here, start, self.pos, True)]

    def _backticks(self, quoted: bool) -> Part:
        line, at = self._line(), self.pos + 1
        while at < len(self.text) and self.text[at] != "`":
            at += 2 if self.text[at] == "\\" else 1
        if at >= len(self.text):
            raise ShellError("unterminated_quote", line, "a backtick is not closed")
        self.pos = at + 1
        return Opaque("a command substitution", line, quoted)

    def _dollar(self, quoted: bool) -> Part:
        start, line = self.pos, self._line()
        first = self._past_continuations(start + 1)
        after = self.text[first : first + 1]
        if after == "(":
            self.pos = first + 1
            self._skip_parentheses(line)
            inner = self.text[first : self.pos]
            # `((a); b)` is a command substitution that begins with a subshell
            if inner.startswith("((") and inner.endswith("))") and self.text[start + 1] == "(":
                return Arith(inner[2:-2], quoted, line)
            return Opaque("a command substitution", line, quoted)
        if after == "{":
            return self._braces(quoted, first)
        name, end = self._name(first)
        if name:
            self.pos = end
            return Param(name, "", None, quoted, line)
        if after and after in "?$!#*@-0123456789":
            self.pos = first + 1
            return Opaque("a special parameter", line, quoted)
        if after and after in "'\"" and not quoted:
            raise self._refuse(f"$ before {after} means different things to different shells")
        self.pos += 1
        return Char("$", start, self.pos, quoted)

    def _braces(self, quoted: bool, opened: int) -> Part:
        line = self._line()
        name, self.pos = self._name(opened + 1)
        if name:
            self.pos = self._past_continuations(self.pos)
        match = _OPERATOR.match(self.text, self.pos)
        operator = match.group() if match and name else ""
        self.pos += len(operator)
        first = self.pos
        parts: list[Part] = []
        # the quotes around it do not quote a pattern
        pattern = operator[:1] in ("%", "#") and operator != ""
        while self.pos < len(self.text) and self.text[self.pos] != "}":
            if pattern:
                if quoted and self.text[self.pos] in "'\"\\":  # which shells do not agree on
                    parts.append(Opaque("a quoted pattern", self._line(), quoted))
                parts.extend(self._piece(False))
            elif self.text[self.pos] == '"' or not quoted:
                parts.extend(self._piece(quoted))
            else:
                parts.extend(self._quoted_piece('$`"\\}'))
        if self.pos >= len(self.text):
            raise ShellError("unterminated_quote", line, "'${' is not closed")
        word = Word(tuple(parts), first, self.pos, line)
        self.pos += 1
        if not name or (parts and not operator):
            return Opaque("a parameter expansion", line, quoted)
        return Param(name, operator, word if operator else None, quoted, line)

    def _skip_parentheses(self, line: int) -> None:
        """Move past the `)` that closes a command substitution, over everything nested in it."""
        depth = 1
        while self.pos < len(self.text):
            here = self.text[self.pos]
            word_start = self.text[self.pos - 1] in META
            if here == "#" and word_start:
                self._skip_blanks()
            elif here in "()":
                depth += 1 if here == "(" else -1
                self.pos += 1
                if not depth:
                    return
            elif word_start and self._keyword() == "case":
                raise self._refuse("'case' inside a command substitution is not parsed")
            else:
                self._piece(False)
        raise ShellError("unterminated_quote", line, "'$(' is not closed")
