# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the controller keeps of one verified host: a JSON record, a safe file name, a few lines for the terminal.

Everything that a host sends, its name included, is hostile: it may hold terminal escapes, path separators, or
a text that reads from right to left.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ansible_collections.firsttouch.host.plugins.module_utils._verdict import STATUSES, brief
from ansible_collections.firsttouch.host.plugins.plugin_utils._verify_answer import fault

SCHEMA = 1
KIND = "firsttouch.verify.host"
STATES = ("fail", "error", "unreachable", "incomplete", "pass")
FAIL_ON = ("fail", "warn", "not_evaluated")
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_HASHED = re.compile(r".*-[0-9a-f]{12}")
_TEXT = 240


def file_name(host: str) -> str:
    """A file name for HOST, the same each time and another one for each host, whatever HOST is called."""
    if _PLAIN.fullmatch(host) and not _HASHED.fullmatch(host):
        return f"{host}.json"
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", host)[:60].lstrip(".-")
    return f"{plain}-{hashlib.sha256(host.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}.json"


def write(path: str, text: str) -> None:
    """Replace PATH with TEXT as a whole and for good; nobody ever sees half a file. Raises OSError."""
    directory = os.path.dirname(path)
    os.makedirs(directory, exist_ok=True)
    handle, temp = tempfile.mkstemp(prefix=".firsttouch-", dir=directory)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.chmod(temp, 0o644)
        os.rename(temp, path)
    except BaseException:
        os.unlink(temp)
        raise


def clean(value: Any, limit: int = _TEXT) -> str:
    """VALUE in one line that no terminal takes for a command: without control, format and surrogate characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
    safe = "".join(" " if char.isspace() else char if _printable(char) else "\N{REPLACEMENT CHARACTER}"
                   for char in text[: 4 * limit])  # fmt: skip
    safe = " ".join(safe.split())
    return safe if len(safe) <= limit else safe[: limit - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _printable(char: str) -> bool:
    """Whether CHAR shows itself and nothing else: no control, format (bidi, zero width), surrogate, private one."""
    return unicodedata.category(char)[0] != "C"


def record(
    host: str,
    result: Mapping[str, Any],
    *,
    finished: str,
    seconds: float,
    origin: str = "",
    concerns: Collection[str] = (),
) -> dict[str, Any]:
    """The record of HOST: RESULT is what host_verify returned, or a failure with `msg` and maybe `unreachable`.

    FINISHED is a time in ISO 8601, SECONDS how long it took, ORIGIN where the plan comes from, CONCERNS what
    was looked at (all when empty).
    """
    verified = "verdict" in result and isinstance(result.get("results"), list)
    wrong = fault(result) if verified else ""
    if wrong:
        verified = False
        result = {"reason": "no_answer", "msg": f"what the host returned is no answer of ours: {wrong}"}
    if verified:
        state, message = str(result["verdict"]), ""
    else:
        state = "unreachable" if result.get("unreachable") else "error"
        message = failure_text(result)
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "host": host,
        "state": state if state in STATES else "error",
        "message": message,
        "reason": str(result.get("reason") or ""),
        "counts": _counts(result["results"]) if verified else {},
        "results": list(result["results"]) if verified else [],
        "view": dict(result.get("host") or {}) if verified else {},
        "plan": dict(result.get("plan_used") or {}) if verified else {},
        "origin": origin,
        "concerns": list(concerns),
        "finished": finished,
        "seconds": round(seconds, 3),
    }


def _counts(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    statuses = [row["status"] for row in rows]
    return {status: statuses.count(status) for status in STATUSES}


def failure_text(result: Mapping[str, Any]) -> str:
    """Why a host has no answers, in words."""
    text = str(result.get("msg") or "the module returned no answer")
    error = str(result.get("module_stderr") or "").strip().splitlines()
    return f"{text}: {error[-1]}" if error and error[-1] not in text else text


def failing(entry: Mapping[str, Any], fail_on: Collection[str]) -> list[dict[str, Any]]:
    """The answers of a record that make its host fail. `fail` and `error` always do; `not_evaluated` counts
    only what the plan asks for.
    """
    statuses = {"fail", "error", *fail_on}
    return [
        row
        for row in entry["results"]
        if row["status"] in statuses and (row.get("intended", True) or row["status"] != "not_evaluated")
    ]


def failed(entry: Mapping[str, Any], fail_on: Collection[str]) -> bool:
    """Whether the host of a record counts as failed.

    A host of which nothing that is asked for could be confirmed counts whatever FAIL_ON says, also when nothing is
    asked for: it must not pass for one that is as planned. An unreachable host counts by itself.
    """
    if entry["state"] in ("error", "unreachable"):
        return bool(entry["state"] == "error")
    if failing(entry, fail_on):
        return True
    return not any(row["status"] == "pass" and row.get("intended", True) for row in entry["results"])


def lines(entry: Mapping[str, Any], fail_on: Collection[str] = (), *, warnings: bool = False) -> list[str]:
    """The host of a record for the terminal: one line, and below it what fails with cause and remedy."""
    name, state = clean(entry["host"], 60), entry["state"].upper()
    if entry["state"] in ("error", "unreachable"):
        reason = f" ({clean(entry['reason'], 60)})" if entry["reason"] else ""
        return [f"{state:<12}{name}{reason}: {clean(entry['message'], 600)}"]
    counts = ", ".join(
        f"{number} {status.replace('_', ' ')}" for status, number in entry["counts"].items() if number
    )
    out = [f"{state:<12}{name}: {counts}"]
    shown = failing(entry, (*fail_on, "not_evaluated", *(("warn",) if warnings else ())))
    width = max((len(clean(row["id"], 70)) for row in shown), default=0)
    for row in shown:
        out += _answer(row, width)
    return out


def _answer(row: Mapping[str, Any], width: int) -> Iterable[str]:
    status = row["status"].replace("_", " ")
    pair = (row.get("expected"), row.get("observed"))
    values = "" if pair == (None, None) else f"  wanted {_value(pair[0])}, found {_value(pair[1])}"
    yield f"  {status:<14}{clean(row['id'], 70):<{width}}  {row['layer']:<10}{values}".rstrip()
    why = clean(row.get("reason") or "", 60)
    where = f"[{clean(row['source'], 160)}]" if row.get("source") else ""
    cause = " ".join(part for part in (why, where) if part)
    remedy = clean(row.get("remedy") or "", 400)
    if cause or remedy:
        yield f"  {'':<14}{'; '.join(part for part in (cause, remedy) if part)}"


def _value(value: Any) -> str:
    return "nothing" if value in (None, []) else clean(brief(value), 70)
