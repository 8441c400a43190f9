# SPDX-License-Identifier: GPL-3.0-or-later
"""One browser for all tests; without one they fail, since the stage has looked for it before."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from webdriver import Browser

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)


@pytest.fixture(scope="session")
def started() -> Iterator[Browser]:
    import webdriver

    with webdriver.browser() as session:
        session.devtools("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
        yield session


@pytest.fixture
def chrome(started: Browser) -> Iterator[Browser]:
    """The browser at its usual size; a test after which its console holds an error fails."""
    started.view(1280)
    started.log()
    yield started
    assert started.log() == []
