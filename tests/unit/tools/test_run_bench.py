# SPDX-License-Identifier: GPL-3.0-or-later
"""The tables of the benchmarks and the files with their figures."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import run_bench
from commands import ROOT, CommandError

ROW: dict[str, Any] = {"figure": "p99", "value": 1444.04, "unit": "us", "goal": "at most 100", "met": False}


def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **measured: Any) -> int:
    """Run benchmarks that give these rows or raise this error."""
    (tmp_path / "bench").mkdir()
    for name, rows in measured.items():
        (tmp_path / "bench" / f"{name}.py").touch()

        def measure(rows: Any = rows) -> Any:
            if isinstance(rows, Exception):
                raise rows
            return rows

        monkeypatch.setitem(sys.modules, name, SimpleNamespace(measure=measure))
    monkeypatch.setattr(run_bench, "ROOT", tmp_path)
    monkeypatch.setattr(run_bench, "BUILD", tmp_path / "build")
    monkeypatch.setattr(run_bench, "link_checkout", lambda: None)
    monkeypatch.setattr(sys, "argv", ["run_bench.py"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    return run_bench.main()


def test_a_table_and_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [ROW, {**ROW, "figure": "size", "value": 0.12345, "unit": "GiB", "goal": None, "met": None}]
    assert bench(monkeypatch, tmp_path, x_tail=rows) == 0
    assert json.loads((tmp_path / "build/bench/x_tail.json").read_text()) == rows
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].split() == ["p99", "1444", "us", "at", "most", "100", "NO"]
    assert lines[-1].split() == ["size", "0.123", "GiB"]


def test_one_that_cannot_run_fails_and_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = tmp_path / "build/bench/x_bad.json"
    stale.parent.mkdir(parents=True)
    stale.write_text("[]")
    broken = {"x_bad": CommandError("no such module"), "x_crash": OSError("no shared memory")}
    assert bench(monkeypatch, tmp_path, **broken, x_good=[ROW]) == 1
    assert not stale.exists() and (stale.parent / "x_good.json").exists()
    captured = capsys.readouterr()
    assert "FAILED: no such module" in captured.out and "OSError: no shared memory" in captured.out
    assert "not measured: x_bad, x_crash" in captured.err


@pytest.mark.parametrize(
    ("change", "word"),
    [({"value": "fast"}, "no number"), ({"value": True}, "no number"), ({"met": None}, "verdict"),
     ({"goal": None}, "goal"), ({"extra": 1}, "instead of")],
)  # fmt: skip
def test_rows_that_nobody_could_read_are_no_figures(change: dict[str, Any], word: str) -> None:
    with pytest.raises(CommandError, match=word):
        run_bench.check_rows("x", [{**ROW, **change}])
    with pytest.raises(CommandError, match="nothing"):
        run_bench.check_rows("x", [])


def test_what_was_not_measured_has_no_verdict() -> None:
    run_bench.check_rows("x", [{**ROW, "value": None, "met": None}])
    with pytest.raises(CommandError, match="verdict"):
        run_bench.check_rows("x", [{**ROW, "value": None}])


def test_the_goal_of_our_modules_is_the_peer_of_the_same_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    module_time = importlib.import_module("module_time")
    missed = module_time.row("x: time", 12.34, 12.3)
    assert (missed["value"], missed["met"]) == (12.3, False)
    assert missed["goal"] == "at most ansible.builtin.setup's 12.3 ms"
    assert module_time.row("x: time", 12.34, None)["met"] is None
