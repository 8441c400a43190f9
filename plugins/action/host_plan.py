# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.firsttouch.host.plugins.plugin_utils._variables import sentence, unknown


class ActionModule(ActionBase):
    """Controller side of host_plan: a host with a variable that is misspelt is not planned."""

    TRANSFERS_FILES = False
    _supports_async = True

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        super().run(tmp, task_vars)
        names = unknown(task_vars or {})
        if names:
            raise AnsibleActionFail(f"{sentence(names)}. Rename or remove it; the prefix is this collection's.")
        wrap = self._task.async_val and not self._connection.has_native_async
        return self._execute_module(task_vars=task_vars, wrap_async=wrap)
