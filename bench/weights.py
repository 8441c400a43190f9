# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights for several workers: our image in hugepages beside what else is done, in the same run, arms interleaved.

FIRSTTOUCH_BENCH_MIB is the size of the model (default 512; 2048 and more for figures to be quoted), which must
fit into hugepages that are made for the run and given back. Peers: plain mmap, a copy in /dev/shm, a tmpfs with huge
pages, safetensors' safe_open (numpy, and torch where it is installed); fio where it is installed reads the same
file directly, else a plain loop of direct reads stands for it.

What depends on the kernel: the page cache of newer kernels holds files in large folios, so the faults and page
tables of plain mmap shrink towards ours, and only /dev/shm and older kernels show the full ratio.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from commands import CommandError

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "bench" / "weights"
SOURCE = ROOT / "runtime" / "src"
MIB = int(os.environ.get("FIRSTTOUCH_BENCH_MIB", "512"))
RUNS = int(os.environ.get("FIRSTTOUCH_BENCH_RUNS", "5"))
WORKERS = 8
PAGE = 2 << 20
POOL = Path("/sys/kernel/mm/hugepages/hugepages-2048kB")
# The first one does nothing: its faults are those of any worker, and are taken off the others'.
ARMS = ("idle", "hugetlb", "tmpfs_huge", "shm_4k", "mmap", "safe_open_np")

ATTACH = """
import sys, time
from firsttouch import weights
times = []
for _ in range(11):
    began = time.perf_counter()
    weights.open("bench", directory=sys.argv[1])
    times.append(time.perf_counter() - began)
print(sorted(times)[5] * 1000)
"""

Samples = dict[str, list[dict[str, float]]]


