# SPDX-License-Identifier: Apache-2.0
"""Peers that lie, send garbage, are of another user or of another version get an error, and nobody else notices."""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import random
import resource
import select
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conftest import SLOW
from firsttouch import AsyncInferenceClient, InferenceClient, Options, _kept
from firsttouch._lanes import LANE, at
from firsttouch._shm_server import Domain
from firsttouch._systemd import Notifier
from firsttouch._transport import parse_address
from firsttouch._waiting import edges_of, ring
from firsttouch._wire import (
    ABI,
    HEADER_BYTES,
    NO_DEADLINE,
    Header,
    Hello,
    Kind,
    Status,
    control_frame,
    pack_header,
)
from firsttouch.errors import BusyError, ProtocolError, RefusedError, TransportError
from serving import SCHEMA, TRANSPORTS, address_of, check, child, request, served

SEED = int(os.environ.get("FIRSTTOUCH_SEED", "1"))
ROUNDS = 2000 if SLOW else 60


@pytest.fixture(scope="module", params=TRANSPORTS)
def where(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that all of them attack."""
    with served(address_of(request.param, tmp_path_factory.mktemp("run")), options=Options(lanes=16)) as (address, _):
        yield address


@contextlib.contextmanager
def raw(where: str) -> Iterator[socket.socket]:
    """A bare connection to a server."""
    address = parse_address(where)
    if address.scheme == "tcp":
        sock = socket.create_connection((address.host, address.port))
    else:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(address.path)
    sock.settimeout(5)
    with sock:
        yield sock


def frame(header: Header, payload: bytes = b"") -> bytes:
    """A frame with whatever HEADER says."""
    head = bytearray(HEADER_BYTES)
    pack_header(head, header)
    return bytes(head) + payload


def answer(sock: socket.socket) -> tuple[int, dict[str, object]]:
    """Kind and payload of the next control frame, kind 0 at the end of the stream."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while len(data) < 65536:
            part = sock.recv(65536)
            if not part:
                break
            data += part
            if len(data) >= HEADER_BYTES and len(data) >= HEADER_BYTES + struct.unpack_from("<I", data, 8)[0]:
                break
    if len(data) < HEADER_BYTES:
        return 0, {}
    size = struct.unpack_from("<I", data, 8)[0]
    return data[5], msgspec.msgpack.decode(data[HEADER_BYTES : HEADER_BYTES + size])


def works(where: str) -> None:
    """Raise unless an honest client is served."""
    with InferenceClient(where, timeout=5) as client:
        check(5, client.infer(request(5))[0])


def hello(where: str, **change: object) -> Hello:
    """What an honest client sends first, with CHANGE."""
    transport = "shm" if where.startswith("shm") else "stream"
    return msgspec.structs.replace(Hello(transport), **change)


GREETINGS = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b" " * 100,
    "zeros": bytes(HEADER_BYTES),
    "other version": bytes([*b"FTCH", ABI + 1]) + bytes(59),
    "not a greeting": frame(Header(Kind.REQUEST, 0, 0, 768, 1, NO_DEADLINE)),
    "huge": frame(Header(Kind.HELLO, 0, 0xFFFFFFFF, 0, 0, 0)),
    "with arrays": frame(Header(Kind.HELLO, 0, 5, 5, 0, 0), b"1234567890"),
    "empty": frame(Header(Kind.HELLO, 0, 0, 0, 0, 0)),
    "garbage": frame(Header(Kind.HELLO, 0, 9, 0, 0, 0), b"\xc1garbage!"),
    "pickle": frame(Header(Kind.HELLO, 0, 30, 0, 0, 0), b"cos\nsystem\n(S'true'\ntR.".ljust(30)),
    "no lanes": control_frame(Kind.HELLO, Hello("shm", 0)),
    "too many lanes": control_frame(Kind.HELLO, Hello("shm", 4000)),
    "another transport": control_frame(Kind.HELLO, Hello("rdma")),
    "another schema": control_frame(Kind.HELLO, Hello("stream", 1, "00" * 16)),
}


