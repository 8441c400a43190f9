# SPDX-License-Identifier: GPL-3.0-or-later
"""A virtual environment with Ray, which is large and has wheels for some interpreters only: for the stage `ray`."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import interpreters
from commands import CommandError, NotRun

# Newest first that Ray has wheels for.
PYTHONS = ("3.13", "3.12", "3.11", "3.10")
REQUIREMENTS = ("ray>=2.40", "numpy>=1.26", "msgspec>=0.18", "pytest>=8.3,<10")
VENVS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "firsttouch" / "venvs"


def python() -> Path:
    """The interpreter of an environment that has Ray, made once. Raises NotRun where no interpreter can have it."""
    wanted = hashlib.sha256("\n".join(REQUIREMENTS).encode()).hexdigest()[:12]
    for version in PYTHONS:
        folder = VENVS / f"ray-{version}-{wanted}"
        if (folder / "complete").exists():
            return folder / "bin" / "python"
    found = [path for path in map(interpreters.find, PYTHONS) if path is not None]
    if not found:
        raise NotRun(f"no Python of {', '.join(PYTHONS)} is installed here, and Ray has wheels for these only")
    errors = []
    for interpreter in found:
        version = ".".join(interpreters.identity(interpreter).split()[0].split(".")[:2])
        folder = VENVS / f"ray-{version}-{wanted}"
        shutil.rmtree(folder, ignore_errors=True)
        _call([str(interpreter), "-m", "venv", str(folder)])
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        try:
            _call([*pip, "--only-binary", ":all:", *REQUIREMENTS])
        except CommandError as exc:
            errors.append(str(exc))
            shutil.rmtree(folder, ignore_errors=True)
            continue
        (folder / "complete").touch()
        return folder / "bin" / "python"
    raise CommandError("Ray could not be installed: " + "; ".join(errors))


def _call(command: list[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        end = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise CommandError(f"{' '.join(command[:4])} ...: {' '.join(end)}")
