# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest
from testhost import ask, cpio, qemu
from testhost.errors import HostError

REPORT = """\
noise before the first part
== cmdline
console=ttyS0 hugepages=0:3

== release
6.12.0-amd64

== meminfo
MemTotal:        2000 kB
HugePages_Total:       3
Hugepagesize:       2048 kB

== files
/sys/devices/system/cpu/isolated=1,3
/sys/devices/system/cpu/nohz_full=  (null)
/sys/devices/system/cpu/online=0-3
/proc/irq/default_smp_affinity=5
/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages=0
/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages=3
/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages=3
/sys/devices/system/node/node10/hugepages/hugepages-2048kB/nr_hugepages=0
/sys/devices/system/node/node0/cpulist=0-1

== node_meminfo
Node 0 MemTotal:        1500 kB

== node_meminfo
Node 10 MemTotal:        500 kB

== dmesg
[    0.000000] Command line: console=ttyS0 hugepages=0:3
[    0.100000] Kernel command line: console=ttyS0 hugepages=0:3
[    0.100000] Unknown kernel command line parameters "foo", will be passed to user space.
[    0.200000] setup_percpu: NR_CPUS:8192 nr_cpumask_bits:4 nr_cpu_ids:4 nr_node_ids:2
[    0.300000] isolcpus: Skipped unknown flag x
[    0.300000] rcu: \tOffload RCU callbacks from CPUs: 1,3.
[    0.300000] Inode-cache hash table entries: 524288 (order: 10, 4194304 bytes, vmalloc hugepage)

== end

"""


def test_the_answer_is_read_from_the_report() -> None:
    answer = ask.parse_report(REPORT.replace("\n", "\r\n"))
    assert answer["cmdline"] == "console=ttyS0 hugepages=0:3"
    assert answer["release"] == "6.12.0-amd64"
    assert answer["pools"] == {
        "2048kB": {"total": 3, "nodes": {"0": 3, "10": 0}},
        "1048576kB": {"total": 0, "nodes": {}},
    }
    assert answer["default_kb"] == 2048
    assert answer["isolated"] == "1,3"
    assert answer["nohz_full"] == ""
    assert answer["default_irq_affinity"] == "0,2"
    assert answer["nr_cpu_ids"] == 4
    assert answer["nodes"]["0"] == {"memory_bytes": 1500 * 1024, "cpus": "0-1"}
    assert answer["nodes"]["10"]["memory_bytes"] == 500 * 1024
    assert answer["complaints"] == [
        'Unknown kernel command line parameters "foo", will be passed to user space.',
        "isolcpus: Skipped unknown flag x",
        "rcu: \tOffload RCU callbacks from CPUs: 1,3.",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "HugeTLB: Invalid hugepages parameter 3:10",
        "HugeTLB: hugepages= specified twice without interleaving hugepagesz=, ignoring hugepages=5",
        "HugeTLB: allocating 3 of page size 1.00 GiB failed node1.  Only allocated 1 hugepages.",
        "Housekeeping: nohz_full= or isolcpus= incorrect CPU range",
        "Housekeeping: must include one present CPU, using boot CPU:0",
        "NO_HZ: Full dynticks CPUs: 2-3.",
        "rcu: rcu_nocbs= bad CPU range, all CPUs set",
        "Malformed early option 'mem'",
        "user-defined physical RAM map:",
        "Booting kernel: `x' invalid for parameter `loglevel'",
    ],
)
def test_what_kernels_complain_of_is_kept(line: str) -> None:
    text = REPORT.replace("[    0.300000] isolcpus", f"[    0.300000] {line}\n[    0.300000] isolcpus")
    assert line in ask.parse_report(text)["complaints"]


@pytest.mark.parametrize(
    ("mask", "cpus"),
    [
        ("f", "0-3"),
        ("00000000", ""),
        ("", ""),
        ("ffffffff,00000001", "0,32-63"),
        ("a5", "0,2,5,7"),
        ("80000000", "31"),
    ],
)
def test_masks(mask: str, cpus: str) -> None:
    assert ask.mask_to_list(mask) == cpus


@pytest.mark.parametrize("cmdline", ["a\nb", "x" * 3000, "a\0b"])
def test_a_line_that_no_kernel_gets_is_refused(cmdline: str) -> None:
    with pytest.raises(HostError, match="one line"):
        ask.ask_kernel(Path("/nowhere"), cmdline, [], "tcg", 1)


def test_the_asked_line_comes_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ask, "initramfs", lambda: tmp_path / "cpio")
    monkeypatch.setattr(qemu, "find_tools", lambda *names: dict.fromkeys(names, "qemu"))
    argv = ask.boot_argv(Path("k"), '-- "x', ["-m", "1"], "tcg", tmp_path / "c", tmp_path / "a")
    assert argv[-2] == "-append"
    assert argv[-1].endswith(' -- "x')
    assert "rdinit=/init" in argv[-1].split(" -- ")[0]


def test_a_fault_of_the_emulator_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    panic = {"outcome": "panic", "console": "Oops: int3: 0000 [#2]"}
    answers = [panic, {"outcome": "booted"}, {"outcome": "panic", "console": "deadlocked on memory"}]
    monkeypatch.setattr(ask, "_ask_once", lambda *_: answers.pop(0))
    assert ask.ask_kernel(Path("k"), "", [], "tcg", 1)["outcome"] == "booted"
    assert ask.ask_kernel(Path("k"), "", [], "tcg", 1)["outcome"] == "panic"


def test_cpio_reads_it_back(tmp_path: Path) -> None:
    entries = [cpio.Entry("d", 0o040755), cpio.Entry("d/f", 0o100755, b"hello"), cpio.Entry("e", 0o100644)]
    archive = cpio.pack(entries)
    assert cpio.pack(entries) == archive
    assert len(archive) % 4 == 0
    try:
        done = subprocess.run(["cpio", "-i", "--quiet"], input=archive, cwd=tmp_path, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no cpio here")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "d" / "f").read_bytes() == b"hello"
    assert (tmp_path / "d" / "f").stat().st_mode & 0o777 == 0o755


def elf(kinds: list[int]) -> bytes:
    head = bytearray(64)
    head[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<Q", head, 32, 64)
    struct.pack_into("<HH", head, 54, 56, len(kinds))
    return bytes(head) + b"".join(struct.pack("<I", kind) + bytes(52) for kind in kinds)


def test_a_dynamic_busybox_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cpio.is_dynamic(elf([1, 3, 2]))
    assert not cpio.is_dynamic(elf([1, 1, 4]))
    assert not cpio.is_dynamic(b"#!/bin/sh\n")
    program = tmp_path / "busybox"
    program.write_bytes(elf([3]))
    monkeypatch.setattr(qemu, "find_tools", lambda *names: dict.fromkeys(names, str(program)))
    with pytest.raises(HostError, match="busybox-static"):
        ask.initramfs()
    program.write_bytes(elf([1]))
    first = ask.initramfs()
    assert ask.initramfs() == first
    program.write_bytes(elf([1, 1]))
    assert ask.initramfs() != first
    assert not first.exists()
