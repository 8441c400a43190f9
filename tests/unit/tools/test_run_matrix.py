# SPDX-License-Identifier: GPL-3.0-or-later
"""A Python that this machine has not is a row of the matrix's table, not a gap in it."""

from __future__ import annotations

import re
from pathlib import Path

import interpreters
import pytest
import run_matrix
from commands import Row

NOT_RUN = "not run: no interpreter"


@pytest.fixture
def has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> set[str]:
    """The versions that there are; what would be tested on them has its row at once."""
    there: set[str] = set()

    def of_cell(cell: run_matrix.Cell, interpreter: Path) -> Row:
        assert interpreter == tmp_path / f"python{cell.python}"
        return Row(cell.name, 1, "9 passed")

    def of_runtime(version: str, interpreter: Path) -> Row:
        assert interpreter == tmp_path / f"python{version}"
        return Row(f"Python {version}, runtime", 1, "9 passed")

    monkeypatch.setattr(
        interpreters,
        "find",
        lambda version: tmp_path / f"python{version}" if version in there else None,
    )
    monkeypatch.setattr(run_matrix, "link_checkout", lambda: None)
    monkeypatch.setattr(run_matrix, "run_cell", of_cell)
    monkeypatch.setattr(run_matrix, "run_runtime", of_runtime)
    return there


def table(printed: str) -> dict[str, str]:
    """The outcome by the row of the closing table."""
    rows = printed.partition("\nmatrix ")[2].partition("\ntotal")[0].splitlines()[1:]
    found = [re.fullmatch(r"(.*?) {2,}\d+  (.*)", row) for row in rows]
    assert all(found), rows
    return {row[1]: row[2] for row in found if row}


def test_a_missing_interpreter_has_its_row(has: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    has |= {"3.9", "3.11"}
    assert run_matrix.main() == 0
    printed = capsys.readouterr().out
    rows = table(printed)
    missing = [f"Python {version}" for version in run_matrix.PYTHONS if version not in has]
    assert missing == ["Python 3.10", "Python 3.12", "Python 3.13"]
    assert [name for name, outcome in rows.items() if outcome == NOT_RUN] == missing
    tested = [cell.name for version in sorted(has) for cell in run_matrix.cells(version)] + [
        "Python 3.11, runtime"
    ]
    assert {name for name, outcome in rows.items() if outcome == "9 passed"} == set(tested)
    assert "Python 3.10: not found\n" in printed


def test_with_all_of_them_no_row_is_left_out(has: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    has |= set(run_matrix.PYTHONS)
    assert run_matrix.main() == 0
    rows = table(capsys.readouterr().out)
    cells = [cell.name for version in run_matrix.PYTHONS for cell in run_matrix.cells(version)]
    assert set(rows) == {*cells, *(f"Python {version}, runtime" for version in run_matrix.RUNTIME_PYTHONS)}
    assert NOT_RUN not in rows.values()


def test_no_interpreter_at_all_is_a_failure(has: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_matrix.main() == 1
    captured = capsys.readouterr()
    assert table(captured.out) == {f"Python {version}": NOT_RUN for version in run_matrix.PYTHONS}
    assert captured.err == "No interpreter was found, so nothing was tested.\n"


def test_a_failure_beside_a_missing_interpreter_is_one(
    has: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    has.add("3.11")
    monkeypatch.setattr(
        run_matrix, "run_runtime", lambda *_given: Row("Python 3.11, runtime", 1, "FAILED: 1 failed")
    )
    assert run_matrix.main() == 1
    rows = table(capsys.readouterr().out)
    assert (rows["Python 3.11, runtime"], rows["Python 3.12"]) == ("FAILED: 1 failed", NOT_RUN)
