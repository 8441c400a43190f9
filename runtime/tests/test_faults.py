# SPDX-License-Identifier: Apache-2.0
"""Servers and clients killed under load: nothing lost, torn, crossed or left behind.

FIRSTTOUCH_SLOW=1 runs the full counts.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import random
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import SLOW
from firsttouch import Batch, InferenceClient, InferenceServer, Options, _linux
from firsttouch._guests import pidfd_of_client
from firsttouch._holder import Holder
from firsttouch._job import Job
from firsttouch.cli import _hold
from firsttouch.errors import BrokenError, HandlerError
from serving import SCHEMA, TRANSPORTS, address_of, check, child, end, eventually, request, serve

SERVER_KILLS = 60 if SLOW else 5
CLIENT_KILLS = 120 if SLOW else 8
CLIENTS = 4
SEED = int(os.environ.get("FIRSTTOUCH_SEED", "1"))


class Board:
    """Numbers that children report: per client its answers, its wrong answers, and the server's pid."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 4096)

    def __getitem__(self, at: int) -> int:
        return int(struct.unpack_from("q", self._memory, 8 * at)[0])

    def __setitem__(self, at: int, value: int) -> None:
        struct.pack_into("q", self._memory, 8 * at, value)


# What the numbers are; from ANSWERS and ASKED on, one for each client.
SERVER, WRONG, ANSWERS, ASKED = 0, 1, 8, 32
# How the folders begin that tools/run_tests.py gives a run for its temporary files.
FOLDERS = "firsttouch-"


def load(where: str, board: Board, i: int) -> None:
    """Ask until killed. Each client counts for itself; WRONG is set when an answer is not its own or not whole."""
    try:
        with InferenceClient(where, timeout=30) as client:
            number = i << 20
            while True:
                board[ASKED + i] += 1
                check(number, client.infer(request(number))[0])
                number = (number + 1) & 0xFFFFFF
                board[ANSWERS + i] += 1
    except BaseException:
        board[WRONG] = 1 + i
        raise


@contextlib.contextmanager
def held(address: str, board: Board, options: Options, status: int = 0) -> Iterator[tuple[str, int]]:
    """A holder in a child, with a server that reports its pid: the address, and the holder's pid. At the end it is
    stopped, and its wait status must be STATUS.
    """
    reader, writer = os.pipe()

    def worker(server: InferenceServer) -> None:
        board[SERVER] = os.getpid()
        serve(server)

    def run() -> None:
        holder = Holder([address], SCHEMA, worker, replace(options, pages="4k"))
        signal.signal(signal.SIGTERM, holder.stop)
        os.write(writer, holder.addresses[0].encode())
        os.close(writer)
        holder.run()

    with child(run) as pid:
        os.close(writer)
        with open(reader, "rb") as file:
            where = file.read().decode()
        assert eventually(lambda: board[SERVER] != 0)
        yield where, pid
        assert end(pid, signal.SIGTERM) == status


def answers(board: Board) -> int:
    """How many answers all clients got."""
    return sum(board[ANSWERS + i] for i in range(CLIENTS))


def progress(board: Board) -> Callable[[], bool]:
    """A condition: every client got an answer since now, or something is wrong."""
    before = [board[ANSWERS + i] for i in range(CLIENTS)]
    return lambda: bool(board[WRONG]) or all(board[ANSWERS + i] > before[i] for i in range(CLIENTS))


def succeeded(board: Board, old: int) -> Callable[[], bool]:
    """A condition: another process than OLD serves."""
    return lambda: board[SERVER] != old


def shm_names() -> set[str]:
    """Names in /dev/shm that a test could have left: all but the folders in which runs of tests have their files."""
    return {
        name
        for name in os.listdir("/dev/shm")
        if not (name.startswith(FOLDERS) and os.path.isdir(f"/dev/shm/{name}"))
    }


