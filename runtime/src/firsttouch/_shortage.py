# SPDX-License-Identifier: Apache-2.0
"""Whether a load fits, which bound is short if it does not, and how the pool is made larger.

What is short first is named with all the numbers and the command that mends it; after a kernel that answered
otherwise than expected the same bounds are looked at again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from firsttouch._pool import TMPFS_HUGE, Facts, Placement, size_text
from firsttouch.errors import (
    CgroupLimitError,
    FragmentedError,
    MountTooSmallError,
    NodeExhaustedError,
    PoolTooSmallError,
    WeightsError,
)

# Pages that nodes must have free, or the pool as a whole.
Needs = Mapping[int, int] | Mapping[None, int]


def check(need: int, facts: Facts, placement: Placement) -> None:
    """Raise the error of the first thing that has fewer than NEED pages; nothing is taken.

    What `min_size=` holds back for the mount counts as reserved in the pool, and is ours.
    """
    _check_groups(need, facts)
    if facts.mount_free is not None and need > facts.mount_free:
        raise _mount_too_small(need, facts)
    if facts.mount.backend == TMPFS_HUGE:
        return
    pool = facts.pool
    held = (facts.mount.min_size or 0) // pool.page_bytes
    if need > pool.available + pool.growable + held:
        raise _pool_too_small(need, facts)
    _check_nodes(need, facts, placement)


def shortage(need: int, facts: Facts, placement: Placement, error: OSError) -> WeightsError:
    """The error for a kernel that had too few pages although check() passed, from FACTS that were read after it."""
    try:
        check(need, facts, placement)
    except WeightsError as found:
        return found
    text = f"the kernel gave too few pages of {size_text(facts.pool.page_bytes)} ({error.strerror})"
    details = {"need": need, **facts.as_dict()}
    if facts.pool.growable and need > facts.pool.available:
        return FragmentedError(
            f"{text}: it could not make the surplus pages that nr_overcommit_hugepages allows",
            hint=_grow_hint(need, facts),
            facts=details,
        )
    if placement.mode in ("bind", "interleave"):
        return NodeExhaustedError(f"{text} on the nodes {placement.nodes}", hint=_grow_hint(need, facts), facts=details)
    return PoolTooSmallError(f"{text}: {need} were needed", hint=_grow_hint(need, facts), facts=details)


def _check_groups(need: int, facts: Facts) -> None:
    for row in facts.limits:
        if need > row.room:
            size = facts.pool.page_bytes
            raise CgroupLimitError(
                f"{need} pages of {size_text(size)} are needed, the control group allows {row.room} more "
                f"(limit {row.limit}, used {row.used}) in {row.file}",
                hint=f"raise it: echo {(row.used + need) * size} > {row.file}",
                facts={"need": need, **facts.as_dict()},
            )


def _check_nodes(need: int, facts: Facts, placement: Placement) -> None:
    if placement.mode not in ("bind", "interleave"):
        return
    nodes = facts.pool.nodes
    wanted = dict.fromkeys(placement.nodes, 0)
    if placement.mode == "interleave":
        wanted = node_shares(need, placement.nodes)
    short = {node: share for node, share in wanted.items() if nodes.get(node, -1) < share}
    together = sum(nodes.get(node, 0) for node in placement.nodes)
    if not short and need <= together:
        return
    have = ", ".join(
        f"node {node} {nodes[node]} free" if node in nodes else f"no node {node}" for node in placement.nodes
    )
    hint = f"the nodes with a pool here: {', '.join(map(str, nodes)) or 'none'}"
    if nodes.keys() >= set(placement.nodes):
        node = min(short or placement.nodes)
        hint = _grow_hint(wanted[node] or need - together + nodes[node], facts, node)
    raise NodeExhaustedError(
        f"{need} pages of {size_text(facts.pool.page_bytes)} are needed by {placement.mode}: {have}",
        hint=hint,
        facts={"need": need, "placement": asdict(placement), **facts.as_dict()},
    )


def node_shares(pages: int, nodes: Sequence[int]) -> dict[int, int]:
    """Pages that each of NODES gets when page k lies on the k-th node, over and over."""
    return {node: len(range(place, pages, len(nodes))) for place, node in enumerate(nodes)}


def _mount_too_small(need: int, facts: Facts) -> MountTooSmallError:
    size = facts.mount.page_bytes
    return MountTooSmallError(
        f"{need} pages of {size_text(size)} are needed, the mount {facts.mount.path} has {facts.mount_free} left "
        f"of its size={facts.mount.size}",
        hint="mount it anew with a larger size= (remount does not change it), or remove an image: "
        "firsttouch weights ls",
        facts={"need": need, **facts.as_dict()},
    )


def _pool_too_small(need: int, facts: Facts) -> PoolTooSmallError:
    pool = facts.pool
    nodes = ", ".join(f"node {node} {free} free" for node, free in pool.nodes.items())
    return PoolTooSmallError(
        f"{need} pages of {size_text(pool.page_bytes)} are needed, {pool.available} can be had: "
        f"{pool.free} free, {pool.reserved} of them reserved, {pool.total} in all ({nodes or 'no nodes known'})",
        hint=_grow_hint(need, facts),
        facts={"need": need, **facts.as_dict()},
    )


def _grow_hint(need: int, facts: Facts, node: int | None = None) -> str:
    """The command that makes the pool large enough."""
    pool = facts.pool
    if node is not None and node in pool.nodes:
        file = _node_file(pool.page_bytes, node)
        return f"echo $(( $(cat {file}) + {max(need - pool.nodes[node], 1)} )) > {file}"
    count = str(pool.total + max(need - pool.available, 1))
    return f"echo {count} > {_pool_file(pool.page_bytes)}, and read it back"


def _pool_file(page_bytes: int) -> str:
    return f"/sys/kernel/mm/hugepages/hugepages-{page_bytes // 1024}kB/nr_hugepages"


def _node_file(page_bytes: int, node: int) -> str:
    return f"/sys/devices/system/node/node{node}/hugepages/hugepages-{page_bytes // 1024}kB/nr_hugepages"


def growth(needs: Needs, facts: Facts) -> dict[str, int]:
    """Pages to add by file, so that each node of NEEDS has its pages free, or the pool as a whole (None) has.

    Reservations are of the whole pool and may fall on any node, so each node is given room for all of them. What
    `min_size=` holds for the mount counts among them, and is ours.
    """
    pool = facts.pool
    held = (facts.mount.min_size or 0) // pool.page_bytes
    promised = max(pool.reserved - held, 0)
    found = {}
    for node, need in needs.items():
        if node is None:
            file, free = _pool_file(pool.page_bytes), pool.free
        else:
            file, free = _node_file(pool.page_bytes, node), pool.nodes.get(node, 0)
        if need + promised > free:
            found[file] = need + promised - free
    return found


def grow(needs: Needs, facts: Facts, root: str = "/") -> dict[str, dict[str, int]]:
    """Add what growth() says and read it back: {file: {before, asked, after}}. All of it or nothing.

    The kernel gives fewer pages without an error when memory is short or in pieces; it is asked again after it was
    told to compact memory, twice. Raises FragmentedError with the former counts restored, WeightsError when a file
    cannot be written.
    """
    done: dict[str, dict[str, int]] = {}
    try:
        for file, more in growth(needs, facts).items():
            place = Path(root, file.lstrip("/"))
            before = int(place.read_text())
            done[file] = {"before": before, "asked": before + more, "after": before}
            done[file]["after"] = _write(place, before + more, root)
    except OSError as error:
        _restore(done, root)
        raise WeightsError(
            f"{file} cannot be set: {error.strerror}", hint="do it as root", facts={"path": file, "errno": error.errno}
        ) from error
    short = {file: row for file, row in done.items() if row["after"] < row["asked"]}
    if short:
        _restore(done, root)
        file, row = next(iter(short.items()))
        raise FragmentedError(
            f"{row['asked']} pages were asked of {file}, the kernel gave {row['after']}; it is {row['before']} again",
            hint="reserve them at boot: hugepagesz= and hugepages= on the kernel command line",
            facts={"files": done, **facts.as_dict()},
        )
    return done


def _write(place: Path, count: int, root: str) -> int:
    """Write COUNT pages until the kernel has them; the count that there is in the end."""
    for attempt in range(3):
        if attempt:
            Path(root, "proc/sys/vm/compact_memory").write_text("1")
        place.write_text(str(count))
        if int(place.read_text()) >= count:
            break
    return int(place.read_text())


def _restore(done: Mapping[str, Mapping[str, int]], root: str) -> None:
    for file, row in done.items():
        # Not to hide the error that led here.
        with contextlib.suppress(OSError):
            Path(root, file.lstrip("/")).write_text(str(row["before"]))
