# SPDX-License-Identifier: Apache-2.0
"""Boot Loader Specification entries of type #1: one text file per entry (uapi-group.org, "Type #1")."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cmp_to_key

from ._boot_types import LineToken, Source
from ._cmdline import split
from ._files import list_dir, read_text

RESCUE = {"single", "s", "S", "1", "recovery", "rescue", "emergency", "systemd.unit=rescue.target"}
_COUNTER = re.compile(r"\+(\d+)(?:-(\d+))?$")


@dataclass(frozen=True)
class Type1:
    """One entry file. options: its `options` lines joined by blanks; tries_left None: not counted.

    unread_line: the first `options` line where GRUB reads none of them.
    """

    path: str
    id: str
    text: str
    title: str = ""
    version: str = ""
    linux: str = ""
    options: str = ""
    sort_key: str = ""
    machine_id: str = ""
    tries_left: int | None = None
    tries_done: int = 0
    tokens: tuple[LineToken, ...] = ()
    initrd: tuple[str, ...] = ()
    options_lines: tuple[int, ...] = ()
    unread_line: int | None = None

    @property
    def options_line(self) -> int:
        """The number of the first `options` line, from 1; 1 where there is none."""
        return self.options_lines[0] if self.options_lines else 1

    def recovery(self, usual: Iterable[str] = ()) -> bool:
        """Whether it is meant for repairs. Arguments that are USUAL, in every entry, are no sign of that."""
        rescue = re.search(r"(^|-)0-rescue(-|$)", self.id) or "rescue" in self.version
        return bool(rescue) or bool({token.text for token in self.tokens} & (RESCUE - set(usual)))


def read_entries(root: str, directory: str, first_options: bool = False) -> list[Type1]:
    """The entries with a `linux` key in DIRECTORY, unsorted; FIRST_OPTIONS as for parse(). OSErrors propagate."""
    found = []
    for name in list_dir(root, directory) or []:
        if name.endswith(".conf") and not name.startswith("."):
            path = f"{directory}/{name}"
            text = read_text(root, path)
            entry = parse(path, text, first_options) if text is not None else None
            if entry is not None and entry.linux:
                found.append(entry)
    return found


def parse(path: str, text: str, first_options: bool = False) -> Type1:
    """The entry TEXT of the file PATH.

    systemd-boot joins all `options` lines; GRUB's blscfg.c reads the first alone (FIRST_OPTIONS).
    """
    fields: dict[str, str] = {}
    options: list[str] = []
    tokens: list[LineToken] = []
    initrd: list[str] = []
    numbers: list[int] = []
    read = dict(_grub_fields(text)) if first_options else None
    for number, line in enumerate(text.split("\n"), 1):
        key, value = _field(line)
        if key == "options":
            numbers.append(number)
        if read is not None:
            key, value = read.get(number, ("", ""))
        if key == "options":
            if first_options and options:
                continue
            options.append(value)
            tokens.extend(LineToken(token.text, Source(path, number)) for token in split(value))
        elif key == "initrd":
            initrd.append(value)
        elif key:
            fields.setdefault(key, value)
    name = path.rpartition("/")[2][: -len(".conf")]
    counter = _COUNTER.search(name)
    return Type1(
        path=path,
        id=name[: counter.start()] if counter else name,
        text=text,
        title=fields.get("title", ""),
        version=fields.get("version", ""),
        linux=fields.get("linux", ""),
        options=" ".join(options),
        sort_key=fields.get("sort-key", ""),
        machine_id=fields.get("machine-id", ""),
        tries_left=int(counter.group(1)) if counter else None,
        tries_done=int(counter.group(2) or 0) if counter else 0,
        tokens=tuple(tokens),
        initrd=tuple(initrd),
        # neither GRUB nor grubby sees one without a value
        options_lines=tuple(numbers) if any(options) or not first_options else (),
        unread_line=numbers[0] if first_options and numbers and not options else None,
    )


def with_options(entry: Type1, tokens: list[str]) -> str:
    """The text of ENTRY with its options replaced by TOKENS; every other line is kept byte for byte.

    Options that stand on several lines stay there; new ones go to the last, and lines left empty go.
    """
    rest = list(tokens)
    lines = entry.text.split("\n")
    numbers = [number for number, line in enumerate(lines) if _field(line)[0] == "options"]
    kept: list[str | None] = list(lines)
    for position, number in enumerate(numbers):
        prefix = re.match(r"[ \t]*options[ \t]*", lines[number])
        old = [token.text for token in split(_field(lines[number])[1])]
        if position == len(numbers) - 1:
            now, rest = rest, []
        else:
            now = []
            for text in old:
                if rest and text == rest[0]:
                    now.append(rest.pop(0))
        lead = prefix.group() if prefix else "options "
        if now != old:
            kept[number] = (
                f"{lead if lead[-1] in ' ' + chr(9) else lead + ' '}{' '.join(now)}" if now else None
            )
    if not numbers and rest:
        at = len(kept) - 1 if kept and kept[-1] == "" else len(kept)
        kept.insert(at, f"options {' '.join(rest)}")
    return "\n".join(line for line in kept if line is not None)


def rpm_compare(a: str, b: str) -> int:
    """-1, 0 or 1 as A is older than, equal to or newer than B (vercmp of GRUB's blscfg.c, rpmvercmp)."""
    one, two = _segments(a), _segments(b)
    for left, right in zip(one, two):
        if "~" in (left, right) and left != right:
            return -1 if left == "~" else 1
        if left == right:
            continue
        if left.isdigit() != right.isdigit():
            return 1 if left.isdigit() else -1
        if left.isdigit():
            if int(left) != int(right):
                return 1 if int(left) > int(right) else -1
            continue
        return 1 if left > right else -1
    if len(one) == len(two):
        return 0
    longer, sign = (one, 1) if len(one) > len(two) else (two, -1)
    return -sign if longer[min(len(one), len(two))] == "~" else sign


def systemd_compare(a: str, b: str) -> int:
    """-1, 0 or 1 by the UAPI version format specification (strverscmp_improved of systemd)."""
    rank = {"~": 0, "": 1, "-": 2, "^": 3, ".": 4}
    while True:
        a, b = (re.sub(r"^[^a-zA-Z0-9~^.-]+", "", text) for text in (a, b))
        left, right = a[:1], b[:1]
        if not left and not right:
            return 0
        special = (left in rank, right in rank)
        if any(special) and left != right:
            # a separator, or the end, sorts before any digit or letter
            return _sign(rank.get(left, 9) - rank.get(right, 9))
        if left in rank:
            a, b = a[1:], b[1:]
            continue
        if left.isdigit() or right.isdigit():
            one, two = (re.match(r"[0-9]*", text) for text in (a, b))
            first, second = one.group() if one else "", two.group() if two else ""
            if bool(first) != bool(second):
                return 1 if first else -1
            if int(first) != int(second):
                return _sign(int(first) - int(second))
        else:
            one, two = (re.match(r"[a-zA-Z]*", text) for text in (a, b))
            first, second = one.group() if one else "", two.group() if two else ""
            if first != second:
                return _letters(first, second)
        a, b = a[len(first) :], b[len(second) :]


def newest_first(entries: list[Type1]) -> list[Type1]:
    """ENTRIES in the menu order of GRUB's blscfg: by file name, the newest first."""

    def order(a: Type1, b: Type1) -> int:
        return -rpm_compare(a.id, b.id)

    return sorted(entries, key=cmp_to_key(order))


def _letters(a: str, b: str) -> int:
    common = min(len(a), len(b))
    if a[:common] != b[:common]:
        return 1 if a[:common] > b[:common] else -1
    return _sign(len(a) - len(b))


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


def _segments(text: str) -> list[str]:
    return re.findall(r"[0-9]+|[a-zA-Z]+|~", text)


def _grub_fields(text: str) -> Iterator[tuple[int, tuple[str, str]]]:
    """(line number, (key, value)) as read_entry() of GRUB's blscfg.c takes TEXT.

    The key ends at the first space, at a tab only in a line without any; a line with neither, so also an empty one,
    ends the entry.
    """
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.replace("\r", "").lstrip(" \t")
        if line.startswith("#"):
            continue
        at = line.find(" ") if " " in line else line.find("\t")
        if at < 0 or at + 1 == len(line):
            return
        yield number, (line[:at], line[at + 1 :].strip(" \t"))


def _field(line: str) -> tuple[str, str]:
    """Key and value of a line; an empty key for a comment or a blank one."""
    match = re.match(r"[ \t]*([^ \t#][^ \t]*)(?:[ \t]+(.*))?$", line.rstrip("\r"))
    return (match.group(1), (match.group(2) or "").strip(" \t")) if match else ("", "")
