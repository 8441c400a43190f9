# SPDX-License-Identifier: Apache-2.0
"""Read the record on the host: plan.json, which says what is ours, and before.json, what was first found."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from typing import Any

from . import _files
from ._intent import SECTIONS
from ._plan_document import SCHEMA

PLAN = "/etc/firsttouch/plan.json"
BEFORE = "/var/lib/firsttouch/before.json"
# What merging and planning rely on; everything else in the documents is only passed on.
SHAPES: dict[str, dict[str, type]] = {
    PLAN: {"intent": dict, "topology": dict, "sections": dict, "owned": dict, "boot": dict, "sysctls": dict},
    BEFORE: {"sysctl": dict, "pools": dict},
}
_SECTION_SHAPE: dict[str, type] = {
    "state": str, "variables": list, "tokens": list, "units": dict, "sysctls": dict, "mounts": list, "pools": list,
    "budget": dict, "by_variable": dict, "settings": dict,
    "stop": list, "models": list, "servers": list, "files": dict,
}  # fmt: skip

# What the elements of lists and the values of mappings are, and the parts of those that are mappings themselves.
_TEXTS = frozenset(("variables", "tokens", "stop", "units", "settings"))
_ROWS: dict[str, dict[str, type]] = {
    "pools": {"size_kb": int, "nodes": dict},
    "mounts": {"path": str, "unit": str, "group": str},
}


class StateError(ValueError):
    """A document cannot be used; `reason` is a code: record_unreadable, record_newer or bad_plan."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def read_plan(root: str = "/") -> dict[str, Any] | None:
    """The document of plan.json; None when there is none. Raises StateError."""
    return _read(root, PLAN)


def read_before(root: str = "/") -> dict[str, Any] | None:
    """The document of before.json; None when there is none. Raises StateError."""
    return _read(root, BEFORE)


def _read(root: str, path: str) -> dict[str, Any] | None:
    try:
        text = _files.read_text(root, path)
    except OSError as exc:
        if exc.errno == errno.ENODATA:
            text = f"{path} is not in the sosreport: give the variables of the host"
            raise StateError("not_recorded", text) from None
        raise StateError("record_unreadable", f"{path}: {exc.strerror or exc}") from None
    if text is None:
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise StateError(
            "record_unreadable", f"{path} is no JSON ({exc}); restore it, or remove it"
        ) from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        text = f"{path} has schema {schema}, this collection knows {SCHEMA}: use the newer one that wrote it"
        raise StateError("record_newer", text)
    wrong = wrong_part(document, SHAPES[path])
    if wrong is not None:
        text = f"{path} is not what this collection writes ({wrong}); restore it, or remove it"
        raise StateError("record_unreadable", text)
    return dict(document)


def wrong_part(document: Any, shape: Mapping[str, type]) -> str | None:
    """The first part of DOCUMENT that is not of its SHAPE; None when all are."""
    if not isinstance(document, Mapping) or document.get("schema") != SCHEMA or document["schema"] is True:
        return "no schema number"
    for name, kind in shape.items():
        if not isinstance(document.get(name), kind):
            return name
    for name in SECTIONS if "sections" in shape else ():
        section = document["sections"].get(name)
        if section is not None and not isinstance(section, Mapping):
            return f"section {name}"
        for key, value in (section or {}).items():
            if not isinstance(value, _SECTION_SHAPE.get(key, object)) or not _elements(key, value):
                return f"{key} of section {name}"
        owned = document.get("owned", {}).get(name, {})
        if not isinstance(owned, Mapping) or not all(isinstance(row, list) for row in owned.values()):
            return f"owned of section {name}"
    return None


def _elements(key: str, value: Any) -> bool:
    """Whether the elements of the part KEY of a section are what this collection writes."""
    if key in _TEXTS:
        return all(isinstance(row, str) for row in (value.values() if isinstance(value, Mapping) else value))
    parts = _ROWS.get(key)
    return parts is None or all(
        isinstance(row, Mapping) and all(isinstance(row.get(part), kind) for part, kind in parts.items())
        for row in value
    )
