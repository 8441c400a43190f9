# SPDX-License-Identifier: Apache-2.0
"""Schema, frames and metadata: what goes in comes out, what is no frame is refused with one kind of error."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import SLOW
from firsttouch import _wire
from firsttouch._wire import ALIGN, DTYPES, HEADER_BYTES, Field, Header, Kind, Rows, Schema, Status, Writer
from firsttouch.errors import FirstTouchError, ProtocolError, SchemaError, TooLargeError

fields = st.builds(
    Field,
    st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=1, max_size=20).filter(str.isprintable),
    st.sampled_from(sorted(DTYPES)),
    st.lists(st.integers(1, 7), max_size=4).map(tuple),
)
rows = st.lists(fields, max_size=6, unique_by=lambda field: field.name).map(lambda items: Rows(tuple(items)))
schemas = st.builds(Schema, rows, rows, st.integers(0, 1 << 20))
u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
headers = st.builds(Header, st.integers(0, 255), st.integers(0, 65535), u32, u32, u64, u64, u64)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
metas = st.dictionaries(st.text(max_size=8), values, max_size=5)


@settings(max_examples=1000 if SLOW else 40)
@given(schemas)
def test_schema_round_trip(schema: Schema) -> None:
    """A schema is the same on the other side, and has the same digest."""
    again = Schema.parse(schema.blob)
    assert again == schema
    assert again.digest == schema.digest


@settings(max_examples=1000 if SLOW else 40)
@given(rows)
def test_rows_do_not_overlap(part: Rows) -> None:
    """Each field has its own aligned bytes, all within the row."""
    end = 0
    for field, at in zip(part.fields, part.offsets, strict=True):
        assert at % ALIGN == 0
        assert at >= end
        end = at + field.nbytes
    assert part.nbytes >= end
    assert part.nbytes % ALIGN == 0


@settings(max_examples=1000 if SLOW else 40)
@given(rows)
def test_views(part: Rows) -> None:
    """A view has the field's dtype and shape, and writes to the row."""
    row = memoryview(bytearray(part.nbytes))
    views = part.views(row)
    for field in part.fields:
        assert views[field.name].dtype == field.dtype
        assert views[field.name].shape == field.shape
        views[field.name][...] = 1
    for field, at in zip(part.fields, part.offsets, strict=True):
        assert (np.frombuffer(row[at : at + field.nbytes], field.dtype) == 1).all()


@given(headers)
def test_header_round_trip(header: Header) -> None:
    """A header is the same on the other side."""
    buffer = bytearray(HEADER_BYTES)
    _wire.pack_header(buffer, header)
    assert _wire.unpack_header(buffer) == header


@given(u64)
def test_taken(sequence: int) -> None:
    """What tells that a request is taken is a header with its number, nothing more, and no answer."""
    data = _wire.taken_frame(sequence)
    assert len(data) == HEADER_BYTES
    header = _wire.unpack_header(data)
    assert header == Header(Kind.TAKEN, Status.OK, 0, 0, sequence, _wire.NO_DEADLINE)
    for kinds in (_wire.REQUESTS, _wire.REPLIES):
        with pytest.raises(ProtocolError, match=f"kind {Kind.TAKEN} came"):
            _wire.check_data(header, kinds, Rows(()), 0)


@settings(max_examples=1000 if SLOW else 40)
@given(metas)
def test_metadata_round_trip(meta: dict[str, Any]) -> None:
    """JSON-like metadata is the same on the other side."""
    assert _wire.unpack_meta(_wire.pack_meta(meta, 1 << 20)) == meta


@settings(max_examples=2000 if SLOW else 100)
@given(st.binary(max_size=200))
def test_garbage(data: bytes) -> None:
    """Garbage is a ProtocolError everywhere, and nothing else."""
    for parse in (
        Schema.parse,
        _wire.unpack_meta,
        lambda raw: _wire.unpack_header(raw.ljust(HEADER_BYTES, b"\0")),
        lambda raw: _wire.parse_hello(Header(Kind.HELLO, 0, len(raw), 0, 0, 0), raw),
        lambda raw: _wire.parse_welcome(Header(Kind.WELCOME, 0, len(raw), 0, 0, 0), raw),
    ):
        with contextlib.suppress(ProtocolError):
            parse(data)


@settings(max_examples=2000 if SLOW else 100)
@given(schemas, st.data())
def test_changed_schema(schema: Schema, data: st.DataObject) -> None:
    """A schema with one byte changed is another valid one, or a ProtocolError."""
    blob = bytearray(schema.blob)
    at = data.draw(st.integers(0, len(blob) - 1))
    blob[at] = data.draw(st.integers(0, 255))
    try:
        other = Schema.parse(bytes(blob))
    except ProtocolError:
        return
    assert other.request.nbytes <= _wire.MAX_BODY_BYTES


