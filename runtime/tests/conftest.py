# SPDX-License-Identifier: Apache-2.0
"""What all tests of the runtime share."""

from __future__ import annotations

import os

import pytest

SLOW = os.environ.get("FIRSTTOUCH_SLOW") == "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the tests with full counts unless they are asked for."""
    if not SLOW:
        skip = pytest.mark.skip(reason="full counts: set FIRSTTOUCH_SLOW=1")
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(skip)
