# SPDX-License-Identifier: GPL-3.0-or-later
"""The demo without its host: what it asks for fits the host, how it times, and that Ctrl-C leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import demo
import pytest
import yaml
from plan_host import plan
from support import ROOT

HOST = ROOT / "tests" / "fixtures" / "hosts" / "testhost-two-node.tar.xz"
ROWS = [
    {"transport": "firsttouch shm", "p50_us": 100.0, "p90_us": 200.4, "p99_us": 300.0, "p999_us": 5000.0},
    {"transport": "firsttouch shm in place", "p50_us": 1.0, "p90_us": 1.0, "p99_us": 1.0, "p999_us": 1.0},
    {"transport": "firsttouch unix", "p50_us": 450.0, "p90_us": 601.2, "p99_us": 600.0, "p999_us": 4000.0},
]
# Stands for tests/testhost: notes what it is asked; its host takes long, and cleans up when it is told to end.
FAKE = """
import pathlib, sys, time
notes = pathlib.Path(sys.argv[1])
def note(text):
    with notes.open("a") as file:
        file.write(text + "\\n")
note(" ".join(sys.argv[2:]))
if sys.argv[2] == "up":
    try:
        print("booting", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        time.sleep(0.5)
        note("cleaned up")
        sys.exit(130)
"""


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What host_plan makes of the demo's variables on the recorded test host."""
    root = tmp_path_factory.mktemp("host")
    with tarfile.open(HOST) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(root, filter="tar")
        else:
            tar.extractall(root)
    intent: dict[str, Any] = {}
    for source in demo.VARIABLES.values():
        intent.update(yaml.safe_load(source.read_text()))
    kept = {key.removeprefix("firsttouch_"): value for key, value in intent.items()}
    return plan(root, {key: value for key, value in kept.items() if not key.startswith("reboot")})


def test_the_variables_give_a_server_with_a_cpu_and_shared_memory(planned: dict[str, Any]) -> None:
    (server,) = planned["plan"]["sections"]["runtime"]["servers"]
    assert (server["name"], server["transport"], server["cpus"]) == (demo.SERVER, "auto", [3])
    assert planned["plan"]["transport"]["transport"] == "shm"
    (model,) = planned["plan"]["sections"]["runtime"]["models"]
    # Where boot() puts it.
    assert model["source"] == "/srv/models/toy" and server["models"] == [model["name"]]


def test_the_model_can_be_made_on_the_host_from_a_pipe(tmp_path: Path) -> None:
    """As boot() does it over ssh, with a Python that has nothing but its standard library."""
    with demo.MODEL.open("rb") as program:
        subprocess.run([sys.executable, "-I", "-", str(tmp_path / "toy")], stdin=program, check=True, timeout=60)
    assert (tmp_path / "toy" / "model.safetensors").stat().st_size > 4 << 20


def test_the_benchmark_takes_the_servers_cpu_and_one_that_keeps_the_house(planned: dict[str, Any]) -> None:
    command = demo.bench_command(planned["plan"], "kvm")
    assert command.startswith("taskset -c 2,3 /opt/firsttouch/current/bin/firsttouch bench transport ")
    assert command.endswith(" --json")
    # Emulated, both sides wait longer before they sleep: else the emulator's wake-ups are all that is measured.
    assert demo.bench_command(planned["plan"], "tcg") == f"{command} --spin-us {demo.EMULATED_SPIN_US}"


def test_a_server_without_a_cpu_is_timed_where_the_kernel_likes() -> None:
    sections: dict[str, Any] = {"runtime": {"servers": [{"name": demo.SERVER, "cpus": [], "node": None}]}}
    assert demo.bench_command({"sections": sections}, "kvm").startswith(f"{demo.FIRSTTOUCH} bench transport ")
    assert demo.bench_command({"sections": {}}, "kvm").startswith(f"{demo.FIRSTTOUCH} bench transport ")


def test_percentiles_stand_side_by_side() -> None:
    head, *lines = demo.latency_table(ROWS)
    assert head.split() == ["us", "shm", "unix", "unix/shm"]
    assert [line.split() for line in lines] == [
        ["p50", "100", "450", "4.5"],
        ["p90", "200", "601", "3.0"],
        ["p99", "300", "600", "2.0"],
        ["p99.9", "5000", "4000", "0.8"],
    ]
    with pytest.raises(demo.DemoError, match="firsttouch unix"):
        demo.latency_table(ROWS[:2])


@pytest.mark.parametrize(("accel", "worth"), [("tcg", "only the ratio"), ("kvm", "this machine alone")])
def test_one_line_says_who_measured_and_what_it_is_worth(accel: str, worth: str) -> None:
    line = demo.who_measured("firsttouch bench transport", accel)
    assert "\n" not in line
    assert "`firsttouch bench transport` on the host" in line and accel in line and worth in line and " CPUs: " in line


def test_what_a_user_changed_is_kept_with_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "STATE", tmp_path)
    folder = demo.write_variables(keep=False)
    assert {path.name for path in folder.iterdir()} == set(demo.VARIABLES)
    changed = folder / "runtime.yml"
    changed.write_text("firsttouch_servers: []\n")
    demo.write_variables(keep=True)
    assert changed.read_text() == "firsttouch_servers: []\n"
    demo.write_variables(keep=False)
    assert changed.read_text() == demo.VARIABLES["runtime.yml"].read_text()


