# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """Controller side of verify_outcome: it has no other."""

    _requires_connection = False
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        unreachable, failed = self._task.args.get("unreachable"), self._task.args.get("failed")
        if unreachable:
            return {**result, "unreachable": True, "msg": str(unreachable)}
        if failed:
            return {**result, "failed": True, "msg": str(failed)}
        return {**result, "changed": False}
