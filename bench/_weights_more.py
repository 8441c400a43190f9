# SPDX-License-Identifier: GPL-3.0-or-later
"""Parts of the benchmark of weights beside the load: memory that is short, the cost of access, the tests as rows."""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _weights_host import memory_limit
from commands import ROOT, CommandError

SOURCE = ROOT / "runtime" / "src"
PRESSED = 4
Row = dict[str, Any]

# The peak of memory before is that of reading the text: whoever made it is another process.
HEADER = """
import json, sys, time
from firsttouch import _safetensors
def peak():
    # Not ru_maxrss, which a process has of the one that started it.
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) * 1024
with open(sys.argv[1], "rb") as file:
    text = file.read()
before = peak()
began = time.process_time()
try:
    _safetensors.parse_header(text, 8 + len(text) + int(sys.argv[2]))
except Exception as error:
    if type(error).__name__ != "InvalidSafetensorsError":
        raise
seconds = time.process_time() - began
print(json.dumps({"seconds": seconds, "ratio": (peak() - before) / len(text)}))
"""
PLAN = """
import sys
from firsttouch import weights
print(weights.plan(sys.argv[1], directory=sys.argv[2]).pages)
"""


@dataclass(frozen=True)
class Setting:
    """The model, the stores by arm, a folder for programs, how often; and what loads the model by an arm."""

    file: Path
    stores: dict[str, str]
    work: Path
    runs: int
    load: Callable[[str], Any]


def row(figure: str, value: float | None, unit: str = "", most: float | None = None) -> Row:
    """A figure; MOST is its goal."""
    goal = None if most is None else f"at most {most:.3g}"
    met = None if most is None or value is None else value <= most
    return {"figure": figure, "value": value, "unit": unit, "goal": goal, "met": met}


def python(code: str, *args: str) -> Any:
    """What CODE prints as JSON in a process of its own."""
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, env=env)
    if done.returncode:
        raise CommandError(done.stderr[-2000:])
    return json.loads(done.stdout)


def predicted(file: Path, store: str) -> int:
    """Pages that plan says FILE takes."""
    return int(python(PLAN, str(file), store))


def taken(store: str) -> int:
    """Pages that are taken on a mount with a size."""
    status = os.statvfs(store)
    return status.f_blocks - status.f_bfree


def pressure(setting: Setting) -> list[Row]:
    """Goal 7: the second pass of workers that have half of the model as memory."""
    size = setting.file.stat().st_size
    seconds: dict[str, list[float]] = {"hugetlb": [], "mmap": []}
    read: dict[str, list[float]] = {"hugetlb": [], "mmap": []}
    setting.load("hugetlb")
    try:
        for _ in range(setting.runs):
            for arm in ("hugetlb", "mmap"):
                drop(setting.file)
                with memory_limit(size // 2) as group:
                    found = second_pass(setting, arm, str(group))
                seconds[arm].append(max(one["seconds"] for one in found))
                read[arm].append(sum(one["read_bytes"] for one in found))
    except CommandError as error:
        return [row(f"7 half the model as memory: NOT RUN: {error}", None)]
    finally:
        empty(setting.stores["hugetlb"])
    ours, theirs = (statistics.median(seconds[arm]) for arm in ("hugetlb", "mmap"))
    return [
        row(f"hugetlb: second pass of {PRESSED} workers in half the memory", ours, "s"),
        row(f"mmap: second pass of {PRESSED} workers in half the memory", theirs, "s"),
        row("mmap: read again from the disk", statistics.median(read["mmap"]) / (1 << 20), "MiB"),
        row("7 second pass in half the memory over plain mmap", ours / theirs, "x", 1 / 20),
        row("7 read again from the disk", statistics.median(read["hugetlb"]), "bytes", 0),
    ]


def second_pass(setting: Setting, arm: str, group: str) -> list[dict[str, float]]:
    """What each of the workers says of its second pass; the first one of all is over before it begins."""
    script = str(ROOT / "bench" / "_weights_pressure.py")
    command = [sys.executable, script, group, arm, str(setting.file), setting.stores["hugetlb"]]
    env, pipe = {**os.environ, "PYTHONPATH": str(SOURCE)}, subprocess.PIPE
    workers = [
        subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env) for _ in range(PRESSED)
    ]
    try:
        said = [answer(worker) for worker in workers]
        for _ in range(2):
            for worker in workers:
                assert worker.stdin
                worker.stdin.write("\n")
                worker.stdin.flush()
            said = [answer(worker) for worker in workers]
        return said
    finally:
        for worker in workers:
            worker.communicate()


