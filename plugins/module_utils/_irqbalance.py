# SPDX-License-Identifier: Apache-2.0
"""What irqbalance may do on a host with isolated CPUs, as files of ours beside the distribution's.

A drop-in of irqbalance.service names an environment file of ours. systemd.exec(5): of several EnvironmentFile= the
later one wins, so that a list left in /etc/default or /etc/sysconfig cannot override ours, and the distribution's stay
untouched.
"""

from __future__ import annotations

from ._cpulist import parse
from ._files import read_text
from ._systemd import MARKER

SERVICE = "irqbalance.service"
DROPIN = f"/etc/systemd/system/{SERVICE}.d/zz-firsttouch.conf"
ENVIRONMENT = "/etc/firsttouch/irqbalance.env"
MODES = ("keep", "ban_isolated", "off")
_UNIT_DIRS = ("/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system",
              "/usr/lib/systemd/system", "/lib/systemd/system")  # fmt: skip


class ForeignFileError(ValueError):
    """A file of one of our names that does not carry our marker; `path` is the file."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} exists and is not ours: its first line is not {MARKER!r}. Move it away first.")
        self.path = path


def installed(root: str) -> bool:
    """Whether the host at ROOT has irqbalance.service."""
    return any(read_text(root, f"{folder}/{SERVICE}") is not None for folder in _UNIT_DIRS)


def wanted_files(mode: str, isolated: str) -> dict[str, str | None]:
    """{path: text, or None for absent} of MODE with the CPU list ISOLATED. Raises ValueError."""
    if mode not in MODES:
        raise ValueError(f"{mode!r} is not one of {', '.join(MODES)}")
    if mode == "off":
        # A condition that never holds: the unit stays installed and enabled, and is itself again without this file.
        return {DROPIN: f"{MARKER}\n[Unit]\nConditionPathExists=!/\n", ENVIRONMENT: None}
    if mode == "keep" or not parse(isolated):
        return {DROPIN: None, ENVIRONMENT: None}
    return {
        DROPIN: f"{MARKER}\n[Service]\nEnvironmentFile={ENVIRONMENT}\n",
        ENVIRONMENT: f"{MARKER}\nIRQBALANCE_BANNED_CPULIST={isolated}\n",
    }


def differences(root: str, wanted: dict[str, str | None]) -> dict[str, tuple[str | None, str | None]]:
    """{path: (before, after)} of the files that differ below ROOT. Raises ForeignFileError, OSError."""
    found: dict[str, tuple[str | None, str | None]] = {}
    for path, after in wanted.items():
        before = read_text(root, path)
        if before == after:
            continue
        if before is not None and before.split("\n", 1)[0].rstrip() != MARKER:
            if after is None:
                continue
            raise ForeignFileError(path)
        found[path] = (before, after)
    return found
