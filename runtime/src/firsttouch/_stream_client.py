# SPDX-License-Identifier: Apache-2.0
"""The client's end of unix and tcp: each lane is a connection."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import time
from collections.abc import Mapping

from firsttouch._guests import pidfd_of_server
from firsttouch._lanes import reply_meta_room
from firsttouch._sockets import connect_error, connect_unix, greet
from firsttouch._stream import WOULD_BLOCK, Frame, tune
from firsttouch._tls import Tls, context_for
from firsttouch._transport import READABLE, WRITABLE, Address, Lane, Link
from firsttouch._waiting import SPIN_NS
from firsttouch._wire import (
    HEADER_BYTES,
    NO_DEADLINE,
    REPLIES,
    Array,
    Header,
    Hello,
    Kind,
    Schema,
    Status,
    Writer,
    bye_frame,
    check_data,
    control_frame,
    parse_welcome,
    unpack_header,
)
from firsttouch.errors import BrokenError, BusyError, ProtocolError, RefusedError

_clock = time.monotonic_ns
_sched_yield = os.sched_yield


class StreamLane(Lane):
    """One connection with one request at a time."""

    def __init__(self, link: StreamLink, sock: socket.socket) -> None:
        self._link, self._sock = link, sock
        schema = link.schema
        self._room = reply_meta_room(schema)
        self._out = Frame(schema.request, schema.max_meta_bytes)
        self._in = Frame(schema.reply, self._room)
        self.request = schema.request.views(self._out.body)
        self.reply = schema.reply.views(self._in.body.toreadonly())
        self._copy = Writer(self.request)
        self.answer = tuple(self.reply.items())
        self._body = schema.request.nbytes
        self._seq = 0
        self._header: Header | None = None
        self._pending = self._failed = self.tried = False
        # A child after fork() closes its copies, and says nothing.
        self._made_in = os.getpid()
        tune(sock)
        self._poll = select.epoll()
        self._fd = sock.fileno()
        self._pidfd = pidfd_of_server(sock) if sock.family == socket.AF_UNIX else -1
        try:
            self._poll.register(self._fd, READABLE)
            if self._pidfd >= 0:
                self._poll.register(self._pidfd, select.EPOLLIN)
        except OSError as error:
            self._poll.close()
            if self._pidfd >= 0:
                os.close(self._pidfd)
            raise BusyError(f"{link.peer} cannot be waited for: {error.strerror}") from error

    def write(self, arrays: Mapping[str, Array]) -> None:
        self._copy(arrays)

    def submit(self, meta: bytes, deadline_ns: int, again: bool = False) -> None:
        if self._link.closed or self._failed:
            self.tried = False
            raise self._link.broken()
        # Whether a first one is taken nobody tells.
        self.tried = not again
        self._seq += 1
        self._header = None
        self._in.done = 0
        now = _clock()
        left = NO_DEADLINE if deadline_ns >= NO_DEADLINE else max(0, deadline_ns - now)
        kind = Kind.REQUEST_AGAIN if again else Kind.REQUEST
        self._out.fill(Header(kind, Status.OK, len(meta), self._body, self._seq, left, now), meta)
        self._pending = True
        if not self._send():
            self._poll.modify(self._fd, READABLE | WRITABLE)

    def _send(self) -> bool:
        """Send on. Raises BrokenError."""
        try:
            return self._out.send(self._sock)
        except (OSError, ValueError) as error:
            raise self._broken(error) from error

    def ready(self) -> bool:
        if not self._pending:
            return True
        if self._out.done < self._out.end and self._send():
            self._poll.modify(self._fd, READABLE)
        frame, header = self._in, self._header
        try:
            while True:
                if header is None and frame.done >= HEADER_BYTES:
                    header = unpack_header(frame.memory)
                    if not self.tried and header.kind == Kind.TAKEN:
                        self._note_taken(header)
                        header = None
                        continue
                    self._header = self._check(header)
                    frame.end = HEADER_BYTES + header.body_len + header.meta_len
                if header is not None and frame.done >= frame.end:
                    break
                count = self._sock.recv_into(frame.memory[frame.done :])
                if not count:
                    raise self._broken(None)
                frame.done += count
        except WOULD_BLOCK:
            return False
        except (OSError, ValueError) as error:
            raise self._broken(error) from error
        except ProtocolError:
            self._failed = True
            raise
        if frame.done > frame.end:
            self._failed = True
            raise ProtocolError(f"{self._link.peer} sent {frame.done - frame.end} bytes after its answer")
        self._pending = False
        return True

    def _note_taken(self, header: Header) -> None:
        """The server has what was sent again: once for each request. Raises ProtocolError."""
        if header.meta_len or header.body_len or header.sequence != self._seq:
            raise ProtocolError(
                f"{self._link.peer} took request {header.sequence} with {header.meta_len} + {header.body_len} bytes; "
                f"{self._seq} with none was due"
            )
        self.tried = True
        frame = self._in
        # The answer may have come along.
        frame.done -= HEADER_BYTES
        frame.memory[: frame.done] = frame.memory[HEADER_BYTES : HEADER_BYTES + frame.done]

    def _check(self, header: Header) -> Header:
        """HEADER of the answer that is due. Raises ProtocolError."""
        check_data(header, REPLIES, self._in.rows, self._room)
        if header.sequence != self._seq:
            raise ProtocolError(f"{self._link.peer} answers request {header.sequence}, not {self._seq}")
        return header

    def _broken(self, error: Exception | None) -> BrokenError:
        """The connection cannot be used any more."""
        self._failed = True
        return self._link.broken(error)

    def spin(self) -> bool:
        end = _clock() + self._link.spin_ns
        poll = self._poll.poll
        while _clock() < end:
            if poll(0) and self.ready():
                return True
            _sched_yield()
        return False

    def arm(self) -> bool:
        # TLS may hold what the socket no longer shows.
        return isinstance(self._sock, ssl.SSLSocket) and self._sock.pending() > 0 and self.ready()

    def disarm(self) -> None:
        pass

    def fileno(self) -> int:
        try:
            return self._poll.fileno()
        except ValueError as error:
            raise self._broken(None) from error

    def sleep(self, seconds: float) -> None:
        try:
            ready = self._poll.poll(seconds)
        except ValueError as error:
            raise self._broken(None) from error
        if len(ready) == 1 and ready[0][0] == self._pidfd and not self.ready():
            # Its last answer would have been readable.
            raise self._broken(None)

    def outcome(self) -> tuple[int, bytes]:
        assert self._header is not None
        return self._header.status, self._in.meta(self._header)

    def hang_up(self) -> None:
        """Say goodbye, unless an answer is under way, and wake who waits."""
        if os.getpid() != self._made_in:
            return
        if not (self._failed or self._pending):
            with contextlib.suppress(OSError, ValueError):
                self._sock.send(bye_frame())
        with contextlib.suppress(OSError):
            # Not the TLS socket's own, which would take the state of TLS from under who reads.
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        self._poll.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        self._sock.close()


class StreamLink(Link):
    """As many connections to one server as there are lanes."""

    def __init__(self, address: Address, hello: Hello, lanes: int, seconds: float, tls: Tls | None) -> None:
        self.address, self.closed, self.spin_ns = address, False, 0
        self.peer = str(address)
        self.lanes = []
        context = context_for(address, tls, server=False)
        try:
            for _ in range(lanes):
                self._open(hello, seconds, context)
        except BaseException:
            self.close()
            raise

    def _open(self, hello: Hello, seconds: float, context: ssl.SSLContext | None) -> None:
        """One more connection."""
        sock = _connect(self.address, seconds, context)
        try:
            header, payload = greet(sock, control_frame(Kind.HELLO, hello))
            welcome = parse_welcome(header, payload)
            schema = Schema.parse(welcome.schema)
            if self.lanes and schema.digest != self.schema.digest:
                raise BrokenError(f"{self.peer} changed its schema")
            self.schema = schema
            self.spin_ns = min(welcome.spin_ns, 20 * SPIN_NS)
            if self.address.scheme == "unix":
                self.peer = f"{self.address}, process {welcome.pid}"
            self.lanes.append(StreamLane(self, sock))
        except BaseException:
            sock.close()
            raise

    def broken(self, error: Exception | None = None) -> BrokenError:
        """The error for a connection that ended."""
        reason = f": {error}" if error else ""
        return BrokenError(f"{self.peer} hung up{reason}", facts={"address": str(self.address)})

    def hang_up(self) -> None:
        if self.closed:
            return
        self.closed = True
        for lane in self.lanes:
            assert isinstance(lane, StreamLane)
            lane.hang_up()

    def close(self) -> None:
        self.hang_up()
        lanes, self.lanes = self.lanes, []
        for lane in lanes:
            lane.close()


def _connect(address: Address, seconds: float, context: ssl.SSLContext | None) -> socket.socket:
    """A connected socket that waits for at most SECONDS. Raises BrokenError, RefusedError, ExpiredError."""
    if address.scheme == "unix":
        return connect_unix(address, seconds)
    try:
        sock = socket.create_connection((address.host, address.port), timeout=seconds)
    except OSError as error:
        raise connect_error(address, error) from error
    if context is None:
        return sock
    try:
        return context.wrap_socket(sock, server_hostname=address.host)
    except ssl.SSLError as error:
        sock.close()
        raise RefusedError(f"no TLS with {address}: {error}", hint="look at both sides' certificates") from error
    except OSError as error:
        sock.close()
        raise connect_error(address, error) from error
