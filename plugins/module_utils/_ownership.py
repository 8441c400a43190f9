# SPDX-License-Identifier: Apache-2.0
"""What of a host is ours: which of our tokens, units and sysctls are there, and which were there before us."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from . import _files, _model_push
from ._boot_grub import GrubBackend
from ._bootloader import BootError, detect
from ._sysctl import normalize
from ._systemd import UNIT_DIR
from ._tree import Tree

DROPIN = "/etc/sysctl.d/zz-firsttouch.conf"
_BOOT_FILES = (
    "/etc/default/grub",
    "/etc/kernel/cmdline",
    "/boot/grub/grub.cfg",
    "/boot/grub/grubenv",
    "/boot/grub2/grub.cfg",
    "/boot/grub2/grubenv",
)
_BOOT_DIRS = (
    "/etc/default/grub.d",
    "/boot/loader/entries",
    "/boot/efi/loader/entries",
    "/efi/loader/entries",
)


def foreign_tokens(root: str) -> frozenset[str]:
    """The boot arguments that somebody else has configured below ROOT; none where that cannot be told.

    kernel_cmdline refuses to work on what cannot be told, so nothing is lost then.
    """
    try:
        backend = detect(root)
        tokens = list(backend.configured_line() or ())
        # The entries of GrubBackend are made of what is configured, ours included.
        if not isinstance(backend, GrubBackend):
            tokens += [token for entry in backend.entries() for token in entry.tokens]
    except (BootError, OSError):
        return frozenset()
    return frozenset(token.text for token in tokens if not token.ours)


def with_foreign(owned: Mapping[str, Any], sections: Mapping[str, Any], root: str) -> dict[str, Any]:
    """OWNED with those tokens of SECTIONS marked `foreign` that were there before they were ours.

    They are not taken away with ours.
    """
    fresh: dict[str, list[str]] = {}
    for name, section in sections.items():
        row = owned.get(name) or {}
        known = {*(row.get("tokens") or ()), *(row.get("foreign") or ())}
        fresh[name] = [token for token in (section or {}).get("tokens") or () if token not in known]
    if not any(fresh.values()):
        return dict(owned)
    there = foreign_tokens(root)
    result = {name: dict(row) for name, row in owned.items()}
    for name, tokens in fresh.items():
        found = [token for token in tokens if token in there]
        if found:
            row = result.setdefault(name, {})
            row["foreign"] = [*(row.get("foreign") or ()), *found]
    return result


def still_there(owned: Mapping[str, Any], root: str) -> dict[str, Any]:
    """OWNED without what the host does not have any more; where that cannot be told, nothing is dropped."""
    tree = Tree(root)
    paths = [*_BOOT_FILES, *(f"{base}/{name}" for base in _BOOT_DIRS for name in tree.names(base))]
    texts = [text for text in map(tree.text, paths) if text is not None]
    everything = "\n".join([*texts, tree.text("/proc/cmdline") or ""])
    dropin = tree.text(DROPIN) or ""
    if tree.trouble:
        return dict(owned)
    return {
        name: {
            "tokens": [token for token in row.get("tokens") or () if not texts or token in everything],
            "foreign": [token for token in row.get("foreign") or () if not texts or token in everything],
            "units": [unit for unit in row.get("units") or () if _exists(root, f"{UNIT_DIR}/{unit}")],
            "sysctls": [key for key in row.get("sysctls") or () if key in dropin or normalize(key) in dropin],
            **({"pushed": _pushed(row["pushed"], root)} if row.get("pushed") else {}),
        }
        for name, row in owned.items()
    }


def _pushed(names: Iterable[str], root: str) -> list[str]:
    return [name for name in names if any(_exists(root, path) for path in _model_push.parts(name))]


def _exists(root: str, path: str) -> bool:
    try:
        return os.path.lexists(_files.resolve(root, path))
    except OSError:
        return True
