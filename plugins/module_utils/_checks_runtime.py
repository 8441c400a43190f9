# SPDX-License-Identifier: Apache-2.0
"""The runtime at work: models resident where they belong, servers that answer.

What only the runtime can tell (who maps which image, how long a request takes) is asked of its own command; what the
kernel tells (on which CPUs a thread may run) that command reads from /proc, and is judged here.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from . import _checks_runtime_files, _runtime_install
from ._checks_host import ISOLATED, MODELS, SERVERS, Check, Context
from ._checks_runtime_files import STATE
from ._cpulist import parse
from ._verdict import Result, judge, skipped

TARGET = "firsttouch_latency_target_us"
COMMAND = f"{_runtime_install.TOP}/current/bin/firsttouch"
_SECONDS = 120
# Of a model that is larger not every byte is read: that takes memory bandwidth from whoever serves.
_DEEP_UP_TO = 1 << 30
# Enough for a median, and less than a server notices.
_CALLS = 20
_MORE_CALLS = 200
# How ask() says that there was no answer in time, and that the command could not be started, as a shell would.
_LATE, _NO_START = 124, 127


def ask(words: Sequence[str]) -> tuple[int, dict[str, Any]]:
    """(exit status, the JSON that the runtime's command WORDS prints; empty when it is none)."""
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "LC_ALL": "C",
        # Run as root it would write byte code below /opt, and a verification writes nothing.
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    try:
        done = subprocess.run(
            [COMMAND, *words], capture_output=True, timeout=_SECONDS, check=False, env=environment,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        found = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return _LATE, {}
    except OSError:
        # It is there and may be run, but its interpreter is gone: an upgrade of the host took the old Python away.
        return _NO_START, {}
    except ValueError:
        return done.returncode, {}
    return done.returncode, found if isinstance(found, dict) else {}


def _rows(ctx: Context, kind: str) -> list[Mapping[str, Any]]:
    return list(ctx.section("runtime").get(kind) or ())


def _unable(ctx: Context, identity: str, layer: str) -> Result | None:
    """Why the runtime cannot be asked; None when it can."""
    if not ctx.live:
        # Nothing that is recorded tells of it, so that a recording is not incomplete for want of it.
        return skipped(identity, layer, "offline", source=COMMAND, intended=False)
    if os.geteuid() != 0:
        return skipped(
            identity, layer, "permission_denied", source=COMMAND, remedy="Run the verification as root."
        )
    if not os.access(COMMAND, os.X_OK):
        return skipped(
            identity, layer, "not_installed", source=COMMAND, remedy=f"Run provision with {STATE}."
        )
    return None


def _no_answer(identity: str, layer: str, status: int, found: Mapping[str, Any]) -> Result:
    """The command ended with STATUS and did not say what it was asked: nothing is known of the host by that."""
    reason = {_LATE: "timed_out", _NO_START: "does_not_start"}.get(status, "no_answer")
    error = found.get("error")
    told = error.get("message") if isinstance(error, Mapping) else found.get("message")
    return skipped(
        identity,
        layer,
        reason,
        observed=told or f"exit status {status}",
        source=COMMAND,
        remedy=f"See what {COMMAND} doctor says; when it does not start, run provision with {STATE}.",
    )


def _images(ctx: Context, identity: str, layer: str, mount: str) -> list[dict[str, Any]] | Result:
    """The images of MOUNT as the runtime lists them; the answer of check IDENTITY where it does not."""
    unable = _unable(ctx, identity, layer)
    if unable:
        return unable
    status, found = _listed(ctx, mount)
    return list(found["images"]) if "images" in found else _no_answer(identity, layer, status, found)


def check_weights(ctx: Context) -> Iterator[Result]:
    """Each model: an image that is complete, on the nodes asked for."""
    for model in _rows(ctx, "models"):
        name, mount = str(model["name"]), str(model["mount"])
        identity = f"runtime.weights.{name}"
        images = _images(ctx, identity, "running", mount)
        if isinstance(images, Result):
            yield images
            continue
        images = [row for row in images if row.get("model") == name and row.get("ready")]
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


def _listed(ctx: Context, mount: str) -> tuple[int, dict[str, Any]]:
    """What the runtime says of the images on MOUNT; `images` is missing when it says nothing."""
    found: tuple[int, dict[str, Any]] = ctx.keep(
        f"images {mount}", lambda: ask(["weights", "ls", "--json", "--dir", mount])
    )
    return found


def _placed(identity: str, model: Mapping[str, Any], images: Sequence[Mapping[str, Any]]) -> Result:
    """The nodes of the pages: with `replicate` one image for each, all of its pages there."""
    wanted = [int(node) for node in model["nodes"]]
    policy = model["policy"]
    source, remedy = (
        str(model["mount"]),
        f"Restart firsttouch-weights@{model['name']}, or change nodes in {MODELS}.",
    )
    if policy not in ("any", "prefer") and any(row.get("pages_by_node") is None for row in images):
        return skipped(f"{identity}.nodes", "running", "not_available", source=source, remedy=remedy)
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
        good=good and (bool(nodes) or policy in ("any", "prefer")),
        reason="wrong_node",
        source=source,
        remedy=remedy,
    )


def check_digests(ctx: Context) -> Iterator[Result]:
    """Each model: every chunk in memory still has the digest that it had when it was loaded."""
    for model in _rows(ctx, "models"):
        name, mount = str(model["name"]), str(model["mount"])
        identity = f"runtime.digest.{name}"
        images = _images(ctx, identity, "measured", mount)
        if isinstance(images, Result):
            yield images
            continue
        size = sum(int(row["bytes"]) for row in images if row.get("model") == name)
        if size > _DEEP_UP_TO:
            by_hand = f"Run {COMMAND} weights verify {name} --deep when nothing is served."
            yield skipped(identity, "measured", "too_large", observed=size, remedy=by_hand, intended=False)
            continue
        status, found = ask(["weights", "verify", name, "--deep", "--json", "--dir", mount])
        if not found:
            yield _no_answer(identity, "measured", status, found)
            continue
        error = found.get("error") or {}
        yield judge(
            identity,
            "measured",
            "as loaded",
            "as loaded" if status == 0 else error.get("message") or f"exit status {status}",
            reason=str(error.get("code") or "not_resident"),
            source=mount,
            remedy=f"Restart firsttouch-weights@{name}; its source is in {MODELS}.",
        )


def _ping(ctx: Context, name: str, calls: int) -> tuple[int, dict[str, Any]]:
    """What `firsttouch ping` says of server NAME; asked once, by whoever comes first. With 0 CALLS nothing is sent."""
    found: tuple[int, dict[str, Any]] = ctx.keep(
        f"ping {name}", lambda: ask(["ping", "--server", name, "--calls", str(calls), "--json"])
    )
    return found


def check_servers(ctx: Context) -> Iterator[Result]:
    """Each server: real requests answered in time, over the transport decided, and nothing else to find fault with."""
    for server in _rows(ctx, "servers"):
        name = str(server["name"])
        identity = f"runtime.server.{name}"
        unable = _unable(ctx, identity, "measured")
        if unable:
            yield unable
            continue
        status, found = _ping(ctx, name, _CALLS)
        if not found:
            yield _no_answer(identity, "measured", status, found)
            continue
        yield from _answers(ctx, identity, server, found)
        if "faults" in found:
            told = list(found["faults"]) or ([] if status == 0 else [f"exit status {status}"])
            # That one is .latency's, which asks again before it says so.
            faults = [fault for fault in told if not fault.startswith("p50 is ")]
            yield judge(
                f"{identity}.faults",
                "measured",
                [],
                faults,
                reason="not_as_its_file",
                source=f"{_runtime_install.ETC}/servers/{name}.json",
                remedy=f"Restart firsttouch-server@{name}; what it should be is in {SERVERS}.",
            )


def check_place(ctx: Context) -> Iterator[Result]:
    """Each server: its threads and its memory where they belong, and no isolated CPU for two of them."""
    serving: dict[int, list[str]] = {}
    isolated = parse(str(ctx.section("cpu_isolation").get("isolated") or ""))
    for server in _rows(ctx, "servers"):
        name = str(server["name"])
        identity = f"runtime.server.{name}"
        unable = _unable(ctx, f"{identity}.place", "running")
        if unable:
            yield unable
            continue
        status, found = _ping(ctx, name, 0)
        if not found or "error" in found:
            yield _no_answer(f"{identity}.place", "running", status, found)
            continue
        own = found.get("server") or {}
        yield from _threads(identity, server, own, isolated)
        yield from _memory(identity, server, own, found.get("transport"))
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
    ctx: Context, identity: str, server: Mapping[str, Any], found: Mapping[str, Any]
) -> Iterator[Result]:
    name = server["name"]
    unit = f"firsttouch-server@{name}"
    calls, answered = found.get("calls"), found.get("answered")
    yield judge(
        f"{identity}.answers",
        "measured",
        _CALLS,
        answered if calls else found.get("message"),
        good=bool(calls) and calls == answered,
        reason="no_answer",
        source=str(found.get("address") or unit),
        remedy=f"See journalctl -u {unit}, then run provision with {SERVERS}.",
    )
    if not answered:
        return
    yield _latency(ctx, identity, server, found)
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


