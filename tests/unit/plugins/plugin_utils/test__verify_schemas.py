# SPDX-License-Identifier: GPL-3.0-or-later
"""The files for machines by their schemas, with host names and file contents as hostile as they come."""

from __future__ import annotations

import json
import re
from typing import Any
from xml.etree import ElementTree as ET

import pytest

pytest.importorskip("jinja2", reason="runs on the controller only")

from ansible_collections.firsttouch.host.plugins.plugin_utils import _verify_report as r
from ansible_collections.firsttouch.host.plugins.plugin_utils._verify_junit import junit
from support import ROOT
from verify_records import HOSTILE, PLAN, WHEN, answer, broken, verified

# junit-10.xsd of Jenkins' xunit plugin: element -> (children, required attributes, optional ones); None: text.
MODEL: dict[str, tuple[set[str], set[str], set[str]]] = {
    "testsuites": ({"testsuite"}, set(), {"name", "time", "tests", "failures", "errors"}),
    "testsuite": (
        {"testsuite", "properties", "testcase", "system-out", "system-err"},
        {"name", "tests", "failures", "errors"},
        {"group", "time", "skipped", "timestamp", "hostname", "id", "package", "file", "log", "url"},
    ),
    "testcase": (
        {"skipped", "error", "failure", "rerunFailure", "system-out", "system-err"},
        {"name"},
        {"time", "classname", "group"},
    ),
    **{name: (set(), set(), {"type", "message"}) for name in ("failure", "error", "skipped")},
    "system-out": (set(), set(), set()),
}
TIME = re.compile(r"(([0-9]{0,3},)*[0-9]{3}|[0-9]{0,3})*(\.[0-9]*)?")
XML = re.compile("[\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*")
CONTROL = "".join(map(chr, range(32))) + "\x7f\ufffe\uffff\ud800x\udcff\u2028\u202e]]>&<>\"'\U0001f525"
NAMES = ("plain", HOSTILE, CONTROL, "x" * 5000, "a\nb", "]]>", "été")


def document(fail_on: tuple[str, ...] = ("fail", "not_evaluated")) -> dict[str, Any]:
    """A fleet of each name, with each status, and with control characters in all that a host says."""
    nested = {CONTROL: [CONTROL, {"k": CONTROL}, None, 1.5, True]}
    rows = [
        answer(f"c.{status}{CONTROL}", status, expected=nested, observed=CONTROL, source=f"/{CONTROL}:1",
               reason=CONTROL, remedy=f"{CONTROL} firsttouch_x")
        for status in ("pass", "fail", "warn", "not_evaluated", "not_applicable", "error")
    ]  # fmt: skip
    hosts = [verified(name, *rows, plan_used={**PLAN, "digest": name[:12]}) for name in NAMES]
    hosts += [broken(f"dark {name}", unreachable=True, msg=CONTROL) for name in NAMES]
    hosts += [broken(f"broken {name}", msg=CONTROL, reason=CONTROL) for name in NAMES]
    return r.report([*hosts, verified("good", answer("a.b"))], fail_on, written=WHEN, inventory=[CONTROL])


