# SPDX-License-Identifier: Apache-2.0
"""Bytes that cross a process: schema, frames, metadata, and their limits. Pure: no I/O, no system call.

A frame is a header of 64 bytes, a body and the metadata. The body of a request or an answer is the schema's row: each
field at an offset that is a multiple of 64, so that a view of it is aligned wherever the row begins. Lengths are fixed
by the schema; a frame that says otherwise is refused before a byte of its body is read.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from firsttouch.errors import (
    BusyError,
    ExpiredError,
    HandlerError,
    ProtocolError,
    RefusedError,
    SchemaError,
    TooLargeError,
    TransportError,
)

Array = npt.NDArray[Any]
Spec = Mapping[str, tuple[str, Sequence[int]]]

ABI: Final = 2
MAGIC: Final = b"FTCH"
ALIGN: Final = 64
MAX_FIELDS: Final = 64
MAX_DIMS: Final = 8
MAX_NAME: Final = 64
MAX_BODY_BYTES: Final = 64 << 20
MAX_META_BYTES: Final = 1 << 20
MAX_CONTROL_BYTES: Final = 16 << 10
NO_DEADLINE: Final = 2**64 - 1
DTYPES: Final = frozenset(
    f"{kind}{bits}" for kind, sizes in (("int", (8, 16, 32, 64)), ("uint", (8, 16, 32, 64))) for bits in sizes
) | {"float16", "float32", "float64", "bool"}


def padded(size: int, unit: int) -> int:
    """SIZE rounded up to a multiple of UNIT."""
    return -(-size // unit) * unit


@dataclass(frozen=True)
class Field:
    """One array of fixed dtype and shape: NAME, a numpy dtype of DTYPES, and a shape of positive sizes."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and 0 < len(self.name) <= MAX_NAME and self.name.isprintable()):
            raise SchemaError(f"field name {self.name!r} is not a printable word of 1 to {MAX_NAME} characters")
        if self.dtype not in DTYPES:
            raise SchemaError(
                f"field {self.name} has dtype {self.dtype!r}", hint=f"use one of {', '.join(sorted(DTYPES))}"
            )
        if len(self.shape) > MAX_DIMS or not all(isinstance(size, int) and size > 0 for size in self.shape):
            raise SchemaError(f"field {self.name} has shape {self.shape!r}: up to {MAX_DIMS} sizes above 0")

    @property
    def nbytes(self) -> int:
        """Bytes of the array, without padding."""
        count = 1
        for size in self.shape:
            count *= size
        return count * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Rows:
    """The fields of one direction, and where each lies in a row."""

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        names = [item.name for item in self.fields]
        if len(set(names)) != len(names):
            raise SchemaError(f"a field name occurs twice in {names}")
        if len(names) > MAX_FIELDS:
            raise SchemaError(f"{len(names)} fields are more than {MAX_FIELDS}")
        if self.nbytes > MAX_BODY_BYTES:
            raise SchemaError(f"a row of {self.nbytes} bytes is larger than {MAX_BODY_BYTES}")

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """The offset of each field in bytes, multiples of ALIGN."""
        found, at = [], 0
        for item in self.fields:
            found.append(at)
            at += padded(item.nbytes, ALIGN)
        return tuple(found)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of a row: a multiple of ALIGN."""
        return sum(padded(item.nbytes, ALIGN) for item in self.fields)

    def views(self, row: memoryview) -> dict[str, Array]:
        """Arrays over ROW (at least nbytes long); they live as long as its buffer, and are writable if it is."""
        return {
            item.name: np.frombuffer(row[at : at + item.nbytes], dtype=item.dtype).reshape(item.shape)
            for item, at in zip(self.fields, self.offsets, strict=True)
        }


@dataclass(frozen=True)
class Schema:
    """What a request and an answer consist of. Both sides must agree; the server's is sent when a client attaches."""

    request: Rows
    reply: Rows
    max_meta_bytes: int = 4096

    def __post_init__(self) -> None:
        if not 0 <= self.max_meta_bytes <= MAX_META_BYTES:
            raise SchemaError(f"max_meta_bytes is {self.max_meta_bytes}: 0 to {MAX_META_BYTES}")

    @classmethod
    def of(cls, request: Spec, reply: Spec, max_meta_bytes: int = 4096) -> Schema:
        """A schema from `{"obs": ("float32", (84, 84, 4))}` for each direction. Raises SchemaError."""
        return cls(_rows(request), _rows(reply), max_meta_bytes)

    @cached_property
    def blob(self) -> bytes:
        """The schema as msgpack."""
        rows = [[[item.name, item.dtype, item.shape] for item in part.fields] for part in (self.request, self.reply)]
        return msgspec.msgpack.encode([*rows, self.max_meta_bytes])

    @cached_property
    def digest(self) -> str:
        """Equal for equal schemas: 32 hex digits."""
        return hashlib.sha256(self.blob).hexdigest()[:32]

    @classmethod
    def parse(cls, blob: bytes) -> Schema:
        """The schema in BLOB. Raises ProtocolError when it is none."""
        try:
            request, reply, max_meta = msgspec.msgpack.decode(blob, type=_SchemaBlob)
            parts = [Rows(tuple(Field(*item) for item in part)) for part in (request, reply)]
            return cls(parts[0], parts[1], max_meta)
        except (msgspec.MsgspecError, SchemaError, RecursionError, UnicodeDecodeError) as error:
            raise ProtocolError(f"what the peer sent is no schema: {error}") from error


