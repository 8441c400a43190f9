# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the programs of tools/ importable."""

from __future__ import annotations

import sys
from pathlib import Path

TOOLS = str(Path(__file__).resolve().parents[3] / "tools")
if TOOLS not in sys.path:
    sys.path.insert(0, TOOLS)
