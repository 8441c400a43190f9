# SPDX-License-Identifier: Apache-2.0
"""A thread beside the serving one, on the housekeeping CPUs: descriptors that wait for it, and what is due every so
often. It sleeps unless there is something to do.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Set

from firsttouch._transport import Poller
from firsttouch._waiting import hush, new_doorbell, ring


class Lookout:
    """Made and stopped by one thread; add() and tend() before start(), every() at any time."""

    def __init__(self) -> None:
        self._poller = Poller()
        self._wake = new_doorbell()
        self._poller.add(self._wake, lambda _: hush(self._wake))
        self._jobs: list[tuple[float, Callable[[], None]]] = []
        self._due: list[float] = []
        self._tended: list[tuple[Callable[[], None], Callable[[], float]]] = []
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._home: Set[int] = frozenset()

    @property
    def tid(self) -> int:
        """The thread's native id, 0 before start()."""
        return (self._thread.native_id or 0) if self._thread is not None else 0

    def add(self, fd: int, call: Callable[[], None]) -> None:
        """Call CALL whenever FD is readable. It may not fail: the process ends then."""
        self._poller.add(fd, lambda _: call())

    def tend(self, fd: int, step: Callable[[], None], patience: Callable[[], float]) -> None:
        """Call STEP whenever FD is readable, and after at most the seconds that PATIENCE then gives."""
        self.add(fd, step)
        self._tended.append((step, patience))

    def every(self, seconds: float, call: Callable[[], None]) -> None:
        """Call CALL every SECONDS, the first time at once. When it fails that is told, and it is called again."""
        self._due.append(0.0)
        self._jobs.append((seconds, call))
        ring(self._wake)

    def start(self, home: Set[int]) -> None:
        """Begin, on the CPUs of HOME."""
        self._home = home
        self._thread = threading.Thread(target=self._run, name="firsttouch-lookout", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End, after what it is at."""
        self._stopping = True
        ring(self._wake)
        if self._thread is not None:
            self._thread.join()
        self._poller.close()
        os.close(self._wake)

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, self._home)
        try:
            self._look_after()
        except BaseException:  # noqa: BLE001  whatever it was
            # Without this thread clients come and go unseen. What is pending is kept: the next process has it.
            try:
                traceback.print_exc()
                sys.stderr.flush()
            finally:  # also where nobody reads stderr any more
                os._exit(1)

    def _look_after(self) -> None:
        """Until stop()."""
        while not self._stopping:
            now = time.monotonic()
            for i, (seconds, call) in enumerate(self._jobs):
                if self._due[i] <= now:
                    self._due[i] = now + seconds
                    try:
                        call()
                    except Exception:  # noqa: BLE001  the next time may be better
                        with contextlib.suppress(OSError, ValueError):
                            traceback.print_exc()
            dues = [max(0.0, due - now) for due in self._due]
            seconds = min([*dues, *(patience() for _, patience in self._tended)], default=3600.0)
            if not self._poller.run(seconds):
                for step, _ in self._tended:
                    step()
