# SPDX-License-Identifier: Apache-2.0
"""What of the huge page pools can be had: free less reserved, surplus, overcommit, files that nobody uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from . import _hugepages
from ._checks_host import HUGEPAGES, Check, Context
from ._checks_mounts import read_mounts
from ._hugetlb_files import HugeFile, holders, is_image, list_files, other_namespaces
from ._intent import format_size
from ._sysctl_judge import memory_facts
from ._topology_nodes import POOL_DIR
from ._verdict import Result, judge, not_applicable, skipped

_SYSCTL = "/proc/sys/vm/nr_hugepages"
_STALE = "hugepages.stale_files"
_SHOWN = 40


def _pools(ctx: Context) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = ctx.keep("pools", lambda: _hugepages.read_pools(ctx.root))
    return found


def check_available(ctx: Context) -> Iterator[Result]:
    """Pages that can still be had: free ones may already be promised to a mapping (resv_hugepages)."""
    for pool in _pools(ctx).values():
        size, base = format_size(pool["size_kb"]), f"{POOL_DIR}/hugepages-{pool['size_kb']}kB"
        if pool["total"] == 0:
            continue
        counts = {name: pool.get(name) for name in ("available", "free", "reserved", "total")}
        missing = [name for name in ("free", "reserved", "total") if counts[name] is None]
        if missing:
            file = {"free": "free", "reserved": "resv", "total": "nr"}[missing[0]]
            source = f"{base}/{file}_hugepages".replace("nr_hugepages_hugepages", "nr_hugepages")
            yield skipped(
                f"hugepages.available.{size}", "running", "not_available", source=source, intended=False
            )
            continue
        yield judge(
            f"hugepages.available.{size}",
            "running",
            None,
            counts,
            good=counts["available"] != 0,
            reason="pool_exhausted",
            source=f"{base}/free_hugepages",
            remedy=f"Whoever needs a page now gets none: see {_STALE}, or ask for more in {HUGEPAGES}.",
            intended=False,
        )


def check_surplus(ctx: Context) -> Iterator[Result]:
    """Surplus pages, and the permission to make them: they come from ordinary memory when it is too late."""
    for pool in _pools(ctx).values():
        size, base = format_size(pool["size_kb"]), f"{POOL_DIR}/hugepages-{pool['size_kb']}kB"
        rows = (
            ("surplus", "surplus_pages", "surplus_hugepages", "Surplus pages go when their user ends"),
            ("overcommit", "overcommit_allowed", "nr_overcommit_hugepages", "Pages may be taken at a fault"),
        )
        for name, reason, file, text in rows:
            if pool.get(name) is None:
                if file in (ctx.names(base) or ()):
                    yield skipped(
                        f"hugepages.{name}.{size}", "running", "unreadable", source=f"{base}/{file}", intended=False
                    )
                continue
            yield judge(
                f"hugepages.{name}.{size}",
                "running",
                None,
                pool[name],
                good=pool[name] == 0,
                reason=reason,
                source=f"{base}/{file}",
                remedy=f"{text}: reserve what is needed in {HUGEPAGES} and write 0 to "
                f"{base}/nr_overcommit_hugepages.",
                intended=False,
            )


def check_counter(ctx: Context) -> Iterator[Result]:
    """vm.nr_hugepages against the pool of the default size: a container may see one of them and not the other."""
    identity, counter = "hugepages.counter", ctx.parsed(_SYSCTL, int)
    if counter is None:
        reason = "not_available"
        yield skipped(identity, "running", reason, source=_SYSCTL, intended=bool(ctx.section("hugepages")))
        return
    default = memory_facts(ctx.root)[0]
    pool = _pools(ctx).get(f"{default}kB", {})
    if pool.get("total") is None:
        source = f"{POOL_DIR}/hugepages-{default}kB/nr_hugepages" if default else "/proc/meminfo"
        yield skipped(identity, "running", "not_available", source=source, intended=False)
        return
    yield judge(
        identity,
        "running",
        pool["total"],
        counter,
        reason="counters_disagree",
        source=_SYSCTL,
        remedy=f"They count the same pages of {HUGEPAGES}: verify again on the host itself, not in a container.",
        intended=False,
    )


def check_stale(ctx: Context) -> Iterator[Result]:
    """Files on hugetlbfs mounts that no process has open or mapped: their pages are gone until they are deleted.

    Nothing is deleted here, and a model that the runtime loaded and that waits for its workers is named apart. A
    file without pages counts while anything is reserved: what was mapped once may still be promised to it.
    """
    mounts = read_mounts(ctx)
    if mounts is None:
        yield skipped(_STALE, "running", "not_available", source="/proc/self/mountinfo", intended=False)
        return
    if not mounts:
        yield not_applicable(_STALE, "running", "no_mount", source="/proc/self/mountinfo")
    elif not ctx.live and all(ctx.names(mount.path) is None for mount in mounts):
        yield skipped(_STALE, "running", "not_recorded", source=mounts[0].path, intended=False)
    else:
        listing = list_files(ctx.root, mounts, ctx.live)
        # What could not be listed may hold stale files: then none found is no answer.
        if listing.files or not listing.refused:
            yield from _stale(ctx, listing.files)
        for path, reason in sorted(listing.refused.items()):
            yield skipped(f"{_STALE}.{path}", "running", reason, source=path, intended=False)
    yield from _elsewhere(ctx)


def _elsewhere(ctx: Context) -> Iterator[Result]:
    """Mounts that other mount namespaces have are told, not looked into."""
    elsewhere = other_namespaces(ctx.root)
    if elsewhere.refused:
        yield skipped(
            f"{_STALE}.namespaces",
            "running",
            "permission_denied",
            source=elsewhere.refused,
            remedy="Containers may have mounts of their own: run the verification as root.",
            intended=False,
        )
    for path, pid in sorted(elsewhere.mounts.items()):
        yield skipped(
            f"{_STALE}.pid{pid}:{path}",
            "running",
            "other_mount_namespace",
            observed={"pid": pid, "mount": path},
            source=f"/proc/{pid}/mountinfo",
            remedy=f"Only a container sees this mount: list it with ls -l /proc/{pid}/root{path}.",
            intended=False,
        )


def _stale(ctx: Context, files: Sequence[HugeFile]) -> Iterator[Result]:
    if not files:
        yield Result(_STALE, "pass", "running", None, [], "", "/proc/self/mountinfo", "", False)
        return
    held = holders(ctx.root, files, ctx.live)
    reserved = any(pool.get("reserved") for pool in _pools(ctx).values())
    free = [file for file in files if file.key not in held.keys and (file.bytes or reserved)]
    images = [file for file in free if is_image(ctx.root, file)]
    free = [file for file in free if file not in images]
    if images:
        yield Result(f"{_STALE}.models", "pass", "running", None, _rows(images), "", images[0].path, "", False)
    if free and held.hidden:
        reason, path = held.hidden
        yield skipped(
            _STALE,
            "running",
            reason,
            observed=_rows(free),
            source=path,
            remedy="Not every process could be asked whether it uses these: run the verification as root.",
            intended=False,
        )
        return
    total = sum(file.bytes for file in free)
    yield judge(
        _STALE,
        "running",
        None,
        _rows(free),
        good=not free,
        reason="stale_file",
        source=free[0].path if free else "/proc/self/mountinfo",
        remedy=f"Nobody has them open or mapped, and they keep {total} bytes of {HUGEPAGES}: delete what is "
        "not needed any more.",
        intended=False,
    )


def _rows(files: Sequence[HugeFile]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"path": file.path, "bytes": file.bytes, "pages": file.pages, "uid": file.uid} for file in files[:_SHOWN]
    ]
    rest = files[_SHOWN:]
    return [*rows, {"more": len(rest), "bytes": sum(file.bytes for file in rest)}] if rest else rows


CHECKS = (
    Check("hugepages.available", ("running",), check_available, lambda ctx: False),
    Check("hugepages.surplus", ("running",), check_surplus, lambda ctx: False),
    Check("hugepages.counter", ("running",), check_counter, lambda ctx: bool(ctx.section("hugepages"))),
    Check(_STALE, ("running",), check_stale, lambda ctx: False),
)
