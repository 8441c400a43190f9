# SPDX-License-Identifier: GPL-3.0-or-later
"""pyzmq, REQ and REP over ipc, raw bytes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import zmq
from firsttouch.bench import ACTION, OBSERVATION, Array, Call


class Peer:
    """See the module."""

    name = "pyzmq ipc"

    def serve(self, folder: str, started: Callable[[], None]) -> None:
        """See firsttouch.bench.Peer."""
        row = np.zeros(OBSERVATION, np.float32)
        act = np.zeros(ACTION, np.float32)
        socket = zmq.Context().socket(zmq.SocketType.REP)
        socket.bind(f"ipc://{folder}/s")
        started()
        while True:
            row[:] = np.frombuffer(socket.recv(), np.float32)
            act.fill(row[0])
            socket.send(act.data)

    def connect(self, folder: str) -> Call:
        """See firsttouch.bench.Peer."""
        socket = zmq.Context().socket(zmq.SocketType.REQ)
        socket.connect(f"ipc://{folder}/s")

        def call(obs: Array) -> Array:
            socket.send(obs.data)
            return np.frombuffer(socket.recv(), np.float32)

        return call
