# SPDX-License-Identifier: Apache-2.0
"""What `firsttouch ping` finds out: how long real requests take, and whether the server serves as its file says."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from firsttouch import _linux, plan
from firsttouch._configs import ServerFile
from firsttouch._cpulist import CpuListError, parse
from firsttouch._lanes import PAGE
from firsttouch._shm import HUGE
from firsttouch._shm_client import ShmLink
from firsttouch._transport import Link
from firsttouch.client import InferenceClient
from firsttouch.errors import ConfigError, ExpiredError, FirstTouchError, TransportError

_WARM_UP = 5
_FIGURES = ("p50_us", "p90_us", "p99_us", "max_us")
_POLICIES = {os.SCHED_OTHER: "other", os.SCHED_FIFO: "fifo", os.SCHED_RR: "rr", os.SCHED_BATCH: "batch"}


def ping(address: str | None, file: ServerFile | None, calls: int, timeout: float) -> dict[str, Any]:
    """Ask CALLS times; see units of the result in text(). Raises what connecting raises for an ADDRESS.

    With 0 CALLS it only connects, and looks at how the server is.
    """
    target = file.latency_target_us if file is not None else None
    found: dict[str, Any] = {
        "address": address,
        "transport": None,
        "wanted_transport": None,
        "choice": None,
        "calls": calls,
        "answered": 0,
        "latency_target_us": target,
        "within_target": None,
        "server": None,
        "faults": [],
    }
    faults: list[str] = found["faults"]
    try:
        if file is not None:
            _expectations(file, found)
        assert found["address"] is not None
        with _connect(found["address"], file, timeout) as client:
            if client.choice is not None:
                found["choice"] = client.choice.as_dict()
                found["wanted_transport"] = found["wanted_transport"] or client.choice.transport
            link = client.link
            found["address"] = str(link.address)
            found["transport"] = link.address.scheme
            found.update(_ask(client, calls, faults))
            found["server"] = _server(file, link, faults)
    except TransportError as error:
        faults.append(str(error))
    if found["wanted_transport"] not in (None, found["transport"]) and found["transport"] is not None:
        faults.append(f"the transport in use is {found['transport']}, {found['wanted_transport']} is wanted")
    if target is not None and found["answered"]:
        found["within_target"] = found["p50_us"] <= target
        if not found["within_target"]:
            faults.append(f"p50 is {found['p50_us']} us, more than the {target:g} us of the file")
    found["ok"] = not faults
    return found


def _connect(address: str, file: ServerFile | None, timeout: float) -> InferenceClient:
    """A client. One that is being started again listens already, and greets when it is there: until TIMEOUT."""
    end = time.monotonic() + timeout
    while True:
        try:
            return InferenceClient(
                address,
                timeout=timeout,
                name="firsttouch ping",
                tls=file.tls if file is not None else None,
                latency_target_us=file.latency_target_us if file is not None else None,
            )
        except ExpiredError:
            if time.monotonic() > end:
                raise


def _expectations(file: ServerFile, found: dict[str, Any]) -> None:
    """Where the server of FILE should be asked, and over what."""
    found["address"] = file.addresses[0]
    if file.transport != "auto":
        found["wanted_transport"] = file.transport


def _ask(client: InferenceClient, calls: int, faults: list[str]) -> dict[str, Any]:
    """Percentiles of CALLS requests of zeros, in us."""
    if not calls:
        return {"answered": 0}
    arrays = {item.name: np.zeros(item.shape, item.dtype) for item in client.schema.request.fields}
    times: list[int] = []
    try:
        for number in range(_WARM_UP + calls):
            began = time.perf_counter_ns()
            client.infer(arrays)
            if number >= _WARM_UP:
                times.append(time.perf_counter_ns() - began)
    except FirstTouchError as error:
        faults.append(f"{len(times)} of {calls} calls were answered, then: {error}")
    if not times:
        return {"answered": 0}
    values = np.percentile(np.array(times), (50, 90, 99, 100)) / 1e3
    figures = {name: round(float(value), 1) for name, value in zip(_FIGURES, values, strict=True)}
    return {"answered": len(times), **figures}


def _server(file: ServerFile | None, link: Link, faults: list[str]) -> dict[str, Any] | None:
    """How the server is: what it says itself, what the kernel says of its threads and of the pages that both map."""
    found = _status(file, faults) if file is not None else {}
    pages = _pages(link) if isinstance(link, ShmLink) else None
    if pages is not None:
        found["pages"] = {**(found.get("pages") or {}), "pages_on_node": pages}
    if file is None:
        return found or None
    _check_pages(file, found, faults)
    pid = found.get("pid")
    if pid is not None:
        cpus = found.setdefault("cpus", {})
        cpus["threads"] = _threads(pid)
        _check_threads(file, cpus, faults)
    return found


def _status(file: ServerFile, faults: list[str]) -> dict[str, Any]:
    """The server's own words."""
    for folder in plan.run_folders():
        path = folder / f"{file.name}.status.json"
        try:
            found = json.loads(path.read_text())
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
        if not os.path.exists(f"/proc/{found.get('pid')}"):
            faults.append(f"{path} is of process {found.get('pid')}, which is gone")
            found.pop("pid", None)
        return dict(found)
    faults.append(f"the server {file.name} tells nothing of itself below {plan.RUN_FOLDER}")
    return {}


