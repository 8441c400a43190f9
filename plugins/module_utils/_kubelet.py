# SPDX-License-Identifier: Apache-2.0
"""Huge pages as Kubernetes counts them: pods that ask for them, a node that offers them, and the host below.

Rules: pkg/apis/core/validation ("HugePages require cpu or memory", whole pages, request equals limit); the
kubelet reads nr_hugepages once when it starts, and its capacity is all pages whoever uses them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from ._intent import format_size

_RESOURCE = "hugepages-"
_QUANTITY = re.compile(r"([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)(Ki|Mi|Gi|Ti|Pi|Ei|[mkMGTPE]|[eE][+-]?\d+)?")
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL = {"m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
# The kinds of Kubernetes that make no pod. Of any other it is not known where its containers are, and a pass would be a
# guess: RayCluster, PyTorchJob and the like.
_MAKE_NO_PODS = frozenset(
    (
        *("Service", "ConfigMap", "Secret", "Namespace", "ServiceAccount", "Role", "RoleBinding", "ClusterRole"),
        *("ClusterRoleBinding", "PersistentVolume", "PersistentVolumeClaim", "StorageClass", "VolumeAttachment"),
        *("CSIDriver", "CSINode", "CSIStorageCapacity", "VolumeAttributesClass", "NetworkPolicy", "Ingress"),
        *("IngressClass", "Endpoints", "EndpointSlice", "PriorityClass", "RuntimeClass", "PodDisruptionBudget"),
        *("HorizontalPodAutoscaler", "ResourceQuota", "LimitRange", "Node", "Event", "Lease", "APIService"),
        *("CustomResourceDefinition", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"),
        *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "CertificateSigningRequest"),
        *("DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice", "FlowSchema"),
        *("PriorityLevelConfiguration", "IPAddress", "ServiceCIDR"),
    )
)
# limits and requests of any of these pay for huge pages; ephemeral storage does not.
_PAYING = ("cpu", "memory")


@dataclass(frozen=True)
class Finding:
    """Something wrong with a pod or a node: a code, where, in words, and what to do."""

    reason: str
    where: str
    text: str
    hint: str = ""

    def as_dict(self) -> dict[str, str]:
        """As the modules return it."""
        return dict(self.__dict__)


def quantity(value: Any) -> int:
    """A resource quantity (`20Gi`, `0`, `512M`, `1e3`) as a whole number of bytes. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f"not a quantity: {value!r}")
    match = _QUANTITY.fullmatch(str(value).strip())
    if not match:
        raise ValueError(f"not a quantity: {value!r}")
    suffix = match.group(2) or ""
    if suffix in _BINARY:
        factor = Fraction(1 << _BINARY[suffix])
    else:
        power = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:] or 0)
        if abs(power) > 30:
            raise ValueError(f"not a quantity: {value!r}")
        factor = Fraction(10) ** power
    found = Fraction(match.group(1)) * factor
    if found.denominator != 1:
        raise ValueError(f"not a whole number: {value!r}")
    return int(found)


class NotAPod(ValueError):
    """An object that stands where a pod of the node is wanted."""


def page_kb(resource: str) -> int | None:
    """The page size in kB of a resource `hugepages-2Mi`; None for another resource. Raises ValueError."""
    if not resource.startswith(_RESOURCE):
        return None
    size = quantity(resource[len(_RESOURCE) :])
    if size <= 0 or size % 1024:
        raise ValueError(f"not a huge page size: {resource!r}")
    return size // 1024


def huge_resources(resources: Mapping[str, Any] | None) -> dict[int, int]:
    """{page size in kB: bytes} of the huge pages in RESOURCES. Raises ValueError."""
    rows = {}
    for name, value in (resources or {}).items():
        size = page_kb(str(name))
        if size is not None:
            rows[size] = quantity(value)
    return rows


def check_pod(pod: Mapping[str, Any]) -> list[Finding]:
    """What the API server or the kubelet would refuse about the huge pages of POD.

    POD is a manifest of kind Pod, of one that holds a template of pods (Deployment, StatefulSet, DaemonSet, ReplicaSet,
    Job, CronJob), or a List with some of these; a Service or a ConfigMap beside them is passed over. Of
    another kind, where the containers are is not known, so it is a finding.
    """
    if isinstance(pod.get("items"), list):
        return _check_items(pod["items"])
    if not isinstance(pod.get("kind", ""), str):
        return [_no_spec("kind", f"{pod['kind']!r} is no kind")]
    where, spec = _pod_spec(pod)
    if not isinstance(spec, Mapping):
        return [_no_spec(where, "the manifest has no spec")]
    if not isinstance(spec.get("containers"), list) or not spec["containers"]:
        return [_no_spec(f"{where}.containers", "no containers where a pod or a template of pods has them")]
    found = list(_check_resources(spec.get("resources"), f"{where}.resources"))
    for kind in ("initContainers", "containers"):
        containers = spec.get(kind) or []
        if not isinstance(containers, list):
            found.append(_no_spec(f"{where}.{kind}", f"{containers!r} is no list of containers"))
            continue
        for position, container in enumerate(containers):
            resources = container.get("resources") if isinstance(container, Mapping) else None
            found += list(_check_resources(resources, f"{where}.{kind}[{position}].resources"))
    return found


