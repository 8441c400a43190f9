# SPDX-License-Identifier: Apache-2.0
"""A server as a unit of a real systemd: its user manager, alone in namespaces and control groups of its own.

Takes root and an installed systemd, which need not be the one that runs this machine. On whole hosts, see tests/guests.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import SLOW
from serving import eventually

HERE = Path(__file__).parent
SYSTEMD = next((path for path in ("/usr/lib/systemd/systemd", "/lib/systemd/systemd") if os.path.exists(path)), "")
UNIT = "firsttouch-server@doubler.service"
LANES = 16
KILLS = 60 if SLOW else 5
CLIENT_KILLS = 120 if SLOW else 20
# The manager refuses to run where systemd did not boot, and keeps its own things in /run.
START = "mount -t tmpfs none /run && mkdir -p /run/systemd/system /run/user /run/firsttouch && exec "
UNIT_FILE = """
[Unit]
StartLimitIntervalSec=0
[Service]
Type=notify
NotifyAccess=main
ExecStart={python} -m firsttouch.cli serve --server %i --etc {folder}/etc
Environment=PYTHONPATH={source}:{tests}
WatchdogSec={watchdog}
Restart=on-failure
RestartSec=0
RestartPreventExitStatus=2 10
FileDescriptorStoreMax={store}
StandardError=file:{folder}/log
"""


def hierarchies() -> list[Path]:
    """Where a control group must be made for the manager's own: one place, or two with the old hierarchies."""
    places = [Path("/sys/fs/cgroup/systemd"), Path("/sys/fs/cgroup/unified")]
    return [place for place in places if place.is_dir()] or [Path("/sys/fs/cgroup")]


def missing() -> str:
    """Why there can be no manager here."""
    if os.geteuid() != 0 or not SYSTEMD:
        return "takes root and an installed systemd"
    if not (shutil.which("unshare") and shutil.which("nsenter")):
        return "takes unshare and nsenter"
    if any(not os.access(place, os.W_OK) for place in hierarchies()):
        return "takes control groups that can be made"
    return "" if subprocess.run(["unshare", "-m", "true"]).returncode == 0 else "takes namespaces of its own"


pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")


class UserManager:
    """The running manager: commands beside it."""

    def __init__(self, pid: int, folder: Path) -> None:
        self.pid, self.folder = pid, folder

    def run(self, *words: str, seconds: float = 200) -> str:
        """What a command prints that runs where the manager does. Raises AssertionError when it fails."""
        env = {
            **os.environ,
            "XDG_RUNTIME_DIR": "/run/user",
            "PYTHONPATH": f"{HERE.parent / 'src'}:{HERE}",
            "FIRSTTOUCH_ETC": f"{self.folder}/etc",
        }
        done = subprocess.run(
            ["nsenter", "-t", str(self.pid), "-m", *words], env=env, capture_output=True, text=True, timeout=seconds
        )
        log = self.folder / "log"
        assert done.returncode == 0, done.stdout + done.stderr + (log.read_text() if log.exists() else "")
        return done.stdout

    def show(self, name: str) -> str:
        """A property of the unit."""
        return self.run("systemctl", "--user", "show", "-p", name, UNIT).strip().partition("=")[2]


