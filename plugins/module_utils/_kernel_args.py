# SPDX-License-Identifier: Apache-2.0
"""What a kernel makes of a command line, by its own rules: pools, isolated CPUs, memory, and what it drops.

"Present in /proc/cmdline" is not "accepted by the kernel": most of these arguments fail without an error that
anybody sees. The rules are replayed in _kernel_hugetlb, _kernel_isolation and _kernel_memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from ._cmdline import Token, join, normal_key, split
from ._cpulist import format_list
from ._kernel_facts import KernelFacts, parse_version
from ._kernel_hugetlb import KEYS as HUGETLB_KEYS
from ._kernel_hugetlb import HugetlbParser, Pool
from ._kernel_isolation import KEYS as ISOLATION_KEYS
from ._kernel_isolation import LIMIT_KEYS, Isolation, IsolationParser, limit_cpus
from ._kernel_memory import KEYS as MEMORY_KEYS
from ._kernel_memory import Memory, MemoryParser
from ._kernel_numbers import Warn, format_size, parse_size

__all__ = ["KernelFacts", "Prediction", "Warn", "format_size", "parse_size", "parse_version", "predict"]

# The keys whose effect is predicted; `-` and `_` are the same to the kernel.
MANAGED_KEYS = frozenset((*HUGETLB_KEYS, *ISOLATION_KEYS, *LIMIT_KEYS, *MEMORY_KEYS))
_SYSCTL_POOL = ("vm/nr_hugepages", "vm/nr_hugepages_mempolicy")


@dataclass(frozen=True)
class Prediction:
    """What the kernel makes of one command line. Sizes in kB or bytes as named in as_dict()."""

    pools: dict[int, Pool]
    default_kb: int
    isolation: Isolation
    memory: Memory
    warnings: tuple[Warn, ...]
    facts: KernelFacts = field(repr=False, default_factory=KernelFacts)

    @property
    def hugetlb_bytes_by_node(self) -> dict[int, int]:
        """Bytes of huge pages per node; a pool that it spreads counts as even, the first nodes first.

        Kernels from 6.8 on fill such a pool by several threads, so that nodes may differ by some pages.
        """
        result: dict[int, int] = {}
        for pool in self.pools.values():
            shares = pool.nodes or _spread(pool.total, self.facts.memory_nodes)
            for node, pages in shares.items():
                result[node] = result.get(node, 0) + pages * pool.size_kb * 1024
        return dict(sorted(result.items()))

    @property
    def hugetlb_bytes(self) -> int:
        """Bytes that the boot-time pools of all sizes ask for."""
        return sum(pool.total * pool.size_kb * 1024 for pool in self.pools.values())

    def ignored(self) -> list[str]:
        """The tokens the kernel drops as a whole, in the order met."""
        return list(dict.fromkeys(warn.token for warn in self.warnings if warn.dropped))

    def as_dict(self) -> dict[str, Any]:
        """The document that kernel_cmdline_info returns.

        pools: the sizes named and the default one, keyed like sysfs; nodes is empty where the kernel spreads
        the total itself. sizes_kb: every size with a pool, those nobody named hold no page. isolation: CPU
        lists; domain_online leaves out CPUs that are possible but not online, now or by maxcpus=. memory: bytes.
        """
        return {
            "pools": {
                f"{size}kB": {"total": pool.total, "nodes": {str(node): n for node, n in pool.nodes.items()}}
                for size, pool in self.pools.items()
                if pool.named
            },
            "sizes_kb": sorted(self.pools),
            "default_kb": self.default_kb,
            "isolation": {
                **self.isolation.as_dict(),
                "domain_online": format_list(self.isolation.domain & self.facts.online),
            },
            "cpus": {"nr_cpu_ids": self.facts.nr_cpu_ids, "possible": format_list(self.facts.possible)},
            "memory": {
                "mem_limit_bytes": self.memory.mem_limit,
                "crashkernel_bytes": self.memory.crashkernel,
                "memmap_reserved_bytes": self.memory.memmap_reserved,
                "hugetlb_cma_bytes": self.memory.hugetlb_cma,
                "cma_bytes": self.memory.cma,
                "hugetlb_bytes": self.hugetlb_bytes,
                "hugetlb_bytes_per_node": {str(n): size for n, size in self.hugetlb_bytes_by_node.items()},
            },
            "ignored": self.ignored(),
            "warnings": [warn.as_dict() for warn in self.warnings],
            "kernel": {"version": ".".join(map(str, self.facts.version)), "known": self.facts.version_known},
        }


def predict(line: str | Iterable[Token], facts: KernelFacts) -> Prediction:
    """Return what a kernel with FACTS makes of LINE (text, or tokens of _cmdline.split()). Never raises."""
    text = line if isinstance(line, str) else join(line)
    text, warnings = _truncate(text, facts)
    read: list[Token] = []
    for token in split(text):
        if not token.after_dashes:
            read.append(token)
        elif normal_key(token.key) in MANAGED_KEYS:
            reason = f"{token.text} stands behind `--`, so it goes to init and the kernel does not read it"
            warnings.append(Warn(token.text, "after_double_dash", reason, True))
    facts, max_cpus, doubts = limit_cpus(read, facts)
    warnings += doubts
    memory_parser = MemoryParser(facts)
    memory = memory_parser.feed(read, text)
    hugetlb = HugetlbParser(facts)
    hugetlb.feed(read)
    isolation_parser = IsolationParser(facts, max_cpus)
    isolation = isolation_parser.feed(read)
    warnings += hugetlb.warnings
    _place(hugetlb, memory, facts, warnings)
    _sysctl_arguments(read, hugetlb, warnings)
    warnings += isolation_parser.warnings + memory_parser.warnings
    return Prediction(
        pools=dict(sorted(hugetlb.pools.items(), reverse=True)),
        default_kb=hugetlb.default_kb,
        isolation=isolation,
        memory=memory,
        warnings=tuple(warnings),
        facts=facts,
    )


def _truncate(line: str, facts: KernelFacts) -> tuple[str, list[Warn]]:
    """COMMAND_LINE_SIZE: the kernel drops what is behind it, in the middle of an argument if need be."""
    data = line.encode("utf-8", "surrogateescape").rstrip(b"\n")
    room = facts.command_line_size - 1
    if len(data) <= room:
        return line, []
    kept = data[:room].decode("utf-8", "surrogateescape")
    lost = split(data.decode("utf-8", "surrogateescape"))[max(len(split(kept)) - 1, 0) :]
    text = f"the line has {len(data)} bytes, the kernel keeps {room}: the end is cut off"
    return kept, [Warn(token.text, "line_too_long", text, True) for token in lost]


def _place(hugetlb: HugetlbParser, memory: Memory, facts: KernelFacts, warnings: list[Warn]) -> None:
    """What the allocation at boot refuses whatever memory is free: nodes without memory, CMA for 1G pages."""
    for pool in hugetlb.pools.values():
        size = format_size(pool.size_kb)
        if (
            memory.hugetlb_cma
            and not memory.hugetlb_cma_only
            and pool.size_kb * 1024 >= 1 << 30
            and pool.total
        ):
            text = (
                f"hugetlb_cma is set, so the kernel reserves none of the {pool.total} pages of {size} at boot"
            )
            warnings.append(Warn("hugetlb_cma", "hugetlb_cma_replaces_pool", text))
            pool.count, pool.by_node = 0, {}
        for node in [node for node in pool.nodes if facts.memory_nodes and node not in facts.memory_nodes]:
            pages = pool.by_node.pop(node)
            text = f"{pages} pages of {size} are asked of node {node}, which has no memory"
            # memblock_alloc_try_nid_raw falls back to any node; Linux 6.14 has memblock_alloc_exact_nid_raw.
            if facts.version < (6, 14) and hugetlb.gigantic(pool):
                pool.elsewhere += pages
                text += ", so the kernel takes them from another node"
            warnings.append(Warn(f"hugepages={node}:{pages}", "node_without_memory", text))
            pool.count = sum(pool.by_node.values())
        shown = facts.sizes_shown_kb
        if pool.total and shown and pool.size_kb not in shown:
            text = (
                f"the running kernel shows no pool of {size} pages, so that it takes {pool.total} is unproven"
            )
            warnings.append(Warn(f"hugepagesz={size}", "pool_directory_missing", text))


def _sysctl_arguments(tokens: list[Token], hugetlb: HugetlbParser, warnings: list[Warn]) -> None:
    """fs/proc/proc_sysctl.c process_sysctl_arg: sysctl.vm.nr_hugepages= sets the default pool before init."""
    for token in tokens:
        if not token.key.startswith(("sysctl.", "sysctl/")) or token.value is None:
            continue
        if token.key[len("sysctl.") :].replace(".", "/") not in _SYSCTL_POOL or not token.value.isdigit():
            continue
        pool = hugetlb.pools[hugetlb.default_kb]
        text = f"{token.text} sets the pool of {format_size(pool.size_kb)} pages, which held {pool.total}"
        warnings.append(Warn(token.text, "pool_set_by_sysctl", text))
        hugetlb.pools[hugetlb.default_kb] = replace(pool, count=int(token.value), by_node={}, named=True)


def _spread(total: int, nodes: tuple[int, ...]) -> dict[int, int]:
    """TOTAL pages over NODES one by one, the lowest node first (for_each_node_mask_to_alloc)."""
    if not nodes:
        return {}
    each, more = divmod(total, len(nodes))
    return {node: each + (1 if index < more else 0) for index, node in enumerate(nodes)}
