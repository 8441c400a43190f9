# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The variables of the collection, and those of an inventory that look like them and are none.

Nothing reads a misspelt variable: what it asks for would neither be done nor missed by anybody.
"""

from __future__ import annotations

import difflib
import functools
import glob
import os
import re
from collections.abc import Iterable

from ansible_collections.firsttouch.host.plugins.module_utils._intent import (
    GENERAL,
    PREFIX,
    SECTIONS,
    variables,
)

ROLES = os.path.join(os.path.dirname(__file__), "..", "..", "roles")
# Those of the playbooks, which no role declares.
_PLAYBOOKS = ("collect_become", "collect_dir", "collect_scrub", "hosts", "serial")
# Every verified host has these, by the defaults of the role.
_VERIFY = ("report_dir", "verify_fail_on", "verify_layers", "verify_sysroot", "verify_timeout")
_INTENT = frozenset(PREFIX + name for section in SECTIONS for name in variables(section))
_OTHERS = frozenset(PREFIX + name for name in (*GENERAL, *_PLAYBOOKS, *_VERIFY))
_OURS = re.compile(r"first_?touch_", re.IGNORECASE)
_DECLARED = re.compile(rf"^\s*({PREFIX}\w+):", re.MULTILINE)


@functools.cache
def known() -> frozenset[str]:
    """All variables that something of the collection reads: what its roles declare, and those of its playbooks.

    Raises OSError when the collection's own files cannot be read.
    """
    found = set(_INTENT | _OTHERS)
    for part in ("defaults/main.yml", "meta/argument_specs.yml"):
        for path in glob.glob(os.path.join(glob.escape(ROLES), "*", part)):
            with open(path, encoding="utf-8") as handle:
                found.update(_DECLARED.findall(handle.read()))
    return frozenset(found)


def unknown(names: Iterable[str]) -> dict[str, str]:
    """Those of NAMES with our prefix, or nearly, that nothing reads, each with the nearest right name (or "")."""
    # Most hosts have none, and then no file is read.
    odd = sorted(name for name in names if _OURS.match(name) and name not in _INTENT and name not in _OTHERS)
    if not odd:
        return {}
    right = known()
    return {name: nearest(name, right) for name in odd if name not in right}


def nearest(name: str, right: Iterable[str]) -> str:
    """The one of RIGHT that NAME was probably meant to be; empty when none is like it."""
    words = sorted(item.removeprefix(PREFIX) for item in right)
    found = difflib.get_close_matches(_OURS.sub("", name.lower(), count=1), words, n=1, cutoff=0.6)
    return PREFIX + found[0] if found else ""


def sentence(names: dict[str, str]) -> str:
    """NAMES, an answer of unknown(), in words."""
    parts = [f"{name} (is {right} meant?)" if right else name for name, right in names.items()]
    return f"{', '.join(parts)}: no such variable, nothing reads it"
