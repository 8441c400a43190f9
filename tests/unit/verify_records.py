# SPDX-License-Identifier: GPL-3.0-or-later
"""Records of verified hosts for the tests of the report: real answers of a real module run, and broken ones."""

from __future__ import annotations

import copy
from typing import Any

from ansible_collections.firsttouch.host.plugins.plugin_utils._verify_record import record

HOSTILE = 'evil/../\x1b[31m<script>document.title="owned"</script>\u202e\u2028"\'&:*'
WHEN = "2026-01-02T03:04:05+00:00"


def answer(identity: str, status: str = "pass", **more: Any) -> dict[str, Any]:
    """One answer as host_verify returns it."""
    row: dict[str, Any] = {
        "id": identity,
        "status": status,
        "layer": "running",
        "expected": 1,
        "observed": 1 if status == "pass" else 0,
        "reason": "" if status == "pass" else "live_differs",
        "source": "/proc/sys/vm/swappiness",
        "remedy": "" if status == "pass" else "Run provision with firsttouch_vm_sysctls.",
        "intended": True,
    }
    return {**row, **more, "concern": identity.split(".", 1)[0]}


VIEW: dict[str, Any] = {
    "kernel": "6.12.0",
    "arch": "x86_64",
    "hypervisor": None,
    "bare_metal": True,
    "memory_bytes": 4 << 30,
    "cpus": {"online": "0-7", "offline": "", "isolated": "2-3,6-7", "nohz_full": "2-3,6-7"},
    "sockets": [{"id": 0, "cpus": "0-1,4-5"}, {"id": 1, "cpus": "2-3,6-7"}],
    "cores": ["0,4", "1,5", "2,6", "3,7"],
    "nodes": [
        {"id": 0, "cpus": "0-1,4-5", "memory_bytes": 1 << 30, "distances": {"0": 10, "1": 21}},
        {"id": 1, "cpus": "2-3,6-7", "memory_bytes": 3 << 30, "distances": {"0": 21, "1": 10}},
    ],
    "pools": [
        {"size": "2M", "node": 0, "asked": 100, "got": 100, "free": 40, "surplus": 0},
        {"size": "2M", "node": 1, "asked": 160, "got": 159, "free": 159, "surplus": 0},
        {"size": "1G", "node": 1, "asked": None, "got": 1, "free": None, "surplus": 0},
    ],
    "warnings": [],
    "trust": {
        "verdict": "exposed",
        "words": "bare metal whose sources agree",
        "evidence": [{"source": "/sys/devices/system/node/online", "seen": "2 nodes", "points": "consistent"}],
        "co_scheduling": {"risk": True, "text": "88 vCPUs in node 0, a socket has 84 cores"},
        "asserted_by": None,
        "transport": {"transport": "shm", "rule": "all_hold", "words": "same host, bound memory", "warning": ""},
    },
}
PLAN: dict[str, Any] = {
    "digest": "aaaaaaaaaaaa",
    "sections": {"vm_sysctls": "11", "hugepages": "22"},
    "intent": {"vm_sysctls": {"vm.swappiness": 0}},
}


def verified(name: str, *rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The record of host NAME with the answers ROWS."""
    statuses = [row["status"] for row in rows]
    verdict = "fail" if {"fail", "error"} & set(statuses) else "pass" if "pass" in statuses else "incomplete"
    result = {
        "verdict": verdict,
        "summary": {status: statuses.count(status) for status in sorted(set(statuses))},
        "results": list(rows),
        "host": copy.deepcopy(VIEW),
        "plan_used": copy.deepcopy(PLAN),
        **more,
    }
    return record(name, result, finished=WHEN, seconds=1.25, origin="variables")


def broken(host: str, **result: Any) -> dict[str, Any]:
    """The record of HOST from which no answers came."""
    return record(host, result, finished=WHEN, seconds=0.5)
