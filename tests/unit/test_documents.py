# SPDX-License-Identifier: GPL-3.0-or-later
"""What the README and the pages of docs/ name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from reason_codes import ROOT, codes

README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "runtime" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def section(title: str) -> str:
    """The text below ## TITLE."""
    return README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def first_cells(text: str) -> list[str]:
    """What stands in back quotes in the first column of the tables of TEXT."""
    rows = re.findall(r"^\| (`.+?) \|", text, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of PAGE."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_linked_from_the_readme() -> None:
    linked = set(re.findall(r"\]\((docs/\w+\.md)\)", README))
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} == linked


def test_every_playbook_and_no_other_is_told_of() -> None:
    there = {f"firsttouch.host.{path.stem}" for path in (ROOT / "playbooks").glob("*.yml")}
    assert set(re.findall(r"firsttouch\.host\.\w+", section("Playbooks"))) == there


def test_every_scenario_and_no_other_is_told_of() -> None:
    there = {path.parent.name for path in (ROOT / "molecule").glob("*/molecule.yml")}
    table = section("Tests").partition("| scenario")[2]
    assert set(first_cells(table)) == there
    # The matrix of what was seen names no scenario that is not there.
    named = re.findall(r"\((?:`\w+`(?:, )?)+\)", section("Support matrix"))
    assert {name for row in named for name in re.findall(r"\w+", row)} <= there


def test_the_codes_of_the_readme_are_codes() -> None:
    named = first_cells(section("Troubleshooting"))
    assert len(named) > 8 and set(named) <= set(codes())
