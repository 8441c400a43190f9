# SPDX-License-Identifier: GPL-3.0-or-later
"""What a scenario kept on the controller: fingerprints of the hosts and the change sets of its runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def state_dir() -> Path:
    """The scenario's own folder on the controller."""
    return Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"])


def fingerprint(host: str, moment: str) -> dict[str, Any]:
    """The fingerprint that fingerprint.yml took of HOST at MOMENT."""
    result: dict[str, Any] = json.loads((state_dir() / f"fingerprint-{host}-{moment}.json").read_text())
    return result


def change_sets(host: str, kind: str) -> list[list[tuple[str, str, str]]]:
    """The change sets of HOST's runs of KIND (check or run), oldest first, each a sorted set of
    (resource, before, after)."""
    rows = [json.loads(line) for line in (state_dir() / "changes" / f"{kind}.jsonl").read_text().splitlines()]
    return [
        sorted({(c["resource"], json.dumps(c["before"]), json.dumps(c["after"])) for c in row["changes"]})
        for row in rows
        if row["host"] == host
    ]


def difference(before: dict[str, str], after: dict[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """What differs between two flat mappings, as {key: (before, after)}."""
    return {
        key: (before.get(key), after.get(key))
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    }