def report(kills: int, what: str, transport: str, board: Board) -> None:
    """Print what became of the requests of the load, and fail when one that was asked by now is never answered."""
    asked = [board[ASKED + i] for i in range(CLIENTS)]

    def lost() -> int:
        return sum(max(0, asked[i] - board[ANSWERS + i]) for i in range(CLIENTS))

    eventually(lambda: not lost(), 10)
    wrong, missing = int(board[WRONG] != 0), lost()
    print(f"{kills} {what} killed over {transport}: {answers(board)} answers, {wrong} wrong, {missing} lost")
    assert (wrong, missing) == (0, 0)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_server_kills(transport: str, tmp_path: Path) -> None:
    """A server that is killed under load comes back; every client gets the answer that it waits for."""
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    board, before = Board(), shm_names()
    kills = SERVER_KILLS if SLOW or transport == "shm" else SERVER_KILLS // 3
    with contextlib.ExitStack() as stack:
        where, _ = stack.enter_context(held(address_of(transport, tmp_path), board, Options(lanes=8)))
        for i in range(CLIENTS):
            stack.enter_context(child(partial(load, where, board, i)))
        assert eventually(progress(board))
        for _ in range(kills):
            time.sleep(rng.uniform(0.001, 0.03))
            old = board[SERVER]
            os.kill(old, signal.SIGKILL)
            assert eventually(succeeded(board, old)), "no next server"
            assert eventually(progress(board), 10), f"no progress, {[board[ANSWERS + i] for i in range(CLIENTS)]}"
            assert not board[WRONG]
        report(kills, "servers", transport, board)
    assert answers(board) > kills
    assert shm_names() <= before
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_client_kills(transport: str, tmp_path: Path) -> None:
    """Clients that are killed at any point leave their lanes to the next ones; the others notice nothing."""
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    board, before = Board(), shm_names()
    kills = CLIENT_KILLS if SLOW or transport == "shm" else CLIENT_KILLS // 3
    with contextlib.ExitStack() as stack:
        where, _ = stack.enter_context(held(address_of(transport, tmp_path), board, Options(lanes=CLIENTS + 2)))
        running = [_start(stack, where, board, i) for i in range(CLIENTS)]
        assert eventually(progress(board))
        for kill in range(kills):
            time.sleep(rng.uniform(0.001, 0.02))
            i = kill % CLIENTS
            running[i][1].close()
            running[i] = _start(stack, where, board, i)
            assert eventually(progress(board), 10)
            assert not board[WRONG]
        report(kills, "clients", transport, board)
    assert answers(board) > kills
    assert shm_names() <= before
    assert not list(tmp_path.iterdir())


def _start(
    stack: contextlib.ExitStack, where: str, board: Board, i: int
) -> tuple[int, contextlib.ExitStack]:
    """Client I, and a stack that kills it."""
    # What its predecessor asked and died over is nobody's loss.
    board[ASKED + i] = board[ANSWERS + i]
    own = stack.enter_context(contextlib.ExitStack())
    return own.enter_context(child(lambda: load(where, board, i))), own


def test_holder_hears_a_signal_that_interrupts_nothing(tmp_path: Path) -> None:
    """SIGTERM that reaches another thread, or comes just before the holder sleeps, ends it all the same."""

    def worker(server: InferenceServer) -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        serve(server)

    def run() -> None:
        holder = Holder([address_of("unix", tmp_path)], SCHEMA, worker)
        signal.signal(signal.SIGTERM, holder.stop)
        # Only the other thread takes it, so that nothing interrupts the one that waits.
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
        began = time.monotonic()
        holder.run()
        assert time.monotonic() - began < 20

    with child(run) as pid:
        ended = os.pidfd_open(pid)
        try:
            assert select.select([ended], [], [], 30)[0], "it sleeps on"
        finally:
            os.close(ended)
        assert os.waitpid(pid, 0)[1] == 0


