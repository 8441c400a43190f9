# SPDX-License-Identifier: Apache-2.0
"""What comes at a bad moment: a signal in a fork, an end in a reconnect, a number that is given anew."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from firsttouch import InferenceClient, Options, _holder, _session, _sockets
from firsttouch._holder import Holder
from firsttouch._links import open_link
from firsttouch._transport import Link, Poller
from firsttouch._wire import HEADER_BYTES, Hello, Kind, control_frame
from firsttouch.errors import BusyError, ClosedError, ExpiredError
from serving import SCHEMA, TRANSPORTS, address_of, check, child, end, request, serve, served


class Stopped(Holder):
    """It is told to stop while it forks its server."""

    def _fork(self, *, spare: bool) -> Any:
        made = super()._fork(spare=spare)
        self.stop()
        return made


def test_signal_to_a_server_in_its_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM that a server gets before it is Python again ends it; it need not be killed."""

    sent: list[int] = []
    kill = os.kill

    def noted(pid: int, number: int) -> None:
        sent.append(number)
        kill(pid, number)

    def run() -> None:
        # On one CPU, and with a child that may not push it aside, the holder is done before the child has begun.
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        for turn in range(1, 11):
            holder = Stopped([address_of("unix", tmp_path)], SCHEMA, serve, Options(lanes=1))
            signal.signal(signal.SIGTERM, holder.stop)
            holder.run()
            assert sent == [signal.SIGTERM] * turn

    monkeypatch.setattr(os, "kill", noted)
    monkeypatch.setattr(_holder, "_STOP_SECONDS", 20.0)
    with child(run) as pid:
        assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_close_in_a_try_that_succeeds(transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is closed while it comes back stays closed, and what was just made is."""
    made: list[Link] = []

    def closing(*args: Any) -> Link:
        made.append(open_link(*args))
        client.close()
        return made[0]

    with served(address_of(transport, tmp_path)) as (where, _):
        client = InferenceClient(where)
        monkeypatch.setattr(_session, "open_link", closing)
        with pytest.raises(ClosedError):
            client._connector.renew(client._connector.session(), _session.deadline(30))
        with pytest.raises(ClosedError):
            client._connector.session()
        assert made[0].closed  # type: ignore[attr-defined]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_close_between_tries(transport: str, tmp_path: Path) -> None:
    """A client that is closed while nobody serves tries no more."""
    with served(address_of(transport, tmp_path)) as (where, pid):
        client = InferenceClient(where)
        end(pid)
        with pytest.raises(ClosedError):
            client._connector.renew(client._connector.session(), _session.deadline(20), lambda _: client.close())


WELCOME = control_frame(Kind.WELCOME, Hello("stream", name="x" * 100))


def test_server_whose_bytes_come_just_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However soon a greeting's next byte comes, there is an end of waiting for them."""
    receive, left = _sockets.receive, iter(WELCOME)

    def drip(sock: socket.socket, count: int, with_fds: bool) -> tuple[bytes, list[int]]:
        if sock.gettimeout():
            time.sleep(0.01)
            server.send(bytes([next(left)]))
        return receive(sock, count, with_fds)

    monkeypatch.setattr(_sockets, "receive", drip)
    server, client = socket.socketpair()
    with server, client:
        client.settimeout(0.5)
        with pytest.raises(ExpiredError, match="handshake in time"):
            _sockets.read_control(client)
        assert client.gettimeout() == 0.5


def test_client_that_is_late_for_a_whole_greeting() -> None:
    """What came by the end of the time is read, though this side was not there in time."""
    server, client = socket.socketpair()
    with server, client:
        server.sendall(WELCOME)
        client.settimeout(1e-9)
        header, payload = _sockets.read_control(client)
        assert (header.kind, len(payload)) == (Kind.WELCOME, len(WELCOME) - HEADER_BYTES)


def test_no_room_to_wait_for_a_clients_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client is served though its process cannot be waited for (fs.epoll.max_user_watches): its socket can."""
    add = Poller.add

    def refuse(self: Poller, fd: int, call: Any, *events: int) -> None:
        if getattr(call, "__name__", "") == "died":
            raise OSError(errno.ENOSPC, "No space left on device")
        add(self, fd, call, *events)

    monkeypatch.setattr(Poller, "add", refuse)
    with served(address_of("unix", tmp_path)) as (where, _), InferenceClient(where, timeout=20) as client:
        check(1, client.infer(request(1))[0])


class Full:
    """An epoll that takes ROOM descriptors."""

    room = 0

    def __init__(self) -> None:
        self._real, self._taken = EPOLL(), 0

    def register(self, fd: int, events: int) -> None:
        """Raise what the kernel does when a user waits for as many as they may."""
        if self._taken == self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._taken += 1
        self._real.register(fd, events)

    def close(self) -> None:
        self._real.close()


EPOLL = select.epoll


@pytest.mark.parametrize(
    ("transport", "room"), [("shm", 0), ("shm", 1), ("shm", 2), ("unix", 0), ("unix", 1), ("tcp", 0)]
)
def test_no_room_to_wait_for_a_server(
    transport: str, room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that may wait for no further descriptor says so in an error of its own, and leaves none open."""
    with served(address_of(transport, tmp_path)) as (where, _):
        with monkeypatch.context() as full:
            full.setattr(Full, "room", room)
            full.setattr(select, "epoll", Full)
            with pytest.raises(BusyError, match="cannot be waited for: No space left"):
                InferenceClient(where)
        with InferenceClient(where, timeout=20) as client:
            check(1, client.infer(request(1))[0])


def test_number_given_anew_within_a_round() -> None:
    """What was ready of a descriptor is not told to the next one that has its number."""
    poller = Poller()
    fds = [os.eventfd(1) for _ in range(2)]
    told: list[str] = []

    kept: list[int] = []

    def replace(fd: int, other: int) -> None:
        """End the OTHER one, and begin a third, of which nothing is ready, under its number."""
        poller.drop(other)
        fresh = os.eventfd(0)
        os.dup2(fresh, other)
        os.close(fresh)
        poller.add(other, lambda _: told.append("third"))
        told.append("first")
        kept.append(fd)

    try:
        for fd, other in zip(fds, reversed(fds), strict=True):
            poller.add(fd, lambda _, fd=fd, other=other: replace(fd, other))  # type: ignore[misc]
        assert poller.run(20)
        assert told == ["first"]
        for fd in fds:
            os.eventfd_write(fd, 1)
        poller.drop(kept[0])
        assert poller.run(20)
        assert told == ["first", "third"]
    finally:
        poller.close()
        for fd in fds:
            os.close(fd)
