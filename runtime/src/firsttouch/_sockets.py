# SPDX-License-Identifier: Apache-2.0
"""Sockets that both transports share: listen, connect, the frames of the handshake, and descriptors that come along."""

from __future__ import annotations

import array
import contextlib
import errno
import os
import select
import socket
import ssl
import stat
import time
from collections.abc import Callable
from typing import NamedTuple

from firsttouch._stream import WOULD_BLOCK
from firsttouch._transport import Address, Poller
from firsttouch._wire import HEADER_BYTES, Header, control_length, unpack_header
from firsttouch.errors import (
    AddressError,
    BrokenError,
    BusyError,
    ExpiredError,
    ProtocolError,
    RefusedError,
)

_MAX_FDS = 253
BACKLOG = 128
# What there is too little of for the moment: descriptors of the process or of the host, memory.
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
AWAY_SECONDS = 0.1


class Listener(NamedTuple):
    """A listening socket; of a unix socket also the inode of its name."""

    sock: socket.socket
    path: str = ""
    inode: int = 0

    def close(self) -> None:
        """Stop listening, and take the name away unless another server has it by now."""
        self.sock.close()
        with contextlib.suppress(OSError):
            if self.path and os.stat(self.path).st_ino == self.inode:
                os.unlink(self.path)


class Door:
    """Has POLLER call CALL when somebody comes to LISTENER. Without a descriptor for a while it looks away.

    Who waits there keeps the listener readable, so that a poller would look at nothing else.
    """

    def __init__(self, listener: Listener, poller: Poller, call: Callable[[int], None]) -> None:
        self._listener, self._poller, self._call = listener, poller, call
        # When it looks there again, on the monotonic clock; 0 while it does.
        self.away_until = 0.0
        poller.add(listener.sock.fileno(), call, select.EPOLLIN)

    def accept(self) -> socket.socket | None:
        """A connection, None when there is none to be had now."""
        try:
            return self._listener.sock.accept()[0]
        except OSError as error:
            if error.errno in _SHORT:
                self._poller.drop(self._listener.sock.fileno())
                self.away_until = time.monotonic() + AWAY_SECONDS
        return None

    def look(self) -> None:
        """Look there again when it is time. Call it now and then while away_until is not 0."""
        if self.away_until and time.monotonic() >= self.away_until:
            try:
                self._poller.add(self._listener.sock.fileno(), self._call, select.EPOLLIN)
            except OSError:
                self.away_until += AWAY_SECONDS
            else:
                self.away_until = 0.0

    def close(self) -> None:
        """Look there no more, and stop listening."""
        self._poller.drop(self._listener.sock.fileno())
        self._listener.close()


def listen_unix(address: Address, mode: int) -> Listener:
    """Listen at a path that nobody serves; a socket that a dead server left is replaced.

    Raises BusyError when somebody serves there, AddressError when the path is something else or cannot be made.
    """
    _check_free(address)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    scratch = f"{address.path}.{os.getpid()}"
    try:
        sock.bind(scratch)
        os.chmod(scratch, mode)
        sock.listen(BACKLOG)
        inode = os.stat(scratch).st_ino
        # The name appears when the socket listens and has its mode.
        os.rename(scratch, address.path)
    except OSError as error:
        sock.close()
        with contextlib.suppress(OSError):
            os.unlink(scratch)
        raise AddressError(
            f"cannot listen at {address}: {error.strerror or error}", hint="make its folder, writable"
        ) from error
    sock.setblocking(False)
    return Listener(sock, address.path, inode)


