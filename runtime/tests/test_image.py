# SPDX-License-Identifier: Apache-2.0
"""The image format: its table, its arithmetic, and that nothing incomplete or damaged passes as an image."""

from __future__ import annotations

import dataclasses
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttouch import _image as image
from firsttouch._safetensors import Header, TensorInfo
from firsttouch.errors import NotReadyError

PAGES = st.sampled_from([2 << 20, 1 << 30, 64 << 10])
FILES = st.lists(st.tuples(st.just("f"), st.integers(10, 9 << 20), st.integers(10, 600)), min_size=1, max_size=5)


def test_fields_follow_each_other() -> None:
    """Offsets of the table are those of the packed structure, without gaps."""
    at = 0
    for offset, code, meaning in image.FIELDS.values():
        assert offset == at and meaning
        at += struct.calcsize(f"<{code}")
    assert at < image.SUPERBLOCK_BYTES


@given(FILES, st.integers(0, 3 << 20), PAGES, st.sampled_from((1, 64, 256, 4096)))
def test_layout(files: list[tuple[str, int, int]], manifest: int, page: int, align: int) -> None:
    """Shards begin at 2 MiB, lie behind the manifest, in order, apart; the image is whole pages, none to spare.

    With an alignment their data begins at a multiple of it, and they at most that much later.
    """
    laid = image.layout(files, manifest, page, align)
    end = image.SUPERBLOCK_BYTES + laid.manifest_space
    assert laid.manifest_space > manifest
    for (name, size, start), shard in zip(files, laid.shards, strict=True):
        assert (shard.name, shard.bytes, shard.data_start) == (name, size, start)
        assert (shard.image_offset + start) % align == 0
        assert shard.image_offset % image.ALIGN < align and end <= shard.image_offset < end + image.ALIGN + align
        end = shard.image_offset + size
    assert laid.image_bytes % page == 0 and end <= laid.image_bytes < end + max(page, image.ALIGN) + align
    assert laid.pages * page == laid.image_bytes


@given(FILES, st.integers(1, 5))
def test_chunks_cover_each_shard_once(files: list[tuple[str, int, int]], size: int) -> None:
    """Every byte of every file is read exactly once, to its place."""
    laid = image.layout(files, 100, 2 << 20)
    found: dict[int, int] = {}
    for chunk in image.chunks(laid, size << 20):
        assert chunk.file_offset == found.get(chunk.shard, 0) and 0 < chunk.bytes <= size << 20
        assert chunk.image_offset == laid.shards[chunk.shard].image_offset + chunk.file_offset
        found[chunk.shard] = chunk.file_offset + chunk.bytes
    assert found == {number: shard.bytes for number, shard in enumerate(laid.shards)}


def header(*tensors: TensorInfo) -> Header:
    return Header(tensors, {}, 77, 77 + tensors[-1].end)


def test_tensors_of() -> None:
    """A tensor's offset counts from the start of the image; alignment is that of its address."""
    laid = image.layout([("a", 81, 77), ("b", 85, 77)], 10, 2 << 20)
    rows = image.tensors_of(
        laid, [header(TensorInfo("x", "U8", (4,), 0, 4)), header(TensorInfo("y", "F32", (2,), 0, 8))]
    )
    assert [(row.name, row.shard, row.offset, row.bytes, row.aligned) for row in rows] == [
        ("x", 0, (2 << 20) + 77, 4, True),
        ("y", 1, (4 << 20) + 77, 8, False),
    ]
    assert list(image.read_tensors(image.manifest_tensors(rows)).values()) == rows


def ready(state: int = image.READY) -> tuple[bytes, bytes, int]:
    laid = image.layout([("a", 81, 77)], 10, 2 << 20)
    rows = image.manifest_tensors(image.tensors_of(laid, [header(TensorInfo("x", "U8", (4,), 0, 4))]))
    manifest = image.pack_manifest({"tensors": rows, "shards": image.manifest_shards(laid)})
    return image.pack_superblock(image.superblock_for(laid, 3, manifest, state)), manifest, laid.image_bytes


def test_superblock_round_trip() -> None:
    """What was written is read."""
    packed, manifest, size = ready()
    block = image.unpack_superblock(packed, size)
    assert len(packed) == 4096 and (block.generation, block.image_bytes, block.page_bytes) == (3, size, 2 << 20)
    assert image.unpack_manifest(manifest, block)["tensors"][0][0] == "x"


@given(st.integers(0, 91), st.integers(1, 255))
def test_any_damaged_byte_is_found(at: int, flip: int) -> None:
    """No byte of the superblock may differ."""
    packed, _, size = ready()
    damaged = bytearray(packed)
    damaged[at] ^= flip
    with pytest.raises(NotReadyError):
        image.unpack_superblock(bytes(damaged), size)


