# SPDX-License-Identifier: GPL-3.0-or-later
"""Running hosts: an overlay disk, a key, a port and one QEMU each, with their state on disk."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from . import image, probe, qemu, room, supervisor, topology
from .errors import HostError
from .paths import cache_dir, host_dir, hosts_dir

BOOT_LIMIT = 900.0
# A host that has only booted has written 5 MiB; the rest is for what is installed there.
HOST_MIB = 512
_PORT_TRIES = 5
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,40}")
# The guest boots again by itself after a panic (panic=10); one that always panics is not worth the limit.
_PANIC_LIMIT = 3
# What GRUB and the UEFI firmware say when they are at their end.
_NO_SYSTEM = ("grub rescue>", "UEFI Interactive Shell", "No bootable option or device was found")
# From the login prompt on the serial console to SSH.
_LOGIN_GRACE = 120.0
SSH_OPTIONS = (
    "StrictHostKeyChecking=no",
    "UserKnownHostsFile=/dev/null",
    "LogLevel=ERROR",
    "IdentitiesOnly=yes",
    "BatchMode=yes",
)  # fmt: skip

Say = Callable[[str], None]


class UnreachableError(HostError):
    """A guest that booted to its login prompt, but whose network does not answer."""


@dataclass(frozen=True)
class Host:
    """What state.json holds. ``pid`` is that of QEMU's supervisor, 0 until it runs; ``started`` is its start
    time in clock ticks."""

    name: str
    release: str
    topology: str
    image: str
    accel: str
    port: int
    pid: int = 0
    started: int | None = None
    firmware: str = "bios"

    @property
    def directory(self) -> Path:
        return host_dir(self.name)

    @property
    def key(self) -> Path:
        return self.directory / "id_ed25519"

    @property
    def overlay(self) -> Path:
        return self.directory / "overlay.qcow2"

    @property
    def uefi_variables(self) -> Path:
        return self.directory / qemu.UEFI_VARIABLES

    @property
    def serial_log(self) -> Path:
        return self.directory / "serial.log"

    @property
    def pid_file(self) -> Path:
        return self.directory / "supervisor.pid"

    @property
    def guest_pid_file(self) -> Path:
        """Holds the pid of QEMU while there is one; a reboot takes a new one."""
        return self.directory / "qemu.pid"

    @property
    def error_log(self) -> Path:
        return self.directory / "qemu.err"


def save(host: Host) -> None:
    """Write the state whole or not at all."""
    beside = host.directory / "state.json.new"
    beside.write_text(json.dumps(asdict(host), indent=2) + "\n")
    beside.rename(host.directory / "state.json")


def _load(directory: Path) -> Host | None:
    try:
        fields: dict[str, Any] = json.loads((directory / "state.json").read_text())
        host = Host(**fields)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise HostError(f"{directory}/state.json cannot be read ({error}); remove {directory}") from error
    if not host.pid:
        # The start was interrupted before the pid was recorded; the supervisor itself has written it.
        with contextlib.suppress(FileNotFoundError, ValueError):
            host = replace(host, pid=int(host.pid_file.read_text()))
    return host


def all_hosts() -> list[Host]:
    """Every recorded host, running or not, by name."""
    found = (_load(path) for path in sorted(hosts_dir().glob("*")) if path.is_dir())
    return [host for host in found if host is not None]


def get(name: str | None) -> Host:
    """The host of that name, or the only one there is."""
    hosts = all_hosts()
    if name is None and len(hosts) == 1:
        return hosts[0]
    for host in hosts:
        if host.name == name:
            return host
    known = ", ".join(host.name for host in hosts) or "none"
    if name is None:
        raise HostError(f"name a host; there are: {known}" if hosts else "no host; start one: testhost up")
    raise HostError(f"no host {name!r}; there are: {known}")


def is_running(host: Host) -> bool:
    return bool(host.pid) and qemu.is_ours(host.pid, host.started, str(host.pid_file))


def status_of(host: Host) -> str:
    """running, frozen (stopped by a signal) or dead."""
    if not is_running(host):
        return "dead"
    guest = guest_pid(host)
    return "frozen" if guest and qemu.process_state(guest) in ("T", "t") else "running"


def guest_pid(host: Host) -> int:
    """The pid of the host's QEMU, 0 in the moment between two of them."""
    try:
        return int(host.guest_pid_file.read_text())
    except FileNotFoundError:
        return 0


