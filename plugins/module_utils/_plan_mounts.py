# SPDX-License-Identifier: Apache-2.0
"""hugetlbfs mounts: the intent becomes mount units, checked against the pools they draw from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from . import _systemd
from ._intent import IntentError, Judge, byte_size, format_size, integer, listing, mapping, page_size_kb
from ._plan_facts import Facts
from ._plan_fit import size_problem

VARIABLE = "hugetlbfs_mounts"
_KEYS = ("path", "pagesize", "size", "min_size", "owner", "group", "mode")
_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,30}\$?")
_MODE = re.compile(r"0?[0-7]{3,4}")
# Mounting over one of these hides what the host needs to run.
_SYSTEM = frozenset(
    [
        "/",
        "/bin",
        "/boot",
        "/dev",
        "/dev/mqueue",
        "/dev/pts",
        "/dev/shm",
        "/etc",
        "/home",
        "/lib",
        "/lib64",
        "/media",
        "/mnt",
        "/opt",
        "/proc",
        "/root",
        "/run",
        "/sbin",
        "/srv",
        "/sys",
        "/tmp",
        "/usr",
        "/var",
        "/var/lib",
        "/var/log",
        "/var/tmp",
    ]
)
_NO_PLACE = ("/proc/", "/sys/", "/boot/", "/etc/", "/usr/", "/dev/pts/", "/dev/shm/")


@dataclass(frozen=True)
class Mount:
    """One mount of the intent; sizes in bytes, owner and group as names or numbers in text."""

    path: str
    size_kb: int
    size: int | None
    min_size: int | None
    owner: str
    group: str
    mode: str


def plan_mounts(
    intent: Mapping[str, Any], pools: Iterable[Mapping[str, Any]], facts: Facts, judge: Judge
) -> list[dict[str, Any]]:
    """The `mounts` of the hugepages section; `content` of each is its unit. POOLS are the planned or recorded ones."""
    rows = list(pools)
    mounts = _parse(intent["hugetlbfs_mounts"], rows, facts, judge)
    _check_paths(mounts, facts, judge)
    _check_sizes(mounts, {int(row["size_kb"]): int(row["total"]) for row in rows}, facts, judge)
    for mount in mounts:
        if facts.users is not None and not mount.owner.isdigit() and mount.owner not in facts.users:
            judge.refuse("no_such_user", VARIABLE, f"{mount.path}: this host has no user {mount.owner!r}")
    return [] if judge.refusals else [_row(mount) for mount in mounts]


def mount_paths(value: Any) -> list[str]:
    """The mount points that an intent names, whatever else is wrong with it."""
    rows = value if isinstance(value, list) else []
    return [row["path"] for row in rows if isinstance(row, Mapping) and isinstance(row.get("path"), str)]


def mount_owners(value: Any) -> list[str]:
    """The owners that an intent names, whatever else is wrong with it."""
    rows = value if isinstance(value, list) else []
    return [str(row.get("owner") or "root") for row in rows if isinstance(row, Mapping)]


def _parse(value: Any, pools: list[Mapping[str, Any]], facts: Facts, judge: Judge) -> list[Mount]:
    try:
        rows = listing(value, "mounts")
    except IntentError as exc:
        judge.refuse("bad_value", VARIABLE, str(exc))
        return []
    default = int(pools[0]["size_kb"]) if pools else facts.topology.default_hugepage_kb
    mounts = []
    for position, row in enumerate(rows, 1):
        try:
            mounts.append(_parse_mount(mapping(row, _KEYS, f"mount {position}"), default))
        except IntentError as exc:
            judge.refuse("bad_value", VARIABLE, f"mount {position}: {exc}")
    return mounts


def _parse_mount(row: Mapping[str, Any], default: int | None) -> Mount:
    path = _path(row.get("path"))
    if "pagesize" not in row and default is None:
        raise IntentError(f"{path} has no pagesize, and there is no pool to take it from")
    mode = row.get("mode", "0770")
    if not isinstance(mode, str) or not _MODE.fullmatch(mode):
        raise IntentError(f"mode {mode!r} of {path}: write it quoted and octal, like '0770'")
    return Mount(
        path=path,
        size_kb=page_size_kb(row["pagesize"]) if "pagesize" in row else int(default or 0),
        size=byte_size(row["size"]) if "size" in row else None,
        min_size=byte_size(row["min_size"]) if "min_size" in row else None,
        owner=_owner(row.get("owner", "root"), "owner", path),
        group=_owner(row.get("group", "firsttouch"), "group", path),
        mode=mode.rjust(4, "0"),
    )


def _path(value: Any) -> str:
    if not isinstance(value, str) or not value.startswith("/"):
        raise IntentError(f"path {value!r} is not an absolute path")
    parts = [part for part in value.split("/") if part]
    if {".", ".."} & set(parts) or re.search(r"[\x00-\x20\x7f\\,\"']", value):
        raise IntentError(f"path {value!r} has a '.' or '..' component, a blank, a quote or a comma")
    path = "/" + "/".join(parts)
    if path in _SYSTEM or path.startswith(_NO_PLACE):
        raise IntentError(f"path {path} belongs to the system; use one of its own, like /dev/hugepages-2M")
    try:
        _systemd.unit_name_for_path(path)
    except ValueError as exc:
        raise IntentError(str(exc)) from None
    return path


def _owner(value: Any, what: str, path: str) -> str:
    if isinstance(value, int) or (isinstance(value, str) and value.isdigit()):
        return str(integer(value, least=0, most=0xFFFFFFFE))
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise IntentError(f"{what} {value!r} of {path} is neither a name nor a number")
    return value


def _check_paths(mounts: list[Mount], facts: Facts, judge: Judge) -> None:
    for position, mount in enumerate(mounts):
        for other in mounts[:position]:
            a, b = sorted((mount.path, other.path), key=len)
            if b == a or b.startswith(a + "/"):
                text = f"{mount.path} is given twice" if a == b else f"{b} is below the other mount {a}"
                judge.refuse("mount_path_conflict", VARIABLE, text, path=mount.path)
        kind = facts.mounts.get(mount.path)
        if kind not in (None, "hugetlbfs"):
            text = f"{mount.path} is where a {kind} is mounted already; choose another path"
            judge.refuse("mount_point_in_use", VARIABLE, text, path=mount.path)
        elif kind is None and mount.path in facts.full_dirs:
            text = f"{mount.path} is a directory with files, which a mount would hide; choose another path"
            judge.refuse("mount_point_in_use", VARIABLE, text, path=mount.path)


def _check_sizes(mounts: list[Mount], totals: Mapping[int, int], facts: Facts, judge: Judge) -> None:
    promised: dict[int, int] = {}
    for mount in mounts:
        page, size = mount.size_kb * 1024, format_size(mount.size_kb)
        problem = size_problem(mount.size_kb, facts)
        if problem:
            judge.refuse("page_size_unsupported", VARIABLE, f"{mount.path}, pages of {size}: {problem[1]}",
                         size=size, cause=problem[0])  # fmt: skip
            continue
        for name, number in (("size", mount.size), ("min_size", mount.min_size)):
            if number is not None and (number % page or not number):
                text = f"{mount.path}: {name} of {number} bytes is not a positive multiple of {size} ({page} bytes)"
                judge.refuse("bad_value", VARIABLE, text)
        if mount.size is not None and mount.min_size is not None and mount.min_size > mount.size:
            text = f"{mount.path}: min_size {mount.min_size} is more than size {mount.size}"
            judge.refuse("bad_value", VARIABLE, text)
        promised[mount.size_kb] = promised.get(mount.size_kb, 0) + (mount.min_size or 0)
        if not totals.get(mount.size_kb):
            judge.note("mount_without_pool", VARIABLE, f"{mount.path}: no pool of {size} pages is planned")
        elif (mount.size or 0) > totals[mount.size_kb] * page:
            text = f"{mount.path}: size {mount.size} is more than the pool of {totals[mount.size_kb] * page} bytes"
            judge.note("mount_size_above_pool", VARIABLE, text)
    for size_kb, asked in promised.items():
        pool = totals.get(size_kb, 0) * size_kb * 1024
        if asked > pool:
            text = (
                f"min_size of the mounts of {format_size(size_kb)} pages adds up to {asked} bytes, the pool has "
                f"{pool}; ask for less or for more pages in firsttouch_hugepages"
            )
            judge.refuse("min_size_exceeds_pool", VARIABLE, text, asked=asked, available=pool)


def _row(mount: Mount) -> dict[str, Any]:
    size = format_size(mount.size_kb)
    text = _systemd.render_hugetlbfs_mount(
        mount.path,
        size,
        owner=mount.owner,
        group=mount.group,
        mode=mount.mode,
        size_bytes=mount.size,
        min_size_bytes=mount.min_size,
    )
    return {
        "path": mount.path,
        "page_size": size,
        "size_bytes": mount.size,
        "min_size_bytes": mount.min_size,
        "owner": mount.owner,
        "group": mount.group,
        "mode": mount.mode,
        "unit": _systemd.unit_name_for_path(mount.path),
        "content": text,
    }