def _check_items(items: list[Any]) -> list[Finding]:
    rows = [(at, item) for at, item in enumerate(items) if not _makes_no_pod(item)]
    if items and not rows:
        return [_no_spec("items", "no object of the list makes a pod")]
    return [
        replace(finding, where=f"items[{at}].{finding.where}")
        for at, item in rows
        for finding in (check_pod(item) if isinstance(item, Mapping) else [_no_spec("spec", "no object")])
    ]


def _makes_no_pod(item: Any) -> bool:
    kind = item.get("kind") if isinstance(item, Mapping) else None
    if not isinstance(kind, str) or kind not in _MAKE_NO_PODS:
        return False
    spec = _pod_spec(item)[1]  # a Service of Knative has containers
    return not (isinstance(spec, Mapping) and "containers" in spec)


def _pod_spec(pod: Mapping[str, Any]) -> tuple[str, Any]:
    """Where the containers of POD are, or those of the pods that it makes, and what is there."""
    where, spec = "spec", pod.get("spec")
    for step in ("jobTemplate", "spec", "template", "spec"):
        inner = spec.get(step) if isinstance(spec, Mapping) else None
        if isinstance(inner, Mapping):
            where, spec = f"{where}.{step}", inner
    return where, spec


def name_of(pod: Mapping[str, Any]) -> str:
    """The name of POD; empty where it has none."""
    return str(_mapping(pod, "metadata").get("name") or "")


