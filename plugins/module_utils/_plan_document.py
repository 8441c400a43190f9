# SPDX-License-Identifier: Apache-2.0
"""The document of plan.json: what is derived from its sections, and what of it counts as a difference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import _plan_cpus
from ._cpulist import format_list, parse
from ._intent import SECTIONS, page_size_kb
from ._plan_facts import Facts
from ._topology import Topology

SCHEMA = 1
COLLECTION = "0.1.0"
RUNTIME_GROUP = "firsttouch"
_KEYS = ("default_hugepagesz", "hugepagesz", "hugepages", "isolcpus", "nohz_full", "rcu_nocbs", "irqaffinity")
# Figures that differ from boot to boot, and marks that depend on what is asked now.
_VOLATILE = ("host", "memory_bytes", "budget", "predicted_bytes", "orphaned")


def topology_summary(topology: Topology, isolation: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the plan keeps of the topology, for those who read plan.json."""
    isolated = parse((isolation or {}).get("isolated") or "")
    return {
        "nodes": {
            str(node.id): {
                "cpus": format_list(node.cpus),
                "isolated": format_list(node.cpus & isolated),
                "housekeeping": format_list(node.cpus - isolated),
                "distances": None if node.distances is None else {str(n): d for n, d in node.distances.items()},
                "memory_bytes": node.memory_bytes,
                "normal_memory": node.normal_memory,
            }
            for node in topology.nodes
        },
        "online": format_list(topology.cpus.online),
        "boot_cpu": topology.cpus.boot_cpu,
        "siblings_split": _plan_cpus.siblings_split(isolated, topology),
    }


def compose(document: Mapping[str, Any]) -> dict[str, Any]:
    """DOCUMENT with `owned`, `boot` and `sysctls` made anew from its sections and what it owned before."""
    sections: Mapping[str, Any] = document["sections"]
    owned = {name: _owned(sections.get(name), (document.get("owned") or {}).get(name)) for name in SECTIONS}
    owned = {name: row for name, row in owned.items() if any(row.values())}
    tokens = [token for name in SECTIONS for token in (sections.get(name) or {}).get("tokens") or ()]
    owned_tokens = [token for row in owned.values() for token in row["tokens"]]
    there = {token.partition("=")[0] for token in (*tokens, *owned_tokens)}
    keys = [*(key for key in _KEYS if key in there), *sorted(there - set(_KEYS))]
    sysctls = {
        key: value
        for name in SECTIONS
        for key, value in ((sections.get(name) or {}).get("sysctls") or {}).items()
    }
    return {
        **document,
        "owned": owned,
        "boot": {"tokens": tokens, "keys": keys, "owned": owned_tokens},
        "sysctls": sysctls,
    }


def _owned(section: Mapping[str, Any] | None, before: Mapping[str, Any] | None) -> dict[str, list[str]]:
    """What was ours and what is now; tokens that somebody else had there before us (`foreign`) are not."""
    now: Mapping[str, Any] = section or {}
    foreign = list((before or {}).get("foreign") or ())
    row = {"foreign": foreign}
    for kind in ("tokens", "units", "sysctls"):
        every = dict.fromkeys([*((before or {}).get(kind) or ()), *(now.get(kind) or ())])
        row[kind] = [item for item in every if item not in foreign]
    models = [str(model["name"]) for model in now.get("models") or () if model.get("push")]
    pushed = dict.fromkeys([*((before or {}).get("pushed") or ()), *models])
    return {**row, "pushed": list(pushed)} if pushed else row


def significant(document: Any) -> Any:
    """DOCUMENT, or a part of it, without the figures that differ from boot to boot and decide nothing."""
    if isinstance(document, Mapping):
        return {key: significant(value) for key, value in document.items() if key not in _VOLATILE}
    if isinstance(document, list):
        return [significant(value) for value in document]
    return document


def settle(new: Any, old: Any) -> Any:
    """NEW, a section or the topology, with the figures of OLD where nothing that counts differs."""
    if not isinstance(new, dict) or not isinstance(old, Mapping) or significant(new) != significant(old):
        return new
    return {**old, "orphaned": new["orphaned"]} if "orphaned" in new else dict(old)


def named_groups(plan: Mapping[str, Any]) -> list[str]:
    """The groups that the mounts of a managed variable name, and that of the runtime."""
    section = plan["sections"].get("hugepages") or {}
    names = set()
    if "hugetlbfs_mounts" not in section.get("orphaned", ()):
        names = {row["group"] for row in section.get("mounts") or () if not row["group"].isdigit()}
    runtime = plan["sections"].get("runtime") or {}
    if runtime.get("state") == "present" and set(runtime["variables"]) - set(runtime["orphaned"]):
        names.add(RUNTIME_GROUP)
    return sorted(names)


def unit_rows(plan: Mapping[str, Any], facts: Facts) -> tuple[list[dict[str, Any]], list[str]]:
    """(units to have, as systemd_units takes them; names of units to remove) of the variables that are managed.

    Nothing is started here: a mount needs its pages, and these may come with the next boot only. For the same
    reason an active mount is mounted anew only where the kernel can do it now.
    """
    section = plan["sections"].get("hugepages") or {}
    orphaned = section.get("orphaned") or ()
    mounts = {row["unit"]: row for row in section.get("mounts") or ()}
    texts: dict[str, str] = section.get("units") or {}
    rows = []
    for name, text in texts.items():
        if ("hugetlbfs_mounts" if name in mounts else "hugepages") in orphaned:
            continue
        again = name not in mounts or _mountable(mounts[name], facts.topology)
        rows.append({"name": name, "content": text, "enabled": True, "restart_on_change": again})
    owned = (plan["owned"].get("hugepages") or {}).get("units") or ()
    return rows, [name for name in owned if name not in texts]


def _mountable(mount: Mapping[str, Any], topology: Topology) -> bool:
    """Whether the kernel has the page size now and, for min_size, the pages (hugetlbfs reserves them at mount)."""
    size_kb = page_size_kb(mount["page_size"])
    if size_kb not in topology.hugepage_sizes_kb:
        return False
    total = sum(node.pools.get(f"{size_kb}kB", {}).get("total", 0) for node in topology.nodes)
    return total * size_kb * 1024 >= (mount["min_size_bytes"] or 0)
