# SPDX-License-Identifier: Apache-2.0
"""Threads that take pages: each under the memory policy of the load, each answer of the kernel an errno.

fallocate follows the policy of the thread, not of a mapping; a policy set before mmap makes the kernel count the
pages of the nodes alone. So the policy is set in the threads here, and the caller keeps its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any

from firsttouch import _linux
from firsttouch._image import Layout
from firsttouch._pool import Placement
from firsttouch.errors import KernelError, UnsupportedError

_SHORT = (errno.ENOMEM, errno.ENOSPC, errno.EFAULT)


class Short(Exception):
    """The kernel had no page; which bound it was is found out when ours are given back."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


@contextlib.contextmanager
def pages_wanted() -> Iterator[None]:
    """Turn the errno of a missing page into Short. EFAULT comes from reading into a page that cannot be had."""
    try:
        yield
    except OSError as error:
        if error.errno in _SHORT:
            raise Short(error) from error
        raise KernelError(f"{error.strerror}", facts={"errno": error.errno}) from error


class Workers:
    """Threads with the memory policy of the load; the calling thread keeps its own."""

    def __init__(self, threads: int, placement: Placement) -> None:
        self._placement = placement
        self._local = threading.local()
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(threads, "firsttouch-load")

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def one(self, function: Callable[..., Any], *args: Any) -> Any:
        """The result of FUNCTION in a worker."""
        return self.each(lambda call: call[0](*call[1:]), [(function, *args)])[0]

    def each(self, function: Callable[[Any], Any], items: list[Any]) -> list[Any]:
        """The results of FUNCTION on ITEMS; at the first error no further item is begun, and none runs on."""
        futures: list[Future[Any]] = [self._pool.submit(self._guarded, function, item) for item in items]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        except BaseException:
            self._stop.set()
            raise
        finally:
            # The mapping goes away next: nobody may read into it any more.
            wait(futures)
        # In their order: of several errors the first one is told, whichever thread was faster.
        return [future.result() for future in futures]

    def _guarded(self, function: Callable[[Any], Any], item: Any) -> Any:
        if self._stop.is_set():
            return None
        if not getattr(self._local, "placed", False):
            _set_policy(self._placement)
            self._local.placed = True
        try:
            return function(item)
        except BaseException:
            # Here, and not when the caller wakes up: until then the next item would be begun.
            self._stop.set()
            raise


def _set_policy(placement: Placement) -> None:
    """The policy of this thread. `interleave` is set anew for each page, to be exact."""
    modes = {"bind": _linux.Mpol.BIND, "interleave": _linux.Mpol.BIND, "prefer": _linux.Mpol.PREFERRED}
    if placement.mode not in modes:
        return
    try:
        _linux.set_mempolicy(modes[placement.mode], placement.nodes)
    except OSError as error:
        raise UnsupportedError(
            f"no memory may be placed on nodes here: {error}",
            hint="give the container CAP_SYS_NICE, or load without a node",
            facts={"errno": error.errno},
        ) from error


def allocate(fd: int, layout: Layout, placement: Placement, start: int, end: int) -> None:
    """Take the pages of bytes START to END by fallocate, which follows the policy of the thread."""
    with pages_wanted():
        if placement.mode != "interleave":
            os.posix_fallocate(fd, start, end - start)
            return
        page = layout.page_bytes
        for number in range(start // page, -(-end // page)):
            _linux.set_mempolicy(_linux.Mpol.BIND, [placement.nodes[number % len(placement.nodes)]])
            os.posix_fallocate(fd, number * page, page)
        _linux.set_mempolicy(_linux.Mpol.BIND, placement.nodes)