def ssh_argv(host: Host, command: list[str], connect_limit: int = 60) -> list[str]:
    """The ssh command that runs ``command`` there, or logs in when it is empty."""
    argv = [qemu.find_tools("ssh")["ssh"], "-F", "none", "-i", str(host.key), "-p", str(host.port)]
    for option in (*SSH_OPTIONS, f"ConnectTimeout={connect_limit}"):
        argv += ["-o", option]
    return [*argv, "root@127.0.0.1", *command]


def qemu_argv(host: Host, machine: topology.Topology) -> list[str]:
    """The whole command line of a host's QEMU."""
    argv = [qemu.find_tools(qemu.QEMU)[qemu.QEMU], *qemu.machine_args(host.accel)]
    argv += ["-name", f"firsttouch-{host.name}"]
    argv += topology.qemu_args(machine)
    argv += qemu.serial_args(host.serial_log) + qemu.disk_args(host.overlay, "qcow2")
    if host.firmware == "uefi":
        argv += qemu.uefi_args(host.uefi_variables)
    argv += ["-nic", f"user,model=virtio-net-pci,hostfwd=tcp:127.0.0.1:{host.port}-:22"]
    argv += ["-device", "virtio-rng-pci"]
    key = str(host.key.with_suffix(".pub")).replace(",", ",,")
    return [*argv, "-fw_cfg", f"name=opt/firsttouch/authorized_key,file={key}"]


def _launch(host: Host, machine: topology.Topology) -> Host:
    """Start QEMU; a port that was taken meanwhile is replaced."""
    error = ""
    for _ in range(_PORT_TRIES):
        for path in (host.pid_file, host.guest_pid_file):
            path.unlink(missing_ok=True)
        save(replace(host, pid=0, started=None))
        process = _start_supervisor(host, machine)
        host = replace(host, pid=process.pid, started=qemu.start_time(process.pid))
        save(host)
        error = _await_guest(host, process)
        if not error:
            return host
        if "host forwarding" not in error:
            break
        host = replace(host, port=_free_port())
    raise HostError(f"{qemu.QEMU} did not start: {error}")


def _free_port() -> int:
    return qemu.free_port([host.port for host in all_hosts()])


