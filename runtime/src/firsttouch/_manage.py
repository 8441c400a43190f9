# SPDX-License-Identifier: Apache-2.0
"""The writing side of weights: load, list, remove, collect. _planning.py checks the arguments."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from firsttouch import _checksums, _loader, _pool, _store
from firsttouch._planning import Fallback, Request, StrPath, make_request, placed, plan_of
from firsttouch._sources import Model
from firsttouch.errors import (
    AlreadyLoadedError,
    ArgumentError,
    LoaderBusyError,
)


@dataclass(frozen=True)
class Image:
    """What was loaded: one path, or one per replica. `nodes` is pages by node, as the kernel says."""

    model: str
    paths: tuple[str, ...]
    generation: int
    image_bytes: int
    model_bytes: int
    pages: int
    nodes: dict[int, int]
    seconds: float
    backend: str
    checksum: str
    warnings: tuple[str, ...] = ()
    # False when the same files had been loaded before, and nothing was done.
    loaded: bool = True
    removed: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """The path of the first image."""
        return self.paths[0]


def load(
    model: StrPath,
    *,
    name: str | None = None,
    directory: str | None = None,
    page: str = "2M",
    nodes: Sequence[int] = (),
    policy: str = "any",
    checksum: str = "xxh3",
    expect: str | Mapping[str, str] | None = None,
    threads: int = _loader.THREADS,
    fallback: Fallback | None = None,
    align: int = 1,
    replace: bool = False,
    evict_first: bool = False,
    step: Callable[[str], None] = _loader.nothing,
    progress: Callable[[int, int], None] = _loader.nothing,
    run_directory: str | None = None,
) -> Image:
    """Load MODEL (a safetensors file, a folder with an index, or the index) into huge pages under NAME.

    directory: a hugetlbfs (default: FIRSTTOUCH_WEIGHTS_DIR, then the first one mounted with pages of size PAGE).
    policy: any, bind or prefer or interleave over NODES, or replicate (one image per node). checksum: xxh3, crc32,
    sha256, blake3, none. expect: `sha256:HEX` of the one file, or of each by name. fallback: `tmpfs-huge` where the
    pool is short, said in the result's warnings. align: 64, 256 or 4096, to have the tensors of each file begin at
    multiples of it, for one more copy in memory; a header has any length, so without it they seldom do. progress:
    called with bytes read and bytes in all.

    The same files again: nothing is done. Others under the same name become its next generation with REPLACE, and
    the older ones are removed: workers keep what they have mapped, and its pages, until they open anew. The pool must
    hold both, unless EVICT_FIRST removes the old one before, which leaves no model if the load then fails.

    Raises AlreadyLoadedError for others under the same name without REPLACE; LoaderBusyError; and the errors of a
    shortage, a bad file, a changed file. After an error nothing is left of the load.
    """
    work = _Work(checksum, expect, threads, step, progress, run_directory)
    request = make_request(model, name, directory, page, nodes, policy, fallback, align)
    return _load(request, work, replaces=replace or evict_first, evict_first=evict_first)


@dataclass(frozen=True)
class _Work:
    """How to load."""

    checksum: str
    expect: str | Mapping[str, str] | None
    threads: int
    step: Callable[[str], None]
    progress: Callable[[int, int], None]
    run_directory: str | None


def _load(request: Request, work: _Work, *, replaces: bool, evict_first: bool) -> Image:
    started = time.monotonic()
    checksum, warning = _checksums.resolve(work.checksum)
    directory = request.mount.path
    with _store.locked(request.name, directory, work.run_directory):
        before = _store.entries([directory], request.name)
        whole = _store.complete_sets(before)
        if whole and _same(request, whole[0]):
            return _already(whole[0], time.monotonic() - started)
        if whole and not replaces:
            raise AlreadyLoadedError(
                f"{request.name} is loaded from other files: {whole[0][0].path}",
                hint="replace it with `firsttouch weights swap`, or choose another name",
                facts={"path": whole[0][0].path},
            )
        removed = _store.remove(before) if evict_first else []
        _require(request)
        job = _loader.Job(
            request.model,
            request.name,
            request.mount,
            request.placement,
            checksum,
            work.threads,
            1 + max((row.name.generation for row in before), default=0),
            request.replicas,
            None,
            _expected(request.model, work.expect),
            work.step,
            work.progress,
            align=request.align,
        )
        filled, paths = _fill_all(request, job)
        removed += _store.remove(row for row in before if replaces and row.path not in removed)
    warnings = [*request.warnings, *([warning] if warning else [])]
    warnings += dict.fromkeys(text for part in filled for text in part.warnings)
    return Image(
        request.name,
        tuple(paths),
        job.generation,
        filled[0].layout.image_bytes,
        request.model.bytes,
        filled[0].layout.pages * len(filled),
        _added(part.nodes for part in filled),
        time.monotonic() - started,
        request.mount.backend,
        checksum,
        tuple(warnings),
        removed=tuple(removed),
    )


def _require(request: Request) -> None:
    """Refuse before anything is taken what the plan says will not be had."""
    problem = plan_of(request).problem
    if problem is not None:
        raise problem


def _fill_all(request: Request, job: _loader.Job) -> tuple[list[_loader.Filled], list[str]]:
    """Fill every replica, then publish them; on an error none of them stays."""
    filled: list[_loader.Filled] = []
    paths: list[str] = []
    try:
        for node in request.replicas or (None,):
            part = _loader.fill(dataclasses.replace(job, node=node, placement=placed(request, node)))
            filled.append(part)
        for part in filled:
            path = part.publish()
            paths.append(path)
    except BaseException:
        for path in paths:
            os.unlink(path)
        raise
    finally:
        for part in filled:
            part.close()
    return filled, paths


def _added(parts: Iterator[dict[int, int]]) -> dict[int, int]:
    total: dict[int, int] = {}
    for part in parts:
        for node, count in part.items():
            total[node] = total.get(node, 0) + count
    return total


def _expected(model: Model, expect: str | Mapping[str, str] | None) -> dict[str, str]:
    """The digests that whole files must have, by file name. Raises ArgumentError for a name that is not there."""
    if expect is None:
        return {}
    names = [source.name for source in model.sources]
    if isinstance(expect, str):
        if len(names) != 1:
            raise ArgumentError(f"the model has {len(names)} files", hint="give the digest of each: NAME=sha256:HEX")
        return {names[0]: expect}
    unknown = sorted(set(expect) - set(names))
    if unknown:
        raise ArgumentError(f"no file {unknown[0]!a} in the model", facts={"files": names})
    return dict(expect)


def _same(request: Request, group: list[_store.Entry]) -> bool:
    """Whether GROUP was loaded from the very files that are there now, to where it is asked for now."""
    rows = group[0].manifest["shards"]
    loaded = [(row["path"], row["dev"], row["ino"], row["bytes"], row["mtime_ns"]) for row in rows]
    wanted = [(source.path, *source.stamp) for source in request.model.sources]
    placed = group[0].manifest["placement"]
    replicas = tuple(group[0].manifest["replicas"])
    if loaded != wanted or replicas != request.replicas or group[0].manifest["backend"] != request.mount.backend:
        return False
    if group[0].manifest.get("align", 1) != request.align:
        return False
    return bool(replicas) or (placed["mode"], tuple(placed["nodes"])) == (
        request.placement.mode,
        request.placement.nodes,
    )


def _already(group: list[_store.Entry], seconds: float) -> Image:
    first = group[0]
    counts = ({int(node): count for node, count in row.nodes.items()} for row in group)
    return Image(
        first.name.model,
        tuple(row.path for row in group),
        first.name.generation,
        first.bytes,
        sum(row["bytes"] for row in first.manifest["shards"]),
        len(group) * first.bytes // (first.block.page_bytes if first.block else 1),
        _added(counts),
        seconds,
        str(first.manifest["backend"]),
        str(first.manifest["checksum"]),
        ("the same files were loaded before",),
        loaded=False,
    )


def ls(directory: str | None = None) -> list[_store.Entry]:
    """All images, those that cannot be opened with their `trouble`."""
    return _store.entries(_pool.directories(directory))


def rm(name: str, *, directory: str | None = None, run_directory: str | None = None) -> list[str]:
    """Remove all generations of model NAME; who has one mapped keeps it. Returns the paths. Raises NotReadyError."""
    found = [row for row in _store.entries(_pool.directories(directory)) if row.name.model == name]
    if not found:
        raise _store.absent(name, _pool.directories(directory))
    gone = []
    for folder in sorted({os.path.dirname(row.path) for row in found}):
        with _store.locked(name, folder, run_directory):
            gone += _store.remove(_store.entries([folder], name))
    return gone


def gc(
    *, directory: str | None = None, run_directory: str | None = None, dry_run: bool = False
) -> dict[str, list[str]]:
    """Remove superseded generations, incomplete sets of replicas and damaged images; the paths by reason.

    A model that is being loaded is left out.
    """
    gone: dict[str, list[str]] = {}
    keys = {(os.path.dirname(row.path), row.name.model) for row in _store.entries(_pool.directories(directory))}
    for folder, model in sorted(keys):
        try:
            with _store.locked(model, folder, run_directory):
                for reason, rows in _store.garbage(_store.entries([folder], model)).items():
                    paths = [row.path for row in rows] if dry_run else _store.remove(rows)
                    gone.setdefault(reason, []).extend(paths)
        except LoaderBusyError:
            gone.setdefault("busy", []).append(model)
    return gone
