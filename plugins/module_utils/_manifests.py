# SPDX-License-Identifier: Apache-2.0
"""Manifests of Kubernetes that keep to a plan: who loads weights, who reads them, and who takes huge pages of its own.

Hosts with the same pools, mounts and models share the same manifests, under a label that is their digest. What decides
about each field:
- Pages that are first touched in a pod count against its hugetlb control group, and a pod without a limit has none: a
  write ends it with SIGBUS. So the loader asks for all that its mount may hold, and keeps it as long as it is there.
- Only Guaranteed pods are put on one node by the memory manager. The loader fills several nodes, so it is Burstable on
  purpose (cpu without a limit); what runs inference is Guaranteed with whole CPUs, which the CPU manager then pins.
- The default seccomp profile of container runtimes keeps mbind() and set_mempolicy() for CAP_SYS_NICE.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from . import _yaml_text
from ._intent import page_size_kb
from ._kubelet import check_pod
from ._plan_kubelet import format_quantity

LABEL = "firsttouch.host/plan"
MARKER = "# Made by firsttouch.host from the plan of a host: changes are overwritten."
_POD_PAGES_BYTES = 64 << 20
_CPU = 2
_MEMORY = "1Gi"


class ManifestError(ValueError):
    """Why there is no manifest; `reason` is a code."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def digest(plan: Mapping[str, Any], image: str) -> str:
    """What the manifests of PLAN depend on, as a label."""
    parts = [_pools(plan), _mounts(plan), _models(plan), image]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def render(plan: Mapping[str, Any], image: str) -> dict[str, str]:
    """{file name: text} of the manifests for the hosts of PLAN. Raises ManifestError."""
    if not image:
        raise ManifestError(
            "no_image", "the manifests run a container image with the runtime: set firsttouch_manifests_image"
        )
    label = digest(plan, image)
    documents: dict[str, Mapping[str, Any]] = {}
    models = _models(plan)
    if models:
        documents["loader.yml"] = loader(plan, image, label)
        documents["worker.yml"] = worker(models, image, label)
    for pool in _pools(plan):
        name = f"hugepages-{_resource_size(pool['size_kb'])}"
        free = _free_bytes(plan, pool)
        if free:
            documents[f"{name}.yml"] = hugepages(pool, free, image, label)
    for name, document in documents.items():
        spec = document["spec"].get("template", document)
        found = check_pod(spec)
        if found:
            raise ManifestError(found[0].reason, f"{name}: {found[0].where}: {found[0].text}")
    return {name: _yaml_text.dump(document, MARKER) for name, document in documents.items()}


def loader(plan: Mapping[str, Any], image: str, label: str) -> dict[str, Any]:
    """A DaemonSet that loads the models on each host of the plan, and holds their pages in the scheduler's books."""
    models = _models(plan)
    mounts = {row["path"]: row for row in _mounts(plan)}
    used = [mounts[path] for path in dict.fromkeys(model["mount"] for model in models)]
    volumes = [_host_path(_volume("pages", row["path"]), row["path"], "Directory") for row in used]
    sources = list(dict.fromkeys(model["source"] for model in models))
    volumes += [_host_path(_volume("source", path), path) for path in sources]
    limits: dict[str, Any] = {"memory": _MEMORY}
    for row in used:
        resource = f"hugepages-{_resource_size(page_size_kb(row['page_size']))}"
        if row["size_bytes"] is None:
            text = f"{row['path']}: a loader in a pod must ask for what the mount may hold; give it a size"
            raise ManifestError("mount_without_size", f"{text} in firsttouch_hugetlbfs_mounts")
        limits[resource] = limits.get(resource, 0) + row["size_bytes"]
    limits = {
        name: value if isinstance(value, str) else format_quantity(value) for name, value in limits.items()
    }
    first, *rest = [_load(model, image, limits) for model in models]
    holder = {
        "name": "holder",
        "image": image,
        "command": ["sleep", "infinity"],
        "resources": _resources(limits, cpu="10m"),
        "securityContext": _confined(),
    }
    pod = {
        "nodeSelector": {LABEL: label},
        "initContainers": [first, *rest],
        "containers": [holder],
        "volumes": volumes,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 5,
    }
    labels = {"app.kubernetes.io/name": "firsttouch-loader", LABEL: label}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": f"firsttouch-loader-{label}", "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _load(model: Mapping[str, Any], image: str, limits: Mapping[str, str]) -> dict[str, Any]:
    arguments = ["firsttouch", "weights", "load", model["source"], "--name", model["name"]]
    arguments += ["--page", model["page_size"], "--dir", model["mount"]]
    arguments += ["--checksum", model["checksum"], "--threads", str(model["threads"])]
    policy = model["policy"]
    if policy != "any":
        option = "node" if policy == "bind" else policy
        arguments += [f"--{option}", ",".join(map(str, model["nodes"]))]
    expect = model.get("expect") or {}
    for file, value in sorted(expect.items() if isinstance(expect, Mapping) else {"": expect}.items()):
        arguments += ["--expect", f"{file}={value}" if file else value]
    context = _confined()
    context["capabilities"] = {"drop": ["ALL"], "add": ["SYS_NICE"]}
    return {
        "name": _dns(f"load-{model['name']}"),
        "image": image,
        "command": arguments,
        "resources": _resources(limits, cpu="100m"),
        "securityContext": context,
        "volumeMounts": [
            {"name": _volume("source", model["source"]), "mountPath": model["source"], "readOnly": True},
            {"name": _volume("pages", model["mount"]), "mountPath": model["mount"]},
        ],
    }


