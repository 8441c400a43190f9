# SPDX-License-Identifier: Apache-2.0
"""Limits of control groups on huge pages: a page past one is a SIGBUS at the first touch, not an error of mmap.

Documentation/admin-guide/cgroup-v2.rst ("HugeTLB"), cgroup-v1/hugetlb.rst: `max` counts when a page is
touched, `rsvd.max` when it is mapped. The limits of all groups above count too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ._hugepages import pools_of
from ._intent import format_size
from ._tree import Tree

_ROOT = "/sys/fs/cgroup"
# v1 says that there is no limit by the largest number that its counter holds, rounded down to whole pages.
NO_LIMIT = 1 << 62
_UNITS = ((1 << 20, "GB"), (1 << 10, "MB"), (1, "KB"))


@dataclass(frozen=True)
class Limit:
    """A limit in bytes and what of it is used, by the file that holds it; `at_touch`: counts at the first touch."""

    file: str
    bytes: int
    used: int
    at_touch: bool

    @property
    def left(self) -> int:
        """Bytes that may still be had."""
        return max(0, self.bytes - self.used)


def size_name(size_kb: int) -> str:
    """A page size as the controller names its files (mem_fmt() of mm/hugetlb_cgroup.c): 64KB, 2MB, 1GB."""
    return next(f"{size_kb // unit}{name}" for unit, name in _UNITS if size_kb >= unit)


def limits(tree: Tree, size_kb: int, pid: str = "self") -> list[Limit]:
    """The limits on pages of SIZE_KB for the process PID, from its own group up. What says `max` is none."""
    found = []
    for base, path, names in _groups(tree, size_kb, pid):
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts), -1, -1):
            folder = "/".join([base, *parts[:depth]])
            for name, used, at_touch in names:
                text = tree.text(f"{folder}/{name}")
                if text and text.isdigit() and int(text) < NO_LIMIT:
                    count = tree.number(f"{folder}/{used}") or 0
                    found.append(Limit(f"{folder}/{name}", int(text), count, at_touch))
    return found


def _groups(
    tree: Tree, size_kb: int, pid: str
) -> Iterator[tuple[str, str, tuple[tuple[str, str, bool], ...]]]:
    """(directory of the hierarchy, path of the group, (limit, use, at touch) of its files) of the process."""
    head = f"hugetlb.{size_name(size_kb)}"
    v2 = (
        (f"{head}.max", f"{head}.current", True),
        (f"{head}.rsvd.max", f"{head}.rsvd.current", False),
    )
    v1 = (
        (f"{head}.limit_in_bytes", f"{head}.usage_in_bytes", True),
        (f"{head}.rsvd.limit_in_bytes", f"{head}.rsvd.usage_in_bytes", False),
    )
    for line in (tree.text(f"/proc/{pid}/cgroup") or "").splitlines():
        hierarchy, _colon, rest = line.partition(":")
        controllers, _colon, path = rest.partition(":")
        if hierarchy == "0" and not controllers:
            yield _ROOT, path, v2
            yield f"{_ROOT}/unified", path, v2  # where systemd mounts it beside v1
        elif "hugetlb" in controllers.split(","):
            yield f"{_ROOT}/{controllers}", path, v1


def preflight(root: str, size_kb: int, need: int) -> dict[str, Any]:
    """Whether a process in the group of this one can touch NEED bytes of pages of SIZE_KB, and what forbids it.

    `verdict` is pass, fail or not_evaluated; `reason` is hugetlb_cgroup_limit, pool_short or not_available.
    `limit_bytes` is the limit that leaves least, None where there is none.
    """
    tree = Tree(root)
    tightest = min(limits(tree, size_kb), key=lambda limit: limit.left, default=None)
    pool = pools_of(tree).get(f"{size_kb}kB", {})
    available = pool.get("available")
    result: dict[str, Any] = {
        "verdict": "pass",
        "reason": None,
        "need_bytes": need,
        "limit_bytes": tightest.bytes if tightest else None,
        "available_bytes": None if available is None else available * size_kb * 1024,
        "file": tightest.file if tightest else None,
        "text": f"{need} bytes of {format_size(size_kb)} pages can be had",
    }
    told = tree.text("/proc/self/cgroup") is not None
    if tightest and tightest.left < need:
        when = "is killed by SIGBUS at the first touch" if tightest.at_touch else "cannot map them"
        text = f"{tightest.file} leaves {tightest.left} bytes, {need} are needed: a process {when}"
        result.update(verdict="fail", reason="hugetlb_cgroup_limit", text=text)
    elif available is None or not told:
        missing = "/proc/self/cgroup" if available is not None else f"the pool of {format_size(size_kb)}"
        result.update(verdict="not_evaluated", reason="not_available", text=f"{missing} cannot be read")
    elif result["available_bytes"] < need:
        text = f"{available} pages of {format_size(size_kb)} are free and not reserved, {need} bytes are needed"
        result.update(verdict="fail", reason="pool_short", text=text)
    return result
