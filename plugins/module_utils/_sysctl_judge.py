# SPDX-License-Identifier: Apache-2.0
"""What the sysctl files and the running kernel come to, key by key, against what is wanted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ._files import read_text
from ._sysctl import (
    COUNTERPART,
    Assignment,
    Live,
    Resolution,
    canonical,
    clean,
    dotted,
    glob_matches,
    has_proc,
    normalize,
    read_live,
    same_value,
)
from ._sysctl_foreign import Foreign

_DEFAULTS = {"vm/dirty_ratio": 20, "vm/dirty_background_ratio": 10, "vm/overcommit_ratio": 50}
_ZERO_ON_CHANGE_ONLY = ("vm/dirty_ratio", "vm/dirty_bytes")
_NEVER_ZERO = ("vm/dirty_bytes", "vm/dirty_background_bytes")  # the kernel refuses a written 0
POOL_KEYS = ("vm/nr_hugepages", "vm/nr_hugepages_mempolicy")
_RT_RUNTIME, _RT_PERIOD = "kernel/sched_rt_runtime_us", "kernel/sched_rt_period_us"
_RANK = {"pass": 0, "skip": 1, "warn": 2, "unknown": 3, "fail": 4}


@dataclass(frozen=True)
class Effect:
    """The value a sequence of writes leaves a key with, the line that set it, the line that zeroed it."""

    value: str | None = None
    by: Assignment | None = None
    zeroed_by: Assignment | None = None


def write_pair(state: dict[str, str], key: str, value: str) -> bool:
    """Apply one write to STATE (slash key to text) as the kernel does to a pair; whether it was accepted."""
    text = canonical(value)
    other = COUNTERPART.get(key)
    if key in _NEVER_ZERO and text == "0":
        return False
    changed = state.get(key) != text
    state[key] = text
    if other and (changed or key not in _ZERO_ON_CHANGE_ONLY):
        state[other] = "0"
    return True


def effect(resolution: Resolution, key: str, procps: bool = False) -> Effect:
    """Return what KEY (slash form) ends up with at boot, or after `sysctl --system` (PROCPS)."""
    writes = resolution.writes(key, procps)
    own = writes[-1] if writes else None
    other = COUNTERPART.get(key)
    if other is None:
        return Effect(own.value, own) if own else Effect()
    listed = resolution.procps_lines if procps else resolution.settings()
    allowed = {name: resolution.writes(name, procps) for name in (key, other)}
    if not any(allowed.values()):
        return Effect()
    state = {name: str(_DEFAULTS.get(name, 0)) for name in (key, other)}
    zeroed_by = None
    for item in listed:
        for name in (key, other):
            if item not in allowed[name] or not (item.key == name or glob_matches(item.key, name)):
                continue
            before = state[key]
            if write_pair(state, name, item.value or "") and name == other and state[key] != before:
                zeroed_by = item
            elif name == key:
                zeroed_by = None
    return Effect(state[key], own, zeroed_by)


def report(
    resolution: Resolution,
    want: Mapping[str, str],
    optional: Iterable[str] = (),
    foreign: Iterable[Foreign] = (),
) -> dict[str, dict[str, Any]]:
    """Return {dotted key: facts and verdict} for the wanted keys, or for all keys of the files."""
    optional_keys = {normalize(key) for key in optional}
    writers = list(foreign)
    keys = list(want) or resolution.keys()
    return {
        dotted(key): _judge(resolution, key, want.get(key), key in optional_keys, writers) for key in keys
    }


def _facts(resolution: Resolution, key: str, wanted: str | None, live: Live) -> dict[str, Any]:
    boot, procps = effect(resolution, key), effect(resolution, key, procps=True)
    definers = resolution.definers(key)
    later = definers[1:]
    if wanted is not None:
        match = [i for i, item in enumerate(definers) if same_value(wanted, item.value or "")]
        later = definers[match[-1] + 1 :] if match else []
    other = COUNTERPART.get(key)
    return {
        "asked": wanted,
        "got": live.value if live.state == "value" else boot.value,
        "boot_value": boot.value if boot.value is None else clean(boot.value),
        "winner": boot.by.real if boot.by else None,
        "line": boot.by.line if boot.by else None,
        "procps_value": procps.value if procps.value is None else clean(procps.value),
        "live": live.value,
        "live_state": live.state,
        "persisted": boot.value is not None,
        "definers": [item.as_dict() for item in definers],
        "later_definers": [item.as_dict() for item in later],
        "masked": [
            {**item.as_dict(), "masked_by": resolution.masked[item.file]}
            for item in resolution.masked_lines
            if item.key == key
        ],
        "counterpart": dotted(other) if other else None,
        "counterpart_value": None,
        "file": boot.by.real if boot.by else None,
        "verdict": None,
        "reason": None,
        "text": None,
    }


def _judge(
    resolution: Resolution, key: str, wanted: str | None, optional: bool, foreign: list[Foreign]
) -> dict[str, Any]:
    live = read_live(resolution.root, key)
    facts = _facts(resolution, key, wanted, live)
    if wanted is not None:
        facts.update(_verdict(resolution, key, wanted, optional, live, foreign, facts))
    return facts


def _verdict(
    resolution: Resolution,
    key: str,
    wanted: str,
    optional: bool,
    live: Live,
    foreign: list[Foreign],
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    name = dotted(key)
    if live.state == "unknown_key":
        text = f"/proc/sys/{key} does not exist: this kernel has no {name}"
        return {"verdict": "skip" if optional else "fail", "reason": "unknown_key", "text": text}
    boot = facts["boot_value"]
    if boot is not None and not same_value(wanted, boot):
        return _wrong_at_boot(resolution, key, wanted, facts)
    if live.state == "value" and not same_value(wanted, live.value or ""):
        return _wrong_live(resolution, key, wanted, live, foreign)
    if live.state in ("permission_denied", "read_error"):
        return {"verdict": "unknown", "reason": live.state, "text": f"/proc/sys/{key} cannot be read"}
    hidden = _unreadable_later(resolution, facts)
    if hidden:
        text = f"{hidden} cannot be read and may set {name}"
        return {"verdict": "unknown", "reason": resolution.unreadable[hidden], "file": hidden, "text": text}
    procps = facts["procps_value"]
    if procps is not None and not same_value(wanted, procps):
        last = effect(resolution, key, procps=True)
        by = last.zeroed_by or last.by
        text = f"`sysctl --system` reads {by.real if by else 'a file'} later and sets {name} to {procps}"
        return {
            "verdict": "warn",
            "reason": "procps_overrides",
            "file": by.real if by else None,
            "text": text,
        }
    if live.state == "no_proc" and boot is None:
        return {"verdict": "unknown", "reason": "not_configured", "text": f"no file sets {name}"}
    return {"verdict": "pass", "reason": None}


def _wrong_at_boot(resolution: Resolution, key: str, wanted: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    name, boot = dotted(key), effect(resolution, key)
    asked = f"{name}: asked {wanted}"
    if boot.zeroed_by:
        other = COUNTERPART[key]
        value = clean(boot.zeroed_by.value or "")
        where = f"{boot.zeroed_by.real}:{boot.zeroed_by.line}"
        return {
            "verdict": "fail",
            "reason": "counterpart_set",
            "counterpart_value": value,
            "file": boot.zeroed_by.real,
            "text": f"{asked}, got {facts['boot_value']}: {dotted(other)}={value} in {where} zeroes it",
        }
    had = any(same_value(wanted, item.value or "") for item in resolution.definers(key))
    return {
        "verdict": "fail",
        "reason": "overridden_by" if had else "configured_differs",
        "text": f"{asked}, but {facts['winner']}:{facts['line']} sets {facts['boot_value']} at boot",
    }


def _wrong_live(
    resolution: Resolution, key: str, wanted: str, live: Live, foreign: list[Foreign]
) -> dict[str, Any]:
    name, other = dotted(key), COUNTERPART.get(key)
    text = f"{name}: asked {wanted}, the kernel has {live.value}"
    if other and live.value == "0":
        beside = read_live(resolution.root, other).value
        if beside not in (None, "0"):
            by = effect(resolution, other).by
            writer = by.real if by else _writer(foreign, other, beside or "")
            return {
                "verdict": "fail",
                "reason": "counterpart_set",
                "counterpart_value": beside,
                "file": writer,
                "text": f"{text}: {dotted(other)}={beside} zeroes it",
            }
    owner = _writer(foreign, key, live.value or "")
    if owner:
        return {
            "verdict": "fail",
            "reason": "foreign_owner",
            "file": owner,
            "text": f"{text}, as {owner} says",
        }
    return {"verdict": "fail", "reason": "live_differs", "text": text}


def _writer(foreign: list[Foreign], key: str, value: str) -> str | None:
    return next((item.file for item in foreign if item.key == key and same_value(item.value, value)), None)


def _unreadable_later(resolution: Resolution, facts: Mapping[str, Any]) -> str | None:
    """A file that could not be read and comes after the line that decides."""
    names = [*resolution.order, *resolution.unreadable]
    names.sort(key=lambda path: path.rsplit("/", 1)[-1].encode("utf-8", "surrogateescape"))
    decided = -1
    for item in resolution.lines:
        if item.real == facts["winner"] and item.line == facts["line"]:
            decided = names.index(item.file)
    return next((path for path in names[decided + 1 :] if path in resolution.unreadable), None)


def overall(reports: Mapping[str, Mapping[str, Any]], findings: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the worst verdict of all keys and findings; None when nothing was wanted and nothing found."""
    verdicts = [row["verdict"] for row in [*reports.values(), *findings] if row["verdict"]]
    return max(verdicts, key=lambda verdict: _RANK[verdict]) if verdicts else None


