# SPDX-License-Identifier: GPL-3.0-or-later
"""Set up what a make target needs: Debian packages and the virtual environment .venv.

Runs on the system's Python with nothing but the standard library. What is there already is left alone, so that
a second run takes no time.
"""

from __future__ import annotations

import argparse
import glob
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
REQUIREMENTS = ROOT / "tests" / "requirements.txt"
STAMP = VENV / ".firsttouch-requirements"
PEERS = ROOT / "bench" / "peers" / "requirements.txt"
PEERS_STAMP = VENV / ".firsttouch-peers"
OLDEST_PYTHON = (3, 11)
OS_RELEASE = Path("/etc/os-release")
# Programs that Debian keeps out of a user's PATH.
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"


class Need(NamedTuple):
    """Something that must exist, and the Debian package that brings it."""

    what: str
    package: str


# A program, or with a slash in it the pattern of a file.
TESTHOST = (
    Need("qemu-system-x86_64", "qemu-system-x86"),
    Need("qemu-img", "qemu-utils"),
    Need("mmdebstrap", "mmdebstrap"),
    Need("mke2fs", "e2fsprogs"),
    Need("sfdisk", "fdisk"),
    Need("/usr/share/OVMF/OVMF_VARS_4M.fd", "ovmf"),
    Need("busybox", "busybox-static"),
    Need("ssh", "openssh-client"),
    Need("ssh-keygen", "openssh-client"),
    Need("setpriv", "util-linux"),
    Need("/usr/share/keyrings/debian-archive-keyring.*", "debian-archive-keyring"),
)
# The browser that opens the HTML report.
BROWSER = (Need("chromium", "chromium"), Need("chromedriver", "chromium-driver"))
# What single tests ask for the truth, and are left out without.
TESTS = (
    Need("cpio", "cpio"),
    Need("grub-editenv", "grub-common"),
    Need("objdump", "binutils"),
    Need("openssl", "openssl"),
    Need("systemd-analyze", "systemd"),
    Need("/usr/include/linux/mempolicy.h", "linux-libc-dev"),
)
# What the benchmarks compare with, beside the packages of peers.
BENCH = (
    Need("fio", "fio"),
    Need("gcc", "gcc"),
    Need("/usr/include/stdio.h", "libc6-dev"),
)
# mmdebstrap and the unpacking of an image work in a user namespace where they are not run as root.
TESTHOST_USER = (Need("newuidmap", "uidmap"),)


class SetupError(Exception):
    """Set-up cannot go on; the text says what is missing and what to do."""


def say(text: str) -> None:
    """Print a step of the set-up."""
    print(f"-- set-up: {text}", flush=True)


def run(argv: list[str], what: str) -> None:
    """Run a set-up step with its output on this terminal."""
    status = subprocess.run(argv, stdin=subprocess.DEVNULL, check=False).returncode
    if status:
        raise SetupError(f"{what} failed: `{' '.join(argv)}` ended with status {status}")


def present(need: Need) -> bool:
    """Whether NEED is there already, from whatever source."""
    if "/" in need.what:
        return bool(glob.glob(need.what))
    return shutil.which(need.what, path=f"{os.environ.get('PATH', os.defpath)}:{SBIN}") is not None


def python_needs() -> list[Need]:
    """What Debian splits off the interpreter that this program runs on."""
    probe = [sys.executable, "-c", "import ensurepip, venv"]
    if subprocess.run(probe, check=False, capture_output=True).returncode == 0:
        return []
    return [Need("the Python modules venv and ensurepip", "python3-venv")]


def as_root() -> list[str]:
    """The prefix that runs a command as root."""
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo"):
        return ["sudo", "env", "DEBIAN_FRONTEND=noninteractive"]
    raise SetupError("not root, and there is no sudo")


def browser_needs() -> tuple[Need, ...]:
    """Debian's Chromium. Elsewhere nothing: Ubuntu's is a stub for a snap, and the stage says that it was not run."""
    try:
        release = OS_RELEASE.read_text()
    except OSError:
        release = ""
    if "ID=debian" in release.splitlines():
        return BROWSER
    if not all(present(need) for need in BROWSER):
        say("no Debian: tests of the HTML report need a chromium and a chromedriver that you install")
    return ()


