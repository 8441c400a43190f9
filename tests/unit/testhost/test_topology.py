# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest
from testhost import topology
from testhost.errors import HostError
from testhost.qemu import machine_args

TWO: dict[str, Any] = {
    "description": "d",
    "sockets": 2,
    "cores": 2,
    "nodes": [{"cpus": "0-1", "memory_mib": 64}, {"cpus": "2-3", "memory_mib": 128}],
    "distances": [[0, 1, 21]],
}


def value(args: list[str], option: str) -> list[str]:
    return [args[i + 1] for i, word in enumerate(args) if word == option]


def test_two_node_is_what_the_tests_count_on() -> None:
    machine = topology.get("two_node")
    assert (machine.sockets, machine.cpus, machine.distances) == (2, 4, ((0, 1, 21),))
    assert [node.cpus for node in machine.nodes] == ["0-1", "2-3"]
    assert machine.memory_mib <= 5120
    # All of node 1 lies above the PCI hole, in one piece that starts at a 1 GiB boundary.
    assert machine.below_4g_mib == machine.nodes[0].memory_mib


def test_hidden_has_eight_cpus_no_nodes_and_says_vmware() -> None:
    machine = topology.get("hidden")
    assert (machine.sockets, machine.cpus, machine.nodes) == (1, 8, ())
    args = topology.qemu_args(machine)
    assert "-numa" not in args
    assert value(args, "-smbios") == ["type=1,manufacturer=VMware,, Inc.,product=VMware7,,1"]
    assert "hypervisor=off" in value(args, "-cpu")[0]


def test_memory_per_node_and_distances() -> None:
    args = topology.qemu_args(topology.from_table("two", TWO))
    assert value(args, "-object") == [
        "memory-backend-ram,id=ram0,size=64M",
        "memory-backend-ram,id=ram1,size=128M",
    ]
    assert value(args, "-numa") == [
        "node,nodeid=0,cpus=0-1,memdev=ram0",
        "node,nodeid=1,cpus=2-3,memdev=ram1",
        "dist,src=0,dst=1,val=21",
    ]
    assert value(args, "-m") == ["192M"]
    assert value(args, "-smp") == ["4,sockets=2,cores=2,threads=1"]


def test_nodes_without_cpus_or_memory_and_unreserved_memory() -> None:
    nodes = [
        {"cpus": "0-1", "memory_mib": 64},
        {"cpus": "", "memory_mib": 64},
        {"cpus": "2,3", "memory_mib": 0},
    ]
    args = topology.qemu_args(topology.from_table("odd", {**TWO, "nodes": nodes, "reserve": False}))
    assert value(args, "-numa")[:3] == [
        "node,nodeid=0,cpus=0-1,memdev=ram0",
        "node,nodeid=1,memdev=ram1",
        "node,nodeid=2,cpus=2,cpus=3",
    ]
    assert all(text.endswith(",reserve=off") for text in value(args, "-object"))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"colour": "red"}, "colour"),
        ({"memory_mib": 64}, "memory_mib"),
        ({"nodes": []}, "memory_mib"),
        ({"distances": [[0, 2, 21]]}, "distance"),
        ({"distances": [[0, 0, 10]]}, "distance"),
        ({"distances": [[0, 1, 255]]}, "distance"),
    ],
)
def test_a_wrong_table_is_refused_by_name(change: dict[str, Any], word: str) -> None:
    with pytest.raises(HostError, match=word):
        topology.from_table("bad", {**TWO, **change})


def test_an_unknown_topology_lists_the_known_ones() -> None:
    with pytest.raises(HostError, match="two_node"):
        topology.get("three_node")


def test_what_boots_fits_a_small_machine_and_the_rest_is_for_ask() -> None:
    for machine in topology.load().values():
        assert machine.ask_only or machine.memory_mib <= 5120
        assert machine.reserve or machine.ask_only


@pytest.mark.parametrize("name", topology.load())
def test_qemu_takes_the_arguments(name: str) -> None:
    qemu = shutil.which("qemu-system-x86_64")
    if qemu is None:
        pytest.skip("no QEMU here")
    # -S does not run the guest; "quit" on the monitor ends QEMU once its arguments are taken.
    argv = [qemu, *machine_args("tcg"), *topology.qemu_args(topology.get(name)), "-S", "-monitor", "stdio"]
    done = subprocess.run(argv, input="quit\n", text=True, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