@pytest.mark.parametrize("name", GREETINGS)
def test_greetings(where: str, name: str) -> None:
    """A greeting that is none is answered with an error and a hang-up."""
    with raw(where) as sock:
        sock.sendall(GREETINGS[name])
        kind, payload = answer(sock)
        assert kind == Kind.ERROR, payload
        assert payload["text"]
        with contextlib.suppress(ConnectionError):
            assert sock.recv(1) == b""
    works(where)


def test_hang_up_in_the_greeting(where: str) -> None:
    """A peer that leaves after any byte of its greeting is forgotten."""
    data = control_frame(Kind.HELLO, hello(where))
    for length in (0, 1, HEADER_BYTES - 1, HEADER_BYTES, len(data) - 1, len(data)):
        with raw(where) as sock:
            sock.sendall(data[:length])
    works(where)


def test_greeting_in_pieces(where: str) -> None:
    """A greeting may come byte by byte."""
    with raw(where) as sock:
        for byte in control_frame(Kind.HELLO, hello(where)):
            sock.sendall(bytes([byte]))
        kind, payload = answer(sock)
    assert kind == Kind.WELCOME, payload


def test_silent_peers(where: str) -> None:
    """Who connects and says nothing keeps nobody out, and is sent away."""
    if where.startswith("tcp"):
        pytest.skip("the same code as over unix, and two seconds of waiting")
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(raw(where)) for _ in range(40)]
        works(where)
        time.sleep(2.2)
        works(where)
        deadline = time.monotonic() + 5
        for sock in socks:
            sock.settimeout(max(0.1, deadline - time.monotonic()))
            assert answer(sock)[0] in (Kind.ERROR, 0)


def greeted(where: str, stack: contextlib.ExitStack) -> socket.socket:
    """A bare connection that has greeted."""
    sock = stack.enter_context(raw(where))
    sock.sendall(control_frame(Kind.HELLO, hello(where)))
    assert answer(sock)[0] == Kind.WELCOME
    return sock


REQUEST = Header(Kind.REQUEST, Status.OK, 0, SCHEMA.request.nbytes, 1, NO_DEADLINE)
BODY = bytes(SCHEMA.request.nbytes)


@pytest.mark.parametrize(
    "data",
    [
        frame(REQUEST._replace(body_len=0)),
        frame(REQUEST._replace(body_len=SCHEMA.request.nbytes - 1), BODY),
        frame(REQUEST._replace(body_len=0xFFFFFFFF), BODY),
        frame(REQUEST._replace(meta_len=SCHEMA.max_meta_bytes + 1), BODY),
        frame(REQUEST._replace(meta_len=0xFFFFFFFF), BODY),
        frame(REQUEST._replace(status=1), BODY),
        frame(REQUEST._replace(kind=Kind.REPLY), BODY),
        frame(REQUEST._replace(kind=Kind.HELLO), BODY),
        frame(REQUEST, BODY) * 2,
        b"\0" * 2000,
    ],
)
def test_frames(where: str, data: bytes) -> None:
    """After the greeting, a frame that lies ends the connection and nothing else."""
    with contextlib.ExitStack() as stack:
        sock = greeted(where, stack)
        with contextlib.suppress(ConnectionError):
            sock.sendall(data)
            while sock.recv(65536):
                pass
    works(where)


def test_bad_metadata(where: str) -> None:
    """Metadata that cannot be read is an error for who sent it; the lane goes on."""
    with InferenceClient(where) as client, client.lane() as leased:
        lane = leased._lane
        for data in (b"\xc1", b"\x81", b"\x93\x01\x02\x03", b"\xdd\xff\xff\xff\xff"):
            lane.submit(data, 2**62)
            leased.pending = True
            with pytest.raises(ProtocolError, match="metadata"):
                leased.result()
        for name, value in request(4).items():
            leased.request[name][...] = value
        leased.infer()
        check(4, leased.reply)


def test_leaves_with_a_request(where: str) -> None:
    """A client that leaves before its answer harms nobody; nor does one that never reads."""
    for _ in range(10):
        client = InferenceClient(where, reconnect=False)
        with contextlib.suppress(TransportError), client.lane() as lane:
            lane.submit({"sleep": 0.005})
            client.close()
    works(where)


