# SPDX-License-Identifier: GPL-3.0-or-later
"""Where images, running hosts and cached answers live."""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE_DIR = Path(__file__).resolve().parent


def cache_dir() -> Path:
    """The directory of everything this program keeps; FIRSTTOUCH_TESTHOST_DIR overrides it."""
    chosen = os.environ.get("FIRSTTOUCH_TESTHOST_DIR")
    if chosen:
        return Path(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base).absolute() / "firsttouch" / "testhost"


def images_dir() -> Path:
    return cache_dir() / "images"


def hosts_dir() -> Path:
    return cache_dir() / "hosts"


def host_dir(name: str) -> Path:
    return hosts_dir() / name
