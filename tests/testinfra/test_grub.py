# SPDX-License-Identifier: GPL-3.0-or-later
"""What GRUB will boot on a provisioned host, from its generated file, against the scenario's expected.json."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import rawhost

EXPECTED: dict[str, Any] = json.loads((Path(os.environ["MOLECULE_SCENARIO_DIRECTORY"]) / "expected.json").read_text())
GRUB_CFG = "/boot/grub/grub.cfg"


@pytest.fixture(scope="module")
def entries(host: Any) -> list[tuple[str, str]]:
    return rawhost.grub_entries(rawhost.read_files(host, [GRUB_CFG])[GRUB_CFG])


def test_every_normal_entry_will_boot_our_tokens(entries: list[tuple[str, str]]) -> None:
    normal = [entry for entry in entries if "recovery" not in entry[0]]
    assert normal
    assert [title for title, line in normal if not rawhost.in_order(EXPECTED["tokens"], line)] == []


def test_recovery_entries_are_free_of_our_tokens(entries: list[tuple[str, str]]) -> None:
    recovery = [entry for entry in entries if "recovery" in entry[0]]
    assert recovery, "without a recovery entry this test would prove nothing"
    keys = set(EXPECTED["token_keys"])
    assert [e for e in recovery if keys & {token.partition("=")[0] for token in e[1].split()}] == []
