# SPDX-License-Identifier: Apache-2.0
"""What is asked of a load, checked, and what it would take: nothing is taken here but, on request, by the pool."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from firsttouch import _image, _loader, _pool, _safetensors, _shortage, _sources
from firsttouch._image import Layout
from firsttouch._pool import Facts, Placement
from firsttouch._sources import Model
from firsttouch.errors import (
    ArgumentError,
    FirstTouchError,
    MountMissingError,
    MountTooSmallError,
    NodeExhaustedError,
    PoolTooSmallError,
)

Fallback = Literal["tmpfs-huge"]
# 64 is a cache line and what some vector code wants, 256 what libraries of GPUs want, 4096 a page.
ALIGNMENTS = (1, 64, 256, 4096)
StrPath = str | os.PathLike[str]
_NAME_HINT = "give a name of letters, digits, `.`, `_` and `-`, 96 at most"


@dataclass(frozen=True)
class Plan:
    """What a load takes: `pages` for each of `images` (one, or one per node), and whether it would be had now."""

    model: str
    source: str
    page_bytes: int
    pages: int
    images: int
    image_bytes: int
    model_bytes: int
    tensors: int
    directory: str
    backend: str
    placement: Placement
    facts: Facts
    warnings: tuple[str, ...] = ()
    # Why it would not be had; what load() would raise.
    problem: FirstTouchError | None = None
    # Of `apply`: {file: {before, asked, after}} of each pool that was made larger.
    applied: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether load() would find enough, if nobody else takes it first."""
        return self.problem is None


@dataclass(frozen=True)
class Request:
    """The arguments of plan() and load() after they were checked."""

    model: Model
    name: str
    mount: _pool.Mount
    placement: Placement
    replicas: tuple[int, ...]
    align: int
    warnings: tuple[str, ...] = ()

    @property
    def layout(self) -> Layout:
        """Where everything will lie."""
        return _loader.layout_for(self.model, self.mount.page_bytes, self.align)


def plan(
    model: StrPath,
    *,
    name: str | None = None,
    directory: str | None = None,
    page: str = "2M",
    nodes: Sequence[int] = (),
    policy: str = "any",
    fallback: Fallback | None = None,
    align: int = 1,
    apply: bool = False,
) -> Plan:
    """What load() with the same arguments would take, exactly; the headers are read and checked, nothing is taken.

    With APPLY a pool or node that is short is made larger first, until the next reboot: by all that is missing, or
    not at all. A mount or control group that is too small is never changed.

    Raises ArgumentError, InvalidSafetensorsError, MountMissingError, WeightsError, and with APPLY FragmentedError when
    the kernel gave too few. A shortage is in the plan instead.
    """
    if apply and fallback is not None:
        raise ArgumentError("apply and a fallback do not go together", hint="choose one of them")
    request = make_request(model, name, directory, page, nodes, policy, fallback, align)
    found = plan_of(request)
    of_pool = isinstance(found.problem, (PoolTooSmallError, NodeExhaustedError))
    if not apply or not of_pool or isinstance(found.problem, MountTooSmallError):
        return found
    applied = _shortage.grow(_needs(request, found.pages), found.facts)
    return dataclasses.replace(plan_of(request), applied=applied)


def _needs(request: Request, pages: int) -> _shortage.Needs:
    """Pages that each node must have free, or the pool as a whole (None)."""
    if request.replicas:
        return dict.fromkeys(request.replicas, pages)
    if request.placement.mode in ("bind", "interleave"):
        return _shortage.node_shares(pages, request.placement.nodes)
    return {None: pages}