def answer(worker: subprocess.Popen[str]) -> dict[str, float]:
    """The next line of a worker."""
    assert worker.stdout
    line = worker.stdout.readline()
    if not line:
        raise CommandError(f"a worker in the control group ended with status {worker.wait()}")
    found: dict[str, float] = json.loads(line)
    return found


def access(setting: Setting) -> list[Row]:
    """Goal 8: loads that depend on each other, and a sum over everything, on pages that are all there."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return [row("8 cost of access: NOT RUN: there is no C compiler", None)]
    program = setting.work / "chase"
    subprocess.run([compiler, "-O2", "-o", program, ROOT / "bench" / "_weights_chase.c"], check=True)
    found: dict[str, list[dict[str, float]]] = {}
    arms = ("hugetlb", "tmpfs_huge", "shm_4k", "mmap")
    for arm in arms[:3]:
        setting.load(arm)
    try:
        for run in range(setting.runs):
            for arm in arms[run % 4 :] + arms[: run % 4]:
                store = setting.stores.get(arm)
                file = next(Path(store).iterdir()) if store else setting.file
                done = subprocess.run([program, file], capture_output=True, text=True, check=True)
                found.setdefault(arm, []).append(json.loads(done.stdout))
    finally:
        for store in setting.stores.values():
            empty(store)

    def of(arm: str, key: str) -> float:
        return statistics.median(sample[key] for sample in found[arm])

    quickest = min(of(arm, "sum_s") for arm in arms[1:])
    return [
        *(row(f"{arm}: a load that depends on the one before", of(arm, "load_ns"), "ns") for arm in arms),
        *(row(f"{arm}: sum of everything", of(arm, "sum_s"), "s") for arm in arms),
        row("8 dependent load over /dev/shm", of("hugetlb", "load_ns") / of("shm_4k", "load_ns"), "x", 1 / 1.3),
        row("8 sum over the quickest other", of("hugetlb", "sum_s") / quickest, "x", 1.05),
    ]


def tests() -> list[Row]:
    """Goals 9 to 11: the tests that prove them, as counts of what failed or could not be run."""
    parts = {
        "9 failure matrix": ["test_weights_faults.py"],
        "10 hostile headers": ["test_safetensors.py"],
        "11 isolation": ["test_weights.py", "-k", "another_user or scribbling"],
    }
    found = []
    for figure, (file, *words) in parts.items():
        good, bad = outcomes(ROOT / "runtime" / "tests" / file, *words)
        found.append(row(f"{figure}: failed or not run, beside {good} that passed", bad, "tests", 0))
    costs = [header_cost(1, 100_000_000), header_cost(900_000, 0)]
    return [
        *found,
        row("10 a header of 50 to 100 MB: CPU time", max(one["seconds"] for one in costs), "s", 2),
        row("10 the same: memory over its size", max(one["ratio"] for one in costs), "x", 4),
    ]


def header_cost(count: int, size: int) -> dict[str, float]:
    """Time and memory to look at a header of COUNT tensors, with blanks up to SIZE bytes."""
    rows = {
        f"t{number}": {"dtype": "U8", "shape": [1], "data_offsets": [number, number + 1]} for number in range(count)
    }
    with tempfile.NamedTemporaryFile() as file:
        file.write(json.dumps(rows).encode().ljust(size))
        file.flush()
        found: dict[str, float] = python(HEADER, file.name, str(count))
    return found


def outcomes(file: Path, *words: str) -> tuple[int, int]:
    """How many tests passed, and how many did not: failed, broken, skipped."""
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "runtime/pyproject.toml"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*command, f"--basetemp={folder}/tests", str(file), *words],
            capture_output=True,
            text=True,
            env=env,
            cwd=ROOT,
        )
    tail = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
    counts = {word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|errors?|skipped)", tail)}
    if not counts:
        raise CommandError(f"{file.name} was not run: {done.stdout[-500:]}{done.stderr[-500:]}")
    return counts.pop("passed", 0), sum(counts.values())


def drop(file: Path) -> None:
    """Take FILE out of the page cache."""
    fd = os.open(file, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def empty(store: str) -> None:
    """Remove what is in a store."""
    for name in os.listdir(store):
        os.unlink(os.path.join(store, name))
