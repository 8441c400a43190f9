# SPDX-License-Identifier: Apache-2.0
"""The runtime on the host: its version as it was installed, models resident where they belong, servers that answer.

What only the runtime can tell (who maps which image, how long a request takes) is asked of its own command; what the
kernel tells (on which CPUs a thread may run) that command reads from /proc, and is judged here.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from . import _runtime_install
from ._checks_host import ISOLATED, MODELS, SERVERS, Check, Context
from ._cpulist import parse
from ._plan_document import COLLECTION
from ._verdict import Result, judge, skipped

STATE = "firsttouch_runtime_state"
TARGET = "firsttouch_latency_target_us"
COMMAND = f"{_runtime_install.TOP}/current/bin/firsttouch"
_SECONDS = 120
# Of a model that is larger not every byte is read: that takes memory bandwidth from whoever serves.
_DEEP_UP_TO = 1 << 30


def ask(words: Sequence[str]) -> tuple[int, dict[str, Any]]:
    """(exit status, the JSON that the runtime's command WORDS prints; empty when it is none)."""
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            [COMMAND, *words], capture_output=True, timeout=_SECONDS, check=False, env=environment,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        found = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return 124, {}
    except ValueError:
        return done.returncode, {}
    return done.returncode, found if isinstance(found, dict) else {}


def _rows(ctx: Context, kind: str) -> list[Mapping[str, Any]]:
    return list(ctx.section("runtime").get(kind) or ())


def _asked(ctx: Context) -> bool:
    return bool(ctx.section("runtime"))


def check_version(ctx: Context) -> Iterator[Result]:
    """The current version: there, of this collection unless it was rolled back, and every file as it was unpacked."""
    section = ctx.section("runtime")
    if not section:
        return
    top = _runtime_install.TOP
    if ctx.unrecorded(top):
        yield skipped("runtime.version", "configured", "not_recorded", source=top)
        return
    try:
        version = _runtime_install.link(ctx.root, "current")
    except _runtime_install.InstallError:
        version = None
    there = version is not None and version in _runtime_install.versions(ctx.root)
    rolled_back = section.get("runtime_state") == "rollback"
    yield judge(
        "runtime.version",
        "configured",
        "any version" if rolled_back else COLLECTION,
        version,
        good=there and (rolled_back or str(version).rpartition("-")[0] == COLLECTION),
        reason="other_version" if there else "not_installed",
        source=f"{top}/current",
        remedy=f"Run provision with {STATE}.",
    )
    if not there:
        return
    damage = _runtime_install.damage(ctx.root, str(version))
    yield judge(
        "runtime.integrity",
        "configured",
        [],
        damage,
        reason="changed_by_hand",
        source=damage[0].split(" ")[0] if damage else f"{top}/{version}",
        remedy=f"Remove {top}/{version}, and run provision with {STATE}.",
    )


def _unable(ctx: Context, identity: str, layer: str) -> Result | None:
    """Why the runtime cannot be asked; None when it can."""
    if not ctx.live:
        return skipped(identity, layer, "offline", source=COMMAND)
    if os.geteuid() != 0:
        return skipped(
            identity, layer, "permission_denied", source=COMMAND, remedy="Run the verification as root."
        )
    if not os.access(COMMAND, os.X_OK):
        return skipped(
            identity, layer, "not_installed", source=COMMAND, remedy=f"Run provision with {STATE}."
        )
    return None


def check_weights(ctx: Context) -> Iterator[Result]:
    """Each model: an image that is complete, on the nodes asked for."""
    for model in _rows(ctx, "models"):
        name, mount = str(model["name"]), str(model["mount"])
        identity = f"runtime.weights.{name}"
        unable = _unable(ctx, identity, "running")
        if unable:
            yield unable
            continue
        images = [row for row in _images(ctx, mount) if row.get("model") == name and row.get("ready")]
        newest = max((row["generation"] for row in images), default=None)
        images = [row for row in images if row["generation"] == newest]
        remedy = f"See journalctl -u firsttouch-weights@{name}, then run provision with {MODELS}."
        yield judge(
            identity,
            "running",
            "resident",
            "resident" if images else None,
            reason="not_resident",
            source=mount,
            remedy=remedy,
        )
        if images:
            yield _placed(identity, model, images)


def _images(ctx: Context, mount: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ctx.keep(
        f"images {mount}", lambda: ask(["weights", "ls", "--json", "--dir", mount])[1].get("images") or []
    )
    return found


def _placed(identity: str, model: Mapping[str, Any], images: Sequence[Mapping[str, Any]]) -> Result:
    """The nodes of the pages: with `replicate` one image for each, all of its pages there."""
    wanted = [int(node) for node in model["nodes"]]
    policy = model["policy"]
    per_image = [
        {int(node): count for node, count in (row.get("pages_by_node") or {}).items() if count}
        for row in images
    ]
    nodes = sorted({node for counts in per_image for node in counts})
    if policy == "replicate":
        own = {row.get("node"): sorted(counts) for row, counts in zip(images, per_image)}
        good = all(own.get(node) == [node] for node in wanted)
    elif policy == "interleave":
        good = nodes == sorted(wanted)
    else:
        good = policy in ("any", "prefer") or set(nodes) <= set(wanted)
    return judge(
        f"{identity}.nodes",
        "running",
        {"policy": policy, "nodes": wanted},
        {"nodes": nodes, "images": len(images)},
        good=good and bool(nodes),
        reason="wrong_node",
        source=str(model["mount"]),
        remedy=f"Restart firsttouch-weights@{model['name']}, or change nodes in {MODELS}.",
    )


def check_digests(ctx: Context) -> Iterator[Result]:
    """Each model: every chunk in memory still has the digest that it had when it was loaded."""
    for model in _rows(ctx, "models"):
        name, mount = str(model["name"]), str(model["mount"])
        identity = f"runtime.digest.{name}"
        unable = _unable(ctx, identity, "measured")
        size = (
            0 if unable else sum(int(row["bytes"]) for row in _images(ctx, mount) if row.get("model") == name)
        )
        if unable or size > _DEEP_UP_TO:
            by_hand = f"Run {COMMAND} weights verify {name} --deep when nothing is served."
            yield unable or skipped(
                identity, "measured", "too_large", observed=size, remedy=by_hand, intended=False
            )
            continue
        status, found = ask(["weights", "verify", name, "--deep", "--json", "--dir", mount])
        error = found.get("error") or {}
        yield judge(
            identity,
            "measured",
            "as loaded",
            "as loaded" if status == 0 and found else error.get("message") or f"exit status {status}",
            reason=str(error.get("code") or "not_resident"),
            source=mount,
            remedy=f"Restart firsttouch-weights@{name}; its source is in {MODELS}.",
        )


def check_servers(ctx: Context) -> Iterator[Result]:
    """Each server: real requests answered in time, over the transport decided, by threads and memory in their place."""
    serving: dict[int, list[str]] = {}
    isolated = parse(str(ctx.section("cpu_isolation").get("isolated") or ""))
    for server in _rows(ctx, "servers"):
        name = str(server["name"])
        identity = f"runtime.server.{name}"
        unable = _unable(ctx, identity, "measured")
        if unable:
            yield unable
            continue
        status, found = ask(["ping", "--server", name, "--json"])
        yield from _answers(identity, server, status, found)
        own = found.get("server") or {}
        if not own:
            continue
        yield from _place(identity, server, own, found, isolated)
        for thread in (own.get("cpus") or {}).get("threads") or []:
            for cpu in parse(str(thread["cpus"])) & isolated:
                serving.setdefault(cpu, []).append(f"{name}/{thread['name']}")
    shared = {str(cpu): threads for cpu, threads in sorted(serving.items()) if len(threads) > 1}
    if serving:
        yield judge(
            "runtime.cpus_shared",
            "running",
            {},
            shared,
            reason="cpu_shared",
            source="/proc",
            remedy=f"Give each thread a CPU of its own in {SERVERS}, or isolate more with {ISOLATED}.",
        )


def _answers(
    identity: str, server: Mapping[str, Any], status: int, found: Mapping[str, Any]
) -> Iterator[Result]:
    name = server["name"]
    unit = f"firsttouch-server@{name}"
    calls, answered = found.get("calls"), found.get("answered")
    yield judge(
        f"{identity}.answers",
        "measured",
        calls,
        answered,
        good=bool(calls) and calls == answered,
        reason="no_answer",
        source=str(found.get("address") or unit),
        remedy=f"See journalctl -u {unit}, then run provision with {SERVERS}.",
    )
    if not answered:
        return
    target = found.get("latency_target_us")
    yield judge(
        f"{identity}.latency",
        "measured",
        f"p50 of at most {target} us",
        {key: found.get(key) for key in ("p50_us", "p99_us", "max_us")},
        good=found.get("within_target") is not False,
        reason="too_slow",
        source=str(found.get("address")),
        remedy=f"Look at {identity}.cpus and .memory; or allow more with latency_target_us in {SERVERS}, or {TARGET}.",
    )
    transport, wanted = found.get("transport"), found.get("wanted_transport")
    if wanted:
        yield judge(
            f"{identity}.transport",
            "measured",
            wanted,
            transport,
            reason="other_transport",
            source=str(found.get("address")),
            remedy=f"Restart {unit}; transport in {SERVERS} is {server['transport']}.",
        )


def _place(
    identity: str,
    server: Mapping[str, Any],
    own: Mapping[str, Any],
    found: Mapping[str, Any],
    isolated: frozenset[int],
) -> Iterator[Result]:
    """Where the serving thread may run, its policy, and where the memory is."""
    source = f"/proc/{own.get('pid')}/task"
    cpus = list(server["cpus"])
    told = own.get("cpus") or {}
    threads = {row["tid"]: row for row in told.get("threads") or []}
    serving = threads.get(told.get("serving"), {})
    if cpus:
        allowed = sorted(parse(str(serving.get("cpus") or "")))
        yield judge(
            f"{identity}.cpus",
            "running",
            [cpus[0]],
            allowed,
            reason="not_pinned",
            source=source,
            remedy=f"Restart firsttouch-server@{server['name']}; its CPUs are in {SERVERS}.",
        )
        stray = {
            row["name"]: row["cpus"]
            for row in threads.values()
            if row is not serving and parse(str(row["cpus"])) & isolated - set(cpus)
        }
        yield judge(
            f"{identity}.threads",
            "running",
            {},
            stray,
            reason="on_isolated_cpu",
            source=source,
            remedy=f"Name a CPU for each thread in {SERVERS}; others stay off the CPUs of {ISOLATED}.",
        )
    if server.get("fifo_priority"):
        policy = str(serving.get("policy") or "")
        yield judge(
            f"{identity}.policy",
            "running",
            f"fifo {server['fifo_priority']}",
            policy,
            good=policy.lower().replace("sched_", "").startswith("fifo"),
            reason="refused",
            source=source,
            remedy=f"See rt_scheduling.fifo; or take fifo_priority out of {SERVERS}.",
        )
    pages = own.get("pages") or {}
    where = pages.get("pages_on_node")
    if found.get("transport") == "shm" and pages.get("bound") and isinstance(where, Mapping):
        others = {
            str(node): count for node, count in where.items() if count and str(node) != str(server["node"])
        }
        yield judge(
            f"{identity}.memory",
            "running",
            {},
            others,
            reason="wrong_node",
            source=source,
            remedy=f"Restart firsttouch-server@{server['name']}; its node is in {SERVERS}.",
        )


CHECKS = (
    Check("runtime.version", ("configured",), check_version, _asked),
    Check("runtime.weights", ("running",), check_weights, lambda ctx: bool(_rows(ctx, "models"))),
    Check("runtime.digest", ("measured",), check_digests, lambda ctx: bool(_rows(ctx, "models"))),
    Check("runtime.server", ("measured", "running"), check_servers, lambda ctx: bool(_rows(ctx, "servers"))),
)
