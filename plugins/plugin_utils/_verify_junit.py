# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report as JUnit XML, as CI servers read it: a suite per host, a case per answer.

By the strictest schema that is in use, junit-10.xsd of Jenkins' xunit plugin. Written by code and not by a template, as
is report.json: what a machine reads must be well-formed whatever a host is called or has in its files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any
from xml.etree import ElementTree as ET

from ._verify_record import failing

# What XML 1.0 cannot hold in any form.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(document: Mapping[str, Any], fail_on: Collection[str]) -> str:
    """The text of report.junit.xml for DOCUMENT, the document of report.json."""
    root = ET.Element("testsuites", name="firsttouch.host.verify")
    for host in document["hosts"]:
        _suite(root, host, fail_on)
    for kind in ("tests", "failures", "errors"):  # skipped is none of testsuites' attributes
        root.set(kind, str(sum(int(suite.get(kind, "0")) for suite in root)))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(root: ET.Element, host: Mapping[str, Any], fail_on: Collection[str]) -> None:
    suite = ET.SubElement(root, "testsuite", name=_xml(host["name"]), hostname=_xml(host["name"]))
    suite.set("time", f"{host['seconds']:.3f}")
    suite.set("timestamp", _xml(host["finished"]))
    verified = host["state"] not in ("unreachable", "error")
    case = ET.SubElement(suite, "testcase", classname="host", name="verified (host)", time="0")
    if not verified:
        _outcome(case, "error", host["reason"] or host["state"], f"{host['state']}: {host['message']}")
    elif host["failed"] and not host["failures"]:
        _outcome(case, "failure", "nothing_confirmed", "nothing that the plan asks for could be confirmed")
    bad = {id(row) for row in failing(host, fail_on)}
    for row in host["results"]:
        _case(suite, row, id(row) in bad)
    suite.set("tests", str(len(suite)))
    for kind, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(kind, str(len(suite.findall(f"testcase/{tag}"))))


def _case(suite: ET.Element, row: Mapping[str, Any], bad: bool) -> None:
    name = f"{row['id']} ({row['layer']})"
    case = ET.SubElement(suite, "testcase", classname=_xml(row["concern"]), name=_xml(name), time="0")
    text = "\n".join(
        f"{key}: {value}"
        for key, value in (
            ("expected", json.dumps(row.get("expected"), ensure_ascii=False)),
            ("observed", json.dumps(row.get("observed"), ensure_ascii=False)),
            ("source", row.get("source")),
            ("remedy", row.get("remedy")),
        )
        if value
    )
    reason = str(row.get("reason") or row["status"])
    if row["status"] == "error":
        _outcome(case, "error", reason, text)
    elif bad:
        _outcome(case, "failure", reason, text)
    elif row["status"] in ("not_evaluated", "not_applicable"):
        ET.SubElement(case, "skipped", message=_xml(f"{row['status']}: {reason}"))
    elif row["status"] == "warn":
        ET.SubElement(case, "system-out").text = _xml(f"warning: {reason}\n{text}")


def _outcome(case: ET.Element, tag: str, reason: str, text: str) -> None:
    first = text.splitlines()[0] if text else reason
    ET.SubElement(case, tag, type=_xml(reason), message=_xml(f"{reason}: {first}")).text = _xml(text)


def _xml(text: Any) -> str:
    """TEXT with what XML cannot hold replaced."""
    return _NOT_XML.sub("\ufffd", str(text))
