# SPDX-License-Identifier: GPL-3.0-or-later
"""Hold what kernel_cmdline_info predicts against what a booted kernel answered."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ansible_collections.firsttouch.host.plugins.module_utils._cpulist import format_list, parse
from support import put, run_module

# The kernel's own words for what a reason code claims. A complaint without its code, or a code without its
# complaint, is a difference.
COMPLAINTS = {
    "specified twice without interleaving": {"repeated_hugepages_ignored"},
    "does not follow a valid hugepagesz": {"no_valid_hugepagesz"},
    "hugepagesz=\\S+ specified twice, ignoring": {"hugepagesz_specified_twice"},
    "HugeTLB: unsupported hugepagesz": {"unsupported_hugepagesz"},
    "default_hugepagesz previously specified": {"default_hugepagesz_specified_twice"},
    "unsupported default_hugepagesz": {"unsupported_default_hugepagesz"},
    "Invalid hugepages parameter": {"no_such_node", "invalid_hugepages", "node_without_memory"},
    "Using hugepages=": {"count_before_size_wins"},
    "must match isolcpus": {"mask_mismatch"},
    "Skipped unknown flag": {"unknown_flag", "missing_cpu_list"},
    "isolcpus: Invalid flag": {"invalid_flag", "missing_cpu_list"},
    "Clearing \\d+ from nohz_full": {"boot_cpu_keeps_tick"},
    "hugetlb_cma is enabled, skip boot time allocation": {"hugetlb_cma_replaces_pool"},
}
# What matters here of /boot/config-* of Debian's amd64 kernels, which an initramfs does not show.
_CONFIG = """\
CONFIG_NR_CPUS=8192
CONFIG_CPUMASK_OFFSTACK=y
CONFIG_NO_HZ_FULL=y
CONFIG_CPU_ISOLATION=y
CONFIG_RCU_NOCB_CPU=y
# CONFIG_CMA is not set
"""
_RCU = re.compile(r"Offload RCU callbacks from CPUs: (\S+?)\.?$")
_CRASH = re.compile(
    r"crashkernel(?: low memory)? reserved: .* \((\d+) MB\)|Reserving (\d+)MB of (?:low )?memory at"
)


def predicted(root: Path, guest: dict[str, Any], line: str) -> dict[str, Any]:
    """What kernel_cmdline_info says of LINE on the guest that gave the answer GUEST to an empty line."""
    cpu, node = "/sys/devices/system/cpu", "/sys/devices/system/node"
    files = {
        "/proc/cmdline": f"{guest['cmdline']}{line}\n",
        "/proc/sys/kernel/osrelease": guest["release"],
        f"/boot/config-{guest['release']}": _CONFIG,
        "/proc/meminfo": f"MemTotal: {guest['memory_bytes'] // 1024} kB\nHugepagesize: {guest['default_kb']} kB",
        "/proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu pse lm pdpe1gb\n",
        **{f"{cpu}/{name}": guest[name] for name in ("possible", "present", "online")},
        f"{node}/online": ",".join(sorted(guest["nodes"], key=int)),
        f"{node}/has_memory": guest["nodes_with_memory"],
        **{f"/sys/kernel/mm/hugepages/hugepages-{size}/nr_hugepages": "0" for size in guest["pools"]},
    }
    for path, text in files.items():
        put(root, path, text)
    result = run_module("kernel_cmdline_info", {"sysroot": str(root)})
    assert not result.get("failed"), result
    found: dict[str, Any] = result["predicted"]["running"]
    return found


def differences(doc: dict[str, Any], answer: dict[str, Any]) -> list[str]:
    """Every point in which the prediction DOC and the kernel's ANSWER differ, as one sentence each."""
    if answer["outcome"] != "booted":
        return [f"the kernel did not boot: {answer['outcome']}\n{answer.get('console', '')[-2000:]}"]
    pairs = (
        ("default size in kB", doc["default_kb"], answer["default_kb"]),
        ("isolated", doc["isolation"]["domain"], answer["isolated"]),
        ("nohz_full", doc["isolation"]["nohz_full"], answer["nohz_full"]),
        ("irqaffinity", doc["isolation"]["irqaffinity"], answer["default_irq_affinity"]),
        ("rcu_nocbs", doc["isolation"]["rcu_nocbs"], _rcu(answer)),
        ("possible CPUs", doc["cpus"]["possible"], answer["possible"]),
        ("crashkernel bytes", doc["memory"]["crashkernel_bytes"] or 0, _crash_bytes(answer)),
    )
    found = [
        f"{name}: predicted {ours!r}, the kernel has {its!r}" for name, ours, its in pairs if ours != its
    ]
    return _pools(doc, answer) + found + _complaints(doc, answer)