def _latency(ctx: Context, identity: str, server: Mapping[str, Any], found: Mapping[str, Any]) -> Result:
    """Half of the requests within the server's own target; a warning by the plan's for one that names none."""
    target = server.get("latency_target_us")
    if target is None:
        target = (ctx.plan.get("transport") or {}).get("latency_target_us")
    if target is not None and (found.get("p50_us") or 0) > target:
        # Whoever took the CPU for the moment of a few requests made this of it: a failure takes more of them.
        again = ask(["ping", "--server", str(server["name"]), "--calls", str(_MORE_CALLS), "--json"])[1]
        found = again if again.get("p50_us") is not None else found
    p50, source = found.get("p50_us"), str(found.get("address"))
    observed = {key: found.get(key) for key in ("p50_us", "p99_us", "max_us")}
    row = f"{identity}.latency"
    if target is None or p50 is None:
        reason = "no_target" if target is None else "no_answer"
        return skipped(row, "measured", reason, observed=observed, source=source, intended=target is not None)
    return judge(
        row,
        "measured",
        f"p50 of at most {target:g} us",
        observed,
        good=p50 <= target,
        # The plan's is that of a message, and 100 us where nobody set it: a handler may well take longer.
        soft=server.get("latency_target_us") is None,
        reason="too_slow",
        source=source,
        remedy=f"Look at {identity}.cpus and .memory; or allow more with latency_target_us in {SERVERS}, or {TARGET}.",
    )