def test_signal_to_a_server_just_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM that reaches it before it has a handler of its own ends it, and does not keep the holder awake."""
    board, real = Board(), Holder._be_child

    def signalled(self: Holder, parent: int, wait: int) -> None:
        if not board[WRONG]:
            board[WRONG] = os.getpid()
            os.kill(os.getpid(), signal.SIGTERM)
        real(self, parent, wait)

    monkeypatch.setattr(Holder, "_be_child", signalled)
    with held(address_of("unix", tmp_path), board, Options(lanes=1)) as (where, holder):
        assert board[SERVER] != board[WRONG], "the signal was swallowed"
        with InferenceClient(where, timeout=30) as client:
            check(1, client.infer(request(1))[0])
        before = _cpu_ticks(holder)
        time.sleep(0.5)
        assert _cpu_ticks(holder) - before < 25, "the holder is busy"


def _cpu_ticks(pid: int) -> int:
    """Hundredths of a second that PID was on a CPU."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_holder_dies(tmp_path: Path) -> None:
    """Without its holder a server ends too, and the client names who died, however long its child keeps descriptors."""
    board = Board()
    address = address_of("shm", tmp_path)
    with contextlib.ExitStack() as stack:
        where, holder = stack.enter_context(held(address, board, Options(lanes=2), signal.SIGKILL))
        client = stack.enter_context(InferenceClient(where, reconnect=False))
        check(1, client.infer(request(1))[0])
        worker = board[SERVER]
        os.kill(holder, signal.SIGKILL)

        began = time.monotonic()
        with pytest.raises(BrokenError, match=f"process {holder}"):
            client.infer(request(1), {"sleep": 3})
        assert time.monotonic() - began < 3, "it was told by the end of the child"
        assert eventually(lambda: not os.path.exists(f"/proc/{worker}/fd") or _is_zombie(worker))


def children(pid: int) -> list[int]:
    """The children of process PID."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_spare_takes_over(tmp_path: Path) -> None:
    """The process that serves next was there before the server died; a spare that dies is replaced."""
    board = Board()
    address, options = address_of("shm", tmp_path), Options(lanes=2)
    with held(address, board, options) as (where, holder), InferenceClient(where) as client:
        for number in range(3):
            check(number, client.infer(request(number))[0])
            assert eventually(lambda: len(children(holder)) == 2)
            old = board[SERVER]
            (spare,) = set(children(holder)) - {old}
            os.kill(old, signal.SIGKILL)
            assert eventually(succeeded(board, old))
            check(number, client.infer(request(number))[0])
            assert board[SERVER] == spare
        assert eventually(lambda: len(children(holder)) == 2)
        (spare,) = set(children(holder)) - {board[SERVER]}
        os.kill(spare, signal.SIGKILL)
        assert eventually(lambda: spare not in children(holder))
        os.kill(board[SERVER], signal.SIGKILL)
        # Nobody waits: the server is forked now.
        check(9, client.infer(request(9))[0])
        assert client.reconnects == 0


@pytest.mark.parametrize("spare", [True, False])
def test_what_a_spare_prepares(spare: bool, tmp_path: Path) -> None:
    """A handler is made in a spare only when it says that two of it are fine."""
    made = tmp_path / "made"

    class Handler:
        """Says when it is made."""

        schema = SCHEMA
        spare: bool

        def __init__(self) -> None:
            with open(made, "a", encoding="ascii") as file:
                file.write(f"{os.getpid()}\n")

        def __call__(self, batch: Batch) -> dict[str, Any]:
            return {"act": np.zeros((len(batch), 5), "f4"), "id": batch.arrays["id"]}

    Handler.spare = spare
    address = address_of("shm", tmp_path)
    job = Job(Handler, (address,), Options(lanes=2, pages="4k"))

    with child(lambda: _hold(job)) as pid:
        assert eventually(lambda: len(children(pid)) == 2 if os.path.exists(tmp_path / "server") else False)
        with InferenceClient(address) as client:
            client.infer(request(1))
            wanted = 2 if spare else 1
            assert eventually(lambda: len(made.read_text().split()) == wanted)
            os.kill(children(pid)[0], signal.SIGKILL)
            client.infer(request(1))
            # The next spare's, or the one that was made when it was needed.
            assert eventually(lambda: len(made.read_text().split()) == wanted + 1)
        assert end(pid, signal.SIGTERM) == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_poison(transport: str, tmp_path: Path) -> None:
    """A request that kills each server that takes it is given up after three; one beside it is answered."""
    board = Board()
    with contextlib.ExitStack() as stack:
        where, _ = stack.enter_context(held(address_of(transport, tmp_path), board, Options(lanes=8)))
        client = stack.enter_context(InferenceClient(where, lanes=2, timeout=20))
        stack.enter_context(child(lambda: load(where, board, 0)))
        assert eventually(lambda: board[ANSWERS] > 10)
        with pytest.raises((HandlerError, BrokenError)) as caught:
            client.infer(request(1), {"die": True})
        assert ("3 servers died" in str(caught.value)) == (transport == "shm")
        check(2, client.infer(request(2))[0])
        before = board[ANSWERS]
        assert eventually(lambda: board[ANSWERS] > before)
        assert not board[WRONG]


def no_peer_pidfd(_: object) -> int:
    """SO_PEERPIDFD before Linux 6.5."""
    raise OSError(errno.ENOPROTOOPT, "Protocol not available")


@pytest.mark.parametrize("kernel", ["this", "6.1"])
@pytest.mark.parametrize("transport", ["shm", "unix"])
def test_grandchild_hides_no_death(
    transport: str, kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client's death is noticed while a child of it still holds copies of all of its descriptors."""
    if kernel == "6.1":
        monkeypatch.setattr(_linux, "peer_pidfd", no_peer_pidfd)
    with InferenceServer(address_of(transport, tmp_path), SCHEMA, options=Options(lanes=2, pages="4k")) as server:
        thread = threading.Thread(target=server.serve, args=(lambda batch: {},))
        thread.start()
        ready, tell = os.pipe()
        grandchild = 0
        try:

            def client() -> None:
                made = InferenceClient(server.addresses[0])
                copies = [os.dup(int(fd)) for fd in os.listdir("/proc/self/fd") if int(fd) > 2 and _open(int(fd))]
                if os.fork() == 0:
                    os.write(tell, struct.pack("i", os.getpid()))
                    time.sleep(60)
                os.waitpid(-1, 0)
                made.close()
                assert copies

            with child(client) as pid:
                grandchild = struct.unpack("i", os.read(ready, 4))[0]
                assert "firsttouch_clients 1" in server.metrics()
                os.kill(pid, signal.SIGKILL)
                assert eventually(lambda: "firsttouch_deaths_total 1" in server.metrics(), 3)
                assert eventually(lambda: "firsttouch_clients 0" in server.metrics(), 3)
                assert os.path.exists(f"/proc/{grandchild}")
        finally:
            if grandchild:
                os.kill(grandchild, signal.SIGKILL)
            os.close(ready)
            os.close(tell)
            server.stop()
            thread.join()


