# SPDX-License-Identifier: Apache-2.0
"""Headers of model files: refused wherever the reference library refuses, each defect by its name, at bounded cost."""

from __future__ import annotations

import contextlib
import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from firsttouch import _safetensors as own
from firsttouch.errors import InvalidSafetensorsError

CASES = Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "cases"
OK = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}


def file_of(header: Any, data: bytes = b"abcd", length: int | None = None) -> bytes:
    """A file with HEADER (JSON text, bytes or a value) and DATA; LENGTH may lie."""
    text = header if isinstance(header, bytes) else header if isinstance(header, str) else json.dumps(header)
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


def verdict(data: bytes) -> str:
    """`accept:NAMES` or `reject:DEFECT`, as the recorded cases have it."""
    try:
        header = own.parse_file(data)
    except InvalidSafetensorsError as error:
        return f"reject:{error.defect}"
    return "accept:" + ",".join(sorted(row.name for row in header.tensors))


def reference(data: bytes) -> list[tuple[str, dict[str, Any]]] | None:
    """What the reference library reads, None where it refuses."""
    try:
        return safetensors.deserialize(data)
    except safetensors.SafetensorError:
        return None


CASE_FILES = [
    (case.name, name, expected)
    for case in sorted(CASES.glob("st-*"))
    for name, expected in json.loads((case / "expected.json").read_text()).items()
]


@pytest.mark.parametrize(("case", "name", "expected"), CASE_FILES)
def test_recorded_cases(case: str, name: str, expected: str) -> None:
    """Each key of each expected.json is a file; a verdict without a reason asks for the refusal alone."""
    found = verdict((CASES / case / name).read_bytes())
    assert found == expected or (expected == "reject" and found.startswith("reject:"))


def test_recorded_cases_are_all_there() -> None:
    """Five cases, and a key for every model file in them."""
    files = {(path.parent.name, path.name) for path in CASES.glob("st-*/*.safetensors")}
    assert files == {(case, name) for case, name, _ in CASE_FILES} and len({case for case, _ in files}) == 5


def entry(**changes: Any) -> dict[str, Any]:
    return {"a": {**OK, **changes}}


def rows(*offsets: tuple[int, int]) -> dict[str, Any]:
    return {
        f"t{number}": {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}
        for number, (begin, end) in enumerate(offsets)
    }


