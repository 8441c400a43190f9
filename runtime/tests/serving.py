# SPDX-License-Identifier: Apache-2.0
"""A server in a child process that does what the metadata of a request says."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from firsttouch import Batch, InferenceClient, InferenceServer, Options, Schema
from firsttouch.client import LeasedLane

SCHEMA = Schema.of(
    {"obs": ("float32", (64, 3)), "id": ("int64", ())},
    {"act": ("float32", (5,)), "id": ("int64", ())},
    max_meta_bytes=2000,
)
TRANSPORTS = ("shm", "unix", "tcp")
END_SECONDS = 60


def address_of(transport: str, folder: Path) -> str:
    """An address to serve at."""
    return "tcp://127.0.0.1:0" if transport == "tcp" else f"{transport}://{folder}/server"


def request(number: int) -> dict[str, Any]:
    """Arrays that belong together: every value of obs is NUMBER."""
    return {"obs": np.full((64, 3), number, "f4"), "id": np.array(number, "i8")}


def check(number: int, arrays: dict[str, Any]) -> None:
    """Raise unless ARRAYS answer request NUMBER, whole."""
    assert arrays["id"] == number
    assert (arrays["act"] == np.float32(number) * 2).all()


def hold(meta: Mapping[str, Any] | None) -> None:
    """Make the file that META names under `hold`, and wait until somebody removes it: at most for a minute."""
    if meta and "hold" in meta:
        mark = Path(meta["hold"])
        mark.touch()
        assert eventually(lambda: not mark.exists(), 60), "nobody let go"


@contextlib.contextmanager
def held(client: InferenceClient, mark: Path) -> Iterator[tuple[LeasedLane, Path]]:
    """A lane whose request the handler has taken and holds until MARK is removed, and MARK."""
    try:
        with client.lane() as lane:
            lane.request["obs"][...] = 1
            lane.request["id"][...] = 1
            lane.submit({"hold": str(mark)})
            assert eventually(mark.exists, 20), "the request is not taken"
            yield lane, mark
    finally:
        mark.unlink(missing_ok=True)


def handle(batch: Batch) -> None:
    """Answer twice obs[0, 0], after what the first request's metadata asks for."""
    meta = batch.metas[0] or {}
    time.sleep(meta.get("sleep", 0))
    hold(meta)
    if "fail" in meta:
        raise RuntimeError(meta["fail"])
    if meta.get("silent"):
        return
    if any((item or {}).get("die") for item in batch.metas):
        os.kill(os.getpid(), signal.SIGKILL)
    obs, ids = batch.arrays["obs"], batch.arrays["id"]
    whole = (obs.reshape(len(batch), -1) == ids.astype("f4")[:, None]).all()
    act = np.repeat(obs[:, 0, :1] * 2, 5, axis=1) if whole else np.full((len(batch), 5), np.nan, "f4")
    metas = [{**(item or {}), "batch": len(batch)} if item is not None else None for item in batch.metas]
    batch.reply({"act": act, "id": ids}, metas)


def serve(server: InferenceServer) -> None:
    """Serve until stopped."""
    for batch in server.batches():
        try:
            handle(batch)
        except RuntimeError as error:
            batch.fail(str(error))


@contextlib.contextmanager
def child(target: Callable[[], object]) -> Iterator[int]:
    """Run TARGET in a child process; kill it at the end if it is still there."""
    sys.stdout.flush()
    # The signal comes when the thread that forked ends (prctl(2)).
    main = threading.current_thread() is threading.main_thread()
    pid = os.fork()
    if pid == 0:
        try:
            if main:
                _die_with_parent()
            target()
            os._exit(0)
        except BaseException:  # noqa: BLE001  nothing may leave the child
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
    try:
        yield pid
    finally:
        end(pid)


def _die_with_parent() -> None:
    """Be killed when the parent ends, however: who is left would keep the standard output open that others wait for."""
    assert ctypes.CDLL(None).prctl(1, signal.SIGKILL) == 0  # PR_SET_PDEATHSIG


def end(pid: int, sig: int = signal.SIGKILL) -> int:
    """Send SIG to the child PID and collect it: its wait status, 0 when it was collected before.

    One that does not end is aborted, with the stack of each of its threads (pytest's faulthandler).
    """
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:  # this process may have as many descriptors as it can have
            os.kill(pid, signal.SIGKILL)
            return os.waitpid(pid, 0)[1]
        try:
            os.kill(pid, sig)
            ended = select.poll()
            ended.register(pidfd, select.POLLIN)
            if not ended.poll(END_SECONDS * 1000):
                os.kill(pid, signal.SIGABRT)
        finally:
            os.close(pidfd)
        return os.waitpid(pid, 0)[1]
    return 0


@contextlib.contextmanager
def served(
    address: str, schema: Schema = SCHEMA, options: Options | None = None, max_batch: int = 64
) -> Iterator[tuple[str, int]]:
    """A server at ADDRESS in a child: where it is, and its pid."""
    reader, writer = os.pipe()

    def run() -> None:
        os.close(reader)
        # Huge pages are left to the tests that count them.
        chosen = replace(options or Options(), pages="4k")
        with InferenceServer(address, schema, options=chosen, max_batch=max_batch) as server:
            signal.signal(signal.SIGTERM, lambda *_: server.stop())
            os.write(writer, server.addresses[0].encode())
            os.close(writer)
            serve(server)

    with child(run) as pid:
        os.close(writer)
        with open(reader, "rb") as file:
            where = file.read().decode()
        assert where, "the server did not start"
        yield where, pid


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether CONDITION holds within SECONDS."""
    end_at = time.monotonic() + seconds
    while time.monotonic() < end_at:
        if condition():
            return True
        time.sleep(0.002)
    return condition()


