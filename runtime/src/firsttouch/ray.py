# SPDX-License-Identifier: Apache-2.0
"""Samplers and inference as actors of Ray, placed by the plans of the hosts. Needs the extra `ray`.

hosts() reads the plan of every Ray node on that node. place() takes CPUs of it, infer() starts an actor there whose
serving thread is pinned to one, and what samples asks with connect(): through what the host's plan allows for a pair on
one Ray node, through tcp for a pair on two (with mutual TLS off loopback). A Ray node counts as a host, also where
several are on one machine: they may be containers, which share neither sockets nor descriptors.

Observations never go through Ray. `python -m firsttouch.ray` moves some, and trains nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from firsttouch import affinity
from firsttouch._cpulist import CpuListError, parse
from firsttouch._ports import Options
from firsttouch._tls import Tls
from firsttouch._transport import Address, parse_address
from firsttouch._transport_choice import Choice, choose_by_plan
from firsttouch._wire import Array, Schema
from firsttouch.client import InferenceClient
from firsttouch.errors import FirstTouchError, PlanError, UnsupportedError
from firsttouch.plan import Plan, choose_transport, load_plan
from firsttouch.server import Handler, InferenceServer

_START_SECONDS = 30.0


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise UnsupportedError("Ray is not installed", hint="pip install 'firsttouch[ray]'") from error
    return ray


@dataclass(frozen=True)
class Host:
    """A Ray node: its id, the address that other nodes reach it at, and the plan that it found there."""

    node_id: str
    address: str
    plan: Plan = field(repr=False)


@dataclass(frozen=True)
class Seat:
    """Where an actor goes: a host, a node of its plan, and a CPU there; None where the plan isolates none to give."""

    host: Host
    node: int | None
    cpu: int | None


@dataclass(frozen=True)
class Endpoint:
    """Where an inference actor listens, and what its host's plan says of a peer on the same Ray node."""

    node_id: str
    addresses: tuple[str, ...]
    choice: Choice
    pinned: tuple[dict[str, object], ...] = ()
    cpu: int | None = None


def hosts(plan: str | os.PathLike[str] | None = None) -> list[Host]:
    """The Ray nodes that are alive, each with its plan, read there: at PLAN, by default the host's own.

    Raises PlanError for a plan that cannot be read, UnsupportedError without Ray.
    """
    ray = _ray()
    nodes = sorted((row for row in ray.nodes() if row["Alive"]), key=lambda row: str(row["NodeID"]))
    path = None if plan is None else os.fspath(plan)
    asked = [_there(ray.remote(_read_plan), row["NodeID"], num_cpus=0).remote(path) for row in nodes]
    found: list[Any] = ray.get(asked)
    for row, answer in zip(nodes, found, strict=True):
        if isinstance(answer, PlanError):
            raise PlanError(
                f"Ray node {row['NodeManagerAddress']}: {answer.message}", hint=answer.hint
            ) from answer
    return [
        Host(row["NodeID"], row["NodeManagerAddress"], answer)
        for row, answer in zip(nodes, found, strict=True)
    ]


def _read_plan(path: str | None) -> Plan | PlanError:
    # As a value: what a task raises comes back as an error of Ray's.
    try:
        return load_plan(path)
    except PlanError as error:
        return error


def place(host: Host, count: int = 1, node: int | None = None) -> list[Seat]:
    """COUNT seats on HOST, on NODE of its plan or wherever CPUs are free: isolated ones that no server of the plan has.

    A plan that isolates no CPU gives seats without one. Raises PlanError when there are fewer than COUNT.
    """
    nodes = host.plan.nodes if node is None else [node]
    isolated = [(number, cpu) for number in nodes for cpu in sorted(host.plan.cpus(number))]
    if not isolated:
        return [Seat(host, node, None)] * count
    taken = _served(host.plan)
    free = [Seat(host, number, cpu) for number, cpu in isolated if cpu not in taken]
    if len(free) < count:
        where = "" if node is None else f" of node {node}"
        raise PlanError(
            f"{host.address}: {count} CPUs are wanted, {len(free)} isolated ones{where} are free",
            hint="ask for fewer, or isolate more with firsttouch_isolated_cpus",
        )
    return free[:count]


