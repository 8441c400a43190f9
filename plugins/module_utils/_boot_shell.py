# SPDX-License-Identifier: Apache-2.0
"""A parser for the part of the POSIX shell language that /etc/default/grub is written in.

grub-mkconfig sources the file with /bin/sh (dash on Debian), so dash decides what a construct means. Where it is
bash, which says nothing else of this subset, `name+=` is understood too.
Nothing is ever executed: a command substitution becomes an Opaque part, and what is not understood is
refused with its line. The grammar is that of POSIX.1-2017, XCU 2.
"""

from __future__ import annotations

import errno
import re

from ._boot_shell_ast import AndOr, Assign, Case, Command, Group, If, Pipeline, ShellError, Simple, Word
from ._boot_shell_words import WordReader

_ASSIGN = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?=)")
_REDIRECT = re.compile(r"[0-9]*(<<|<&|>&|>>|>\||<>|<|>)")
_CLOSERS = {"then", "else", "elif", "fi", "esac", "do", "done", "}"}
_REFUSED = {"for", "while", "until", "function", "select", "[["}


class Parser(WordReader):
    """Recursive descent over the text; parse() returns the list of commands. Raises ShellError."""

    def parse(self) -> list[AndOr]:
        """Parse the whole text."""
        if "\0" in self.text:
            raise ShellError("unsupported_shell_construct", 1, "the file holds a NUL character")
        commands = self._list(())
        if self.pos < len(self.text):
            raise self._unexpected()
        return commands

    def _skip_newlines(self) -> None:
        self._skip_blanks()
        while self._peek() == "\n":
            self.pos += 1
            self._skip_blanks()

    def _expect(self, keyword: str) -> None:
        self._skip_newlines()
        if self._keyword() != keyword:
            raise ShellError("syntax_error", self._line(), f"{keyword!r} is missing")
        self.pos += len(keyword)

    def _list(self, stops: tuple[str, ...]) -> list[AndOr]:
        found: list[AndOr] = []
        while True:
            self._skip_newlines()
            if self.pos >= len(self.text) or self._peek(2) == ";;":
                return found
            keyword = self._keyword()
            if keyword in stops:
                return found
            if keyword in _CLOSERS:
                raise self._unexpected()
            found.append(self._and_or())
            self._skip_blanks()
            if self._peek(2) == ";;":
                return found
            if self._peek() == "&":
                raise self._refuse("'&' runs a command in the background")
            if self._peek() == ";":
                self.pos += 1
            elif self._peek() not in ("\n", ""):
                raise self._unexpected()

    def _and_or(self) -> AndOr:
        line = self._line()
        parts = [("", self._pipeline())]
        while True:
            self._skip_blanks()
            operator = self._peek(2)
            if operator not in ("&&", "||"):
                return AndOr(parts, line)
            self.pos += 2
            self._skip_newlines()
            parts.append((operator, self._pipeline()))

    def _pipeline(self) -> Pipeline:
        negated = False
        while self._keyword() == "!":
            negated = not negated
            self.pos += 1
            self._skip_blanks()
        commands = [self._command()]
        while True:
            self._skip_blanks()
            if self._peek() != "|" or self._peek(2) == "||":
                return Pipeline(commands, negated)
            self.pos += 1
            self._skip_newlines()
            commands.append(self._command())

    def _command(self) -> Command:
        keyword = self._keyword()
        if keyword in _REFUSED:
            raise self._refuse(f"{keyword!r} is not evaluated")
        if self._peek() == "(":
            raise self._refuse("a subshell is not evaluated")
        if keyword in ("if", "case", "{"):
            command = {"if": self._if, "case": self._case, "{": self._group}[keyword]()
            self._skip_blanks()
            if self._peek() in ("<", ">") and self._peek():
                raise self._refuse("a redirected block is not evaluated")
            return command
        return self._simple()

    def _group(self) -> Command:
        line = self._line()
        self.pos += 1
        body = self._list(("}",))
        self._expect("}")
        return Group(body, line)

    def _if(self) -> Command:
        line = self._line()
        branches: list[tuple[list[AndOr] | None, list[AndOr]]] = []
        self.pos += 2
        while True:
            condition = self._list(("then",))
            self._expect("then")
            body = self._list(("elif", "else", "fi"))
            if not condition or not body:
                raise self._unexpected()
            branches.append((condition, body))
            keyword = self._keyword()
            self.pos += len(keyword)
            if keyword == "else":
                branches.append((None, self._list(("fi",))))
                self._expect("fi")
                return If(branches, line)
            if keyword == "fi":
                return If(branches, line)
            if keyword != "elif":
                raise ShellError("syntax_error", line, "'if' without 'fi'")

    def _case(self) -> Command:
        line = self._line()
        self.pos += 4
        self._skip_blanks()
        word = self._word()
        self._expect("in")
        items: list[tuple[list[Word], list[AndOr]]] = []
        while True:
            self._skip_newlines()
            if self.pos >= len(self.text):
                raise ShellError("syntax_error", line, "'case' without 'esac'")
            if self._keyword() == "esac":
                self.pos += 4
                return Case(word, items, line)
            if self._peek() == "(":
                self.pos += 1
            items.append((self._patterns(), self._list(("esac",))))
            if self._peek(2) == ";;":
                self.pos += 2

    def _patterns(self) -> list[Word]:
        patterns = []
        while True:
            self._skip_blanks()
            patterns.append(self._word())
            self._skip_blanks()
            closing = self._peek()
            if closing not in ("|", ")") or not closing:
                raise self._unexpected()
            self.pos += 1
            if closing == ")":
                return patterns

    def _simple(self) -> Simple:
        command = Simple(self._line())
        declaring = False
        while True:
            self._skip_blanks()
            here = self._peek()
            if not here or here in "\n;&|)":
                break
            operator = self._redirect()
            if operator:
                command.redirected = True
                command.reads = command.reads or "<" in operator
                continue
            if here == "(":
                raise self._refuse("a function definition is not evaluated")
            assign = _ASSIGN.match(self.text, self.pos)
            if assign and (not command.words or declaring):
                (command.words if declaring else command.assigns).append(self._assign(assign))
                continue
            word = self._word()
            declaring = declaring or (not command.words and word.literal() == "export")
            command.words.append(word)
        if not command.assigns and not command.words:
            raise self._unexpected() if not command.redirected else self._refuse("a redirection alone")
        return command

    def _assign(self, match: re.Match[str]) -> Assign:
        line = self._line()
        append = match.group(2) == "+="
        if append and self.bash is None:
            raise OSError(errno.ENODATA, f"not in the recording, and decides what {match.group(1)}+= means", "/bin/sh")
        if append and not self.bash:
            raise self._refuse(f"{match.group(1)}+= is bash only; grub-mkconfig runs under sh")
        self.pos = match.end()
        word = self._word(tilde=True)
        if self._peek() == "(":
            raise self._refuse("an array is bash only; grub-mkconfig runs under sh")
        return Assign(match.group(1), word, line, append)

    def _redirect(self) -> str:
        """Pass over a redirection; its operator, empty where there is none."""
        match = _REDIRECT.match(self.text, self.pos)
        if not match:
            return ""
        if match.group(1) == "<<":
            raise self._refuse("a here-document is not evaluated")
        self.pos = match.end()
        self._skip_blanks()
        self._word()
        return match.group(1)
