# SPDX-License-Identifier: Apache-2.0
"""What a transport must offer to the client and to the server, addresses, and the loop over descriptors.

The client's end of a transport is a Link with Lanes, the server's a Port with Slots. A lane and its slot carry one
request at a time: idle, pending, answered. The shells (client.py, server.py) know nothing else of a transport.
"""

from __future__ import annotations

import contextlib
import ipaddress
import select
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from firsttouch._wire import Array, Schema, Status
from firsttouch.errors import AddressError

SCHEMES: Final = ("shm", "unix", "tcp")
# sun_path of struct sockaddr_un has 108 bytes and ends with a zero.
# 12 of them are left for the name that a socket has before it listens.
MAX_PATH_BYTES: Final = 95
READABLE: Final = select.EPOLLIN | select.EPOLLRDHUP
WRITABLE: Final = select.EPOLLOUT


class Address(NamedTuple):
    """Where a server is: path for shm and unix, host and port for tcp."""

    scheme: str
    path: str = ""
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        if self.scheme == "tcp":
            host = f"[{self.host}]" if ":" in self.host else self.host
            return f"tcp://{host}:{self.port}"
        return f"{self.scheme}://{self.path}"

    @property
    def is_loopback(self) -> bool:
        """Whether a tcp address is this host's own. A name other than localhost is not taken for it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_address(text: str) -> Address:
    """TEXT as an address. Raises AddressError."""
    scheme, colon, rest = text.partition("://")
    if not colon or scheme not in SCHEMES:
        raise AddressError(
            f"{text!r} is no address", hint="write shm:///path, unix:///path or tcp://host:port"
        )
    if scheme == "tcp":
        host, colon, port = rest.rpartition(":")
        host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if not (host and port.isascii() and port.isdigit() and int(port) < 65536):
            raise AddressError(f"{text!r} has no host and port", hint="write tcp://127.0.0.1:5555")
        return Address("tcp", host=host, port=int(port))
    if not rest.startswith("/") or "\0" in rest or rest.endswith("/"):
        raise AddressError(f"{text!r} has no absolute path", hint=f"write {scheme}:///run/firsttouch/name")
    if len(rest.encode()) > MAX_PATH_BYTES:
        raise AddressError(f"the path of {text!r} is longer than the {MAX_PATH_BYTES} bytes of a socket's name")
    return Address(scheme, path=rest)


class Poller:
    """Descriptors and what to do when one is ready. Ready is a level: a callback may find nothing to do."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self._calls: dict[int, Callable[[int], None]] = {}
        # What run() goes through.
        self._ready: list[tuple[int, int]] = []

    def add(self, fd: int, call: Callable[[int], None], events: int = READABLE) -> None:
        """Call CALL with the events whenever FD is ready for EVENTS."""
        self.epoll.register(fd, events)
        self._calls[fd] = call

    def change(self, fd: int, events: int) -> None:
        """Wait for other EVENTS of FD."""
        self.epoll.modify(fd, events)

    def drop(self, fd: int) -> None:
        """Forget FD, which is still open. Fine when it is not known."""
        if self._calls.pop(fd, None) is not None:
            with contextlib.suppress(OSError):
                self.epoll.unregister(fd)
            # Its number may be another's before its turn comes.
            for i, ready in enumerate(self._ready):
                if ready[0] == fd:
                    self._ready[i] = (-1, 0)

    def run(self, seconds: float) -> bool:
        """Wait for at most SECONDS, then run the calls of what is ready. Whether there was any."""
        ready = self._ready = self.epoll.poll(seconds)
        for fd, events in ready:
            # A call before this one may have dropped it.
            call = self._calls.get(fd)
            if call is not None:
                call(events)
        return bool(ready)

    def close(self) -> None:
        """Forget all. The descriptors stay open."""
        self._calls.clear()
        self.epoll.close()


