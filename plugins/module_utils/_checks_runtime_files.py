# SPDX-License-Identifier: Apache-2.0
"""The runtime as it lies on the host: its version as it was installed, its files as planned, nothing left over."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from . import _files, _model_push, _runtime_install
from ._checks_host import MODELS, REMEDIES, SERVERS, Check, Context, Unreadable
from ._hugetlb_cgroup import NO_LIMIT, size_name
from ._intent import page_size_kb
from ._plan_document import COLLECTION
from ._runtime_units import SLICE, server_unit, weights_unit
from ._verdict import Result, judge, skipped

STATE = "firsttouch_runtime_state"
_CGROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/hugetlb")
_LIMITS = ("max", "rsvd.max", "limit_in_bytes", "rsvd.limit_in_bytes")
_TRANSPORT_KB = 2048  # of what a server with pages: hugetlb takes
_VARIABLES = {"models": MODELS, "servers": SERVERS, "samplers": SERVERS}


def _section(ctx: Context) -> Mapping[str, Any]:
    """The section of the plan, also one that asks for the runtime to be gone."""
    return (ctx.plan.get("sections") or {}).get("runtime") or {}


def _asked(ctx: Context) -> bool:
    return bool(ctx.section("runtime"))


def check_version(ctx: Context) -> Iterator[Result]:
    """The current version: there, of this collection unless it was rolled back, and every file as it was unpacked."""
    section = ctx.section("runtime")
    if not section:
        return
    top = _runtime_install.TOP
    if ctx.unrecorded(top):
        # Recordings hold no programs: not one of them is incomplete for that.
        yield skipped("runtime.version", "configured", "not_recorded", source=top, intended=False)
        return
    try:
        version = _runtime_install.link(ctx.root, "current")
    except _runtime_install.InstallError:
        version = None
    there = version is not None and version in _runtime_install.versions(ctx.root)
    # One that no variable asks for any more is kept as it is. A rollback is to the version that it wrote down.
    kept = not set(section.get("variables") or ["?"]) - set(section.get("orphaned") or ())
    rolled_back = section.get("runtime_state") == "rollback"
    if kept:
        expected, good = "any version", True
    elif rolled_back:
        mark = _runtime_install.rolled_back(ctx.root)
        expected = mark[1] if mark else "the version before"
        good = version == expected
    else:
        expected, good = COLLECTION, str(version).rpartition("-")[0] == COLLECTION
    yield judge(
        "runtime.version",
        "configured",
        expected,
        version,
        good=there and good,
        reason="not_installed" if not there else "not_rolled_back" if rolled_back else "other_version",
        source=f"{top}/current",
        remedy=f"Run provision with {STATE}.",
    )
    if not there:
        return
    python = f"{top}/{version}/bin/python"
    if ctx.live:
        real = _files.resolve(ctx.root, python)
        found = os.path.exists(real)
        yield judge(
            "runtime.python",
            "configured",
            "there",
            "there" if found else None,
            reason="interpreter_gone",
            source=python if found else _files.inside(ctx.root, real),
            remedy=f"The host's Python was replaced: provision with {STATE} makes a version for the new one.",
        )
    damage = _runtime_install.damage(ctx.root, str(version))
    yield judge(
        "runtime.integrity",
        "configured",
        [],
        damage,
        reason="changed_by_hand",
        source=damage[0].split(" ")[0] if damage else f"{top}/{version}",
        remedy=f"Set {STATE}: present, and run provision: only the collection's own version can be made again."
        if rolled_back
        else f"Run provision with {STATE}: it makes a damaged version again.",
    )


def check_files(ctx: Context) -> Iterator[Result]:
    """What units and samplers read, word for word as planned."""
    section = ctx.section("runtime")
    etc = _runtime_install.ETC
    texts = {f"{etc}/{name}": str(text) for name, text in (section.get("files") or {}).items()}
    texts[_runtime_install.TMPFILES] = _runtime_install.TMPFILES_TEXT
    recorded = ((((ctx.recorded or {}).get("sections") or {}).get("runtime") or {}).get("files")) or {}
    for path, text in texts.items():
        folder, name = path.split("/")[-2:]
        identity = f"runtime.file.{folder}/{name}"
        own = recorded.get(f"{folder}/{name}")
        try:
            unrecorded = ctx.unrecorded(os.path.dirname(path)) and ctx.unrecorded(etc)
            found = ctx.raw(path)
        except Unreadable as exc:
            yield skipped(identity, "configured", exc.reason, source=path, remedy=REMEDIES.get(exc.reason, ""))
            continue
        if unrecorded:
            yield skipped(identity, "configured", "not_recorded", source=path)
            continue
        as_planned = found is not None and ctx.same(path, found, text, own)
        if as_planned is None:
            yield skipped(identity, "configured", "scrubbed", source=path, remedy=REMEDIES["scrubbed"])
            continue
        yield judge(
            identity,
            "configured",
            "as planned",
            None if found is None else "as planned" if as_planned else "changed",
            reason="missing" if found is None else "changed_by_hand",
            source=path,
            remedy=f"Run provision with {_VARIABLES.get(folder, STATE)}.",
        )


def _pushed(ctx: Context) -> list[Mapping[str, Any]]:
    """The models of which the controller pushed the files."""
    return [row for row in ctx.section("runtime").get("models") or () if row.get("push")]


def check_pushed(ctx: Context) -> Iterator[Result]:
    """Each model that was pushed: its files there, as long as they were, and all as the push left it: nobody but root
    may write, and the service read."""
    for model in _pushed(ctx):
        folder = str(model["source"])
        identity, manifest = f"runtime.pushed.{model['name']}", f"{folder}/{_model_push.MANIFEST}"
        if not ctx.live:
            # Recordings hold no weights: not one of them is incomplete for that.
            yield skipped(identity, "configured", "not_recorded", source=folder, intended=False)
            continue
        files = ctx.parsed(manifest, _model_push.parse_manifest)
        if files is None:
            lost, changed = [manifest], []
        else:
            rows = _model_push.differing(ctx.root, str(model["name"]), files)
            lost = [path for path, there, _right in rows if there is None]
            changed = [f"{path} is {there}, and should be {right}" for path, there, right in rows if there is not None]
            sizes = [(file, ctx.stat(f"{folder}/{file.name}")) for file in files]
            changed += [
                f"{folder}/{file.name} has {status.st_size} bytes, not {file.size}"
                for file, status in sizes
                if status is not None and status.st_size != file.size
            ]
        yield judge(
            identity,
            "configured",
            [],
            [*(f"{path} is missing" for path in lost), *changed],
            reason="missing" if lost else "changed_by_hand",
            source=folder,
            remedy=f"Run provision with {MODELS}: it pushes them again, or gives them back mode and owner.",
        )


def check_removed(ctx: Context) -> Iterator[Result]:
    """Nothing of models and servers that nobody asks for; of a runtime that is to be gone nothing at all."""
    section = _section(ctx)
    etc = _runtime_install.ETC
    models = [str(row["name"]) for row in _pushed(ctx)]
    wanted = {f"{etc}/{name}" for name in ctx.section("runtime").get("files") or {}}
    if ctx.unrecorded(etc) and ctx.unrecorded("/etc"):
        yield skipped("runtime.removed", "configured", "not_recorded", source=etc)
        return
    left = [
        f"{etc}/{folder}/{name}"
        for folder in _runtime_install.FOLDERS
        for name in ctx.names(f"{etc}/{folder}") or []
        if f"{etc}/{folder}/{name}" not in wanted
    ]
    top = _model_push.TOP
    names = ctx.names(top) or [] if ctx.live else []
    left += [f"{top}/{name}" for name in names if _model_push.is_left_over(ctx.root, name, models)]
    if section.get("state") == "absent":
        left += [_runtime_install.TMPFILES] * (ctx.raw(_runtime_install.TMPFILES) is not None)
        top = _runtime_install.TOP
        left += [f"{top}/{name}" for name in ctx.names(top) or [] if _runtime_install.is_ours(name)]
    yield judge(
        "runtime.removed",
        "configured",
        [],
        left,
        reason="left_over",
        source=left[0] if left else etc,
        remedy=f"Run provision with {STATE}, {MODELS} and {SERVERS} as they are.",
    )


def check_hugetlb_limits(ctx: Context) -> Iterator[Result]:
    """No control group of ours keeps a model or a server from its pages: the first touch past a limit is a SIGBUS."""
    section = ctx.section("runtime")
    models = {
        weights_unit(str(row["name"])): page_size_kb(row.get("page_size", "2M")) for row in section.get("models") or ()
    }
    servers = {
        server_unit(str(row["name"])): _TRANSPORT_KB
        for row in section.get("servers") or ()
        if row.get("pages") == "hugetlb"
    }
    units = {**models, **servers}
    there = [base for base in _CGROUPS if ctx.names(f"{base}/{SLICE}") is not None]
    if not units or not there:  # nothing runs there now, or nobody recorded what does
        return
    groups = {SLICE: {*units.values()}, **{f"{SLICE}/{unit}": {size_kb} for unit, size_kb in units.items()}}
    found = {}
    for base in there:
        for group, sizes in groups.items():
            for limit in _LIMITS:
                for size_kb in sorted(sizes):
                    path = f"{base}/{group}/hugetlb.{size_name(size_kb)}.{limit}"
                    text = ctx.text(path) or ""
                    if text.isdigit() and int(text) < NO_LIMIT:
                        found[path] = int(text)
    source = min(found, key=lambda path: found[path]) if found else f"{there[0]}/{SLICE}"
    variable = SERVERS if not models or source.split("/")[-2] in servers else MODELS
    no_limit = "-1" if "limit_in" in source else "max"
    yield judge(
        "runtime.hugetlb_limit",
        "running",
        {},
        found,
        reason="hugetlb_cgroup_limit",
        source=source,
        remedy=f"Take the limit off: echo {no_limit} > {source}; {variable} needs pages.",
        # Of one that leaves some nobody can tell whether they are enough.
        soft=all(found.values()),
    )


CHECKS = (
    Check("runtime.hugetlb_limit", ("running",), check_hugetlb_limits, lambda ctx: False),
    Check("runtime.version", ("configured",), check_version, _asked),
    Check("runtime.file", ("configured",), lambda ctx: check_files(ctx) if _asked(ctx) else (), _asked),
    Check("runtime.pushed", ("configured",), check_pushed, lambda ctx: bool(_pushed(ctx))),
    Check(
        "runtime.removed",
        ("configured",),
        lambda ctx: check_removed(ctx) if _section(ctx) else (),
        lambda ctx: bool(_section(ctx)),
    ),
)
