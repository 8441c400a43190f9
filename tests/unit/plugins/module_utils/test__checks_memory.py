# SPDX-License-Identifier: GPL-3.0-or-later
"""NUMA balancing: a sysctl of the plan where the kernel has it, off for good where it has not."""

from __future__ import annotations

from pathlib import Path

import pytest
import verified_host as vh
from ansible_collections.firsttouch.host.plugins.module_utils import _checks_memory
from ansible_collections.firsttouch.host.plugins.module_utils._checks_host import Context
from support import put

LIVE = "/proc/sys/kernel/numa_balancing"


def answers(root: Path, live: bool) -> list[tuple[str, str, bool]]:
    ctx = Context(vh.plan_for(root, {"numa_balancing": False}), str(root))
    ctx.live = live
    rows = _checks_memory.check_numa_balancing(ctx)
    return [(row.status, row.reason, row.intended) for row in rows]


@pytest.mark.parametrize(
    ("live", "answer"), [(True, ("pass", "", True)), (False, ("not_evaluated", "not_recorded", True))]
)
def test_a_kernel_without_it_has_it_off(tmp_path: Path, live: bool, answer: tuple[str, str, bool]) -> None:
    assert answers(vh.bare_host(tmp_path), live) == [answer]


def test_another_kernel_may_have_it_after_all(tmp_path: Path) -> None:
    plan = vh.plan_for(vh.bare_host(tmp_path), {"numa_balancing": False})
    put(tmp_path, LIVE, "1\n")
    rows = list(_checks_memory.check_numa_balancing(Context(plan, str(tmp_path))))
    assert [(row.status, row.reason) for row in rows] == [("fail", "numa_balancing_on")]
    assert "firsttouch_numa_balancing" in rows[0].remedy


def test_where_the_kernel_has_it_the_sysctl_is_what_is_checked(tmp_path: Path) -> None:
    put(vh.bare_host(tmp_path), LIVE, "1\n")
    plan = vh.plan_for(tmp_path, {"numa_balancing": False})
    assert plan["sysctls"] == {"kernel.numa_balancing": "0"}
    assert list(_checks_memory.check_numa_balancing(Context(plan, str(tmp_path)))) == []
