# SPDX-License-Identifier: Apache-2.0
"""The README's sampler runs as it stands against the server that it names, and the package exports what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import firsttouch
from test_cli import SOURCE, running

README = Path(__file__).resolve().parents[1] / "README.md"


def test_sampler(tmp_path: Path) -> None:
    """`firsttouch serve` and the ten lines talk to each other."""
    text = README.read_text()
    sampler = re.findall(r"```python\n(import numpy.*?)```", text, re.DOTALL)[0]
    assert "/tmp/policy" in text
    where = f"{tmp_path}/policy"
    with running("--address", f"shm://{where}", cwd=tmp_path):
        done = subprocess.run(
            [sys.executable, "-c", sampler.replace("/tmp/policy", where)],
            env={"PYTHONPATH": SOURCE},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(rf"shm://{where}, process \d+: last action \d+\n", done.stdout)


def test_exports() -> None:
    """__all__ is sorted, and every name of it is there."""
    assert firsttouch.__all__ == sorted(firsttouch.__all__)
    assert all(hasattr(firsttouch, name) for name in firsttouch.__all__)
    for name in ("InferenceClient", "InferenceServer", "choose_transport", "affinity"):
        assert name in firsttouch.__all__
