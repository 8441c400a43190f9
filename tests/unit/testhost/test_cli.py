# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from testhost import ask, cli, hosts, probe
from testhost.errors import HostError

TESTS = Path(__file__).resolve().parents[2]
COMMANDS = ("build", "up", "down", "ssh", "reset", "freeze", "status", "logs", "inventory", "ask")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_teaches(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    assert len(capsys.readouterr().out.splitlines()) >= 8


@pytest.mark.parametrize("start", [["-m", "testhost"], [str(TESTS / "testhost")]])
def test_both_ways_to_start_it(start: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, *start, "status", "--json"],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, json.loads(done.stdout)) == (0, []), done.stderr


def test_status_and_logs(own_cache: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    host = hosts.Host("h", "trixie", "two_node", "/x", "tcg", 40022)
    host.directory.mkdir(parents=True)
    hosts.save(host)
    assert cli.main(["logs"]) == 1
    host.serial_log.write_bytes(b"one\r\ntwo\r\nthree\r\n")
    assert cli.main(["logs", "-n", "2"]) == 0
    assert capsysbinary.readouterr().out == b"two\r\nthree\r\n"
    assert cli.main(["status"]) == 0
    lines = capsysbinary.readouterr().out.decode().splitlines()
    assert lines[0].split()[:2] == ["name", "state"]
    assert lines[1].split()[:5] == ["h", "dead", "trixie", "bios", "two_node"]


def test_the_serial_console_survives_the_host(own_cache: Path, tmp_path: Path) -> None:
    for number, name in enumerate(("a", "b")):
        host = hosts.Host(name, "trixie", "two_node", "/x", "tcg", 40022 + number)
        host.directory.mkdir(parents=True)
        hosts.save(host)
    hosts.get("a").serial_log.write_bytes(b"one\r\n")
    kept = tmp_path / "logs" / "serial-a.log"
    for name in ("a", "b"):  # b was never started
        assert cli.main(["down", name, "--keep-log", str(kept.parent)]) == 0
    assert not hosts.all_hosts() and [kept] == list(kept.parent.iterdir())
    assert kept.read_bytes() == b"one\r\n"


def test_an_inventory_of_some_hosts(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, name in enumerate(("a", "b", "gone")):
        host = hosts.Host(name, "trixie", "two_node", "/x", "tcg", 40022 + number)
        host.directory.mkdir(parents=True)
        hosts.save(host)
    monkeypatch.setattr(hosts, "is_running", lambda host: host.name != "gone")

    def names(*argv: str) -> list[str]:
        assert cli.main(["inventory", *argv]) == 0
        return sorted(json.loads(capsys.readouterr().out)["all"]["children"]["testhosts"]["hosts"])

    assert names() == ["a", "b"]
    assert names("b") == ["b"]
    assert names("b", "a", "b") == ["a", "b"]
    for argv, word in ((["a", "gone"], "gone is not running"), (["nope"], "nope")):
        assert cli.main(["inventory", *argv]) == 1
        captured = capsys.readouterr()
        assert word in captured.err and not captured.out


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["down", "nope"], "no host"),
        (["inventory"], "testhost up"),
        (["freeze", "0"], "1 to 60000"),
        (["ask"], "testhost ask"),
    ],
)
def test_errors_say_what_to_do(argv: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 1
    assert word in capsys.readouterr().err


def test_ask_takes_lines_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answers(cmdlines: list[str], *_: object) -> list[dict[str, object]]:
        return [{"asked": line, "dmesg": ["x"]} for line in cmdlines]

    monkeypatch.setattr(ask, "ask_many", answers)
    lines = tmp_path / "lines"
    lines.write_text("# note\n\nhugepages=1\n")
    assert cli.main(["ask", "isolcpus=1", "--file", str(lines)]) == 0
    assert json.loads(capsys.readouterr().out) == [{"asked": "isolcpus=1"}, {"asked": "hugepages=1"}]
    assert cli.main(["ask", "--dmesg", "x"]) == 0
    assert json.loads(capsys.readouterr().out) == {"asked": "x", "dmesg": ["x"]}


def outcome(accel: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Probe with a kernel that ends this way; returns what was said."""
    said: list[str] = []

    def ask_kernel(*_: object) -> dict[str, str]:
        if accel == "abort":
            raise HostError("qemu ended with status -6: cannot set MSR\nmore")
        return {"outcome": accel}

    monkeypatch.setattr(ask, "ask_kernel", ask_kernel)
    monkeypatch.setattr(os, "access", lambda *_: True)
    said.append(probe.accelerator(Path("k"), said.append))
    return said


@pytest.mark.parametrize(
    ("ends", "accel", "word"),
    [
        ("booted", "kvm", "works"),
        ("hang", "tcg", "hang"),
        ("panic", "tcg", "panic"),
        ("abort", "tcg", "MSR"),
    ],
)
def test_kvm_counts_only_when_a_kernel_boots(
    ends: str, accel: str, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FIRSTTOUCH_TESTHOST_ACCEL", raising=False)
    text, chosen = outcome(ends, monkeypatch)
    assert chosen == accel
    assert word in text
    # Remembered until this machine boots again.
    assert outcome("booted" if ends == "hang" else "hang", monkeypatch) == [accel]
    monkeypatch.setattr(probe, "_boot_id", lambda: "another")
    assert len(outcome(ends, monkeypatch)) == 2


def test_the_environment_decides_over_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRSTTOUCH_TESTHOST_ACCEL", "tcg")
    assert probe.accelerator(Path("k"), pytest.fail) == "tcg"
    monkeypatch.setenv("FIRSTTOUCH_TESTHOST_ACCEL", "hax")
    with pytest.raises(HostError, match="must be kvm or tcg"):
        probe.accelerator(Path("k"), pytest.fail)


def test_an_error_of_the_system_is_one_line(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device", "/cache/hosts/h/state.json.new")

    monkeypatch.setattr(hosts, "up", full)
    assert cli.main(["up"]) == 1
    want = "testhost: [Errno 28] No space left on device: '/cache/hosts/h/state.json.new'\n"
    assert capsys.readouterr().err == want