_SchemaBlob = tuple[
    list[tuple[str, str, tuple[int, ...]]],
    list[tuple[str, str, tuple[int, ...]]],
    int,
]


def _rows(spec: Spec) -> Rows:
    """The rows that a caller wrote down as a mapping."""
    try:
        return Rows(
            tuple(
                Field(name, np.dtype(dtype).name, tuple(int(size) for size in shape))
                for name, (dtype, shape) in spec.items()
            )
        )
    except (TypeError, ValueError) as error:
        if isinstance(error, SchemaError):
            raise
        raise SchemaError(
            f"schema {spec!r} cannot be read: {error}", hint='write {"name": ("float32", (3, 4))}'
        ) from error


# Frames.


class Kind(IntEnum):
    """What a frame is."""

    HELLO = 1
    WELCOME = 2
    REQUEST = 3
    REPLY = 4
    ERROR = 5
    # A request that was under way when a connection broke.
    REQUEST_AGAIN = 6
    # The client hangs up on purpose; an end without it is a death.
    BYE = 7
    # The server runs the REQUEST_AGAIN now: a death from here on may be of it.
    TAKEN = 8


class Status(IntEnum):
    """How a request ended. An answer with another status than OK carries a text instead of metadata."""

    OK = 0
    EXPIRED = 1
    HANDLER = 2
    PROTOCOL = 3
    TOO_LARGE = 4
    REFUSED = 5
    BUSY = 6
    SCHEMA = 7


class Header(NamedTuple):
    """The first 64 bytes of a frame.

    time_left_ns: of a request, when it was sent; NO_DEADLINE for none. sent_ns: the sender's monotonic clock then,
    which means something on the same host only.
    """

    kind: int
    status: int
    meta_len: int
    body_len: int
    sequence: int
    time_left_ns: int
    sent_ns: int = 0


# magic, abi, kind, status, meta_len, body_len, sequence, time_left_ns, sent_ns, reserved
_HEADER: Final = struct.Struct("<4sBBHIIQQQ24x")
HEADER_BYTES: Final = _HEADER.size


def pack_header(into: memoryview | bytearray, header: Header) -> None:
    """Write HEADER to the first 64 bytes of INTO."""
    _HEADER.pack_into(into, 0, MAGIC, ABI, *header)


def unpack_header(data: memoryview | bytes | bytearray) -> Header:
    """The header at the start of DATA. Raises ProtocolError for anything that is not ours."""
    magic, abi, *rest = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise ProtocolError(f"the peer does not speak this protocol: it began with {magic!r}")
    if abi != ABI:
        raise ProtocolError(
            f"the peer has protocol version {abi}, this side has {ABI}", hint="use the same firsttouch on both sides"
        )
    return Header(*rest)


REQUESTS: Final = (Kind.REQUEST, Kind.REQUEST_AGAIN)
REPLIES: Final = (Kind.REPLY,)


