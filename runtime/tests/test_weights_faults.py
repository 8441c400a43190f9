# SPDX-License-Identifier: Apache-2.0
"""Whatever goes wrong in a load is a typed error and never a signal, and nothing is left: page, reservation or name.

Every test ends with the counters of the pool where they were (see the fixture `mounter`).
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from firsttouch import _linux, errors, weights
from firsttouch._pool import Placement
from firsttouch._workers import Workers
from weights_host import PAGE, SRC, UNBOUNDED, Mounter, available, child, make_model, passable, settled

pytestmark = pytest.mark.usefixtures("run_directory")


def load_in_child(job: dict[str, Any], out: int) -> int:
    """A load, optionally in a control group or as another user, killed at a step or writing files at one."""

    def say(found: dict[str, Any]) -> None:
        os.write(out, json.dumps(found).encode())

    if "group" in job:
        (Path(job["group"]) / "cgroup.procs").write_text("0")
    if "uid" in job:
        os.setuid(job["uid"])
    steps: list[str] = []

    def step(name: str) -> None:
        steps.append(name)
        if len(steps) == job.get("kill"):
            say({"step": name})
            os.kill(os.getpid(), signal.SIGKILL)
        for file, text in job.get("write", {}).get(name, []):
            Path(file).write_text(text)

    try:
        weights.load(job["model"], directory=job["store"], threads=1, step=step)
    except errors.FirstTouchError as error:
        say({"kind": type(error).__name__, "text": str(error), "facts": error.facts})
        return error.exit_status
    return 0


def run(model: Path, store: str, **job: Any) -> tuple[int, dict[str, Any]]:
    """Exit status of a load in a child process, or the negative number of the signal; and what it said."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside numpy's threads, which the child never uses
        pid = os.fork()
    if not pid:
        status = 99
        try:
            status = load_in_child({"model": str(model), "store": store, **job}, writing)
        finally:
            os._exit(status)
    os.close(writing)
    with open(reading, "rb") as stream:
        text = stream.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), json.loads(text or "{}")


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of three chunks that no test changes."""
    return make_model(tmp_path_factory.mktemp("big") / "m", size=33 << 20)


def take(store: str, pages: int, name: str = "thief") -> subprocess.CompletedProcess[bytes]:
    """Another process takes PAGES of the pool and keeps them in a file."""
    path = os.path.join(store, name)
    return subprocess.run(["fallocate", "-l", str(pages * PAGE), path], capture_output=True, check=False)


def give_back(store: str, name: str = "thief") -> None:
    os.unlink(os.path.join(store, name))


def nothing_left(store: str) -> None:
    assert os.listdir(store) == [] and settled(store, 0) == 0


STEPS = ["opened", "reserved", *["allocated", "read"] * 3]
STEPS += ["filled", "verified", "placed", "manifest", "ready", "unmapped"]


@pytest.mark.parametrize("kill", range(1, len(STEPS) + 2))
def test_killed_at_every_step(store: str, big: Path, kill: int) -> None:
    """SIGKILL right after each step leaves nothing, and the next load goes ahead; after `published` all is there."""
    assert run(big, store, kill=kill) == (-signal.SIGKILL, {"step": [*STEPS, "published"][kill - 1]})
    if kill > len(STEPS):
        assert weights.verify("m", deep=True, directory=store)["chunks"] == 3
        return
    nothing_left(store)
    if kill % 4 == 0:
        assert weights.load(big, directory=store).generation == 1


@pytest.mark.parametrize("step", sorted(set(STEPS)))
def test_interrupted_at_every_step(store: str, big: Path, step: str) -> None:
    """An exception at any step (Ctrl-C, a callback that fails) gives everything back in this process too."""
    descriptors = os.listdir("/proc/self/fd")

    def interrupt(name: str) -> None:
        if name == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        weights.load(big, directory=store, step=interrupt)
    nothing_left(store)
    assert os.listdir("/proc/self/fd") == descriptors


def test_pool_too_small(mounter: Mounter, pool: int, tmp_path: Path) -> None:
    """A pool that another process has taken is refused before anything is opened, with the numbers and the command."""
    store, other = mounter(UNBOUNDED), mounter(UNBOUNDED, thief=True)
    model = make_model(tmp_path / "m", size=9 << 20)
    assert take(other, available() - 3).returncode == 0
    plan = weights.plan(model, directory=store)
    assert not plan.ok and isinstance(plan.problem, errors.PoolTooSmallError)
    with pytest.raises(errors.PoolTooSmallError) as caught:
        weights.load(model, directory=store, step=lambda name: pytest.fail(f"{name} was reached"))
    error = caught.value
    assert (error.exit_status, error.facts["need"]) == (3, plan.pages) and error.facts["available"] < plan.pages
    assert {"free", "reserved", "nodes", "cgroup", "mount"} <= error.facts.keys() and "nr_hugepages" in error.hint
    give_back(other)
    assert weights.plan(model, directory=store).ok


def at(step: str, action: Callable[[], Any]) -> Callable[[str], None]:
    """A step function that does ACTION once at STEP."""
    done: list[Any] = []

    def hook(name: str) -> None:
        if name == step and not done:
            done.append(action())

    return hook


def test_a_thief_before_the_reservation(mounter: Mounter, tmp_path: Path) -> None:
    """Pages that go between the check and the reservation: the kernel's ENOMEM is the same typed error."""
    store, other = mounter(UNBOUNDED), mounter(UNBOUNDED, thief=True)
    model = make_model(tmp_path / "m", size=9 << 20)
    spare = available() - 3
    with pytest.raises(errors.PoolTooSmallError) as caught:
        weights.load(model, directory=store, step=at("opened", lambda: take(other, spare)))
    assert isinstance(caught.value.__cause__, OSError) and caught.value.__cause__.errno == errno.ENOMEM
    nothing_left(store)
    assert caught.value.facts["available"] < caught.value.facts["need"]
    give_back(other)


