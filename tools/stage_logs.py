# SPDX-License-Identifier: GPL-3.0-or-later
"""What each stage printed, kept below build/logs, so that the end of a long run can show what failed."""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

LOGS = Path(__file__).resolve().parents[1] / "build" / "logs"
SERIAL = "serial-"
# Stages that boot hosts whose serial console is kept, as serial-HOST.log.
WITH_HOSTS = frozenset(("molecule", "boots", "uefi"))
STAGE_LINES, SERIAL_LINES = 80, 60
# How long to wait for more once a stage has ended: what it started may live on and hold the pipe open.
_LAST_WORDS_S = 0.2


def _path(name: str, suffix: str) -> Path:
    return LOGS / f"{re.sub(r'[^A-Za-z0-9.]+', '-', name)}{suffix}"


def serial(host: str) -> Path:
    """Where the serial console of HOST is kept when it ends."""
    return LOGS / f"{SERIAL}{host}.log"


@contextlib.contextmanager
def kept(name: str) -> Iterator[None]:
    """Everything that is printed meanwhile, also by children, goes to build/logs/NAME.log as well as to stdout."""
    LOGS.mkdir(parents=True, exist_ok=True)
    _path(name, ".failed").unlink(missing_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(1), os.dup(2)]
    source, sink = os.pipe()
    over = threading.Event()
    with _path(name, ".log").open("wb") as log:
        copier = threading.Thread(target=_copy, args=(source, saved[0], log, over))
        copier.start()
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        os.close(sink)
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(saved[0], 1)
            os.dup2(saved[1], 2)
            over.set()
            copier.join()
            for number in (source, *saved):
                os.close(number)


def _copy(source: int, target: int, log: BinaryIO, over: threading.Event) -> None:
    """Pass on what arrives as it arrives, until nothing holds the pipe or nothing more comes after the end."""
    while True:
        ready, _, _ = select.select([source], [], [], _LAST_WORDS_S)
        if not ready:
            if over.is_set():
                return
            continue
        data = os.read(source, 1 << 16)
        if not data:
            return
        log.write(data)
        log.flush()
        with contextlib.suppress(OSError):  # nobody looks any more; the stage goes on
            while data:
                data = data[os.write(target, data) :]


def write(name: str, text: str) -> None:
    """Keep TEXT as what NAME printed."""
    LOGS.mkdir(parents=True, exist_ok=True)
    _path(name, ".log").write_text(text)


def mark_failed(name: str, outcome: str) -> None:
    """NAME did not pass; OUTCOME is the cell of the closing table."""
    LOGS.mkdir(parents=True, exist_ok=True)
    _path(name, ".failed").write_text(outcome.splitlines()[0] + "\n")


def tail(path: Path, lines: int) -> str:
    """The last LINES lines of PATH, without what a terminal would act on."""
    text = path.read_bytes().decode("utf-8", "replace").replace("\r", "")
    text = re.sub(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])", "", text)
    return "\n".join(text.splitlines()[-lines:])


def report() -> str:
    """For each failed stage the end of its log, with that of the hosts' serial consoles where it booted some."""
    parts: list[str] = []
    failed = sorted(LOGS.glob("*.failed"))
    for marker in failed:
        log = marker.with_suffix(".log")
        end = tail(log, STAGE_LINES) if log.exists() else "(no log)"
        why = marker.read_text().strip()
        parts.append(f"=== {marker.stem} {why}: the last {STAGE_LINES} lines of {log.name}\n{end}")
    if any(marker.stem in WITH_HOSTS for marker in failed):
        consoles = sorted(LOGS.glob(f"{SERIAL}*.log"))
        parts += [f"=== the last {SERIAL_LINES} lines of {log.name}\n{tail(log, SERIAL_LINES)}" for log in consoles]
    return "\n\n".join(parts)


if __name__ == "__main__":
    print(report() or "No stage has failed.")
