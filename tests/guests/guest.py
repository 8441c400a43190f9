# SPDX-License-Identifier: GPL-3.0-or-later
"""A booted test host, scripts run in it over SSH, and the runtime installed in it.

    with booted("numa", "two_node", "trixie") as guest:
        guest.install_runtime()
        guest.output("firsttouch doctor")

`firsttouch` is on the PATH of every script afterwards, and `python3` is the one that can import it.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

from testhost import hosts

from .wheels import PYTHONS, wheels_for

VENV = "/opt/firsttouch"
# The slowest step under emulation is pip's unpacking of numpy, about a minute.
LIMIT_S = 420.0


class GuestError(Exception):
    """A script in the guest failed; the text is what it said."""


class Guest:
    """One running test host."""

    def __init__(self, host: hosts.Host) -> None:
        self.host = host

    def run(
        self, script: str, limit_s: float = LIMIT_S, stdin: bytes = b""
    ) -> subprocess.CompletedProcess[str]:
        """Run SCRIPT with sh as root; any status."""
        command = f"PATH={VENV}/bin:$PATH; {script}"
        done = subprocess.run(
            hosts.ssh_argv(self.host, [command]), input=stdin, capture_output=True, timeout=limit_s
        )
        out, err = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)

    def output(self, script: str, limit_s: float = LIMIT_S) -> str:
        """What SCRIPT prints. Raises GuestError when it fails."""
        done = self.run(script, limit_s)
        if done.returncode:
            raise GuestError(f"{script}: status {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def push(self, paths: list[Path], folder: str) -> None:
        """Copy files and folders into FOLDER of the guest, each under its own name."""
        packed = BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for path in paths:
                archive.add(path, path.name)
        script = f"mkdir -p {folder} && tar -x -f - -C {folder} --no-same-owner"
        done = self.run(script, stdin=packed.getvalue())
        if done.returncode:
            raise GuestError(f"{script}: {done.stderr}")

    def install_runtime(self) -> None:
        """The runtime from this checkout in a virtual environment of the guest's Python.

        Debian keeps pip out of venv, so pip runs from its own wheel; nothing is fetched from within the guest.
        """
        folder = wheels_for(PYTHONS[self.host.release])
        self.push(sorted(folder.glob("*.whl")), "/var/tmp/wheels")
        self.output(
            f"/usr/bin/python3 -m venv --without-pip {VENV} && "
            f"{VENV}/bin/python3 $(echo /var/tmp/wheels/pip-*.whl)/pip install --quiet --no-index --no-compile "
            f"--find-links /var/tmp/wheels 'firsttouch[weights]' && rm -r /var/tmp/wheels"
        )


@contextlib.contextmanager
def booted(name: str, topology: str, release: str) -> Iterator[Guest]:
    """Boot a host for the time of the block; it is ended also when the block fails."""
    host = hosts.up(name, topology, release, lambda text: print(text, file=sys.stderr, flush=True))
    try:
        yield Guest(host)
    finally:
        hosts.down(name)