def write_model(path: Path, size: int) -> None:
    """A file of F16 tensors of 32 MiB each."""
    count = max(size // (32 << 20), 1)
    header = {
        f"layer{number}": {"dtype": "F16", "shape": [4096, 4096], "data_offsets": [number << 25, (number + 1) << 25]}
        for number in range(count)
    }
    text = json.dumps(header).encode()
    block = os.urandom(32 << 20)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _ in range(count):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def pages(count: int) -> Iterator[None]:
    """COUNT more pages in the pool, and the former number again at the end; under the lock that the tests use too."""
    file = POOL / "nr_hugepages"
    if not os.access(file, os.W_OK):
        raise CommandError("the pool of hugepages cannot be set here")
    with open("/run/firsttouch-tests-pool.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = int(file.read_text())
        try:
            try:
                file.write_text(str(before + count))
            except OSError as error:
                raise CommandError(f"no hugepages can be made here: {error}") from error
            if int((POOL / "free_hugepages").read_text()) < count:
                raise CommandError(f"the kernel did not give {count} hugepages")
            yield
        finally:
            with contextlib.suppress(OSError):
                file.write_text(str(before))


@contextlib.contextmanager
def mounted(kind: str, options: str) -> Iterator[str]:
    """A memory filesystem in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(["mount", "-t", kind, "-o", options, "none", folder], capture_output=True, text=True)
        if done.returncode:
            raise CommandError(f"a {kind} cannot be mounted here: {done.stderr.strip()}")
        try:
            yield folder
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


def warm_up(store: str, count: int) -> None:
    """Have every page zeroed once: the first touch of memory that a hypervisor has not backed is eight times slower."""
    path = os.path.join(store, "warm")
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(fd, 0, count * PAGE)
    os.close(fd)
    os.unlink(path)


def run_arm(arm: str, file: Path, store: str, temperature: str, workers: int = WORKERS) -> dict[str, float]:
    """One measurement in a fresh process."""
    script = ROOT / "bench" / "_weights_arm.py"
    command = [sys.executable, str(script), arm, str(file), store, str(workers), temperature]
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "FIRSTTOUCH_RUN_DIR": str(WORK / "run")}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        raise CommandError(f"{arm} failed:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def direct_read(file: Path, threads: int = 4) -> float:
    """Seconds of the best plain direct read of FILE: fio where it is installed, and always our own loop beside it."""
    seconds = [own_read(file, threads)]
    if shutil.which("fio"):
        command = ["fio", "--name=x", f"--filename={file}", "--rw=read", "--bs=4M", "--direct=1", "--ioengine=psync"]
        command += [f"--numjobs={threads}", f"--size={MIB // threads}M", f"--offset_increment={MIB // threads}M"]
        command += ["--thread", "--group_reporting", "--output-format=json", "--readonly"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        read = json.loads(done.stdout)["jobs"][0]["read"]
        seconds.append(file.stat().st_size / read["bw_bytes"])
    return min(seconds)


def own_read(file: Path, threads: int) -> float:
    """Seconds of direct reads of all of FILE into one buffer for each thread, to be thrown away."""
    fd = os.open(file, os.O_RDONLY | os.O_DIRECT)
    size, step = os.fstat(fd).st_size, 16 << 20
    offsets = iter(range(0, size, step))
    lock = threading.Lock()
    buffers = [mmap.mmap(-1, step) for _ in range(threads)]
    for buffer in buffers:
        buffer[::4096] = bytes(step // 4096)

    def read(buffer: mmap.mmap) -> None:
        while True:
            with lock:
                offset = next(offsets, None)
            if offset is None:
                return
            os.preadv(fd, [buffer], offset)

    workers = [threading.Thread(target=read, args=(buffer,)) for buffer in buffers]
    began = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seconds = time.perf_counter() - began
    os.close(fd)
    return seconds


def cached(file: Path) -> float:
    """The part of FILE in the page cache in per cent; fincore is of util-linux."""
    command = ["fincore", "--bytes", "--noheadings", "--output", "RES", str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CommandError(f"fincore failed: {done.stderr.strip()}")
    return 100 * int(done.stdout) / file.stat().st_size


def clear(store: str) -> None:
    """Empty a store."""
    for name in os.listdir(store):
        os.unlink(os.path.join(store, name))


def arms() -> list[str]:
    """What can be measured here."""
    torch = subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode == 0
    return [*ARMS, *(["safe_open_pt"] if torch else [])]


def measure() -> list[dict[str, Any]]:
    """Rows for the table."""
    # Pages and mounts are given back also when the run is ended from outside.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    file = WORK / "bench.safetensors"
    need = MIB // 2 + 4
    try:
        write_model(file, MIB << 20)
        with pages(need), contextlib.ExitStack() as stack:
            size = f"size={2 * MIB}M"
            stores = {
                "hugetlb": stack.enter_context(mounted("hugetlbfs", f"pagesize=2M,size={need * PAGE}")),
                "tmpfs_huge": stack.enter_context(mounted("tmpfs", f"huge=always,{size}")),
                "shm_4k": stack.enter_context(mounted("tmpfs", size)),
            }
            warm_up(stores["hugetlb"], need)
            return rows(*collect(file, stores), file.stat().st_size)
    finally:
        shutil.rmtree(WORK, ignore_errors=True)


def collect(file: Path, stores: dict[str, str]) -> tuple[Samples, Samples, dict[str, float]]:
    """Samples of each arm, cold and warm; and single figures."""
    cold: Samples = {}
    warm: Samples = {}
    single: dict[str, list[float]] = {"direct": [], "cached": [], "attach": []}
    for run in range(RUNS):
        single["direct"].append(direct_read(file))
        names = arms()
        for arm in names[run % len(names) :] + names[: run % len(names)]:
            store = stores.get(arm, "")
            cold.setdefault(arm, []).append(run_arm(arm, file, store, "cold"))
            if arm == "hugetlb":
                single["cached"].append(cached(file))
                single["attach"].append(attach(store))
            warm.setdefault(arm, []).append(run_arm(arm, file, store, "warm"))
            if store:
                clear(store)
    return cold, warm, {name: statistics.median(values) for name, values in single.items()}


def attach(store: str) -> float:
    """Milliseconds to open the image in a process that has imported the package; the median of eleven."""
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", ATTACH, store]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    return float(done.stdout)


def rows(cold: Samples, warm: Samples, single: dict[str, float], size: int) -> list[dict[str, Any]]:
    """Figures and the goals of them."""

    def of(samples: Samples, arm: str, key: str) -> float:
        value = statistics.median(sample[key] for sample in samples[arm])
        idle = 0.0 if key.endswith("_s") else statistics.median(sample[key] for sample in samples["idle"])
        return max(value - idle, 0.0)

    ours = {key: of(cold, "hugetlb", key) for key in cold["hugetlb"][0]}
    peers = [arm for arm in cold if arm != "idle"]
    gib = size / (1 << 30)

    def over(key: str, peer: str) -> float:
        return ours[key] / max(of(cold, peer, key), 1e-9)

    return [
        row("model", size / (1 << 20), "MiB"),
        row("direct read of the file alone", single["direct"], "s"),
        *(row(f"{arm}: cold, {WORKERS} workers ready", of(cold, arm, "ready_s"), "s") for arm in peers),
        *(row(f"{arm}: warm, {WORKERS} workers ready", of(warm, arm, "ready_s"), "s") for arm in peers),
        *(row(f"{arm}: faults of all workers, cold", of(cold, arm, "worker_faults"), "") for arm in peers),
        *(row(f"{arm}: page tables of a worker, cold", of(cold, arm, "page_tables_kb"), "KiB") for arm in peers),
        row("cold ready over direct read", ours["ready_s"] / single["direct"], "x", 1.15),
        row("cold ready over plain mmap", over("ready_s", "mmap"), "x", 1.05),
        row("page cache after the load", single["cached"], "% of the model", 1.0),
        row("faults over /dev/shm", over("worker_faults", "shm_4k"), "x", 1 / 50),
        row("faults over safe_open(np)", over("worker_faults", "safe_open_np"), "x", 1 / 1000),
        row("faults over plain mmap", over("worker_faults", "mmap"), "x", 1 / 3),
        row("page tables over /dev/shm", over("page_tables_kb", "shm_4k"), "x", 1 / 300),
        row("load: CPU time", ours["load_cpu_s"] / gib, "s per GiB", 0.35),
        row("faults of a later worker", ours["late_worker_faults"], "", 100),
        row("load: memory beside the image", max(ours["loader_rss_kb"], 0) / 1024, "MiB", 64),
        row("attach", single["attach"], "ms", 5),
    ]


def row(figure: str, value: float, unit: str, most: float | None = None) -> dict[str, Any]:
    """A figure; MOST is its goal."""
    goal = None if most is None else f"at most {most:.3g}"
    met = None if most is None else value <= most
    return {"figure": figure, "value": value, "unit": unit, "goal": goal, "met": met}
