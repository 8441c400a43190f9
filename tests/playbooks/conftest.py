# SPDX-License-Identifier: GPL-3.0-or-later
"""The collection as a user has it: FIRSTTOUCH_COLLECTIONS holds the installed tarball, else the checkout is linked."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TREE = ROOT / "build" / "import"
LINK = TREE / "ansible_collections" / "firsttouch" / "host"

if not LINK.is_symlink():
    LINK.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        LINK.symlink_to(ROOT)
for path in (str(TREE), str(ROOT / "tests" / "unit")):
    if path not in sys.path:
        sys.path.insert(0, path)


@pytest.fixture(scope="session")
def collections() -> Path:
    return Path(os.environ.get("FIRSTTOUCH_COLLECTIONS", TREE))