def listen_tcp(address: Address) -> Listener:
    """Listen at a host and port, 0 for any. Raises BusyError, AddressError."""
    try:
        family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
        sock = socket.create_server((address.host, address.port), family=family, backlog=BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise BusyError(f"{address} is served already", hint="choose another port") from error
        raise AddressError(f"cannot listen at {address}: {error.strerror or error}") from error
    sock.setblocking(False)
    return Listener(sock)


def _check_free(address: Address) -> None:
    """Raise unless the path is free or a dead server's socket."""
    try:
        mode = os.lstat(address.path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise AddressError(f"cannot look at {address.path}: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise AddressError(f"{address.path} is there and is no socket", hint="take it away, or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(address.path)
        except ConnectionRefusedError:
            return
        except OSError as error:
            raise BusyError(f"{address} may be served: {error.strerror or error}") from error
    raise BusyError(f"{address} is served already", hint="choose another name, or end that server")


def connect_unix(address: Address, seconds: float) -> socket.socket:
    """A connection to the server at a path, which waits at most SECONDS in each call.

    Raises BrokenError when nobody serves there, RefusedError without permission, AddressError.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(seconds)
    try:
        sock.connect(address.path)
    except OSError as error:
        sock.close()
        raise connect_error(address, error) from error
    return sock


def connect_error(address: Address, error: OSError) -> BrokenError | RefusedError | ExpiredError:
    """What a failed connect() means."""
    if isinstance(error, PermissionError):
        return RefusedError(f"no permission to connect to {address}", hint="join the group of its socket")
    if isinstance(error, TimeoutError):
        return ExpiredError(f"{address} did not accept in time")
    return BrokenError(f"nobody serves {address}: {error.strerror or error}", facts={"errno": error.errno})


def greet(sock: socket.socket, frame: bytes, fds: list[int] | None = None) -> tuple[Header, bytes]:
    """Send the greeting FRAME and read what comes back. Raises as read_control() does."""
    # A server that refuses this user has hung up already; what it said is there to be read.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError, ssl.SSLError):
        sock.sendall(frame)
    return read_control(sock, fds)


def read_control(sock: socket.socket, fds: list[int] | None = None) -> tuple[Header, bytes]:
    """One frame of the handshake from a socket, whole within its timeout; descriptors that come along are added to FDS.

    Raises ProtocolError, BrokenError, ExpiredError.
    """
    seconds = sock.gettimeout()
    assert seconds
    until = time.monotonic() + seconds
    try:
        head = _read_exactly(sock, HEADER_BYTES, fds, until)
        header = unpack_header(head)
        return header, _read_exactly(sock, control_length(header), fds, until)
    finally:
        sock.settimeout(seconds)


def _read_exactly(sock: socket.socket, count: int, fds: list[int] | None, until: float) -> bytes:
    """COUNT bytes, before UNTIL on the monotonic clock."""
    data = b""
    while len(data) < count:
        try:
            # A timeout is that of one call, and a peer may send byte by byte. Of 0: what is there by now.
            sock.settimeout(max(0.0, until - time.monotonic()))
            part, passed = receive(sock, count - len(data), fds is not None)
        except (TimeoutError, *WOULD_BLOCK) as error:
            raise ExpiredError("the peer did not finish its handshake in time") from error
        except OSError as error:
            if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
                raise RefusedError(f"the peer ended TLS: {error}", hint="look at both sides' certificates") from error
            raise BrokenError(f"the peer hung up in the handshake: {error.strerror}") from error
        if fds is not None:
            fds.extend(passed)
        if not part:
            raise BrokenError("the peer hung up in the handshake")
        data += part
    return data


def receive(sock: socket.socket, count: int, with_fds: bool) -> tuple[bytes, list[int]]:
    """Up to COUNT bytes and the descriptors that came with them. Raises OSError."""
    if not with_fds:
        return sock.recv(count), []
    room = socket.CMSG_LEN(_MAX_FDS * 4)
    data, ancillary, flags, _ = sock.recvmsg(count, room, socket.MSG_CMSG_CLOEXEC)
    passed: list[int] = []
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            passed.extend(array.array("i", payload[: len(payload) // 4 * 4]))
    if flags & socket.MSG_CTRUNC:
        for fd in passed:
            os.close(fd)
        raise ProtocolError("descriptors got lost on the way", hint="raise the limit of open files")
    return data, passed
