# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights on a booted host of two nodes: every page lies where the command line asked for it, or nothing is taken.

Where pages lie is read by pages_of.py, which knows nothing of our code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from guests.guest import Guest, booted

HERE = Path(__file__).parent
STORE, HUGE = "/mnt/weights", "/mnt/weights-1g"
PAGE, GIB = 2 << 20, 1 << 30
POOL = 50


def pool_file(node: int, size: int = PAGE, name: str = "nr_hugepages") -> str:
    return f"/sys/devices/system/node/node{node}/hugepages/hugepages-{size // 1024}kB/{name}"


@pytest.fixture(scope="module")
def booted_guest() -> Iterator[Guest]:
    """Two nodes, the runtime, two models, a hugetlbfs for each page size."""
    with booted("weights-nodes", "two_node", "trixie") as guest:
        guest.install_runtime()
        guest.push([HERE / "pages_of.py", HERE / "make_model.py"], "/root")
        guest.output(
            f"python3 /root/make_model.py /root/m 0 && python3 /root/make_model.py /root/other 10 && "
            f"mkdir -p {STORE} {HUGE} && mount -t hugetlbfs -o pagesize=2M none {STORE} && "
            f"mount -t hugetlbfs -o pagesize=1G none {HUGE}"
        )
        yield guest


@pytest.fixture
def guest(booted_guest: Guest) -> Iterator[Guest]:
    """The same pool on both nodes before each test; nothing loaded, taken or reserved after it."""
    set_pools(booted_guest, POOL, POOL)
    yield booted_guest
    left = booted_guest.output(
        f"rm -f {STORE}/*; sleep 0.5; cat {pool_file(0)} {pool_file(1)} {pool_file(0, name='free_hugepages')} "
        f"{pool_file(1, name='free_hugepages')} /sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages"
    )
    total0, total1, free0, free1, reserved = map(int, left.split())
    assert (free0, free1, reserved) == (total0, total1, 0), "pages or reservations were leaked"


def set_pools(guest: Guest, node0: int, node1: int) -> None:
    guest.output(f"echo {node0} > {pool_file(0)} && echo {node1} > {pool_file(1)}")


def weights(guest: Guest, words: str, status: int = 0, store: str = STORE) -> Any:
    """What `firsttouch weights WORDS --json` answers."""
    done = guest.run(f"firsttouch weights {words} --dir {store} --json")
    assert done.returncode == status, done.stdout + done.stderr
    return json.loads(done.stdout)


def nodes_of(guest: Guest, path: str, page: int = PAGE) -> list[int]:
    """The node of every page of an image, by two answers of the kernel that agree."""
    found = json.loads(guest.output(f"/usr/bin/python3 /root/pages_of.py {path} {page}"))
    nodes: list[int] = found["nodes"]
    assert found["numa_maps"] == {str(node): nodes.count(node) for node in sorted(set(nodes))}
    return nodes


def free(guest: Guest) -> list[int]:
    return [
        int(word)
        for word in guest.output(
            f"cat {pool_file(0, name='free_hugepages')} {pool_file(1, name='free_hugepages')}"
        ).split()
    ]


@pytest.mark.parametrize("node", [0, 1])
def test_bind(guest: Guest, node: int) -> None:
    image = weights(guest, f"load /root/m --node {node}")
    nodes = nodes_of(guest, image["paths"][0])
    assert nodes == [node] * image["pages"] and image["nodes"] == {str(node): image["pages"]}
    assert weights(guest, "verify m --deep")["chunks"] == 3


def test_interleave(guest: Guest) -> None:
    """Page k on the k-th node, exactly."""
    image = weights(guest, "load /root/m --interleave 0,1")
    assert nodes_of(guest, image["paths"][0]) == [page % 2 for page in range(image["pages"])]
    swapped = weights(guest, "swap /root/m --interleave 1,0")
    assert nodes_of(guest, swapped["paths"][0]) == [1 - page % 2 for page in range(image["pages"])]


