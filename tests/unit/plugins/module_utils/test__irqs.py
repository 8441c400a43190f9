# SPDX-License-Identifier: GPL-3.0-or-later
"""Interrupts: names, where they go, and whether the kernel lets anybody move them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils._checks_isolated import _kind
from ansible_collections.firsttouch.host.plugins.module_utils._irqs import Irq, parse_interrupts, read_irqs
from ansible_collections.firsttouch.host.plugins.module_utils._tree import Tree
from support import put

TABLE = """           CPU0       CPU2       CPU3
  0:         18          0          0   IO-APIC   2-edge      timer
 24:          0          7          0  PCI-MSIX-0000:00:02.0   0-edge      nvme0q0, nvme0q1
 27:          0          0          0     GICv3  27 Level     arch_timer
 30:          1          2
NMI:          0          0          0   Non-maskable interrupts
ERR:          0
"""
ISOLATED = frozenset({1, 3})


def irqs(root: Path, version: tuple[int, ...] = (6, 1), live: bool = False) -> dict[int, Irq]:
    return {irq.number: irq for irq in read_irqs(Tree(str(root)), version, live)}


def test_the_table_by_the_cpus_of_its_heading() -> None:
    rows = parse_interrupts(TABLE)
    assert rows[0] == ("timer", {0: 18, 2: 0, 3: 0}, "IO-APIC")
    assert rows[24] == ("nvme0q0, nvme0q1", {0: 0, 2: 7, 3: 0}, "PCI-MSIX-0000:00:02.0")
    assert sorted(rows) == [0, 24, 27, 30]
    assert rows[30] == ("", None, "")  # a row that lacks columns is still an interrupt
    assert parse_interrupts("") == {}


def test_only_what_somebody_asked_for(tmp_path: Path) -> None:
    put(tmp_path, "/proc/interrupts", TABLE)
    for number in (24, 31):
        put(tmp_path, f"/proc/irq/{number}/smp_affinity_list", "0-3\n")
        put(tmp_path, f"/proc/irq/{number}/effective_affinity_list", "3\n")
    counts = {0: 0, 2: 7, 3: 0}
    assert sorted(irqs(tmp_path, live=True)) == [24]
    assert irqs(tmp_path)[24] == Irq(24, "nvme0q0, nvme0q1", frozenset(range(4)), frozenset({3}), None, counts)
    (tmp_path / "proc/interrupts").unlink()
    assert sorted(irqs(tmp_path)) == [24, 31]


def test_an_empty_effective_mask_says_nothing(tmp_path: Path) -> None:
    put(tmp_path, "/proc/irq/24/smp_affinity_list", "0-3\n")
    put(tmp_path, "/proc/irq/24/effective_affinity_list", "\n")
    assert irqs(tmp_path)[24].effective is None


@pytest.mark.parametrize(
    ("mode", "version", "live", "fixed"),
    [
        (0o444, (6, 18), True, True),
        (0o444, (6, 1), True, True),
        (0o644, (6, 12), True, False),
        (0o644, (6, 11), True, None),
        (0o444, (6, 18), False, None),
    ],
)
def test_the_mode_of_the_file_tells_from_6_12_on(
    tmp_path: Path, mode: int, version: tuple[int, int], live: bool, fixed: bool | None
) -> None:
    os.chmod(put(tmp_path, "/proc/irq/24/smp_affinity_list", "1\n"), mode)
    assert irqs(tmp_path, version, live)[24].fixed is fixed


@pytest.mark.parametrize(
    ("chip", "fixed"),
    [
        ("IO-APIC", False),
        ("IR-IO-APIC", False),
        ("XT-PIC", False),
        ("GICv3", False),
        ("GIC-0", False),
        ("PCI-MSI", None),
        ("IR-PCI-MSIX-0000:01:00.0", None),
        ("ITS-MSI", None),
        ("GICv2m-PCI-MSIX-0000:01:00.0", None),
        ("mbigen", None),
    ],
)
def test_what_is_no_message_is_never_managed(tmp_path: Path, chip: str, fixed: bool | None) -> None:
    put(tmp_path, "/proc/irq/24/smp_affinity_list", "1\n")
    put(tmp_path, "/proc/interrupts", f"    CPU0 CPU1\n 24:  0  7  {chip}   5-edge  ttyS0\n")
    assert irqs(tmp_path)[24].fixed is fixed


@pytest.mark.parametrize(("states", "fixed"), [("IRQD_AFFINITY_MANAGED", True), ("IRQD_AFFINITY_SET", False)])
def test_debugfs_tells_on_any_kernel(tmp_path: Path, states: str, fixed: bool) -> None:
    put(tmp_path, "/proc/irq/24/smp_affinity_list", "1\n")
    put(tmp_path, "/sys/kernel/debug/irq/irqs/24", f"handler: handle_edge_irq\ndstate:   0x1\n  {states}\n")
    assert irqs(tmp_path)[24].fixed is fixed


@pytest.mark.parametrize(
    ("allowed", "effective", "fixed", "counts", "kind"),
    [
        ("0-3", "0", None, None, ""),
        ("0-3", "3", None, None, "on"),
        ("0-3", "3", True, None, "held"),
        ("3", "3", True, None, "fixed"),
        ("3", "3", False, None, "on"),
        ("3", "3", None, None, "maybe"),
        ("0-3", "", None, {0: 5, 3: 0}, ""),
        ("0-3", "", None, {0: 5, 3: 1}, "maybe"),
        ("0,2", "", None, {0: 5, 3: 1}, ""),
        ("0-3", "", None, None, ""),
    ],
)
def test_who_sits_there(
    allowed: str, effective: str, fixed: bool | None, counts: dict[int, int] | None, kind: str
) -> None:
    from ansible_collections.firsttouch.host.plugins.module_utils._cpulist import parse

    irq = Irq(7, "x", parse(allowed), parse(effective) or None, fixed, counts)
    assert _kind(irq, ISOLATED) == kind


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    put(tmp_path, "/proc/irq/24/smp_affinity_list", "seven\n")
    tree = Tree(str(tmp_path))
    assert read_irqs(tree, (6, 1), False)[0].allowed is None
    assert list(tree.trouble) == ["/proc/irq/24/smp_affinity_list"]


def test_what_a_recording_lacks_is_told(tmp_path: Path) -> None:
    put(tmp_path, "/proc/interrupts", TABLE)
    put(tmp_path, "/proc/irq/24/smp_affinity_list", "0-3\n")
    put(tmp_path, "/proc/irq/27/smp_affinity_list", "\n")
    tree = Tree(str(tmp_path))
    assert [irq.number for irq in read_irqs(tree, (6, 1), False) if irq.allowed] == [24]
    assert tree.trouble == {f"/proc/irq/{n}/smp_affinity_list": "not recorded" for n in (0, 27, 30)}


def test_a_table_that_was_cut_off_is_told(tmp_path: Path) -> None:
    put(tmp_path, "/proc/interrupts", TABLE[:150])
    put(tmp_path, "/proc/irq/24/smp_affinity_list", "0-3\n")
    tree = Tree(str(tmp_path))
    read_irqs(tree, (6, 1), True)
    assert tree.trouble == {"/proc/interrupts": "ends in the middle of a line"}


def test_a_large_machine_s_table_is_read_to_its_end(tmp_path: Path) -> None:
    filler = "".join(f"{n}: 0 0 0 PCI-MSI {'x' * 5000} nvme\n" for n in range(100, 1200))
    put(tmp_path, "/proc/interrupts", f"{TABLE}{filler}9000: 0 0 5 PCI-MSI 0-edge eth\n")
    put(tmp_path, "/proc/irq/9000/smp_affinity_list", "3\n")
    assert irqs(tmp_path, live=True)[9000].allowed == frozenset({3})
