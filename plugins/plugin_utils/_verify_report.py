# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report of a fleet: one document made of the records of its hosts, and what of them stands out."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from ._verify_record import STATES, failed, failing

SCHEMA = 1
KIND = "firsttouch.verify"
# Exit codes of ansible-playbook firsttouch.host.verify.
EXIT = {"pass": 0, "failed": 2, "unreachable": 4, "failed_and_unreachable": 2}
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NAMED = 20
# From bad to good: the status that stands for several.
WORST = ("error", "fail", "warn", "not_evaluated", "pass", "not_applicable")


def report(
    records: Sequence[Mapping[str, Any]],
    fail_on: Collection[str],
    *,
    written: str,
    inventory: Sequence[str] = (),
) -> dict[str, Any]:
    """The document of report.json. WRITTEN is a time in ISO 8601, INVENTORY what was given with -i."""
    hosts = [_host(entry, fail_on) for entry in records]
    states = Counter(str(host["state"]) for host in hosts)
    bad = sum(host["failed"] for host in hosts)
    outcome = outcome_of(bad, states["unreachable"])
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "written": written,
        "outcome": outcome,
        "exit_code": EXIT[outcome],
        "fail_on": sorted({"fail", *fail_on}),
        "concerns": sorted({name for entry in records for name in entry["concerns"]}),
        "inventory": list(inventory),
        "summary": {"hosts": len(hosts), "failed": bad, **{state: states[state] for state in STATES}},
        "hosts": hosts,
        "plans": plan_groups(hosts),
        "facts": fact_groups(hosts),
        "problems": problems(hosts, fail_on),
    }


def outcome_of(bad: int, unreachable: int) -> str:
    """The outcome of a run by the number of failed and of unreachable hosts."""
    if bad:
        return "failed_and_unreachable" if unreachable else "failed"
    return "unreachable" if unreachable else "pass"


def _host(entry: Mapping[str, Any], fail_on: Collection[str]) -> dict[str, Any]:
    kept = ("state", "message", "reason", "counts", "results", "view", "plan", "origin", "finished", "seconds")
    return {
        "name": entry["host"],
        "failed": failed(entry, fail_on),
        "failures": len(failing(entry, fail_on)),
        **{key: entry[key] for key in kept},
    }


def worst(statuses: Iterable[str]) -> str:
    """The status that stands for STATUSES in a cell: the worst of them."""
    found = set(statuses)
    return next((status for status in WORST if status in found), "not_applicable")


def grouped(hosts: Iterable[Mapping[str, Any]], key: Callable[[Mapping[str, Any]], Any]) -> list[tuple[Any, list[str]]]:
    """(value, names) for each value of KEY, the most frequent first; hosts for which it is None are left out."""
    groups: dict[str, tuple[Any, list[str]]] = {}
    for host in hosts:
        value = key(host)
        if value is not None:
            text = json.dumps(value, sort_keys=True)
            groups.setdefault(text, (value, []))[1].append(host["name"])
    return sorted(groups.values(), key=lambda group: (-len(group[1]), group[1][0]))


