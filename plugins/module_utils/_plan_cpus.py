# SPDX-License-Identifier: Apache-2.0
"""Isolated CPUs: the intent on a topology becomes explicit lists of isolated and housekeeping CPUs.

Rules of the kernel: kernel/sched/isolation.c (one CPU past the last voids a list, any flag switches the default
`domain` off, the boot CPU always keeps housekeeping).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._cpulist import CpuListError, format_list, parse
from ._intent import IntentError, Judge, integer, mapping
from ._plan_facts import Facts, refuse_without_nodes
from ._topology import Topology
from ._topology_cpus import CPU_DIR

VARIABLE = "isolated_cpus"


def plan_isolation(intent: Mapping[str, Any], facts: Facts, judge: Judge) -> dict[str, Any]:
    """The part of the cpu_isolation section that `isolated_cpus` decides. Refusals go to JUDGE."""
    topology = facts.topology
    online = topology.cpus.online
    if not online:
        unrecorded = facts.lack(f"{CPU_DIR}/online")
        judge.refuse(
            "cpu_unknown", VARIABLE, "this host does not tell which CPUs are online", unrecorded
        )
        return {}
    # Those that are named need no node; only that each node keeps a CPU cannot be told then.
    if isinstance(intent["isolated_cpus"], Mapping) and refuse_without_nodes(VARIABLE, facts, judge):
        return {}
    isolated = _wanted(intent["isolated_cpus"], topology, judge)
    if isolated is None:
        return {}
    housekeeping = online - isolated
    _check(isolated, housekeeping, topology, judge)
    if judge.refusals:
        return {}
    text = format_list(isolated)
    tokens = [f"isolcpus=managed_irq,domain,{text}"]
    if facts.nohz_full is False:
        reason = "this kernel is built without CONFIG_NO_HZ_FULL: nohz_full= and rcu_nocbs= are left out"
        judge.note("nohz_full_unsupported", VARIABLE, reason)
    else:
        tokens += [f"nohz_full={text}", f"rcu_nocbs={text}"]
    tokens.append(f"irqaffinity={format_list(housekeeping)}")
    by_node = {
        str(node.id): format_list(node.cpus & isolated) for node in topology.nodes if node.cpus & isolated
    }
    return {
        "isolated": text,
        "housekeeping": format_list(housekeeping),
        "isolated_by_node": by_node,
        "tokens": tokens,
    }


def _wanted(value: Any, topology: Topology, judge: Judge) -> frozenset[int] | None:
    """The CPUs to isolate; None after a refusal."""
    try:
        if isinstance(value, Mapping):
            wish = mapping(value, ("housekeeping_per_node",), "the value")
            if "housekeeping_per_node" not in wish:
                raise IntentError(f"{value!r} has no housekeeping_per_node")
            keep = integer(wish["housekeeping_per_node"], least=1)
            return _all_but(keep, topology, judge)
        return _listed(_as_text(value), topology, judge)
    except IntentError as exc:
        judge.refuse("bad_value", VARIABLE, str(exc))
        return None


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    if not all(isinstance(item, (int, str)) and not isinstance(item, bool) for item in items):
        raise IntentError(f"{value!r} is not a CPU list; write 2-7,10 or {{housekeeping_per_node: 1}}")
    return ",".join(str(item) for item in items)


def _listed(text: str, topology: Topology, judge: Judge) -> frozenset[int] | None:
    possible, online = topology.cpus.possible, topology.cpus.online
    count = max(possible) + 1
    try:
        named = parse(text, max(count, 1 << 16), aliases=())
        flexible = False
    except CpuListError:
        try:
            named, flexible = parse(text, count), True
        except CpuListError as exc:
            reason = exc.reason if exc.reason == "cpu_out_of_range" else "bad_value"
            judge.refuse(reason, VARIABLE, str(exc), cause=exc.reason, cpu=exc.first_bad)
            return None
    beyond = named - possible
    if beyond:
        text = (
            f"CPU {format_list(beyond)} does not exist, this host has {format_list(possible)}; one such CPU voids the "
            "whole list in the kernel"
        )
        details = {"cpu": min(beyond), "cpus": format_list(beyond), "available": format_list(possible)}
        judge.refuse("cpu_out_of_range", VARIABLE, text, **details)
        return None
    offline = named - online
    if offline and flexible:
        text = f"CPUs {format_list(offline)} are not online: they stay housekeeping CPUs if they come"
        judge.note("cpu_offline", VARIABLE, text)
        named &= online
    elif offline:
        text = f"CPU {format_list(offline)} is offline; online are {format_list(online)}"
        details = {"cpu": min(offline), "cpus": format_list(offline), "available": format_list(online)}
        judge.refuse("cpu_offline", VARIABLE, text, **details)
        return None
    if not named:
        raise IntentError(f"{text!r} names no CPU; write absent to remove the isolation")
    return named


def _all_but(keep: int, topology: Topology, judge: Judge) -> frozenset[int] | None:
    """All online CPUs but those of the first KEEP cores of each node, the boot CPU's core among them."""
    cpus = topology.cpus
    housekeeping: set[int] = set()
    placed: set[int] = set()
    for node in topology.nodes:
        own = frozenset(node.cpus) & cpus.online
        placed |= own
        cores = sorted({cpus.core(cpu) for cpu in own}, key=min)
        for core in cores[:keep]:
            housekeeping |= core
    # A CPU of no node is on no side of any plan: it keeps house.
    housekeeping |= cpus.online - placed
    isolated = cpus.online - housekeeping
    if not isolated:
        text = (
            f"with {keep} housekeeping cores on each node nothing is left to isolate of CPUs "
            f"{format_list(cpus.online)}; ask for fewer, or set it to absent"
        )
        judge.refuse("nothing_to_isolate", VARIABLE, text, asked=keep)
        return None
    return isolated


def _check(isolated: frozenset[int], housekeeping: frozenset[int], topology: Topology, judge: Judge) -> None:
    cpus = topology.cpus
    if not housekeeping:
        text = f"CPUs {format_list(isolated)} are all CPUs of this host: none is left for housekeeping"
        judge.refuse("no_housekeeping_cpu", VARIABLE, text, cpus=format_list(isolated))
    starved = [node for node in topology.nodes if node.cpus and not node.cpus & housekeeping]
    for node in starved if housekeeping else ():
        text = f"node {node.id}: all of its CPUs ({format_list(node.cpus)}) are isolated; leave it at least one core"
        judge.refuse("no_housekeeping_cpu", VARIABLE, text, node=node.id, cpus=format_list(node.cpus))
    if cpus.boot_cpu in isolated:
        text = f"CPU {cpus.boot_cpu} is the boot CPU, which the kernel never isolates; leave its core out"
        judge.refuse("boot_cpu_isolated", VARIABLE, text, cpu=cpus.boot_cpu)
    split = sorted(cpu for cpu in isolated if cpus.core(cpu) & housekeeping)
    missing = frozenset().union(*(cpus.core(cpu) & housekeeping for cpu in split))
    if missing and housekeeping:
        text = (
            f"CPUs {format_list(split)} share their cores with {format_list(missing)}, which would keep working "
            f"beside them; isolate both or none"
        )
        details = {"cpu": split[0], "cpus": format_list(split), "missing_siblings": format_list(missing)}
        judge.refuse("split_core", VARIABLE, text, **details)


def siblings_split(isolated: frozenset[int], topology: Topology) -> bool:
    """Whether a core has isolated and other CPUs."""
    return any(topology.cpus.core(cpu) - isolated for cpu in isolated)
