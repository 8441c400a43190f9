# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import base64
import os
import tempfile
import typing as t

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.firsttouch.host.plugins.plugin_utils._verify_record import file_name

SUFFIXES = (".tar.xz", ".tar.gz")


class ActionModule(ActionBase):
    """Controller side of host_collect: runs the module on the host and writes the archive that it returns."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        super().run(tmp, task_vars)
        result = self._execute_module(task_vars=task_vars)
        archive = result.pop("archive", None)
        compression = result.pop("compression", "xz")
        result.pop("invocation", None)
        if result.get("failed") or archive is None:
            return result
        host = str((task_vars or {}).get("inventory_hostname") or "")
        dest = target(self._task.args["dest"], self._loader.get_basedir(), compression, host)
        before = "written" if os.path.exists(dest) else None
        try:
            data = base64.b64decode(archive, validate=True)
            changed = _read(dest) != data
            if changed and not self._task.check_mode:
                write(dest, data)
        except (OSError, ValueError) as exc:
            raise AnsibleActionFail(f"dest: {dest} cannot be written on the controller: {exc}") from exc
        changes = [{"resource": f"file:{dest}", "before": before, "after": "written"}] if changed else []
        return {**result, "dest": dest, "changed": changed, "changes": changes}


def target(dest: str, basedir: str, compression: str, host: str) -> str:
    """The absolute path to write: DEST below BASEDIR unless absolute, with the suffix of its compression.

    A DEST that ends with a slash is a directory, in which each HOST has a file of its own, whatever it is called.
    """
    path = os.path.join(basedir, os.path.expanduser(dest))
    if path.endswith("/"):
        path += file_name(host).removesuffix(".json")
    else:
        for suffix in SUFFIXES:
            path = path.removesuffix(suffix)
    return os.path.abspath(f"{path}.tar.{compression}")


def write(path: str, data: bytes) -> None:
    """Replace PATH with DATA as a whole; nobody ever sees half an archive. Raises OSError."""
    directory = os.path.dirname(path)
    os.makedirs(directory, exist_ok=True)
    handle, temp = tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", dir=directory)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
        os.chmod(temp, 0o644)
        os.rename(temp, path)
    except BaseException:
        os.unlink(temp)
        raise


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as handle:
            return handle.read()
    except FileNotFoundError:
        return None
