# SPDX-License-Identifier: GPL-3.0-or-later
"""CPU lists and masks as lib/bitmap-str.c reads them."""

from __future__ import annotations

import re

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils._cpulist import (
    CpuListError,
    format_list,
    parse,
    parse_mask,
)
from hypothesis import given
from hypothesis import strategies as st

CPUS = st.frozensets(st.integers(0, 300))

# The list cases of the kernel's own lib/test_bitmap.c (parselist_tests), and corners beside them.
GOOD = [
    ("0", "0"),
    ("1", "1"),
    ("0-3", "0-3"),
    ("0-3,5", "0-3,5"),
    ("5,0-3", "0-3,5"),
    ("0-3 5", "0-3,5"),
    ("0-3,\n5", "0-3,5"),
    ("0-3\n5", "0-3"),
    (" 0-3 \n5\n", "0-3,5"),
    ("", ""),
    (",", ""),
    ("  ,, ,  , ", ""),
    ("\n", ""),
    ("1,,2", "1-2"),
    (",4,,6,", "4,6"),
    ("3-3", "3"),
    ("1-2,2-3,1", "1-3"),
    ("0-10:2/4", "0-1,4-5,8-9"),
    ("0-9:1/2", "0,2,4,6,8"),
    ("0-9:0/2", ""),
    ("0-9:2/2", "0-9"),
    ("0-9:5/5,12", "0-9,12"),
    ("8-15:9/9", "8-15"),
    ("all", "0-15"),
    ("ALL", "0-15"),
    ("all:1/4", "0,4,8,12"),
    ("N", "15"),
    ("4-N", "4-15"),
    ("0-N:1/N", "0,15"),
    ("N-N", "15"),
    ("00003", "3"),
    ("1-2:1/2all", "0-15"),
    ("0-3:1/2N", "0,2,15"),
]

BAD = [
    ("4-3", "reversed_range"),
    ("N-4", "reversed_range"),
    ("300-2", "reversed_range"),
    ("16", "cpu_out_of_range"),
    ("2-300", "cpu_out_of_range"),
    ("1,2,16", "cpu_out_of_range"),
    ("4294967296", "cpu_out_of_range"),
    ("99999999999999999999999", "cpu_out_of_range"),
    ("-1", "syntax"),
    ("1-", "syntax"),
    ("-", "syntax"),
    ("a", "syntax"),
    ("n", "syntax"),
    ("4-n", "syntax"),
    ("0x3", "syntax"),
    ("1-2-3", "syntax"),
    ("1;2", "syntax"),
    ("1.2", "syntax"),
    ("+1", "syntax"),
    ("alle", "syntax"),
    ("all-3", "syntax"),
    ("5:1/2", "syntax"),
    ("0-3:1", "syntax"),
    ("0-3:1/", "syntax"),
    ("0-3:/2", "syntax"),
    ("0-3:1/0", "syntax"),
    ("0-3:3/2", "syntax"),
    ("0-3:1/2x", "syntax"),
    ("0-3:1/2-9", "syntax"),
    ("1 - 3", "syntax"),
    ("\u0663", "syntax"),
]


@pytest.mark.parametrize(("text", "expected"), GOOD)
def test_accepts(text: str, expected: str) -> None:
    assert format_list(parse(text, 16)) == expected


@pytest.mark.parametrize(("text", "reason"), BAD)
def test_refuses(text: str, reason: str) -> None:
    with pytest.raises(CpuListError) as caught:
        parse(text, 16)
    assert caught.value.reason == reason


def test_error_names_the_piece_and_the_cpus_outside() -> None:
    with pytest.raises(CpuListError) as caught:
        parse("1,3-300,5", 16)
    error = caught.value
    assert (error.token, error.first_bad, error.last_bad) == ("3-300", 16, 300)
    assert error.before == frozenset({1})
    assert "CPU 16" in str(error) and "15" in str(error)


def test_error_outside_starts_where_the_range_does() -> None:
    with pytest.raises(CpuListError) as caught:
        parse("20-21", 16)
    assert (caught.value.first_bad, caught.value.last_bad) == (20, 21)


@pytest.mark.parametrize("text", ["N", "0-N", "all", "1,all", "0-3:1/N"])
def test_words_need_the_number_of_cpus(text: str) -> None:
    with pytest.raises(CpuListError) as caught:
        parse(text)
    assert caught.value.reason == "unknown_n"


def test_words_are_letters_to_older_kernels() -> None:
    with pytest.raises(CpuListError, match="not a CPU list"):
        parse("4-N", 16, aliases=())
    with pytest.raises(CpuListError, match="not a CPU list"):
        parse("all", 16, aliases=("N",))
    assert parse("N", 16, aliases=("N",)) == {15}


def test_without_a_limit_any_cpu_goes_but_not_a_flood_of_memory() -> None:
    assert parse("0,8191") == {0, 8191}
    with pytest.raises(CpuListError):
        parse("0-4000000000")


def test_one_cpu() -> None:
    assert parse("all", 1) == parse("N", 1) == parse("0-N", 1) == {0}


@given(CPUS)
def test_format_and_parse_are_inverse(cpus: frozenset[int]) -> None:
    text = format_list(cpus)
    assert parse(text) == cpus
    assert re.fullmatch(r"(\d+(-\d+)?(,\d+(-\d+)?)*)?", text)


@given(CPUS, CPUS, st.sampled_from([",", " ", ",,", "\t", " , "]))
def test_pieces_add_up(left: frozenset[int], right: frozenset[int], separator: str) -> None:
    assert parse(format_list(left) + separator + format_list(right)) == left | right


@given(st.integers(0, 63), st.integers(0, 63), st.integers(0, 20), st.integers(1, 20))
def test_stride(low: int, high: int, used: int, group: int) -> None:
    text = f"{low}-{high}:{used}/{group}"
    if low > high or used > group:
        with pytest.raises(CpuListError):
            parse(text, 64)
        return
    assert parse(text, 64) == {cpu for cpu in range(low, high + 1) if (cpu - low) % group < used}


@given(st.text(alphabet="0123N-,:/al \n", max_size=12), st.integers(1, 40))
def test_never_a_cpu_outside(text: str, count: int) -> None:
    try:
        cpus = parse(text, count)
    except CpuListError as error:
        cpus = error.before
    assert all(0 <= cpu < count for cpu in cpus)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", ""),
        ("1", "0"),
        ("f", "0-3"),
        ("ff\n", "0-7"),
        ("00000000,0000000f", "0-3"),
        ("1,00000000", "32"),
        ("80000000,00000001", "0,63"),
        ("F0F", "0-3,8-11"),
    ],
)
def test_mask(text: str, expected: str) -> None:
    assert format_list(parse_mask(text)) == expected


@pytest.mark.parametrize("text", ["", "g", "0x3", "1,,2", "123456789", ",", "-1", "1 2"])
def test_mask_refuses(text: str) -> None:
    with pytest.raises(CpuListError):
        parse_mask(text)


@given(CPUS)
def test_mask_as_the_kernel_prints_it(cpus: frozenset[int]) -> None:
    words = [sum(1 << (cpu - 32 * index) for cpu in cpus if cpu // 32 == index) for index in range(10)]
    assert parse_mask(",".join(f"{word:08x}" for word in reversed(words))) == cpus