ENTRY = '{"dtype":"U8","shape":[4],"data_offsets":[0,4]}'
# name, file, defect, whether the reference library refuses it too
DEFECTS: list[tuple[str, bytes, str, bool]] = [
    ("nothing", b"", "too_short", True),
    ("seven bytes", b"\0" * 7, "too_short", True),
    ("no header", b"\0" * 8, "bad_json", True),
    ("one byte of header", file_of("{", b""), "bad_json", True),
    ("length over the limit", file_of(entry(), length=100_000_001), "header_too_large", True),
    ("length beyond the file", file_of(entry(), length=5000), "header_beyond_file", True),
    ("git-lfs", b"version https://git-lfs.github.com/spec/v1\n", "git_lfs_pointer", True),
    ("zip", b"PK\x03\x04" + b"\0" * 60, "zip_or_pickle", True),
    ("pickle 2", b"\x80\x02}q\x00X\x01\0\0\0a" + b"q" * 50, "zip_or_pickle", True),
    ("pickle 4", b"\x80\x04\x95\x10" + b"\xff" * 40, "zip_or_pickle", True),
    ("html", b"<!DOCTYPE html><html></html>", "html", True),
    ("not utf-8", file_of(b'{"\xff":' + ENTRY.encode() + b"}"), "not_utf8", True),
    ("surrogate as bytes", file_of(b'{"\xed\xa0\x80":' + ENTRY.encode() + b"}"), "not_utf8", True),
    ("half a surrogate", file_of('{"\\ud800":' + ENTRY + "}"), "bad_json", True),
    ("byte order mark", file_of("\ufeff" + json.dumps(entry())), "bad_start", True),
    ("leading space", file_of(" " + json.dumps(entry())), "bad_start", False),
    ("a list", file_of("[]", b""), "bad_start", True),
    ("zero padding", file_of(json.dumps(entry()) + "\0\0"), "bad_json", True),
    ("two documents", file_of(json.dumps(entry()) + "{}"), "bad_json", True),
    ("not closed", file_of('{"a":' + ENTRY), "bad_json", True),
    ("trailing comma", file_of('{"a":' + ENTRY + ",}"), "bad_json", True),
    ("no comma", file_of('{"a":' + ENTRY + '"b":' + ENTRY + "}"), "bad_json", True),
    ("no colon", file_of('{"a"' + ENTRY + "}"), "bad_json", True),
    ("control character", file_of('{"a\n":' + ENTRY + "}"), "bad_json", True),
    ("bad escape", file_of('{"\\x":' + ENTRY + "}"), "bad_json", True),
    ("open string", file_of('{"a'), "bad_json", True),
    ("comment", file_of('{/**/"a":' + ENTRY + "}"), "bad_json", True),
    ("entry is null", file_of({"a": None}), "bad_entry", True),
    ("entry is a number", file_of({"a": 1}), "bad_entry", True),
    ("entry never ends", file_of('{"a":{"dtype":"' + "x" * 5000), "bad_entry", True),
    ("deep nesting", file_of('{"a":' + "[" * 100_000 + "]" * 100_000 + "}"), "bad_entry", True),
    ("deep nesting in a field", file_of('{"a":{"x":' + "[" * 4000 + "}}"), "bad_entry", True),
    ("no dtype", file_of({"a": {"shape": [4], "data_offsets": [0, 4]}}), "missing_field", True),
    ("no shape", file_of({"a": {"dtype": "U8", "data_offsets": [0, 4]}}), "missing_field", True),
    ("no offsets", file_of({"a": {"dtype": "U8", "shape": [4]}}), "missing_field", True),
    ("dtype twice", file_of('{"a":{"dtype":"U8",' + ENTRY[1:] + "}"), "duplicate_field", True),
    ("name twice", file_of('{"a":' + ENTRY + ',"a":' + ENTRY + "}"), "duplicate_name", False),
    ("name twice, escaped", file_of('{"a":' + ENTRY + ',"\\u0061":' + ENTRY + "}"), "duplicate_name", False),
    ("metadata twice", file_of('{"__metadata__":{},"__metadata__":{},"a":' + ENTRY + "}"), "duplicate_field", True),
    ("metadata key twice", file_of('{"__metadata__":{"k":"1","k":"2"},"a":' + ENTRY + "}"), "duplicate_field", False),
    ("metadata number", file_of({"__metadata__": {"k": 1}, **entry()}), "bad_metadata", True),
    ("metadata nested", file_of({"__metadata__": {"k": {"x": "y"}}, **entry()}), "bad_metadata", True),
    ("metadata text", file_of({"__metadata__": "k", **entry()}), "bad_metadata", True),
    ("metadata null", file_of({"__metadata__": None, **entry()}), "bad_metadata", False),
    ("unknown dtype", file_of(entry(dtype="F24")), "unknown_dtype", True),
    ("lower case dtype", file_of(entry(dtype="u8")), "unknown_dtype", True),
    ("dtype is a number", file_of(entry(dtype=8)), "unknown_dtype", True),
    ("negative size", file_of(entry(shape=[-4])), "bad_entry", True),
    ("minus zero", file_of('{"a":{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}}', b""), "bad_entry", True),
    ("float size", file_of(entry(shape=[4.0])), "bad_entry", True),
    ("exponent", file_of('{"a":{"dtype":"U8","shape":[4e0],"data_offsets":[0,4]}}'), "bad_entry", True),
    ("leading zero", file_of('{"a":{"dtype":"U8","shape":[04],"data_offsets":[0,4]}}'), "bad_entry", True),
    ("NaN", file_of('{"a":{"dtype":"U8","shape":[NaN],"data_offsets":[0,4]}}'), "bad_entry", True),
    ("size of 2^64", file_of(entry(shape=[2**64])), "bad_shape", True),
    ("size of 40 digits", file_of(entry(shape=[10**40])), "bad_entry", True),
    ("true as a size", file_of(entry(shape=[True])), "bad_shape", True),
    ("text as a size", file_of(entry(shape=["4"])), "bad_shape", True),
    ("shape is a number", file_of(entry(shape=4)), "bad_shape", True),
    ("shape is null", file_of(entry(shape=None)), "bad_shape", True),
    ("nested shape", file_of(entry(shape=[[4]])), "bad_shape", True),
    ("65 dimensions", file_of(entry(shape=[1] * 64 + [4])), "bad_shape", False),
    ("offsets of one", file_of(entry(data_offsets=[0])), "bad_offsets", True),
    ("offsets of three", file_of(entry(data_offsets=[0, 4, 8])), "bad_offsets", True),
    ("offsets backwards", file_of(entry(data_offsets=[4, 0])), "bad_offsets", True),
    ("offset of 2^64", file_of(entry(data_offsets=[0, 2**64])), "bad_offsets", True),
    ("too many bytes", file_of(entry(shape=[5])), "size_mismatch", True),
    ("too few bytes", file_of(entry(shape=[3])), "size_mismatch", True),
    ("one of nothing", file_of(entry(shape=[1], data_offsets=[0, 0]), b""), "size_mismatch", True),
    ("product overflows", file_of(entry(shape=[2**32, 2**32])), "shape_overflow", True),
    ("bits overflow", file_of(entry(dtype="F64", shape=[2**61])), "shape_overflow", True),
    ("zero hides it", file_of(entry(shape=[0, 2**62, 2**62], data_offsets=[0, 0]), b""), "shape_overflow", False),
    ("half a byte", file_of(entry(dtype="F4", shape=[3], data_offsets=[0, 1]), b"a"), "odd_bits", True),
    ("six bits", file_of(entry(dtype="F6_E2M3", shape=[3], data_offsets=[0, 2]), b"ab"), "odd_bits", True),
    ("hole in front", file_of(rows((1, 4))), "hole", True),
    ("hole between", file_of(rows((0, 1), (2, 4))), "hole", True),
    ("overlap", file_of(rows((0, 3), (2, 4))), "overlap", True),
    ("same bytes", file_of(rows((0, 4), (0, 4))), "overlap", True),
    ("bytes left over", file_of(rows((0, 4)), b"abcde"), "trailing_bytes", True),
    ("bytes without tensors", file_of("{}", b"a"), "trailing_bytes", True),
    ("cut short", file_of(rows((0, 4)), b"abc"), "truncated", True),
    ("far beyond", file_of(rows((0, 4), (4, 2**62))), "truncated", True),
    ("odd unknown field", file_of(entry(x=[1])), "bad_entry", False),
    ("surrogate in it", file_of('{"a":{"x":"\\ud800",' + ENTRY[1:] + "}"), "bad_entry", True),
]  # fmt: skip


