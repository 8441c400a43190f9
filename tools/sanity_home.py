# SPDX-License-Identifier: GPL-3.0-or-later
"""A home directory for ansible-test, which keeps its virtual environments below HOME."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import ansible_test

HOME = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "firsttouch" / "sanity"
PIP_SCRIPT = "import ensurepip\nensurepip.bootstrap(upgrade=True, default_pip=True)\n"


def pip_settings(listing: str) -> str:
    """A pip.conf with what `pip config list` printed; settings of the environment come last, so that they win."""
    settings: dict[str, dict[str, str]] = {}
    for line in sorted(listing.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        section, _, key = name.replace(":env:", "global").partition(".")
        settings.setdefault(section, {})[key] = str(ast.literal_eval(value)).strip()
    lines = []
    for section, pairs in settings.items():
        lines.append(f"[{section}]")
        lines += [f"{key} = " + value.replace("\n", "\n  ") for key, value in pairs.items()]
    return "\n".join([*lines, ""])


def prepared() -> Path:
    """Put into HOME the pip that Python itself brings, where ansible-test would fetch one, and pip's settings.

    ansible-test runs pip without the caller's environment and home, so the settings have to come along.
    """
    cache = HOME / ".ansible" / "test" / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    source = Path(ansible_test.__path__[0]) / "_internal" / "python_requirements.py"
    for version in re.findall(r"\bpip='([\d.]+)'", source.read_text()):
        (cache / f"get_pip_{version.replace('.', '_')}.py").write_text(PIP_SCRIPT)
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    config = HOME / ".config" / "pip" / "pip.conf"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.touch(mode=0o600)
    config.write_text(pip_settings(listing))
    return HOME
