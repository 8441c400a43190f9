# SPDX-License-Identifier: Apache-2.0
"""Topology from the text of `numactl -H` or `lscpu`, and what such a text says against the kernel's files.

A text is somebody's copy: cut, wrapped, edited. What it says twice is compared, and a text without any node
or CPU is refused.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ._cpulist import format_list, parse_mask
from ._topology import Topology, judge_distances, read_topology
from ._topology_cpus import CPU_DIR, Cpus, Warnings
from ._topology_host import Virtualization, virtualization_of
from ._topology_nodes import Node, NodeLists
from ._tree import Tree, id_list

_UNITS = {"kB": 1 << 10, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
_COUNTS = {
    "sockets": "Socket(s)",
    "cores_per_socket": "Core(s) per socket",
    "threads_per_core": "Thread(s) per core",
}


class TextError(ValueError):
    """The text is not what it was given as; `reason` is `not_numactl` or `not_lscpu`."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


def read_numactl(text: str) -> Topology:
    """The topology in the output of `numactl -H`: nodes, their CPUs, memory (MB, as printed) and distances.

    Nothing in it tells which CPUs share a core or a socket. Raises TextError.
    """
    warnings: Warnings = []
    text = "\n".join(line.rstrip() for line in text.splitlines())
    # a terminal may have broken a long list of CPUs into lines
    text = re.sub(r"(?m)(^\s*node\s+\d+ cpus:[\d ]*(?:\n\s*\d[\d ]*$)+)", _one_line, text)
    header = re.search(r"(?m)^\s*available:\s*(\d+) nodes?\s*\(([^)]*)\)", text)
    cpus = {int(node): _list(row) for node, row in re.findall(r"(?m)^\s*node\s+(\d+) cpus:[ \t]*(.*)$", text)}
    sizes = {
        int(node): int(number) * _UNITS[unit]
        for node, number, unit in re.findall(r"(?m)^\s*node\s+(\d+) size:\s*(\d+)\s*([kKMG]B)", text)
    }
    named = frozenset(cpus) | frozenset(sizes)
    announced = _list(header.group(2)) if header else frozenset()
    ids = named | announced
    if not ids:
        raise TextError("no `available: N nodes` and no `node N cpus:` line", "not_numactl")
    if header and (announced != named or len(announced) != int(header.group(1))):
        said = f"{header.group(1)} nodes ({header.group(2)})"
        rows = {
            "reason": "numactl_disagrees_with_itself",
            "text": f"header says {said}, rows are for {format_list(named)}",
        }
        warnings.append(rows)
    distances = _distance_table(text, ids, warnings)
    nodes = tuple(
        _text_node(number, cpus.get(number, frozenset()), sizes.get(number), distances.get(number))
        for number in sorted(ids)
    )
    return _assemble("numactl", nodes, None, {}, Virtualization(), warnings)


def read_lscpu(text: str) -> Topology:
    """The topology in the output of `lscpu` or `lscpu -J`: nodes, their CPUs, counts of sockets, cores and threads.

    Raises TextError. Labels are those of the C locale.
    """
    fields: dict[str, str] = {}
    for line in _lscpu_lines(text):
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    rows = {
        int(match.group(1)): _list(value)
        for match, value in (
            (re.fullmatch(r"NUMA node(\d+) CPU\(s\)", key), text) for key, text in fields.items()
        )
        if match
    }
    listed = fields.get("On-line CPU(s) list") or fields.get("On-line CPU(s) mask")
    online = _list(listed) if listed else frozenset().union(*rows.values())
    if not online:
        raise TextError("no `On-line CPU(s) list` and no `NUMA node0 CPU(s)` line", "not_lscpu")
    counts = {name: int(fields[key]) for name, key in _COUNTS.items() if fields.get(key, "").isdigit()}
    counts.update(_s390_counts(fields))
    warnings = _lscpu_contradictions(fields, rows, online, counts)
    hypervisor = fields.get("Hypervisor vendor", "none").lower()
    if hypervisor in ("none", "horizontal", "vertical"):
        guest = Virtualization()
    else:
        guest = virtualization_of(
            [(hypervisor, "lscpu", f"Hypervisor vendor: {fields['Hypervisor vendor']}")]
        )
    nodes = tuple(_text_node(number, rows[number] & online, None, None) for number in sorted(rows))
    source = "lscpu"
    if not nodes:
        source, nodes = "no_numa", (Node(0, online, None, True, True, {}, {0: 10}),)
    return _assemble(source, nodes, online, counts, guest, warnings, fields.get("Architecture"))


