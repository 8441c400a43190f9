# SPDX-License-Identifier: GPL-3.0-or-later
"""The manifests: valid for every Kubernetes of the schemas, admitted by our own rules, and what the plan says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from plan_host import make_host, plan
from support import ROOT, run_module

# Of the validator, which the Pythons of the matrix do without.
LATEST = ""
IMAGE = "registry.example/firsttouch:0.1.0"
INTENT: dict[str, Any] = {
    "hugepages": [{"size": "2M", "nodes": {"0": 300, "1": 600}}],
    "hugetlbfs_mounts": [{"path": "/dev/hugepages-2M", "size": "400M"}],
    "models": [
        {"name": "policy-7", "source": "/srv/models/policy-7", "policy": "replicate", "nodes": [0, 1]},
        {"name": "Value_7.b", "source": "/srv/models/v.safetensors", "expect": "sha256:" + "a" * 64},
    ],
}


def document(root: Path, **more: Any) -> dict[str, Any]:
    root.mkdir(exist_ok=True)
    found: dict[str, Any] = plan(make_host(root), {**INTENT, **more})["plan"]
    return found


def write(root: Path, made: dict[str, Any], image: str = IMAGE, **options: Any) -> dict[str, Any]:
    return run_module(
        "kubernetes_manifests", {"plan": made, "dest": str(root / "out"), "image": image}, **options
    )


def loaded(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {Path(path).name: yaml.safe_load(Path(path).read_text()) for path in result["files"]}


@pytest.fixture
def manifests(tmp_path: Path) -> dict[str, dict[str, Any]]:
    return loaded(write(tmp_path, document(tmp_path / "host")))


def valid(manifest: dict[str, Any], version: str) -> None:
    """As `kubernetes-validate --strict` does; a kind that it does not know, of which that only warns, is an error."""
    validator = pytest.importorskip("kubernetes_validate")
    validator.validate(manifest, version or validator.latest_version(), strict=True)


@pytest.mark.parametrize("version", ["1.28", "1.32", "1.35", LATEST])
def test_every_manifest_is_valid(manifests: dict[str, dict[str, Any]], version: str) -> None:
    assert sorted(manifests) == ["hugepages-2Mi.yml", "loader.yml", "worker.yml"]
    for manifest in manifests.values():
        valid(manifest, version)


def test_the_validation_can_fail(manifests: dict[str, dict[str, Any]]) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    for change in ({"restartPolicies": "Never"}, {"containers": [{"image": "x"}]}):
        pod = manifests["worker.yml"]
        with pytest.raises(validator.ValidationError):
            valid({**pod, "spec": {**pod["spec"], **change}}, LATEST)
    with pytest.raises(validator.SchemaNotFoundError):
        valid({"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}, LATEST)


def pods(manifests: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [row["spec"].get("template", row) for row in manifests.values()]


def test_our_own_rules_admit_them(manifests: dict[str, dict[str, Any]]) -> None:
    result = run_module("kubelet_info", {"pods": pods(manifests)})
    assert result["verdict"] == "pass" and len(result["pod_results"]) == 3


def quality(pod: dict[str, Any]) -> str:
    """The QoS class, by pkg/apis/core/v1/helper/qos."""
    every = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
    for container in every:
        limits, requests = container["resources"]["limits"], container["resources"]["requests"]
        if any(limits.get(name) is None or limits[name] != requests.get(name) for name in ("cpu", "memory")):
            return "Burstable"
    return "Guaranteed"


def test_the_loader_fills_all_nodes_and_what_infers_is_pinned(manifests: dict[str, dict[str, Any]]) -> None:
    kinds = {name: quality(pod) for name, pod in zip(manifests, pods(manifests))}
    assert kinds == {"loader.yml": "Burstable", "worker.yml": "Guaranteed", "hugepages-2Mi.yml": "Guaranteed"}
    for name in ("worker.yml", "hugepages-2Mi.yml"):
        for container in manifests[name]["spec"]["containers"]:
            assert container["resources"]["limits"]["cpu"].isdigit()


def test_the_loader(manifests: dict[str, dict[str, Any]]) -> None:
    pod = manifests["loader.yml"]["spec"]["template"]["spec"]
    first, second = pod["initContainers"]
    assert first["command"] == [
        "firsttouch", "weights", "load", "/srv/models/policy-7", "--name", "policy-7", "--page", "2M", "--dir",
        "/dev/hugepages-2M", "--checksum", "xxh3", "--threads", "4", "--replicate", "0,1",
    ]  # fmt: skip
    assert second["command"][-2:] == ["--expect", "sha256:" + "a" * 64]
    names = [row["name"] for row in (first, second)]
    assert (
        names[0] == "load-policy-7"
        and names[1].startswith("load-value-7-b-")
        and names[1] == names[1].lower()
    )
    for container in (first, second, *pod["containers"]):
        assert container["resources"]["limits"]["hugepages-2Mi"] == "400Mi"
        assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    sources = {row["hostPath"]["path"] for row in pod["volumes"]}
    assert sources == {"/dev/hugepages-2M", "/srv/models/policy-7", "/srv/models/v.safetensors"}
    assert [(row["mountPath"], row.get("readOnly", False)) for row in first["volumeMounts"]] == [
        ("/srv/models/policy-7", True), ("/dev/hugepages-2M", False),
    ]  # fmt: skip


@pytest.mark.skipif(sys.version_info < (3, 10), reason="the runtime needs Python 3.10")
def test_a_command_is_one_that_the_runtime_takes(
    manifests: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "runtime" / "src"))
    parser = pytest.importorskip("firsttouch._cli_weights").parser()
    commands = [
        row["command"] for row in manifests["loader.yml"]["spec"]["template"]["spec"]["initContainers"]
    ]
    for command in [*commands, manifests["worker.yml"]["spec"]["containers"][0]["command"]]:
        assert command[:2] == ["firsttouch", "weights"]
        parser.parse_args(command[2:])


def test_the_worker_cannot_write(manifests: dict[str, dict[str, Any]]) -> None:
    (container,) = manifests["worker.yml"]["spec"]["containers"]
    assert [row["readOnly"] for row in container["volumeMounts"]] == [True]


@pytest.mark.parametrize(
    ("size", "asked"),
    [("400M", "64Mi"), ("1160M", "40Mi"), ("1198M", "2Mi"), ("1200M", None), ("1800M", None)],
)
def test_the_pages_of_a_pod_are_whole_and_of_one_node(tmp_path: Path, size: str, asked: str | None) -> None:
    mounts = [{"path": "/dev/hugepages-2M", "size": size}]
    found = loaded(write(tmp_path, document(tmp_path / "host", hugetlbfs_mounts=mounts)))
    if asked is None:
        assert "hugepages-2Mi.yml" not in found
        return
    resources = found["hugepages-2Mi.yml"]["spec"]["containers"][0]["resources"]
    assert resources["limits"] == resources["requests"] and resources["limits"]["hugepages-2Mi"] == asked
    assert found["hugepages-2Mi.yml"]["spec"]["volumes"][0]["emptyDir"]["medium"] == "HugePages-2Mi"


def test_hosts_with_the_same_pages_and_models_share_manifests(tmp_path: Path) -> None:
    first = write(tmp_path, document(tmp_path / "a"))
    second = write(tmp_path, document(tmp_path / "b", thp="madvise"))
    third = write(tmp_path, document(tmp_path / "c", hugepages=[{"size": "2M", "nodes": {"1": 601}}]))
    assert first["changed"] and not second["changed"] and first["files"] == second["files"]
    assert third["changed"] and third["label"] != first["label"]
    for name, manifest in loaded(first).items():
        pod = manifest["spec"]["template"] if name == "loader.yml" else manifest
        assert pod["spec"]["nodeSelector"] == {"firsttouch.host/plan": first["label"]}


def test_check_mode_predicts_and_writes_nothing(tmp_path: Path) -> None:
    made = document(tmp_path / "host")
    predicted = write(tmp_path, made, check=True)
    assert not (tmp_path / "out").exists()
    done = write(tmp_path, made)
    assert predicted["changes"] == done["changes"] and predicted["diff"] == done["diff"]
    assert not write(tmp_path, made)["changed"]


def test_refusals(tmp_path: Path) -> None:
    open_mount = document(tmp_path / "a", hugetlbfs_mounts=[{"path": "/dev/hugepages-2M"}])
    assert write(tmp_path, open_mount)["reason"] == "mount_without_size"
    assert write(tmp_path, document(tmp_path / "b"), "")["reason"] == "no_image"
    assert not (tmp_path / "out").exists()


def test_without_models_only_pages_are_left(tmp_path: Path) -> None:
    assert sorted(loaded(write(tmp_path, document(tmp_path / "host", models=[])))) == ["hugepages-2Mi.yml"]
