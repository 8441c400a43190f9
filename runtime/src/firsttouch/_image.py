# SPDX-License-Identifier: Apache-2.0
"""The format of an image of weights, and its arithmetic. Pure: numbers and bytes, no files.

    0           superblock, 4 KiB (table FIELDS)
    4096        manifest, JSON, in a space that is fixed before the load
    2 MiB * k   shard 0, byte for byte as its file; the next one at the next multiple of 2 MiB (on request shifted
                by less than 4 KiB, so that its tensors begin at multiples of 64, 256 or 4096)
    end         zeros up to a whole page

Shards lie at 2 MiB whatever the page size, so file offset and address agree modulo any block size (direct reads
need no copy) and pages of 1 GiB waste one tail per model, not one per shard. The state is written last.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import prod
from typing import Any, NamedTuple

from firsttouch._safetensors import DTYPE_BITS, Header
from firsttouch.errors import NotReadyError

MAGIC = b"FTWEIGHT"
VERSION = 1
EMPTY, LOADING, READY = 0, 1, 2
# Offset, struct code and meaning of each field; the loader is the only writer, `state` and `crc` are its last stores.
FIELDS: dict[str, tuple[int, str, str]] = {
    "magic": (0, "8s", "MAGIC"),
    "version": (8, "I", "VERSION"),
    "state": (12, "I", "0 empty, 1 loading, 2 ready"),
    "page_bytes": (16, "Q", "page size it was made for"),
    "image_bytes": (24, "Q", "length of the file, a multiple of the page"),
    "generation": (32, "Q", "1 for the first load of a name, then rising"),
    "manifest_offset": (40, "Q", "where the manifest begins"),
    "manifest_bytes": (48, "Q", "its length"),
    "manifest_sha256": (56, "32s", "its digest"),
    "crc": (88, "I", "zlib.crc32 of bytes 0 to 88"),
}
SUPERBLOCK_BYTES = 4096
ALIGN = 2 << 20
CHUNK_BYTES = 16 << 20
# Growth of the manifest between plan and load: digests and counters, which the plan has as blanks, and warnings.
_SLACK = 64 << 10
_LAYOUT = "<" + "".join(code for _, code, _ in FIELDS.values())
_NAME = re.compile(r"[A-Za-z0-9._-]{1,96}")
_IMAGE_NAME = re.compile(
    r"(?P<model>[A-Za-z0-9._-]{1,96})@(?P<digest>[0-9a-f]{12})\.(?P<generation>[1-9][0-9]{0,18})"
    r"(?:\.node(?P<node>[0-9]{1,4}))?\.img"
)


class Superblock(NamedTuple):
    """The superblock as numbers; see FIELDS."""

    state: int
    page_bytes: int
    image_bytes: int
    generation: int
    manifest_offset: int
    manifest_bytes: int
    manifest_sha256: bytes


class Shard(NamedTuple):
    """A file of the model: where it lies in the image, its length, where its data section begins in it."""

    name: str
    image_offset: int
    bytes: int
    data_start: int


class Chunk(NamedTuple):
    """A piece of one shard that one thread reads at once: file offset, image offset, bytes."""

    shard: int
    file_offset: int
    image_offset: int
    bytes: int


@dataclass(frozen=True)
class Layout:
    """Where everything lies: bytes of the image, of the space for the manifest, and the shards in order."""

    page_bytes: int
    image_bytes: int
    manifest_space: int
    shards: tuple[Shard, ...]

    @property
    def pages(self) -> int:
        """Huge pages that the image takes, exactly."""
        return self.image_bytes // self.page_bytes


@dataclass(frozen=True)
class Tensor:
    """A tensor in the image: offset and bytes from its start; aligned: the offset is a multiple of the element."""

    name: str
    shard: int
    dtype: str
    shape: tuple[int, ...]
    offset: int
    bytes: int

    @property
    def aligned(self) -> bool:
        """Whether the elements lie at multiples of their size."""
        return self.offset % max(DTYPE_BITS[self.dtype] // 8, 1) == 0


class ImageName(NamedTuple):
    """What a file name of an image says; node is None unless it is one replica of several."""

    model: str
    digest: str
    generation: int
    node: int | None

    def __str__(self) -> str:
        node = "" if self.node is None else f".node{self.node}"
        return f"{self.model}@{self.digest}.{self.generation}{node}.img"


def round_up(value: int, unit: int) -> int:
    """VALUE up to a multiple of UNIT."""
    return -(-value // unit) * unit


def is_model_name(name: str) -> bool:
    """Whether NAME may name a model; it becomes part of a file name."""
    return _NAME.fullmatch(name) is not None and not name.startswith((".", "-"))


def parse_image_name(text: str) -> ImageName | None:
    """The parts of an image's file name, None when it is not one of ours."""
    match = _IMAGE_NAME.fullmatch(text)
    if not match or not is_model_name(match["model"]):
        return None
    node = int(match["node"]) if match["node"] else None
    return ImageName(match["model"], match["digest"], int(match["generation"]), node)


