# SPDX-License-Identifier: GPL-3.0-or-later
"""Topology: the document round-trips, odd trees are answered and never crash, CPUs are grouped as they say."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _tree as _tree_module
from ansible_collections.firsttouch.host.plugins.module_utils._topology import (
    Topology,
    even_split,
    read_topology,
)
from ansible_collections.firsttouch.host.plugins.module_utils._topology_text import read_lscpu, read_numactl
from ansible_collections.firsttouch.host.plugins.module_utils._tree import Tree, id_list
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import put

CPU = "/sys/devices/system/cpu"
NODE = "/sys/devices/system/node"
FILES = {
    f"{CPU}/online": "0-7",
    f"{CPU}/possible": "0-15",
    f"{CPU}/present": "0-7",
    f"{CPU}/isolated": "6-7",
    f"{CPU}/nohz_full": "(null)",
    f"{NODE}/online": "0-1",
    f"{NODE}/possible": "0-3",
    f"{NODE}/has_memory": "0-1",
    f"{NODE}/has_normal_memory": "0-1",
    f"{NODE}/has_cpu": "0-1",
    "/proc/cpuinfo": "processor : 0\nflags : fpu lm pdpe1gb hypervisor\n",
    "/proc/meminfo": "MemTotal: 4194304 kB\nHugepagesize: 2048 kB\n",
    "/proc/version": "Linux version 6.1.0-18-amd64 (x@y) (gcc)\n",
    "/sys/class/dmi/id/sys_vendor": "QEMU",
    "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "6",
}
for _node in (0, 1):
    FILES[f"{NODE}/node{_node}/cpulist"] = f"{_node * 4}-{_node * 4 + 3}"
    FILES[f"{NODE}/node{_node}/cpumap"] = "0f" if _node == 0 else "f0"
    FILES[f"{NODE}/node{_node}/distance"] = "10 21" if _node == 0 else "21 10"
    FILES[f"{NODE}/node{_node}/meminfo"] = f"Node {_node} MemTotal: 2097152 kB"
    FILES[f"{NODE}/node{_node}/hugepages/hugepages-2048kB/nr_hugepages"] = "3"
for _cpu in range(8):
    _base, _core = f"{CPU}/cpu{_cpu}", _cpu // 2 * 2
    FILES[f"{_base}/topology/physical_package_id"] = str(_cpu // 4)
    FILES[f"{_base}/topology/core_id"] = str(_cpu // 2 % 2)
    FILES[f"{_base}/topology/core_cpus_list"] = f"{_core}-{_core + 1}"
    FILES[f"{_base}/topology/package_cpus_list"] = f"{_cpu // 4 * 4}-{_cpu // 4 * 4 + 3}"
    FILES[f"{_base}/cache/index3/level"] = "3"
    FILES[f"{_base}/cache/index3/shared_cpu_list"] = f"{_cpu // 4 * 4}-{_cpu // 4 * 4 + 3}"


def host(root: Path, changes: Mapping[str, str | None] | None = None) -> Path:
    for path, content in {**FILES, **(changes or {})}.items():
        if content is not None:
            put(root, path, content)
    return root


def reasons(topology: Topology) -> set[str]:
    return {row["reason"] for row in topology.warnings}


def each_cpu(name: str, value: str | None) -> dict[str, str | None]:
    return {f"{CPU}/cpu{cpu}/{name}": value for cpu in range(8)}


def test_the_whole_document(tmp_path: Path) -> None:
    topology = read_topology(str(host(tmp_path)))
    doc = topology.as_dict()
    assert doc["cpus"] == {
        "online": "0-7",
        "offline": "8-15",
        "possible": "0-15",
        "present": "0-7",
        "isolated": "6-7",
        "nohz_full": "",
        "boot_cpu": 0,
        "siblings": {str(cpu): f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}" for cpu in range(8)},
        "sockets": 2,
        "cores": 4,
        "cores_per_socket": 2,
        "threads_per_core": 2,
        "packages": [{"id": 0, "cpus": "0-3", "cores": 2}, {"id": 1, "cpus": "4-7", "cores": 2}],
    }
    assert doc["nodes"][1] == {
        "id": 1,
        "online": True,
        "cpus": "4-7",
        "memory_bytes": 2 << 30,
        "has_memory": True,
        "normal_memory": True,
        "pools": {"2048kB": {"total": 3}},
        "distances": {"0": 21, "1": 10},
    }
    assert doc["node_lists"]["offline"] == [2, 3]
    assert doc["l3"] == [{"cpus": "0-3"}, {"cpus": "4-7"}]
    assert (doc["arch"], doc["kernel_release"], doc["page_size_bytes"]) == ("x86_64", "6.1.0-18-amd64", 4096)
    assert doc["virtualization"]["hypervisor"] == "qemu"
    assert doc["warnings"] == []
    assert Topology.from_dict(json.loads(json.dumps(doc))) == topology


GARBAGE = st.one_of(
    st.none(),
    st.sampled_from(
        [
            "",
            "\x00",
            "-1",
            "0-",
            "0-3,",
            "0x3",
            "99999999999999999999",
            "ffffffff,ffffffff",
            "0-65535",
            "(null)",
        ]
    ),
    st.text(max_size=20),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(sorted(FILES)), GARBAGE, max_size=6))
def test_whatever_files_say_there_is_an_answer(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, str | None]
) -> None:
    changes = {
        path: None if text is None else text.encode("utf-8", "replace").decode()
        for path, text in changes.items()
    }
    topology = read_topology(str(host(tmp_path_factory.mktemp("host"), changes)))
    doc = json.loads(json.dumps(topology.as_dict()))
    assert Topology.from_dict(doc) == topology
    assert topology.nodes
    for node in topology.nodes:
        assert node.cpus <= topology.cpus.online
    for cpu, core in topology.cpus.siblings.items():
        assert cpu in core <= topology.cpus.online
        assert {topology.cpus.core(other) for other in core} == {core}


def test_a_directory_in_place_of_a_file_and_a_loop(tmp_path: Path) -> None:
    root = host(tmp_path, {f"{NODE}/node0/cpulist": None, f"{NODE}/node1/cpulist": None})
    (root / f"{NODE}/node0/cpulist".lstrip("/")).mkdir()
    (root / f"{NODE}/node1/cpulist".lstrip("/")).symlink_to("cpulist")
    topology = read_topology(str(root))
    assert [len(node.cpus) for node in topology.nodes] == [4, 4]
    assert "unreadable" in reasons(topology)


def test_a_fifo_does_not_block(tmp_path: Path) -> None:
    root = host(tmp_path, {f"{CPU}/online": None})
    os.mkfifo(root / f"{CPU}/online".lstrip("/"))
    topology = read_topology(str(root))
    assert len(topology.cpus.online) == 8
    assert "unreadable" in reasons(topology)


def test_offline_cpus_by_their_own_files(tmp_path: Path) -> None:
    changes: dict[str, str | None] = {
        f"{CPU}/online": None,
        f"{CPU}/cpu3/online": "0",
        f"{CPU}/cpu2/online": "1",
    }
    topology = read_topology(str(host(tmp_path, changes)))
    assert 3 not in topology.cpus.online and 3 in topology.cpus.offline
    assert topology.cpus.core(2) == {2}


def test_online_list_against_the_cpus_own_file(tmp_path: Path) -> None:
    assert "cpu_online_disagrees" in reasons(read_topology(str(host(tmp_path, {f"{CPU}/cpu3/online": "0"}))))


def test_siblings_that_disagree_fall_back_to_core_ids(tmp_path: Path) -> None:
    topology = read_topology(str(host(tmp_path, {f"{CPU}/cpu1/topology/core_cpus_list": "1"})))
    assert "siblings_disagree" in reasons(topology)
    assert topology.cpus.core(0) == topology.cpus.core(1) == {0, 1}


def test_core_ids_alone_repeat_across_packages(tmp_path: Path) -> None:
    topology = read_topology(str(host(tmp_path, each_cpu("topology/core_cpus_list", None))))
    assert topology.cpus.as_dict()["cores"] == 4
    assert topology.cpus.core(5) == {4, 5}


def test_masks_where_there_are_no_lists(tmp_path: Path) -> None:
    changes = {**each_cpu("topology/core_cpus_list", None), **each_cpu("topology/core_id", None)}
    for cpu in range(8):
        changes[f"{CPU}/cpu{cpu}/topology/thread_siblings"] = f"{3 << cpu // 2 * 2:08x}"
    assert read_topology(str(host(tmp_path, changes))).cpus.core(5) == {4, 5}


def test_package_id_minus_one_and_no_sets(tmp_path: Path) -> None:
    changes = {
        **each_cpu("topology/physical_package_id", "-1"),
        **each_cpu("topology/package_cpus_list", None),
    }
    topology = read_topology(str(host(tmp_path, changes)))
    assert topology.cpus.packages == () and topology.cpus.as_dict()["sockets"] is None
    changes = each_cpu("topology/physical_package_id", "-1")
    topology = read_topology(str(host(tmp_path / "sets", changes)))
    assert [(package.id, len(package.cpus)) for package in topology.cpus.packages] == [(None, 4), (None, 4)]


def test_package_sets_that_contradict_fall_back_to_ids(tmp_path: Path) -> None:
    topology = read_topology(str(host(tmp_path, {f"{CPU}/cpu7/topology/package_cpus_list": "0-7"})))
    assert "package_sets_disagree" in reasons(topology)
    assert [package.id for package in topology.cpus.packages] == [0, 1]


def test_cpuinfo_names_cores_where_sysfs_does_not(tmp_path: Path) -> None:
    put(tmp_path, f"{CPU}/online", "0-3")
    rows = "".join(f"processor\t: {n}\nphysical id\t: 0\ncore id\t: {n // 2}\n\n" for n in range(4))
    put(tmp_path, "/proc/cpuinfo", rows + "Hardware : x\n")
    topology = read_topology(str(tmp_path))
    assert topology.cpus.as_dict()["cores"] == 2
    assert topology.cpus.core(3) == {2, 3}


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("processor 1: version = 00, machine = 2817\nprocessor 4: version = 00\n", {1, 4}),
        ("State:\nCPU6:\t\tonline\nCPU7:\t\tonline\n", {6, 7}),
        ("processor\t: 0\nprocessor\t: 2\n", {0, 2}),
        ("nothing of the kind", set()),
    ],
)
def test_cpus_named_by_cpuinfo_only(tmp_path: Path, text: str, cpus: set[int]) -> None:
    put(tmp_path, "/proc/cpuinfo", text)
    assert read_topology(str(tmp_path)).cpus.online == cpus


def test_level_three_caches_of_one_cpu_each(tmp_path: Path) -> None:
    changes = each_cpu("cache/index3/shared_cpu_list", None)
    changes.update({f"{CPU}/cpu{cpu}/cache/index3/shared_cpu_map": "00000000,00000000" for cpu in range(8)})
    assert len(read_topology(str(host(tmp_path, changes))).cpus.l3) == 8


def test_memory_that_does_not_add_up(tmp_path: Path) -> None:
    changes = {"/proc/meminfo": "MemTotal: 41943040 kB\n"}
    assert "node_memory_disagrees" in reasons(read_topology(str(host(tmp_path, changes))))


def test_nearest_memory(tmp_path: Path) -> None:
    text = "available: 3 nodes (0-2)\n" + "".join(
        f"node {n} cpus: {n}\nnode {n} size: {n} MB\n" for n in range(3)
    )
    table = "node distances:\nnode   0   1   2\n  0:  10  30  20\n  1:  30  10  20\n  2:  20  20  10\n"
    topology = read_numactl(text + table)
    memory = topology.ids("memory")
    assert memory == [1, 2]
    assert [topology.nearest(node, memory) for node in (0, 1, 2)] == [2, 1, 2]
    unknown = read_numactl(text)
    assert unknown.nearest(0, memory) is None
    assert unknown.nearest(0, [2]) == 2
    assert unknown.nearest(0, []) is None


def test_node_of_and_node(tmp_path: Path) -> None:
    topology = read_topology(str(host(tmp_path)))
    assert (topology.node_of(5), topology.node_of(99)) == (1, None)
    assert topology.node(7) is None


@given(st.integers(0, 10_000), st.lists(st.integers(0, 300), min_size=1, max_size=12))
def test_even_split_is_even_and_whole(total: int, nodes: list[int]) -> None:
    split = even_split(total, nodes)
    assert sum(split.values()) == total and set(split) == set(nodes)
    assert max(split.values()) - min(split.values()) <= 1
    assert [split[node] for node in sorted(split)] == sorted(split.values(), reverse=True)


@pytest.mark.parametrize(("total", "nodes"), [(4, []), (-1, [0])])
def test_even_split_of_nothing(total: int, nodes: list[int]) -> None:
    with pytest.raises(ValueError, match="split"):
        even_split(total, nodes)


@pytest.mark.parametrize("text", ["1,,2", " 1 2 ", "1-2", "1\t2"])
def test_lists_as_tools_print_them(text: str) -> None:
    assert id_list(text) == {1, 2}


@pytest.mark.parametrize("text", ["0-65536", "65536", "4-2", "1;2"])
def test_lists_that_no_kernel_prints(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        id_list(text)


def test_texts_round_trip_too() -> None:
    lscpu = "On-line CPU(s) list: 0-3\nSocket(s) per book: 1\nBook(s) per drawer: 2\nDrawer(s): 3\n"
    for topology in (read_lscpu(lscpu), read_numactl("node 3 cpus: 1\nnode 3 size: 7 MB\n")):
        assert Topology.from_dict(json.loads(json.dumps(topology.as_dict()))) == topology
    assert read_lscpu(lscpu).cpus.counts["sockets"] == 6


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("CPU(s): 2\nOn-line CPU(s) list: 0-3\nNUMA node0 CPU(s): 0-3\n", "lscpu_disagrees_with_itself"),
        (
            "On-line CPU(s) list: 0-3\nNUMA node(s): 2\nNUMA node0 CPU(s): 0-3\n",
            "lscpu_disagrees_with_itself",
        ),
        ("On-line CPU(s) list: 0-1\nNUMA node0 CPU(s): 0-3\n", "lscpu_disagrees_with_itself"),
        ("On-line CPU(s) list: 0-1\nNUMA node0 CPU(s): 0-1\nNUMA node1 CPU(s): 1\n", "cpu_in_several_nodes"),
    ],
)
def test_an_lscpu_that_lies(text: str, reason: str) -> None:
    assert reason in reasons(read_lscpu(text))


def _tree(root: Path, files: dict[str, str | bytes]) -> Tree:
    for path, content in files.items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())
    return Tree(str(root))


def test_tree_tells_absent_from_unreadable(tmp_path: Path) -> None:
    tree = _tree(tmp_path, {"/a": "12\n", "/b": "x", "/c": b"7\0\0\0", "/f/g": ""})
    assert (tree.number("/a"), tree.number("/none"), tree.number("/c")) == (12, None, 7)
    assert tree.trouble == {}
    assert tree.number("/b") is None and tree.text("/f") is None
    assert set(tree.trouble) == {"/b", "/f"}
    assert tree.text("/a/b") is None and "/a/b" not in tree.trouble


def test_tree_cuts_no_file_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tree_module, "_LIMIT", 100000)
    tree = _tree(tmp_path, {"/most": "x" * 100000, "/more": "x" * 100001})
    assert len(tree.text("/most") or "") == 100000
    assert tree.text("/more") is None
    assert tree.trouble == {"/more": "longer than 100000 bytes"}


def test_tree_links_stay_inside(tmp_path: Path) -> None:
    inside: dict[str, Any] = {"/in/x": "1", "/abs": "9"}
    tree = _tree(tmp_path / "root", inside)
    (tmp_path / "outside").write_text("2")
    (tmp_path / "root/link").symlink_to("/in/x")
    (tmp_path / "root/dir").symlink_to("/in")
    (tmp_path / "root/out").symlink_to("../outside")
    assert (tree.number("/link"), tree.number("/dir/x"), tree.number("/out")) == (1, 1, None)
