# SPDX-License-Identifier: Apache-2.0
"""Every system call, flag and number that the standard library lacks, each with its source. No policy.

The numbers are of x86_64 and aarch64; another machine is refused when a call is needed.
"""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum, IntFlag
from functools import lru_cache
from typing import Any

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
# include/uapi/asm-generic/socket.h: a pidfd of the peer of a unix socket (6.5), its supplementary groups (4.13).
SO_PEERPIDFD = 77
SO_PEERGROUPS = 59


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


def node_mask(nodes: Iterable[int]) -> tuple[ctypes.Array[ctypes.c_ulong] | None, int]:
    """NODES as the mask and its length in bits that the policy calls take; None and 0 for no nodes."""
    wanted = sorted(set(nodes))
    if not wanted:
        return None, 0
    word = 8 * ctypes.sizeof(ctypes.c_ulong)
    mask = (ctypes.c_ulong * (wanted[-1] // word + 1))()
    for node in wanted:
        mask[node // word] |= 1 << (node % word)
    # mm/mempolicy.c, get_nodes(): the kernel takes one bit less than the length says.
    return mask, word * len(mask) + 1


def set_mempolicy(mode: Mpol, nodes: Iterable[int] = ()) -> None:
    """Set the memory policy of the calling thread for what it allocates from now on. Raises OSError."""
    mask, bits = node_mask(nodes)
    syscall("set_mempolicy", int(mode), mask, bits)


def get_mempolicy() -> tuple[int, list[int]]:
    """The memory policy of the calling thread: mode and nodes. Raises OSError."""
    mode = ctypes.c_int()
    mask = (ctypes.c_ulong * 16)()
    word = 8 * ctypes.sizeof(ctypes.c_ulong)
    syscall("get_mempolicy", ctypes.byref(mode), mask, word * len(mask), None, 0)
    return mode.value, [i * word + bit for i, bits in enumerate(mask) for bit in range(word) if bits >> bit & 1]


def page_nodes(addresses: Sequence[int]) -> list[int]:
    """The node of the page at each of ADDRESSES of this process, or a negative errno (move_pages(2), a query)."""
    count = len(addresses)
    pages = (ctypes.c_void_p * count)(*addresses)
    status = (ctypes.c_int * count)()
    syscall("move_pages", 0, count, pages, None, status, 0)
    return list(status)


def mbind(address: int, length: int, policy: Mpol, nodes: Iterable[int], flags: MpolFlag) -> None:
    """Give LENGTH bytes at ADDRESS the POLICY over NODES. Raises OSError.

    On a mapping of a memfd the policy is of the file: it holds for every process that maps it.
    """
    mask, bits = node_mask(nodes)
    syscall("mbind", address, length, int(policy), mask, bits, int(flags))


def nodes_of_pages(address: int, length: int, page_bytes: int) -> dict[int, int]:
    """How many pages of PAGE_BYTES at ADDRESS lie on which node; a negative key is an errno. Raises OSError."""
    found: dict[int, int] = {}
    pages = range(address, address + length, page_bytes)
    for first in range(0, len(pages), 4096):
        for node in page_nodes(pages[first : first + 4096]):
            found[node] = found.get(node, 0) + 1
    return found


def current_cpu() -> int:
    """The CPU that this thread runs on."""
    return int(_libc().sched_getcpu())


def address_of(buffer: Any) -> int:
    """The address of a writable BUFFER; valid while it is mapped."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


# The barrier of the sleep handshake.


def membarrier(command: Membarrier) -> int:
    """Run COMMAND of membarrier(). Raises OSError, UnsupportedError."""
    return syscall("membarrier", int(command), 0, 0)


def barrier_call() -> Callable[[], None]:
    """GLOBAL_EXPEDITED as a call with nothing to prepare: every running thread of every registered process passes
    a full barrier before it returns. Raises UnsupportedError.
    """
    call = _libc().syscall
    words = [ctypes.c_long(word) for word in (number("membarrier"), Membarrier.GLOBAL_EXPEDITED, 0, 0)]

    def barrier() -> None:
        if call(*words):
            code = ctypes.get_errno()
            raise OSError(code, f"membarrier: {os.strerror(code)}")

    return barrier


# Peers.


def peer_pidfd(sock: socket.socket) -> int:
    """A new pidfd of the process at the other end of a unix socket. Raises OSError before Linux 6.5."""
    return sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)


def peer_credentials(sock: socket.socket) -> tuple[int, int, int]:
    """(pid, uid, gid) of the process at the other end of a unix socket, as it was when it connected or listened."""
    pid, uid, gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid, gid


def peer_groups(sock: socket.socket) -> list[int]:
    """The supplementary groups of the process at the other end of a unix socket. Raises OSError for more than 256."""
    # Python takes no larger buffer.
    data = sock.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 1024)
    return [group for (group,) in struct.iter_unpack("I", data[: len(data) // 4 * 4])]


def start_ticks(pid: int | str) -> int:
    """When process PID began, in clock ticks since boot: with its pid this names a process. 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0

# Mappings and files of the weights.


# include/uapi/linux/magic.h, first word of struct statfs.
HUGETLBFS_MAGIC = 0x958458F6
TMPFS_MAGIC = 0x01021994
# include/uapi/asm-generic/mman.h, mman-common.h: what the mmap module of Python 3.10 lacks.
PROT_NONE, PROT_READ = 0, 1
MAP_SHARED, MAP_PRIVATE, MAP_FIXED, MAP_ANONYMOUS, MAP_NORESERVE = 0x01, 0x02, 0x10, 0x20, 0x4000
MADV_HUGEPAGE, MADV_DONTDUMP = 14, 16
# include/uapi/linux/fcntl.h.
AT_FDCWD = -100
AT_SYMLINK_FOLLOW = 0x400


@lru_cache(maxsize=1)
def _calls() -> ctypes.CDLL:
    """The C library with the signatures of the calls below."""
    libc = ctypes.CDLL(None, use_errno=True)
    word, pointer, number_ = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
    table: dict[str, tuple[object, list[object]]] = {
        "mmap": (pointer, [pointer, word, number_, number_, number_, ctypes.c_long]),
        "munmap": (number_, [pointer, word]),
        "madvise": (number_, [pointer, word, number_]),
        "linkat": (number_, [number_, ctypes.c_char_p, number_, ctypes.c_char_p, number_]),
        "fstatfs": (number_, [number_, ctypes.c_char_p]),
    }
    for name, (result, arguments) in table.items():
        function = getattr(libc, name)
        function.restype, function.argtypes = result, arguments
    return libc


def _checked(name: str, *args: object) -> int:
    """Make call NAME; -1 in any width is an OSError."""
    result = getattr(_calls(), name)(*args)
    if result in (-1, ctypes.c_void_p(-1).value):
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return int(result or 0)


def map_memory(address: int, length: int, prot: int, flags: int, fd: int = -1, offset: int = 0) -> int:
    """mmap(2): the address of the mapping. Raises OSError."""
    return _checked("mmap", address or None, length, prot, flags, fd, offset)


def unmap_memory(address: int, length: int) -> None:
    """munmap(2). Raises OSError."""
    _checked("munmap", address, length)


def advise(address: int, length: int, advice: int) -> None:
    """madvise(2). Raises OSError."""
    _checked("madvise", address, length, advice)


def link_open_file(fd: int, path: str) -> None:
    """Give the nameless file FD the name PATH. os.link() cannot: it does not follow /proc/self/fd. Raises OSError."""
    source = f"/proc/self/fd/{fd}".encode()
    _checked("linkat", AT_FDCWD, source, AT_FDCWD, os.fsencode(path), AT_SYMLINK_FOLLOW)


def filesystem_magic(fd: int) -> int:
    """The f_type of the filesystem that FD is on. Raises OSError."""
    buffer = ctypes.create_string_buffer(256)
    _checked("fstatfs", fd, buffer)
    return int.from_bytes(buffer.raw[: ctypes.sizeof(ctypes.c_long)], sys.byteorder)
