# SPDX-License-Identifier: GPL-3.0-or-later
"""The check run changed nothing and predicted the real run; the real run rebooted the host once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"])
sys.path.insert(0, str(ROOT / "molecule" / "_shared" / "verifier"))

import records  # noqa: E402  the path above is only known at run time


def name_of(host: Any) -> str:
    name: str = host.backend.get_hostname()
    return name


def test_a_check_run_leaves_everything_as_it_was(host: Any) -> None:
    before = records.fingerprint(name_of(host), "before")
    after = records.fingerprint(name_of(host), "after-check")
    assert before["files"], "an empty fingerprint proves nothing"
    assert records.difference(before["files"], after["files"]) == {}
    assert records.difference(before["settings"], after["settings"]) == {}
    assert before["boot_id"] == after["boot_id"]


def test_the_check_run_predicts_the_change_set(host: Any) -> None:
    predicted = records.change_sets(name_of(host), "check")[0]
    done = records.change_sets(name_of(host), "run")[0]
    assert predicted, "an empty change set proves nothing"
    assert predicted == done


def test_a_check_of_the_converged_host_predicts_nothing(host: Any) -> None:
    """Where the scenario makes a second check run, after the host was converged."""
    assert records.change_sets(name_of(host), "check")[1:] in ([], [[]])


def test_converging_twice_reboots_once(host: Any) -> None:
    log = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "testhost"), "logs", name_of(host)],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    # What the kernel says of a reboot that was commanded; one that panicked boots again without it.
    assert log.count("reboot: Restarting system") == 1
