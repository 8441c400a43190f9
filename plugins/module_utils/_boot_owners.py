# SPDX-License-Identifier: Apache-2.0
"""Whose a boot argument is, by the file that it stands in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ._files import read_text
from ._sysctl_foreign import tuned_section

_TUNED_LINES = "/etc/tuned/bootcmdline"
_HEAD_LINES = 12
OURS = "firsttouch.host"
_OUR_FILE = "zzz-firsttouch.cfg"
# What a file is named, and what its first lines say, by who makes it.
_BY_NAME = (
    (re.compile(r"cloud"), "cloud image"),
    (re.compile(r"tuned"), "tuned"),
    (re.compile(r"kdump|crash"), "kdump"),
    (re.compile(r"xen"), "Xen"),
    (re.compile(r"proxmox|pve"), "Proxmox"),
)
_BY_HEAD = (
    (re.compile(r"firsttouch", re.IGNORECASE), OURS),
    (re.compile(r"system_role:(\w+)"), "linux-system-roles {0}"),
    (re.compile(r"ansible managed(?::\s*(\S+))?", re.IGNORECASE), "another role {0}"),
    (re.compile(r"managed by (puppet|chef|salt|cfengine|debops)", re.IGNORECASE), "{0}"),
    (re.compile(r"cloud-init|cloud-images|cloudimg", re.IGNORECASE), "cloud image"),
)


@dataclass(frozen=True)
class TunedArgument:
    """An argument that the active tuned profile adds to the command line, and where it says so."""

    text: str
    file: str
    line: int


def owner_of(root: str, path: str) -> str:
    """Who writes PATH, in a few words: by its name, else by its first lines. Raises OSError."""
    name = path.rpartition("/")[2]
    if not path:
        return "unknown"
    if name == _OUR_FILE:
        return OURS
    if path == "/proc/cmdline":
        return "unknown"
    for pattern, owner in _BY_NAME:
        if pattern.search(name):
            return owner
    head = "\n".join((read_text(root, path) or "").splitlines()[:_HEAD_LINES])
    for pattern, owner in _BY_HEAD:
        match = pattern.search(head)
        if match:
            return owner.format(*(group or "" for group in match.groups())).strip()
    return "the host's own settings" if path in ("/etc/default/grub", "/etc/kernel/cmdline") else "unknown"


def tuned_arguments(root: str) -> list[TunedArgument]:
    """What tuned adds: what it last wrote, and the active profile's [bootloader] cmdline* values.

    A value with a variable (`${isolated_cores}`) is kept as it is written. Raises OSError.
    """
    return [*_written(root), *_profile(root)]


def _written(root: str) -> Iterator[TunedArgument]:
    for number, line in enumerate((read_text(root, _TUNED_LINES) or "").splitlines(), 1):
        match = re.fullmatch(r"\s*TUNED_BOOT_CMDLINE=(.*)", line)
        if match:
            for text in match.group(1).strip().strip("\"'").split():
                yield TunedArgument(text, _TUNED_LINES, number)


def _profile(root: str) -> Iterator[TunedArgument]:
    for name, value, path, number in tuned_section(root, "bootloader"):
        if name.startswith("cmdline"):
            for text in value.lstrip("+").strip().strip("\"'").split():
                if not text.startswith("-"):
                    yield TunedArgument(text.lstrip("+"), path, number)
