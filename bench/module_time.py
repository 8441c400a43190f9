# SPDX-License-Identifier: GPL-3.0-or-later
"""What our reading modules cost on a host, beside ansible-core's own fact gathering in the same run.

Each module is run as it runs on a host: the file that ansible-core would copy there, with the system's Python,
on this machine. The controller's share and the connection are not in the figures, since they are the same for all.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from commands import CommandError

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "bench" / "module_time"
RUNS = 9
# The Python of a host; the system's where there is one.
PYTHON = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable
INTENT = {"vm_sysctls": {"vm.swappiness": 0}, "rt_runtime_us": 950000}
PEER = "ansible.builtin.setup"
MODULES: dict[str, dict[str, Any]] = {
    PEER: {},
    "firsttouch.host.numa_topology_info": {},
    "firsttouch.host.kernel_cmdline_info": {},
    "firsttouch.host.hugepages_info": {},
    "firsttouch.host.sysctl_info": {},
    "firsttouch.host.host_plan": {"intent": INTENT},
}


class Cost(NamedTuple):
    """Medians over all runs."""

    wall_ms: float
    cpu_ms: float


def payload(module: str, args: dict[str, Any]) -> Path:
    """The file that ansible-core copies to a host for MODULE."""
    folder = WORK / module
    folder.mkdir(parents=True)
    env = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "build" / "import"),
        "ANSIBLE_HOME": str(ROOT / "build" / "ansible"),
        "ANSIBLE_KEEP_REMOTE_FILES": "1",
        "ANSIBLE_REMOTE_TMP": str(folder),
    }
    ansible = Path(sys.executable).with_name("ansible")
    python = f"ansible_python_interpreter={PYTHON}"
    host = ["-i", "localhost,", "-c", "local", "-e", python, "localhost"]
    given = ["-a", json.dumps(args)] if args else []
    command = [str(ansible), *host, "-m", module, *given]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CommandError(f"{module} failed on this machine:\n{done.stdout}{done.stderr}")
    (script,) = folder.glob("*/AnsiballZ_*.py")
    return script


def once(script: Path) -> tuple[float, float]:
    """Wall and CPU time of one run, in milliseconds."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([PYTHON, script], stdout=subprocess.DEVNULL, check=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall * 1000, cpu * 1000


def measure() -> list[dict[str, Any]]:
    """Rows for the table: time, CPU time and size of each module; the runs of all modules are interleaved."""
    shutil.rmtree(WORK, ignore_errors=True)
    scripts = {module: payload(module, args) for module, args in MODULES.items()}
    samples: dict[str, list[tuple[float, float]]] = {module: [] for module in MODULES}
    for _ in range(RUNS):
        for module, script in scripts.items():
            samples[module].append(once(script))
    costs = {
        module: Cost(statistics.median(s[0] for s in runs), statistics.median(s[1] for s in runs))
        for module, runs in samples.items()
    }
    rows: list[dict[str, Any]] = []
    for module, cost in costs.items():
        size = scripts[module].stat().st_size / 1024
        name, peer = module.removeprefix("firsttouch.host."), costs[PEER]
        ours = module != PEER
        rows += [
            row(f"{name}: time", cost.wall_ms, peer.wall_ms if ours else None),
            row(f"{name}: CPU time", cost.cpu_ms, peer.cpu_ms if ours else None),
            {
                "figure": f"{name}: sent to the host",
                "value": round(size),
                "unit": "KiB",
                "goal": None,
                "met": None,
            },
        ]
    shutil.rmtree(WORK, ignore_errors=True)
    return rows


def row(figure: str, value_ms: float, peer_ms: float | None) -> dict[str, Any]:
    """One time in ms; PEER_MS, the peer's in the same run, is the goal."""
    goal = None if peer_ms is None else f"at most {PEER}'s {peer_ms:.1f} ms"
    met = None if peer_ms is None else value_ms <= peer_ms
    return {"figure": figure, "value": round(value_ms, 1), "unit": "ms", "goal": goal, "met": met}
