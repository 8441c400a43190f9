# SPDX-License-Identifier: Apache-2.0
"""What the kernels of a host make of the planned boot arguments beside the foreign ones of the running line.

"Present in /proc/cmdline" is not "accepted by the kernel": a plan is only a plan if every installed kernel is
predicted to do what it says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._cmdline import normal_key, split
from ._cpulist import format_list, parse
from ._intent import Judge
from ._kernel_args import Prediction, predict
from ._kernel_hugetlb import KEYS as HUGETLB_KEYS
from ._kernel_isolation import KEYS as ISOLATION_KEYS
from ._plan_facts import Facts, Kernel
from ._plan_fit import count, mib

_CODE = "dropped_by_kernel"


def check_effect(
    sections: Mapping[str, Any], planned: list[str], facts: Facts, floors: Mapping[int, int], judge: Judge
) -> None:
    """Refuse what a kernel would drop of the PLANNED sections, or leave without memory to boot with."""
    pages, cpus = sections.get("hugepages") or {}, sections.get("cpu_isolation") or {}
    tokens = [*(pages.get("tokens") or ()), *(cpus.get("tokens") or ())]
    if not tokens or not planned:
        return
    line = " ".join([*_foreign(facts.line or "", pages, cpus), *tokens])
    for kernel in facts.kernels:
        if kernel.version is None:
            continue
        found = predict(line, kernel.facts)
        before = len(judge.refusals)
        if "hugepages" in planned and pages.get("method") == "cmdline":
            _check_pools(pages, found, kernel, judge)
            _check_memory(pages, found, floors, judge)
        if "cpu_isolation" in planned and cpus.get("isolated"):
            _check_isolation(cpus, found, kernel, judge)
        if len(judge.refusals) > before:
            return


def _foreign(line: str, pages: Mapping[str, Any], cpus: Mapping[str, Any]) -> list[str]:
    """The tokens of LINE but those of our concerns: kernel_cmdline decides about who contradicts whom."""
    ours = {*(HUGETLB_KEYS if pages.get("tokens") else ()), *(ISOLATION_KEYS if cpus.get("tokens") else ())}
    tokens = split(line)
    return [token.text for token in tokens if normal_key(token.key) not in ours and not token.after_dashes
            and not token.is_separator]  # fmt: skip


def _check_pools(pages: Mapping[str, Any], found: Prediction, kernel: Kernel, judge: Judge) -> None:
    many = any("," in token or ":" in token for token in pages["tokens"])
    for row in pages["pools"]:
        pool = found.pools.get(row["size_kb"])
        nodes = {int(node): pages for node, pages in row["nodes"].items() if pages}
        total = pool.total if pool else 0
        if total == row["total"] and (not many or not total or pool is None or dict(pool.nodes) == nodes):
            continue
        texts = [
            warn.text for warn in found.warnings if warn.token in pages["tokens"] or "hugetlb" in warn.token
        ]
        why = "; ".join(texts) or f"it would reserve {total} of them"
        text = (
            f"{count(row['total'], row['size'])}: kernel {kernel.release} would not take the boot "
            f"arguments beside those of others ({why}); use firsttouch_hugepages_method: unit, or change these"
        )
        details = {"kernel": kernel.release, "size": row["size"], "asked": row["total"], "available": total}
        judge.refuse(_CODE, "hugepages", text, **details)


def _check_isolation(cpus: Mapping[str, Any], found: Prediction, kernel: Kernel, judge: Judge) -> None:
    isolated = parse(cpus["isolated"])
    asked = {token.partition("=")[0]: token for token in cpus["tokens"]}
    rows = (
        ("isolcpus", found.isolation.domain, isolated),
        ("isolcpus", found.isolation.managed_irq, isolated),
        ("nohz_full", found.isolation.nohz_full, isolated),
        ("rcu_nocbs", found.isolation.rcu_nocbs, isolated),
        ("irqaffinity", found.isolation.irqaffinity, parse(cpus["housekeeping"])),
    )
    for key, got, want in rows:
        if key in asked and got != want:
            texts = [warn.text for warn in found.warnings if warn.token in cpus["tokens"]]
            why = "; ".join(texts) or f"it would take CPUs {format_list(got) or 'none'}"
            text = (
                f"kernel {kernel.release} would not take {asked[key]} beside the arguments of others: {why}"
            )
            judge.refuse(_CODE, "isolated_cpus", text, kernel=kernel.release, token=asked[key])
            return


def _check_memory(
    pages: Mapping[str, Any], found: Prediction, floors: Mapping[int, int], judge: Judge
) -> None:
    """The same comparison that kernel_cmdline makes of the line that will boot, for the host as a whole."""
    memory, total = found.memory, found.facts.memory_bytes
    if total is None or memory.mem_limit is None:
        return
    total = min(total + (memory.crashkernel or 0), memory.mem_limit)
    other = (memory.crashkernel or 0) + memory.memmap_reserved + memory.cma + memory.hugetlb_cma
    floor = sum(floors.values())
    if found.hugetlb_bytes + other + floor > total:
        text = (
            f"all pages are {mib(found.hugetlb_bytes)}, the running command line sets {mib(other)} aside, and "
            f"{mib(floor)} stay free (firsttouch_reserve_floor_bytes): more than the {mib(total)} that mem= leaves; "
            "ask for fewer pages or remove mem="
        )
        details = {"asked": found.hugetlb_bytes + other, "available": max(total - floor, 0)}
        judge.refuse("memory_guard", "hugepages", text, **details)
