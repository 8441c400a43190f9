# SPDX-License-Identifier: Apache-2.0
"""Mishaps beside the serving thread: a manager that takes nothing, signals, folders that are not there, old memory."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from firsttouch import (
    InferenceClient,
    InferenceServer,
    Options,
    _job,
    _keeper,
    _kept,
    _systemd,
    affinity,
    plan,
)
from firsttouch._guests import Guests
from firsttouch._job import Job, Worker
from firsttouch._keeper import Keeper
from firsttouch._lookout import Lookout
from firsttouch._shm import PageReport
from firsttouch._shm_server import Domain
from firsttouch._sockets import listen_unix
from firsttouch._systemd import Notifier
from firsttouch._transport import parse_address
from firsttouch.cli import _hold, main
from firsttouch.errors import AddressError, BusyError, KernelError
from serving import SCHEMA, TRANSPORTS, address_of, child, end, eventually, request
from test_faults import children
from test_waiting import cpu_seconds


def answer(batch: Any) -> Any:
    """A handler that looks after nothing."""
    import numpy as np

    return {"act": np.repeat(batch.arrays["obs"][:, 0, :1] * 2, 5, axis=1), "id": batch.arrays["id"]}


answer.schema = SCHEMA  # type: ignore[attr-defined]  # a function takes any attribute, which mypy does not know


def test_lookout_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    """What is due every so often and fails once is tried again, and the thread is there for the rest."""
    tries: list[int] = []

    def fail() -> None:
        tries.append(len(tries))
        raise KernelError("the service manager does not take it")

    lookout = Lookout()
    lookout.start(os.sched_getaffinity(0))
    lookout.every(0.01, fail)
    try:
        assert eventually(lambda: len(tries) > 3)
    finally:
        lookout.stop()
    assert "does not take it" in capfd.readouterr().err


def test_lookout_that_cannot_go_on(capfd: pytest.CaptureFixture[str]) -> None:
    """A process whose clients nobody looks after ends, so that the next one takes over."""

    def run() -> None:
        def fail() -> None:
            raise RuntimeError("no idea")

        lookout = Lookout()
        bell = os.eventfd(1)
        lookout.tend(bell, fail, lambda: 1.0)
        lookout.start(os.sched_getaffinity(0))
        time.sleep(20)

    with child(run) as pid:
        began = time.monotonic()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
        assert time.monotonic() - began < 10
    assert "no idea" in capfd.readouterr().err


@pytest.mark.parametrize("fails", ["step", "job"])
def test_lookout_whose_words_nobody_reads(fails: str) -> None:
    """A process whose stderr is gone ends as any other when nobody looks after its clients, and goes on after less."""

    def run() -> None:
        def fail() -> None:
            failed.append(True)
            raise RuntimeError("no idea")

        failed: list[bool] = []
        reader, writer = os.pipe()
        os.close(reader)
        sys.stderr = open(writer, "w", buffering=1, encoding="ascii")  # noqa: SIM115  closed with the process
        lookout = Lookout()
        if fails == "step":
            lookout.tend(os.eventfd(1), fail, lambda: 1.0)
        lookout.start(os.sched_getaffinity(0))
        if fails == "job":
            lookout.every(0.01, fail)
            assert eventually(lambda: len(failed) > 3)
            os._exit(3)
        time.sleep(20)

    with child(run) as pid:
        began = time.monotonic()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == (1 if fails == "step" else 3)
        assert time.monotonic() - began < 10


@contextlib.contextmanager
def _kept_by(folder: Path, lanes: int) -> Iterator[tuple[socket.socket, str, Keeper]]:
    """A manager's socket, at FOLDER/notify, and a keeper whose clients' connections that manager keeps: its address."""
    path = folder / "notify"
    address = parse_address(f"shm://{folder}/server")
    with contextlib.ExitStack() as stack:
        manager = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        manager.bind(str(path))
        domain = Domain.create(SCHEMA, lanes, pages="4k")
        stack.callback(domain.close)
        notifier = Notifier(str(path))
        stack.callback(notifier.close)
        keeper = Keeper(domain, listen_unix(address, 0o600), Guests(), 0, _kept.Store(notifier, {}))
        thread = threading.Thread(target=keeper.run)
        thread.start()
        try:
            yield manager, str(address), keeper
            assert thread.is_alive()
        finally:
            keeper.stop()
            thread.join()


def _free(keeper: Keeper) -> int:
    """How many lanes have no owner."""
    return [keeper.domain.segment.words[owner] for owner in keeper._owner].count(0)


def _are_free(keeper: Keeper, count: int) -> bool:
    """Whether COUNT lanes are."""
    return _free(keeper) == count


def test_manager_takes_no_goodbye(tmp_path: Path) -> None:
    """A client's lanes are free when it is gone, though the manager does not listen; it is told later."""
    path = tmp_path / "notify"
    with _kept_by(tmp_path, 1) as (manager, where, keeper):
        for _ in range(2):
            client = InferenceClient(where)
            while b"FDSTORE=1" not in (data := _taken(manager)):
                assert data
            os.rename(path, f"{path}.away")
            client.close()
            assert eventually(lambda: _free(keeper) == 1)
            os.rename(f"{path}.away", path)
            assert eventually(lambda: b"FDSTOREREMOVE=1" in _taken(manager))


