# SPDX-License-Identifier: Apache-2.0
"""Evaluate the shell subset without running anything, keeping where every character of a value is written.

What cannot be known (a command substitution, a variable of the environment) makes the values built from it
opaque, not the file: only a reader of such a value is refused. A condition that cannot be known is followed
both ways, and what differs between them becomes opaque.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import replace

from ._boot_shell import Parser
from ._boot_shell_ast import (
    AndOr,
    Arith,
    Assign,
    Case,
    Char,
    Command,
    Group,
    If,
    Opaque,
    Param,
    Part,
    Pipeline,
    ShellError,
    Simple,
    Word,
)
from ._boot_shell_expand import arithmetic, assigned, grep_finds, kept, printed
from ._boot_shell_test import evaluate_test, may_lack
from ._boot_types import BootError, Origin, Problem, Source, Step, Value
from ._files import read_text, resolve

_MAX_SOURCES = 8
# Set by grub-mkconfig itself, or by whoever runs it, before the files are read.
_PRESET = re.compile(
    r"GRUB_(DEVICE.*|FS|EARLY_INITRD_LINUX_STOCK)$|[a-z_]+$|(PATH|HOME|USER|LOGNAME|SHELL|TERM|LANG|LANGUAGE"
    r"|LC_[A-Z]+|PWD|OLDPWD|SHLVL|MAIL|HOSTNAME|E?UID|PPID|TZ|IFS|PS[124]|OPTIND|EDITOR|DISPLAY|SSH_[A-Z_]+"
    r"|SUDO_[A-Z]+|XDG_[A-Z_]+|TEXTDOMAIN|TEXTDOMAINDIR|PACKAGE_NAME|PACKAGE_VERSION|DEBIAN_FRONTEND)$"
)
# Built-in commands that change what follows, so that a condition with one of them cannot be passed over.
# fmt: off
_STATEFUL = frozenset((
    "eval", "source", "exec", "exit", "return", "set", "shift", "read", "trap", "cd", "alias",
    "unalias", "local", "getopts", "umask", "wait", "command", "break", "continue", "times", "hash",
    "readonly", "declare", "typeset", "let", "builtin", "enable", "shopt", "printf",
))
# fmt: on


class Evaluator:
    """Sources files one after the other into `variables` and `steps`. The first refusal is a BootError."""

    def __init__(
        self, root: str, preset: dict[str, str] | None = None, overlay: dict[str, str] | None = None
    ) -> None:
        self.root = root
        self.overlay = overlay or {}
        self.variables: dict[str, Value] = {
            name: Value(tuple((char, None) for char in text)) for name, text in (preset or {}).items()
        }
        self.steps: list[Step] = []
        self._bash = _sh_is_bash(root)
        self._stack: list[str] = []
        self._text = ""

    def source(self, path: str) -> bool | None:
        """Evaluate the file PATH of the sysroot; return its exit status as true, false or None (unknown)."""
        text = self.overlay[path] if path in self.overlay else read_text(self.root, path)
        if text is None and may_lack(self.root, path):
            raise OSError(errno.ENODATA, "not in the recording", path)
        if text is None:
            raise BootError("file_missing", "the file is sourced but does not exist", path)
        if len(self._stack) >= _MAX_SOURCES:
            raise BootError("unsupported_shell_construct", "files source each other too deeply", path)
        outer, self._text = self._text, text
        self._stack.append(path)
        try:
            return self._run(Parser(self._text, self._bash).parse())
        except ShellError as exc:
            raise BootError(exc.reason, exc.text, self._stack[-1], exc.line) from exc
        finally:
            self._stack.pop()
            self._text = outer

    @property
    def _file(self) -> str:
        return self._stack[-1]

    def _refuse(self, line: int, text: str, reason: str = "unsupported_shell_construct") -> BootError:
        return BootError(reason, text, self._file, line)

    # -- commands -----------------------------------------------------------------------------------

    def _run(self, commands: list[AndOr], tested: bool = False) -> bool | None:
        status: bool | None = True
        for command in commands:
            status = self._and_or(command, tested)
        return status

    def _and_or(self, node: AndOr, tested: bool) -> bool | None:
        status: bool | None = True
        for index, (operator, pipeline) in enumerate(node.parts):
            last = index == len(node.parts) - 1
            guarded = tested or not last or pipeline.negated
            if operator and status is None:
                before = dict(self.variables)
                self._pipeline(pipeline, True)
                self._merge([before, self.variables], node.line)
                continue
            if (operator == "&&" and not status) or (operator == "||" and status):
                continue
            status = self._pipeline(pipeline, guarded)
            if status is False and not guarded and isinstance(pipeline.commands[0], Simple):
                # grub-mkconfig runs under `set -e`, which passes over a block whose last command failed where
                # it was tested: POSIX.1-2017, XCU 2.14 set
                raise self._refuse(node.line, "the command fails, which ends grub-mkconfig", "command_fails")
        return status

    def _pipeline(self, node: Pipeline, tested: bool) -> bool | None:
        if len(node.commands) > 1:
            if not tested:
                raise self._refuse(_line(node.commands[0]), "a pipeline is not evaluated")
            status = self._searched(node.commands)
            return status if status is None or not node.negated else not status
        status = self._command(node.commands[0], tested)
        return status if status is None or not node.negated else not status

    def _searched(self, commands: list[Command]) -> bool | None:
        """Whether `echo TEXT | grep PATTERN` finds it; None for other pipelines."""
        before, steps = dict(self.variables), list(self.steps)
        try:
            rows = [self._arguments(command) for command in commands]
        except BootError:  # `${x?}` ends the process of its part alone
            return None
        finally:
            self.variables, self.steps = before, steps  # every part runs in a process of its own
        first, second = rows[0], rows[-1]
        if len(rows) != 2 or not first or not second or getattr(commands[0], "redirected", True):
            return None
        if getattr(commands[1], "reads", True):  # the file instead of the text
            return None
        text = printed(first)
        return None if text is None else grep_finds(text, second)

    def _arguments(self, command: Command) -> list[str] | None:
        """The fields of a simple COMMAND; None for another one, or where one of them is not known."""
        if not isinstance(command, Simple) or command.assigns:
            return None
        fields: list[str] = []
        for word in command.words:
            found = self._fields(word) if isinstance(word, Word) else [None]
            if None in found:
                return None
            fields.extend(field for field in found if field is not None)
        return fields

    def _command(self, node: Command, tested: bool) -> bool | None:
        if isinstance(node, Simple):
            return self._simple(node, tested)
        if isinstance(node, Group):
            return self._run(node.body, tested)
        if isinstance(node, If):
            return self._if(node, 0, tested)
        return self._case(node, tested)

    def _if(self, node: If, index: int, tested: bool) -> bool | None:
        if index >= len(node.branches):
            return True
        condition, body = node.branches[index]
        status = True if condition is None else self._run(condition, True)
        if status is True:
            return self._run(body, tested)
        if status is False:
            return self._if(node, index + 1, tested)
        before = dict(self.variables)
        self._run(body, True)
        taken, self.variables = self.variables, before
        self._if(node, index + 1, True)
        self._merge([taken, self.variables], node.line)
        return None

    def _case(self, node: Case, tested: bool) -> bool | None:
        subject = self.expand(node.word)
        if subject.opaque is None:
            for patterns, body in node.items:
                verdicts = [self._matches(pattern, subject.text) for pattern in patterns]
                if True in verdicts:
                    return self._run(body, tested)
                if None in verdicts:
                    break
            else:
                return True
        before, results = dict(self.variables), [dict(self.variables)]
        for _patterns, body in node.items:
            self.variables = dict(before)
            self._run(body, True)
            results.append(self.variables)
        self._merge(results, node.line)
        return None

    def _matches(self, pattern: Word, text: str) -> bool | None:
        """Whether TEXT matches; None where _pattern() says nothing."""
        expression = self._pattern(pattern)
        return None if expression is None else re.fullmatch(expression, text, re.DOTALL) is not None

    def _pattern(self, pattern: Word) -> str | None:
        """PATTERN as a regular expression; None for what shells do not agree on.

        That is brackets, backslashes from a variable, and a tilde.
        """
        expression = ""
        for part in pattern.parts:
            value = self._part(part)
            if value.opaque:
                return None
            if part.quoted:
                expression += re.escape(value.text)
                continue
            if "[" in value.text or "\\" in value.text or (not expression and value.text.startswith("~")):
                return None
            expression += "".join({"*": ".*", "?": "."}.get(char) or re.escape(char) for char in value.text)
        return expression

    def _trimmed(self, part: Param, value: Value | None) -> Value:
        """VALUE without the prefix or suffix that PART takes off."""
        if part.word is not None and value is None:
            return Value()
        pattern = self._pattern(part.word) if part.word is not None else None
        # what `?` is in UTF-8 depends on the locale
        if pattern is None or value is None or not value.text.isascii():
            text = f"the expansion ${{{part.name}{part.op}...}} is not evaluated"
            return Value(opaque=Problem("unsupported_shell_construct", text, self._file, part.line))
        start, end = kept(value.text, part.op, pattern)
        return replace(value, chars=value.chars[start:end])

    def _merge(self, outcomes: list[dict[str, Value]], line: int) -> None:
        names = {name for outcome in outcomes for name in outcome}
        problem = Problem(
            "unsupported_shell_construct",
            "the value depends on a condition that is not evaluated",
            self._file,
            line,
        )
        merged: dict[str, Value] = {}
        for name in names:
            values = [outcome.get(name) for outcome in outcomes]
            first = values[0]
            if first is not None and all(value == first for value in values):
                merged[name] = first
            else:
                merged[name] = Value(opaque=problem, sources=(Source(self._file, line),))
        self.variables = merged

    def _simple(self, node: Simple, tested: bool) -> bool | None:
        if not node.words:
            for assign in node.assigns:
                self._assign(assign)
            opaque = any(isinstance(p, Opaque) and p.kind == "a command substitution" for p in _parts(node))
            return None if opaque else True
        first = node.words[0]
        name = first.literal() if isinstance(first, Word) else None
        if node.assigns:
            assign = node.assigns[-1]
            raise self._refuse(
                assign.line,
                f"{assign.name} is given a value with an unquoted space: the shell runs "
                f"{name or 'the rest'!r} as a command; quote the value",
                "unquoted_value_with_space",
            )
        builtin = {
            ":": self._nothing,
            "true": self._nothing,
            "export": self._export,
            "unset": self._unset,
            "test": self._test,
            "[": self._test,
            ".": self._dot,
        }.get(name or "")
        if builtin:
            return builtin(node)
        if name in ("false", "echo"):
            self._nothing(node)
            return name == "echo"
        if tested and name is not None and (name not in _STATEFUL or _only_asks(node)):
            self._nothing(node)
            return None
        shown = (
            name
            if name is not None
            else self._text[first.start : first.end]
            if isinstance(first, Word)
            else ""
        )
        raise self._refuse(node.line, f"the command {shown!r} is not evaluated")

    def _nothing(self, node: Simple) -> bool:
        for word in node.words:
            if isinstance(word, Word):
                self.expand(word)  # which may assign: `: ${x:=y}`, `: $((n=1))`
        return True

    def _assign(self, node: Assign) -> None:
        here = Source(self._file, node.line)
        value = self.expand(node.word)
        if node.append:
            value = _concatenate([self._param(Param(node.name, "", None, True, node.line)), value])
        sources = tuple(dict.fromkeys((*value.sources, here)))
        self._set(node, replace(value, sources=sources))

    def _set(self, node: Assign, value: Value) -> None:
        self.variables[node.name] = value
        self.steps.append(Step(node.name, value, self._file, node.line, node.word.start, node.word.end))

    def _export(self, node: Simple) -> bool:
        for word in node.words[1:]:
            if isinstance(word, Assign):
                # dash before 0.5.11 splits the expansions of an exported value into fields
                before, steps = dict(self.variables), list(self.steps)
                bare = [part for part in word.word.parts if not isinstance(part, Char) and not part.quoted]
                fields = [self._part(part).text for part in bare]
                self.variables, self.steps = before, steps  # `${x:=y}` is evaluated once
                if any(re.search(r"[\s*?[]", text) for text in fields):
                    raise self._refuse(word.line, f"export {word.name}= with an unquoted expansion")
                self._assign(word)
            elif word.literal() is None or not re.fullmatch(r"[A-Za-z_]\w*", word.literal() or "", re.ASCII):
                raise self._refuse(node.line, "export with an argument that is not a name")
        return True

    def _unset(self, node: Simple) -> bool:
        for word in node.words[1:]:
            name = word.literal() if isinstance(word, Word) else None
            if name is None or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
                raise self._refuse(node.line, "unset with an argument that is not a name")
            self.variables.pop(name, None)
            self.steps.append(Step(name, Value(), self._file, node.line, 0, 0))
        return True

    def _dot(self, node: Simple) -> bool | None:
        path = node.words[1].literal() if len(node.words) == 2 and isinstance(node.words[1], Word) else None
        if path is None or not path.startswith("/"):
            raise self._refuse(node.line, "'.' with anything but one absolute path is not evaluated")
        return self.source(path)

    def _test(self, node: Simple) -> bool | None:
        fields: list[str | None] = []
        for word in node.words[1:]:
            fields.extend(self._fields(word) if isinstance(word, Word) else [None])
        first = node.words[0]
        if isinstance(first, Word) and first.literal() == "[":
            if not fields or fields[-1] != "]":
                raise self._refuse(node.line, "'[' without ']'", "syntax_error")
            fields.pop()
        return evaluate_test(fields, self.root)

    # -- expansion ----------------------------------------------------------------------------------

    def expand(self, word: Word) -> Value:
        """The value of WORD without field splitting, as in an assignment."""
        return _concatenate([self._part(part) for part in word.parts])

    def _fields(self, word: Word) -> list[str | None]:
        """The fields WORD expands to as an argument; None for one that is unknown."""
        fields: list[str] = []
        current: str | None = None
        for part in word.parts:
            value = self._part(part)
            if value.opaque:
                return [None]
            if part.quoted or isinstance(part, Char):
                if not part.quoted and value.text in "*?[":
                    return [None]
                current = (current or "") + value.text
                continue
            if re.search(r"[*?[]", value.text):
                return [None]
            pieces = re.split(r"[ \t\n]+", value.text)
            for index, piece in enumerate(pieces):
                if index and current is not None:
                    fields.append(current)
                    current = None
                if piece:
                    current = (current or "") + piece
        quotes = any(self._text[at] in "'\"" for at in range(word.start, min(word.end, len(self._text))))
        if current is not None or (quotes and not fields):
            fields.append(current or "")
        return list(fields)

    def _part(self, part: Part) -> Value:
        if isinstance(part, Char):
            line = self._text.count("\n", 0, part.start) + 1
            return Value(((part.char, Origin(self._file, part.start, part.end, line)),))
        if isinstance(part, Opaque):
            return Value(
                opaque=Problem(part.kind.split(" ", 1)[1].replace(" ", "_"), part.kind, self._file, part.line)
            )
        if isinstance(part, Arith):
            result = arithmetic(part.expression, self._number_text)
            if result is not None:
                return Value(tuple((char, None) for char in str(result)))
            problem = Problem("arithmetic_expansion", "an arithmetic expansion", self._file, part.line)
            for name in assigned(part.expression, self._number_text):
                self.variables[name] = Value(opaque=problem)
            return Value(opaque=problem)
        return self._param(part)

    def _number_text(self, name: str) -> str | None:
        value = self._param(Param(name, "", None, True, 0))
        return None if value.opaque else value.text

    def _param(self, part: Param) -> Value:
        value = self.variables.get(part.name)
        if value is None and _PRESET.match(part.name):
            text = f"${part.name} comes from the environment"
            return Value(opaque=Problem("unsupported_shell_construct", text, self._file, part.line))
        operator = part.op.lstrip(":")
        if value is not None and value.opaque and operator not in ("", "+"):
            return value
        present = value is not None and (
            bool(value.chars) or bool(value.opaque) or not part.op.startswith(":")
        )
        if not operator:
            return value or Value()
        if operator[0] in "%#" or part.word is None:
            return self._trimmed(part, value)
        if operator == "+":
            if value is not None and value.opaque:
                return value
            return self.expand(part.word) if present else Value()
        if present and value is not None:
            return value
        if operator == "?":
            raise self._refuse(
                part.line, f"${{{part.name}?}} ends grub-mkconfig: {part.name} is unset", "command_fails"
            )
        result = self.expand(part.word)
        if operator == "=":
            self._set(Assign(part.name, part.word, part.line), result)
        return result


def _concatenate(values: list[Value]) -> Value:
    opaque = next((value.opaque for value in values if value.opaque), None)
    sources = tuple(dict.fromkeys(source for value in values for source in value.sources))
    return Value(tuple(char for value in values for char in value.chars), sources, opaque)


def _parts(node: Simple) -> list[Part]:
    return [part for assign in node.assigns for part in assign.word.parts]


def _sh_is_bash(root: str) -> bool | None:
    """Whether the /bin/sh of the sysroot ROOT is bash, as on RHEL and SUSE; None where a recording does not tell."""
    try:
        name = os.path.basename(resolve(root, "/bin/sh"))
    except OSError:
        return None
    return None if name == "sh" and may_lack(root, "/bin/sh") else name == "bash"


def _only_asks(node: Simple) -> bool:
    """Whether NODE is `command -v NAME`, which runs nothing."""
    words = [word.literal() if isinstance(word, Word) else None for word in node.words]
    return words[:1] == ["command"] and words[1:2] in (["-v"], ["-V"])


def _line(node: Command) -> int:
    return node.line
