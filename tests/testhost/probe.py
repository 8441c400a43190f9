# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether KVM runs a stock kernel here. /dev/kvm can exist and open, and still not do that."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from . import ask
from .errors import HostError
from .paths import cache_dir

# A working KVM boots the asking initramfs in about two seconds.
PROBE_LIMIT = 15.0
_MACHINE = ["-cpu", "max,la57=off", "-smp", "2", "-m", "512M"]


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _probe(kernel: Path) -> str:
    """Why KVM does not work; empty when it does."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "/dev/kvm is not there or not accessible"
    try:
        answer = ask.ask_kernel(kernel, "", _MACHINE, "kvm", PROBE_LIMIT)
    except HostError as error:
        return str(error).splitlines()[0]
    if answer["outcome"] == "booted":
        return ""
    return f"a stock kernel did not boot with it within {PROBE_LIMIT:.0f} s ({answer['outcome']})"


def accelerator(kernel: Path, say: Callable[[str], None]) -> str:
    """``kvm`` or ``tcg``; probed once per boot of this machine. FIRSTTOUCH_TESTHOST_ACCEL decides instead."""
    forced = os.environ.get("FIRSTTOUCH_TESTHOST_ACCEL", "")
    if forced in ("kvm", "tcg"):
        return forced
    if forced:
        raise HostError(f"FIRSTTOUCH_TESTHOST_ACCEL={forced}: must be kvm or tcg")
    record = cache_dir() / "accel.json"
    try:
        known = json.loads(record.read_text())
        if known["boot_id"] == _boot_id():
            return str(known["accel"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        pass
    reason = _probe(kernel)
    accel = "tcg" if reason else "kvm"
    say(f"KVM is not used: {reason}" if reason else "KVM works and is used")
    record.parent.mkdir(parents=True, exist_ok=True)
    beside = record.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps({"boot_id": _boot_id(), "accel": accel, "reason": reason}) + "\n")
    beside.rename(record)
    return accel
