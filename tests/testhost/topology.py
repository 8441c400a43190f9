# SPDX-License-Identifier: GPL-3.0-or-later
"""The machines of topologies.toml, and the QEMU arguments that build them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import HostError
from .paths import PACKAGE_DIR

DATA_FILE = PACKAGE_DIR / "topologies.toml"
_KEYS = {
    "description",
    "sockets",
    "cores",
    "threads",
    "memory_mib",
    "nodes",
    "distances",
    "below_4g_mib",
    "cpu_options",
    "dmi",
    "reserve",
    "ask_only",
}


@dataclass(frozen=True)
class Node:
    """One NUMA node: a CPU list ("" for none) and its memory in MiB (0 for none)."""

    cpus: str
    memory_mib: int


@dataclass(frozen=True)
class Topology:
    """One machine. ``distances`` holds (node, node, distance), applied both ways; ``below_4g_mib`` is how
    much memory comes before the PCI hole (0 = what the machine type does by itself)."""

    name: str
    description: str
    sockets: int
    cores: int
    threads: int
    memory_mib: int
    nodes: tuple[Node, ...] = ()
    distances: tuple[tuple[int, int, int], ...] = ()
    below_4g_mib: int = 0
    cpu_options: str = ""
    dmi: Mapping[str, str] = field(default_factory=dict)
    reserve: bool = True
    ask_only: bool = False

    @property
    def cpus(self) -> int:
        return self.sockets * self.cores * self.threads


def from_table(name: str, table: Mapping[str, Any]) -> Topology:
    """A topology from its table in the data file; HostError names the key that is wrong."""
    unknown = sorted(set(table) - _KEYS)
    if unknown:
        raise HostError(f"{DATA_FILE.name}: [{name}] has unknown keys: {', '.join(unknown)}")
    nodes = tuple(Node(str(n["cpus"]), int(n["memory_mib"])) for n in table.get("nodes", ()))
    if bool(nodes) == ("memory_mib" in table):
        raise HostError(f"{DATA_FILE.name}: [{name}] needs either nodes or memory_mib")
    distances = tuple((int(a), int(b), int(d)) for a, b, d in table.get("distances", ()))
    for a, b, distance in distances:
        if not (0 <= a < len(nodes) and 0 <= b < len(nodes) and a != b and 10 < distance < 255):
            raise HostError(f"{DATA_FILE.name}: [{name}] has a bad distance: {[a, b, distance]}")
    return Topology(
        name=name,
        description=str(table["description"]),
        sockets=int(table["sockets"]),
        cores=int(table["cores"]),
        threads=int(table.get("threads", 1)),
        memory_mib=sum(n.memory_mib for n in nodes) if nodes else int(table["memory_mib"]),
        nodes=nodes,
        distances=distances,
        below_4g_mib=int(table.get("below_4g_mib", 0)),
        cpu_options=str(table.get("cpu_options", "")),
        dmi=dict(table.get("dmi", {})),
        reserve=bool(table.get("reserve", True)),
        ask_only=bool(table.get("ask_only", False)),
    )


def load(data_file: Path = DATA_FILE) -> dict[str, Topology]:
    """All topologies by name."""
    with data_file.open("rb") as stream:
        return {name: from_table(name, table) for name, table in tomllib.load(stream).items()}


def get(name: str) -> Topology:
    """The topology of that name; HostError lists the names that exist."""
    known = load()
    if name not in known:
        raise HostError(f"no topology {name!r}; known are: {', '.join(known)}")
    return known[name]


def _escape(value: str) -> str:
    """A comma ends a QEMU suboption unless it is doubled."""
    return value.replace(",", ",,")


def _memory_backend(ident: str, memory_mib: int, reserve: bool) -> list[str]:
    tail = "" if reserve else ",reserve=off"
    return ["-object", f"memory-backend-ram,id={ident},size={memory_mib}M{tail}"]


def qemu_args(topology: Topology) -> list[str]:
    """CPU, memory, NUMA and DMI arguments of QEMU. The machine type is set elsewhere; a -machine here
    adds to it."""
    cpu = "max,la57=off" + (f",{topology.cpu_options}" if topology.cpu_options else "")
    args = [
        "-cpu", cpu,
        "-smp", f"{topology.cpus},sockets={topology.sockets},cores={topology.cores},threads={topology.threads}",
        "-m", f"{topology.memory_mib}M",
    ]  # fmt: skip
    if topology.below_4g_mib:
        args += ["-machine", f"max-ram-below-4g={topology.below_4g_mib}M"]
    if not topology.nodes:
        args += _memory_backend("ram", topology.memory_mib, topology.reserve)
        args += ["-machine", "memory-backend=ram"]
    for index, node in enumerate(topology.nodes):
        text = f"node,nodeid={index}"
        if node.cpus:
            text += "".join(f",cpus={part}" for part in node.cpus.split(","))
        if node.memory_mib:
            args += _memory_backend(f"ram{index}", node.memory_mib, topology.reserve)
            text += f",memdev=ram{index}"
        args += ["-numa", text]
    for a, b, distance in topology.distances:
        args += ["-numa", f"dist,src={a},dst={b},val={distance}"]
    if topology.dmi:
        text = ",".join(f"{key}={_escape(value)}" for key, value in topology.dmi.items())
        args += ["-smbios", f"type=1,{text}"]
    return args
