# SPDX-License-Identifier: Apache-2.0
"""The kernel's memory policy calls through ctypes: where pages may go, and where they are.

Numbers: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h (aarch64). Flags:
include/uapi/linux/mempolicy.h and asm-generic/mman-common.h, the same on both.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Sequence
from typing import Any

SYSCALLS = {
    "x86_64": {"mbind": 237, "set_mempolicy": 238, "get_mempolicy": 239, "move_pages": 279},
    "aarch64": {"mbind": 235, "set_mempolicy": 237, "get_mempolicy": 236, "move_pages": 239},
}
_MPOL_DEFAULT, _MPOL_BIND = 0, 2
_MPOL_F_STATIC_NODES = 1 << 15
_MPOL_F_NODE, _MPOL_F_ADDR = 1, 2
_PROT_READ, _PROT_WRITE, _PROT_EXEC = 1, 2, 4
_MAP_PRIVATE, _MAP_ANONYMOUS, _MAP_HUGETLB = 0x02, 0x20, 0x40000
_MAP_HUGE_SHIFT = 26
_MADV_NOHUGEPAGE = 15
_MAP_FAILED = 2**64 - 1
_LONG_BITS = 64
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4


class Unsupported(Exception):
    """These calls cannot be made here at all: `reason` is no_ctypes or unsupported_architecture."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Kernel:
    """The calls, for this process. Each raises OSError with the kernel's errno.

    Raises Unsupported where they cannot be made: another architecture, a 32-bit Python, no ctypes.
    """

    def __init__(self, machine: str | None = None) -> None:
        machine = os.uname().machine if machine is None else machine
        try:
            import ctypes
        except ImportError as exc:
            raise Unsupported("no_ctypes", f"this Python has no ctypes: {exc}") from exc
        if machine not in SYSCALLS or ctypes.sizeof(ctypes.c_void_p) * 8 != _LONG_BITS:
            bits = ctypes.sizeof(ctypes.c_void_p) * 8
            text = f"the system call numbers of {machine} with {bits}-bit programs are not known here"
            raise Unsupported("unsupported_architecture", text)
        self.machine = machine
        self._numbers = SYSCALLS[machine]
        self._ctypes = ctypes
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.syscall.restype = ctypes.c_long
        self._libc.mmap.restype = ctypes.c_size_t
        self._libc.mmap.argtypes = [
            ctypes.c_size_t,
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_long,
        ]
        self._libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
        for name, more in (("munmap", []), ("madvise", [ctypes.c_int]), ("mprotect", [ctypes.c_int])):
            getattr(self._libc, name).argtypes = [ctypes.c_size_t, ctypes.c_size_t, *more]

    def end_with_parent(self) -> None:
        """In a child: be killed when the parent dies, and hand nothing to a crash handler (prctl(2))."""
        self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        self._libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)

    def map(self, length: int, huge_kb: int = 0) -> int:
        """Address of a new private mapping of LENGTH bytes, of huge pages of HUGE_KB kB if that is given."""
        flags = _MAP_PRIVATE | _MAP_ANONYMOUS
        if huge_kb:
            flags |= _MAP_HUGETLB | (huge_kb * 1024).bit_length() - 1 << _MAP_HUGE_SHIFT
        address: int = self._libc.mmap(0, length, _PROT_READ | _PROT_WRITE, flags, -1, 0)
        if address == _MAP_FAILED:
            self._fail("mmap")
        return address

    def unmap(self, address: int, length: int) -> None:
        """Give the pages back."""
        if self._libc.munmap(address, length):
            self._fail("munmap")

    def seal_code(self, address: int, length: int) -> None:
        """Make the mapping executable and no longer writable; the kernel then makes it visible to fetches.

        EACCES or EPERM: SELinux (execmem), a seccomp filter or PR_SET_MDWE forbids it.
        """
        if self._libc.mprotect(address, length, _PROT_READ | _PROT_EXEC):
            self._fail("mprotect")

    def small_pages(self, address: int, length: int) -> None:
        """Keep transparent huge pages out of the mapping; a kernel without them says EINVAL, as good."""
        if self._libc.madvise(address, length, _MADV_NOHUGEPAGE) and self._errno() != errno.EINVAL:
            self._fail("madvise")

    def bind(self, address: int, length: int, node: int) -> None:
        """Let the pages of the mapping come from NODE only, whatever ids the host has.

        Static nodes: the id is meant as it is, never renumbered within a cpuset.
        """
        mask, bits = self._mask(node)
        mode = _MPOL_BIND | _MPOL_F_STATIC_NODES
        self._call("mbind", address, length, mode, self._ctypes.addressof(mask), bits, 0)

    def bind_task(self, node: int | None) -> None:
        """The same for what this thread allocates from now on; None: the kernel's default again.

        A huge page mapping that is made meanwhile is refused (ENOMEM) when NODE has too few, instead of a
        SIGBUS at first touch.
        """
        if node is None:
            self._call("set_mempolicy", _MPOL_DEFAULT, 0, 0)
            return
        mask, bits = self._mask(node)
        self._call("set_mempolicy", _MPOL_BIND | _MPOL_F_STATIC_NODES, self._ctypes.addressof(mask), bits)

    def touch(self, address: int) -> None:
        """Write one byte: the first touch. SIGBUS ends this process when no page can be had."""
        self._ctypes.memset(address, 1, 1)

    def write(self, address: int, data: bytes) -> None:
        """Copy DATA to ADDRESS."""
        self._ctypes.memmove(address, data, len(data))

    def nodes_of(self, addresses: Sequence[int]) -> list[int]:
        """The node of the page at each address, or minus an errno: move_pages(2) that moves nothing."""
        count = len(addresses)
        pages = (self._ctypes.c_void_p * count)(*addresses)
        status = (self._ctypes.c_int * count)(*([-errno.ENODATA] * count))
        where = self._ctypes.addressof
        self._call("move_pages", 0, count, where(pages), 0, where(status), 0)
        return list(status)

    def node_of(self, address: int) -> int:
        """The node of the page at ADDRESS by get_mempolicy(2), another way through the kernel."""
        node = self._ctypes.c_int(-1)
        flags = _MPOL_F_NODE | _MPOL_F_ADDR
        self._call("get_mempolicy", self._ctypes.addressof(node), 0, 0, address, flags)
        return node.value

    def function(self, address: int, arguments: int) -> Any:
        """The machine code at ADDRESS as a function of ARGUMENTS unsigned 64-bit integers to one."""
        unsigned = self._ctypes.c_uint64
        return self._ctypes.CFUNCTYPE(unsigned, *[unsigned] * arguments)(address)

    def _mask(self, node: int) -> tuple[Any, int]:
        """A node mask with only NODE in it, and its length as the kernel counts it, one more (get_nodes)."""
        words = node // _LONG_BITS + 1
        mask = (self._ctypes.c_uint64 * words)()
        mask[node // _LONG_BITS] = 1 << node % _LONG_BITS
        return mask, words * _LONG_BITS + 1

    def _call(self, name: str, *arguments: int) -> None:
        long = self._ctypes.c_long
        if self._libc.syscall(long(self._numbers[name]), *map(long, arguments)) < 0:
            self._fail(name)

    def _errno(self) -> int:
        return int(self._ctypes.get_errno())

    def _fail(self, name: str) -> None:
        number = self._errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