def _served(plan: Plan) -> set[int]:
    """CPUs that the servers of PLAN have."""
    section = (plan.document.get("sections") or {}).get("runtime") or {}
    taken: set[int] = set()
    for row in section.get("servers") or ():
        cpus = row.get("cpus") or ()
        try:
            taken |= parse(cpus) if isinstance(cpus, str) else {int(cpu) for cpu in cpus}
        except (CpuListError, TypeError, ValueError) as error:
            raise PlanError(f"{plan.source}: cpus of server {row.get('name')!r} are {cpus!r}") from error
    return taken


def pick(plan: Plan, *, same_node: bool) -> Choice:
    """The transport of a pair: what PLAN allows on one Ray node, tcp between two. Raises PlanError."""
    if same_node:
        return choose_transport(plan)
    try:
        return choose_by_plan(plan.document, same_host=False)
    except ValueError as error:
        raise PlanError(f"plan {plan.source}: {error}") from error


class Infer:
    """The body of an inference actor: one thread, pinned to the seat's CPU, answers all that ask."""

    def __init__(
        self, seat: Seat, handler: Handler, schema: Schema, *, tcp: str | None = None, tls: Tls | None = None
    ) -> None:
        self._seat, self._handler, self._schema, self._tcp, self._tls = seat, handler, schema, tcp, tls
        self._folder = tempfile.mkdtemp(prefix="firsttouch-ray-")
        self._server: InferenceServer | None = None
        self._error: BaseException | None = None
        self._pinned: tuple[dict[str, object], ...] = ()
        self._ready = threading.Event()
        self._choice = pick(seat.host.plan, same_node=True)
        self._thread = threading.Thread(target=self._serve, name="firsttouch-infer", daemon=True)
        self._thread.start()

    def endpoint(self) -> Endpoint:
        """Where this actor listens. Raises what kept it from listening."""
        if not self._ready.wait(_START_SECONDS):
            raise FirstTouchError(f"the server does not listen after {_START_SECONDS:g} s")
        if self._error is not None or self._server is None:
            raise self._error or FirstTouchError("the server has ended")
        return Endpoint(
            self._seat.host.node_id, tuple(self._server.addresses), self._choice, self._pinned, self._seat.cpu
        )

    def answered(self) -> int:
        """Requests answered so far."""
        return 0 if self._server is None else self._server.counts.requests

    def stop(self) -> None:
        """End the server; a second time is fine."""
        if self._server is not None:
            self._server.stop()
        self._thread.join(_START_SECONDS)

    def _serve(self) -> None:
        try:
            if self._seat.cpu is not None:
                done = affinity.pin(self._seat.cpu, switch_seconds=affinity.SERVER_SWITCH_SECONDS)
                self._pinned = tuple(step.as_dict() for step in done.steps)
            with InferenceServer(self._addresses(), self._schema, options=self._options()) as server:
                self._server = server
                self._ready.set()
                server.serve(self._handler)
        except BaseException as error:  # noqa: BLE001  told to whoever asks for the endpoint
            self._error = error
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._ready.set()

    def _options(self) -> Options:
        # As connect() does: with TLS exactly where a server without it would be refused.
        far = self._tcp is not None and _needs_tls(parse_address(f"tcp://{self._tcp}:0"))
        return Options(node=self._seat.node if self._choice.bound else None, tls=self._tls if far else None)

    def _addresses(self) -> list[str]:
        found = [f"unix://{self._folder}/infer.sock"]
        if self._choice.transport == "shm":
            found.insert(0, f"shm://{self._folder}/infer.shm")
        if self._tcp is not None:
            found.append(f"tcp://{self._tcp}:0")
        return found


