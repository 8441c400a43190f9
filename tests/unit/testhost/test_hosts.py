# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import contextlib
import json
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from testhost import hosts, image, qemu, topology
from testhost.errors import HostError
from testhost.paths import host_dir

TESTS = Path(__file__).resolve().parents[2]
Eventually = Callable[[Callable[[], object]], None]


def make(name: str = "h", **fields: Any) -> hosts.Host:
    host = hosts.Host(name, "trixie", "two_node", "/images/x", "tcg", 40022, **fields)
    host.directory.mkdir(parents=True, exist_ok=True)
    hosts.save(host)
    return host


@contextlib.contextmanager
def sleeper(marker: str = "x") -> Iterator[subprocess.Popen[bytes]]:
    # It is not there before it says so: until exec the child still looks like this process.
    script = "echo ready; while :; do sleep 0.1; done"
    process = subprocess.Popen(["sh", "-c", script, marker], stdout=subprocess.PIPE)
    assert process.stdout and process.stdout.readline() == b"ready\n"
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_state_comes_back_as_it_was() -> None:
    host = make(pid=7, started=9)
    assert hosts.all_hosts() == [host]
    assert hosts.get("h") == host
    assert hosts.get(None) == host


def test_the_state_of_an_older_testhost_is_a_bios_host() -> None:
    path = make().directory / "state.json"
    fields = json.loads(path.read_text())
    assert fields.pop("firmware") == "bios"
    path.write_text(json.dumps(fields))
    assert hosts.get("h").firmware == "bios"


def test_names_that_do_not_decide_are_errors() -> None:
    with pytest.raises(HostError, match="testhost up"):
        hosts.get(None)
    make("a")
    make("b")
    with pytest.raises(HostError, match="a, b"):
        hosts.get(None)
    with pytest.raises(HostError, match="a, b"):
        hosts.get("c")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": 1}'])
def test_a_broken_state_names_its_file(text: str) -> None:
    host_dir("h").mkdir(parents=True)
    (host_dir("h") / "state.json").write_text(text)
    with pytest.raises(HostError, match=r"state\.json"):
        hosts.all_hosts()


def test_a_start_that_was_cut_off_is_found_by_its_pid_file() -> None:
    host = make()
    with sleeper(str(host.pid_file)) as process:
        host.pid_file.write_text(f"{process.pid}\n")
        found = hosts.get("h")
        assert hosts.is_running(found)
        assert hosts.down("h")
        assert process.wait(timeout=5) == -signal.SIGTERM
    assert hosts.all_hosts() == []


def test_a_reused_pid_is_not_ended() -> None:
    with sleeper() as process:
        started = qemu.start_time(process.pid)
        assert started is not None
        make(pid=process.pid, started=started - 1)
        assert hosts.status_of(hosts.get("h")) == "dead"
        assert not hosts.down("h")
        assert process.poll() is None
        make("i")
        hosts.get("i").pid_file.write_text(str(process.pid))
        assert not hosts.down("i")
        assert process.poll() is None


def test_a_stopped_process_shows_as_frozen_and_can_be_ended(eventually: Eventually) -> None:
    with sleeper() as process:
        host = make(pid=process.pid, started=qemu.start_time(process.pid))
        assert hosts.status_of(host) == "running"
        host.guest_pid_file.write_text(f"{process.pid}\n")
        assert hosts.status_of(host) == "running"
        process.send_signal(signal.SIGSTOP)
        eventually(lambda: hosts.status_of(host) == "frozen")
        assert hosts.down("h")
        assert process.wait(timeout=5) == -signal.SIGTERM


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path, eventually: Eventually) -> None:
    ready = tmp_path / "ready"
    script = f"trap '' TERM; : >{ready}; while :; do sleep 0.1; done"
    process = subprocess.Popen(["sh", "-c", script])
    eventually(ready.exists)
    assert qemu.stop(process.pid, qemu.start_time(process.pid), "", limit=0.5)
    assert process.wait(timeout=5) == -signal.SIGKILL


