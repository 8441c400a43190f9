# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import datetime as dt
import json
import os
import time
import typing as t

from ansible import constants
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.firsttouch.host.plugins.module_utils._checks import CONCERNS
from ansible_collections.firsttouch.host.plugins.module_utils._intent import (
    GENERAL,
    PREFIX,
    SECTIONS,
    asks,
    variables,
)
from ansible_collections.firsttouch.host.plugins.module_utils._verdict import Result
from ansible_collections.firsttouch.host.plugins.plugin_utils._variables import sentence, unknown
from ansible_collections.firsttouch.host.plugins.plugin_utils._verify_record import (
    file_name,
    lines,
    record,
    write,
)

# Words of --tags and --skip-tags that name no concern.
_GENERAL_TAGS = frozenset(("all", "always", "tagged", "untagged", "never"))
_COLORS = {"pass": "COLOR_OK", "incomplete": "COLOR_WARN", "unreachable": "COLOR_UNREACHABLE"}


class ActionModule(ActionBase):
    """Controller side of host_verify.

    Without `report_dir` it runs the module and nothing else. With it, the answers go to a file and, shortened,
    to the terminal, and no fault of the host fails the task.
    """

    TRANSFERS_FILES = False
    _supports_async = True

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        super().run(tmp, task_vars)
        task_vars = task_vars or {}
        args = dict(self._task.args)
        target = args.pop("report_dir", None)
        if not target:
            wrap = self._task.async_val and not self._connection.has_native_async
            return self._execute_module(module_args=args, task_vars=task_vars, wrap_async=wrap)
        if self._task.async_val:
            raise AnsibleActionFail("report_dir: cannot be had with async")
        return self._reported(os.path.abspath(os.path.expanduser(str(target))), args, task_vars)

    def _reported(
        self, target: str, args: dict[str, t.Any], task_vars: dict[str, t.Any]
    ) -> dict[str, t.Any]:
        """Verify the host, keep and show the answers, and return what the report needs of them."""
        host, began, origin = task_vars["inventory_hostname"], time.monotonic(), ""
        try:
            if not args.get("concerns"):
                args["concerns"] = concerns_of(task_vars)
            origin = self._choose_plan(args, task_vars)
            result = self._execute_module(module_args=args, task_vars=task_vars)
            note_unknown(result, task_vars)
        except AnsibleConnectionFailure as exc:
            result = {"unreachable": True, "msg": str(exc)}
        except AnsibleError as exc:
            result = {"failed": True, "msg": str(exc)}
        entry = record(
            host,
            result,
            finished=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
            seconds=time.monotonic() - began,
            origin=origin,
            concerns=args.get("concerns") or (),
        )
        path = keep(target, entry)
        show(entry, list(args.get("fail_on") or ()))
        return {"changed": False, "state": entry["state"], "file": path}

    def _choose_plan(self, args: dict[str, t.Any], task_vars: dict[str, t.Any]) -> str:
        """Put the intent of the inventory into ARGS when there is one; return where the plan comes from."""
        if args.get("plan") is not None:
            return "plan"
        if args.get("intent") is None:
            intent = intent_of(task_vars, self._templar.template)
            if intent is None:
                return "plan.json"
            args["intent"] = intent
        return "variables"


def keep(folder: str, entry: dict[str, t.Any]) -> str:
    """Write ENTRY, the record of a host, below the report directory FOLDER; return its path."""
    path = os.path.join(folder, "hosts", file_name(entry["host"]))
    try:
        write(path, json.dumps(entry, ensure_ascii=True, separators=(",", ":")) + "\n")
    except OSError as exc:
        raise AnsibleActionFail(f"firsttouch_report_dir: {path} cannot be written: {exc}") from exc
    return path


def note_unknown(result: dict[str, t.Any], names: t.Iterable[str]) -> None:
    """Add to the answers in RESULT that a variable of NAMES is none of ours, whatever concerns were chosen.

    Somebody asked for something by it that nobody did and no check looks at, so the host is not as asked for.
    """
    wrong = unknown(names)
    if not wrong or not isinstance(result.get("results"), list):
        return
    row = Result(
        "plan.variables",
        "fail",
        "configured",
        [right for right in wrong.values() if right] or None,
        list(wrong),
        "unknown_variable",
        "the inventory",
        f"{sentence(wrong)}. Rename or remove it in the inventory, then run provision.",
    )
    result["results"] = [*result["results"], row.as_dict()]
    result["verdict"] = "fail"


def intent_of(task_vars: t.Mapping[str, t.Any], template: t.Callable[[t.Any], t.Any]) -> dict[str, t.Any] | None:
    """The firsttouch_* values of a host without their prefix; None where no variable that asks for something is set."""
    names = [*(name for section in SECTIONS for name in variables(section)), *GENERAL]
    raw = {name: task_vars[PREFIX + name] for name in names if PREFIX + name in task_vars}
    values = {name: template(value) for name, value in raw.items()}
    values = {name: value for name, value in values.items() if value is not None}
    return values if asks(values) else None


def concerns_of(task_vars: t.Mapping[str, t.Any]) -> list[str]:
    """The concerns that --tags and --skip-tags leave; empty for all of them.

    Raises AnsibleActionFail for a tag that is no concern, since a misspelt one would check less than was asked.
    """
    wanted = [tag for tag in task_vars.get("ansible_run_tags") or () if tag not in _GENERAL_TAGS]
    skipped = [tag for tag in task_vars.get("ansible_skip_tags") or () if tag not in _GENERAL_TAGS]
    unknown = [tag for tag in (*wanted, *skipped) if tag not in CONCERNS]
    if unknown:
        raise AnsibleActionFail(f"--tags: no concern {', '.join(unknown)}; there are {', '.join(CONCERNS)}")
    chosen = [name for name in CONCERNS if (not wanted or name in wanted) and name not in skipped]
    if not chosen:
        raise AnsibleActionFail("--skip-tags: no concern is left to look at")
    return [] if len(chosen) == len(CONCERNS) else chosen


def show(entry: dict[str, t.Any], fail_on: list[str]) -> None:
    """Print a record; one call, so that the lines of hosts never mix."""
    display = Display()
    color = getattr(constants, _COLORS.get(entry["state"], "COLOR_ERROR"))
    text = "\n".join(lines(entry, fail_on, warnings=display.verbosity > 0))
    display.display(text, color=color)