def infer(
    seat: Seat,
    handler: Handler,
    schema: Schema,
    *,
    tcp: str | None = None,
    tls: Tls | None = None,
    **options: Any,
) -> Any:
    """Start an inference actor on SEAT and return its handle, with the methods of Infer.

    TCP is the address to listen at for samplers on other Ray nodes, None for none; off loopback it needs TLS, whose
    files are on both hosts. OPTIONS are those of Ray's actors. The handler and the schema are pickled by Ray.
    """
    ray = _ray()
    actor = _there(ray.remote(Infer), seat.host.node_id, **{"num_cpus": 1, **options})
    return actor.remote(seat, handler, schema, tcp=tcp, tls=tls)


def connect(
    endpoint: Endpoint, plan: Plan | None = None, *, tls: Tls | None = None, **options: Any
) -> tuple[InferenceClient, Choice]:
    """In an actor or task: a client of ENDPOINT, and why through that transport. OPTIONS are those of InferenceClient.

    On the server's Ray node its plan has decided already; on another one the transport is tcp.
    Raises PlanError, UnsupportedError when the server does not listen there.
    """
    here = str(_ray().get_runtime_context().get_node_id())
    same = here == endpoint.node_id
    choice = endpoint.choice if same else pick(plan or load_plan(), same_node=False)
    for text in endpoint.addresses:
        address = parse_address(text)
        if address.scheme == choice.transport:
            given = tls if _needs_tls(address) else None
            return InferenceClient(text, tls=given, **options), choice
    raise UnsupportedError(
        f"the server listens at {', '.join(endpoint.addresses)}, the transport is {choice.transport}: {choice.words}",
        hint="start it with infer(tcp=ADDRESS, tls=...) for samplers on other Ray nodes",
    )


def _needs_tls(address: Address) -> bool:
    return address.scheme == "tcp" and not address.is_loopback


def _there(what: Any, node_id: str, **options: Any) -> Any:
    """WHAT, a remote function or class, on the Ray node NODE_ID and on no other."""
    strategy = _ray().util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)
    return what.options(scheduling_strategy=strategy, **options)


# The example: cart and pole, a fixed linear policy, and nothing that learns.

SCHEMA = Schema.of({"obs": ("float32", (4,))}, {"action": ("int64", ()), "value": ("float32", ())})
_GAINS = np.array([0.1, 0.4, 3.0, 0.9], np.float32)


def balance(batch: Any) -> Mapping[str, Array]:
    """The policy: push to where the pole falls."""
    side = batch.arrays["obs"] @ _GAINS
    return {"action": (side > 0).astype(np.int64), "value": side.astype(np.float32)}


