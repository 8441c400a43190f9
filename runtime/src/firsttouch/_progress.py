# SPDX-License-Identifier: Apache-2.0
"""Progress of a load: a bar on a terminal, a plain line every 5 s elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

_MIB = 1 << 20
_BAR = 24
_BAR_EVERY_S = 0.1
_LINE_EVERY_S = 5.0


class Progress:
    """A progress function for load(), called under its lock; CLOCK gives seconds."""

    def __init__(self, out: TextIO, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._out, self._quiet, self._clock = out, quiet, clock
        self._terminal = out.isatty()
        self._started = clock()
        self._shown = self._started if not self._terminal else float("-inf")
        self._width = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._width:
            self._out.write("\n")
            self._out.flush()

    def __call__(self, done: int, total: int) -> None:
        """DONE of TOTAL bytes are read."""
        now = self._clock()
        if self._quiet or (now - self._shown < self._pause and (done < total or not self._terminal)):
            return
        self._shown = now
        text = progress_text(done, total, now - self._started)
        if self._terminal:
            full = _BAR * done // max(total, 1)
            text = f"[{'#' * full}{'.' * (_BAR - full)}] {text}"
            self._out.write(f"\r{text.ljust(self._width)}")
            self._width = max(self._width, len(text))
        else:
            self._out.write(f"{text}\n")
        self._out.flush()

    @property
    def _pause(self) -> float:
        return _BAR_EVERY_S if self._terminal else _LINE_EVERY_S


def progress_text(done: int, total: int, seconds: float) -> str:
    """Per cent, bytes, rate and time to go."""
    rate = done / seconds if seconds > 0 else 0.0
    left = f"{(total - done) / rate:.0f} s left" if rate else "? s left"
    part = 100 * done // max(total, 1)
    return f"{part:3d} % {done // _MIB} of {total // _MIB} MiB, {rate / _MIB:.0f} MiB/s, {left}"
