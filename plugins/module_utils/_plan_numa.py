# SPDX-License-Identifier: Apache-2.0
"""The parts `numa` and `transport` of the plan: what is expected of the nodes, whether they are real, what follows.

Nothing of it is applied to a host, so both are made anew in every run, whatever sections it plans; nothing is ever
left over of them. Nothing in them differs from boot to boot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ._intent import IntentError, Judge, integer, is_absent
from ._topology import Topology
from ._transport_choice import DEFAULT_TARGET_US, POLICIES, choose
from ._trust import Trust, assess
from ._trust_rows import Evidence
from ._trust_signs import Signs

if TYPE_CHECKING:
    from ._verdict import Result

_MOST_US = 10_000_000


def plan_numa(intent: Mapping[str, Any], topology: Topology, signs: Signs, judge: Judge) -> dict[str, Any]:
    """{"numa": ..., "transport": ...} of the plan by the values of INTENT. Refusals and notes go to JUDGE."""
    expected = _expected(intent.get("numa"), judge)
    policy = intent.get("transport_policy") or POLICIES[0]
    if policy not in POLICIES:
        judge.refuse("bad_value", "transport_policy", f"{policy!r} is not one of {', '.join(POLICIES)}")
        policy = POLICIES[0]
    target = _target(intent.get("latency_target_us"), judge)
    trust = trust_of(expected, topology, signs)
    for result in _results(expected, topology):
        if result.status == "fail":
            from ._verdict import brief

            text = f"wanted {brief(result.expected)}, the kernel shows {brief(result.observed)} ({result.source})"
            judge.note(result.reason, "numa", f"{result.id}: {text}")
    bindable = memory_bindable(topology)
    choice = choose(trust.verdict, bindable=bindable, policy=policy, latency_target_us=target)
    risk = trust.co_scheduling
    return {
        "numa": {
            "expected": expected,
            "trust": {"verdict": trust.verdict, "words": trust.words, "asserted_by": trust.asserted_by},
            "co_scheduling": {"risk": risk.risk, "words": risk.text},
            "memory_bindable": bindable,
        },
        "transport": {"policy": policy, "latency_target_us": target, **choice.as_dict()},
    }


def trust_of(
    expected: Mapping[str, Any],
    topology: Topology,
    signs: Signs,
    measured: Mapping[str, Any] | None = None,
) -> Trust:
    """The trust verdict with what EXPECTED (read_expected()) says of the machine and who vouches for it."""
    if not expected:
        return assess(topology, signs, measured=measured)
    from ._numa_expect import ASSERTED, VARIABLE, vouched

    who = vouched(expected, _results(expected, topology))
    cores = expected.get("cores_per_socket")
    trust = assess(topology, signs, measured=measured, asserted_by=who, cores_per_socket=cores)
    if who or expected.get("trust") != ASSERTED:
        return trust
    row = Evidence(VARIABLE, "trust: asserted, for a topology that is not this one: it does not count", "nothing")
    return replace(trust, evidence=(*trust.evidence, row))


def _results(expected: Mapping[str, Any], topology: Topology) -> list[Result]:
    """judge_expected(); most plans expect nothing."""
    if not expected:
        return []
    from ._numa_expect import judge_expected

    return judge_expected(expected, topology)


def memory_bindable(topology: Topology) -> bool:
    """Whether the kernel has nodes to bind memory to: without CONFIG_NUMA mbind(2) is not there."""
    return topology.source == "sysfs" and any(node.has_memory and node.normal_memory for node in topology.nodes)


def _expected(value: Any, judge: Judge) -> dict[str, Any]:
    if value is None or is_absent(value):
        return {}
    from ._numa_expect import read_expected

    try:
        return read_expected(value)
    except IntentError as exc:
        judge.refuse("bad_value", "numa", str(exc))
        return {}


def _target(value: Any, judge: Judge) -> int:
    if value is None:
        return DEFAULT_TARGET_US
    try:
        return integer(value, 1, _MOST_US)
    except IntentError as exc:
        judge.refuse("bad_value", "latency_target_us", f"{exc}; write microseconds, like {DEFAULT_TARGET_US}")
        return DEFAULT_TARGET_US