def test_a_thief_in_mid_load(mounter: Mounter, big: Path) -> None:
    """After the reservation a thief gets what is left over and no page of ours."""
    store, other = mounter(UNBOUNDED), mounter(UNBOUNDED, thief=True)
    results: list[int] = []
    everything = available() + 1
    image = weights.load(
        big,
        directory=store,
        threads=1,
        step=at("allocated", lambda: results.append(take(other, everything).returncode)),
    )
    assert results == [1]
    give_back(other)
    with weights.open("m", directory=store) as found:
        assert found.check(deep=True)["chunks"] == 3 and image.pages == len(found.buffer()) // PAGE


def test_mount_too_small(mounter: Mounter, tmp_path: Path) -> None:
    """`size=` of the mount bounds a load, whether it is seen before or in between."""
    store = mounter(8)
    big, small = make_model(tmp_path / "big", size=33 << 20), make_model(tmp_path / "small", size=9 << 20)
    with pytest.raises(errors.MountTooSmallError) as caught:
        weights.load(big, directory=store)
    assert caught.value.exit_status == 3 and caught.value.facts["mount_free"] == 8 and "size=" in caught.value.hint
    with pytest.raises(errors.MountTooSmallError) as caught:
        weights.load(small, directory=store, step=at("opened", lambda: take(store, 5)))
    assert caught.value.facts["mount_free"] == 3
    give_back(store)
    assert weights.load(small, directory=store).loaded


def test_a_mount_that_holds_its_pages(mounter: Mounter, tmp_path: Path) -> None:
    """What `min_size=` holds back for the mount counts as reserved in the pool, and can be had on that mount."""
    free = available()
    store = mounter(free, min_size=free * PAGE)
    other = mounter(UNBOUNDED)
    assert available() < 4
    model = make_model(tmp_path / "m", size=9 << 20)
    assert not weights.plan(model, directory=other).ok
    assert weights.plan(model, directory=store).ok and weights.load(model, directory=store).loaded


