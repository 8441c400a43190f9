# SPDX-License-Identifier: Apache-2.0
"""The files of a model on disk: which they are, their headers, and whether they are still the same later."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from firsttouch import _safetensors
from firsttouch._safetensors import Header, Limits
from firsttouch.errors import InvalidSafetensorsError, SourceChangedError, WeightsError

INDEX_SUFFIX = ".index.json"
SUFFIX = ".safetensors"


class Stamp(NamedTuple):
    """What tells whether a file is still the same one: device, inode, bytes, time of change in ns."""

    dev: int
    ino: int
    bytes: int
    mtime_ns: int


@dataclass(frozen=True)
class Source:
    """A file of the model, its stamp and its valid header, and the bytes of that header."""

    path: str
    stamp: Stamp
    header: Header
    header_text: bytes

    @property
    def name(self) -> str:
        """The file name in the model's folder."""
        return os.path.basename(self.path)


@dataclass(frozen=True)
class Model:
    """A model that can be loaded: its files in the order of their names."""

    path: str
    name: str
    sources: tuple[Source, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(source.stamp.bytes for source in self.sources)


def read_model(path: str | os.PathLike[str], limits: Limits | None = None) -> Model:
    """The model at PATH: a file, a folder, or the index in it; every header is read and checked, no weights are.

    Raises InvalidSafetensorsError for what is in the files, WeightsError for what cannot be read.
    """
    limits = limits or Limits()
    place = Path(os.path.abspath(path))
    weights: dict[str, str] = {}
    try:
        files, index = _files_of(place)
        if index is not None:
            weights = _safetensors.parse_index(_read_whole(index, limits.index_bytes), limits)
            files = [place_of(index.parent, name) for name in sorted(set(weights.values()))]
        sources = tuple(read_source(str(file), limits) for file in files)
    except OSError as error:
        raise unreadable(str(error.filename or place), error) from error
    _safetensors.check_index(weights, {source.name: source.header.tensors for source in sources})
    return Model(str(place), default_name(place), sources)


def place_of(folder: Path, name: str) -> Path:
    """The file NAME of FOLDER; the index has been checked to hold plain names only."""
    return folder / name


def default_name(place: Path) -> str:
    """A model name from a path: the folder's, or the file's without its suffix; letters that may not be, become -."""
    base = place.name.removesuffix(INDEX_SUFFIX).removesuffix(SUFFIX)
    if place.name.endswith(INDEX_SUFFIX) or base == "model":
        base = place.parent.name
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in base)


def read_source(path: str, limits: Limits) -> Source:
    """One file: its stamp, and its header within LIMITS."""
    name = os.path.basename(path)
    with opened(path) as fd:
        stamp = stamp_of(fd)
        prefix = os.pread(fd, 64, 0)
        length = _safetensors.header_bytes(prefix, stamp.bytes, limits, name)
        text = read_exactly(fd, length, _safetensors.LENGTH_BYTES, path)
    return Source(path, stamp, _safetensors.parse_header(text, stamp.bytes, limits, name), text)


@contextmanager
def opened(path: str, flags: int = 0) -> Iterator[int]:
    """A descriptor of the regular file PATH, read only. Raises OSError, WeightsError for another kind of file."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise WeightsError(f"{path} is no regular file", facts={"path": path})
        # No reading ahead, of the header neither: the mark that it leaves in the page cache sets it off for later reads
        # too, and pages that are still on their way when the loader drops a file from the cache stay there.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        yield fd
    finally:
        os.close(fd)


def stamp_of(fd: int) -> Stamp:
    """The stamp of an open file."""
    status = os.fstat(fd)
    return Stamp(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def read_exactly(fd: int, length: int, offset: int, path: str) -> bytes:
    """LENGTH bytes of FD at OFFSET. Raises SourceChangedError when there are fewer."""
    parts = []
    while length:
        part = os.pread(fd, min(length, 16 << 20), offset)
        if not part:
            raise changed(path, f"it ends at byte {offset}")
        parts.append(part)
        offset, length = offset + len(part), length - len(part)
    return b"".join(parts)


def changed(path: str, what: str) -> SourceChangedError:
    """The error for a file that is not what it was when the load began."""
    return SourceChangedError(
        f"{path} changed while it was read: {what}", hint="load it again when nobody writes it", facts={"path": path}
    )


def unreadable(path: str, error: OSError, offset: int | None = None) -> WeightsError:
    """The error for a failed read: path, offset and errno."""
    where = path if offset is None else f"{path} at byte {offset}"
    facts = {"path": path, "offset": offset, "errno": error.errno}
    return WeightsError(f"{where}: {error.strerror}", facts=facts)


def _files_of(place: Path) -> tuple[list[Path], Path | None]:
    """The model files at PLACE, or the index that names them."""
    if not place.is_dir():
        return ([], place) if place.name.endswith(".json") else ([place], None)
    indexes = sorted(place.glob(f"*{SUFFIX}{INDEX_SUFFIX}"))
    if len(indexes) > 1:
        raise _ambiguous(place, [index.name for index in indexes])
    if indexes:
        return [], indexes[0]
    files = sorted(place.glob(f"*{SUFFIX}"))
    if not files:
        raise InvalidSafetensorsError(
            f"{place} has no {SUFFIX} file", hint="give a model's file or folder", facts={"defect": "no_model"}
        )
    if len(files) > 1:
        raise _ambiguous(place, [file.name for file in files])
    return files, None


def _ambiguous(place: Path, names: list[str]) -> InvalidSafetensorsError:
    shown = ", ".join(map(_safetensors.printable, names[:8]))
    return InvalidSafetensorsError(
        f"{place} has no one index, which files belong to the model is not known: {shown}",
        hint="give the file or the index",
        facts={"defect": "no_index"},
    )


def _read_whole(path: Path, limit: int) -> bytes:
    with opened(str(path)) as fd:
        size = os.fstat(fd).st_size
        if size > limit:
            raise InvalidSafetensorsError(
                f"{path} has {size} bytes, the limit is {limit}", facts={"defect": "index_too_large", "shard": "index"}
            )
        return read_exactly(fd, size, 0, str(path))
