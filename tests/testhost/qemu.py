# SPDX-License-Identifier: GPL-3.0-or-later
"""QEMU processes: how one is started, recognised, awaited and ended."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .errors import HostError

QEMU = "qemu-system-x86_64"
# OVMF: the code, and the empty variable store that each machine has a copy of.
_UEFI = ("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd")
# Beside a disk, the variables that its machine's firmware has kept.
UEFI_VARIABLES = "uefi-variables.fd"

# ECMA-48 control sequences: CSI, OSC, and two-character ones.
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_CONTROL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")


class TimeLimitError(HostError):
    """A guest that did not end in its time."""


_PACKAGES = {
    QEMU: "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "mmdebstrap": "mmdebstrap",
    "mke2fs": "e2fsprogs",
    "sfdisk": "fdisk",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "busybox": "busybox-static",
    "setpriv": "util-linux",
    "unshare": "util-linux",
}
_SBIN = ("/usr/sbin", "/sbin")


def find_tools(*names: str) -> dict[str, str]:
    """The paths of programs; HostError lists every missing one with the Debian package that has it."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_SBIN])
    found = {name: shutil.which(name, path=path) for name in names}
    missing = [name for name, where in found.items() if where is None]
    if missing:
        packages = sorted({_PACKAGES[name] for name in missing})
        raise HostError(
            f"missing programs: {', '.join(missing)}; on Debian or Ubuntu: apt-get install {' '.join(packages)}"
        )
    return {name: where for name, where in found.items() if where is not None}


def uefi() -> tuple[str, str]:
    """The paths of the UEFI firmware's code and of its empty variable store."""
    missing = [path for path in _UEFI if not os.path.exists(path)]
    if missing:
        raise HostError(f"missing: {', '.join(missing)}; on Debian or Ubuntu: apt-get install ovmf")
    return _UEFI


def uefi_args(variables: Path) -> list[str]:
    """The UEFI firmware, with VARIABLES as the machine's own memory of its settings."""
    code = f"if=pflash,unit=0,format=raw,readonly=on,file={uefi()[0]}"
    return ["-drive", code, "-drive", f"if=pflash,unit=1,format=raw,file={str(variables).replace(',', ',,')}"]


def machine_args(accel: str) -> list[str]:
    """Arguments that every guest shares. TCG gets one thread per vCPU and a translation buffer
    that holds a booted system, which saves retranslation."""
    accelerator = "kvm" if accel == "kvm" else "tcg,thread=multi,tb-size=1024"
    return ["-nodefaults", "-no-user-config", "-display", "none", "-accel", accelerator, "-machine", "q35"]


def disk_args(image: Path, image_format: str) -> list[str]:
    """One virtio disk. ``cache=unsafe``: the disk need not survive a crash of this machine. Where this machine has no
    room left the guest is told; by default QEMU would stop it without a word."""
    text = f"file={str(image).replace(',', ',,')},format={image_format},if=virtio,cache=unsafe,discard=unmap"
    return ["-drive", f"{text},werror=report"]


def serial_args(log: Path, ident: str = "serial0") -> list[str]:
    """A serial port that appends to a file."""
    path = str(log).replace(",", ",,")
    return ["-chardev", f"file,id={ident},path={path},append=on", "-serial", f"chardev:{ident}"]


def read_log(path: Path) -> str:
    """A serial log as text, "" when there is none yet."""
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def tail(path: Path, lines: int = 25) -> str:
    """The end of a serial log, for an error message; terminal control sequences are dropped."""
    try:
        text = path.read_bytes()[-16384:].decode("utf-8", "replace")
    except FileNotFoundError:
        return "(no serial log)"
    printable = "".join(c for c in _CONTROL.sub("", text) if c == "\n" or c >= " ")
    kept = [line.rstrip() for line in printable.splitlines() if line.strip()]
    return "\n".join(kept[-lines:]) or "(the serial log is empty)"


def start_time(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot (proc_pid_stat(5), field 22), None when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    if fields[0] == "Z":
        return None
    return int(fields[19])


def process_state(pid: int) -> str:
    """The state letter of a process (proc_pid_stat(5), field 3), "" when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def is_ours(pid: int, started: int | None, marker: str) -> bool:
    """Whether a pid still names the process that was recorded. The start time guards against a reused
    pid; where a start was interrupted before it was recorded, the marker in the command line does."""
    now = start_time(pid)
    if now is None:
        return False
    if started is not None:
        return now == started
    try:
        return marker.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def stop(pid: int, started: int | None, marker: str, limit: float = 10.0) -> bool:
    """End exactly that process: SIGTERM, then SIGKILL at the limit. False when it was gone already;
    HostError when not even SIGKILL ends it."""
    if not is_ours(pid, started, marker):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
        os.kill(pid, signal.SIGTERM)
    for last in (False, True):
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            if not is_ours(pid, started, marker):
                return True
            time.sleep(0.05)
        if not last:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    raise HostError(f"process {pid} does not end, not even by SIGKILL")


def free_port(taken: Container[int] = ()) -> int:
    """A port on loopback, none of TAKEN, that nobody listens on now. It is none that the kernel gives to connections:
    while QEMU is started again after a reset one of those could take it, that of an ssh to this very port too."""
    first = int(_PORT_RANGE.read_text().split()[0])
    ports = range(max(1024, min(10240, first - 1000)), first)
    for port in random.sample(ports, k=min(100, len(ports))):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in taken:
                return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Guest:
    """A QEMU in the foreground, with what it wrote to stderr."""

    process: subprocess.Popen[bytes]
    errors: IO[bytes]

    def error_text(self) -> str:
        self.errors.seek(0)
        return self.errors.read().decode("utf-8", "replace").strip()


@contextlib.contextmanager
def foreground(argv: list[str]) -> Iterator[Guest]:
    """A QEMU that ends with the block, and with this process however that ends. Its own session keeps
    a Ctrl-C of the terminal from reaching it before us."""
    setpriv = find_tools("setpriv")["setpriv"]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [setpriv, "--pdeathsig", "KILL", "--", *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        try:
            yield Guest(process, errors)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


def await_exit(guest: Guest, limit: float, log: Path, what: str, say: Callable[[str], None]) -> None:
    """Wait until a guest powered itself off; HostError with the end of its serial log at the limit."""
    begin = time.monotonic()
    reported = begin
    while True:
        try:
            guest.process.wait(timeout=0.2)
            break
        except subprocess.TimeoutExpired:
            pass
        now = time.monotonic()
        if now - begin > limit:
            raise TimeLimitError(
                f"{what} did not end within {limit:.0f} s; its serial log ends:\n{tail(log)}"
            )
        if now - reported >= 10:
            reported = now
            say(f"{what}: {now - begin:.0f} s of at most {limit:.0f} s")
    status = guest.process.returncode
    if status != 0:
        raise HostError(f"{what}: {QEMU} ended with status {status}: {guest.error_text()}\n{tail(log)}")
