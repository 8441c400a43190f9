# SPDX-License-Identifier: Apache-2.0
"""The command line in three layers as one document (configured, next boot, running), and a verdict."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ._boot_backend import Backend, running_line
from ._boot_effect import beyond, needs_boot, shortfall, split_line, token_key
from ._boot_types import BootError, Entry, LineToken, Problem
from ._bootloader import detect
from ._cmdline import normal_key, split
from ._files import read_text
from ._kernel_args import KernelFacts, predict


@dataclass
class Layers:
    """What each layer says; None where there is nothing to say, `problems` has the reasons."""

    root: str
    backend: Backend | None
    configured: list[LineToken] | None
    entry: Entry | None
    running: str | None
    facts: KernelFacts
    problems: list[Problem]


def read_layers(root: str, kernel: str | None = None) -> Layers:
    """Read all layers of the sysroot ROOT; what cannot be read is a problem, not an error.

    KERNEL names the kernel whose rules apply, else that of the default entry. Raises ValueError when it does
    not begin with two numbers.
    """
    backend: Backend | None = None
    configured: list[LineToken] | None = None
    problems: list[Problem] = []
    try:
        backend = detect(root)
        problems.extend(backend.problems())
        configured = backend.configured_line()
    except BootError as exc:
        if exc.problem not in problems:
            problems.append(exc.problem)
    except OSError as exc:
        problems.append(Problem(_errno_reason(exc), exc.strerror or str(exc), exc.filename))
    try:
        running = running_line(root)
        boot_line = read_text(root, "/proc/cmdline")
    except OSError as exc:
        running = boot_line = None
        problems.append(Problem(_errno_reason(exc), exc.strerror or str(exc), "/proc/cmdline"))
    entry = backend.default_entry() if backend else None
    facts = (
        backend.facts() if kernel is None and backend is not None else KernelFacts.from_sysroot(root, kernel)
    )
    return Layers(
        root, backend, configured, entry, running if boot_line is not None else None, facts, problems
    )


def document(layers: Layers) -> dict[str, Any]:
    """What kernel_cmdline_info returns, without the verdict."""
    backend = layers.backend
    running_facts = KernelFacts.from_sysroot(layers.root)
    predicted = {
        "running": predict(layers.running, running_facts).as_dict() if layers.running is not None else None,
        "next_boot": predict(layers.entry.whole, layers.facts).as_dict() if layers.entry else None,
        "configured": None,
    }
    if layers.configured is not None:
        text = " ".join(token.text for token in layers.configured)
        predicted["configured"] = predict(text, layers.facts).as_dict()
    return {
        "bootloader": backend.name if backend else None,
        "files": backend.files() if backend else [],
        "configured": _settings(backend),
        "configured_line": _configured(layers),
        "entries": [entry.as_dict() for entry in backend.entries()] if backend else [],
        "default_entry": layers.entry.id if layers.entry else None,
        "next_boot": _line(layers.entry.line if layers.entry else None, layers.entry),
        "running": _line(layers.running, None),
        "predicted": predicted,
        "problems": [problem.as_dict() for problem in layers.problems],
    }


def verdict(layers: Layers, wanted: list[str]) -> dict[str, Any]:
    """Whether WANTED holds in every layer that can be read.

    `staged`: the next boot has it (the default entry, or what is configured where no entry can be read).
    `live`: the running line has it. `reboot_required`: it lacks what only a boot brings into effect. `edit`:
    kernel_cmdline would have something to write. The verdict is `pass` only where at least one layer was read,
    and all that were read have it.
    """
    facts = layers.facts
    configured = None if layers.configured is None else " ".join(token.text for token in layers.configured)
    lacks = {
        "configured": _lacks(configured, wanted, facts),
        "next_boot": _lacks(layers.entry.whole if layers.entry else None, wanted, facts),
        "running": _lacks(layers.running, wanted, facts),
    }
    entries = {
        entry.id: "fail" if shortfall(entry.whole, wanted, facts) else "pass"
        for entry in (layers.backend.entries() if layers.backend else [])
        if not entry.recovery
    }
    blocking = _blocking(layers)
    next_layer = "next_boot" if lacks["next_boot"] is not None else "configured"
    staged = lacks[next_layer] == ("", "") and blocking is None
    live = lacks["running"] == ("", "")
    problem = blocking or _judge(layers, lacks, wanted, staged)
    if layers.backend is None and lacks["running"] not in (None, ("", "")):
        problem = Problem(*lacks["running"], file="/proc/cmdline", line=1)
    return {
        "verdict": "fail" if problem else "pass",
        "reason": problem.reason if problem else None,
        "file": problem.file if problem else None,
        "line": problem.line if problem else None,
        "text": problem.text if problem else None,
        "layers": {
            name: "unknown" if row is None else "fail" if row[0] else "pass" for name, row in lacks.items()
        },
        "entries": entries,
        "live": live,
        "staged": staged,
        "edit": not staged and blocking is None,
        "reboot_required": _lacks(layers.running, needs_boot(wanted), facts) != ("", ""),
        "effective": _effective(layers),
    }


def boot_id(root: str) -> str | None:
    """The id of the running boot (random(4)); None where it cannot be read."""
    try:
        text = read_text(root, "/proc/sys/kernel/random/boot_id")
    except OSError:
        return None
    return text.strip() if text else None


def foreign_staged(
    running: str | None,
    line: str | None,
    entry: Entry | None,
    places: list[LineToken],
    ours: Iterable[str],
    keys: Iterable[str],
) -> list[str]:
    """The foreign tokens that differ between what RUNS and the LINE that boots next, with their PLACES.

    OURS are our tokens on LINE; of what runs, everything with one of our KEYS is taken for ours.
    """
    if running is None or line is None:
        return []
    names = {normal_key(key) for key in keys}
    maybe = set(entry.unresolved) if entry else set()
    written = {t.text: f" ({t.source})" for t in [*(entry.tokens if entry else ()), *places] if t.source}
    now, then = split_line(running), beyond(split_line(line), ours)
    come = [text for text in beyond(then, now) if text not in maybe]
    gone = [text for text in beyond(now, then) if text not in maybe and token_key(text) not in names]
    found = [f"only in the next boot: {text}{written.get(text, '')}" for text in come]
    return found + [f"only in the running kernel: {text}" for text in gone]


def _lacks(line: str | None, wanted: list[str], facts: KernelFacts) -> tuple[str, str] | None:
    """("", "") where LINE has WANTED, (reason, text) where not, None where there is no line."""
    if line is None:
        return None
    return shortfall(line, wanted, facts) or ("", "")


def _blocking(layers: Layers) -> Problem | None:
    """The problem that keeps the settings or the menu from being read, so that nothing may be called fine."""
    return next((row for row in layers.problems if row.reason != "default_entry_not_found"), None)


def _judge(
    layers: Layers, lacks: dict[str, tuple[str, str] | None], wanted: list[str], staged: bool
) -> Problem | None:
    """Why the verdict is no `pass`."""
    configured, following, running = lacks["configured"], lacks["next_boot"], lacks["running"]
    entry = layers.entry
    if following is not None and following[0]:
        if configured == ("", ""):
            name = entry.id if entry else ""
            text = f"the settings have it, the entry {name!r} that boots does not: {following[1]}"
            return Problem(
                "not_generated", text, entry.file if entry else None, entry.file_line if entry else None
            )
        return overridden(layers, wanted) or _at_entry(following, entry)
    if following is None and configured is not None and configured[0]:
        return overridden(layers, wanted) or _at_setting(layers, configured)
    if running is not None and running[0]:
        if staged and running[0] in ("missing_tokens", "wrong_order", "different_effect"):
            return Problem(
                "pending_reboot", f"it takes effect with the next boot; {running[1]}", "/proc/cmdline", 1
            )
        return Problem(running[0], running[1], "/proc/cmdline", 1)
    if (
        following is not None
        and configured is not None
        and configured[0]
        and _generated_from_settings(layers)
    ):
        return overridden(layers, wanted) or _at_setting(layers, configured)
    if following is None and configured is None:
        return Problem("not_evaluated", "no layer of the next boot could be read")
    return None


def _generated_from_settings(layers: Layers) -> bool:
    """Whether the next generation of the boot files would take away what the settings lack."""
    return layers.backend is not None and layers.backend.name == "grub"


def overridden(layers: Layers, wanted: list[str]) -> Problem | None:
    """The assignment that takes WANTED off the settings, whether or not the boot entries can be read."""
    step = layers.backend.overriding(wanted) if layers.backend else None
    if step is None:
        return None
    dropin = step.file.rpartition("/")[0].endswith("/grub.d")
    reason = "overridden_by_dropin" if dropin else "overridden_by_later_assignment"
    return Problem(
        reason, f"{step.name} is set again there, without what was there before", step.file, step.line
    )


def _at_entry(lack: tuple[str, str], entry: Entry | None) -> Problem:
    if entry is None:
        return Problem(*lack)
    return Problem(lack[0], f"the entry {entry.id!r}, which boots: {lack[1]}", entry.file, entry.file_line)


def _at_setting(layers: Layers, lack: tuple[str, str]) -> Problem:
    sources = [token.source for token in layers.configured or [] if token.source]
    if sources:
        return Problem(*lack, file=sources[-1].file, line=sources[-1].line)
    files = layers.backend.files() if layers.backend else []
    return Problem(*lack, file=files[0] if files else None)


def _effective(layers: Layers) -> list[str]:
    if layers.entry is not None:
        return [token.text for token in layers.entry.tokens]
    if layers.configured is not None:
        return [token.text for token in layers.configured]
    return split_line(layers.running) if layers.running is not None else []


def _settings(backend: Backend | None) -> list[dict[str, Any]]:
    return [setting.as_dict() for setting in backend.settings()] if backend else []


def _configured(layers: Layers) -> dict[str, Any] | None:
    if layers.configured is None:
        return None
    return {
        "line": " ".join(token.text for token in layers.configured),
        "tokens": [
            {
                "text": token.text,
                "file": token.source.file if token.source else None,
                "line": token.source.line if token.source else None,
                "ours": token.ours,
            }
            for token in layers.configured
        ],
    }


def _line(line: str | None, entry: Entry | None) -> dict[str, Any] | None:
    if line is None:
        return None
    tokens = split(line)
    read = [token for token in tokens if not token.after_dashes and not token.is_separator]
    result: dict[str, Any] = {
        "line": line,
        "tokens": [[token.key, token.value] for token in read],
        "kernel_tokens": [token.text for token in read],
        "init_arguments": [token.text for token in tokens if token.after_dashes],
    }
    if entry is not None:
        result["id"] = entry.id
        result["sources"] = [
            {
                "text": token.text,
                "file": token.source.file if token.source else None,
                "line": token.source.line if token.source else None,
            }
            for token in entry.tokens
        ]
    return result


def _errno_reason(exc: OSError) -> str:
    if exc.errno == errno.ENODATA:
        return "not_recorded"
    return "permission_denied" if isinstance(exc, PermissionError) else "unreadable"
