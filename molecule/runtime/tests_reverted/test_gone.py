# SPDX-License-Identifier: GPL-3.0-or-later
"""After the revert nothing of the runtime is there."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"])
sys.path[:0] = [str(ROOT / "molecule" / "_shared" / "verifier"), str(ROOT / "tests" / "testinfra")]

import rawhost  # noqa: E402  the path above is only known at run time
import records  # noqa: E402  the path above is only known at run time


def test_nothing_is_left(host: Any) -> None:
    script = (
        "ls -d /opt/firsttouch /run/firsttouch /etc/firsttouch /var/lib/firsttouch 2>/dev/null;"
        "getent passwd firsttouch; getent group firsttouch;"
        # The test host has a unit of its own that begins like ours.
        "systemctl list-units --all --no-legend --plain 'firsttouch-*@*' firsttouch.slice firsttouch-hugepages.service;"
        "pgrep -af '^/opt/firsttouch/'; true"
    )
    assert rawhost.run(host, script) == ""


def test_files_and_settings_are_what_they_were(host: Any) -> None:
    name = host.backend.get_hostname()
    before, after = records.fingerprint(name, "before"), records.fingerprint(name, "after-revert")
    for kind in ("files", "settings"):
        assert records.difference(before[kind], after[kind]) == {}
