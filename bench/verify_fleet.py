# SPDX-License-Identifier: GPL-3.0-or-later
"""What a verified host costs the controller, beside a task-by-task playbook of the kind that peers use.

Both look at the same recorded hosts in the same run, with as many forks as there are CPUs. The peer makes 40 asserts
about 20 files, each of which it reads with a command or slurp of its own: 60 tasks.

What is measured is the controller. What the modules take on the hosts is not its: each runs under an interpreter that
adds what it used to a file, and this is taken off. On a small fleet everything is really run. On the large ones a
module that was run before on the same recorded host with the same arguments is not run again: the connection
(bench/replay) prints what it printed then, for both alike, so that the controller works as always and no host does.
That this changes nothing for the controller is measured too, on the small fleet, both ways.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "bench" / "verify_fleet"
RECORDINGS = ROOT / "tests" / "fixtures" / "hosts"
FEW = 10
SIZES = (100, 1000)
# The peer costs by the task and the host: its cost per host on this many goes for more of them too. That it does not
# fall with the size of the fleet is in the table; FIRSTTOUCH_BENCH_PEER_HOSTS=1000 runs it on all, half an hour.
PEER_HOSTS = int(os.environ.get("FIRSTTOUCH_BENCH_PEER_HOSTS", "100"))
SHARE = 5
COMMON = {
    "firsttouch_vm_sysctls": {"vm.swappiness": 0, "vm.dirty_ratio": 8},
    "firsttouch_rt_runtime_us": 950000,
}
# Recorded hosts, and what is asked for on each.
HOSTS: dict[str, dict[str, Any]] = {
    "testhost-two-node": {"firsttouch_hugepages": [{"size": "2M", "nodes": {"0": 40, "1": 70}}], **COMMON},
    "testhost-hidden": {"firsttouch_hugepages": [{"size": "2M", "nodes": {"0": 64}}], **COMMON},
    "microvm-one-node": {"firsttouch_thp": "madvise", **COMMON},
}
# What a peer would look at: files, and what it wants in them.
FILES = (
    *(f"/sys/devices/system/node/node{n}/hugepages/hugepages-2048kB/nr_hugepages" for n in (0, 1)),
    *(f"/sys/devices/system/node/node{n}/cpulist" for n in (0, 1)),
    *(f"/sys/devices/system/node/node{n}/distance" for n in (0, 1)),
    "/sys/devices/system/cpu/isolated",
    "/sys/devices/system/cpu/online",
    "/proc/cmdline",
    "/proc/meminfo",
    "/proc/swaps",
    *(f"/proc/sys/vm/{key}" for key in ("swappiness", "dirty_ratio", "dirty_background_ratio")),
    "/proc/sys/vm/compact_unevictable_allowed",
    "/proc/sys/vm/min_free_kbytes",
    "/proc/sys/vm/watermark_scale_factor",
    "/proc/sys/kernel/sched_rt_runtime_us",
    "/proc/sys/kernel/numa_balancing",
    "/proc/self/mountinfo",
)
# Runs a module and notes the CPU seconds of its processes, which a host would spend, not the controller.
INTERPRETER = """#!/bin/sh
exec {python} {meter} "$@"
"""
METER = """import os, resource, subprocess, sys
status = subprocess.run([sys.executable, *sys.argv[1:]]).returncode
spent = [resource.getrusage(who) for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)]
line = f"{{sum(row.ru_utime + row.ru_stime for row in spent):.4f}}\\n".encode()
handle = os.open({ledger!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(handle, line)
os.close(handle)
sys.exit(status)
"""


class Cost(NamedTuple):
    """Per host, in ms: CPU time of the controller, of the modules that were run, time by the clock; modules per host;
    the memory of the controller's largest process in MiB."""

    controller: float
    modules: float
    wall: float
    ran: float
    memory: float


def prepared() -> None:
    """The recorded hosts, the peer's playbook and the interpreter that meters modules."""
    shutil.rmtree(WORK, ignore_errors=True)
    (WORK / "answers").mkdir(parents=True)
    for name in HOSTS:
        root = WORK / name
        root.mkdir()
        with tarfile.open(RECORDINGS / f"{name}.tar.xz") as archive:
            if hasattr(tarfile, "data_filter"):
                archive.extractall(root, filter="tar")
            else:
                archive.extractall(root)
        for path in FILES:
            target = root / path.lstrip("/")
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text("0\n")
    meter, python = WORK / "meter.py", WORK / "python3"
    meter.write_text(METER.format(ledger=str(WORK / "ledger")))
    python.write_text(INTERPRETER.format(python=sys.executable, meter=meter))
    python.chmod(0o755)
    (WORK / "peer.yml").write_text(json.dumps(peer(), indent=1))


def peer() -> list[dict[str, Any]]:
    """A playbook that reads FILES one by one and asserts something of each."""
    tasks: list[dict[str, Any]] = []
    for number, path in enumerate(FILES):
        name, where = f"got_{number}", f"{{{{ firsttouch_verify_sysroot }}}}{path}"
        if number % 2:
            read: dict[str, Any] = {
                "ansible.builtin.command": {"argv": ["cat", where]},
                "changed_when": False,
            }
            text = f"{name}.stdout"
        else:
            read, text = {"ansible.builtin.slurp": {"src": where}}, f"{name}.content | b64decode"
        tasks.append({"name": f"Read {path}", **read, "register": name, "check_mode": False})
        for test in (f"({text}) is string", f"({text}) | trim | length >= 0"):
            claim = {"that": [test], "quiet": True, "fail_msg": f"{path} is not as wanted"}
            tasks.append({"name": f"Assert {path}", "ansible.builtin.assert": claim})
    return [{"name": "Verify task by task", "hosts": "all", "gather_facts": False, "tasks": tasks}]


def inventory(hosts: int) -> Path:
    """An inventory of HOSTS names, the recorded hosts in turn."""
    common = {"ansible_connection": "replay", "ansible_python_interpreter": str(WORK / "python3")}
    kinds = [{"firsttouch_verify_sysroot": str(WORK / name), **asked} for name, asked in HOSTS.items()]
    path = WORK / f"hosts-{hosts}.json"
    names = {f"node{number:05}": kinds[number % len(kinds)] for number in range(hosts)}
    path.write_text(json.dumps({"all": {"hosts": names, "vars": common}}))
    return path


def cost(playbook: str, hosts: int, *, replay: bool) -> Cost:
    """Run PLAYBOOK on HOSTS names."""
    ledger = WORK / "ledger"
    ledger.write_text("")
    env = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
    env |= {
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "build" / "import"),
        "ANSIBLE_CONNECTION_PLUGINS": str(Path(__file__).with_name("replay")),
        "ANSIBLE_HOME": str(ROOT / "build" / "ansible"),
        "ANSIBLE_FORKS": str(os.cpu_count() or 2),
        "ANSIBLE_PIPELINING": "true",
        "FIRSTTOUCH_REPLAY": str(int(replay)),
        "FIRSTTOUCH_REPLAY_DIR": str(WORK / "answers"),
    }
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    command = [program, "-i", str(inventory(hosts)), playbook]
    if playbook.startswith("firsttouch."):
        command += ["-e", f"firsttouch_report_dir={WORK / 'report'}"]
    began = time.perf_counter()
    with (WORK / "output").open("w+b") as output:
        running = subprocess.Popen(command, env=env, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        _pid, status, used = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
    wall, text = time.perf_counter() - began, (WORK / "output").read_text()
    # The recorded hosts are not as planned in everything: 2 is an answer too.
    if running.returncode not in (0, 2) or "Traceback" in text:
        raise SystemExit(f"{playbook} ended with {running.returncode}:\n{text[-8000:]}")
    spent = [float(line) * 1000 for line in ledger.read_text().split()]
    total = (used.ru_utime + used.ru_stime) * 1000
    return Cost(
        (total - sum(spent)) / hosts,
        sum(spent) / hosts,
        wall * 1000 / hosts,
        len(spent) / hosts,
        used.ru_maxrss / 1024,
    )


def verified(hosts: int) -> float:
    """The median number of answers per host in the report. Raises SystemExit when it is not one of HOSTS hosts."""
    report = json.loads((WORK / "report" / "report.json").read_text())
    asked = statistics.median(len(host["results"]) for host in report["hosts"])
    if report["summary"]["hosts"] != hosts or report["summary"]["error"] or not asked:
        raise SystemExit(f"the report has {report['summary']} of {hosts} hosts: nothing was measured")
    return asked


def measure(sizes: tuple[int, ...] = SIZES) -> list[dict[str, Any]]:
    """Rows for the table: controller CPU and wall time per verified host of each fleet, ours beside the peer's."""
    prepared()
    theirs_book, ours_book = str(WORK / "peer.yml"), "firsttouch.host.verify"
    rows: list[dict[str, Any]] = []
    small: dict[str, Cost] = {}
    for name, book in (("40 asserts", theirs_book), ("verify", ours_book)):
        real, again = cost(book, FEW, replay=False), cost(book, FEW, replay=True)
        if again.ran or not real.ran:
            raise SystemExit(f"{name}: {real.ran} modules per host ran, and {again.ran} when replayed")
        small[name] = again
        rows.append(
            row(f"{name}, {FEW} hosts, all really run: controller CPU per host", real.controller, "ms")
        )
        rows.append(
            row(f"{name}, {FEW} hosts, all really run: CPU of the modules per host", real.modules, "ms")
        )
        rows.append(row(f"{name}, {FEW} hosts, all really run: modules per host", real.ran, "runs"))
        rows.append(row(f"{name}, {FEW} hosts, replayed: controller CPU per host", again.controller, "ms"))
        rows.append(
            row(f"{name}, {FEW} hosts: replayed to really run", again.controller / real.controller, "ratio")
        )
    verified(FEW)
    theirs, many = small["40 asserts"], FEW
    for hosts in sizes:
        if hosts <= max(PEER_HOSTS, sizes[0]):
            theirs, many = cost(theirs_book, hosts, replay=True), hosts
            peer_name = f"40 asserts, {hosts} hosts, replayed"
            rows.append(row(f"{peer_name}: controller CPU per host", theirs.controller, "ms"))
            rows.append(row(f"{peer_name}: time per host", theirs.wall, "ms"))
            growth = theirs.controller / small["40 asserts"].controller
            rows.append(row(f"40 asserts: controller CPU per host, {hosts} hosts to {FEW}", growth, "ratio"))
        else:
            longer = theirs.wall * hosts / 60_000
            rows.append(row(f"40 asserts, {hosts} hosts: not run; by its time per host it would take", longer, "min"))
        ours = cost(ours_book, hosts, replay=True)
        name, share = f"verify, {hosts} hosts, replayed", ours.controller / theirs.controller
        rows.append(row(f"{name}: controller CPU per host", ours.controller, "ms"))
        rows.append(row(f"{name}: time per host", ours.wall, "ms"))
        goal = f"at most 1/{SHARE} of the 40 asserts' on {many}"
        rows.append(
            row(f"{name}: controller CPU, share of the 40 asserts'", share, "ratio", goal, share * SHARE <= 1)
        )
        rows.append(row(f"{name}: largest process", ours.memory, "MiB"))
        rows.append(row(f"verify, {hosts} hosts: answers per host", verified(hosts), "answers"))
        for file in ("report.json", "report.html", "report.junit.xml"):
            size = (WORK / "report" / file).stat().st_size / 1e6
            rows.append(row(f"verify, {hosts} hosts: {file}", size, "MB"))
    shutil.rmtree(WORK, ignore_errors=True)
    return rows


def row(
    figure: str, value: float, unit: str, goal: str | None = None, met: bool | None = None
) -> dict[str, Any]:
    """One line of the table."""
    return {"figure": figure, "value": round(value, 3), "unit": unit, "goal": goal, "met": met}


def main() -> int:
    """Measure fleets of other sizes than `make bench` does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("hosts", nargs="*", type=int, default=list(SIZES), help="how many hosts a fleet has")
    for line in measure(tuple(parser.parse_args().hosts)):
        print(*line.values(), sep="\t")
    return 0


if __name__ == "__main__":
    sys.exit(main())
