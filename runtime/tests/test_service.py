# SPDX-License-Identifier: Apache-2.0
"""A server as a unit of systemd, under a stand-in for that: ready, watched, killed under load, stopped."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from conftest import SLOW
from firsttouch import InferenceClient
from firsttouch._systemd import Notifier, inherited, notifier, watchdog_seconds
from firsttouch.errors import AddressError, BrokenError, BusyError, KernelError, SchemaError
from manager import Manager, managed, soon
from serving import child, eventually, held
from test_faults import ANSWERS, CLIENTS, SEED, WRONG, Board, load, progress, report

KILLS = 60 if SLOW else 6
LANES = 8
HANDLER = """
import time
from serving import SCHEMA, handle, hold
def answer(batch):
    obs, ids = batch.arrays["obs"], batch.arrays["id"]
    time.sleep((batch.metas[0] or {}).get("sleep", 0))
    hold(batch.metas[0])
    act = obs.reshape(len(batch), -1)[:, :5] * 2
    whole = (obs.reshape(len(batch), -1) == ids.astype("f4")[:, None]).all()
    return {"act": act if whole else act * float("nan"), "id": ids}
answer.schema = SCHEMA
"""
SLOW_HANDLER = """
class Slow:
    schema = SCHEMA
    def __init__(self):
        time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the handler `mine:answer`."""
    (tmp_path / "mine.py").write_text(HANDLER)
    return tmp_path


def words(folder: Path, *addresses: str, lanes: int = LANES) -> list[str]:
    """Of `firsttouch serve`."""
    found = addresses or (f"shm://{folder}/s",)
    flat = [word for address in found for word in ("--address", address)]
    return ["--handler", "mine:answer", "--lanes", str(lanes), "--pages", "4k", *flat]


def segment(manager: Manager) -> int:
    """The inode of the memory that is kept."""
    return next(os.fstat(fd).st_ino for name, fd in manager.store if name == "segment")


def ask(client: InferenceClient, number: int, **meta: float) -> None:
    """One request, checked."""
    arrays = {"obs": np.full((64, 3), number, "f4"), "id": np.array(number, "i8")}
    found = client.infer(arrays, meta or None)[0]
    assert found["id"] == number
    assert (found["act"] == 2 * number).all()


@pytest.mark.parametrize("abstract", [False, True])
def test_ready_and_stopped(abstract: bool, folder: Path) -> None:
    """It says that it is ready when it answers, that it stops, and leaves nothing with the manager or in the folder."""
    before = set(folder.iterdir())
    addresses = (f"shm://{folder}/s", f"unix://{folder}/u", "tcp://127.0.0.1:0")
    with managed(folder, *words(folder, *addresses), abstract=abstract) as manager:
        assert f"shm://{folder}/s" in manager.said["STATUS"]
        kinds = [name.partition(".")[0] for name, _ in manager.store]
        assert {kind: kinds.count(kind) for kind in kinds} == {"segment": 1, "bell": LANES, "chime": LANES, "listen": 3}
        for address in addresses[:2]:
            with InferenceClient(address) as client:
                ask(client, 3)
        assert eventually(lambda: not [name for name, _ in manager.store if name.startswith("peer.")])
        assert manager.kill(signal.SIGTERM) == 0
        assert eventually(lambda: not manager.store), manager.store
        assert "STOPPING=1" in manager.messages
    assert {path.name for path in set(folder.iterdir()) - before} <= {"log", "notify", "__pycache__"}


def test_kills_under_load(folder: Path) -> None:
    """Killed under load, it goes on with the same memory; clients keep their connection, and get every answer."""
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    board = Board()
    where = f"shm://{folder}/s"
    with contextlib.ExitStack() as stack:
        manager = stack.enter_context(managed(folder, *words(folder)))
        memory = segment(manager)
        for i in range(CLIENTS):
            stack.enter_context(child(partial(load, where, board, i)))
        client = stack.enter_context(InferenceClient(where, reconnect=False))
        lane = stack.enter_context(client.lane())
        assert eventually(progress(board))
        for kill in range(KILLS):
            time.sleep(rng.uniform(0.001, 0.05))
            lane.request["obs"][...] = kill
            lane.request["id"][...] = kill
            lane.submit({"sleep": 0.02})
            manager.restart()
            lane.result()
            assert lane.reply["id"] == kill
            assert (lane.reply["act"] == 2 * kill).all()
            assert eventually(progress(board), 20), f"no progress, {[board[ANSWERS + i] for i in range(CLIENTS)]}"
            assert not board[WRONG]
            assert segment(manager) == memory
        report(KILLS, "services", "shm", board)
        manager.ready()
        assert eventually(lambda: len(manager.store) == 1 + 2 * LANES + 1 + CLIENTS + 1), manager.store
        assert manager.refused == 0


@pytest.mark.parametrize("scheme", ["unix", "tcp"])
def test_sockets_stay(scheme: str, folder: Path) -> None:
    """A socket goes on listening while the server is dead: clients come back to it, and nobody is refused."""
    address = f"unix://{folder}/u" if scheme == "unix" else "tcp://127.0.0.1:0"
    with managed(folder, *words(folder, address)) as manager:
        where = manager.said["STATUS"].split(" ")[1]
        with InferenceClient(where) as client:
            for number in range(3):
                ask(client, number)
                manager.restart()
                # Nobody is refused meanwhile.
                with InferenceClient(where, timeout=20) as other:
                    ask(other, 7)
                ask(client, number + 10)
            assert client.reconnects >= 3
        assert manager.said["STATUS"].split(" ")[1] == where


def test_client_dies_meanwhile(folder: Path) -> None:
    """Lanes of a client that dies while the server is dead are free again; one that left said so to nobody."""
    where = f"shm://{folder}/s"
    with managed(folder, *words(folder, lanes=2)) as manager:
        with InferenceClient(where) as left, child(lambda: (InferenceClient(where), time.sleep(60))) as pid:
            assert eventually(lambda: len([name for name, _ in manager.store if name.startswith("peer.")]) == 2)
            manager.kill()
            os.kill(pid, signal.SIGKILL)
            left.close()
        manager.start()
        manager.ready()
        with InferenceClient(where, lanes=2) as client:
            ask(client, 5)


OLD_KERNEL = """
from firsttouch import _linux
def no_peer_pidfd(sock):
    raise OSError(92, "Protocol not available")
