# SPDX-License-Identifier: GPL-3.0-or-later
"""No recorded case is forgotten: each has its files, and a test here that compares its expected values."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import CASES

ROWS = [line.split("\t") for line in (CASES / "INDEX.tsv").read_text().splitlines()[1:]]
# Compared by the tests of the runtime, which reads models and shared memory.
OF_THE_RUNTIME = {"safetensors", "shared-memory"}
TESTS = {path.name: path.read_text() for path in Path(__file__).parent.glob("test_*.py")}


def test_the_index_and_the_folders_name_the_same_cases() -> None:
    assert sorted(case for _category, case in ROWS) == sorted(path.name for path in CASES.iterdir() if path.is_dir())


@pytest.mark.parametrize(("category", "case"), [row for row in ROWS if row[0] not in OF_THE_RUNTIME])
def test_a_case_is_compared(category: str, case: str) -> None:
    assert (CASES / case / "expected.json").is_file()
    here = [name for name, text in TESTS.items() if f'"{case}"' in text and "case_expected(" in text]
    assert here, f"no test of {category} compares {case}"