def check_data(header: Header, kinds: tuple[Kind, ...], rows: Rows, max_meta_bytes: int) -> None:
    """Refuse a request or an answer whose lengths are not those of the schema. Raises ProtocolError."""
    if header.kind not in kinds:
        raise ProtocolError(f"a frame of kind {header.kind} came where {kinds[0].name} was due")
    body = rows.nbytes if header.status == Status.OK else 0
    if header.body_len != body:
        raise ProtocolError(f"the frame says {header.body_len} bytes of arrays, the schema {body}")
    if header.meta_len > max_meta_bytes:
        raise ProtocolError(f"the frame says {header.meta_len} bytes of metadata, the limit is {max_meta_bytes}")


# Metadata: JSON-like values, as msgpack.

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, Any]).decode


def pack_meta(meta: Mapping[str, Any] | None, limit: int) -> bytes:
    """META as msgpack, empty for None. Raises SchemaError when it cannot be, TooLargeError above LIMIT bytes."""
    if meta is None:
        return b""
    try:
        data = _encode(meta)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise SchemaError(f"metadata cannot be sent: {error}", hint="use what JSON can hold") from error
    if len(data) > limit:
        raise TooLargeError(
            f"{len(data)} bytes of metadata are more than the schema's {limit}", hint="raise max_meta_bytes"
        )
    return data


def unpack_meta(data: bytes | memoryview) -> dict[str, Any] | None:
    """The metadata in DATA, None for nothing. Raises ProtocolError."""
    if not len(data):
        return None
    try:
        return _decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, MemoryError, ValueError) as error:
        raise ProtocolError(f"the peer's metadata cannot be read: {error}") from error


# The handshake.


class Hello(msgspec.Struct, forbid_unknown_fields=True):
    """What a client asks for. digest: of the schema it was given, or empty; start: when its process began, in ticks."""

    transport: str
    lanes: int = 1
    digest: str = ""
    name: str = ""
    start: int = 0


class Geometry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where things lie in the shared segment, in bytes; see _lanes.py."""

    n_lanes: int
    data_off: int
    lane_bytes: int
    size: int


class Welcome(msgspec.Struct, forbid_unknown_fields=True):
    """What a client gets: the schema, its lanes, and how long the server spins.

    kept: the connection outlives the process, which is started again; only its end is the server's end.
    """

    schema: bytes
    pid: int
    spin_ns: int
    lanes: list[int] = msgspec.field(default_factory=list)
    geometry: Geometry | None = None
    kept: bool = False


class Refusal(msgspec.Struct, forbid_unknown_fields=True):
    """Why the other side ends the connection."""

    status: int
    text: str


def control_frame(kind: Kind, payload: msgspec.Struct) -> bytes:
    """A frame of the handshake."""
    meta = msgspec.msgpack.encode(payload)
    head = bytearray(HEADER_BYTES)
    pack_header(head, Header(kind, Status.OK, len(meta), 0, 0, NO_DEADLINE))
    return bytes(head) + meta


def bye_frame() -> bytes:
    """What a client sends before it hangs up."""
    head = bytearray(HEADER_BYTES)
    pack_header(head, Header(Kind.BYE, Status.OK, 0, 0, 0, NO_DEADLINE))
    return bytes(head)


def taken_frame(sequence: int) -> bytes:
    """What a server sends before it runs request SEQUENCE, which came as REQUEST_AGAIN."""
    head = bytearray(HEADER_BYTES)
    pack_header(head, Header(Kind.TAKEN, Status.OK, 0, 0, sequence, NO_DEADLINE))
    return bytes(head)


def control_length(header: Header) -> int:
    """Bytes that follow the header of a handshake's frame. Raises ProtocolError when it cannot be one."""
    if header.body_len or not 0 < header.meta_len <= MAX_CONTROL_BYTES:
        raise ProtocolError(
            f"a handshake of {header.meta_len} + {header.body_len} bytes: at most {MAX_CONTROL_BYTES} + 0"
        )
    return header.meta_len


