# SPDX-License-Identifier: GPL-3.0-or-later
"""The wheels that a guest needs, for its Python: ours built here, the others from the package index.

They are kept in build/wheels; ours is built anew each time, the others as long as their requirements are the same.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = ROOT / "runtime"
STORE = ROOT / "build" / "wheels"
# What Debian's releases are, in both words: its Python. Their glibc is newer than any of these platforms asks for.
PYTHONS = {"bookworm": "3.11", "trixie": "3.13"}
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
_PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


class WheelError(Exception):
    """A wheel cannot be had; the text is what pip said."""


def wheels_for(python: str) -> Path:
    """A folder with the runtime, all that it needs and pip itself, as wheels for PYTHON, like "3.13"."""
    folder = STORE / f"cp{python.replace('.', '')}"
    project = tomllib.loads((RUNTIME / "pyproject.toml").read_text())["project"]
    needs = [*project["dependencies"], *project["optional-dependencies"]["weights"], "pip"]
    _fetch(python, needs, folder)
    for old in folder.glob("firsttouch-*.whl"):
        old.unlink()
    _pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(RUNTIME))
    return folder


def _fetch(python: str, needs: list[str], folder: Path) -> None:
    stamp, wanted = folder / ".needs", hashlib.sha256("\n".join(needs).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    platforms = [word for name in _PLATFORMS for word in ("--platform", name)]
    target = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", python, *platforms]
    _pip("download", "--dest", str(folder), *target, *needs)
    stamp.write_text(wanted)


def _pip(*words: str) -> None:
    done = subprocess.run([*_PIP, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise WheelError(f"pip {words[0]}: {done.stderr.strip()}")