def _unknown(identity: str, server: Mapping[str, Any]) -> Result:
    """A row that nothing is known about, as the server tells nothing of itself or the kernel nothing of it."""
    remedy = f"See journalctl -u firsttouch-server@{server['name']}, then run provision with {SERVERS}."
    return skipped(
        identity,
        "running",
        "no_status",
        source=f"{_runtime_install.RUN}/{server['name']}.status.json",
        remedy=remedy,
    )


def _threads(
    identity: str, server: Mapping[str, Any], own: Mapping[str, Any], isolated: frozenset[int]
) -> Iterator[Result]:
    """Where the serving thread may run and by which policy; and that no other thread comes to isolated CPUs."""
    source = f"/proc/{own.get('pid')}/task"
    cpus = list(server["cpus"])
    told = own.get("cpus") or {}
    threads = {row["tid"]: row for row in told.get("threads") or []}
    serving = threads.get(told.get("serving"))
    asked = (("cpus", bool(cpus)), ("threads", bool(cpus)), ("policy", bool(server.get("fifo_priority"))))
    if serving is None:
        for row, wanted in asked:
            if wanted:
                yield _unknown(f"{identity}.{row}", server)
        return
    if cpus:
        yield judge(
            f"{identity}.cpus",
            "running",
            [cpus[0]],
            sorted(parse(str(serving.get("cpus") or ""))),
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
        # The name alone says nothing: at another priority it waits for others.
        policy, priority = str(serving.get("policy") or ""), serving.get("priority")
        yield judge(
            f"{identity}.policy",
            "running",
            f"fifo {server['fifo_priority']}",
            f"{policy} {priority}" if priority else policy,
            reason="other_priority" if policy == "fifo" else "refused",
            source=source,
            remedy=f"See rt_scheduling.fifo; or take fifo_priority out of {SERVERS}.",
        )


def _memory(
    identity: str, server: Mapping[str, Any], own: Mapping[str, Any], transport: str | None
) -> Iterator[Result]:
    """The shared memory of the kind and on the node asked for; bound or not, the pages lie somewhere."""
    if transport not in ("shm", None) or (transport is None and server["transport"] not in ("auto", "shm")):
        return
    source = f"/proc/{own.get('pid')}/numa_maps"
    pages = own.get("pages") or {}
    where = pages.get("pages_on_node")
    if server.get("node") is not None:
        if not isinstance(where, Mapping) or not where:
            yield _unknown(f"{identity}.memory", server)
        else:
            yield judge(
                f"{identity}.memory",
                "running",
                {},
                {
                    str(node): count
                    for node, count in where.items()
                    if count and str(node) != str(server["node"])
                },
                reason="wrong_node",
                source=source,
                remedy=f"Restart firsttouch-server@{server['name']}; its node is in {SERVERS}.",
            )
    wanted, kind = server.get("pages", "auto"), pages.get("kind")
    if wanted != "auto":
        yield (
            _unknown(f"{identity}.pages", server)
            if kind is None
            else judge(
                f"{identity}.pages",
                "running",
                wanted,
                kind,
                reason="other_pages",
                source=source,
                remedy=f"See journalctl -u firsttouch-server@{server['name']}; or ask for other pages in {SERVERS}.",
            )
        )


CHECKS = (
    *_checks_runtime_files.CHECKS,
    Check("runtime.weights", ("running",), check_weights, lambda ctx: bool(_rows(ctx, "models"))),
    Check("runtime.digest", ("measured",), check_digests, lambda ctx: bool(_rows(ctx, "models"))),
    # Before runtime.place, which then needs no second answer; alone, that sends no request.
    Check("runtime.server", ("measured",), check_servers, lambda ctx: bool(_rows(ctx, "servers"))),
    Check("runtime.place", ("running",), check_place, lambda ctx: bool(_rows(ctx, "servers"))),
)
