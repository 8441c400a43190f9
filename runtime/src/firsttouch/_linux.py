# SPDX-License-Identifier: Apache-2.0
"""Every system call, flag and number that the standard library lacks, each with its source. No policy.

The numbers are of x86_64 and aarch64; another machine is refused when a call is needed.
"""

from __future__ import annotations

import ctypes
import os
import platform
from enum import IntEnum, IntFlag
from functools import lru_cache

from firsttouch.errors import UnsupportedError

# arch/x86/entry/syscalls/syscall_64.tbl; include/uapi/asm-generic/unistd.h for aarch64.
SYSCALLS: dict[str, dict[str, int]] = {
    "x86_64": {
        "mbind": 237,
        "set_mempolicy": 238,
        "get_mempolicy": 239,
        "move_pages": 279,
        "membarrier": 324,
    },
    "aarch64": {
        "mbind": 235,
        "get_mempolicy": 236,
        "set_mempolicy": 237,
        "move_pages": 239,
        "membarrier": 283,
    },
}


class Mpol(IntEnum):
    """Memory policies: include/uapi/linux/mempolicy.h."""

    DEFAULT = 0
    PREFERRED = 1
    BIND = 2
    INTERLEAVE = 3
    LOCAL = 4


class MpolFlag(IntFlag):
    """Flags of mbind(): include/uapi/linux/mempolicy.h."""

    STRICT = 1
    MOVE = 2


class Membarrier(IntEnum):
    """Commands of membarrier(): include/uapi/linux/membarrier.h."""

    QUERY = 0
    GLOBAL_EXPEDITED = 2
    REGISTER_GLOBAL_EXPEDITED = 4


# include/uapi/asm-generic/mman-common.h: fault pages in, writable, or return an error instead of a later SIGBUS (5.14).
MADV_POPULATE_READ = 22
MADV_POPULATE_WRITE = 23
# include/uapi/asm-generic/socket.h: a pidfd of the peer of a unix socket (6.5).
SO_PEERPIDFD = 77


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    """The C library of this process; `syscall` returns a long and leaves errno."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def number(name: str) -> int:
    """The number of system call NAME here. Raises UnsupportedError on a machine without a table."""
    machine = platform.machine()
    try:
        return SYSCALLS[machine][name]
    except KeyError:
        raise UnsupportedError(
            f"the number of system call {name} on {machine} is not known here",
            hint=f"there are {', '.join(SYSCALLS)}",
            facts={"machine": machine, "call": name},
        ) from None


def syscall(name: str, *args: object) -> int:
    """Make system call NAME; integers go as longs, the rest as ctypes takes it. Raises OSError."""
    words = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    result = int(_libc().syscall(ctypes.c_long(number(name)), *words))
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


# Memory policy.


# The barrier of the sleep handshake.
