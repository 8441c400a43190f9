# SPDX-License-Identifier: Apache-2.0
"""The plan itself: is there one, is it the recorded one, is something left that nobody asks for."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ._checks_host import HUGEPAGES, REMEDIES, Check, Context
from ._collect_scrub import same
from ._intent import PREFIX
from ._plan_document import compose, significant
from ._record import PLAN
from ._topology_host import MANIFEST
from ._verdict import Result, judge, skipped


def _sections(plan: Mapping[str, Any] | None) -> dict[str, Any]:
    found = (plan or {}).get("sections") or {}
    return {str(name): found[name] for name in found if found[name]}


def _parts(plan: Mapping[str, Any]) -> dict[str, Any]:
    """What of PLAN is compared: its sections, and what the runtime reads beside them."""
    rest = {name: plan[name] for name in ("topology", "numa", "transport") if plan.get(name)}
    return dict(significant({**_sections(plan), **rest}))


def check_plan(ctx: Context) -> Iterator[Result]:
    """A plan that asks for something; without one nothing can be confirmed."""
    managed = sorted(name for name in _sections(ctx.plan) if ctx.section(name))
    if managed:
        # Which one it is, where it is not that of the variables.
        source = PLAN if ctx.refusals else ""
        yield Result("plan.sections", "pass", "configured", None, managed, "", source, "", False)
    else:
        first = "Mend what plan.refused says" if ctx.refusals else f"Set variables like {PREFIX}hugepages for this host"
        remedy = f"{first}, or provision it first."
        yield skipped("plan.sections", "configured", "no_plan", source=PLAN, remedy=remedy)


def check_refused(ctx: Context) -> Iterator[Result]:
    """What the variables ask for does not fit this host, as after a CPU or a DIMM was lost: no plan comes of them."""
    for refusal in ctx.unplanned:
        name = f"plan.refused.{refusal.variable.removeprefix(PREFIX)}"
        yield skipped(name, "configured", "not_recorded", observed=refusal.text, source="the sosreport")
    seen: Counter[str] = Counter()
    for refusal in ctx.refusals:
        name = f"plan.refused.{refusal.variable.removeprefix(PREFIX)}"
        seen[name] += 1
        yield Result(
            name if seen[name] == 1 else f"{name}.{seen[name]}",
            "fail",
            "configured",
            None,
            dict(refusal.details) or None,
            refusal.reason,
            "the inventory",
            refusal.text,
        )


def check_recording(ctx: Context) -> Iterator[Result]:
    """A recorded host of which not everything was recorded: what is not there may have been."""
    if ctx.recording().get("complete") is False:
        yield skipped(
            "plan.recording",
            "configured",
            "recording_incomplete",
            observed=ctx.recording().get("stopped"),
            source=MANIFEST,
            remedy="Record the host again, with room for all of it.",
        )


def check_record(ctx: Context) -> Iterator[Result]:
    """plan.json adds up: what its sections ask for of kernel line and sysctls is what it holds as their sum.

    The checks go by the sum, so that one who emptied it would be told that all is well.
    """
    record = ctx.plan if ctx.is_recorded else ctx.recorded
    if not record or not record.get("sections"):
        return
    made = compose(record)
    sums = (("boot.tokens", made["boot"]["tokens"], (record.get("boot") or {}).get("tokens")),
            ("sysctls", made["sysctls"], record.get("sysctls")))  # fmt: skip
    rows = _sections(record).values()
    names = sorted({f"{PREFIX}{name}" for section in rows for name in section.get("variables") or ()})
    for name, wanted, found in sums:
        if wanted != found:
            yield judge(
                f"plan.record.{name}",
                "configured",
                wanted,
                found,
                reason="changed_by_hand",
                source=PLAN,
                remedy=f"Run provision with {' and '.join(names or [HUGEPAGES])}: it writes the file anew.",
            )


def check_drift(ctx: Context) -> Iterator[Result]:
    """The plan of the intent against the one that the host was provisioned with, by section."""
    if ctx.unusable is not None:
        reason, text = ctx.unusable
        remedy = "The runtime reads that file too: mend it as said, then run provision."
        unknown = reason == "not_recorded"
        yield skipped(
            "plan.drift", "configured", reason, observed=text, source=PLAN, remedy="" if unknown else remedy,
            intended=not unknown,
        )  # fmt: skip
        return
    if ctx.recorded is None or ctx.refusals:
        return
    wanted, recorded = _parts(ctx.plan), _parts(ctx.recorded)
    changed = sorted(name for name in wanted if wanted[name] != recorded.get(name))
    unsure = [name for name in changed if ctx.scrubbed() and _same_scrubbed(wanted[name], recorded.get(name))]
    changed = [name for name in changed if name not in unsure]
    if unsure and not changed:
        remedy = REMEDIES["scrubbed"]
        yield skipped(
            "plan.drift", "configured", "scrubbed", observed=unsure, source=PLAN, remedy=remedy, intended=False
        )
        return
    yield judge(
        "plan.drift",
        "configured",
        [],
        changed,
        reason="plan_drift",
        source=PLAN,
        remedy="Run provision: the inventory asks for something else than this host was provisioned with.",
        soft=True,
    )


def _same_scrubbed(wanted: Any, recorded: Any) -> bool:
    """Whether these parts of a plan differ in nothing but what a recording has stand-ins for."""
    return same(PLAN, *(json.dumps(part, sort_keys=True) for part in (recorded, wanted)))


def check_orphans(ctx: Context) -> Iterator[Result]:
    """What is ours and no variable asks for any more: kept, but nobody looks after it."""
    for name, section in sorted(_sections(ctx.plan).items()):
        variables = [f"{PREFIX}{variable}" for variable in section.get("orphaned") or []]
        if variables and ctx.section(name):
            yield judge(
                f"plan.orphaned.{name}",
                "configured",
                [],
                variables,
                reason="orphaned",
                source=PLAN,
                remedy=f"Set {' and '.join(variables)} again, or to absent to remove what is ours.",
                intended=False,
            )


CHECKS = (
    Check("plan.refused", ("configured",), check_refused, always=True),
    Check("plan.recording", ("configured",), check_recording, always=True),
    Check("plan.sections", ("configured",), check_plan),
    Check("plan.record", ("configured",), check_record, lambda ctx: False),
    Check("plan.drift", ("configured",), check_drift, lambda ctx: False),
    Check("plan.orphaned", ("configured",), check_orphans, lambda ctx: False),
)
