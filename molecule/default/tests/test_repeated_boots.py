# SPDX-License-Identifier: GPL-3.0-or-later
"""Boots in a row: where the kernel lands differs from boot to boot, and the 1 GiB page has to be there each time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

MORE_BOOTS = int(os.environ.get("FIRSTTOUCH_BOOTS", "1")) - 1
TESTHOST = Path(__file__).resolve().parents[3] / "tests" / "testhost"
POOL = "/sys/devices/system/node/node1/hugepages/hugepages-1048576kB"
LIMIT = 600.0


def ask(name: str, script: str) -> str:
    """Standard output of SCRIPT on host NAME over a connection of its own, "" when it does not answer."""
    command = [sys.executable, str(TESTHOST), "ssh", name, script]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def boot_again(name: str) -> None:
    """Reboot host NAME and wait until another boot answers."""
    boot_id = "cat /proc/sys/kernel/random/boot_id"
    before = ask(name, boot_id)
    assert before, f"{name} does not answer"
    ask(name, "systemctl reboot")
    deadline = time.monotonic() + LIMIT
    while ask(name, boot_id) in ("", before):
        assert time.monotonic() < deadline, f"{name} did not come back within {LIMIT:.0f} s"
        time.sleep(1)


@pytest.mark.skipif(MORE_BOOTS < 1, reason="one boot only; `make test-kernel` boots five times")
@pytest.mark.parametrize("boot", range(2, MORE_BOOTS + 2))
def test_the_1_gib_page_is_there_at_every_boot(host: Any, boot: int) -> None:
    name = host.backend.get_hostname()
    boot_again(name)
    answer = ask(name, f"cat {POOL}/nr_hugepages {POOL}/free_hugepages; cat /proc/cmdline")
    pages, free, cmdline = answer.splitlines()
    assert "hugepagesz=1G" in cmdline, f"boot {boot}"
    assert (pages, free) == ("1", "1"), f"boot {boot}: {answer}"
