# SPDX-License-Identifier: Apache-2.0
"""What the service manager keeps while a server is dead: memory, doorbells, listeners, the connections of clients.

Each descriptor has a name that says what it is, since their order is not promised:

    segment, bell.LANE, chime.LANE   the domain
    listen.INODE.ADDRESS             a listener; ADDRESS is quoted, INODE is that of a unix socket's name
    peer.LANE.START                  the connection of the client whose first lane is LANE; START as in the greeting
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from urllib.parse import quote, unquote

from firsttouch import _shm
from firsttouch._shm_server import Domain
from firsttouch._sockets import BACKLOG, Listener
from firsttouch._systemd import Notifier
from firsttouch._transport import Address, parse_address
from firsttouch._waiting import fence, hush, ring
from firsttouch._wire import Schema
from firsttouch.errors import FirstTouchError

# Besides three descriptors for each lane: the segment and a few listeners.
SPARE_DESCRIPTORS = 8
_OF_DOMAIN = ("segment", "bell.", "chime.", "peer.")


class Store:
    """The manager's descriptors of this service. FOUND is what the process before this one left."""

    def __init__(self, notifier: Notifier, found: dict[str, int]) -> None:
        self._notifier, self._found = notifier, dict(found)
        self._kept = set(found)

    def names(self, prefix: str) -> list[str]:
        """The names of what was left and nobody took yet."""
        return [name for name in self._found if name.startswith(prefix)]

    def take(self, name: str) -> int:
        """The descriptor that was left under NAME, the caller's from now on. Raises KeyError."""
        return self._found.pop(name)

    def keep(self, name: str, fd: int, *, wait: bool = True) -> None:
        """Have FD kept. WAIT a little for a manager that is behind. Raises KernelError, and may be called again."""
        self._notifier.keep(name, fd, wait=wait)
        self._kept.add(name)

    def forget(self, name: str, *, wait: bool = True) -> None:
        """Have it closed. Fine when it is not kept. Raises KernelError, and may be called again."""
        if name in self._kept:
            self._notifier.forget(name, wait=wait)
            self._kept.discard(name)

    def drop(self, *prefixes: str) -> None:
        """Close and have closed what was left and nobody took, or only what has a name with one of PREFIXES."""
        for name in [name for name in self._found if not prefixes or name.startswith(prefixes)]:
            os.close(self._found.pop(name))
            self.forget(name)

    def clear(self) -> None:
        """Have everything closed."""
        self.drop()
        for name in sorted(self._kept):
            self.forget(name)


def keep_domain(store: Store, domain: Domain) -> None:
    """Have DOMAIN kept; the segment last, so that what is kept is whole when that is there."""
    for lane, (bell, chime) in enumerate(zip(domain.bells, domain.chimes, strict=True)):
        store.keep(f"bell.{lane}", bell)
        store.keep(f"chime.{lane}", chime)
    store.keep("segment", domain.segment.fd)


def take_domain(
    store: Store, schema: Schema, lanes: int, pages: str, node: int | None, say: Callable[[str], None]
) -> Domain | None:
    """The domain that was left, if it is whole and still what is asked for; what is of no use is closed."""
    if not store.names("segment"):
        store.drop(*_OF_DOMAIN)
        return None
    fence()
    try:
        segment = _shm.attach(store.take("segment"))
    except FirstTouchError as error:
        say(f"the memory that was kept is of no use: {error}")
        store.forget("segment")
        store.drop(*_OF_DOMAIN)
        return None
    bells: list[int] = []
    chimes: list[int] = []
    try:
        for lane in range(segment.geometry.n_lanes):
            bells.append(store.take(f"bell.{lane}"))
            chimes.append(store.take(f"chime.{lane}"))
        for chime in chimes:
            # A client of the release that shared the chimes themselves could make one block, and fill it up. Who sleeps
            # on an edge that this takes away is rung again.
            os.set_blocking(chime, False)
            hush(chime)
            ring(chime)
        segment.report = _shm.report_of(segment, node)
        why = _other(segment, schema, lanes, pages)
    except KeyError as error:
        why = f"{error.args[0]} is missing (FileDescriptorStoreMax= must be at least {3 * lanes + SPARE_DESCRIPTORS})"
    except OSError as error:
        why = str(error)
    domain = Domain(segment, bells, chimes)
    if not why:
        return domain
    say(f"the memory that was kept is given back: {why}")
    domain.close()
    for name in ("segment", *(f"{kind}.{lane}" for lane in range(len(bells)) for kind in ("bell", "chime"))):
        store.forget(name)
    store.drop(*_OF_DOMAIN)
    return None


def _other(segment: _shm.Segment, schema: Schema, lanes: int, pages: str) -> str:
    """What is asked for now and was not then, in words."""
    report = segment.report
    assert report is not None
    if segment.schema.digest != schema.digest:
        return "the handler has another schema now"
    if segment.geometry.n_lanes != lanes:
        return f"it has {segment.geometry.n_lanes} lanes, {lanes} are asked for"
    if pages not in ("auto", report.kind):
        return f"its pages are {report.kind}, {pages} is asked for"
    # Memory that the kernel did not bind, or of which it does not say where it lies (a negative node), would be the
    # same again.
    told = bool(report.pages_on_node) and min(report.pages_on_node) >= 0
    if report.node is not None and report.bound and told and not report.placed:
        return f"its pages lie on {report.pages_on_node}, node {report.node} is asked for"
    return ""


def keep_listener(store: Store, asked: Address, listener: Listener) -> None:
    """Have the LISTENER kept that was made for address ASKED."""
    store.keep(f"listen.{listener.inode}.{quote(str(asked), safe='/')}", listener.sock.fileno())


def take_listeners(store: Store, wanted: list[Address]) -> dict[Address, Listener]:
    """The listeners that were left for addresses that are WANTED, and whose names are still theirs."""
    found: dict[Address, Listener] = {}
    for name in store.names("listen."):
        inode, _, text = name.removeprefix("listen.").partition(".")
        address = parse_address(unquote(text))
        path = address.path
        if address not in wanted or (path and _inode(path) != int(inode)):
            continue
        sock = socket.socket(fileno=store.take(name))
        sock.setblocking(False)
        # Once more: the kernel tells clients that the process which listened last is the server (unix_listen()).
        sock.listen(BACKLOG)
        found[address] = Listener(sock, path, int(inode))
    return found


def forget_listener(store: Store, asked: Address, listener: Listener) -> None:
    """The LISTENER of address ASKED is about to be closed."""
    store.forget(f"listen.{listener.inode}.{quote(str(asked), safe='/')}")


def _inode(path: str) -> int:
    try:
        return os.lstat(path).st_ino
    except OSError:
        return 0