def test_freeze_takes_its_time_and_lets_go(eventually: Eventually) -> None:
    with sleeper() as process:
        host = make(pid=process.pid, started=qemu.start_time(process.pid))
        with pytest.raises(HostError, match="between two boots"):
            hosts.freeze(host, 100)
        host.guest_pid_file.write_text(f"{process.pid}\n")
        assert hosts.freeze(host, 100) >= 100
        eventually(lambda: hosts.status_of(host) == "running")
    with pytest.raises(HostError, match="not running"):
        hosts.freeze(host, 100)


def test_waiting_ends_when_qemu_ends() -> None:
    host = make(pid=2**22 + 1, started=1)
    host.serial_log.write_bytes(b"\x1b[2JLoading Linux\r\nlast words\r\n")
    with pytest.raises(HostError, match=r"(?s)QEMU ended.*last words"):
        hosts.wait_for_ssh(host, 60, pytest.fail)


def test_what_qemu_said_at_its_end_is_in_the_error() -> None:
    host = make(pid=2**22 + 1, started=1)
    host.error_log.write_text("qemu: Could not set up host forwarding rule\n")
    with pytest.raises(HostError, match=r"QEMU ended \(qemu: Could not set up host forwarding rule\);"):
        hosts.wait_for_ssh(host, 60, pytest.fail)


def test_waiting_ends_at_the_limit_and_at_a_panic() -> None:
    with sleeper() as process:
        host = make(pid=process.pid, started=qemu.start_time(process.pid))
        with pytest.raises(HostError, match=r"(?s)no SSH login within 1 s.*no serial log"):
            hosts.wait_for_ssh(host, 1, pytest.fail)
        host.serial_log.write_text("Kernel panic - not syncing: System is deadlocked on memory\n" * 3)
        with pytest.raises(HostError, match=r"(?s)the guest panicked 3 times.*deadlocked"):
            hosts.wait_for_ssh(host, 60, pytest.fail)


def test_a_booted_guest_without_network_is_started_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    host = make()
    launches: list[int] = []
    monkeypatch.setattr(hosts, "_LOGIN_GRACE", 0.1)
    monkeypatch.setattr(hosts, "_new_disk", lambda _: None)
    monkeypatch.setattr(hosts, "is_running", lambda _: True)
    monkeypatch.setattr(hosts, "_ssh_answers", lambda *_: len(launches) == 3)

    def launch(host: hosts.Host, _machine: topology.Topology) -> hosts.Host:
        assert not host.serial_log.exists()
        launches.append(1)
        host.serial_log.write_text("\nfirsttouch login: ")
        return host

    monkeypatch.setattr(hosts, "_launch", launch)
    with pytest.raises(hosts.UnreachableError, match="login prompt"):
        hosts._boot(host, topology.get("two_node"), 60, lambda _: None)
    assert len(launches) == 2
    hosts._boot(host, topology.get("two_node"), 60, lambda _: None)
    assert len(launches) == 3


def test_a_listener_without_a_banner_is_no_login() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host = hosts.Host("h", "trixie", "two_node", "", "tcg", server.getsockname()[1])
        assert not hosts._ssh_answers(host, 0.3)


def test_a_host_that_fails_to_start_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    built = image.image_of("trixie")
    built.directory.mkdir(parents=True)
    monkeypatch.setenv("FIRSTTOUCH_TESTHOST_ACCEL", "tcg")
    monkeypatch.setattr(qemu, "find_tools", lambda *names: dict.fromkeys(names, "/bin/true"))

    def launch(host: hosts.Host, _machine: topology.Topology) -> hosts.Host:
        raise HostError("address in use")

    monkeypatch.setattr(hosts, "_launch", launch)
    with pytest.raises(HostError, match="address in use"):
        hosts.up("h", "two_node", "trixie", lambda _: None)
    assert hosts.all_hosts() == []
    assert not host_dir("h").exists()


