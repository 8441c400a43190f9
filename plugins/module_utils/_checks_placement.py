# SPDX-License-Identifier: Apache-2.0
"""Memory placement as measured: pages go to the node they are bound to, and other nodes are far away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ._checks_host import Check, Context
from ._placement import Measurement, measure, ratio
from ._placement_report import results
from ._plan_numa import trust_of
from ._topology import Topology, read_topology
from ._trust_signs import Signs, read_signs
from ._verdict import Result, skipped

# What is tried here takes some 0.1 s for each CPU, several times that on an emulated one.
_SECONDS_PER_CPU = 1.0


def measured(ctx: Context) -> Measurement:
    """The one run of this verification. Only for a live host, and only when the measured layer is wanted."""
    found: Measurement = ctx.keep("placement", lambda: _measure(ctx))
    return found


def latency_evidence(ctx: Context) -> dict[str, Any] | None:
    """`ratio` and `source` for the trust verdict; None when there is no second node, or noise decides."""
    remote = ratio(measured(ctx))
    return remote.evidence() if remote else None


def _measure(ctx: Context) -> Measurement:
    topology: Topology = ctx.keep("topology", lambda: read_topology(ctx.root))
    signs: Signs = ctx.keep("trust_signs", lambda: read_signs(ctx.root))

    def judge(evidence: Mapping[str, Any] | None) -> str:
        return trust_of(_expected(ctx), topology, signs, evidence).verdict

    return measure(judge, topology=topology, gigantic=False, seconds_per_cpu=_SECONDS_PER_CPU)


def _expected(ctx: Context) -> Mapping[str, Any]:
    return (ctx.plan.get("numa") or {}).get("expected") or {}


def _asked(ctx: Context) -> bool:
    return bool(_expected(ctx))


def check_placement(ctx: Context) -> Iterator[Result]:
    """Pages of each size on each node, the latency between the nodes, and what it makes of the trust verdict.

    A host that is busy is an expected answer, so nothing that could not be tried counts against it.
    """
    if not ctx.live:
        yield skipped("numa.placement", "measured", "offline", intended=False)
        yield skipped("numa.latency", "measured", "offline", intended=False)
        return
    found = measured(ctx)
    yield from results(found, intended=_asked(ctx))
    evidence = latency_evidence(ctx)
    if evidence and not found.no_proof:
        seen = {"trust": found.trust, "ratio": evidence["ratio"], "because": evidence["source"]}
        yield Result("numa.trust.measured", "pass", "measured", None, seen, "", "", "", False)


CHECKS = (Check("numa.placement", ("measured",), check_placement, lambda ctx: False),)
