# SPDX-License-Identifier: Apache-2.0
"""Keeps the memory, the doorbells and the listening sockets while the server is a child that may be restarted.

The holder does little, so that little can go wrong with it: it leases lanes, and starts the server again when that
died. Requests that were pending lie in the segment; the next server finds them there, and their clients only wait
longer. The child is forked, not executed anew: whatever the holder has imported need not be imported again.

Beside the server waits a spare: forked already, with everything imported, so that it serves as soon as the server is
dead. It costs the pages that a forked interpreter writes (about 8 MB). A handler is made in it in advance only when
that says `spare = True`: two of them at a time may be more memory than there is, of a GPU above all.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FrameType
from typing import NamedTuple

from firsttouch import _linux, _ports
from firsttouch._keeper import Keeper
from firsttouch._ports import Options
from firsttouch._shm_server import Domain
from firsttouch._sockets import Listener
from firsttouch._transport import Address, Poller, parse_address
from firsttouch._waiting import hush
from firsttouch._wire import Schema
from firsttouch.errors import AddressError
from firsttouch.server import InferenceServer, resolve

# A server that died before it answered anything is not started again at once.
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 2.0
_STOP_SECONDS = 5.0
# The next spare is made when the server that just began has had the CPU for a while.
_SPARE_SECONDS = 0.02

Worker = Callable[[InferenceServer], None]


def _nothing(_: bool) -> None:
    pass


class _Child(NamedTuple):
    """A forked process. GO: a byte there makes a spare the server; -1 when it is that already."""

    pid: int
    pidfd: int
    go: int = -1


def _empty(pipe: int) -> None:
    """Read what is in PIPE."""
    with contextlib.suppress(BlockingIOError):
        os.read(pipe, 4096)


class Holder:
    """Serves SCHEMA at ADDRESSES with WORKER, called with a server in a child process, again whenever that dies.

    PREPARE is called in the child before that has a server, with whether it is a spare. Single-threaded. run() returns
    after stop(), which is for signal handlers and other threads.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        schema: Schema,
        worker: Worker,
        options: Options | None = None,
        *,
        max_batch: int = 64,
        prepare: Callable[[bool], None] = _nothing,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Begin to listen. Raises what InferenceServer raises."""
        self._worker, self._schema, self._max_batch, self._say = worker, schema, max_batch, say
        self._prepare = prepare
        self._options = options or Options()
        self._domain: Domain | None = None
        self._keeper: Keeper | None = None
        self._listeners: dict[Address, Listener] = {}
        self._poller = Poller()
        self._stopping = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._heard = self._told = self._told_before = -1
        self._poller.add(self._wake, lambda _: hush(self._wake))
        self._server: _Child | None = None
        self._spare: _Child | None = None
        self._began = 0.0
        # Shared with the child.
        self._answered = mmap.mmap(-1, 1)
        self._pause = 0.0
        self._due: float | None = None
        self._spare_due: float | None = None
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

    @property
    def pid(self) -> int:
        """The server's process, 0 while there is none."""
        return self._server.pid if self._server is not None else 0

    def run(self) -> None:
        """Run until stop(). The server is ended with SIGTERM, and killed if that takes more than 5 s."""
        try:
            self._hear_signals()
            self._start()
            while not self._stopping:
                self._poller.run(self._seconds())
                if self._keeper is not None:
                    self._keeper.step(0)
                if self._due is not None and time.monotonic() >= self._due:
                    self._due = None
                    self._start()
                if self._spare_due is not None and time.monotonic() >= self._spare_due:
                    self._spare_due = None
                    self._make_spare()
        finally:
            self._end()
            self._close()

    def stop(self, *_: int | FrameType | None) -> None:
        """Make run() end. May be a signal's handler."""
        self._stopping = True
        with contextlib.suppress(OSError):
            os.eventfd_write(self._wake, 1)

    def _hear_signals(self) -> None:
        """Let a signal end a wait that it does not interrupt: one that comes just before, or to another thread.

        Its handler runs only after that, and without this as late as the next event (Python's signal.set_wakeup_fd()).
        """
        if threading.current_thread() is threading.main_thread():
            heard, self._told = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            self._heard = heard
            self._poller.add(heard, lambda _: _empty(heard))
            self._told_before = signal.set_wakeup_fd(self._told, warn_on_full_buffer=False)

    def _hear_no_signals(self) -> None:
        """Undo _hear_signals(); the poller may be that of another process, and is left alone."""
        if self._heard >= 0:
            signal.set_wakeup_fd(self._told_before)
            os.close(self._heard)
            os.close(self._told)
            self._heard = self._told = -1

    def _seconds(self) -> float:
        """How long nothing needs to be looked at."""
        dues = [due for due in (self._due, self._spare_due) if due is not None]
        seconds = max(0.0, min(dues) - time.monotonic()) if dues else 3600.0
        return min(seconds, self._keeper.patience() if self._keeper is not None else seconds)

    def _start(self) -> None:
        """Make the spare the server, or fork one."""
        self._answered[0] = 0
        self._began = time.monotonic()
        self._server, self._spare = self._spare, None
        if self._server is not None:
            # One that is dead by now is told of by its pidfd, as any server.
            with contextlib.suppress(BrokenPipeError):
                os.write(self._server.go, b"g")
            os.close(self._server.go)
            self._server = self._server._replace(go=-1)
        else:
            try:
                self._server = self._fork(spare=False)
            except OSError as error:
                self._say(f"no process for the server: {error}; next try in {self._longer():.2f} s")
                self._due = time.monotonic() + self._pause
                return
        self._spare_due = self._began + _SPARE_SECONDS

    def _make_spare(self) -> None:
        """Fork a spare, or try again later."""
        try:
            self._spare = self._fork(spare=True)
        except OSError as error:
            self._say(f"no process for a spare: {error}; next try in {_LONGEST_PAUSE_SECONDS:.0f} s")
            self._spare_due = time.monotonic() + _LONGEST_PAUSE_SECONDS

    def _longer(self) -> float:
        """The next pause before a start, in seconds."""
        self._pause = min(max(2 * self._pause, _FIRST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)
        return self._pause

    def _fork(self, *, spare: bool) -> _Child:
        """A child that serves, at once or when it is told to. Raises OSError, and leaves nothing behind then."""
        parent = os.getpid()
        wait, go = os.pipe() if spare else (-1, -1)
        pid = pidfd = -1
        try:
            sys.stdout.flush()
            sys.stderr.flush()
            with warnings.catch_warnings():
                # Threads of a BLAS pool that numpy started wait for work and hold no lock.
                warnings.simplefilter("ignore", DeprecationWarning)
                # Python forgets in the child what came since fork(2): until there is a handler it waits in the kernel.
                before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
                try:
                    pid = os.fork()
                finally:
                    if pid:
                        signal.pthread_sigmask(signal.SIG_SETMASK, before)
            if pid:
                pidfd = os.pidfd_open(pid)
                self._poller.add(pidfd, lambda _: self._died(pid), select.EPOLLIN)
        except OSError:
            if pid > 0:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            for fd in (wait, go, pidfd):
                if fd >= 0:
                    os.close(fd)
            raise
        if pid == 0:
            status = 1
            try:
                if spare:
                    os.close(go)
                self._be_child(parent, wait)
                status = 0
            except BaseException:  # noqa: BLE001  nothing may leave the child
                traceback.print_exc()
            finally:
                with contextlib.suppress(OSError, ValueError):
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(status)
        if spare:
            os.close(wait)
        return _Child(pid, pidfd, go)

    def _be_child(self, parent: int, wait: int) -> None:
        """In the child: serve until told to stop, or until the holder is gone. WAIT: until a byte comes there."""
        self._poller.close()
        self._hear_no_signals()
        os.close(self._wake)
        if self._keeper is not None:
            self._keeper.abandon()
        for other in (self._server, self._spare):
            if other is not None:
                os.close(other.pidfd)
        # What the holder does at a signal is about its children.
        for number in (signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        self._prepare(wait >= 0)
        spare = wait >= 0
        options = replace(self._options, domain=self._domain, listeners=self._listeners, standby=spare)
        with InferenceServer(self.addresses, self._schema, options=options, max_batch=self._max_batch) as server:
            server.stop_with(parent)
            if spare:
                if self._domain is not None:
                    # A fork has no page table of shared memory: that is made now, not when there is haste.
                    self._domain.segment.mapping.madvise(_linux.MADV_POPULATE_WRITE)
                told = os.read(wait, 1)
                os.close(wait)
                if not told:
                    os._exit(0)
                server.begin()
            signal.signal(signal.SIGTERM, lambda *_: server.stop())
            server.on_first_answer = lambda: self._answered.__setitem__(0, 1)
            self._worker(server)

    def _died(self, pid: int) -> None:
        """A child is gone. Start the next server, at once unless this one lived too short."""
        spare = self._spare is not None and self._spare.pid == pid
        child = self._spare if spare else self._server
        assert child is not None
        _, status = os.waitpid(pid, 0)
        self._poller.drop(child.pidfd)
        os.close(child.pidfd)
        if child.go >= 0:
            os.close(child.go)
        code = os.waitstatus_to_exitcode(status)
        if spare:
            self._spare = None
            if not self._stopping:
                self._say(f"the spare {pid} ended with status {code}, next one in {_LONGEST_PAUSE_SECONDS:.0f} s")
                self._spare_due = time.monotonic() + _LONGEST_PAUSE_SECONDS
            return
        self._server = None
        if self._stopping:
            return
        lived = time.monotonic() - self._began
        if self._answered[0]:
            self._pause = 0.0
        self._due = time.monotonic() + self._pause
        self._say(f"server {pid} ended with status {code} after {lived:.1f} s, next one in {self._pause:.2f} s")
        self._longer()
        self.restarts += 1

    def _end(self) -> None:
        """End the children and wait for them."""
        for child in (self._spare, self._server):
            if child is None:
                continue
            if child.go >= 0:
                os.close(child.go)
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(child.pid, signal.SIGTERM)
                # No select(): it knows no descriptor beyond 1023.
                ended = select.poll()
                ended.register(child.pidfd, select.POLLIN)
                if not ended.poll(_STOP_SECONDS * 1000):
                    os.kill(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)
            os.close(child.pidfd)
        self._server = self._spare = None

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
        self._hear_no_signals()
        os.close(self._wake)
