# SPDX-License-Identifier: Apache-2.0
"""What all tests of the runtime share."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from weights_host import mounter, pool, run_directory, store

__all__ = ["mounter", "pool", "run_directory", "store"]

SLOW = os.environ.get("FIRSTTOUCH_SLOW") == "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the tests with full counts unless they are asked for."""
    if not SLOW:
        skip = pytest.mark.skip(reason="full counts: set FIRSTTOUCH_SLOW=1")
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(skip)