def parse_hello(header: Header, payload: bytes) -> Hello:
    """The client's first frame. Raises ProtocolError."""
    if header.kind != Kind.HELLO:
        raise ProtocolError(f"the peer began with a frame of kind {header.kind}, not with HELLO")
    hello: Hello = _payload(payload, Hello)
    if not (0 < hello.lanes <= 4096 and len(hello.name) <= 256):
        raise ProtocolError(f"the peer asks for {hello.lanes} lanes as {hello.name[:40]!r}")
    return hello


def parse_welcome(header: Header, payload: bytes) -> Welcome:
    """The server's first frame. Raises what the server refused with, or ProtocolError."""
    if header.kind == Kind.ERROR:
        refusal = _payload(payload, Refusal)
        raise failure(refusal.status, refusal.text)
    if header.kind != Kind.WELCOME:
        raise ProtocolError(f"the server began with a frame of kind {header.kind}, not with WELCOME")
    welcome: Welcome = _payload(payload, Welcome)
    return welcome


def _payload(data: bytes, kind: type[Any]) -> Any:
    """A handshake's payload. Raises ProtocolError."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, MemoryError, ValueError) as error:
        raise ProtocolError(f"the handshake cannot be read: {error}") from error


# Failures as a status, and back.

_STATUS_OF: Final[tuple[tuple[type[TransportError], Status], ...]] = (
    (ExpiredError, Status.EXPIRED),
    (TooLargeError, Status.TOO_LARGE),
    (SchemaError, Status.SCHEMA),
    (RefusedError, Status.REFUSED),
    (ProtocolError, Status.PROTOCOL),
)


def refusal(error: TransportError, status: Status | None = None) -> Refusal:
    """ERROR as it is told to the peer."""
    found = next((code for kind, code in _STATUS_OF if isinstance(error, kind)), Status.BUSY)
    return Refusal(int(status if status is not None else found), str(error)[:512])


def failure(status: int, text: str) -> TransportError:
    """What a client raises for an answer with STATUS and TEXT."""
    kinds: dict[int, type[TransportError]] = {
        Status.EXPIRED: ExpiredError,
        Status.HANDLER: HandlerError,
        Status.PROTOCOL: ProtocolError,
        Status.TOO_LARGE: TooLargeError,
        Status.REFUSED: RefusedError,
        Status.BUSY: BusyError,
        Status.SCHEMA: SchemaError,
    }
    kind = kinds.get(status)
    if kind is None:
        return ProtocolError(f"the server answered with the unknown status {status}: {text[:200]!r}")
    return kind(f"the server says: {text}", facts={"status": status})


# Copies of arrays into a row.


@dataclass
class Writer:
    """Copies a caller's arrays into the views of one row, after it has looked at all of them.

    Nothing is written when one does not fit.
    """

    views: dict[str, Array]
    _pairs: list[tuple[str, Array, Any, tuple[int, ...]]] = field(init=False)

    def __post_init__(self) -> None:
        self._pairs = [(name, view, view.dtype, view.shape) for name, view in self.views.items()]

    def __call__(self, arrays: Mapping[str, Array]) -> None:
        """Copy ARRAYS: exactly the fields, with their dtypes and shapes. Raises SchemaError."""
        pairs = self._pairs
        if len(arrays) != len(pairs):
            raise self._misfit(arrays)
        try:
            if len(pairs) == 1:
                # The usual schema, in one turn.
                ((name, view, dtype, shape),) = pairs
                array = arrays[name]
                if array.dtype != dtype or array.shape != shape:
                    raise self._misfit(arrays)
                view[...] = array
                return
            for name, _, dtype, shape in pairs:
                array = arrays[name]
                if array.dtype != dtype or array.shape != shape:
                    raise self._misfit(arrays)
            for name, view, _, _ in pairs:
                view[...] = arrays[name]
        except (KeyError, AttributeError):
            raise self._misfit(arrays) from None

    def _misfit(self, arrays: Mapping[str, Array]) -> SchemaError:
        """What does not fit, in words."""
        want = {name: f"{dtype}{list(shape)}" for name, _, dtype, shape in self._pairs}
        got = {
            name: f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
            for name, array in arrays.items()
        }
        return SchemaError(f"arrays {got} do not fit the schema {want}")
