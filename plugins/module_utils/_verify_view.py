# SPDX-License-Identifier: Apache-2.0
"""What a report draws of a verified host beside the answers: its CPUs, nodes and pools, and which plan it has.

Compact on purpose, since it travels from every host of a fleet: CPU lists in the kernel's notation, nothing
that an answer says already. None is "not known", never "none".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ._checks_host import Context
from ._checks_numa import trust_view
from ._cpulist import format_list
from ._intent import SECTIONS, format_size
from ._plan_document import significant
from ._topology import Topology, read_topology

_DIGEST = 12


def host_view(ctx: Context) -> dict[str, Any]:
    """The host of CTX as it is: kernel, sockets, cores with several threads, CPUs, nodes, pools by node."""
    topology: Topology = ctx.keep("topology", lambda: read_topology(ctx.root))
    cpus = topology.cpus
    cores = sorted({tuple(sorted(cpus.core(cpu))) for cpu in cpus.online})
    return {
        "kernel": topology.kernel_release,
        "arch": topology.arch,
        "hypervisor": topology.virtualization.hypervisor,
        "bare_metal": topology.virtualization.bare_metal,
        "memory_bytes": topology.memory_bytes,
        "cpus": {
            "online": format_list(cpus.online),
            "offline": format_list(cpus.offline),
            "isolated": format_list(cpus.isolated),
            "nohz_full": format_list(cpus.nohz_full),
        },
        "sockets": [{"id": row.id, "cpus": format_list(row.cpus)} for row in cpus.packages],
        "cores": [format_list(core) for core in cores if len(core) > 1],
        "nodes": [
            {
                "id": node.id,
                "cpus": format_list(node.cpus),
                "memory_bytes": node.memory_bytes,
                "distances": None
                if node.distances is None
                else {str(other): node.distances[other] for other in sorted(node.distances)},
            }
            for node in topology.nodes
        ],
        "trust": trust_view(ctx),
        "pools": _pools(ctx, topology),
        "warnings": [row["text"] for row in topology.warnings],
    }


def _pools(ctx: Context, topology: Topology) -> list[dict[str, Any]]:
    """Per size and node with a pool or a wish: pages asked for (None: not per node), got, free and surplus."""
    asked: dict[int, Mapping[str, Any]] = {
        int(pool["size_kb"]): pool.get("nodes") or {} for pool in ctx.section("hugepages").get("pools") or []
    }
    found = {node.id: {int(size[:-2]): row for size, row in node.pools.items()} for node in topology.nodes}
    sizes = sorted(set(asked).union(*found.values()))
    rows = []
    for size_kb in sizes:
        nodes = sorted(set(found) | {int(node) for node in asked.get(size_kb, ())})
        for node in nodes:
            wish, pool = asked.get(size_kb, {}).get(str(node)), found.get(node, {}).get(size_kb, {})
            if wish is None and size_kb in asked and asked[size_kb]:
                wish = 0
            if wish or pool.get("total"):
                counts = {"got": pool.get("total"), "free": pool.get("free"), "surplus": pool.get("surplus")}
                rows.append({"size": format_size(size_kb), "node": node, "asked": wish, **counts})
    return rows


def plan_view(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Which plan it is: a digest of all of it and of each section, and the values it was made from.

    Two hosts have the same digest where everything that counts in their sections is the same.
    """
    sections: Mapping[str, Any] = plan.get("sections") or {}
    parts = {name: _digest(sections[name]) for name in SECTIONS if sections.get(name)}
    return {"digest": _digest(parts), "sections": parts, "intent": plan.get("intent") or {}}


def _digest(value: Any) -> str:
    text = json.dumps(significant(value), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]
