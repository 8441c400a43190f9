# SPDX-License-Identifier: GPL-3.0-or-later
"""A server as a real unit of systemd, on two kernels: killed under load with its memory in the descriptor store.

Linux 6.1 (bookworm) has no SO_PEERPIDFD, so that deaths are seen by another way there. Both hosts have two nodes.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from guests.guest import VENV, Guest, booted

RUNTIME_TESTS = Path(__file__).parents[2] / "runtime" / "tests"
UNIT = "firsttouch-server@doubler.service"
LANES = 16
KILLS = 10
UNIT_FILE = f"""
[Unit]
StartLimitIntervalSec=0
[Service]
Type=notify
NotifyAccess=main
ExecStart={VENV}/bin/firsttouch serve --server %i
Environment=PYTHONPATH=/opt/guest
User=firsttouch
Group=firsttouch
WatchdogSec=20
Restart=on-failure
RestartSec=0
RestartPreventExitStatus=2 10
FileDescriptorStoreMax={3 * LANES + 8}
LimitMEMLOCK=infinity
TimeoutStartSec=120
UMask=0007
"""
SERVER = {
    "schema_version": 1,
    "name": "doubler",
    "handler": "doubler:double",
    "transport": "shm",
    "node": 1,
    "cpus": [3],
    "lanes": LANES,
    "pages": "hugetlb",
}


@pytest.fixture(scope="module", params=["trixie", "bookworm"])
def guest(request: pytest.FixtureRequest) -> Iterator[Guest]:
    """A host with the runtime, a user for it, a unit and a pool on node 1."""
    with booted(f"unit-{request.param}", "two_node", request.param) as found:
        found.install_runtime()
        found.push([RUNTIME_TESTS / "kill_load.py", RUNTIME_TESTS / "doubler.py"], "/opt/guest")
        write(found, "/etc/systemd/system/firsttouch-server@.service", UNIT_FILE)
        write(found, "/etc/firsttouch/servers/doubler.json", json.dumps(SERVER))
        write(found, "/etc/tmpfiles.d/firsttouch.conf", "d /run/firsttouch 0755 firsttouch firsttouch -\n")
        found.output(
            "useradd --system firsttouch && systemd-tmpfiles --create /etc/tmpfiles.d/firsttouch.conf && "
            "echo 8 > /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages && "
            "systemctl daemon-reload"
        )
        yield found


@pytest.fixture
def unit(guest: Guest) -> Iterator[Guest]:
    """The unit is active; stopped at the end, it leaves nothing with the manager, in /run, or of the pool."""
    guest.output(f"systemctl start {UNIT} || {{ journalctl -u {UNIT} --no-pager; exit 1; }}")
    yield guest
    guest.output(f"systemctl stop {UNIT}")
    assert kept(guest, 0) == 0
    assert guest.output("ls /run/firsttouch").split() == []
    free = guest.output("cat /sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages")
    assert free.split() == ["8"]


def write(guest: Guest, path: str, text: str) -> None:
    """A file in the guest."""
    done = guest.run(f"mkdir -p {Path(path).parent} && cat > {path}", stdin=text.encode())
    assert done.returncode == 0, done.stderr


def shown(guest: Guest, name: str) -> str:
    """A property of the unit."""
    return guest.output(f"systemctl show -P {name} {UNIT}").strip()


def kept(guest: Guest, wanted: int) -> int:
    """How many descriptors the manager keeps, once they are WANTED, or after ten seconds: what hangs up goes later."""
    deadline = time.monotonic() + 10
    while True:
        found = int(shown(guest, "NFileDescriptorStore"))
        if found == wanted or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def ping(guest: Guest, status: int = 0) -> Any:
    """What `firsttouch ping` finds, as root."""
    done = guest.run("firsttouch ping --server doubler --calls 50 --timeout 60 --json")
    assert done.returncode == status, done.stdout + done.stderr
    return json.loads(done.stdout)


def load(guest: Guest, kills: int) -> Any:
    """Clients under way while the server (or, negative, a client) is killed so often."""
    done = guest.run(f"python3 /opt/guest/kill_load.py doubler shm:///run/firsttouch/doubler.shm {kills}", 900)
    journal = guest.output(f"journalctl -u {UNIT} --no-pager -n 40") if done.returncode else ""
    assert done.returncode == 0, done.stdout + done.stderr + journal
    found = json.loads(done.stdout)
    print(guest.host.release, found)
    return found


def test_placed(unit: Guest) -> None:
    """Pages are on the node of the file by two answers of the kernel; the thread has its CPU alone."""
    found = ping(unit)
    assert found["ok"] and found["answered"] == 50 and found["transport"] == "shm"
    pages = found["server"]["pages"]
    assert (pages["kind"], pages["node"], set(pages["pages_on_node"])) == ("hugetlb", 1, {"1"})
    maps = unit.output(f"grep memfd:firsttouch /proc/{found['server']['pid']}/numa_maps")
    assert re.findall(r"N([0-9]+)=", maps) == ["1"] and "bind" in maps
    threads = {row["tid"]: row["cpus"] for row in found["server"]["cpus"]["threads"]}
    assert threads.pop(found["server"]["cpus"]["serving"]) == "3"
    assert threads and set(threads.values()) == {"0-2"}
    assert found["server"]["pid"] == int(shown(unit, "MainPID"))


def test_kills(unit: Guest) -> None:
    """Killed under load, started again by systemd: no request is lost, and no client noticed more than a delay."""
    restarts = int(shown(unit, "NRestarts"))
    found = load(unit, KILLS)
    assert (found["wrong"], found["reconnects"], found["statuses"]) == (0, 0, [0, 0, 0])
    assert int(shown(unit, "NRestarts")) == restarts + KILLS
    # Segment, doorbells, two listeners; the clients are gone.
    wanted = 1 + 2 * LANES + 2
    assert kept(unit, wanted) == wanted
    assert ping(unit)["server"]["restarts"] >= KILLS


def test_client_kills(unit: Guest) -> None:
    """Clients that are killed leave their lanes: there are fewer lanes than clients in all."""
    found = load(unit, -2 * LANES)
    assert (found["wrong"], found["statuses"]) == (0, [0, 0, 0])


def test_watchdog(unit: Guest) -> None:
    """A server that hangs is killed by the manager, and the next one answers what was pending."""
    pid = shown(unit, "MainPID")
    unit.output(f"kill -STOP {pid}")
    found = ping(unit)
    assert found["answered"] == 50 and str(found["server"]["pid"]) != pid
    assert "watchdog" in unit.output(f"journalctl -u {UNIT} --no-pager -n 60").lower()


def test_terminal(guest: Guest) -> None:
    """From a terminal a holder keeps the memory, and a spare takes over."""
    serve = "firsttouch serve --server doubler >/tmp/serve.log 2>&1 </dev/null"
    guest.output(f"PYTHONPATH=/opt/guest setsid {serve} & echo $! > /tmp/serve.pid")
    there = "test -e /run/firsttouch/doubler.status.json"
    guest.output(f"for i in $(seq 300); do {there} && exit 0; sleep 0.2; done; cat /tmp/serve.log; exit 1")
    try:
        found = load(guest, KILLS)
        assert (found["wrong"], found["reconnects"], found["statuses"]) == (0, 0, [0, 0, 0])
    finally:
        guest.output("kill $(cat /tmp/serve.pid); while kill -0 $(cat /tmp/serve.pid); do sleep 0.2; done 2>/dev/null")
    assert guest.output("ls /run/firsttouch").split() == []


def test_wrong_file(guest: Guest) -> None:
    """A file with a fault ends the unit with the fault in its journal, and it is not started again and again."""
    write(guest, "/etc/firsttouch/servers/wrong.json", json.dumps({**SERVER, "name": "wrong", "cpu": 3}))
    guest.run("systemctl start firsttouch-server@wrong.service")
    unit = "firsttouch-server@wrong.service"
    assert guest.output(f"systemctl show -P NRestarts {unit}").strip() == "0"
    assert guest.output(f"systemctl show -P ExecMainStatus {unit}").strip() == "2"
    assert "wrong.json: cpu is 3: no such key" in guest.output(f"journalctl -u {unit} --no-pager")
    guest.output(f"rm /etc/firsttouch/servers/wrong.json; systemctl reset-failed {unit}")
