# SPDX-License-Identifier: Apache-2.0
"""The intent of an operator: the firsttouch_* values, read strictly.

Values arrive from YAML and Jinja, so an integer may be a string. Everything else that is not what it should be
is refused with the name of its variable; nothing is guessed, rounded away or ignored.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

PREFIX = "firsttouch_"
# Per section of the plan the variables that make it managed, and those that only modify it.
CONCERNS: dict[str, tuple[str, ...]] = {
    "hugepages": ("hugepages", "hugetlbfs_mounts"),
    "vm_sysctls": ("vm_sysctls", "extra_free_bytes", "numa_balancing"),
    "cpu_isolation": ("isolated_cpus", "irqbalance"),
    "rt_scheduling": ("rt_runtime_us",),
    "thp": ("thp",),
    "services": ("conflicting_services",),
    "runtime": ("runtime_state", "models", "servers"),
    "kubelet": ("kubelet",),
}
MODIFIERS: dict[str, tuple[str, ...]] = {"hugepages": ("hugepages_method", "reserve_floor_bytes")}
# Variables of no section: nothing is applied for them (see _plan_numa).
GENERAL = ("numa", "transport_policy", "latency_target_us")
SECTIONS = tuple(CONCERNS)
_UNITS_KB = {"K": 1, "M": 1 << 10, "G": 1 << 20, "T": 1 << 30}
_SIZE = re.compile(r"([0-9]{1,15})\s*([KMGT])(?:i?B)?", re.IGNORECASE)


class IntentError(ValueError):
    """One value that cannot be used; the text names neither variable nor prefix."""


@dataclass(frozen=True)
class Refusal:
    """One reason not to go on: a code, a sentence with numbers and remedy, the variable, machine-readable details.

    `unrecorded`: nothing is wrong with the variable, but what it rests on was not recorded of the host.
    """

    reason: str
    text: str
    variable: str
    details: Mapping[str, Any] = field(default_factory=dict)
    unrecorded: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The refusal as host_plan returns it."""
        return {"reason": self.reason, "text": self.text, "variable": self.variable, **self.details}


class Judge:
    """Collects refusals and notes, so that an operator sees all of them at once."""

    def __init__(self) -> None:
        self.refusals: list[Refusal] = []
        self.notes: list[dict[str, str]] = []

    def refuse(self, reason: str, variable: str, text: str, unrecorded: bool = False, /, **details: Any) -> None:
        """Add a refusal about VARIABLE (without the prefix)."""
        name = PREFIX + variable
        self.refusals.append(Refusal(reason, f"{name}: {text}", name, details, unrecorded))

    def note(self, reason: str, variable: str, text: str) -> None:
        """Add a remark that stops nothing."""
        self.notes.append({"reason": reason, "variable": PREFIX + variable, "text": text})


def variables(section: str) -> tuple[str, ...]:
    """All variables of SECTION."""
    return CONCERNS[section] + MODIFIERS.get(section, ())


def manages(intent: Mapping[str, Any]) -> bool:
    """Whether a variable of INTENT manages something on the host."""
    return any(intent.get(name) is not None for names in CONCERNS.values() for name in names)


def asks(intent: Mapping[str, Any]) -> bool:
    """Whether a variable of INTENT can be held against the host; one that only modifies others cannot."""
    return manages(intent) or any(intent.get(name) is not None for name in GENERAL)


def check_names(intent: Mapping[str, Any], judge: Judge) -> None:
    """Refuse variables that nothing reads: a typing error must not leave a concern unmanaged."""
    known = {name for section in SECTIONS for name in variables(section)} | set(GENERAL)
    for name in sorted(set(map(str, intent)) - known):
        judge.refuse("bad_value", name, f"unknown variable; known are {', '.join(sorted(known))}")


def is_absent(value: Any) -> bool:
    """Whether VALUE asks to remove what is ours: `absent`, an empty list or an empty mapping."""
    return value == "absent" or (isinstance(value, (list, tuple, dict)) and not value)


def integer(value: Any, least: int | None = None, most: int | None = None) -> int:
    """VALUE, an integer or the text of one, within LEAST and MOST. Raises IntentError."""
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,19}\s*", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise IntentError(f"{value!r} is not an integer")
    if least is not None and value < least:
        raise IntentError(f"{value} is less than {least}")
    if most is not None and value > most:
        raise IntentError(f"{value} is more than {most}")
    return value


def page_size_kb(value: Any) -> int:
    """A huge page size like `2M`, `1G` or `2048kB`, in kB. Raises IntentError."""
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    size = int(match[1]) * _UNITS_KB[match[2].upper()] if match else 0
    if size <= 0 or size & (size - 1):
        raise IntentError(f"{value!r} is not a page size; write it like 2M or 1G")
    return size


def byte_size(value: Any) -> int:
    """A number of bytes, plain or with a unit of 1024 (`8G`, `512MiB`). Raises IntentError."""
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match:
        return int(match[1]) * _UNITS_KB[match[2].upper()] * 1024
    try:
        return integer(value, least=0)
    except IntentError:
        raise IntentError(f"{value!r} is not a number of bytes; write 8589934592 or 8G") from None


def format_size(size_kb: int) -> str:
    """A page size as the kernel command line takes it: `64K`, `2M`, `1G`."""
    for unit, kb in (("G", 1 << 20), ("M", 1 << 10)):
        if size_kb % kb == 0:
            return f"{size_kb // kb}{unit}"
    return f"{size_kb}K"


def mapping(value: Any, known: Iterable[str], what: str) -> dict[str, Any]:
    """VALUE, a mapping with keys of KNOWN only; keys without a value are left out. Raises IntentError."""
    if not isinstance(value, Mapping):
        raise IntentError(f"{what} is {value!r}, not a mapping")
    names = sorted(known)
    unknown = sorted(str(key) for key in value if key not in names)
    if unknown:
        near = difflib.get_close_matches(unknown[0], names, n=1)
        meant = f" (is {near[0]} meant?)" if near else ""
        raise IntentError(f"{what} has the unknown key {unknown[0]!r}{meant}; known are {', '.join(names)}")
    return {str(key): item for key, item in value.items() if item is not None}


def listing(value: Any, what: str) -> list[Any]:
    """VALUE, a list. Raises IntentError."""
    if not isinstance(value, (list, tuple)):
        raise IntentError(f"{value!r} is not a list of {what}")
    return list(value)