def _one_line(match: re.Match[str]) -> str:
    return " ".join(match.group().split("\n"))


def _lscpu_lines(text: str) -> list[str]:
    """The lines of TEXT, or those that its JSON stands for."""
    try:
        found = json.loads(text).get("lscpu")
    except (ValueError, AttributeError, RecursionError):
        return text.splitlines()
    lines: list[str] = []
    rows = list(found) if isinstance(found, list) else []
    while rows:
        row = rows.pop(0)
        if isinstance(row, Mapping):
            lines.append(f"{row.get('field')} {row.get('data')}")
            children = row.get("children")
            rows.extend(children if isinstance(children, list) else [])
    return lines


def from_texts(
    texts: Mapping[str, str], root: str, cross_check: bool | None, facts: Mapping[str, Any] | None
) -> Topology:
    """The topology of TEXTS (`numactl`, `lscpu`), or that below ROOT with their differences as warnings.

    CROSS_CHECK None: compare when ROOT is a recorded tree with CPUs in it. Two texts are compared with each
    other, and the one with memory and distances is the source. Raises TextError.
    """
    read = {"numactl": read_numactl, "lscpu": read_lscpu}
    found = [read[name](texts[name]) for name in ("numactl", "lscpu") if name in texts]
    if cross_check is None:
        cross_check = os.path.realpath(root) != "/" and bool(Tree(root).numbered(CPU_DIR, "cpu"))
    if cross_check:
        base, rest = read_topology(root, facts), found
    else:
        base, rest = found[0], found[1:]
    more = [row for text in rest for row in (*text.warnings, *differences(text, base))]
    counts = next((text.cpus.counts for text in rest if text.cpus.counts), base.cpus.counts)
    cpus = base.cpus if base.cpus.packages else replace(base.cpus, counts=counts)
    return replace(base, cpus=cpus, warnings=(*base.warnings, *more))


def differences(text: Topology, kernel: Topology) -> list[dict[str, str]]:
    """Where TEXT contradicts KERNEL (its files, or another text), as warnings `SOURCE_disagrees_with_SOURCE`.

    Memory may differ by what a tool rounds away (1 MB); what a text leaves out is no contradiction.
    """
    found = []
    name = "sysfs" if kernel.source == "no_numa" else kernel.source
    ours, theirs = kernel.ids("online"), text.ids("online")
    if ours != theirs:
        found.append(f"nodes {format_list(theirs)}, {name} has {format_list(ours)}")
    for node in text.nodes:
        real = kernel.node(node.id)
        if real is None:
            continue
        if node.cpus != real.cpus:
            found.append(f"node {node.id} CPUs {format_list(node.cpus)}, {name} has {format_list(real.cpus)}")
        sizes = (node.memory_bytes, real.memory_bytes)
        if None not in sizes and abs((sizes[0] or 0) - (sizes[1] or 0)) > 1 << 20:
            found.append(f"node {node.id} memory {sizes[0]}, {name} has {sizes[1]} bytes")
        if node.distances and real.distances and node.distances != real.distances:
            found.append(f"node {node.id} distances differ")
    sockets, real_sockets = text.cpus.as_dict()["sockets"], kernel.cpus.as_dict()["sockets"]
    if sockets and real_sockets and sockets != real_sockets:
        found.append(f"{sockets} sockets, {name} has {real_sockets}")
    return [{"reason": f"{text.source}_disagrees_with_{name}", "text": row} for row in found]


