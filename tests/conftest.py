# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the checkout importable as the collection ansible_collections.firsttouch.host, and what the tests share."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TREE = ROOT / "build" / "import"
LINK = TREE / "ansible_collections" / "firsttouch" / "host"

if not LINK.is_symlink():
    LINK.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):  # another pytest process was first
        LINK.symlink_to(ROOT)
for path in (str(TREE), str(ROOT / "tests"), str(ROOT / "tests" / "unit")):
    if path not in sys.path:
        sys.path.insert(0, path)

with contextlib.suppress(ImportError):  # not all tests are run with it
    from hypothesis import settings

    # How long an example takes is the machine's; which ones are tried is the same in each run, but for the long ones.
    settings.register_profile("here", deadline=None, derandomize=os.environ.get("FIRSTTOUCH_SLOW") != "1")
    settings.load_profile("here")
