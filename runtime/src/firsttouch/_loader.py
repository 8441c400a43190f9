# SPDX-License-Identifier: Apache-2.0
"""Fill one image and publish it. The image has no name before it is complete.

Steps, and what a kill right after each leaves behind (tests/test_weights_faults.py does it):
    opened       a nameless file of no pages: nothing
    reserved     every page promised by the kernel, all or none, by one mmap: nothing, the promise goes with the file
    allocated    pages of a chunk taken by fallocate, which answers with an errno: nothing
    read         its bytes read into place by the kernel: nothing
    filled, verified, placed, manifest, ready, unmapped: nothing
    published    one linkat: the complete image under its name. There is no state in between

The CPU never touches a page that fallocate has not given: that would be SIGBUS when the pool is short.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from firsttouch import _checksums, _image, _linux, _place, _pool, _safetensors, _shortage, _sources
from firsttouch._image import Chunk, ImageName, Layout
from firsttouch._pool import Mount, Placement
from firsttouch._sources import Model, Source
from firsttouch._workers import Short, Workers, allocate, pages_wanted
from firsttouch.errors import (
    ChecksumMismatchError,
    WeightsError,
)

# Alignment of direct reads that every disk takes: address, file offset and length.
BLOCK = 4096
# What is read at once and digested right after, while it is in the cache of this CPU: with a whole chunk at once the
# digest fetches everything from memory again, which doubles its cost.
PIECE_BYTES = 4 << 20
THREADS = 4

Step = Callable[[str], None]
Progress = Callable[[int, int], None]


def nothing(*_: object) -> None:
    """The step and progress function of whoever does not want them."""


@dataclass(frozen=True)
class Job:
    """What one image is to be: replicas are all nodes that get one, node is this one's."""

    model: Model
    name: str
    mount: Mount
    placement: Placement
    checksum: str = "xxh3"
    threads: int = THREADS
    generation: int = 1
    replicas: tuple[int, ...] = ()
    node: int | None = None
    expect: dict[str, str] = field(default_factory=dict)
    step: Step = nothing
    progress: Progress = nothing
    mode: int = 0o440
    # Of the first tensor of each file; see _image.layout.
    align: int = 1


