# SPDX-License-Identifier: GPL-3.0-or-later
"""Transparent huge pages of the plan: words that this kernel offers become modes and one boot argument."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _thp
from plan_host import make_host, plan, reasons, record, refused
from support import put

THP = {"sections": ["thp"]}
SYSFS = "/sys/kernel/mm/transparent_hugepage"


def host(root: Path) -> Path:
    make_host(root)
    put(root, f"{SYSFS}/defrag", "always defer [madvise] never\n")
    return root


def section(root: Path, value: Any) -> dict[str, Any]:
    found: dict[str, Any] = plan(root, {"thp": value}, **THP)["plan"]["sections"]["thp"]
    return found


@pytest.mark.parametrize("mode", ["always", "madvise", "never"])
def test_a_word_is_the_mode_and_the_boot_argument(tmp_path: Path, mode: str) -> None:
    result = plan(host(tmp_path), {"thp": mode}, **THP)
    assert result["plan"]["sections"]["thp"]["settings"] == {"enabled": mode}
    assert result["plan"]["boot"]["tokens"] == [f"transparent_hugepage={mode}"]
    assert result["plan"]["boot"]["keys"] == ["transparent_hugepage"] and result["notes"] == []


def test_a_mapping_sets_more(tmp_path: Path) -> None:
    wish = {"enabled": "madvise", "defrag": "defer", "shmem_enabled": None}
    found = section(host(tmp_path), wish)
    assert found["settings"] == {"enabled": "madvise", "defrag": "defer"}
    found = section(tmp_path, {"defrag": "never"})
    assert found["settings"] == {"defrag": "never"} and found["tokens"] == []


@pytest.mark.parametrize(
    "value",
    ["on", "", True, False, 1, ["madvise"], "Madvise", {"enabled": "on"}, {"mode": "never"}, {"enabled": None},
     {"defrag": True}],
)  # fmt: skip
def test_what_is_no_mode_is_refused(tmp_path: Path, value: Any) -> None:
    rows = refused(host(tmp_path), {"thp": value}, **THP)
    assert [(row["reason"], row["variable"]) for row in rows] == [("bad_value", "firsttouch_thp")]


def test_what_this_kernel_does_not_offer_is_refused(tmp_path: Path) -> None:
    rows = refused(host(tmp_path), {"thp": {"defrag": "defer+madvise", "shmem_enabled": "advise"}}, **THP)
    assert [(row["reason"], row["setting"]) for row in rows] == [
        ("unsupported", "defrag"),
        ("unsupported", "shmem_enabled"),
    ]
    assert rows[0]["available"] == ["always", "defer", "madvise", "never"]


def test_a_kernel_without_them_never_uses_them(tmp_path: Path) -> None:
    shutil.rmtree(host(tmp_path) / SYSFS[1:])
    assert reasons(refused(tmp_path, {"thp": "madvise"}, **THP)) == ["unsupported"]
    result = plan(tmp_path, {"thp": "never"}, **THP)
    assert result["plan"]["sections"]["thp"]["settings"] == {} and result["plan"]["boot"]["tokens"] == []
    assert reasons(result["notes"]) == ["unsupported"]


def test_a_tree_without_sysfs_is_planned_by_what_linux_knows(tmp_path: Path) -> None:
    assert section(tmp_path, "never")["tokens"] == ["transparent_hugepage=never"]


def test_absent_takes_all_of_it_and_unset_keeps_it(tmp_path: Path) -> None:
    record(host(tmp_path), plan(tmp_path, {"thp": "madvise"}))
    kept = plan(tmp_path, {})["plan"]
    assert kept["sections"]["thp"]["orphaned"] == ["thp"]
    assert kept["boot"]["tokens"] == ["transparent_hugepage=madvise"]
    gone = plan(tmp_path, {"thp": "absent"})["plan"]
    assert gone["sections"]["thp"]["state"] == "absent" and gone["boot"]["tokens"] == []
    assert gone["boot"]["owned"] == ["transparent_hugepage=madvise"]


def test_the_mode_first_found_is_saved_once(tmp_path: Path) -> None:
    host(tmp_path)
    wish = {"enabled": "never", "defrag": "never"}
    assert record(tmp_path, plan(tmp_path, {"thp": wish}))["before"]["thp"] == {
        "enabled": "madvise",
        "defrag": "madvise",
    }
    put(tmp_path, f"{SYSFS}/enabled", "always madvise [never]\n")
    put(tmp_path, _thp.FILE, _thp.render({"enabled": "never"}) or "")
    again = record(tmp_path, plan(tmp_path, {"thp": "always"}))["before"]["thp"]
    assert again == {"enabled": "madvise"}
    assert record(tmp_path, plan(tmp_path, {"thp": "absent"}))["before"]["thp"] == again
    (tmp_path / _thp.FILE[1:]).unlink()
    assert record(tmp_path, plan(tmp_path, {"thp": "absent"}))["before"]["thp"] == {}
