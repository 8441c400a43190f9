# SPDX-License-Identifier: GPL-3.0-or-later
"""Environments with what is large and has wheels for some interpreters only: for the stages `ray` and `torch`."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import interpreters
from commands import CommandError, NotRun

# Newest first of those that the runtime runs on.
PYTHONS = ("3.13", "3.12", "3.11", "3.10")
COMMON = ("numpy>=1.26", "msgspec>=0.18", "pytest>=9,<10")
REQUIREMENTS = {
    "ray": (*COMMON, "ray>=2.40"),
    "torch": (*COMMON, "torch>=2.5", "ml_dtypes>=0.4", "safetensors>=0.4.3", "hypothesis>=6.100,<7"),
}
VENVS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "firsttouch" / "venvs"


def python(name: str) -> Path:
    """The interpreter of an environment that has NAME of REQUIREMENTS, made once. Raises NotRun where there is none."""
    requirements = REQUIREMENTS[name]
    wanted = hashlib.sha256("\n".join(requirements).encode()).hexdigest()[:12]
    for version in PYTHONS:
        folder = VENVS / f"{name}-{version}-{wanted}"
        if (folder / "complete").exists():
            return folder / "bin" / "python"
    found = [path for path in map(interpreters.find, PYTHONS) if path is not None]
    if not found:
        raise NotRun(f"no Python of {', '.join(PYTHONS)} is installed here: {name} is not tested")
    errors = []
    for interpreter in found:
        version = ".".join(interpreters.identity(interpreter).split()[0].split(".")[:2])
        folder = VENVS / f"{name}-{version}-{wanted}"
        print(f"{folder}: {name} is installed there, once", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        _call([str(interpreter), "-m", "venv", str(folder)])
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        try:
            _call([*pip, "--only-binary", ":all:", *requirements])
        except CommandError as exc:
            errors.append(str(exc))
            shutil.rmtree(folder, ignore_errors=True)
            continue
        (folder / "complete").touch()
        return folder / "bin" / "python"
    raise CommandError(f"{name} could not be installed: " + "; ".join(errors))


def _call(command: list[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        end = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise CommandError(f"{' '.join(command[:4])} ...: {' '.join(end)}")
