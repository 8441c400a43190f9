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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from firsttouch import InferenceClient, cli, plan
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
        assert "policy other, the file asks for fifo" in told
        assert process.poll() is None
    write(etc, "servers", address=address)
    found = ping(etc, capsys, 1, "--server", "x")
    assert found["answered"] == 0 and f"nobody serves {address}" in found["faults"][0]


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
    assert cli.main(["ping", "unix:///x", "--calls", "0"]) == 2
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
