# SPDX-License-Identifier: Apache-2.0
"""What the tests of weights need of the host: pages in the pool, small mounts, models. All of it is taken back.

The pool is a setting of the whole machine: one test process at a time has it, under a lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PAGE = 2 << 20
POOL = Path("/sys/kernel/mm/hugepages/hugepages-2048kB")
GIGANTIC = Path("/sys/kernel/mm/hugepages/hugepages-1048576kB")
PAGES = 160
# More than the pool ever has: a mount of this size is bounded by the pool alone.
UNBOUNDED = 100_000
# One for the machine, whatever TMPDIR says; bench/weights.py takes it too.
LOCK = Path("/run/firsttouch-tests-pool.lock")
SRC = Path(__file__).resolve().parents[1] / "src"


def count(name: str) -> int:
    """A counter of the 2M pool: nr_hugepages, free_hugepages, resv_hugepages, ..."""
    return int((POOL / name).read_text())


def available() -> int:
    """Pages that are free and not reserved."""
    return count("free_hugepages") - count("resv_hugepages")


def used(store: str) -> int:
    """Pages taken or reserved on a mount with a size, by files with and without a name; nobody else counts there."""
    status = os.statvfs(store)
    return status.f_blocks - status.f_bfree


def settled(store: str, wanted: int, seconds: float = 1.0) -> int:
    """used() as soon as it is WANTED, or after SECONDS as it is: freed pages come back a moment later."""
    gc.collect()  # an error that was caught holds the frames that hold a mapping
    deadline = time.monotonic() + seconds
    while used(store) != wanted and time.monotonic() < deadline:
        time.sleep(0.005)
    return used(store)


# Runs beside the tests and outlives them however they end: unmounts what is left below a folder, sets the pool back.
# It holds the lock until then, by the descriptor that it inherits.
KEEPER = """
import subprocess, sys
folder, file, before = sys.argv[1:]
sys.stdin.read()
for line in open("/proc/self/mountinfo"):
    path = line.split()[4]
    if path.startswith(folder + "/"):
        subprocess.run(["umount", "-l", path])
