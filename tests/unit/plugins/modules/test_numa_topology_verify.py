# SPDX-License-Identifier: GPL-3.0-or-later
"""numa_topology_verify: the verdict with its evidence, expectations as failures, what is accepted, nothing written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from plan_host import SYSTEM, make_host
from support import put, run_module
from test_recorded_hosts import OWN, unpack


@pytest.fixture
def guest(tmp_path: Path) -> Path:
    """A guest of two sockets and two nodes."""
    root = make_host(tmp_path, flags="lm hypervisor")
    put(root, "/sys/class/dmi/id/sys_vendor", "QEMU")
    for cpu in range(4):
        put(root, f"{SYSTEM}/cpu/cpu{cpu}/topology/physical_package_id", f"{cpu // 2}\n")
    for node, row in ((0, "10 21"), (1, "21 10")):
        put(root, f"{SYSTEM}/node/node{node}/distance", f"{row}\n")
    return root


def ask(root: Path, **args: Any) -> dict[str, Any]:
    result = run_module("numa_topology_verify", {"sysroot": str(root), **args})
    assert "exception" not in result, result
    return result


def test_the_verdict_and_all_of_its_evidence(guest: Path) -> None:
    result = ask(guest)
    assert (result["verdict"], result["ok"], result["changed"]) == ("consistent", True, False)
    assert all(row["source"] and row["seen"] and row["points"] for row in result["evidence"])
    seen = {row["source"]: row["points"] for row in result["evidence"]}
    assert seen["/sys/class/dmi/id/sys_vendor"] == "guest"
    assert seen[f"{SYSTEM}/node/node*/distance"] == "consistent"
    assert result["transport"]["transport"] == "shm"
    assert result["co_scheduling"]["risk"] is None and result["asserted_by"] is None


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [({"ratio": 1.02}, "consistent"), ({"ratio": 1.19}, "consistent"), ({"ratio": 1.2, "source": "us"}, "exposed")],
)
def test_a_measurement(guest: Path, measured: dict[str, Any], verdict: str) -> None:
    result = ask(guest, measured=measured)
    assert result["verdict"] == verdict
    assert any(row["source"] == measured.get("source", "measured") for row in result["evidence"])


def test_expectations_are_failures_with_file_and_remedy(guest: Path) -> None:
    result = ask(guest, expected={"nodes": 2, "sockets": 4, "cpus": {"0": "0-1", "1": "2"}, "smt": False})
    assert [(row["id"], row["reason"]) for row in result["failures"]] == [
        ("numa.cpus.node1", "cpus_differ"),
        ("numa.sockets", "sockets_differ"),
    ]
    assert not result["ok"] and not result.get("failed")
    assert all("firsttouch_numa" in row["remedy"] and row["source"] for row in result["failures"])


def test_fail_fails_and_still_returns_everything(guest: Path) -> None:
    result = ask(guest, expected={"sockets": 4}, fail=True)
    assert result["failed"] and result["reason"] == "verification_failed"
    assert "numa.sockets" in result["msg"] and result["verdict"] == "consistent" and result["evidence"]
    assert not ask(guest, expected={"sockets": 2}, fail=True).get("failed")


def test_an_expectation_that_could_not_be_looked_at_fails_too(guest: Path) -> None:
    (guest / f"{SYSTEM}/node/node1/distance"[1:]).unlink()
    result = ask(guest, expected={"distances": {0: {0: 10, 1: 21}, 1: {0: 21, 1: 10}}}, fail=True)
    assert not result["ok"] and not result["failures"] and result["failed"]
    assert "not_evaluated numa.distances" in result["msg"]


@pytest.mark.parametrize(
    ("accept", "ok"), [([], True), (["exposed", "consistent"], True), (["exposed"], False), (["hidden"], False)]
)
def test_what_is_accepted(guest: Path, accept: list[str], ok: bool) -> None:
    result = ask(guest, accept=accept)
    assert result["ok"] is ok
    assert [row["id"] for row in result["failures"]] == ([] if ok else ["numa.accepted"])


def test_who_vouches(guest: Path) -> None:
    result = ask(guest, expected={"trust": "asserted"})
    assert (result["verdict"], result["asserted_by"]) == ("exposed", "firsttouch_numa")
    assert any(row["source"] == "firsttouch_numa" for row in result["evidence"])
    other = ask(guest, expected={"trust": "asserted", "nodes": 4})
    assert (other["verdict"], other["asserted_by"]) == ("consistent", None)
    assert [row["points"] for row in other["evidence"] if row["source"] == "firsttouch_numa"] == ["nothing"]


def test_facts_count_as_evidence(guest: Path) -> None:
    (guest / "sys/class/dmi/id/sys_vendor").unlink()
    put(guest, "/proc/cpuinfo", "processor : 0\nflags : lm\n")
    facts = {"ansible_virtualization_role": "guest", "ansible_virtualization_type": "kvm"}
    assert any(row["source"] == "facts" for row in ask(guest, facts=facts)["evidence"])
    assert not any(row["points"] == "guest" for row in ask(guest)["evidence"])


def test_what_was_expected_and_cannot_be_seen_is_not_ok(tmp_path: Path) -> None:
    put(tmp_path, "/proc/cpuinfo", "processor : 0\n")
    result = ask(tmp_path, expected={"nodes": 1})
    assert (result["verdict"], result["ok"], result["failures"]) == ("unknown", False, [])


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ({"expected": {"node": 2}}, "node"),
        ({"expected": {"cpus": {"0": "9-1"}}}, "cpus"),
        ({"measured": {"ratio": 0}}, "ratio"),
        ({"measured": {"source": "x"}}, "ratio"),
        ({"accept": ["good"]}, "good"),
    ],
)
def test_bad_arguments_are_named(guest: Path, args: dict[str, Any], named: str) -> None:
    result = ask(guest, **args)
    assert result["failed"] and named in result["msg"]


def test_nothing_is_written_and_check_mode_answers_the_same(guest: Path) -> None:
    def files() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in sorted(guest.rglob("*")) if path.is_file()}

    before, whole = files(), ask(guest)
    assert run_module("numa_topology_verify", {"sysroot": str(guest)}, check=True) == whole
    assert files() == before


@pytest.mark.parametrize(
    ("name", "expected", "verdict", "transport", "risk"),
    [
        ("testhost-two-node", {}, "consistent", "shm", None),
        ("testhost-two-node", {"trust": "asserted"}, "exposed", "shm", None),
        ("testhost-two-node", {"cores_per_socket": 2}, "consistent", "shm", False),
        ("testhost-hidden", {}, "hidden", "unix", None),
        ("testhost-hidden", {"cores_per_socket": 6}, "hidden", "unix", True),
        ("testhost-hidden", {"cores_per_socket": 6, "trust": "asserted"}, "exposed", "shm", True),
    ],
)
def test_the_test_hosts(
    tmp_path: Path, name: str, expected: dict[str, Any], verdict: str, transport: str, risk: bool | None
) -> None:
    result = ask(unpack(OWN / f"{name}.tar.xz", tmp_path / "root"), expected=expected)
    assert (result["verdict"], result["transport"]["transport"]) == (verdict, transport)
    assert result["co_scheduling"]["risk"] is risk
    rows = {row["id"]: row["status"] for row in result["results"]}
    assert rows["numa.co_scheduling"] == {None: "not_evaluated", False: "pass", True: "warn"}[risk]
    if "trust" in expected:
        assert result["asserted_by"] == "firsttouch_numa"


def test_a_sysroot_that_is_not_there_is_no_host(tmp_path: Path) -> None:
    result = run_module("numa_topology_verify", {"sysroot": str(tmp_path / "nowhere")})
    assert (result["failed"], result["reason"]) == (True, "no_sysroot")
