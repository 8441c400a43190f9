# SPDX-License-Identifier: Apache-2.0
"""pages="auto" takes no huge page that somebody counts on, and says why."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import Any

import pytest

from firsttouch import Guests, InferenceClient, Options, _pages, _pool, plan
from firsttouch._lanes import CTL_OFF, LANE, at
from firsttouch.errors import BusyError, PlanError, PoolTooSmallError
from serving import address_of, check, eventually, request, served

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
    told = "no page of 2 MiB is free and not promised on node 7" if node == 7 else "ask for them with pages=hugetlb"
    assert taken or told in remarks[0]


@pytest.mark.usefixtures("pool")
def test_asked_for() -> None:
    """What is asked for by name is tried, and nothing else."""
    assert _pages.kinds("hugetlb", 1000 * MIB, None) == (("hugetlb",), [])
    assert _pages.kinds("4k", 1, None) == (("4k",), [])


@pytest.mark.usefixtures("pool")
def test_strangers() -> None:
    """A client that may not end the server otherwise does not get to do so by giving its pages back."""
    kinds, remarks = _pages.kinds("auto", MIB, None, strangers=True)
    assert kinds == ("thp", "4k")
    assert "a client of another user could give pages back" in remarks[0]
    kinds, remarks = _pages.kinds("hugetlb", MIB, None, strangers=True)
    assert kinds == ("hugetlb",)
    assert "a client of another user could give pages back" in remarks[0]
    assert _pages.kinds("4k", MIB, None, strangers=True)[1] == []
    own = Guests(frozenset({0, os.geteuid()}))
    assert [own.strangers, Guests(frozenset({54321})).strangers] == [False, True]
    assert Guests(gids=frozenset({os.getegid()})).strangers


def test_holes(tmp_path: Path) -> None:
    """A client that gives the pages of all lanes back harms requests at most: the server serves the next ones."""
    with served(address_of("shm", tmp_path), options=Options(lanes=2)) as (where, pid):
        with InferenceClient(where, reconnect=False) as evil:
            for number in range(5):
                check(number, evil.infer(request(number))[0])
            link: Any = evil.link
            segment = link.segment
            calls = ctypes.CDLL(None, use_errno=True)
            # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE of include/uapi/linux/falloc.h.
            length = ctypes.c_long(segment.geometry.size - CTL_OFF)
            assert calls.fallocate(segment.fd, 3, ctypes.c_long(CTL_OFF), length) == 0
            # What the server writes may be there again by now; these words are a client's.
            words = [(segment.control(lane) + at(LANE, "req_seq")) // 4 for lane in range(2)]
            assert [segment.words[word] for word in words] == [0, 0]
        assert eventually(lambda: _served(where))
        # The same process, which was not started again.
        assert os.waitpid(pid, os.WNOHANG) == (0, 0)


def _served(where: str) -> bool:
    """Whether a new client gets a lane, and its answers."""
    with contextlib.suppress(BusyError), InferenceClient(where, timeout=5) as client:
        for number in range(3):
            check(number, client.infer(request(number))[0])
        return True
    return False


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
