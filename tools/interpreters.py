# SPDX-License-Identifier: GPL-3.0-or-later
"""Find Python interpreters: on PATH, and where version managers keep theirs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path


def _first_line(*command: str) -> str:
    """What COMMAND prints first, or nothing where it is not installed or fails."""
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip().partition("\n")[0] if done.returncode == 0 else ""


def _managed() -> Iterator[Path]:
    """The folders of version managers that hold one folder per interpreter."""
    home, env = Path.home(), os.environ
    data = Path(env.get("XDG_DATA_HOME") or home / ".local" / "share")
    yield Path(env.get("PYENV_ROOT") or _first_line("pyenv", "root") or home / ".pyenv") / "versions"
    yield Path(env.get("ASDF_DATA_DIR") or home / ".asdf") / "installs" / "python"
    yield Path(env.get("MISE_DATA_DIR") or data / "mise") / "installs" / "python"
    yield Path(
        _first_line("uv", "python", "dir") or env.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python"
    )


def _candidates(version: str) -> Iterator[Path]:
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        yield Path(folder) / f"python{version}"
    for root in _managed():
        found = root.glob(f"*/bin/python{version}")
        yield from sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)


def identity(python: Path) -> str:
    """Version and home of an interpreter, or nothing where it does not run or can make no virtual environments.

    A version manager puts stand-ins on PATH that run only where the version is switched on.
    """
    probe = "import ensurepip, ssl, sys, venv; print(sys.version.split()[0], sys.base_prefix)"
    try:
        done = subprocess.run([python, "-I", "-c", probe], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def find(version: str) -> Path | None:
    """The first interpreter of VERSION, like "3.9", that runs and can make virtual environments."""
    for path in _candidates(version):
        if path.is_file() and identity(path).startswith(f"{version}."):
            return path
    return None
