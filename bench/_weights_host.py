# SPDX-License-Identifier: GPL-3.0-or-later
"""What the benchmark of weights needs of the machine: a model, pages, mounts, a memory limit; all is given back."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from commands import CommandError

PAGE = 2 << 20
POOL = Path("/sys/kernel/mm/hugepages/hugepages-2048kB")


def write_model(path: Path, size: int) -> None:
    """A file of F16 tensors of 32 MiB each."""
    count = max(size // (32 << 20), 1)
    header = {
        f"layer{number}": {"dtype": "F16", "shape": [4096, 4096], "data_offsets": [number << 25, (number + 1) << 25]}
        for number in range(count)
    }
    text = json.dumps(header).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
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


# The ways in which fio reads a file fastest, on one disk or another: threads, block, engine, depth.
_FIO = ((4, "4M", "psync", 1), (1, "1M", "libaio", 32))


def direct_read(file: Path, threads: int = 4) -> float:
    """Seconds of the best plain direct read of FILE: fio where it is installed, and always our own loop beside it."""
    seconds = [own_read(file, threads)]
    if shutil.which("fio"):
        seconds += [_fio(file, *how) for how in _FIO]
    return min(seconds)


def _fio(file: Path, jobs: int, block: str, engine: str, depth: int) -> float:
    """Seconds of fio for all of FILE, of which each job reads its part."""
    size = file.stat().st_size
    part = size // jobs >> 20 << 20
    command = ["fio", "--name=x", f"--filename={file}", "--rw=read", "--direct=1", "--readonly", "--thread"]
    command += [f"--bs={block}", f"--ioengine={engine}", f"--iodepth={depth}", f"--numjobs={jobs}", f"--size={part}"]
    command += [f"--offset_increment={part}", "--group_reporting", "--output-format=json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CommandError(f"fio failed: {done.stderr.strip()}")
    return float(size / json.loads(done.stdout)["jobs"][0]["read"]["bw_bytes"])


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
    """The part of FILE in the page cache in per cent (mincore(2))."""
    libc = ctypes.CDLL(None, use_errno=True)
    # ctypes takes the address of memory that may be written only; a private mapping may, and nothing is.
    with file.open("rb") as source, mmap.mmap(source.fileno(), 0, mmap.MAP_PRIVATE) as view:
        vector = (ctypes.c_ubyte * -(-len(view) // mmap.PAGESIZE))()
        anchor = ctypes.c_char.from_buffer(view)
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(anchor)), ctypes.c_size_t(len(view)), vector)
        # A mapping whose address is held cannot be closed, and that would be the error that is told.
        del anchor
        if failed:
            raise CommandError(f"mincore failed on {file}: {os.strerror(ctypes.get_errno())}")
        return 100 * sum(value & 1 for value in vector) / len(vector)




@contextlib.contextmanager
def memory_limit(limit: int) -> Iterator[Path]:
    """A control group that may have LIMIT bytes of memory, v2 or v1; taken away again."""
    file = {"cgroup2": "memory.max", "cgroup": "memory.limit_in_bytes"}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.split()[:3]
        top = Path(fields.split()[4])
        if kind == "cgroup2":
            usable = "memory" in (top / "cgroup.controllers").read_text().split()
        else:
            usable = kind == "cgroup" and "memory" in options.split(",")
        if not usable:
            continue
        group = top / f"firsttouch-bench-{os.getpid()}"
        try:
            with contextlib.ExitStack() as stack:
                if kind == "cgroup2":
                    stack.enter_context(_delegated(top))
                group.mkdir()
                stack.callback(group.rmdir)
                (group / file[kind]).write_text(str(limit))
                yield group
            return
        except OSError as error:
            raise CommandError(f"no control group with a memory limit can be made here: {error}") from error
    raise CommandError("no control group with the memory controller is mounted here")


@contextlib.contextmanager
def _delegated(top: Path) -> Iterator[None]:
    """The memory controller switched on for the groups below TOP."""
    control = top / "cgroup.subtree_control"
    had = "memory" in control.read_text().split()
    if not had:
        control.write_text("+memory")
    try:
        yield
    finally:
        if not had:
            control.write_text("-memory")