def _fill(path: Path) -> None:
    """Fill the queue of a manager: by one sender for each message, or a sender's own buffer may be full before."""
    with contextlib.suppress(BlockingIOError):
        while True:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.sendto(b"STATUS=full", socket.MSG_DONTWAIT, str(path))


def test_nobody_waits_for_a_manager_that_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that leave free their lanes at once, and the next ones get them when their connections are kept."""
    monkeypatch.setattr(_keeper, "HANDSHAKE_SECONDS", 60.0)
    with _kept_by(tmp_path, 3) as (manager, where, keeper):
        first = [InferenceClient(where) for _ in range(3)]
        while _taken(manager, 0.1):
            pass
        _fill(tmp_path / "notify")
        began = time.monotonic()
        for count, client in enumerate(first):
            client.close()
            assert eventually(partial(_are_free, keeper, count + 1))
        # Waiting for the manager would take 5 s for each of them.
        assert time.monotonic() - began < 5
        later: list[InferenceClient] = []
        threads = [
            threading.Thread(target=lambda: later.append(InferenceClient(where, reconnect=False))) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        assert eventually(lambda: _free(keeper) == 1)
        # Its client has the name of one that is gone: the manager must hear of that first.
        assert not later
        said: list[bytes] = []
        while len(said) < 5:
            data = _taken(manager, 20)
            assert data, f"after {said} nothing more is said"
            said += [word for word in (data.partition(b"=")[0],) if word != b"STATUS"]
        for thread in threads:
            thread.join()
        assert said == [b"FDSTOREREMOVE"] * 3 + [b"FDSTORE"] * 2
        assert len(later) == 2
        for client in later:
            client.close()


def test_manager_that_never_reads(tmp_path: Path) -> None:
    """A client whose connection is not kept is told so after a while, and leaves its lane to the next one."""
    with _kept_by(tmp_path, 1) as (manager, where, keeper):
        _fill(tmp_path / "notify")
        before = time.process_time()
        with pytest.raises(BusyError, match=r"cannot be kept.*does not take 'FDSTORE=1'"):
            InferenceClient(where, timeout=10)
        assert eventually(lambda: _free(keeper) == 1)
        # Nobody tries again and again meanwhile.
        assert time.process_time() - before < 0.5
        while _taken(manager, 0.1):
            pass
        InferenceClient(where).close()


def test_message_to_a_full_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for a manager that is behind sleeps; and who must not wait, does not."""
    monkeypatch.setattr(_systemd, "_SEND_SECONDS", 1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        notifier = Notifier(str(tmp_path / "notify"))
        _fill(tmp_path / "notify")
        for call, least, most in ((notifier.beat, 0.0, 0.9), (lambda: notifier.ready("here"), 0.9, 10.0)):
            began, cpu = time.monotonic(), time.process_time()
            with pytest.raises(KernelError, match="does not take"):
                call()
            assert least <= time.monotonic() - began < most
            assert time.process_time() - cpu < 0.2
        notifier.close()


def _taken(manager: socket.socket, seconds: float = 1.0) -> bytes:
    """The next notification within SECONDS; what came with it is closed."""
    if not select.select([manager], [], [], seconds)[0]:
        return b""
    data, fds, _, _ = socket.recv_fds(manager, 4096, 8)
    for fd in fds:
        os.close(fd)
    return data


def test_signal_to_a_server_that_was_a_spare(tmp_path: Path) -> None:
    """SIGUSR1 without --metrics ends nothing, neither the first server nor one that was a spare."""
    address = address_of("shm", tmp_path)
    job = Job(answer, (address,), Options(lanes=2, pages="4k"))
    with child(lambda: _hold(job)) as pid:
        assert eventually(lambda: os.path.exists(tmp_path / "server") and len(children(pid)) == 2, 20)
        with InferenceClient(address) as client:
            for _ in range(2):
                client.infer(request(1))
                assert eventually(lambda: len(children(pid)) == 2)
                before = children(pid)
                os.kill(pid, signal.SIGUSR1)
                time.sleep(0.2)
                client.infer(request(1))
                assert children(pid) == before
                os.kill(before[0], signal.SIGKILL)
        assert end(pid, signal.SIGTERM) == 0


def test_no_folder_for_the_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose status cannot be written serves, and says so."""

    def missing() -> Path:
        raise AddressError("there is no folder")

    monkeypatch.setattr(plan, "run_folder", missing)
    said: list[str] = []
    worker = Worker(Job(answer, (), Options(), name="mine"), said.append)
    lookout = Lookout()
    with InferenceServer(address_of("shm", tmp_path), SCHEMA, options=Options(lanes=1, pages="4k")) as server:
        server.stop()
        worker.serve(server, lookout)
    lookout.stop()
    assert any("there is no folder" in text for text in said)

def test_two_write_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that asks for metrics while another thread writes them disturbs nothing."""
    path, replace = tmp_path / "metrics", os.replace
    busy: list[bool] = []

    def slow(source: Path, target: Path) -> None:
        if not busy:
            busy.append(True)
            other = threading.Thread(target=_job.write_whole, args=(path, "other"))
            other.start()
            other.join()
        replace(source, target)

    monkeypatch.setattr(os, "replace", slow)
    _job.write_whole(path, "this")
    assert path.read_text() == "this"
    assert [item.name for item in tmp_path.iterdir()] == ["metrics"]


def test_priority_of_a_spare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spare prepares beside the server on its CPU: with its priority only once it serves itself."""
    asked: list[int] = []

    def set_fifo(priority: int) -> affinity.Step:
        asked.append(priority)
        return affinity.Step("scheduler", f"SCHED_FIFO {priority}", False, "not here")

    monkeypatch.setattr(affinity, "set_fifo", set_fifo)
    cpu = min(os.sched_getaffinity(0))
    said: list[str] = []

    def run() -> None:
        for spare in (True, False):
            worker = Worker(Job(answer, (), Options(), cpus=(cpu,), fifo_priority=7), said.append)
            lookout = Lookout()
            worker.prepare(spare)
            assert asked == ([] if spare else [7])
            options = Options(lanes=1, pages="4k")
            with InferenceServer(address_of("unix", tmp_path), SCHEMA, options=options) as server:
                server.stop()
                worker.serve(server, lookout)
                assert asked == [7]
                assert worker._status(server)["cpus"]["refused"] == ["scheduler SCHED_FIFO 7: not here"]
            lookout.stop()
            asked.clear()
        assert len([text for text in said if "SCHED_FIFO 7" in text]) == 2

    # Pinned for good: not this process.
    with child(run) as pid:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize(
    ("bound", "nodes", "kept"),
    [(True, {0: 8}, True), (True, {1: 8}, False), (False, {1: 8}, True), (True, {-14: 8}, True), (True, {}, True)],
)
def test_memory_that_could_not_be_bound(bound: bool, nodes: dict[int, int], kept: bool) -> None:
    """Where the kernel bound nothing, or does not say where pages lie, new memory would be no better."""
    made = Domain.create(SCHEMA, 1, pages="4k")
    try:
        made.segment.report = PageReport("4k", made.segment.geometry.size, 0, nodes, bound)
        assert (_kept._other(made.segment, SCHEMA, 1, "auto") == "") is kept
    finally:
        made.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_descriptors_run_out(transport: str, tmp_path: Path) -> None:
    """A server that can accept nobody for the moment serves those it has, wastes no CPU, and accepts again later."""
    ready, tell = os.pipe()
    go, wait = os.pipe()

    def run() -> None:
        options = Options(lanes=2, pages="4k", spin_ns=0)
        with InferenceServer(address_of(transport, tmp_path), SCHEMA, options=options) as server:
            os.write(tell, f"{server.addresses[0]}\n".encode())
            thread = threading.Thread(target=server.serve, args=(answer,))
            thread.start()
            os.read(go, 1)
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            # Where the next descriptor would be.
            free = os.dup(0)
            os.close(free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
            os.write(tell, b"short\n")
            os.read(go, 1)
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))
            time.sleep(30)

    with child(run) as pid, open(ready, encoding="ascii") as told:
        where = told.readline().strip()
        with InferenceClient(where, timeout=10) as client:
            client.infer(request(1))
            os.write(wait, b"x")
            assert told.readline() == "short\n"
            later: list[InferenceClient] = []
            thread = threading.Thread(target=lambda: later.append(InferenceClient(where, timeout=10)))
            thread.start()
            time.sleep(0.2)
            before = cpu_seconds(pid)
            time.sleep(1)
            assert cpu_seconds(pid) - before < 0.3
            client.infer(request(1))
            os.write(wait, b"x")
            thread.join()
            later[0].infer(request(1))
            later[0].close()
    for fd in (tell, go, wait):
        os.close(fd)


def test_no_descriptors_for_doorbells() -> None:
    """A domain that cannot be made whole leaves nothing behind, and says what there is too little of."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 40, hard))
    try:
        with pytest.raises(KernelError, match="doorbells of 40 lanes"):
            Domain.create(SCHEMA, 40, pages="4k")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(os.listdir("/proc/self/fd")) == before


def test_as_many_descriptors_as_allowed(tmp_path: Path) -> None:
    """`serve` takes what the hard limit gives: three descriptors for each lane are more than the usual soft one."""

    def run() -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, min(hard, 4096)))
        main(["serve", "--address", f"shm://{tmp_path}/server", "--pages", "4k", "--lanes", "64"])

    with child(run) as pid:
        assert eventually(lambda: os.path.exists(tmp_path / "server"), 20)
        with InferenceClient(f"shm://{tmp_path}/server"):
            assert resource.prlimit(pid, resource.RLIMIT_NOFILE)[0] > 64
        assert end(pid, signal.SIGTERM) == 0
