# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.firsttouch.host.plugins.plugin_utils import _beside, _model_source

# What the controller alone needs of the answer.
_BETWEEN = ("missing", "make")


class ActionModule(ActionBase):
    """Controller side of model_push: asks the host what it lacks, sends that by file, and lets it take its place."""

    TRANSFERS_FILES = True

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        super().run(tmp, task_vars)
        try:
            return self._push(task_vars or {})
        except _model_source.SourceError as exc:
            return {"failed": True, "msg": str(exc), "reason": "bad_value"}
        except OSError as exc:
            raise AnsibleActionFail(f"{exc.filename}: {exc.strerror}") from exc
        finally:
            self._remove_tmp_path(self._connection._shell.tmpdir)

    def _push(self, task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        dirs = _beside.inventory_dirs(task_vars)
        given: dict[str, str] = self._task.args.get("models") or {}
        local = {name: _model_source.model_files(name, path, dirs) for name, path in given.items()}
        files = {
            name: [
                {"name": one.name, "bytes": one.size, "sha256": _model_source.digest(one.path)}
                for one in rows
            ]
            for name, rows in local.items()
        }
        remote = self._connection._shell.tmpdir or self._make_tmp_path()
        args = {"files": files, "absent": self._task.args.get("absent") or []}
        found = self._step(task_vars, step="plan", temporary=remote, **args)
        between = {key: found.pop(key, []) for key in _BETWEEN}
        if found.get("failed") or not found.get("changed") or self._task.check_mode:
            return found
        for row in between["missing"]:
            (source,) = [one for one in local[row["model"]] if one.name == row["name"]]
            (file,) = [one for one in files[row["model"]] if one["name"] == row["name"]]
            place = self._connection._shell.join_path(remote, "model")
            self._transfer_file(source.path, place)
            self._fixup_perms2([remote, place])
            placed = self._step(
                task_vars, step="place", arrived={"model": row["model"], "file": file, "path": place}
            )
            if placed.get("failed"):
                return placed
        done = self._step(task_vars, step="finish", make=between["make"], **args)
        return done if done.get("failed") else found

    def _step(self, task_vars: dict[str, t.Any], **args: t.Any) -> dict[str, t.Any]:
        result: dict[str, t.Any] = self._execute_module(module_args=args, task_vars=task_vars)
        return result
