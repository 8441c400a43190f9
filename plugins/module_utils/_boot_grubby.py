# SPDX-License-Identifier: Apache-2.0
"""Run grubby once with all tokens.

`grubby --args` drops every argument with one of the given keys and then appends in the order given; with
`--update-kernel=ALL` it also rewrites lines of /etc/default/grub with sed, and newer ones /etc/kernel/cmdline. The
caller puts right afterwards what it does besides, and reads everything back.
"""

from __future__ import annotations

import os

from ._boot_plan import BootPlan
from ._boot_types import BootError, Runner
from ._files import resolve

_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def run_grubby(root: str, plan: BootPlan, run: Runner | None) -> None:
    """Bring the entries to what PLAN says. Raises BootError."""
    tool = next(
        (
            f"{place}/grubby"
            for place in _PATH.split(":")
            if os.access(resolve(root, f"{place}/grubby"), os.X_OK)
        ),
        None,
    )
    if run is None or tool is None:
        raise BootError("tool_missing", "grubby is not installed, so the boot entries cannot be changed")
    environment = {"PATH": _PATH, "HOME": "/root", "LC_ALL": "C"}
    tool = resolve(root, tool)
    arguments = [tool, "--update-kernel=ALL"]
    gone = [token for token in plan.request.owned if token not in plan.request.tokens]
    if gone:
        arguments.append(f"--remove-args={' '.join(gone)}")
    if plan.request.tokens:
        arguments.append(f"--args={' '.join(plan.request.tokens)}")
    _status, out, err = run([tool, "--help"], environment)
    if "--no-etc-grub-update" in out + err:
        arguments.append("--no-etc-grub-update")
    status, out, err = run(arguments, environment)
    if status:
        last = " | ".join((err or out).strip().splitlines()[-5:])
        raise BootError(
            "generation_failed", f"grubby failed with status {status}; everything was put back: {last}"
        )
