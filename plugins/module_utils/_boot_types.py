# SPDX-License-Identifier: Apache-2.0
"""What the boot loader back ends and their readers have in common: refusals, problems, entries."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Callable

# Where what we keep about the boot files of others lies.
BACKUP_DIR = "/var/lib/firsttouch"
# argv, environment to run it with -> (exit status, stdout, stderr)
Runner = Callable[[list[str], dict[str, str]], tuple[int, str, str]]


@dataclass(frozen=True)
class Problem:
    """Something that keeps a layer from being read or from meaning what it says."""

    reason: str
    text: str
    file: str | None = None
    line: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain data: reason, file (absolute inside the sysroot), line (from 1), text."""
        return {"reason": self.reason, "file": self.file, "line": self.line, "text": self.text}

    def where(self) -> str:
        """`file:line`, `file` or an empty string."""
        if not self.file:
            return ""
        return f"{self.file}:{self.line}" if self.line else self.file


class BootError(Exception):
    """A refusal. Nothing was changed, or what was changed has been put back."""

    def __init__(
        self, reason: str, text: str, file: str | None = None, line: int | None = None, **facts: Any
    ) -> None:
        self.problem = Problem(reason, text, file, line)
        self.reason = reason
        self.facts = facts
        where = self.problem.where()
        super().__init__(f"{where}: {text}" if where else text)

    def as_dict(self) -> dict[str, Any]:
        """The problem and the facts that came with it."""
        return {**self.problem.as_dict(), **self.facts}


@dataclass(frozen=True)
class Source:
    """Where a value, or a part of it, is written."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Origin:
    """The span of a file a character was written as."""

    file: str
    start: int
    end: int
    line: int


@dataclass(frozen=True)
class Value:
    """A variable's value: its characters with their origins, the assignments it came through, or why not."""

    chars: tuple[tuple[str, Origin | None], ...] = ()
    sources: tuple[Source, ...] = ()
    opaque: Problem | None = None

    @property
    def text(self) -> str:
        """The value as the shell yields it; meaningless when opaque."""
        return "".join(char for char, _origin in self.chars)


@dataclass(frozen=True)
class Step:
    """One assignment that was carried out; start and end enclose its word in the file."""

    name: str
    value: Value
    file: str
    line: int
    start: int
    end: int


@dataclass(frozen=True)
class LineToken:
    """One kernel token of a command line and where it is written."""

    text: str
    source: Source | None = None
    ours: bool = False


@dataclass(frozen=True)
class Setting:
    """A configured value that ends up on the command line: a variable, a file or an entry's options."""

    name: str
    value: str | None
    tokens: tuple[LineToken, ...] = ()
    sources: tuple[Source, ...] = ()
    problem: Problem | None = None

    def as_dict(self) -> dict[str, Any]:
        """value is None where it is unset or cannot be told; the problem then says which."""
        return {
            "name": self.name,
            "value": self.value,
            "tokens": [token.text for token in self.tokens],
            "sources": [{"file": s.file, "line": s.line} for s in self.sources],
            "problem": self.problem.as_dict() if self.problem else None,
        }


@dataclass(frozen=True)
class Entry:
    """One bootable Linux entry. `line` is the command line the kernel will be given, without BOOT_IMAGE=."""

    id: str
    title: str
    linux: str
    line: str
    recovery: bool = False
    default: bool = False
    file: str | None = None
    file_line: int | None = None
    section: str | None = None
    path: tuple[int, ...] = ()
    version: str = ""
    unresolved: tuple[str, ...] = ()
    tokens: tuple[LineToken, ...] = field(default=())
    ahead: str = ""

    @property
    def whole(self) -> str:
        """`line` behind what the boot loader puts in front of it, which takes room on the command line."""
        return f"{self.ahead} {self.line}".strip()

    def as_dict(self) -> dict[str, Any]:
        """unresolved: boot loader variables whose value is only known at boot, left as they are written."""
        return {
            "id": self.id,
            "title": self.title,
            "linux": self.linux,
            "args": self.line,
            "recovery": self.recovery,
            "default": self.default,
            "file": self.file,
            "line": self.file_line,
            "unresolved": list(self.unresolved),
        }

    def as_default(self) -> Entry:
        """The same entry, marked as the one that boots."""
        return replace(self, default=True)
