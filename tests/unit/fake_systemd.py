# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for systemctl, for tests of what starts and stops services."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ansible_collections.firsttouch.host.plugins.module_utils._services import DROPIN_TEXT, dropin


class Systemd:
    """As much of systemctl as is asked of it; a held unit does not start, STUBBORN ones do not stop.

    UNLOADED: units whose files are newer than what systemd has read.
    """

    def __init__(
        self,
        root: Path,
        active: Sequence[str] = (),
        stubborn: Sequence[str] = (),
        unloaded: Sequence[str] = (),
    ) -> None:
        self.root = root
        self.active = set(active)
        self.stubborn = set(stubborn)
        self.unloaded = set(unloaded)
        self.calls: list[str] = []

    def __call__(self, arguments: Sequence[str]) -> tuple[int, str, str]:
        verb, units = arguments[0], [word for word in arguments[1:] if not word.startswith("-")]
        if verb == "show":
            return 0, "\n\n".join(self._show(unit) for unit in units), ""
        self.calls.append(" ".join(word for word in arguments if word != "--"))
        if verb == "daemon-reload":
            self.unloaded.clear()
        for unit in units:
            if verb in ("stop", "restart") and unit not in self.stubborn:
                self.active.discard(unit)
            if verb in ("start", "restart") and not self._held(unit):
                self.active.add(unit)
        return 0, "", ""

    def _held(self, unit: str) -> bool:
        path = self.root / dropin(unit)[1:]
        return path.exists() and path.read_text() == DROPIN_TEXT

    def _show(self, unit: str) -> str:
        reload = "yes" if unit in self.unloaded else "no"
        state = "active" if unit in self.active else "inactive"
        return f"ActiveState={state}\nMainPID={612 if unit in self.active else 0}\nNeedDaemonReload={reload}\n"