@pytest.mark.parametrize(
    "data",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\x81\xa1a" + b"\x91" * 100_000 + b"\xc0",
        b"\xc6\xff\xff\xff\xff",
        b"\x81\xa1a\xc9\xff\xff\xff\xff\x01",
        b"\x01",
        b"\x81\x01\x02",
        b"\x81\xa1\xff\x02",
        b"\x81\xa1a\xdd\xff\xff\xff\xff",
        b"\x81\xa1a\xdf\xff\xff\xff\xff",
    ],
)
def test_hostile_metadata(data: bytes) -> None:
    """Lengths that lie, nesting without end and keys that are no text are refused without the memory they ask for."""
    with pytest.raises(ProtocolError):
        _wire.unpack_meta(data)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"a": ("float31", (1,))}, "cannot be read"),
        ({"a": ("complex64", (1,))}, "dtype"),
        ({"a": ("O", (1,))}, "dtype"),
        ({"a": ("U8", (1,))}, "dtype"),
        ({"a": ("float32", (0,))}, "shape"),
        ({"a": ("float32", (-1,))}, "shape"),
        ({"a": ("float32", (1 << 40,))}, "larger"),
        ({"": ("float32", (1,))}, "name"),
        ({"a\n": ("float32", (1,))}, "name"),
        ({"a": ("float32", (1,) * 9)}, "shape"),
        ({"a": "float32"}, "cannot be read"),
        ({f"f{i}": ("int8", ()) for i in range(65)}, "more than"),
    ],
)
def test_schemas_that_cannot_be(request_: Any, words: str) -> None:
    """Each is refused with what is wrong with it."""
    with pytest.raises(SchemaError, match=words):
        Schema.of(request_, {})


def test_big_endian_is_another_dtype() -> None:
    """An array of the other byte order does not fit silently."""
    part = Rows((Field("a", "int32", (2,)),))
    write = Writer(part.views(memoryview(bytearray(part.nbytes))))
    with pytest.raises(SchemaError):
        write({"a": np.array([1, 2], ">i4")})
    write({"a": np.array([[1, 2], [3, 4]], "i4")[:, 0]})


def test_frames_that_lie() -> None:
    """Lengths that are not the schema's, another kind, another version and another protocol are refused."""
    part = Rows((Field("a", "int32", (2,)),))
    good = Header(Kind.REQUEST, Status.OK, 10, part.nbytes, 1, 0)
    _wire.check_data(good, _wire.REQUESTS, part, 10)
    for bad in (
        good._replace(body_len=part.nbytes + 1),
        good._replace(body_len=0),
        good._replace(meta_len=11),
        good._replace(kind=Kind.REPLY),
        good._replace(status=1),
    ):
        with pytest.raises(ProtocolError):
            _wire.check_data(bad, _wire.REQUESTS, part, 10)
    buffer = bytearray(HEADER_BYTES)
    _wire.pack_header(buffer, good)
    buffer[4] += 1
    with pytest.raises(ProtocolError, match=f"version {_wire.ABI + 1}, this side has {_wire.ABI}"):
        _wire.unpack_header(buffer)
    with pytest.raises(ProtocolError, match="does not speak"):
        _wire.unpack_header(b"GET / HTTP/1.1\r\n".ljust(HEADER_BYTES))


def test_metadata_limits() -> None:
    """The limit is of the bytes that are sent; None is nothing at all."""
    assert _wire.pack_meta(None, 0) == b""
    assert _wire.unpack_meta(b"") is None
    size = len(_wire.pack_meta({"a": "b"}, 100))
    assert _wire.pack_meta({"a": "b"}, size)
    with pytest.raises(TooLargeError):
        _wire.pack_meta({"a": "b"}, size - 1)
    for wrong in ({"a": object()}, {"a": 1 << 70}):
        with pytest.raises(SchemaError):
            _wire.pack_meta(wrong, 100)


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_every_failure_has_an_error(status: Status) -> None:
    """The client raises its own kind of error for each status, with the server's text."""
    error = _wire.failure(status, "because")
    assert "because" in str(error)
    if status not in (Status.HANDLER, Status.BUSY):
        assert _wire.refusal(error).status == status


def test_unknown_status() -> None:
    """A status of a later version is an error too."""
    assert isinstance(_wire.failure(999, "x"), ProtocolError)


def test_control_frames_are_bounded() -> None:
    """A handshake with arrays, without a payload or with a huge one is refused."""
    head = Header(Kind.HELLO, 0, 10, 0, 0, 0)
    assert _wire.control_length(head) == 10
    for bad in (head._replace(body_len=1), head._replace(meta_len=0), head._replace(meta_len=1 << 20)):
        with pytest.raises(ProtocolError):
            _wire.control_length(bad)
    for lanes in (0, -1, 5000):
        with pytest.raises(ProtocolError):
            _wire.parse_hello(head, msgspec.msgpack.encode(_wire.Hello("shm", lanes)))


def test_errors_are_ours() -> None:
    """What a caller may catch is one tree."""
    assert issubclass(SchemaError, FirstTouchError)
    assert issubclass(SchemaError, ValueError)
