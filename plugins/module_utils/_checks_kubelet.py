# SPDX-License-Identifier: Apache-2.0
"""The kubelet against the plan: our file, what wins over it, whether the memory still adds up, the state it runs by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from . import _kubelet_apply, _kubelet_host
from ._checks_host import Check, Context
from ._kubelet import quantity
from ._kubelet_host import KubeletError
from ._topology import read_topology
from ._verdict import Result, judge, not_applicable, skipped

KUBELET = "firsttouch_kubelet"


def _config(ctx: Context) -> Mapping[str, Any]:
    found: Mapping[str, Any] = ctx.section("kubelet").get("config") or {}
    return found


def _asked(ctx: Context) -> bool:
    return bool(_config(ctx))


def _recorded(ctx: Context) -> Mapping[str, Any]:
    """The section, also where its state is absent: it names the file that is to be gone."""
    return (ctx.plan.get("sections") or {}).get("kubelet") or {}


def check_file(ctx: Context) -> Iterator[Result]:
    """Our file as planned, or gone."""
    path = _recorded(ctx).get("file")
    if not path:
        return
    if ctx.unrecorded(path.rpartition("/")[0]):
        if _config(ctx):
            yield skipped("kubelet.file", "configured", "not_recorded", source=path)
        return
    text, wanted = ctx.raw(path), _kubelet_apply.render(_config(ctx))
    if wanted is None and text is None:
        return
    reason = "not_removed" if wanted is None else "not_configured" if text is None else "changed_by_hand"
    yield judge(
        "kubelet.file",
        "configured",
        "as planned" if wanted else None,
        None if text is None else "as planned" if text == wanted else "different",
        reason=reason,
        source=path,
        remedy=f"Run provision with {KUBELET} as it is, absent included; the node must be drained.",
    )


def check_effective(ctx: Context) -> Iterator[Result]:
    """Nobody wins over our file, and the memory reserved is still what the files of others add up to."""
    if not _asked(ctx):
        return
    source = str(_recorded(ctx)["file"])
    if ctx.unrecorded("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"):
        yield skipped("kubelet.effective", "next_boot", "not_recorded", source=source)
        return
    try:
        kubelet = _kubelet_host.read_kubelet(ctx.root)
        if kubelet is None:
            yield _not_installed(ctx)
            return
        yield _winner(kubelet, source)
        yield _sum(kubelet, _config(ctx), source)
    except KubeletError as exc:
        remedy = f"Give in {KUBELET} what cannot be read."
        yield skipped("kubelet.effective", "next_boot", exc.reason, source=exc.path, remedy=remedy)


def _not_installed(ctx: Context) -> Result:
    """A host that gets its kubelet later has none yet; one that has the state of a kubelet has lost it."""
    folder = str(_recorded(ctx)["root_dir"])
    if all(ctx.raw(f"{folder}/{name}") is None for name in _kubelet_apply.STATES):
        return not_applicable("kubelet.effective", "next_boot", "not_installed", source=_kubelet_host.UNIT)
    return judge(
        "kubelet.effective",
        "next_boot",
        "installed",
        None,
        reason="not_installed",
        source=_kubelet_host.UNIT,
        remedy=f"Install the kubelet again, or set {KUBELET}: absent.",
    )


def _winner(kubelet: _kubelet_host.Kubelet, source: str) -> Result:
    found = [f"{kubelet.unit}: --{flag}" for flag in _kubelet_host.OURS.values() if flag in kubelet.flags]
    found += [
        f"{path}: {name}" for path, top in kubelet.after_ours() for name in _kubelet_host.OURS if name in top
    ]
    if kubelet.dropin != source:
        found.append(f"{kubelet.unit}: --config-dir={kubelet.config_dir}")
    return judge(
        "kubelet.effective",
        "next_boot",
        [],
        found,
        reason="overridden_by",
        source=found[0].split(": ")[0] if found else source,
        remedy=f"Take it out there: {KUBELET} owns these fields, in {source}.",
    )


def _sum(kubelet: _kubelet_host.Kubelet, config: Mapping[str, Any], source: str) -> Result:
    """What the kubelet compares when it starts; it does not start where both are not equal."""
    needed, where = 0, source
    for name in _kubelet_host.RESERVING:
        table = config.get(name)
        part = _kubelet_host.reserved(kubelet, name)
        flag = _kubelet_host.RESERVING[name] in kubelet.flags
        given = next(iter(table.values())) if table and not flag else None
        needed += part.bytes if given is None else quantity(given)
        where = part.source if given is None and part.source.startswith("/") else where
    held = sum(quantity(row["limits"]["memory"]) for row in config.get("reservedMemory") or ())
    return judge(
        "kubelet.reserved",
        "next_boot",
        needed,
        held,
        reason="reserved_differs",
        source=where.split(": ")[0],
        remedy=f"Run provision with {KUBELET}: the kubelet does not start before both are equal.",
    )


def check_state(ctx: Context) -> Iterator[Result]:
    """The policies that the kubelet runs by, and a memory that it will find again when it starts."""
    if not _asked(ctx):
        return
    section = _recorded(ctx)
    root_dir = str(section["root_dir"])
    if ctx.unrecorded(root_dir):
        yield skipped("kubelet.state", "running", "not_recorded", source=root_dir)
        return
    missing = [name for name in _kubelet_apply.STATES if ctx.raw(f"{root_dir}/{name}") is None]
    if len(missing) == len(_kubelet_apply.STATES):  # a kubelet that has never started has no state to be wrong
        yield not_applicable("kubelet.state", "running", "not_available", source=f"{root_dir}/{missing[0]}")
        return
    plan = _kubelet_apply.make_plan(ctx.root, None, _config(ctx), root_dir, read_topology(ctx.root), {}, None)
    for name in _kubelet_apply.STATES:
        path, identity = f"{root_dir}/{name}", f"kubelet.{name.rpartition('_')[0]}"
        if name in missing:
            remedy = "Drain the node and restart the kubelet, which writes it."
            yield skipped(identity, "running", "not_available", source=path, remedy=remedy)
            continue
        found, wanted = plan.states.get(path, ("as planned", ""))
        yield judge(
            identity,
            "running",
            "as planned",
            f"{found} instead of {wanted}" if wanted else found,
            reason="state_stale",
            source=path,
            remedy=f"Drain the node, and run provision with {KUBELET}: the kubelet does not start with that state.",
        )


CHECKS = (
    Check("kubelet.file", ("configured",), check_file, _asked),
    Check("kubelet.effective", ("next_boot",), check_effective, _asked),
    Check("kubelet.state", ("running",), check_state, _asked),
)
