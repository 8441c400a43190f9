# SPDX-License-Identifier: Apache-2.0
"""Device interrupts of a host: who asked for each, where it may go, where it goes, and whether it can be moved.

Documentation/core-api/irq/irq-affinity.rst; kernel/irq/proc.c: from Linux 6.12 the affinity files of an
interrupt that user space cannot move (a managed one above all) have no write permission; before that only
debugfs tells. An interrupt that is no message (MSI) is never managed (pci_alloc_irq_vectors_affinity()).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ._files import resolve
from ._tree import Tree

IRQ_DIR = "/proc/irq"
INTERRUPTS = "/proc/interrupts"
DEBUG_DIR = "/sys/kernel/debug/irq/irqs"
MODE_TELLS_SINCE = (6, 12)
NOT_RECORDED = "not recorded"
_WIRED = re.compile(r"(?:IR-)?IO-APIC|XT-PIC|GIC-?v?\d*")


class Row(NamedTuple):
    """What /proc/interrupts says of one interrupt: who asked for it, how often it came to each CPU, its chip."""

    name: str = ""
    counts: Mapping[int, int] | None = None
    chip: str = ""


@dataclass(frozen=True)
class Irq:
    """One interrupt. None: the kernel does not say.

    `allowed` are the CPUs it may go to, `effective` the one or more it goes to; `fixed`: user space cannot
    move it; `counts` are the times it came to each CPU since the boot, None where nothing counts it.
    """

    number: int
    name: str
    allowed: frozenset[int] | None
    effective: frozenset[int] | None
    fixed: bool | None
    counts: Mapping[int, int] | None = field(default=None, hash=False)

    def came_to(self, cpus: frozenset[int]) -> bool | None:
        """Whether it came to one of CPUS since the boot; None when nothing counts it."""
        return None if self.counts is None else any(self.counts.get(cpu) for cpu in cpus)


def read_irqs(tree: Tree, version: tuple[int, ...], live: bool) -> list[Irq]:
    """The interrupts of TREE that somebody asked for, ascending. VERSION is the kernel's.

    An interrupt that /proc/interrupts does not list has no handler and is left out; without that file all are
    there. LIVE: the modes of the files are the kernel's own, and what is not there is gone; of a recorded host it
    was not recorded. What could not be read is in TREE.trouble.
    """
    rows = _table(tree)
    found = []
    there = {int(name) for name in tree.names(IRQ_DIR) if name.isdigit()}
    for number in sorted(there if live or not there or rows is None else there | set(rows)):
        if rows is not None and number not in rows:
            continue
        row = (rows or {}).get(number, Row())
        base = f"{IRQ_DIR}/{number}"
        # The kernel never prints an empty mask for where it may go.
        allowed = tree.ids(f"{base}/smp_affinity_list") or None
        effective = tree.ids(f"{base}/effective_affinity_list") or None
        if allowed is None and effective is None and not live:
            tree.trouble.setdefault(f"{base}/smp_affinity_list", NOT_RECORDED)
        fixed = _fixed(tree, number, version, live)
        if fixed is None and _WIRED.fullmatch(row.chip):
            fixed = False
        found.append(Irq(number, row.name, allowed, effective, fixed, row.counts))
    return found


def _table(tree: Tree) -> dict[int, Row] | None:
    """The rows of /proc/interrupts; None where there is none. A table that was cut off lacks interrupts."""
    data = tree.data(INTERRUPTS)
    if data is None:
        return None
    if data and not data.endswith(b"\n"):
        tree.trouble[INTERRUPTS] = "ends in the middle of a line"
    return parse_interrupts(data.decode("utf-8", "replace"))


def parse_interrupts(text: str) -> dict[int, Row]:
    """The rows of /proc/interrupts by number; those of the architecture, which have a name, are left out."""
    lines = text.splitlines()
    cpus = [int(name[3:]) for name in (lines[0].split() if lines else []) if re.fullmatch(r"CPU\d+", name)]
    rows = {}
    for line in lines[1:]:
        label, _colon, rest = line.partition(":")
        fields = rest.split()
        numbers = fields[: len(cpus)]
        if not label.strip().isdigit():
            continue
        if len(numbers) < len(cpus) or not all(n.isdigit() for n in numbers):
            rows[int(label)] = Row()  # there is such an interrupt, whatever else the row says
            continue
        words = fields[len(cpus) :]
        # The chip, its own number with the trigger, then the names of the handlers.
        name = " ".join(words[2:] or words)
        rows[int(label)] = Row(name, dict(zip(cpus, map(int, numbers))), words[0] if words else "")
    return rows


def _fixed(tree: Tree, number: int, version: tuple[int, ...], live: bool) -> bool | None:
    """Whether user space cannot move interrupt NUMBER; None where the kernel does not say."""
    quiet = Tree(tree.root)  # that debugfs is closed to us is no trouble
    text = quiet.text(f"{DEBUG_DIR}/{number}")
    if text is not None and "dstate:" in text:
        return "IRQD_AFFINITY_MANAGED" in text
    if not live:
        return None
    try:
        mode = os.stat(resolve(tree.root, f"{IRQ_DIR}/{number}/smp_affinity_list")).st_mode
    except OSError:
        return None
    if not stat.S_IMODE(mode) & stat.S_IWUSR:
        return True
    return False if version >= MODE_TELLS_SINCE else None
