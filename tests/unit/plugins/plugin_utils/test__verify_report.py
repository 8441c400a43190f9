# SPDX-License-Identifier: GPL-3.0-or-later
"""The document of a fleet: outcomes, groups, problems, and JUnit."""

from __future__ import annotations

import json
import shlex
from typing import Any
from xml.etree import ElementTree as ET

import pytest

pytest.importorskip("jinja2", reason="runs on the controller only")

from ansible_collections.firsttouch.host.plugins.plugin_utils import _verify_report as r
from ansible_collections.firsttouch.host.plugins.plugin_utils._verify_junit import junit
from ansible_collections.firsttouch.host.plugins.plugin_utils._verify_record import STATES
from verify_records import HOSTILE, PLAN, VIEW, WHEN, answer, broken, verified

PASS, FAIL = answer("boot.a"), answer("vm_sysctls.b", "fail")


def made(*entries: dict[str, Any], fail_on: tuple[str, ...] = ("fail",)) -> dict[str, Any]:
    return r.report(entries, fail_on, written=WHEN, inventory=["/srv/hosts.yml"])


@pytest.mark.parametrize(
    ("entries", "outcome", "code"),
    [
        ((verified("a", PASS),), "pass", 0),
        ((verified("a", PASS), verified("b", FAIL)), "failed", 2),
        ((verified("a", PASS), broken("b", unreachable=True)), "unreachable", 4),
        ((broken("b", unreachable=True),), "unreachable", 4),
        ((verified("a", FAIL), broken("b", unreachable=True)), "failed_and_unreachable", 2),
        ((broken("b", msg="crash"),), "failed", 2),
    ],
)
def test_outcomes(entries: tuple[dict[str, Any], ...], outcome: str, code: int) -> None:
    document = made(*entries)
    assert (document["outcome"], document["exit_code"]) == (outcome, code)
    assert document["summary"]["hosts"] == len(entries) == sum(document["summary"][s] for s in STATES)
    assert json.loads(json.dumps(document)) == document


def test_hosts_with_another_plan_say_where_it_differs() -> None:
    other = {**PLAN, "digest": "b", "sections": {"vm_sysctls": "99", "hugepages": "22"}, "intent": {"rt_runtime_us": 5}}
    groups = made(*(verified(f"h{n}", PASS) for n in range(3)), verified("odd", PASS, plan_used=other))["plans"]
    assert [group["hosts"] for group in groups] == [["h0", "h1", "h2"], ["odd"]]
    assert groups[0]["sections"] == [] and groups[1]["sections"] == ["vm_sysctls"]
    assert groups[1]["values"] == [
        {"variable": "firsttouch_rt_runtime_us", "here": 5, "first": None},
        {"variable": "firsttouch_vm_sysctls", "here": None, "first": {"vm.swappiness": 0}},
    ]


def test_facts_group_what_was_really_seen() -> None:
    odd = {**VIEW, "kernel": "6.1.0", "sockets": VIEW["sockets"][:1]}
    facts = made(verified("a", PASS), verified("b", PASS), verified("c", PASS, host=odd), broken("d", msg="x"))["facts"]
    by_name = {fact["fact"]: [(g["value"], g["hosts"]) for g in fact["groups"]] for fact in facts}
    assert by_name["kernel"] == [("6.12.0", ["a", "b"]), ("6.1.0", ["c"])]
    assert [value for value, _hosts in by_name["topology"]] == [
        "2 sockets, 2 nodes, 8 CPUs",
        "1 socket, 2 nodes, 8 CPUs",
    ]
    assert by_name["trust in the topology"] == [("exposed", ["a", "b", "c"])]
    assert by_name["transport"] == [("shm", ["a", "b", "c"])]
    assert by_name["isolated CPUs"] == [("2-3,6-7", ["a", "b", "c"])]


def test_problems_come_worst_first_with_their_hosts() -> None:
    warn = answer("thp.mode", "warn", intended=False)
    unasked = answer("x.y", "not_evaluated", intended=False)
    good = verified("b", answer("vm_sysctls.b"), warn, unasked)
    document = made(verified("a", FAIL, warn), good, verified("c", FAIL))
    first, second = document["problems"]
    assert (first["id"], first["hosts"], first["passed"]) == ("vm_sysctls.b", {"fail": ["a", "c"]}, 1)
    assert first["fails"] and not second["fails"] and second["hosts"] == {"warn": ["a", "b"]}
    assert made(verified("a", warn), fail_on=("warn",))["problems"][0]["fails"]


def test_a_command_to_copy_is_for_those_hosts_only() -> None:
    text = r.command("verify", ["web-1.example.org", "b"], ["/srv/my hosts.yml"], "boot")
    assert shlex.split(text) == [
        *("ansible-playbook", "-i", "/srv/my hosts.yml"),
        *("firsttouch.host.verify", "--limit", "web-1.example.org,b", "--tags", "boot"),
    ]
    for name in (HOSTILE, "", "all:!x", "a,b", "@file", "-x", "web*", "~web", "a b", "$(id)", "a\n", "été"):
        assert r.command("provision", ["good", name], []) == ""
    assert r.command("provision", [], []) == "" == r.command("provision", ["a"] * 1000, [])


def test_junit_tells_failures_errors_and_skips_apart() -> None:
    document = made(
        verified(
            "a",
            *(PASS, FAIL, answer("c.error", "error"), answer("d.warn", "warn")),
            *(answer("e.open", "not_evaluated"), answer("f.none", "not_applicable")),
        ),
        broken("dark", unreachable=True, msg="no route to host"),
        verified(HOSTILE + "\x00\ud800", answer("g.h\x01", "fail", observed="\x1b<&\uffff", remedy="firsttouch_x")),
    )
    root = ET.fromstring(junit(document, ["fail"]))
    counts = {key: root.get(key) for key in ("tests", "failures", "errors")}
    assert counts == {"tests": "10", "failures": "2", "errors": "2"}
    a, dark, evil = root
    outcome = {case.get("name"): [child.tag for child in case] for case in a}
    assert outcome == {
        "verified (host)": [],
        "boot.a (running)": [],
        "vm_sysctls.b (running)": ["failure"],
        "c.error (running)": ["error"],
        "d.warn (running)": ["system-out"],
        "e.open (running)": ["skipped"],
        "f.none (running)": ["skipped"],
    }
    failure = a.find("testcase/failure")
    assert failure is not None and failure.get("type") == "live_differs" and "firsttouch_" in (failure.text or "")
    error = dark.find("testcase/error")
    assert error is not None and "no route to host" in (error.get("message") or "")
    assert "<script>" in (evil.get("name") or "") and evil.get("failures") == "1"
    strict = ET.fromstring(junit(made(verified("a", answer("d.warn", "warn")), fail_on=("warn",)), ["warn"]))
    assert strict.get("failures") == "1"


def test_a_host_of_which_nothing_was_confirmed_fails_in_junit_too() -> None:
    document = made(verified("a", answer("e.open", "not_evaluated")))
    assert document["outcome"] == "failed"
    assert ET.fromstring(junit(document, ["fail"])).get("failures") == "1"
