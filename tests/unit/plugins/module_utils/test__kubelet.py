# SPDX-License-Identifier: GPL-3.0-or-later
"""Kubernetes quantities and what pods may use of each page size."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils._kubelet import (
    NotAPod,
    capacity_of,
    check_pod,
    page_kb,
    quantity,
    requested,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        (7, 7),
        ("20Gi", 20 << 30),
        ("1.5Gi", 3 << 29),
        ("512M", 512_000_000),
        ("1e3", 1000),
        ("2E3", 2000),
        ("2E", 2 * 10**18),
        ("2000m", 2),
        (" 4Ki ", 4096),
    ],
)
def test_quantities(text: Any, value: int) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize("text", ["", "Gi", "1gi", "1 Gi", "1m", "0.3", "1e99", True, None, 1.5, "1Gi2", "--1"])
def test_what_is_no_whole_quantity(text: Any) -> None:
    with pytest.raises(ValueError, match="not a"):
        quantity(text)


@pytest.mark.parametrize(
    ("name", "size"), [("hugepages-2Mi", 2048), ("hugepages-1Gi", 1 << 20), ("cpu", None), ("hugepages", None)]
)
def test_page_sizes(name: str, size: int | None) -> None:
    assert page_kb(name) == size


@pytest.mark.parametrize("name", ["hugepages-", "hugepages-2", "hugepages-0Mi", "hugepages-x"])
def test_what_is_no_page_size(name: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        page_kb(name)


def containers(*sizes: str) -> list[dict[str, Any]]:
    return [{"resources": {"limits": {"hugepages-2Mi": size, "cpu": 1}}} for size in sizes]


def test_init_containers_count_where_they_need_more() -> None:
    pods: list[dict[str, Any]] = [
        {"spec": {"containers": containers("2Mi", "4Mi"), "initContainers": containers("8Mi", "2Mi")}},
        {"spec": {"containers": containers("10Mi")}},
        {"spec": {"containers": containers("10Mi")}, "status": {"phase": "Failed"}},
        {"spec": {"containers": [{"name": "no resources"}]}, "status": {"phase": "Running"}},
    ]
    assert requested(pods) == {2048: 18 << 20}
    assert requested([]) == {}


def test_a_list_stands_for_its_pods() -> None:
    pods = [{"kind": "Pod", "spec": {"containers": containers(size)}} for size in ("100Mi", "2Mi")]
    assert requested([{"kind": "List", "items": [pods[0], {"kind": "List", "items": pods[1:]}]}]) == {2048: 102 << 20}


@pytest.mark.parametrize("spec", ["template", "jobTemplate"])
def test_a_template_tells_no_pods_of_a_node(spec: str) -> None:
    web = {"kind": "Deployment", "metadata": {"name": "web"}, "spec": {spec: {}}}
    with pytest.raises(NotAPod, match="Deployment 'web' holds a template"):
        requested([{"kind": "List", "items": [web]}])
    with pytest.raises(NotAPod, match="not a pod: 3"):
        requested([{"kind": "List", "items": [3]}])


@pytest.mark.parametrize(
    "pod",
    [
        {"spec": ["x"]},
        {"spec": {"containers": 5}},
        {"spec": {"containers": [], "initContainers": "x"}, "metadata": "x", "status": "x"},
        {"spec": {"template": {}}, "metadata": "x"},
    ],
)
def test_what_has_not_the_shape_of_a_pod_is_named(pod: dict[str, Any]) -> None:
    with pytest.raises(NotAPod):
        requested([pod])


def test_of_a_node_without_the_shape_of_one_there_is_no_capacity() -> None:
    with pytest.raises(ValueError, match="the node has no capacity"):
        capacity_of({"status": "x"})


def test_a_list_may_hold_what_makes_no_pods() -> None:
    """`kubectl get all` and kustomize give Services and ConfigMaps beside them."""
    service = {"kind": "Service", "spec": {"ports": []}}
    limits = {"limits": {"hugepages-2Mi": "3Mi", "memory": "1Gi"}}
    pod = {"kind": "Pod", "spec": {"containers": [{"name": "a", "resources": limits}]}}
    rollout = {"kind": "Rollout", "spec": {"template": {"spec": pod["spec"]}}}
    config = {"kind": "ConfigMap", "data": {}}
    found = check_pod({"kind": "List", "items": [service, pod, config, rollout]})
    assert [(row.reason, row.where.partition(".")[0]) for row in found] == [
        ("not_whole_pages", "items[1]"),
        ("not_whole_pages", "items[3]"),
    ]
    assert requested([{"kind": "List", "items": [service, config, pod]}]) == {2048: 3 << 20}
    assert [row.reason for row in check_pod({"kind": "List", "items": [service, config]})] == ["no_spec"]
    assert [row.where for row in check_pod({"kind": "List", "items": [service, {"kind": "Deployment"}]})] == [
        "items[1].spec"
    ]


BAD_POD = {"spec": {"containers": [{"resources": {"limits": {"hugepages-2Mi": "3Mi"}}}]}}


@pytest.mark.parametrize(
    "item",
    [
        {"kind": "RayCluster", "spec": {"headGroupSpec": {"template": BAD_POD}}},
        {"kind": "PyTorchJob", "spec": {"pytorchReplicaSpecs": {"Worker": {"template": BAD_POD}}}},
        {"kind": "LeaderWorkerSet", "spec": {"leaderWorkerTemplate": {"workerTemplate": BAD_POD}}},
        {"kind": "InferenceService", "spec": {"predictor": BAD_POD["spec"]}},
        {"kind": "Service", "spec": {"template": BAD_POD}},
        {"kind": "Mystery"},
        {"kind": ["Pod"]},
        {"kind": ["Pod"], "spec": {"containers": [{"name": "a"}]}},
        {"kind": None},
        {},
        "Service",
    ],
)
def test_what_may_make_pods_is_not_passed_over(item: Any) -> None:
    pod = {"kind": "Pod", "spec": {"containers": [{"name": "a"}]}}
    found = check_pod({"kind": "List", "items": [pod, item]})
    assert found and all(row.where.startswith("items[1].") for row in found)
    if isinstance(item, dict):
        assert [f"items[1].{row.where}" for row in check_pod(item)] == [row.where for row in found]


@pytest.mark.parametrize("kind", ["Secret", "ServiceAccount", "PersistentVolumeClaim", "NetworkPolicy", "StorageClass"])
def test_what_makes_no_pod_is_passed_over_only_beside_one_that_does(kind: str) -> None:
    pod = {"kind": "Pod", "spec": {"containers": [{"name": "a"}]}}
    assert check_pod({"kind": "List", "items": [{"kind": kind}, pod]}) == []
    assert [row.reason for row in check_pod({"kind": kind, "spec": {}})] == ["no_spec"]


def test_containers_that_are_no_list_are_named() -> None:
    (row,) = check_pod({"spec": {"containers": [{"name": "a"}], "initContainers": 5}})
    assert (row.reason, row.where) == ("no_spec", "spec.initContainers")
