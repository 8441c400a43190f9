# SPDX-License-Identifier: Apache-2.0
"""What arguments of others were taken out of which places, so that they come back when ours go.

A place is a file, or the part of one that holds arguments (kernelopts of the environment block). The record is
written before anything is taken out, and goes after everything is back: a run that is killed loses nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ._boot_plan import FileChange
from ._boot_types import BACKUP_DIR, BootError, LineToken
from ._files import read_text

REPLACED = f"{BACKUP_DIR}/replaced.json"
_FIELDS = {"before": str, "after": str, "tokens": list}
# The text of a place, by its path; None where it is not there.
Place = Callable[[str], "str | None"]


@dataclass(frozen=True)
class Edited:
    """A place out of which TOKENS were taken: its whole text before the first time and after the last."""

    before: str
    after: str
    tokens: tuple[str, ...]


def read_replaced(root: str) -> dict[str, Edited]:
    """What was taken out, by place. Raises BootError `bad_record` and OSError."""
    text = read_text(root, REPLACED)
    if text is None:
        return {}
    try:
        rows = json.loads(text)
        if not all(isinstance(row[name], kind) for row in rows.values() for name, kind in _FIELDS.items()):
            raise TypeError
        return {path: Edited(row["before"], row["after"], tuple(row["tokens"])) for path, row in rows.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        text = "it is no record of replaced boot arguments; move it away, what it held stays replaced"
        raise BootError("bad_record", text, REPLACED) from exc


def record(
    root: str,
    texts: Mapping[str, str | None],
    replaced: Iterable[LineToken],
    back: Mapping[str, str],
    now: Place,
    *,
    present: bool,
    entries: Iterable[str] = (),
) -> FileChange | None:
    """The change of the record when the places TEXTS (path to new text) lose REPLACED over what is put BACK.

    BACK: path to the text that it had, of which a part may be replaced again. NOW tells what a place holds. Nothing
    stays recorded unless arguments of ours stay PRESENT. Of ENTRIES, those that there are, also such are recorded that
    lose nothing: what is not in the record was made later, and inherits.
    """
    rows = {path: row for path, row in read_replaced(root).items() if present and path not in back}
    gone: dict[str, Counter[str]] = {}
    for token in replaced:
        if token.source:
            gone.setdefault(token.source.file, Counter())[token.text] += 1
    there = set(entries) if gone and not any(row.tokens for row in rows.values()) else set()
    for path in (*texts, *sorted(there - set(texts))):
        after = texts[path] if path in texts else now(path)
        old, here = rows.get(path), back.get(path, now(path) or "")
        lost = tuple(gone.get(path, Counter()).elements())
        if old is not None and old.after == here:
            rows[path] = Edited(old.before, after or "", (*old.tokens, *lost))
        elif lost or path in there:
            rows[path] = Edited(here, after or "", lost)
    text = read_text(root, REPLACED)
    document = {
        path: {"before": row.before, "after": row.after, "tokens": list(row.tokens)}
        for path, row in rows.items()
    }
    new = json.dumps(document, indent=1) + "\n" if rows else None
    return None if new == text else FileChange(REPLACED, text, new, 0o600)


def regained(root: str, back: Mapping[str, str], replaced: Iterable[LineToken]) -> dict[str, str]:
    """The part of what is put BACK that brings arguments back although REPLACED are taken out of it again."""
    again: dict[str, Counter[str]] = {}
    for token in replaced:
        if token.source:
            again.setdefault(token.source.file, Counter())[token.text] += 1
    rows = read_replaced(root)
    found = {
        path for path in back if path in rows and Counter(rows[path].tokens) - again.get(path, Counter())
    }
    # Entries that were made since hold what the others hold.
    return {path: text for path, text in back.items() if found and (path in found or path not in rows)}


def in_order(files: Iterable[FileChange], change: FileChange | None) -> list[FileChange]:
    """FILES with CHANGE of the record: first where it is written, last where it goes."""
    if change is None:
        return list(files)
    return [change, *files] if change.after is not None else [*files, change]


def put_back(root: str, now: Place) -> dict[str, str]:
    """The texts to put back, by place: of those that nobody has changed since."""
    return {path: row.before for path, row in read_replaced(root).items() if now(path) == row.after}


def lost(root: str, now: Place, back: Iterable[str]) -> list[dict[str, str]]:
    """The arguments that cannot be put BACK, because somebody has changed their place since.

    A place that is gone has taken what it held with it; one that holds its old text again has lost nothing.
    """
    kept = set(back)
    return [
        {"token": text, "file": path}
        for path, row in read_replaced(root).items()
        if path not in kept and now(path) not in (None, row.before)
        for text in row.tokens
    ]