def test_prefer(guest: Guest) -> None:
    """On the node as long as it has pages, then on the other one, which is said."""
    image = weights(guest, "load /root/m --prefer 1")
    assert nodes_of(guest, image["paths"][0]) == [1] * image["pages"]
    assert not any("on other nodes" in text for text in image["warnings"])
    weights(guest, "rm m")
    set_pools(guest, POOL, 5)
    image = weights(guest, "load /root/m --prefer 1")
    spilled = image["pages"] - 5
    nodes = nodes_of(guest, image["paths"][0])
    assert (nodes.count(1), nodes.count(0)) == (5, spilled)
    assert any(
        f"{spilled} of {image['pages']} pages lie on other nodes" in text for text in image["warnings"]
    )


def test_replicate(guest: Guest) -> None:
    """One image per node; a worker opens that of the node it runs on."""
    image = weights(guest, "load /root/m --replicate all")
    assert len(image["paths"]) == 2
    for node, path in enumerate(image["paths"]):
        assert f".node{node}." in path and set(nodes_of(guest, path)) == {node}
    code = f"from firsttouch import weights; print(weights.open('m', directory='{STORE}').path)"
    for cpu, node in ((0, 0), (3, 1)):
        assert guest.output(f'taskset -c {cpu} python3 -c "{code}"').strip() == image["paths"][node]


@pytest.mark.parametrize("words", ["--node 1", "--interleave 0,1", "--replicate all"])
def test_a_short_node(guest: Guest, words: str) -> None:
    """A node that is short is refused by its name, though the pool as a whole has enough; nothing is taken.

    plan --apply then gives that node what it lacks and the other one nothing, and the load goes through.
    """
    set_pools(guest, 2 * POOL, 3)
    found = weights(guest, f"load /root/m {words}", status=4)
    assert found["error"]["code"] == "node_exhausted" and "node1" in found["error"]["hint"]
    assert free(guest) == [2 * POOL, 3]
    plan = weights(guest, f"plan /root/m {words} --apply")
    assert plan["ok"] and list(plan["applied"]) == [pool_file(1)]
    assert free(guest) == [2 * POOL, {"--interleave 0,1": plan["pages"] // 2}.get(words, plan["pages"])]
    image = weights(guest, f"load /root/m {words}")
    assert 1 in nodes_of(guest, image["paths"][-1]) and free(guest)[1] == 0


def test_the_command_of_the_error(guest: Guest) -> None:
    """What the error says to type makes the same load go through."""
    set_pools(guest, 2 * POOL, 3)
    guest.output(weights(guest, "load /root/m --node 1", status=4)["error"]["hint"])
    assert weights(guest, "load /root/m --node 1")["nodes"].keys() == {"1"}


def test_swap_moves_to_another_node(guest: Guest) -> None:
    """The next generation may lie elsewhere; the old pages come back."""
    before = weights(guest, "load /root/m --node 0")
    image = weights(guest, "swap /root/other --name m --node 1")
    assert image["generation"] == 2 and image["removed"] == before["paths"]
    assert set(nodes_of(guest, image["paths"][0])) == {1} and free(guest)[0] == POOL


def test_a_page_of_1_gib(guest: Guest) -> None:
    """On the node that has room for one; the other one is refused."""
    guest.output(f"echo 1 > {pool_file(1, GIB)}")
    try:
        if guest.output(f"cat {pool_file(1, GIB)}").strip() != "1":
            pytest.skip("NO 1 GiB PAGE: the guest's node 1 has no free slot for one")
        assert weights(guest, "load /root/m --page 1G --node 0", status=4, store=HUGE)["error"]
        image = weights(guest, "load /root/m --page 1G --node 1", store=HUGE)
        assert image["pages"] == 1 and nodes_of(guest, image["paths"][0], GIB) == [1]
        assert weights(guest, "verify m --deep", store=HUGE)["chunks"] == 3
        weights(guest, "rm m", store=HUGE)
    finally:
        guest.output(f"rm -f {HUGE}/*; echo 0 > {pool_file(1, GIB)}")
