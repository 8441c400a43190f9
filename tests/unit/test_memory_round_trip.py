# SPDX-License-Identifier: GPL-3.0-or-later
"""Sysctls, huge page modes, irqbalance and services through the modules in the order of the roles, and back again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import verified_host as vh
from support import put, run_module

INTENT: dict[str, Any] = {
    "vm_sysctls": {"vm.swappiness": 0},
    "numa_balancing": False,
    "isolated_cpus": "1,3",
    "irqbalance": "off",
    "thp": {"enabled": "madvise", "defrag": "defer"},
    "conflicting_services": "stop",
}


def files(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def host(root: Path) -> str:
    vh.bare_host(root)
    put(root, "/proc/sys/kernel/numa_balancing", "1\n")
    put(root, "/sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n")
    put(root, "/sys/kernel/mm/transparent_hugepage/defrag", "always defer defer+madvise [madvise] never\n")
    put(root, "/usr/lib/systemd/system/tuned.service", "[Service]\nExecStart=/usr/sbin/tuned\n")
    put(root, "/etc/tuned/active_profile", "ours\n")
    put(root, "/etc/tuned/ours/tuned.conf", "[sysctl]\nvm.swappiness=10\n")
    return str(root)


def provision(root: str, *, revert: bool = False, check: bool = False) -> list[dict[str, Any]]:
    """What the roles do, in their order; the change set."""
    wish = {"intent": {} if revert else INTENT, "revert": revert, "sysroot": root}
    planned = run_module("host_plan", wish)
    assert not planned.get("failed"), planned
    plan, rows = planned["plan"], []
    record = run_module("plan_record", {"plan": plan, "sysroot": root}, check=check)
    sections, before = plan["sections"], record["before"]
    steps = {
        "conflicting_services": {"stop": sections["services"]["stop"], "found": before["services"]},
        "thp": {"values": sections["thp"]["settings"], "restore": before["thp"]},
        "sysctl_dropin": {
            "values": plan["sysctls"],
            "restore": before["sysctl"],
            "state": "present" if plan["sysctls"] else "absent",
        },
        "irqbalance": {
            "mode": sections["cpu_isolation"]["irqbalance"],
            "isolated": sections["cpu_isolation"]["isolated"],
            "found": before["services"].get("irqbalance.service", {}),
        },
    }
    order = list(steps)[1:] + list(steps)[:1] if revert else list(steps)
    for name in order:
        done = run_module(name, {**steps[name], "sysroot": root}, check=check)
        assert not done.get("failed"), done
        rows += done["changes"]
    return [*record["changes"], *rows]


def test_there_and_back(tmp_path: Path) -> None:
    root = host(tmp_path)
    before = files(tmp_path)
    predicted = provision(root, check=True)
    assert files(tmp_path) == before, "a check run writes nothing"
    done = provision(root)
    assert done == predicted
    assert {row["resource"] for row in done} >= {
        "file:/etc/systemd/system/tuned.service.d/zz-firsttouch.conf",
        "file:/etc/systemd/system/irqbalance.service.d/zz-firsttouch.conf",
        "file:/etc/tmpfiles.d/00-firsttouch-thp.conf",
        "sysctl:vm.swappiness",
        "sysctl:kernel.numa_balancing",
    }
    assert provision(root) == [], "the second time nothing changes"
    provision(root, revert=True)
    run_module("plan_record", {"state": "absent", "sysroot": root})
    assert files(tmp_path) == before
