# SPDX-License-Identifier: Apache-2.0
"""Bounded, strict reader of safetensors headers and of their index. Pure: bytes in, tables out, no files.

At least as strict as the reference library (safetensors 0.8, tensor.rs: `validate`), and by the format's own text
stricter in: duplicate names, a header that does not begin with `{`, shapes whose non-zero dimensions overflow.
One entry is parsed at a time, so a hostile header costs its own size and a constant, never a multiple of it.
A name is an opaque key: it is never used as a path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

# Documented nowhere but there in every supported Python (tested on 3.10 to 3.13); typeshed leaves it out.
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, NamedTuple, NoReturn

from firsttouch.errors import InvalidSafetensorsError

# Width of one element in bits: safetensors tensor.rs, `Dtype::bitsize`.
# Of a file as it is; an image may be aligned otherwise.
UNALIGNED = "tensors do not lie at a multiple of their element size"
DTYPE_BITS: dict[str, int] = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8,
    "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
# safetensors tensor.rs: N_LEN, MAX_HEADER_SIZE.
LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
METADATA_KEY = "__metadata__"
FIELDS = ("dtype", "shape", "data_offsets")
# Shapes and offsets are usize; our arithmetic and numpy's need them signed.
_UNSIGNED_LIMIT = 2**64
_SIGNED_LIMIT = 2**63
_SPACE = re.compile(r"[ \t\n\r]*")
# An entry with three fields is under 300 bytes beside its name; nothing nests in it but two lists.
_MAX_ENTRY = 4096
_SHORT_NAME = 200
_SHOWN = 8


@dataclass(frozen=True)
class Limits:
    """What a header may cost: bytes of text, number of tensors, dimensions of one, pairs of metadata."""

    header_bytes: int = MAX_HEADER_BYTES
    tensors: int = 200_000
    rank: int = 64
    metadata: int = 100_000
    index_bytes: int = 64 << 20


class TensorInfo(NamedTuple):
    """One tensor: shape in elements, begin and end in bytes from the start of the data section."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """A valid header: tensors in the order of their bytes, metadata, and where the data starts in the file."""

    tensors: tuple[TensorInfo, ...]
    metadata: dict[str, str]
    data_start: int
    file_bytes: int
    # What is legal and yet worth a word: unknown fields, elements at odd addresses.
    warnings: tuple[str, ...] = ()


@dataclass
class _Entries:
    """What has been read of a header so far."""

    tensors: list[TensorInfo] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    metadata: dict[str, str] | None = None
    unknown: set[str] = field(default_factory=set)


def printable(name: str) -> str:
    """NAME for a message: escaped, quoted, shortened. Names are hostile."""
    text = ascii(name[:_SHORT_NAME])
    return text if len(text) <= _SHORT_NAME and len(name) <= _SHORT_NAME else f"{text[:_SHORT_NAME]}...'"


def header_bytes(prefix: bytes, file_bytes: int, limits: Limits | None = None, shard: str = "") -> int:
    """Length in bytes of the JSON text of a file of FILE_BYTES that begins with PREFIX (64 bytes are enough).

    Nothing of that size has been allocated when this raises InvalidSafetensorsError.
    """
    limits = limits or Limits()
    if file_bytes < LENGTH_BYTES or len(prefix) < LENGTH_BYTES:
        _fail("too_short", f"{file_bytes} bytes, a safetensors file has at least {LENGTH_BYTES}", shard)
    length = int.from_bytes(prefix[:LENGTH_BYTES], "little")
    if length > limits.header_bytes:
        _other_kind(prefix, shard)
        _fail("header_too_large", f"header of {length} bytes, the limit is {limits.header_bytes}", shard)
    if LENGTH_BYTES + length > file_bytes:
        _other_kind(prefix, shard)
        _fail("header_beyond_file", f"header of {length} bytes in a file of {file_bytes}", shard)
    if length < 2:
        _fail("bad_json", f"header of {length} bytes", shard)
    if len(prefix) > LENGTH_BYTES and prefix[LENGTH_BYTES : LENGTH_BYTES + 1] != b"{":
        _fail("bad_start", "the header does not begin with {", shard)
    return length


def parse_header(text: bytes, file_bytes: int, limits: Limits | None = None, shard: str = "") -> Header:
    """The tables of a header TEXT (without its length) of a file of FILE_BYTES; see the module for the rules.

    Raises InvalidSafetensorsError; its `defect` is one word per rule.
    """
    limits = limits or Limits()
    if text[:1] != b"{":
        _fail("bad_start", "the header does not begin with {", shard)
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        _fail("not_utf8", f"the header is not UTF-8 at byte {error.start}", shard)
    entries = _read_entries(decoded, limits, shard)
    data_start = LENGTH_BYTES + len(text)
    ordered = tuple(sorted(entries.tensors, key=lambda row: (row.begin, row.end)))
    _check_cover(ordered, file_bytes - data_start, shard)
    warnings = [f"unknown field {printable(name)}" for name in sorted(entries.unknown)]
    odd = sum(1 for row in ordered if not is_aligned(row, data_start))
    if odd:
        warnings.append(f"{odd} {UNALIGNED}")
    return Header(ordered, entries.metadata or {}, data_start, file_bytes, tuple(warnings))


def parse_file(data: bytes, limits: Limits | None = None, shard: str = "") -> Header:
    """The tables of a whole file in memory."""
    length = header_bytes(data[:64], len(data), limits, shard)
    return parse_header(data[LENGTH_BYTES : LENGTH_BYTES + length], len(data), limits, shard)


def is_aligned(tensor: TensorInfo, data_start: int) -> bool:
    """Whether the elements of TENSOR lie at multiples of their size, counted from the start of the file."""
    return (data_start + tensor.begin) % max(DTYPE_BITS[tensor.dtype] // 8, 1) == 0


def parse_index(text: bytes, limits: Limits | None = None) -> dict[str, str]:
    """The weight_map of a model.safetensors.index.json: tensor name to shard file, plain base names only.

    Raises InvalidSafetensorsError with shard `index`.
    """
    limits = limits or Limits()
    if len(text) > limits.index_bytes:
        _fail("index_too_large", f"{len(text)} bytes, the limit is {limits.index_bytes}", "index")
    # The real ones have three objects and no list; this keeps a nest of them from costing memory.
    if text.count(b"{") > 1000 or text.count(b"[") > 1000:
        _fail("bad_index", "too many nested values", "index")
    try:
        document = json.loads(text.decode(), object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except InvalidSafetensorsError:
        raise
    except (ValueError, RecursionError) as error:
        _fail("bad_index", f"not JSON: {error}", "index")
    weights = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(weights, dict) or not weights:
        _fail("bad_index", "there is no weight_map", "index")
    for name, file in weights.items():
        if not isinstance(file, str) or not is_plain_name(file):
            _fail("bad_shard_name", f"{printable(str(file))} is no plain file name", "index", name)
    return weights


def is_plain_name(name: str) -> bool:
    """Whether NAME is a file name in the model's own folder and nothing else."""
    return 0 < len(name) <= 255 and not set(name) & set("/\\\0") and name not in (".", "..") and name.isprintable()


