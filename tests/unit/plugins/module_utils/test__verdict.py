# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _verdict as v

REMEDY = "Run provision with firsttouch_hugepages."


def result(status: str, **more: Any) -> v.Result:
    reason = "" if status in ("pass", "warn") else "because"
    return v.Result("hugepages.x", status, "running", 1, 2, reason, remedy=REMEDY, **more)


def test_a_failure_names_a_variable() -> None:
    with pytest.raises(ValueError, match="firsttouch_"):
        v.Result("a.b", "fail", "running", 1, 2, "wrong", "", "Do something.")


def test_without_an_intent_nothing_fails() -> None:
    with pytest.raises(ValueError, match="at most warn"):
        v.Result("a.b", "fail", "running", None, 2, "wrong", "", REMEDY, intended=False)
    assert v.judge("a.b", "running", None, 2, remedy=REMEDY, intended=False).status == "warn"


@pytest.mark.parametrize("status", ["not_evaluated", "not_applicable", "error"])
def test_not_knowing_needs_a_reason(status: str) -> None:
    with pytest.raises(ValueError, match="reason"):
        v.Result("a.b", status, "running")


@pytest.mark.parametrize(("status", "layer"), [("ok", "running"), ("pass", "live")])
def test_status_and_layer_are_from_the_vocabulary(status: str, layer: str) -> None:
    with pytest.raises(ValueError, match="unknown"):
        v.Result("a.b", status, layer)


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (["pass"], "pass"),
        (["pass", "warn", "not_applicable"], "pass"),
        (["pass", "fail"], "fail"),
        (["pass", "error"], "fail"),
        (["pass", "not_evaluated"], "incomplete"),
        (["fail", "not_evaluated"], "fail"),
        (["warn"], "incomplete"),
        ([], "incomplete"),
    ],
)
def test_only_what_was_confirmed_is_a_pass(statuses: list[str], expected: str) -> None:
    assert v.verdict([result(status) for status in statuses]) == expected


def test_what_nobody_asked_for_neither_confirms_nor_blocks() -> None:
    idle = v.skipped("thp.mode", "running", "not_available", intended=False)
    calm = v.Result("thp.mode", "pass", "running", intended=False)
    assert v.verdict([calm]) == "incomplete"
    assert v.verdict([result("pass"), idle, calm]) == "pass"


def test_the_summary_counts_every_status() -> None:
    counts = v.summary([result("pass"), result("pass"), result("fail")])
    assert counts == {"pass": 2, "fail": 1, "warn": 0, "not_applicable": 0, "not_evaluated": 0, "error": 0}


def test_the_table_shows_failures_with_cause_and_remedy() -> None:
    bad = v.judge("a.b", "running", 160, 159, reason="allocation_short", source="/sys/x", remedy=REMEDY)
    quiet = v.Result("c.d", "pass", "running", intended=False)
    lines = v.table([bad, quiet])
    assert lines[0].split() == ["STATUS", "LAYER", "CHECK", "WANTED", "LIVE"]
    assert lines[1].split() == ["FAIL", "running", "a.b", "160", "159"]
    assert lines[2].strip() == f"allocation_short; /sys/x; {REMEDY}"
    assert len(lines) == 3
    assert any("c.d" in line for line in v.table([bad, quiet], everything=True))


def test_cells_stay_on_one_short_line() -> None:
    wide = v.judge("a.b", "running", "x" * 500, "two\nlines", reason="wrong", remedy=REMEDY)
    assert all(len(line) < 160 and "\n" not in line for line in v.table([wide])[:2])


def test_failures_text_says_where_and_what_to_do() -> None:
    bad = v.judge("a.b", "running", 1, None, reason="unknown_key", source="/f:3", remedy=REMEDY)
    text = v.failures_text([bad])
    assert text == f"fail a.b (running): wanted 1, found -: unknown_key [/f:3] {REMEDY}"
