# SPDX-License-Identifier: GPL-3.0-or-later
"""The check run on the half-broken host changed nothing and predicted what mended it; the mended host is as planned,
and its nodes are real."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(os.environ["MOLECULE_PROJECT_DIRECTORY"]) / "molecule" / "_shared" / "verifier"))
sys.path.insert(0, os.environ["FIRSTTOUCH_COLLECTIONS"])

import records
from ansible_collections.firsttouch.host.plugins.module_utils._trust import REAL_RATIO


@pytest.fixture(scope="module")
def name(host: Any) -> str:
    found: str = host.backend.get_hostname()
    return found


@pytest.fixture(scope="module")
def mended(name: str) -> dict[str, Any]:
    return records.verified(name, "mended")


@pytest.fixture(scope="module")
def placement() -> dict[str, Any]:
    return records.kept("placement")


def test_the_check_run_with_diff_changed_nothing(name: str) -> None:
    assert records.changed(name, "half-broken", "after-check") == {}


def test_the_check_run_predicts_what_mends_the_host(name: str) -> None:
    predicted, done = records.change_sets(name, "check")[-1], records.change_sets(name, "run")[-1]
    assert len(records.change_sets(name, "run")) == 2, "one run provisioned the host, one mended it"
    assert predicted == done
    changed = {resource for resource, _before, _after in predicted}
    for part in ("vm.swappiness", "dev-hugepages", "zz-firsttouch.conf"):
        assert any(part in resource for resource in changed), (part, sorted(changed))


def test_nothing_fails_any_more(mended: dict[str, Any]) -> None:
    assert [row for row in mended["results"] if row["status"] in ("fail", "error")] == []
    assert mended["state"] == "pass"


def test_the_nodes_agree_and_that_is_all_one_can_tell(mended: dict[str, Any], placement: dict[str, Any]) -> None:
    trust = mended["view"]["trust"]
    assert (trust["verdict"], trust["asserted_by"]) == ("consistent", None)
    assert records.answers(mended)["numa.trust"]["observed"]["trust"] == "consistent"
    # Emulated memory is as near from everywhere: without that latency nothing makes it exposed.
    assert placement["trust"] == "consistent"
    assert placement["ratio"] is not None, placement["latency"]
    assert placement["ratio"]["problem"] or placement["ratio"]["ratio"] < REAL_RATIO


def test_the_transport_is_shared_memory(mended: dict[str, Any]) -> None:
    transport = mended["view"]["trust"]["transport"]
    assert (transport["transport"], transport["rule"]) == ("shm", "topology")
    assert records.answers(mended)["numa.transport"]["status"] == "pass"


def test_who_vouches_for_the_nodes_is_named(name: str) -> None:
    entry = records.verified(name, "asserted")
    trust = entry["view"]["trust"]
    assert (trust["verdict"], trust["asserted_by"]) == ("exposed", "firsttouch_numa")
    assert "firsttouch_numa vouches for it; without that: consistent" in trust["words"]
    row = records.answers(entry)["numa.trust"]
    assert (row["status"], row["observed"]["trust"]) == ("pass", "exposed")
    assert "vouches" in row["observed"]["because"]


@pytest.mark.parametrize("size", ["4K", "2M"])
@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize("cpu", range(4))
def test_pages_are_proven_to_be_on_their_node(placement: dict[str, Any], size: str, node: int, cpu: int) -> None:
    rows = [
        row
        for row in placement["placements"]
        if (row["cpu"], row["node"], row["page_size"]) == (cpu, node, size)
    ]
    assert [row["status"] for row in rows] == ["placed"], rows
    assert rows[0]["found"]["move_pages"] == {str(node): rows[0]["pages"]}


def test_the_placement_proves_something(placement: dict[str, Any]) -> None:
    assert placement["proves"] is True
    assert placement["left_out"] == []
