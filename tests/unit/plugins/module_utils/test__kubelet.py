# SPDX-License-Identifier: GPL-3.0-or-later
"""Kubernetes quantities and what pods may use of each page size."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils._kubelet import (
    NotAPod,
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
