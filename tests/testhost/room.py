# SPDX-License-Identifier: GPL-3.0-or-later
"""Room on the disk, looked at before it is taken: a full one ends a build or a guest where nothing explains it."""

from __future__ import annotations

import shutil
from pathlib import Path

from .errors import HostError


def need(directory: Path, mib: int, what: str) -> None:
    """HostError unless WHAT, which takes MIB MiB, fits where DIRECTORY is or will be."""
    there = next(path for path in (directory, *directory.parents) if path.exists())
    free = shutil.disk_usage(there).free >> 20
    if free < mib:
        raise HostError(
            f"{what} takes up to {mib} MiB, and {directory} has {free} MiB left; make room, or set "
            "FIRSTTOUCH_TESTHOST_DIR to a directory that has it"
        )