def make_request(
    model: StrPath,
    name: str | None,
    directory: str | None,
    page: str,
    nodes: Sequence[int],
    policy: str,
    fallback: Fallback | None,
    align: int,
) -> Request:
    found = _sources.read_model(model)
    name = name or found.name
    if not _image.is_model_name(name):
        raise ArgumentError(f"{name[:100]!a} cannot name a model", hint=_NAME_HINT)
    if align not in ALIGNMENTS:
        raise ArgumentError(f"no alignment {align}", hint=f"there are {', '.join(map(str, ALIGNMENTS))}")
    placement, replicas = _placement(policy, tuple(nodes))
    try:
        page_bytes = _pool.parse_bytes(page)
    except ValueError as error:
        raise ArgumentError(str(error)) from error
    if fallback not in (None, "tmpfs-huge"):
        raise ArgumentError(f"no fallback {fallback!r}", hint="there is tmpfs-huge")
    problem: FirstTouchError | None = None
    try:
        mount = _pool.find_mount(directory, page_bytes)
    except MountMissingError as error:
        if fallback is None:
            raise
        problem = error
        mount = _pool.find_mount(None, 2 << 20, _pool.TMPFS_HUGE)
    request = Request(found, name, mount, placement, replicas, align)
    request = dataclasses.replace(request, warnings=(*_header_warnings(request), *_unaligned(request)))
    if fallback is None:
        return request
    problem = problem or plan_of(request).problem
    if problem is None:
        return request
    other = _pool.find_mount(None, 2 << 20, _pool.TMPFS_HUGE)
    said = f"fallback tmpfs-huge in {other.path}: {problem.message}"
    return dataclasses.replace(request, mount=other, warnings=(*request.warnings, said))


def _placement(policy: str, nodes: tuple[int, ...]) -> tuple[Placement, tuple[int, ...]]:
    """The placement of one image, and the nodes that get one each."""
    if policy not in ("any", "bind", "interleave", "prefer", "replicate"):
        raise ArgumentError(f"no policy {policy!r}", hint="there are any, bind, interleave, prefer and replicate")
    if (policy == "any") != (not nodes) or len(set(nodes)) != len(nodes):
        raise ArgumentError(f"policy {policy} and the nodes {list(nodes)} do not go together")
    if policy == "prefer" and len(nodes) != 1:
        raise ArgumentError(f"policy prefer takes one node, not {list(nodes)}")
    if policy == "replicate":
        return Placement("bind", nodes[:1]), nodes
    return Placement(cast(_pool.Mode, policy), nodes), ()


def _header_warnings(request: Request) -> tuple[str, ...]:
    rows = ((source.name, text) for source in request.model.sources for text in source.header.warnings)
    # With an alignment of ours, _unaligned() says what is left of it.
    return tuple(f"{name}: {text}" for name, text in rows if request.align == 1 or _safetensors.UNALIGNED not in text)


def _unaligned(request: Request) -> tuple[str, ...]:
    """Say how many tensors do not begin where it was asked."""
    if request.align == 1:
        return ()
    headers = [source.header for source in request.model.sources]
    tensors = _image.tensors_of(request.layout, headers)
    count = sum(row.offset % request.align != 0 for row in tensors if row.bytes)
    text = f"{count} of {len(tensors)} tensors begin at no multiple of {request.align}: those before them are not whole"
    return (text,) if count else ()


def plan_of(request: Request) -> Plan:
    layout = request.layout
    facts = _pool.read_facts(request.mount)
    copies = len(request.replicas) or 1
    problem: FirstTouchError | None = None
    try:
        _shortage.check(layout.pages * copies, facts, Placement())
        for node in request.replicas or (None,):
            _shortage.check(layout.pages, facts, placed(request, node))
    except FirstTouchError as error:
        problem = error
    return Plan(
        request.name,
        request.model.path,
        layout.page_bytes,
        layout.pages,
        copies,
        layout.image_bytes,
        request.model.bytes,
        sum(len(source.header.tensors) for source in request.model.sources),
        request.mount.path,
        request.mount.backend,
        request.placement,
        facts,
        request.warnings,
        problem,
    )


def placed(request: Request, node: int | None) -> Placement:
    return request.placement if node is None else Placement("bind", (node,))
