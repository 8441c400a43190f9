# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report as one HTML page that needs no network.

The fleet is in the page itself; what belongs to one host lies beside it as JSON, each distinct answer once, and
is drawn when somebody opens the host. Jinja2 escapes everything; the page's own policy lets nothing run but
its one script, by hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.firsttouch.host.plugins.module_utils._verdict import brief
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ._verify_record import STATES, clean
from ._verify_report import WORST, command, worst

TEMPLATES = os.path.join(os.path.dirname(__file__), "..", "..", "roles", "verify", "templates")
MARKS = {
    "pass": "\u2713",
    "fail": "\u2715",
    "error": "\u26a0\ufe0e",
    "warn": "!",
    "not_evaluated": "?",
    "not_applicable": "\u2013",
    "incomplete": "?",
    "unreachable": "\u2298",
    "none": "\u00b7",
}
WORDS = {
    "pass": "pass",
    "fail": "fail",
    "error": "error",
    "warn": "warning",
    "not_evaluated": "not evaluated",
    "not_applicable": "not applicable",
    "incomplete": "incomplete",
    "unreachable": "unreachable",
    "none": "not asked",
}
# Of so many hosts the matrix comes first.
SMALL = 20
LAYERS = {"configured": "configured", "next_boot": "next boot", "running": "running", "measured": "measured"}
ORIGINS = {
    "variables": "the variables of the inventory",
    "plan.json": "plan.json of the host",
    "plan": "the plan given",
}
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def html(document: Mapping[str, Any], fail_on: Collection[str]) -> str:
    """The text of report.html for DOCUMENT, the document of report.json. Raises OSError without the templates."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,
        finalize=visible,
    )
    css, script = _part("report.css"), _part("report.js")
    return environment.get_template("report.html.j2").render(
        **_page(document, fail_on),
        css=Markup(css),
        script=Markup(script),
        data=Markup(embedded(_data(document))),
        css_hash=_hash(css),
        script_hash=_hash(script),
    )


def visible(value: Any) -> Any:
    """VALUE, a text with a mark for each character that is not seen itself: controls, bidi overrides, zero widths."""
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in value)


def embedded(value: Any) -> str:
    """VALUE as JSON that may stand inside a script element, whatever texts it holds."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    for char, escape in _UNSAFE.items():
        text = text.replace(char, escape)
    return text


def _part(name: str) -> str:
    with open(os.path.join(TEMPLATES, name), encoding="utf-8") as handle:
        return handle.read()


def _hash(text: str) -> str:
    """The source expression of a Content-Security-Policy that lets exactly TEXT in."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


class _Pool:
    """Distinct values, each kept once; a fleet of equal hosts has few."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._places: dict[str, int] = {}

    def place(self, value: Any) -> int:
        """The position of VALUE in `values`."""
        text = json.dumps(value, sort_keys=True)
        if text not in self._places:
            self._places[text] = len(self.values)
            self.values.append(value)
        return self._places[text]


def _data(document: Mapping[str, Any]) -> dict[str, Any]:
    """What the script draws from."""
    answers, views = _Pool(), _Pool()
    inventory = document["inventory"]
    hosts = [
        {
            "name": host["name"],
            "message": host["message"],
            "answers": [answers.place(_answer(row)) for row in host["results"]],
            "view": views.place(host["view"]) if host["view"] else None,
            "plan": host["plan"].get("digest", ""),
            "origin": host["origin"],
            "finished": host["finished"],
            "seconds": round(host["seconds"], 1),
            "mend": command("provision", [host["name"]], inventory),
            "again": command("verify", [host["name"]], inventory),
        }
        for host in document["hosts"]
    ]
    bad = sorted({"fail", "error", *document["fail_on"]})
    names = {"marks": MARKS, "words": WORDS, "layers": LAYERS, "origins": ORIGINS, "order": WORST, "bad": bad}
    return {"hosts": hosts, "answers": answers.values, "views": views.values, **names}


