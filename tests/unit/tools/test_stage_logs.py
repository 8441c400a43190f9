# SPDX-License-Identifier: GPL-3.0-or-later
"""The end of a long run shows what failed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import commands
import pytest
import stage_logs

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(stage_logs, "LOGS", tmp_path / "logs")
    return tmp_path / "logs"


def child(code: str) -> None:
    commands.run(sys.executable, "-c", code)


def fails() -> None:
    child("import sys; print('from the child'); print('to stderr', file=sys.stderr); sys.exit(3)")


RUN = """
import sys
from pathlib import Path
import commands, stage_logs
stage_logs.LOGS = Path(sys.argv[1])
def child(code):
    commands.run(sys.executable, "-c", code)
def bad():
    child("import sys; print('from the child'); print('to stderr', file=sys.stderr); sys.exit(3)")
rows = commands.run_stages({"good": lambda: child("print('fine')"), "bad": bad}, ["good", "bad"])
commands.print_table("stage", rows)
"""


def test_a_stage_is_printed_and_kept(logs: Path) -> None:
    """In a process of its own: pytest puts its own files in the place of stdout."""
    command = [sys.executable, "-c", RUN, str(logs)]
    path = {**os.environ, "PYTHONPATH": str(ROOT / "tools")}
    done = subprocess.run(command, env=path, capture_output=True, text=True, timeout=60, check=True)
    words = {"good": ["=== good", "fine"], "bad": ["=== bad", "from the child", "to stderr", "status 3"]}
    for name, said in words.items():
        kept = (logs / f"{name}.log").read_text()
        assert kept in done.stdout and all(word in kept for word in said)
    assert "fine" not in (logs / "bad.log").read_text()
    table = done.stdout[done.stdout.index("seconds") :]
    assert "FAILED" in table and not done.stderr
    assert sorted(path.name for path in logs.glob("*.failed")) == ["bad.failed"]
    report = stage_logs.report()
    assert "=== bad FAILED" in report and "to stderr" in report and "fine" not in report


def test_a_stage_that_passes_again_is_no_failure(logs: Path) -> None:
    commands.run_stages({"it": fails}, ["it"])
    assert stage_logs.report()
    commands.run_stages({"it": lambda: None}, ["it"])
    assert stage_logs.report() == ""


def test_progress_is_not_held_back(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Half a line is shown while the child still runs."""
    with stage_logs.kept("slow"):
        running = subprocess.Popen([sys.executable, "-u", "-c", "print('..', end=''); input()"], stdin=subprocess.PIPE)
        try:
            until = time.monotonic() + 20
            shown = ""
            while ".." not in shown and time.monotonic() < until:
                time.sleep(0.01)
                shown += capfd.readouterr().out
            assert ".." in shown and running.poll() is None
        finally:
            running.communicate(b"\n")
    assert (logs / "slow.log").read_bytes() == b".."


def test_what_a_stage_leaves_behind_holds_nothing_up(logs: Path) -> None:
    """ssh stays in the background with the pipe open."""
    began = time.monotonic()
    with stage_logs.kept("lingering"):
        left = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert left.poll() is None and time.monotonic() - began < 10
    finally:
        left.communicate(b"\n")


def test_the_report_is_short_and_plain(logs: Path) -> None:
    stage_logs.write("Python 3.9, module_utils 2.19", "".join(f"\x1b[31mline {n}\x1b[0m\r\n" for n in range(200)))
    stage_logs.mark_failed("Python 3.9, module_utils 2.19", "FAILED: 1 failed\nmore")
    stage_logs.write("serial-a", "no stage with hosts has failed\n")
    report = stage_logs.report().splitlines()
    assert report[0].startswith("=== Python-3.9-module-utils-2.19 FAILED: 1 failed: ")
    assert report[1:] == [f"line {n}" for n in range(120, 200)]


def test_the_consoles_of_the_hosts_are_in_the_report(logs: Path) -> None:
    stage_logs.write("molecule", "TASK [x]\n")
    stage_logs.mark_failed("molecule", "FAILED: molecule -c: status 2")
    stage_logs.write("serial-default-two-node", "".join(f"boot {n}\n" for n in range(99)))
    report = stage_logs.report()
    assert report.index("TASK [x]") < report.index("boot 39\n") and "boot 38" not in report


@pytest.mark.parametrize(
    ("test", "matrix", "ends", "status"),
    [
        ("exit 0", "exit 0", ["make test: status 0; make test-matrix: status 0"], 0),
        ("echo apt is missing; exit 2", "exit 0", ["FAILED: status 2", "apt is missing"], 1),
        ("exit 0", "echo no interpreter; exit 1", ["=== make-test-matrix FAILED", "no interpreter"], 1),
        ("echo bang >build/logs/unit.log; echo FAILED: x >build/logs/unit.failed; exit 1", "exit 0",
         ["status 2", "=== unit FAILED: x", "bang"], 1),
    ],
)  # fmt: skip
def test_ci_ends_with_the_failure(tmp_path: Path, test: str, matrix: str, ends: list[str], status: int) -> None:
    for place in (".ci/run", "tools/stage_logs.py"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / place, tmp_path / place)
    (tmp_path / "Makefile").write_text(f"test:\n\t@{test}\ntest-matrix:\n\t@{matrix}\n")
    done = subprocess.run([tmp_path / ".ci/run"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status
    last = done.stdout[done.stdout.index("make test: status") :]
    assert all(word in last for word in ends), done.stdout
