# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether what a host returned is an answer of host_verify at all.

One host whose answers have another shape must neither pass nor take the report of all others with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.firsttouch.host.plugins.module_utils._tree import id_list
from ansible_collections.firsttouch.host.plugins.module_utils._verdict import LAYERS, STATUSES

_VERDICTS = ("pass", "fail", "incomplete")


class _Cpus:
    """A list of CPUs in the kernel's notation."""


class _Maybe:
    """None, or of a shape."""

    def __init__(self, shape: Any) -> None:
        self.shape = shape


_COUNT = (int, type(None))
_TEXT = (str, type(None))
_VIEW: dict[str, Any] = {
    "kernel": _TEXT,
    "arch": _TEXT,
    "hypervisor": _TEXT,
    "bare_metal": (bool, type(None)),
    "memory_bytes": _COUNT,
    "cpus": {"online": _Cpus, "offline": _Cpus, "isolated": _Cpus, "nohz_full": _Cpus},
    "sockets": [{"id": _COUNT, "cpus": _Cpus}],
    "cores": [_Cpus],
    "nodes": [{"id": int, "cpus": _Cpus, "memory_bytes": _COUNT, "distances": (dict, type(None))}],
    "trust": _Maybe(
        {
            "verdict": str,
            "words": str,
            "evidence": [{"source": str, "seen": str, "points": str}],
            "co_scheduling": {"text": str},
            "asserted_by": _TEXT,
            "transport": (dict, type(None)),
        }
    ),
    "pools": [{"size": str, "node": int, "asked": _COUNT, "got": _COUNT, "free": _COUNT, "surplus": _COUNT}],
    "warnings": [str],
}
_ROW = {"id": str, "concern": str, "status": str, "layer": str}
_ROW_TEXT = {"reason": _TEXT, "source": _TEXT, "remedy": _TEXT}
_PLAN = {"digest": str, "sections": dict, "intent": dict}


def fault(result: Mapping[str, Any]) -> str:
    """What is wrong with the answer RESULT, which has a verdict and a list of results; empty when nothing is."""
    if result["verdict"] not in _VERDICTS:
        return "verdict"
    for number, row in enumerate(result["results"]):
        wrong = _wrong(row, _ROW, f"results[{number}]") or _wrong(
            {key: row[key] for key in _ROW_TEXT if key in row}, _ROW_TEXT, f"results[{number}]"
        )
        if wrong:
            return wrong
        if row["status"] not in STATUSES or row["layer"] not in LAYERS:
            return f"results[{number}].status or layer"
    for name, shape in (("host", _VIEW), ("plan_used", _PLAN)):
        wrong = _wrong(result[name], shape, name) if result.get(name) else ""
        if wrong:
            return wrong
    return _numbers(result.get("host") or {}) or _contradiction(result)


def _wrong(value: Any, shape: Any, place: str) -> str:
    """The first place in VALUE that is not of SHAPE: types, a dict of shapes (all must be there), a list of one."""
    if isinstance(shape, _Maybe):
        return "" if value is None else _wrong(value, shape.shape, place)
    if isinstance(shape, dict):
        if not isinstance(value, Mapping):
            return place
        parts = ((value[key], shape[key], f"{place}.{key}") if key in value else (None, (), f"{place}.{key}")
                 for key in shape)  # fmt: skip
        return next((wrong for part in parts if (wrong := _wrong(*part))), "")
    if isinstance(shape, list):
        if not isinstance(value, list):
            return place
        rows = (_wrong(item, shape[0], f"{place}[{number}]") for number, item in enumerate(value))
        return next((wrong for wrong in rows if wrong), "")
    if shape is _Cpus:
        return "" if isinstance(value, str) and _is_list(value) else place
    return "" if isinstance(value, shape) else place


def _is_list(text: str) -> bool:
    try:
        id_list(text)
    except ValueError:
        return False
    return True


def _numbers(view: Mapping[str, Any]) -> str:
    """Distances are numbers by node."""
    for node in view.get("nodes") or ():
        for other, value in (node["distances"] or {}).items():
            if not (isinstance(other, str) and other.isdigit() and isinstance(value, int)):
                return f"host.nodes: distances of node {node['id']}"
    return ""


def _contradiction(result: Mapping[str, Any]) -> str:
    """A verdict that its own answers do not carry."""
    statuses = {row["status"] for row in result["results"]}
    if result["verdict"] == "pass" and ("pass" not in statuses or statuses & {"fail", "error"} or result.get("failed")):
        return "verdict, which is pass although the answers are not"
    return ""
