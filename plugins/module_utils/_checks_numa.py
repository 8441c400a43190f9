# SPDX-License-Identifier: Apache-2.0
"""The nodes: are they as expected, do they exist, is the guest wider than a socket, does the planned transport hold."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ._checks_host import HUGEPAGES, ISOLATED, Check, Context
from ._cpulist import CpuListError, format_list, parse
from ._intent import IntentError
from ._numa_expect import ASSERTED, VARIABLE, judge_expected, read_expected
from ._plan_numa import memory_bindable, trust_of
from ._record import PLAN
from ._topology import Topology, read_topology
from ._topology_cpus import CPU_DIR
from ._topology_nodes import NODE_DIR
from ._transport_choice import choose
from ._trust import Trust
from ._trust_cosched import CoScheduling
from ._trust_signs import Signs, read_signs
from ._verdict import Result, judge, not_applicable, skipped

POLICY = "firsttouch_transport_policy"
_REASONS = {
    "hidden": "topology_hidden",
    "contradictory": "topology_contradictory",
    "consistent": "assertion_not_met",
    "unknown": "topology_unknown",
}
_REMEDIES = {
    "hidden": (
        "Let hypervisor or firmware show the nodes (virtual NUMA, no interleaving, no numa=off), or vouch for what is "
        f"shown with {VARIABLE}.trust: asserted."
    ),
    "contradictory": (
        f"Correct what firmware or hypervisor tell of nodes, sockets and caches; {VARIABLE}.trust cannot settle it."
    ),
    "consistent": f"Correct what {VARIABLE} expects: it vouches for a topology that is not this one.",
    "unknown": f"Verify on the host itself; {VARIABLE}.cores_per_socket and {VARIABLE}.trust add what it cannot show.",
}


def _expected(ctx: Context) -> dict[str, Any]:
    """What the plan expects of the nodes; empty when nobody does."""
    found = _planned(ctx, "numa").get("expected")
    return read_expected(found) if found else {}


def _planned(ctx: Context, name: str) -> Mapping[str, Any]:
    found = ctx.plan.get(name)
    return found if isinstance(found, Mapping) else {}


def _topology(ctx: Context) -> Topology:
    found: Topology = ctx.keep("topology", lambda: read_topology(ctx.root))
    return found


def _trust(ctx: Context) -> Trust:
    signs: Signs = ctx.keep("trust_signs", lambda: read_signs(ctx.root))
    found: Trust = ctx.keep("trust", lambda: trust_of(_expected(ctx), _topology(ctx), signs))
    return found


def _asserted(ctx: Context) -> bool:
    return _expected(ctx).get("trust") == ASSERTED


def trust_view(ctx: Context) -> dict[str, Any]:
    """The verdict with all of its evidence, and the transport of the plan, for a report; whatever the plan is like."""
    try:
        expected = _expected(ctx)
    except IntentError:
        expected = {}
    signs: Signs = ctx.keep("trust_signs", lambda: read_signs(ctx.root))
    trust = trust_of(expected, _topology(ctx), signs)
    return {**trust.as_dict(), "transport": dict(_planned(ctx, "transport")) or None}


def check_expected(ctx: Context) -> Iterator[Result]:
    """Nodes, their CPUs, memory and distances, sockets, cores and threads, as far as somebody expects them."""
    yield from judge_expected(_expected(ctx), _topology(ctx))


def _made_for(ctx: Context) -> Mapping[str, Any]:
    """The nodes that the plan was made for; of one that was made anew from those of now, the nodes of the record."""
    plan = (ctx.recorded or {}) if ctx.made_anew else ctx.plan
    topology = plan.get("topology")
    nodes = topology.get("nodes") if isinstance(topology, Mapping) else None
    if not isinstance(nodes, Mapping) or not all(isinstance(node, Mapping) for node in nodes.values()):
        return {}
    return nodes


def _hold(planned: Mapping[str, str], topology: Topology) -> bool:
    """Whether each node has what was PLANNED of it, but for CPUs that are offline: those are in no node's list.

    A node or CPU that came online since (CXL, a GPU, a virtual CPU) has no part in the plan, and takes nothing away.
    """
    live = {str(node.id): node.cpus for node in topology.nodes}
    offline = topology.cpus.present - topology.cpus.online
    try:
        return all(name in live and parse(cpus) <= live[name] | offline for name, cpus in planned.items())
    except CpuListError:  # the plan was edited
        return False


def check_planned(ctx: Context) -> Iterator[Result]:
    """The nodes, their CPUs and distances that the plan was made for: after a change of firmware it fits no more."""
    nodes = _made_for(ctx)
    if not nodes:
        if ctx.made_anew and ctx.unusable:  # that counts as plan.drift
            yield skipped("numa.planned", "running", ctx.unusable[0], source=PLAN, intended=False)
        return
    topology = _topology(ctx)
    if not topology.readable:
        yield skipped("numa.planned", "running", "not_available", source=NODE_DIR)
        return
    planned = {str(name): str(node.get("cpus") or "") for name, node in nodes.items()}
    live = {str(node.id): format_list(node.cpus) for node in topology.nodes}
    remedy = f"Run provision, which plans anew what {HUGEPAGES} and {ISOLATED} ask for; or set the firmware back."
    source = f"{NODE_DIR}/node*/cpulist"
    holds = _hold(planned, topology)
    yield judge(
        "numa.planned", "running", planned, live, reason="nodes_changed", source=source, remedy=remedy, soft=holds
    )
    far = {str(name): node.get("distances") for name, node in nodes.items()}
    seen = {
        str(node.id): None if node.distances is None else {str(other): far_ for other, far_ in node.distances.items()}
        for node in topology.nodes
    }
    if planned == live and far != seen:
        yield judge(
            "numa.planned.distances", "running", far, seen, reason="nodes_changed", source=f"{NODE_DIR}/node*/distance",
            remedy=remedy, soft=True,
        )  # fmt: skip


def check_trust(ctx: Context) -> Iterator[Result]:
    """Whether the nodes that the kernel shows exist; who vouches for them wants to see `exposed`."""
    yield _trust_result(_trust(ctx), _asserted(ctx))


def check_co_scheduling(ctx: Context) -> Iterator[Result]:
    """Whether a guest has more CPUs in one node or socket than a socket of its machine has cores."""
    yield _co_scheduling_result(_trust(ctx).co_scheduling, _topology(ctx))


def standing_results(expected: Mapping[str, Any], topology: Topology, trust: Trust) -> Iterator[Result]:
    """What the checks answer about EXPECTED (read_expected()) and TRUST, without a plan."""
    yield from judge_expected(expected, topology)
    yield _trust_result(trust, expected.get("trust") == ASSERTED)
    yield _co_scheduling_result(trust.co_scheduling, topology)


def accepted(verdicts: Collection[str], trust: Trust) -> Iterator[Result]:
    """Whether TRUST is one of VERDICTS, where there are any."""
    if verdicts:
        yield judge(
            "numa.accepted",
            "running",
            sorted(verdicts),
            trust.verdict,
            good=trust.verdict in verdicts,
            reason=_REASONS.get(trust.verdict, "topology_exposed"),
            source=_source(trust),
            remedy=f"{trust.words}. {_REMEDIES.get(trust.verdict, f'Correct {VARIABLE}.')}",
        )


def _source(trust: Trust) -> str:
    """Where the first piece of evidence that points at the verdict was seen."""
    return next((row.source for row in trust.evidence if row.points == trust.verdict), f"{NODE_DIR}/online")


def _trust_result(trust: Trust, asserted: bool) -> Result:
    source = _source(trust)
    expected = {"trust": "exposed"} if asserted else None
    observed = {"trust": trust.verdict, "because": trust.words}
    remedy = _REMEDIES.get(trust.verdict, "")
    if trust.verdict == "unknown":
        return skipped(
            "numa.trust",
            "running",
            _REASONS["unknown"],
            expected=expected,
            observed=observed,
            source=source,
            remedy=remedy,
            intended=asserted,
        )
    good = trust.verdict == "exposed" or (trust.verdict == "consistent" and not asserted)
    return judge(
        "numa.trust",
        "running",
        expected,
        observed,
        good=good,
        reason=_REASONS.get(trust.verdict, ""),
        source=source,
        remedy=remedy,
        intended=asserted,
    )


def _co_scheduling_result(risk: CoScheduling, topology: Topology) -> Result:
    identity = "numa.co_scheduling"
    source = risk.source if risk.source.startswith("/") else f"{CPU_DIR}/online"
    if topology.virtualization.bare_metal:
        return not_applicable(identity, "running", "bare_metal")
    if risk.risk is None or risk.physical_cores is None:
        remedy = f"Name the cores of a socket of the physical machine in {VARIABLE}.cores_per_socket."
        return skipped(
            identity,
            "running",
            "cores_unknown",
            observed=risk.text,
            source=source,
            remedy=remedy,
            intended=False,
        )
    return judge(
        identity,
        "running",
        {"cores_at_most": risk.physical_cores},
        {"cores": risk.cores, "vcpus": risk.vcpus, "in": risk.where},
        good=not risk.risk,
        reason="co_scheduling",
        source=source,
        remedy=(
            f"{risk.text}. Give it at most {risk.physical_cores} in each node, or correct "
            f"{VARIABLE}.cores_per_socket."
        ),
        intended=False,
    )


def check_transport(ctx: Context) -> Iterator[Result]:
    """Whether the transport of the plan is still what follows from the topology."""
    plan = _planned(ctx, "transport")
    if not plan:
        return
    trust, bindable = _trust(ctx), memory_bindable(_topology(ctx))
    now = choose(
        trust.verdict, bindable=bindable, policy=plan["policy"], latency_target_us=plan["latency_target_us"]
    )
    expected, observed = plan["transport"], now.transport
    # Of a host whose nodes are not known the rule gives the same whatever they are: that is no answer.
    if trust.verdict == "unknown" and (expected != observed or not _topology(ctx).readable):
        yield skipped(
            "numa.transport",
            "running",
            _REASONS["unknown"],
            expected=expected,
            observed=trust.words,
            source=PLAN,
            remedy=_REMEDIES["unknown"],
        )
        return
    yield judge(
        "numa.transport",
        "running",
        expected,
        observed,
        reason="transport_differs",
        source=PLAN,
        remedy=f"{now.words}. Run provision, so that the plan follows; {POLICY} decides how it is chosen.",
    )
    if now.warning:
        yield judge(
            "numa.transport.bound",
            "running",
            True,
            now.bound,
            reason="transport_unbound",
            source=PLAN,
            remedy=f"{now.warning}; {POLICY}: topology takes a socket here.",
            soft=True,
        )


CHECKS = (
    Check("numa.expected", ("running",), check_expected, lambda ctx: bool(_planned(ctx, "numa").get("expected"))),
    Check("numa.planned", ("running",), check_planned, lambda ctx: bool(_made_for(ctx))),
    Check("numa.trust", ("running",), check_trust, lambda ctx: False),
    Check("numa.co_scheduling", ("running",), check_co_scheduling, lambda ctx: False),
    Check("numa.transport", ("running",), check_transport, lambda ctx: bool(_planned(ctx, "transport"))),
)
