# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleActionFail
from ansible.module_utils.common.validation import check_type_bool, check_type_dict
from ansible.plugins.action import ActionBase
from ansible_collections.firsttouch.host.plugins.plugin_utils import _beside, _model_source
from ansible_collections.firsttouch.host.plugins.plugin_utils._variables import sentence, unknown


def pushed(args: t.Mapping[str, t.Any], dirs: list[str]) -> dict[str, int]:
    """The bytes of the models that host_plan with ARGS plans to push, by name. Raises SourceError, OSError.

    What is no row of a model, no intent or no boolean the module itself refuses.
    """
    try:
        intent = check_type_dict(args.get("intent") or {})
        revert = check_type_bool(args.get("revert") or False)
    except TypeError:
        return {}
    if revert or "runtime" not in (args.get("sections") or ["runtime"]):
        return {}
    rows = intent.get("models")
    found = {}
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, t.Mapping) and isinstance(row.get("push"), str):
            name = str(row.get("name"))
            files = _model_source.model_files(name, row["push"], dirs)
            found[name] = sum(one.size for one in files if not one.name.endswith(_model_source.INDEX))
    return found


class ActionModule(ActionBase):
    """Controller side of host_plan: a host with a variable that is misspelt is not planned.

    Nor is one with a model to push that is not there: that is told before anything is written, not after the reboot.
    """

    TRANSFERS_FILES = False
    _supports_async = True

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        super().run(tmp, task_vars)
        names = unknown(task_vars or {})
        if names:
            raise AnsibleActionFail(f"{sentence(names)}. Rename or remove it; the prefix is this collection's.")
        try:
            sizes = pushed(self._task.args, _beside.inventory_dirs(task_vars or {}))
        except _model_source.SourceError as exc:
            return {"failed": True, "msg": str(exc), "reason": "bad_value"}
        except OSError as exc:
            raise AnsibleActionFail(f"firsttouch_models: {exc.filename}: {exc.strerror}") from exc
        wrap = self._task.async_val and not self._connection.has_native_async
        args = {**self._task.args, "push_bytes": sizes}
        return self._execute_module(module_args=args, task_vars=task_vars, wrap_async=wrap)
