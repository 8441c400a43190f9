# SPDX-License-Identifier: Apache-2.0
"""Opens a server's ends of its addresses, with what the caller chose."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from firsttouch._guests import Guests
from firsttouch._keeper import Keeper
from firsttouch._shm_server import Domain, ShmPort
from firsttouch._sockets import Listener, listen_tcp, listen_unix
from firsttouch._stream_server import StreamPort
from firsttouch._tls import Tls, context_for
from firsttouch._transport import Address, Poller, Port
from firsttouch._waiting import SPIN_NS
from firsttouch._wire import Schema
from firsttouch.errors import SchemaError


@dataclass(frozen=True)
class Options:
    """How a server serves.

    lanes: how many requests can be under way in shared memory. pages: auto, hugetlb, thp or 4k. node: the memory node
    to bind to. socket_mode: of the socket's file. guests: who else may connect. tls: for tcp, and a must off
    loopback. domain, listeners: what another process keeps for this one; standby: a server is at work there, and this
    one begins with InferenceServer.begin().
    """

    lanes: int = 64
    spin_ns: int = SPIN_NS
    pages: str = "auto"
    node: int | None = None
    socket_mode: int = 0o660
    guests: Guests = field(default_factory=Guests)
    tls: Tls | None = None
    domain: Domain | None = None
    standby: bool = False
    listeners: Mapping[Address, Listener] = field(default_factory=dict)


class KeptPort(ShmPort):
    """A port whose domain is leased by a thread of this process."""

    def __init__(self, address: Address, domain: Domain, poller: Poller, keeper: Keeper) -> None:
        super().__init__(address, domain, poller)
        self.keeper = keeper
        self._thread = threading.Thread(target=keeper.run, name="firsttouch-keeper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.keeper.stop()
        self._thread.join()
        super().close()
        self.domain.close()


def open_port(address: Address, schema: Schema | None, options: Options, poller: Poller) -> Port:
    """Listen at ADDRESS. See InferenceServer for what it raises."""
    if options.domain is not None and address.scheme == "shm":
        return ShmPort(address, options.domain, poller, standby=options.standby)
    if schema is None:
        raise SchemaError(f"{address} needs a schema")
    return _OPENERS[address.scheme](address, schema, options, poller)


def make_keeper(address: Address, schema: Schema, options: Options) -> tuple[Domain, Keeper]:
    """A domain, and who leases it at ADDRESS."""
    listener = listen_unix(address, options.socket_mode)
    try:
        domain = Domain.create(
            schema,
            options.lanes,
            pages=options.pages,
            node=options.node,
            spin_ns=options.spin_ns,
            strangers=options.guests.strangers,
        )
    except BaseException:
        listener.close()
        raise
    return domain, Keeper(domain, listener, options.guests, options.spin_ns)


def _open_shm(address: Address, schema: Schema, options: Options, poller: Poller) -> Port:
    """Shared memory with its keeper in this process."""
    domain, keeper = make_keeper(address, schema, options)
    return KeptPort(address, domain, poller, keeper)


def _context(address: Address, options: Options) -> ssl.SSLContext | None:
    """That of a server at ADDRESS; its other addresses, which are no tcp, are beside TLS."""
    return context_for(address, options.tls if address.scheme == "tcp" else None, server=True)


def listen(address: Address, options: Options) -> tuple[Address, Listener]:
    """Listen at a unix or tcp address; the address has the port that was given for 0.

    Raises RefusedError off loopback without TLS.
    """
    _context(address, options)
    if address.scheme == "unix":
        return address, listen_unix(address, options.socket_mode)
    listener = listen_tcp(address)
    return address._replace(port=listener.sock.getsockname()[1]), listener


def _open_stream(address: Address, schema: Schema, options: Options, poller: Poller) -> Port:
    """A unix socket or tcp."""
    context = _context(address, options)
    listener = options.listeners.get(address)
    if listener is None:
        address, listener = listen(address, options)
    else:
        # Its name stays when this server ends: whoever keeps the listener takes that away.
        listener = listener._replace(path="")
    return StreamPort(
        address,
        schema,
        listener,
        poller,
        limit=options.lanes,
        guests=options.guests,
        context=context,
        spin_ns=options.spin_ns,
    )


_OPENERS: dict[str, Callable[[Address, Schema, Options, Poller], Port]] = {
    "shm": _open_shm,
    "unix": _open_stream,
    "tcp": _open_stream,
}
