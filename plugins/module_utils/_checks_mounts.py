# SPDX-License-Identifier: Apache-2.0
"""hugetlbfs mounts: what the kernel mounted, against the mounts of the plan."""

from __future__ import annotations

import grp
import pwd
import stat
from collections.abc import Iterator, Mapping
from typing import Any

from ._checks_host import MOUNTS, Check, Context, Unreadable
from ._mounts import SOURCES, Mount, parse_mounts, size_bytes
from ._sysctl_judge import memory_facts
from ._verdict import Result, judge, skipped

_MOUNTINFO = SOURCES[0]


def read_mounts(ctx: Context) -> list[Mount] | None:
    """The hugetlbfs mounts of the host in mount order; None when no file tells. Raises Unreadable."""
    refused = None
    for source in SOURCES:
        try:
            text = ctx.text(source)
        except Unreadable as exc:
            refused = exc
            continue
        if text:
            return parse_mounts(text, memory_facts(ctx.root)[0])
    if refused:
        raise refused
    return None


def _planned(ctx: Context) -> list[Mapping[str, Any]]:
    return [dict(mount) for mount in ctx.section("hugepages").get("mounts") or []]


def check_mounts(ctx: Context) -> Iterator[Result]:
    """Every mount of the plan: there, once, with the page size, limits, owner, group and mode asked for."""
    planned = _planned(ctx)
    mounts = read_mounts(ctx) if planned else []
    for want in planned:
        identity, path = f"hugepages.mount.{want['path']}", str(want["path"])
        if mounts is None:
            yield skipped(identity, "running", "not_available", expected=want["page_size"], source=_MOUNTINFO)
            continue
        here = [mount for mount in mounts if mount.path == path]
        unit = str(want.get("unit") or "")
        yield judge(
            identity,
            "running",
            "hugetlbfs",
            "hugetlbfs" if here else None,
            reason="not_mounted",
            source=_unit(want),
            remedy=f"Run provision with {MOUNTS}; to see why it is not mounted: systemctl status '{unit}'.",
        )
        if not here:
            continue
        stacked = len(here) > 1 or here[-1].covered
        yield judge(
            f"{identity}.stacked",
            "running",
            {"mounts": 1, "covered": False},
            {"mounts": len(here), "covered": here[-1].covered},
            reason="stacked_mount" if stacked else "",
            source=_MOUNTINFO,
            remedy=f"Mounted over: umount {path} until one is left, or take it out of {MOUNTS}.",
        )
        yield from _check_options(identity, want, here[-1])
        yield from _check_access(ctx, identity, want, here[-1])


def _unit(want: Mapping[str, Any]) -> str:
    unit = want.get("unit")
    return f"/etc/systemd/system/{unit}" if unit else ""


def _check_options(identity: str, want: Mapping[str, Any], mount: Mount) -> Iterator[Result]:
    page = size_bytes(str(want["page_size"]))
    remedy = f"Run provision with {MOUNTS}, then unmount {mount.path} once so that its unit mounts it anew."
    read_only = "ro" in mount.options.split(",")
    yield judge(
        f"{identity}.writable",
        "running",
        "rw",
        "ro" if read_only else "rw",
        reason="read_only",
        source=_MOUNTINFO,
        remedy=remedy,
    )
    rows: list[tuple[str, int | None, int | None]] = [("page_size", page, mount.page_size)]
    for name, live in (("size", mount.size), ("min_size", mount.min_size)):
        asked = want.get(f"{name}_bytes")
        # hugetlbfs keeps whole pages (size_opt >>= huge_page_shift in fs/hugetlbfs/inode.c).
        rows.append((name, None if asked is None else int(asked) // page * page, live))
    for name, wanted, live in rows:
        if live is None and wanted is not None and mount.problem:
            yield skipped(
                f"{identity}.{name}",
                "running",
                "unreadable",
                expected=wanted,
                observed=mount.problem,
                source=_MOUNTINFO,
            )
            continue
        yield judge(
            f"{identity}.{name}",
            "running",
            wanted,
            live,
            reason="wrong_value",
            source=_unit(want),
            remedy=remedy,
        )


def _check_access(ctx: Context, identity: str, want: Mapping[str, Any], mount: Mount) -> Iterator[Result]:
    owner, group = str(want.get("owner") or "root"), str(want.get("group") or "root")
    mode = int(str(want.get("mode") or "0755"), 8)
    remedy = f"Run provision with {MOUNTS}: owner, group and mode must be options of the mount."
    if ctx.live:
        found = ctx.stat(mount.path)
        if found is None:
            yield skipped(f"{identity}.access", "running", "not_available", source=mount.path)
            return
        live = (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode))
    else:
        # hugetlbfs shows uid, gid and mode only where they differ from root, root, 0755.
        live = (mount.uid or 0, mount.gid or 0, int(mount.mode or "755", 8))
    for name, asked, database, got in (("owner", owner, "passwd", live[0]), ("group", group, "group", live[1])):
        try:
            number = lookup_id(ctx, asked, database)
        except Unreadable as exc:
            yield skipped(f"{identity}.{name}", "running", exc.reason, expected=asked, source=exc.path)
            continue
        if number is None and ctx.unrecorded("/etc"):
            source = f"/etc/{database}"
            yield skipped(f"{identity}.{name}", "running", "not_recorded", expected=asked, source=source)
            continue
        reason = "unknown_name" if number is None else "wrong_value"
        observed = asked if number == got else _name(ctx, got, database)
        yield judge(
            f"{identity}.{name}",
            "running",
            asked,
            observed,
            good=number is not None and number == got,
            reason=reason,
            source=mount.path,
            remedy=remedy,
        )
    yield judge(
        f"{identity}.mode",
        "running",
        f"{mode:04o}",
        f"{live[2]:04o}",
        reason="wrong_value",
        source=mount.path,
        remedy=remedy,
    )


def _accounts(ctx: Context, database: str) -> dict[str, int]:
    rows = (line.split(":") for line in (ctx.text(f"/etc/{database}") or "").splitlines())
    return {row[0]: int(row[2]) for row in rows if len(row) > 2 and row[2].isdigit()}


def lookup_id(ctx: Context, name: str, database: str) -> int | None:
    """The uid (DATABASE passwd) or gid (group) of NAME, a number being itself; None when there is none.

    The host's files first; on a live host also its name services (LDAP, SSSD).
    """
    if name.isdigit():
        return int(name)
    found = _accounts(ctx, database).get(name)
    if found is not None or not ctx.live:
        return found
    try:
        return pwd.getpwnam(name).pw_uid if database == "passwd" else grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def _name(ctx: Context, number: int, database: str) -> str:
    names = [name for name, value in _accounts(ctx, database).items() if value == number]
    return names[0] if names else str(number)


CHECKS = (Check("hugepages.mount", ("running",), check_mounts, lambda ctx: bool(_planned(ctx))),)
