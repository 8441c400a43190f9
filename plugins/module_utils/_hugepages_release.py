# SPDX-License-Identifier: Apache-2.0
"""Give back the pages that the reservation unit took and that nothing asks for any more, without a boot.

mm/hugetlb.c set_max_huge_pages(): a count written to a node takes back free pages only, and no more than are neither
reserved by a mapping nor stand for surplus ones; pages in use beyond it would turn into surplus. So no more is ever
taken back than that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from . import _systemd
from ._files import check_writable, named, read_text, resolve
from ._hugepages import pools_of
from ._mounts import read_mounts, size_bytes
from ._topology_nodes import NODE_DIR
from ._tree import Tree

_REQUEST = re.compile(r"(?m)^\s*pages (\d+) (\d+) (\d+); \\$")
_SETTING = re.compile(r"(?m)^(Where|Options)=(.*)$")
Place = tuple[int, int]  # page size in kB, node
Former = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Step:
    """One pool of one node. Counts of pages as nr_hugepages shows them, surplus ones included.

    wanted is where it should get, after where it gets; write is the number that the kernel is given for that (None:
    nothing is written). why: what keeps it from getting there.
    """

    size_kb: int
    node: int
    before: int | None
    wanted: int | None
    after: int | None
    write: int | None = None
    why: str | None = None

    @property
    def path(self) -> str:
        return f"{NODE_DIR}/node{self.node}/hugepages/hugepages-{self.size_kb}kB/nr_hugepages"

    @property
    def text(self) -> str:
        """One sentence about what was not given back."""
        have = "an unknown number of" if self.after is None else str(self.after)
        goal = "" if self.wanted is None else f" instead of {self.wanted}"
        return f"node {self.node} keeps {have} pages of {self.size_kb} kB{goal}: {self.why}"


@dataclass(frozen=True)
class Leaving:
    """What unmounting sets free of one page size: pages of files, and those promised by min_size."""

    used: int = 0
    promised: int = 0


def requests(unit: str | None) -> dict[Place, int]:
    """What the reservation unit with the text UNIT asks for."""
    rows = _REQUEST.findall(unit or "")
    return {(int(size), int(node)): int(count) for node, size, count in rows}


def held_unit(root: str) -> str | None:
    """The text of the reservation unit on the host; None when there is none of ours."""
    text = read_text(root, f"{_systemd.UNIT_DIR}/{_systemd.HUGEPAGES_SERVICE}")
    return text if text is not None and _systemd.is_ours(text) else None


def plan_release(
    root: str, unit: str | None, pools: Iterable[Mapping[str, Any]], former: Former, leaving: Iterable[str] = ()
) -> list[Step]:
    """The steps for what the unit on the host asks and UNIT, the one that replaces it, does not.

    POOLS are those of the plan, FORMER the counts first found, by size (`2048kB`) and node. LEAVING are mount units
    that are still there and will be gone before. Steps without `write` tell what stays. Raises OSError, and
    ValueError for parameters of another shape.
    """
    _check_shapes(pools, former, leaving)
    places = sorted(set(requests(held_unit(root))) - set(requests(unit)), reverse=True)
    if not places:
        return []
    tree = Tree(root)
    planned = {(row["size_kb"], int(node)): count for row in pools for node, count in row["nodes"].items()}
    live = pools_of(tree)
    gone = _leaving(root, tree, leaving)
    steps = []
    for size_kb in sorted({size for size, _node in places}, reverse=True):
        pool = live.get(f"{size_kb}kB") or {}
        room = _room(pool, gone.get(size_kb, Leaving()))
        for node in sorted(node for size, node in places if size == size_kb):
            first = (former.get(f"{size_kb}kB") or {}).get(str(node))
            row = (pool.get("nodes") or {}).get(str(node)) or {}
            step = _step(size_kb, node, row, planned.get((size_kb, node), 0), first, room)
            if step is not None:
                if step.write is not None:
                    check_writable(resolve(root, step.path))
                given = max((step.before or 0) - (step.after or 0), 0)
                room = Room(room.pages - given, room.all_free)
                steps.append(step)
    return steps


def _check_shapes(pools: Iterable[Any], former: Mapping[str, Any], leaving: Iterable[str]) -> None:
    """Raise ValueError for parameters that no result of ours has."""
    for row in pools:
        counts = row.get("nodes") if isinstance(row, Mapping) else None
        if not isinstance(counts, Mapping) or not isinstance(row.get("size_kb"), int) or not _counts(counts):
            raise ValueError(f"pools: {row!r} is no pool of host_plan, which has size_kb and nodes")
    for size, counts in former.items():
        if not isinstance(counts, Mapping) or not _counts(counts):
            raise ValueError(f"before: {size} is {counts!r}, not a number of pages for each node")
    for name in leaving:
        if "/" in name or "\0" in name:
            raise ValueError(f"unmounting: {name!r} is not the name of a unit")


def _counts(rows: Mapping[Any, Any]) -> bool:
    return all(str(node).isdigit() and isinstance(pages, int) and pages >= 0 for node, pages in rows.items())


@dataclass(frozen=True)
class Room:
    """Pages of one size that the kernel would take back, on all nodes; all_free: once no file has any."""

    pages: int
    all_free: bool


def _room(pool: Mapping[str, Any], leaving: Leaving) -> Room:
    counts = [pool.get(name) for name in ("free", "reserved", "surplus", "total")]
    if None in counts:
        return Room(0, False)
    free, reserved, surplus, total = (int(count or 0) for count in counts)
    all_free = bool(leaving.used) and free + leaving.used >= total
    back = leaving.used + max(leaving.promised - leaving.used, 0)
    return Room(max(free - reserved - surplus + back, 0), all_free)


def _step(
    size_kb: int, node: int, row: Mapping[str, Any], planned: int, first: int | None, room: Room
) -> Step | None:
    """None where the pool is as it should be."""
    total, surplus, free = row.get("total"), row.get("surplus"), row.get("free")
    if total is None or surplus is None or free is None:
        return Step(size_kb, node, total, None, total, why="its counters cannot be read")
    if first is None:
        unknown = "the number first found is not recorded in /var/lib/firsttouch/before.json"
        return Step(size_kb, node, total, None, total, why=unknown)
    wanted, now = max(planned, first), total - surplus
    if wanted > now:
        if first <= now:  # the boot arguments will bring the rest
            return None
        return Step(size_kb, node, total, first, first + surplus, write=first)
    give = max(min(now - wanted, now if room.all_free else free, room.pages), 0)
    why: str | None = None
    if give < now - wanted:
        why = f"{now - wanted - give} are in use or reserved; they are free after the next boot"
    elif not give:
        return None
    return Step(size_kb, node, total, wanted, total - give, write=now - give if give else None, why=why)


def _leaving(root: str, tree: Tree, units: Iterable[str]) -> dict[int, Leaving]:
    mounted = {mount.path: mount for mount in read_mounts(tree, None) if not mount.covered}
    found: dict[int, Leaving] = {}
    for name in units:
        text = read_text(root, f"{_systemd.UNIT_DIR}/{name}")
        settings = dict(_SETTING.findall(text)) if text is not None and _systemd.is_ours(text) else {}
        path = settings.get("Where", "").replace("%%", "%")
        if path not in mounted:
            continue
        options = dict(item.partition("=")[::2] for item in settings.get("Options", "").split(","))
        try:
            page, least = size_bytes(options.get("pagesize", "")), size_bytes(options.get("min_size", "0"))
        except ValueError:
            continue
        before = found.get(page // 1024, Leaving())
        used = _file_bytes(resolve(root, path)) // page
        found[page // 1024] = Leaving(before.used + used, before.promised + max(least // page, used))
    return found


def _file_bytes(folder: str) -> int:
    """Bytes that the files below FOLDER hold; hugetlbfs counts in whole pages."""
    total = 0
    for directory, _folders, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(directory, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def apply_release(root: str, steps: Iterable[Step]) -> list[Step]:
    """Write the STEPS and return them with what the kernel shows then. Raises OSError."""
    done = []
    for step in steps:
        if step.write is None:
            done.append(step)
            continue
        real = resolve(root, step.path)
        with named(real), open(real, "w", encoding="ascii") as handle:
            handle.write(f"{step.write}\n")
        after = Tree(root).number(step.path)
        why = step.why
        if after != step.after and why is None:
            why = f"the kernel shows {after} after {step.write} was written"
        done.append(Step(step.size_kb, step.node, step.before, step.wanted, after, step.write, why))
    return done


def changes(steps: Iterable[Step]) -> list[dict[str, Any]]:
    """The pools that change, as `{resource, before, after}`, sorted."""
    rows = [
        {"resource": f"pool:{step.size_kb}kB:node{step.node}", "before": step.before, "after": step.after}
        for step in steps
        if step.before != step.after
    ]
    return sorted(rows, key=lambda row: str(row["resource"]))
