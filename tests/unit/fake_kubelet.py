# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for the kubelet: reads its configuration with PyYAML, and starts or not by the rules of its source.

Written from cmd/kubelet/app/server.go (merging), staging/src/k8s.io/kubelet/config/v1beta1/types.go (the typed fields),
pkg/kubelet/apis/config/validation, pkg/kubelet/cm/memorymanager and cpumanager (state). No kubelet has confirmed it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

QUANTITY = re.compile(r"(\d+)(Ki|Mi|Gi|k|M|G)?")
UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "k": 1000, "M": 10**6, "G": 10**9}
HEAD_CONFIG = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
CONFIG = "var/lib/kubelet/config.yaml"
CONFIG_DIR = "etc/kubernetes/kubelet.conf.d"
STATES = ("cpu_manager_state", "memory_manager_state")


# The fields of v1beta1 that a drop-in of ours may have, typed as in types.go. A list has one type of item, and
# {str: str} is a map; every other mapping is a struct, whose fields are all required but those in OPTIONAL.
CONFIGURATION: dict[str, Any] = {
    "apiVersion": str,
    "kind": str,
    "cpuManagerPolicy": str,
    "cpuManagerPolicyOptions": {str: str},
    "topologyManagerPolicy": str,
    "memoryManagerPolicy": str,
    "reservedSystemCPUs": str,
    "reservedMemory": [{"numaNode": int, "limits": {str: str}}],
    "kubeReserved": {str: str},
    "systemReserved": {str: str},
    "evictionHard": {str: str},
}
OPTIONAL = ("kubeReserved", "systemReserved", "evictionHard")


def typed(value: Any, kind: Any = None, where: str = "KubeletConfiguration") -> None:
    """Raise TypeError unless VALUE is of KIND, with no field that KIND does not know."""
    kind = CONFIGURATION if kind is None else kind
    if isinstance(kind, type):
        if type(value) is not kind:
            raise TypeError(f"{where} is {value!r}, not of type {kind.__name__}")
    elif isinstance(kind, list):
        typed(value, list, where)
        for position, item in enumerate(value):
            typed(item, kind[0], f"{where}[{position}]")
    elif kind == {str: str}:
        typed(value, dict, where)
        for key, item in value.items():
            typed(key, str, where)
            typed(item, str, f"{where}.{key}")
    else:
        typed(value, dict, where)
        wrong = {*value} ^ {*kind} - {name for name in OPTIONAL if name not in value}
        if wrong:
            raise TypeError(f"{where}: {sorted(wrong)} are missing or unknown")
        for key, item in value.items():
            typed(item, kind[key], f"{where}.{key}")


class Crash(Exception):
    """The kubelet ends with an error."""


def amount(text: Any) -> int:
    match = QUANTITY.fullmatch(str(text))
    if not match:
        raise Crash(f"quantities must match the regular expression: {text!r}")
    return int(match[1]) * UNITS[match[2] or ""]


def merge(base: Any, patch: Any) -> Any:
    """JSON merge patch, RFC 7396."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(base) if isinstance(base, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def load(text: str, name: str) -> dict[str, Any]:
    document = yaml.safe_load(text)
    if (
        document.get("kind") != "KubeletConfiguration"
        or document.get("apiVersion") != "kubelet.config.k8s.io/v1beta1"
    ):
        raise Crash(f"failed to load kubelet dropin file, path: {name}, no apiVersion/kind")
    return dict(document)


def effective(root: Path) -> dict[str, Any]:
    """The configuration of the files, merged."""
    config: dict[str, Any] = load((root / CONFIG).read_text(), CONFIG)
    if config.get("evictionHard") is None or config.get("mergeDefaultEvictionSettings"):
        config["evictionHard"] = {"memory.available": "100Mi", **(config.get("evictionHard") or {})}
    if not (root / CONFIG_DIR).is_dir():
        raise Crash("failed to walk through kubelet dropin directory")
    for path in sorted((root / CONFIG_DIR).rglob("*.conf")):
        config = merge(config, load(path.read_text(), path.name))
    return config


def start(root: Path, nodes: Mapping[int, int], pages: Mapping[int, int] | None = None) -> None:
    """Start on a host with NODES (bytes of memory) and 2M PAGES per node. Raises Crash."""
    config = effective(root)
    pages = pages or {}
    reserved: dict[int, int] = {}
    for row in config.get("reservedMemory") or []:
        if row["numaNode"] not in nodes or row["numaNode"] in reserved or not amount(row["limits"]["memory"]):
            raise Crash(f"reserved memory of node {row['numaNode']}")
        reserved[row["numaNode"]] = amount(row["limits"]["memory"])
    if config.get("memoryManagerPolicy") == "Static":
        available = (config.get("evictionHard") or {}).get("memory.available", 0)
        needed = amount(available) + sum(
            amount((config.get(name) or {}).get("memory", 0)) for name in ("kubeReserved", "systemReserved")
        )
        if sum(reserved.values()) != needed or not needed:
            raise Crash(f"the total amount {sum(reserved.values())} is not equal to the value {needed}")
    if config.get("reservedSystemCPUs") and (
        config.get("systemReservedCgroup") or config.get("kubeReservedCgroup")
    ):
        raise Crash("can't use reservedSystemCPUs with kubeReservedCgroup or systemReservedCgroup")
    if config.get("cpuManagerPolicy") == "static" and not config.get("reservedSystemCPUs"):
        raise Crash("the static policy requires a CPU reservation of more than zero")
    _state(root, "cpu_manager_state", {"policyName": config.get("cpuManagerPolicy", "none")})
    policy = config.get("memoryManagerPolicy", "None")
    machine = {
        str(node): {
            "memoryMap": {
                "memory": {"total": size, "systemReserved": reserved.get(node, 0)},
                "hugepages-2Mi": {"total": pages.get(node, 0) << 21, "systemReserved": 0},
            }
        }
        for node, size in nodes.items()
    }
    _state(
        root,
        "memory_manager_state",
        {"policyName": policy, "machineState": machine if policy == "Static" else {}},
    )


def _state(root: Path, name: str, now: dict[str, Any]) -> None:
    path = root / "var/lib/kubelet" / name
    if path.exists() and json.loads(path.read_text()) != now:
        raise Crash(f"could not restore state from checkpoint: {name}")
    path.write_text(json.dumps(now))


class Node:
    """`systemctl` of a host whose kubelet is the one above; events says what happened in which order."""

    def __init__(self, root: Path, nodes: Mapping[int, int], pages: Mapping[int, int] | None = None) -> None:
        self.root, self.nodes, self.pages = root, nodes, pages
        self.active = False
        self.crash = ""
        self.events: list[str] = []
        self.sabotage = ""

    def __call__(self, arguments: Sequence[str]) -> tuple[int, str, str]:
        verb = arguments[0]
        if verb == "show":
            state = "active" if self.active else "inactive"
            return 0, f"ActiveState={state}\nMainPID={7 if self.active else 0}\nNeedDaemonReload=no\n", ""
        there = [name for name in STATES if (self.root / "var/lib/kubelet" / name).exists()]
        files = sorted(path.name for path in (self.root / CONFIG_DIR).glob("*.conf"))
        self.events.append(f"{verb} {','.join(files)} {','.join(there)}".strip())
        self.active = False
        if verb == "start":
            try:
                texts = [path.read_text() for path in (self.root / CONFIG_DIR).glob("*")]
                if self.sabotage and any(self.sabotage in text for text in texts):
                    raise Crash("sabotage")
                start(self.root, self.nodes, self.pages)
                self.active = True
            except Crash as exc:
                self.crash = str(exc)
        return 0, "", ""
