# SPDX-License-Identifier: GPL-3.0-or-later
"""faster-fifo, as sample-factory uses it: one queue to the server, one back to each client; pickled by the queue."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from queue import Empty

import numpy as np
from faster_fifo import Queue
from firsttouch.bench import ACTION, OBSERVATION, Array, Call

_CLIENTS = 16


class Peer:
    """See the module. Queues are shared by fork, so they are made before any process of a measurement."""

    name = "faster-fifo"

    def __init__(self) -> None:
        self._requests = Queue(4 << 20)
        self._answers = [Queue(1 << 20) for _ in range(_CLIENTS)]
        # Which of the answers is a client's.
        self._numbers = Queue(1 << 16)
        for number in range(_CLIENTS):
            self._numbers.put(number)

    def serve(self, folder: str, started: Callable[[], None]) -> None:
        """See firsttouch.bench.Peer."""
        row = np.zeros(OBSERVATION, np.float32)
        started()
        for _ in itertools.count():
            try:
                requests = self._requests.get_many(timeout=10.0)
            except Empty:
                continue
            for number, obs in requests:
                row[:] = obs
                self._answers[number].put(np.full(ACTION, row[0]))

    def connect(self, folder: str) -> Call:
        """See firsttouch.bench.Peer."""
        number = self._numbers.get()
        answers, requests = self._answers[number], self._requests

        def call(obs: Array) -> Array:
            requests.put((number, obs))
            answer: Array = answers.get(timeout=10.0)
            return answer

        return call
