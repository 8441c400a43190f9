# SPDX-License-Identifier: Apache-2.0
"""The parts of a change of the command line that all boot loaders share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ._boot_effect import check_tokens, contradicting, ignored_by_kernel, shortfall, token_key, with_ours
from ._boot_guard import check_memory
from ._boot_types import BootError, LineToken
from ._cmdline import normal_key, split
from ._files import atomic_write, read_text, remove, resolve
from ._kernel_args import KernelFacts, predict


@dataclass(frozen=True)
class Request:
    """The ordered tokens asked for (none: ours are taken away), our keys, the tokens we put there before."""

    tokens: tuple[str, ...]
    keys: tuple[str, ...] = ()
    owned: tuple[str, ...] = ()
    replace: bool = False
    floor_bytes: int | None = None

    def __post_init__(self) -> None:
        """Raise BootError `invalid_token` for tokens that are refused."""
        check_tokens(list(self.tokens), list(self.keys))

    def all_keys(self) -> frozenset[str]:
        """Every key that is ours now or was before, as the kernel compares them."""
        parsed = split(" ".join((*self.tokens, *self.owned)))
        return frozenset(normal_key(key) for key in (*self.keys, *(token.key for token in parsed)))

    def about(self, line: str) -> list[str]:
        """The tokens of LINE whose keys are ours."""
        keys = self.all_keys()
        return [token.text for token in split(line) if normal_key(token.key) in keys]


@dataclass(frozen=True)
class FileChange:
    """The whole new text of a file; None stands for no file."""

    path: str
    before: str | None
    after: str | None
    mode: int = 0o644


@dataclass
class BootPlan:
    """One change, complete before anything is written.

    before and after: the tokens with our keys that the default entry has and will have. line: the complete
    command line the default entry will have; generate: a boot loader file is to be made anew by its tool.
    extra: rows for what a tool changes; writes: the same as file changes, where no tool runs. kept: rows for
    copies of what was there before. lost: foreign arguments that were replaced and cannot be put back.
    """

    request: Request
    files: list[FileChange] = field(default_factory=list)
    generate: bool = False
    generated_path: str | None = None
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    line_before: str | None = None
    line: str | None = None
    replaced: list[LineToken] = field(default_factory=list)
    memory: dict[str, Any] = field(default_factory=dict)
    running: str | None = None
    extra: list[dict[str, Any]] = field(default_factory=list)
    kept: list[dict[str, Any]] = field(default_factory=list)
    writes: list[FileChange] = field(default_factory=list)
    lost: list[dict[str, str]] = field(default_factory=list)

    def changes(self) -> list[dict[str, Any]]:
        """The change set as `{resource, before, after}`, sorted; exact in check mode."""
        rows = [
            {"resource": f"file:{change.path}", "before": change.before, "after": change.after}
            for change in self.files
            if change.before != change.after
        ]
        rows += self.extra
        if self.generate and self.generated_path:
            rows.append(
                {
                    "resource": f"file:{self.generated_path}",
                    "before": " ".join(self.before),
                    "after": " ".join(self.after),
                }
            )
        if rows:
            rows += self.kept
            rows += _token_rows(self.before, self.after)
        return sorted(rows, key=lambda row: str(row["resource"]))

    def diff(self) -> list[dict[str, str]]:
        """Unified-diff material: every file, and the default entry of what is generated."""
        rows = [
            _diff(change.path, change.before or "", change.after or "")
            for change in self.files
            if change.before != change.after
        ]
        for row in self.extra:
            path = row["resource"].partition(":")[2]
            rows.append(_diff(path, f"{row['before']}\n", f"{row['after']}\n"))
        if self.generate and self.generated_path:
            title = f"{self.generated_path} (default entry)"
            rows.append(_diff(title, f"{self.line_before or ''}\n", f"{self.line or ''}\n"))
        return rows


def settle(
    foreign: list[LineToken], request: Request, facts: KernelFacts
) -> tuple[list[str], list[LineToken]]:
    """Return (tokens of ours to have on a line with the tokens FOREIGN, foreign tokens to take away).

    Nothing is to be added where the foreign tokens already do all of it. Raises BootError `foreign_token`
    when one of them contradicts ours and replacing was not asked for, or when it is no argument of the same
    name (maxcpus= against isolcpus=), which is never replaced.
    """
    wanted = list(request.tokens)
    line = " ".join(token.text for token in foreign)
    if not wanted or shortfall(line, wanted, facts) is None:
        return [], []
    replaced: list[LineToken] = []
    rest = list(foreign)
    while True:
        against = contradicting(rest, wanted, facts)
        if not against:
            return wanted, replaced
        keys = {token_key(token) for token in wanted}
        others = [token for token in against if token_key(token.text) not in keys]
        if not request.replace or others:
            first = (others or against)[0]
            source = first.source
            lost = ignored_by_kernel(" ".join(with_ours([token.text for token in rest], wanted)), wanted, facts)
            raise BootError(
                "foreign_token",
                f"{first.text} belongs to somebody else and contradicts {' '.join(wanted)}"
                f"{f' ({lost})' if lost else ''}; remove it there, or set firsttouch_on_conflict to replace",
                source.file if source else None,
                source.line if source else None,
                foreign=[describe_token(token) for token in against],
            )
        replaced += against
        rest = [token for token in rest if all(token is not other for other in against)]


def check_line(
    line: str, wanted: list[str], request: Request, facts: KernelFacts, *, ahead: str = "", **place: Any
) -> None:
    """Raise unless LINE, complete behind what the boot loader puts AHEAD, makes the kernel do what WANTED asks.

    A line that the kernel would cut is refused whoever's arguments are lost.
    """
    if not wanted:
        return
    line = f"{ahead} {line}".strip()
    cut = next((warn for warn in predict(line, facts).warnings if warn.reason == "line_too_long"), None)
    if cut:
        raise BootError(
            "line_too_long",
            f"with {ahead or 'nothing'} in front of it, {cut.text}, first in {cut.token[:60]}; write CPU lists as "
            "ranges, or take arguments away that nobody needs",
            **place,
        )
    missing = shortfall(line, wanted, facts)
    if missing:
        reason, text = missing
        raise BootError(reason, text, **place)
    ignored = ignored_by_kernel(line, wanted, facts)
    if ignored:
        raise BootError(
            "kernel_ignores_token", f"the kernel would drop one of our tokens: {ignored}", **place
        )


def guard(line: str, request: Request, running: str | None, facts: KernelFacts, root: str) -> dict[str, Any]:
    """The memory guard on the complete LINE. Raises BootError `memory_guard`."""
    if not request.tokens:
        return {"evaluated": False}
    return check_memory(line, running, facts, root, request.floor_bytes)


def mark_ours(tokens: list[LineToken], owned: Iterable[str]) -> list[LineToken]:
    """TOKENS with those flagged as ours whose texts are OWNED, as often as they are, the last ones first."""
    left = Counter(owned)
    result = list(tokens)
    for index in range(len(result) - 1, -1, -1):
        text = result[index].text
        if left[text]:
            left[text] -= 1
            result[index] = LineToken(text, result[index].source, True)
    return result


class FileWriter:
    """Writes file changes and can put every one of them back."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._undo: list[FileChange] = []

    def write(self, change: FileChange) -> None:
        """Make the file what the change says. Raises OSError."""
        now = read_text(self.root, change.path)
        self._undo.append(FileChange(change.path, now, now, change.mode))
        self._put(change.path, change.after, change.mode)

    def watch(self, path: str) -> None:
        """Remember a file that a tool is going to change."""
        now = read_text(self.root, path)
        self._undo.append(FileChange(path, now, now))

    def undo(self) -> None:
        """Put every file back to what it was, the last first. Raises OSError after trying all."""
        failed: OSError | None = None
        for change in reversed(self._undo):
            try:
                if read_text(self.root, change.path) != change.before:
                    self._put(change.path, change.before, change.mode)
            except OSError as exc:
                failed = exc
        self._undo.clear()
        if failed:
            raise failed

    def _put(self, path: str, text: str | None, mode: int) -> None:
        real = resolve(self.root, path)
        if text is None:
            remove(real)
        else:
            atomic_write(real, text, mode)


def describe_token(token: LineToken) -> dict[str, Any]:
    """TOKEN with its place, as plain data."""
    source = token.source
    return {
        "token": token.text,
        "file": source.file if source else None,
        "line": source.line if source else None,
    }


def _token_rows(before: list[str], after: list[str]) -> list[dict[str, Any]]:
    """One row per token that comes or goes; the second of the same text is named `TEXT (2)`."""
    rows = []
    had, has = Counter(before), Counter(after)
    for text in sorted({*had, *has}):
        for number in range(1, max(had[text], has[text]) + 1):
            was, will = number <= had[text], number <= has[text]
            if was != will:
                name = text if number == 1 else f"{text} ({number})"
                rows.append(
                    {
                        "resource": f"token:{name}",
                        "before": text if was else None,
                        "after": text if will else None,
                    }
                )
    return rows


def _diff(title: str, before: str, after: str) -> dict[str, str]:
    return {"before_header": title, "after_header": title, "before": before, "after": after}