def foreign_unsupported(resolution: Resolution, want: Mapping[str, str]) -> list[Assignment]:
    """Return lines in force whose key the kernel lacks, without wanted ones and those that may fail."""
    if not has_proc(resolution.root):
        return []
    plain = {item.key: item for item in resolution.settings() if not item.is_glob and item.value is not None}
    result = []
    for key, item in plain.items():
        if key in want or item.ignore_failure or ".." in key.split("/") or "/" not in key:
            continue
        if re.search(r"\s", key) or read_live(resolution.root, key).state == "unknown_key":
            result.append(item)
    return result


def pool_findings(
    resolution: Resolution, default_page_kb: int | None, mem_total_kb: int | None
) -> list[dict[str, Any]]:
    """Return a finding per file setting that changes the default huge page pool after boot.

    vm.nr_hugepages counts pages of the DEFAULT size (Documentation/admin-guide/mm/hugetlbpage.rst), so a
    count made for 2 MiB pages asks for 512 times as much under default_hugepagesz=1G.
    """
    findings = []
    for key in POOL_KEYS:
        boot = effect(resolution, key)
        if boot.by is None or boot.value is None:
            continue
        where = f"{boot.by.real}:{boot.by.line}"
        finding: dict[str, Any] = {
            "verdict": "warn",
            "reason": "nr_hugepages_in_sysctl",
            "key": dotted(key),
            "value": boot.value,
            "file": boot.by.real,
            "line": boot.by.line,
            "text": f"{where} sets {dotted(key)} and fights the pages reserved at boot",
        }
        # the kernel reads one number, whatever follows the blank
        count = canonical(boot.value).partition(" ")[0]
        if default_page_kb and count.isdigit():
            wanted = int(count) * default_page_kb * 1024
            finding.update(bytes_requested=wanted, mem_total_kB=mem_total_kb, default_page_kB=default_page_kb)
            if mem_total_kb is not None and wanted > mem_total_kb * 1024:
                finding["verdict"] = "fail"
                finding["reason"] = "nr_hugepages_default_size_overcommit"
                finding["text"] = (
                    f"{where} sets {dotted(key)}={count}: with a default page size of {default_page_kb} kB "
                    f"that is {wanted} bytes, more than the {mem_total_kb} kB this host has"
                )
        findings.append(finding)
    return findings


