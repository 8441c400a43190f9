# SPDX-License-Identifier: Apache-2.0
"""pages="auto" takes no huge page that somebody counts on, and says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from firsttouch import _pages, _pool, plan
from firsttouch.errors import PlanError, PoolTooSmallError

MIB = 1 << 20


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten pages, one of them promised; four of the free ones on node 1. No plan."""
    monkeypatch.setattr(_pool, "read_pool", lambda _: _pool.Pool(2 * MIB, 10, 10, 1, 0, 0, {0: 6, 1: 4}))
    monkeypatch.setattr(plan, "load_plan", plan.Plan)


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize(
    ("mib", "node", "taken"), [(8, None, True), (9, None, False), (4, 1, True), (5, 1, False), (1, 7, False)]
)
def test_half_of_what_is_free(mib: int, node: int | None, taken: bool) -> None:
    """Without a plan at most half of the free pages, of the node where one is asked for."""
    kinds, remarks = _pages.kinds("auto", mib * MIB, node)
    assert ("hugetlb" in kinds) == taken
    assert bool(remarks) != taken
    assert taken or "ask for them with pages=hugetlb" in remarks[0]


@pytest.mark.usefixtures("pool")
def test_asked_for() -> None:
    """What is asked for by name is tried, and nothing else."""
    assert _pages.kinds("hugetlb", 1000 * MIB, None) == (("hugetlb",), [])
    assert _pages.kinds("4k", 1, None) == (("4k",), [])


@pytest.mark.usefixtures("pool")
def test_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pools of a plan are for models; a plan without pools says nothing of them."""
    document = {"sections": {"hugepages": {"pools": [{"size": "2M"}]}}}
    monkeypatch.setattr(plan, "load_plan", lambda: plan.Plan(document, "/etc/firsttouch/plan.json"))
    kinds, remarks = _pages.kinds("auto", MIB, None)
    assert kinds == ("thp", "4k")
    assert "the pools of /etc/firsttouch/plan.json are for models" in remarks[0]
    monkeypatch.setattr(plan, "load_plan", lambda: plan.Plan({"sections": {"hugepages": None}}, "x"))
    assert "hugetlb" in _pages.kinds("auto", MIB, None)[0]


@pytest.mark.usefixtures("pool")
def test_not_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A plan that cannot be read, or a kernel without such pages: none is taken."""

    def broken() -> plan.Plan:
        raise PlanError("plan x is no JSON")

    monkeypatch.setattr(plan, "load_plan", broken)
    assert _pages.kinds("auto", MIB, None)[1] == ["hugetlb: plan x is no JSON, so that nobody knows whose the pool is"]

    def none(_: int) -> _pool.Pool:
        raise PoolTooSmallError("this kernel has no huge pages of 2M")

    monkeypatch.setattr(_pool, "read_pool", none)
    assert _pages.kinds("auto", MIB, None)[0] == ("thp", "4k")
