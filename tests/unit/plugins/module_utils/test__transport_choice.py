# SPDX-License-Identifier: GPL-3.0-or-later
"""The transport: every combination of the rule's conditions, in both policies, and plans that do not say enough."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _transport_choice
from ansible_collections.firsttouch.host.plugins.module_utils._transport_choice import (
    TRANSPORTS,
    choose,
    choose_by_plan,
)
from ansible_collections.firsttouch.host.plugins.module_utils._trust import VERDICTS

# What it may import; sys.stdlib_module_names is of Python 3.10.
STANDARD_LIBRARY = {"__future__", "collections", "dataclasses", "typing"}
ALL = list(itertools.product(VERDICTS, (True, False), (50, 100, 101), (True, False), (True, False)))


@pytest.mark.parametrize(("trust", "bindable", "target", "same_host", "descriptors"), ALL)
def test_policy_topology(trust: str, bindable: bool, target: int, same_host: bool, descriptors: bool) -> None:
    """Shared memory when all hold; a unix socket on one host otherwise; tcp across hosts."""
    choice = choose(
        trust, bindable=bindable, latency_target_us=target, same_host=same_host, descriptors=descriptors
    )
    shared = trust in ("exposed", "consistent") and bindable and target <= 100 and descriptors
    assert choice.transport == ("tcp" if not same_host else "shm" if shared else "unix")
    assert choice.bound is (choice.transport == "shm")
    assert choice.rule and choice.words and not choice.warning
    if choice.rule == "trust":
        assert trust in choice.words
    if choice.rule == "latency_target":
        assert "101" in choice.words


@pytest.mark.parametrize(("trust", "bindable", "target", "same_host", "descriptors"), ALL)
def test_policy_fastest(trust: str, bindable: bool, target: int, same_host: bool, descriptors: bool) -> None:
    """Shared memory on one host whenever descriptors can be passed; unbound and with a warning below consistent."""
    choice = choose(
        trust,
        bindable=bindable,
        policy="fastest",
        latency_target_us=target,
        same_host=same_host,
        descriptors=descriptors,
    )
    assert choice.transport == ("tcp" if not same_host else "shm" if descriptors else "unix")
    sure = trust in ("exposed", "consistent") and bindable
    if choice.transport == "shm":
        assert (choice.bound, bool(choice.warning)) == (sure, not sure)
        assert not choice.warning or trust in choice.warning or "bound" in choice.warning


def plan(**changes: Any) -> dict[str, Any]:
    return {
        "numa": {"trust": {"verdict": "exposed"}, "memory_bindable": True},
        "transport": {"policy": "topology", "latency_target_us": 100},
        **changes,
    }


@pytest.mark.parametrize(
    ("document", "options", "transport"),
    [
        (plan(), {}, "shm"),
        (plan(), {"same_host": False}, "tcp"),
        (plan(), {"latency_target_us": 500}, "unix"),
        (plan(transport={"latency_target_us": 500}), {}, "unix"),
        (plan(transport={"latency_target_us": 500}), {"latency_target_us": 20}, "shm"),
        (plan(transport={"policy": "fastest"}, numa={"trust": {"verdict": "hidden"}}), {}, "shm"),
        (plan(numa={"trust": {"verdict": "exposed"}}), {}, "unix"),
        (plan(numa={"trust": {"verdict": "exposed"}, "memory_bindable": "yes"}), {}, "unix"),
        (plan(numa=None), {}, "unix"),
        ({}, {}, "unix"),
    ],
)
def test_by_plan(document: dict[str, Any], options: dict[str, Any], transport: str) -> None:
    assert choose_by_plan(document, **options).transport == transport


@pytest.mark.parametrize(
    ("document", "named"),
    [
        (plan(numa=[1]), "numa"),
        (plan(transport="shm"), "transport"),
        (plan(transport={"policy": "quickest"}), "quickest"),
        (plan(transport={"latency_target_us": "100"}), "latency_target_us"),
    ],
)
def test_a_plan_that_is_none_is_named(document: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        choose_by_plan(document)


def test_the_file_stands_alone() -> None:
    """The runtime ships the same file: it may import nothing but the standard library."""
    tree = ast.parse(Path(str(_transport_choice.__file__)).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert not node.level and (node.module or "").split(".")[0] in STANDARD_LIBRARY
        elif isinstance(node, ast.Import):
            assert all(name.name.split(".")[0] in STANDARD_LIBRARY for name in node.names)
    assert TRANSPORTS == ("shm", "unix", "tcp")
