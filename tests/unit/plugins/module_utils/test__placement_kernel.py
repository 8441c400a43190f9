# SPDX-License-Identifier: GPL-3.0-or-later
"""The memory policy calls: their numbers, their masks, and what this machine's kernel answers to them."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils._placement_kernel import (
    SYSCALLS,
    Kernel,
    Unsupported,
)

PAGE = os.sysconf("SC_PAGE_SIZE")
HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
    "aarch64": ("/usr/include/asm-generic/unistd.h",),
}


@pytest.fixture
def kernel() -> Kernel:
    try:
        return Kernel()
    except Unsupported as exc:
        pytest.skip(str(exc))


@pytest.fixture
def pages(kernel: Kernel) -> Iterator[int]:
    base = kernel.map(4 * PAGE)
    yield base
    kernel.unmap(base, 4 * PAGE)


@pytest.mark.parametrize("machine", sorted(SYSCALLS))
def test_the_numbers_are_those_of_the_kernel_headers(machine: str) -> None:
    header = next((Path(path) for path in HEADERS[machine] if Path(path).exists()), None)
    if header is None:
        pytest.skip(f"none of {HEADERS[machine]} is installed")
    defined = dict(re.findall(r"#define __NR_(\w+)\s+(\d+)", header.read_text()))
    assert {name: int(defined[name]) for name in SYSCALLS[machine]} == SYSCALLS[machine]


@pytest.mark.parametrize("machine", ["riscv64", "i686", "aarch64_be"])
def test_numbers_of_another_architecture_are_not_guessed(machine: str) -> None:
    with pytest.raises(Unsupported) as caught:
        Kernel(machine)
    assert caught.value.reason == "unsupported_architecture"


def test_a_python_without_ctypes_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctypes", None)
    with pytest.raises(Unsupported) as caught:
        Kernel("x86_64")
    assert caught.value.reason == "no_ctypes"


@pytest.mark.parametrize("node", [0, 1, 63, 64, 130])
def test_a_mask_holds_the_one_node_and_reaches_as_far_as_it(kernel: Kernel, node: int) -> None:
    mask, length = kernel._mask(node)
    bits = {64 * word + bit for word, value in enumerate(mask) for bit in range(64) if value >> bit & 1}
    assert bits == {node}
    # get_nodes() takes one off the length that it is given.
    assert node < length - 1 <= 8 * ctypes.sizeof(mask)


def first_node() -> int:
    path = Path("/sys/devices/system/node/has_memory")
    if not path.exists():
        pytest.skip("this kernel shows no NUMA nodes")
    return int(re.split("[-,]", path.read_text())[0])


def or_skip(exc: OSError) -> None:
    if exc.errno in (errno.EPERM, errno.ENOSYS):
        pytest.skip(f"not allowed here: {exc}")
    raise exc


def test_pages_are_nowhere_before_the_first_touch_and_on_their_node_after(kernel: Kernel, pages: int) -> None:
    node = first_node()
    try:
        kernel.small_pages(pages, 4 * PAGE)
        kernel.bind(pages, 4 * PAGE, node)
        addresses = [pages, pages + 3 * PAGE]
        before = kernel.nodes_of(addresses)
        kernel.touch(pages)
        after = kernel.nodes_of(addresses)
        assert (before, after) == ([-errno.ENOENT, -errno.ENOENT], [node, -errno.ENOENT])
        assert kernel.node_of(pages) == node
    except OSError as exc:
        or_skip(exc)


def test_a_node_that_does_not_exist_is_refused(kernel: Kernel, pages: int) -> None:
    first_node()
    with pytest.raises(OSError, match="mbind") as caught:
        kernel.bind(pages, PAGE, 900)
    if caught.value.errno != errno.EINVAL:
        or_skip(caught.value)


def test_a_huge_page_size_that_no_kernel_has_is_refused(kernel: Kernel) -> None:
    with pytest.raises(OSError, match="mmap"):
        kernel.map(8 << 20, 8)
