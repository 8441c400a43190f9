# SPDX-License-Identifier: GPL-3.0-or-later
"""Variables that nothing reads are named, and none of those that something reads."""

from __future__ import annotations

import re

import pytest
import yaml
from ansible_collections.firsttouch.host.plugins.plugin_utils import _variables as v
from support import ROOT

# A variable of an operator, not one of ours with the prefix __.
_NAME = re.compile(r"(?<!\w)firsttouch_\w+")


def test_every_variable_that_the_collection_reads_is_known() -> None:
    texts = [path.read_text() for name in ("roles", "playbooks") for path in sorted((ROOT / name).rglob("*.yml"))]
    read = {name for text in texts for name in re.findall(r"(?<![\w.])(?:firsttouch_\w+)", text)}
    assert len(read) > 30 and read - v.known() == set()


def test_every_documented_variable_is_known() -> None:
    documents = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    named = {name for path in documents for name in _NAME.findall(path.read_text())}
    assert len(named) > 20 and {name for name in named if not name.endswith("_")} - v.known() == set()


def test_every_default_is_known() -> None:
    for path in sorted((ROOT / "roles").glob("*/defaults/main.yml")):
        declared = set(yaml.safe_load(path.read_text()) or {})
        assert v.unknown(declared) == {}, path


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("firsttouch_hugepage", "firsttouch_hugepages"),
        ("firsttouch_isolated_cpu", "firsttouch_isolated_cpus"),
        ("firsttouch_isolcpus", "firsttouch_isolated_cpus"),
        ("firsttouch_rebot", "firsttouch_reboot"),
        ("firsttouch_vm_sysctl", "firsttouch_vm_sysctls"),
        ("firsttouch_verify_failon", "firsttouch_verify_fail_on"),
        ("first_touch_thp", "firsttouch_thp"),
        ("FIRSTTOUCH_THP", "firsttouch_thp"),
        ("firsttouch_zzzzzz", ""),
    ],
)
def test_a_misspelt_variable_is_named_with_the_nearest_right_one(name: str, right: str) -> None:
    assert v.unknown([name, "firsttouch_thp"])[name] == right
    assert name in v.sentence({name: right}) and right in v.sentence({name: right})


@pytest.mark.parametrize("name", ["__firsttouch_plan", "firsttouch", "ansible_host", "my_firsttouch_x", "__boot_floor"])
def test_what_is_not_of_our_vocabulary_is_nobodys_mistake(name: str) -> None:
    assert v.unknown([name]) == {}
