# SPDX-License-Identifier: GPL-3.0-or-later
"""Variables that nothing reads are named, and none of those that something reads."""

from __future__ import annotations

import re
from pathlib import Path

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


def test_every_variable_of_the_table_is_where_the_readme_sends_to() -> None:
    text = (ROOT / "README.md").read_text()
    table = text.partition("## Variables")[2].partition("\n\nA concern")
    named = {name for row in table[0].splitlines() for name in _NAME.findall(row.split("|")[1] if "|" in row else "")}
    roles = re.findall(r"ansible-doc -t role\s+firsttouch\.host\.(\w+)", table[2].partition("##")[0])
    files = [ROOT / "roles" / role / "meta" / "argument_specs.yml" for role in roles]
    specs = [yaml.safe_load(file.read_text())["argument_specs"]["main"]["options"] for file in files]
    assert len(named) > 20 and named - {name for options in specs for name in options} == set()


@pytest.mark.parametrize("path", sorted((ROOT / "playbooks").glob("*.yml")), ids=lambda path: path.name)
def test_what_only_a_playbook_takes_is_at_its_head(path: Path) -> None:
    lines = path.read_text().splitlines()
    head = "\n".join(line for line in lines[: lines.index("---") + 12] if line.startswith("#"))
    roles = sorted((ROOT / "roles").glob("*/meta/argument_specs.yml"))
    documented = {
        name for file in roles for name in yaml.safe_load(file.read_text())["argument_specs"]["main"]["options"]
    }
    assert set(_NAME.findall("\n".join(lines))) - documented - set(_NAME.findall(head)) == set()


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
