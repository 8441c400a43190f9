# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts whose boot loader tools are stand-ins: grub-mkconfig over the recorded grub.cfg, grubby by its manual."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible_collections.firsttouch.host.plugins.module_utils._boot_apply import change
from ansible_collections.firsttouch.host.plugins.module_utils._boot_types import Runner
from ansible_collections.firsttouch.host.plugins.module_utils._grub_default import NORMAL, read_default
from boot_cases import TREES, put, tree

Edit = Callable[[str], str]
PARAMETERS: dict[str, object] = {
    "keys": [],
    "owned": None,
    "state": "present",
    "on_conflict": "fail",
    "reserve_floor_bytes": None,
}


def debian(root: Path, name: str = "debian-13") -> Path:
    """The recorded Debian host with its tools in place (they are never run)."""
    tree(name, root)
    for tool in ("sbin/grub-mkconfig", "bin/grub-script-check"):
        path = put(root, f"/usr/{tool}", "# sources /etc/default/grub and /etc/default/grub.d/*.cfg\n")
        path.chmod(0o755)
    return root


class StandInMkconfig:
    """Runs for grub-mkconfig and grub-script-check; counts the runs. `edit` changes what is generated."""

    def __init__(self, root: Path, edit: Edit | None = None, failing: str = "") -> None:
        self.root, self.edit, self.failing = root, edit, failing
        self.runs: list[list[str]] = []

    def __call__(self, argv: list[str], environment: dict[str, str]) -> tuple[int, str, str]:
        name = os.path.basename(argv[0])
        self.runs.append([name, *argv[1:]])
        if name == self.failing:
            return 1, "", "something is wrong\n"
        if name == "grub-mkconfig":
            Path(argv[2]).write_text(self.generate())
        return 0, "", ""

    def generate(self) -> str:
        """grub.cfg as 10_linux would write it with the settings there are now."""
        grub = read_default(str(self.root))
        shared, normal = grub.text(NORMAL[0]), " ".join(grub.text(name) for name in NORMAL)
        text = (self.root / "boot/grub/grub.cfg").read_text()

        def entry(match: re.Match[str]) -> str:
            line = match.group(0)
            recovery = re.match(r"(.*? ro single(?: dis_ucode_ldr)?) ?", line)
            base = recovery.group(1) if recovery else line[: line.index(" ro ") + 3]
            return f"{base} {shared if recovery else normal}"

        text = re.sub(r"^\s*linux\s.*$", entry, text, flags=re.MULTILINE)
        return self.edit(text) if self.edit else text


class StandInGrubby:
    """Runs tests/fixtures/boot/stand_in_grubby.py for grubby."""

    def __init__(self, root: Path, age: str = "") -> None:
        self.root, self.age = root, age
        self.runs: list[list[str]] = []

    def __call__(self, argv: list[str], environment: dict[str, str]) -> tuple[int, str, str]:
        self.runs.append(argv[1:])
        script = TREES / "stand_in_grubby.py"
        names = {"STAND_IN_ROOT": str(self.root), "STAND_IN_AGE": self.age, "PATH": os.environ["PATH"]}
        done = subprocess.run(
            [sys.executable, str(script), *argv[1:]], env=names, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout, done.stderr


def rhel(root: Path) -> Path:
    """The RHEL-like host with a grubby in place (the stand-in runs for it)."""
    tree("rhel-9", root)
    put(root, "/usr/sbin/grubby", "").chmod(0o755)
    return root


def entries(root: Path) -> list[Path]:
    return sorted(root.glob("boot/**/loader/entries/*.conf"))


def el8(root: Path, options: str = "ro") -> Path:
    """The same as RHEL 8 has it: OPTIONS of all entries stand in grubenv."""
    rhel(root)
    for path in entries(root):
        rows = path.read_text().splitlines()
        path.write_text("\n".join("options $kernelopts $tuned_params" if r.startswith("opt") else r for r in rows))
    block = root / "boot/grub2/grubenv"
    text = block.read_text().rstrip("#") + f"kernelopts=root=/dev/mapper/vg-root {options} quiet\n"
    block.write_text(text + "#" * (1024 - len(text)))
    return root


def run_live(root: Path, run: Runner | None, check: bool = False, **given: object) -> dict[str, Any]:
    """kernel_cmdline on ROOT as if it were the running host. Raises BootError."""
    from unittest import mock

    from ansible_collections.firsttouch.host.plugins.module_utils import _boot_apply, _bootloader

    def detect(path: str) -> object:
        found = _bootloader.detect(path)
        return type(found)(path, True)

    with mock.patch.object(_boot_apply, "detect", detect):
        return dict(change(str(root), {**PARAMETERS, **given}, check, run))