def layout(
    files: Sequence[tuple[str, int, int]], manifest_bytes: int, page_bytes: int, data_align: int = 1
) -> Layout:
    """Lay out FILES (name, bytes, data_start) behind a manifest of about MANIFEST_BYTES.

    Each file's first tensor begins at a multiple of DATA_ALIGN, which divides a page; the others do as far as the
    sizes of those before them are multiples too.
    """
    space = round_up(SUPERBLOCK_BYTES + manifest_bytes + _SLACK, SUPERBLOCK_BYTES) - SUPERBLOCK_BYTES
    at = round_up(SUPERBLOCK_BYTES + space, ALIGN)
    shards = []
    for name, size, data_start in files:
        at += -data_start % data_align
        shards.append(Shard(name, at, size, data_start))
        at = round_up(at + size, ALIGN)
    return Layout(page_bytes, round_up(at, page_bytes), space, tuple(shards))


def chunks(layout: Layout, chunk_bytes: int = CHUNK_BYTES) -> list[Chunk]:
    """All chunks in the order of the image; the last one of a shard may be short."""
    return [
        Chunk(number, start, shard.image_offset + start, min(chunk_bytes, shard.bytes - start))
        for number, shard in enumerate(layout.shards)
        for start in range(0, shard.bytes, chunk_bytes)
    ]


def pieces(chunk: Chunk, size: int) -> Iterator[Chunk]:
    """CHUNK in pieces of SIZE bytes; the last one may be short."""
    for at in range(0, chunk.bytes, size):
        yield Chunk(chunk.shard, chunk.file_offset + at, chunk.image_offset + at, min(size, chunk.bytes - at))


def tensors_of(layout: Layout, headers: Sequence[Header]) -> list[Tensor]:
    """The tensors of all shards with their places in the image."""
    return [
        Tensor(row.name, number, row.dtype, row.shape, start + row.begin, row.end - row.begin)
        for number, (shard, header) in enumerate(zip(layout.shards, headers, strict=True))
        for start in (shard.image_offset + shard.data_start,)
        for row in header.tensors
    ]


def pack_manifest(manifest: dict[str, Any]) -> bytes:
    """A manifest as the bytes that are stored; the same document gives the same bytes."""
    return json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()


def manifest_tensors(tensors: Sequence[Tensor]) -> list[list[Any]]:
    """Tensors as compact rows; read_tensors() is the way back."""
    return [[row.name, row.shard, row.dtype, list(row.shape), row.offset, row.bytes] for row in tensors]


def read_tensors(rows: Sequence[Sequence[Any]]) -> dict[str, Tensor]:
    """Tensors of a manifest by name, in its order."""
    return {row[0]: Tensor(row[0], row[1], row[2], tuple(row[3]), row[4], row[5]) for row in rows}


def read_shards(rows: Sequence[Mapping[str, Any]]) -> list[Shard]:
    """Shards of a manifest; manifest_shards() is the way there."""
    return [Shard(*(row[key] for key in Shard._fields)) for row in rows]


def manifest_shards(layout: Layout) -> list[dict[str, Any]]:
    """Shards as rows of the manifest."""
    return [shard._asdict() for shard in layout.shards]


