# SPDX-License-Identifier: Apache-2.0
"""Keeps the memory, the doorbells and the listening sockets while the server is a child that may be restarted.

The holder does little, so that little can go wrong with it: it leases lanes, and starts the server again when that
died. Requests that were pending lie in the segment; the next server finds them there, and their clients only wait
longer. The child is forked, not executed anew: whatever the holder has imported need not be imported again.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FrameType

from firsttouch import _ports
from firsttouch._keeper import Keeper
from firsttouch._ports import Options
from firsttouch._shm_server import Domain
from firsttouch._sockets import Listener
from firsttouch._transport import Address, Poller, parse_address
from firsttouch._wire import Schema
from firsttouch.errors import AddressError
from firsttouch.server import InferenceServer, resolve

# A server that died before it answered anything is not started again at once.
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 2.0
_STOP_SECONDS = 5.0

Worker = Callable[[InferenceServer], None]


class Holder:
    """Serves SCHEMA at ADDRESSES with WORKER, called with a server in a child process, again whenever that dies.

    Single-threaded. run() returns after stop(), which is for signal handlers and other threads.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        schema: Schema,
        worker: Worker,
        options: Options | None = None,
        *,
        max_batch: int = 64,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Begin to listen. Raises what InferenceServer raises."""
        self._worker, self._schema, self._max_batch, self._say = worker, schema, max_batch, say
        self._options = options or Options()
        self._domain: Domain | None = None
        self._keeper: Keeper | None = None
        self._listeners: dict[Address, Listener] = {}
        self._poller = Poller()
        self._stopping = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poller.add(self._wake, lambda _: None)
        self.pid = 0
        self._pidfd = -1
        self._began = 0.0
        # Shared with the child.
        self._answered = mmap.mmap(-1, 1)
        self._pause = 0.0
        self._due: float | None = None
        self.restarts = 0
        try:
            for text in resolve(addresses):
                self._listen(parse_address(text))
        except BaseException:
            self._close()
            raise

    def _listen(self, address: Address) -> None:
        """Take one address."""
        if address.scheme == "shm":
            if self._domain is not None:
                raise AddressError(f"{address}: one shm address for one server")
            self._domain, self._keeper = _ports.make_keeper(address, self._schema, self._options)
            self._listeners[address] = self._keeper.listener
            keeper = self._keeper
            self._poller.add(keeper.epoll_fd, lambda _: keeper.step(0), select.EPOLLIN)
            return
        place, listener = _ports.listen(address, self._options)
        self._listeners[place] = listener

    @property
    def addresses(self) -> list[str]:
        """Where it listens."""
        return [str(address) for address in self._listeners]

    def describe(self) -> list[str]:
        """What is served where, on what pages, for people."""
        lines = [f"serving {address}" for address in self.addresses]
        report = self._domain.segment.report if self._domain is not None else None
        if report is not None:
            where = f", bound to node {report.node}" if report.bound else ""
            lines.append(f"shared memory: {report.size >> 10} KiB of {report.kind} pages{where}")
            lines += [f"  {remark}" for remark in report.remarks]
        return lines

    def run(self) -> None:
        """Run until stop(). The server is ended with SIGTERM, and killed if that takes more than 5 s."""
        try:
            self._start()
            while not self._stopping:
                self._poller.run(self._seconds())
                if self._keeper is not None:
                    self._keeper.step(0)
                if self._due is not None and time.monotonic() >= self._due:
                    self._due = None
                    self._start()
        finally:
            self._end_worker()
            self._close()

    def stop(self, *_: int | FrameType | None) -> None:
        """Make run() end. May be a signal's handler."""
        self._stopping = True
        with contextlib.suppress(OSError):
            os.eventfd_write(self._wake, 1)

    def _seconds(self) -> float:
        """How long nothing needs to be looked at."""
        due = 3600.0 if self._due is None else max(0.0, self._due - time.monotonic())
        return min(due, self._keeper.patience() if self._keeper is not None else due)

    def _start(self) -> None:
        """Fork the server."""
        parent = os.getpid()
        self._answered[0] = 0
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Threads of a BLAS pool that numpy started wait for work and hold no lock.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            status = 1
            try:
                self._be_worker(parent)
                status = 0
            except BaseException:  # noqa: BLE001  nothing may leave the child
                traceback.print_exc()
            finally:
                with contextlib.suppress(OSError, ValueError):
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(status)
        self.pid, self._began = pid, time.monotonic()
        self._pidfd = os.pidfd_open(pid)
        self._poller.add(self._pidfd, self._died, select.EPOLLIN)

    def _be_worker(self, parent: int) -> None:
        """In the child: serve until told to stop, or until the holder is gone."""
        self._poller.close()
        os.close(self._wake)
        if self._keeper is not None:
            self._keeper.abandon()
        options = replace(self._options, domain=self._domain, listeners=self._listeners)
        with InferenceServer(self.addresses, self._schema, options=options, max_batch=self._max_batch) as server:
            signal.signal(signal.SIGTERM, lambda *_: server.stop())
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            server.stop_with(parent)
            server.on_first_answer = lambda: self._answered.__setitem__(0, 1)
            self._worker(server)

    def _died(self, _: int) -> None:
        """The server is gone: start the next one, at once unless it lived too short."""
        _, status = os.waitpid(self.pid, 0)
        self._poller.drop(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        if self._stopping:
            self.pid = 0
            return
        lived = time.monotonic() - self._began
        if self._answered[0]:
            self._pause = 0.0
        self._due = time.monotonic() + self._pause
        code = os.waitstatus_to_exitcode(status)
        self._say(f"server {self.pid} ended with status {code} after {lived:.1f} s, next one in {self._pause:.2f} s")
        self._pause = min(max(2 * self._pause, _FIRST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)
        self.pid = 0
        self.restarts += 1

    def _end_worker(self) -> None:
        """End the server and wait for it."""
        if not self.pid:
            return
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGTERM)
            if not select.select([self._pidfd], [], [], _STOP_SECONDS)[0]:
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._pidfd)
        self.pid = 0

    def _close(self) -> None:
        """Give everything back."""
        if self._keeper is not None:
            self._keeper.close()
        for listener in self._listeners.values():
            if self._keeper is None or listener is not self._keeper.listener:
                listener.close()
        if self._domain is not None:
            self._domain.close()
        self._poller.close()
        os.close(self._wake)
