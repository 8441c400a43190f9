# SPDX-License-Identifier: Apache-2.0
"""No wake-up is lost, nobody burns a core, and a machine without the store order is refused."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from conftest import SLOW
from firsttouch import InferenceClient, Options, _linux, _waiting, server
from firsttouch._waiting import Fence, check_machine, fence, hush, new_doorbell, ring
from firsttouch.errors import BrokenError, UnsupportedError
from serving import SCHEMA, TRANSPORTS, address_of, check, child, eventually, request, served

HANDSHAKES = 1_000_000 if SLOW else 5_000
# Longer than any pause of the scheduler, much shorter than the net.
LOST_SECONDS = 4.0


def test_fence() -> None:
    """This process can have a barrier, or says why not."""
    found = fence()
    assert found is fence()
    assert found.always_ring == (found.barrier is None)
    if found.barrier is not None:
        found.barrier()


@pytest.mark.parametrize("machine", ["aarch64", "ppc64le", "riscv64"])
def test_other_machines(machine: str) -> None:
    """Shared memory is refused where stores may pass each other, with what to use instead."""
    with pytest.raises(UnsupportedError, match=f"{machine}.*unix://"):
        check_machine(machine)


def test_no_membarrier(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that refuses membarrier is served by ringing always, and that is said."""

    def refuse(_: object) -> int:
        raise PermissionError(1, "seccomp says no")

    monkeypatch.setattr(_linux, "membarrier", refuse)
    fence.cache_clear()
    try:
        found = fence()
    finally:
        fence.cache_clear()
    assert found.always_ring
    assert "every message rings" in found.reason


def test_doorbell() -> None:
    """A bell rings until it is hushed, however often it was rung; both never block."""
    bell = new_doorbell()
    try:
        hush(bell)
        for _ in range(3):
            ring(bell)
        os.eventfd_write(bell, 2**64 - 2 - 3)
        ring(bell)
        hush(bell)
        hush(bell)
    finally:
        os.close(bell)


