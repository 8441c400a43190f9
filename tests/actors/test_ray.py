# SPDX-License-Identifier: GPL-3.0-or-later
"""firsttouch.ray on a real local Ray. Two hosts are two Ray nodes on one machine, and the tests' names say so."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from firsttouch import ray as placed
from firsttouch._tls import Tls
from firsttouch.errors import AffinityError, FirstTouchError, PlanError, RefusedError, UnsupportedError
from firsttouch.plan import Plan, load_plan
from ray.cluster_utils import Cluster

CPUS = sorted(os.sched_getaffinity(0))
STEPS = 300


def document(
    trust: str = "consistent", isolated: str = "", servers: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    node = {"cpus": ",".join(map(str, CPUS)), "isolated": isolated, "housekeeping": ""}
    return {
        "schema": 1,
        "topology": {"nodes": {"0": node}},
        "numa": {"trust": {"verdict": trust}, "memory_bindable": trust == "consistent"},
        "transport": {"policy": "topology", "latency_target_us": 100},
        "sections": {"runtime": {"servers": servers or []}},
    }


def write(folder: Path, name: str, **parts: Any) -> str:
    path = folder / name
    path.write_text(json.dumps(document(**parts)))
    return str(path)


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[None]:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4})
    cluster.add_node(num_cpus=4)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False)
    yield
    ray.shutdown()
    cluster.shutdown()


def example(plan: str, **options: Any) -> dict[str, Any]:
    return placed.run_example(1, STEPS, plan=plan, **{"tcp": "127.0.0.1", **options})


@pytest.mark.parametrize(("trust", "near"), [("consistent", "shm"), ("hidden", "unix")])
def test_two_ray_nodes_on_one_machine_stand_for_two_hosts(
    two_nodes: None, tmp_path: Path, trust: str, near: str
) -> None:
    """Observations move, every action is the policy's, and each pair has the transport of the plan."""
    report = example(write(tmp_path, "plan.json", trust=trust, isolated=str(CPUS[-1])))
    first, second = report["samplers"]
    assert (first["transport"], second["transport"]) == (near, "tcp")
    assert first["node_id"] != second["node_id"]
    assert trust in first["why"] and "different hosts" in second["why"]
    assert [row["wrong"] for row in report["samplers"]] == [0, 0]
    assert report["answered"] == 2 * STEPS
    assert report["cpu"] == CPUS[-1]
    assert {row["name"]: row["done"] for row in report["pinned"]}["cpu"]


def test_the_serving_thread_has_the_cpu_of_its_seat(two_nodes: None, tmp_path: Path) -> None:
    (host, _other) = placed.hosts(write(tmp_path, "plan.json", isolated=str(CPUS[0])))
    (seat,) = placed.place(host)
    actor = placed.infer(seat, placed.balance, placed.SCHEMA)
    endpoint = ray.get(actor.endpoint.remote())

    def allowed(_self: Any) -> list[list[int]]:
        import threading

        threads = [row for row in threading.enumerate() if row.name == "firsttouch-infer"]
        return [sorted(os.sched_getaffinity(row.native_id or 0)) for row in threads]

    assert ray.get(actor.__ray_call__.remote(allowed)) == [[CPUS[0]]] == [[endpoint.cpu]]
    assert (
        ray.get(actor.__ray_call__.remote(lambda _self: ray.get_runtime_context().get_node_id()))
        == host.node_id
    )
    ray.get(actor.stop.remote())
    ray.kill(actor)


def test_a_cpu_that_is_not_there_is_told_to_who_asks(two_nodes: None) -> None:
    host = placed.hosts()[0]
    actor = placed.infer(placed.Seat(host, 0, 4096), placed.balance, placed.SCHEMA)
    with pytest.raises(AffinityError):
        ray.get(actor.endpoint.remote())
    folder = ray.get(actor.__ray_call__.remote(lambda body: body._folder))
    assert not Path(folder).exists()
    ray.kill(actor)


def test_off_loopback_there_is_no_tcp_without_tls(two_nodes: None) -> None:
    host = placed.hosts()[0]
    actor = placed.infer(placed.Seat(host, None, None), placed.balance, placed.SCHEMA, tcp="0.0.0.0")
    with pytest.raises(RefusedError):
        ray.get(actor.endpoint.remote())
    ray.kill(actor)


