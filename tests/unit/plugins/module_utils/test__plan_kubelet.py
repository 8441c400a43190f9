# SPDX-License-Identifier: GPL-3.0-or-later
"""The kubelet of the plan: read from units, flags and files, split over nodes to the byte, refused when not known."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fake_kubelet
import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _kubelet_apply
from plan_host import make_host, plan, reasons, record, refused
from support import put

MIB = 1 << 20
GIB = 1 << 30
HEAD = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
BASE = (
    HEAD
    + "clusterDNS:\n- 10.96.0.10\nkubeReserved:\n  cpu: 500m\n  memory: 1Gi\nsystemReserved:\n  memory: 512Mi\n"
)
DROPIN = "/etc/kubernetes/kubelet.conf.d/zz-firsttouch.conf"
KUBEADM = (
    '[Service]\nEnvironment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"\n'
    "EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env\nEnvironmentFile=-/etc/default/kubelet\n"
    "ExecStart=\nExecStart=/usr/bin/kubelet $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS\n"
)
INTENT = {"isolated_cpus": "1,3", "kubelet": "present"}
NODES = {0: 1_490_000 << 10, 1: 3_500_000 << 10}


def node(root: Path, config: str = BASE, extra: str = "--config-dir=/etc/kubernetes/kubelet.conf.d") -> Path:
    """A node as kubeadm leaves it, with the drop-in directory in KUBELET_EXTRA_ARGS."""
    make_host(root)
    put(
        root,
        "/usr/lib/systemd/system/kubelet.service",
        "[Service]\nExecStart=/usr/bin/kubelet\nRestart=always\n",
    )
    put(root, "/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf", KUBEADM)
    put(root, "/var/lib/kubelet/config.yaml", config)
    put(
        root,
        "/var/lib/kubelet/kubeadm-flags.env",
        'KUBELET_KUBEADM_ARGS="--pod-infra-container-image=pause:3.9"\n',
    )
    put(root, "/etc/default/kubelet", f"KUBELET_EXTRA_ARGS={extra}\n")
    (root / "etc/kubernetes/kubelet.conf.d").mkdir(parents=True)
    return root


def section(root: Path, value: Any = "present", **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = plan(root, {**INTENT, "kubelet": value, **more})["plan"]["sections"]["kubelet"]
    return found


def starts(root: Path, body: Mapping[str, Any], nodes: Mapping[int, int] = NODES) -> None:
    """The file is one that the typed model takes, and with it the stand-in for the kubelet starts."""
    text = _kubelet_apply.render(body["config"])
    assert text is not None
    put(root, body["file"], text)
    loaded = fake_kubelet.load(text, body["file"])
    fake_kubelet.typed(loaded)
    fake_kubelet.start(root, nodes)


def shares(body: Mapping[str, Any]) -> dict[int, str]:
    return {row["numaNode"]: row["limits"]["memory"] for row in body["config"]["reservedMemory"]}


def test_a_node_of_kubeadm(tmp_path: Path) -> None:
    body = section(node(tmp_path))
    assert body["file"] == DROPIN and body["root_dir"] == "/var/lib/kubelet"
    assert body["config"] == {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cpuManagerPolicy": "static",
        "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
        "topologyManagerPolicy": "single-numa-node",
        "memoryManagerPolicy": "Static",
        "reservedSystemCPUs": "0,2",
        "reservedMemory": [
            {"numaNode": 0, "limits": {"memory": "818Mi"}},
            {"numaNode": 1, "limits": {"memory": "818Mi"}},
        ],
    }
    assert body["reserved"] == {
        "kubeReserved": {"bytes": GIB, "source": "/var/lib/kubelet/config.yaml"},
        "systemReserved": {"bytes": 512 * MIB, "source": "/var/lib/kubelet/config.yaml"},
        "evictionHard": {"bytes": 100 * MIB, "source": "the kubelet's default"},
    }
    starts(tmp_path, body)


@pytest.mark.parametrize(
    ("config", "total_mib"),
    [
        (BASE, 1636),
        (HEAD, 100),
        (BASE + "evictionHard:\n  memory.available: 500Mi\n", 2036),
        (BASE + "evictionHard:\n  nodefs.available: 10%\n", 1536),
        (BASE + "evictionHard:\n  nodefs.available: 10%\nmergeDefaultEvictionSettings: true\n", 1636),
        (BASE + 'evictionHard: {memory.available: "1Gi", nodefs.available: 10%}\n', 2560),
        (BASE.replace("  memory: 512Mi", "  cpu: 1"), 1124),
        (HEAD + "kubeReserved: {memory: 3145728}\n", 103),
    ],
)
def test_what_the_files_reserve_is_split_to_the_byte(tmp_path: Path, config: str, total_mib: int) -> None:
    body = section(node(tmp_path, config))
    assert sum(row["bytes"] for row in body["reserved"].values()) == total_mib * MIB
    starts(tmp_path, body)


def test_what_does_not_divide_goes_to_the_lowest_node(tmp_path: Path) -> None:
    body = section(
        node(tmp_path, HEAD + "kubeReserved: {memory: 1000001}\nevictionHard: {memory.available: 3Mi}\n")
    )
    assert shares(body) == {0: str(1000001 + 3 * MIB - MIB), 1: "1Mi"}
    starts(tmp_path, body)


def test_other_dropins_are_merged_in_their_order(tmp_path: Path) -> None:
    root = node(tmp_path)
    put(root, "/etc/kubernetes/kubelet.conf.d/20-b.conf", HEAD + "systemReserved:\n  memory: 1Gi\n")
    put(
        root,
        "/etc/kubernetes/kubelet.conf.d/10-a.conf",
        HEAD + "systemReserved: {memory: 4Gi}\nkubeReserved: {cpu: 1}\n",
    )
    put(
        root,
        "/etc/kubernetes/kubelet.conf.d/30-sub/x.conf",
        HEAD + "evictionHard: {memory.available: 200Mi}\n",
    )
    put(root, "/etc/kubernetes/kubelet.conf.d/99-ignored.yaml", "nonsense")
    body = section(root)
    assert {name: row["bytes"] // MIB for name, row in body["reserved"].items()} == {
        "kubeReserved": 1024,
        "systemReserved": 1024,
        "evictionHard": 200,
    }
    assert body["reserved"]["systemReserved"]["source"].endswith("/20-b.conf")
    starts(root, body)


def test_a_flag_wins_over_every_file(tmp_path: Path) -> None:
    extra = "--config-dir /etc/kubernetes/kubelet.conf.d --kube_reserved=cpu=1,memory=2Gi"
    extra += " --eviction-hard=nodefs.available<5%"
    body = section(node(tmp_path, extra=f'"{extra}"'))
    assert {name: row["bytes"] for name, row in body["reserved"].items()} == {
        "kubeReserved": 2 * GIB,
        "systemReserved": 512 * MIB,
        "evictionHard": 0,
    }
    assert "--kube-reserved" in body["reserved"]["kubeReserved"]["source"]


def test_flags_of_an_environment_file_may_have_several_lines(tmp_path: Path) -> None:
    body = section(node(tmp_path, extra="'--node-labels=\"a b\"\n--config-dir=/etc/kubernetes/own.d'"))
    assert body["file"] == "/etc/kubernetes/own.d/zz-firsttouch.conf"


def test_what_is_given_is_written(tmp_path: Path) -> None:
    value = {"kube_reserved": "2G", "eviction_hard": 300 * MIB, "reserved_memory": {"0": "812M", "1": "2G"}}
    body = section(node(tmp_path), value)
    assert body["config"]["kubeReserved"] == {"memory": "2Gi"}
    assert body["config"]["evictionHard"] == {"memory.available": "300Mi"}
    assert "systemReserved" not in body["config"] and shares(body) == {0: "812Mi", 1: "2Gi"}
    starts(tmp_path, body)


def test_a_host_without_a_kubelet_needs_all_of_it(tmp_path: Path) -> None:
    make_host(tmp_path)
    (row,) = refused(tmp_path, INTENT)
    assert row["reason"] == "no_kubelet"
    assert "config_dir, eviction_hard, kube_reserved, system_reserved" in row["text"]
    folder = {"config_dir": "/etc/kubernetes/kubelet.conf.d/"}
    body = section(tmp_path, {**folder, "kube_reserved": "1G", "system_reserved": 0, "eviction_hard": "100M"})
    assert body["file"] == DROPIN and shares(body) == {0: "562Mi", 1: "562Mi"}
    put(tmp_path, "/var/lib/kubelet/config.yaml", HEAD)
    starts(tmp_path, body)


@pytest.mark.parametrize(
    ("config", "extra", "value", "reason"),
    [
        (BASE + "evictionHard: {memory.available: 5%}\n", None, "present", "eviction_percent"),
        (BASE + "evictionHard: &x {memory.available: 5Mi}\n", None, "present", "kubelet_unknown"),
        (HEAD + "kubeReserved: {memory: lots}\n", None, "present", "kubelet_unknown"),
        (HEAD + "kubeReserved: much\n", None, "present", "kubelet_unknown"),
        ("a: 1\n---\nb: 2\n", None, "present", "kubelet_unknown"),
        (BASE, "", "present", "no_config_dir"),
        (BASE, None, {"config_dir": "/etc/other"}, "bad_value"),
        (
            BASE + "evictionHard: {nodefs.available: 5%}\nkubeReserved: {}\n",
            None,
            "present",
            "kubelet_unknown",
        ),
        (HEAD + "evictionHard: {nodefs.available: 5%}\n", None, "present", "nothing_reserved"),
        (BASE, "--reserved-cpus=0", "present", "flag_wins"),
        (BASE, "--kube-reserved=memory=1Gi", {"kube_reserved": "1G"}, "flag_wins"),
        (BASE + "systemReservedCgroup: /system.slice\n", None, "present", "reserved_cgroup"),
        (BASE, None, {"reserved_memory": {"0": "1G"}}, "reserved_differs"),
        (BASE, None, {"reserved_memory": {"0": "818M", "7": "818M"}}, "no_such_node"),
        (BASE, None, {"kube_reserved": "5G"}, "reserved_exceeds_node"),
        (BASE, None, {"kube_reserve": "5G"}, "bad_value"),
        (BASE, None, {"drained": "yes"}, "bad_value"),
        (BASE, None, "static", "bad_value"),
    ],
)
def test_refusals(tmp_path: Path, config: str, extra: str | None, value: Any, reason: str) -> None:
    folder = "--config-dir=/etc/kubernetes/kubelet.conf.d"
    root = node(tmp_path, config, folder if extra is None else f'"{folder} {extra}"' if extra else "")
    assert reason in reasons(refused(root, {**INTENT, "kubelet": value}))


def test_a_file_that_is_read_after_ours_is_named(tmp_path: Path) -> None:
    root = node(tmp_path)
    put(root, "/etc/kubernetes/kubelet.conf.d/zzz.conf", HEAD + "cpuManagerPolicy: none\n")
    (row,) = refused(root, INTENT)
    assert row["reason"] == "overridden_by" and row["file"].endswith("/zzz.conf")


def test_a_wrapper_hides_the_flags(tmp_path: Path) -> None:
    root = node(tmp_path)
    text = "[Service]\nExecStart=\nExecStart=/bin/sh -c 'exec kubelet'\n"
    put(root, "/etc/systemd/system/kubelet.service.d/20-own.conf", text)
    assert reasons(refused(root, INTENT)) == ["kubelet_unknown"]


def test_without_isolated_cpus_there_is_nothing_to_reserve(tmp_path: Path) -> None:
    assert reasons(refused(node(tmp_path), {"kubelet": "present"})) == ["no_housekeeping_cpu"]


def test_huge_pages_leave_room_for_what_is_reserved(tmp_path: Path) -> None:
    root = node(tmp_path)
    assert section(root, hugepages=[{"size": "2M", "nodes": {"0": 300}}])
    pools = [{"size": "2M", "nodes": {"0": 500}}]
    (row,) = refused(root, {**INTENT, "hugepages": pools})
    assert (row["reason"], row["node"]) == ("reserved_exceeds_node", 0)
    assert shares(section(root, {"reserved_memory": {"0": "100M", "1": "1536M"}}, hugepages=pools)) == {
        0: "100Mi",
        1: "1536Mi",
    }


def test_more_nodes_than_the_topology_manager_takes(tmp_path: Path) -> None:
    cpus = {number: (f"{2 * number}-{2 * number + 1}", 4_000_000) for number in range(9)}
    make_host(tmp_path, cpus, cpus="0-17", siblings=[str(cpu) for cpu in range(18)])
    value = {"config_dir": "/x", "kube_reserved": "9G", "system_reserved": 0, "eviction_hard": 0}
    rows = refused(tmp_path, {"isolated_cpus": "1,3", "kubelet": value})
    assert reasons(rows) == ["too_many_nodes"]


def test_ours_is_not_read_as_what_others_reserve(tmp_path: Path) -> None:
    root = node(tmp_path)
    starts(root, section(root, {"kube_reserved": "2G"}))
    assert section(root)["reserved"]["kubeReserved"]["bytes"] == GIB


def test_what_was_recorded_is_removed_by_name(tmp_path: Path) -> None:
    root = node(tmp_path)
    record(root, plan(root, INTENT))
    kept = plan(root, {"isolated_cpus": "1,3"})["plan"]["sections"]["kubelet"]
    assert kept["orphaned"] == ["kubelet"] and kept["config"] is not None
    for options in ({"revert": True}, {}):
        gone = plan(root, {} if options else {**INTENT, "kubelet": "absent"}, **options)["plan"]["sections"][
            "kubelet"
        ]
        assert (gone["state"], gone["file"], gone["config"]) == ("absent", DROPIN, None)
    record(root, plan(root, {**INTENT, "kubelet": "absent"}))
    assert plan(root, {**INTENT, "kubelet": "absent"})["plan"]["sections"]["kubelet"]["file"] == DROPIN


@pytest.mark.parametrize("said", [True, False])
def test_a_removal_knows_how_the_node_is_drained(tmp_path: Path, said: bool) -> None:
    """By what the record says, and a revert by what the variable says, where it does."""
    root = node(tmp_path)
    record(root, plan(root, {**INTENT, "kubelet": {"drained": said}}))
    absent = {**INTENT, "kubelet": "absent"}
    for intent, revert, drained in (
        (absent, False, said),
        ({}, True, said),
        ({"kubelet": "present"}, True, said),
        ({"kubelet": {"drained": True}}, True, True),
        ({"kubelet": {"drained": False}}, True, False),
        ({"kubelet": {"drained": "yes"}}, True, False),
    ):
        gone = plan(root, intent, revert=revert)["plan"]["sections"]["kubelet"]
        assert (gone["config"], gone["drained"]) == (None, drained), intent
    record(root, plan(root, absent))
    assert plan(root, absent)["plan"]["sections"]["kubelet"]["drained"] is said


@pytest.mark.parametrize(
    "change",
    [
        {"cpuManagerPolicyOptions": {"full-pcpus-only": True}},
        {"reservedMemory": [{"numaNode": "0", "limits": {"memory": "1Gi"}}]},
        {"reservedMemory": [{"numaNode": 0, "limits": {"memory": 1}}]},
        {"reservedSystemCPUs": 0},
        {"reservedSystemCpus": "0"},
        {"kind": None},
    ],
)
def test_the_typed_model_can_fail(tmp_path: Path, change: dict[str, Any]) -> None:
    config = section(node(tmp_path))["config"]
    fake_kubelet.typed(config)
    with pytest.raises(TypeError):
        fake_kubelet.typed({**config, **change})
