# SPDX-License-Identifier: Apache-2.0
"""The reading side of weights: find a loaded image, map it, show its tensors."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from firsttouch import _checksums, _image, _linux, _loader, _mapped, _pool, _safetensors, _store, _views
from firsttouch._image import Layout, Tensor
from firsttouch._pool import Placement
from firsttouch._workers import Workers
from firsttouch.errors import ArgumentError, ChecksumMismatchError, FirstTouchError, NotReadyError

StrPath = str | os.PathLike[str]


def open_weights(
    name: StrPath | int, *, directory: str | None = None, expect: str | None = None, populate: bool = False
) -> Weights:
    """The weights of a loaded model, mapped read only: a mapping from names to read-only numpy arrays.

    NAME is a model's name, the path of an image, an open descriptor of one (it stays open), or the path of what was
    loaded: a folder, or one of its files, which then shows that file's tensors only. Of several replicas the one of
    this thread's node is taken. EXPECT is the image's digest (12 digits, as in its name). With POPULATE no page
    faults are left for later.

    Raises NotReadyError unless the image is complete and valid, ChecksumMismatchError, KernelError.
    """
    if isinstance(name, int):
        return Weights(os.dup(name), f"fd {name}", expect, populate)
    for left in reversed(range(_store.RACES)):
        path, shard = _place_of(os.fspath(name), directory)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            # A swap removed it since its name was found: the next generation has the name by now.
            if isinstance(error, FileNotFoundError) and left:
                continue
            raise NotReadyError(
                f"{path} cannot be opened: {error.strerror}",
                hint="become a member of its group" if isinstance(error, PermissionError) else "load the model",
                facts={"reason": "unreadable", "image": path, "errno": error.errno},
            ) from error
        return Weights(fd, path, expect, populate, shard)
    raise AssertionError("the last try raised")


def _place_of(text: str, directory: str | None) -> tuple[str, str | None]:
    """The image that TEXT stands for, and the one file of it that is meant, if it is one of several."""
    if _image.parse_image_name(os.path.basename(text)) and "/" in text:
        return text, None
    if "/" in text or (os.path.exists(text) and not _image.is_model_name(text)):
        return _by_source(text, _pool.directories(directory))
    return _store.resolve(text, _pool.directories(directory)).path, None


def _by_source(path: str, directories: list[str]) -> tuple[str, str | None]:
    """The image that was loaded from PATH as it is now, and the file's name when PATH is one file of several."""
    place = os.path.abspath(path)
    for group in _store.complete_sets(_store.entries(directories)):
        manifest = group[0].manifest
        if place == manifest["source"]:
            return _store.nearest(group).path, None
        for row in manifest["shards"]:
            if place == row["path"]:
                _check_stamp(place, row)
                return _store.nearest(group).path, row["name"]
    raise NotReadyError(
        f"{path} is not loaded",
        hint=f"firsttouch weights load {path}",
        facts={"reason": "absent", "source": place},
    )


