# SPDX-License-Identifier: GPL-3.0-or-later
"""What is live on a provisioned two-node host, read from the kernel, against the scenario's expected.json."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import rawhost

SCENARIO = Path(os.environ["MOLECULE_SCENARIO_DIRECTORY"])
EXPECTED: dict[str, Any] = json.loads((SCENARIO / "expected.json").read_text())
NODES = "/sys/devices/system/node/node[0-9]*"
FILES = [
    f"{NODES}/hugepages/hugepages-*/nr_hugepages",
    f"{NODES}/hugepages/hugepages-*/surplus_hugepages",
    "/sys/devices/system/cpu/isolated",
    "/sys/devices/system/cpu/nohz_full",
    "/sys/kernel/mm/transparent_hugepage/*",
    "/proc/cmdline",
    "/proc/irq/default_smp_affinity",
    "/proc/self/mountinfo",
    "/proc/zoneinfo",
    "/etc/firsttouch/plan.json",
    *("/proc/sys/" + key.replace(".", "/") for key in EXPECTED["sysctls"]),
]
# One command: a FIFO thread shows its own policy; page size; owner, group and mode of each mount.
PROBE = (
    "chrt --fifo 1 cat /proc/self/stat; getconf PAGESIZE; "
    f"stat -c '%n %U %G %a' {' '.join(EXPECTED['mounts'])}"
)


@pytest.fixture(scope="module")
def files(host: Any) -> dict[str, str]:
    return rawhost.read_files(host, FILES)


@pytest.fixture(scope="module")
def probe(host: Any) -> list[str]:
    return rawhost.run(host, PROBE).splitlines()


@pytest.mark.parametrize("size", sorted(EXPECTED["pools"]))
def test_pages_per_node_are_exactly_those_asked_for(files: dict[str, str], size: str) -> None:
    assert rawhost.persistent_pages(files)[size] == EXPECTED["pools"][size]


@pytest.mark.parametrize("path", sorted(EXPECTED["mounts"]))
def test_mounts_are_there_once_with_page_size_and_limits(files: dict[str, str], path: str) -> None:
    stack = rawhost.hugetlbfs_mounts(files["/proc/self/mountinfo"]).get(path, [])
    wanted = EXPECTED["mounts"][path]
    assert len(stack) == 1
    assert rawhost.size_bytes(stack[0]["pagesize"]) == wanted["page_bytes"]
    limits = {key: rawhost.size_bytes(stack[0][key]) for key in ("size", "min_size") if key in stack[0]}
    assert limits == {"size": wanted["size_bytes"], "min_size": wanted["min_size_bytes"]}


@pytest.mark.parametrize("path", sorted(EXPECTED["mounts"]))
def test_mounts_have_owner_group_and_mode(probe: list[str], path: str) -> None:
    wanted = EXPECTED["mounts"][path]
    assert f"{path} {wanted['owner']} {wanted['group']} {wanted['mode']}" in probe


def test_isolated_cpus(files: dict[str, str]) -> None:
    live = rawhost.cpu_list(files["/sys/devices/system/cpu/isolated"])
    assert live == rawhost.cpu_list(EXPECTED["isolated"])


def test_nohz_full_cpus(files: dict[str, str]) -> None:
    live = rawhost.cpu_list(files["/sys/devices/system/cpu/nohz_full"])
    assert live == rawhost.cpu_list(EXPECTED["nohz_full"])


def test_default_irq_affinity(files: dict[str, str]) -> None:
    live = rawhost.cpu_mask(files["/proc/irq/default_smp_affinity"])
    assert live == rawhost.cpu_list(EXPECTED["default_irq_affinity"])


@pytest.mark.parametrize("key", sorted(EXPECTED["sysctls"]))
def test_sysctls(files: dict[str, str], key: str) -> None:
    assert files["/proc/sys/" + key.replace(".", "/")] == EXPECTED["sysctls"][key]


@pytest.mark.parametrize("name", sorted(EXPECTED["transparent_hugepages"]))
def test_transparent_huge_pages(files: dict[str, str], name: str) -> None:
    chosen = re.findall(r"\[([^]]+)\]", files[f"/sys/kernel/mm/transparent_hugepage/{name}"])
    assert chosen == [EXPECTED["transparent_hugepages"][name]]


def test_watermark_distance_keeps_what_extra_free_kbytes_meant(
    files: dict[str, str], probe: list[str]
) -> None:
    page = int(next(line for line in probe if re.fullmatch(r"\d+", line)))
    assert rawhost.low_minus_min(files["/proc/zoneinfo"]) * page >= EXPECTED["extra_free_bytes"]


def test_fifo_is_granted(probe: list[str]) -> None:
    stat = next(line for line in probe if re.match(r"\d+ \(", line))
    fields = stat.rpartition(") ")[2].split()
    # proc_pid_stat(5): the state is field 3, rt_priority 40, policy 41; SCHED_FIFO is 1.
    assert (fields[40 - 3], fields[41 - 3]) == ("1", "1")


def test_tokens_run_in_order_and_once(files: dict[str, str]) -> None:
    line = files["/proc/cmdline"]
    assert rawhost.in_order(EXPECTED["tokens"], line)
    ours = [token for token in line.split() if token.partition("=")[0] in EXPECTED["token_keys"]]
    assert ours == EXPECTED["tokens"]


def test_the_record_on_the_host_is_what_runs(files: dict[str, str]) -> None:
    plan = json.loads(files["/etc/firsttouch/plan.json"])
    assert plan["schema"] == 1
    assert plan["boot"]["tokens"] == EXPECTED["tokens"]
    for key, value in EXPECTED["sysctls"].items():
        assert str(plan["sysctls"][key]) == value
