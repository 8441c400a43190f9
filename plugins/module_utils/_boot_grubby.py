# SPDX-License-Identifier: Apache-2.0
"""Run grubby once with all tokens.

`grubby --args` drops every argument with one of the given keys and then appends in the order given; with
`--update-kernel=ALL` it also rewrites lines of /etc/default/grub with sed, and newer ones /etc/kernel/cmdline. The
caller puts right afterwards what it does besides, and reads everything back.
"""

from __future__ import annotations

import os

from ._boot_plan import BootPlan, Request
from ._boot_types import BootError, Runner
from ._files import resolve

_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def find_grubby(root: str) -> str:
    """The real path of grubby. Raises BootError `tool_missing`."""
    for place in _PATH.split(":"):
        tool = resolve(root, f"{place}/grubby")
        if os.access(tool, os.X_OK):
            return tool
    raise BootError("tool_missing", "grubby is not installed, so the boot entries cannot be changed; install it")


def to_remove(request: Request) -> list[str]:
    """The arguments that were ours and are not wanted any more."""
    return [token for token in request.owned if token not in request.tokens]


def run_grubby(root: str, plan: BootPlan, run: Runner | None) -> None:
    """Have grubby bring the entries near to what PLAN says. Raises BootError."""
    tool = find_grubby(root)
    environment = {"PATH": _PATH, "HOME": "/root", "LC_ALL": "C"}
    arguments = [tool, "--update-kernel=ALL"]
    gone = to_remove(plan.request)
    if not gone and not plan.request.tokens:
        return
    if run is None:
        raise BootError("tool_missing", "nothing can be run here, so the boot entries cannot be changed")
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