def test_fuzz(where: str) -> None:
    """Random bytes, and good streams with random changes, at every stage."""
    rng = random.Random(SEED)
    print(f"seed {SEED}")
    good = control_frame(Kind.HELLO, hello(where)) + frame(REQUEST, BODY)
    for _ in range(ROUNDS):
        data = bytearray(good)
        for _ in range(rng.choice((1, 1, 2, 8))):
            data[rng.randrange(len(data) if rng.random() < 0.3 else 160)] = rng.randrange(256)
        if rng.random() < 0.2:
            data = bytearray(rng.randbytes(rng.randrange(1, 400)))
        with raw(where) as sock, contextlib.suppress(OSError):
            sock.sendall(data[: rng.randrange(1, len(data) + 1)])
            if rng.random() < 0.3:
                sock.settimeout(0.01)
                sock.recv(4096)
    works(where)


def test_scribbles_in_its_lane(tmp_path: Path) -> None:
    """A client that writes anything into its words and rows gets errors or nonsense; others get their answers."""
    rng = random.Random(SEED)
    names = [word.name for word in LANE if word.writer == "client"]
    with served(address_of("shm", tmp_path), options=Options(lanes=4)) as (where, _):
        with InferenceClient(where, timeout=5) as honest, InferenceClient(where, reconnect=False) as evil:
            link: Any = evil._connector.session().link
            lane, segment = link.lanes[0], link.segment
            base = (lane._req * 4) - at(LANE, "req_seq")
            for number in range(ROUNDS):
                for name in names:
                    if rng.random() < 0.5:
                        word = next(item for item in LANE if item.name == name)
                        value = rng.choice((0, 1, 2**31, 2**32 - 1, rng.getrandbits(32)))
                        table = segment.words if word.size == 4 else segment.quads
                        table[(base + word.offset) // word.size] = value
                os.eventfd_write(lane._bell, 1)
                check(number, honest.infer(request(number))[0])
        works(where)


@pytest.fixture
def many_files() -> Iterator[None]:
    """As many descriptors as may be: the usual 1024 are too few for two doorbells with 500 epolls each."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= limits[1] < 2000:
        pytest.skip(f"only {limits[1]} descriptors: not all ways to wait for a doorbell can be taken")
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("depth", [1, 2])
def test_keeps_all_ways_to_wait_for_a_doorbell(depth: int, tmp_path: Path) -> None:
    """A lane whose earlier client has its doorbell in as many epolls as the kernel allows is leased to nobody."""
    with (
        contextlib.ExitStack() as stack,
        served(address_of("shm", tmp_path), options=Options(lanes=2, spin_ns=0)) as (where, _),
    ):

        def fill(edges: select.epoll) -> None:
            for _ in range(1000):
                stack.enter_context(select.epoll()).register(edges, select.EPOLLIN)

        def spoil() -> None:
            with InferenceClient(where, reconnect=False) as evil:
                lane: Any = evil._connector.session().link.lanes[0]
                edges = stack.enter_context(select.epoll.fromfd(os.dup(lane._chime)))
            for _ in range(depth - 1):
                outer = stack.enter_context(select.epoll())
                outer.register(edges, select.EPOLLIN)
                edges = outer
            with pytest.raises(OSError, match="Invalid argument"):
                fill(edges)

        async def ask() -> None:
            async with await AsyncInferenceClient.connect(where, lanes=1, timeout=5) as client:
                check(5, (await client.infer(request(5)))[0])

        spoil()
        works(where)
        asyncio.run(ask())
        spoil()
        with pytest.raises(BusyError, match=r"0 of 2 lanes are free.*doorbell of lane [01].*Invalid argument"):
            InferenceClient(where)
        stack.close()
        works(where)
        asyncio.run(ask())


def test_takes_over_a_chime_that_a_client_filled(tmp_path: Path) -> None:
    """A kept chime that a client of the release before made block and filled hangs no server; who waits is rung."""
    made = Domain.create(SCHEMA, 2, pages="4k")
    kinds = {"bell": made.bells, "chime": made.chimes}
    found = {f"{kind}.{lane}": os.dup(fd) for kind, fds in kinds.items() for lane, fd in enumerate(fds)}
    with contextlib.ExitStack() as stack:
        stack.callback(made.close)
        waits = stack.enter_context(edges_of(made.chimes[1]))
        ring(made.chimes[1])
        os.eventfd_write(made.chimes[0], 2**64 - 2)
        os.set_blocking(made.chimes[0], True)
        notifier = Notifier(f"{tmp_path}/notify")
        stack.callback(notifier.close)
        store = _kept.Store(notifier, {**found, "segment": os.dup(made.segment.fd)})
        taken = _kept.take_domain(store, SCHEMA, 2, "auto", None, print)
        assert taken
        stack.callback(taken.close)
        assert not os.get_blocking(taken.chimes[0])
        # A full one would give no edge.
        ring(taken.chimes[0])
        assert os.eventfd_read(taken.chimes[0]) < 10
        assert waits.poll(0), "who slept as the server died missed its answer"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
@pytest.mark.parametrize("transport", ["shm", "unix"])
def test_another_user(transport: str, open_folder: Path) -> None:
    """A user who is not a guest is refused by name, even if the socket's mode lets him in."""
    with served(address_of(transport, open_folder), options=Options(socket_mode=0o666)) as (where, _):

        def strange() -> None:
            os.setgid(12345)
            os.setuid(12345)
            with pytest.raises(RefusedError, match="user 12345"):
                InferenceClient(where)

        with child(strange) as pid:
            assert os.waitpid(pid, 0)[1] == 0
        works(where)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_guest(open_folder: Path) -> None:
    """A user who is a guest is served."""
    from firsttouch import Guests

    options = Options(socket_mode=0o666, guests=Guests(uids=frozenset({12345})))
    with served(address_of("shm", open_folder), options=options) as (where, _):

        def guest() -> None:
            os.setgid(12345)
            os.setuid(12345)
            works(where)

        with child(guest) as pid:
            assert os.waitpid(pid, 0)[1] == 0


def lying_server(path: str, replies: list[tuple[bytes, list[int]]]) -> None:
    """A server that answers each greeting with the next of REPLIES, bytes and descriptors."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen()
        for data, fds in replies:
            sock, _ = listener.accept()
            with sock, contextlib.suppress(OSError):
                sock.recv(65536)
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
                sock.sendmsg([data], rights)
                time.sleep(0.01)


@pytest.mark.parametrize("transport", ["shm", "unix"])
def test_a_server_that_lies(transport: str, tmp_path: Path) -> None:
    """A client of a server that sends garbage, lies about lanes or passes anything gets an error, and leaks nothing."""
    from firsttouch._wire import Geometry, Welcome

    null = os.open("/dev/null", os.O_RDWR)
    shape = Geometry(1, 32768, 4096, 1 << 20)
    welcome = Welcome(schema=SCHEMA.blob, pid=1, spin_ns=10**15, lanes=[0], geometry=shape)
    lies: list[tuple[bytes, list[int]]] = [
        (b"", []),
        (b"\0" * 100, []),
        (b"FTCH", []),
        (control_frame(Kind.HELLO, Hello("shm")), []),
        (control_frame(Kind.WELCOME, Hello("shm")), []),
        (control_frame(Kind.WELCOME, msgspec.structs.replace(welcome, schema=b"nonsense")), [null] * 3),
        (frame(Header(Kind.WELCOME, 0, 1 << 30, 0, 0, 0)), []),
    ]
    if transport == "shm":
        lies += [
            (control_frame(Kind.WELCOME, welcome), []),
            (control_frame(Kind.WELCOME, welcome), [null] * 3),
            (control_frame(Kind.WELCOME, welcome), [null] * 100),
            (control_frame(Kind.WELCOME, msgspec.structs.replace(welcome, geometry=None)), [null] * 3),
        ]
    path = f"{tmp_path}/liar"
    before = len(os.listdir("/proc/self/fd"))
    with child(lambda: lying_server(path, lies)):
        while not os.path.exists(path):
            time.sleep(0.005)
        for _ in lies:
            with pytest.raises(TransportError):
                InferenceClient(f"{transport}://{path}", timeout=3)
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(null)
