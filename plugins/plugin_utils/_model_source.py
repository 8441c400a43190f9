# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of a model on the controller: which they are, in the order in which they are pushed.

What is in a folder may have come from anywhere. So names of an index are plain names, and a link leads to nothing
outside of the folder; a path that the operator gives is followed.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass

from ansible_collections.firsttouch.host.plugins.plugin_utils._beside import candidates, told

SUFFIX = ".safetensors"
INDEX = f"{SUFFIX}.index.json"
# As the runtime limits them.
_INDEX_BYTES = 64 << 20
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
    folder, names = _named(place, what)
    return [_file(os.path.join(folder, name), what, place) for name in names]


def _named(place: str, what: str) -> tuple[str, list[str]]:
    """(folder, names of its files) of the model at PLACE; an index comes last."""
    folder, name = os.path.split(place)
    if os.path.isdir(place):
        folder, name = place, _chosen(place, what)
    if name.endswith(INDEX):
        return folder, [*_shards(os.path.join(folder, name), what), name]
    if not name.endswith(SUFFIX):
        raise SourceError(
            f"{what}: {place} is no {SUFFIX} file, no index ({INDEX}) and no folder; name one of these"
        )
    return folder, [name]


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


def _shards(index: str, what: str) -> list[str]:
    """The names of the files of INDEX."""
    if os.stat(index).st_size > _INDEX_BYTES:
        raise SourceError(f"{what}: {index} is longer than {_INDEX_BYTES >> 20} MiB, which no index is")
    try:
        with open(index, encoding="utf-8") as handle:
            names = sorted(set(json.load(handle)["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise SourceError(f"{what}: {index} is no index of a model ({exc!r}); fetch it again") from exc
    strange = [name for name in names if not _plain(name)]
    if strange or not names:
        named = f"the file {strange[0]!r}, which is no plain name" if strange else "no file"
        raise SourceError(f"{what}: {index} names {named}; fetch it again")
    return names


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


def _file(path: str, what: str, given: str) -> ModelFile:
    """The file PATH, when it can be one of a model. The one that is GIVEN itself may be a link."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise SourceError(f"{what}: {path} is missing, which the index names; fetch it") from None
    if path != given:
        _inside(path, what)
    if not stat.S_ISREG(status.st_mode):
        raise SourceError(f"{what}: {path} is no regular file; name a file that is")
    if not path.endswith(INDEX):
        _check_header(path, status.st_size, what)
    return ModelFile(os.path.basename(path), path, status.st_size)


def _check_header(path: str, size: int, what: str) -> None:
    """Refuse what does not begin as a safetensors file does: mostly a pointer of Git LFS, or half of a file."""
    with open(path, "rb") as handle:
        head = handle.read(9)
    length = int.from_bytes(head[:8], "little")
    if len(head) < 9 or head[8:] != b"{" or 8 + length > size:
        raise SourceError(
            f"{what}: {path} ({size} bytes) does not begin as a safetensors file; fetch it again"
        )


def digest(path: str) -> str:
    """The SHA-256 of the file PATH."""
    found = hashlib.sha256()
    with open(path, "rb") as handle:
        for piece in iter(lambda: handle.read(_PIECE), b""):
            found.update(piece)
    return found.hexdigest()