def reason(call: Any, *args: Any) -> str:
    with pytest.raises(NotReadyError) as caught:
        call(*args)
    assert caught.value.exit_status == 8 and caught.value.hint
    return str(caught.value.facts["reason"])


def test_what_is_no_image() -> None:
    """Each way to be incomplete has its reason."""
    packed, manifest, size = ready()
    block = image.unpack_superblock(packed, size)

    def changed(**fields: Any) -> bytes:
        return image.pack_superblock(block._replace(**fields))

    assert reason(image.unpack_superblock, bytes(4096), size) == "magic"
    assert reason(image.unpack_superblock, packed[:100], size) == "magic"
    assert reason(image.unpack_superblock, ready(image.LOADING)[0], size) == "state"
    assert reason(image.unpack_superblock, packed, size - (2 << 20)) == "size"
    assert reason(image.unpack_superblock, changed(page_bytes=0), size) == "size"
    other = bytearray(packed)
    struct.pack_into("<I", other, image.FIELDS["version"][0], image.VERSION + 1)
    end = image.FIELDS["crc"][0]
    struct.pack_into("<I", other, end, zlib.crc32(other[:end]))
    assert reason(image.unpack_superblock, bytes(other), size) == "version"
    assert reason(image.unpack_superblock, changed(manifest_bytes=size), size) == "manifest_range"
    assert reason(image.unpack_superblock, changed(manifest_offset=0), size) == "manifest_range"
    assert reason(image.unpack_manifest, manifest + b" ", block) == "manifest_digest"
    stray = manifest.replace(str((2 << 20) + 77).encode(), str(8 << 20).encode())
    twin = image.superblock_for(image.layout([("a", 81, 77)], 10, 2 << 20), 3, stray)
    assert stray != manifest and reason(image.unpack_manifest, stray, twin) == "tensor_range"


NO_MANIFESTS = [
    b"[]", b"{", b"null", b"{}", b'{"tensors":[],"shards":[{}]}', b'{"tensors":[["x"]],"shards":[]}',
    b'{"tensors":[["x",0,"U9",[4],2097229,4]],"shards":[]}',
    b'{"tensors":[["x",0,"U8",[4],null,4]],"shards":[]}', b"[" * 5000,
]  # fmt: skip
NO_TENSORS = [
    b'{"tensors":[["x",0,"U8",["4"],2097229,4]],"shards":[]}',
    b'{"tensors":[["x",0,"U8",[4],0,4]],"shards":[]}', b'{"tensors":[["x",0,"U8",[5],2097229,4]],"shards":[]}',
    b'{"tensors":[["x",0,"U8",[-4],2097229,-4]],"shards":[]}', b'{"tensors":[["x",0,"F32",[4],2097229,4]],"shards":[]}',
    b'{"tensors":[],"shards":[{"name":"a","image_offset":2097152,"bytes":9999999,"data_start":77}]}',
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [*((text, "manifest_format") for text in NO_MANIFESTS), *((text, "tensor_range") for text in NO_TENSORS)],
)
def test_a_manifest_of_someone_else(text: bytes, expected: str) -> None:
    """With a right digest, too, a manifest that is none is an error of ours, and no view reaches out of the image."""
    block = image.superblock_for(image.layout([("a", 81, 77)], 10, 2 << 20), 3, text)
    assert reason(image.unpack_manifest, text, block) == expected


def test_a_manifest_must_fit() -> None:
    """The space is fixed before the load, and is not overrun."""
    laid = dataclasses.replace(image.layout([("a", 81, 77)], 10, 2 << 20), manifest_space=10)
    with pytest.raises(ValueError, match="11 bytes in a space of 10"):
        image.superblock_for(laid, 1, bytes(11))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("m@0123456789ab.1.img", ("m", "0123456789ab", 1, None)),
        ("Org--m-7B.v2@0123456789ab.12.node3.img", ("Org--m-7B.v2", "0123456789ab", 12, 3)),
        ("m@0123456789ab.0.img", None),
        ("m@0123456789ab.01.img", None),
        ("m@0123456789a.1.img", None),
        ("m@0123456789ab.1.img.tmp", None),
        (".m@0123456789ab.1.img", None),
        ("../m@0123456789ab.1.img", None),
        ("m@0123456789ab.1.img\n", None),
    ],
)
def test_image_names(text: str, parts: tuple[Any, ...] | None) -> None:
    """Names of images are read back as they were made, and nothing else is taken for one."""
    found = image.parse_image_name(text)
    assert (None if found is None else tuple(found)) == parts
    assert found is None or str(found) == text


def test_content_digest() -> None:
    """Other chunks, another name."""
    rows = [{"name": "a", "bytes": 3, "chunks": ["00"]}]
    assert len(image.content_digest(rows)) == 12
    assert image.content_digest(rows) != image.content_digest([{**rows[0], "chunks": ["01"]}])
