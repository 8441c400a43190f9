# SPDX-License-Identifier: GPL-3.0-or-later
"""One way to bring a model to several workers, measured in a fresh process: ARM FILE STORE WORKERS COLD.

Prints one JSON object. Workers have imported everything before the clock starts; ready is when the last of them
has touched every 4K of the model. Faults and page tables are those of the workers, from their start signal on.
"""

from __future__ import annotations

import importlib
import json
import mmap
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

PAGE = 4096
NAME = "bench"


def touch(data: npt.NDArray[np.uint8]) -> int:
    """Read one byte of every page."""
    return int(data[::PAGE].sum())


def map_file(path: str) -> mmap.mmap:
    """Map PATH shared and read only, as a loader without a copy does."""
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)


def touch_mapped(path: str) -> Any:
    """The same, and touch it."""
    view = map_file(path)
    touch(np.frombuffer(view, np.uint8))
    return view


def touch_image(store: str) -> Any:
    """Open the image and touch every tensor."""
    found = ours("weights").open(NAME, directory=store)
    for name in found:
        touch(np.frombuffer(found.raw(name), np.uint8))
    return found


def ours(name: str) -> Any:
    """A module of the runtime, which is no package of this checkout's tools."""
    return importlib.import_module(f"firsttouch.{name}")


def touch_safe_open(path: str, framework: str) -> None:
    """Get every tensor by the reference library, dropping each."""
    import safetensors

    with safetensors.safe_open(path, framework) as file:
        for name in file.keys():  # noqa: SIM118 - it is no mapping
            tensor = file.get_tensor(name)
            array = tensor if framework == "np" else tensor.numpy()
            touch(array.reshape(-1).view(np.uint8))


def touch_fastsafetensors(path: str) -> Any:
    """Get every tensor by fastsafetensors without a GPU, which copies the file into memory of this process."""
    import fastsafetensors
    import torch

    loader = fastsafetensors.SafeTensorsFileLoader(fastsafetensors.SingleGroup(), torch.device("cpu"), nogds=True)
    loader.add_filenames({0: [path]})
    found = loader.copy_files_to_device()
    for name in loader.get_keys():
        touch(found.get_tensor(name).view(torch.uint8).reshape(-1).numpy())
    return loader, found


def touch_runai(path: str) -> None:
    """Get every tensor by Run:ai's streamer, dropping each."""
    import runai_model_streamer
    import torch

    with runai_model_streamer.SafetensorsStreamer() as streamer:
        streamer.stream_file(path)
        for _, tensor in streamer.get_tensors():
            touch(tensor.view(torch.uint8).reshape(-1).numpy())


def load(path: str, store: str) -> None:
    """Load the image."""
    ours("weights").load(path, directory=store, name=NAME)


def load_tmpfs(path: str, store: str) -> None:
    """The same image in a tmpfs with huge pages."""
    pool, loader = ours("_pool"), ours("_loader")
    mount = pool.find_mount(store, 2 << 20, pool.TMPFS_HUGE)
    filled = loader.fill(loader.Job(ours("_sources").read_model(path), NAME, mount, pool.Placement()))
    filled.publish()
    filled.close()


def copy(path: str, store: str) -> None:
    """The file as it is into a memory filesystem."""
    shutil.copyfile(path, Path(store, NAME))


def nothing(path: str, store: str) -> None:
    """No loader: the workers read the file themselves."""


Call = Callable[[str, str], Any]
# A worker's call returns what has to stay mapped until it is counted.
ARMS: dict[str, tuple[Call, Call]] = {
    "idle": (nothing, nothing),
    "hugetlb": (load, lambda path, store: touch_image(store)),
    "tmpfs_huge": (load_tmpfs, lambda path, store: touch_image(store)),
    "shm_4k": (copy, lambda path, store: touch_mapped(str(Path(store, NAME)))),
    "mmap": (nothing, lambda path, store: touch_mapped(path)),
    "safe_open_np": (nothing, lambda path, store: touch_safe_open(path, "np")),
    "safe_open_pt": (nothing, lambda path, store: touch_safe_open(path, "pt")),
    "fastsafetensors": (nothing, lambda path, store: touch_fastsafetensors(path)),
    "runai_streamer": (nothing, lambda path, store: touch_runai(path)),
}
IMPORTS = {
    "hugetlb": ["firsttouch.weights", "xxhash"],
    "tmpfs_huge": ["firsttouch.weights", "xxhash"],
    "safe_open_np": ["safetensors"],
    "safe_open_pt": ["safetensors", "torch"],
    "fastsafetensors": ["fastsafetensors", "torch"],
    "runai_streamer": ["runai_model_streamer", "torch"],
}


def faults() -> int:
    """Minor faults of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def page_tables() -> int:
    """Page tables of this process in kB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmPTE:")[1].split()[0])


def worker(arm: str, path: str, store: str) -> None:
    """Say that all is imported, wait for the start, work, report."""
    call = ARMS[arm][1]
    for name in IMPORTS.get(arm, []):
        importlib.import_module(name)
    touch(np.zeros(2 * PAGE, np.uint8))
    print("{}", flush=True)
    sys.stdin.readline()
    gauge = faults(), page_tables()
    began = time.perf_counter()
    kept = call(path, store)
    seconds = time.perf_counter() - began
    report = {"seconds": seconds, "faults": faults() - gauge[0], "page_tables_kb": page_tables() - gauge[1]}
    print(json.dumps(report), flush=True)
    sys.stdin.readline()
    del kept


def free_pages() -> int:
    """Pages of 2M that nobody has taken."""
    return int(Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages").read_text())


def drop(path: str) -> None:
    """Take the file out of the page cache."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    """Measure one arm once."""
    if sys.argv[1] == "worker":
        worker(*sys.argv[2:])
        return
    arm, path, store, count, cold = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5] == "cold"
    loader = ARMS[arm][0]
    for name in IMPORTS.get(arm, []):
        importlib.import_module(name)
    command = [sys.executable, __file__, "worker", arm, path, store]
    pipe = subprocess.PIPE
    workers = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(count)]
    for process in workers:
        answer(process)
    if cold:
        drop(path)
    before = resource.getrusage(resource.RUSAGE_SELF)
    began = time.perf_counter()
    if cold:
        loader(path, store)
    loaded = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF)
    free = free_pages()
    for process in workers:
        start(process)
    reports = [answer(process) for process in workers]
    ready = time.perf_counter() - began
    # Every page table is shared by now: what one more worker takes.
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as late:
        answer(late)
        start(late)
        last = answer(late)
        late.communicate()
    for process in workers:
        process.communicate()
    found: dict[str, Any] = {
        "ready_s": ready,
        "load_s": loaded,
        "load_cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "loader_rss_kb": after.ru_maxrss - before.ru_maxrss,
        "worker_faults": sum(row["faults"] for row in reports),
        "late_worker_faults": last["faults"],
        "late_page_tables_kb": last["page_tables_kb"],
        "most_page_tables_kb": max(row["page_tables_kb"] for row in reports),
        "pages_of_workers": free - free_pages(),
        "page_tables_kb": sum(row["page_tables_kb"] for row in reports) / count,
    }
    print(json.dumps(found))


def start(process: subprocess.Popen[str]) -> None:
    """Let a worker go on."""
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What a worker says next."""
    assert process.stdout
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"a worker ended with status {process.wait()}")
    found: dict[str, Any] = json.loads(line)
    return found


if __name__ == "__main__":
    main()
