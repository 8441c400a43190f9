# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of a model on the controller: which they are, in the order in which they are pushed.

What is in a folder may have come from anywhere. So names of an index are plain names, and a link leads to nothing
outside of the folder; a path that the operator gives is followed. What a download left off of is no model: headers tell
how long their files are.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.firsttouch.host.plugins.plugin_utils._beside import candidates, told

SUFFIX = ".safetensors"
INDEX = f"{SUFFIX}.index.json"
# As the runtime limits them.
_INDEX_BYTES = 64 << 20
_HEADER_BYTES = 100_000_000
_LENGTH_BYTES = 8
_METADATA = "__metadata__"
_PIECE = 8 << 20


class SourceError(ValueError):
    """What is to be pushed is no model that could be loaded; the text names variable, value and remedy."""


@dataclass(frozen=True)
class ModelFile:
    """A file to push: its name in the model's folder, where it is, and how long."""

    name: str
    path: str
    size: int


def model_files(model: str, push: str, dirs: Sequence[str]) -> list[ModelFile]:
    """The files of MODEL at PUSH, absolute or beside the inventories in DIRS; shards first, the index last.

    Headers are looked at, weights are not read. Raises SourceError, OSError.
    """
    what = f"firsttouch_models: push of {model} is {push!r}"
    places = candidates(push, dirs)
    found = next((place for place in places if os.path.exists(place)), None)
    if found is None:
        raise SourceError(f"{what}, and nothing is there on the controller; looked for {told(places)}")
    place = os.path.abspath(found)
    folder, name = os.path.split(place)
    if os.path.isdir(place):
        folder, name = place, _chosen(place, what)
    path = os.path.join(folder, name)
    if name.endswith(INDEX):
        index = _file(path, what, place, "")
        weights = _index(path, what)
        shards = [_shard(os.path.join(folder, shard), weights, path, what) for shard in sorted(set(weights.values()))]
        return [*shards, index]
    if not name.endswith(SUFFIX):
        raise SourceError(
            f"{what}: {place} is no {SUFFIX} file, no index ({INDEX}) and no folder; name one of these"
        )
    file = _file(path, what, place, "")
    _tensors(file, what)
    return [file]


def _chosen(folder: str, what: str) -> str:
    """The index of FOLDER, or its only file."""
    names = sorted(os.listdir(folder))
    indexes = [name for name in names if name.endswith(INDEX)]
    found = indexes or [name for name in names if name.endswith(SUFFIX)]
    if len(found) != 1:
        there = ", ".join(found[:8]) or f"no {SUFFIX} file"
        raise SourceError(
            f"{what}: {folder} has no one index and no one file, but {there}; name the file or the index"
        )
    return found[0]


def _index(path: str, what: str) -> dict[str, str]:
    """The name of the file of each tensor, of the index at PATH."""
    with open(path, "rb") as handle:
        text = handle.read(_INDEX_BYTES + 1)
    if len(text) > _INDEX_BYTES:
        raise SourceError(f"{what}: {path} is longer than {_INDEX_BYTES >> 20} MiB, which no index is")
    try:
        weights: dict[str, str] = json.loads(text.decode())["weight_map"]
        strange = [name for name in weights.values() if not _plain(name)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise SourceError(f"{what}: {path} is no index of a model ({exc!r}); fetch it again") from exc
    if strange or not weights:
        named = f"the file {strange[0]!r}, which is no plain name" if strange else "no file"
        raise SourceError(f"{what}: {path} names {named}; fetch it again")
    return weights


def _shard(path: str, weights: Mapping[str, str], index: str, what: str) -> ModelFile:
    """The file PATH, when it has the tensors that WEIGHTS of INDEX has in it, and no others."""
    file = _file(path, what, "", ", which the index names")
    there, named = _tensors(file, what), {name for name, shard in weights.items() if shard == file.name}
    for names, wrong in ((named - there, "has no tensor"), (there - named, "has the tensor")):
        if names:
            told = f"{path} {wrong} {min(names)!r}, other than {index} tells"
            raise SourceError(f"{what}: {told}; fetch both again")
    return file


def _plain(name: object) -> bool:
    return (
        isinstance(name, str)
        and name.endswith(SUFFIX)
        and name.isprintable()
        and not (set(name) & set("/\\") or name.startswith("."))
    )


def _inside(path: str, what: str) -> None:
    """Refuse a PATH that is a link out of its folder."""
    folder = os.path.realpath(os.path.dirname(path))
    real = os.path.realpath(path)
    if os.path.commonpath([folder, real]) != folder:
        raise SourceError(f"{what}: {path} is a link out of its folder, to {real}; put a copy there (cp -L)")


def _file(path: str, what: str, given: str, named: str) -> ModelFile:
    """The file PATH, which may be read: regular, in its folder. The one that is GIVEN itself may be a link."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise SourceError(f"{what}: {path} is missing{named}; fetch it") from None
    if path != given:
        _inside(path, what)
    if not stat.S_ISREG(status.st_mode):
        raise SourceError(f"{what}: {path} is no regular file; name a file that is")
    return ModelFile(os.path.basename(path), path, status.st_size)


def _tensors(file: ModelFile, what: str) -> set[str]:
    """The names of the tensors of FILE. Raises SourceError for what is no safetensors file, or only a part of one."""
    told = f"{what}: {file.path} ({file.size} bytes)"
    with open(file.path, "rb") as handle:
        head = handle.read(_LENGTH_BYTES + 1)
        length = int.from_bytes(head[:_LENGTH_BYTES], "little")
        # Mostly a pointer of Git LFS, or a page that tells of an error.
        if head[_LENGTH_BYTES:] != b"{" or not 2 <= length <= _HEADER_BYTES:
            raise SourceError(f"{told} does not begin as a safetensors file; fetch it again")
        if _LENGTH_BYTES + length > file.size:
            raise SourceError(f"{told} is cut off: its header alone has {length}; fetch it again")
        text = head[_LENGTH_BYTES:] + handle.read(length - 1)
    try:
        rows: dict[str, Mapping[str, Sequence[int]]] = json.loads(text.decode())
        rows.pop(_METADATA, None)
        # Whether the rest of it is right the runtime tells.
        whole = _LENGTH_BYTES + length + max((row["data_offsets"][1] for row in rows.values()), default=0)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as exc:
        raise SourceError(f"{told} has no header of a safetensors file ({exc!r}); fetch it again") from exc
    if whole != file.size:
        wrong = "is cut off" if file.size < whole else "is too long"
        raise SourceError(f"{told} {wrong}: by its header it has {whole}; fetch it again")
    return set(rows)


def digest(path: str) -> str:
    """The SHA-256 of the file PATH."""
    found = hashlib.sha256()
    with open(path, "rb") as handle:
        for piece in iter(lambda: handle.read(_PIECE), b""):
            found.update(piece)
    return found.hexdigest()
