# SPDX-License-Identifier: GPL-3.0-or-later
"""What systemd-boot will boot, in the words of bootctl and kernel-install, against the scenario's expected.json."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(os.environ["MOLECULE_PROJECT_DIRECTORY"]) / "tests" / "testinfra"))

import rawhost

EXPECTED: dict[str, Any] = json.loads((Path(os.environ["MOLECULE_SCENARIO_DIRECTORY"]) / "expected.json").read_text())
# A kernel that is installed later: the running one by another name.
NEXT = "99.1-next"
INSTALL = f"kernel-install add {NEXT} /boot/vmlinuz-$(uname -r) /boot/initrd.img-$(uname -r) >&2"
LIST = "bootctl list --json=short"


def linux_entries(text: str) -> list[dict[str, Any]]:
    """The entries of bootctl's LIST that boot a Linux, in the order of the menu."""
    return [entry for entry in json.loads(text) if entry["type"] == "type1"]


@pytest.fixture(scope="module")
def entries(host: Any) -> list[dict[str, Any]]:
    return linux_entries(rawhost.run(host, LIST))


@pytest.fixture(scope="module")
def entries_with_the_next_kernel(host: Any) -> list[dict[str, Any]]:
    return linux_entries(rawhost.run(host, f"{INSTALL}; {LIST}; kernel-install remove {NEXT} >&2"))


def test_the_entry_that_bootctl_says_boots_is_the_one_that_runs(host: Any, entries: list[dict[str, Any]]) -> None:
    (default,) = [entry for entry in entries if entry["isDefault"]]
    assert default["isSelected"]
    # systemd-boot puts the initrd in front.
    running = [word for word in rawhost.run(host, "cat /proc/cmdline").split() if not word.startswith("initrd=")]
    assert default["options"].split() == running


def test_every_entry_will_boot_our_tokens(entries: list[dict[str, Any]]) -> None:
    assert entries
    assert [e["id"] for e in entries if not rawhost.in_order(EXPECTED["tokens"], e["options"])] == []


def test_the_next_kernel_inherits_our_tokens_once(entries_with_the_next_kernel: list[dict[str, Any]]) -> None:
    entry = entries_with_the_next_kernel[0]
    assert NEXT in entry["id"] and entry["isDefault"]
    ours = [word for word in entry["options"].split() if word.partition("=")[0] in EXPECTED["token_keys"]]
    assert ours == EXPECTED["tokens"]
