# SPDX-License-Identifier: GPL-3.0-or-later
"""hugepages_release: what the reservation unit took is given back, and never a page in use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _hugepages_release, _systemd
from ansible_collections.firsttouch.host.plugins.module_utils._tree import Tree
from plan_host import make_host, plan, record
from support import put, run_module

NODE = "/sys/devices/system/node"
UNIT = "/etc/systemd/system/firsttouch-hugepages.service"
MOUNT = "mnt-h.mount"
NONE = {"2048kB": {"0": 0, "1": 0}}


def unit(**sizes: dict[int, int]) -> str:
    rows = [{"size_kb": int(name.lstrip("_")), "nodes": nodes} for name, nodes in sizes.items()]
    return _systemd.render_hugepages_service(rows)


def pool(root: Path, *nodes: tuple[int, int], kb: int = 2048, reserved: int = 0, surplus: int = 0) -> None:
    """(total, free) of each node; SURPLUS pages are on node 0."""
    totals = [sum(numbers) for numbers in zip(*nodes)]
    base = f"/sys/kernel/mm/hugepages/hugepages-{kb}kB"
    for name, number in (("nr", totals[0]), ("free", totals[1]), ("resv", reserved), ("surplus", surplus)):
        put(root, f"{base}/{name}_hugepages", f"{number}\n")
    for node, (total, free) in enumerate(nodes):
        base = f"{NODE}/node{node}/hugepages/hugepages-{kb}kB"
        for name, number in (("nr", total), ("free", free), ("surplus", 0 if node else surplus)):
            put(root, f"{base}/{name}_hugepages", f"{number}\n")


def written(root: Path, node: int, kb: int = 2048) -> int:
    path = f"{NODE}/node{node}/hugepages/hugepages-{kb}kB/nr_hugepages"
    return int((root / path.lstrip("/")).read_text())


def release(root: Path, check: bool = False, **args: Any) -> dict[str, Any]:
    result = run_module("hugepages_release", {"sysroot": str(root), "before": NONE, **args}, check=check)
    assert not result.get("failed"), result
    return result


def host(root: Path, *nodes: tuple[int, int], **options: Any) -> Path:
    put(root, UNIT, unit(_2048={0: 300, 1: 200}))
    pool(root, *(nodes or ((300, 300), (200, 200))), **options)
    return root


def test_check_mode_predicts_what_is_given_back(tmp_path: Path) -> None:
    root = host(tmp_path)
    predicted = release(root, check=True)
    assert (written(root, 0), written(root, 1)) == (300, 200)
    done = release(root)
    for name in ("changed", "changes", "kept", "diff"):
        assert predicted[name] == done[name]
    assert done["changes"] == [
        {"resource": "pool:2048kB:node0", "before": 300, "after": 0},
        {"resource": "pool:2048kB:node1", "before": 200, "after": 0},
    ]
    assert (written(root, 0), written(root, 1)) == (0, 0) and done["kept"] == []
    assert release(root)["changed"] is False


def test_the_former_count_is_restored(tmp_path: Path) -> None:
    root = host(tmp_path)
    rows = release(root, before={"2048kB": {"0": 40, "1": 250}})["changes"]
    assert [(row["before"], row["after"]) for row in rows] == [(300, 40), (200, 250)]


@pytest.mark.parametrize(
    ("nodes", "options", "after"),
    [
        (((300, 100), (200, 200)), {}, [200, 0]),
        (((300, 0), (200, 200)), {}, [300, 0]),
        # Reserved pages belong to no node: the lower nodes give first, as much as the kernel takes back in all.
        (((300, 300), (200, 200)), {"reserved": 450}, [250, 200]),
        (((300, 300), (200, 200)), {"reserved": 100}, [0, 100]),
        # Of 310 pages 10 are surplus: the kernel would turn pages in use into such ones.
        (((310, 100), (200, 200)), {"surplus": 10}, [210, 10]),
    ],
)
def test_pages_in_use_stay_and_are_named(
    tmp_path: Path, nodes: tuple[tuple[int, int], ...], options: dict[str, int], after: list[int]
) -> None:
    root = host(tmp_path, *nodes, **options)
    predicted, surplus = release(root, check=True), options.get("surplus", 0)
    result = {row["resource"]: row["after"] for row in predicted["changes"]}
    shown = [result.get(f"pool:2048kB:node{node}", total) for node, (total, _free) in enumerate(nodes)]
    assert shown == after
    release(root)
    # The kernel is told the persistent pages and shows the surplus ones with them.
    assert [written(root, 0), written(root, 1)] == [after[0] - surplus, after[1]]
    assert {row["node"] for row in predicted["kept"]} == {node for node, count in enumerate(after) if count}
    for row in predicted["kept"]:
        assert "in use or reserved" in row["text"] and f"node {row['node']} keeps" in row["text"]


def test_what_was_not_recorded_is_left_alone(tmp_path: Path) -> None:
    root = host(tmp_path)
    result = release(root, before={"2048kB": {"1": 0}})
    assert [row["resource"] for row in result["changes"]] == ["pool:2048kB:node1"] and written(root, 0) == 300
    assert [(row["node"], row["wanted"]) for row in result["kept"]] == [(0, None)]
    assert "not recorded" in result["kept"][0]["text"]


def test_counters_that_cannot_be_read_are_no_zero(tmp_path: Path) -> None:
    put(tmp_path, UNIT, unit(_2048={0: 300}))
    result = release(tmp_path)
    assert not result["changed"] and result["kept"][0]["pages"] is None


def test_what_the_new_unit_or_the_plan_asks_for_stays(tmp_path: Path) -> None:
    root = host(tmp_path)
    new = release(root, unit=unit(_2048={1: 50}), check=True)
    assert [row["resource"] for row in new["changes"]] == ["pool:2048kB:node0"]
    # The boot arguments take over: no page goes only to come back.
    planned = [{"size_kb": 2048, "nodes": {"0": 300, "1": 120}}]
    rows = release(root, pools=planned)["changes"]
    assert [(row["resource"], row["after"]) for row in rows] == [("pool:2048kB:node1", 120)]
    more = [{"size_kb": 2048, "nodes": {"0": 400, "1": 400}}]
    assert release(root, pools=more)["changes"] == []


def test_several_sizes(tmp_path: Path) -> None:
    put(tmp_path, UNIT, unit(_2048={0: 8}, _1048576={1: 2}))
    pool(tmp_path, (8, 8), (0, 0))
    pool(tmp_path, (0, 0), (2, 1), kb=1048576)
    result = release(tmp_path, before={**NONE, "1048576kB": {"1": 0}})
    assert [(row["resource"], row["after"]) for row in result["changes"]] == [
        ("pool:1048576kB:node1", 1),
        ("pool:2048kB:node0", 0),
    ]
    assert [row["size_kb"] for row in result["kept"]] == [1048576]


@pytest.mark.parametrize("text", [None, "[Service]\nExecStart=/bin/sh -c ' \\\n  pages 0 2048 300; \\\n'\n"])
def test_without_a_unit_of_ours_nothing_is_touched(tmp_path: Path, text: str | None) -> None:
    pool(tmp_path, (300, 300), (200, 200))
    if text:
        put(tmp_path, UNIT, text)
    result = release(tmp_path)
    assert not result["changed"] and not result["kept"]


def mounted(root: Path, **options: Any) -> Path:
    text = _systemd.render_hugetlbfs_mount("/mnt/h", "2M", **options)
    put(root, f"/etc/systemd/system/{MOUNT}", text)
    put(root, "/proc/mounts", "hugetlbfs /mnt/h hugetlbfs rw,pagesize=2M 0 0\n")
    return root


def test_check_mode_knows_what_the_mounts_promise(tmp_path: Path) -> None:
    """min_size of a mount is reserved as long as it is mounted; a real run has unmounted it before."""
    root = mounted(host(tmp_path, reserved=100), min_size_bytes=100 << 21)
    predicted = release(root, check=True, unmounting=[MOUNT])
    assert [row["after"] for row in predicted["changes"]] == [0, 0] and not predicted["kept"]
    assert [row["after"] for row in release(root, check=True)["changes"]] == [0, 100]
    # A real run goes by the counters.
    assert [row["after"] for row in release(root, unmounting=[MOUNT])["changes"]] == [0, 100]


def test_check_mode_knows_what_files_in_the_mounts_hold(tmp_path: Path) -> None:
    root = mounted(host(tmp_path, (300, 298), (200, 200)))
    (root / "mnt/h").mkdir(parents=True)
    (root / "mnt/h/weights").write_bytes(b"x" * (4 << 20))
    predicted = release(root, check=True, unmounting=[MOUNT])
    assert [row["after"] for row in predicted["changes"]] == [0, 0] and not predicted["kept"]


def test_a_kernel_that_does_otherwise_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = host(tmp_path)
    monkeypatch.setattr(Tree, "number", lambda *_: 7)
    steps = _hugepages_release.apply_release(
        str(root), [_hugepages_release.Step(2048, 0, 300, 0, 0, write=0)]
    )
    assert _hugepages_release.changes(steps)[0]["after"] == 7
    assert "shows 7 after 0 was written" in steps[0].text


def test_a_file_that_refuses_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = host(tmp_path)

    def refuse(*_: object) -> None:
        raise OSError(12, "Cannot allocate memory", "/sys/x")

    monkeypatch.setattr(_hugepages_release, "apply_release", refuse)
    result = run_module("hugepages_release", {"sysroot": str(root), "before": NONE})
    assert result["failed"] and result["reason"] == "write_error" and "/sys/x" in result["msg"]


def test_the_way_back_of_a_whole_host(tmp_path: Path) -> None:
    """Plan, record, unit, pages; then the intent goes away, as a revert or as `absent`."""
    root = make_host(tmp_path)
    pool(root, (10, 10), (0, 0))
    intent = {"hugepages": [{"size": "2M", "nodes": {"0": 300, "1": 200}}], "hugepages_method": "unit"}
    result = plan(root, intent)
    record(root, result)
    run_module("systemd_units", {"units": result["units"], "sysroot": str(root)})
    pool(root, (300, 300), (200, 180))
    for options in ({"intent": {"hugepages": "absent"}}, {"intent": {}, "revert": True}):
        later = plan(root, **options)
        former = record(root, later, check=True)["before"]["pools"]
        assert later["units_absent"] == ["firsttouch-hugepages.service"]
        pools = later["plan"]["sections"]["hugepages"]["pools"]
        rows = release(root, check=True, before=former, pools=pools)
        assert [(row["before"], row["after"]) for row in rows["changes"]] == [(300, 10), (200, 20)]
