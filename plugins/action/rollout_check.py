# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import re
import typing as t

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.action import ActionBase
from ansible.utils.vars import load_extra_vars
from ansible_collections.firsttouch.host.plugins.plugin_utils import _beside
from ansible_collections.firsttouch.host.plugins.plugin_utils._variables import sentence, unknown

MOMENTS = ("before", "after", "failed")
# What a play has and no task.
_PLAYS = {"hosts", "import_playbook", "ansible.builtin.import_playbook"}


def resolve_hook(moment: str, path: str, inventory_dirs: list[str], loader: DataLoader) -> str:
    """Return the absolute path of the task file PATH, looked for beside the inventory when it is relative.

    Raises AnsibleActionFail with the variable, the value and the places looked at.
    """
    if not path:
        return ""
    variable = f"firsttouch_hook_{moment}"
    places = _beside.candidates(path, inventory_dirs)
    found = next((place for place in places if os.path.isfile(place)), None)
    if found is None:
        raise AnsibleActionFail(f"{variable}: {path!r} is not a file; looked for {_beside.told(places)}")
    try:
        tasks = loader.load_from_file(found)
    except AnsibleError as exc:
        raise AnsibleActionFail(f"{variable}: {found} cannot be read as YAML: {exc}") from exc
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise AnsibleActionFail(f"{variable}: {found} is not a list of tasks")
    if any(_PLAYS & set(task) for task in tasks):
        raise AnsibleActionFail(f"{variable}: {found} is a playbook; give a file with its tasks alone")
    return os.path.abspath(found)


def check_serial(value: t.Any) -> None:
    """Raise AnsibleActionFail unless VALUE of firsttouch_serial is a batch size, or a list of them.

    Ansible takes a size below 1 for all hosts at once. A template is left to Ansible.
    """
    for size in value if isinstance(value, list) and value else [value]:
        text = str(size).strip()
        if "{{" in text:
            continue
        match = re.fullmatch(r"([0-9]{1,9})(%?)", text)
        least, most = (1, 100) if match and match[2] else (1, 10**9)
        if isinstance(size, bool) or match is None or not least <= int(match[1]) <= most:
            raise AnsibleActionFail(
                f"firsttouch_serial: {size!r} is no batch size. Give a number of hosts from 1 on, a share from '1%' to "
                "'100%', or a list of these as JSON: -e '{\"firsttouch_serial\": [1, \"10%\", \"25%\"]}'. "
                "Nothing was changed yet."
            )


def refuse_unknown(given: t.Mapping[str, t.Collection[str]]) -> None:
    """Raise AnsibleActionFail when a host has a variable that nothing reads; GIVEN has their names by host."""
    wrong: dict[str, str] = {}
    hosts = []
    for host, names in given.items():
        found = unknown(names)
        wrong.update(found)
        hosts += [host] if found else []
    if wrong:
        more = f" and {len(hosts) - 5} more" if len(hosts) > 5 else ""
        raise AnsibleActionFail(
            f"{sentence(wrong)}. Set for {', '.join(hosts[:5])}{more}. Rename or remove it; nothing was changed yet."
        )


def hook_paths(
    moment: str, here: t.Any, hostvars: t.Mapping[str, t.Any], given: t.Mapping[str, t.Collection[str]]
) -> list[str]:
    """The paths of the hook of MOMENT that hosts have, and HERE, that of the task; "" for none.

    GIVEN has the names of the variables by host. Raises AnsibleActionFail where a value cannot be told.
    """
    name = f"firsttouch_hook_{moment}"
    found = {"", str(here or "")}
    for host in [host for host, names in given.items() if name in names]:
        try:
            found.add(str(hostvars[host][name] or ""))
        except AnsibleError as exc:
            raise AnsibleActionFail(f"{name} of {host}: {exc}") from exc
    return sorted(found)


class ActionModule(ActionBase):
    """Controller side of rollout_check."""

    _requires_connection = False
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        hooks = self._task.args.get("hooks") or {}
        unknown = sorted(set(hooks) - set(MOMENTS))
        if unknown:
            raise AnsibleActionFail(f"hooks: unknown {', '.join(unknown)}; known are {', '.join(MOMENTS)}")
        groups = task_vars.get("groups") or {"all": True}
        # The controller itself may be named without an inventory.
        if not groups.get("all") and task_vars.get("firsttouch_hosts") not in ("localhost", "127.0.0.1"):
            raise AnsibleActionFail("the inventory has no hosts; give one with -i")
        extra = load_extra_vars(self._loader)
        hostvars = task_vars.get("hostvars", {})
        given = {str(name): set(hostvars[name]) for name in task_vars.get("ansible_play_hosts_all", [])}
        refuse_unknown(given)
        if "firsttouch_serial" in extra:
            check_serial(extra["firsttouch_serial"])
        else:
            setters = [name for name, names in given.items() if "firsttouch_serial" in names]
            if setters:
                raise AnsibleActionFail(
                    f"firsttouch_serial is set in the inventory (of {', '.join(setters[:5])}), where it has no effect: "
                    "batch sizes are read before any host variable exists. Remove it there and pass "
                    "-e firsttouch_serial=... instead."
                )
        dirs = _beside.inventory_dirs(task_vars)
        # By the path as given: each host looks its own up, the task that runs once has the first host's alone.
        result["hooks"] = {
            moment: {
                path: resolve_hook(moment, path, dirs, self._loader)
                for path in hook_paths(moment, hooks.get(moment), hostvars, given)
            }
            for moment in MOMENTS
        }
        result["changed"] = False
        return result
