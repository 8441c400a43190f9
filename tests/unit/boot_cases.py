# SPDX-License-Identifier: GPL-3.0-or-later
"""Lay a recorded boot configuration out as a sysroot and ask the public modules about it."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml
from support import CASES, put, run_module

TREES = CASES.parent / "boot"
KEYS = ["default_hugepagesz", "hugepagesz", "hugepages"]
WANT = ["default_hugepagesz=2M", "hugepagesz=2M", "hugepages=1024"]
LINUX, DEFAULT = "GRUB_CMDLINE_LINUX", "GRUB_CMDLINE_LINUX_DEFAULT"
DROPIN = "/etc/default/grub.d/zzz-firsttouch.cfg"
_PLACES = {
    "grub.default": "/etc/default/grub",
    "grub.d": "/etc/default/grub.d",
    "grubenv": "/boot/grub2/grubenv",
    "loader": "/boot/loader",
    "os-release": "/etc/os-release",
    "cmdline": "/proc/cmdline",
}


def lay_out(case: str, root: Path) -> Path:
    """The input files of CASE in their places below ROOT; return ROOT."""
    for name, place in _PLACES.items():
        source, target = CASES / case / name, root / place.lstrip("/")
        if source.is_dir():
            shutil.copytree(source, target)
        elif source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    return root


def tree(name: str, root: Path) -> Path:
    """A copy of the recorded tree NAME as ROOT."""
    shutil.copytree(TREES / name, root, dirs_exist_ok=True, symlinks=True)
    return root


def request_of(case: str) -> dict[str, Any]:
    """The parsed request.yml of CASE."""
    parsed: dict[str, Any] = yaml.safe_load((CASES / case / "request.yml").read_text())
    return parsed


def info(root: Path, **args: Any) -> dict[str, Any]:
    """What kernel_cmdline_info says of ROOT."""
    return run_module("kernel_cmdline_info", {"sysroot": str(root), **args})


def change(root: Path, check: bool = False, **args: Any) -> dict[str, Any]:
    """What kernel_cmdline does to ROOT; the tokens of the cases unless others are given."""
    given = {"sysroot": str(root), "tokens": WANT, "keys": KEYS, **args}
    return run_module("kernel_cmdline", given, check=check)


def value(document: dict[str, Any], name: str) -> str | None:
    """The configured value of the variable NAME."""
    rows = [row for row in document["configured"] if row["name"] == name]
    return rows[0]["value"] if rows else None


def tokens(document: dict[str, Any], name: str) -> list[str]:
    """The configured tokens of the variable NAME."""
    rows = [row for row in document["configured"] if row["name"] == name]
    return list(rows[0]["tokens"]) if rows else []


def normal_line(document: dict[str, Any]) -> list[str]:
    """The configured tokens of a normal entry."""
    return [token["text"] for token in document["configured_line"]["tokens"]]


def hashes(root: Path) -> dict[str, str]:
    """The content of every file below ROOT."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def dash_value(root: Path, name: str) -> str | None:
    """What dash makes of the files, sourced in the order of grub-mkconfig; None without dash.

    Only for files whose text the test itself knows to be harmless.
    """
    dash = shutil.which("dash")
    if dash is None:
        return None
    files = [root / "etc/default/grub", *sorted((root / "etc/default/grub.d").glob("*.cfg"))]
    script = "".join(f". '{path}'; " for path in files if path.exists()) + f'printf %s "${name}"'
    return subprocess.run([dash, "-ec", script], env={}, capture_output=True, text=True, check=True).stdout


__all__ = [
    "DROPIN",
    "KEYS",
    "TREES",
    "WANT",
    "change",
    "dash_value",
    "hashes",
    "info",
    "lay_out",
    "normal_line",
    "put",
    "request_of",
    "tokens",
    "tree",
    "value",
]