def plan_groups(hosts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Hosts by plan, the most frequent first; `differs` says in which sections and values from the first."""
    by_name = {host["name"]: host for host in hosts}
    out: list[dict[str, Any]] = []
    for digest, names in grouped(hosts, lambda host: host["plan"].get("digest")):
        plan = by_name[names[0]]["plan"]
        first = out[0]["plan"] if out else plan
        sections = sorted(
            name
            for name in {*plan["sections"], *first["sections"]}
            if plan["sections"].get(name) != first["sections"].get(name)
        )
        mine, theirs = plan.get("intent") or {}, first.get("intent") or {}
        values = [
            {"variable": f"firsttouch_{name}", "here": mine.get(name), "first": theirs.get(name)}
            for name in sorted({*mine, *theirs})
            if mine.get(name) != theirs.get(name)
        ]
        out.append({"digest": digest, "hosts": names, "sections": sections, "values": values, "plan": plan})
    return [{key: value for key, value in row.items() if key != "plan"} for row in out]


def shape(host: Mapping[str, Any]) -> str | None:
    """The topology of a host in words, as far as hosts of one kind share it."""
    view = host["view"]
    if not view.get("nodes"):
        return None
    parts = (len(view["sockets"]), "socket"), (len(view["nodes"]), "node"), (count(view["cpus"]["online"]), "CPU")
    return ", ".join(f"{number or '?'} {word}{'' if number == 1 else 's'}" for number, word in parts)


def count(cpu_list: str) -> int:
    """The number of CPUs in a list like 0-3,8."""
    spans = [piece.split("-") for piece in cpu_list.split(",") if piece]
    return sum(int(span[-1]) - int(span[0]) + 1 for span in spans)


FACTS: tuple[tuple[str, Callable[[Mapping[str, Any]], Any]], ...] = (
    ("kernel", lambda host: host["view"].get("kernel")),
    ("topology", shape),
    ("hypervisor", lambda host: (host["view"].get("hypervisor") or "none seen") if host["view"] else None),
    ("trust in the topology", lambda host: (host["view"].get("trust") or {}).get("verdict")),
    ("transport", lambda host: ((host["view"].get("trust") or {}).get("transport") or {}).get("transport")),
    ("isolated CPUs", lambda host: (host["view"]["cpus"]["isolated"] or "none") if host["view"] else None),
)


def fact_groups(hosts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Per fact the hosts by its value, the most frequent first."""
    return [
        {"fact": fact, "groups": [{"value": value, "hosts": names} for value, names in grouped(hosts, key)]}
        for fact, key in FACTS
    ]


def problems(hosts: Sequence[Mapping[str, Any]], fail_on: Collection[str]) -> list[dict[str, Any]]:
    """Every check that is not fine anywhere, what fails on most hosts first, with the hosts by status."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    passed: Counter[tuple[str, str]] = Counter()
    for host in hosts:
        for row in host["results"]:
            key = (row["id"], row["layer"])
            passed[key] += row["status"] == "pass"
            shown = row["status"] in ("fail", "error", "warn") or (
                row["status"] == "not_evaluated" and row.get("intended", True)
            )
            if shown:
                entry = found.setdefault(key, {"example": row, "hosts": {}})
                entry["hosts"].setdefault(row["status"], []).append(host["name"])
                if WORST.index(row["status"]) < WORST.index(entry["example"]["status"]):
                    entry["example"] = row
    kept = ("concern", "reason", "source", "remedy", "expected", "observed")
    statuses = {"fail", "error", *fail_on}
    rows = [
        {
            "id": identity,
            "layer": layer,
            "status": worst(entry["hosts"]),
            "fails": any(status in statuses for status in entry["hosts"]),
            "passed": passed[identity, layer],
            "hosts": entry["hosts"],
            **{key: entry["example"].get(key) for key in kept},
        }
        for (identity, layer), entry in found.items()
    ]
    return sorted(
        rows,
        key=lambda row: (WORST.index(row["status"]), -sum(map(len, row["hosts"].values())), row["id"]),
    )


def command(action: str, hosts: Sequence[str], inventory: Sequence[str], tags: str = "") -> str:
    """A command line to copy that runs playbook ACTION on HOSTS; empty where they are too many to name, or one
    has more than a plain name: with `:`, `*` or the like it is a pattern to --limit, and a hostile one anything.
    """
    if not 0 < len(hosts) <= _NAMED or not all(map(_PLAIN_NAME.fullmatch, hosts)):
        return ""
    words = ["ansible-playbook", *(word for source in inventory for word in ("-i", source))]
    words += [f"firsttouch.host.{action}", "--limit", ",".join(hosts), *(("--tags", tags) if tags else ())]
    return shlex.join(words)
