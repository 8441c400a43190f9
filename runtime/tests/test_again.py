# SPDX-License-Identifier: Apache-2.0
"""Requests that are sent again over sockets: one that waits while others kill servers is not the reason."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from firsttouch import AsyncInferenceClient, InferenceClient, InferenceServer, Options
from firsttouch._holder import Holder
from firsttouch._session import deadline
from firsttouch._sockets import read_control
from firsttouch._stream_client import StreamLane
from firsttouch._stream_server import Connection, StreamPort
from firsttouch._wire import (
    HEADER_BYTES,
    MAGIC,
    NO_DEADLINE,
    Header,
    Hello,
    Kind,
    Status,
    Welcome,
    bye_frame,
    control_frame,
    pack_header,
    taken_frame,
    unpack_header,
)
from firsttouch.errors import BrokenError, ExpiredError, ProtocolError
from serving import SCHEMA, address_of, check, child, end, eventually, handle, request, serve, served
from test_faults import Board

SOCKETS = ["unix", "tcp"]
# What a request of these tests is, and on the board which of them are not asked any more.
POISONS, INNOCENT = (1, 2), 3
DEATHS, GONE = 0, 8


def ask(where: str, number: int, meta: dict[str, Any], seconds: float = 60) -> None:
    """Ask with a client of its own, and check the answer."""
    with InferenceClient(where, timeout=seconds) as client:
        check(number, client.infer(request(number), meta)[0])


def ask_async(where: str, number: int, meta: dict[str, Any], seconds: float = 60) -> None:
    """The same in an event loop."""

    async def run() -> None:
        async with await AsyncInferenceClient.connect(where, lanes=1, timeout=seconds) as client:
            check(number, (await client.infer(request(number), meta))[0])

    asyncio.run(run())


BOTH = pytest.mark.parametrize("asks", [ask, ask_async])


# Real servers that die.


def dying(server: InferenceServer, board: Board) -> None:
    """Serve as soon as all who ask are there, poison before the innocent."""
    (port,) = server.ports
    assert isinstance(port, StreamPort)

    def number(connection: Connection) -> int:
        assert connection._header is not None
        return int.from_bytes(connection.fields[1][:8], "little")

    while len(port.whole) < sum(not board[GONE + i] for i in (*POISONS, INNOCENT)):
        server._poller.run(0.01)
    port.whole.sort(key=number)
    for batch in server.batches():
        if any((meta or {}).get("die") for meta in batch.metas):
            board[DEATHS] += 1
        handle(batch)


@BOTH
@pytest.mark.parametrize("transport", SOCKETS)
def test_innocent_waits_while_poison_is_run(transport: str, asks: Callable[..., None], tmp_path: Path) -> None:
    """Each of two poisons is given up with its third server, and what waited through all five deaths is answered."""
    board = Board()
    reader, writer = os.pipe()

    def run() -> None:
        holder = Holder(
            [address_of(transport, tmp_path)], SCHEMA, lambda server: dying(server, board), Options(lanes=8, pages="4k")
        )
        signal.signal(signal.SIGTERM, holder.stop)
        os.write(writer, holder.addresses[0].encode())
        os.close(writer)
        holder.run()

    def poison(number: int) -> None:
        with pytest.raises(BrokenError, match="hung up"):
            ask(where, number, {"die": True}, 30)

    def leaves(made: Callable[[], None], number: int) -> None:
        try:
            made()
        finally:
            board[GONE + number] = 1

    with child(run) as pid, ThreadPoolExecutor() as pool:
        os.close(writer)
        with open(reader, "rb") as file:
            where = file.read().decode()
        made = [pool.submit(leaves, partial(poison, number), number) for number in POISONS]
        made.append(pool.submit(leaves, partial(asks, where, INNOCENT, {}), INNOCENT))
        for future in made:
            future.result()
        assert board[DEATHS] == 5
        assert end(pid, signal.SIGTERM) == 0


def frames(server: socket.socket) -> Iterator[tuple[Header, int]]:
    """What a server sends, frame by frame: the header, and how many bytes follow."""
    with server.makefile("rb") as file:
        while head := file.read(HEADER_BYTES):
            header = unpack_header(head)
            yield header, len(file.read(header.meta_len + header.body_len))


def greeted(where: str) -> socket.socket:
    """A bare connection over unix that has greeted."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(where.removeprefix("unix://"))
    sock.settimeout(20)
    sock.sendall(control_frame(Kind.HELLO, Hello("stream")))
    assert read_control(sock)[0].kind == Kind.WELCOME
    return sock


