# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights for several workers: our image in hugepages beside what else is done, in the same run, arms interleaved.

FIRSTTOUCH_BENCH_MIB is the size of the model (default 2048), which must fit into hugepages that are made for the run
and given back. FIRSTTOUCH_BENCH_WEIGHTS chooses among the parts (load, pressure, access, tests), and
FIRSTTOUCH_BENCH_ARMS among the arms of `load`, for whoever has to measure in pieces. FIRSTTOUCH_BENCH_TORCH is a Python
that has torch, where the one that runs this has none: torch with all of CUDA is no small thing to install for a table.

What depends on the kernel: the page cache of newer kernels holds files in large folios, so the faults and page
tables of plain mmap shrink towards ours, and only /dev/shm and older kernels show the full ratio.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _weights_more as more
from _weights_host import PAGE, cached, direct_read, mounted, pages, warm_up, write_model
from commands import ROOT, CommandError

WORK = ROOT / "build" / "bench" / "weights"
SOURCE = ROOT / "runtime" / "src"
MIB = int(os.environ.get("FIRSTTOUCH_BENCH_MIB", "2048"))
RUNS = int(os.environ.get("FIRSTTOUCH_BENCH_RUNS", "5"))
TORCH = os.environ.get("FIRSTTOUCH_BENCH_TORCH", sys.executable)
PARTS = ("load", "pressure", "access", "tests")
WORKERS = 8
# The first one does nothing: its faults are those of any worker, and are taken off the others'.
ARMS = ("idle", "hugetlb", "tmpfs_huge", "shm_4k", "mmap", "safe_open_np")
# What needs torch, and how many workers: each of the last two has a copy of its own of all or much of the model.
TORCH_ARMS = {"safe_open_pt": WORKERS, "fastsafetensors": 4, "runai_streamer": 4}
MODULES = {"fastsafetensors": "fastsafetensors", "runai_streamer": "runai_model_streamer"}

ATTACH = """
import json, sys, time
from firsttouch import weights
times = {False: [], True: []}
for _ in range(11):
    for populate in times:
        began = time.perf_counter()
        weights.open("bench", directory=sys.argv[1], populate=populate)
        times[populate].append(time.perf_counter() - began)
print(json.dumps([sorted(values)[5] * 1000 for values in times.values()]))
"""

Samples = dict[str, list[dict[str, float]]]
Row = dict[str, Any]


