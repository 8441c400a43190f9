# SPDX-License-Identifier: GPL-3.0-or-later
"""The recorded Kubernetes troubles with huge pages, through kubelet_info; then neighbours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import CASES, case_expected, put, run_module

POOLS = "/sys/kernel/mm/hugepages"
GIB = 1 << 30


def info(root: Path, **args: Any) -> dict[str, Any]:
    result = run_module("kubelet_info", {"sysroot": str(root), **args})
    assert not result.get("failed"), result
    return result


def pool(root: Path, kb: int, total: int, free: int, reserved: int = 0) -> None:
    for name, value in (("nr", total), ("free", free), ("resv", reserved), ("surplus", 0)):
        put(root, f"{POOLS}/hugepages-{kb}kB/{name}_hugepages", f"{value}\n")


def row(result: dict[str, Any], size: str) -> dict[str, Any]:
    return next(line for line in result["node_results"] if line["size"] == size)


def test_the_pool_is_used_outside_of_kubernetes(tmp_path: Path) -> None:
    case = "k8s-allocatable-but-pool-used"
    node = json.loads((CASES / case / "node.json").read_text())
    pages = node["sysfs"]
    pool(tmp_path, 1 << 20, pages["nr"], pages["free"], pages["resv"])
    result = info(tmp_path, node={"capacity": node["capacity"]}, pods_requested=node["pods_requested"])
    line = row(result, "1G")
    assert case_expected(case) == {
        "verdict": result["verdict"],
        "reason_class": result["reason"],
        "pages": line["outside_pages"],
    }
    assert (line["available_bytes"], line["node_bytes"]) == (17 * GIB, 20 * GIB)
    assert str(17 * GIB) in line["text"]


def test_huge_pages_alone_are_refused(tmp_path: Path) -> None:
    case = "k8s-hugepages-need-cpu-or-memory"
    pod = yaml.safe_load((CASES / case / "pod.yml").read_text())
    result = info(tmp_path, pods=[pod])
    assert case_expected(case) == {"verdict": result["verdict"], "reason_class": result["reason"]}
    found = result["pod_results"][0]["findings"]
    assert [(line["where"], line["text"]) for line in found] == [
        ("spec.containers[0].resources", "HugePages require cpu or memory")
    ]


@pytest.mark.parametrize("name", ["a", "b"])
def test_the_kubelet_started_before_the_pool(tmp_path: Path, name: str) -> None:
    case = "k8s-kubelet-started-before-pool"
    node = json.loads((CASES / case / "nodes.json").read_text())[name]
    pool(tmp_path, 2048, node["sysfs_2M_nr"], node["sysfs_2M_free"])
    result = info(tmp_path, node={"status": {"capacity": node["capacity"]}})
    verdict = result["verdict"] + (f":{result['reason']}" if result["reason"] else "")
    assert verdict == case_expected(case)[name]
    line = row(result, "2M")
    assert line["host_bytes"] == 2 * GIB
    assert ("restart the kubelet" in (line["hint"] or "")) is (name == "a")


def test_every_host_of_the_case_is_compared() -> None:
    assert sorted(case_expected("k8s-kubelet-started-before-pool")) == ["a", "b"]


# Neighbours


def pod(limits: dict[str, Any], requests: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    resources = {"limits": limits, **({"requests": requests} if requests is not None else {})}
    return {
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "resources": resources}], **more},
    }


@pytest.mark.parametrize(
    ("limits", "requests", "reasons"),
    [
        ({"hugepages-2Mi": "4Mi", "cpu": 1}, None, []),
        ({"hugepages-2Mi": "4Mi"}, {"memory": "1Gi", "hugepages-2Mi": "4Mi"}, []),
        ({"hugepages-2Mi": "4Mi", "ephemeral-storage": "1Gi"}, None, ["needs_cpu_or_memory"]),
        ({"hugepages-2Mi": "3Mi", "cpu": 1}, None, ["not_whole_pages"]),
        ({"hugepages-2Mi": "0", "cpu": 1}, None, []),
        ({"hugepages-2Mi": "0"}, None, ["needs_cpu_or_memory"]),
        ({"hugepages-2Mi": "-2Mi", "cpu": 1}, None, ["not_whole_pages"]),
        ({"hugepages-2Mi": 4194304, "memory": "1e3"}, {"hugepages-2Mi": "4096Ki"}, []),
        ({"hugepages-1Gi": "1024Mi", "cpu": "500m"}, None, []),
        ({"hugepages-64Ki": "64Ki"}, {"cpu": "0"}, []),
        ({"hugepages-2Mi": "4Mi", "cpu": 1}, {"hugepages-2Mi": "2Mi"}, ["request_differs_from_limit"]),
        ({"cpu": 1}, {"hugepages-2Mi": "2Mi"}, ["request_differs_from_limit"]),
        ({"hugepages-2Mi": "many", "cpu": 1}, None, ["bad_quantity"]),
        ({"hugepages-1Gi": "2Gi", "hugepages-2Mi": "1G", "cpu": 1}, None, ["not_whole_pages"]),
        ({"memory": "1Gi"}, None, []),
    ],
)
def test_pods(
    tmp_path: Path, limits: dict[str, Any], requests: dict[str, Any] | None, reasons: list[str]
) -> None:
    result = info(tmp_path, pods=[pod(limits, requests)])
    assert [line["reason"] for line in result["pod_results"][0]["findings"]] == reasons
    assert result["verdict"] == ("fail" if reasons else "pass")
    assert result["pod_results"][0]["name"] == "p"


ALONE = {"containers": [{"name": "c", "resources": {"limits": {"hugepages-2Mi": "2Mi"}}}]}


@pytest.mark.parametrize(
    ("manifest", "where"),
    [
        ({"kind": "Pod", "spec": ALONE}, "spec.containers[0].resources"),
        (
            {"kind": "Deployment", "spec": {"template": {"spec": ALONE}}},
            "spec.template.spec.containers[0].resources",
        ),
        (
            {"kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": {"spec": ALONE}}}}},
            "spec.jobTemplate.spec.template.spec.containers[0].resources",
        ),
        (
            {"kind": "List", "items": [{"kind": "Pod", "spec": ALONE}]},
            "items[0].spec.containers[0].resources",
        ),
        (
            {"kind": "Pod", "spec": {"containers": [{}], "resources": {"limits": {"hugepages-1Gi": "1Gi"}}}},
            "spec.resources",
        ),
    ],
)
def test_wherever_a_manifest_asks_for_pages(manifest: dict[str, Any], where: str, tmp_path: Path) -> None:
    result = info(tmp_path, pods=[manifest])
    assert (result["verdict"], result["reason"]) == ("fail", "needs_cpu_or_memory")
    assert [row["where"] for row in result["pod_results"][0]["findings"]] == [where]


@pytest.mark.parametrize(
    "manifest",
    [
        {"kind": "Deployment", "spec": {"replicas": 1}},
        {"spec": {"containers": []}},
        {"kind": "List", "items": [None]},
    ],
)
def test_a_manifest_that_makes_no_pod_is_not_fine(manifest: dict[str, Any], tmp_path: Path) -> None:
    assert info(tmp_path, pods=[manifest])["reason"] == "no_spec"


@pytest.mark.parametrize("resources", [["hugepages-2Mi"], {"limits": "hugepages-2Mi"}, "2Mi"])
def test_resources_of_another_shape_are_no_crash(resources: Any, tmp_path: Path) -> None:
    manifest = {"spec": {"containers": [{"name": "c", "resources": resources}, "d"]}}
    assert info(tmp_path, pods=[manifest])["reason"] == "bad_quantity"
    node = {"capacity": {"hugepages-2Mi": "0"}}
    asked = {"sysroot": str(tmp_path), "pods": [manifest], "pods_on_node": True, "node": node}
    assert run_module("kubelet_info", asked)["reason"] == "bad_quantity"


def test_limits_of_the_pod_itself_count(tmp_path: Path) -> None:
    pool(tmp_path, 2048, 100, 60)
    own = pod({"hugepages-2Mi": "20Mi", "cpu": 1}, resources={"limits": {"hugepages-2Mi": "80Mi", "cpu": 1}})
    result = info(tmp_path, node={"capacity": {"hugepages-2Mi": "200Mi"}}, pods=[own], pods_on_node=True)
    assert (result["verdict"], row(result, "2M")["outside_pages"]) == ("pass", 0)


def test_init_containers_are_looked_at_too(tmp_path: Path) -> None:
    init = [{"name": "i", "resources": {"limits": {"hugepages-2Mi": "2Mi"}}}]
    result = info(tmp_path, pods=[pod({"cpu": 1}, initContainers=init), {"kind": "Pod"}])
    found = [[line["where"] for line in entry["findings"]] for entry in result["pod_results"]]
    assert found == [["spec.initContainers[0].resources"], ["spec"]]


def test_what_the_pods_of_the_node_use_is_not_outside(tmp_path: Path) -> None:
    pool(tmp_path, 2048, 1024, 600, 24)
    pods = [pod({"hugepages-2Mi": "512Mi", "cpu": 1}), pod({"hugepages-2Mi": "384Mi", "cpu": 1})]
    ended = {**pod({"hugepages-2Mi": "1Gi", "cpu": 1}), "status": {"phase": "Succeeded"}}
    node = {"capacity": {"hugepages-2Mi": "2Gi", "cpu": "64"}}
    result = info(tmp_path, node=node, pods=[*pods, ended], pods_on_node=True)
    assert (result["verdict"], row(result, "2M")["outside_pages"]) == ("pass", 0)
    result = info(tmp_path, node=node, pods=[pods[0], ended], pods_on_node=True)
    assert (result["reason"], row(result, "2M")["outside_pages"]) == ("pool_used_outside_kubernetes", 192)
    assert row(info(tmp_path, node=node), "2M")["outside_pages"] is None


def pages(count: int, **more: Any) -> dict[str, Any]:
    return {"name": "x", "resources": {"limits": {"hugepages-2Mi": f"{2 * count}Mi", "cpu": 1}}, **more}


@pytest.mark.parametrize(
    ("before", "running", "used"),
    [
        ([pages(30)], [pages(10), pages(15)], 30),
        ([pages(5), pages(6)], [pages(10), pages(15)], 25),
        ([pages(5, restartPolicy="Always")], [pages(10), pages(15)], 30),
        ([pages(5, restartPolicy="Always"), pages(40)], [pages(10)], 45),
        ([pages(40), pages(5, restartPolicy="Always")], [pages(10)], 40),
        ([], [], 0),
    ],
)
def test_a_sidecar_runs_on_and_other_init_containers_do_not(
    tmp_path: Path, before: list[dict[str, Any]], running: list[dict[str, Any]], used: int
) -> None:
    """The pool is used by exactly what the pod may use: one page less, and somebody else has one."""
    node = {"capacity": {"hugepages-2Mi": "200Mi"}}
    manifest = {"spec": {"initContainers": before, "containers": running}}
    for outside in (0, 1):
        pool(tmp_path, 2048, 100, 100 - used - outside)
        result = info(tmp_path, node=node, pods=[manifest], pods_on_node=True)
        assert row(result, "2M")["outside_pages"] == outside


@pytest.mark.parametrize(
    ("capacity", "total", "free", "reserved", "verdict", "outside"),
    [
        ("20Gi", 20, 20, 0, "pass", 0),
        ("20Gi", 20, 20, 3, "fail", 3),
        ("20Gi", 20, 0, 0, "fail", 20),
        ("21474836480", 20, 17, 1, "fail", 4),
        ("19Gi", 20, 17, 0, "fail", 3),
    ],
)
def test_neighbours_of_a_pool_used_outside(
    tmp_path: Path, capacity: str, total: int, free: int, reserved: int, verdict: str, outside: int
) -> None:
    pool(tmp_path, 1 << 20, total, free, reserved)
    result = info(
        tmp_path, node={"capacity": {"hugepages-1Gi": capacity}}, pods_requested={"hugepages-1Gi": 0}
    )
    assert (result["verdict"], row(result, "1G")["outside_pages"]) == (verdict, outside)
    stale = capacity == "19Gi"
    reason = "kubelet_capacity_stale" if stale else "pool_used_outside_kubernetes"
    assert result["reason"] == (reason if outside else None)


def test_a_size_that_only_one_of_both_has(tmp_path: Path) -> None:
    pool(tmp_path, 2048, 4, 4)
    result = info(tmp_path, node={"capacity": {"hugepages-1Gi": "1Gi"}})
    assert {line["size"]: line["reason"] for line in result["node_results"]} == {
        "1G": "kubelet_capacity_stale",
        "2M": "kubelet_capacity_stale",
    }


def test_what_cannot_be_read_is_not_evaluated(tmp_path: Path) -> None:
    put(tmp_path, f"{POOLS}/hugepages-2048kB/free_hugepages", "4\n")
    result = info(tmp_path, node={"capacity": {"hugepages-2Mi": "0"}})
    assert (result["verdict"], result["reason"]) == ("not_evaluated", "not_available")
    put(tmp_path, f"{POOLS}/hugepages-2048kB/nr_hugepages", "0\n")
    node = {"capacity": {"hugepages-2Mi": "0"}}
    assert info(tmp_path, node=node)["verdict"] == "pass"
    assert info(tmp_path, node=node, pods_requested={})["verdict"] == "not_evaluated"
    assert info(tmp_path)["reason"] == "nothing_given"


def test_a_template_is_no_pod_of_the_node(tmp_path: Path) -> None:
    web = {"kind": "Deployment", "metadata": {"name": "web"}, "spec": {"template": {"spec": {"containers": [{}]}}}}
    node = {"capacity": {"hugepages-2Mi": "0"}}
    asked = {"sysroot": str(tmp_path), "pods": [web], "pods_on_node": True, "node": node}
    result = run_module("kubelet_info", asked)
    assert (result["failed"], result["reason"]) == (True, "not_a_pod")
    assert "Deployment 'web'" in result["msg"]


@pytest.mark.parametrize(
    "args",
    [
        {"node": {"capacity": {"hugepages-2Mi": "2Gi?"}}},
        {"node": {"kind": "Node"}},
        {"node": {"capacity": {}}, "pods_requested": {"hugepages-3x": "1"}},
    ],
)
def test_an_object_that_cannot_be_understood_is_an_error(tmp_path: Path, args: dict[str, Any]) -> None:
    result = run_module("kubelet_info", {"sysroot": str(tmp_path), **args})
    assert (result["failed"], result["reason"]) == (True, "bad_quantity")