# Stands in for QEMU and its monitor on stdio. $0 is this script; the boots so far are lines of $0.boots.
_QEMU = """#!/bin/sh
echo boot >>"$0.boots"
read -r line || exit 9
echo '{"return": {}}'
case $(wc -l <"$0.boots") in
1) reason=guest-reset ;;
2) reason=guest-shutdown ;;
esac
test -e "$0.stay" && exec sleep 60
echo '{"event": "SHUTDOWN", "data": {"guest": true, "reason": "'$reason'"}}'
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "qemu"
    program.write_text(_QEMU)
    program.chmod(0o755)
    monkeypatch.setattr(hosts, "qemu_argv", lambda *_: [str(program)])
    return program


def test_a_guest_that_resets_gets_a_new_qemu_and_one_that_powers_off_does_not(stand_in: Path) -> None:
    pids = stand_in.with_name("supervisor.pid"), stand_in.with_name("guest.pid")
    command = [sys.executable, str(TESTS / "testhost"), "supervise", *map(str, pids), str(stand_in)]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0
    assert stand_in.with_name("qemu.boots").read_text() == "boot\n" * 2
    assert pids[0].exists()
    assert not pids[1].exists()


def test_the_end_of_a_supervisor_is_the_end_of_its_qemu(stand_in: Path, eventually: Eventually) -> None:
    stand_in.with_name("qemu.stay").touch()
    host = hosts._launch(make(), topology.get("two_node"))
    assert hosts.is_running(host)
    assert hosts.get("h") == host
    guest = hosts.guest_pid(host)
    eventually(lambda: qemu.process_state(guest) in ("S", "R"))
    assert hosts.down("h")
    eventually(lambda: qemu.start_time(guest) is None)


def test_a_qemu_that_refuses_its_arguments_says_so(stand_in: Path) -> None:
    stand_in.write_text("#!/bin/sh\necho no such CPU >&2\nexit 1\n")
    with pytest.raises(HostError, match="no such CPU"):
        hosts._launch(make(), topology.get("two_node"))


def test_a_taken_port_is_replaced(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ports: list[int] = []
    stand_in.with_name("qemu.stay").touch()

    def argv(host: hosts.Host, _machine: topology.Topology) -> list[str]:
        recorded = json.loads((host.directory / "state.json").read_text())
        ports.append(recorded["port"])
        taken = ["sh", "-c", "echo Could not set up host forwarding rule >&2; exit 1"]
        return taken if len(ports) < 3 else [str(stand_in)]

    monkeypatch.setattr(hosts, "qemu_argv", argv)
    started = hosts._launch(make(), topology.get("two_node"))
    assert len(set(ports)) == 3
    assert started.port == ports[-1]
    assert hosts.get("h") == started
    assert hosts.down("h")


@pytest.fixture
def uefi_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> hosts.Host:
    """A UEFI host whose image was made, with everything that runs replaced by true(1)."""
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / qemu.UEFI_VARIABLES).write_text("as the image left them")
    code, variables = tmp_path / "code.fd", tmp_path / "empty.fd"
    code.touch()
    variables.touch()
    monkeypatch.setattr(qemu, "_UEFI", (str(code), str(variables)))
    monkeypatch.setattr(qemu, "find_tools", lambda *names: dict.fromkeys(names, "/bin/true"))
    host = replace(make(), image=str(tmp_path / "image"), firmware="uefi")
    hosts.save(host)
    return host


def test_a_uefi_host_has_variables_of_its_own(uefi_host: hosts.Host) -> None:
    argv = " ".join(hosts.qemu_argv(uefi_host, topology.get("two_node")))
    assert f"unit=1,format=raw,file={uefi_host.uefi_variables}" in argv
    assert "readonly=on" in argv.partition("unit=0")[2].partition("unit=1")[0]
    assert "pflash" not in " ".join(hosts.qemu_argv(make("b"), topology.get("two_node")))
    for _ in ("up", "reset"):
        hosts._new_disk(uefi_host)
        assert uefi_host.uefi_variables.read_text() == "as the image left them"
        uefi_host.uefi_variables.write_text("changed by a boot")


def test_a_firmware_that_is_not_installed_comes_with_its_package(
    uefi_host: hosts.Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qemu, "_UEFI", ("/no/OVMF_CODE.fd", qemu.uefi()[1]))
    with pytest.raises(HostError, match=r"missing: /no/OVMF_CODE\.fd; .* ovmf$"):
        hosts.up("new", "two_node", "trixie", pytest.fail, firmware="uefi")


@pytest.mark.parametrize("text", ["grub rescue> ", "BdsDxe: No bootable option or device was found."])
def test_waiting_ends_when_there_is_nothing_to_boot(text: str) -> None:
    with sleeper() as process:
        host = make(pid=process.pid, started=qemu.start_time(process.pid))
        host.serial_log.write_text(text)
        with pytest.raises(HostError, match=r"(?s)no system to boot was found.*serial log"):
            hosts.wait_for_ssh(host, 60, pytest.fail)


@pytest.mark.parametrize("first", [32768, 2000, 1025, 1024])
def test_a_port_is_none_that_the_kernel_gives_to_connections(
    first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "range").write_text(f"{first}\t65535\n")
    monkeypatch.setattr(qemu, "_PORT_RANGE", tmp_path / "range")
    # Where it gives all that a user may have, any of them has to do.
    last = first if first > 1025 else 65536
    assert all(1024 <= qemu.free_port() < last for _ in range(20))


def test_a_port_of_another_host_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        free = [qemu.free_port() for _ in range(2)]
        order = [busy.getsockname()[1], free[0], free[1]]
        monkeypatch.setattr(random, "sample", lambda *_args, **_kwargs: order)
        hosts.save(replace(make(), port=free[0]))
        assert hosts._free_port() == free[1]


def test_a_host_needs_room_and_says_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    image.image_of("trixie").directory.mkdir(parents=True)
    monkeypatch.setenv("FIRSTTOUCH_TESTHOST_ACCEL", "tcg")
    monkeypatch.setattr(qemu, "find_tools", lambda *names: dict.fromkeys(names, "/bin/true"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("usage", (), {"free": (512 << 20) - 1}))
    with pytest.raises(HostError, match=r"a host takes up to 512 MiB, and .*cache has 511 MiB left; .*FIRSTTOUCH"):
        hosts.up("h", "two_node", "trixie", lambda _: None)
    assert not host_dir("h").exists()


@pytest.mark.parametrize("name", ["", "-x", "a b", "A", "../x", "x/y", ".lock"])
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(HostError, match="name"):
        hosts.up(name, "two_node", "trixie", pytest.fail)


def test_a_machine_for_ask_does_not_boot() -> None:
    with pytest.raises(HostError, match="ask only"):
        hosts.up("h", "ask_2x24g", "trixie", pytest.fail)


def test_one_start_of_a_name_at_a_time() -> None:
    with hosts._starting("h"), pytest.raises(HostError, match="another testhost"), hosts._starting("h"):
        pytest.fail("a second start went on")
    with hosts._starting("h"):
        pass


def test_the_inventory_reaches_each_host() -> None:
    hosts_of = hosts.inventory([make("a"), make("b")])["all"]["children"]["testhosts"]["hosts"]
    assert list(hosts_of) == ["a", "b"]
    entry = hosts_of["b"]
    assert entry["ansible_host"] == "127.0.0.1"
    assert entry["ansible_port"] == 40022
    assert entry["ansible_ssh_private_key_file"] == str(host_dir("b") / "id_ed25519")
    assert "StrictHostKeyChecking=no" in entry["ansible_ssh_common_args"]
    assert "ControlPersist" in entry["ansible_ssh_args"]


def test_the_command_line_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qemu, "find_tools", lambda *names: {name: name for name in names})
    host = make()
    argv = hosts.qemu_argv(host, topology.get("two_node"))
    assert f"user,model=virtio-net-pci,hostfwd=tcp:127.0.0.1:{host.port}-:22" in argv
    assert any(str(host.overlay) in word for word in argv)
    assert hosts.ssh_argv(host, ["echo", "x"])[-3:] == ["root@127.0.0.1", "echo", "x"]


def test_the_tail_of_a_log_is_readable(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert qemu.tail(log) == "(no serial log)"
    log.write_bytes(b"")
    assert "empty" in qemu.tail(log)
    log.write_bytes(b"one\r\n\x1b[H\x1b[J\x1b[!p\x1b]104\x07\x1b[?7h\r\n\x1b[1;31mtwo\x1b[0m\r\n\r\n")
    assert qemu.tail(log) == "one\ntwo"
    assert qemu.tail(log, 1) == "two"


def test_missing_programs_come_with_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_args, **_kwargs: None)
    with pytest.raises(HostError, match="apt-get install mmdebstrap qemu-system-x86 qemu-utils"):
        qemu.find_tools("qemu-system-x86_64", "qemu-img", "mmdebstrap")
