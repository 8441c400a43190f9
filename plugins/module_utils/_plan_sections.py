# SPDX-License-Identifier: Apache-2.0
"""The sections of the plan, each made of the variables that are set and of what is recorded of those that are not."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import (
    _plan_cpus,
    _plan_fit,
    _plan_mounts,
    _plan_runtime,
    _plan_sysctls,
    _plan_thp,
    _services,
    _systemd,
)
from ._intent import Judge
from ._plan_facts import Facts


@dataclass
class Job:
    """What a section is made of.

    intent: the variables that are set; absent: those that are to be removed; old: the section as recorded, empty
    unless it is present there; budget: that of the huge pages; planned: the sections before this one; given: all
    variables as they are set, also where nothing of them is wanted any more.
    """

    intent: dict[str, Any]
    absent: set[str]
    facts: Facts
    old: dict[str, Any]
    judge: Judge
    budget: dict[str, dict[str, int]] = field(default_factory=dict)
    planned: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)

    def kept(self, variable: str) -> bool:
        """Whether VARIABLE is not set and what the record holds of it stays."""
        return variable not in self.intent and variable not in self.absent and bool(self.old)


def hugepages(job: Job) -> dict[str, Any]:
    judge, topology = job.judge, job.facts.topology
    floors = _plan_fit.floors(job.intent.get("reserve_floor_bytes"), topology, judge)
    pools: dict[str, Any] = {}
    names = []
    if "hugepages" in job.intent:
        from . import _plan_hugepages

        recorded = [row["size_kb"] for row in job.old.get("pools") or ()]
        pools = _plan_hugepages.plan_pools(job.intent, job.facts, floors, recorded, judge)
        names.append("hugepages")
    elif job.kept("hugepages") and has(job.old, "hugepages"):
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
    sizes_only = (
        sorted({row["page_size"] for row in mounts} - known) if pools.get("method") == "cmdline" else []
    )
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


def _mounts(job: Job, pools: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[str, str], list[str]]:
    if "hugetlbfs_mounts" in job.intent:
        rows = _plan_mounts.plan_mounts(job.intent, pools.get("pools") or (), job.facts, job.judge)
        units = {row["unit"]: row.pop("content") for row in rows}
        return rows, units, ["hugetlbfs_mounts"]
    if job.kept("hugetlbfs_mounts") and has(job.old, "hugetlbfs_mounts"):
        rows = list(job.old["mounts"])
        return rows, {row["unit"]: job.old["units"][row["unit"]] for row in rows}, ["hugetlbfs_mounts"]
    return [], {}, []


def vm_sysctls(job: Job) -> dict[str, Any]:
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
    return {
        "variables": sorted(parts),
        "sysctls": sysctls,
        "extra_free": extra,
        "by_variable": parts,
        "tokens": [],
    }


def cpu_isolation(job: Job) -> dict[str, Any]:
    names = []
    body: dict[str, Any] = {}
    if "isolated_cpus" in job.intent:
        body = _plan_cpus.plan_isolation(job.intent, job.facts, job.judge)
        names.append("isolated_cpus")
    elif job.kept("isolated_cpus") and has(job.old, "isolated_cpus"):
        keys = ("isolated", "housekeeping", "isolated_by_node", "tokens")
        body = {key: job.old[key] for key in keys}
        names.append("isolated_cpus")
    irqbalance = job.intent.get("irqbalance")
    if irqbalance is not None:
        names.append("irqbalance")
    elif job.kept("irqbalance") and has(job.old, "irqbalance"):
        irqbalance = job.old["irqbalance"]
        names.append("irqbalance")
    if irqbalance is None:
        irqbalance = "keep"
    elif irqbalance is False:
        irqbalance = "off"  # YAML 1.1 reads an unquoted off as false
    if irqbalance not in _services.IRQBALANCE_MODES:
        job.judge.refuse(
            "bad_value", "irqbalance", f"{irqbalance!r} is not one of {', '.join(_services.IRQBALANCE_MODES)}"
        )
    if irqbalance == "ban_isolated" and not body.get("isolated") and not job.judge.refusals:
        text = "no CPU is isolated, so there is none to keep irqbalance off; set firsttouch_isolated_cpus"
        job.judge.note("nothing_to_ban", "irqbalance", text)
    empty: dict[str, Any] = {"isolated": "", "housekeeping": "", "isolated_by_node": {}, "tokens": []}
    return {"variables": names, **empty, **body, "irqbalance": irqbalance}


def rt_scheduling(job: Job) -> dict[str, Any]:
    if "rt_runtime_us" not in job.intent:
        return {"variables": [], "sysctls": {}, "tokens": []}
    sysctls = _plan_sysctls.plan_rt_runtime(job.intent["rt_runtime_us"], job.facts, job.judge)
    return {"variables": ["rt_runtime_us"], "sysctls": sysctls, "tokens": []}


def thp(job: Job) -> dict[str, Any]:
    body: dict[str, Any] = {"settings": {}, "tokens": []}
    if "thp" not in job.intent:
        return {"variables": [], **body}
    return {"variables": ["thp"], **body, **_plan_thp.plan_thp(job.intent["thp"], job.facts, job.judge)}


def services(job: Job) -> dict[str, Any]:
    """What is to be stopped is a matter of what services set, not of whether they run: a second plan is the same."""
    if "conflicting_services" not in job.intent:
        return {"variables": [], "mode": None, "stop": [], "tokens": []}
    mode = job.intent["conflicting_services"]
    if mode not in _services.MODES:
        text = f"{mode!r} is not one of {', '.join(_services.MODES)}"
        job.judge.refuse("bad_value", "conflicting_services", text)
    if job.facts.claims is None and mode == "stop":
        error = job.facts.claims_error
        why = f"{error.filename}: {error.strerror}" if error else "a file of tuned or another service cannot be read"
        text = f"{why}, so nobody can tell what the service sets; run as root"
        unrecorded = error is not None and error.errno == errno.ENODATA
        job.judge.refuse("services_unknown", "conflicting_services", text, unrecorded)
    found = _services.fights(job.facts.claims or (), job.planned)
    stop = sorted({fight.claim.unit for fight in found}) if mode == "stop" else []
    return {"variables": ["conflicting_services"], "mode": mode, "stop": stop, "tokens": []}


def kubelet(job: Job) -> dict[str, Any]:
    """Without the variable the file stays known, so that whoever removes it finds it, and how the node is drained."""
    recorded: Mapping[str, Any] = job.planned.get("kubelet") or {}
    kept = {name: recorded.get(name) for name in ("file", "root_dir")}
    gone: dict[str, Any] = {**kept, "config": None, "tokens": []}
    if "kubelet" not in job.intent:
        given = job.given.get("kubelet")
        told = given.get("drained") if isinstance(given, Mapping) else None
        drained = recorded.get("drained") if told is None else told
        return {"variables": [], **gone, "drained": drained is True, "reserved": {}}
    from . import _plan_kubelet

    body = _plan_kubelet.plan_kubelet(job.intent["kubelet"], job.facts, job.planned, job.judge)
    return {"variables": ["kubelet"], **gone, **body}


def runtime(job: Job) -> dict[str, Any]:
    """Made of the sections before it: mounts of the pages, isolated CPUs."""
    names = []
    state = "present"
    if "runtime_state" in job.intent:
        state = _plan_runtime.plan_state(job.intent["runtime_state"], job.judge)
        names.append("runtime_state")
    elif job.kept("runtime_state") and has(job.old, "runtime_state"):
        state = job.old["runtime_state"]
        names.append("runtime_state")
    rows: dict[str, list[dict[str, Any]]] = {"models": [], "servers": []}
    isolation = job.planned.get("cpu_isolation") or {}
    for name in rows:
        if name in job.intent:
            if name == "models":
                pages = job.planned.get("hugepages") or {}
                rows[name] = _plan_runtime.plan_models(job.intent[name], job.facts, pages, job.judge)
            else:
                given = job.intent[name]
                rows[name] = _plan_runtime.plan_servers(
                    given, job.facts, isolation, rows["models"], job.judge
                )
            names.append(name)
        elif job.kept(name) and has(job.old, name):
            rows[name] = list(job.old[name])
            names.append(name)
    if "runtime_state" in job.absent and names:
        text = f"absent, but firsttouch_{names[0]} asks for the runtime; leave that out, or make it []"
        job.judge.refuse("runtime_needed", "runtime_state", text)
    texts = _plan_runtime.render(rows["models"], rows["servers"], isolation.get("housekeeping") or "")
    return {"variables": names, "runtime_state": state, "tokens": [], **rows, **texts}


def has(old: Mapping[str, Any], variable: str) -> bool:
    """Whether the recorded section OLD holds something of VARIABLE."""
    return variable in (old.get("variables") or ())


BUILDERS = {
    "hugepages": hugepages,
    "vm_sysctls": vm_sysctls,
    "cpu_isolation": cpu_isolation,
    "rt_scheduling": rt_scheduling,
    "thp": thp,
    "services": services,
    "runtime": runtime,
    "kubelet": kubelet,
}