@pytest.fixture
def unit(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[UserManager]:
    """The unit is active under a manager of its own; stopped at the end, it leaves nothing with it or in /run.

    The parameter is the watchdog's seconds: by default so many that a busy machine is no hang.
    """
    units, servers = tmp_path / "units", tmp_path / "etc" / "servers"
    units.mkdir()
    servers.mkdir(parents=True)
    names = {"python": sys.executable, "folder": tmp_path, "source": HERE.parent / "src", "tests": HERE}
    (units / "firsttouch-server@.service").write_text(
        UNIT_FILE.format(**names, store=3 * LANES + 8, watchdog=getattr(request, "param", 60))
    )
    for name in ("basic", "shutdown"):
        (units / f"{name}.target").write_text(f"[Unit]\nDescription={name}\n")
    server = {"schema_version": 1, "name": "doubler", "handler": "doubler:double", "transport": "shm"}
    (servers / "doubler.json").write_text(json.dumps({**server, "lanes": LANES, "pages": "4k"}))
    with managing(tmp_path) as manager:
        manager.run("systemctl", "--user", "start", UNIT)
        yield manager
        manager.run("systemctl", "--user", "stop", UNIT)
        assert eventually(lambda: manager.show("NFileDescriptorStore") == "0"), "descriptors are kept"
        assert manager.run("ls", "/run/firsttouch") == ""


@contextlib.contextmanager
def managing(folder: Path) -> Iterator[UserManager]:
    """A manager of the units in FOLDER; it and all that it started are gone at the end, and their groups too."""
    groups = [place / f"firsttouch-test-{os.getpid()}" for place in hierarchies()]
    env = {**os.environ, "XDG_RUNTIME_DIR": "/run/user", "HOME": str(folder), "SYSTEMD_UNIT_PATH": f"{folder}/units"}
    env.pop("DBUS_SESSION_BUS_ADDRESS", None)
    moves = "".join(f"echo $$ > {group}/cgroup.procs && " for group in groups)
    script = f"{moves}{START}{SYSTEMD} --user --unit=basic.target"
    for group in groups:
        group.mkdir()
    process = subprocess.Popen(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", script],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        root = Path(f"/proc/{process.pid}/root/run/user/systemd/private")
        assert eventually(root.exists, 20), "the manager does not start"
        yield UserManager(process.pid, folder)
    finally:
        process.kill()
        process.wait()
        for group in groups:
            _end(group)


def _end(group: Path) -> None:
    """Kill what is in GROUP, and remove it."""
    for _ in range(100):
        pids = [int(pid) for file in group.rglob("cgroup.procs") for pid in file.read_text().split()]
        if not pids:
            break
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    for place in [*sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True), group]:
        # The kernel may count a process that is gone for a moment yet.
        assert eventually(functools.partial(removed, place)), place


def removed(place: Path) -> bool:
    """Whether the folder PLACE could be removed: not while it is in use."""
    try:
        place.rmdir()
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def load(unit: UserManager, kills: int) -> None:
    """Clients under way while the server (or, negative, a client) is killed so often: nobody noticed."""
    address = "shm:///run/firsttouch/doubler.shm"
    found = json.loads(unit.run(sys.executable, str(HERE / "kill_load.py"), "doubler", address, str(kills)))
    print(found)
    assert found["kills"] == abs(kills)
    assert found["answers"] > abs(kills)
    assert (found["wrong"], found["reconnects"], found["statuses"]) == (0, 0, [0, 0, 0])


def test_kills(unit: UserManager) -> None:
    """Killed under load, started again by systemd: no request is lost, and no client noticed more than a delay."""
    kept = str(1 + 2 * LANES + 2)
    assert eventually(lambda: unit.show("NFileDescriptorStore") == kept), unit.show("NFileDescriptorStore")
    load(unit, KILLS)
    assert int(unit.show("NRestarts")) == KILLS
    load(unit, -CLIENT_KILLS)
    assert int(unit.show("NRestarts")) == KILLS
    # Segment, doorbells, two listeners; the clients are gone.
    assert eventually(lambda: unit.show("NFileDescriptorStore") == kept), unit.show("NFileDescriptorStore")


@pytest.mark.parametrize("unit", [5], indirect=True)
def test_watchdog(unit: UserManager) -> None:
    """A server that hangs is killed by the manager, and the next one answers what was pending."""
    pid = unit.show("MainPID")
    os.kill(int(pid), signal.SIGSTOP)
    words = ("-m", "firsttouch.cli", "ping", "--server", "doubler", "--calls", "20", "--timeout", "60", "--json")
    found = json.loads(unit.run(sys.executable, *words))
    assert found["ok"]
    assert str(found["server"]["pid"]) != pid
    assert unit.show("NRestarts") == "1"