@pytest.mark.parametrize(("data", "defect", "theirs"), [row[1:] for row in DEFECTS], ids=[row[0] for row in DEFECTS])
def test_defects(data: bytes, defect: str, theirs: bool) -> None:
    """Each defect has its own word, and what the reference library does is as noted."""
    assert verdict(data) == f"reject:{defect}"
    assert (reference(data) is None) is theirs


FINE: list[tuple[str, bytes]] = [
    ("plain", file_of(entry())),
    ("no tensor", file_of("{}", b"")),
    ("trailing spaces", file_of(json.dumps(entry()) + "   ")),
    ("trailing lines", file_of(json.dumps(entry()) + "\n\t\r ")),
    ("spread out", file_of(json.dumps(entry(), indent=9))),
    ("empty name", file_of({"": OK})),
    ("a path", file_of({"../../etc/passwd": OK})),
    ("NUL in the name", file_of({"a\0b": OK})),
    ("braces in the name", file_of({"}{][,:\"\\": OK})),
    ("emoji", file_of('{"\U0001f600":' + ENTRY + "}")),
    ("emoji by escapes", file_of('{"\\ud83d\\ude00":' + ENTRY + "}")),
    ("metadata only", file_of({"__metadata__": {"k": "v", "": "\U0001f600"}}, b"")),
    ("other order of fields", file_of('{"a":{"data_offsets":[0,4],"shape":[4],"dtype":"U8"}}')),
    ("unknown field", file_of(entry(note="text"))),
    ("odd address", file_of(entry(dtype="F32", shape=[1]) | {"b": {**OK, "shape": [0], "data_offsets": [4, 4]}})),
    ("scalar", file_of(entry(dtype="F32", shape=[]))),
    ("64 dimensions", file_of(entry(shape=[1] * 63 + [4]))),
    ("half bytes", file_of(entry(dtype="F4", shape=[8]))),
    ("bool of 2", file_of(entry(dtype="BOOL"), b"\2\2\2\2")),
    ("tensors without bytes", file_of(rows((0, 0), (0, 0), (0, 4), (4, 4)))),
]  # fmt: skip


