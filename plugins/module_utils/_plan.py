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

from . import _plan_mounts, _plan_runtime, _plan_sysctls
from ._intent import CONCERNS, GENERAL, SECTIONS, Judge, Refusal, check_names, is_absent, variables
from ._plan_document import COLLECTION, SCHEMA, compose, settle, topology_summary
from ._plan_effect import check_effect
from ._plan_facts import Facts, read_facts, with_kubelet
from ._plan_fit import floors
from ._plan_numa import plan_numa
from ._plan_sections import BUILDERS, Job, has
from ._topology import Topology


@dataclass(frozen=True)
class Result:
    """A plan, or the refusals because of which there is none; notes are remarks that stop nothing."""

    plan: dict[str, Any]
    refusals: list[Refusal] = field(default_factory=list)
    notes: list[dict[str, str]] = field(default_factory=list)


def make_plan(
    intent: Mapping[str, Any],
    facts: Facts,
    recorded: Mapping[str, Any] | None = None,
    sections: Iterable[str] = SECTIONS,
    revert: bool = False,
    sizes: Mapping[str, int] | None = None,
) -> Result:
    """Plan SECTIONS of INTENT (firsttouch_* values without the prefix) for the host of FACTS.

    Other sections are those of RECORDED, the document of plan.json. With REVERT every concern is absent. SIZES: bytes
    of the models that are pushed, by name. The result has a plan only where nothing is refused.
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
        job = Job(wish, absent, facts, dict(old or {}), judge, budget, planned, intent)
        if not wish and not absent:
            planned[name] = _orphaned(name, planned[name], record)
            continue
        before = len(judge.refusals)
        body = BUILDERS[name](job)
        if len(judge.refusals) > before:
            continue
        planned[name] = settle(_section(name, body, job), old_sections.get(name))
        if name == "hugepages":
            budget = planned[name].get("budget") or {}
    if not judge.refusals and not revert:
        floor = floors(intent.get("reserve_floor_bytes"), facts.topology, judge)
        check_effect(planned, chosen, facts, floor, judge)
    numa = plan_numa({} if revert else intent, facts.topology, facts.signs, judge)
    if not judge.refusals and not revert:
        _plan_runtime.check_mounts(planned["runtime"] or {}, planned["hugepages"] or {}, judge)
    if "runtime" in chosen and not judge.refusals:
        _plan_runtime.check_transport((planned["runtime"] or {}).get("servers") or (), numa, judge)
        models = (planned["runtime"] or {}).get("models") or ()
        pools, before_it = ((of.get("hugepages") or {}).get("pools") or [] for of in (planned, old_sections))
        _plan_runtime.check_pools(models, pools, before_it, facts, sizes or {}, judge)
    if judge.refusals:
        return Result({}, judge.refusals, judge.notes)
    document = {
        "schema": SCHEMA,
        "collection": COLLECTION,
        "host": {"kernel": facts.topology.kernel_release, "arch": facts.topology.arch},
        "intent": _merged_intent(intent, record, chosen, revert),
        "topology": settle(
            topology_summary(facts.topology, planned.get("cpu_isolation")), record.get("topology")
        ),
        **numa,
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
    facts = read_facts(
        root,
        given,
        kernel,
        keys=_plan_sysctls.live_keys(intent),
        paths=_plan_mounts.mount_paths(mounts),
        users=_plan_mounts.mount_owners(mounts),
    )
    return facts if intent.get("kubelet") is None else with_kubelet(facts, root)


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


def _section(name: str, body: dict[str, Any], job: Job) -> dict[str, Any]:
    kept = sorted(variable for variable in CONCERNS[name] if job.kept(variable) and has(job.old, variable))
    present = bool(job.intent) or bool(kept)
    return {"state": "present" if present else "absent", "orphaned": kept, **body}


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
    general = {} if revert else intent
    merged.update({name: general[name] for name in GENERAL if general.get(name) is not None})
    return merged
