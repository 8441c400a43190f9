# SPDX-License-Identifier: Apache-2.0
"""The command line: serve and be asked, doctor, bench; errors are one line and a status."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firsttouch import InferenceClient, bench, cli
from firsttouch._policy import ACTION, OBSERVATION
from firsttouch.errors import ArgumentError, BrokenError
from serving import eventually

SOURCE = str(Path(cli.__file__).parents[1])


@contextlib.contextmanager
def running(*words: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """`firsttouch serve WORDS`, once it listens; killed at the end."""
    command = [sys.executable, "-m", "firsttouch.cli", "serve", "--pages", "4k", *words]
    env = {**os.environ, "PYTHONPATH": SOURCE}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=cwd, env=env, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout
            assert select.select([process.stdout], [], [], 20)[0]
            line = process.stdout.readline()
            assert line.startswith("serving "), process.stderr.read() if process.stderr else ""
            yield process
        finally:
            process.kill()


def test_serve(tmp_path: Path) -> None:
    """The embedded policy answers over shared memory; metrics come on demand; SIGTERM ends it and leaves nothing."""
    metrics, address = tmp_path / "metrics", f"shm://{tmp_path}/policy"
    cpu = str(min(os.sched_getaffinity(0)))
    with running("--address", address, "--metrics", str(metrics), "--cpu", cpu, cwd=tmp_path) as process:
        with InferenceClient(address) as client:
            arrays, meta = client.infer({"obs": np.ones(OBSERVATION, "f4")})
            assert arrays["act"].shape == (ACTION,)
            assert np.abs(arrays["act"]).max() > 0
            assert meta is None

            def told() -> bool:
                # The answer is out before it is counted.
                process.send_signal(signal.SIGUSR1)
                wanted = 'firsttouch_latency_seconds_bucket{le="+Inf"} 1\n'
                return metrics.exists() and wanted in metrics.read_text()

            assert eventually(told)
            assert "firsttouch_requests_total 1\n" in metrics.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"metrics"}


def test_serve_handler(tmp_path: Path) -> None:
    """A handler of the current folder is served, over several addresses, and restarted when it dies."""
    (tmp_path / "mine.py").write_text(
        "import os\n"
        "from firsttouch import Schema\n"
        "def double(batch):\n"
        "    if batch.arrays['x'][0] < 0:\n"
        "        raise ValueError('negative')\n"
        "    return {'y': batch.arrays['x'] * 2}\n"
        "double.schema = Schema.of({'x': ('int32', ())}, {'y': ('int32', ())})\n"
    )
    places = [f"shm://{tmp_path}/a", f"unix://{tmp_path}/b"]
    words = [word for place in places for word in ("--address", place)]
    with running(*words, "--handler", "mine:double", cwd=tmp_path) as process:
        for place in places:
            with InferenceClient(place) as client:
                assert client.infer({"x": np.int32(21) * np.ones((), "i4")})[0]["y"] == 42
                with pytest.raises(Exception, match="ValueError: negative"):
                    client.infer({"x": np.array(-1, "i4")})
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["serve", "--handler", "os:getcwd"], 2, "has no schema"),
        (["serve", "--handler", "no_such_module:x"], 2, "no_such_module"),
        (["serve", "--handler", "os"], 2, "module:function"),
        (["serve", "--address", "http://x"], 2, "is no address"),
        (["serve", "--address", "tcp://10.0.0.1:1"], 1, "without TLS"),
        (["serve", "--tls-cert", "x"], 2, "--tls-key"),
        (["serve", "--cpu", "999999"], 1, "cannot run on CPU 999999"),
        (["serve", "--cpu", "-1"], 1, "cannot run on CPU -1"),
        (["serve", "--fifo", "5"], 2, "give --cpu"),
        (["serve", "--fifo", "0", "--cpu", "0"], 2, "--fifo 0 is not between 1 and 99"),
        (["serve", "--lanes", "0"], 2, "--lanes 0 is not between 1 and 4096"),
        (["serve", "--lanes", "-3"], 2, "--lanes -3"),
        (["serve", "--max-batch", "0"], 2, "--max-batch 0 is not between 1 and 65536"),
        (["serve", "--address", "shm:///no/such/folder/x"], 2, "cannot listen"),
    ],
)
def test_errors(
    words: list[str], status: int, told: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A mistake is one line on stderr and a status, before anything listens."""
    where = [] if "--address" in words else ["--address", f"unix://{tmp_path}/s"]
    assert cli.main([*words, *where]) == status
    assert not list(tmp_path.iterdir())
    out = capsys.readouterr()
    assert told in out.err
    assert out.err.count("\n") == 1
    assert not out.out


