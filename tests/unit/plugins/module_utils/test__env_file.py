# SPDX-License-Identifier: GPL-3.0-or-later
"""Environment files: the expected values are what load_env_file_pairs() of systemd 252 returns."""

from __future__ import annotations

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _env_file


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A=1\nB=\n", {"A": "1", "B": ""}),
        (" A = 1 2 \t\n", {"A": "1 2"}),
        ("# A=1\n;B=2\n  # C=3\nD=4#5;6\n", {"D": "4#5;6"}),
        ("A\nB=1\r\nC=2", {"B": "1", "C": "2"}),
        ("A=1\nA=2\n", {"A": "2"}),
        ("=A\n==B\n", {"=": "B"}),
        ("A=1,\\\n2\nB=3\\", {"A": "1,2", "B": "3"}),
        ("A=\\\n1 \\\n B=2\n", {"A": "1  B=2"}),
        ("A=\\'1\\ \\ \n", {"A": "'1  "}),
        ("A='1\n#2'\"3\\\n4\" 5 '6' \n", {"A": "1\n#2345 '6'"}),
        ('A="\\$\\`\\"\\\\ \\n"\nB=\'\\n\'\n', {"A": '$`"\\ \\n', "B": "\\n"}),
        ("A='1\nB=2\n", {"A": "1\nB=2\n"}),
        ('A="1\nB=2\\', {"A": "1\nB=2"}),
        ('A=1"2"\'3\n', {"A": "1\"2\"'3"}),
        ("export A=1\n", {"export A": "1"}),
    ],
)
def test_a_file_is_read_as_systemd_does(text: str, expected: dict[str, str]) -> None:
    assert {name: value for name, value, _line in _env_file.assignments(text)} == expected


def test_a_comment_ends_with_its_line() -> None:
    """So it is since systemd 254."""
    assert list(_env_file.assignments("# 1 \\\nA=1\n")) == [("A", "1", 2)]


def test_an_assignment_has_the_line_on_which_it_begins() -> None:
    text = "\n# 1\nA=1\\\n2\n\nB='\n' C=3\n D=4"
    assert [(name, line) for name, _value, line in _env_file.assignments(text)] == [("A", 3), ("B", 6), ("D", 8)]