def _pools(doc: dict[str, Any], answer: dict[str, Any]) -> list[str]:
    found = []
    for size, real in answer["pools"].items():
        ours = doc["pools"].get(size, {"total": 0, "nodes": {}})
        if ours["total"] != real["total"]:
            found.append(f"pool {size}: predicted {ours['total']}, the kernel has {real['total']}")
        for node, pages in real["nodes"].items() if _placed(ours) else ():
            if ours["nodes"].get(node, 0) != pages:
                wanted = ours["nodes"].get(node, 0)
                found.append(f"pool {size} node {node}: predicted {wanted}, the kernel has {pages}")
    sizes = {size for size, ours in doc["pools"].items() if ours["total"]}
    found += [f"pool {size}: the kernel shows no such pool" for size in sorted(sizes - set(answer["pools"]))]
    # Kernels from 6.8 on fill a pool that they spread by several threads, so not exactly in turn.
    in_turn = tuple(map(int, doc["kernel"]["version"].split("."))) < (6, 8)
    pools = [doc["pools"][size] for size in sizes]
    # mem= can take all memory of a node away, and no file says which node lies where.
    whole = doc["memory"]["mem_limit_bytes"] is None
    if not found and whole and all(_placed(pool) or (in_turn and not pool["nodes"]) for pool in pools):
        found += _node_bytes(doc, answer)
    return found


def _placed(pool: dict[str, Any]) -> bool:
    """Whether every page of the pool has its node by the arguments."""
    return bool(pool["nodes"]) and sum(pool["nodes"].values()) == pool["total"]


def _node_bytes(doc: dict[str, Any], answer: dict[str, Any]) -> list[str]:
    pools = [(int(size[:-2]) * 1024, pool["nodes"]) for size, pool in answer["pools"].items()]
    got = {node: sum(size * nodes.get(node, 0) for size, nodes in pools) for node in answer["nodes"]}
    ours = {**dict.fromkeys(got, 0), **doc["memory"]["hugetlb_bytes_per_node"]}
    return [] if ours == got else [f"huge page bytes per node: predicted {ours}, the kernel has {got}"]


def _rcu(answer: dict[str, Any]) -> str:
    lists = [match.group(1) for line in answer["complaints"] if (match := _RCU.search(line))]
    return format_list(parse(lists[-1])) if lists and lists[-1] != "(none)" else ""


def _crash_bytes(answer: dict[str, Any]) -> int:
    sizes = [match for line in answer["complaints"] if (match := _CRASH.search(line))]
    return sum(int(match.group(1) or match.group(2)) << 20 for match in sizes)


def _complaints(doc: dict[str, Any], answer: dict[str, Any]) -> list[str]:
    text = "\n".join(answer["complaints"])
    reasons = {warn["reason"] for warn in doc["warnings"]}
    found = []
    for pattern, codes in COMPLAINTS.items():
        said = re.search(pattern, text) is not None
        if said and not codes & reasons:
            found.append(f"the kernel says {pattern!r}, none of {sorted(codes)} was predicted")
        if not said and len(codes) == 1 and codes & reasons:
            found.append(f"{sorted(codes)} was predicted, the kernel does not say {pattern!r}")
    return found
