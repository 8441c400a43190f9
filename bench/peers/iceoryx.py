# SPDX-License-Identifier: GPL-3.0-or-later
"""iceoryx2 request-response from Python, both sides spinning: its fastest way."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

import iceoryx2 as iox
import numpy as np
from firsttouch.bench import ACTION, OBSERVATION, Array, Call


class Observation(ctypes.Structure):
    """48 KiB."""

    _fields_ = [("values", ctypes.c_float * OBSERVATION)]


class Action(ctypes.Structure):
    """4 KiB."""

    _fields_ = [("values", ctypes.c_float * ACTION)]


def _service(folder: str) -> tuple[Any, Any]:
    """The node, which must live on, and the service named after FOLDER."""
    iox.set_log_level(iox.LogLevel.Fatal)
    node = iox.NodeBuilder.new().create(iox.ServiceType.Ipc)
    name = iox.ServiceName.new(f"firsttouch-bench-{os.path.basename(folder)}")
    builder = node.service_builder(name).request_response(Observation, Action)
    return node, builder.max_clients(32).max_nodes(64).open_or_create()


class Peer:
    """See the module."""

    name = "iceoryx2 spinning"

    def serve(self, folder: str, started: Callable[[], None]) -> None:
        """See firsttouch.bench.Peer."""
        _node, service = _service(folder)
        server = service.server_builder().create()
        row, act = np.zeros(OBSERVATION, np.float32), np.zeros(ACTION, np.float32)
        target, source = row.ctypes.data, act.ctypes.data
        started()
        while True:
            request = server.receive()
            if request is None:
                continue
            ctypes.memmove(target, request.payload_ptr, row.nbytes)
            act.fill(row[0])
            answer = request.loan_uninit()
            ctypes.memmove(answer.payload_ptr, source, act.nbytes)
            answer.assume_init().send()
            request.delete()

    def connect(self, folder: str) -> Call:
        """See firsttouch.bench.Peer."""
        node, service = _service(folder)
        client = service.client_builder().create()
        act = np.zeros(ACTION, np.float32)
        target = act.ctypes.data

        def call(obs: Array, _keep: Any = (node, service)) -> Array:
            request = client.loan_uninit()
            ctypes.memmove(request.payload_ptr, obs.ctypes.data, obs.nbytes)
            pending = request.assume_init().send()
            while True:
                answer = pending.receive()
                if answer is not None:
                    break
            ctypes.memmove(target, answer.payload_ptr, act.nbytes)
            answer.delete()
            pending.delete()
            return act

        return call
