# SPDX-License-Identifier: GPL-3.0-or-later
"""TCP with pickled dicts behind a length, TCP_NODELAY: what most home-made servers do."""

from __future__ import annotations

import pickle
import select
import socket
import struct
from collections.abc import Callable

import numpy as np
from firsttouch.bench import ACTION, OBSERVATION, Array, Call

_LENGTH = struct.Struct("<I")


def _send(sock: socket.socket, value: object) -> None:
    data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    sock.sendall(_LENGTH.pack(len(data)) + data)


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = bytearray(count)
    view, done = memoryview(data), 0
    while done < count:
        got = sock.recv_into(view[done:])
        if not got:
            raise EOFError
        done += got
    return bytes(data)


def _receive(sock: socket.socket) -> dict[str, Array]:
    (length,) = _LENGTH.unpack(_exactly(sock, _LENGTH.size))
    value: dict[str, Array] = pickle.loads(_exactly(sock, length))
    return value


class Peer:
    """See the module."""

    name = "tcp + pickle"

    def serve(self, folder: str, started: Callable[[], None]) -> None:
        """See firsttouch.bench.Peer."""
        row = np.zeros(OBSERVATION, np.float32)
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
                        row[:] = _receive(peers[fd])["obs"]
                        _send(peers[fd], {"act": np.full(ACTION, row[0])})
                    except (EOFError, ConnectionError):
                        poll.unregister(fd)
                        peers.pop(fd).close()

    def connect(self, folder: str) -> Call:
        """See firsttouch.bench.Peer."""
        with open(f"{folder}/port", encoding="ascii") as file:
            sock = socket.create_connection(("127.0.0.1", int(file.read())))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def call(obs: Array) -> Array:
            _send(sock, {"obs": obs})
            return _receive(sock)["act"]

        return call