def test_two_ray_nodes_on_one_machine_off_loopback_speak_mutual_tls(two_nodes: None, tmp_path: Path) -> None:
    """At the address that Ray gives the node; without a certificate of the authority the sampler gets nothing."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: it makes the certificates of this test")
    first, second = placed.hosts()
    if first.address.startswith("127."):
        pytest.skip("Ray has only loopback here")
    for name in ("own", "strange"):
        certificate(tmp_path, name, first.address)
    own, strange = (
        Tls(f"{tmp_path}/{name}.pem", f"{tmp_path}/{name}.key", f"{tmp_path}/own.pem")
        for name in ("own", "strange")
    )
    plan = write(tmp_path, "plan.json")
    report = placed.run_example(1, STEPS, plan=plan, tls=own)
    assert [row["transport"] for row in report["samplers"]] == ["shm", "tcp"]
    assert any(address.startswith(f"tcp://{first.address}:") for address in report["addresses"])
    assert report["answered"] == 2 * STEPS
    actor = placed.infer(
        placed.Seat(first, None, None), placed.balance, placed.SCHEMA, tcp=first.address, tls=own
    )
    endpoint = ray.get(actor.endpoint.remote())
    far = placed._there(ray.remote(placed.sample), second.node_id)
    with pytest.raises(FirstTouchError):
        ray.get(far.remote(endpoint, 1, 0, strange))
    ray.get(actor.stop.remote())
    ray.kill(actor)


def certificate(folder: Path, name: str, address: str) -> None:
    """A certificate that is its own authority."""
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    what = [
        "-keyout",
        f"{name}.key",
        "-out",
        f"{name}.pem",
        "-subj",
        f"/CN={name}",
        "-addext",
        f"subjectAltName=IP:{address}",
    ]
    subprocess.run(["openssl", *words, *what], cwd=folder, check=True, capture_output=True)


def test_a_sampler_on_another_ray_node_needs_a_server_that_listens_for_it(two_nodes: None) -> None:
    first, second = placed.hosts()
    actor = placed.infer(placed.Seat(first, None, None), placed.balance, placed.SCHEMA)
    endpoint = ray.get(actor.endpoint.remote())
    far = placed._there(ray.remote(placed.sample), second.node_id)
    with pytest.raises(UnsupportedError, match="the transport is tcp"):
        ray.get(far.remote(endpoint, 1, 0))
    ray.get(actor.stop.remote())
    ray.kill(actor)


def test_a_plan_that_cannot_be_read_names_the_ray_node(two_nodes: None, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"Ray node .*there is no plan"):
        placed.hosts(tmp_path / "none.json")


# Without a cluster.


def host(tmp_path: Path, **parts: Any) -> placed.Host:
    return placed.Host("a", "10.0.0.1", load_plan(write(tmp_path, "plan.json", **parts)))


def test_seats_are_isolated_cpus_that_no_server_has(tmp_path: Path) -> None:
    servers = [{"name": "policy", "cpus": [2]}, {"name": "value", "cpus": "4"}]
    there = host(tmp_path, isolated="2-5", servers=servers)
    assert [(seat.node, seat.cpu) for seat in placed.place(there, 2)] == [(0, 3), (0, 5)]
    with pytest.raises(PlanError, match="3 CPUs are wanted, 2 isolated ones of node 0 are free"):
        placed.place(there, 3, node=0)
    assert [seat.cpu for seat in placed.place(host(tmp_path), 2)] == [None, None]


def test_a_pair_on_two_ray_nodes_is_tcp_whatever_the_plan_trusts() -> None:
    for trust in ("exposed", "consistent", "hidden"):
        assert placed.pick(Plan(document(trust)), same_node=False).transport == "tcp"
    assert placed.pick(Plan(document("hidden")), same_node=True).transport == "unix"


def test_the_pole_stays_up_with_the_policy_and_falls_without() -> None:
    falls = {}
    for name, decide in (
        ("policy", lambda state: int(state @ placed._GAINS > 0)),
        ("left", lambda _state: 0),
    ):
        world = placed.CartPole(7)
        falls[name] = sum(world.step(decide(world.state)) for _ in range(500))
    assert falls["policy"] < 5 < 20 < falls["left"]
