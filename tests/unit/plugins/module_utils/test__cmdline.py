# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line tokeniser against a word-for-word model of next_arg (lib/cmdline.c)."""

from __future__ import annotations

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils._cmdline import (
    Token,
    join,
    make,
    normal_key,
    same_key,
    split,
)
from hypothesis import example, given
from hypothesis import strategies as st

LINES = st.text(alphabet="ab=\" \t\n-,'\\\u00a0\u00e0", max_size=30)


def kernel_model(line: str) -> list[tuple[bytes, bytes | None]]:  # noqa: C901 - the kernel's function in one piece
    """next_arg with the C pointers as indices into one buffer that ends in NUL; cuts are NULs in it."""
    buffer = bytearray(line.encode("utf-8", "surrogateescape") + b"\0")
    blanks = b" \t\n\v\f\r\xa0"

    def string(at: int) -> bytes:
        return bytes(buffer[at : buffer.index(0, at)])

    pairs: list[tuple[bytes, bytes | None]] = []
    args = 0
    while buffer[args] in blanks:
        args += 1
    while buffer[args]:
        in_quote = quoted = False
        if buffer[args] == ord('"'):
            args += 1
            in_quote = quoted = True
        i = equals = 0
        while buffer[args + i]:
            byte = buffer[args + i]
            if byte in blanks and not in_quote:
                break
            if equals == 0 and byte == ord("="):
                equals = i
            if byte == ord('"'):
                in_quote = not in_quote
            i += 1
        value = None
        if equals:
            buffer[args + equals] = 0
            value = args + equals + 1
            if buffer[value] == ord('"'):
                value += 1
                if buffer[args + i - 1] == ord('"'):
                    buffer[args + i - 1] = 0
        if quoted and i > 0 and buffer[args + i - 1] == ord('"'):
            buffer[args + i - 1] = 0
        end = args + i
        more = buffer[end] != 0
        if more:
            buffer[end] = 0
        pairs.append((string(args), None if value is None else string(value)))
        args = end + 1 if more else end
        while buffer[args] in blanks:
            args += 1
    return pairs


def pairs_of(line: str) -> list[tuple[str, str | None]]:
    return [(token.key, token.value) for token in split(line)]


@given(LINES)
@example('"a="" b')
@example('x="')
@example('"x=')
@example("=")
@example("==")
@example('"="')
def test_splits_as_the_kernel(line: str) -> None:
    ours = [
        (t.key.encode("utf-8", "surrogateescape"), t.value and t.value.encode("utf-8", "surrogateescape"))
        for t in split(line)
    ]
    theirs = [(key, value if value is None else value or "") for key, value in kernel_model(line)]
    assert [(k, v or "") if v is not None else (k, v) for k, v in ours] == theirs


@given(LINES)
def test_join_gives_the_same_tokens(line: str) -> None:
    tokens = split(line)
    assert split(join(tokens)) == tokens
    assert [token.text for token in split(join(tokens))] == [token.text for token in tokens]
    assert join(split(join(tokens))) == join(tokens)


@given(st.lists(st.text(alphabet="abc=-_,.:/0123", min_size=1, max_size=8), max_size=8))
def test_plain_lines_come_back_byte_for_byte(words: list[str]) -> None:
    line = " ".join(words)
    assert join(split(line)) == line
    assert [token.text for token in split(line)] == words


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ro quiet\tisolcpus=2-3   x=1\n", [("ro", None), ("quiet", None), ("isolcpus", "2-3"), ("x", "1")]),
        ('dyndbg="file a +p ; file b +p" q', [("dyndbg", "file a +p ; file b +p"), ("q", None)]),
        ('"foo=bar baz"', [("foo", "bar baz")]),
        ("x='a b'", [("x", "'a"), ("b'", None)]),
        ('path=C:\\"dir name"', [("path", 'C:\\"dir name"')]),
        ('a="b"c"d"', [("a", 'b"c"d')]),
        ('a=b"c d"e', [("a", 'b"c d"e')]),
        ('open="to the end', [("open", "to the end")]),
        ("=c", [("=c", None)]),
        ("=c=d", [("=c", "d")]),
        ("a==b", [("a", "=b")]),
        ("a=", [("a", "")]),
        ('a=""', [("a", "")]),
        ("", []),
        (" \n", []),
    ],
)
def test_corners(line: str, expected: list[tuple[str, str | None]]) -> None:
    assert pairs_of(line) == expected


def test_double_dash_ends_the_kernel_parameters() -> None:
    tokens = split('a=1 -- b=2 -- "c d"')
    assert [(token.text, token.after_dashes) for token in tokens] == [
        ("a=1", False),
        ("--", False),
        ("b=2", True),
        ("--", True),
        ('"c d"', True),
    ]
    assert [token.is_separator for token in tokens] == [False, True, False, False, False]


@pytest.mark.parametrize("line", ["--x a", "--=1 a", '"-- a" b', "a -b"])
def test_what_only_looks_like_a_double_dash(line: str) -> None:
    assert not any(token.after_dashes for token in split(line))


def test_a_quoted_double_dash_is_one() -> None:
    assert split('"--" a=1')[1].after_dashes


def test_foreign_text_is_kept_byte_for_byte() -> None:
    line = 'root="LABEL=a  b" x="" \'y z\' \udcff=1 caf\u00e9=ol\u00e9'
    assert join(split(line)) == line


def test_a_letter_that_the_kernel_splits_is_put_together_again() -> None:
    line = "root=LABEL=voil\u00e0 quiet"
    assert join(split(line)) == line
    assert split(line)[0].text.encode("utf-8", "surrogateescape") == b"root=LABEL=voil\xc3"
    assert pairs_of("a=1\u00a0b=2")[1] == ("b", "2")


def test_same_key() -> None:
    assert same_key("default-hugepagesz", "default_hugepagesz")
    assert not same_key("hugepages", "hugepagesz")
    assert normal_key("a-b_c") == "a_b_c"


def test_make() -> None:
    assert make("isolcpus=2-3") == Token("isolcpus=2-3", "isolcpus", "2-3")
    assert make('x="a b"').value == "a b"
    for text in ("", "a b", " a", "a ", 'a="b', "a\nb"):
        with pytest.raises(ValueError, match="not exactly one"):
            make(text)
