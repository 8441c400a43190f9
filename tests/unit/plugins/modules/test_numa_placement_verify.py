# SPDX-License-Identifier: GPL-3.0-or-later
"""numa_placement_verify: a real run on this machine, its verdict by the trust it is given, a busy host."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _placement, _placement_host
from ansible_collections.firsttouch.host.plugins.module_utils._placement_host import Blocked
from support import run_module


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine may be busy; and its huge pages are not ours to take, not even for a moment."""
    monkeypatch.setattr(_placement, "blocked", lambda *args: None)
    monkeypatch.setattr(_placement_host, "pools_of", lambda tree: {})


def verify(**args: Any) -> dict[str, Any]:
    return run_module("numa_placement_verify", args)


def done(result: dict[str, Any]) -> dict[str, Any]:
    """RESULT of a run in which ordinary pages could be placed; skips where a sandbox forbids that."""
    for row in result["placements"]:
        if row["reason"] in ("permission_denied", "unsupported"):
            pytest.skip(f"not allowed here: {row['detail']}")
    if not result["placements"]:
        pytest.skip(result["message"])
    return result


@pytest.mark.parametrize("check", [True, False])
def test_a_real_run(quiet: None, check: bool) -> None:
    before = os.sched_getaffinity(0)
    result = done(run_module("numa_placement_verify", {"trust": "consistent"}, check=check))
    assert os.sched_getaffinity(0) == before
    assert (result["changed"], result["proves"], result["trust"]) == (False, True, "consistent")
    assert {row["status"] for row in result["placements"] if row["page_size_kb"] <= 64} == {"placed"}
    assert result["verdict"] in ("pass", "incomplete")
    assert ("reason" in result) == (result["verdict"] != "pass")


def test_a_hidden_topology_proves_nothing(quiet: None) -> None:
    result = done(verify(trust="hidden"))
    assert (result["proves"], result["verdict"]) == (False, "incomplete")
    assert "proves nothing" in result["message"]
    assert result["reason"] == "topology_hidden"
    assert not [row for row in result["results"] if row["status"] == "pass"]


def test_the_trust_verdict_is_found_when_it_is_not_given(quiet: None) -> None:
    assert done(verify())["trust"] in ("exposed", "consistent", "hidden", "contradictory", "unknown")


def test_a_busy_host_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    why = Blocked("host_busy", "thread 7 (infer) is on isolated CPU 3", "/proc/7/task/7/stat")
    monkeypatch.setattr(_placement, "blocked", lambda *args: why)
    result = verify(trust="exposed", fail=True)
    assert not result.get("failed")
    assert (result["verdict"], result["reason"], result["placements"]) == ("incomplete", "host_busy", [])


def test_pages_on_another_node_fail_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, quiet: None
) -> None:
    module = __import__(
        "ansible_collections.firsttouch.host.plugins.modules.numa_placement_verify", fromlist=["x"]
    )
    real = _placement.measurement

    def elsewhere(topology: Any, trust: Any, jobs: Any, answers: Any, skips: Any = ()) -> Any:
        wrong = {"status": "wrong", "reason": "wrong_node", "detail": "asked for node 0, got 1", "found": {}}
        return real(
            topology,
            trust,
            jobs,
            [wrong if job.kind == "place" else a for job, a in zip(jobs, answers)],
            skips,
        )

    assert module.measure is _placement.measure
    monkeypatch.setattr(_placement, "measurement", elsewhere)
    result = verify(trust="exposed", fail=True)
    assert (result["failed"], result["reason"], result["verdict"]) == (True, "wrong_node", "fail")
    assert not verify(trust="exposed").get("failed")


@pytest.mark.parametrize("seconds", [0, -1, 2.5])
def test_the_time_for_a_cpu_has_a_limit(seconds: float) -> None:
    result = verify(seconds_per_cpu=seconds)
    assert (result["failed"], result["reason"]) == (True, "bad_value")


def test_without_ctypes_it_says_so(quiet: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctypes", None)
    result = verify(trust="exposed")
    assert (result["verdict"], result["reason"]) == ("incomplete", "no_ctypes")
