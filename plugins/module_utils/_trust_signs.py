# SPDX-License-Identifier: Apache-2.0
"""What a host shows about its nodes besides the topology: CPU model, firmware tables, devices, boot arguments.

Absent and unreadable stay apart: None is "not known", and what could not be read is in `unreadable`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ._cmdline import split
from ._sosreport import UNKNOWN
from ._tree import Tree

ACPI_DIR = "/sys/firmware/acpi/tables"
PCI_DIR = "/sys/bus/pci/devices"
CPUINFO = "/proc/cpuinfo"
CMDLINE = "/proc/cmdline"
# Each names the place of a sign that this process, or the whole tree, is a container's.
_CONTAINER_FILES = ("/run/systemd/container", "/.dockerenv", "/run/.containerenv")
_POD_DIR = "/run/secrets/kubernetes.io/serviceaccount"
_LXCFS = re.compile(r"(?m)^\S+\s+(/proc/(?:cpuinfo|meminfo)|/sys/devices/system/cpu\S*)\s+fuse\.lxcfs\s")
_LAYERS = re.compile(
    r"(?m)^\S+\s+/\s+(?:fuse-)?overlay(?:fs)?\s\S*dir=\S*/(containerd|docker|containers|buildkit|crio|lxd|lxc)/"
)
_NAME = re.compile(r"(?mi)^(?:model name|cpu model|cpu)\s*:\s*(\S.*?)\s*$")
_MOST_DEVICES = 4096


@dataclass(frozen=True)
class Signs:
    """model_name, vendor, family, model: of the first CPU in /proc/cpuinfo. acpi: names of the ACPI tables, None where
    no directory lists them. pci: PCI devices per numa_node value (-1: none). boot: the tokens of the running line that
    change what the kernel makes of NUMA. container: (path, what it says). unreadable: path -> why."""

    model_name: str | None = None
    vendor: str | None = None
    family: int | None = None
    model: int | None = None
    acpi: frozenset[str] | None = None
    pci: Mapping[int, int] = field(default_factory=dict)
    boot: tuple[str, ...] = ()
    container: tuple[str, str] | None = None
    unreadable: Mapping[str, str] = field(default_factory=dict)


def read_signs(root: str = "/") -> Signs:
    """Read the signs below ROOT; never raises for what a host shows."""
    tree = Tree(root)
    cpuinfo = tree.text(CPUINFO) or ""
    name = _NAME.search(cpuinfo)
    tables = tree.names(ACPI_DIR)
    return Signs(
        model_name=name[1] if name else None,
        vendor=_field(cpuinfo, "vendor_id"),
        family=_integer(_field(cpuinfo, "cpu family")),
        model=_integer(_field(cpuinfo, "model")),
        acpi=frozenset(tables) if tables else None,
        pci=_pci_nodes(tree),
        boot=_numa_tokens(tree.text(CMDLINE) or ""),
        container=_container(tree),
        # What a sosreport never has is known by other files, or not at all.
        unreadable={path: why for path, why in tree.trouble.items() if why != UNKNOWN},
    )


def signs_as_dict(signs: Signs) -> dict[str, Any]:
    """SIGNS as JSON values, for a module's answer."""
    return {
        "model_name": signs.model_name,
        "acpi_srat": None if signs.acpi is None else "SRAT" in signs.acpi,
        "acpi_slit": None if signs.acpi is None else "SLIT" in signs.acpi,
        "pci_devices_per_node": {str(node): signs.pci[node] for node in sorted(signs.pci)},
        "boot_tokens": list(signs.boot),
        "container": None if signs.container is None else ": ".join(signs.container),
    }


def _field(text: str, name: str) -> str | None:
    match = re.search(rf"(?m)^{name}\s*:[ \t]*(\S.*?)\s*$", text)
    return match[1] if match else None


def _integer(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"\d{1,5}", text) else None


def _pci_nodes(tree: Tree) -> dict[int, int]:
    found: dict[int, int] = {}
    for name in tree.names(PCI_DIR)[:_MOST_DEVICES]:
        node = tree.number(f"{PCI_DIR}/{name}/numa_node")
        if node is not None:
            found[node] = found.get(node, 0) + 1
    return found


def _numa_tokens(line: str) -> tuple[str, ...]:
    """numa=off|noacpi|fake= and acpi=off, which hides SRAT and SLIT (admin-guide/kernel-parameters.txt)."""
    tokens = (token for token in split(line) if not token.after_dashes)
    return tuple(token.text for token in tokens if token.key == "numa" or token.text == "acpi=off")


def _container(tree: Tree) -> tuple[str, str] | None:
    for path in _CONTAINER_FILES:
        text = tree.text(path)
        if text is not None:
            return path, text.splitlines()[0] if text else "present"
    if tree.names(_POD_DIR):
        return _POD_DIR, "a pod's service account"
    path = "/proc/self/mounts"
    mounts = tree.text(path) or ""
    match = _LXCFS.search(mounts)
    if match:
        return path, f"{match[1]} is lxcfs's, not the kernel's"
    match = _LAYERS.search(mounts)
    return (path, f"the root file system is a layer of {match[1]}") if match else None
