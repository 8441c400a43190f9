# SPDX-License-Identifier: GPL-3.0-or-later
"""Run commands and stages, each to its end, and show how long they took."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import stage_logs

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
BIN = Path(sys.executable).parent
SCRATCH_BYTES = 3 << 30


class CommandError(Exception):
    """A command or a stage did not pass; the text says which one and why."""


class NotRun(Exception):
    """A stage cannot run on this machine and was left out; the text says what is missing."""


class Row(NamedTuple):
    """One line of a closing table."""

    name: str
    seconds: float
    outcome: str

    @property
    def failed(self) -> bool:
        """Whether this stage makes the whole run fail."""
        return self.outcome.startswith("FAILED")


def run(
    *command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None, quiet: bool = False
) -> None:
    """Run COMMAND with this venv's programs first on PATH and ENV added to the environment.

    QUIET drops what it prints on stdout.

    Raises CommandError when it ends with another status than 0.
    """
    words = [str(word) for word in command]
    print(f"$ {shlex.join(words)}", flush=True)
    path = f"{BIN}:{os.environ.get('PATH', os.defpath)}"
    merged = {**os.environ, "PATH": path, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", **(env or {})}
    stdout = subprocess.DEVNULL if quiet else None
    done = subprocess.run(words, cwd=cwd, env=merged, stdin=subprocess.DEVNULL, stdout=stdout, check=False)
    if done.returncode:
        raise CommandError(f"{' '.join(words[:2])}: status {done.returncode}")


@contextlib.contextmanager
def scratch() -> Iterator[dict[str, str]]:
    """An environment whose temporary files lie in memory where there is room: thousands of small trees that are
    synced to a disk take longer than the tests themselves. They are removed at the end.
    """
    memory = Path("/dev/shm")
    roomy = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > SCRATCH_BYTES
    with tempfile.TemporaryDirectory(prefix="firsttouch-", dir=memory if roomy else None) as folder:
        # As passable as /tmp is: some tests read a tree as another user.
        os.chmod(folder, 0o755)
        # The names of pytest's own folders have the user's in them, and that of a socket must be short.
        options = f"{os.environ.get('PYTEST_ADDOPTS', '')} --basetemp={folder}/t"
        yield {"TMPDIR": folder, "PYTEST_ADDOPTS": options.strip()}


def each(*steps: Callable[[], None]) -> None:
    """Run all of STEPS, also after one that failed. Raises CommandError that names all that failed."""
    failed = []
    for step in steps:
        try:
            step()
        except CommandError as error:
            failed.append(str(error))
    if failed:
        raise CommandError("; ".join(failed))


def run_stages(stages: Mapping[str, Callable[[], None]], names: Sequence[str]) -> list[Row]:
    """Run the stages NAMES in their order and time them; one that fails does not keep the next from running.

    What a stage prints is kept as build/logs/NAME.log too.
    """
    rows = []
    for name in names:
        began = time.monotonic()
        with stage_logs.kept(name):
            print(f"\n=== {name}", flush=True)
            try:
                stages[name]()
                outcome = "passed"
            except NotRun as reason:
                outcome = f"NOT RUN: {reason}"
                print(outcome, flush=True)
            except CommandError as error:
                outcome = f"FAILED: {error}"
                print(outcome, flush=True)
        row = Row(name, time.monotonic() - began, outcome)
        if row.failed:
            stage_logs.mark_failed(name, outcome)
        rows.append(row)
    return rows


def print_table(heading: str, rows: Sequence[Row]) -> None:
    """Print the closing table."""
    width = max(len(row.name) for row in [*rows, Row(heading, 0, "")]) + 2
    print(f"\n{heading:{width}}{'seconds':>8}  outcome")
    for row in rows:
        print(f"{row.name:{width}}{row.seconds:8.0f}  {row.outcome}")
    print(f"{'total':{width}}{sum(row.seconds for row in rows):8.0f}", flush=True)