def check_index(weights: Mapping[str, str], shards: Mapping[str, Iterable[TensorInfo]]) -> None:
    """Refuse an index that does not describe SHARDS exactly: a tensor missing, in another shard, or in two."""
    seen: dict[str, str] = {}
    for shard, tensors in shards.items():
        for row in tensors:
            if row.name in seen:
                _fail("duplicate_name", f"in {printable(seen[row.name])} already", shard, row.name)
            seen[row.name] = shard
    for name, shard in weights.items():
        if seen.get(name) != shard:
            where = f"it is in {printable(seen[name])}" if name in seen else "no shard has it"
            _fail("index_mismatch", f"the index has it in {printable(shard)}, {where}", shard, name)
    for name, shard in seen.items():
        if weights and name not in weights:
            _fail("index_mismatch", "the index does not have it", shard, name)


def _fail(defect: str, text: str, shard: str, tensor: str | None = None) -> NoReturn:
    where = "".join(
        (f"{printable(shard)}: " if shard else "", f"tensor {printable(tensor)}: " if tensor is not None else "")
    )
    facts = {"defect": defect, "shard": shard, "tensor": tensor}
    raise InvalidSafetensorsError(f"{where}{defect}: {text}", facts=facts)


def _other_kind(prefix: bytes, shard: str) -> None:
    """Name the usual other kinds of file whose first bytes read as a huge length."""
    start = prefix.lstrip().lower()
    if prefix.startswith(b"version https:/"):
        _fail("git_lfs_pointer", "this is a git-lfs pointer, fetch the file with `git lfs pull`", shard)
    if prefix.startswith((b"PK\x03\x04", b"PK\x05\x06")) or re.match(rb"\x80[\x02-\x05]", prefix):
        _fail("zip_or_pickle", "this is a zip or pickle checkpoint, convert it to safetensors first", shard)
    if start.startswith((b"<!doc", b"<html", b"<?xml", b"<head")):
        _fail("html", "this is a web page, probably of a failed download", shard)


