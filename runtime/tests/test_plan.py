# SPDX-License-Identifier: Apache-2.0
"""The plan is read or refused, the transport follows from it, and `auto` finds the server that follows it too."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import pytest

from firsttouch import InferenceClient, plan
from firsttouch.errors import AddressError, PlanError
from firsttouch.plan import Plan, auto_client, auto_name, auto_server, choose_transport, load_plan
from serving import SCHEMA, check, request, served

ROOT = Path(__file__).resolve().parents[2]
EXPOSED = Plan({"schema": 1, "numa": {"trust": {"verdict": "exposed"}, "memory_bindable": True}})
HIDDEN = Plan({"schema": 1, "numa": {"trust": {"verdict": "hidden"}, "memory_bindable": True}})


@pytest.mark.parametrize("name", ["_transport_choice.py", "_cpulist.py"])
def test_same_file_as_the_collection(name: str) -> None:
    """What host and runtime both decide by is one file."""
    ours = ROOT / "runtime" / "src" / "firsttouch" / name
    assert ours.read_bytes() == (ROOT / "plugins" / "module_utils" / name).read_bytes()


def test_no_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without a plan trusts nothing; a plan that was named must be there."""
    monkeypatch.setattr(plan, "PLAN_PATH", tmp_path / "plan.json")
    assert load_plan() == Plan()
    assert choose_transport().transport == "unix"
    with pytest.raises(PlanError, match="there is no plan"):
        load_plan(tmp_path / "plan.json")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": 2}', '{"schema": "1"}', "[" * 100_000])
def test_what_is_no_plan(tmp_path: Path, text: str) -> None:
    """A broken plan is an error that names the file, not an absent one."""
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(PlanError, match=r"plan\.json"):
        load_plan(path)


def test_cpus(tmp_path: Path) -> None:
    """CPU lists come from the plan as they are."""
    document = {"schema": 1, "topology": {"nodes": {"0": {"isolated": "2-3,7", "housekeeping": "0-1"}, "1": {}}}}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document))
    found = load_plan(path)
    assert found.nodes == [0, 1]
    assert found.cpus(0) == {2, 3, 7}
    assert found.cpus(0, "housekeeping") == {0, 1}
    assert found.cpus(1) == found.cpus(5) == frozenset()
    with pytest.raises(PlanError, match="node 0"):
        Plan({"topology": {"nodes": {"0": {"isolated": "3-1"}}}}, "x").cpus(0)


@pytest.mark.parametrize(
    ("chosen", "arguments", "transport", "rule"),
    [
        (EXPOSED, {}, "shm", "topology"),
        (EXPOSED, {"peer": "localhost"}, "shm", "topology"),
        (EXPOSED, {"peer": "127.0.0.2"}, "shm", "topology"),
        (EXPOSED, {"peer": "10.1.2.3"}, "tcp", "other_host"),
        (EXPOSED, {"peer": "another.example"}, "tcp", "other_host"),
        (EXPOSED, {"latency_target_us": 500}, "unix", "latency_target"),
        (EXPOSED, {"descriptors": False}, "unix", "no_descriptors"),
        (HIDDEN, {}, "unix", "trust"),
        (Plan({"transport": {"policy": "fastest"}}), {}, "shm", "fastest"),
    ],
)
def test_choice(chosen: Plan, arguments: dict[str, Any], transport: str, rule: str) -> None:
    """The rule decides, and says which part of it and why."""
    if platform.machine() != "x86_64" and transport == "shm":
        transport, rule = "unix", "machine"
    choice = choose_transport(chosen, **arguments)
    assert (choice.transport, choice.rule) == (transport, rule)
    assert choice.words


def test_choice_on_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where shared memory cannot be had the choice is a socket, with that reason."""
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    choice = choose_transport(EXPOSED)
    assert (choice.transport, choice.rule) == ("unix", "machine")
    assert "aarch64" in choice.words


def test_bad_policy() -> None:
    """A plan with a policy that does not exist is refused."""
    with pytest.raises(PlanError, match="policy"):
        choose_transport(Plan({"transport": {"policy": "slowest"}}, "x"))


def test_auto_names() -> None:
    """auto, auto://NAME, and what is neither."""
    assert auto_name("auto") == "default"
    assert auto_name("auto://policy-1") == "policy-1"
    assert auto_name("shm:///x") is None
    for wrong in ("auto://", "auto://a/b", "auto://.x"):
        with pytest.raises(AddressError):
            auto_name(wrong)


@pytest.mark.parametrize(("chosen", "scheme"), [(EXPOSED, "shm"), (HIDDEN, "unix")])
def test_auto(chosen: Plan, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Server and client meet where the plan says; a client with a wide target takes the socket; each knows why."""
    if platform.machine() != "x86_64":
        pytest.skip("no shared memory on this machine")
    monkeypatch.setattr(plan, "RUN_FOLDER", tmp_path / "run")
    monkeypatch.setattr(plan, "load_plan", lambda: chosen)
    with pytest.raises(AddressError, match="no server named x"):
        InferenceClient("auto://x")
    with served("auto://x"):
        with InferenceClient("auto://x") as client:
            assert client.peer.startswith(scheme)
            assert client.choice
            assert client.choice.transport == scheme
            check(1, client.infer(request(1))[0])
        with InferenceClient("auto://x", latency_target_us=1000, schema=SCHEMA) as client:
            assert client.peer.startswith("unix")


def test_auto_without_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that has nowhere to listen says where it looked."""
    monkeypatch.setattr(plan, "RUN_FOLDER", tmp_path / "no" / "such")
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with pytest.raises(AddressError, match="no/such"):
        auto_server("auto", EXPOSED)


def test_server_without_shm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client whose choice the server does not offer says so, and takes the socket."""
    monkeypatch.setattr(plan, "RUN_FOLDER", tmp_path)
    (tmp_path / "x.sock").touch()
    found = auto_client("auto://x", EXPOSED)
    assert found
    assert found[0].startswith("unix")
    if platform.machine() == "x86_64":
        assert found[1].rule == "not_offered"
