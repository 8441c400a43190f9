# SPDX-License-Identifier: Apache-2.0
"""The README's sampler runs as it stands against the server that it names, and the package exports what it says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import firsttouch
from test_cli import SOURCE

README = Path(__file__).resolve().parents[1] / "README.md"


@pytest.mark.parametrize("transport", ["shm", "unix"])
def test_sampler(transport: str, tmp_path: Path) -> None:
    """`firsttouch serve` and the ten lines talk to each other, as the host's plan says or without one."""
    sampler = re.findall(r"```python\n(import numpy.*?)```", README.read_text(), re.DOTALL)[0]
    if transport == "shm":
        (tmp_path / "plan.json").write_text(json.dumps({"schema": 1, "transport": {"policy": "fastest"}}))
    # The folders of this host and no others: a server of its own may be there.
    here = f"""
from pathlib import Path
from firsttouch import cli, plan
plan.RUN_FOLDER, plan.PLAN_PATH = Path({str(tmp_path / "run")!r}), Path({str(tmp_path / "plan.json")!r})
"""
    env = {"PYTHONPATH": SOURCE}
    serve = [sys.executable, "-c", here + "cli.main(['serve', '--pages', '4k'])"]
    with subprocess.Popen(serve, env=env, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            said = iter(server.stdout.readline, "")
            words = next(line for line in said if line.startswith("auto: "))
            done = subprocess.run(
                [sys.executable, "-c", here + sampler], env=env, capture_output=True, text=True, timeout=60
            )
        finally:
            server.terminate()
        assert server.wait(20) == 0
    assert done.returncode == 0, done.stderr
    suffix = {"shm": "shm", "unix": "sock"}[transport]
    where = f"{transport}://{tmp_path}/run/default.{suffix}"
    assert re.fullmatch(rf"{where}, process \d+: last action \d+\n", done.stdout)
    assert {"shm": "shared memory", "unix": "a unix socket"}[transport] in words
    assert not list((tmp_path / "run").iterdir())


def test_exports() -> None:
    """__all__ is sorted, and every name of it is there."""
    assert firsttouch.__all__ == sorted(firsttouch.__all__)
    assert all(hasattr(firsttouch, name) for name in firsttouch.__all__)
    for name in ("InferenceClient", "InferenceServer", "choose_transport", "affinity"):
        assert name in firsttouch.__all__
