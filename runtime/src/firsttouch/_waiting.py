# SPDX-License-Identifier: Apache-2.0
"""How both sides wait: spin for a bounded time with a yield in each turn, then sleep on a doorbell. Never poll asleep.

The sleep handshake. A sleeper must not miss the store that it waits for:

    sleeper: sleep word = 1; BARRIER; look again; sleep on the doorbell
    other:   publish;                 read the sleep word; ring when it is 1

On x86-64 a load may pass an earlier store, so that without a barrier on both sides both can read the old value: the
sleeper sleeps and nobody rings. membarrier(GLOBAL_EXPEDITED) makes every running thread of every registered process
pass a full barrier, so that the sleeper pays for both sides and the other side, on the fast path, needs none.
Where membarrier cannot be had (a seccomp filter, an old kernel) this side never claims to be awake and always rings:
0.3 us more for each message, and right without a barrier, since the kernel orders the write of an eventfd before its
read.

A client rings a server that sleeps before it copies its arrays, so that the wake-up and the copy take place at once;
that is a hint, and the handshake after the request stands as it is.

Between the stores of a message and the store of its sequence no barrier is needed on x86-64: stores become visible in
their order, loads are done in theirs (Intel SDM 8.2.2). On aarch64 neither holds, and pure Python has no store that
releases and no load that acquires: shared memory is refused there.
"""

from __future__ import annotations

import contextlib
import os
import platform
import select
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from firsttouch import _linux
from firsttouch.errors import UnsupportedError

SPIN_NS = 50_000
# What it takes to wake a server, about: a client that had to spins that much longer. Asleep it would have to be woken.
WAKE_NS = 50_000
_eventfd_write = os.eventfd_write
# A sleeper looks again after this time whatever happens: no peer can make it sleep for ever.
NET_SECONDS = 0.2
# Looks between two yields. A yield takes several looks, in which nothing is seen. When it did not come back at once,
# somebody waits for this CPU, perhaps the one that is looked for, and looks are at the others' expense.
LOOKS_ALONE, LOOKS_SHARED = range(16), range(1)
ALONE_NS = 2_000


class Fence(NamedTuple):
    """The barrier of a sleeper, or None where this side always rings; REASON is for people."""

    barrier: Callable[[], None] | None
    reason: str

    @property
    def always_ring(self) -> bool:
        """Whether sleep words of the other side cannot be trusted here."""
        return self.barrier is None


def check_machine(machine: str) -> None:
    """Raise UnsupportedError for a MACHINE whose memory order needs barriers that Python lacks."""
    if machine != "x86_64":
        raise UnsupportedError(
            f"shared memory needs the store order of x86-64; on {machine} Python has no store that releases",
            hint="use unix:// or tcp:// here",
            facts={"machine": machine},
        )


@lru_cache(maxsize=1)
def fence() -> Fence:
    """The fence of this process, registered once. Raises UnsupportedError on a machine without the store order."""
    check_machine(platform.machine())
    try:
        _linux.membarrier(_linux.Membarrier.REGISTER_GLOBAL_EXPEDITED)
        barrier = _linux.barrier_call()
        barrier()
    except OSError as error:
        return Fence(None, f"every message rings: {error}")
    return Fence(barrier, "membarrier on the sleeping side")


def new_doorbell() -> int:
    """A doorbell: an eventfd that does not block and is not inherited. The caller closes it."""
    return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)


def ring(doorbell: int) -> None:
    """Ring. A bell that is full already rings."""
    # No contextlib.suppress(): the other side sleeps until this call is done, and that takes as long as the call.
    try:  # noqa: SIM105
        _eventfd_write(doorbell, 1)
    except BlockingIOError:
        pass


def hush(doorbell: int) -> None:
    """Stop ringing; fine when it does not ring. For a doorbell whose other holders are not hostile."""
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(doorbell)


def edges_of(doorbell: int) -> select.epoll:
    """An epoll whose edges are those of DOORBELL, to be passed to a process that may be hostile. Raises OSError.

    Whether a write blocks is up to every process that has the doorbell itself: one could make it block, fill it up, and
    hang who rings it. Of the epoll a process has the edges, and no way to the doorbell.
    """
    edges = select.epoll()
    try:
        edges.register(doorbell, select.EPOLLIN | select.EPOLLET)
    except BaseException:
        edges.close()
        raise
    return edges


def try_edges(doorbell: int) -> None:
    """Raise OSError unless DOORBELL's edges can be waited for as a client does it: in an epoll, and that in another.

    The kernel counts the ways by which an eventfd wakes, by their depth, and refuses (EINVAL) one more than 500 or 100.
    Who had the edges once can keep them, and have them in that many epolls.
    """
    with edges_of(doorbell) as edges, select.epoll() as client, select.epoll() as loop:
        client.register(edges, select.EPOLLIN | select.EPOLLET)
        loop.register(client, select.EPOLLIN)


# A child after fork() registers itself.
os.register_at_fork(after_in_child=fence.cache_clear)