@pytest.mark.parametrize("fail_on", [("fail",), ("fail", "warn"), ("fail", "not_evaluated")])
def test_junit_keeps_to_the_schema_of_jenkins_and_its_counts_add_up(fail_on: tuple[str, ...]) -> None:
    made = document(fail_on)
    text = junit(made, fail_on)
    assert XML.fullmatch(text) and text.encode("utf-8")
    root = ET.fromstring(text)
    assert root.tag == "testsuites"
    for element in root.iter():
        children, required, optional = MODEL[element.tag]
        assert {child.tag for child in element} <= children, element.tag
        assert required <= set(element.attrib) <= required | optional, (element.tag, element.attrib)
        assert TIME.fullmatch(element.get("time", "0"))
        if children:
            assert not (element.text or "").strip() and not any((child.tail or "").strip() for child in element)
    suites = list(root)
    assert [suite.get("name") for suite in suites] == [_in_xml(host["name"]) for host in made["hosts"]]
    for suite, host in zip(suites, made["hosts"]):
        assert int(suite.get("tests", "")) == len(suite) == len(host["results"]) + 1
        for kind, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.get(kind, "")) == len(suite.findall(f"testcase/{tag}")), kind
        assert all(len(case) <= 1 for case in suite)
        # A CI server must come to the same end as the exit code.
        assert (suite.get("failures") != "0" or suite.get("errors") != "0") == (
            host["failed"] or host["state"] == "unreachable"
        ), host["name"]
    for kind in ("tests", "failures", "errors"):
        assert int(root.get(kind, "")) == sum(int(suite.get(kind, "")) for suite in suites)


def _in_xml(text: str) -> str:
    """TEXT as an attribute gives it back: what XML cannot hold is replaced."""
    return re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", "\ufffd", text)


def _rows(section: str, after: str = "") -> dict[str, str]:
    """{name: value} of the first table after AFTER in SECTION of docs/verify.md."""
    page = (ROOT / "docs" / "verify.md").read_text()
    part = page.partition(f"\n## {section}\n")[2].partition("\n## ")[0].partition(after)[2] if after else (
        page.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    )  # fmt: skip
    table = re.search(r"(?m)^\| key \| value \|\n\|---\|---\|\n((?:\|.*\n)+)", part)
    assert table, section
    found: dict[str, str] = {}
    for line in table.group(1).splitlines():
        names, value = line.strip("| ").split(" | ", 1)
        found.update(dict.fromkeys(re.findall(r"`(\w+)`", names), value))
    return found


def test_report_json_is_what_its_documentation_says() -> None:
    made = json.loads(json.dumps(document(), ensure_ascii=True, allow_nan=False))
    top, row = _rows("report.json"), _rows("report.json", "A row of `hosts`:")
    assert set(made) == set(top)
    assert (made["schema"], made["kind"]) == (1, "firsttouch.verify")
    assert made["outcome"] in ("pass", "failed", "unreachable", "failed_and_unreachable")
    assert {"pass": 0, "failed": 2, "failed_and_unreachable": 2, "unreachable": 4}[made["outcome"]] == made["exit_code"]
    assert [host["name"] for host in made["hosts"]][: len(NAMES)] == list(NAMES)
    kinds = {"name": str, "state": str, "failed": bool, "failures": int, "message": str, "reason": str, "counts": dict,
             "results": list, "finished": str, "seconds": float}  # fmt: skip
    for host in made["hosts"]:
        assert set(host) == set(row), set(host) ^ set(row)
        assert all(isinstance(host[key], kind) for key, kind in kinds.items()), host["name"]
        assert host["state"] in re.findall(r"`(\w+)`", row["state"])
        assert sum(host["counts"].values()) == len(host["results"])
    states = {key: value for key, value in made["summary"].items() if key not in ("hosts", "failed")}
    assert sum(states.values()) == made["summary"]["hosts"] == len(made["hosts"])
    assert made["summary"]["failed"] == sum(host["failed"] for host in made["hosts"])
    for key in ("plans", "problems"):
        named = set(re.findall(r"`(\w+)`", top[key]))
        assert made[key] and all(set(item) == named for item in made[key]), key


def test_a_record_of_one_host_is_what_its_documentation_says() -> None:
    row = set(_rows("report.json", "A row of `hosts`:"))
    for entry in (verified(HOSTILE, answer("a.b")), broken(CONTROL, unreachable=True, msg=CONTROL)):
        made = json.loads(json.dumps(entry))
        assert set(made) == {*row - {"name", "failed", "failures"}, "host", "kind", "schema", "concerns"}
        assert (made["kind"], made["schema"]) == ("firsttouch.verify.host", 1)
