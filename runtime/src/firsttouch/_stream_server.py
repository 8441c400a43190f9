# SPDX-License-Identifier: Apache-2.0
"""The server's end of unix and tcp: connections that are read into place, and never waited for."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import time
from enum import Enum, auto

from firsttouch import _linux
from firsttouch._guests import HANDSHAKE_SECONDS, MAX_WAITING, Guests, check_hello, pidfd_of_client
from firsttouch._lanes import reply_meta_room
from firsttouch._shm_server import field_arrays, field_bytes
from firsttouch._sockets import Door, Listener
from firsttouch._stream import WOULD_BLOCK, Frame, tune
from firsttouch._transport import READABLE, WRITABLE, Address, Poller, Port, Slot
from firsttouch._wire import (
    HEADER_BYTES,
    NO_DEADLINE,
    REQUESTS,
    Header,
    Kind,
    Schema,
    Status,
    Welcome,
    check_data,
    control_frame,
    control_length,
    parse_hello,
    refusal,
    taken_frame,
    unpack_header,
)
from firsttouch.errors import BusyError, ProtocolError, TransportError

_clock = time.monotonic_ns
_sched_yield = os.sched_yield
_AGAIN = int(Kind.REQUEST_AGAIN)


class _State(Enum):
    """What a connection is at."""

    TLS = auto()
    GREETING = auto()
    READING = auto()
    WHOLE = auto()
    ANSWERING = auto()
    CLOSED = auto()


class Connection(Slot):
    """One client's connection. All of its errors end it, and nothing else."""

    def __init__(self, port: StreamPort, sock: socket.socket, peer: str) -> None:
        self._port, self._sock, self.peer = port, sock, peer
        self._tls = isinstance(sock, ssl.SSLSocket)
        self.state = _State.TLS if self._tls else _State.GREETING
        self.again = False
        self._local = sock.family == socket.AF_UNIX
        self.since = time.monotonic()
        self.fd = sock.fileno()
        self.pidfd = -1
        self.deadline_ns = self.submit_ns = 0
        # Whether an answer waits for the client to read.
        self._blocked = False
        self._greeting = bytearray()
        self._header: Header | None = None
        self.fields, self.reply_fields = [], []

    def on_event(self, _: int) -> None:
        """Go on as far as it goes without waiting."""
        try:
            self._step()
        except WOULD_BLOCK:
            pass
        except TransportError as error:
            self._refuse(error)
        except (EOFError, ConnectionError):
            self.died(0)
        except (OSError, ValueError):
            self.close()

    def _step(self) -> None:
        """Raises OSError, TransportError."""
        if self.state is _State.TLS:
            assert isinstance(self._sock, ssl.SSLSocket)
            self._sock.do_handshake()
            self.state = _State.GREETING
        if self.state is _State.GREETING:
            self._greet()
        if self.state is _State.ANSWERING:
            self._answer()
        if self.state is _State.READING:
            self._read()
        elif self.state is _State.WHOLE:
            self._look()

    def _greet(self) -> None:
        """Read on in the greeting, and welcome the client when it is whole."""
        want = HEADER_BYTES
        while True:
            if len(self._greeting) >= HEADER_BYTES:
                header = unpack_header(self._greeting)
                want = HEADER_BYTES + control_length(header)
                if len(self._greeting) == want:
                    break
            data = self._sock.recv(want - len(self._greeting))
            if not data:
                raise OSError("end of stream")
            self._greeting += data
        hello = parse_hello(header, bytes(self._greeting[HEADER_BYTES:]))
        check_hello(hello, "stream", self._port.schema)
        if self._local:
            self.pidfd = pidfd_of_client(self._sock, hello.start)
        self._port.welcome(self)
        schema = self._port.schema
        self._in = Frame(schema.request, schema.max_meta_bytes)
        self._out = Frame(schema.reply, reply_meta_room(schema))
        self.fields = field_bytes(schema.request, self._in.body.toreadonly())
        self.reply_fields = field_arrays(schema.reply, self._out.body)
        frame = control_frame(Kind.WELCOME, Welcome(schema=schema.blob, pid=os.getpid(), spin_ns=self._port.spin_ns))
        if self._sock.send(frame) != len(frame):
            raise OSError("the socket takes no greeting")
        self.state = _State.READING

    def _read(self) -> None:
        """Read on in a request."""
        frame = self._in
        while True:
            if self._header is None and frame.done >= HEADER_BYTES:
                header = unpack_header(frame.memory)
                if header.kind == Kind.BYE:
                    self.close()
                    return
                check_data(header, REQUESTS, frame.rows, self._port.schema.max_meta_bytes)
                self._header = header
                frame.end = HEADER_BYTES + header.body_len + header.meta_len
            if self._header is not None and frame.done >= frame.end:
                break
            count = self._sock.recv_into(frame.memory[frame.done :])
            if not count:
                raise EOFError
            frame.done += count
        if frame.done > frame.end:
            raise ProtocolError("a request came before the one before it was answered")
        now = _clock()
        # Over tcp the peer's clock may be another: its time counts from here.
        self.submit_ns = min(self._header.sent_ns, now) if self._local else now
        left = self._header.time_left_ns
        self.deadline_ns = NO_DEADLINE if left == NO_DEADLINE else self.submit_ns + left
        self.again = self._header.kind == Kind.REQUEST_AGAIN
        self.state = _State.WHOLE
        self._port.whole.append(self)

    def _look(self) -> None:
        """Something came while a request is under way: an end, or what may not come."""
        if self._sock.recv(1) == b"":
            raise EOFError
        raise ProtocolError("a request came before the one before it was answered")

    def accept(self) -> bytes:
        header = self._header
        if header is None:
            raise ProtocolError("the client hung up")
        if header.kind == _AGAIN:
            self._tell_taken(header.sequence)
        return self._in.meta(header)

    def _tell_taken(self, sequence: int) -> None:
        """Say that the request which was under way when a server died is run now, before it is.

        From a client that was not told it would be none of its tries. Raises ProtocolError when that cannot be said.
        """
        try:
            told = self._sock.send(taken_frame(sequence)) == HEADER_BYTES
        except (OSError, ValueError):
            told = False
        if not told:
            self.close()
            raise ProtocolError("the client could not be told that its request is taken")

    def finish(self, status: Status, meta: bytes) -> None:
        header = self._header
        if self.state is not _State.WHOLE or header is None:
            return
        body = self._port.schema.reply.nbytes if status is Status.OK else 0
        self._out.fill(Header(Kind.REPLY, status, len(meta), body, header.sequence, NO_DEADLINE), meta)
        self._header = None
        self._in.done = 0
        self.state = _State.ANSWERING
        try:
            self._answer()
        except (OSError, ValueError):
            self.close()

    def _answer(self) -> None:
        """Send on in the answer."""
        out = self._out.send(self._sock)
        if out:
            self.state = _State.READING
        if out == self._blocked:
            self._blocked = not out
            self._port.poller.change(self.fd, READABLE if out else READABLE | WRITABLE)

    def _refuse(self, error: TransportError) -> None:
        """Say why, and hang up."""
        self._port.refused += 1
        status = Status.BUSY if isinstance(error, BusyError) else None
        with contextlib.suppress(OSError, ValueError):
            self._sock.send(control_frame(Kind.ERROR, refusal(error, status)))
        self.close()

    def died(self, _: int) -> None:
        """The client's process is gone, whoever still holds its socket; or it hung up without a word."""
        if self.state not in (_State.CLOSED, _State.TLS, _State.GREETING):
            self._port.deaths += 1
        self.close()

    def close(self) -> None:
        """Hang up. A batch that has this request goes on, its answer goes nowhere."""
        if self.state is _State.CLOSED:
            return
        self.state = _State.CLOSED
        self._port.forget(self)
        self._sock.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


