# SPDX-License-Identifier: Apache-2.0
"""Memory latency by dependent loads: a few machine instructions, because Python cannot wait for one load.

The cache lines of the buffer are flushed before each pass, so that every load of the pass goes to memory
however large the caches are, and a buffer of 2 MiB is enough. A cycle of a few lines that stay in the nearest
cache is timed beside it: where it is not far faster, the loads did not reach memory and the numbers say
nothing about nodes (an emulated CPU, for which a flush means nothing).
"""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Sequence
from statistics import median
from typing import Any

from ._placement_kernel import Kernel

# One line in 256 bytes: prefetchers fetch neighbours of 64 or 128 bytes, and few pages need a translation.
STRIDE = 256
BUFFER_BYTES = 2 << 20
# The last 4 KiB hold the cycle that stays in the cache.
_SMALL_BYTES = 4096
_PARTS = 8
_FLUSH_AT = {"x86_64": 16, "aarch64": 32}

# chase(base, offset, loads): follow `offset = base[offset]`, return the last offset.
# flush(base, lines, stride): take one line in STRIDE bytes out of all caches.
#
# x86_64 (objdump -d -M intel)              aarch64 (objdump -d)
#   0: 48 89 f0     mov rax,rsi               0: aa0103e3  mov x3, x1
#   3: 48 8b 04 07  mov rax,[rdi+rax*1]       4: f8636803  ldr x3, [x0, x3]
#   7: 48 83 ea 01  sub rdx,0x1               8: f1000442  subs x2, x2, #0x1
#   b: 75 f6        jne 3                     c: 54ffffc1  b.ne 4
#   d: c3           ret                      10: aa0303e0  mov x0, x3
#   e: 66 90        xchg ax,ax               14: d65f03c0  ret
#                                            18: d503201f  nop (twice)
#  10: 0f ae 3f     clflush [rdi]            20: d50b7e20  dc civac, x0
#  13: 48 01 d7     add rdi,rdx              24: 8b020000  add x0, x0, x2
#  16: 48 83 ee 01  sub rsi,0x1              28: f1000421  subs x1, x1, #0x1
#  1a: 75 f4        jne 10                   2c: 54ffffa1  b.ne 20
#  1c: 0f ae f0     mfence                   30: d5033f9f  dsb sy
#  1f: c3           ret                      34: d65f03c0  ret
_X86_64 = "4889f0488b04074883ea0175f6c36690" + "0fae3f4801d74883ee0175f40faef0c3"
_AARCH64 = (
    ("aa0103e3", "f8636803", "f1000442", "54ffffc1", "aa0303e0", "d65f03c0", "d503201f", "d503201f"),
    ("d50b7e20", "8b020000", "f1000421", "54ffffa1", "d5033f9f", "d65f03c0"),
)
CODE = {
    "x86_64": bytes.fromhex(_X86_64),
    "aarch64": b"".join(bytes.fromhex(word)[::-1] for part in _AARCH64 for word in part),
}


class Chase:
    """The two routines in a mapping of their own, and the cyclic permutation they run over, an image().

    Raises OSError where no executable memory may be made, its errno EACCES or EPERM.
    """

    def __init__(self, kernel: Kernel, cycles: bytes) -> None:
        code = CODE[kernel.machine]
        self._length = 65536  # one page, whatever the page size
        self._kernel = kernel
        self._at = kernel.map(self._length)
        kernel.write(self._at, code)
        kernel.seal_code(self._at, self._length)
        self._chase: Any = kernel.function(self._at, 3)
        self._flush: Any = kernel.function(self._at + _FLUSH_AT[kernel.machine], 3)
        self.image = cycles
        self.lines = (BUFFER_BYTES - _SMALL_BYTES) // STRIDE

    def pass_ns(self, base: int) -> list[float]:
        """ns per load of each part of one pass over the buffer at BASE, whose lines are in no cache at first.

        Timed in parts because a part of some 100 us is seldom interrupted. Raises RuntimeError when the loads
        did not go once around the cycle.
        """
        self._flush(base, self.lines, STRIDE)
        offset, times = 0, []
        for _part in range(_PARTS):
            offset, took = self._timed(base, offset, self.lines // _PARTS)
            times.append(took)
        if offset:
            raise RuntimeError(f"{self.lines} loads from the beginning ended at offset {offset}")
        return times

    def cached_ns(self, base: int) -> float:
        """ns per load over a few lines of the buffer at BASE, over and over."""
        small = BUFFER_BYTES - _SMALL_BYTES
        return self._timed(base, small, _SMALL_BYTES // STRIDE * 128)[1]

    def _timed(self, base: int, start: int, loads: int) -> tuple[int, float]:
        begin = time.perf_counter_ns()
        end = self._chase(base, start, loads)
        return end, (time.perf_counter_ns() - begin) / loads


def image(seed: int) -> bytes:
    """BUFFER_BYTES of offsets: one random cycle through all lines but the last few, and one through those."""
    words = array("Q", bytes(BUFFER_BYTES))
    small = range(BUFFER_BYTES - _SMALL_BYTES, BUFFER_BYTES, STRIDE)
    order = list(range(STRIDE, BUFFER_BYTES - _SMALL_BYTES, STRIDE))
    random.Random(seed).shuffle(order)
    for cycle in ([0, *order], list(small)):
        for here, there in zip(cycle, [*cycle[1:], cycle[0]]):
            words[here // 8] = there
    return words.tobytes()


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Median of VALUES and the median distance from it (MAD), which a few disturbed passes do not move."""
    middle = median(values)
    return middle, median(abs(value - middle) for value in values)
