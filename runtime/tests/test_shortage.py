# SPDX-License-Identifier: Apache-2.0
"""How a pool that is short is made larger: by what is missing, read back, all of it or nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from firsttouch import _shortage, errors, weights
from firsttouch._pool import Facts, Mount, Pool
from weights_host import PAGE, POOL, UNBOUNDED, Mounter, available, count, make_model

WHOLE = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
NODE = "/sys/devices/system/node/node{}/hugepages/hugepages-2048kB/nr_hugepages"

def facts(free: int, reserved: int = 0, min_size: int | None = None, **nodes: int) -> Facts:
    """A pool of 100 pages; NODES as n0=3."""
    by_node = {int(name[1:]): pages for name, pages in nodes.items()}
    pool = Pool(PAGE, 100, free, reserved, 0, 0, by_node)
    return Facts(pool, Mount("/huge", "hugetlbfs", "0:1", PAGE, None, min_size), None, ())


@pytest.mark.parametrize(
    ("needs", "found", "expected"),
    [
        ({None: 10}, facts(4), {WHOLE: 6}),
        ({None: 10}, facts(10), {}),
        ({None: 10}, facts(12, reserved=5), {WHOLE: 3}),
        ({None: 10}, facts(12, reserved=5, min_size=5 * PAGE), {}),
        ({0: 3, 1: 9}, facts(8, n0=4, n1=4), {NODE.format(1): 5}),
        ({0: 3, 1: 9}, facts(8, reserved=2, n0=4, n1=4), {NODE.format(0): 1, NODE.format(1): 7}),
    ],
)
def test_growth(needs: _shortage.Needs, found: Facts, expected: dict[str, int]) -> None:
    """What is missing, and no page more; room for what is promised to others, wherever they take it."""
    assert _shortage.growth(needs, found) == expected


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """Two node files that take any number, as sysfs does where memory is plenty."""
    for node in (0, 1):
        file = Path(f"{tmp_path}{NODE.format(node)}")
        file.parent.mkdir(parents=True)
        file.write_text("50\n")
    (tmp_path / "proc/sys/vm").mkdir(parents=True)
    return tmp_path


def numbers(host: Path) -> list[int]:
    return [int(Path(f"{host}{NODE.format(node)}").read_text()) for node in (0, 1)]


def test_grow(host: Path) -> None:
    """Each node gets its own; what was done is told."""
    done = _shortage.grow({0: 3, 1: 9}, facts(6, n0=2, n1=4), str(host))
    assert numbers(host) == [51, 55]
    assert done == {
        NODE.format(0): {"before": 50, "asked": 51, "after": 51},
        NODE.format(1): {"before": 50, "asked": 55, "after": 55},
    }


def test_a_kernel_that_gives_fewer(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked three times, told to compact in between; then every file is as it was and the error says so."""
    written: list[tuple[str, str]] = []
    write = Path.write_text

    def grudging(place: Path, text: str) -> int:
        written.append((place.name, text))
        return write(place, str(min(int(text), 52)))

    monkeypatch.setattr(Path, "write_text", grudging)
    with pytest.raises(errors.FragmentedError, match="the kernel gave 52; it is 50 again") as caught:
        _shortage.grow({0: 3, 1: 9}, facts(6, n0=2, n1=4), str(host))
    assert numbers(host) == [50, 50] and caught.value.exit_status == 4
    assert written.count(("nr_hugepages", "55")) == 3 and written.count(("compact_memory", "1")) == 2


def test_a_file_that_cannot_be_written(host: Path) -> None:
    """Without the rights nothing stays of it either."""
    Path(f"{host}{NODE.format(1)}").unlink()
    with pytest.raises(errors.WeightsError, match=r"node1.*cannot be set"):
        _shortage.grow({0: 3, 1: 9}, facts(6, n0=2, n1=4), str(host))
    assert int(Path(f"{host}{NODE.format(0)}").read_text()) == 50


@pytest.mark.usefixtures("run_directory")
@pytest.mark.parametrize("policy", ["any", "bind"])
def test_apply(mounter: Mounter, tmp_path: Path, policy: str) -> None:
    """A real pool that is short: plan(apply=True) makes it fit, by what is missing, and the load then goes through."""
    store, other = mounter(UNBOUNDED), mounter(UNBOUNDED, thief=True)
    model = make_model(tmp_path / "m", size=9 << 20)
    before, nodes = count("nr_hugepages"), [0] if policy == "bind" else []
    with open(f"{other}/thief", "wb") as thief:
        os.posix_fallocate(thief.fileno(), 0, (available() - 2) * PAGE)
    try:
        short = weights.plan(model, directory=store, policy=policy, nodes=nodes)
        assert not short.ok and short.applied == {}
        try:
            grown = weights.plan(model, directory=store, policy=policy, nodes=nodes, apply=True)
        except errors.FragmentedError as error:
            pytest.skip(f"NO HUGE PAGES: memory is in pieces here: {error}")
        assert grown.ok and count("nr_hugepages") == before + short.pages - 2 and len(grown.applied) == 1
        assert weights.load(model, directory=store, policy=policy, nodes=nodes).loaded and available() == 0
    finally:
        weights.rm("m", directory=store)
        (POOL / "nr_hugepages").write_text(str(before))


@pytest.mark.usefixtures("run_directory")
def test_what_apply_leaves_alone(mounter: Mounter, tmp_path: Path) -> None:
    """A mount that is too small is no matter of the pool, and a plan that fits changes nothing."""
    before = count("nr_hugepages")
    small, store = mounter(2), mounter()
    model = make_model(tmp_path / "m", size=9 << 20)
    assert isinstance(weights.plan(model, directory=small, apply=True).problem, errors.MountTooSmallError)
    assert weights.plan(model, directory=store, apply=True).applied == {} and count("nr_hugepages") == before
    with pytest.raises(errors.ArgumentError, match="fallback"):
        weights.plan(model, directory=store, apply=True, fallback="tmpfs-huge")
