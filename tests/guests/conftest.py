# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of the runtime in booted test hosts: `make test STAGES=guests`."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = str(Path(__file__).resolve().parents[1])
if TESTS not in sys.path:
    sys.path.insert(0, TESTS)