def memory_facts(root: str) -> tuple[int | None, int | None]:
    """Return (default huge page size, MemTotal), in kB, of ROOT/proc/meminfo; None for what is absent."""
    text = read_text(root, "/proc/meminfo") or ""
    page = re.search(r"^Hugepagesize:\s+(\d+) kB", text, re.MULTILINE)
    total = re.search(r"^MemTotal:\s+(\d+) kB", text, re.MULTILINE)
    page_kb = int(page[1]) if page else None
    if page_kb is None:  # of several the kernel takes the first
        given = re.search(r"(?:^|\s)default_hugepagesz=(\S+)", read_text(root, "/proc/cmdline") or "")
        page_kb = size_kb(given[1]) if given else None
    return page_kb, (int(total[1]) if total else None)


def size_kb(text: str) -> int | None:
    """Return a page size such as `2M`, `1GB` or `2048kB` in kB; None when it is not one."""
    match = re.fullmatch(r"([1-9][0-9]*)([kKmMgG])[bB]?", text)
    return int(match[1]) << {"k": 0, "m": 10, "g": 20}[match[2].lower()] if match else None


def rt_notes(root: str, want: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a note when real-time throttling is off, live or as wanted (-1, or no less than the period)."""
    live, period = read_live(root, _RT_RUNTIME).value, canonical(read_live(root, _RT_PERIOD).value or "")
    limit = int(period) if period.isdigit() else 1000000
    notes = []
    for whose, value in (("the running kernel", live), ("the request", want.get(_RT_RUNTIME))):
        number = canonical(value or "")
        if re.fullmatch(r"-?\d+", number) and (int(number) < 0 or int(number) >= limit):
            text = (
                f"real-time throttling is disabled in {whose} (kernel.sched_rt_runtime_us={number}): "
                "a busy real-time thread can take a whole CPU"
            )
            notes.append({"reason": "rt_throttling_off", "value": number, "text": text})
    return notes
