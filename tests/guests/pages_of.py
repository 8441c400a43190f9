# SPDX-License-Identifier: GPL-3.0-or-later
"""The node of every page of a file in hugetlbfs, asked of the kernel without any code of ours: PATH PAGE_BYTES.

Runs in a guest, on nothing but its Python. Prints a JSON list of nodes, page by page, and what numa_maps adds up.
"""

import ctypes
import json
import mmap
import re
import sys

GET_MEMPOLICY = 239  # x86-64
MPOL_F_NODE, MPOL_F_ADDR = 1, 2


def main() -> None:
    path, page = sys.argv[1], int(sys.argv[2])
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        start = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    if start == ctypes.c_void_p(-1).value:
        raise SystemExit(f"mmap: errno {ctypes.get_errno()}")
    nodes, node = [], ctypes.c_int()
    for address in range(start, start + size, page):
        ctypes.c_ubyte.from_address(address).value  # noqa: B018 - the page is looked at, so that it is mapped
        flags = MPOL_F_NODE | MPOL_F_ADDR
        if libc.syscall(GET_MEMPOLICY, ctypes.byref(node), None, 0, ctypes.c_void_p(address), flags):
            raise SystemExit(f"get_mempolicy: errno {ctypes.get_errno()}")
        nodes.append(node.value)
    with open("/proc/self/numa_maps") as table:
        line = next(row for row in table if row.startswith(f"{start:x} "))
    print(
        json.dumps(
            {"nodes": nodes, "numa_maps": {key: int(n) for key, n in re.findall(r"N(\d+)=(\d+)", line)}}
        )
    )


main()
