# SPDX-License-Identifier: Apache-2.0
"""The plan of a host: a pure function of intent, facts and what is recorded as ours already.

A variable that is not set is not managed: what the record says about it is kept as it is (`orphaned`). One that
is `absent` or empty removes what is ours. `owned` grows before anything is applied and keeps what was ours
until it is gone, so that a run that was killed in the middle leaves nothing that no later run would remove.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import _plan_cpus, _plan_fit, _plan_hugepages, _plan_mounts, _plan_sysctls, _systemd
from ._cmdline import make
from ._cpulist import format_list, parse
from ._intent import CONCERNS, SECTIONS, Judge, Refusal, check_names, is_absent, variables
from ._plan_facts import Facts, read_facts
from ._topology import Topology

SCHEMA = 1
COLLECTION = "0.1.0"


@dataclass(frozen=True)
class Result:
    """A plan, or the refusals because of which there is none; notes are remarks that stop nothing."""

    plan: dict[str, Any]
    refusals: list[Refusal] = field(default_factory=list)
    notes: list[dict[str, str]] = field(default_factory=list)


@dataclass
class _Job:
    """What every section needs: the wishes that are set, the facts, the record of the section."""

    intent: dict[str, Any]
    absent: set[str]
    facts: Facts
    old: dict[str, Any]
    judge: Judge
    budget: dict[str, dict[str, int]] = field(default_factory=dict)

    def kept(self, variable: str) -> bool:
        """Whether VARIABLE is not set and what the record holds of it stays."""
        return variable not in self.intent and variable not in self.absent and bool(self.old)


def make_plan(
    intent: Mapping[str, Any],
    facts: Facts,
    recorded: Mapping[str, Any] | None = None,
    sections: Iterable[str] = SECTIONS,
    revert: bool = False,
) -> Result:
    """Plan SECTIONS of INTENT (firsttouch_* values without the prefix) for the host of FACTS.

    Other sections are those of RECORDED, the document of plan.json. With REVERT every concern is absent. The
    result has a plan only where nothing is refused.
    """
    judge = Judge()
    chosen = [name for name in SECTIONS if name in set(sections)]
    if not revert:
        check_names(intent, judge)
    record: Mapping[str, Any] = recorded or {}
    old_sections: Mapping[str, Any] = record.get("sections") or {}
    planned: dict[str, Any] = {name: old_sections.get(name) for name in SECTIONS}
    budget: dict[str, dict[str, int]] = (planned["hugepages"] or {}).get("budget") or {}
    for name in chosen:
        wish, absent = _wishes(name, intent, revert)
        old = planned[name] if (planned[name] or {}).get("state") == "present" else {}
        job = _Job(wish, absent, facts, dict(old or {}), judge, budget)
        if not wish and not absent:
            planned[name] = _orphaned(name, planned[name], record)
            continue
        before = len(judge.refusals)
        body = _BUILDERS[name](job)
        if len(judge.refusals) > before:
            continue
        planned[name] = _section(name, body, job)
        if name == "hugepages":
            budget = planned[name].get("budget") or {}
    if judge.refusals:
        return Result({}, judge.refusals, judge.notes)
    document = {
        "schema": SCHEMA,
        "collection": COLLECTION,
        "host": {"kernel": facts.topology.kernel_release, "arch": facts.topology.arch},
        "intent": _merged_intent(intent, record, chosen, revert),
        "topology": topology_summary(facts.topology, planned.get("cpu_isolation")),
        "sections": planned,
        "owned": dict(record.get("owned") or {}),
    }
    return Result(compose(document), [], judge.notes)


def facts_for(
    intent: Mapping[str, Any],
    root: str = "/",
    topology: Mapping[str, Any] | None = None,
    kernel: str | None = None,
) -> Facts:
    """Read below ROOT what make_plan() needs for INTENT; TOPOLOGY is a document of Topology.as_dict().

    Raises KeyError, TypeError or ValueError for a TOPOLOGY of another shape, and for nothing else.
    """
    given = Topology.from_dict(topology) if topology is not None else None
    mounts = intent.get("hugetlbfs_mounts")
    return read_facts(
        root,
        given,
        kernel,
        keys=_plan_sysctls.live_keys(intent),
        paths=_plan_mounts.mount_paths(mounts),
        users=_plan_mounts.mount_owners(mounts),
    )


def named_groups(plan: Mapping[str, Any]) -> list[str]:
    """The groups that the mounts of a managed variable name."""
    section = plan["sections"].get("hugepages") or {}
    if "hugetlbfs_mounts" in section.get("orphaned", ()):
        return []
    return sorted({row["group"] for row in section.get("mounts") or () if not row["group"].isdigit()})


def unit_changes(plan: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """(units to write, units to remove): nothing of variables that are not managed, and what is not planned any more."""
    section = plan["sections"].get("hugepages") or {}
    orphaned = section.get("orphaned") or ()
    mounts = {row["unit"] for row in section.get("mounts") or ()}
    all_units: dict[str, str] = section.get("units") or {}
    units = {
        name: text
        for name, text in all_units.items()
        if ("hugetlbfs_mounts" if name in mounts else "hugepages") not in orphaned
    }
    owned = (plan["owned"].get("hugepages") or {}).get("units") or ()
    return units, [name for name in owned if name not in all_units]


def _wishes(section: str, intent: Mapping[str, Any], revert: bool) -> tuple[dict[str, Any], set[str]]:
    """The values of SECTION that are set, and the concerns that are to be removed."""
    concerns = CONCERNS[section]
    if revert:
        return {}, set(concerns)
    given = {name: intent[name] for name in variables(section) if intent.get(name) is not None}
    absent = {name for name in concerns if name in given and _removes(name, given[name])}
    wish = {name: value for name, value in given.items() if name not in absent}
    if not any(name in wish for name in concerns):
        wish = {}
    return wish, absent


def _removes(name: str, value: Any) -> bool:
    # An empty string is an empty CPU list; elsewhere it is the mark of a template that failed.
    return is_absent(value) or (name == "isolated_cpus" and value == "")


def _section(name: str, body: dict[str, Any], job: _Job) -> dict[str, Any]:
    kept = sorted(variable for variable in CONCERNS[name] if job.kept(variable) and _has(job.old, variable))
    present = bool(job.intent) or bool(kept)
    return {"state": "present" if present else "absent", "orphaned": kept, **body}


def _has(old: Mapping[str, Any], variable: str) -> bool:
    return variable in (old.get("variables") or ())


def _orphaned(name: str, old: Mapping[str, Any] | None, record: Mapping[str, Any]) -> dict[str, Any] | None:
    """A section without a variable: what is recorded stays, marked."""
    if old is None:
        return None
    if old.get("state") != "present":
        return dict(old)
    return {**old, "orphaned": sorted(old.get("variables") or ())}


def _merged_intent(
    intent: Mapping[str, Any], record: Mapping[str, Any], chosen: list[str], revert: bool
) -> dict[str, Any]:
    """The values given, by section: those of sections not planned now, and of kept variables, as recorded."""
    old: Mapping[str, Any] = record.get("intent") or {}
    merged: dict[str, Any] = {}
    for section in SECTIONS:
        for name in variables(section):
            if section in chosen and revert:
                value = "absent" if name in CONCERNS[section] else None
            elif section in chosen and intent.get(name) is not None:
                value = intent[name]
            else:
                value = old.get(name)
            if value is not None:
                merged[name] = value
    return merged


def _plan_hugepages_section(job: _Job) -> dict[str, Any]:
    judge, topology = job.judge, job.facts.topology
    floors = _plan_fit.floors(job.intent.get("reserve_floor_bytes"), topology, judge)
    pools: dict[str, Any] = {}
    names = []
    if "hugepages" in job.intent:
        pools = _plan_hugepages.plan_pools(job.intent, job.facts, floors, judge)
        names.append("hugepages")
    elif job.kept("hugepages") and _has(job.old, "hugepages"):
        pools = {key: job.old[key] for key in ("method", "default_size", "pools", "budget") if key in job.old}
        extra = 2 * len(job.old.get("sizes_only") or ())
        pools["tokens"] = job.old["tokens"][: len(job.old["tokens"]) - extra]
        service = _systemd.HUGEPAGES_SERVICE
        pools["units"] = {name: text for name, text in job.old["units"].items() if name == service}
        names.append("hugepages")
    units = dict(pools.get("units") or {})
    mounts, mount_units, mounted = _mounts(job, pools)
    units.update(mount_units)
    names += mounted
    known = {row["size"] for row in pools.get("pools") or ()}
    sizes_only = sorted({row["page_size"] for row in mounts} - known) if pools.get("method") == "cmdline" else []
    tokens = list(pools.get("tokens") or ())
    for size in sizes_only:
        tokens += [f"hugepagesz={size}", "hugepages=0"]
    return {
        "variables": names,
        "method": pools.get("method"),
        "default_size": pools.get("default_size"),
        "pools": pools.get("pools") or [],
        "tokens": tokens,
        "sizes_only": sizes_only,
        "mounts": mounts,
        "units": units,
        "budget": pools.get("budget") or {},
    }


def _mounts(job: _Job, pools: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[str, str], list[str]]:
    if "hugetlbfs_mounts" in job.intent:
        rows = _plan_mounts.plan_mounts(job.intent, pools.get("pools") or (), job.facts, job.judge)
        units = {row["unit"]: row.pop("content") for row in rows}
        return rows, units, ["hugetlbfs_mounts"]
    if job.kept("hugetlbfs_mounts") and _has(job.old, "hugetlbfs_mounts"):
        rows = list(job.old["mounts"])
        return rows, {row["unit"]: job.old["units"][row["unit"]] for row in rows}, ["hugetlbfs_mounts"]
    return [], {}, []


def _plan_vm_section(job: _Job) -> dict[str, Any]:
    parts: dict[str, dict[str, str]] = {}
    extra: dict[str, Any] | None = None
    if "vm_sysctls" in job.intent:
        parts["vm_sysctls"] = _plan_sysctls.plan_vm(job.intent["vm_sysctls"], job.facts, job.judge)
    if "numa_balancing" in job.intent:
        value = job.intent["numa_balancing"]
        parts["numa_balancing"] = _plan_sysctls.plan_numa_balancing(value, job.facts, job.judge)
    for name, values in (job.old.get("by_variable") or {}).items():
        if job.kept(name):
            parts[name] = values
            extra = job.old.get("extra_free") if name == "extra_free_bytes" else extra
    if "extra_free_bytes" in job.intent:
        taken = parts.get("vm_sysctls") or {}
        extra = _plan_sysctls.plan_extra_free(
            job.intent["extra_free_bytes"], job.facts, taken, job.budget, job.old, job.judge
        )
        factor = str(extra["scale_factor"]) if extra else ""
        parts["extra_free_bytes"] = {_plan_sysctls.SCALE_FACTOR: factor}
    sysctls = {key: value for values in parts.values() for key, value in values.items()}
    return {"variables": sorted(parts), "sysctls": sysctls, "extra_free": extra, "by_variable": parts, "tokens": []}


def _plan_cpu_section(job: _Job) -> dict[str, Any]:
    names = []
    body: dict[str, Any] = {}
    if "isolated_cpus" in job.intent:
        body = _plan_cpus.plan_isolation(job.intent, job.facts, job.judge)
        names.append("isolated_cpus")
    elif job.kept("isolated_cpus") and _has(job.old, "isolated_cpus"):
        keys = ("isolated", "housekeeping", "isolated_by_node", "tokens")
        body = {key: job.old[key] for key in keys}
        names.append("isolated_cpus")
    irqbalance = job.intent.get("irqbalance")
    if irqbalance is not None:
        names.append("irqbalance")
    elif job.kept("irqbalance") and _has(job.old, "irqbalance"):
        irqbalance = job.old["irqbalance"]
        names.append("irqbalance")
    irqbalance = irqbalance or "keep"
    if irqbalance not in _plan_cpus.IRQBALANCE:
        text = f"{irqbalance!r} is not one of {', '.join(_plan_cpus.IRQBALANCE)}"
        job.judge.refuse("bad_value", "irqbalance", text)
    empty: dict[str, Any] = {"isolated": "", "housekeeping": "", "isolated_by_node": {}, "tokens": []}
    return {"variables": names, **empty, **body, "irqbalance": irqbalance}


def _plan_rt_section(job: _Job) -> dict[str, Any]:
    if "rt_runtime_us" not in job.intent:
        return {"variables": [], "sysctls": {}, "tokens": []}
    sysctls = _plan_sysctls.plan_rt_runtime(job.intent["rt_runtime_us"], job.facts, job.judge)
    return {"variables": ["rt_runtime_us"], "sysctls": sysctls, "tokens": []}


_BUILDERS = {
    "hugepages": _plan_hugepages_section,
    "vm_sysctls": _plan_vm_section,
    "cpu_isolation": _plan_cpu_section,
    "rt_scheduling": _plan_rt_section,
}


def topology_summary(topology: Topology, isolation: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the plan keeps of the topology, for those who read plan.json."""
    isolated = parse((isolation or {}).get("isolated") or "")
    return {
        "nodes": {
            str(node.id): {
                "cpus": format_list(node.cpus),
                "memory_bytes": node.memory_bytes,
                "normal_memory": node.normal_memory,
            }
            for node in topology.nodes
        },
        "online": format_list(topology.cpus.online),
        "boot_cpu": topology.cpus.boot_cpu,
        "siblings_split": _plan_cpus.siblings_split(isolated, topology),
    }


