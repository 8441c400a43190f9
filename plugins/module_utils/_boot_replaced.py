# SPDX-License-Identifier: Apache-2.0
"""What arguments of others were taken out of which files, so that a removal of ours can put them back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ._boot_backend import BACKUP_DIR
from ._boot_plan import FileChange
from ._boot_types import BootError, LineToken
from ._files import read_text

REPLACED = f"{BACKUP_DIR}/replaced.json"
_FIELDS = {"before": str, "after": str, "tokens": list}


@dataclass(frozen=True)
class Edited:
    """A file out of which TOKENS were taken: its whole text before the first time and after the last."""

    before: str
    after: str
    tokens: tuple[str, ...]


def read_replaced(root: str) -> dict[str, Edited]:
    """What was taken out, by file. Raises BootError `bad_record` and OSError."""
    text = read_text(root, REPLACED)
    if text is None:
        return {}
    try:
        rows = json.loads(text)
        if not all(isinstance(row[name], kind) for row in rows.values() for name, kind in _FIELDS.items()):
            raise TypeError
        return {path: Edited(row["before"], row["after"], tuple(row["tokens"])) for path, row in rows.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        text = "it is no record of replaced boot arguments; move it away, what it held stays replaced"
        raise BootError("bad_record", text, REPLACED) from exc


def remember(root: str, texts: Mapping[str, str], replaced: Iterable[LineToken]) -> FileChange | None:
    """The change of the record when the files TEXTS (path to new text) lose REPLACED; None when nothing is lost."""
    tokens = list(replaced)
    if not tokens:
        return None
    rows = read_replaced(root)
    for path, after in texts.items():
        now, old = read_text(root, path) or "", rows.get(path)
        known = old if old and old.after == now else Edited(now, now, ())
        gone = tuple(token.text for token in tokens if token.source and token.source.file == path)
        rows[path] = Edited(known.before, after, (*known.tokens, *gone))
    document = {
        path: {"before": row.before, "after": row.after, "tokens": list(row.tokens)} for path, row in rows.items()
    }
    return FileChange(REPLACED, read_text(root, REPLACED), json.dumps(document, indent=1) + "\n", 0o600)


def forget(root: str) -> FileChange | None:
    """The change that removes the record; None where there is none."""
    text = read_text(root, REPLACED)
    return None if text is None else FileChange(REPLACED, text, None, 0o600)


def put_back(root: str) -> dict[str, str]:
    """The texts to put back, by file: of those that nobody has changed since."""
    rows = read_replaced(root)
    return {path: row.before for path, row in rows.items() if read_text(root, path) == row.after}


def lost(root: str) -> list[dict[str, str]]:
    """The arguments that cannot be put back, because somebody has changed their file since."""
    rows = read_replaced(root)
    kept = put_back(root)
    return [{"token": text, "file": path} for path, row in rows.items() if path not in kept for text in row.tokens]