open(file, "w").write(before)
"""


@contextlib.contextmanager
def grown(pool: Path, pages: int, folder: Path, *held: int) -> Iterator[int]:
    """PAGES more in POOL, mounts below FOLDER; both are taken back at the end, also after a SIGKILL, and the
    descriptors HELD stay open until then."""
    file = pool / "nr_hugepages"
    if not os.access(file, os.W_OK):
        pytest.skip(f"NO HUGE PAGES: {file} cannot be set here; weights in such pages are not tested")
    before = int(file.read_text())
    command = [sys.executable, "-c", KEEPER, str(folder), str(file), str(before)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=held, start_new_session=True) as keeper:
        try:
            file.write_text(str(before + pages))
            given = int((pool / "free_hugepages").read_text()) - int((pool / "resv_hugepages").read_text())
        except OSError:
            given = 0
        if given < pages:
            pytest.skip(f"NO HUGE PAGES: the kernel did not give {pages} to {file}; weights in them are not tested")
        yield pages
    assert keeper.returncode == 0


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """PAGES free pages of 2M for this test session."""
    if not os.access(POOL / "nr_hugepages", os.W_OK):
        pytest.skip(f"NO HUGE PAGES: {POOL} cannot be set by this user; weights in such pages are not tested")
    with open(LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with grown(POOL, PAGES, tmp_path_factory.getbasetemp(), lock.fileno()) as pages:
            yield pages


def gigantic_free() -> int:
    """Pages of 1 GiB that are free and not reserved."""
    free, reserved = (int((GIGANTIC / name).read_text()) for name in ("free_hugepages", "resv_hugepages"))
    return free - reserved


@contextlib.contextmanager
def reserved(pages: int) -> Iterator[None]:
    """PAGES of 1 GiB promised to this process, and to nobody else meanwhile."""
    if not pages:
        yield
        return
    fd = os.memfd_create("firsttouch-tests", os.MFD_CLOEXEC | os.MFD_HUGETLB | os.MFD_HUGE_1GB)
    try:
        os.ftruncate(fd, pages << 30)
        with mmap.mmap(fd, pages << 30):
            yield
    finally:
        os.close(fd)


@pytest.fixture
def gigantic(pool: int, tmp_path: Path) -> Iterator[str]:
    """A hugetlbfs with one page of 1 GiB that can be had; it is free again at the end.

    Those that the host has besides are promised to the test itself.
    """
    # Mounts of the test's folder alone are the second keeper's, and the lock is the first one's.
    with grown(GIGANTIC, 1, tmp_path / "gigantic"), reserved(gigantic_free() - 1):
        path = tmp_path / "gigantic" / "store"
        path.mkdir(parents=True)
        subprocess.run(["mount", "-t", "hugetlbfs", "-o", "pagesize=1G", "none", str(path)], check=True)
        try:
            yield str(path)
            for name in os.listdir(path):
                os.unlink(path / name)
            gc.collect()
            assert gigantic_free() == 1
        finally:
            subprocess.run(["umount", "-l", str(path)], check=True)


Mounter = Callable[..., str]


@pytest.fixture
def mounter(pool: int, tmp_path: Path) -> Iterator[Mounter]:
    """Mount a small hugetlbfs (or a tmpfs) in a folder of the test; unmounted afterwards, and nothing leaked then."""
    mounted: list[str] = []
    thieves: list[str] = []

    def mount(pages: int = 64, kind: str = "hugetlbfs", thief: bool = False, **options: Any) -> str:
        # Linux 6.18 loses one page of a mount's count (not of the pool) when fallocate finds the pool empty.
        path = tmp_path / f"{kind}{len(mounted)}"
        path.mkdir()
        words = {"pagesize": "2M"} if kind == "hugetlbfs" else {}
        text = ",".join(f"{key}={value}" for key, value in {**words, "size": pages * PAGE, **options}.items())
        result = subprocess.run(
            ["mount", "-t", kind, "-o", text, "none", str(path)], capture_output=True, text=True, check=False
        )
        if result.returncode:
            pytest.skip(f"NO MOUNT: a {kind} cannot be mounted here ({result.stderr.strip()})")
        mounted.append(str(path))
        if thief:
            thieves.append(str(path))
        return str(path)

    left: dict[str, int] = {}
    try:
        yield mount
        for path in mounted:
            for name in os.listdir(path):
                os.unlink(os.path.join(path, name))
            left[path] = 0 if path in thieves else settled(path, 0)
    finally:
        for path in mounted:
            subprocess.run(["umount", "-l", path], check=True)
    assert not any(left.values()), "pages or reservations were leaked"


@pytest.fixture
def store(mounter: Mounter) -> str:
    """A hugetlbfs of 64 pages."""
    return mounter()


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A folder of the checkout's filesystem: the tests' own may lie in memory."""
    build = Path(__file__).resolve().parents[2] / "build"
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build) as folder:
        yield Path(folder)


@pytest.fixture
def run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder for locks."""
    monkeypatch.setenv("FIRSTTOUCH_RUN_DIR", str(tmp_path / "run"))
    return str(tmp_path / "run")


def write_file(path: Path, tensors: dict[str, tuple[str, list[int], bytes]], pad: int = 0, **metadata: str) -> Path:
    """A safetensors file of (dtype, shape, bytes), with PAD spaces after the header."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode() + b" " * pad
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data for _, _, data in tensors.values()))
    return path


def some_bytes(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def make_model(folder: Path, shards: int = 1, size: int = 3 << 20, seed: int = 0) -> Path:
    """A model of SHARDS files of about SIZE bytes each, with an index when there are several."""
    folder.mkdir(exist_ok=True)
    names = ["model.safetensors"]
    if shards > 1:
        names = [f"model-{number:05}-of-{shards:05}.safetensors" for number in range(1, shards + 1)]
    weights = {}
    for number, file in enumerate(names):
        rows = {f"layer{number}.weight": ("F16", [size // 4, 2], some_bytes(size // 4 * 4, seed + number))}
        rows[f"layer{number}.bias"] = ("F32", [3], some_bytes(12, seed + 50 + number))
        write_file(folder / file, rows, pad=number, format="pt")
        weights.update(dict.fromkeys(rows, file))
    if shards > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    return folder


def passable(folder: Path) -> None:
    """Let other users into FOLDER, through pytest's own folders."""
    for place in (folder, *folder.parents):
        place.chmod(place.stat().st_mode | 0o55)
        if place.name.startswith("pytest-of-"):
            return


def child(code: str, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python CODE with ARGS in a process of its own, with the package importable."""
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=60, **options)
