# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the change set of a run, the union of every module's `changes`, beside the scenario's state."""

from __future__ import annotations

import json
import os
import typing as t
from pathlib import Path

from ansible import context
from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: change_set
type: aggregate
short_description: Record what a run changed, or would change in check mode
description:
  - Appends one JSON line for each host to C($FIRSTTOUCH_CHANGES/check.jsonl) or C(run.jsonl).
"""


class CallbackModule(CallbackBase):
    """Collect `changes` of all results, per host."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "change_set"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self, *args: t.Any, **kwargs: t.Any) -> None:
        super().__init__(*args, **kwargs)
        self.changes: dict[str, list[dict[str, t.Any]]] = {}

    def v2_runner_on_ok(self, result: t.Any) -> None:
        host = getattr(result, "host", None) or result._host
        data = getattr(result, "result", None) or result._result
        name = host.get_name()
        self.changes.setdefault(name, [])
        for item in data.get("results", [data]):
            self.changes[name] += item.get("changes", [])

    def v2_playbook_on_stats(self, stats: t.Any) -> None:
        folder = os.environ.get("FIRSTTOUCH_CHANGES")
        if not folder or not any(self.changes.values()):
            return
        Path(folder).mkdir(parents=True, exist_ok=True)
        kind = "check" if context.CLIARGS.get("check") else "run"
        with open(Path(folder) / f"{kind}.jsonl", "a", encoding="utf-8") as handle:
            handle.writelines(
                json.dumps({"host": host, "changes": changes}, sort_keys=True) + "\n"
                for host, changes in sorted(self.changes.items())
            )
