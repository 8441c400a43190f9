# SPDX-License-Identifier: Apache-2.0
"""Where the pages of an image came to lie: asked of the kernel page by page, compared with what was asked for."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

from firsttouch import _linux, _pool
from firsttouch._image import Layout
from firsttouch._pool import Mount, Placement
from firsttouch._workers import pages_wanted
from firsttouch.errors import KernelError, NodeExhaustedError, UnsupportedError

_NODES_AT_ONCE = 65536


def pages_by_node(
    mount: Mount, placement: Placement, layout: Layout, fd: int, memory: mmap.mmap, warnings: list[str]
) -> dict[int, int]:
    """Pages of the image by node; every page is there, and where it was asked to be."""
    status = os.fstat(fd)
    if status.st_blocks * 512 < layout.image_bytes:
        raise KernelError(f"the image has {status.st_blocks * 512} bytes of {layout.image_bytes}")
    anchor = ctypes.c_char.from_buffer(memory)
    start = ctypes.addressof(anchor)
    try:
        with pages_wanted():
            _linux.advise(start, layout.image_bytes, _linux.MADV_POPULATE_WRITE)
        if mount.backend == _pool.TMPFS_HUGE:
            warnings.extend(_degraded(start, layout.image_bytes))
        nodes = _nodes_of(start, layout)
    except (UnsupportedError, KernelError, OSError) as error:
        text = f"the nodes of the pages are not known: {error}"
        if placement.mode != "any":
            raise UnsupportedError(text, hint="load without a node") from error
        warnings.append(text)
        return {}
    finally:
        del anchor
    found: dict[int, int] = {}
    for node in nodes:
        found[node] = found.get(node, 0) + 1
    _check_nodes(placement, nodes, found, warnings)
    return dict(sorted(found.items()))


def _nodes_of(start: int, layout: Layout) -> list[int]:
    addresses = range(start, start + layout.image_bytes, layout.page_bytes)
    nodes: list[int] = []
    for first in range(0, len(addresses), _NODES_AT_ONCE):
        nodes += _linux.page_nodes(addresses[first : first + _NODES_AT_ONCE])
    if min(nodes) < 0:
        raise KernelError(f"move_pages: {os.strerror(-min(nodes))}")
    return nodes


def _check_nodes(wanted: Placement, nodes: list[int], found: dict[int, int], warnings: list[str]) -> None:
    bad = 0
    if wanted.mode in ("bind", "prefer"):
        bad = sum(count for node, count in found.items() if node not in wanted.nodes)
    elif wanted.mode == "interleave":
        bad = sum(node != wanted.nodes[place % len(wanted.nodes)] for place, node in enumerate(nodes))
    if bad and wanted.mode == "prefer":
        warnings.append(f"{bad} of {len(nodes)} pages lie on other nodes than {list(wanted.nodes)}")
    elif bad:
        raise NodeExhaustedError(
            f"{bad} of {len(nodes)} pages lie elsewhere than {wanted.mode} on {list(wanted.nodes)} asks for",
            facts={"found": found, "need": len(nodes)},
        )


def _degraded(start: int, length: int) -> list[str]:
    """Say so when a tmpfs gave small pages: it does without a word."""
    huge, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split(" ", 1)[0]
        if "-" in head and not head.endswith(":"):
            inside = int(head.split("-")[0], 16) == start
        elif inside and head in ("ShmemPmdMapped:", "FilePmdMapped:"):
            huge += int(line.split()[1]) * 1024
    part = huge * 100 // length
    return [] if part >= 99 else [f"only {part} % of the image lies in huge pages"]
