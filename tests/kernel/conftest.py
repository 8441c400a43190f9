# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask real kernels: `pytest tests/kernel --sample` for a few lines, without it for the whole table."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The size of the run, and which Debian releases are asked."""
    parser.addoption("--sample", action="store_true", help="ask only the lines marked as the sample")
    parser.addoption("--release", action="append", default=[], help="Debian release to ask, may be repeated")
    parser.addoption("--line", action="append", default=[], help="name of a line to ask, may be repeated")
