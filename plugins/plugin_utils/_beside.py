# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a path of the controller is looked for: hooks of a rollout, models that are pushed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any


def inventory_dirs(task_vars: Mapping[str, Any]) -> list[str]:
    """The directories of the inventories, in their order."""
    sources = map(str, task_vars.get("ansible_inventory_sources") or [])
    return [
        path if os.path.isdir(path) else os.path.dirname(path) for path in sources if os.path.exists(path)
    ]


def candidates(path: str, dirs: Sequence[str]) -> list[str]:
    """Where PATH may be: there when it is absolute, else beside the inventories in DIRS."""
    return [path] if os.path.isabs(path) else [os.path.join(base, path) for base in dirs]


def told(places: Sequence[str]) -> str:
    """The PLACES that were looked at, as words."""
    return ", ".join(places) or "nothing, as the inventory has no directory"
