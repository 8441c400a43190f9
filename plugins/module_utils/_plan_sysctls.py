# SPDX-License-Identifier: Apache-2.0
"""Sysctls of the plan: vm settings, free memory kept by watermarks, automatic NUMA balancing, the RT runtime."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from . import _watermark
from ._intent import IntentError, Judge, byte_size, integer
from ._plan_facts import Facts

RT_RUNTIME = "kernel.sched_rt_runtime_us"
RT_PERIOD = "kernel.sched_rt_period_us"
MIN_FREE = "/proc/sys/vm/min_free_kbytes"
SCALE_FACTOR = "vm.watermark_scale_factor"
NUMA_BALANCING = "kernel.numa_balancing"
_DEFAULT_PERIOD_US = 1_000_000
# Bounds of the kernel's own tables (mm/page-writeback.c, mm/vmscan.c, mm/util.c, kernel/sysctl.c).
_BOUNDS = {
    "vm.swappiness": (0, 200),
    "vm.dirty_ratio": (0, 100),
    "vm.dirty_background_ratio": (0, 100),
    "vm.compact_unevictable_allowed": (0, 1),
    "vm.compaction_proactiveness": (0, 100),
    "vm.overcommit_memory": (0, 2),
    "vm.watermark_scale_factor": (1, 3000),
    "vm.zone_reclaim_mode": (0, 7),
    "vm.page-cluster": (0, 31),
}
_PAIRS = (("vm.dirty_ratio", "vm.dirty_bytes"), ("vm.dirty_background_ratio", "vm.dirty_background_bytes"))
_POOL_KEYS = re.compile(r"vm\.nr_(hugepages|overcommit_hugepages|hugepages_mempolicy)$")
_NAME = re.compile(r"vm\.[A-Za-z0-9_-]+")
_TOP_FACTOR = 3000


def live_keys(intent: Mapping[str, Any]) -> list[str]:
    """The sysctls whose live values the plan looks at."""
    asked = intent.get("vm_sysctls")
    names = [str(key).replace("/", ".") for key in asked] if isinstance(asked, Mapping) else []
    own = (RT_RUNTIME, RT_PERIOD, SCALE_FACTOR, NUMA_BALANCING)
    return sorted({*(name for name in names if _NAME.fullmatch(name)), *own})


def plan_vm(value: Any, facts: Facts, judge: Judge) -> dict[str, str]:
    """The sysctls of `vm_sysctls`, values as the kernel takes them."""
    if not isinstance(value, Mapping):
        judge.refuse("bad_value", "vm_sysctls", f"{value!r} is not a mapping of sysctls to values")
        return {}
    found: dict[str, str] = {}
    for key, raw in value.items():
        name = str(key).replace("/", ".")
        if name in found:
            judge.refuse("bad_value", "vm_sysctls", f"{name} is given twice", sysctl=name)
        try:
            found[name] = _value(name, raw, facts, judge)
        except IntentError as exc:
            judge.refuse("bad_value", "vm_sysctls", f"{name}: {exc}", sysctl=name)
    for ratio, number in _PAIRS:
        if ratio in found and number in found:
            text = f"{ratio} and {number} set each other to zero: keep one of them"
            judge.refuse("sysctl_conflict", "vm_sysctls", text, sysctl=number)
    return found


def _value(name: str, raw: Any, facts: Facts, judge: Judge) -> str:
    if _POOL_KEYS.match(name):
        text = f"{name} fights the pages reserved at boot; ask for pages in firsttouch_hugepages"
        judge.refuse("sysctl_conflict", "vm_sysctls", text, sysctl=name)
        return ""
    if not _NAME.fullmatch(name):
        raise IntentError("only keys of vm. belong here; the RT runtime is firsttouch_rt_runtime_us, NUMA "
                          "balancing firsttouch_numa_balancing")  # fmt: skip
    bounds = _BOUNDS.get(name)
    text = str(integer(raw, *bounds)) if bounds else _plain(raw)
    _check_known(name, "vm_sysctls", facts, judge)
    return text


def _plain(raw: Any) -> str:
    """An integer or several of them (vm.lowmem_reserve_ratio) as text."""
    if isinstance(raw, str) and len(raw.split()) > 1:
        return " ".join(str(integer(part)) for part in raw.split())
    return str(integer(raw))


def _check_known(name: str, variable: str, facts: Facts, judge: Judge) -> None:
    if not facts.has_proc_sys or facts.sysctls.get(name) is not None:
        return
    if name == "vm.extra_free_kbytes":
        remedy = "set firsttouch_extra_free_bytes instead, which keeps its meaning on this kernel"
    else:
        remedy = "remove it or correct its name"
    judge.refuse("sysctl_unknown", variable, f"this kernel has no {name}; {remedy}", sysctl=name)


def plan_numa_balancing(value: Any, facts: Facts, judge: Judge) -> dict[str, str]:
    """`numa_balancing`: on, off, or the kernel's number (0 off, 1 on, 2 memory tiering).

    A kernel without CONFIG_NUMA_BALANCING has it off, for good.
    """
    name = "numa_balancing"
    words: dict[Any, int] = {"on": 1, "off": 0}
    try:
        number = words[value] if value in ("on", "off") else _boolean_or(value)
    except IntentError as exc:
        judge.refuse("bad_value", name, f"{exc}; write true or false")
        return {}
    if facts.has_proc_sys and facts.sysctls.get(NUMA_BALANCING) is None:
        text = f"this kernel has no {NUMA_BALANCING} (it is built without CONFIG_NUMA_BALANCING)"
        if number:
            judge.refuse("unsupported", name, f"{text}, so it cannot be on; set it to false, or leave it unset")
        else:
            judge.note("unsupported", name, f"{text}: it is off, and nothing is set")
        return {}
    return {NUMA_BALANCING: str(number)}


def _boolean_or(value: Any) -> int:
    return int(value) if isinstance(value, bool) else integer(value, 0, 3)


def plan_extra_free(
    value: Any,
    facts: Facts,
    taken: Mapping[str, str],
    budget: Mapping[str, Mapping[str, int]],
    recorded: Mapping[str, Any] | None,
    judge: Judge,
) -> dict[str, Any] | None:
    """The `extra_free` of the vm_sysctls section; None after a refusal.

    TAKEN are the sysctls of vm_sysctls, BUDGET that of the pools. A RECORDED factor that still serves is kept: the
    memory of a host differs by some pages from boot to boot, and a plan must not follow that.
    """
    name = "extra_free_bytes"
    try:
        asked = byte_size(value)
    except IntentError as exc:
        judge.refuse("bad_value", name, str(exc))
        return None
    if SCALE_FACTOR in taken:
        text = f"{SCALE_FACTOR} is also in firsttouch_vm_sysctls: keep one of them"
        judge.refuse("sysctl_conflict", name, text, sysctl=SCALE_FACTOR)
        return None
    if not facts.zones or facts.min_free_kbytes is None:
        why = "; ".join(facts.warnings) or "/proc/zoneinfo or vm.min_free_kbytes cannot be read"
        text = f"{why}, so no watermark can be computed; leave it unset here"
        judge.refuse("zones_unknown", name, text, facts.lack("/proc/zoneinfo", MIN_FREE))
        return None
    _check_known(SCALE_FACTOR, name, facts, judge)
    min_free = facts.min_free_kbytes
    try:
        if "vm.min_free_kbytes" in taken:
            min_free = integer(taken["vm.min_free_kbytes"], least=0)
        plan = _factor(asked, facts, min_free, budget)
    except _watermark.WatermarkError as exc:
        judge.refuse(exc.reason, name, str(exc).partition(": ")[2], **exc.numbers)
        return None
    except ValueError as exc:
        judge.refuse("bad_value", name, str(exc))
        return None
    factor, predicted = plan.scale_factor, plan.predicted_bytes
    kept = _kept(asked, factor, recorded)
    if kept is not None:
        page = facts.topology.page_size_bytes or 4096
        capped = _watermark.movable_is_capped(facts.zones, facts.min_free_kbytes, page)
        rows = _watermark.predict(facts.zones, kept, 0, page_bytes=page, movable_capped=capped)
        enough = sum(low - low_min for low_min, low, _high in rows) * page
        factor, predicted = (kept, enough) if enough >= asked else (factor, predicted)
    return {"asked_bytes": asked, "scale_factor": factor, "predicted_bytes": predicted}


def _factor(
    asked: int, facts: Facts, min_free: int, budget: Mapping[str, Mapping[str, int]]
) -> _watermark.WatermarkPlan:
    page = facts.topology.page_size_bytes or 4096
    pages = {int(node): row["pages_bytes"] for node, row in budget.items()}
    most = min(
        (_watermark.max_factor_for(kernel.version or (0, 0)) for kernel in facts.kernels), default=1000
    )
    # A small margin: some pages less at the next boot must not make the factor too small.
    return _watermark.scale_factor_for(
        asked + asked // 500,
        facts.zones,
        min_free,
        page_bytes=page,
        max_factor=min(most, _TOP_FACTOR),
        pages_bytes=pages,
    )


def _kept(asked: int, factor: int, recorded: Mapping[str, Any] | None) -> int | None:
    row = (recorded or {}).get("extra_free") or {}
    old = row.get("scale_factor")
    if row.get("asked_bytes") != asked or not isinstance(old, int):
        return None
    return old if abs(old - factor) <= 2 else None


def plan_rt_runtime(value: Any, facts: Facts, judge: Judge) -> dict[str, str]:
    """The sysctl of `rt_runtime_us`: microseconds of each period, or -1 for no limit."""
    name = "rt_runtime_us"
    period = _DEFAULT_PERIOD_US
    text = facts.sysctls.get(RT_PERIOD)
    if text and re.fullmatch(r"\d+", text):
        period = int(text)
    try:
        runtime = integer(value, least=-1)
    except IntentError as exc:
        judge.refuse("bad_value", name, f"{exc}; write microseconds below the period of {period}, or -1")
        return {}
    if runtime == 0:
        judge.refuse("bad_value", name, "0 leaves real-time threads no time at all; write for example 950000")
    elif runtime > period:
        text = f"{runtime} is more than the period of {period} us ({RT_PERIOD})"
        judge.refuse("bad_value", name, text, asked=runtime, available=period)
    elif runtime == -1:
        text = "-1 switches real-time throttling off: a runaway real-time thread can take a whole CPU"
        judge.note("rt_throttling_off", name, text)
    _check_known(RT_RUNTIME, name, facts, judge)
    return {RT_RUNTIME: str(runtime)}
