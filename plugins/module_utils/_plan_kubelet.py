# SPDX-License-Identifier: Apache-2.0
"""The kubelet of the plan: its policies, the CPUs that keep house, and the memory of each node that pods do not get.

Rules of the kubelet: with the policy Static the reservedMemory of all nodes must be equal, to the byte, to the memory
of kubeReserved + systemReserved + evictionHard, huge pages not counted, or it does not start
(pkg/kubelet/cm/memorymanager). The topology manager takes at most 8 nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import _kubelet_host
from ._intent import PREFIX, IntentError, Judge, byte_size, mapping
from ._kubelet_host import RESERVING, Kubelet, KubeletError, Reserved
from ._plan_facts import Facts, refuse_without_nodes
from ._topology_nodes import Node

VARIABLE = "kubelet"
API_VERSION = "kubelet.config.k8s.io/v1beta1"
_MIB = 1 << 20
_MOST_NODES = 8
_GIVEN = {
    "kube_reserved": "kubeReserved",
    "system_reserved": "systemReserved",
    "eviction_hard": "evictionHard",
}
_KEYS = (*_GIVEN, "reserved_memory", "config_dir", "drained")


def plan_kubelet(value: Any, facts: Facts, planned: Mapping[str, Any], judge: Judge) -> dict[str, Any]:
    """The section of `kubelet`: `present`, or a mapping of what is known better than the host. Refusals go to JUDGE."""
    try:
        wish = _wish(value)
    except IntentError as exc:
        judge.refuse("bad_value", VARIABLE, str(exc))
        return {}
    error = facts.kubelet_error
    if error is not None:
        judge.refuse(error.reason, VARIABLE, str(error), error.unrecorded, file=error.path)
        return {}
    if refuse_without_nodes(VARIABLE, facts, judge):
        return {}
    kubelet = facts.kubelet
    file = _file(wish, kubelet, judge)
    _check_rivals(wish, kubelet, judge)
    reserved = _reserved(wish, kubelet, judge)
    housekeeping = ((planned.get("cpu_isolation") or {}).get("housekeeping")) or ""
    # Where something else was refused already the CPUs may be missing for that, which is what to mend.
    if not housekeeping and all(row.variable == f"{PREFIX}{VARIABLE}" for row in judge.refusals):
        text = (
            "the CPUs that the kubelet keeps from pods are those that keep house, and the plan isolates no CPU; set "
            "firsttouch_isolated_cpus, and plan cpu_isolation before or with the kubelet"
        )
        judge.refuse("no_housekeeping_cpu", VARIABLE, text)
    shares = _shares(wish, sum(part.bytes for part in reserved.values()), facts, planned, judge)
    if judge.refusals:
        return {}
    return {
        "file": file,
        "root_dir": kubelet.root_dir if kubelet else _kubelet_host.ROOT_DIR,
        "drained": wish.get("drained", False),
        "reserved": {name: {"bytes": part.bytes, "source": part.source} for name, part in reserved.items()},
        "config": _config(wish, housekeeping, shares),
    }


def _wish(value: Any) -> dict[str, Any]:
    if value == "present":
        return {}
    if not isinstance(value, Mapping):
        raise IntentError(f"{value!r} is neither present nor a mapping")
    wish = mapping(value, _KEYS, "the value")
    for name in _GIVEN:
        if name in wish:
            wish[name] = byte_size(wish[name])
    if not isinstance(wish.get("drained", False), bool):
        raise IntentError(f"drained is {wish['drained']!r}, neither true nor false")
    folder = wish.get("config_dir")
    if folder is not None and not (isinstance(folder, str) and folder.startswith("/") and ".." not in folder):
        raise IntentError(f"config_dir {folder!r} is not an absolute path")
    if "reserved_memory" in wish:
        shares = wish["reserved_memory"]
        if not isinstance(shares, Mapping) or not all(str(node).isdigit() for node in shares):
            raise IntentError(f"reserved_memory is {shares!r}, no mapping of node id to bytes")
        wish["reserved_memory"] = {int(node): byte_size(size) for node, size in shares.items()}
    return wish


def _file(wish: Mapping[str, Any], kubelet: Kubelet | None, judge: Judge) -> str:
    given = wish.get("config_dir")
    if kubelet is None:
        missing = sorted(name for name in (*_GIVEN, "config_dir") if name not in wish)
        if missing:
            text = (
                f"this host has no {_kubelet_host.UNIT}, so what its kubelet reserves is not known; give "
                f"{', '.join(missing)}, or set it to absent"
            )
            judge.refuse("no_kubelet", VARIABLE, text)
        return f"{str(given).rstrip('/')}/{_kubelet_host.DROPIN_NAME}"
    if kubelet.dropin is None:
        text = (
            f"{kubelet.unit} starts the kubelet without --config-dir, so no drop-in would be read; add "
            f"--config-dir={_kubelet_host.CONFIG_DIR} to KUBELET_EXTRA_ARGS (in /etc/default/kubelet or "
            f"/etc/sysconfig/kubelet), which kubelets know since 1.28"
        )
        judge.refuse("no_config_dir", VARIABLE, text)
    elif given is not None and given.rstrip("/") != (kubelet.config_dir or "").rstrip("/"):
        text = f"config_dir is {given}, {kubelet.unit} has --config-dir={kubelet.config_dir}; leave it out"
        judge.refuse("bad_value", VARIABLE, text)
    return kubelet.dropin or ""


def _check_rivals(wish: Mapping[str, Any], kubelet: Kubelet | None, judge: Judge) -> None:
    """Refuse what would win over our file, or what the kubelet does not take together with it."""
    if kubelet is None:
        return
    fields = {
        **_kubelet_host.OURS,
        **{field: RESERVING[field] for name, field in _GIVEN.items() if name in wish},
    }
    for flag in fields.values():
        if flag in kubelet.flags:
            text = f"{kubelet.unit} has --{flag}, which wins over any file; take it out of the unit or its environment"
            judge.refuse("flag_wins", VARIABLE, text, flag=flag)
    for path, top in kubelet.after_ours():
        for field in (*_kubelet_host.OURS, *RESERVING):
            if field in top:
                text = (
                    f"{path} is read after {kubelet.dropin} and sets {field}; rename it, or take {field} out"
                )
                judge.refuse("overridden_by", VARIABLE, text, file=path)
    for field, where, found in _kubelet_host.settings(kubelet, _kubelet_host.CGROUPS):
        text = (
            f"{where}: {field} is {found!r}, which the kubelet refuses beside reservedSystemCPUs; take it out"
        )
        judge.refuse("reserved_cgroup", VARIABLE, text, source=where)


def _reserved(wish: Mapping[str, Any], kubelet: Kubelet | None, judge: Judge) -> dict[str, Reserved]:
    found = {}
    for name, setting in _GIVEN.items():
        if name in wish:
            found[setting] = Reserved(wish[name], f"firsttouch_kubelet {name}")
        elif kubelet is not None:
            try:
                found[setting] = _kubelet_host.reserved(kubelet, setting)
            except KubeletError as exc:
                judge.refuse(exc.reason, VARIABLE, str(exc), file=exc.path)
    return found


def _shares(
    wish: Mapping[str, Any], total: int, facts: Facts, planned: Mapping[str, Any], judge: Judge
) -> dict[int, int]:
    """Bytes of each node that are reserved: as given, or even in whole MiB, the rest on the lowest node."""
    nodes = {node.id: node for node in facts.topology.nodes if node.has_memory is not False}
    if len(facts.topology.nodes) > _MOST_NODES:
        text = (
            f"{len(facts.topology.nodes)} NUMA nodes, and the kubelet's topology manager takes {_MOST_NODES}"
        )
        judge.refuse("too_many_nodes", VARIABLE, f"{text}; set it to absent")
        return {}
    if judge.refusals or not nodes:
        return {}
    if not total:
        text = (
            "kubeReserved, systemReserved and evictionHard keep no memory from pods, and the memory manager does not "
            "start without; give kube_reserved, system_reserved or eviction_hard"
        )
        judge.refuse("nothing_reserved", VARIABLE, text)
        return {}
    shares: dict[int, int] = wish.get("reserved_memory") or _even(total, sorted(nodes))
    for number in sorted(set(shares) - set(nodes)):
        judge.refuse("no_such_node", VARIABLE, f"reserved_memory: this host has no node {number} with memory")
    if sum(shares.values()) != total:
        text = (
            f"reserved_memory adds up to {sum(shares.values())} bytes, kubeReserved + systemReserved + evictionHard to "
            f"{total}; the kubelet starts only where both are equal"
        )
        judge.refuse("reserved_differs", VARIABLE, text, asked=sum(shares.values()), needed=total)
    for number, size in shares.items():
        if number in nodes:
            _check_room(nodes[number], size, planned, judge)
    return {number: size for number, size in sorted(shares.items()) if size}


def _even(total: int, nodes: list[int]) -> dict[int, int]:
    share = total // len(nodes) // _MIB * _MIB
    return {node: share + (total - share * len(nodes) if node == nodes[0] else 0) for node in nodes}


def _check_room(node: Node, size: int, planned: Mapping[str, Any], judge: Judge) -> None:
    if node.memory_bytes is None:
        return
    room = node.memory_bytes - _huge_bytes(node, planned)
    if size > room:
        text = (
            f"node {node.id}: {size} bytes are to be reserved, {room} are left beside its huge pages; say with "
            f"reserved_memory how much each node gives"
        )
        judge.refuse("reserved_exceeds_node", VARIABLE, text, node=node.id, asked=size, available=room)


def _huge_bytes(node: Node, planned: Mapping[str, Any]) -> int:
    """Bytes in the huge pages of NODE as planned; in those that it has, of sizes that are not planned."""
    rows = ((planned.get("hugepages") or {}).get("pools")) or ()
    pages = {f"{row['size_kb']}kB": int((row.get("nodes") or {}).get(str(node.id)) or 0) for row in rows}
    live = {name: int(pool.get("total") or 0) for name, pool in node.pools.items()}
    return sum(int(name[:-2]) * 1024 * count for name, count in {**live, **pages}.items())


def _config(wish: Mapping[str, Any], housekeeping: str, shares: Mapping[int, int]) -> dict[str, Any]:
    config: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": "KubeletConfiguration",
        "cpuManagerPolicy": "static",
        "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
        "topologyManagerPolicy": "single-numa-node",
        "memoryManagerPolicy": "Static",
        "reservedSystemCPUs": housekeeping,
        "reservedMemory": [
            {"numaNode": node, "limits": {"memory": format_quantity(size)}} for node, size in shares.items()
        ],
    }
    for name, setting in _GIVEN.items():
        if name in wish:
            key = "memory.available" if setting == "evictionHard" else "memory"
            config[setting] = {key: format_quantity(wish[name])}
    return config


def format_quantity(size: int) -> str:
    """SIZE bytes as Kubernetes writes them: `1Gi`, `1536Mi`, `1000`."""
    for unit, power in (("Gi", 30), ("Mi", 20), ("Ki", 10)):
        if size and size % (1 << power) == 0:
            return f"{size >> power}{unit}"
    return str(size)
