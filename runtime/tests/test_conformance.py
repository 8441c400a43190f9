# SPDX-License-Identifier: Apache-2.0
"""Every behaviour that a user sees, over every transport."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from firsttouch import AsyncInferenceClient, InferenceClient, InferenceServer, Options, Schema
from firsttouch.errors import (
    BrokenError,
    BusyError,
    ClosedError,
    ExpiredError,
    HandlerError,
    SchemaError,
    TooLargeError,
)
from serving import SCHEMA, TRANSPORTS, address_of, check, end, eventually, held, request, serve, served


@pytest.fixture(scope="module", params=TRANSPORTS)
def where(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that all tests of a transport share."""
    with served(address_of(request.param, tmp_path_factory.mktemp("run"))) as (address, _):
        yield address


@pytest.fixture
def client(where: str) -> Iterator[InferenceClient]:
    """A client of it with two lanes."""
    with InferenceClient(where, lanes=2, timeout=10) as made:
        yield made


@pytest.fixture(params=TRANSPORTS)
def private(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An address that no other test uses."""
    return address_of(request.param, tmp_path)


def test_round_trip(client: InferenceClient) -> None:
    """Arrays and metadata come back, and belong to the request."""
    for number in range(50):
        arrays, meta = client.infer(request(number), {"n": number, "text": "ä", "list": [1, 2.5, None, True]})
        check(number, arrays)
        assert meta == {"n": number, "text": "ä", "list": [1, 2.5, None, True], "batch": 1}


def test_no_metadata(client: InferenceClient) -> None:
    """None stays None, and an empty mapping is not None."""
    assert client.infer(request(1))[1] is None
    assert client.infer(request(1), {})[1] == {"batch": 1}


def test_answer_is_a_copy(client: InferenceClient) -> None:
    """What infer() returned does not change with the next call."""
    first, _ = client.infer(request(1))
    client.infer(request(2))
    check(1, first)


def test_lane_in_place(client: InferenceClient) -> None:
    """A lane's views are written and read in place, as often as wanted."""
    with client.lane() as lane:
        for number in range(20):
            for name, value in request(number).items():
                lane.request[name][...] = value
            assert lane.infer({"n": 1}) == {"n": 1, "batch": 1}
            check(number, lane.reply)
        assert not lane.reply["act"].flags.writeable


def test_depth(where: str, tmp_path: Path) -> None:
    """Lanes of one client are under way at once, and are answered in one batch when the server is busy."""
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(InferenceClient(where, lanes=4))
        first, mark = stack.enter_context(held(client, tmp_path / "mark"))
        others = [stack.enter_context(client.lane()) for _ in range(2)]
        for number, lane in enumerate(others, 2):
            lane.request["obs"][...] = number
            lane.request["id"][...] = number
            lane.submit({})
        mark.unlink()
        sizes = [lane.result() for lane in (first, *others)]
        for number, lane in enumerate((first, *others), 1):
            check(number, lane.reply)
    assert [item["batch"] for item in sizes if item] == [1, 2, 2]


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"obs": np.zeros((64, 3), "f4")},
        {**request(1), "more": np.zeros(1)},
        {"obs": np.zeros((64, 3), "f8"), "id": np.array(1)},
        {"obs": np.zeros((64, 4), "f4"), "id": np.array(1)},
        {"obs": np.zeros((1,), "f4"), "id": np.array(1)},
        {"obs": [[0.0] * 3] * 64, "id": np.array(1)},
    ],
)
def test_arrays_that_do_not_fit(client: InferenceClient, arrays: dict[str, np.ndarray]) -> None:
    """They are refused before anything is sent; the client goes on."""
    with pytest.raises(SchemaError, match="do not fit"):
        client.infer(arrays)
    check(3, client.infer(request(3))[0])


def test_metadata_too_large(client: InferenceClient) -> None:
    """Metadata above the schema's limit is refused, what just fits is not."""
    with pytest.raises(TooLargeError):
        client.infer(request(1), {"x": "a" * 2000})
    with pytest.raises(SchemaError):
        client.infer(request(1), {"x": object()})
    assert client.infer(request(1), {"x": "a" * 1900})[1]


def test_handler_failure(client: InferenceClient) -> None:
    """What the handler raised reaches the one who asked; the server goes on."""
    with pytest.raises(HandlerError, match="no such policy"):
        client.infer(request(1), {"fail": "no such policy"})
    check(3, client.infer(request(3))[0])


