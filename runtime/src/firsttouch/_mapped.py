# SPDX-License-Identifier: Apache-2.0
"""Map an image read only, for as long as anything looks at it.

The descriptor is O_RDONLY, the mapping PROT_READ and MAP_SHARED: no call can make it writable (a private one could
be, and would reserve the pages of the whole image once more). It begins at a multiple of 1 GiB, so that processes
share the page tables of all whole GiB (mm/hugetlb.c, want_pmd_share); later ones then take almost no faults.
"""

from __future__ import annotations

import ctypes
import os
import weakref

import numpy as np

from firsttouch import _linux
from firsttouch.errors import KernelError

SPAN = 1 << 30


def map_read_only(fd: int, length: int, populate: bool = False) -> memoryview:
    """LENGTH bytes of FD as a read-only buffer; it is unmapped when the last view of it is gone.

    With POPULATE every page is in this process's page tables before it returns. Raises KernelError.
    """
    address = _map(fd, length)
    try:
        _linux.advise(address, length, _linux.MADV_DONTDUMP)
        if populate:
            _linux.advise(address, length, _linux.MADV_POPULATE_READ)
    except OSError as error:
        _linux.unmap_memory(address, length)
        raise KernelError(f"the image cannot be mapped: {error}", facts={"errno": error.errno}) from error
    array = (ctypes.c_ubyte * length).from_address(address)
    # Not at exit: a thread may still read, and the process's end unmaps all.
    weakref.finalize(array, _linux.unmap_memory, address, length).atexit = False
    view = np.frombuffer(memoryview(array), np.uint8)
    view.flags.writeable = False
    return view.data


def _map(fd: int, length: int) -> int:
    """Map FD over a part of a larger reservation of addresses, which then nobody else can take in between."""
    flags = _linux.MAP_PRIVATE | _linux.MAP_ANONYMOUS | _linux.MAP_NORESERVE
    page = os.sysconf("SC_PAGE_SIZE")
    try:
        space = _linux.map_memory(0, length + SPAN, _linux.PROT_NONE, flags)
        start = -(-space // SPAN) * SPAN
        try:
            _linux.map_memory(start, length, _linux.PROT_READ, _linux.MAP_SHARED | _linux.MAP_FIXED, fd)
        except OSError:
            _linux.unmap_memory(space, length + SPAN)
            raise
        end = start + -(-length // page) * page
        if start > space:
            _linux.unmap_memory(space, start - space)
        if end < space + length + SPAN:
            _linux.unmap_memory(end, space + length + SPAN - end)
    except OSError as error:
        raise KernelError(f"the image cannot be mapped: {error}", facts={"errno": error.errno}) from error
    return start
