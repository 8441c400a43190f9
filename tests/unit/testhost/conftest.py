# SPDX-License-Identifier: GPL-3.0-or-later
"""The test host runs on the control side's Python only; its cache is a directory of the test's own."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

if sys.version_info < (3, 11):
    collect_ignore_glob = ["test_*.py"]


def wait_until(condition: Callable[[], object], limit: float = 30.0) -> None:
    """Wait for something that another process does; a loaded machine takes its time."""
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


@pytest.fixture
def eventually() -> Callable[[Callable[[], object]], None]:
    return wait_until


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path / "cache"
    monkeypatch.setenv("FIRSTTOUCH_TESTHOST_DIR", str(cache))
    return cache