def test_no_answer(client: InferenceClient) -> None:
    """A batch that the server forgot is an error, not a hang."""
    with pytest.raises(HandlerError, match="no answer"):
        client.infer(request(1), {"silent": True})


def test_deadline(client: InferenceClient) -> None:
    """A late answer is an error in time; its lane is used again, and its answer given to nobody else."""
    began = time.monotonic()
    with pytest.raises(ExpiredError):
        client.infer(request(1), {"sleep": 2.0}, timeout=0.05)
    assert time.monotonic() - began < 2.0, "it waited for the answer"
    for number in range(10, 15):
        check(number, client.infer(request(number))[0])


def test_deadline_in_the_queue(client: InferenceClient, tmp_path: Path) -> None:
    """A request whose time passed before the server took it is not run; over tcp time counts from its arrival."""
    with held(client, tmp_path / "mark") as (slow, mark), client.lane() as late:
        late.request["obs"][...] = 1
        late.request["id"][...] = 1
        late.submit({}, timeout=0.05)
        time.sleep(0.1)
        mark.unlink()
        assert slow.result()
        if client.peer.startswith("tcp"):
            assert late.result()
            return
        with pytest.raises(ExpiredError, match="before the request was taken"):
            late.result()


@pytest.mark.parametrize("transport", ["shm", "unix"])
def test_what_is_counted(transport: str, tmp_path: Path) -> None:
    """Batches by their size, the time in the queue, and what came too late, as the server's metrics tell them."""
    with InferenceServer(address_of(transport, tmp_path), SCHEMA, options=Options(lanes=4, pages="4k")) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        try:
            with contextlib.ExitStack() as stack:
                client = stack.enter_context(InferenceClient(server.addresses[0], lanes=4))
                slow, mark = stack.enter_context(held(client, tmp_path / "mark"))
                first, second, late = (stack.enter_context(client.lane()) for _ in range(3))
                for lane, seconds in ((first, 20.0), (second, 20.0), (late, 0.05)):
                    lane.request["obs"][...] = 1
                    lane.request["id"][...] = 1
                    lane.submit({}, timeout=seconds)
                time.sleep(0.1)
                mark.unlink()
                assert [lane.result() for lane in (slow, first, second)]
                with pytest.raises(ExpiredError):
                    late.result()
            assert eventually(lambda: "firsttouch_batches_total 2" in server.metrics())
            found = dict(line.rsplit(" ", 1) for line in server.metrics().splitlines() if not line.startswith("#"))
        finally:
            server.stop()
            thread.join()
    assert found["firsttouch_expired_total"] == "1"
    # The one that was held, and the two that waited for it.
    assert (found["firsttouch_batch_size_sum"], found["firsttouch_batch_size_count"]) == ("3", "2")
    assert found["firsttouch_queue_seconds_count"] == "3"
    assert float(found["firsttouch_queue_seconds_sum"]) > 0.2


def test_lanes_run_out(client: InferenceClient) -> None:
    """A third request on two lanes waits until its deadline."""
    with client.lane(), client.lane(), pytest.raises(BusyError, match="2 lanes"):
        client.infer(request(1), timeout=0.05)
    check(1, client.infer(request(1))[0])


