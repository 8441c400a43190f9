# SPDX-License-Identifier: GPL-3.0-or-later
"""What is said of a host whose hypervisor hides the nodes, in the report and by the measurement."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(os.environ["MOLECULE_PROJECT_DIRECTORY"]) / "molecule" / "_shared" / "verifier"))

import records


@pytest.fixture(scope="module")
def verified(host: Any) -> dict[str, Any]:
    return records.verified(host.backend.get_hostname(), "hidden")


@pytest.fixture(scope="module")
def placement() -> dict[str, Any]:
    return records.kept("placement")


def test_the_nodes_are_not_trusted(verified: dict[str, Any]) -> None:
    row = records.answers(verified)["numa.trust"]
    assert (row["status"], row["reason"]) == ("warn", "topology_hidden")
    assert row["observed"]["trust"] == "hidden"
    assert "trust: asserted" in row["remedy"]


def test_the_evidence_names_the_hypervisor_and_the_single_node(verified: dict[str, Any]) -> None:
    trust = verified["view"]["trust"]
    assert trust["verdict"] == "hidden"
    assert trust["asserted_by"] is None
    assert any("VMware" in row["seen"] for row in trust["evidence"])
    assert any(row["points"] == "hidden" for row in trust["evidence"])


def test_the_co_scheduling_risk_is_named(verified: dict[str, Any]) -> None:
    row = records.answers(verified)["numa.co_scheduling"]
    assert (row["status"], row["reason"]) == ("warn", "co_scheduling")
    assert row["observed"]["vcpus"] == 8
    assert row["expected"] == {"cores_at_most": 6}
    assert "cannot run them all at once" in row["remedy"]
    assert verified["view"]["trust"]["co_scheduling"]["risk"] is True


def test_the_transport_is_a_socket(verified: dict[str, Any]) -> None:
    transport = verified["view"]["trust"]["transport"]
    assert (transport["transport"], transport["rule"]) == ("unix", "trust")
    assert "hidden" in transport["words"]
    assert records.answers(verified)["numa.transport"]["status"] == "pass"


def test_the_report_has_no_proof_of_placement(verified: dict[str, Any]) -> None:
    rows = [row for name, row in records.answers(verified).items() if name.startswith("numa.placement")]
    assert rows
    assert {row["status"] for row in rows} == {"not_evaluated"}


def test_the_measurement_says_that_it_proves_nothing(placement: dict[str, Any]) -> None:
    assert placement["trust"] == "hidden"
    assert placement["proves"] is False
    assert placement["verdict"] == "incomplete"
    assert placement["reason"] == "topology_hidden"
    assert placement["message"].startswith("This proves nothing about the machine")
    assert "may be anywhere" in placement["proves_nothing_because"]
    assert [row["status"] for row in placement["placements"]] == ["placed"], "it was tried all the same"
