# SPDX-License-Identifier: Apache-2.0
"""What the kernel makes of the hugetlb arguments: mm/hugetlb.c, replayed argument by argument.

Sources: hugepages_setup, hugepagesz_setup, default_hugepagesz_setup and hugetlb_init of Linux 5.8 and later,
hugetlb_nrpages_setup and setup_hugepagesz (arch/x86/mm/hugetlbpage.c) before, hugetlb_add_param from 6.15.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ._cmdline import Token, normal_key
from ._kernel_facts import KernelFacts
from ._kernel_numbers import Warn, format_size, memparse, scan_unsigned

KEYS = ("hugepages", "hugepagesz", "default_hugepagesz")


@dataclass
class Pool:
    """One page size: pages asked for in total, or per node where any node has a count above zero."""

    size_kb: int
    count: int = 0
    by_node: dict[int, int] = field(default_factory=dict)
    named: bool = False
    # Pages of a gigantic size that kernels before 6.15 take while they still parse.
    taken: int = 0
    taken_by_node: dict[int, int] = field(default_factory=dict)
    # Pages of a node without memory that the kernel takes from another node.
    elsewhere: int = 0

    @property
    def nodes(self) -> dict[int, int]:
        """Pages per node as far as the kernel places them itself by the arguments; empty: spread over all."""
        return {node: pages for node, pages in sorted(self.by_node.items()) if pages}

    @property
    def total(self) -> int:
        """Pages the kernel tries to get. With any count per node it fills those and ignores the sum."""
        return (sum(self.nodes.values()) if self.nodes else self.count) + self.elsewhere


class HugetlbParser:
    """The kernel's state while it reads the hugetlb arguments of one command line."""

    def __init__(self, facts: KernelFacts) -> None:
        self.facts = facts
        self.pools: dict[int, Pool] = {}
        self.warnings: list[Warn] = []
        self.default_kb = facts.default_huge_kb
        self._parsed: Pool | None = None
        self._implicit = Pool(0)
        self._last: Pool | None = None
        self._valid = True
        self._default_parsed = False
        self._old_default: Token | None = None

    def warn(self, token: Token, reason: str, text: str, dropped: bool = True) -> None:
        self.warnings.append(Warn(token.text, reason, text, dropped))

    def feed(self, tokens: Sequence[Token]) -> None:
        """Take the arguments in order, then settle the pools as hugetlb_init does."""
        kept = 0
        limit = self.facts.hugetlb_arguments
        for token in tokens:
            key = normal_key(token.key)
            if key not in KEYS:
                continue
            if token.value is None:
                self._missing_value(token)
                continue
            if limit is not None and kept >= limit:
                text = f"{token.text} is one hugetlb argument too many: this kernel keeps {limit}, ignored"
                self.warn(token, "too_many_hugetlb_arguments", text)
                continue
            kept += 1
            if key == "hugepages":
                self._hugepages(token, token.value)
            elif key == "hugepagesz":
                self._hugepagesz(token, token.value)
            else:
                self._default_hugepagesz(token, token.value)
        self._settle()

    def _missing_value(self, token: Token) -> None:
        text = f"{token.text} has no value, ignored"
        if self.facts.version >= (6, 15):
            text = f"{token.text} has no value; early kernels from 6.15 on can crash on it"
        self.warn(token, "missing_value", text)

    def _add(self, size_kb: int) -> None:
        """hugetlb_add_hstate: an existing size is left alone, and does not become the current one."""
        if size_kb not in self.pools:
            self._parsed = self.pools[size_kb] = Pool(size_kb)

    def _size(self, token: Token, value: str, reason: str) -> int | None:
        size = memparse(value)[0]
        if size % 1024 == 0 and size // 1024 in self.facts.huge_sizes_kb:
            return size // 1024
        self.warn(token, reason, f"{token.text} is not a page size of this CPU and kernel, ignored")
        return None

    def _hugepagesz(self, token: Token, value: str) -> None:
        old = self.facts.version < (5, 8)
        if not old:
            self._valid = False
        size_kb = self._size(token, value, "unsupported_hugepagesz")
        if size_kb is None:
            self._valid = False
            return
        pool = self.pools.get(size_kb)
        if pool is not None:
            allowed = not old and self._default_parsed and size_kb == self.default_kb and not pool.count
            if not allowed:
                self.warn(token, "hugepagesz_specified_twice", f"{token.text} specified twice, ignored")
                return
            self._parsed = pool
        self._add(size_kb)
        self.pools[size_kb].named = True
        if not old:
            self._valid = True

    def _default_hugepagesz(self, token: Token, value: str) -> None:
        if self.facts.version < (5, 8):
            self._old_default = token
            return
        self._valid = False
        if self._default_parsed:
            text = f"{token.text}: default_hugepagesz previously specified, ignored"
            self.warn(token, "default_hugepagesz_specified_twice", text)
            return
        size_kb = self._size(token, value, "unsupported_default_hugepagesz")
        if size_kb is None:
            return
        self._add(size_kb)
        self._valid = self._default_parsed = True
        self.default_kb = size_kb
        pool = self.pools[size_kb]
        if self._implicit.count:
            pool.count = self._implicit.count
            pool.by_node.update(self._implicit.by_node)
            self._take(pool)
            self._implicit.count = 0

    def _hugepages(self, token: Token, value: str) -> None:
        if not self._valid:
            text = f"{token.text} does not follow a valid hugepagesz, ignored"
            self.warn(token, "no_valid_hugepagesz", text)
            self._valid = True
            return
        pool = (self._parsed if self.pools else None) or self._implicit
        if pool is self._last:
            text = f"{token.text} given twice without hugepagesz between, ignored"
            self.warn(token, "repeated_hugepages_ignored", text)
            return
        if self.facts.node_format:
            if not self._counts(token, value, pool):
                pool.count, pool.by_node = 0, {}
                return
        else:
            self._plain_count(token, value, pool)
        if self.pools:
            self._take(pool)
        self._last = pool

    def _plain_count(self, token: Token, value: str, pool: Pool) -> None:
        """hugepages_setup below Linux 5.16: digits at the start, whatever follows; nothing else is 0."""
        found = scan_unsigned(value)
        pool.count = found[0] if found else 0
        if ":" in value:
            text = f"{token.text}: this kernel has no node format and reads it as {pool.count} pages"
            self.warn(token, "node_format_unsupported", text, dropped=not pool.count)
        elif found is None or found[1]:
            text = f"{token.text} is read as {pool.count} pages"
            self.warn(token, "hugepages_partly_read", text, dropped=found is None)

    def _counts(self, token: Token, value: str, pool: Pool) -> bool:
        """The loop of hugepages_setup since Linux 5.16; False: the parameter and its pool are void."""
        rest, first = value, True
        while rest:
            found = scan_unsigned(rest)
            if found is None:
                return self._void(token, "invalid_hugepages", f"{rest!r} is not a count")
            number, behind = found
            if behind[:1] != ":":
                if not first:
                    return self._void(token, "invalid_hugepages", f"{rest!r} is not node:count")
                pool.count = number
                if behind:
                    text = f"{token.text} is read as {number} pages"
                    self.warn(token, "hugepages_partly_read", text, dropped=False)
                return True
            if self.facts.nodes and number not in self.facts.nodes:
                return self._void(token, "no_such_node", f"node {number} is not online")
            if self._comes_too_late(number):
                why = f"node {number} has no memory, which is not online yet when this kernel reads it"
                return self._void(token, "node_without_memory", why)
            found = scan_unsigned(behind[1:])
            if found is None:
                return self._void(token, "invalid_hugepages", f"{behind[1:]!r} is not a count")
            pool.by_node[number] = found[0]
            pool.count += found[0]
            first, rest = False, found[1]
            if rest[:1] != ",":
                if rest:
                    text = f"{token.text}: {rest!r} is not read"
                    self.warn(token, "hugepages_partly_read", text, dropped=False)
                return True
            rest = rest[1:]
        return True

    def _comes_too_late(self, node: int) -> bool:
        """On x86 nodes without memory come online in init_cpu_to_node: too late for Linux 6.15 to 6.19."""
        facts = self.facts
        if facts.arch not in ("x86_64", "i686") or not (6, 15) <= facts.version < (7, 0):
            return False
        return bool(facts.memory_nodes) and node not in facts.memory_nodes

    def _void(self, token: Token, reason: str, why: str) -> bool:
        self.warn(token, reason, f"{token.text}: {why}, so the kernel drops the whole parameter")
        return False

    def gigantic(self, pool: Pool) -> bool:
        """Larger than the page allocator's largest block: 2**10 base pages (arm64 with 64K: 2**13)."""
        return pool.size_kb > self.facts.page_kb << (13 if self.facts.page_kb == 64 else 10)

    def _take(self, pool: Pool) -> None:
        """Before Linux 6.15 gigantic pages are taken at the argument that counts them, once per argument."""
        if self.facts.version >= (6, 15) or not self.gigantic(pool):
            return
        if not pool.nodes:
            pool.taken += pool.count
        for node, pages in pool.nodes.items():
            pool.taken_by_node[node] = pool.taken_by_node.get(node, 0) + pages

    def _settle(self) -> None:
        """hugetlb_init: the size that always exists, and the count that came before any size."""
        if self._old_default is not None:
            self._settle_old_default(self._old_default)
        self._add(self.facts.default_huge_kb)
        default = self.pools[self.default_kb]
        default.named = True
        if self._implicit.count and not self._default_parsed:
            self._settle_implicit(default)
        for pool in self.pools.values():
            if pool.taken or pool.taken_by_node:
                pool.count, pool.by_node = pool.taken, dict(pool.taken_by_node)
                if pool.taken and pool.by_node:
                    pool.by_node = {}
                    pool.count = pool.taken + sum(pool.taken_by_node.values())

    def _settle_old_default(self, token: Token) -> None:
        """Linux before 5.8: default_hugepagesz only chooses among the sizes that hugepagesz named."""
        size_kb = memparse(token.value or "")[0] // 1024
        if size_kb in self.pools:
            self.default_kb = size_kb
        elif size_kb != self.default_kb:
            text = f"{token.text} has no hugepagesz={format_size(size_kb)} with it, so the default stays"
            self.warn(token, "unsupported_default_hugepagesz", text)

    def _settle_implicit(self, default: Pool) -> None:
        if default.count:
            if self.facts.version < (5, 8):
                return
            token, size = f"hugepages={self._implicit.count}", format_size(default.size_kb)
            text = f"{token} before any size replaces hugepages={default.count} of {size}"
            self.warnings.append(Warn(token, "count_before_size_wins", text))
        default.count, default.by_node = self._implicit.count, dict(self._implicit.by_node)
