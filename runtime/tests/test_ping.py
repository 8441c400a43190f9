# SPDX-License-Identifier: Apache-2.0
"""`firsttouch serve --server` and `firsttouch ping`: what the file says is so, or is told as a fault."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from firsttouch import InferenceClient, _ping, cli, plan
from firsttouch.errors import AddressError
from serving import eventually
from test_configs import write

SOURCE = str(Path(cli.__file__).parents[1])
CPU = max(os.sched_getaffinity(0))


@pytest.fixture
def etc(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder like /etc/firsttouch; servers with a name listen below the same one.

    Its path is short: the name of a socket has few bytes, and a folder of pytest's own takes most of them.
    """
    with tempfile.TemporaryDirectory(prefix="ft-") as name:
        folder = Path(name)
        monkeypatch.setattr(plan, "run_folders", lambda: [folder / "firsttouch"])
        monkeypatch.setattr(plan, "RUN_FOLDER", folder / "firsttouch")
        (folder / "firsttouch").mkdir()
        yield folder


@contextlib.contextmanager
def serving(etc: Path, **keys: Any) -> Iterator[subprocess.Popen[bytes]]:
    """`firsttouch serve --server x`, once it tells of itself."""
    write(etc, "servers", pages="4k", lanes=4, **keys)
    code = (
        "import sys, pathlib; from firsttouch import cli, plan;"
        f"plan.run_folders = lambda: [pathlib.Path({str(etc / 'firsttouch')!r})];"
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "serve", "--server", "x", "--etc", str(etc)]
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            assert eventually((etc / "firsttouch" / "x.status.json").exists, 20)
            yield process
        finally:
            process.terminate()
            assert process.wait(20) == 0
    assert list((etc / "firsttouch").iterdir()) == []


def ping(etc: Path, capsys: pytest.CaptureFixture[str], status: int, *words: str) -> Any:
    """What `firsttouch ping WORDS --json` says."""
    capsys.readouterr()
    assert cli.main(["ping", *words, "--etc", str(etc), "--calls", "20", "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_as_the_file_says(etc: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Transport, pages, threads: all as asked for."""
    folder = etc / "firsttouch"
    with serving(etc, address=f"shm://{folder}/x.shm", cpus=[CPU], latency_target_us=1e6):
        found = ping(etc, capsys, 0, "--server", "x")
        assert found["ok"] and found["answered"] == 20 and found["within_target"] is True
        assert (found["transport"], found["wanted_transport"]) == ("shm", "shm")
        assert found["p50_us"] <= found["p99_us"] <= found["max_us"]
        server = found["server"]
        assert (server["name"], server["restarts"], server["pages"]["kind"]) == ("x", 0, "4k")
        assert server["pages"]["pages_on_node"] and "-" not in "".join(server["pages"]["pages_on_node"])
        rows = {row["tid"]: row for row in server["cpus"]["threads"]}
        assert rows[server["cpus"]["serving"]]["cpus"] == str(CPU)
        assert cli.main(["ping", f"shm://{folder}/x.shm", "--calls", "3"]) == 0
        assert "3 of 3 calls answered over shm" in capsys.readouterr().out


def test_faults(etc: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A server that serves otherwise than its file says: each difference is a fault."""
    address = f"unix://{etc}/firsttouch/x.sock"
    with serving(etc, address=address) as process:
        write(etc, "servers", address=address, latency_target_us=0.001, cpus=[CPU], fifo_priority=3, pages="hugetlb")
        found = ping(etc, capsys, 1, "--server", "x")
        assert not found["ok"] and found["answered"] == 20
        told = "\n".join(found["faults"])
        assert "more than the 0.001 us" in told
        assert f"the file gives it {CPU}" in told
        assert "policy other, the file asks for fifo 3" in told
        assert process.poll() is None
    write(etc, "servers", address=address)
    found = ping(etc, capsys, 1, "--server", "x")
    assert found["answered"] == 0 and f"nobody serves {address}" in found["faults"][0]
    assert cli.main(["ping", address, "--calls", "3"]) == 1
    assert capsys.readouterr().out.startswith(f"{address}: 0 of 3 calls answered\n")


def test_without_calls_nothing_is_sent(
    etc: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its threads and its memory are is told all the same."""
    with serving(etc, address=f"shm://{etc}/firsttouch/x.shm", cpus=[CPU]):
        monkeypatch.setattr(InferenceClient, "infer", None)
        assert cli.main(["ping", "--server", "x", "--etc", str(etc), "--calls", "0", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["calls"], found["answered"], found["faults"]) == (0, 0, [])
        server = found["server"]
        assert server["pages"]["pages_on_node"]
        serves = [row for row in server["cpus"]["threads"] if row["tid"] == server["cpus"]["serving"]]
        assert [(row["cpus"], row["policy"], row["priority"]) for row in serves] == [(str(CPU), "other", 0)]


def test_the_priority_belongs_to_the_policy() -> None:
    """A fifo thread at another priority than its file's is a fault, and is told with both numbers."""
    code = (
        "import os, sys; from firsttouch import _ping;"
        "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(7));"
        "row = _ping._threads(os.getpid())[0]; print(row['policy'], row['priority'], _ping._policy(row))"
    )
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    if "PermissionError" in done.stderr:
        pytest.skip("SCHED_FIFO is not granted here")
    assert done.stdout == "fifo 7 fifo 7\n", done.stderr
    faults: list[str] = []
    file: Any = types.SimpleNamespace(cpus=[], fifo_priority=8)
    row = {"tid": 1, "name": "x", "cpus": "0", "policy": "fifo", "priority": 7}
    _ping._check_threads(file, {"serving": 1, "threads": [row]}, faults)
    assert faults == ["the serving thread has policy fifo 7, the file asks for fifo 8"]


def test_a_server_that_hangs(etc: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that does not greet in time is waited for: it may be on its way back."""
    address = f"shm://{etc}/firsttouch/x.shm"
    with serving(etc, address=address) as process:
        process.send_signal(signal.SIGSTOP)
        timer = threading.Timer(6.5, lambda: process.send_signal(signal.SIGCONT))
        timer.start()
        try:
            found = ping(etc, capsys, 0, "--server", "x", "--timeout", "30")
        finally:
            timer.join()
        assert found["answered"] == 20


def test_arguments(etc: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What makes no sense is a usage error."""
    assert cli.main(["ping"]) == 2
    assert cli.main(["ping", "unix:///x", "--server", "x"]) == 2
    assert cli.main(["ping", "unix:///x", "--calls", "-1"]) == 2
    assert cli.main(["serve", "--spin-us", "2e6"]) == 2
    write(etc, "servers")
    assert cli.main(["serve", "--server", "x", "--etc", str(etc), "--cpu", "0"]) == 2
    assert "--cpu and --server do not go together" in capsys.readouterr().err


def test_address_of_the_environment(etc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client without an address takes the one of its environment, else the plan's."""
    address = f"unix://{etc}/firsttouch/x.sock"
    with serving(etc, address=address):
        monkeypatch.setenv("FIRSTTOUCH_ADDRESS", address)
        with InferenceClient() as client:
            assert str(client.link.address) == address
        monkeypatch.setenv("FIRSTTOUCH_ADDRESS", "auto://x")
        with InferenceClient() as client:
            assert client.choice is not None
            assert str(client.link.address) == address
    monkeypatch.delenv("FIRSTTOUCH_ADDRESS")
    with pytest.raises(AddressError, match="no server named default"):
        InferenceClient()
