# SPDX-License-Identifier: GPL-3.0-or-later
"""The collection as a user has it: FIRSTTOUCH_COLLECTIONS holds the installed tarball, else the checkout is linked."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import ROOT

Playbook = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def collections() -> Path:
    return Path(os.environ.get("FIRSTTOUCH_COLLECTIONS", ROOT / "build" / "import"))


@pytest.fixture(scope="session")
def ansible_playbook(collections: Path) -> Playbook:
    """Run ansible-playbook with WORDS in FOLDER, where its home is too; nothing of the caller's settings counts."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
    program = Path(sys.executable).with_name("ansible-playbook")

    def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, *words],
            cwd=folder,
            env={**kept, "ANSIBLE_HOME": str(folder / "home"), "ANSIBLE_COLLECTIONS_PATH": str(collections)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    return run
