# SPDX-License-Identifier: Apache-2.0
"""What the arguments that take memory away cost: crashkernel, mem, memmap, hugetlb_cma and cma.

Sources: kernel/crash_core.c and kernel/crash_reserve.c parse_crashkernel, arch/x86/kernel/e820.c parse_memopt
and parse_memmap_one, mm/hugetlb.c and mm/hugetlb_cma.c cmdline_parse_hugetlb_cma.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ._cmdline import Token, normal_key
from ._kernel_facts import KB_PER_GB, KernelFacts
from ._kernel_numbers import Warn, memparse, scan_unsigned

KEYS = ("crashkernel", "mem", "memmap", "hugetlb_cma", "hugetlb_cma_only", "cma", "kernelcore", "movablecore")
_MIB = 1 << 20
_SUFFIXES = (",high", ",low", ",cma")
# x86 crash_low_size_default(): taken below 4 GiB beside crashkernel=X,high unless crashkernel=Y,low is given.
_CRASH_LOW = 256 * _MIB
# What the kernels of RHEL 8 and its rebuilds make of crashkernel=auto; no mainline kernel knows it.
_CRASH_AUTO = "1G-4G:160M,4G-64G:192M,64G-1T:256M,1T-:512M"


@dataclass
class Memory:
    """Bytes. None: not given. crashkernel 0: given, but void."""

    mem_limit: int | None = None
    crashkernel: int | None = None
    memmap_reserved: int = 0
    hugetlb_cma: int = 0
    hugetlb_cma_only: bool = False
    cma: int = 0


@dataclass
class MemoryParser:
    """Reads the arguments about memory of one command line."""

    facts: KernelFacts
    result: Memory = field(default_factory=Memory)
    warnings: list[Warn] = field(default_factory=list)

    def warn(self, token: str, reason: str, text: str, dropped: bool = False) -> None:
        self.warnings.append(Warn(token, reason, text, dropped))

    def feed(self, tokens: Sequence[Token], line: str) -> Memory:
        """Take TOKENS in order; crashkernel is looked for in the text of LINE, as the kernel does."""
        for token in tokens:
            key = normal_key(token.key)
            if key in KEYS and token.value is not None and key != "crashkernel":
                getattr(self, f"_{key}")(token, token.value)
        if "crashkernel=" in line:
            self._crashkernel(line)
        return self.result

    def _mem(self, token: Token, value: str) -> None:
        """x86 cuts everything above the address, so the lowest limit holds; elsewhere the last one does."""
        size = memparse(value)[0]
        if not size:
            return
        x86 = self.facts.arch in ("x86_64", "i686")
        old = self.result.mem_limit
        self.result.mem_limit = min(old, size) if x86 and old else size
        self.warn(token.text, "memory_limited", f"{token.text}: memory above that address is not used")

    def _memmap(self, token: Token, value: str) -> None:
        for piece in value.split(","):
            size, rest = memparse(piece)
            if rest[:1] in ("$", "!"):
                self.result.memmap_reserved += size
                self.warn(token.text, "memory_reserved", f"memmap={piece} takes {size} bytes away")

    def _cma(self, token: Token, value: str) -> None:
        self.result.cma = memparse(value)[0]

    def _hugetlb_cma(self, token: Token, value: str) -> None:
        """A size for all nodes, or node:size,...; less than one gigantic page per machine is void."""
        total, rest = 0, value
        while rest:
            found = scan_unsigned(rest)
            if found is None:
                break
            if found[1][:1] != ":":
                total = memparse(value)[0]
                break
            size, rest = memparse(found[1][1:])
            total += size
            if rest[:1] != ",":
                break
            rest = rest[1:]
        supported = KB_PER_GB in self.facts.huge_sizes_kb
        if self.facts.config is not None and self.facts.config.get("CONFIG_CMA") != "y":
            supported = False
        if not supported or total < KB_PER_GB * 1024:
            text = f"{token.text} is less than one gigantic page or not supported"
            self.warn(token.text, "hugetlb_cma_void", text, dropped=True)
            total = 0
        self.result.hugetlb_cma = total

    def _hugetlb_cma_only(self, token: Token, value: str) -> None:
        self.result.hugetlb_cma_only = value[:2].lower() == "on" or value[:1] in tuple("yYtT1")

    def _kernelcore(self, token: Token, value: str) -> None:
        text = (
            f"{token.text} splits memory into a movable zone, which shifts the watermarks and where pages fit"
        )
        self.warn(token.text, "movable_zone", text)

    _movablecore = _kernelcore

    def _crashkernel(self, line: str) -> None:
        """parse_crashkernel: the last plain one, else the last `,high` with its `,low`."""
        words = _crashkernel_words(line)
        plain = [word for word in words if not word.endswith(_SUFFIXES)]
        high = [word for word in words if word.endswith(",high")]
        if plain:
            size = self._crash_size(plain[-1][len("crashkernel=") :])
            if size is None:
                self.warn(
                    plain[-1], "invalid_crashkernel", f"{plain[-1]} cannot be read, nothing is reserved"
                )
            self.result.crashkernel = size or 0
            return
        if not high:
            self.warn(
                words[-1], "invalid_crashkernel", f"{words[-1]} reserves nothing without crashkernel=size"
            )
            self.result.crashkernel = 0
            return
        total = memparse(high[-1][len("crashkernel=") :])[0]
        low = [word for word in words if word.endswith(",low")]
        low_size = memparse(low[-1][len("crashkernel=") :])[0] if low else _CRASH_LOW
        self.result.crashkernel = total + low_size if total else 0

    def _crash_size(self, text: str) -> int | None:
        """Bytes of `size[@offset]` or `start-[end]:size,...[@offset]`; None when it is void."""
        if text == "auto" and self.facts.version[0] < 5:
            text = _CRASH_AUTO
        if ":" in text:
            return self._crash_ranges(text)
        size, rest = memparse(text)
        return size if rest != text and rest[:1] in ("", "@") else None

    def _crash_ranges(self, text: str) -> int | None:
        ram = self.facts.memory_bytes
        if ram is not None:
            if self.result.mem_limit is not None:
                ram = min(ram, self.result.mem_limit)
            ram = -(-ram // (128 * _MIB)) * 128 * _MIB
        largest = 0
        for piece in text.partition("@")[0].split(","):
            window, colon, amount = piece.partition(":")
            low, dash, high = window.partition("-")
            size, rest = memparse(amount)
            if not colon or not dash or rest == amount or memparse(low)[1] == low:
                return None
            end = memparse(high)[0] if high else None
            if ram is not None and memparse(low)[0] <= ram and (end is None or ram < end):
                return size
            largest = max(largest, size)
        # Without the memory's size the guard must reckon with the largest of them.
        return largest if ram is None else 0


def _crashkernel_words(line: str) -> list[str]:
    """Every `crashkernel=` up to the next blank: strstr() of the kernel sees no tokens and no `--`."""
    words = []
    start = line.find("crashkernel=")
    while start >= 0:
        words.append(line[start:].split(" ", 1)[0].rstrip("\n"))
        start = line.find("crashkernel=", start + 1)
    return words