def _read_entries(text: str, limits: Limits, shard: str) -> _Entries:
    """Walk the outer object of TEXT, one entry at a time."""
    entries = _Entries()
    at = _skip(text, 1)
    if text[at : at + 1] == "}":
        return _end(text, at + 1, entries, shard)
    while True:
        name, at = _string(text, at, shard)
        at = _expect(text, at, ":", shard)
        if name == METADATA_KEY:
            if entries.metadata is not None:
                _fail("duplicate_field", f"{METADATA_KEY} twice", shard)
            entries.metadata, at = _read_metadata(text, at, limits, shard)
        else:
            at = _read_tensor(text, at, name, entries, limits, shard)
        at = _skip(text, at)
        if text[at : at + 1] == "}":
            return _end(text, at + 1, entries, shard)
        at = _expect(text, at, ",", shard)


def _end(text: str, at: int, entries: _Entries, shard: str) -> _Entries:
    if _skip(text, at) != len(text):
        _fail("bad_json", f"text after the end of the header at character {at}", shard)
    return entries


def _read_metadata(text: str, at: int, limits: Limits, shard: str) -> tuple[dict[str, str], int]:
    """A flat object of strings."""
    if text[at : at + 1] != "{":
        _fail("bad_metadata", f"{METADATA_KEY} is no object", shard)
    found: dict[str, str] = {}
    at = _skip(text, at + 1)
    if text[at : at + 1] == "}":
        return found, at + 1
    while True:
        key, at = _string(text, at, shard)
        at = _expect(text, at, ":", shard)
        if text[at : at + 1] != '"':
            _fail("bad_metadata", f"the value of {printable(key)} is no string", shard)
        value, at = _string(text, at, shard)
        if key in found:
            _fail("duplicate_field", f"{printable(key)} twice in {METADATA_KEY}", shard)
        found[key] = value
        if len(found) > limits.metadata:
            _fail("too_much_metadata", f"more than {limits.metadata} pairs", shard)
        at = _skip(text, at)
        if text[at : at + 1] == "}":
            return found, at + 1
        at = _expect(text, at, ",", shard)


def _read_tensor(text: str, at: int, name: str, entries: _Entries, limits: Limits, shard: str) -> int:
    """One tensor; its value ends at the first `}`, as no valid one holds another."""
    if text[at : at + 1] != "{":
        _fail("bad_entry", "the entry is no object", shard, name)
    end = text.find("}", at, at + _MAX_ENTRY) + 1
    if not end:
        _fail("bad_entry", f"the entry does not end within {_MAX_ENTRY} characters", shard, name)
    try:
        pairs = _DECODER.decode(text[at:end])
    except (ValueError, RecursionError) as error:
        _fail("bad_entry", str(error)[:200], shard, name)
    if name in entries.names:
        _fail("duplicate_name", "the name is there twice", shard, name)
    if len(entries.names) >= limits.tensors:
        _fail("too_many_tensors", f"more than {limits.tensors}", shard)
    entries.names.add(name)
    entries.tensors.append(_tensor_of(name, pairs, entries.unknown, limits, shard))
    return end


