# SPDX-License-Identifier: GPL-3.0-or-later
"""The naive design: a named segment, 256 slots whose int32 states lie side by side, and both sides poll.

Every change of a state is under flock, which is what orders it after the data. A look at a state is not: a peer that
takes the lock for each look is in its own way (several times slower, and worse with each client), and on x86-64 a look
without it is as good. So this is the design at its best, with two system calls at each side for a round trip, and what
ours is compared with; with the lock at each look it has a row of its own.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from collections.abc import Callable

import numpy as np
from firsttouch.bench import ACTION, OBSERVATION, Array, Call

_SLOTS = 256
_IDLE, _REQUEST, _ANSWER = 0, 1, 2
_STATES, _TAKEN = 0, 4 * _SLOTS
_DATA = 4096
_SLOT_BYTES = 4 * (OBSERVATION + ACTION)


class _Segment:
    """The named file and its arrays."""

    def __init__(self, folder: str, create: bool) -> None:
        self.lock = os.open(f"{folder}/lock", os.O_RDWR | os.O_CREAT, 0o600)
        fd = os.open(f"{folder}/segment", os.O_RDWR | os.O_CREAT, 0o600)
        size = _DATA + _SLOTS * _SLOT_BYTES
        if create:
            os.ftruncate(fd, size)
        memory = mmap.mmap(fd, size)
        os.close(fd)
        self.states = np.frombuffer(memory, np.int32, _SLOTS, _STATES)
        self.taken = np.frombuffer(memory, np.int32, _SLOTS, _TAKEN)
        self.slots = np.frombuffer(memory, np.float32, offset=_DATA).reshape(_SLOTS, OBSERVATION + ACTION)


class Peer:
    """See the module. PAUSE_S: 0 spins, else the pause between two looks."""

    def __init__(self, pause_s: float = 0.0, *, lock_looks: bool = False) -> None:
        self._pause, self._lock_looks = pause_s, lock_looks
        self.name = "naive shm spinning" if not pause_s else "naive shm sleeping"
        if lock_looks:
            self.name = "naive shm locking each look"

    def serve(self, folder: str, started: Callable[[], None]) -> None:
        """See firsttouch.bench.Peer."""
        segment = _Segment(folder, True)
        row = np.zeros(OBSERVATION, np.float32)
        started()
        while True:
            if self._lock_looks:
                fcntl.flock(segment.lock, fcntl.LOCK_EX)
            waiting = np.flatnonzero(segment.states == _REQUEST)
            if self._lock_looks:
                fcntl.flock(segment.lock, fcntl.LOCK_UN)
            for slot in waiting:
                row[:] = segment.slots[slot, :OBSERVATION]
                segment.slots[slot, OBSERVATION:] = row[0]
                fcntl.flock(segment.lock, fcntl.LOCK_EX)
                segment.states[slot] = _ANSWER
                fcntl.flock(segment.lock, fcntl.LOCK_UN)
            if self._pause:
                time.sleep(self._pause)

    def connect(self, folder: str) -> Call:
        """See firsttouch.bench.Peer."""
        segment = _Segment(folder, False)
        fcntl.flock(segment.lock, fcntl.LOCK_EX)
        slot = int(np.flatnonzero(segment.taken == 0)[0])
        segment.taken[slot] = 1
        fcntl.flock(segment.lock, fcntl.LOCK_UN)
        pause, lock_looks = self._pause, self._lock_looks

        def call(obs: Array) -> Array:
            segment.slots[slot, :OBSERVATION] = obs
            fcntl.flock(segment.lock, fcntl.LOCK_EX)
            segment.states[slot] = _REQUEST
            fcntl.flock(segment.lock, fcntl.LOCK_UN)
            while True:
                if lock_looks:
                    fcntl.flock(segment.lock, fcntl.LOCK_EX)
                done = segment.states[slot] == _ANSWER
                if lock_looks:
                    fcntl.flock(segment.lock, fcntl.LOCK_UN)
                if done:
                    break
                if pause:
                    time.sleep(pause)
            answer: Array = segment.slots[slot, OBSERVATION:].copy()
            segment.states[slot] = _IDLE
            return answer

        return call
