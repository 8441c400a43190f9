# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/reasons.md has a line for each reason code that host_verify can give, with what it means and what to do."""

from __future__ import annotations

import re

import pytest
from reason_codes import ELSEWHERE, ROOT, UTILS, codes, given, runtime_codes

PAGE = ROOT / "docs" / "reasons.md"


def documented() -> dict[str, tuple[str, str]]:
    """Code -> (meaning, what to do), of the page."""
    found = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    return {code: (meaning, remedy) for code, meaning, remedy in found}


def test_every_code_has_a_line_and_every_line_a_code() -> None:
    given_by = codes()
    known = set(given_by) | runtime_codes()
    lacking = {code: sorted(given_by.get(code, {"errors"})) for code in sorted(known - set(documented()))}
    assert lacking == {}, f"{PAGE.name} has no line for them"
    assert sorted(set(documented()) - known) == [], f"{PAGE.name} has lines for codes that nothing gives"


def test_the_page_is_well_formed() -> None:
    page = PAGE.read_text()
    assert len(documented()) == page.count("\n| `"), "a code is there twice, or a row is not code, meaning, remedy"
    for code, cells in documented().items():
        assert all(re.fullmatch(r"\w.*[.]|`.*[.]", cell) for cell in cells), f"{code}: {cells} are no two sentences"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("skipped(identity, layer, 'a_b')", {"a_b"}),
        ("judge(i, l, 1, 2, reason='a_b' if x else 'c_d')", {"a_b", "c_d"}),
        ("Result(i, 'warn', l, [], d, 'a_b', path, remedy)", {"a_b"}),
        ("raise BootError('a_b', text)", {"a_b"}),
        ("judge.refuse('a_b', 'variable', text)", {"a_b"}),
        ("row = {'reason': 'a_b', 'text': 'c_d'}", {"a_b"}),
        ("_REASONS = {1: 'a_b'}", {"a_b"}),
        ("_REASON: str = 'a_b'", {"a_b"}),
        ("exc.reason = 'a_b'", {"a_b"}),
        ("row['reason'] = 'a_b'", {"a_b"}),
        ("reason, text = 'a_b', 'c_d'", {"a_b"}),
        ("def f():\n    '''Why not.'''\n    return 'ab'", {"ab"}),
        ("def f():\n    return 'a_b', 'words'", {"a_b"}),
        ("def f():\n    rows = (('n', 'a_b'),)\n    for name, reason in rows:\n        pass", {"a_b"}),
        ("def f():\n    for name, reason in (('n', 'a_b'),):\n        pass", {"a_b"}),
        ("def f(invalid='a_b'):\n    pass", {"a_b"}),
        ("judge(reason=words.get(x, 'a_b') or str('c_d'))", {"a_b", "c_d"}),
        ("print('a_b', 'c_d')", set()),
    ],
)
def test_codes_are_found_wherever_they_are_given(source: str, expected: set[str]) -> None:
    """What this rests on: a form that is not seen hides a code."""
    assert given(source) == expected


def test_all_files_that_give_answers_are_read() -> None:
    """The checks, the plan's refusals and the boot loaders, each with codes of its own."""
    files = {file for found in codes().values() for file in found}
    assert {path.stem for path in UTILS.glob("_checks_*.py")} - files == set()
    assert {"_plan_fit", "_intent", "_boot_grub", "_sysctl_judge", "_placement_host", "host_verify"} <= files
    assert all((UTILS / f"{name}.py").exists() for name in ELSEWHERE)
    assert {"not_ready", "checksum_mismatch", "error"} <= runtime_codes()