def compose(document: Mapping[str, Any]) -> dict[str, Any]:
    """DOCUMENT with `owned`, `boot` and `sysctls` made anew from its sections and what it owned before."""
    sections: Mapping[str, Any] = document["sections"]
    owned = {name: _owned(sections.get(name), (document.get("owned") or {}).get(name)) for name in SECTIONS}
    owned = {name: row for name, row in owned.items() if any(row.values())}
    tokens = [token for name in SECTIONS for token in (sections.get(name) or {}).get("tokens") or ()]
    owned_tokens = [token for row in owned.values() for token in row["tokens"]]
    keys = list(dict.fromkeys(make(token).key for token in (*tokens, *owned_tokens)))
    sysctls = {
        key: value for name in SECTIONS for key, value in ((sections.get(name) or {}).get("sysctls") or {}).items()
    }
    return {
        **document,
        "owned": owned,
        "boot": {"tokens": tokens, "keys": keys, "owned": owned_tokens},
        "sysctls": sysctls,
    }


def _owned(section: Mapping[str, Any] | None, before: Mapping[str, Any] | None) -> dict[str, list[str]]:
    now: Mapping[str, Any] = section or {}
    row = {}
    for kind in ("tokens", "units", "sysctls"):
        old = list((before or {}).get(kind) or ())
        row[kind] = list(dict.fromkeys([*old, *(now.get(kind) or ())]))
    return row