class Lane(ABC):
    """A client's end: one request at a time, written into `request`, answered in `reply` (views of the transport).

    answer: the items of reply. tried: whether the server had what was submitted last, or may have had it.
    """

    request: dict[str, Array]
    reply: dict[str, Array]
    answer: tuple[tuple[str, Array], ...]
    tried: bool

    @abstractmethod
    def write(self, arrays: Mapping[str, Array]) -> None:
        """Copy ARRAYS into `request`, all or none; submit() follows. Raises SchemaError when they do not fit."""

    @abstractmethod
    def submit(self, meta: bytes, deadline_ns: int, again: bool = False) -> None:
        """Send what is in `request`, with META, to be answered before DEADLINE_NS of the monotonic clock.

        AGAIN: a connection broke while this was under way. Raises BrokenError.
        """

    @abstractmethod
    def ready(self) -> bool:
        """Whether the answer is in, after whatever progress needs no waiting. Raises BrokenError, ProtocolError."""

    @abstractmethod
    def spin(self) -> bool:
        """Wait for the answer on the CPU, for the transport's short time. Whether it is in."""

    @abstractmethod
    def arm(self) -> bool:
        """Get ready to sleep on fileno(). Whether the answer came meanwhile, so that there is no sleep."""

    @abstractmethod
    def disarm(self) -> None:
        """Be awake again."""

    @abstractmethod
    def fileno(self) -> int:
        """Readable when ready() should be asked again, also when the peer is gone."""

    @abstractmethod
    def sleep(self, seconds: float) -> None:
        """Wait for fileno() for at most SECONDS. Raises BrokenError when the peer is gone."""

    @abstractmethod
    def outcome(self) -> tuple[int, bytes]:
        """Status and metadata (or text) of the answer, once ready() said that it is in."""

    @abstractmethod
    def close(self) -> None:
        """Give the lane back."""


class Link(ABC):
    """A client's connection to a server."""

    address: Address
    schema: Schema
    lanes: list[Lane]
    peer: str

    @abstractmethod
    def hang_up(self) -> None:
        """Say goodbye, and wake whoever waits on a lane: from now on lanes raise BrokenError. close() follows."""

    @abstractmethod
    def close(self) -> None:
        """Hang up, and close all lanes and what they share. Nobody waits on a lane any more."""


class Slot(ABC):
    """A server's end of a lane. fields: the bytes of the request's arrays, reply_fields: the answer's arrays."""

    fields: list[memoryview]
    reply_fields: list[Array]
    peer: str
    deadline_ns: int
    submit_ns: int

    @abstractmethod
    def accept(self) -> bytes:
        """Take the request: its metadata, and sets deadline_ns and submit_ns.

        Raises ProtocolError, and HandlerError for a request that must not be tried again.
        """

    @abstractmethod
    def finish(self, status: Status, meta: bytes) -> None:
        """Publish the answer that is in reply_fields with META, or a failure with META as its text."""


class Port(ABC):
    """A server's end of an address. The server calls it from one thread."""

    address: Address
    schema: Schema

    @abstractmethod
    def begin(self) -> None:
        """Look at what there is now; for a port that was made in advance (Options.standby)."""

    @abstractmethod
    def ready(self, limit: int) -> list[Slot]:
        """Up to LIMIT slots, at least 1, whose request is whole and not accepted, without waiting; each in its turn."""

    @property
    @abstractmethod
    def cautious(self) -> bool:
        """Whether ready() gives one slot that must share its batch with no other: it may have killed a server."""

    @abstractmethod
    def spin(self, limit: int, span_ns: int) -> list[Slot]:
        """As ready(), after looking for up to SPAN_NS, with yields in between. For a server with this port alone."""

    @abstractmethod
    def arm(self) -> bool:
        """Get ready to sleep on the poller. Whether a request came meanwhile, so that there is no sleep."""

    @abstractmethod
    def disarm(self) -> None:
        """Be awake again."""

    @abstractmethod
    def gauges(self) -> list[tuple[str, str, int]]:
        """Name, Prometheus type and value of what this transport counts."""

    @abstractmethod
    def close(self) -> None:
        """Stop serving."""