def _list(text: str) -> frozenset[int]:
    """A list with ranges, or a mask where a tool prints `0xff`; what is unreadable raises ValueError."""
    text = text.strip()
    if text.startswith("0x"):
        digits = text[2:].replace(",", "")
        padded = digits.zfill(-(-len(digits) // 8) * 8)
        return parse_mask(",".join(padded[at : at + 8] for at in range(0, len(padded), 8)))
    return id_list(text)


def _distance_table(text: str, ids: frozenset[int], warnings: Warnings) -> dict[int, dict[int, int]]:
    """The table below `node distances:`; its own header row names the columns."""
    part = re.search(r"(?ms)^\s*node distances:\s*\n(.*)", text)
    if not part:
        return {}
    header = re.search(r"(?m)^\s*node((?:\s+\d+)+)\s*$", part.group(1))
    columns = [int(number) for number in header.group(1).split()] if header else sorted(ids)
    table = {}
    for number, row in re.findall(r"(?m)^\s*(\d+):((?:[ \t]+\d+)+)[ \t]*$", part.group(1)):
        values = [int(value) for value in row.split()]
        if len(values) != len(columns):
            why = f"node {number}: {len(values)} distances for {len(columns)} columns"
            warnings.append({"reason": "distance_columns_unknown", "text": why})
            continue
        table[int(number)] = {node: value for node, value in zip(columns, values) if node in ids}
    return table


def _text_node(number: int, cpus: frozenset[int], size: int | None, distances: dict[int, int] | None) -> Node:
    memory = None if size is None else size > 0
    return Node(number, cpus, size, memory, memory, {}, distances)


def _s390_counts(fields: Mapping[str, str]) -> dict[str, int]:
    """lscpu on s390 counts sockets per book and books per drawer."""
    if "Socket(s) per book" not in fields:
        return {}
    keys = ("Socket(s) per book", "Book(s) per drawer", "Drawer(s)", "Book(s)")
    total = 1
    for key in keys:
        if fields.get(key, "").isdigit():
            total *= int(fields[key])
    return {"sockets": total}


def _lscpu_contradictions(
    fields: Mapping[str, str],
    rows: Mapping[int, frozenset[int]],
    online: frozenset[int],
    counts: Mapping[str, int],
) -> Warnings:
    said = []
    if fields.get("NUMA node(s)", "").isdigit() and int(fields["NUMA node(s)"]) != len(rows):
        said.append(f"NUMA node(s) is {fields['NUMA node(s)']}, there are {len(rows)} rows")
    outside = frozenset().union(*rows.values()) - online
    if outside:
        said.append(f"node rows name CPUs {format_list(outside)}, which are not online")
    total = fields.get("CPU(s)", "")
    if total.isdigit() and int(total) < len(online):
        said.append(f"CPU(s) is {total}, {len(online)} are listed as online")
    if len(counts) == 3 and counts["sockets"] * counts["cores_per_socket"] * counts["threads_per_core"] < len(
        online
    ):
        said.append("sockets times cores times threads is less than the online CPUs")
    return [{"reason": "lscpu_disagrees_with_itself", "text": text} for text in said]


def _assemble(
    source: str,
    nodes: tuple[Node, ...],
    online: frozenset[int] | None,
    counts: dict[str, int],
    guest: Virtualization,
    warnings: Warnings,
    arch: str | None = None,
) -> Topology:
    counted = sum(len(node.cpus) for node in nodes)
    covered = frozenset().union(*(node.cpus for node in nodes))
    if counted > len(covered):
        warnings.append({"reason": "cpu_in_several_nodes", "text": "a CPU is listed by more than one node"})
    every = covered if online is None else online
    cpus = Cpus(online=every, possible=every, present=every, counts=counts)
    sizes = [node.memory_bytes for node in nodes if node.memory_bytes is not None]
    return Topology(
        source=source,
        cpus=cpus,
        nodes=nodes,
        lists=NodeLists(possible=frozenset(node.id for node in nodes)),
        arch=arch,
        memory_bytes=sum(sizes) if len(sizes) == len(nodes) else None,
        virtualization=guest,
        warnings=(*warnings, *judge_distances(nodes, guest)),
    )