@pytest.fixture
def group(pool: int) -> Iterator[Path]:
    """A control group (v2) with the hugetlb controller; taken away again."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    tops = [line.split()[4] for line in lines if " - cgroup2 " in line]
    top = next((Path(top) for top in tops if "hugetlb" in (Path(top) / "cgroup.controllers").read_text().split()), None)
    if top is None:
        pytest.skip("NO CGROUP: there is no cgroup v2 with the hugetlb controller; its limits are not tested")
    control = top / "cgroup.subtree_control"
    had = "hugetlb" in control.read_text().split()
    path = top / f"firsttouch-test-{os.getpid()}"
    try:
        try:
            if not had:
                control.write_text("+hugetlb")
            path.mkdir()
        except OSError as error:
            pytest.skip(f"NO CGROUP: no control group can be made here ({error}); its limits are not tested")
        yield path
    finally:
        if path.is_dir():
            path.rmdir()
        if not had:
            control.write_text("-hugetlb")


LIMITS = [("max", "reserved"), ("rsvd.max", "opened")]


@pytest.mark.parametrize(("limit", "step"), LIMITS)
def test_group_limit(store: str, group: Path, tmp_path: Path, limit: str, step: str) -> None:
    """Either hugetlb limit is a typed error, found before the load or set in the middle of it."""
    model = make_model(tmp_path / "m", size=9 << 20)
    file = group / f"hugetlb.2MB.{limit}"
    status, said = run(model, store, group=str(group), write={step: [[str(file), str(3 * PAGE)]]})
    assert (status, said["kind"]) == (5, "CgroupLimitError") and str(file) in said["text"], said
    nothing_left(store)
    status, said = run(model, store, group=str(group))
    assert (status, said["kind"]) == (5, "CgroupLimitError") and said["facts"]["cgroup"][0]["limit"] == 3
    nothing_left(store)
    file.write_text("max")
    assert run(model, store, group=str(group))[0] == 0


WORKER = """
import sys
from firsttouch import weights
open(sys.argv[2] + "/cgroup.procs", "w").write("0")
with weights.open("m", directory=sys.argv[1], populate=True) as found:
    print(found.check(deep=True)["chunks"])
