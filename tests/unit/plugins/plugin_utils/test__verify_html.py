# SPDX-License-Identifier: GPL-3.0-or-later
"""The page as text: nothing hostile in it is markup, everything is inside it. tests/browser opens it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

pytest.importorskip("jinja2", reason="runs on the controller only")

from ansible_collections.firsttouch.host.plugins.plugin_utils import _verify_html as h
from ansible_collections.firsttouch.host.plugins.plugin_utils._verify_report import report
from verify_records import HOSTILE, PLAN, VIEW, WHEN, answer, broken, verified

PASS, FAIL = answer("boot.a"), answer("vm_sysctls.b", "fail")
DARK = broken("a", unreachable=True)
EVIL = '</script><script>alert(1)</script><img src=x onerror=alert(2)>"\'`\u2028\u2029&amp;<!--'


class Page(HTMLParser):
    """The elements and attributes of a page, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data


def document(*entries: dict[str, Any]) -> dict[str, Any]:
    return report(entries, ["fail"], written=WHEN, inventory=["/srv/hosts.yml"])


def page(*entries: dict[str, Any]) -> str:
    return h.html(document(*entries), ["fail"])


def evil_fleet() -> list[dict[str, Any]]:
    texts = {"expected": EVIL, "observed": {EVIL: EVIL}, "reason": EVIL, "source": EVIL, "remedy": EVIL}
    row = answer(f"vm_sysctls.{EVIL}", "fail", **texts)
    view = {**VIEW, "kernel": EVIL, "arch": EVIL, "hypervisor": EVIL, "warnings": [EVIL]}
    plan = {**PLAN, "digest": EVIL, "intent": {EVIL: EVIL}}
    return [
        verified("good", PASS),
        verified(HOSTILE, row, host=view, plan_used=plan),
        broken(EVIL, msg=EVIL, reason=EVIL),
    ]


def test_no_text_of_a_host_becomes_markup() -> None:
    found = Page(page(*evil_fleet()))
    assert [attrs.get("type") for tag, attrs in found.tags if tag == "script"] == ["application/json", None]
    assert not [tag for tag, _attrs in found.tags if tag in ("img", "iframe", "object", "base")]
    assert not [name for _tag, attrs in found.tags for name in attrs if name.startswith("on") or name == "style"]
    data = json.loads(found.scripts[0])
    assert data["hosts"][1]["name"] == HOSTILE and data["views"][1]["kernel"] == EVIL
    assert all(char.isprintable() or char == "\n" for char in page(*evil_fleet()))


def test_embedded_json_means_nothing_to_html() -> None:
    text = h.embedded({"a": EVIL, "b": "<!--<script>"})
    assert not set("<>&\u2028\u2029") & set(text) and json.loads(text) == {"a": EVIL, "b": "<!--<script>"}


def test_nothing_comes_from_elsewhere() -> None:
    text = page(verified("a", PASS, FAIL))
    links = [value for _tag, attrs in Page(text).tags for key, value in attrs.items() if key in ("src", "href")]
    assert links and all((value or "").startswith(("#", "data:,")) for value in links)
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|innerHTML|insertAdjacent|document\.write|eval\(", text)
    assert "default-src 'none'" in text


def test_a_distinct_answer_is_embedded_once() -> None:
    many = [verified(f"h{n}", PASS, FAIL) for n in range(50)]
    data = json.loads(Page(page(*many)).scripts[0])
    assert len(data["hosts"]) == 50 and len(data["answers"]) == 2 and len(data["views"]) == 1


def test_failed_hosts_come_first_and_cells_take_the_worst() -> None:
    failed = verified("z", FAIL, answer("vm_sysctls.c"))
    made = document(verified("a", PASS), failed, broken("m", unreachable=True))
    rows = h._rows(made["hosts"], ["boot", "vm_sysctls"])
    assert [row["name"] for row in rows] == ["z", "m", "a"]
    assert [(cell["status"], cell["number"]) for cell in rows[0]["cells"]] == [("none", 0), ("fail", 1)]
    assert [cell["status"] for cell in rows[1]["cells"]] == ["none", "none"]


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ([], "No hosts were verified"),
        ([verified("a", PASS)], "The host is as planned"),
        ([verified("a", PASS), verified("b", PASS)], "All 2 hosts are as planned"),
        ([verified("a", PASS), verified("b", FAIL)], "1 of 2 hosts is not as planned"),
        ([DARK, verified("b", FAIL)], "1 of 2 hosts is not as planned, 1 could not be reached"),
        ([DARK], "The host could not be reached"),
        ([DARK, DARK], "None of 2 hosts could be reached"),
        ([DARK, verified("b", PASS)], "1 could not be reached of 2 hosts; no other failed"),
    ],
)
def test_the_headline(entries: list[dict[str, Any]], text: str) -> None:
    assert h.headline(document(*entries)) == text
    assert text in page(*entries)


def test_an_incomplete_fleet_is_not_called_as_planned() -> None:
    unasked = answer("x.y", "not_evaluated", intended=False)
    assert "could not be looked at" in h.headline(document(verified("a", unasked), verified("b", PASS)))


def test_sharing_is_said_in_words() -> None:
    groups = [{"hosts": ["a"] * 37}, {"hosts": ["b", "c"]}]
    assert h.sentence("plan", groups) == "37 hosts share this plan, 2 differ"
    assert h.sentence("plan", [{"hosts": ["a", "d"]}, {"hosts": ["b"]}]) == "2 hosts share this plan, 1 differs"


def test_a_missing_variable_of_the_template_is_an_error() -> None:
    broken_document = document(verified("a", PASS))
    del broken_document["written"]
    with pytest.raises(KeyError):
        h.html(broken_document, ["fail"])
