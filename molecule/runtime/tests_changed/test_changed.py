# SPDX-License-Identifier: GPL-3.0-or-later
"""Another version and back; the model that a boot loads; a model that does not fit."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(os.environ["MOLECULE_PROJECT_DIRECTORY"]) / "molecule" / "_shared" / "verifier"))

import records


def test_each_version_is_switched_to_and_serves() -> None:
    versions = records.kept("changes-seen")["versions"]
    first, second, third = (versions[step] for step in ("before", "present", "rollback"))
    assert {rows[-1] for rows in (first, second, third)} == {"serves"}
    old, new = first[0], second[0]
    assert old != new and second[1] == old
    assert third[:2] == [old, new]
    # The process runs the version, not only the link.
    assert old in first[-2] or "current" in first[-2]


def test_the_boot_loaded_the_model_and_started_the_server() -> None:
    booted = records.kept("changes-seen")["booted"]
    assert booted["ok"] is True and booted["transport"] == "shm"


def test_a_short_pool_fails_the_unit_with_the_numbers(host: Any) -> None:
    journal = records.kept("changes-seen")["journal"]
    assert "node" in journal and "pages" in journal, journal
    answers = records.answers(records.verified(host.backend.get_hostname(), "short"))
    assert answers["runtime.weights.toy"]["status"] == "fail"
    assert answers["runtime.weights.toy"]["reason"] == "not_resident"
    assert answers["units.firsttouch-weights@toy.service.active"]["status"] == "fail"
    assert answers["runtime.server.policy.answers"]["status"] == "fail"


def test_with_its_pages_back_all_is_well(host: Any) -> None:
    entry = records.verified(host.backend.get_hostname(), "mended")
    assert [row for row in entry["results"] if row["status"] == "fail"] == []