def test_threads_share(where: str) -> None:
    """Threads take turns on the lanes; each gets its own answer."""
    wrong: list[object] = []
    with InferenceClient(where, lanes=2) as client:

        def work(base: int) -> None:
            try:
                for number in range(base, base + 25):
                    check(number, client.infer(request(number))[0])
            except Exception as error:  # noqa: BLE001  told by the main thread
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(1000 * i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert not wrong


def test_closed(where: str) -> None:
    """A closed client says so."""
    client = InferenceClient(where)
    client.close()
    client.close()
    with pytest.raises(ClosedError):
        client.infer(request(1))


def test_schema_of_the_client(where: str) -> None:
    """A client that insists on another schema is refused, with the same one it is welcome."""
    with InferenceClient(where, schema=SCHEMA) as client:
        assert client.schema == SCHEMA
    with pytest.raises(SchemaError):
        InferenceClient(where, schema=Schema.of({"a": ("int8", (1,))}, {}))


def test_nobody_there(tmp_path: Path) -> None:
    """No server is an error at once."""
    for address in (f"shm://{tmp_path}/x", f"unix://{tmp_path}/x", "tcp://127.0.0.1:9"):
        with pytest.raises(BrokenError, match="nobody serves"):
            InferenceClient(address)


def test_asyncio(where: str) -> None:
    """Many tasks of one loop share the lanes."""

    async def work() -> None:
        async with await AsyncInferenceClient.connect(where, lanes=4) as client:
            answers = await asyncio.gather(*(client.infer(request(n), {"n": n}) for n in range(40)))
            for number, (arrays, meta) in enumerate(answers):
                check(number, arrays)
                assert meta and meta["n"] == number
            with pytest.raises(ExpiredError):
                await client.infer(request(1), {"sleep": 1}, timeout=0.05)
            with pytest.raises(HandlerError):
                await client.infer(request(1), {"fail": "x"})
            slow = asyncio.ensure_future(client.infer(request(1), {"sleep": 0.1}))
            await asyncio.sleep(0.02)
            slow.cancel()
            answers = await asyncio.gather(*(client.infer(request(n)) for n in range(8)))
            for number, (arrays, _) in enumerate(answers):
                check(number, arrays)

    asyncio.run(work())


def welcome(where: str) -> None:
    """A new client is soon taken, and answered."""

    def asked() -> bool:
        try:
            with InferenceClient(where) as client:
                check(1, client.infer(request(1))[0])
        except BusyError:
            return False
        return True

    assert eventually(asked)


def test_server_is_full(private: str) -> None:
    """A client too many is told so, and is welcome when another left."""
    with served(private, options=Options(lanes=2)) as (where, _):
        first = InferenceClient(where, lanes=2)
        with pytest.raises(BusyError, match="lanes"):
            InferenceClient(where)
        first.close()
        welcome(where)


def test_served_already(private: str) -> None:
    """Two servers do not share an address; the first goes on."""
    with served(private) as (where, _), InferenceClient(where) as client:
        from firsttouch import InferenceServer

        with pytest.raises(BusyError):
            InferenceServer(where, SCHEMA)
        check(1, client.infer(request(1))[0])


def test_server_dies(private: str) -> None:
    """Without a server the request ends soon, and the error names who died."""
    with served(private) as (where, pid), InferenceClient(where, reconnect=False) as client:
        check(1, client.infer(request(1))[0])
        killer = threading.Timer(0.1, os.kill, (pid, signal.SIGKILL))
        killer.start()
        began = time.monotonic()
        with pytest.raises(BrokenError):
            client.infer(request(1), {"sleep": 5})
        assert time.monotonic() - began < 3
        killer.join()


def test_server_comes_back(private: str) -> None:
    """A client asks a restarted server again by itself."""
    with served(private) as (where, pid), InferenceClient(where) as client:
        check(1, client.infer(request(1))[0])
        end(pid)
        with served(where):
            check(2, client.infer(request(2))[0])
            assert client.reconnects == 1


def test_upgrade_with_another_schema(private: str) -> None:
    """A restarted server with another schema is an error that says so, not a misread array."""
    with served(private) as (where, pid), InferenceClient(where) as client:
        check(1, client.infer(request(1))[0])
        end(pid)
        other = Schema.of({"obs": ("float32", (64, 3)), "id": ("int32", ())}, {})
        with served(where, other), pytest.raises(SchemaError):
            client.infer(request(2), timeout=5)


def test_client_dies(private: str) -> None:
    """A client that is killed leaves its lanes to the next one, and the server goes on."""
    from serving import child

    with served(private, options=Options(lanes=1)) as (where, _):

        def use() -> None:
            client = InferenceClient(where)
            while True:
                client.infer(request(7))

        with child(use) as pid:
            time.sleep(0.2)
            end(pid)
        welcome(where)


def test_addresses_keep_their_order(tmp_path: Path) -> None:
    """A server names its addresses as it was given them, while it serves too."""
    asked = [f"unix://{tmp_path}/a", f"shm://{tmp_path}/b", f"unix://{tmp_path}/c"]
    with InferenceServer(asked, SCHEMA, options=Options(lanes=2, pages="4k")) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        with InferenceClient(asked[1]) as client:
            for number in range(20):
                check(number, client.infer(request(number))[0])
                assert server.addresses == asked
        server.stop()
        thread.join()
