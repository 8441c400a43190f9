# SPDX-License-Identifier: GPL-3.0-or-later
"""A host that returns something else than answers neither passes nor breaks the report of the others."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.plugin_utils import _verify_record as r
from ansible_collections.firsttouch.host.plugins.plugin_utils._verify_html import html
from ansible_collections.firsttouch.host.plugins.plugin_utils._verify_junit import junit
from ansible_collections.firsttouch.host.plugins.plugin_utils._verify_report import report
from verify_records import PLAN, VIEW, WHEN, answer, verified

PASS = answer("a.b")


def _view(**more: Any) -> dict[str, Any]:
    return {**copy.deepcopy(VIEW), **more}


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"results": []}, "verdict"),
        ({"results": [1, 2]}, "results[0]"),
        ({"results": [PASS, {"id": 5, "status": "pass"}]}, "results[1].id"),
        ({"results": [{**PASS, "status": "green"}]}, "results[0].status"),
        ({"results": [{**PASS, "layer": "x"}]}, "results[0].status or layer"),
        ({"results": [{**PASS, "reason": ["x"]}]}, "results[0].reason"),
        ({"results": [PASS, answer("a.c", "fail")]}, "verdict"),
        ({"failed": True}, "verdict"),
        ({"verdict": ["pass"]}, "verdict"),
        ({"host": "h"}, "host"),
        ({"host": {"nodes": [1]}}, "host.kernel"),
        ({"host": _view(nodes=[None])}, "host.nodes[0]"),
        ({"host": _view(cores=["0-99999999999"])}, "host.cores[0]"),
        ({"host": _view(nodes=[{**VIEW["nodes"][0], "distances": {"0": "a"}}])}, "distances of node 0"),
        ({"host": _view(pools=[{"size": "2M"}])}, "host.pools[0].node"),
        ({"host": _view(trust=[])}, "host.trust"),
        ({"plan_used": 7}, "plan_used"),
        ({"plan_used": {**PLAN, "sections": []}}, "plan_used.sections"),
    ],
)
def test_what_is_no_answer_is_an_error_of_that_host_alone(wrong: dict[str, Any], named: str) -> None:
    result = {"verdict": "pass", "results": [PASS], "host": _view(), "plan_used": PLAN, **wrong}
    bad = r.record("bad", result, finished=WHEN, seconds=1.0)
    assert (bad["state"], bad["reason"], bad["results"]) == ("error", "no_answer", [])
    assert named in bad["message"]
    document = report([verified("good", PASS), bad], ["fail"], written=WHEN, inventory=["i"])
    assert document["outcome"] == "failed" and document["summary"]["pass"] == 1
    assert html(document, ["fail"]) and junit(document, ["fail"])
    assert r.lines(bad)


def test_a_socket_without_an_id_and_a_topology_without_a_verdict_are_answers() -> None:
    view = _view(sockets=[{"id": None, "cpus": "0-3"}], trust=None)
    entry = r.record("h", {"verdict": "pass", "results": [PASS], "host": view}, finished=WHEN, seconds=1.0)
    assert entry["state"] == "pass"


def test_the_counts_are_those_of_the_answers() -> None:
    entry = verified("h", PASS, summary={"pass": "many"})
    assert entry["counts"] == {"pass": 1, "fail": 0, "warn": 0, "not_applicable": 0, "not_evaluated": 0, "error": 0}