@dataclass
class Filled:
    """A complete image that has no name yet. Whoever holds it closes it, published or not."""

    job: Job
    fd: int
    layout: Layout
    digest: str
    nodes: dict[int, int]
    warnings: list[str]

    @property
    def file_name(self) -> str:
        """The name that it will get."""
        return str(ImageName(self.job.name, self.digest, self.job.generation, self.job.node))

    def publish(self) -> str:
        """Give it its name, and return the path. Raises WeightsError when that exists."""
        path = os.path.join(self.job.mount.path, self.file_name)
        try:
            _linux.link_open_file(self.fd, path)
        except OSError as error:
            raise WeightsError(f"{path} cannot be published: {error.strerror}", facts={"path": path}) from error
        self.job.step("published")
        return path

    def close(self) -> None:
        """Give back the descriptor; without a name all its pages go with it."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def layout_for(model: Model, page_bytes: int, align: int = 1) -> Layout:
    """The layout of MODEL: the manifest's space is what it takes with digests of the widest kind."""
    files = [(source.name, source.stamp.bytes, source.header.data_start) for source in model.sources]
    first = _image.layout(files, 0, page_bytes, align)
    blank = [["0" * 64] * -(-size // _image.CHUNK_BYTES) for _, size, _ in files]
    manifest = _manifest(model, first, {"chunks": blank})
    return _image.layout(files, len(_image.pack_manifest(manifest)), page_bytes, align)


def fill(job: Job) -> Filled:
    """Read, verify and complete the image of JOB. On any error nothing is left of it: no page, no reservation."""
    layout = layout_for(job.model, job.mount.page_bytes, job.align)
    facts = _pool.read_facts(job.mount)
    _shortage.check(layout.pages, facts, job.placement)
    fd = _open_nameless(job.mount)
    try:
        job.step("opened")
        filled = _fill_file(job, layout, fd)
    except Short as short:
        os.close(fd)
        raise _shortage.shortage(layout.pages, _pool.read_facts(job.mount), job.placement, short.error) from short.error
    except BaseException:
        os.close(fd)
        raise
    return filled


def _open_nameless(mount: Mount) -> int:
    try:
        return os.open(mount.path, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise WeightsError(
            f"no file can be made in {mount.path}: {error.strerror}",
            hint="load as a user who may write there",
            facts={"path": mount.path, "errno": error.errno},
        ) from error


def _fill_file(job: Job, layout: Layout, fd: int) -> Filled:
    warnings: list[str] = []
    with pages_wanted():
        os.ftruncate(fd, layout.image_bytes)
    with Workers(job.threads, job.placement) as workers:
        # In a worker, under its memory policy: only then the kernel counts the pages of the nodes that were asked for.
        memory = workers.one(_reserve, fd, layout)
        try:
            job.step("reserved")
            with memoryview(memory) as view:
                digests = _fill_chunks(job, layout, fd, view, workers, warnings)
                job.step("filled")
                _verify_sources(job, layout, view)
                job.step("verified")
                nodes = _place.pages_by_node(job.mount, job.placement, layout, fd, memory, warnings)
                job.step("placed")
                details = {"chunks": digests, "nodes": nodes, "warnings": warnings}
                digest = _complete(job, layout, view, details)
        finally:
            memory.close()
    job.step("unmapped")
    _give_away(job, fd)
    return Filled(job, fd, layout, digest, nodes, warnings)


def _reserve(fd: int, layout: Layout) -> mmap.mmap:
    """Map the whole file for writing: the kernel reserves every page or answers ENOMEM and reserves none."""
    with pages_wanted():
        return mmap.mmap(fd, layout.image_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)


@dataclass
class _Reader:
    """An open source: direct is -1 where the filesystem refuses direct reads."""

    source: Source
    buffered: int
    direct: int


@contextlib.contextmanager
def _readers(job: Job, warnings: list[str]) -> Iterator[list[_Reader]]:
    with contextlib.ExitStack() as stack:
        readers = []
        for source in job.model.sources:
            try:
                fd = stack.enter_context(_sources.opened(source.path))
                direct = stack.enter_context(_direct(source.path))
            except OSError as error:
                raise _sources.unreadable(source.path, error) from error
            stamps = {_sources.stamp_of(one) for one in (fd, direct) if one >= 0}
            if stamps != {source.stamp}:
                raise _sources.changed(source.path, "it is another file than its header was read from")
            readers.append(_Reader(source, fd, direct))
        yield readers
        refused = [reader.source.name for reader in readers if reader.direct < 0]
        if refused:
            warnings.append(f"direct reads are refused, read through the page cache: {', '.join(refused[:4])}")
        for reader in readers:
            if reader.direct < 0:  # once more for the whole: the first and last page of a chunk may be of two chunks
                os.posix_fadvise(reader.buffered, 0, 0, os.POSIX_FADV_DONTNEED)
            if _sources.stamp_of(reader.buffered) != reader.source.stamp:
                raise _sources.changed(reader.source.path, "its size or time of change is another one")


@contextlib.contextmanager
def _direct(path: str) -> Iterator[int]:
    """A descriptor for direct reads, -1 where there are none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        yield -1
        return
    try:
        yield fd
    finally:
        os.close(fd)


def _fill_chunks(
    job: Job, layout: Layout, fd: int, view: memoryview, workers: Workers, warnings: list[str]
) -> list[list[str]]:
    """Allocate, read and digest every chunk; the digests in the order of shards and chunks."""
    hasher = _checksums.hasher(job.checksum)
    lock, done, bounce = threading.Lock(), [0], threading.local()
    plan = _image.chunks(layout)
    workers.one(allocate, fd, layout, job.placement, 0, layout.shards[0].image_offset)
    with _readers(job, warnings) as readers:

        def one(chunk: Chunk) -> str:
            end = min(_image.round_up(chunk.image_offset + chunk.bytes, _image.ALIGN), layout.image_bytes)
            allocate(fd, layout, job.placement, chunk.image_offset, end)
            job.step("allocated")
            digest = hasher()
            for piece in _image.pieces(chunk, PIECE_BYTES):
                if readers[piece.shard].direct >= 0 and piece.image_offset % BLOCK:
                    read_shifted(readers[piece.shard], piece, view, bounce)
                else:
                    read_chunk(readers[piece.shard], piece, view)
                with view[piece.image_offset : piece.image_offset + piece.bytes] as part:
                    digest.update(part)
                with lock:
                    done[0] += piece.bytes
                    job.progress(done[0], job.model.bytes)
            job.step("read")
            return digest.hexdigest()

        texts = workers.each(one, plan)
    rows: list[list[str]] = [[] for _ in layout.shards]
    for chunk, text in zip(plan, texts, strict=True):
        rows[chunk.shard].append(text)
    return rows


def read_chunk(reader: _Reader, chunk: Chunk, view: memoryview) -> None:
    """Read CHUNK into its place; what a direct read brought beyond the end of the file is zeroed."""
    done = 0
    while done < chunk.bytes:
        direct = reader.direct >= 0
        want = (_image.round_up(chunk.bytes, BLOCK) if direct else chunk.bytes) - done
        at = chunk.image_offset + done
        try:
            with view[at : at + want] as part:
                count = os.preadv(reader.direct if direct else reader.buffered, [part], chunk.file_offset + done)
        except OSError as error:
            if direct and error.errno == errno.EINVAL:
                reader.direct = -1
                continue
            if error.errno == errno.EFAULT:
                raise Short(error) from error
            raise _sources.unreadable(reader.source.path, error, chunk.file_offset + done) from error
        if done + count < chunk.bytes and count < (BLOCK if direct else 1):
            raise _sources.changed(reader.source.path, f"it ends at byte {chunk.file_offset + done + count}")
        done += count
        if done < chunk.bytes and direct:
            done -= done % BLOCK
    # Direct reads are of whole blocks in places of whole blocks. From any other place the next multiple of a block may
    # be beyond the start of the next file, or the end of the image.
    if chunk.image_offset % BLOCK == 0:
        end = _image.round_up(chunk.bytes, BLOCK)
        view[chunk.image_offset + chunk.bytes : chunk.image_offset + end] = bytes(end - chunk.bytes)
    if reader.direct < 0:
        os.posix_fadvise(reader.buffered, chunk.file_offset, chunk.bytes, os.POSIX_FADV_DONTNEED)


def read_shifted(reader: _Reader, chunk: Chunk, view: memoryview, bounce: threading.local) -> None:
    """Read CHUNK directly although its place is no multiple of a block: into a buffer of this thread, and from there.

    The copy runs at the speed of memory, which a disk does not have.
    """
    if not hasattr(bounce, "memory"):
        bounce.memory = mmap.mmap(-1, PIECE_BYTES)
    with memoryview(bounce.memory) as buffer:
        read_chunk(reader, chunk._replace(image_offset=0), buffer)
        # numpy lets other threads run meanwhile; an assignment of slices does not.
        target = np.frombuffer(view, np.uint8, chunk.bytes, chunk.image_offset)
        np.copyto(target, np.frombuffer(buffer, np.uint8, chunk.bytes))


def _verify_sources(job: Job, layout: Layout, view: memoryview) -> None:
    """The headers in the image are those that were checked, and the whole files have the digests that are expected."""
    for shard, source in zip(layout.shards, job.model.sources, strict=True):
        start = shard.image_offset + _safetensors.LENGTH_BYTES
        if bytes(view[start : shard.image_offset + shard.data_start]) != source.header_text:
            raise _sources.changed(source.path, "its header is another one than was checked")
        wanted = job.expect.get(shard.name)
        if wanted is None:
            continue
        kind, _, value = wanted.rpartition(":")
        with view[shard.image_offset : shard.image_offset + shard.bytes] as part:
            found = _checksums.digest(kind or "sha256")(part)
        if found != value.lower():
            raise ChecksumMismatchError(
                f"{source.path} has {kind or 'sha256'} {found}, expected {value}",
                hint="fetch the file again",
                facts={"shard": shard.name, "found": found, "expected": value},
            )


def _complete(job: Job, layout: Layout, view: memoryview, details: dict[str, Any]) -> str:
    """Write the manifest, and the superblock last. Returns the digest of the content."""
    manifest = _manifest(job.model, layout, details, job)
    packed = _image.pack_manifest(manifest)
    view[_image.SUPERBLOCK_BYTES : _image.SUPERBLOCK_BYTES + len(packed)] = packed
    job.step("manifest")
    block = _image.superblock_for(layout, job.generation, packed)
    view[: _image.SUPERBLOCK_BYTES] = _image.pack_superblock(block)
    job.step("ready")
    return str(manifest["digest"])


def _manifest(
    model: Model, layout: Layout, details: dict[str, Any], job: Job | None = None
) -> dict[str, Any]:
    """The manifest; without a JOB a blank one of about its length."""
    rows = [
        {**row, "chunks": chunks, "path": source.path, **source.stamp._asdict()}
        for row, chunks, source in zip(
            _image.manifest_shards(layout), details["chunks"], model.sources, strict=True
        )
    ]
    tensors = _image.tensors_of(layout, [source.header for source in model.sources])
    manifest = {
        "model": job.name if job else "",
        "digest": _image.content_digest(rows),
        "created": int(time.time()),
        "boot_id": boot_id(),
        "source": model.path,
        "chunk_bytes": _image.CHUNK_BYTES,
        "shards": rows,
        "tensors": _image.manifest_tensors(tensors),
        "pages_by_node": {str(node): count for node, count in details.get("nodes", {}).items()},
        "warnings": list(details.get("warnings", [])),
    }
    if job:
        manifest |= {
            "backend": job.mount.backend,
            "checksum": job.checksum,
            "generation": job.generation,
            "align": job.align,
            "placement": {"mode": job.placement.mode, "nodes": list(job.placement.nodes)},
            "replicas": list(job.replicas),
            "node": job.node,
        }
    return manifest


def boot_id() -> str:
    """The id of this boot; an image never outlives it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _give_away(job: Job, fd: int) -> None:
    """Read only for everybody, and readable by the group of the folder."""
    group = os.stat(job.mount.path).st_gid
    try:
        if os.fstat(fd).st_gid != group:
            os.fchown(fd, -1, group)
        os.fchmod(fd, job.mode)
    except OSError as error:
        raise WeightsError(f"the mode of the image cannot be set: {error.strerror}") from error