class StreamPort(Port):
    """Accepts connections, and collects the requests that are whole."""

    def __init__(
        self,
        address: Address,
        schema: Schema,
        listener: Listener,
        poller: Poller,
        *,
        limit: int,
        guests: Guests,
        context: ssl.SSLContext | None,
        spin_ns: int = 0,
    ) -> None:
        self.address, self.schema, self.poller, self.spin_ns = address, schema, poller, spin_ns
        self._limit, self._guests, self._context = limit, guests, context
        self.whole: list[Connection] = []
        self._all: dict[int, Connection] = {}
        self._greeted: set[int] = set()
        self.refused = self.deaths = 0
        self._door = Door(listener, poller, self._accept)

    def _accept(self, _: int) -> None:
        """Take one connection."""
        sock = self._door.accept()
        if sock is None:
            return
        self._end_late_greetings()
        try:
            tune(sock)
            if self._context is not None:
                sock = self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            peer, error = self._identify(sock)
        except (OSError, ValueError):
            sock.close()
            return
        connection = Connection(self, sock, peer)
        self._all[connection.fd] = connection
        if error is None and len(self._all) - len(self._greeted) > MAX_WAITING:
            error = BusyError(f"more than {MAX_WAITING} connections are in their handshake")
        if error is not None:
            connection._refuse(error)
            return
        try:
            self.poller.add(connection.fd, connection.on_event)
        except OSError as why:
            connection._refuse(BusyError(f"the connection cannot be waited for: {why.strerror}"))

    def _identify(self, sock: socket.socket) -> tuple[str, TransportError | None]:
        """Who is at the other end, and why it may not be there. Raises OSError."""
        if sock.family != socket.AF_UNIX:
            return str(sock.getpeername()[:2]), None
        pid, uid, gid = _linux.peer_credentials(sock)
        peer = f"process {pid}, user {uid}"
        try:
            self._guests.check(pid, uid, gid, sock)
        except TransportError as error:
            return peer, error
        return peer, None

    def welcome(self, connection: Connection) -> None:
        """Count a client that has greeted, and watch it. Raises BusyError when there are too many."""
        if len(self._greeted) >= self._limit:
            raise BusyError(f"all {self._limit} connections are in use", hint="give the server more lanes")
        self._greeted.add(connection.fd)
        # Without it the end of the socket tells, unless a child of the client has that too.
        with contextlib.suppress(OSError):
            if connection.pidfd >= 0:
                self.poller.add(connection.pidfd, connection.died, select.EPOLLIN)

    def forget(self, connection: Connection) -> None:
        """CONNECTION is about to be closed."""
        self.poller.drop(connection.fd)
        if connection.pidfd >= 0:
            self.poller.drop(connection.pidfd)
        self._all.pop(connection.fd, None)
        self._greeted.discard(connection.fd)
        if connection in self.whole:
            self.whole.remove(connection)

    def _end_late_greetings(self) -> None:
        """Hang up on who connected and said nothing."""
        if len(self._all) == len(self._greeted):
            return
        oldest = time.monotonic() - HANDSHAKE_SECONDS
        for connection in [item for fd, item in self._all.items() if fd not in self._greeted and item.since < oldest]:
            connection._refuse(ProtocolError(f"no greeting within {HANDSHAKE_SECONDS} s"))

    @property
    def cautious(self) -> bool:
        return bool(self.whole) and self.whole[0].again

    def spin(self, limit: int, span_ns: int) -> list[Slot]:
        run, whole = self.poller.run, self.whole
        end = _clock() + span_ns
        while True:
            run(0)
            if whole:
                return self.ready(limit)
            _sched_yield()
            if _clock() > end:
                return []

    def ready(self, limit: int) -> list[Slot]:
        # First come, first served: each connection has at most one request here. What was under way when a server
        # died is taken alone, so that a request that kills its server takes no other one along twice. accept() tells
        # its client: those that wait meanwhile do not count what deaths there are (client.py).
        if self._door.away_until:
            self._door.look()
        whole = self.whole
        for i, connection in enumerate(whole[:limit]):
            if connection.again:
                limit = max(i, 1)
                break
        found: list[Slot] = [*whole[:limit]]
        del whole[:limit]
        return found

    def arm(self) -> bool:
        self._end_late_greetings()
        self._door.look()
        return bool(self.whole)

    def disarm(self) -> None:
        pass

    def begin(self) -> None:
        pass

    def gauges(self) -> list[tuple[str, str, int]]:
        return [
            ("clients", "gauge", len(self._greeted)),
            ("deaths_total", "counter", self.deaths),
            ("refused_total", "counter", self.refused),
        ]

    def close(self) -> None:
        for connection in list(self._all.values()):
            connection.close()
        self._door.close()
