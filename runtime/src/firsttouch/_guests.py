# SPDX-License-Identifier: Apache-2.0
"""Who may connect, and what a greeting must say."""

from __future__ import annotations

import os
from dataclasses import dataclass

from firsttouch._wire import Hello, Schema
from firsttouch.errors import ProtocolError, RefusedError, SchemaError

HANDSHAKE_SECONDS = 2.0
# Connections that have not greeted yet.
MAX_WAITING = 64


@dataclass(frozen=True)
class Guests:
    """Which users may connect to a unix socket: this user and root, and those listed."""

    uids: frozenset[int] = frozenset()
    gids: frozenset[int] = frozenset()

    def check(self, pid: int, uid: int, gid: int) -> None:
        """Raise RefusedError unless the process may connect."""
        if uid in (0, os.geteuid()) or uid in self.uids or gid in self.gids:
            return
        raise RefusedError(f"process {pid} of user {uid}, group {gid} may not use this server")


def check_hello(hello: Hello, transport: str, schema: Schema) -> None:
    """Raise unless the client asks for what this server has."""
    if hello.transport != transport:
        raise ProtocolError(f"this is a {transport} server, the client asks for {hello.transport[:16]!r}")
    if hello.digest and hello.digest != schema.digest:
        raise SchemaError("the client has another schema than this server")