def test_pid_that_was_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Linux 6.5 a pid counts only with the start time that the client told."""
    monkeypatch.setattr(_linux, "peer_pidfd", no_peer_pidfd)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        start = _linux.start_ticks("self")
        fd = pidfd_of_client(ours, start)
        assert fd >= 0
        os.close(fd)
        assert pidfd_of_client(ours, start - 1) == -1
        assert pidfd_of_client(ours, 0) == -1


def _open(fd: int) -> bool:
    """Whether FD is still open."""
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_leaving_is_no_death(transport: str, tmp_path: Path) -> None:
    """A client that closes is not counted as dead, one that is killed is."""
    with InferenceServer(address_of(transport, tmp_path), SCHEMA, options=Options(lanes=2, pages="4k")) as server:
        thread = threading.Thread(target=server.serve, args=(lambda batch: {},))
        thread.start()
        try:
            InferenceClient(server.addresses[0]).close()
            assert eventually(lambda: "firsttouch_clients 0" in server.metrics())
            assert "firsttouch_deaths_total 0" in server.metrics()
            with child(lambda: (InferenceClient(server.addresses[0]), time.sleep(60))) as pid:
                assert eventually(lambda: "firsttouch_clients 1" in server.metrics())
                os.kill(pid, signal.SIGKILL)
                assert eventually(lambda: "firsttouch_deaths_total 1" in server.metrics())
        finally:
            server.stop()
            thread.join()


def _is_zombie(pid: int) -> bool:
    """Whether PID is dead but not collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
