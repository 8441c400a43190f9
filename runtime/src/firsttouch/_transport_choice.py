# SPDX-License-Identifier: Apache-2.0
"""Which transport two processes use: shm, unix or tcp, the rule that decided, and why, in words.

A pure function of the plan of the host. This file stands alone (standard library only): the runtime ships it as it is.

Policy `topology`: shared memory when both are on one host, the topology is exposed or consistent, memory can be
bound to a node, and at most 100 us are wanted. A unix socket otherwise on one host, tcp across hosts. Policy
`fastest`: shared memory on one host whenever descriptors can be passed; below consistent its pages are not bound,
with a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

POLICIES = ("topology", "fastest")
TRANSPORTS = ("shm", "unix", "tcp")
# From here on a socket is fast enough (one way, a batch of observations), and easier to look into.
SHM_UP_TO_US = 100
DEFAULT_TARGET_US = 100
_BINDS = ("exposed", "consistent")


@dataclass(frozen=True)
class Choice:
    """transport: shm, unix or tcp; rule: the code of what decided; words: why, for people; bound: whether pages are to
    be bound to a node; warning: what is not as good as it looks, or empty."""

    transport: str
    rule: str
    words: str
    bound: bool = False
    warning: str = ""

    def as_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def choose(
    trust: str,
    *,
    bindable: bool,
    policy: str = "topology",
    latency_target_us: float = DEFAULT_TARGET_US,
    same_host: bool = True,
    descriptors: bool = True,
) -> Choice:
    """The transport for a topology of verdict TRUST.

    BINDABLE: whether memory can be bound to a node. DESCRIPTORS: whether file descriptors can be passed between the two
    (SCM_RIGHTS over a unix socket that both reach). Raises ValueError for another policy.
    """
    if policy not in POLICIES:
        raise ValueError(f"transport policy is {policy!r}, not one of {', '.join(POLICIES)}")
    if not same_host:
        return Choice("tcp", "other_host", "the two are on different hosts: tcp")
    if not descriptors:
        return Choice("unix", "no_descriptors", "descriptors cannot be passed between the two: a socket")
    bound = trust in _BINDS and bindable
    if policy == "fastest":
        return _fastest(trust, bound)
    if trust not in _BINDS:
        return Choice("unix", "trust", f"the topology is {trust}, not exposed or consistent: a unix socket")
    if not bindable:
        return Choice("unix", "not_bindable", "memory cannot be bound to a node: a unix socket")
    if latency_target_us > SHM_UP_TO_US:
        words = f"{_number(latency_target_us)} us are allowed, more than {SHM_UP_TO_US}: a unix socket is fast enough"
        return Choice("unix", "latency_target", words)
    words = (
        f"one host, its topology is {trust}, memory can be bound, and at most {_number(latency_target_us)} us "
        "are wanted: shared memory"
    )
    return Choice("shm", "topology", words, True)


def _fastest(trust: str, bound: bool) -> Choice:
    words = "one host, descriptors can be passed, and the policy is fastest: shared memory"
    if bound:
        return Choice("shm", "fastest", words, True)
    why = f"the topology is {trust}" if trust not in _BINDS else "memory cannot be bound to a node"
    warning = f"{why}: pages are not bound, and their place may cost what shared memory saves"
    return Choice("shm", "fastest", f"{words}, unbound", False, warning)


def choose_by_plan(
    plan: Mapping[str, Any],
    *,
    same_host: bool = True,
    descriptors: bool = True,
    latency_target_us: float | None = None,
) -> Choice:
    """The transport by PLAN, the document of plan.json; LATENCY_TARGET_US goes before the plan's own.

    A plan without a verdict (there is none, or an older one) trusts nothing. Raises ValueError for a plan that is none.
    """
    numa, transport = _part(plan, "numa"), _part(plan, "transport")
    trust = _part(numa, "trust").get("verdict") or "unknown"
    target = transport.get("latency_target_us", DEFAULT_TARGET_US) if latency_target_us is None else latency_target_us
    if isinstance(target, bool) or not isinstance(target, (int, float)):
        raise ValueError(f"the plan's transport.latency_target_us is {target!r}, not a number")
    return choose(
        str(trust),
        bindable=numa.get("memory_bindable") is True,
        policy=str(transport.get("policy", "topology")),
        latency_target_us=target,
        same_host=same_host,
        descriptors=descriptors,
    )


def _part(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = document.get(name) or {}
    if not isinstance(part, Mapping):
        raise ValueError(f"the plan's {name} is {part!r}, not a mapping")
    return part


def _number(value: float) -> str:
    return f"{value:g}"
