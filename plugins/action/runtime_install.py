# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import tempfile
import typing as t
from pathlib import Path

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.firsttouch.host.plugins.plugin_utils import _wheels

# The project of the runtime, which the collection brings with it.
SOURCE = Path(__file__).resolve().parents[2] / "runtime"


class ActionModule(ActionBase):
    """Controller side of runtime_install: chooses the wheels for the host's Python, and pushes those it lacks."""

    TRANSFERS_FILES = True

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        super().run(tmp, task_vars)
        args = dict(self._task.args)
        wheels_dir = _folder(args.pop("wheels_dir", None), task_vars or {})
        if args.get("state", "present") != "present":
            return self._execute_module(module_args=args, task_vars=task_vars)
        found = self._execute_module(module_args={"state": "query"}, task_vars=task_vars)
        if found.get("failed"):
            return found
        try:
            identity, wheels = self._choose(found, wheels_dir)
            args["id"] = identity
            args["wheels"] = [{"name": wheel.name, "sha256": wheel.sha256} for wheel in wheels]
            if identity in found["installed"] or self._task.check_mode:
                return self._execute_module(module_args=args, task_vars=task_vars)
            return self._push(args, wheels, task_vars)
        except _wheels.WheelError as exc:
            return {"failed": True, "msg": str(exc), "reason": exc.reason}
        except OSError as exc:
            raise AnsibleActionFail(f"{exc.filename}: {exc.strerror}") from exc
        finally:
            self._remove_tmp_path(self._connection._shell.tmpdir)

    def _choose(self, found: dict[str, t.Any], folder: Path | None) -> tuple[str, list[_wheels.Wheel]]:
        libc = found["glibc"]
        host = _wheels.Host(
            (found["python"][0], found["python"][1]), found["machine"], (libc[0], libc[1]) if libc else None
        )
        if folder is not None and not folder.is_dir():
            text = f"{_wheels.VARIABLE}: {folder} is no directory on the controller"
            raise _wheels.WheelError("wheel_missing", text)
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "firsttouch" / "wheels"
        return _wheels.wheel_set(SOURCE, host, folder, cache)

    def _push(
        self, args: dict[str, t.Any], wheels: list[_wheels.Wheel], task_vars: dict[str, t.Any] | None
    ) -> dict[str, t.Any]:
        # The one that the query has, which goes in the end; another would stay.
        remote = self._connection._shell.tmpdir or self._make_tmp_path()
        paths = []
        for wheel in wheels:
            place = self._connection._shell.join_path(remote, wheel.name)
            if wheel.path is not None:
                self._transfer_file(str(wheel.path), place)
            else:
                with tempfile.NamedTemporaryFile(prefix="firsttouch-", suffix=".whl") as local:
                    local.write(wheel.data)
                    local.flush()
                    self._transfer_file(local.name, place)
            paths.append(place)
        self._fixup_perms2([remote, *paths])
        return self._execute_module(module_args={**args, "wheels_at": remote}, task_vars=task_vars)


def _folder(given: str | None, task_vars: dict[str, t.Any]) -> Path | None:
    """The directory GIVEN, absolute or beside the inventory, as the hooks of a rollout are."""
    if not given:
        return None
    base = task_vars.get("inventory_dir") or os.getcwd()
    return Path(os.path.abspath(os.path.join(base, os.path.expanduser(given))))