def _mapping(pod: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = pod.get(key)
    return found if isinstance(found, Mapping) else {}


def _no_spec(where: str, text: str) -> Finding:
    return Finding("no_spec", where, text)


def _check_resources(resources: Any, where: str) -> Iterator[Finding]:
    try:
        limits, requests = _table(resources, "limits"), _table(resources, "requests")
        asked, capped = huge_resources(requests), huge_resources(limits)
    except ValueError as exc:
        yield Finding("bad_quantity", where, str(exc), "write it like hugepages-2Mi: 512Mi")
        return
    for size, count in {**asked, **capped}.items():
        name = f"hugepages of {format_size(size)}"
        if count < 0 or count % (size * 1024):
            text = f"{count} bytes are no whole number of pages"
            yield Finding("not_whole_pages", where, f"{name}: {text}", "ask for a multiple of the page size")
        if asked.get(size, capped.get(size)) != capped.get(size):
            text = f"{name}: the request must equal the limit, huge pages cannot be overcommitted"
            yield Finding("request_differs_from_limit", where, text, "set only the limit")
    if (asked or capped) and not any(key in table for table in (limits, requests) for key in _PAYING):
        text = "HugePages require cpu or memory"
        hint = "add a limit or a request of cpu or memory to the container"
        yield Finding("needs_cpu_or_memory", where, text, hint)


def _table(resources: Any, name: str) -> Mapping[str, Any]:
    """The mapping NAME of RESOURCES, empty where it is not there. Raises ValueError where it is something else."""
    found = (resources or {}).get(name) if isinstance(resources or {}, Mapping) else resources
    if found is not None and not isinstance(found, Mapping):
        raise ValueError(f"{name}: {found!r} is no mapping")
    return found or {}


def requested(pods: Iterable[Mapping[str, Any]]) -> dict[int, int]:
    """{page size in kB: bytes} that the containers of PODS may use at once.

    Init containers run one after the other, before the others; one with restartPolicy Always (a sidecar) runs on. Of
    pods that have ended (Succeeded, Failed) nothing counts. Limits of the pod itself (from Kubernetes 1.34) count in
    the place of those of its containers. A List stands for its items. Raises ValueError, and NotAPod for a template
    too: how many of its pods are on the node it does not say.
    """
    total: dict[int, int] = {}
    for pod in _unpacked(pods):
        if _mapping(pod, "status").get("phase") in ("Succeeded", "Failed"):
            continue
        spec = pod.get("spec") or {}
        if not isinstance(spec, Mapping):
            raise NotAPod(f"the spec of {name_of(pod)!r} is {spec!r}, no mapping")
        for kind in ("initContainers", "containers"):
            if not isinstance(spec.get(kind) or [], list):
                raise NotAPod(f"{kind} of {name_of(pod)!r} is {spec[kind]!r}, no list")
        running: dict[int, int] = {}
        most: dict[int, int] = {}
        for container in spec.get("initContainers") or []:
            stays = container.get("restartPolicy") == "Always" if isinstance(container, Mapping) else False
            for size, count in _limits_of(container).items():
                now = running.get(size, 0) + count
                most[size] = max(most.get(size, 0), now)
                if stays:
                    running[size] = now
        for container in spec.get("containers") or []:
            for size, count in _limits_of(container).items():
                running[size] = running.get(size, 0) + count
        used = {size: max(running.get(size, 0), most.get(size, 0)) for size in {*running, *most}}
        for size, count in {**used, **_limits_of(spec)}.items():
            total[size] = total.get(size, 0) + count
    return total


def _unpacked(pods: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    """PODS, with the items of a List in its place. Raises NotAPod."""
    for pod in pods:
        if not isinstance(pod, Mapping):
            raise NotAPod(f"not a pod: {pod!r}")
        if isinstance(pod.get("items"), list):
            yield from _unpacked(pod["items"])
            continue
        spec = pod.get("spec")
        if isinstance(spec, Mapping) and ("template" in spec or "jobTemplate" in spec):
            name = name_of(pod)
            kind = pod.get("kind") or "object"
            raise NotAPod(f"{kind} {name!r} holds a template, not the pods on the node: give the pods themselves")
        yield pod


def _limits_of(container: Any) -> dict[int, int]:
    return huge_resources(_table(container.get("resources") if isinstance(container, Mapping) else None, "limits"))


def judge_node(
    capacity: Mapping[str, Any],
    used_by_pods: Mapping[int, int] | None,
    pools: Mapping[str, Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """A row per page size that the node or the host has: what the node says against the POOLS of the host.

    CAPACITY is that of the Node object, USED_BY_PODS bytes per size in kB, None where the pods are not known: a
    pool in use then says nothing. A row holds size, node_bytes, host_bytes, available_bytes (free and not
    reserved), outside_pages (used by nobody that Kubernetes knows), verdict, reason, text, hint. Raises
    ValueError for a quantity that cannot be read.
    """
    offered = huge_resources(capacity)
    host = {int(pool["size_kb"]): pool for pool in pools.values()}
    return [
        _judge_size(
            size,
            offered.get(size, 0),
            None if used_by_pods is None else used_by_pods.get(size, 0),
            host.get(size),
        )
        for size in sorted({*offered, *host})
    ]


def _judge_size(size: int, offered: int, pods: int | None, pool: Mapping[str, Any] | None) -> dict[str, Any]:
    page, name = size * 1024, format_size(size)
    row: dict[str, Any] = {
        "size": name,
        "node_bytes": offered,
        "host_bytes": None,
        "available_bytes": None,
        "outside_pages": None,
        "verdict": "pass",
        "reason": None,
        "text": f"the node offers the {name} pages that the host has",
        "hint": None,
    }
    total = 0 if pool is None else pool.get("total")
    if total is None:
        text = f"the pool of {name} cannot be read"
        return {**row, "verdict": "not_evaluated", "reason": "not_available", "text": text}
    row["host_bytes"] = total * page
    available = 0 if pool is None else pool.get("available")
    if available is not None:
        row["available_bytes"] = available * page
        # A reserved page is still free, and promised to a mapping: both are gone for anybody else.
        row["outside_pages"] = None if pods is None else max(0, total - available - pods // page)
    if offered != row["host_bytes"]:
        row.update(verdict="fail", reason="kubelet_capacity_stale")
        row["text"] = f"the node says {offered} bytes of {name} pages, the host has {row['host_bytes']}"
        row["hint"] = "restart the kubelet, it reads the pools only when it starts; reserve them before that"
    elif row["outside_pages"]:
        row.update(verdict="fail", reason="pool_used_outside_kubernetes")
        row["text"] = (
            f"{row['outside_pages']} pages of {name} are used outside of Kubernetes: the scheduler counts "
            f"{offered} bytes, a pod can have {row['available_bytes']}"
        )
        row["hint"] = "find who uses them, or keep them out of what the node offers"
    elif pods is not None and available is None:
        row.update(verdict="not_evaluated", reason="not_available", text=f"free pages of {name} are not readable")
    return row


def capacity_of(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """The capacity of NODE, a Node object or a mapping with `capacity`. Raises ValueError where there is none."""
    found = _mapping(node, "status").get("capacity", node.get("capacity"))
    if not isinstance(found, Mapping):
        raise ValueError("the node has no capacity: give the Node object, or its status.capacity as capacity")
    return found