def _tensor_of(name: str, pairs: Any, unknown: set[str], limits: Limits, shard: str) -> TensorInfo:
    """A tensor from the pairs of its object."""
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            _fail("duplicate_field", f"{printable(key)} twice", shard, name)
        values[key] = value
        if key not in FIELDS:
            # Any value of the reference's grammar would do; simple ones are enough to be sure that it takes them.
            if not isinstance(value, (str, bool, int)) or _has_surrogate(f"{key}{value}"):
                _fail("bad_entry", f"unknown field {printable(key)}", shard, name)
            if len(unknown) < _SHOWN:
                unknown.add(key)
    for key in FIELDS:
        if key not in values:
            _fail("missing_field", key, shard, name)
    begin, end = _offsets(values["data_offsets"], shard, name)
    shape = _shape(values["shape"], limits, shard, name)
    dtype = values["dtype"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        _fail("unknown_dtype", printable(str(dtype)), shard, name)
    size = _bytes_of(dtype, shape, shard, name)
    if end - begin != size:
        text = f"{dtype} of shape {list(shape)[:_SHOWN]} takes {size} bytes, the offsets give {end - begin}"
        _fail("size_mismatch", text, shard, name)
    return TensorInfo(name, dtype, shape, begin, end)


def _offsets(value: Any, shard: str, name: str) -> tuple[int, int]:
    if not _is_list_of_sizes(value) or len(value) != 2:
        _fail("bad_offsets", "data_offsets is no pair of sizes", shard, name)
    begin, end = value
    if begin > end:
        _fail("bad_offsets", f"data_offsets begin at {begin} and end at {end}", shard, name)
    return begin, end


def _shape(value: Any, limits: Limits, shard: str, name: str) -> tuple[int, ...]:
    if not _is_list_of_sizes(value):
        _fail("bad_shape", "shape is no list of sizes", shard, name)
    if len(value) > limits.rank:
        _fail("bad_shape", f"{len(value)} dimensions, the limit is {limits.rank}", shard, name)
    return tuple(value)


def _bytes_of(dtype: str, shape: tuple[int, ...], shard: str, name: str) -> int:
    """Size in bytes. Zeros do not hide an overflow: numpy refuses such a shape later."""
    bits = DTYPE_BITS[dtype]
    spread = bits
    for size in shape:
        spread *= size or 1
        if spread >= 8 * _SIGNED_LIMIT:
            _fail("shape_overflow", f"{dtype} of shape {list(shape)[:_SHOWN]}", shard, name)
    total = 0 if 0 in shape else spread
    if total % 8:
        _fail("odd_bits", f"{total} bits are no whole number of bytes", shard, name)
    return total // 8


def _is_list_of_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < _UNSIGNED_LIMIT for item in value)


def _check_cover(ordered: tuple[TensorInfo, ...], data_bytes: int, shard: str) -> None:
    """Every byte of the data belongs to exactly one tensor."""
    at = 0
    for row in ordered:
        if row.end > data_bytes:
            text = f"its bytes end at {row.end}, the file holds {max(data_bytes, 0)}"
            _fail("truncated", text, shard, row.name)
        if row.begin != at:
            defect = "hole" if row.begin > at else "overlap"
            _fail(defect, f"its bytes begin at {row.begin}, the last ones ended at {at}", shard, row.name)
        at = row.end
    if at != data_bytes:
        _fail("trailing_bytes", f"{data_bytes - at} bytes after the last tensor", shard)


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _expect(text: str, at: int, mark: str, shard: str) -> int:
    """The place of the next word after MARK."""
    at = _skip(text, at)
    if text[at : at + 1] != mark:
        _fail("bad_json", f"expected {mark} at character {at}", shard)
    return _skip(text, at + 1)


def _string(text: str, at: int, shard: str) -> tuple[str, int]:
    if text[at : at + 1] != '"':
        _fail("bad_json", f"expected a string at character {at}", shard)
    try:
        value, end = scanstring(text, at + 1, True)
    except ValueError as error:
        # Not str(error): it quotes nothing, but counts lines of a text that may be large.
        _fail("bad_json", f"{getattr(error, 'msg', 'bad string')} at character {at}", shard)
    if _has_surrogate(value):
        _fail("bad_json", f"half of a surrogate pair in the string at character {at}", shard)
    return value, end


def _has_surrogate(text: str) -> bool:
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _size(text: str) -> int:
    """An integer as the reference takes it: not negative, `-0` included, at most 20 digits."""
    if text.startswith("-") or len(text) > 20:
        raise ValueError(f"{text[:24]} is no size")
    return int(text)


def _no_float(text: str) -> NoReturn:
    raise ValueError(f"{text[:24]} is no whole number")


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not allowed")


def _pairs(pairs: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return pairs


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        _fail("duplicate_name", "a key is there twice", "index")
    return found


_DECODER = json.JSONDecoder(
    object_pairs_hook=_pairs, parse_int=_size, parse_float=_no_float, parse_constant=_no_constant
)