def pack_superblock(block: Superblock) -> bytes:
    """The 4 KiB of a superblock."""
    values = {"magic": MAGIC, "version": VERSION, "crc": 0, **block._asdict()}
    head = struct.pack(_LAYOUT, *(values[name] for name in FIELDS))[: FIELDS["crc"][0]]
    return (head + struct.pack("<I", zlib.crc32(head))).ljust(SUPERBLOCK_BYTES, b"\0")


def unpack_superblock(data: bytes, file_bytes: int, name: str = "") -> Superblock:
    """The superblock in DATA of an image of FILE_BYTES. Raises NotReadyError unless it is complete and agrees."""
    if len(data) < SUPERBLOCK_BYTES or data[:8] != MAGIC:
        raise _not_ready(name, "it is no image of weights", "magic")
    found = dict(zip(FIELDS, struct.unpack_from(_LAYOUT, data), strict=True))
    if found.pop("crc") != zlib.crc32(data[: FIELDS["crc"][0]]):
        raise _not_ready(name, "its superblock is damaged", "crc")
    if found.pop("version") != VERSION:
        raise _not_ready(name, "it is of another version of the format", "version")
    found.pop("magic")
    block = Superblock(**found)
    if block.state != READY:
        raise _not_ready(name, "it is not complete", "state")
    if block.image_bytes != file_bytes or not block.page_bytes or file_bytes % block.page_bytes:
        raise _not_ready(name, f"it says {block.image_bytes} bytes and has {file_bytes}", "size")
    if block.manifest_offset + block.manifest_bytes > file_bytes or block.manifest_offset < SUPERBLOCK_BYTES:
        raise _not_ready(name, "its manifest lies outside of it", "manifest_range")
    return block


def unpack_manifest(data: bytes, block: Superblock, name: str = "") -> dict[str, Any]:
    """The manifest in DATA, which are the bytes that BLOCK names. Raises NotReadyError."""
    if sha256(data).digest() != block.manifest_sha256:
        raise _not_ready(name, "its manifest is damaged", "manifest_digest")
    try:
        manifest: dict[str, Any] = json.loads(data)
        tensors = read_tensors(manifest["tensors"]).values()
        shards = read_shards(manifest["shards"])
        ranges = [(row.offset, row.bytes) for row in tensors] + [(row.image_offset, row.bytes) for row in shards]
        whole = all(row.bytes * 8 == prod(row.shape) * DTYPE_BITS[row.dtype] for row in tensors)
        inside = all(block.manifest_offset <= at <= at + size <= block.image_bytes for at, size in ranges)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        # Its digest is right, so whoever wrote it is no loader of this version.
        raise _not_ready(name, f"its manifest is none ({type(error).__name__})", "manifest_format") from error
    if not inside or not whole:
        raise _not_ready(name, "a tensor lies outside of it, or is not as large as its shape", "tensor_range")
    return manifest


def superblock_for(layout: Layout, generation: int, manifest: bytes, state: int = READY) -> Superblock:
    """The superblock that goes with MANIFEST. Raises ValueError when it does not fit its space."""
    if len(manifest) > layout.manifest_space:
        raise ValueError(f"a manifest of {len(manifest)} bytes in a space of {layout.manifest_space}")
    digest = sha256(manifest).digest()
    size = (layout.page_bytes, layout.image_bytes)
    return Superblock(state, *size, generation, SUPERBLOCK_BYTES, len(manifest), digest)


def content_digest(shards: Sequence[dict[str, Any]]) -> str:
    """A short name for what the shards hold: 12 hex digits over names, sizes and the digests of all chunks."""
    rows = [[shard["name"], shard["bytes"], shard["chunks"]] for shard in shards]
    return sha256(pack_manifest({"shards": rows})).hexdigest()[:12]


def _not_ready(name: str, text: str, reason: str) -> NotReadyError:
    return NotReadyError(
        f"{name or 'the image'} cannot be opened: {text}",
        hint="load the model again",
        facts={"reason": reason, "image": name},
    )