@pytest.mark.parametrize("data", [row[1] for row in FINE], ids=[row[0] for row in FINE])
def test_fine(data: bytes) -> None:
    """What is legal is read as the reference library reads it."""
    theirs = reference(data)
    assert theirs is not None
    compare(own.parse_file(data), theirs, data)


def compare(header: own.Header, theirs: list[tuple[str, dict[str, Any]]], data: bytes) -> None:
    """Same names, shapes, types and bytes."""
    mine = {row.name: (row.dtype, list(row.shape), cut(data, header, row)) for row in header.tensors}
    assert mine == {name: (row["dtype"], row["shape"], bytes(row["data"])) for name, row in theirs}


def cut(data: bytes, header: own.Header, row: own.TensorInfo) -> bytes:
    return data[header.data_start + row.begin : header.data_start + row.end]


def test_metadata_and_warnings() -> None:
    """Metadata comes as it is; unknown fields and odd addresses are told."""
    text = json.dumps({"__metadata__": {"format": "pt"}, **entry(dtype="F32", shape=[1], note=1)})
    header = own.parse_file(file_of(text + " " * ((1 - len(text)) % 4)))
    assert header.metadata == {"format": "pt"} and header.data_start % 4 == 1
    assert [word in text for word, text in zip(("note", "1 tensors"), header.warnings, strict=True)] == [True, True]


@pytest.mark.parametrize("dtype", sorted(own.DTYPE_BITS))
def test_every_dtype_is_the_reference_s(dtype: str) -> None:
    """Eight elements of each type take as many bytes as the reference library says."""
    size = own.DTYPE_BITS[dtype]
    data = file_of(entry(dtype=dtype, shape=[8], data_offsets=[0, size]), bytes(size))
    theirs = reference(data)
    assert theirs is not None
    compare(own.parse_file(data), theirs, data)
    assert reference(file_of(entry(dtype=dtype, shape=[8], data_offsets=[0, size + 8]), bytes(size + 8))) is None


def test_every_header_length_modulo_512() -> None:
    """Padding the header by 0 to 511 spaces moves the data and nothing else."""
    base = json.dumps(rows((0, 1), (1, 4)))
    for pad in range(512):
        data = file_of(base + " " * pad)
        header = own.parse_file(data)
        assert [cut(data, header, row) for row in header.tensors] == [b"a", b"bcd"]
        assert header.data_start == 8 + len(base) + pad


SIZES = st.integers(0, 5) | st.sampled_from([-1, 2**31, 2**32, 2**62, 2**63, 2**64, 1.0, True, None, "4", [1]])
TENSORS = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["U8", "F16", "F32", "BF16", "F4", "F6_E3M2", "F24"]),
        "shape": st.lists(SIZES, max_size=3) | st.none(),
        "data_offsets": st.lists(SIZES, min_size=1, max_size=3),
    },
    optional={"extra": st.text(max_size=3) | st.none() | st.floats() | st.lists(st.integers())},
)
PAIRS = st.dictionaries(st.text(max_size=2), st.text(max_size=2))
NAMES = st.text(max_size=4) | st.just("__metadata__")


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(NAMES, TENSORS | PAIRS), st.binary(max_size=24))
def test_refused_there_is_refused_here(header: dict[str, Any], data: bytes) -> None:
    """For any document: what the reference library refuses is refused, what is taken is read alike."""
    check_parity(file_of(json.dumps(header), data))


