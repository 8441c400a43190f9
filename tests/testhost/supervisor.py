# SPDX-License-Identifier: GPL-3.0-or-later
"""The process that owns the QEMU of a booted host: a guest that reboots gets a new QEMU.

QEMU keeps what it translated of a guest's code over a reset. The next kernel writes to the same memory, and each
page of it that once held code costs up to milliseconds under TCG: reserving 520 MiB of hugepages took 107 s after a
reboot, and 3 s in a new QEMU.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from . import qemu

# How a supervisor is started: testhost COMMAND PID_FILE GUEST_PID_FILE QEMU [ARGUMENT...]
COMMAND = "supervise"
# More boots than a test makes; a guest that resets in a loop would go on for ever.
_MOST_BOOTS = 100


def supervise(pid_file: Path, guest_pid_file: Path, argv: list[str]) -> int:
    """Run QEMU, again after every reset by its guest, until it ends otherwise; returns its status.

    The pid of this process goes to PID_FILE, that of the QEMU that runs to GUEST_PID_FILE once its machine is made.
    SIGTERM ends both.
    """
    signal.signal(signal.SIGTERM, _end)
    _write(pid_file, os.getpid())
    setpriv = qemu.find_tools("setpriv")["setpriv"]
    command = [setpriv, "--pdeathsig", "KILL", "--", *argv, "-qmp", "stdio", "-action", "reboot=shutdown"]
    for _ in range(_MOST_BOOTS):
        status, reason = _run(command, guest_pid_file)
        if status or reason != "guest-reset":
            return status
    print(f"the guest reset itself {_MOST_BOOTS} times", file=sys.stderr)
    return 1


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(0)


def _write(path: Path, pid: int) -> None:
    beside = path.with_suffix(".new")
    beside.write_text(f"{pid}\n")
    beside.rename(path)


def _run(command: list[str], guest_pid_file: Path) -> tuple[int, str]:
    """One QEMU to its end: its status, and the reason that it gives for its end (QMP, event SHUTDOWN)."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin and process.stdout
    reason = ""
    try:
        process.stdin.write(b'{"execute": "qmp_capabilities"}\n')
        process.stdin.flush()
        for line in process.stdout:
            message = json.loads(line)
            # The monitor answers from the main loop, when all arguments have been taken.
            if "return" in message:
                _write(guest_pid_file, process.pid)
            elif message.get("event") == "SHUTDOWN":
                reason = message["data"]["reason"]
        return process.wait(), reason
    except BrokenPipeError:
        return process.wait(), reason
    finally:
        guest_pid_file.unlink(missing_ok=True)
        if process.poll() is None:
            process.kill()
            process.wait()
