# SPDX-License-Identifier: Apache-2.0
"""pin() does what it says, says what it could not do, and leaves nothing behind."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import pytest

from firsttouch import _linux, affinity
from firsttouch.errors import AffinityError


def state() -> dict[str, Any]:
    """Everything that pin() may change."""
    blas = [affinity._set_openblas(path, 1) for path in affinity._loaded("openblas")]
    for back in blas:
        assert back is not None
        back()
    return {
        "cpus": os.sched_getaffinity(0),
        "scheduler": (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority),
        "memory": _linux.get_mempolicy(),
        "switch": sys.getswitchinterval(),
        "variables": {name: os.environ.get(name) for name in affinity._POOL_VARIABLES},
    }


def test_pin_and_back() -> None:
    """One CPU, its node, a short switch interval and one BLAS thread; afterwards everything is as before."""
    before = state()
    cpu = max(before["cpus"])
    with affinity.pin(cpu, switch_seconds=affinity.SERVER_SWITCH_SECONDS) as pinned:
        assert os.sched_getaffinity(0) == {cpu}
        assert sys.getswitchinterval() == pytest.approx(1e-4)
        assert os.environ["OMP_NUM_THREADS"] == "1"
        names = [step.name for step in pinned.steps]
        assert names == ["cpu", "thread_pools", "memory", "switch_interval"]
        memory = pinned.steps[2]
        if memory.done:
            assert _linux.get_mempolicy() == (_linux.Mpol.PREFERRED, [affinity.node_of(cpu)])
        else:
            assert memory.reason
    pinned.undo()
    assert state() == before


def test_pools_as_wide_as_their_cpus() -> None:
    """BLAS may use the worker CPUs that it was given."""
    with affinity.pin(min(os.sched_getaffinity(0)), worker_cpus=[0, 1, 1, 2]):
        assert os.environ["OPENBLAS_NUM_THREADS"] == "3"


def test_only_this_thread() -> None:
    """Other threads keep their CPUs."""
    before = os.sched_getaffinity(0)
    other: list[set[int]] = []
    ready, go = threading.Event(), threading.Event()

    def work() -> None:
        ready.set()
        go.wait(5)
        other.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait(5)
    with affinity.pin(min(before)):
        go.set()
        thread.join(5)
    assert other == [before]


@pytest.mark.parametrize("cpu", [-1, 1023, 10**9])
def test_cpu_that_is_not_there(cpu: int) -> None:
    """A CPU that the thread cannot have is an error, and nothing is changed."""
    before = state()
    with pytest.raises(AffinityError, match=f"CPU {cpu}"):
        affinity.pin(cpu)
    assert state() == before


def test_fifo_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real-time priority is reported as done when it is so, and else as refused with what it needs."""
    before = state()
    with affinity.pin(min(before["cpus"]), fifo_priority=1) as pinned:
        step = next(step for step in pinned.steps if step.name == "scheduler")
        assert step.done == (os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_FIFO)
    assert state() == before

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with affinity.pin(min(before["cpus"]), fifo_priority=1) as pinned:
        assert [step.name for step in pinned.refused] == ["scheduler"]
        assert "CAP_SYS_NICE" in pinned.refused[0].reason