PIECES = [b"", b" ", b'"', b"}", b"{", b"0", b"-", b",", b"9", b"\\", b"[", b"\xc3", b".", b"e1"]


@st.composite
def nearly_valid(draw: st.DrawFn) -> bytes:
    """A valid file of several tensors, with a few bytes of it changed, cut out or put in."""
    sizes = draw(st.lists(st.integers(0, 4), max_size=4))
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    document: dict[str, Any] = rows(*zip([0, *ends], ends, strict=False))
    if draw(st.booleans()):
        document["__metadata__"] = draw(st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2))
    text = bytearray(json.dumps(document, ensure_ascii=draw(st.booleans())).encode("utf-8", "replace"))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(text)))
        text[at : at + draw(st.integers(0, 2))] = draw(st.sampled_from(PIECES))
    return file_of(bytes(text), b"x" * (sum(sizes) + draw(st.sampled_from([0, 0, 0, 1]))))


@settings(max_examples=500, deadline=None)
@given(nearly_valid())
def test_damaged_files(data: bytes) -> None:
    """The same for files that were valid before somebody edited them."""
    check_parity(data)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=64))
def test_any_bytes(data: bytes) -> None:
    """The same for bytes that are no model at all: a refusal, never another error."""
    check_parity(data)


def check_parity(data: bytes) -> None:
    theirs = reference(data)
    try:
        header = own.parse_file(data)
    except InvalidSafetensorsError:
        return
    assert theirs is not None
    compare(header, theirs, data)


MEGA = 1 << 20
HOSTILE = {
    "spaces": b"{" + b" " * (8 * MEGA) + b"}",
    "one long name": b'{"' + b"a" * (8 * MEGA) + b'":{}}',
    "nested lists": b'{"a":' + b"[" * (8 * MEGA),
    "lists in metadata": b'{"__metadata__":{"a":' + b"[]," * (2 * MEGA) + b"}}",
    "an entry of floats": b'{"a":{"shape":[' + b"1.1," * (2 * MEGA) + b"]}}",
    "an entry of fields": b'{"a":{' + b'"x":1,' * MEGA + b"}}",
    "escapes": b'{"' + b"\\n" * (4 * MEGA) + b'":{}}',
    "digits": b'{"a":{"dtype":"U8","shape":[' + b"9" * (8 * MEGA) + b"]}}",
    "empty names": b"{" + b'"":{},' * MEGA,
}


def refusal(text: bytes) -> contextlib.AbstractContextManager[object]:
    """All of them are refused but the one that is valid and empty."""
    return pytest.raises(InvalidSafetensorsError) if b":" in text else contextlib.nullcontext()


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_headers_cost_little(text: bytes) -> None:
    """8 MB of each kind: at most four times its size, and under 2 s for 100 MB."""
    started = time.process_time()
    with refusal(text):
        own.parse_header(text, len(text) + 8)
    assert (time.process_time() - started) * 100 * MEGA / len(text) < 2
    tracemalloc.start()
    try:
        with refusal(text):
            own.parse_header(text, len(text) + 8)
        assert tracemalloc.get_traced_memory()[1] <= 4 * len(text)
    finally:
        tracemalloc.stop()


def test_a_lying_length_costs_nothing() -> None:
    """A header length of 132 MB or 2^64-1 in a file of 72 bytes is refused before anything of that size is made."""
    tracemalloc.start()
    try:
        for name in ("h132M", "hmax", "h1000"):
            path = CASES / "st-header-length-lies" / f"{name}.safetensors"
            assert verdict(path.read_bytes()).startswith("reject:header_")
        assert tracemalloc.get_traced_memory()[1] < 10 * MEGA
    finally:
        tracemalloc.stop()