def system_packages(needs: list[Need]) -> None:
    """Install the Debian packages of what is missing, or say what is missing where there is no apt-get."""
    missing = python_needs() + [need for need in needs if not present(need)]
    if not missing:
        return
    listed = "\n".join(f"  {need.what}  (Debian package {need.package})" for need in missing)
    packages = sorted({need.package for need in missing})
    if not shutil.which("apt-get"):
        raise SetupError(
            f"this is no Debian or Ubuntu; please install, by your system's own means:\n{listed}"
        )
    try:
        prefix = as_root()
    except SetupError as error:
        command = f"apt-get install --no-install-recommends {' '.join(packages)}"
        raise SetupError(f"{error}; as root, run: {command}\nmissing:\n{listed}") from None
    say(f"installing Debian packages: {' '.join(packages)}")
    os.environ.setdefault("DEBIAN_FRONTEND", "noninteractive")
    run([*prefix, "apt-get", "-q", "update"], "reading the package lists")
    run([*prefix, "apt-get", "-q", "-y", "install", "--no-install-recommends", *packages], "apt-get install")
    still = [need for need in needs if not present(need)]
    if still:
        names = ", ".join(f"{need.what} (of {need.package})" for need in still)
        raise SetupError(f"still missing after the installation: {names}")


def venv_stamp() -> str:
    """Changes whenever .venv has to be brought up to date."""
    version = ".".join(map(str, sys.version_info[:2]))
    return f"python {version}, requirements {hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:16]}\n"


def virtual_environment() -> None:
    """Create .venv with this interpreter, and install the requirements unless the stamp says they are there."""
    stamp = venv_stamp()
    if STAMP.exists() and STAMP.read_text() == stamp:
        return
    version = ".".join(map(str, sys.version_info[:2]))
    python = VENV / "bin" / "python"
    if python.exists() and not list(VENV.glob(f"lib/python{version}")):
        say(f".venv is of another Python; making it again with Python {version}")
        shutil.rmtree(VENV)
    if not python.exists():
        say(f"creating .venv with Python {version}")
        run([sys.executable, "-m", "venv", str(VENV)], "creating .venv")
    say("installing ansible-core and the test tools into .venv (1 to 2 minutes)")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, "--requirement", str(REQUIREMENTS)], "pip")
    STAMP.write_text(stamp)


def benchmark_peers() -> None:
    """Install what the benchmarks compare with into .venv, each by itself: one that cannot be had is left out."""
    stamp = venv_stamp() + hashlib.sha256(PEERS.read_bytes()).hexdigest()
    if PEERS_STAMP.exists() and PEERS_STAMP.read_text() == stamp:
        return
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for line in PEERS.read_text().splitlines():
        if line and not line.startswith("#"):
            say(f"installing {line} into .venv, to compare with")
            if subprocess.run([*pip, line], stdin=subprocess.DEVNULL, check=False).returncode:
                say(f"{line} cannot be installed here; the benchmark goes without it")
    PEERS_STAMP.write_text(stamp)


def main() -> int:
    """Set up for the groups of needs that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--testhost", action="store_true", help="what boots test hosts is needed too")
    parser.add_argument("--browser", action="store_true", help="a browser is needed too")
    parser.add_argument("--tests", action="store_true", help="what single tests use is needed too")
    parser.add_argument("--bench", action="store_true", help="what the benchmarks compare with, as far as it installs")
    options = parser.parse_args()
    if sys.version_info < OLDEST_PYTHON:
        raise SetupError(
            f"{sys.executable} is Python {sys.version.split()[0]}; ansible-core 2.19 needs 3.11 or newer "
            "(Debian 12, Ubuntu 24.04). Name another one: make PYTHON=/path/to/python3"
        )
    needs: list[Need] = []
    if options.testhost:
        needs += [*TESTHOST, *(TESTHOST_USER if os.geteuid() else ())]
    if options.browser:
        needs += browser_needs()
    if options.tests:
        needs += TESTS
    if options.bench:
        needs += BENCH
    system_packages(needs)
    virtual_environment()
    if options.bench:
        benchmark_peers()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SetupError as error:
        print(f"set-up: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
