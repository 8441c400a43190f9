# SPDX-License-Identifier: Apache-2.0
"""Mishaps that must cost one request at most: late answers, forks that fail, descriptors that run out, lone bytes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import test_faults
from firsttouch import InferenceClient, InferenceServer, Options, _holder, _keeper
from firsttouch import _session as session
from firsttouch import client as client_module
from firsttouch._holder import Holder
from firsttouch._lanes import LANE, at
from firsttouch._shm_server import ShmPort
from firsttouch._stream_server import StreamPort
from firsttouch._transport import Poller
from firsttouch._waiting import hush
from firsttouch._wire import Hello, Kind, Status, control_frame
from firsttouch.cli import _ask_for_metrics
from firsttouch.client import AsyncInferenceClient
from firsttouch.errors import BrokenError, BusyError, ExpiredError, HandlerError, TransportError
from serving import SCHEMA, TRANSPORTS, address_of, check, child, end, eventually, request, serve, served
from test_faults import ASKED, SERVER, Board, children, held, succeeded


@contextlib.contextmanager
def serving(addresses: list[str], **chosen: Any) -> Iterator[tuple[InferenceServer, threading.Thread]]:
    """A server of this process and its thread."""
    options = Options(lanes=4, pages="4k", **chosen.pop("options", {}))
    with InferenceServer(addresses, SCHEMA, options=options, **chosen) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        try:
            yield server, thread
        finally:
            server.stop()
            thread.join()


def both(folder: Path) -> list[str]:
    """A shm and a unix address."""
    return [f"shm://{folder}/a", f"unix://{folder}/b"]


@pytest.mark.parametrize("max_batch", [1, 2])
def test_two_ports(max_batch: int, tmp_path: Path) -> None:
    """Requests at two addresses at the same time, and a batch that is full before the second is looked at."""

    def load(where: str) -> None:
        with InferenceClient(where, lanes=2, timeout=5) as client:
            for number in range(20):
                check(number, client.infer(request(number), {"sleep": 0.002})[0])
                done.append(where)

    done: list[str] = []
    with serving(both(tmp_path), max_batch=max_batch) as (_, thread):
        clients = [threading.Thread(target=load, args=(where,)) for where in both(tmp_path) * 2]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        assert thread.is_alive()
    assert len(done) == 80


@pytest.mark.parametrize("transport", ["shm", "unix"])
def test_suspect_is_taken_alone(transport: str, tmp_path: Path) -> None:
    """What was under way when a server died shares its batch with nothing of another address either."""
    with contextlib.ExitStack() as stack:
        server, thread = stack.enter_context(serving(both(tmp_path)))
        lanes = []
        for where in both(tmp_path):
            client = stack.enter_context(InferenceClient(where))
            check(1, client.infer(request(1))[0])
            lanes.append(stack.enter_context(client.lane()))
        server.stop()
        thread.join()
        for first in range(2):
            for lane in lanes:
                lane._lane.submit(b"", 2**63)
            shm, unix = sorted(server._ports, key=lambda port: port.address.scheme)
            assert isinstance(shm, ShmPort)
            assert isinstance(unix, StreamPort)
            assert eventually(partial(_arrived, server._poller, unix))
            if transport == "shm":
                shm._suspects = [slot for slot in shm._slots if slot._words[slot.req] != slot.seen]
            else:
                unix.whole[0].again = True
            server._ports = [unix, shm] if first else [shm, unix]
            taken = []
            for _ in lanes:
                (slot,) = server._ready()
                slot.accept()
                slot.finish(Status.OK, b"")
                taken.append(slot)
            assert len({id(slot) for slot in taken}) == 2
            assert eventually(lambda: all(lane.done() for lane in lanes))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_late_lane_and_a_new_server(transport: str, tmp_path: Path) -> None:
    """When all lanes wait for late answers and the server is replaced, the client comes back at once."""
    with served(address_of(transport, tmp_path)) as (where, pid), InferenceClient(where) as client:
        with pytest.raises(ExpiredError):
            client.infer(request(1), {"sleep": 5}, timeout=0.1)
        end(pid)
        with served(where) as (_, second):
            check(2, client.infer(request(2), timeout=5)[0])
            with pytest.raises(ExpiredError):
                client.infer(request(1), {"sleep": 5}, timeout=0.1)
            end(second)
        with served(where):
            with pytest.raises(BrokenError), client.lane(timeout=5):
                pass
            with client.lane(timeout=5) as lane:
                for name, array in request(3).items():
                    lane.request[name][...] = array
                lane.infer()
                check(3, lane.reply)
            assert client.reconnects == 2


def test_late_lane_and_a_new_server_async(tmp_path: Path) -> None:
    """The same for asyncio."""

    async def run(where: str, pid: int) -> None:
        async with await AsyncInferenceClient.connect(where, lanes=1) as client:
            with pytest.raises(ExpiredError):
                await client.infer(request(1), {"sleep": 5}, timeout=0.1)
            end(pid)
            with served(where):
                check(2, (await client.infer(request(2), timeout=5))[0])

    with served(address_of("shm", tmp_path)) as (where, pid):
        asyncio.run(run(where, pid))


class Unlucky(Holder):
    """Its first spare dies before it is told to serve."""

    lucky = False

    def _start(self) -> None:
        if self._spare is not None and not self.lucky:
            self.lucky = True
            os.kill(self._spare.pid, signal.SIGKILL)
            select.select([self._spare.pidfd], [], [])
        super()._start()


def test_spare_dies_with_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder outlives a spare that is dead when it is needed, and forks another server."""
    monkeypatch.setattr(test_faults, "Holder", Unlucky)
    board = Board()
    address, options = address_of("shm", tmp_path), Options(lanes=2)
    with held(address, board, options) as (where, holder), InferenceClient(where, timeout=10) as client:
        check(1, client.infer(request(1))[0])
        assert eventually(lambda: len(children(holder)) == 2)
        os.kill(board[SERVER], signal.SIGKILL)
        check(2, client.infer(request(2))[0])
        assert client.reconnects == 0