def worker(models: list[Mapping[str, Any]], image: str, label: str) -> dict[str, Any]:
    """A pod that maps the weights read-only; its command is an example, and proves that they can be read."""
    paths = list(dict.fromkeys(model["mount"] for model in models))
    first = models[0]
    container = {
        "name": "worker",
        "image": image,
        "command": ["firsttouch", "weights", "verify", first["name"], "--dir", first["mount"]],
        "env": [{"name": "FIRSTTOUCH_WEIGHTS_DIR", "value": first["mount"]}],
        "resources": _guaranteed({"cpu": str(_CPU), "memory": _MEMORY}),
        "securityContext": _confined(),
        "volumeMounts": [
            {"name": _volume("pages", path), "mountPath": path, "readOnly": True} for path in paths
        ],
    }
    volumes = [_host_path(_volume("pages", path), path, "Directory") for path in paths]
    return _pod("worker", label, container, volumes)


def hugepages(pool: Mapping[str, Any], free: int, image: str, label: str) -> dict[str, Any]:
    """A pod with huge pages of its own, of one node: what it asks for is whole pages that one node has."""
    page = pool["size_kb"] * 1024
    size = max(page, min(free, _POD_PAGES_BYTES) // page * page)
    resource = f"hugepages-{_resource_size(pool['size_kb'])}"
    container = {
        "name": "pages",
        "image": image,
        "command": ["firsttouch", "doctor"],
        "resources": _guaranteed({"cpu": str(_CPU), "memory": _MEMORY, resource: format_quantity(size)}),
        "securityContext": _confined(),
        "volumeMounts": [{"name": "pages", "mountPath": "/hugepages"}],
    }
    volume = {"name": "pages", "emptyDir": {"medium": f"HugePages-{_resource_size(pool['size_kb'])}"}}
    return _pod(resource.lower(), label, container, [volume])


def _pod(
    name: str, label: str, container: Mapping[str, Any], volumes: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"firsttouch-{name}-{label}",
            "labels": {"app.kubernetes.io/name": f"firsttouch-{name}"},
        },
        "spec": {
            "nodeSelector": {LABEL: label},
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "containers": [container],
            "volumes": volumes,
        },
    }


def _resources(limits: Mapping[str, str], cpu: str) -> dict[str, Any]:
    """LIMITS with a request of CPU and no limit of it, which makes a pod Burstable."""
    return {"limits": dict(limits), "requests": {**limits, "cpu": cpu}}


def _guaranteed(amounts: Mapping[str, str]) -> dict[str, Any]:
    return {"limits": dict(amounts), "requests": dict(amounts)}


def _confined() -> dict[str, Any]:
    """Root, for the mode of the mount, with nothing else that root can do."""
    return {
        "runAsUser": 0,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _host_path(name: str, path: str, kind: str = "") -> dict[str, Any]:
    return {"name": name, "hostPath": {"path": path, "type": kind}}


def _volume(kind: str, path: str) -> str:
    return f"{kind}-{hashlib.sha256(path.encode()).hexdigest()[:8]}"


def _dns(name: str) -> str:
    """NAME as a DNS label; what is lost on the way is kept apart by a digest."""
    plain = "".join(char if char.isalnum() else "-" for char in name.lower()).strip("-")
    if plain == name:
        return plain[:63].rstrip("-")
    return f"{plain[:54].rstrip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _resource_size(size_kb: int) -> str:
    return format_quantity(size_kb * 1024)


def _free_bytes(plan: Mapping[str, Any], pool: Mapping[str, Any]) -> int:
    """Bytes of POOL on its largest node beside what mounts may take, as if these took all of it from that node."""
    page = int(pool["size_kb"]) * 1024
    mounts = [row for row in _mounts(plan) if page_size_kb(row["page_size"]) == pool["size_kb"]]
    taken = sum(row["size_bytes"] or 0 for row in mounts)
    most = max((int(count) for count in pool["nodes"].values()), default=0) * page
    return max(0, most - taken) // page * page


def _pools(plan: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list((plan["sections"].get("hugepages") or {}).get("pools") or ())


def _mounts(plan: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list((plan["sections"].get("hugepages") or {}).get("mounts") or ())


def _models(plan: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list((plan["sections"].get("runtime") or {}).get("models") or ())
