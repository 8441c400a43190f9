# SPDX-License-Identifier: GPL-3.0-or-later
"""What a scenario kept on the controller: fingerprints of the hosts, change sets of its runs, reports."""

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


def changed(host: str, before: str, after: str) -> dict[str, Any]:
    """What differs between HOST's fingerprints of two moments, by part; nothing does where nothing was changed."""
    first, second = fingerprint(host, before), fingerprint(host, after)
    assert len(first["files"]) > 100 and len(first["settings"]) > 30, "a small fingerprint proves nothing"
    found = {part: difference(first[part], second[part]) for part in ("files", "settings")}
    boots = [{key: taken[key] for key in ("boot_id", "cmdline")} for taken in (first, second)]
    found["boot"] = difference(*boots)
    return {part: rows for part, rows in found.items() if rows}


def kept(name: str) -> dict[str, Any]:
    """What the scenario kept on the controller as NAME.json."""
    result: dict[str, Any] = json.loads((state_dir() / f"{name}.json").read_text())
    return result


def verified(host: str, report: str) -> dict[str, Any]:
    """What the report of verify_run.yml's run REPORT has of HOST."""
    document = json.loads((state_dir() / f"report-{report}" / "report.json").read_text())
    result: dict[str, Any] = next(row for row in document["hosts"] if row["name"] == host)
    return result


def answers(entry: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The answers of verified() by the name of the check."""
    return {row["id"]: row for row in entry["results"]}


def difference(before: dict[str, str], after: dict[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """What differs between two flat mappings, as {key: (before, after)}."""
    return {
        key: (before.get(key), after.get(key))
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    }
