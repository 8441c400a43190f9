# SPDX-License-Identifier: Apache-2.0
"""Who may attach to a domain, who has which lane, and who died: the control side of shared memory.

It runs beside the server: in a thread of its process, or in a process of its own (`firsttouch serve`) that keeps the
memory while the server is restarted. It writes the holder's words only.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from firsttouch import _linux, _shm
from firsttouch._guests import HANDSHAKE_SECONDS, MAX_WAITING, Guests, check_hello, pidfd_of_client
from firsttouch._kept import Store
from firsttouch._lanes import LANE, at
from firsttouch._shm_client import MAX_LANES_OF_CLIENT
from firsttouch._shm_server import Domain
from firsttouch._sockets import AWAY_SECONDS, Door, Listener
from firsttouch._transport import Poller
from firsttouch._waiting import edges_of, try_edges
from firsttouch._wire import (
    HEADER_BYTES,
    Hello,
    Kind,
    Status,
    Welcome,
    bye_frame,
    control_frame,
    control_length,
    parse_hello,
    refusal,
    unpack_header,
)
from firsttouch.errors import BusyError, KernelError, ProtocolError, TransportError

_TICK_SECONDS = 0.5
# A client waits for this one.
_UNKEPT_SECONDS = 0.02
_BYE = bye_frame()
# Where a frame goes on after magic and version.
_VERSIONED = 5


@dataclass(eq=False)
class Peer:
    """A connection: what it sent so far, and the lanes it got."""

    sock: socket.socket
    pid: int
    since: float
    data: bytearray = field(default_factory=bytearray)
    pidfd: int = -1
    lanes: list[int] = field(default_factory=list)
    name: str = ""
    # Under which name the service manager has the connection.
    kept: str = ""


class Keeper:
    """Leases lanes of DOMAIN to the clients that LISTENER accepts. Call run() in one thread, stop() from any."""

    def __init__(
        self, domain: Domain, listener: Listener, guests: Guests, spin_ns: int, store: Store | None = None
    ) -> None:
        """STORE: who keeps the clients' connections, so that they outlive this process."""
        self.domain, self.listener, self._guests, self._spin_ns = domain, listener, guests, spin_ns
        self._store = store
        self.on_death: Callable[[int, str], None] = lambda pid, name: None
        self._words = domain.segment.words
        self._owner, self._link = (
            [(domain.segment.control(lane) + at(LANE, name)) // 4 for lane in range(len(domain.bells))]
            for name in ("owner_pid", "owner_link")
        )
        self._poller = Poller()
        self._peers: dict[int, Peer] = {}
        # Lanes without a client whose last request is not answered yet.
        self._orphans: set[int] = set()
        # Names of connections that are gone, of which the manager has not been told; and clients that have their lanes
        # and not their welcome, because it has not taken their connections yet.
        self._untold: list[str] = []
        self._unkept: list[Peer] = []
        self._deaf = BusyError("the service manager takes no messages")
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stopping = False
        self._poller.add(self._stop, self._asked_to_stop)
        self._door = Door(listener, self._poller, self._accept)
        if store is not None:
            self._adopt(store)

    @property
    def epoll_fd(self) -> int:
        """Readable when step() has something to do."""
        return self._poller.epoll.fileno()

    def run(self) -> None:
        """Serve until stop()."""
        while not self._stopping:
            self.step(self.patience())
        self.close()

    def patience(self) -> float:
        """For how many seconds nothing needs to be looked at."""
        if self._door.away_until:
            return AWAY_SECONDS
        if self._unkept:
            return _UNKEPT_SECONDS
        return _TICK_SECONDS if self._orphans or self._untold or self._waiting() else 3600.0

    def step(self, seconds: float) -> None:
        """Wait for at most SECONDS, and do what there is to do."""
        self._door.look()
        self._poller.run(seconds)
        self._end_late_handshakes()
        self._reclaim()
        self._tell()

    def stop(self) -> None:
        """Make run() end soon. From any thread."""
        # The event alone: a word beside it could be seen first, and run() close the eventfd before it is written.
        os.eventfd_write(self._stop, 1)

    def _asked_to_stop(self, _: int) -> None:
        self._stopping = True

    def close(self) -> None:
        """Hang up on all and stop listening."""
        for peer in list(self._peers.values()):
            self._drop(peer)
        self._door.close()
        self._poller.close()
        os.close(self._stop)

    def abandon(self) -> None:
        """In a child after fork(): close what is the keeper's alone, and say nothing to anybody."""
        self._poller.close()
        for peer in self._peers.values():
            peer.sock.close()
            if peer.pidfd >= 0:
                os.close(peer.pidfd)
        self.listener.sock.close()
        os.close(self._stop)

    def _adopt(self, store: Store) -> None:
        """Take over the clients of the process before this one. Lanes whose client is gone are orphans."""
        taken: set[int] = set()
        for name in store.names("peer."):
            first, _, start = name.removeprefix("peer.").partition(".")
            sock = socket.socket(fileno=store.take(name))
            sock.setblocking(False)
            peer = Peer(sock, _linux.peer_credentials(sock)[0], time.monotonic(), kept=name)
            peer.lanes = [
                lane
                for lane, (owner, link) in enumerate(zip(self._owner, self._link, strict=True))
                if self._words[owner] and self._words[link] == int(first) + 1
            ]
            if not peer.lanes:
                sock.close()
                store.forget(name)
                continue
            taken.update(peer.lanes)
            self._peers[sock.fileno()] = peer
            self._watch(peer, int(start))
            # mypy infers no type for a lambda with a default, which binds this turn's peer.
            self._poller.add(sock.fileno(), lambda _, peer=peer: self._read(peer))  # type: ignore[misc]
        self._orphans = {lane for lane, owner in enumerate(self._owner) if self._words[owner]} - taken
        self._count_attached()
        self._reclaim()

    def _waiting(self) -> int:
        """How many connections have not finished their handshake."""
        return sum(not peer.lanes for peer in self._peers.values())

    def _accept(self, _: int) -> None:
        """Take a connection, if its user may have one."""
        sock = self._door.accept()
        if sock is None:
            return
        sock.setblocking(False)
        pid, uid, gid = _linux.peer_credentials(sock)
        peer = Peer(sock, pid, time.monotonic())
        self._peers[sock.fileno()] = peer
        try:
            self._guests.check(pid, uid, gid, sock)
            if self._waiting() > MAX_WAITING:
                raise BusyError(f"more than {MAX_WAITING} connections are in their handshake")
            try:
                self._poller.add(sock.fileno(), lambda _: self._read(peer))
            except OSError as error:
                raise BusyError(f"the connection cannot be waited for: {error.strerror}") from error
        except TransportError as error:
            self._refuse(peer, error)

    def _read(self, peer: Peer) -> None:
        """Read on in a handshake; after it, anything that comes is the end."""
        try:
            count = 65536 if len(peer.data) >= HEADER_BYTES and not peer.lanes else HEADER_BYTES
            data = peer.sock.recv(count)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        # Whatever the version is: a client may have its lanes from before an upgrade.
        if not data or data[_VERSIONED:] == _BYE[_VERSIONED:]:
            self._gone(peer, died=not data)
            return
        try:
            if peer.lanes:
                raise ProtocolError("nothing is sent after the handshake of shared memory")
            peer.data += data
            self._handshake(peer)
        except TransportError as error:
            self._refuse(peer, error)

    def _handshake(self, peer: Peer) -> None:
        """Lease the lanes as soon as the client's greeting is whole. Raises TransportError."""
        if len(peer.data) < HEADER_BYTES:
            return
        header = unpack_header(peer.data)
        whole = HEADER_BYTES + control_length(header)
        if len(peer.data) < whole:
            return
        if len(peer.data) > whole:
            raise ProtocolError("something came after the greeting")
        hello = parse_hello(header, bytes(peer.data[HEADER_BYTES:]))
        check_hello(hello, "shm", self.domain.segment.schema)
        self._lease(peer, hello)

    def _lease(self, peer: Peer, hello: Hello) -> None:
        """Give PEER its lanes. Raises BusyError when there are not enough."""
        if hello.lanes > MAX_LANES_OF_CLIENT:
            raise ProtocolError(f"{hello.lanes} lanes for one connection: at most {MAX_LANES_OF_CLIENT}")
        self._reclaim()
        lanes, why = self._free(hello.lanes)
        if len(lanes) < hello.lanes:
            raise BusyError(
                f"{len(lanes)} of {len(self._owner)} lanes are free, {hello.lanes} are asked for{why}",
                hint="give the server more lanes",
            )
        self._watch(peer, hello.start)
        peer.name = hello.name
        peer.lanes = lanes
        for lane in peer.lanes:
            self._words[self._link[lane]] = peer.lanes[0] + 1
            self._words[self._owner[lane]] = peer.pid or 0xFFFFFFFF
        self._count("leases")
        self._count_attached()
        if self._store is None:
            self._welcome(peer)
        else:
            # Before the client hears of its lanes: from then on it counts on their being kept.
            peer.kept = f"peer.{peer.lanes[0]}.{hello.start}"
            self._unkept.append(peer)
            self._tell()

    def _free(self, count: int) -> tuple[list[int], str]:
        """At most COUNT free lanes whose doorbells can be waited for, and why the last other one's cannot."""
        lanes: list[int] = []
        why = ""
        for lane, owner in enumerate(self._owner):
            if len(lanes) == count:
                break
            if self._words[owner]:
                continue
            try:
                try_edges(self.domain.chimes[lane])
            except OSError as error:
                why = f"; the doorbell of lane {lane} cannot be waited for: {error.strerror}"
            else:
                lanes.append(lane)
        return lanes, why

    def _welcome(self, peer: Peer) -> None:
        """Send the lanes' descriptors, or say that there are too few left to make them."""
        segment = self.domain.segment
        welcome = Welcome(
            schema=segment.schema.blob,
            pid=os.getpid(),
            spin_ns=self._spin_ns,
            lanes=peer.lanes,
            geometry=segment.geometry,
            kept=self._store is not None,
        )
        frame = control_frame(Kind.WELCOME, welcome)
        with contextlib.ExitStack() as stack:
            fds = [segment.fd]
            try:
                for lane in peer.lanes:
                    chime = stack.enter_context(edges_of(self.domain.chimes[lane]))
                    fds += [self.domain.bells[lane], chime.fileno()]
            except OSError as error:
                self._refuse(peer, BusyError(f"no descriptors for {len(peer.lanes)} lanes: {error.strerror}"))
                return
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
            try:
                sent = peer.sock.sendmsg([frame], rights)
            except OSError:
                sent = 0
        if sent != len(frame):
            # A socket that has just been made takes this much, unless its owner wants trouble.
            self._gone(peer, died=False)

    def _watch(self, peer: Peer, start: int) -> None:
        """Hear of the death of PEER's process, which began at START, also when a child of it keeps the socket open."""
        peer.pidfd = pidfd_of_client(peer.sock, start)
        if peer.pidfd >= 0:
            # Without it the end of the connection tells, as where there is no pidfd.
            with contextlib.suppress(OSError):
                self._poller.add(peer.pidfd, lambda _: self._gone(peer, died=True))

    def _refuse(self, peer: Peer, error: TransportError) -> None:
        """Say why, and hang up."""
        status = Status.BUSY if isinstance(error, BusyError) else None
        with contextlib.suppress(OSError):
            peer.sock.send(control_frame(Kind.ERROR, refusal(error, status)))
        self._count("refused")
        self._drop(peer)

    def _gone(self, peer: Peer, *, died: bool) -> None:
        """PEER hung up or died."""
        if died and peer.lanes:
            self._count("deaths")
            self.on_death(peer.pid, peer.name)
        self._drop(peer)

    def _drop(self, peer: Peer) -> None:
        """Forget PEER; its lanes are free as soon as what they asked is answered."""
        self._peers.pop(peer.sock.fileno(), None)
        self._poller.drop(peer.sock.fileno())
        if peer.pidfd >= 0:
            self._poller.drop(peer.pidfd)
            os.close(peer.pidfd)
            peer.pidfd = -1
        peer.sock.close()
        self._orphans.update(peer.lanes)
        peer.lanes = []
        self._reclaim()
        self._count_attached()
        if peer in self._unkept:
            self._unkept.remove(peer)
        elif peer.kept:
            self._untold.append(peer.kept)
            self._tell()

    def _tell(self) -> None:
        """Have the manager close what it keeps of clients that are gone, and keep the connections of those that came.

        What it does not take now it gets later: others must not wait for it. First who is gone: the next client may
        have the name of that connection, and would lose its own.
        """
        store = self._store
        try:
            while store is not None and (self._untold or self._unkept):
                if self._untold:
                    store.forget(self._untold[-1], wait=False)
                    self._untold.pop()
                    continue
                store.keep(self._unkept[0].kept, self._unkept[0].sock.fileno(), wait=False)
                self._welcome(self._unkept.pop(0))
        except KernelError as error:
            self._deaf = BusyError(f"the connection cannot be kept: {error.message}", hint=error.hint)

    def _end_late_handshakes(self) -> None:
        """Hang up on who connected and said nothing, and on whose connection the manager does not take."""
        oldest = time.monotonic() - HANDSHAKE_SECONDS
        for peer in [peer for peer in self._unkept if peer.since < oldest]:
            self._refuse(peer, self._deaf)
        for peer in [peer for peer in self._peers.values() if not peer.lanes and peer.since < oldest]:
            self._refuse(peer, ProtocolError(f"no greeting within {HANDSHAKE_SECONDS} s"))

    def _reclaim(self) -> None:
        """Free the orphaned lanes that are idle."""
        words, segment = self._words, self.domain.segment
        done = []
        for lane in self._orphans:
            base = segment.control(lane)
            if words[(base + at(LANE, "req_seq")) // 4] == words[(base + at(LANE, "rsp_seq")) // 4]:
                words[self._owner[lane]] = 0
                done.append(lane)
        if done:
            self._orphans.difference_update(done)
            self._count("leases")

    def _count_attached(self) -> None:
        """Tell how many clients have lanes."""
        self._words[_shm.index("attached")] = sum(bool(peer.lanes) for peer in self._peers.values())

    def _count(self, name: str) -> None:
        """Add one to a word of the holder's line."""
        at_word = _shm.index(name)
        self._words[at_word] = (self._words[at_word] + 1) & 0xFFFFFFFF
