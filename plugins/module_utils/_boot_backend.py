# SPDX-License-Identifier: Apache-2.0
"""The interface of the boot loader back ends."""

from __future__ import annotations

import contextlib
import dataclasses
from abc import ABC, abstractmethod
from typing import Any

from ._boot_plan import BootPlan, FileWriter, Request
from ._boot_replaced import put_back, regained
from ._boot_types import BootError, Entry, LineToken, Problem, Runner, Setting, Step
from ._files import read_text
from ._kernel_args import KernelFacts


class Backend(ABC):
    """One boot loader of the sysroot `root`, read once. live: its tools may be run."""

    name = ""
    # Held while the boot files are changed.
    folder = ""

    def __init__(self, root: str, live: bool) -> None:
        self.root = root
        self.live = live

    @abstractmethod
    def files(self) -> list[str]:
        """The configuration files in the order they are read."""

    @abstractmethod
    def settings(self) -> list[Setting]:
        """What is configured, for the next time boot entries are made."""

    @abstractmethod
    def entries(self) -> list[Entry]:
        """Every Linux entry; the one that boots by itself is marked."""

    @abstractmethod
    def configured_line(self) -> list[LineToken] | None:
        """The configured part of a normal command line; None where nothing is configured.

        Raises BootError when it cannot be told.
        """

    @abstractmethod
    def plan_over(self, request: Request, running: str | None, back: dict[str, str]) -> BootPlan:
        """What REQUEST means once the places BACK hold these texts again. Raises BootError for a refusal."""

    @abstractmethod
    def apply(self, plan: BootPlan, run: Runner | None) -> dict[str, Any]:
        """Carry PLAN out; returns `generated`, `backup`, `line`. On an error everything is as it was."""

    def plan(self, request: Request, running: str | None) -> BootPlan:
        """What REQUEST means here; nothing is written. Raises BootError for a refusal.

        What was replaced comes back as soon as nothing that is asked for contradicts it any more.
        """
        back = self.put_back(request)
        if not request.tokens:
            return self.plan_over(request, running, back)
        if back:
            with contextlib.suppress(BootError):
                return self.plan_over(dataclasses.replace(request, replace=False), running, back)
        if back and request.replace:
            with contextlib.suppress(BootError):
                part = regained(self.root, back, self.plan_over(request, running, back).replaced)
                if part:
                    return self.plan_over(request, running, part)
        return self.plan_over(request, running, {})

    def put_back(self, request: Request) -> dict[str, str]:
        """The texts, by place, that places from which something was replaced had before."""
        return put_back(self.root, self.text_at)

    def text_at(self, path: str) -> str | None:
        """The text of the place PATH out of which arguments can be taken."""
        return read_text(self.root, path)

    def problems(self) -> list[Problem]:
        """What keeps a layer from being read, or is odd."""
        return []

    def overriding(self, wanted: list[str]) -> Step | None:
        """The assignment that takes WANTED off the configured line again."""
        return None

    def default_entry(self) -> Entry | None:
        """The entry that boots by itself; None where that cannot be told."""
        return next((entry for entry in self.entries() if entry.default), None)

    def facts(self) -> KernelFacts:
        """The facts of the kernel that boots next on this machine."""
        entry = self.default_entry()
        try:
            return KernelFacts.from_sysroot(self.root, entry.version if entry and entry.version else None)
        except ValueError:
            return KernelFacts.from_sysroot(self.root)

    def require_default(self, refusal: BootError | None) -> None:
        """Refuse a change where it is not known what boots."""
        if self.default_entry() is None and self.live:
            raise refusal or BootError(
                "default_entry_unresolvable", "no entry that boots by itself was found"
            )

    def writer(self) -> FileWriter:
        """A writer into this sysroot."""
        return FileWriter(self.root)


def running_line(root: str) -> str | None:
    """The command line that runs, without its newline; None when it cannot be read."""
    try:
        text = read_text(root, "/proc/cmdline")
    except OSError:
        return None
    return None if text is None else text.rstrip("\n")