def frame(header: Header, payload: bytes = b"") -> bytes:
    """A frame with whatever HEADER says."""
    head = bytearray(HEADER_BYTES)
    pack_header(head, header)
    return bytes(head) + payload


def sent(kind: Kind, sequence: int) -> bytes:
    """A request of zeros."""
    return frame(Header(kind, Status.OK, 0, SCHEMA.request.nbytes, sequence, NO_DEADLINE), bytes(SCHEMA.request.nbytes))


def test_told_before_the_handler_runs(tmp_path: Path) -> None:
    """A server says that it takes what was sent again before its handler has it, and of no other request."""
    with InferenceServer(address_of("unix", tmp_path), SCHEMA, options=Options(lanes=2, pages="4k")) as server:
        goes_on = threading.Event()

        def handler(batch: Any) -> Any:
            assert goes_on.wait(20)
            return {"act": batch.arrays["obs"][:, 0, :1].repeat(5, 1), "id": batch.arrays["id"]}

        thread = threading.Thread(target=server.serve, args=(handler,))
        thread.start()
        try:
            with greeted(server.addresses[0]) as sock:
                came = frames(sock)
                sock.sendall(sent(Kind.REQUEST_AGAIN, 7))
                header, rest = next(came)
                assert (header.kind, header.status, header.sequence, rest) == (Kind.TAKEN, Status.OK, 7, 0)
                goes_on.set()
                header, rest = next(came)
                assert (header.kind, header.sequence) == (Kind.REPLY, 7)
                sock.sendall(sent(Kind.REQUEST, 8))
                header, rest = next(came)
                assert (header.kind, header.sequence) == (Kind.REPLY, 8)
                sock.sendall(bye_frame())
                assert next(came, None) is None
        finally:
            goes_on.set()
            server.stop()
            thread.join()


class Stuffed:
    """A connection's socket that takes so many bytes more and then says ERROR."""

    def __init__(self, sock: socket.socket, room: int, error: Exception | None) -> None:
        self._sock, self._room, self._error = sock, room, error

    def send(self, _: bytes) -> int:
        if self._error is not None:
            raise self._error
        return self._room

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


@pytest.mark.parametrize(
    ("room", "error"), [(0, BlockingIOError()), (63, None), (0, BrokenPipeError()), (0, ValueError())]
)
def test_who_cannot_be_told(room: int, error: Exception | None, tmp_path: Path) -> None:
    """What a client cannot be told of is not run: its connection ends, and the server goes on."""
    with InferenceServer(address_of("unix", tmp_path), SCHEMA, options=Options(lanes=2, pages="4k")) as server:
        (port,) = server.ports
        assert isinstance(port, StreamPort)
        with ThreadPoolExecutor(1) as pool:
            greeting = pool.submit(greeted, server.addresses[0])
            assert eventually(lambda: (server._poller.run(0.01), greeting.done())[1])
            sock = greeting.result()
        with sock:
            sock.sendall(sent(Kind.REQUEST_AGAIN, 1))
            assert eventually(lambda: (server._poller.run(0.01), bool(port.whole))[1])
            (connection,) = port.whole
            connection._sock = Stuffed(connection._sock, room, error)  # type: ignore[assignment]
            assert server._take(server._ready()) is None
            assert not port._all
            assert sock.recv(1) == b""
        assert server._ready() == []


@pytest.mark.parametrize("transport", SOCKETS)
def test_lane_goes_on_after_a_request_that_was_sent_again(transport: str, tmp_path: Path) -> None:
    """Answers after TAKEN are whole, whatever comes before and after on the same connection."""
    with (
        served(address_of(transport, tmp_path)) as (where, _),
        InferenceClient(where, timeout=20) as client,
        client.lane() as leased,
    ):
        lane = leased._lane
        for number in range(20):
            again = number % 3 > 0
            lane.write(request(number))
            lane.submit(b"", deadline(20), again)
            assert lane.tried is not again
            leased.pending = True
            leased.result()
            assert lane.tried
            check(number, leased.reply)


