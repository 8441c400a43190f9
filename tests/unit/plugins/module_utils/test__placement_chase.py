# SPDX-License-Identifier: GPL-3.0-or-later
"""Dependent loads: the machine code is what its listing says, the order visits each line, memory is timed."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from array import array
from pathlib import Path

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _placement_chase as chase
from ansible_collections.firsttouch.host.plugins.module_utils._placement_kernel import Kernel

SOURCE = Path(chase.__file__)


def followed(words: array[int], start: int) -> list[int]:
    seen = [start]
    while words[seen[-1] // 8] != start:
        seen.append(words[seen[-1] // 8])
        assert len(seen) <= chase.BUFFER_BYTES // chase.STRIDE
    return seen


def test_one_cycle_visits_each_line_once_in_no_order_and_a_small_one_stays_in_the_last_page() -> None:
    words = array("Q", chase.image(3))
    small = chase.BUFFER_BYTES - 4096
    large_cycle, small_cycle = followed(words, 0), followed(words, small)
    assert sorted(large_cycle) == list(range(0, small, chase.STRIDE))
    assert sorted(small_cycle) == list(range(small, chase.BUFFER_BYTES, chase.STRIDE))
    steps = [abs(b - a) for a, b in zip(large_cycle, large_cycle[1:])]
    assert sum(step <= 2 * chase.STRIDE for step in steps) < len(steps) / 100, "a prefetcher would follow"
    assert chase.image(3) == chase.image(3) != chase.image(4)


def listing(column: int) -> list[str]:
    """The instructions of one column of the listing in the source, without offsets."""
    begins = re.compile(r"#  ?[ 0-9a-f]{2,3}[:] |#  {30,}\d")
    rows = [line for line in SOURCE.read_text().splitlines() if begins.match(line)]
    cells = [(row[2:43], row[43:])[column].strip() for row in rows]
    return [cell for cell in cells if cell]


def test_the_x86_64_code_is_what_objdump_lists(tmp_path: Path) -> None:
    tool = shutil.which("objdump")
    if not tool:
        pytest.skip("objdump is not installed")
    file = tmp_path / "code"
    file.write_bytes(chase.CODE["x86_64"])
    command = [tool, "-D", "-b", "binary", "-m", "i386:x86-64", "-M", "intel", str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this objdump does not know x86-64: {done.stderr.strip()}")
    lines = [line.split("\t") for line in done.stdout.splitlines() if line.count("\t") == 2]
    seen = [f"{row[0].strip()} {row[1].strip()} {short(row[2])}" for row in lines]
    assert seen == [re.sub(r"\s+", " ", row) for row in listing(0)]


def short(text: str) -> str:
    """An instruction of objdump as the listing has it."""
    text = re.sub(r"(QWORD|BYTE) PTR ", "", re.sub(r"\s+", " ", text.strip()))
    return re.sub(r"^(jne) 0x", r"\1 ", text)


def words(code: bytes) -> list[int]:
    return [int.from_bytes(code[at : at + 4], "little") for at in range(0, len(code), 4)]


def test_the_aarch64_code_is_encoded_as_the_architecture_manual_has_it() -> None:
    def mov(rd: int, rm: int) -> int:  # ORR (shifted register), 64 bit, Rn = XZR
        return 0xAA000000 | rm << 16 | 31 << 5 | rd

    def ldr(rt: int, rn: int, rm: int) -> int:  # LDR (register), 64 bit, option LSL (011), no shift
        return 0b11 << 30 | 0b111000011 << 21 | rm << 16 | 0b011 << 13 | 0b10 << 10 | rn << 5 | rt

    def subs(rd: int, rn: int, imm: int) -> int:  # SUBS (immediate), 64 bit
        return 0b1111000100 << 22 | imm << 10 | rn << 5 | rd

    def bne(back: int) -> int:  # B.cond, NE = 0001, imm19 in instructions
        return 0b01010100 << 24 | (-back & 0x7FFFF) << 5 | 0b0001

    def add(rd: int, rn: int, rm: int) -> int:  # ADD (shifted register), 64 bit
        return 0b10001011 << 24 | rm << 16 | rn << 5 | rd

    def sys(op1: int, crn: int, crm: int, op2: int, rt: int) -> int:  # SYS; DC CIVAC is 3, C7, C14, 1
        return 0b1101010100001 << 19 | op1 << 16 | crn << 12 | crm << 8 | op2 << 5 | rt

    ret, nop, dsb_sy = 0xD65F0000 | 30 << 5, 0xD503201F, 0xD503309F | 0b1111 << 8
    assert words(chase.CODE["aarch64"]) == [
        mov(3, 1),
        ldr(3, 0, 3),
        subs(2, 2, 1),
        bne(2),
        mov(0, 3),
        ret,
        nop,
        nop,
        sys(3, 7, 14, 1, 0),
        add(0, 0, 2),
        subs(1, 1, 1),
        bne(3),
        dsb_sy,
        ret,
    ]


def test_the_listing_of_aarch64_holds_the_words_of_the_code() -> None:
    shown = re.findall(r"\b([0-9a-f]{8})  ", "\n".join(listing(1)))
    assert [int(word, 16) for word in shown if word != "d503201f"] == [
        word for word in words(chase.CODE["aarch64"]) if word != 0xD503201F
    ]


def test_the_median_and_the_mad_ignore_what_was_interrupted() -> None:
    assert chase.spread([10.0, 11.0, 12.0, 900.0, 11.0]) == (11.0, 1.0)


def test_loads_go_to_memory_and_around_the_whole_cycle() -> None:
    if platform.machine() not in chase.CODE:
        pytest.skip(f"no machine code for {platform.machine()}")
    kernel = Kernel()
    try:
        ready = chase.Chase(kernel, chase.image(1))
    except OSError as exc:
        pytest.skip(f"no executable memory: {exc}")
    base = kernel.map(chase.BUFFER_BYTES)
    kernel.write(base, ready.image)
    times = [value for _pass in range(4) for value in ready.pass_ns(base)]
    cached = min(ready.cached_ns(base) for _round in range(5))
    assert len(times) == 32
    assert 0 < cached < min(times) < 1e6
    broken = array("Q", ready.image)
    broken[0] = 0  # a cycle of one line
    kernel.write(base, broken.tobytes()[:8])
    ready.pass_ns(base)
    broken[0] = chase.BUFFER_BYTES - 4096  # into the small cycle, never back
    kernel.write(base, broken.tobytes()[:8])
    with pytest.raises(RuntimeError, match="ended at offset"):
        ready.pass_ns(base)
    kernel.unmap(base, chase.BUFFER_BYTES)