def _start_supervisor(host: Host, machine: topology.Topology) -> subprocess.Popen[bytes]:
    """The supervisor in a session of its own, with what it and QEMU complain about in a file."""
    command = [sys.executable, str(Path(__file__).parent), supervisor.COMMAND]
    with host.error_log.open("wb") as errors:
        return subprocess.Popen(
            [*command, str(host.pid_file), str(host.guest_pid_file), *qemu_argv(host, machine)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )


def _await_guest(host: Host, process: subprocess.Popen[bytes], limit: float = 60.0) -> str:
    """"" once QEMU runs its guest, else what it said."""
    deadline = time.monotonic() + limit
    while not host.guest_pid_file.exists():
        if process.poll() is not None:
            return host.error_log.read_text(errors="replace").strip() or f"it ended with {process.returncode}"
        if time.monotonic() > deadline:
            qemu.stop(process.pid, host.started, str(host.pid_file))
            return f"it was not ready within {limit:.0f} s"
        time.sleep(0.05)
    return ""


def _new_disk(host: Host) -> None:
    """An overlay that holds nothing yet, and the firmware's variables as the image left them."""
    if host.firmware == "uefi":
        shutil.copyfile(Path(host.image) / qemu.UEFI_VARIABLES, host.uefi_variables)
    host.overlay.unlink(missing_ok=True)
    argv = [qemu.find_tools("qemu-img")["qemu-img"], "create", "-q", "-f", "qcow2", "-F", "raw"]
    argv += ["-b", str(Path(host.image) / "disk.raw"), str(host.overlay)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise HostError(f"qemu-img: {done.stderr.strip()}")


def _ssh_answers(host: Host, limit: float) -> bool:
    """Whether a login works. QEMU accepts connections before the guest listens, so the banner decides."""
    try:
        with socket.create_connection(("127.0.0.1", host.port), timeout=2) as connection:
            connection.settimeout(min(5.0, limit))
            if not connection.recv(8).startswith(b"SSH-"):
                return False
    except OSError:
        return False
    try:
        done = subprocess.run(
            ssh_argv(host, ["true"], connect_limit=10),
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit,
        )
        return done.returncode == 0
    except subprocess.TimeoutExpired:
        return False


def wait_for_ssh(host: Host, limit: float, say: Say) -> float:
    """Wait until a login works; returns the seconds it took. HostError with the end of the serial log
    when the limit is over, QEMU ended, the kernel panicked again and again, or nothing to boot was found."""
    begin = time.monotonic()
    reported = begin
    prompted: float | None = None
    while True:
        now = time.monotonic()
        left = limit - (now - begin)
        fault = ""
        log = qemu.read_log(host.serial_log)
        if left <= 0:
            fault = f"no SSH login within {limit:.0f} s"
        elif not is_running(host):
            said = host.error_log.read_text(errors="replace").strip() if host.error_log.exists() else ""
            fault = f"QEMU ended{f' ({said})' if said else ''}"
        elif (panics := log.count("Kernel panic - not syncing")) >= _PANIC_LIMIT:
            fault = f"the guest panicked {panics} times"
        elif any(text in log for text in _NO_SYSTEM):
            fault = "no system to boot was found"
        if fault:
            raise HostError(f"{host.name}: {fault}; its serial log ends:\n{qemu.tail(host.serial_log)}")
        if prompted is None and " login:" in log:
            prompted = now
        if prompted is not None and now - prompted > _LOGIN_GRACE:
            raise UnreachableError(f"{host.name}: no SSH {_LOGIN_GRACE:.0f} s after the login prompt")
        if _ssh_answers(host, max(left, 1.0)):
            return time.monotonic() - begin
        if now - reported >= 10:
            reported = now
            last = qemu.tail(host.serial_log, 1)[:80]
            say(f"{host.name}: waiting for SSH, {now - begin:.0f} s of at most {limit:.0f} s; serial: {last}")
        time.sleep(0.3)


@contextlib.contextmanager
def _starting(name: str) -> Iterator[None]:
    """Only one start of a name at a time. ``down`` does not wait: it may end a host that still boots."""
    hosts_dir().mkdir(parents=True, exist_ok=True)
    with (hosts_dir() / f".{name}.lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HostError(f"another testhost is starting {name}") from None
        yield


def up(
    name: str,
    topology_name: str,
    release: str,
    say: Say,
    limit: float = BOOT_LIMIT,
    firmware: str = "bios",
) -> Host:
    """Start a host and wait for its SSH. A host that fails to come up, or is interrupted, is removed."""
    if not _NAME.fullmatch(name):
        raise HostError(f"bad host name {name!r}: lower case letters, digits, - and _ only")
    machine = topology.get(topology_name)
    if machine.ask_only:
        raise HostError(f"topology {topology_name} is for ask only: its memory exceeds what a host may take")
    qemu.find_tools(qemu.QEMU, "qemu-img", "ssh", "ssh-keygen")
    built = image.build(release, say, firmware=firmware)
    accel = probe.accelerator(built.kernel, say)
    room.need(cache_dir(), HOST_MIB, "a host")
    with _starting(name):
        known = _load(host_dir(name))
        if known is not None and is_running(known):
            raise HostError(f"{name} runs already; end it first: testhost down {name}")
        shutil.rmtree(host_dir(name), ignore_errors=True)
        host_dir(name).mkdir(mode=0o700)
        host = Host(
            name, release, topology_name, str(built.directory), accel, _free_port(), firmware=firmware
        )
        try:
            save(host)
            keygen = [qemu.find_tools("ssh-keygen")["ssh-keygen"], "-q", "-t", "ed25519", "-N", ""]
            subprocess.run([*keygen, "-C", f"firsttouch-{name}", "-f", str(host.key)], check=True)
            return _boot(host, machine, limit, say)
        except BaseException:
            down(name)
            raise


def _boot(host: Host, machine: topology.Topology, limit: float, say: Say) -> Host:
    say(f"{host.name}: booting {host.release} ({host.firmware}), topology {host.topology}, {host.accel}")
    host.serial_log.unlink(missing_ok=True)
    _new_disk(host)
    host = _launch(host, machine)
    try:
        took = wait_for_ssh(host, limit, say)
    except UnreachableError as error:
        # Seen under TCG on a loaded machine; a clean image that booted before boots again.
        say(f"{error}; starting it again")
        qemu.stop(host.pid, host.started, str(host.pid_file))
        host.serial_log.unlink(missing_ok=True)
        _new_disk(host)
        host = _launch(host, machine)
        took = wait_for_ssh(host, limit, say)
    say(f"{host.name}: SSH answers on 127.0.0.1:{host.port} after {took:.0f} s")
    return host


def down(name: str) -> bool:
    """End a host and remove all that it had; False when there was no QEMU to end."""
    host = _load(host_dir(name))
    ended = False
    if host is not None and host.pid:
        ended = qemu.stop(host.pid, host.started, str(host.pid_file))
    shutil.rmtree(host_dir(name), ignore_errors=True)
    return ended


def reset(host: Host, say: Say, limit: float = BOOT_LIMIT) -> Host:
    """The same host (name, port, key) from a clean image again."""
    if host.pid:
        qemu.stop(host.pid, host.started, str(host.pid_file))
    machine = topology.get(host.topology)
    with _starting(host.name):
        try:
            return _boot(host, machine, limit, say)
        except BaseException:
            down(host.name)
            raise


def freeze(host: Host, milliseconds: int) -> float:
    """Stop every vCPU at once for a time, as a hypervisor that is busy elsewhere does; returns the
    milliseconds that it really took."""
    if not is_running(host):
        raise HostError(f"{host.name} is not running; start it again: testhost reset {host.name}")
    guest = guest_pid(host)
    if not guest:
        raise HostError(f"{host.name} is between two boots; try again")
    begin = time.monotonic()
    os.kill(guest, signal.SIGSTOP)
    try:
        time.sleep(milliseconds / 1000)
    finally:
        os.kill(guest, signal.SIGCONT)
    return (time.monotonic() - begin) * 1000


def keep_log(host: Host, directory: Path) -> None:
    """Copy the serial console of HOST to DIRECTORY, where it survives the end of the host."""
    if host.serial_log.exists():
        directory.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(host.serial_log, directory / f"serial-{host.name}.log")


def inventory(hosts: list[Host]) -> dict[str, Any]:
    """An Ansible inventory of these hosts (the YAML inventory plugin reads JSON too)."""
    common = " ".join(f"-o {option}" for option in SSH_OPTIONS)
    entries = {
        host.name: {
            "ansible_host": "127.0.0.1",
            "ansible_port": host.port,
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(host.key),
            "ansible_ssh_common_args": f"-F none {common}",
            # The connection stays open between tasks; compression would cost more than it saves.
            "ansible_ssh_args": "-o ControlMaster=auto -o ControlPersist=600s",
            "ansible_ssh_pipelining": True,
            "ansible_python_interpreter": "/usr/bin/python3",
            "testhost_topology": host.topology,
            "testhost_release": host.release,
        }
        for host in hosts
    }
    return {"all": {"children": {"testhosts": {"hosts": entries}}}}