# Servers that only say what these tests want.

WELCOME = control_frame(Kind.WELCOME, Welcome(schema=SCHEMA.blob, pid=1, spin_ns=0))
Script = Callable[[int, Header], list[bytes]]


def answer_to(header: Header) -> bytes:
    """An answer of zeros."""
    size = SCHEMA.reply.nbytes
    return frame(Header(Kind.REPLY, Status.OK, 0, size, header.sequence, NO_DEADLINE), bytes(size))


@contextlib.contextmanager
def scripted(folder: Path, script: Script) -> Iterator[tuple[str, list[Kind]]]:
    """A server at a unix socket that hangs up after what SCRIPT says to each connection's first request, by its count:
    the address, and the kinds of the requests that came.
    """
    kinds: list[Kind] = []
    path = f"{folder}/scripted"

    def run() -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                with sock, contextlib.suppress(ConnectionError):
                    sock.settimeout(20)
                    read_control(sock)
                    sock.sendall(WELCOME)
                    header, _ = next(frames(sock), (None, 0))
                    if header is None or header.kind == Kind.BYE:
                        continue
                    kinds.append(Kind(header.kind))
                    for part in script(len(kinds), header):
                        sock.sendall(part)
                        if len(part) < HEADER_BYTES:
                            time.sleep(0.0005)

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen()
        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield f"unix://{path}", kinds
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def asked(asks: Callable[..., None], where: str, seconds: float = 20) -> None:
    """Ask for zeros."""
    asks(where, 0, {}, seconds)


@BOTH
def test_what_was_not_taken_is_no_try(asks: Callable[..., None], tmp_path: Path) -> None:
    """A request comes back as often as it was sent again and not taken."""
    with scripted(tmp_path, lambda count, header: [answer_to(header)] if count == 9 else []) as (where, kinds):
        asked(asks, where)
    assert kinds == [Kind.REQUEST, *[Kind.REQUEST_AGAIN] * 8]


@BOTH
@pytest.mark.parametrize("waits", [0, 4])
def test_what_was_taken_is_a_try(waits: int, asks: Callable[..., None], tmp_path: Path) -> None:
    """A request is given up when the third server that had it dies, however often it waited in between."""

    def script(count: int, header: Header) -> list[bytes]:
        return [taken_frame(header.sequence)] if count > 1 and (count - 1) % (waits + 1) == 0 else []

    with scripted(tmp_path, script) as (where, kinds), pytest.raises(BrokenError, match="hung up"):
        asked(asks, where)
    assert kinds == [Kind.REQUEST, *[Kind.REQUEST_AGAIN] * (2 * (waits + 1))]


@BOTH
def test_never_taken_ends_with_the_deadline(asks: Callable[..., None], tmp_path: Path) -> None:
    """A server that hangs up on each request is asked until the deadline, with pauses in between."""
    began, spent = time.monotonic(), time.process_time()
    with (
        scripted(tmp_path, lambda count, header: []) as (where, kinds),
        pytest.raises((BrokenError, ExpiredError)),
    ):
        asked(asks, where, 1.0)
    took = time.monotonic() - began
    assert 0.7 < took < 10
    assert 3 < len(kinds) < 8 + took / 0.1, "pauses that are too short"
    assert time.process_time() - spent < 0.5 * took + 0.5


