# SPDX-License-Identifier: GPL-3.0-or-later
"""YAML without a library: what is written, PyYAML reads back; what is read is what PyYAML reads, or Opaque."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
import yaml
from ansible_collections.firsttouch.host.plugins.module_utils._yaml_text import Opaque, YamlError, dump, read
from hypothesis import example, given
from hypothesis import strategies as st

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**12), 10**12),
    st.text(max_size=12),
    st.sampled_from(
        [
            "yes",
            "No",
            "~",
            "1e3",
            "0x1f",
            "1_000",
            "12:30",
            ".5",
            "- a",
            "a: b",
            "#c",
            "a #b",
            "2001-01-01",
            "=",
        ]
    ),
)
KEYS = st.one_of(
    st.text(min_size=1, max_size=8), st.sampled_from(["y", "on", "memory.available", "1", "null", "a/b"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=4))
def test_what_is_written_is_read_back(document: dict[str, Any]) -> None:
    assert yaml.safe_load(dump(document, "# a comment")) == document


def same(found: Any, wanted: Any) -> bool:
    """Numbers and dates stay text here."""
    if isinstance(wanted, dict):
        return (
            isinstance(found, dict)
            and {*found} == {*wanted}
            and all(same(found[key], wanted[key]) for key in wanted)
        )
    if isinstance(wanted, bool) or wanted is None:
        return found is wanted
    if isinstance(wanted, (int, float)):
        return isinstance(found, str) and float(found) == wanted
    if isinstance(wanted, dt.date):
        return bool(found == wanted.isoformat())
    return bool(found == wanted)


WORDS = st.sampled_from(
    [
        "1Gi",
        "100Mi",
        '"100Mi"',
        "'5%'",
        "10%",
        "yes",
        "true",
        "False",
        "null",
        "~",
        "0644",
        "0",
        "1.5",
        "12",
        "{}",
        "[]",
        "|",
        ">-",
        "&a x",
        "*a",
        "{memory: 1Gi}",
        '{"memory": "1Gi", cpu: 100m}',
        "{a: {b: c}}",
        "[a, b]",
        "!!str 1",
        '"a\\tb"',
        "a: b",
        "http://x",
        "x # y",
        "x#y",
        "'it''s'",
        '"a # b"',
        "",
        "- a",
        "-",
        "-\ta",
        ": a",
        "a:\tb",
        "0b1",
        "0o7",
        "-1",
        "+07",
        "@x",
        "`x",
        "%x",
        "2001-01-01",
        "on",
        "n",
    ]
)
LINES = st.one_of(
    st.builds("{}: {}".format, st.sampled_from(["a", "b", '"c"', "'d'"]), WORDS),
    st.builds(
        "{}{}: {}".format, st.sampled_from(["  ", "    ", "\t"]), st.sampled_from(["m", "n.o", "p"]), WORDS
    ),
    st.builds("{}- {}".format, st.sampled_from(["", "  "]), WORDS),
    st.sampled_from(["# comment", "", "---", "  # inner", "a:", "b: # nothing", "..."]),
)


@given(st.lists(LINES, max_size=6))
@example(["a: - a"])
@example(["a:", "  m: - a"])
def test_what_is_read_is_what_another_reader_reads(lines: list[str]) -> None:
    text = "\n".join(lines)
    try:
        found = read(text)
    except YamlError:
        return
    if any(isinstance(value, Opaque) for value in found.values()):
        return
    try:
        wanted = yaml.safe_load(text) or {}
    except yaml.YAMLError as exc:
        raise AssertionError(f"{text!r} is no YAML, and was read as {found}") from exc
    assert same(found, wanted), text


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "a: 1\nevictionHard:\n  memory.available: 100Mi  # low\n  \"nodefs.available\": '10%'\n",
            {"a": "1", "evictionHard": {"memory.available": "100Mi", "nodefs.available": "10%"}},
        ),
        (
            "---\n# x\nkubeReserved: {memory: 1Gi}\nclusterDNS:\n- 10.0.0.1\nsystemReserved:\n",
            {"kubeReserved": {"memory": "1Gi"}, "clusterDNS": Opaque(4), "systemReserved": None},
        ),
        (
            '{"kubeReserved": {"memory": 1073741824}, "authentication": {"x509": {}}, "list": [1]}',
            {"kubeReserved": {"memory": "1073741824"}, "authentication": Opaque(1), "list": Opaque(1)},
        ),
        (
            "authentication:\n  x509:\n    clientCAFile: /a\nkubeReserved:\n    memory: 1Gi\n",
            {"authentication": Opaque(1), "kubeReserved": {"memory": "1Gi"}},
        ),
        (
            "kubeReserved: &r {memory: 1Gi}\nsystemReserved: *r\n",
            {"kubeReserved": Opaque(1), "systemReserved": Opaque(2)},
        ),
    ],
)
def test_documents(text: str, wanted: dict[str, Any]) -> None:
    assert read(text) == wanted


@pytest.mark.parametrize(
    "text", ["a: 1\na: 2\n", "a: 1\n---\nb: 2\n", "- a\n", "? a\n: b\n", '{"a":', "just words\n"]
)
def test_what_is_no_mapping_is_refused(text: str) -> None:
    with pytest.raises(YamlError):
        read(text)