@pytest.mark.parametrize("rule", ["membarrier", "always ring"])
def test_no_wakeup_is_lost(rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides sleep before each message, without the net under them; each is woken."""
    if rule == "always ring":
        monkeypatch.setattr(_waiting, "fence", lambda: Fence(None, "test"))
        for module in ("_shm_client", "_shm_server"):
            monkeypatch.setattr(f"firsttouch.{module}.fence", lambda: Fence(None, "test"))
    elif fence().always_ring:
        pytest.skip(fence().reason)
    monkeypatch.setattr(server, "NET_SECONDS", 3 * LOST_SECONDS)
    count = HANDSHAKES if rule == "membarrier" else HANDSHAKES // 5
    with contextlib.ExitStack() as stack:
        options = Options(lanes=1, spin_ns=0)
        where, _ = stack.enter_context(served(address_of("shm", tmp_path), options=options))
        client = stack.enter_context(InferenceClient(where))
        lane = stack.enter_context(client.lane())._lane
        lane.request["obs"][...] = 3
        lane.request["id"][...] = 3
        for _ in range(count):
            began = time.monotonic()
            lane.submit(b"", 2**63)
            while not lane.arm():
                lane.sleep(3 * LOST_SECONDS)
                if lane.ready():
                    break
            lane.disarm()
            assert time.monotonic() - began < LOST_SECONDS, "a wake-up was lost"
        check(3, lane.reply)


def test_bell_that_the_owner_before_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads a bell's count back; a bell that was filled up wakes the server for the lane's next owner."""
    monkeypatch.setattr(server, "NET_SECONDS", 3 * LOST_SECONDS)
    options = Options(lanes=1, spin_ns=0)
    with served(address_of("shm", tmp_path), options=options) as (where, _):
        with InferenceClient(where) as client, client.lane() as lane:
            inner: Any = lane._lane
            os.eventfd_write(inner._bell, 2**64 - 2)
        for _ in range(3):
            with InferenceClient(where) as client:
                began = time.monotonic()
                check(1, client.infer(request(1))[0])
                assert time.monotonic() - began < LOST_SECONDS
                time.sleep(0.05)


def test_copy_and_wake_up_at_once(tmp_path: Path) -> None:
    """A server that sleeps is rung before the arrays are copied; a lane of a closed client rings nobody."""
    with served(address_of("shm", tmp_path), options=Options(lanes=1)) as (where, pid):
        with InferenceClient(where) as client, client.lane() as leased:
            lane: Any = leased._lane
            words, sleeping = lane._words, lane._srv_sleep

            def stopped_asleep() -> bool:
                """The server is stopped where it says that it sleeps: an edge that it did not see yet wakes it for
                a moment."""
                os.kill(pid, signal.SIGSTOP)
                assert eventually(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
                if words[sleeping] != 1:
                    os.kill(pid, signal.SIGCONT)
                return bool(words[sleeping] == 1)

            lane.write(request(2))
            leased.infer()
            check(2, leased.reply)
            assert eventually(stopped_asleep)
            hush(lane._bell)
            lane.write(request(1))
            assert os.eventfd_read(lane._bell) == 1
            os.kill(pid, signal.SIGCONT)
            leased.infer()
            check(1, leased.reply)
        assert eventually(lambda: words[sleeping] == 1)
        # It may be another client's by now.
        with pytest.raises(BrokenError):
            lane.write(request(1))
        with pytest.raises(BrokenError):
            lane.submit(b"", 2**63)


def cpu_seconds(pid: int) -> float:
    """CPU time of process PID."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_idle_server_sleeps(transport: str, tmp_path: Path) -> None:
    """A server without requests takes no CPU time, with or without clients."""
    with served(address_of(transport, tmp_path)) as (where, pid), InferenceClient(where) as client:
        for number in range(20):
            check(number, client.infer(request(number))[0])
        time.sleep(0.1)
        before = cpu_seconds(pid)
        time.sleep(0.6)
        assert cpu_seconds(pid) - before <= 0.05


def test_waiting_client_sleeps(tmp_path: Path) -> None:
    """A client whose answer takes long takes no CPU time either."""
    with served(address_of("shm", tmp_path)) as (where, _), InferenceClient(where) as client:
        check(1, client.infer(request(1))[0])
        before = time.process_time()
        client.infer(request(1), {"sleep": 0.5})
        assert time.process_time() - before < 0.1


def test_many_clients_none_starved(tmp_path: Path) -> None:
    """Sixteen clients on one CPU are all served."""
    clients, seconds = 16, 3.0 if SLOW else 1.0
    from test_faults import ANSWERS, WRONG, Board, load

    board = Board()
    cpu = min(os.sched_getaffinity(0))

    def one(where: str, i: int) -> None:
        os.sched_setaffinity(0, {cpu})
        load(where, board, i)

    with contextlib.ExitStack() as stack:
        where, _ = stack.enter_context(served(address_of("shm", tmp_path), options=Options(lanes=16)))
        for i in range(clients):
            stack.enter_context(child(partial(one, where, i)))
        assert eventually(lambda: all(board[ANSWERS + i] for i in range(clients)), 20)
        before = [board[ANSWERS + i] for i in range(clients)]
        time.sleep(seconds)
        done = [board[ANSWERS + i] - before[i] for i in range(clients)]
        assert not board[WRONG]
    assert min(done) > 0
    # They share one CPU and a host that may be busy with other things: fair within a wide bound.
    assert min(done) * 20 > sum(done) / clients, done


def test_stop_wakes(tmp_path: Path) -> None:
    """stop() from another thread and from a signal ends a sleeping server soon."""
    with server.InferenceServer(address_of("shm", tmp_path), SCHEMA) as made:
        timer = threading.Timer(0.05, made.stop)
        timer.start()
        began = time.monotonic()
        assert list(made.batches()) == []
        assert time.monotonic() - began < 5
        timer.join()
    with served(address_of("shm", tmp_path)) as (_, pid):
        os.kill(pid, signal.SIGTERM)
        assert os.waitpid(pid, 0)[1] == 0
