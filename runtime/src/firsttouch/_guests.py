# SPDX-License-Identifier: Apache-2.0
"""Who may connect, and what a greeting must say."""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass

from firsttouch import _linux
from firsttouch._wire import Hello, Schema
from firsttouch.errors import ProtocolError, RefusedError, SchemaError

HANDSHAKE_SECONDS = 2.0
# Connections that have not greeted yet.
MAX_WAITING = 64


@dataclass(frozen=True)
class Guests:
    """Which users may connect to a unix socket: this user and root, those listed, and members of the groups listed."""

    uids: frozenset[int] = frozenset()
    gids: frozenset[int] = frozenset()

    @property
    def strangers(self) -> bool:
        """Whether some of them could not end this process anyway: who else is in a group nobody knows."""
        return bool(self.gids or self.uids - {0, os.geteuid()})

    def check(self, pid: int, uid: int, gid: int, sock: socket.socket | None = None) -> None:
        """Raise RefusedError unless the process, which is at the other end of SOCK, may connect."""
        if uid in (0, os.geteuid()) or uid in self.uids or gid in self.gids:
            return
        if self.gids and sock is not None:
            # More groups than fit are an error, and then none of them counts.
            with contextlib.suppress(OSError):
                if self.gids.intersection(_linux.peer_groups(sock)):
                    return
        raise RefusedError(f"process {pid} of user {uid}, group {gid} may not use this server")


def check_hello(hello: Hello, transport: str, schema: Schema) -> None:
    """Raise unless the client asks for what this server has."""
    if hello.transport != transport:
        raise ProtocolError(f"this is a {transport} server, the client asks for {hello.transport[:16]!r}")
    if hello.digest and hello.digest != schema.digest:
        raise SchemaError("the client has another schema than this server")


def pidfd_of_client(sock: socket.socket, start: int) -> int:
    """A new pidfd of the process at the other end of a unix socket, -1 when it cannot be had.

    START: when that process says that it began, in clock ticks. It matters before Linux 6.5 only, where the pid is all
    that the socket tells.
    """
    with contextlib.suppress(OSError):
        return _linux.peer_pidfd(sock)
    pid, _, _ = _linux.peer_credentials(sock)
    try:
        # A pid of another namespace is 0 here, which no process has.
        fd = os.pidfd_open(pid)
    except OSError:
        return -1
    # The number may have been given to another process before it was opened; that one began later.
    if not start or _linux.start_ticks(pid) != start:
        os.close(fd)
        return -1
    return fd


def pidfd_of_server(sock: socket.socket) -> int:
    """A new pidfd of the process that listens at the other end of a unix socket, -1 when it cannot be had.

    It has just answered on this connection, so that before Linux 6.5 its pid is still its own.
    """
    with contextlib.suppress(OSError):
        return _linux.peer_pidfd(sock)
    with contextlib.suppress(OSError):
        return os.pidfd_open(_linux.peer_credentials(sock)[0])
    return -1