def run_arm(arm: str, file: Path, store: str, temperature: str) -> dict[str, float]:
    """One measurement in a fresh process."""
    script = ROOT / "bench" / "_weights_arm.py"
    python = TORCH if arm in TORCH_ARMS else sys.executable
    workers = TORCH_ARMS.get(arm, WORKERS)
    command = [python, str(script), arm, str(file), store, str(workers), temperature]
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "FIRSTTOUCH_RUN_DIR": str(WORK / "run")}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        raise CommandError(f"{arm} failed:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def clear(store: str) -> None:
    """Empty a store."""
    for name in os.listdir(store):
        os.unlink(os.path.join(store, name))


def arms() -> tuple[list[str], list[Row]]:
    """What can be measured here, and rows of what cannot."""
    found, missing = list(ARMS), []
    for arm in TORCH_ARMS:
        modules = ["torch", "safetensors", MODULES.get(arm, "torch")]
        done = subprocess.run([TORCH, "-c", f"import {', '.join(modules)}"], capture_output=True, text=True)
        if done.returncode == 0:
            found.append(arm)
        else:
            reason = done.stderr.strip().splitlines()[-1]
            missing.append(row(f"{arm}: not run: {reason} (FIRSTTOUCH_BENCH_TORCH names a Python that has it)", None))
    wanted = os.environ.get("FIRSTTOUCH_BENCH_ARMS", "").replace(",", " ").split() or found
    unknown = sorted(set(wanted) - set(ARMS) - set(TORCH_ARMS))
    if unknown:
        raise CommandError(f"no arm {unknown[0]}; there are {', '.join([*ARMS, *TORCH_ARMS])}")
    return [arm for arm in found if arm in (*wanted, "idle", "hugetlb")], missing


def measure() -> list[Row]:
    """Rows for the table."""
    # Pages and mounts are given back also when the run is ended from outside.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    chosen = os.environ.get("FIRSTTOUCH_BENCH_WEIGHTS", "").replace(",", " ").split() or list(PARTS)
    unknown = sorted(set(chosen) - set(PARTS))
    if unknown:
        raise CommandError(f"no part {unknown[0]}; there are {', '.join(PARTS)}")
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    try:
        found = [row("model", MIB, "MiB")]
        if set(chosen) - {"tests"}:
            found += with_pages(chosen)
        # They take the lock of the pool themselves.
        return [*found, *(more.tests() if "tests" in chosen else [])]
    finally:
        shutil.rmtree(WORK, ignore_errors=True)


def with_pages(chosen: list[str]) -> list[Row]:
    """The rows of those parts that need a model and room for it."""
    file = WORK / "bench.safetensors"
    need = MIB // 2 + 4
    write_model(file, MIB << 20)
    with pages(need), contextlib.ExitStack() as stack:
        size = f"size={2 * MIB}M"
        stores = {
            "hugetlb": stack.enter_context(mounted("hugetlbfs", f"pagesize=2M,size={need * PAGE}")),
            "tmpfs_huge": stack.enter_context(mounted("tmpfs", f"huge=always,{size}")),
            "shm_4k": stack.enter_context(mounted("tmpfs", size)),
        }
        warm_up(stores["hugetlb"], need)
        setting = more.Setting(file, stores, WORK, RUNS, lambda arm: run_arm(arm, file, stores.get(arm, ""), "cold"))
        parts: dict[str, Callable[[], list[Row]]] = {
            "load": lambda: load_rows(file, stores),
            "pressure": lambda: more.pressure(setting),
            "access": lambda: more.access(setting),
        }
        return [line for part in parts if part in chosen for line in parts[part]()]


def load_rows(file: Path, stores: dict[str, str]) -> list[Row]:
    """The time to have all workers ready, cold and warm, and what it takes."""
    names, missing = arms()
    cold, warm, single = collect(file, stores, names)
    return [*rows(cold, warm, single, file.stat().st_size), *missing]


def collect(
    file: Path, stores: dict[str, str], names: list[str]
) -> tuple[Samples, Samples, dict[str, float]]:
    """Samples of each arm, cold and warm; and single figures."""
    cold: Samples = {}
    warm: Samples = {}
    single: dict[str, list[float]] = {key: [] for key in ("direct", "over", "cached", "attach", "populate", "plan")}
    for run in range(RUNS):
        for arm in names[run % len(names) :] + names[: run % len(names)]:
            store = stores.get(arm, "")
            print(f"  run {run + 1} of {RUNS}: {arm}", flush=True)
            # The disk of a virtual machine changes its mind within minutes, and is quicker the second time where the
            # hypervisor caches: right beside what is compared with it, before and after.
            before = direct_read(file) if arm == "hugetlb" else 0.0
            cold.setdefault(arm, []).append(run_arm(arm, file, store, "cold"))
            if arm == "hugetlb":
                single["direct"].append(min(before, direct_read(file)))
                single["over"].append(cold[arm][-1]["ready_s"] / single["direct"][-1])
                single["cached"].append(cached(file))
                single["plan"].append(more.predicted(file, store) - more.taken(store))
                for key, value in zip(("attach", "populate"), attach(store), strict=True):
                    single[key].append(value)
            warm.setdefault(arm, []).append(run_arm(arm, file, store, "warm"))
            if store:
                clear(store)
    return cold, warm, {name: statistics.median(values) for name, values in single.items()}


def attach(store: str) -> list[float]:
    """Milliseconds to open the image in a process that has imported the package, without and with its pages."""
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", ATTACH, store]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    found: list[float] = json.loads(done.stdout)
    return found


def rows(cold: Samples, warm: Samples, single: dict[str, float], size: int) -> list[Row]:
    """Figures and the goals of them."""

    def of(samples: Samples, arm: str, key: str) -> float:
        value = statistics.median(sample[key] for sample in samples[arm])
        idle = 0.0 if key.endswith("_s") else statistics.median(sample[key] for sample in samples["idle"])
        return max(value - idle, 0.0)

    ours = {key: of(cold, "hugetlb", key) for key in cold["hugetlb"][0]}
    peers = [arm for arm in cold if arm != "idle"]
    gib = size / (1 << 30)
    counts = {arm: TORCH_ARMS.get(arm, WORKERS) for arm in peers}

    def over(figure: str, key: str, peer: str, most: float) -> list[Row]:
        if peer not in cold:
            return []
        return [row(figure, ours[key] / max(of(cold, peer, key), 1e-9), "x", most)]

    return [
        row("direct read of the file alone", single["direct"], "s"),
        *(row(f"{arm}: cold, {counts[arm]} workers ready", of(cold, arm, "ready_s"), "s") for arm in peers),
        *(row(f"{arm}: warm, {counts[arm]} workers ready", of(warm, arm, "ready_s"), "s") for arm in peers),
        *(row(f"{arm}: faults of all workers, cold", of(cold, arm, "worker_faults")) for arm in peers),
        *(row(f"{arm}: page tables of a worker, cold", of(cold, arm, "page_tables_kb"), "KiB") for arm in peers),
        row("1 cold ready over direct read, run by run", single["over"], "x", 1.15),
        *over("1 cold ready over plain mmap", "ready_s", "mmap", 1.05),
        row("2 page cache after the load", single["cached"], "% of the model", 1.0),
        *over("3 faults over /dev/shm", "worker_faults", "shm_4k", 1 / 50),
        *over("3 faults over safe_open(np)", "worker_faults", "safe_open_np", 1 / 1000),
        *over("3 faults over plain mmap", "worker_faults", "mmap", 1 / 3),
        row("3 faults of a later worker", ours["late_worker_faults"], "", 100),
        *over("4 page tables over /dev/shm", "page_tables_kb", "shm_4k", 1 / 300),
        row("4 page tables of the first worker", ours["most_page_tables_kb"] / gib, "KiB per GiB", 8),
        row("4 page tables of a later worker", ours["late_page_tables_kb"], "KiB", 8),
        row("5 pages that workers take", ours["pages_of_workers"], "", 0),
        row("5 load: memory beside the image", ours["loader_rss_kb"] / 1024, "MiB", 64),
        row("6 load: CPU time", ours["load_cpu_s"] / gib, "s per GiB", 0.35),
        row("6 attach", single["attach"], "ms", 5),
        row("6 attach with all pages", single["populate"] / gib, "ms per GiB", 1),
        row("12 pages planned less pages taken", abs(single["plan"]), "", 0),
    ]


def row(figure: str, value: float | None, unit: str = "", most: float | None = None) -> Row:
    """A figure; MOST is its goal, and the number in front of it that of the goal in docs."""
    return more.row(figure, value, unit, most)
