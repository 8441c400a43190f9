# SPDX-License-Identifier: Apache-2.0
"""What a check answers, and how answers add up.

Absent, unreadable, not evaluated and wrong are four different answers, and only an answer that was really
obtained may be `pass`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

STATUSES = ("pass", "fail", "warn", "not_applicable", "not_evaluated", "error")
LAYERS = ("configured", "next_boot", "running", "measured")
VARIABLE_PREFIX = "firsttouch_"
_CELL = 44


@dataclass(frozen=True)
class Result:
    """One answer of one check about one layer of one host.

    `id` is dotted and starts with the concern; `expected` and `observed` are JSON values (None: nothing was
    asked for, or nothing was there); `reason` is a snake_case code; `source` is FILE, FILE:LINE or empty;
    `remedy` is one sentence. `intended` says that a variable or the plan asks for it: what nobody asked for
    is never `fail`. Raises ValueError for a result that breaks these rules.
    """

    id: str
    status: str
    layer: str
    expected: Any = None
    observed: Any = None
    reason: str = ""
    source: str = ""
    remedy: str = ""
    intended: bool = True

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"{self.id}: unknown status {self.status!r}")
        if self.layer not in LAYERS:
            raise ValueError(f"{self.id}: unknown layer {self.layer!r}")
        if self.status == "fail" and not self.intended:
            raise ValueError(f"{self.id}: a check without an intent is at most warn")
        if self.status == "fail" and VARIABLE_PREFIX not in self.remedy:
            raise ValueError(f"{self.id}: the remedy of a failure must name a {VARIABLE_PREFIX}* variable")
        if self.status not in ("pass", "fail", "warn") and not self.reason:
            raise ValueError(f"{self.id}: {self.status} needs a reason")

    @property
    def concern(self) -> str:
        """The first part of the id: hugepages, vm_sysctls, cpu_isolation, boot, ..."""
        return self.id.split(".", 1)[0]

    def as_dict(self) -> dict[str, Any]:
        """The result as the JSON object that host_verify returns."""
        return {**asdict(self), "concern": self.concern}


def judge(
    identity: str,
    layer: str,
    expected: Any,
    observed: Any,
    *,
    good: bool | None = None,
    reason: str = "",
    source: str = "",
    remedy: str = "",
    intended: bool = True,
    soft: bool = False,
) -> Result:
    """`pass` when GOOD (by default when EXPECTED equals OBSERVED); else `fail`, or `warn` when SOFT or unasked.

    A reason on a passing result is dropped: it explains a difference.
    """
    if expected == observed if good is None else good:
        return Result(identity, "pass", layer, expected, observed, "", source, "", intended)
    status = "warn" if soft or not intended else "fail"
    return Result(identity, status, layer, expected, observed, reason, source, remedy, intended)


def skipped(
    identity: str,
    layer: str,
    reason: str,
    *,
    expected: Any = None,
    observed: Any = None,
    source: str = "",
    remedy: str = "",
    intended: bool = True,
) -> Result:
    """`not_evaluated`: the answer could not be had, for REASON; never to be read as pass."""
    return Result(identity, "not_evaluated", layer, expected, observed, reason, source, remedy, intended)


def not_applicable(
    identity: str, layer: str, reason: str, *, observed: Any = None, source: str = ""
) -> Result:
    """`not_applicable`: the question makes no sense on this host."""
    return Result(identity, "not_applicable", layer, None, observed, reason, source, "", False)


def summary(results: Iterable[Result]) -> dict[str, int]:
    """Results per status, every status present."""
    counts = dict.fromkeys(STATUSES, 0)
    for result in results:
        counts[result.status] += 1
    return counts


def verdict(results: Sequence[Result]) -> str:
    """`fail`, `incomplete` or `pass`.

    `fail`: a check failed or broke. `incomplete`: something that the intent asks for could not be looked at,
    or nothing at all could be confirmed. Only `pass` may be called ok.
    """
    if any(result.status in ("fail", "error") for result in results):
        return "fail"
    if any(result.status == "not_evaluated" and result.intended for result in results):
        return "incomplete"
    if not any(result.status == "pass" and result.intended for result in results):
        return "incomplete"
    return "pass"


def brief(value: Any) -> str:
    """VALUE in one short line for people."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value or '""'
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return " ".join(value) or "-"
    if isinstance(value, (list, tuple)) and all(isinstance(item, dict) and item for item in value):
        return "; ".join(brief(item) for item in value)
    if isinstance(value, dict) and value:
        return " ".join(f"{key}={_inner(item)}" for key, item in value.items())
    return json.dumps(value, sort_keys=True)


def _inner(value: Any) -> str:
    """VALUE of a mapping: one in a mapping has brackets, so that it is seen where it ends."""
    if isinstance(value, dict) and value:
        return f"({brief(value)})"
    return "none" if value in ({}, []) else brief(value)


def table(results: Iterable[Result], *, everything: bool = False) -> list[str]:
    """Aligned lines: status, layer, check, wanted, live; below a failure or warning its cause and remedy.

    Without EVERYTHING, answers that nobody asked for are left out unless they are warnings.
    """
    shown = [r for r in results if everything or r.intended or r.status in ("warn", "error")]
    rows = [("STATUS", "LAYER", "CHECK", "WANTED", "LIVE")]
    rows += [
        (r.status.upper(), r.layer, r.id, _cell(brief(r.expected)), _cell(brief(r.observed))) for r in shown
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in rows]
    out = lines[:1]
    for line, result in zip(lines[1:], shown):
        out.append(line)
        if result.status not in ("pass", "not_applicable"):
            parts = (result.reason, result.source, result.remedy)
            out.append("    " + "; ".join(part for part in parts if part))
    return out


def failures_text(results: Iterable[Result]) -> str:
    """One line per result: what was wanted, what is there, why, what to do."""
    lines = []
    for r in results:
        where = f" [{r.source}]" if r.source else ""
        text = f"{r.status} {r.id} ({r.layer}): wanted {brief(r.expected)}, found {brief(r.observed)}"
        lines.append(f"{text}: {r.reason}{where} {r.remedy}".rstrip())
    return "\n".join(lines)


def _cell(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _CELL else text[: _CELL - 3] + "..."
