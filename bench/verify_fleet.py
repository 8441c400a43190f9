# SPDX-License-Identifier: GPL-3.0-or-later
"""What a verified host costs the controller, beside a task-by-task playbook of the kind that peers use.

Both look at the same recorded hosts over the local connection, in the same run and with as many forks as there
are CPUs. The time that the modules themselves take on the hosts is not the controller's: each module runs under
an interpreter that adds what it used to a file, and this is taken off. The peer makes 40 asserts about 20 files,
each of which it reads with a command or slurp of its own: 60 tasks.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
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
RECORDED = ROOT / "tests" / "fixtures" / "hosts" / "testhost-two-node.tar.xz"
SIZES = (100, 1000)
# The peer costs by the task and the host, so that its cost on a small fleet goes for the large one too.
PEER_HOSTS = 100
SHARE = 5
INTENT = {
    "firsttouch_hugepages": [{"size": "2M", "nodes": {"0": 40, "1": 70}}],
    "firsttouch_vm_sysctls": {"vm.swappiness": 0, "vm.dirty_ratio": 8},
    "firsttouch_rt_runtime_us": 950000,
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
    """Per host, in seconds: CPU time of the controller, CPU time of the modules, and time by the clock."""

    controller: float
    modules: float
    wall: float


FIGURES = {
    "controller": "controller CPU per host",
    "modules": "CPU of the modules per host",
    "wall": "time per host",
}


def prepared() -> Path:
    """The recorded host and the interpreter that meters modules; returns the host's tree."""
    shutil.rmtree(WORK, ignore_errors=True)
    root = WORK / "host"
    root.mkdir(parents=True)
    with tarfile.open(RECORDED) as archive:
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
    (WORK / "peer.yml").write_text(json.dumps(peer(root), indent=1))
    return root


def peer(root: Path) -> list[dict[str, Any]]:
    """A playbook that reads FILES one by one and asserts something of each."""
    tasks: list[dict[str, Any]] = []
    for number, path in enumerate(FILES):
        name, where = f"got_{number}", f"{root}{path}"
        if number % 2:
            read: dict[str, Any] = {"ansible.builtin.command": {"argv": ["cat", where]}, "changed_when": False}
            text = f"{name}.stdout"
        else:
            read, text = {"ansible.builtin.slurp": {"src": where}}, f"{name}.content | b64decode"
        tasks.append({"name": f"Read {path}", **read, "register": name, "check_mode": False})
        for test in (f"({text}) is string", f"({text}) | trim | length >= 0"):
            claim = {"that": [test], "quiet": True, "fail_msg": f"{path} is not as wanted"}
            tasks.append({"name": f"Assert {path}", "ansible.builtin.assert": claim})
    return [{"name": "Verify task by task", "hosts": "all", "gather_facts": False, "tasks": tasks}]


def inventory(hosts: int, root: Path) -> Path:
    """An inventory of HOSTS names for the one recorded host."""
    common = {
        "ansible_connection": "local",
        "ansible_python_interpreter": str(WORK / "python3"),
        "firsttouch_verify_sysroot": str(root),
        **INTENT,
    }
    path = WORK / f"hosts-{hosts}.json"
    names: dict[str, dict[str, Any]] = {f"node{number:05}": {} for number in range(hosts)}
    path.write_text(json.dumps({"all": {"hosts": names, "vars": common}}))
    return path


def cost(playbook: str, hosts: int, root: Path) -> Cost:
    """Run PLAYBOOK on HOSTS names."""
    ledger = WORK / "ledger"
    ledger.unlink(missing_ok=True)
    env = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
    env |= {
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "build" / "import"),
        "ANSIBLE_HOME": str(ROOT / "build" / "ansible"),
        "ANSIBLE_FORKS": str(os.cpu_count() or 2),
        "ANSIBLE_PIPELINING": "true",
    }
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    command = [program, "-i", str(inventory(hosts, root)), playbook]
    if playbook.startswith("firsttouch."):
        command += ["-e", f"firsttouch_report_dir={WORK / 'report'}"]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    # The recorded host is not as planned in everything: 2 is an answer too.
    if done.returncode not in (0, 2) or "Traceback" in done.stdout + done.stderr:
        raise SystemExit(f"{playbook} ended with {done.returncode}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    spent = [float(line) for line in ledger.read_text().split()]
    return Cost((used - sum(spent)) / hosts, sum(spent) / hosts, wall / hosts)


def measure(sizes: tuple[int, ...] = SIZES) -> list[dict[str, Any]]:
    """Rows for the table: controller CPU and wall time per verified host of each fleet, ours beside the peer's."""
    root = prepared()
    rows: list[dict[str, Any]] = []
    few = min(*sizes, PEER_HOSTS)
    theirs = cost(str(WORK / "peer.yml"), few, root)
    for name, value in zip(theirs._fields, theirs):
        rows.append(row(f"40 asserts, {few} hosts: {FIGURES[name]}", value * 1000, "ms"))
    for hosts in sizes:
        ours = cost("firsttouch.host.verify", hosts, root)
        verified = json.loads((WORK / "report" / "report.json").read_text())
        asked = statistics.median(len(host["results"]) for host in verified["hosts"])
        if verified["summary"]["hosts"] != hosts or not asked:
            raise SystemExit(f"the report has {verified['summary']} of {hosts} hosts: nothing was measured")
        met = ours.controller * SHARE <= theirs.controller
        for name, value in zip(ours._fields, ours):
            judged = (f"at most 1/{SHARE} of the 40 asserts'", met) if name == "controller" else (None, None)
            rows.append(row(f"verify, {hosts} hosts: {FIGURES[name]}", value * 1000, "ms", *judged))
        share = ours.controller / theirs.controller
        rows.append(row(f"verify, {hosts} hosts: controller CPU, share of the 40 asserts'", share, "ratio"))
        rows.append(row(f"verify, {hosts} hosts: answers per host", asked, "answers"))
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
