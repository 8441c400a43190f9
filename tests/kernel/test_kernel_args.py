# SPDX-License-Identifier: GPL-3.0-or-later
"""Each line of cmdlines.json: what a booted kernel does with it, and what kernel_cmdline_info predicts."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from kernel_answers import differences, predicted

LINES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "cmdlines.json").read_text())
RELEASES = ("trixie", "bookworm")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per release and line; the sample asks the newest release only."""
    if "row" not in metafunc.fixturenames:
        return
    config = metafunc.config
    sample, only = config.getoption("--sample"), config.getoption("--line")
    releases = config.getoption("--release") or (RELEASES[:1] if sample else RELEASES)
    rows = [row for row in LINES if not sample or row.get("sample")]
    rows = [row for row in rows if not only or row["name"] in only]
    pairs = [(release, row) for release in releases for row in rows]
    metafunc.parametrize("release,row", pairs, ids=[f"{release}-{row['name']}" for release, row in pairs])


def booted(line: str, topology: str, release: str) -> dict[str, Any]:
    """The answer to LINE. No line here keeps a kernel from booting, but emulation now and then does."""
    from testhost.ask import ask

    for _ in range(3):
        answer: dict[str, Any] = ask(line, topology, release)
        if answer["outcome"] == "booted":
            break
    return answer


@functools.cache
def guest(topology: str, release: str) -> dict[str, Any]:
    """The answer of a guest that was given no arguments; asked once."""
    return booted("", topology, release)


def test_the_table_is_large_enough() -> None:
    assert len(LINES) >= 40
    assert len({row["name"] for row in LINES}) == len(LINES)
    assert 6 <= sum(1 for row in LINES if row.get("sample")) <= 8


def test_kernel_agrees(release: str, row: dict[str, Any], tmp_path: Path) -> None:
    prediction = predicted(tmp_path, guest(row["topology"], release), row["cmdline"])
    answer = booted(row["cmdline"], row["topology"], release)
    found = differences(prediction, answer)
    complaints = answer.get("complaints")
    assert not found, "\n".join([row["cmdline"], *found, f"complaints: {complaints}"])
