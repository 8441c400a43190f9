# SPDX-License-Identifier: Apache-2.0
"""Transparent huge pages of the plan: the modes, as this kernel knows them, and the boot argument."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import _thp
from ._intent import IntentError, Judge, mapping
from ._plan_facts import Facts

VARIABLE = "thp"


def plan_thp(value: Any, facts: Facts, judge: Judge) -> dict[str, Any]:
    """The part of the thp section that `thp` decides: one word for the mode, or a mapping. Refusals go to JUDGE."""
    try:
        wish = mapping(value, _thp.KNOWN, "the value") if isinstance(value, Mapping) else {"enabled": value}
        if not wish:
            raise IntentError(f"{value!r} sets nothing")
        asked = {name: _thp.check_value(name, wish[name]) for name in _thp.KNOWN if name in wish}
    except ValueError as exc:
        judge.refuse("bad_value", VARIABLE, str(exc))
        return {}
    settings = {name: word for name, word in asked.items() if _offered(name, word, facts, judge)}
    mode = settings.get("enabled")
    return {"settings": settings, "tokens": [f"{_thp.ARGUMENT}={mode}"] if mode else []}


def _offered(name: str, word: str, facts: Facts, judge: Judge) -> bool:
    """Whether WORD is to be set; a word that the kernel does not offer is refused, or is so already."""
    offered = facts.thp.get(name)
    if offered is None and not facts.sizes_known:
        return True  # no /sys/kernel/mm to ask
    if offered is None and (name, word) == ("enabled", "never"):
        text = "this kernel has no transparent huge pages: there are none, and nothing is set"
        judge.note("unsupported", VARIABLE, text)
        return False
    if offered is None:
        text = f"this kernel has no {_thp.DIRECTORY}/{name}; take {name} out, or leave the variable unset"
        judge.refuse("unsupported", VARIABLE, text, setting=name)
        return False
    if word not in offered:
        text = f"{name} is {word!r}, this kernel offers {', '.join(offered)}; choose one of these"
        judge.refuse("unsupported", VARIABLE, text, setting=name, available=list(offered))
    return True
