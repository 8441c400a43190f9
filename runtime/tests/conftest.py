# SPDX-License-Identifier: Apache-2.0
"""What all tests of the runtime share."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

from weights_host import gigantic, mounter, on_disk, pool, run_directory, store

__all__ = ["gigantic", "mounter", "on_disk", "pool", "run_directory", "store"]

SLOW = os.environ.get("FIRSTTOUCH_SLOW") == "1"
# How long an example takes is the machine's; which ones are tried is the same in each run, but for the long ones.
settings.register_profile("here", deadline=None, derandomize=not SLOW)
settings.load_profile("here")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the tests with full counts unless they are asked for."""
    if not SLOW:
        skip = pytest.mark.skip(reason="full counts: set FIRSTTOUCH_SLOW=1")
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(skip)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user can pass: those above pytest's own are not for a test to open."""
    with tempfile.TemporaryDirectory(prefix="firsttouch-", dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """A test leaves no descriptor and no child behind."""
    before = _held()
    yield
    gc.collect()
    after = _held()
    assert after == before, "descriptors (by kind) or children are left"


def _held() -> tuple[dict[str, int], list[str]]:
    """Descriptors of this process by kind, and its children."""
    kinds: dict[str, int] = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        kind = target.partition(":")[0] if not target.startswith("/") else target
        kinds[kind] = kinds.get(kind, 0) + 1
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return {kind: count for kind, count in kinds.items() if not kind.startswith("/proc")}, file.read().split()