class CartPole:
    """The classic control task (Barto, Sutton and Anderson, 1983), in numpy: 20 ms a step."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self.state = self._start()

    def _start(self) -> Array:
        return self._random.uniform(-0.05, 0.05, 4).astype(np.float32)

    def step(self, action: int) -> bool:
        """Push left (0) or right (1); whether the pole fell, and a new episode begins."""
        x, speed, angle, turn = (float(value) for value in self.state)
        force = 10.0 if action else -10.0
        sine, cosine = np.sin(angle), np.cos(angle)
        push = (force + 0.05 * turn * turn * sine) / 1.1
        bend = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * cosine * cosine / 1.1))
        pull = push - 0.05 * bend * cosine / 1.1
        state = [x + 0.02 * speed, speed + 0.02 * pull, angle + 0.02 * turn, turn + 0.02 * bend]
        self.state = np.array(state, np.float32)
        fell = abs(state[0]) > 2.4 or abs(state[2]) > 0.2095
        if fell:
            self.state = self._start()
        return bool(fell)


def sample(endpoint: Endpoint, steps: int, seed: int, tls: Tls | None = None) -> dict[str, Any]:
    """STEPS of a cart and pole whose actions come from ENDPOINT: transport, latencies in us, falls, wrong answers."""
    client, choice = connect(endpoint, tls=tls)
    world, took = CartPole(seed), np.zeros(steps)
    falls = wrong = 0
    with client, client.lane() as lane:
        for number in range(steps):
            lane.request["obs"][...] = world.state
            before = time.monotonic_ns()
            lane.infer()
            took[number] = (time.monotonic_ns() - before) / 1000
            action = int(lane.reply["action"])
            wrong += action != int(float(world.state @ _GAINS) > 0)
            falls += world.step(action)
    p50, p99 = np.percentile(took, [50, 99])
    return {
        "transport": choice.transport, "why": choice.words, "steps": steps, "falls": falls, "wrong": wrong,
        "p50_us": round(float(p50), 1), "p99_us": round(float(p99), 1),
    }  # fmt: skip


def run_example(
    samplers: int, steps: int, *, plan: str | None = None, tcp: str | None = None, tls: Tls | None = None
) -> dict[str, Any]:
    """One inference actor on the first host, SAMPLERS on each host, in a Ray that is initialised."""
    ray = _ray()
    fleet = hosts(plan)
    (seat,) = place(fleet[0])
    far = tcp if tcp is not None or len(fleet) == 1 else fleet[0].address
    actor = infer(seat, balance, SCHEMA, tcp=far, tls=tls)
    try:
        endpoint: Endpoint = ray.get(actor.endpoint.remote())
        work = [(host, number) for host in fleet for number in range(samplers)]
        jobs = [
            _there(ray.remote(sample), host.node_id, num_cpus=1).remote(endpoint, steps, seed, tls)
            for seed, (host, _number) in enumerate(work)
        ]
        rows = [{"host": host.address, "node_id": host.node_id, **row} for (host, _number), row in zip(
            work, ray.get(jobs), strict=True)]  # fmt: skip
        return {"cpu": endpoint.cpu, "pinned": list(endpoint.pinned), "addresses": list(endpoint.addresses),
                "answered": ray.get(actor.answered.remote()), "samplers": rows}  # fmt: skip
    finally:
        with contextlib.suppress(Exception):
            ray.get(actor.stop.remote())
        ray.kill(actor)


def main(argv: Sequence[str] | None = None, show: Callable[[str], object] = print) -> int:
    """`python -m firsttouch.ray`; returns the exit status."""
    parser = argparse.ArgumentParser(
        "python -m firsttouch.ray", description="Move observations between actors of Ray."
    )
    parser.add_argument(
        "--address", help="a Ray cluster, like auto (default: one of its own, on this machine)"
    )
    parser.add_argument("--samplers", type=int, default=2, help="samplers on each Ray node (default: 2)")
    parser.add_argument("--steps", type=int, default=2000, help="steps of each (default: 2000)")
    parser.add_argument(
        "--plan", type=Path, help="a plan, at this path on each host (default: the host's own)"
    )
    parser.add_argument(
        "--tcp", help="the address to listen at for other Ray nodes (default: the first node's)"
    )
    parser.add_argument(
        "--tls", nargs=3, metavar=("CERT", "KEY", "AUTHORITY"), help="PEM files, needed off loopback"
    )
    args = parser.parse_args(argv)
    tls = Tls(*args.tls) if args.tls else None
    try:
        ray = _ray()
        ray.init(address=args.address, include_dashboard=False, log_to_driver=False)
        plan = None if args.plan is None else str(args.plan)
        show(json.dumps(run_example(args.samplers, args.steps, plan=plan, tcp=args.tcp, tls=tls), indent=1))
        ray.shutdown()
    except FirstTouchError as error:
        sys.stderr.write(f"firsttouch.ray: {error}\n")
        return error.exit_status
    return 0


if __name__ == "__main__":
    # Through the import: what is of __main__ is of another class in each of Ray's processes.
    sys.exit(importlib.import_module("firsttouch.ray").main())
