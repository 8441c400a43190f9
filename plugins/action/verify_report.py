# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import datetime as dt
import json
import os
import tempfile
import typing as t

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible.utils.path import unfrackpath
from ansible_collections.firsttouch.host.plugins.action.host_verify import concerns_of, keep
from ansible_collections.firsttouch.host.plugins.plugin_utils._verify_html import html
from ansible_collections.firsttouch.host.plugins.plugin_utils._verify_junit import junit
from ansible_collections.firsttouch.host.plugins.plugin_utils._verify_record import (
    FAIL_ON,
    clean,
    failure_text,
    record,
    write,
)
from ansible_collections.firsttouch.host.plugins.plugin_utils._verify_report import report

RESULT = "__firsttouch_verified"
FOLDER = "firsttouch-report"
NAMES = ("report.json", "report.junit.xml", "report.html")


class ActionModule(ActionBase):
    """Controller side of verify_report: it has no other."""

    _requires_connection = False
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        fail_on = [str(status) for status in self._task.args.get("fail_on") or ["fail", "not_evaluated"]]
        unknown = sorted(set(fail_on) - set(FAIL_ON))
        if unknown:
            names = f"{', '.join(unknown)}; known are {', '.join(FAIL_ON)}"
            raise AnsibleActionFail(f"firsttouch_verify_fail_on: unknown {names}")
        sources = [str(source) for source in task_vars.get("ansible_inventory_sources") or []]
        folder = report_dir(str(self._task.args.get("report_dir") or ""), sources)
        if self._task.args.get("state") == "prepared":
            if not (task_vars.get("groups") or {}).get("all"):
                raise AnsibleActionFail("the inventory has no hosts, so that there is nothing to verify")
            lost = unparsed(task_vars, sources)
            if lost:
                raise AnsibleActionFail(
                    f"inventory: {', '.join(lost)} could not be parsed, so that hosts of it would be missed without a "
                    "word; mend it, the warnings above say where"
                )
            concerns_of(task_vars)
            prepare(folder)
            return {**result, "changed": False, "report_dir": folder}
        document = report(
            list(records(task_vars, folder)),
            fail_on,
            written=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
            inventory=[source if "," in source else os.path.abspath(source) for source in sources],
        )
        paths = write_all(folder, document, fail_on)
        Display().display("\n".join(closing(document, paths)))
        failed = {host["name"]: reason_of(host) for host in document["hosts"] if host["failed"]}
        dark = {
            host["name"]: clean(host["message"], 400)
            for host in document["hosts"]
            if host["state"] == "unreachable"
        }
        return {
            **result,
            "changed": False,
            "report_dir": folder,
            "outcome": document["outcome"],
            "summary": document["summary"],
            "failed_hosts": failed,
            "unreachable_hosts": dark,
        }


def report_dir(asked: str, sources: t.Sequence[str]) -> str:
    """The absolute directory of the reports: what was ASKED for, else beside the first inventory that is a file."""
    if asked:
        return os.path.abspath(os.path.expanduser(asked))
    for source in sources:
        if os.path.exists(source):
            base = source if os.path.isdir(source) else os.path.dirname(os.path.abspath(source))
            return os.path.abspath(os.path.join(base, FOLDER))
    return os.path.abspath(FOLDER)


def unparsed(task_vars: t.Mapping[str, t.Any], sources: t.Sequence[str]) -> list[str]:
    """The inventory SOURCES that Ansible gave up, maybe half way: it warns and goes on with the hosts it has so far.

    Directories are left out. Empty where this ansible-core does not tell which sources it took.
    """
    data = getattr(getattr(task_vars.get("hostvars"), "_inventory", None), "_inventory", None)
    taken = getattr(data, "processed_sources", None)
    if not isinstance(taken, list):
        return []
    names = [source if "," in source else unfrackpath(source, follow=False) for source in sources if source]
    return [name for name in names if name not in taken and os.path.exists(name) and not os.path.isdir(name)]


def prepare(folder: str) -> None:
    """Make FOLDER, and see that files can be written there, before the first host is asked anything."""
    try:
        os.makedirs(os.path.join(folder, "hosts"), exist_ok=True)
        with tempfile.TemporaryFile(dir=os.path.join(folder, "hosts")):
            pass
    except OSError as exc:
        raise AnsibleActionFail(
            f"firsttouch_report_dir: {folder} cannot be written on the controller: {exc}; name another directory"
        ) from exc


def records(task_vars: t.Mapping[str, t.Any], folder: str) -> t.Iterator[dict[str, t.Any]]:
    """The record of every host of the play, in its order; what left none counts as an error.

    That one is written below FOLDER: the record of an earlier run, maybe of a host as planned, must not pass for it.
    """
    hostvars = task_vars["hostvars"]
    for name in task_vars["ansible_play_hosts_all"]:
        returned = hostvars[name].get(RESULT)
        result = dict(returned) if isinstance(returned, t.Mapping) else {"msg": "the host was not asked"}
        try:
            with open(result["file"], encoding="utf-8") as handle:
                yield json.load(handle)
        except KeyError:
            yield _kept(record(str(name), result, finished="", seconds=0.0), folder)
        except (OSError, ValueError) as exc:
            problem = {"msg": f"its answers cannot be read again: {failure_text({'msg': exc})}"}
            yield _kept(record(str(name), problem, finished="", seconds=0.0), folder)


def _kept(entry: dict[str, t.Any], folder: str) -> dict[str, t.Any]:
    keep(folder, entry)
    return entry


def write_all(folder: str, document: dict[str, t.Any], fail_on: t.Collection[str]) -> list[str]:
    """Write the three reports; a path for each."""
    texts = (
        json.dumps(document, ensure_ascii=True, indent=1) + "\n",
        junit(document, fail_on),
        html(document, fail_on),
    )
    paths = [os.path.join(folder, name) for name in NAMES]
    try:
        for path, text in zip(paths, texts):
            write(path, text)
    except OSError as exc:
        raise AnsibleActionFail(f"firsttouch_report_dir: {folder} cannot be written: {exc}") from exc
    return paths


def reason_of(host: t.Mapping[str, t.Any]) -> str:
    """Why a host counts as failed, in one line."""
    if host["state"] == "error":
        return clean(host["message"], 400)
    if not host["failures"]:
        return "nothing was asked for that could be confirmed"
    what = "could not be evaluated" if host["state"] == "incomplete" else "not as planned"
    return f"{host['failures']} check(s) {what}; see above and the report"


def closing(document: t.Mapping[str, t.Any], paths: t.Sequence[str]) -> list[str]:
    """The last lines of a run: how many hosts are how, what that means, where the reports are."""
    summary = document["summary"]
    counts = ", ".join(
        f"{summary[state]} {state}"
        for state in ("pass", "incomplete", "fail", "error", "unreachable")
        if summary[state]
    )
    verdict = {
        "pass": "no check failed",
        "failed": f"{summary['failed']} failed",
        "unreachable": "no check failed on the hosts that could be reached",
        "failed_and_unreachable": f"{summary['failed']} failed, {summary['unreachable']} unreachable",
    }[document["outcome"]]
    if summary["unreachable"] == summary["hosts"]:
        verdict = "no host could be reached, and nothing was verified"
    lines = [f"Verified {summary['hosts']} host{'' if summary['hosts'] == 1 else 's'}: {counts}. Outcome: {verdict}."]
    if summary["incomplete"]:
        lines.append("Incomplete is not as planned: something that the plan asks for could not be looked at.")
    return [*lines, *(f"  {path}" for path in paths)]
