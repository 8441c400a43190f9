# SPDX-License-Identifier: GPL-3.0-or-later
"""Set up what a make target needs: Debian packages and the project's own virtual environment. Standard library only."""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
REQUIREMENTS = ROOT / "tests" / "requirements.txt"
OLDEST = (3, 11)
# Package -> a file or program whose presence makes the package unnecessary.
PACKAGES = {
    "venv": {"python3-venv": "ensurepip"},
    "testhost": {
        "qemu-system-x86": "qemu-system-x86_64",
        "qemu-utils": "qemu-img",
        "mmdebstrap": "mmdebstrap",
        "busybox-static": "/bin/busybox",
        "openssh-client": "ssh",
        "e2fsprogs": "mke2fs",
        "cpio": "cpio",
        "zstd": "zstd",
    },
}


def say(text: str) -> None:
    """Print one step."""
    print(f"setup: {text}", flush=True)


def run(command: list[str], **extra: str) -> None:
    """Run COMMAND; end with its status when it fails."""
    status = subprocess.run(command, env={**os.environ, **extra}, check=False).returncode
    if status:
        raise SystemExit(f"setup: {' '.join(command)} ended with status {status}")


def is_there(mark: str) -> bool:
    """Whether what MARK names is on this machine: a program, an absolute path, or the module ensurepip."""
    if mark == "ensurepip":
        probe = subprocess.run([sys.executable, "-c", "import ensurepip, venv"], capture_output=True, check=False)
        return probe.returncode == 0
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return os.path.exists(mark) if mark.startswith("/") else shutil.which(mark, path=path) is not None


def install_packages(missing: list[str]) -> None:
    """Install Debian packages with apt-get, through sudo when not root; name them where there is no apt-get."""
    if shutil.which("apt-get") is None:
        raise SystemExit(
            "setup: this machine has no apt-get. Install what these Debian packages hold, then run make again:\n  "
            + "\n  ".join(missing)
        )
    sudo: list[str] = []
    if os.geteuid() != 0:
        if shutil.which("sudo") is None:
            raise SystemExit(f"setup: not root and no sudo. As root: apt-get install {' '.join(missing)}")
        sudo = ["sudo"]
    say(f"installing Debian packages: {' '.join(missing)}")
    run([*sudo, "apt-get", "update", "-q"])
    run([*sudo, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "-q", "--no-install-recommends", *missing])


def make_venv() -> None:
    """Create .venv with this Python and the requirements; do nothing when both are as they were."""
    if sys.version_info < OLDEST:
        raise SystemExit(
            f"setup: {sys.executable} is Python {sys.version.split()[0]}; ansible-core 2.19 needs "
            f"{'.'.join(map(str, OLDEST))} or newer. Name another one: make PYTHON=/path/to/python3 ..."
        )
    stamp = VENV / "stamp"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    say(f"creating .venv with Python {sys.version.split()[0]} (once, some minutes)")
    run([sys.executable, "-m", "venv", "--clear", str(VENV)])
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q"]
    run([*pip, "install", "--requirement", str(REQUIREMENTS)])
    stamp.write_text(wanted)


def main() -> None:
    """Install what is missing for the parts named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=sorted(PACKAGES))
    parts = parser.parse_args().parts
    missing = [name for part in parts for name, mark in PACKAGES[part].items() if not is_there(mark)]
    if missing:
        install_packages(missing)
    if "venv" in parts:
        make_venv()


if __name__ == "__main__":
    main()
