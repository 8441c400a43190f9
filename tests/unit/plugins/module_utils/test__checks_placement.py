# SPDX-License-Identifier: GPL-3.0-or-later
"""The placement check of host_verify: one short run on a live host, none on a recorded one or unasked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _checks_placement
from ansible_collections.firsttouch.host.plugins.module_utils._checks import run
from ansible_collections.firsttouch.host.plugins.module_utils._checks_host import Context
from ansible_collections.firsttouch.host.plugins.module_utils._placement import Measurement
from ansible_collections.firsttouch.host.plugins.module_utils._placement_host import Blocked
from ansible_collections.firsttouch.host.plugins.module_utils._topology import read_topology
from ansible_collections.firsttouch.host.plugins.module_utils._trust_signs import read_signs

EXPECTED = {"numa": {"expected": {"nodes": 1}}}
ROW = {"cpu": 0, "cpu_node": 0, "node": 0, "page_size_kb": 4, "page_size": "4K", "pages": 8}
WRONG = {**ROW, "status": "wrong", "reason": "wrong_node", "detail": "asked for node 0, got 1"}


class Runs:
    """Stands for measure(): counts its calls and returns `found` with the verdict it was given."""

    def __init__(self) -> None:
        self.options: list[dict[str, Any]] = []
        self.verdicts: list[str] = []
        self.found: dict[str, Any] = {"blocked": Blocked("host_busy", "a server", "/proc/7")}

    def __call__(self, judge: Any, **options: Any) -> Measurement:
        self.options.append(options)
        self.verdicts.append(judge(None))
        return Measurement(options["topology"], "exposed", **self.found)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    made = Runs()
    monkeypatch.setattr(_checks_placement, "measure", made)
    return made


def test_a_recorded_host_is_not_measured(tmp_path: Path, runs: Runs) -> None:
    rows = run(Context({}, str(tmp_path)), concerns=["numa"], layers=["measured"])
    assert {
        row.id: (row.status, row.reason, row.intended) for row in rows if row.id.startswith("numa.pl")
    } == {"numa.placement": ("not_evaluated", "offline", False)}
    assert runs.options == []


def test_without_the_measured_layer_nothing_is_tried(runs: Runs) -> None:
    run(Context({}), concerns=["numa"], layers=["configured", "running", "next_boot"])
    assert runs.options == []


def test_one_short_run_without_gigantic_pages_answers_everything(runs: Runs) -> None:
    ctx = Context(EXPECTED)
    rows = list(_checks_placement.check_placement(ctx))
    assert _checks_placement.latency_evidence(ctx) is None
    assert len(runs.options) == 1
    assert runs.options[0]["gigantic"] is False
    assert runs.options[0]["seconds_per_cpu"] <= 1
    assert {(row.status, row.reason, row.intended) for row in rows} == {("not_evaluated", "host_busy", False)}


def test_a_wrong_node_fails_only_where_the_intent_describes_the_nodes(runs: Runs) -> None:
    runs.found = {"placements": (WRONG,)}
    statuses = {}
    for asked, plan in ((True, EXPECTED), (False, {})):
        rows = {row.id: row for row in _checks_placement.check_placement(Context(plan))}
        statuses[asked] = rows["numa.placement.4K.node0"].status
    assert statuses == {True: "fail", False: "warn"}


def test_who_vouches_for_the_nodes_is_heard(runs: Runs) -> None:
    """Without that, a machine whose topology is anything else keeps its own verdict; a container tells nothing."""
    list(_checks_placement.check_placement(Context({})))
    list(_checks_placement.check_placement(Context({"numa": {"expected": {"trust": "asserted"}}})))
    own, vouched = runs.verdicts
    assert (
        vouched == ("contradictory" if own == "contradictory" else "exposed")
        or not read_topology("/").readable
        or read_signs("/").container
    )


@pytest.mark.parametrize(("remote", "shown"), [(150.0, True), (101.0, True), (None, False)])
def test_the_trust_verdict_is_told_again_with_the_latency(runs: Runs, remote: Any, shown: bool) -> None:
    times = {"cpu": 0, "cpu_node": 0, "mad": 1.0, "samples": 56, "cache_ns": 1.0}
    far = () if remote is None else ({**times, "node": 1, "ns": remote},)
    runs.found = {"latencies": ({**times, "node": 0, "ns": 100.0}, *far)}
    rows = {row.id: row for row in _checks_placement.check_placement(Context({}))}
    assert ("numa.trust.measured" in rows) == shown
    if remote:
        seen = rows["numa.trust.measured"].observed
        assert (seen["trust"], seen["ratio"]) == ("exposed", remote / 100)