def test_limits() -> None:
    """Tensors and pairs of metadata have limits that a caller may set."""
    data = file_of({**rows((0, 2), (2, 4)), "__metadata__": {"a": "b", "c": "d"}})
    own.parse_file(data, own.Limits(tensors=2, metadata=2))
    for limits, defect in ((own.Limits(tensors=1), "too_many_tensors"), (own.Limits(metadata=1), "too_much_metadata")):
        with pytest.raises(InvalidSafetensorsError) as caught:
            own.parse_file(data, limits)
        assert caught.value.defect == defect


def test_messages_are_short_and_escaped() -> None:
    """A name of a megabyte with control characters is shown in part and escaped."""
    with pytest.raises(InvalidSafetensorsError) as caught:
        own.parse_file(file_of({"\x1b[31m" + "x" * MEGA: {**OK, "dtype": "F24"}}), shard="a.safetensors")
    assert len(str(caught.value)) < 600 and "\x1b" not in str(caught.value) and "a.safetensors" in str(caught.value)
    assert caught.value.facts["shard"] == "a.safetensors"


INDEX = {"metadata": {"total_size": 4}, "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}


def test_index() -> None:
    """The map of tensors to files."""
    assert own.parse_index(json.dumps(INDEX).encode()) == INDEX["weight_map"]


@pytest.mark.parametrize(
    ("text", "defect"),
    [
        ("", "bad_index"),
        ("[]", "bad_index"),
        ("{}", "bad_index"),
        ('{"weight_map":{}}', "bad_index"),
        ('{"weight_map":["a"]}', "bad_index"),
        ('{"weight_map":{"a":1}}', "bad_shard_name"),
        ('{"weight_map":{"a":"../b"}}', "bad_shard_name"),
        ('{"weight_map":{"a":"/etc/passwd"}}', "bad_shard_name"),
        ('{"weight_map":{"a":".."}}', "bad_shard_name"),
        ('{"weight_map":{"a":""}}', "bad_shard_name"),
        ('{"weight_map":{"a":"b\\u0000"}}', "bad_shard_name"),
        ('{"weight_map":{"a":"b","a":"c"}}', "duplicate_name"),
        ('{"weight_map":' + "[" * 900, "bad_index"),
        ('{"weight_map":' + "[" * 2000, "bad_index"),
        ('{"weight_map":{"a":NaN}}', "bad_index"),
    ],
)
def test_bad_index(text: str, defect: str) -> None:
    """An index that could lead out of the model's folder, or says nothing, is refused."""
    with pytest.raises(InvalidSafetensorsError) as caught:
        own.parse_index(text.encode())
    assert caught.value.defect == defect


def test_index_of_any_size() -> None:
    """An index over the limit is refused unread."""
    with pytest.raises(InvalidSafetensorsError) as caught:
        own.parse_index(b" " * 100, own.Limits(index_bytes=99))
    assert caught.value.defect == "index_too_large"


def test_a_prefix_tells() -> None:
    """The first bytes alone show a header that begins wrong; nothing else has been read by then."""
    with pytest.raises(InvalidSafetensorsError) as caught:
        own.header_bytes(file_of(" {}" + " " * 60)[:64], 71)
    assert caught.value.defect == "bad_start"


def test_index_against_shards() -> None:
    """The index and the shards name the same tensors in the same files, each once."""
    row = own.TensorInfo("a", "U8", (4,), 0, 4)
    own.check_index({"a": "x"}, {"x": [row]})
    own.check_index({}, {"x": [row]})
    for weights, shards, defect in (
        ({"a": "x", "b": "x"}, {"x": [row]}, "index_mismatch"),
        ({"a": "y"}, {"x": [row], "y": []}, "index_mismatch"),
        ({"b": "x"}, {"x": [row, row._replace(name="b")]}, "index_mismatch"),
        ({"a": "x"}, {"x": [row], "y": [row]}, "duplicate_name"),
    ):
        with pytest.raises(InvalidSafetensorsError) as caught:
            own.check_index(weights, shards)
        assert caught.value.defect == defect