def test_a_command_is_shown_as_it_goes_and_said_to_be_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(demo, "STATE", tmp_path)
    monkeypatch.setattr(demo, "QUIET_SECONDS", 0.3)
    monkeypatch.setattr(demo, "POLL_SECONDS", 0.1)
    demo.run(["sh", "-c", "echo one; sleep 1; echo two >&2; cat"], feed=ROOT / "galaxy.yml")
    out = capfdbinary.readouterr().out
    first, work, second = (out.index(word) for word in (b"one\n", b"still at work", b"two\n"))
    assert first < work < second and b"namespace: firsttouch" in out
    with pytest.raises(demo.DemoError, match="sh -c 'exit 7' ended with status 7"):
        demo.run(["sh", "-c", "exit 7"])
    assert demo.answer(["echo", "{}"]) == "{}\n"
    with pytest.raises(demo.DemoError, match="status 1"):
        demo.answer(["false"])


def test_what_a_command_leaves_behind_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a connection that ssh keeps for later, with the terminal's pipe in its hands."""
    monkeypatch.setattr(demo, "STATE", tmp_path)
    began = time.monotonic()
    pid = int(demo.answer(["sh", "-c", "sleep 30 & echo $!"]))
    os.kill(pid, signal.SIGKILL)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("keep", "ignored"), [(False, False), (True, False), (False, True)])
def test_an_interrupt_ends_the_host_after_the_command(
    tmp_path: Path, number: signal.Signals, keep: bool, ignored: bool
) -> None:
    """The command under way ends itself first; with --keep the host that was up before is not the demo's to end.

    Also where SIGINT is ignored, as for what a script has in the background.
    """
    fake, notes = tmp_path / "testhost.py", tmp_path / "notes"
    fake.write_text(FAKE)
    program = f"""
import pathlib, sys
sys.path.insert(0, {str(ROOT / "tools")!r})
import demo
demo.STATE = pathlib.Path({str(tmp_path)!r})
demo.TESTHOST = [sys.executable, {str(fake)!r}, {str(notes)!r}]
if {keep}:
    demo.install_collection = lambda: demo.run([*demo.TESTHOST, "up"])
sys.argv[1:] = ["--keep"] if {keep} else []
sys.exit(demo.main())
"""
    trap = "trap '' INT; " if ignored else ""
    command = ["sh", "-c", f'{trap}exec "$@"', "sh", sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        while b"booting" not in process.stdout.readline():
            assert process.poll() is None, process.stderr.read()
        process.send_signal(number)
        _, told = process.communicate(timeout=30)
    seen = notes.read_text().splitlines()
    if keep:
        assert seen[-2:] == ["up", "cleaned up"] and b"left as it is" in told
    else:
        assert seen[-3:] == [f"up {demo.NAME} --topology two_node --release trixie", "cleaned up", f"down {demo.NAME}"]
        assert b"ended and removed" in told
    assert process.returncode == 130


def test_without_a_host_keep_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "STATE", tmp_path)
    monkeypatch.setattr(demo, "TESTHOST", ["sh", "-c", "echo no such host >&2; exit 1"])
    monkeypatch.setattr(sys, "argv", ["demo.py", "--keep"])
    assert demo.main() == 1
    assert "The demo stopped" in capsys.readouterr().err


def test_the_whole_of_serving_is_asked_on_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planned: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """The commands that serve() sends, answered by a stand-in that knows only these."""
    answers = {
        f"{demo.FIRSTTOUCH} ping --server policy --calls 50": "50 of 50 calls answered over shm",
        f"{demo.FIRSTTOUCH} weights ls": "toy (node 0)",
        "cat /etc/firsttouch/plan.json": json.dumps(planned["plan"]),
        demo.bench_command(planned["plan"], "tcg"): json.dumps(ROWS),
    }
    fake = tmp_path / "testhost.py"
    status = json.dumps([{"name": "other", "accel": "kvm"}, {"name": demo.NAME, "accel": "tcg"}])
    table: dict[tuple[str, ...], str] = {("ssh", demo.NAME, text): found for text, found in answers.items()}
    table["status", "--json"] = status
    fake.write_text(f"import sys\nprint({table!r}[tuple(sys.argv[1:])])\n")
    monkeypatch.setattr(demo, "STATE", tmp_path)
    monkeypatch.setattr(demo, "TESTHOST", [sys.executable, str(fake)])
    demo.serve()
    out = capfd.readouterr().out
    assert out.index("answered over shm") < out.index("toy (node 0)") < out.index("p99.9") < out.index("only the ratio")
