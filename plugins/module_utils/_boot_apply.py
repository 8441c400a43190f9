# SPDX-License-Identifier: Apache-2.0
"""One change of the command line from its parameters to its result."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from typing import Any

from ._boot_backend import Backend, running_line
from ._boot_effect import Concern, effect_of, needs_boot
from ._boot_plan import BootPlan, Request, describe_token
from ._boot_report import foreign_staged
from ._boot_types import BootError, Runner
from ._bootloader import detect
from ._files import resolve
from ._kernel_args import KernelFacts
from ._record import StateError, read_plan


def change(root: str, parameters: Mapping[str, Any], check: bool, run: Runner | None) -> dict[str, Any]:
    """Plan what PARAMETERS (those of the module kernel_cmdline) ask for and, unless CHECK, carry it out.

    Raises BootError for a refusal and OSError; everything is then as it was.
    """
    tokens = [] if parameters["state"] == "absent" else list(parameters["tokens"])
    if parameters["state"] == "present" and not tokens:
        raise BootError("invalid_token", "tokens is empty; state: absent takes our arguments away")
    request = Request(
        tokens=tuple(tokens),
        keys=tuple(parameters["keys"]),
        owned=tuple(_owned(root, parameters["owned"])),
        replace=parameters["on_conflict"] == "replace",
        floor_bytes=parameters["reserve_floor_bytes"],
    )
    running = running_line(root)
    backend = detect(root)
    plan = backend.plan(request, running)
    if check or not plan.changes():
        return _result(backend, plan, _planned(plan), running)
    with _alone(root, backend.folder):
        # what another run has changed until now counts
        backend = detect(root)
        plan = backend.plan(request, running)
        applied = backend.apply(plan, run) if plan.changes() else _planned(plan)
        return _result(backend, plan, applied, running)


def _planned(plan: BootPlan) -> dict[str, Any]:
    """What Backend.apply() would return."""
    return {"generated": plan.generate or bool(plan.extra), "backup": None, "line": plan.line}


@contextlib.contextmanager
def _alone(root: str, folder: str) -> Iterator[None]:
    """Hold FOLDER, that of the boot files, against another run. Raises BootError `busy`; leaves nothing behind."""
    try:
        fd = os.open(resolve(root, folder), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:  # an offline tree without one
        yield
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = "another run is changing the boot files now; run this again when that has ended"
            raise BootError("busy", text, folder) from None
        yield
    finally:
        os.close(fd)


def _owned(root: str, given: list[str] | None) -> list[str]:
    if given is not None:
        return list(given)
    try:
        document = read_plan(root)
    except StateError as exc:
        raise BootError(exc.reason, str(exc)) from exc
    boot = (document or {}).get("boot") or {}
    return list(boot.get("owned") or boot.get("tokens") or [])


def _result(backend: Backend, plan: BootPlan, applied: dict[str, Any], running: str | None) -> dict[str, Any]:
    request, changes = plan.request, plan.changes()
    line = applied["line"]
    keys = request.all_keys() | Request((), owned=tuple(plan.before)).all_keys()
    try:
        places = backend.configured_line() or []
    except BootError:
        places = []
    return {
        "changed": bool(changes),
        "changes": changes,
        "diff": plan.diff(),
        "bootloader": backend.name,
        "generated": applied["generated"],
        "backup": applied["backup"],
        "next_boot_line": line,
        "reboot_due": reboot_due(plan, line, running, backend.facts()),
        "foreign_staged": foreign_staged(
            running, line, backend.default_entry(), places, request.tokens, keys
        ),
        "replaced": [describe_token(token) for token in plan.replaced],
        "not_restored": plan.lost,
        "memory": plan.memory,
    }


def reboot_due(plan: BootPlan, line: str | None, running: str | None, facts: KernelFacts) -> bool:
    """Whether the effect of our tokens that need a boot differs between what runs and LINE, which boots next."""
    if running is None or line is None:
        return False
    request = plan.request
    ours = needs_boot([*request.tokens, *request.owned, *plan.before])
    keys = needs_boot(request.keys)
    if not ours and not keys:
        return False
    concern = Concern.of(ours, facts, keys)
    return effect_of(running, concern, facts) != effect_of(line, concern, facts)