"""


def test_a_worker_without_any_allowance(store: str, group: Path, tmp_path: Path) -> None:
    """A worker whose group may have no huge page at all reads the image, and is charged nothing."""
    weights.load(make_model(tmp_path / "m"), directory=store)
    for limit in ("max", "rsvd.max"):
        (group / f"hugetlb.2MB.{limit}").write_text("0")
    result = child(WORKER, store, str(group))
    assert (result.returncode, result.stdout) == (0, "1\n"), result.stderr
    assert int((group / "hugetlb.2MB.current").read_text()) == 0


def test_first_error_of_several() -> None:
    """The first item that fails is what is told, and no further one is begun."""
    begun: list[int] = []

    def fail(item: int) -> None:
        begun.append(item)
        if item:
            raise ValueError(item)

    for _ in range(200):
        begun.clear()
        with Workers(1, Placement("any", ())) as workers, pytest.raises(ValueError, match=r"^1$"):
            workers.each(fail, [0, 1, 2, 3])
        assert begun == [0, 1]


def test_first_error_of_two_threads() -> None:
    """Of those that were begun it is the first in order, not in time."""
    begun, failed = threading.Event(), threading.Event()

    def fail(item: int) -> None:
        if item == 0:
            begun.set()
            failed.wait(20)
            time.sleep(0.1)
        else:
            begun.wait(20)
            failed.set()
        raise ValueError(item)

    with Workers(2, Placement("any", ())) as workers, pytest.raises(ValueError, match=r"^0$"):
        workers.each(fail, [0, 1])


def test_source_cut_short(store: str, tmp_path: Path) -> None:
    """A file that is truncated while it is read gives no short image."""
    file = make_model(tmp_path / "m", size=33 << 20) / "model.safetensors"
    with pytest.raises(errors.SourceChangedError) as caught:
        weights.load(file, directory=store, threads=1, step=at("read", lambda: os.truncate(file, 20 << 20)))
    assert caught.value.exit_status == 9 and "it ends at byte 20971520" in str(caught.value)
    nothing_left(store)


@pytest.mark.parametrize("size", [0, 5, 16 << 20, (16 << 20) + 100])
def test_source_cut_to_any_length(store: str, tmp_path: Path, size: int) -> None:
    """Wherever it is cut, at a block or between two."""
    file = make_model(tmp_path / "m", size=33 << 20) / "model.safetensors"
    with pytest.raises(errors.SourceChangedError):
        weights.load(file, directory=store, step=at("reserved", lambda: os.truncate(file, size)))
    assert os.listdir(store) == []


def test_source_written_in_mid_load(store: str, tmp_path: Path) -> None:
    """A file that is written to while it is read publishes nothing, though its length is the same."""
    file = make_model(tmp_path / "m", size=33 << 20) / "model.safetensors"

    def write() -> None:
        with open(file, "r+b") as stream:
            stream.seek(20 << 20)
            stream.write(b"other")

    with pytest.raises(errors.SourceChangedError, match="time of change"):
        weights.load(file, directory=store, threads=1, step=at("read", write))
    nothing_left(store)


def test_source_replaced(store: str, tmp_path: Path) -> None:
    """A file that is replaced between the check of its header and the load is not loaded unchecked."""
    file = make_model(tmp_path / "m") / "model.safetensors"
    other = make_model(tmp_path / "other", seed=5) / "model.safetensors"
    with pytest.raises(errors.SourceChangedError, match="another file"):
        weights.load(file, directory=store, step=at("opened", lambda: os.replace(other, file)))
    assert os.listdir(store) == []


def test_header_written_with_an_old_time(store: str, tmp_path: Path) -> None:
    """A header that changes while size and time stay the same: the copy in memory is compared with what was checked."""
    file = make_model(tmp_path / "m") / "model.safetensors"

    def write() -> None:
        status = os.stat(file)
        with open(file, "r+b") as stream:
            stream.seek(30)
            stream.write(b"X")
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

    with pytest.raises(errors.SourceChangedError, match="header"):
        weights.load(file, directory=store, step=at("opened", write))
    assert os.listdir(store) == []


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_read_errors(store: str, big: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """A disk error in one thread ends all of them; path, offset and errno are told."""
    real = os.preadv

    def read(fd: int, parts: Any, offset: int) -> int:
        if offset >= 16 << 20:
            raise OSError(code, os.strerror(code))
        return real(fd, parts, offset)

    monkeypatch.setattr(os, "preadv", read)
    with pytest.raises(errors.WeightsError) as caught:
        weights.load(big, directory=store)
    facts = caught.value.facts
    assert (facts["errno"], facts["offset"] % (16 << 20), caught.value.exit_status) == (code, 0, 9)
    assert facts["path"].endswith("model.safetensors") and os.listdir(store) == []


def test_reads_that_come_in_pieces(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may read less than was asked for, also an odd number of bytes: it is asked again."""
    model = make_model(tmp_path / "m", size=5 << 20)
    real = os.preadv

    def read(fd: int, parts: Any, offset: int) -> int:
        got = real(fd, [parts[0][: 1 << 20]], offset)
        return got - 1000 if got == 1 << 20 else got

    monkeypatch.setattr(os, "preadv", read)
    weights.load(model, directory=store)
    file = (model / "model.safetensors").read_bytes()
    with weights.open("m", directory=store) as found:
        shard = found.shards[0]
        assert bytes(found.buffer()[shard.image_offset : shard.image_offset + shard.bytes]) == file
        rest = bytes(found.buffer()[shard.image_offset + shard.bytes :])
        assert rest == bytes(len(rest))