_linux.peer_pidfd = no_peer_pidfd
"""


@pytest.mark.parametrize("kernel", ["this", "6.1"])
def test_death_of_a_client_that_was_taken_over(kernel: str, folder: Path) -> None:
    """The next server notices the death of a client that it took over, though a child of that holds its sockets."""
    (folder / "mine.py").write_text(HANDLER + (OLD_KERNEL if kernel == "6.1" else ""))
    where = f"shm://{folder}/s"
    board = Board()

    def client() -> None:
        made = InferenceClient(where, lanes=2)
        copies = [os.dup(int(fd)) for fd in os.listdir("/proc/self/fd") if int(fd) > 2 and _is_open(int(fd))]
        if os.fork() == 0:
            board[1] = os.getpid()
            time.sleep(60)
        board[0] = 1
        time.sleep(60)
        assert copies
        made.close()

    with managed(folder, *words(folder, lanes=2)) as manager, child(client) as pid:
        assert eventually(lambda: bool(board[0] and board[1]))
        manager.restart()
        manager.ready()
        with pytest.raises(BusyError):
            InferenceClient(where)
        os.kill(pid, signal.SIGKILL)
        try:
            assert eventually(lambda: _attaches(where), 5)
            assert os.path.exists(f"/proc/{board[1]}")
        finally:
            os.kill(board[1], signal.SIGKILL)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _attaches(where: str) -> bool:
    """Whether there are lanes for a client."""
    try:
        with InferenceClient(where, lanes=2) as client:
            ask(client, 1)
    except BusyError:
        return False
    return True


def test_other_schema(folder: Path) -> None:
    """A server with another schema gives the old memory back; who was attached to it hears that."""
    where = f"shm://{folder}/s"
    with managed(folder, *words(folder)) as manager, InferenceClient(where) as client:
        ask(client, 1)
        memory = segment(manager)
        text = HANDLER.replace("SCHEMA, handle, hold", "Schema")
        text = text.replace("schema = SCHEMA", "schema = Schema.of({}, {})")
        (folder / "mine.py").write_text(text.replace("from serving", "from firsttouch"))
        os.utime(folder / "mine.py", (1, 1))
        manager.restart()
        manager.ready()
        with pytest.raises(SchemaError):
            ask(client, 2)
        assert segment(manager) != memory
        assert "the handler has another schema now" in manager.log


def test_other_lanes(folder: Path) -> None:
    """With another number of lanes the memory is made anew; clients come back to it."""
    with managed(folder, *words(folder)) as manager, InferenceClient(f"shm://{folder}/s") as client:
        ask(client, 1)
        memory = segment(manager)
        manager.command[manager.command.index("--lanes") + 1] = "4"
        manager.restart()
        ask(client, 2)
        manager.ready()
        assert segment(manager) != memory
        assert f"it has {LANES} lanes, 4 are asked for" in manager.log
        # Nothing of the old one is kept: segment, doorbells, listener, the client.
        assert eventually(lambda: len(manager.store) == 1 + 2 * 4 + 1 + 1), manager.store
        assert client.reconnects == 1


def test_stopped_while_it_loads(folder: Path) -> None:
    """A stop that comes before it is ready is a clean one too, and so is one while clients wait already."""
    (folder / "mine.py").write_text(f"{HANDLER}{SLOW_HANDLER}")
    command = [sys.executable, "-m", "firsttouch.cli", "serve", *words(folder)]
    manager = Manager(["mine:Slow" if word == "mine:answer" else word for word in command], folder)
    try:
        manager.start()
        assert eventually(lambda: any(name == "segment" for name, _ in manager.store), 30), manager.log
        with InferenceClient(f"shm://{folder}/s"):
            assert manager.kill(signal.SIGTERM) == 0
        assert "READY" not in manager.said
        assert eventually(lambda: not manager.store), manager.store
        assert not (folder / "s").exists()
    finally:
        manager.close()


def test_store_too_small(folder: Path) -> None:
    """With too small a store the next server says what is missing, begins anew, and clients come back."""
    where = f"shm://{folder}/s"
    with managed(folder, *words(folder), store_max=LANES) as manager, InferenceClient(where) as client:
        ask(client, 1)
        assert manager.refused
        manager.restart()
        ask(client, 2)
        assert client.reconnects == 1


def test_no_restart(folder: Path) -> None:
    """When the manager gives the server up, who waits for an answer is told."""
    with managed(folder, *words(folder)) as manager:
        client = InferenceClient(f"shm://{folder}/s", reconnect=False, timeout=60)
        with client, client.lane() as lane:
            lane.submit({"sleep": 5})
            manager.kill()
            manager.drop()
            # A client that is not told would find out at its deadline, which is another error.
            with pytest.raises(BrokenError):
                lane.result()


def test_signal_that_asks_for_metrics(folder: Path) -> None:
    """SIGUSR1 to a service that keeps no metrics ends nothing."""
    with managed(folder, *words(folder)) as manager, InferenceClient(f"shm://{folder}/s") as client:
        for number in range(3):
            os.kill(manager.pid, signal.SIGUSR1)
            ask(client, number)
        assert manager.kill(signal.SIGTERM) == 0


def beats(manager: Manager) -> int:
    """How many beats came."""
    return manager.messages.count("WATCHDOG=1")


def test_watchdog(folder: Path) -> None:
    """It beats while it idles, and stops when the handler hangs."""
    where = f"shm://{folder}/s"
    with managed(folder, *words(folder), watchdog_us=300_000) as manager:
        assert eventually(lambda: beats(manager) > 3)
        with InferenceClient(where) as client, held(client, folder / "mark") as (lane, mark):
            assert eventually(lambda: _silent(manager), 20), "it beats although the handler hangs"
            before = beats(manager)
            mark.unlink()
            lane.result()
            assert eventually(lambda: beats(manager) > before, 20)


def _silent(manager: Manager) -> bool:
    """Whether five beats in a row are left out; one may be under way when the handler begins."""
    before = beats(manager)
    soon(0.8)
    return beats(manager) == before


def test_watchdog_of_a_busy_server(folder: Path) -> None:
    """One that is never idle, and so never looks at its bell, beats by what it answers."""
    board = Board()
    spins = (*words(folder), "--spin-us", "1000000")
    with contextlib.ExitStack() as stack:
        manager = stack.enter_context(managed(folder, *spins, watchdog_us=300_000))
        stack.enter_context(child(lambda: load(f"shm://{folder}/s", board, 0)))
        assert eventually(lambda: board[ANSWERS] > 10, 20)
        before = beats(manager)
        assert eventually(lambda: beats(manager) > before + 3, 20)


def test_handler_fails(folder: Path) -> None:
    """A handler that cannot be made ends the service with a status, and nothing was ready."""
    (folder / "mine.py").write_text("raise ImportError('no such model')\n")
    manager = Manager([sys.executable, "-m", "firsttouch.cli", "serve", *words(folder)], folder)
    try:
        manager.start()
        assert os.waitstatus_to_exitcode(os.waitpid(manager.pid, 0)[1]) == 2
        manager.pid = 0
        assert "READY" not in manager.said
        assert "no such model" in manager.log
    finally:
        manager.close()


def test_environment() -> None:
    """What the manager says is taken by the process it is meant for, once."""
    assert notifier({}) is None
    assert watchdog_seconds({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": str(os.getpid())}) == 2.0
    assert watchdog_seconds({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "1"}) is None
    assert watchdog_seconds({"WATCHDOG_USEC": "x"}) is None
    assert inherited({"LISTEN_PID": "1", "LISTEN_FDS": "2", "LISTEN_FDNAMES": "a:b"}) == {}
    with pytest.raises(AddressError, match="NOTIFY_SOCKET"):
        Notifier("vsock:2:1")


def test_manager_is_gone(tmp_path: Path) -> None:
    """A manager that takes nothing is an error that says so."""
    found = Notifier(f"{tmp_path}/nobody")
    with pytest.raises(KernelError, match="does not take 'WATCHDOG=1'"):
        found.beat()
    with pytest.raises(ValueError, match="cannot name"):
        found.keep("a:b", 0)
    found.close()
