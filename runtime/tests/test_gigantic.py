# SPDX-License-Identifier: Apache-2.0
"""Weights in pages of 1 GiB, on a real one: one page for the whole model, and the rules of the small ones."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from firsttouch import errors, weights
from weights_host import child, gigantic_free, make_model

pytestmark = pytest.mark.usefixtures("run_directory")
GIB = 1 << 30

KILLED = """
import os, signal, sys
from firsttouch import weights
def step(name):
    if name == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)
weights.load(sys.argv[1], directory=sys.argv[2], page="1G", step=step)
"""


def test_one_page(gigantic: str, tmp_path: Path) -> None:
    """A model of three files takes exactly the page that the plan says, and reads as it was written."""
    model = make_model(tmp_path / "m", shards=3)
    plan = weights.plan(model, directory=gigantic, page="1G")
    assert plan.ok and (plan.pages, plan.image_bytes) == (1, GIB) and gigantic_free() == 1
    image = weights.load(model, directory=gigantic, page="1G", policy="bind", nodes=[0])
    assert (image.pages, image.nodes, image.loaded) == (1, {0: 1}, True) and gigantic_free() == 0
    with weights.open("m", directory=gigantic, populate=True) as found:
        assert found.page_bytes == GIB and found.check(deep=True)["shards"] == 3
        assert np.frombuffer(found.buffer(), np.uint8).ctypes.data % GIB == 0
        for shard in found.shards:
            data = (model / shard.name).read_bytes()
            assert bytes(found.buffer()[shard.image_offset : shard.image_offset + shard.bytes]) == data
    assert weights.ls(gigantic)[0].trouble == "" and weights.gc(directory=gigantic)["damaged"] == []


def test_no_second_page(gigantic: str, tmp_path: Path) -> None:
    """A second model, and the next generation, are refused with the numbers; evict_first makes room."""
    first, second = make_model(tmp_path / "m"), make_model(tmp_path / "n", seed=9)
    weights.load(first, directory=gigantic, page="1G")
    with pytest.raises(errors.PoolTooSmallError, match="1 pages of 1G are needed, 0 can be had") as caught:
        weights.load(second, directory=gigantic, page="1G")
    assert "hugepages-1048576kB" in caught.value.hint
    with pytest.raises(errors.PoolTooSmallError):
        weights.load(second, name="m", directory=gigantic, page="1G", replace=True)
    image = weights.load(second, name="m", directory=gigantic, page="1G", evict_first=True)
    assert image.generation == 2 and weights.verify("m", deep=True, directory=gigantic)["chunks"] == 1


@pytest.mark.parametrize("step", ["reserved", "allocated", "read", "ready"])
def test_killed(gigantic: str, tmp_path: Path, step: str) -> None:
    """A kill gives the whole GiB back at once."""
    done = child(KILLED, str(make_model(tmp_path / "m")), gigantic, step)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert os.listdir(gigantic) == [] and gigantic_free() == 1


def test_the_wrong_page_size(gigantic: str, tmp_path: Path) -> None:
    """Pages of 2M are not looked for on a mount of 1G."""
    with pytest.raises(errors.MountMissingError, match="pages of 2M"):
        weights.load(make_model(tmp_path / "m"), directory=gigantic)