def _answer(row: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("id", "status", "layer", "expected", "observed", "reason", "source", "remedy", "intended")
    return {key: row.get(key) for key in kept}


def _page(document: Mapping[str, Any], fail_on: Collection[str]) -> dict[str, Any]:
    """What the template draws from."""
    hosts: Sequence[Mapping[str, Any]] = document["hosts"]
    present = {row["concern"] for host in hosts for row in host["results"]}
    columns = sorted(present)
    problems = [_problem(row, document["inventory"]) for row in document["problems"]]
    return {
        "headline": headline(document),
        "tone": _tone(document),
        "label": lambda name: clean(name, 80),
        "index": {host["name"]: position for position, host in enumerate(hosts)},
        "written": document["written"].replace("T", " ").replace("+00:00", " UTC"),
        "inventory": [clean(source, 120) for source in document["inventory"]],
        "concerns": document["concerns"],
        "rule": _rule(document["fail_on"]),
        "schema": document["schema"],
        "shares": _shares(document["summary"]),
        "unanswered": [host for host in hosts if host["state"] in ("error", "unreachable")],
        "failures": [row for row in problems if row["fails"]],
        "failure_groups": grouped(row for row in problems if row["fails"]),
        "remarks": [row for row in problems if not row["fails"]],
        "remark_groups": grouped(row for row in problems if not row["fails"]),
        "small": len(hosts) <= SMALL,
        "differences": _differences(document),
        "columns": columns,
        "rows": _rows(hosts, columns),
        "legend": [status for status in WORST if status != "error"],
        "marks": MARKS,
        "words": WORDS,
        "layers": LAYERS,
    }


def _rule(fail_on: Collection[str]) -> str:
    """What makes a host fail, where that is not the usual."""
    parts = []
    if "warn" in fail_on:
        parts.append("a warning fails a host")
    if "not_evaluated" not in fail_on:
        parts.append("what could not be looked at fails no host")
    return ", ".join(parts)


def grouped(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """ROWS that are about the same hosts and have the same command are one card, in the order of the first of each."""
    groups: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        key = (row["command"], *sorted(row["names"]))
        group = groups.setdefault(key, {"names": row["names"], "command": row["command"], "rows": []})
        group["rows"].append(row)
    return list(groups.values())


def headline(document: Mapping[str, Any]) -> str:
    """The report in one sentence."""
    summary = document["summary"]
    total, dark = summary["hosts"], summary["unreachable"]
    some = "1 host" if total == 1 else f"{total} hosts"
    unreached = f"{dark} could not be reached"
    if not total:
        return "No hosts were verified"
    wrong, part = _wrong(document), summary["incomplete"]
    if wrong:
        parts = [f"{wrong} of {some} {'is' if wrong == 1 else 'are'} not as planned"]
        parts += [f"{part} could not be looked at in full"] if part else []
        return ", ".join(parts + ([unreached] if dark else []))
    if dark == total:
        return "The host could not be reached" if total == 1 else f"None of {some} could be reached"
    if part:
        which = "the host" if total == 1 else f"{part} of {some}"
        first = f"Nothing failed, but {which} could not be looked at in full"
        return f"{first}, {unreached}" if dark else first
    if dark:
        return f"{unreached[0].upper()}{unreached[1:]} of {some}; no other failed"
    return "The host is as planned" if total == 1 else f"All {total} hosts are as planned"


def _wrong(document: Mapping[str, Any]) -> int:
    """How many hosts failed by what was found there, not only because it could not be looked at."""
    strict = "warn" in document["fail_on"]
    return sum(host["failed"] and (strict or host["state"] != "incomplete") for host in document["hosts"])


def _tone(document: Mapping[str, Any]) -> str:
    summary = document["summary"]
    if _wrong(document):
        return "bad"
    if summary["unreachable"]:
        return "dark"
    return "open" if summary["incomplete"] or not summary["hosts"] else "good"


def _shares(summary: Mapping[str, int]) -> list[dict[str, Any]]:
    """The states that occur, with their share of a bar that is 1000 wide."""
    out: list[dict[str, Any]] = []
    x = 0.0
    for state in STATES:
        if summary[state]:
            width = 1000 * summary[state] / summary["hosts"]
            text = f"{summary[state]} {WORDS[state]}"
            out.append({"state": state, "mark": MARKS[state], "text": text, "x": round(x, 2), "width": round(width, 2)})
            x += width
    return out


def _problem(row: Mapping[str, Any], inventory: Sequence[str]) -> dict[str, Any]:
    names = [name for status in WORST for name in row["hosts"].get(status, ())]
    mends = row["status"] in ("fail", "error")
    line = command("provision", names, inventory) if mends else command("verify", names, inventory, row["concern"])
    return {
        **row,
        "names": names,
        "count": len(names),
        "wanted": _brief(row["expected"]),
        "found": _brief(row["observed"]),
        "command": line,
    }


def _brief(value: Any) -> str:
    return "nothing" if value in (None, []) else brief(value)


def _set(value: Any) -> str:
    return "not set" if value is None else _brief(value)


def _differences(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Plans and facts in which the hosts are not all the same."""
    out = []
    plans = document["plans"]
    if len(plans) > 1:
        groups = [
            {
                "hosts": row["hosts"],
                "title": f"plan {row['digest']}",
                "why": [
                    f"{value['variable']}: {_set(value['here'])}; in the first plan {_set(value['first'])}"
                    for value in row["values"]
                ]
                or ([f"differs in {', '.join(row['sections'])}"] if row["sections"] else []),
            }
            for row in plans
        ]
        out.append({"sentence": sentence("plan", plans), "groups": groups})
    for fact in document["facts"]:
        if len(fact["groups"]) > 1:
            groups = [
                {"hosts": row["hosts"], "title": clean(row["value"], 100), "why": []} for row in fact["groups"]
            ]
            out.append({"sentence": sentence(fact["fact"], fact["groups"]), "groups": groups})
    return out


def sentence(what: str, groups: Sequence[Mapping[str, Any]]) -> str:
    """`37 hosts share this plan, 2 differ`."""
    first, rest = len(groups[0]["hosts"]), sum(len(group["hosts"]) for group in groups[1:])
    if first == 1:
        return f"Every host has its own {what}" if len(groups) > 1 else f"One host: {what}"
    this = "these" if what.endswith("CPUs") else "this"
    return f"{first} hosts share {this} {what}, {rest} {'differs' if rest == 1 else 'differ'}"


def _rows(hosts: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[dict[str, Any]]:
    """The lines of the matrix, the failed hosts first."""
    rows = []
    order = sorted(enumerate(hosts), key=lambda pair: (STATES.index(pair[1]["state"]), clean(pair[1]["name"])))
    for position, host in order:
        by_concern: dict[str, Counter[str]] = {}
        for row in host["results"]:
            by_concern.setdefault(row["concern"], Counter())[_shown(row)] += 1
        cells = [_cell(name, by_concern.get(name, Counter())) for name in columns]
        rows.append({"index": position, "name": host["name"], "state": host["state"], "cells": cells})
    return rows


def _shown(row: Mapping[str, Any]) -> str:
    """The status of an answer for its cell: what nobody asked for and could not be looked at is no question."""
    if row["status"] == "not_evaluated" and not row.get("intended", True):
        return "not_applicable"
    return str(row["status"])


def _cell(concern: str, counts: Counter[str]) -> dict[str, Any]:
    status = worst(counts) if counts else "none"
    number = counts[status] if status not in ("not_applicable", "none") else 0
    return {
        "status": status,
        "mark": MARKS[status],
        "word": WORDS[status],
        "number": number,
        "label": concern.replace("_", " "),
    }
