# SPDX-License-Identifier: GPL-3.0-or-later
"""After the revert the host is what it was before the first run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(os.environ["MOLECULE_PROJECT_DIRECTORY"]) / "molecule" / "_shared" / "verifier"))

import records


def moments(host: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    name = host.backend.get_hostname()
    return records.fingerprint(name, "before"), records.fingerprint(name, "after-revert")


def test_files_are_what_they_were(host: Any) -> None:
    before, after = moments(host)
    assert records.difference(before["files"], after["files"]) == {}


def test_sysctls_and_pools_are_what_they_were(host: Any) -> None:
    before, after = moments(host)
    assert records.difference(before["settings"], after["settings"]) == {}


def test_the_command_line_is_what_it_was(host: Any) -> None:
    before, after = moments(host)
    assert after["cmdline"] == before["cmdline"]
    assert after["boot_id"] != before["boot_id"]
