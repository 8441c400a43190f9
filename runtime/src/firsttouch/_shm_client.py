# SPDX-License-Identifier: Apache-2.0
"""The client's end of shared memory: attach over a unix socket, then lanes of the segment."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import time
from collections.abc import Mapping

from firsttouch import _linux, _shm
from firsttouch._guests import pidfd_of_server
from firsttouch._lanes import LANE, at, check_geometry, lane_parts, reply_meta_room
from firsttouch._sockets import connect_unix, greet
from firsttouch._transport import READABLE, Address, Lane, Link
from firsttouch._waiting import (
    ALONE_NS,
    LOOKS_ALONE,
    LOOKS_SHARED,
    SPIN_NS,
    WAKE_NS,
    Fence,
    fence,
    hush,
    ring,
)
from firsttouch._wire import Array, Hello, Kind, Schema, Writer, bye_frame, control_frame, parse_welcome
from firsttouch.errors import BrokenError, BusyError, ProtocolError

# As many as one message of a unix socket carries (SCM_MAX_FD of include/net/scm.h), less the segment.
MAX_LANES_OF_CLIENT = 126
_NO_SLEEP = -1
_sched_yield = os.sched_yield
_clock = time.monotonic_ns


class ShmLane(Lane):
    """One lane of a segment. Its words are written by this client alone."""

    # The server counts over the deaths of servers, in the lane. What breaks here is who holds the memory.
    tried = True

    def __init__(self, link: ShmLink, lane: int, bell: int, chime: int) -> None:
        segment, schema = link.segment, link.schema
        parts = lane_parts(schema)
        block = segment.block(lane)
        self._link = link
        self._bell, self._chime = bell, chime
        # The owner before could have filled it up and made it block.
        os.set_blocking(bell, False)
        hush(bell)
        self._words, self._quads = segment.words, segment.quads
        base = segment.control(lane)
        self._req, self._sleep, self._req_meta = (
            (base + at(LANE, name)) // 4 for name in ("req_seq", "cli_sleep", "req_meta")
        )
        self._rsp, self._status, self._rsp_meta = (
            (base + at(LANE, name)) // 4 for name in ("rsp_seq", "status", "rsp_meta")
        )
        self._deadline, self._submit = ((base + at(LANE, name)) // 8 for name in ("deadline_ns", "submit_ns"))
        self._srv_sleep = _shm.index("srv_sleep")
        self.request = schema.request.views(block[parts.request : parts.request_meta])
        self.reply = schema.reply.views(block[parts.reply : parts.reply_meta].toreadonly())
        self._meta_out = block[parts.request_meta : parts.request_meta + schema.max_meta_bytes]
        self._meta_in = block[parts.reply_meta : parts.reply_meta + reply_meta_room(schema)]
        # The owner before this one may have left its last request answered: the sequence goes on from there.
        self._seq = self._words[self._req]
        self._fence: Fence = link.fence
        self._always_ring = link.fence.always_ring
        self._words[self._sleep] = int(self._always_ring)
        # What req_meta says: what it says already is not stored again.
        self._told = -1
        self._copy = Writer(self.request)
        self.answer = tuple(self.reply.items())
        self._poll = select.epoll()
        try:
            # An edge: each ring wakes, and nothing has to be read back.
            self._poll.register(chime, select.EPOLLIN | select.EPOLLET)
            for fd in link.death_fds:
                self._poll.register(fd, READABLE)
        except OSError as error:
            self._poll.close()
            if error.errno in (errno.ENOSPC, errno.ENOMEM):
                raise BusyError(f"{link.peer} cannot be waited for: {error.strerror}") from error
            # What it passed is no doorbell, or one that waits for too many others.
            raise ProtocolError(f"the doorbell of lane {lane} cannot be waited for: {error.strerror}") from error

    def write(self, arrays: Mapping[str, Array]) -> None:
        # The lane may be another client's by now, or of the process that this one was forked from.
        if self._link.closed:
            raise BrokenError("the connection is closed")
        # A server that sleeps is woken now: it takes as long to come as the copy.
        if self._words[self._srv_sleep]:
            ring(self._bell)
        self._copy(arrays)

    def submit(self, meta: bytes, deadline_ns: int, again: bool = False) -> None:
        words, quads = self._words, self._quads
        if self._link.closed:
            raise BrokenError("the connection is closed")
        length = len(meta)
        if length:
            self._meta_out[:length] = meta
        if length != self._told:
            words[self._req_meta] = self._told = length
        quads[self._deadline] = deadline_ns
        quads[self._submit] = _clock()
        self._seq = seq = (self._seq + 1) & 0xFFFFFFFF
        words[self._req] = seq
        if words[self._srv_sleep] or self._always_ring:
            ring(self._bell)

    def ready(self) -> bool:
        return bool(self._words[self._rsp] == self._seq)

    def spin(self) -> bool:
        words, rsp, seq, looks = self._words, self._rsp, self._seq, LOOKS_SHARED
        span = self._link.spin_ns
        if span and words[self._srv_sleep]:
            span += WAKE_NS
        now = _clock()
        end = now + span
        while True:
            # First the others on this CPU: the answer takes longer than that.
            _sched_yield()
            for _ in looks:
                if words[rsp] == seq:
                    return True
            began, now = now, _clock()
            if now > end:
                return False
            looks = LOOKS_ALONE if now - began < ALONE_NS else LOOKS_SHARED

    def arm(self) -> bool:
        barrier = self._fence.barrier
        if barrier is not None:
            self._words[self._sleep] = 1
            barrier()
        return self.ready()

    def disarm(self) -> None:
        if self._fence.barrier is not None:
            self._words[self._sleep] = 0

    def fileno(self) -> int:
        try:
            return self._poll.fileno()
        except ValueError as error:
            raise BrokenError("the connection is closed") from error

    def sleep(self, seconds: float) -> None:
        try:
            ready = self._poll.poll(seconds)
        except ValueError as error:
            raise BrokenError("the connection is closed") from error
        for fd, _ in ready:
            if fd != self._chime and not self.ready():
                raise self._link.broken()

    def outcome(self) -> tuple[int, bytes]:
        words = self._words
        length = words[self._rsp_meta]
        if length > len(self._meta_in):
            raise ProtocolError(f"the server tells of {length} bytes of metadata in {len(self._meta_in)}")
        return words[self._status], bytes(self._meta_in[:length]) if length else b""

    def close(self) -> None:
        self._poll.close()


class ShmLink(Link):
    """An attachment to a segment. Ends when closed, when the process that holds the memory dies, or hangs up."""

    def __init__(self, address: Address, hello: Hello, seconds: float) -> None:
        self.fence = fence()
        self.closed = False
        # A child after fork() closes its copies, and says nothing.
        self._made_in = os.getpid()
        self.address = address
        self._fds: list[int] = []
        self.lanes = []
        self._sock = connect_unix(address, seconds)
        try:
            self._attach(hello)
        except BaseException:
            self.close()
            raise

    def _attach(self, hello: Hello) -> None:
        """Shake hands, map, and make the lanes."""
        header, payload = greet(self._sock, control_frame(Kind.HELLO, hello), self._fds)
        welcome = parse_welcome(header, payload)
        lanes, told = welcome.lanes, welcome.geometry
        if told is None or len(self._fds) != 1 + 2 * len(lanes):
            raise ProtocolError(f"the server passed {len(self._fds)} descriptors for {len(lanes)} lanes")
        self.segment = _shm.attach(self._fds.pop(0), told)
        self.schema: Schema = self.segment.schema
        check_geometry(told, self.schema, lanes, os.fstat(self.segment.fd).st_size)
        self.spin_ns = min(welcome.spin_ns, 20 * SPIN_NS)
        pid, _, _ = _linux.peer_credentials(self._sock)
        self.pid = pid
        self.peer = f"{self.address}, process {pid}"
        self.death_fds = [self._sock.fileno(), *([] if welcome.kept else self._pidfd())]
        self.lanes = [
            ShmLane(self, lane, *self._fds[2 * i : 2 * i + 2]) for i, lane in enumerate(lanes)
        ]
        self._sock.setblocking(False)

    def _pidfd(self) -> list[int]:
        """A pidfd of the holder where the kernel has it: a descriptor that a child inherited cannot hide its death."""
        fd = pidfd_of_server(self._sock)
        if fd < 0:
            return []
        self._fds.append(fd)
        return [fd]

    def broken(self) -> BrokenError:
        """The error for a holder that is gone."""
        return BrokenError(f"{self.peer} is gone", facts={"pid": self.pid, "address": str(self.address)})

    def hang_up(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self.lanes and os.getpid() == self._made_in:
            with contextlib.suppress(OSError):
                self._sock.send(bye_frame())
            # All lanes wait for its end as well.
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.hang_up()
        if self._sock.fileno() < 0:
            return
        for lane in self.lanes:
            lane.close()
        self._sock.close()
        for fd in self._fds:
            os.close(fd)
        self._fds = []
        if hasattr(self, "segment"):
            self.segment.close()
