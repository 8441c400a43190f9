# SPDX-License-Identifier: Apache-2.0
"""Edit an assignment of /etc/default/grub in place, its quotes kept; evaluating it proves the result."""

from __future__ import annotations

import re

from ._boot_types import BootError, LineToken, Step, Value
from ._cmdline import split
from ._files import read_text
from ._grub_default import DEFAULT, SHOWN, GrubDefault, read_default

_PLAIN = re.compile(r"[A-Za-z0-9_.,:=+/@%-]+")


def drop_tokens(
    root: str, grub: GrubDefault, name: str, unwanted: list[LineToken], overlay: dict[str, str], dropins: bool
) -> dict[str, str]:
    """Return OVERLAY with the tokens UNWANTED (texts and sources) taken out of the variable NAME.

    Exactly the characters they are written with go, and one blank each. Raises BootError `cannot_replace`
    where that would change anything else.
    """
    value = grub.value(name)
    spans: dict[str, set[tuple[int, int]]] = {}
    rest, kept, at = list(unwanted), [], 0
    for token in split(value.text):
        at = value.text.index(token.text, at)
        match = next((u for u in rest if u.text == token.text and _starts(value, at, u)), None)
        if match is None:
            kept.append(token.text)
        else:
            rest.remove(match)
            for path, start, end in _spans(value, at, at + len(token.text), match):
                spans.setdefault(path, set()).add((start, end))
        at += len(token.text)
    result = dict(overlay)
    for path, places in spans.items():
        text = result.get(path, read_text(root, path) or "")
        for start, end in sorted(places, reverse=True):
            text = text[:start] + text[end:]
        result[path] = text
    _prove(grub, read_default(root, dropins, result), name, kept)
    return result


def append_tokens(
    root: str, grub: GrubDefault, name: str, tokens: list[str], dropins: bool, overlay: dict[str, str]
) -> tuple[str, str]:
    """Return (path, new text) of the file in which TOKENS were added to the variable NAME, over OVERLAY.

    They go to the end of its last assignment, before a bare `--`, or into a new line of /etc/default/grub.
    Raises BootError `cannot_edit` where the result would not be exactly that.
    """
    value = grub.value(name)
    old = [token.text for token in split(value.text)]
    dashes = next((index for index, text in enumerate(old) if text == "--"), len(old))
    step = next((step for step in reversed(grub.steps) if step.name == name), None)
    path = step.file if step else DEFAULT
    text = overlay[path] if path in overlay else read_text(root, path) or ""
    if step is None:
        newline = "" if not text or text.endswith("\n") else "\n"
        text = f'{text}{newline}{name}="{" ".join(tokens)}"\n'
    elif dashes < len(old):
        at = value.text.index(" --") + 1 if " --" in value.text else 0
        origin = value.chars[at][1]
        if origin is None or origin.file != path:
            raise BootError("cannot_edit", f"no place before `--` in {name}", step.file, step.line)
        text = text[: origin.start] + " ".join(tokens) + " " + text[origin.start :]
    else:
        text = (
            text[: step.start] + _extended(text[step.start : step.end], value.text, tokens) + text[step.end :]
        )
    after = read_default(root, dropins, {**overlay, path: text})
    _prove(grub, after, name, old[:dashes] + tokens + old[dashes:])
    return path, text


def _extended(raw: str, value: str, tokens: list[str]) -> str:
    """The source RAW of a word that yields VALUE, with TOKENS added to it."""
    added = " ".join(tokens)
    gap = "" if not value or value[-1] in " \t" else " "
    if raw[-1:] in "\"'" and len(raw) > 1:
        return raw[:-1] + gap + added + raw[-1]
    if _PLAIN.fullmatch(raw):
        return f'"{raw}{gap}{added}"'
    return f'{raw}"{gap}{added}"'


def _starts(value: Value, at: int, token: LineToken) -> bool:
    origin = value.chars[at][1]
    if token.source is None or origin is None:
        return token.source is None and origin is None
    return origin.file == token.source.file and origin.line == token.source.line


def _spans(value: Value, start: int, end: int, token: LineToken) -> list[tuple[str, int, int]]:
    """The source spans of value[start:end] and of one blank beside it."""
    first = value.chars[start][1]
    blanks = [at for at in (start - 1, end) if 0 <= at < len(value.chars) and value.chars[at][0] in " \t"]
    beside = [at for at in blanks if first and _file(value, at) == first.file]
    spans = []
    for at in [*range(start, end), *beside[:1]]:
        origin = value.chars[at][1]
        if origin is None:
            raise BootError("cannot_replace", f"{token.text} is not written literally in any file")
        spans.append((origin.file, origin.start, origin.end))
    return spans


def _file(value: Value, at: int) -> str | None:
    origin = value.chars[at][1]
    return origin.file if origin else None


def _prove(before: GrubDefault, after: GrubDefault, name: str, wanted: list[str]) -> None:
    """Raise unless AFTER differs from BEFORE in the tokens of NAME alone, which are WANTED."""
    if after.error:
        raise BootError("cannot_edit", f"the edited file would not evaluate: {after.error}")
    for other in SHOWN:
        old, new = before.variables.get(other), after.variables.get(other)
        if other == name:
            texts = [token.text for token in split(after.text(name))]
            if texts != wanted:
                raise BootError(
                    "cannot_edit", f"{name} cannot be edited in place safely", *_place(before, name)
                )
        elif (old.text if old else None) != (new.text if new else None):
            raise BootError("cannot_edit", f"editing {name} would also change {other}", *_place(before, name))


def _place(grub: GrubDefault, name: str) -> tuple[str | None, int | None]:
    step: Step | None = next((step for step in reversed(grub.steps) if step.name == name), None)
    return (step.file, step.line) if step else (None, None)