def _check_stamp(path: str, row: Mapping[str, Any]) -> None:
    """The file may be gone after the load; if it is there, it is the one that was loaded."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return
    if (status.st_size, status.st_mtime_ns) != (row["bytes"], row["mtime_ns"]):
        raise NotReadyError(
            f"{path} is another file than was loaded",
            hint=f"firsttouch weights swap {path}",
            facts={"reason": "stale", "source": path},
        )


def verify(
    name: str, *, deep: bool = False, directory: str | None = None, threads: int = _loader.THREADS
) -> dict[str, Any]:
    """Check model NAME, each replica of it: tables, headers, and with DEEP the digest of every chunk. Returns what was
    checked, with counts of one image. Of an image's path that image alone.

    Raises NotReadyError, ChecksumMismatchError.
    """
    for left in reversed(range(_store.RACES)):
        with contextlib.ExitStack() as stack:
            found = [stack.enter_context(open_weights(name, directory=directory))]
            try:
                found += [stack.enter_context(open_weights(path)) for path in _other_replicas(found[0], name)]
            except NotReadyError:
                # A swap came between: the set of the next generation has the name by now.
                if left and not os.path.exists(found[0].path):
                    continue
                raise
            reports = [weights.check(deep, threads) for weights in found]
            return {"image": found[0].path, "images": [weights.path for weights in found], **reports[0]}
    raise AssertionError("the last try raised")


def _other_replicas(weights: Weights, name: str) -> list[str]:
    """The images of the set of WEIGHTS beside it, unless NAME is the path of one. Raises NotReadyError."""
    nodes = set(weights.manifest.get("replicas", []))
    if not nodes or ("/" in name and _image.parse_image_name(os.path.basename(name))):
        return []
    rows = _store.entries([os.path.dirname(weights.path)], weights.model)
    group = [row for row in rows if row.name.generation == weights.generation]
    if not nodes <= {row.name.node for row in group}:
        raise _store.not_ready(weights.path, "replicas of it are missing", "incomplete")
    return [row.path for row in group if row.path != weights.path]


def nodes_now(row: _store.Entry) -> dict[str, int] | None:
    """Pages of image ROW by node, as the kernel tells now; None where it does not tell, or the image is gone.

    What the manifest says is how they lay after the load: the kernel may have moved pages since.
    """
    if row.block is None:
        return None
    try:
        fd = os.open(row.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if os.fstat(fd).st_ino != row.ino:
                return None
            view = np.frombuffer(_mapped.map_read_only(fd, row.block.image_bytes), np.uint8)
        finally:
            os.close(fd)
        # move_pages(2) knows the pages of this process's own page tables only.
        view[:: row.block.page_bytes].max()
        found = _linux.nodes_of_pages(view.ctypes.data, row.block.image_bytes, row.block.page_bytes)
    except (OSError, FirstTouchError):
        return None
    return None if min(found) < 0 else {str(node): count for node, count in sorted(found.items())}


class Weights(Mapping[str, npt.NDArray[Any]]):
    """A mapped image; use weights.open(). May be used from several threads, and after a fork.

    Arrays, tensors and buffers keep the mapping alive, also after close(), which only refuses new ones.
    """

    def __init__(
        self, fd: int, path: str, expect: str | None = None, populate: bool = False, shard: str | None = None
    ) -> None:
        """Take over FD, which is closed at the end in any case."""
        self.path = path
        self._buffer: memoryview | None = None
        try:
            block, self.manifest = _store.read_tables(fd, path)
            if expect is not None and expect != self.manifest["digest"]:
                raise ChecksumMismatchError(
                    f"{path} holds {self.manifest['digest']}, expected {expect}", facts={"image": path}
                )
            self._buffer = _mapped.map_read_only(fd, block.image_bytes, populate)
        finally:
            os.close(fd)
        self.generation = block.generation
        self.page_bytes = block.page_bytes
        self.shards = _image.read_shards(self.manifest["shards"])
        wanted = None if shard is None else [row.name for row in self.shards].index(shard)
        self._shard = wanted
        rows = self.manifest["tensors"]
        self._tensors = _image.read_tensors([row for row in rows if wanted in (None, row[1])])

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self.numpy(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Weights {self.path}: {len(self)} tensors{', closed' if self._buffer is None else ''}>"

    @property
    def model(self) -> str:
        """The name that it was loaded under."""
        return str(self.manifest["model"])

    def tensor(self, name: str) -> Tensor:
        """Type, shape and place of tensor NAME. Raises KeyError."""
        return self._tensors[name]

    def numpy(self, name: str) -> npt.NDArray[Any]:
        """Tensor NAME as a read-only array without a copy; _views.py says what stands for bfloat16 and float8."""
        return _views.as_numpy(self.buffer(), self._tensors[name])

    def torch(self, name: str) -> Any:
        """Tensor NAME as a torch tensor without a copy. To write in place ends this process with SIGSEGV."""
        return _views.as_torch(self.buffer(), self._tensors[name])

    def raw(self, name: str) -> memoryview:
        """The bytes of tensor NAME."""
        tensor = self._tensors[name]
        return self.buffer()[tensor.offset : tensor.offset + tensor.bytes]

    def buffer(self) -> memoryview:
        """The whole image. Raises NotReadyError after close()."""
        if self._buffer is None:
            raise NotReadyError(f"{self.path} was closed", hint="open it again", facts={"reason": "closed"})
        return self._buffer

    def metadata(self) -> dict[str, str]:
        """The metadata of all files, of the first one first; a later one does not replace it."""
        found: dict[str, str] = {}
        for number, shard in enumerate(self.shards):
            if self._shard in (None, number):
                found = {**self._header(shard).metadata, **found}
        return found

    def stats(self) -> dict[str, Any]:
        """What ls shows of it."""
        keys = ("digest", "created", "source", "checksum", "backend", "placement", "pages_by_node", "warnings")
        size = len(self.buffer())
        return {
            "image": self.path,
            "model": self.model,
            "generation": self.generation,
            "image_bytes": size,
            "page_bytes": self.page_bytes,
            "tensors": len(self),
            **{key: self.manifest[key] for key in keys},
        }

    def check(self, deep: bool = False, threads: int = _loader.THREADS) -> dict[str, Any]:
        """Compare the headers in memory with the manifest, and with DEEP every chunk with its digest.

        Raises InvalidSafetensorsError, NotReadyError, ChecksumMismatchError.
        """
        headers = [self._header(shard) for shard in self.shards]
        layout = _image.Layout(self.page_bytes, len(self.buffer()), 0, tuple(self.shards))
        tensors = {row.name: row for row in _image.tensors_of(layout, headers)}
        if tensors != _image.read_tensors(self.manifest["tensors"]):
            raise _store.not_ready(self.path, "its headers differ from its manifest", "headers")
        chunks = self._check_chunks(layout, threads) if deep else 0
        counts = {"tensors": len(tensors), "shards": len(headers), "chunks": chunks}
        return {**counts, "checksum": self.manifest["checksum"]}

    def close(self) -> None:
        """Give out nothing more; the mapping goes with the last array that looks at it."""
        self._buffer = None

    def _header(self, shard: _image.Shard) -> _safetensors.Header:
        start = shard.image_offset + _safetensors.LENGTH_BYTES
        text = bytes(self.buffer()[start : shard.image_offset + shard.data_start])
        return _safetensors.parse_header(text, shard.bytes, shard=shard.name)

    def _check_chunks(self, layout: Layout, threads: int) -> int:
        name = self.manifest["checksum"]
        if name == "none":
            raise NotReadyError(
                f"{self.path} was loaded without checksums", hint="load it with one", facts={"reason": "no_checksum"}
            )
        digest, buffer = _checksums.digest(name), self.buffer()

        def one(chunk: _image.Chunk) -> str:
            return digest(buffer[chunk.image_offset : chunk.image_offset + chunk.bytes])

        chunks = _image.chunks(layout, self.manifest["chunk_bytes"])
        with Workers(threads, Placement()) as workers:
            found = workers.each(one, chunks)
        wanted = [text for row in self.manifest["shards"] for text in row["chunks"]]
        bad = [chunk for chunk, is_, was in zip(chunks, found, wanted, strict=True) if is_ != was]
        if bad:
            place = f"{self.shards[bad[0].shard].name} at byte {bad[0].file_offset}"
            raise ChecksumMismatchError(
                f"{self.path}: {len(bad)} of {len(chunks)} chunks differ from what was loaded, the first in {place}",
                hint="replace it with `firsttouch weights swap`; look for memory errors (EDAC, dmesg)",
                facts={"image": self.path, "chunks": [row._asdict() for row in bad[:16]]},
            )
        return len(chunks)


class SafeOpen:
    """As safetensors.safe_open, from the loaded image: FILENAME is the file that was loaded, or a model's name.

    Differences: tensors are read-only views, not copies; they stay valid after the end of the context.
    """

    def __init__(self, filename: StrPath, framework: str, device: Any = "cpu", *, directory: str | None = None) -> None:
        if framework not in ("np", "numpy", "pt", "torch", "pytorch"):
            raise ArgumentError(f"no framework {framework!r}", hint="there are np and pt")
        self._numpy = framework in ("np", "numpy")
        if self._numpy and str(device) != "cpu":
            raise ArgumentError(f"numpy has no device {device!r}")
        if not self._numpy:
            _views.torch_module()
        self._device = device
        self._weights = open_weights(filename, directory=directory)

    def __enter__(self) -> SafeOpen:
        return self

    def __exit__(self, *_: object) -> None:
        self._weights.close()

    def keys(self) -> list[str]:
        """The names of the tensors, sorted."""
        return sorted(self._weights)

    def offset_keys(self) -> list[str]:
        """The names in the order of their bytes."""
        return list(self._weights)

    def metadata(self) -> dict[str, str] | None:
        """The metadata of the file, None when it has none."""
        return self._weights.metadata() or None

    def get_tensor(self, name: str) -> Any:
        """Tensor NAME."""
        if self._numpy:
            return self._weights.numpy(name)
        tensor = self._weights.torch(name)
        return tensor if str(self._device) == "cpu" else tensor.to(self._device)

    def get_slice(self, name: str) -> TensorSlice:
        """Tensor NAME, to take a part of it by an index: only that part is copied to a device."""
        return TensorSlice(self._weights, name, self._numpy, self._device)


class TensorSlice:
    """A tensor that is indexed as safetensors' slices are."""

    def __init__(self, weights: Weights, name: str, numpy: bool, device: Any) -> None:
        self._weights, self._tensor, self._numpy, self._device = weights, weights.tensor(name), numpy, device

    def get_shape(self) -> list[int]:
        """The shape of the whole tensor."""
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        """The type as the file has it: F32, BF16."""
        return self._tensor.dtype

    def __getitem__(self, index: Any) -> Any:
        if self._numpy:
            return self._weights.numpy(self._tensor.name)[index]
        part = self._weights.torch(self._tensor.name)[index]
        return part if str(self._device) == "cpu" else part.to(self._device)