@BOTH
def test_never_sent_ends_with_the_deadline(
    asks: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that breaks before anything is waited for is made anew until the deadline, no longer."""
    turns = iter(range(60))

    def breaks(self: StreamLane) -> bool:
        next(turns)
        raise self._broken(None)

    monkeypatch.setattr(StreamLane, "_send", breaks)
    with served(address_of("unix", tmp_path)) as (where, _), pytest.raises(BrokenError, match="hung up"):
        asked(asks, where, 0.5)
    assert next(turns) > 5


def cut(data: bytes, size: int) -> list[bytes]:
    """DATA in pieces of SIZE bytes."""
    return [data[i : i + size] for i in range(0, len(data), size)]


@BOTH
@pytest.mark.parametrize("size", [1, 7, 63, 64, 65, 127, 128, 4096])
def test_taken_and_answer_in_pieces(size: int, asks: Callable[..., None], tmp_path: Path) -> None:
    """However the frame and the answer after it are cut or joined, the answer is whole."""

    def script(count: int, header: Header) -> list[bytes]:
        return cut(taken_frame(header.sequence) + answer_to(header), size) if count == 2 else []

    with scripted(tmp_path, script) as (where, kinds):
        asked(asks, where)
    assert kinds == [Kind.REQUEST, Kind.REQUEST_AGAIN]


@pytest.mark.parametrize("length", [1, 32, HEADER_BYTES - 1])
def test_part_of_taken_is_none(length: int, tmp_path: Path) -> None:
    """A server that died before the frame was whole had not begun."""

    def script(count: int, header: Header) -> list[bytes]:
        if count == 6:
            return [answer_to(header)]
        return [taken_frame(header.sequence)[:length]] if count > 1 else []

    with scripted(tmp_path, script) as (where, kinds):
        asked(ask, where)
    assert len(kinds) == 6


def taken(header: Header, **change: int) -> bytes:
    """A frame that says that HEADER's request is taken, with CHANGE."""
    good = unpack_header(taken_frame(header.sequence))
    return frame(good._replace(**change))


HOSTILE: dict[str, tuple[int, Callable[[Header], bytes], str]] = {
    "nothing was sent again": (1, taken, "kind 8 came where REPLY was due"),
    "twice": (2, lambda header: taken(header) * 2, "kind 8 came where REPLY was due"),
    "without end": (2, lambda header: taken(header) * 5000, "kind 8 came where REPLY was due"),
    "another request": (2, lambda header: taken(header, sequence=header.sequence + 1), "took request 2 with"),
    "arrays": (2, lambda header: taken(header, body_len=SCHEMA.reply.nbytes), r"with 0 \+ \d+ bytes"),
    "metadata": (2, lambda header: taken(header, meta_len=2**32 - 1), r"with 4294967295 \+ 0 bytes"),
}


@BOTH
@pytest.mark.parametrize("lie", HOSTILE)
def test_hostile_server(lie: str, asks: Callable[..., None], tmp_path: Path) -> None:
    """A server that says what is not so of a request that it takes is left with an error."""
    at, said, words = HOSTILE[lie]

    def script(count: int, header: Header) -> list[bytes]:
        return [said(header) + answer_to(header)] if count == at else []

    with scripted(tmp_path, script) as (where, kinds), pytest.raises(ProtocolError, match=words):
        asked(asks, where)
    assert len(kinds) == at


def test_late_answer_to_a_request_that_was_sent_again(tmp_path: Path) -> None:
    """A lane whose caller gave up is used again when TAKEN and the answer came at last."""
    with served(address_of("unix", tmp_path)) as (where, _), InferenceClient(where, timeout=20) as client:
        session = client._connector.session()
        lane = session.lease()
        assert lane is not None
        lane.write(request(1))
        lane.submit(b"", deadline(20), again=True)
        session.abandon(lane)
        check(2, client.infer(request(2))[0])
        assert client._connector.session() is session


def test_goodbye_of_another_version(tmp_path: Path) -> None:
    """Who kept a lane of shared memory over an upgrade says goodbye as its own version does, and is not refused."""
    address = address_of("shm", tmp_path)
    with InferenceServer(address, SCHEMA, options=Options(lanes=2, pages="4k")) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        try:
            with InferenceClient(address) as client:
                link: Any = client.link
                old = bytearray(bye_frame())
                old[len(MAGIC)] -= 1
                link._sock.send(old)
                assert eventually(lambda: "firsttouch_clients 0" in server.metrics())
            assert "firsttouch_refused_total 0" in server.metrics()
            assert "firsttouch_deaths_total 0" in server.metrics()
        finally:
            server.stop()
            thread.join()