class NoProcesses(Holder):
    """The kernel gives it no process at some of the times it asks for one, or no descriptor for it."""

    calls = 0
    refused: tuple[int, ...] = ()
    call = "fork"

    def _fork(self, *, spare: bool) -> Any:
        type(self).calls += 1
        if self.calls not in self.refused:
            return super()._fork(spare=spare)
        where: Any = self._poller if self.call == "add" else os
        before = getattr(where, self.call)

        def refuse(*_: object) -> int:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

        setattr(where, self.call, refuse)
        try:
            return super()._fork(spare=spare)
        finally:
            setattr(where, self.call, before)


@pytest.mark.parametrize("call", ["pipe", "fork", "pidfd_open", "add"])
def test_no_process(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork that fails is tried again; the memory and its clients stay."""
    monkeypatch.setattr(test_faults, "Holder", NoProcesses)
    monkeypatch.setattr(_holder, "_LONGEST_PAUSE_SECONDS", 0.2)
    # The server; its spare twice in vain; a spare; that serves, and the spare after it is refused too; the next server.
    monkeypatch.setattr(NoProcesses, "call", call)
    monkeypatch.setattr(NoProcesses, "refused", (2, 3, 5, 6))
    board = Board()
    with held(address_of("shm", tmp_path), board, Options(lanes=2)) as (where, holder):
        with InferenceClient(where, timeout=10) as client:
            for number in range(3):
                check(number, client.infer(request(number))[0])
                if number == 0:
                    # The spare is there at last.
                    assert eventually(lambda: len(children(holder)) == 2)
                os.kill(board[SERVER], signal.SIGKILL)
            check(9, client.infer(request(9))[0])
            assert client.reconnects == 0
        assert eventually(lambda: len(children(holder)) == 2)
        # Those of this process, the one that held() reads, two through which it hears of signals, and the spare's.
        assert eventually(lambda: _pipes(holder) == _pipes(os.getpid()) + 4), "a spare's pipe is left"


def _pipes(pid: int) -> int:
    """How many ends of pipes a process has."""
    folder = f"/proc/{pid}/fd"
    found = 0
    for fd in os.listdir(folder):
        # That of the folder is gone by now.
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(f"{folder}/{fd}").startswith("pipe:")
    return found


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_child_ends_by_itself(transport: str, tmp_path: Path) -> None:
    """A server that is told to end takes nothing away that its holder keeps: new clients find the next one."""
    board = Board()
    with held(address_of(transport, tmp_path), board, Options(lanes=4)) as (where, _):
        for number in range(2):
            with InferenceClient(where) as client:
                check(number, client.infer(request(number))[0])
            old = board[SERVER]
            os.kill(old, signal.SIGTERM)
            assert eventually(succeeded(board, old))
        with InferenceClient(where) as client:
            check(5, client.infer(request(5))[0])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_text_that_is_no_text(transport: str, tmp_path: Path) -> None:
    """A handler that fails with bytes of no encoding (of a file's name, say) fails its own request only."""

    def handler(batch: object) -> Any:
        raise FileNotFoundError("/models/\udcff")

    with InferenceServer(address_of(transport, tmp_path), SCHEMA, options=Options(lanes=2, pages="4k")) as server:
        thread = threading.Thread(target=server.serve, args=(handler,))
        thread.start()
        try:
            with InferenceClient(server.addresses[0], timeout=3) as client:
                for _ in range(2):
                    with pytest.raises(HandlerError, match=r"FileNotFoundError: /models/\?"):
                        client.infer(request(1))
        finally:
            server.stop()
            thread.join()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_many_wait_when_the_server_dies(transport: str, tmp_path: Path) -> None:
    """Each of the threads that share a client gets its answer from the next server, whoever comes back first."""

    def ask(number: int) -> None:
        check(number, client.infer(request(number), {"sleep": 0.2}, timeout=20)[0])
        done.append(number)

    with contextlib.ExitStack() as stack:
        where, pid = stack.enter_context(served(address_of(transport, tmp_path)))
        client = stack.enter_context(InferenceClient(where, lanes=4))
        for _ in range(3):
            done: list[int] = []
            threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            time.sleep(0.1)
            end(pid)
            _, pid = stack.enter_context(served(where))
            for thread in threads:
                thread.join()
            assert sorted(done) == [0, 1, 2, 3]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_many_wait_async(transport: str, tmp_path: Path) -> None:
    """The same for asyncio, whose loop must not take a descriptor of the next connection for one of the last."""

    async def run(stack: contextlib.ExitStack) -> None:
        where, pid = stack.enter_context(served(address_of(transport, tmp_path)))
        async with await AsyncInferenceClient.connect(where, lanes=4) as client:
            for _ in range(4):
                asked = [
                    asyncio.ensure_future(client.infer(request(number), {"sleep": 0.1}, timeout=5))
                    for number in range(4)
                ]
                await asyncio.sleep(0.05)
                end(pid)
                _, pid = stack.enter_context(served(where))
                for number, answer in enumerate(await asyncio.gather(*asked)):
                    check(number, answer[0])

    with contextlib.ExitStack() as stack:
        asyncio.run(run(stack))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_close_while_others_wait(transport: str, tmp_path: Path) -> None:
    """Who waits in another thread for a client that is closed gets BrokenError, soon."""
    caught: list[BaseException] = []

    def ask() -> None:
        try:
            client.infer(request(1), {"sleep": 3}, timeout=20)
        except BaseException as error:  # noqa: BLE001  looked at below
            caught.append(error)

    with served(address_of(transport, tmp_path)) as (where, _):
        client = InferenceClient(where, lanes=2, reconnect=False)
        threads = [threading.Thread(target=ask) for _ in range(3)]
        session = client._connector.session()
        for thread in threads:
            thread.start()
        assert eventually(lambda: not session.free and session._waiters == 1)
        client.close()
        for thread in threads:
            thread.join(2)
            assert not thread.is_alive()
    assert [type(error) for error in caught] == [BrokenError] * 3


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_nothing_more_can_be_waited_for(transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose user may wait for no further descriptor (fs.epoll.max_user_watches) serves those it has."""
    short, add = threading.Event(), Poller.add

    def refuse(*args: Any) -> None:
        if short.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        add(*args)

    monkeypatch.setattr(Poller, "add", refuse)
    with serving([address_of(transport, tmp_path)]) as (server, thread):
        (where,) = server.addresses
        with InferenceClient(where, timeout=5) as client:
            check(1, client.infer(request(1))[0])
            short.set()
            for _ in range(2):
                with pytest.raises(BusyError, match="cannot be waited for"):
                    InferenceClient(where)
            check(2, client.infer(request(2))[0])
            short.clear()
            with InferenceClient(where, timeout=5) as other:
                check(3, other.infer(request(3))[0])
        assert thread.is_alive()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_patience_of_others(transport: str, tmp_path: Path) -> None:
    """A thread with little time does not wait for one with more that tries to reach the server again."""

    def patient() -> None:
        with contextlib.suppress(TransportError):
            client.infer(request(1), timeout=5)

    with served(address_of(transport, tmp_path)) as (where, pid), InferenceClient(where, lanes=2) as client:
        end(pid)
        thread = threading.Thread(target=patient)
        thread.start()
        assert eventually(client._connector._lock.locked)
        began = time.monotonic()
        with pytest.raises(ExpiredError, match=r"process \d+ is gone|tcp.* is gone"):
            client.infer(request(2), timeout=0.5)
        assert time.monotonic() - began < 3
        thread.join()


def test_server_that_welcomes_byte_by_byte(tmp_path: Path) -> None:
    """A client's patience is for the greeting as a whole, however a server stretches it."""

    def drip() -> None:
        sock, _ = listener.accept()
        for byte in control_frame(Kind.WELCOME, Hello("stream", name="x" * 100)):
            sock.send(bytes([byte]))
            time.sleep(0.2)

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, contextlib.ExitStack() as stack:
        listener.bind(f"{tmp_path}/drip")
        listener.listen()
        stack.enter_context(child(drip))
        began = time.monotonic()
        with pytest.raises(ExpiredError, match="handshake in time"):
            InferenceClient(f"unix://{tmp_path}/drip", timeout=1)
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_no_patience(transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timeout of 0 is an attempt to connect, and requests that are late at once."""
    monkeypatch.setattr(client_module, "SHORTEST_TRY_SECONDS", 20.0)
    with served(address_of(transport, tmp_path)) as (where, _), InferenceClient(where, timeout=0) as client:
        with pytest.raises(ExpiredError):
            client.infer(request(1))
        check(1, client.infer(request(1), timeout=10)[0])


def test_close_while_a_client_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that looks after clients ends only when it was asked to, however late the asking is done."""

    class Slow:
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def eventfd_write(self, fd: int, value: int) -> None:
            client.close()
            time.sleep(0.3)
            os.eventfd_write(fd, value)

    with InferenceServer(address_of("shm", tmp_path), SCHEMA, options=Options(lanes=1, pages="4k")) as server:
        client = InferenceClient(server.addresses[0])
        monkeypatch.setattr(_keeper, "os", Slow())


def test_metrics_of_a_server_that_has_just_died() -> None:
    """A signal that comes before the holder knows that the server is gone does not end the holder."""
    with child(lambda: None) as pid:
        os.waitpid(pid, 0)
        _ask_for_metrics(pid)
        _ask_for_metrics(0)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_close_while_others_wait_for_a_lane(transport: str, tmp_path: Path) -> None:
    """Who waits for a lane of a client that is closed is told at once, though nobody gives one back."""
    caught: list[BaseException] = []

    def ask() -> None:
        try:
            client.infer(request(1), timeout=30)
        except BaseException as error:  # noqa: BLE001  looked at below
            caught.append(error)

    with served(address_of(transport, tmp_path)) as (where, _):
        client = InferenceClient(where, reconnect=False)
        with client.lane():
            thread = threading.Thread(target=ask)
            thread.start()
            session = client._connector.session()
            assert eventually(lambda: session._waiters == 1)
            client.close()
            thread.join(5)
            assert not thread.is_alive()
        assert [type(error) for error in caught] == [BrokenError]


def test_write_into_a_closed_lane(tmp_path: Path) -> None:
    """A lane of a client that is closed may be another one's: nothing is written there any more."""
    with served(address_of("shm", tmp_path), options=Options(lanes=1)) as (where, _):
        client = InferenceClient(where, reconnect=False)
        with client.lane() as lane:
            closed: Any = lane._lane
            client.close()
            assert eventually(lambda: closed._words[_owner_of(closed)] == 0)
            with InferenceClient(where) as second, second.lane() as other:
                for name, value in request(7).items():
                    other.request[name][...] = value
                # The same memory.
                assert (closed.request["obs"] == 7).all()
                before = closed._words[closed._req]
                with pytest.raises(BrokenError):
                    closed.write(request(1))
                with pytest.raises(BrokenError):
                    closed.submit(b"", 2**63)
                assert closed._words[closed._req] == before
                other.infer()
                check(7, other.reply)


def _arrived(poller: Poller, unix: StreamPort) -> bool:
    """Whether a whole request is there, after a look for more."""
    poller.run(0.01)
    return bool(unix.whole)


def _owner_of(lane: Any) -> int:
    """The index of the word that says whose LANE is."""
    return int(lane._req) + (at(LANE, "owner_pid") - at(LANE, "req_seq")) // 4


def _block(lane: Any) -> None:
    """Make the doorbells of LANE block, for all who share them."""
    for fd in (lane._bell, lane._chime):
        os.set_blocking(fd, True)


def _fill(doorbell: int) -> None:
    """Have DOORBELL full, again and again: a write to it waits then."""
    free = select.poll()
    free.register(doorbell, select.POLLOUT)
    while True:
        with contextlib.suppress(OSError):
            if free.poll(0):
                os.eventfd_write(doorbell, 2**64 - 2)


def _ask_asleep(lane: Any, board: Board) -> None:
    """Ask without end, and say each time that this client sleeps, so that it is rung."""
    while True:
        lane._words[lane._sleep] = 1
        lane.submit(b"", 2**63)
        while not lane.ready():
            os.sched_yield()
        board[ASKED] += 1


@pytest.mark.parametrize("spin_ns", [0, 50_000])
def test_doorbell_that_is_filled_up_again(spin_ns: int, tmp_path: Path) -> None:
    """A client that makes its doorbell block and keeps it full while it is rung does not hang the server."""
    options = Options(lanes=2, spin_ns=spin_ns)
    board = Board()
    with contextlib.ExitStack() as stack:
        where, _ = stack.enter_context(served(address_of("shm", tmp_path), options=options))
        honest = stack.enter_context(InferenceClient(where, timeout=5))
        evil = stack.enter_context(InferenceClient(where, reconnect=False))
        lane: Any = evil._connector.session().link.lanes[0]
        # Children get nothing of a client: they are made of its lane while the hook of fork() does not see that.
        session._open_sessions.discard(evil._connector.session())
        _block(lane)
        stack.enter_context(child(lambda: _fill(lane._chime)))
        stack.enter_context(child(lambda: _ask_asleep(lane, board)))
        number = 0
        end_at = time.monotonic() + 30
        while board[ASKED] < 20_000 and time.monotonic() < end_at:
            number += 1
            check(number, honest.infer(request(number))[0])
        assert board[ASKED] > 100


def test_lane_whose_owner_filled_its_doorbells(tmp_path: Path) -> None:
    """A client that leaves with doorbells that are full and block harms neither server nor the lane's next owner."""
    options = Options(lanes=1, spin_ns=0)
    with served(address_of("shm", tmp_path), options=options) as (where, _):
        with InferenceClient(where) as client, client.lane() as lane:
            inner: Any = lane._lane
            _block(inner)
            with contextlib.suppress(OSError):
                os.eventfd_write(inner._chime, 2**64 - 2)
            # It says that it sleeps, so that it is rung.
            inner.arm()
            inner.submit(b"", 2**63)
            assert eventually(lane.done)
            os.set_blocking(inner._bell, False)
            hush(inner._bell)
            os.eventfd_write(inner._bell, 2**64 - 2)
            os.set_blocking(inner._bell, True)
        assert eventually(lambda: _leased(where))


def _leased(where: str) -> bool:
    """Whether the lane can be had, and works, asleep as well."""
    with contextlib.suppress(BusyError), InferenceClient(where, timeout=3) as client:
        for number in range(3):
            check(number, client.infer(request(number))[0])
            time.sleep(0.02)
        return True
    return False
