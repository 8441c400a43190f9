# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs that take long: run with progress, a limit, and an end that leaves nothing running."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from . import qemu
from .errors import HostError

STEP_LIMIT = 1800.0


def run(
    argv: list[str], log: Path, what: str, say: Callable[[str], None], environment: dict[str, str]
) -> None:
    """Run a build step with its output in a log; the end of that log is in the error."""
    # Should this process be killed, mmdebstrap still gets to clean up.
    argv = [qemu.find_tools("setpriv")["setpriv"], "--pdeathsig", "TERM", "--", *argv]
    begin = time.monotonic()
    reported = begin
    with log.open("ab") as stream:
        process = _started(argv, stream, environment)
        try:
            while process.poll() is None:
                time.sleep(0.2)
                now = time.monotonic()
                if now - begin > STEP_LIMIT:
                    raise HostError(f"{what} took longer than {STEP_LIMIT:.0f} s:\n{qemu.tail(log)}")
                if now - reported >= 10:
                    reported = now
                    say(f"{what}: {now - begin:.0f} s ({qemu.tail(log, 1)[:100]})")
        finally:
            if process.poll() is None:
                _interrupt(process)
    if process.returncode != 0:
        raise HostError(f"{what} failed with status {process.returncode}:\n{qemu.tail(log)}")


def _started(argv: list[str], stream: IO[bytes], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start ARGV in a session of its own, open to an interrupt.

    In the background of a script SIGINT is ignored, and a program started from there could never be asked to clean up.
    """
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    if ignored:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=environment,
            start_new_session=True,
        )
    finally:
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """Let mmdebstrap undo its mounts and remove its directory, then make sure that it is gone."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