def _pages(link: ShmLink) -> dict[str, int] | None:
    """The nodes of the segment's pages, as the kernel tells this process that maps them too."""
    segment = link.segment
    huge = _linux.filesystem_magic(segment.fd) == _linux.HUGETLBFS_MAGIC
    try:
        nodes = _linux.nodes_of_pages(
            _linux.address_of(segment.mapping), segment.geometry.size, HUGE if huge else PAGE
        )
    except (OSError, FirstTouchError):
        return None
    return {str(node): count for node, count in sorted(nodes.items())}


def _check_pages(file: ServerFile, found: dict[str, Any], faults: list[str]) -> None:
    pages = found.get("pages") or {}
    if file.node is not None and pages and set(pages.get("pages_on_node") or {}) != {str(file.node)}:
        faults.append(f"the pages lie on {pages.get('pages_on_node')}, the file asks for node {file.node}")
    if file.pages != "auto" and pages.get("kind") not in (None, file.pages):
        faults.append(f"the pages are {pages['kind']}, the file asks for {file.pages}")


def _threads(pid: int) -> list[dict[str, Any]]:
    """Name, CPUs, policy and priority of each thread of process PID."""
    rows = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*"), key=lambda path: int(path.name)):
        try:
            name = (task / "comm").read_text().rstrip("\n")
            status = (task / "status").read_text()
            policy = os.sched_getscheduler(int(task.name)) & ~os.SCHED_RESET_ON_FORK
            priority = os.sched_getparam(int(task.name)).sched_priority
        except OSError:
            continue
        cpus = next(line.split()[1] for line in status.splitlines() if line.startswith("Cpus_allowed_list:"))
        kind = _POLICIES.get(policy, str(policy))
        rows.append({"tid": int(task.name), "name": name, "cpus": cpus, "policy": kind, "priority": priority})
    return rows


def _check_threads(file: ServerFile, cpus: dict[str, Any], faults: list[str]) -> None:
    """The serving thread has its CPU and its policy, and no other thread may run on a CPU of the file but its own."""
    for row in cpus["threads"]:
        try:
            allowed = parse(row["cpus"])
        except CpuListError:
            continue
        shared = allowed & set(file.cpus)
        if row["tid"] == cpus.get("serving"):
            if file.cpus and allowed != {file.cpus[0]}:
                faults.append(f"the serving thread may run on CPUs {row['cpus']}, the file gives it {file.cpus[0]}")
            is_, wanted = _policy(row), f"fifo {file.fifo_priority}"
            if file.fifo_priority is not None and is_ != wanted:
                faults.append(f"the serving thread has policy {is_}, the file asks for {wanted}")
        elif shared and (len(allowed) > 1 or file.cpus[0] in shared):
            faults.append(f"thread {row['tid']} ({row['name']}) may run on CPUs {row['cpus']}, which are others'")


def _policy(row: dict[str, Any]) -> str:
    """The policy of a thread, with its priority where it has one."""
    return f"{row['policy']} {row['priority']}" if row["priority"] else str(row["policy"])


def text(found: dict[str, Any]) -> str:
    """The result for people."""
    over = f" over {found['transport']}" if found["transport"] else ""
    lines = [f"{found['address']}: {found['answered']} of {found['calls']} calls answered{over}"]
    if found["answered"]:
        words = ", ".join(f"{name.removesuffix('_us')} {found[name]}" for name in _FIGURES)
        limit = f" (target {found['latency_target_us']:g})" if found["latency_target_us"] is not None else ""
        lines.append(f"  us: {words}{limit}")
    if found["choice"]:
        lines.append(f"  {found['choice']['words']}")
    server = found["server"] or {}
    if server.get("pid"):
        words = f"firsttouch {server['version']}, {server['restarts']} restarts"
        lines.append(f"  server: process {server['pid']}, {words}")
    pages = server.get("pages") or {}
    if pages:
        kind = f"{pages['kind']}, " if "kind" in pages else ""
        lines.append(f"  pages: {kind}by node {pages['pages_on_node']}")
    threads = (server.get("cpus") or {}).get("threads", [])
    lines += [f"  thread {row['tid']} {row['name']}: CPUs {row['cpus']}, {_policy(row)}" for row in threads]
    return "\n".join([*lines, *(f"  FAULT: {fault}" for fault in found["faults"])])