def test_handler_must_be_one() -> None:
    """What is no handler is refused before anything listens."""
    with pytest.raises(ArgumentError):
        cli.load_handler("json:dumps")


def test_doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """doctor tells the same as text and as JSON, and follows the plan that it is given."""
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"schema": 1, "transport": {"policy": "fastest"}}))
    assert cli.main(["doctor", "--plan", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["transport"]["plan"] == str(path)
    assert found["transport"]["rule"] in ("fastest", "machine")
    first = found["pinning"]["steps"][0]
    assert first == {"name": "cpu", "wanted": str(found["pinning"]["cpu"]), "done": True, "reason": ""}
    assert cli.main(["doctor", "--plan", str(path)]) == 0
    assert found["transport"]["words"] in capsys.readouterr().out
    path.write_text("{")
    assert cli.main(["doctor", "--plan", str(path)]) == 2


def test_doctor_tries_the_isolated_cpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A process begins beside the isolated CPUs of its host; what counts is whether it may move there."""
    before = os.sched_getaffinity(0)
    path, isolated = tmp_path / "plan.json", max(before)

    def pinning(cpus: str) -> dict[str, Any]:
        plan = {"schema": 1, "transport": {"policy": "fastest"}, "topology": {"nodes": {"0": {"isolated": cpus}}}}
        path.write_text(json.dumps(plan))
        assert cli.main(["doctor", "--plan", str(path), "--json"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)["pinning"]
        return found

    try:
        os.sched_setaffinity(0, {min(before)})
        found = pinning(f"{isolated},9999")
        assert (found["cpu"], found["why"]) == (isolated, "the first isolated CPU of the plan")
        found = pinning("9999")
        assert found["cpu"] == min(before) and "may run on no isolated CPU of a plan" in found["why"]
        found = pinning("")
        assert found["cpu"] == min(before) and "there is no isolated CPU of a plan" in found["why"]
        assert os.sched_getaffinity(0) == {min(before)}
    finally:
        os.sched_setaffinity(0, before)


def test_bench(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The load generator measures each of our transports."""
    monkeypatch.setattr(bench, "_idle", lambda _: 0.0)
    assert cli.main(["bench", "transport", "--calls", "40", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["transport"] for row in rows] == [
        "firsttouch shm",
        "firsttouch shm in place",
        "firsttouch unix",
        "firsttouch tcp",
    ]
    assert all(0 < row["p50_us"] <= row["p90_us"] <= row["p99_us"] <= row["p999_us"] for row in rows)
    assert "p50_us" in bench.table(rows)
    assert cli.main(["bench", "transport", "--calls", "40", "--only", "shm", "--only", "unix", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["transport"] for row in rows] == ["firsttouch shm", "firsttouch unix"]
    assert cli.main(["bench", "transport", "--calls", "40", "--only", "shm", "--spin-us", "0", "--json"]) == 0
    assert [row["transport"] for row in json.loads(capsys.readouterr().out)] == ["firsttouch shm no spin"]
    assert cli.main(["bench", "transport", "--spin-us", "-1"]) == 2


def test_no_server(tmp_path: Path) -> None:
    """The client's error names the address."""
    with pytest.raises(BrokenError, match=f"unix://{tmp_path}/x"):
        InferenceClient(f"unix://{tmp_path}/x")
