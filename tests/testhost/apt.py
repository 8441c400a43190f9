# SPDX-License-Identifier: GPL-3.0-or-later
"""Where this machine gets its Debian packages from."""

from __future__ import annotations

import glob
import re
import subprocess
from dataclasses import dataclass

RELEASES = ("trixie", "bookworm")
# What a Debian mirror calls its suites; an entry of another distribution in the same configuration
# must not be taken for one.
_DEBIAN_SUITES = {"stable", "oldstable", "oldoldstable", "testing", "unstable", "sid", "forky"} | {
    "buster", "bullseye", "bookworm", "trixie",
}  # fmt: skip
_COPIED_OPTIONS = re.compile(
    r"Acquire::(?:https?::(?!User-Agent).*|Check-Valid-Until|Check-Date|ForceIPv[46]|Retries)"
)
_KEYRINGS = ("/usr/share/keyrings/debian-archive-*.gpg", "/usr/share/keyrings/debian-archive-*.pgp")


@dataclass(frozen=True)
class AptSource:
    """What mmdebstrap needs to know: the mirror ("" lets it choose), apt options, keyring files."""

    mirror: str
    options: tuple[str, ...]
    keyrings: tuple[str, ...]


def pick_mirror(index_targets: str) -> str:
    """The address of the first Debian main archive in lines of ``address|codename|component``."""
    for line in index_targets.splitlines():
        address, codename, component = [*line.split("|"), "", ""][:3]
        if component == "main" and codename in _DEBIAN_SUITES and address:
            return address.rstrip("/")
    return ""


def pick_options(config_dump: str) -> tuple[str, ...]:
    """The apt settings of this machine without which it may not reach its mirror, as apt options."""
    picked = []
    for line in config_dump.splitlines():
        key, _, value = line.rstrip(";").partition(" ")
        if _COPIED_OPTIONS.fullmatch(key) and value != '""':
            picked.append(f"{key} {value};")
    return tuple(picked)


def _output(argv: list[str]) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def host_source() -> AptSource:
    """Read the configuration of the machine that this runs on."""
    targets = _output(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)|$(RELEASE)|$(COMPONENT)", "Created-By: Packages"]
    )
    keyrings = sorted(path for pattern in _KEYRINGS for path in glob.glob(pattern) if "removed" not in path)
    return AptSource(pick_mirror(targets), pick_options(_output(["apt-config", "dump"])), tuple(keyrings))
