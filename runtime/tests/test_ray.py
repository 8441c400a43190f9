# SPDX-License-Identifier: Apache-2.0
"""The actors' bodies without Ray: where they listen, and with what. On a real Ray, see tests/actors."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from firsttouch import ray as placed
from firsttouch._tls import Tls
from firsttouch.plan import Plan

PLAN = Plan(
    {
        "schema": 1,
        "topology": {"nodes": {"0": {"cpus": "0", "isolated": "", "housekeeping": ""}}},
        "numa": {"trust": {"verdict": "consistent"}, "memory_bindable": True},
        "transport": {"policy": "topology", "latency_target_us": 100},
        "sections": {"runtime": {"servers": []}},
    }
)
# Of no file: whoever uses it fails.
TLS = Tls("/nonexistent/own.pem", "/nonexistent/own.key", "/nonexistent/own.pem")


@contextlib.contextmanager
def inferring(**options: Any) -> Iterator[placed.Endpoint]:
    """The body of an inference actor on the Ray node `a`."""
    seat = placed.Seat(placed.Host("a", "127.0.0.1", PLAN), None, None)
    body = placed.Infer(seat, placed.balance, placed.SCHEMA, **options)
    try:
        yield body.endpoint()
    finally:
        body.stop()


@pytest.mark.parametrize(
    ("node", "tcp", "transport"), [("a", None, "shm"), ("a", "127.0.0.1", "shm"), ("b", "127.0.0.1", "tcp")]
)
def test_tls_only_off_loopback(monkeypatch: pytest.MonkeyPatch, node: str, tcp: str | None, transport: str) -> None:
    """TLS that is given for all of a cluster is used by neither side where the server is on loopback or has no tcp."""
    context = types.SimpleNamespace(get_node_id=lambda: node)
    monkeypatch.setattr(placed, "_ray", lambda: types.SimpleNamespace(get_runtime_context=lambda: context))
    with inferring(tcp=tcp, tls=TLS) as endpoint:
        client, choice = placed.connect(endpoint, PLAN, tls=TLS, timeout=5)
        with client:
            arrays, _ = client.infer({"obs": np.array([0, 0, 1, 0], "f4")})
    assert choice.transport == transport and arrays["action"] == 1
