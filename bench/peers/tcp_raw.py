# SPDX-License-Identifier: GPL-3.0-or-later
"""TCP at its best in Python: a binary header, gather write with sendmsg, recv_into, nothing allocated per call."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable

import numpy as np
from firsttouch.bench import ACTION, OBSERVATION, Array, Call

_HEADER = struct.Struct("<IIQQ")


def _fill(sock: socket.socket, view: memoryview) -> None:
    done = 0
    while done < len(view):
        got = sock.recv_into(view[done:])
        if not got:
            raise EOFError
        done += got


def _send(sock: socket.socket, header: bytes, body: memoryview) -> None:
    sent = sock.sendmsg([header, body])
    if sent < len(header) + len(body):
        sock.sendall((header + bytes(body))[sent:])


class Peer:
    """See the module."""

    name = "raw tcp"

    def serve(self, folder: str, started: Callable[[], None]) -> None:
        """See firsttouch.bench.Peer."""
        row, act = np.zeros(OBSERVATION, np.float32), np.zeros(ACTION, np.float32)
        store = bytearray(_HEADER.size + row.nbytes)
        view = memoryview(store)
        obs = np.frombuffer(store, np.float32, offset=_HEADER.size)
        answer = act.data.cast("B")
        with socket.create_server(("127.0.0.1", 0)) as listener, select.epoll() as poll:
            with open(f"{folder}/port", "w", encoding="ascii") as file:
                file.write(str(listener.getsockname()[1]))
            poll.register(listener.fileno(), select.EPOLLIN)
            peers: dict[int, socket.socket] = {}
            started()
            while True:
                for fd, _ in poll.poll():
                    if fd == listener.fileno():
                        sock, _name = listener.accept()
                        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        peers[sock.fileno()] = sock
                        poll.register(sock.fileno(), select.EPOLLIN)
                        continue
                    try:
                        _fill(peers[fd], view)
                    except (EOFError, ConnectionError):
                        poll.unregister(fd)
                        peers.pop(fd).close()
                        continue
                    kind, _size, number, _time = _HEADER.unpack_from(store)
                    row[:] = obs
                    act.fill(row[0])
                    _send(peers[fd], _HEADER.pack(kind, len(answer), number, 0), answer)

    def connect(self, folder: str) -> Call:
        """See firsttouch.bench.Peer."""
        with open(f"{folder}/port", encoding="ascii") as file:
            sock = socket.create_connection(("127.0.0.1", int(file.read())))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        store = bytearray(_HEADER.size + 4 * ACTION)
        view = memoryview(store)
        act = np.frombuffer(store, np.float32, offset=_HEADER.size)

        def call(obs: Array) -> Array:
            _send(sock, _HEADER.pack(1, obs.nbytes, 0, 0), obs.data.cast("B"))
            _fill(sock, view)
            return act.copy()

        return call