def test_memory_policy_refused(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox that forbids set_mempolicy is an error when a node was asked for, and no matter otherwise."""
    model = make_model(tmp_path / "m")

    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(_linux, "set_mempolicy", refuse)
    monkeypatch.setattr(_linux, "page_nodes", refuse)
    with pytest.raises(errors.UnsupportedError, match="placed on nodes"):
        weights.load(model, directory=store, policy="bind", nodes=[0])
    assert os.listdir(store) == []
    image = weights.load(model, directory=store)
    assert image.nodes == {} and "not known" in " ".join(image.warnings)


def test_pages_on_another_node(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that came to lie elsewhere than asked are found before the image has a name."""
    model = make_model(tmp_path / "m", size=9 << 20)
    monkeypatch.setattr(_linux, "page_nodes", lambda addresses: [1] * len(addresses))
    for policy in ("bind", "interleave"):
        with pytest.raises(errors.NodeExhaustedError, match="lie elsewhere"):
            weights.load(model, directory=store, policy=policy, nodes=[0])
    assert os.listdir(store) == []
    image = weights.load(model, directory=store, policy="prefer", nodes=[0])
    assert image.nodes == {1: image.pages} and "on other nodes" in " ".join(image.warnings)


def test_two_loaders(store: str, tmp_path: Path) -> None:
    """One loader per name at a time; the second is told at once, and other names go ahead."""
    model, other = make_model(tmp_path / "m"), make_model(tmp_path / "other", seed=3)
    seen: list[str] = []

    def during(name: str) -> None:
        if name != "opened" or seen:
            return
        seen.append(name)
        with pytest.raises(errors.LoaderBusyError) as caught:
            weights.load(other, directory=store, name="m")
        assert caught.value.exit_status == 11
        assert weights.load(other, directory=store).loaded
        with pytest.raises(errors.NotReadyError):
            weights.open("m", directory=store)

    assert weights.load(model, directory=store, step=during).loaded and seen


def test_a_name_that_is_taken(store: str, tmp_path: Path) -> None:
    """Somebody's file under the final name is not replaced, and the load leaves nothing."""
    model = make_model(tmp_path / "m")
    image = weights.load(model, directory=store)
    weights.rm("m", directory=store)

    def occupy(name: str) -> None:
        if name == "ready":
            Path(image.path).touch()

    with pytest.raises(errors.WeightsError, match="cannot be published"):
        weights.load(model, directory=store, step=occupy)
    assert os.stat(image.path).st_size == 0 and settled(store, 0) == 0
    os.unlink(image.path)


def test_folder_without_rights(store: str, tmp_path: Path) -> None:
    """A user who may not write the folder gets an error with the remedy."""
    os.chmod(store, 0o755)
    model = make_model(tmp_path / "m")
    passable(tmp_path)
    run_dir = tmp_path / "run"
    run_dir.mkdir(exist_ok=True)
    run_dir.chmod(0o777)
    status, said = run(model, store, uid=65534)
    assert status == 9 and "no file can be made" in said["text"], said


def test_replaced_between_its_two_descriptors(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that direct reads go to is the one whose header was checked, also when the name moves in between."""
    model = make_model(tmp_path / "m")
    other = make_model(tmp_path / "n", seed=9) / "model.safetensors"
    real, path = os.open, str(model / "model.safetensors")

    def moving(name: Any, flags: int, *rest: Any, **more: Any) -> int:
        if name == path and flags & os.O_DIRECT and other.exists():
            other.rename(path)
        return real(name, flags, *rest, **more)

    monkeypatch.setattr(os, "open", moving)
    with pytest.raises(errors.SourceChangedError, match="another file than its header was read from"):
        weights.load(model, directory=store)
    nothing_left(store)


SWAPPER = """
import itertools, sys
from firsttouch import weights
print(flush=True)
for number in itertools.count():
    weights.load(sys.argv[2 + number % 2], name="m", directory=sys.argv[1], replace=True, checksum="none")
"""


def test_opened_while_it_is_swapped(store: str, tmp_path: Path) -> None:
    """A worker that opens a name in the middle of swaps gets one generation or the next, never an error."""
    models = [str(make_model(tmp_path / name, size=1 << 16, seed=seed)) for seed, name in ((0, "a"), (9, "b"))]
    weights.load(models[1], name="m", directory=store)
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    command = [sys.executable, "-c", SWAPPER, store, *models]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as swapper:
        try:
            assert swapper.stdout and swapper.stdout.readline()
            generations: set[int] = set()
            began = time.monotonic()
            while (spent := time.monotonic() - began) < 3 or (len(generations) < 6 and spent < 60):
                with weights.open("m", directory=store) as found:
                    generations.add(found.generation)
                assert weights.ls(store)
        finally:
            swapper.kill()
    assert len(generations) > 5
    weights.rm("m", directory=store)


def test_gc_and_rm_in_mid_load(store: str, big: Path) -> None:
    """While a model is loading, gc leaves it alone and says so, rm is refused; neither reaches what has no name yet."""
    weights.load(make_model(big.parent / "before", size=1 << 16), name="m", directory=store)
    seen: list[Any] = []

    def meddle() -> None:
        seen.append(weights.gc(directory=store))
        with pytest.raises(errors.LoaderBusyError):
            weights.rm("m", directory=store)

    weights.load(big, name="m", directory=store, replace=True, threads=1, step=at("read", meddle))
    assert seen == [{"busy": ["m"]}]
    assert weights.verify("m", deep=True, directory=store)["chunks"] == 3
