# SPDX-License-Identifier: Apache-2.0
"""The layout of the shared segment, and the states of a lane. Pure.

One table says where each word lies and who writes it; the views, the tests of the cache lines and the check at attach
come from it. Every line of 128 bytes has one writer (processors fetch lines of 64 bytes in pairs), so there is no
lock and no read-modify-write, and nothing to repair after a writer was killed between two stores.

    header      holder, once: what this is, its geometry, the schema
    holder      holder: which lanes are leased, deaths so far
    server      server: asleep or not, its incarnation
    lane i      three lines: the client's, the server's, the holder's
    data i      request row, request metadata, answer row, answer metadata; page aligned

A lane is idle when req_seq == rsp_seq and pending otherwise. A client publishes by storing req_seq after everything
else, the server by storing rsp_seq after everything else. Both are aligned stores of 32 bits.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from firsttouch._wire import ALIGN, MAX_META_BYTES, Geometry, Schema, padded
from firsttouch.errors import ProtocolError, SchemaError

LINE: Final = 128
PAGE: Final = 4096
SEGMENT_MAGIC: Final = 0x31304C5448435446  # b"FTCHTL01", little endian
LAYOUT: Final = 1
MAX_LANES: Final = 4096
MAX_SEGMENT_BYTES: Final = 64 << 30


class Word(NamedTuple):
    """One word of the layout: its offset in its block, its size in bytes, and who writes it."""

    name: str
    offset: int
    size: int
    writer: str


# Offsets from the start of the segment.
FIXED: Final = (
    Word("magic", 0x000, 8, "holder"),
    Word("layout", 0x008, 4, "holder"),
    Word("n_lanes", 0x00C, 4, "holder"),
    Word("data_off", 0x010, 8, "holder"),
    Word("lane_bytes", 0x018, 8, "holder"),
    Word("size", 0x020, 8, "holder"),
    Word("schema_len", 0x028, 4, "holder"),
    Word("spin_ns", 0x02C, 4, "holder"),
    Word("leases", 0x080, 4, "holder"),
    Word("deaths", 0x084, 4, "holder"),
    Word("attached", 0x088, 4, "holder"),
    Word("refused", 0x08C, 4, "holder"),
    Word("srv_sleep", 0x100, 4, "server"),
    Word("srv_epoch", 0x104, 4, "server"),
    Word("srv_pid", 0x108, 4, "server"),
)
SCHEMA_OFF: Final = 0x200
CTL_OFF: Final = 0x8000
SCHEMA_MAX: Final = CTL_OFF - SCHEMA_OFF
CTL_STRIDE: Final = 3 * LINE
# Offsets from the start of a lane's control block.
LANE: Final = (
    Word("req_seq", 0x00, 4, "client"),
    Word("cli_sleep", 0x04, 4, "client"),
    Word("req_meta", 0x08, 4, "client"),
    Word("deadline_ns", 0x10, 8, "client"),
    Word("submit_ns", 0x18, 8, "client"),
    Word("rsp_seq", 0x80, 4, "server"),
    Word("taken_seq", 0x84, 4, "server"),
    Word("status", 0x88, 4, "server"),
    Word("rsp_meta", 0x8C, 4, "server"),
    Word("tries", 0x98, 4, "server"),
    Word("owner_pid", 0x100, 4, "holder"),
    Word("owner_link", 0x104, 4, "holder"),
)


def at(table: tuple[Word, ...], name: str) -> int:
    """The offset of word NAME."""
    return next(word.offset for word in table if word.name == name)


class LaneParts(NamedTuple):
    """Offsets in a lane's data block, in bytes, and its size."""

    request: int
    request_meta: int
    reply: int
    reply_meta: int
    nbytes: int


def lane_parts(schema: Schema) -> LaneParts:
    """How a lane's data block is divided. The answer begins on a page of its own: it has another writer."""
    meta = padded(schema.max_meta_bytes, ALIGN)
    # An answer that is a failure carries its text there.
    reply_meta = padded(max(schema.max_meta_bytes, 512), ALIGN)
    request_meta = schema.request.nbytes
    reply = padded(request_meta + meta, PAGE)
    text = reply + schema.reply.nbytes
    return LaneParts(0, request_meta, reply, text, padded(text + reply_meta, PAGE))


def reply_meta_room(schema: Schema) -> int:
    """Bytes that metadata or a failure's text may have in an answer."""
    return max(schema.max_meta_bytes, 512)


def geometry(schema: Schema, n_lanes: int, page_bytes: int) -> Geometry:
    """The geometry of a segment of N_LANES, its size a multiple of PAGE_BYTES. Raises SchemaError."""
    if not 0 < n_lanes <= MAX_LANES:
        raise SchemaError(f"{n_lanes} lanes: 1 to {MAX_LANES}")
    if len(schema.blob) > SCHEMA_MAX:
        raise SchemaError(f"a schema of {len(schema.blob)} bytes is larger than {SCHEMA_MAX}")
    data_off = padded(CTL_OFF + n_lanes * CTL_STRIDE, PAGE)
    lane_bytes = lane_parts(schema).nbytes
    size = padded(data_off + n_lanes * lane_bytes, page_bytes)
    if size > MAX_SEGMENT_BYTES:
        raise SchemaError(f"{n_lanes} lanes of {lane_bytes} bytes are more than {MAX_SEGMENT_BYTES} bytes")
    return Geometry(n_lanes, data_off, lane_bytes, size)


def check_geometry(told: Geometry, schema: Schema, lanes: list[int], file_bytes: int) -> None:
    """Hold what a server TOLD against what its schema gives and the segment has. Raises ProtocolError."""
    if not 0 < told.n_lanes <= MAX_LANES or schema.max_meta_bytes > MAX_META_BYTES:
        raise ProtocolError(f"the server tells of {told.n_lanes} lanes")
    expected = geometry(schema, told.n_lanes, 1)
    if (told.data_off, told.lane_bytes) != (expected.data_off, expected.lane_bytes):
        raise ProtocolError(f"the server lays its segment out as {told}, this side as {expected}")
    if not expected.size <= told.size <= file_bytes:
        raise ProtocolError(
            f"the segment has {file_bytes} bytes, the server tells of {told.size}, it needs {expected.size}"
        )
    if not lanes or len(set(lanes)) != len(lanes) or not all(0 <= lane < told.n_lanes for lane in lanes):
        raise ProtocolError(f"the server grants the lanes {lanes} of {told.n_lanes}")
