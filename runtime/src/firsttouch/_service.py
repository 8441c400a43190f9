# SPDX-License-Identifier: Apache-2.0
"""A server as a unit of systemd: one process, no holder. The manager keeps the memory, the doorbells, the listeners and
the connections of attached clients while the process is dead; the next one goes on with them.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace

from firsttouch import _kept, _ports
from firsttouch._job import Job, Say, Worker
from firsttouch._keeper import Keeper
from firsttouch._lookout import Lookout
from firsttouch._shm_server import Domain
from firsttouch._sockets import Listener, listen_unix
from firsttouch._systemd import Notifier, watchdog_seconds
from firsttouch._transport import Address, parse_address
from firsttouch._waiting import hush, new_doorbell, ring
from firsttouch.errors import AddressError, KernelError
from firsttouch.server import InferenceServer

# The manager is told three times in the time after which it would kill.
_BEATS = 3


class _Stopped(BaseException):
    """SIGTERM came while nothing was served yet."""


class Service:
    """Serves JOB for the manager behind NOTIFIER; FOUND is what the process before this one left with it."""

    def __init__(self, job: Job, notifier: Notifier, found: dict[str, int], say: Say) -> None:
        self._job, self._notifier, self._say = job, notifier, say
        self._store = _kept.Store(notifier, found)
        self._lookout = Lookout()
        self._worker = Worker(job, say)
        self._server: InferenceServer | None = None
        self._keeper: Keeper | None = None
        self._domain: Domain | None = None
        self._listeners: dict[Address, Listener] = {}

    def run(self) -> None:
        """Serve until SIGTERM. What is raised instead leaves everything with the manager, for the next process."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        # It asks for metrics; where none are kept it must not end the server.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        try:
            self._open()
            self._lookout.start(self._worker.home)
            self._worker.prepare()
            options = replace(self._job.options, domain=self._domain, listeners=self._listeners)
            places = [str(place) for place in self._listeners]
            schema, max_batch = self._job.handler.schema, self._job.max_batch
            with InferenceServer(places, schema, options=options, max_batch=max_batch) as server:
                self._server = server
                beats = self._beat(server)
                text = ", ".join(server.addresses)
                self._say(f"serving {text}{self._pages()}")
                self._notifier.ready(f"serving {text}{self._pages()}")
                self._worker.serve(server, self._lookout)
                self._notifier.stopping()
                self._lookout.stop()
                os.close(beats)
        except _Stopped:
            self._notifier.stopping()
            self._lookout.stop()
        self._close()

    def _stop(self, *_: object) -> None:
        """The handler of SIGTERM."""
        if self._server is None:
            raise _Stopped
        self._server.stop()

    def _pages(self) -> str:
        """What the shared memory is, for people."""
        report = self._domain.segment.report if self._domain is not None else None
        if report is None:
            return ""
        where = f" on node {report.node}" if report.bound else ""
        return f"; {report.size >> 10} KiB of {report.kind} pages{where}"

    def _open(self) -> None:
        """Take what was left, make what is missing, and have that kept."""
        job, store = self._job, self._store
        asked = [parse_address(text) for text in job.addresses]
        shared = [address for address in asked if address.scheme == "shm"]
        if len(shared) > 1:
            raise AddressError(f"{shared[1]}: one shm address for one server")
        options = job.options
        if shared:
            self._domain = _kept.take_domain(
                store, job.handler.schema, options.lanes, options.pages, options.node, self._say
            )
        again = self._domain is not None
        listeners = _kept.take_listeners(store, asked)
        for address in asked:
            if address not in listeners:
                place, listener = self._listen(address)
                # A port that was asked for as 0 is kept as that, and found again as that.
                _kept.keep_listener(store, address, listener)
            else:
                listener = listeners[address]
                port = listener.sock.getsockname()[1] if address.scheme == "tcp" else 0
                place = address._replace(port=port)
            self._listeners[place] = listener
        if shared:
            if self._domain is None:
                self._domain = Domain.create(
                    job.handler.schema,
                    options.lanes,
                    pages=options.pages,
                    node=options.node,
                    spin_ns=options.spin_ns,
                    strangers=options.guests.strangers,
                )
                _kept.keep_domain(store, self._domain)
            listener = self._listeners[shared[0]]
            self._keeper = Keeper(self._domain, listener, options.guests, options.spin_ns, store)
            self._lookout.tend(self._keeper.epoll_fd, self._step, self._keeper.patience)
        store.drop()
        if again:
            self._say("took over the memory and the clients of the process before this one")
        room = os.environ.get("FDSTORE", "")
        need = 3 * options.lanes + _kept.SPARE_DESCRIPTORS
        if shared and room.isdigit() and int(room) < need:
            self._say(f"FileDescriptorStoreMax={room} is too small: a restart loses what is pending; set it to {need}")

    def _listen(self, address: Address) -> tuple[Address, Listener]:
        if address.scheme == "shm":
            return address, listen_unix(address, self._job.options.socket_mode)
        return _ports.listen(address, self._job.options)

    def _step(self) -> None:
        """Look after the clients of the shared memory."""
        assert self._keeper is not None
        self._keeper.step(0)

    def _beat(self, server: InferenceServer) -> int:
        """Tell the manager that SERVER serves, on evidence only: it took a batch, or heard a bell in its idle time."""
        bell = new_doorbell()
        seconds = watchdog_seconds()
        if seconds is None:
            return bell
        heard = [True]
        before = [0]

        def hear() -> None:
            hush(bell)
            heard[0] = True

        def look() -> None:
            counts = server.counts
            done = counts.batches + counts.expired + counts.failed + counts.protocol_errors
            if heard[0] or done != before[0]:
                heard[0], before[0] = False, done
                try:
                    self._notifier.beat()
                except KernelError as error:
                    # Others follow before the manager's patience is over.
                    self._say(f"a beat is left out: {error}")
            ring(bell)

        server.watch(bell, hear)
        self._lookout.every(seconds / _BEATS, look)
        return bell

    def _close(self) -> None:
        """Give everything back, the manager's share too."""
        if self._keeper is not None:
            self._keeper.close()
        for listener in self._listeners.values():
            listener.close()
        self._store.clear()
        if self._domain is not None:
            self._domain.close()
        self._notifier.close()
