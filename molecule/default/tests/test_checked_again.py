# SPDX-License-Identifier: GPL-3.0-or-later
"""The check run on the converged host changed nothing, as little as the first one did on the bare host."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(os.environ["MOLECULE_PROJECT_DIRECTORY"]) / "molecule" / "_shared" / "verifier"))

import records


def test_a_check_run_leaves_the_converged_host_as_it_is(host: Any) -> None:
    assert records.changed(host.backend.get_hostname(), "converged", "after-second-check") == {}
