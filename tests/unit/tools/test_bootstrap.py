# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the set-up cannot install Debian packages it says which are missing, and nothing is begun."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import bootstrap
import pytest

MISSING = (
    "  qemu-img  (Debian package qemu-utils)\n"
    "  mke2fs  (Debian package e2fsprogs)\n"
    "  ssh  (Debian package openssh-client)\n"
    "  ssh-keygen  (Debian package openssh-client)"
)
PACKAGES = ["e2fsprogs", "openssh-client", "qemu-utils"]


class Machine:
    """A machine whose only programs are those in a folder of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ran: list[list[str]] = []

    def has(self, *names: str) -> None:
        for name in names:
            path = self.folder / name
            path.touch()
            path.chmod(0o755)

    def run(self, argv: list[str], _what: str) -> None:
        self.ran.append(argv)
        if "install" in argv:
            self.has("qemu-img", "mke2fs", "ssh", "ssh-keygen")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Of what boots test hosts it lacks four programs of three packages; its user is not root."""
    made = Machine(tmp_path)
    needs = [
        need
        for need in bootstrap.TESTHOST
        if need.what in ("qemu-img", "mke2fs", "ssh", "ssh-keygen", "sfdisk")
    ]
    made.has("sfdisk")

    def begun() -> NoReturn:
        raise AssertionError("the virtual environment was begun")

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(bootstrap, "SBIN", str(tmp_path / "sbin"))
    monkeypatch.setattr(bootstrap, "TESTHOST", tuple(needs))
    monkeypatch.setattr(bootstrap, "TESTHOST_USER", ())
    monkeypatch.setattr(bootstrap, "run", made.run)
    monkeypatch.setattr(bootstrap, "virtual_environment", begun)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr("sys.argv", ["bootstrap.py", "--testhost"])
    return made


def refused() -> str:
    with pytest.raises(bootstrap.SetupError) as raised:
        bootstrap.main()
    return str(raised.value)


@pytest.mark.parametrize("programs", [[], ["sudo"]])
def test_without_apt_get(machine: Machine, programs: list[str]) -> None:
    machine.has(*programs)
    assert refused() == f"this is no Debian or Ubuntu; please install, by your system's own means:\n{MISSING}"
    assert machine.ran == []


def test_without_sudo_as_a_user(machine: Machine) -> None:
    machine.has("apt-get")
    command = f"apt-get install --no-install-recommends {' '.join(PACKAGES)}"
    assert refused() == f"not root, and there is no sudo; as root, run: {command}\nmissing:\n{MISSING}"
    assert machine.ran == []


@pytest.mark.parametrize(
    ("user", "prefix"), [(0, []), (1000, ["sudo", "env", "DEBIAN_FRONTEND=noninteractive"])]
)
def test_with_both_the_packages_are_installed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, user: int, prefix: list[str]
) -> None:
    machine.has("apt-get", *prefix[:1])
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(bootstrap, "virtual_environment", lambda: None)
    monkeypatch.setenv("DEBIAN_FRONTEND", "noninteractive")
    assert bootstrap.main() == 0
    assert machine.ran == [
        [*prefix, "apt-get", "-q", "update"],
        [*prefix, "apt-get", "-q", "-y", "install", "--no-install-recommends", *PACKAGES],
    ]


def test_what_an_installation_did_not_bring_is_named(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.has("apt-get", "sudo", "ssh", "ssh-keygen", "mke2fs")
    monkeypatch.setattr(bootstrap, "run", lambda _argv, _what: None)
    assert refused() == "still missing after the installation: qemu-img (of qemu-utils)"


def test_a_python_without_venv_is_missing_too(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    python = machine.folder / "python3"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    monkeypatch.setattr("sys.argv", ["bootstrap.py"])
    needed = "  the Python modules venv and ensurepip  (Debian package python3-venv)"
    assert refused() == f"this is no Debian or Ubuntu; please install, by your system's own means:\n{needed}"


def test_with_everything_there_nobody_is_asked(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.has("qemu-img", "mke2fs", "ssh", "ssh-keygen")
    monkeypatch.setattr(bootstrap, "virtual_environment", lambda: None)
    assert (bootstrap.main(), machine.ran) == (0, [])
