# SPDX-License-Identifier: GPL-3.0-or-later
"""What a kernel of a given version makes of a command line."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils._kernel_args import (
    KernelFacts,
    format_size,
    parse_size,
    predict,
)
from hypothesis import given
from hypothesis import strategies as st
from support import put

EIGHT = KernelFacts(
    version=(6, 12),
    release="6.12.1",
    nr_cpu_ids=8,
    possible=frozenset(range(8)),
    present=frozenset(range(8)),
    online=frozenset(range(8)),
    nodes=(0, 1),
    memory_nodes=(0, 1),
    memory_bytes=48 << 30,
)


def facts(**changes: Any) -> KernelFacts:
    return dataclasses.replace(EIGHT, **changes)


def old(major: int, minor: int, **changes: Any) -> KernelFacts:
    version = (major, minor)
    return facts(version=version, node_format=version >= (5, 16), **changes)


def pools(line: str, known: KernelFacts = EIGHT) -> dict[str, Any]:
    """Sizes with pages as {size: total or {node: pages}}."""
    found = predict(line, known).as_dict()["pools"]
    return {size: pool["nodes"] or pool["total"] for size, pool in found.items() if pool["total"]}


def isolation(line: str, known: KernelFacts = EIGHT) -> dict[str, str]:
    doc = predict(line, known).as_dict()["isolation"]
    del doc["flags"], doc["domain_online"]
    return {key: value for key, value in doc.items() if value and (key, value) != ("irqaffinity", "0-7")}


def reasons(line: str, known: KernelFacts = EIGHT) -> list[str]:
    return [warn.reason for warn in predict(line, known).warnings]


HUGEPAGES = [
    ("hugepages=5", {"2048kB": 5}, []),
    ("hugepages=5 default_hugepagesz=1G", {"1048576kB": 5}, []),
    ("hugepagesz=2M hugepages=2 hugepages=5", {"2048kB": 2}, ["repeated_hugepages_ignored"]),
    ("hugepages=2 hugepages=5", {"2048kB": 2}, ["repeated_hugepages_ignored"]),
    (
        "hugepagesz=3M hugepages=5 hugepages=7",
        {"2048kB": 7},
        ["unsupported_hugepagesz", "no_valid_hugepagesz"],
    ),
    ("hugepages=1 hugepagesz=2M hugepages=9", {"2048kB": 1}, ["count_before_size_wins"]),
    ("hugepages=1 hugepagesz=1G hugepages=9", {"2048kB": 1, "1048576kB": 9}, []),
    ("hugepages=abc hugepages=6", {"2048kB": 6}, ["invalid_hugepages"]),
    ("hugepages= hugepages=6", {}, ["repeated_hugepages_ignored"]),
    ("hugepages hugepages=6", {"2048kB": 6}, ["missing_value"]),
    ("hugepages=0x10", {}, ["hugepages_partly_read"]),
    ("hugepages=-3", {}, ["invalid_hugepages"]),
    ("hugepages=10abc", {"2048kB": 10}, ["hugepages_partly_read"]),
    ("hugepagesz=2Mfoo hugepages=3", {"2048kB": 3}, []),
    ("hugepagesz=0x200000 hugepages=3", {"2048kB": 3}, []),
    ("hugepagesz=2097153 hugepages=3", {}, ["unsupported_hugepagesz", "no_valid_hugepagesz"]),
    ("default-hugepagesz=1G hugepages=2", {"1048576kB": 2}, []),
    ('"hugepages=4" "hugepagesz=1G" hugepages="2"', {"2048kB": 4, "1048576kB": 2}, []),
    ("my.hugepages=4 xhugepages=4 hugepagesx=4", {}, []),
    (
        "default_hugepagesz=1G default_hugepagesz=2M hugepages=2",
        {},
        ["default_hugepagesz_specified_twice", "no_valid_hugepagesz"],
    ),
    (
        "hugepagesz=1G hugepagesz=2M hugepages=3 default_hugepagesz=1G hugepages=2",
        {"2048kB": 3},
        ["repeated_hugepages_ignored"],
    ),
    ("default_hugepagesz=2M hugepages=0 hugepagesz=2M hugepages=5", {}, ["repeated_hugepages_ignored"]),
    ("hugepages=0:10,1:30", {"2048kB": {"0": 10, "1": 30}}, []),
    ("hugepages=0:10,1:30,", {"2048kB": {"0": 10, "1": 30}}, []),
    ("hugepages=0:10,3:10", {}, ["no_such_node"]),
    ("hugepages=0:10,3:10 hugepages=1:4", {"2048kB": {"1": 4}}, ["no_such_node"]),
    ("hugepages=0:5,0:7", {"2048kB": {"0": 7}}, []),
    ("hugepages=0:5,12", {}, ["invalid_hugepages"]),
    ("hugepages=7,1:3", {"2048kB": 7}, ["hugepages_partly_read"]),
    ("hugepages=all:10", {}, ["invalid_hugepages"]),
    ("hugepages=1:", {}, ["invalid_hugepages"]),
    ("hugepages=0:0,1:0", {}, []),
    ("hugepages=0:4 default_hugepagesz=2M hugepages=1:9", {"2048kB": {"0": 4, "1": 9}}, []),
    ("hugepages=6 default_hugepagesz=2M hugepages=1:9", {"2048kB": {"1": 9}}, []),
    (
        "hugepagesz=1G hugepages=1:2 hugepagesz=2M hugepages=0:3",
        {"1048576kB": {"1": 2}, "2048kB": {"0": 3}},
        [],
    ),
    ("hugetlb_cma=2G hugepagesz=1G hugepages=2", {}, ["hugetlb_cma_replaces_pool"]),
    ("hugetlb_cma=512M hugepagesz=1G hugepages=2", {"1048576kB": 2}, ["hugetlb_cma_void"]),
    ("hugepages=5 sysctl.vm.nr_hugepages=20", {"2048kB": 20}, ["pool_set_by_sysctl"]),
]


@pytest.mark.parametrize(("line", "expected", "why"), HUGEPAGES, ids=[row[0] for row in HUGEPAGES])
def test_hugepages(line: str, expected: dict[str, Any], why: list[str]) -> None:
    assert pools(line) == expected
    assert reasons(line) == why


def test_named_sizes_are_shown_even_when_empty() -> None:
    doc = predict("default_hugepagesz=1G hugepagesz=2M hugepages=0", EIGHT).as_dict()
    assert doc["pools"]["1048576kB"] == {"total": 0, "nodes": {}}
    assert doc["pools"]["2048kB"] == {"total": 0, "nodes": {}}
    assert doc["default_kb"] == 1048576


def test_a_node_without_memory_gets_nothing() -> None:
    known = facts(nodes=(0, 1, 3), memory_nodes=(0, 1))
    assert pools("hugepages=1:16,3:16", known) == {"2048kB": {"1": 16}}
    assert reasons("hugepages=1:16,3:16", known) == ["node_without_memory"]
    assert reasons("hugepages=1:16,3:0", known) == []


def test_a_gigantic_page_of_a_node_without_memory_comes_from_another_before_6_14() -> None:
    line, nodes = "hugepagesz=1G hugepages=1:2,3:1", (0, 1, 3)
    early = predict(line, facts(nodes=nodes, memory_nodes=(0, 1))).as_dict()
    assert early["pools"]["1048576kB"] == {"total": 3, "nodes": {"1": 2}}
    assert early["memory"]["hugetlb_bytes"] == 3 << 30
    late = predict(line, facts(version=(6, 14), nodes=nodes, memory_nodes=(0, 1))).as_dict()
    assert late["pools"]["1048576kB"] == {"total": 2, "nodes": {"1": 2}}


def test_a_node_without_memory_voids_the_parameter_from_6_15_to_6_19() -> None:
    late = {"version": (6, 15), "nodes": (0, 1, 3), "memory_nodes": (0, 1)}
    assert pools("hugepages=1:16,3:0", facts(**late)) == {}
    assert predict("hugepages=1:16,3:0", facts(**late)).ignored() == ["hugepages=1:16,3:0"]
    assert reasons("hugepages=1:16,3:0", facts(**late)) == ["node_without_memory"]
    assert pools("hugepages=1:16,3:0", facts(arch="aarch64", **late)) == {"2048kB": {"1": 16}}
    assert pools("hugepages=1:16,3:9", facts(**{**late, "version": (7, 0)})) == {"2048kB": {"1": 16}}
    assert pools("hugepages=1:16,3:0", facts(**{**late, "memory_nodes": ()})) == {"2048kB": {"1": 16}}


def test_node_format_is_read_as_a_number_before_5_16() -> None:
    known = old(5, 15)
    assert pools("hugepages=0:40,1:40", known) == {}
    assert pools("hugepages=3:40", known) == {"2048kB": 3}
    assert reasons("hugepages=0:40", known) == ["node_format_unsupported"]
    assert predict("hugepages=0:40", known).ignored() == ["hugepages=0:40"]
    assert pools("hugepages=0:40,1:40", facts(version=(5, 14), node_format=True)) == {
        "2048kB": {"0": 40, "1": 40}
    }


def test_only_so_many_hugetlb_arguments_from_6_15() -> None:
    line = "default_hugepagesz=2M hugepagesz=2M hugepages=0:1 hugepagesz=1G hugepages=1:2 hugepagesz=2M"
    assert reasons(line, facts(version=(6, 16))) == ["too_many_hugetlb_arguments"]
    late = "hugepagesz=8M hugepages=1 hugepagesz=2M hugepages=3 hugepagesz=1G hugepages=2"
    assert pools(late) == {"2048kB": 3, "1048576kB": 2}
    assert pools(late, facts(version=(6, 16))) == {"2048kB": 3}


def test_gigantic_pages_are_taken_twice_before_6_15() -> None:
    line = "hugepages=3 hugepagesz=1G hugepages=5 default_hugepagesz=1G"
    assert pools(line, old(6, 12)) == {"1048576kB": 8}
    assert pools(line, facts(version=(6, 15))) == {"1048576kB": 3}


def test_kernels_before_5_8_choose_the_default_only_among_named_sizes() -> None:
    known = old(5, 4)
    assert pools("default_hugepagesz=1G hugepages=4", known) == {"2048kB": 4}
    assert pools("default_hugepagesz=1G hugepagesz=1G hugepages=4", known) == {"1048576kB": 4}
    assert predict("default_hugepagesz=1G hugepagesz=1G", known).default_kb == 1048576
    assert pools("hugepages=4 hugepagesz=2M hugepages=9", known) == {"2048kB": 9}
    assert pools("hugepagesz=3M hugepagesz=2M hugepages=9", known) == {}
    assert pools("default_hugepagesz=1G hugepages=4", old(5, 8)) == {"1048576kB": 4}
    assert pools("hugepagesz=3M hugepagesz=2M hugepages=9", old(5, 8)) == {"2048kB": 9}


def test_the_cpu_decides_on_1g() -> None:
    known = facts(huge_sizes_kb=(2048,))
    assert pools("hugepagesz=1G hugepages=4", known) == {}
    assert reasons("default_hugepagesz=1G hugepages=4", known) == [
        "unsupported_default_hugepagesz",
        "no_valid_hugepagesz",
    ]


def test_a_size_the_running_kernel_does_not_show_is_unproven() -> None:
    assert reasons("hugepagesz=1G hugepages=4", facts(sizes_shown_kb=(2048,))) == ["pool_directory_missing"]
    assert reasons("hugepagesz=1G hugepages=4", facts(sizes_shown_kb=(2048, 1048576))) == []


def test_other_architectures() -> None:
    arm = facts(arch="aarch64", page_kb=64, huge_sizes_kb=(2048, 524288, 16777216), default_huge_kb=524288)
    assert pools("hugepages=3", arm) == {"524288kB": 3}
    assert pools("hugepagesz=1G hugepages=3", arm) == {}
    nine = " ".join(["hugepagesz=2M hugepages=1"] * 5)
    assert reasons(nine, dataclasses.replace(arm, version=(6, 16)))[-1] == "too_many_hugetlb_arguments"


ISOLATION = [
    ("isolcpus=4-7", {"domain": "4-7"}, []),
    ("isolcpus=managed_irq,4-7", {"managed_irq": "4-7"}, ["domain_not_isolated"]),
    ("isolcpus=managed_irq,domain,4-7", {"managed_irq": "4-7", "domain": "4-7"}, []),
    ("isolcpus=domain,managed_irq,4-7", {"managed_irq": "4-7", "domain": "4-7"}, []),
    ("isolcpus=2-300", {}, ["cpu_out_of_range"]),
    ("isolcpus=7-4", {}, ["reversed_range"]),
    ("isolcpus=4-N", {"domain": "4-7"}, []),
    ("isolcpus=1-7:2/3,3", {"domain": "1-5,7"}, []),
    ("isolcpus=0-7", {"domain": "1-7"}, ["no_housekeeping_cpu"]),
    ("isolcpus=all", {}, ["missing_cpu_list"]),
    ("isolcpus=N,5-6", {"domain": "5-6"}, ["unknown_flag"]),
    ("isolcpus=managed_irq,domain", {}, ["missing_cpu_list"]),
    ("isolcpus=foo,4-5", {"domain": "4-5"}, ["unknown_flag"]),
    ("isolcpus=foo2,4-5", {}, ["invalid_flag"]),
    ("isolcpus=domain,", {}, ["empty_cpu_list"]),
    ("isolcpus=", {}, ["empty_cpu_list"]),
    ("isolcpus", {}, ["missing_value"]),
    ('isolcpus="4-5, 6"', {"domain": "4-6"}, []),
    ("isolcpus='2-3'", {}, ["syntax"]),
    ("nohz_full=all", {"nohz_full": "1-7", "rcu_nocbs": "1-7"}, ["no_housekeeping_cpu"]),
    ("nohz_full=0-3", {"nohz_full": "1-3", "rcu_nocbs": "1-3"}, ["boot_cpu_keeps_tick"]),
    ("nohz-full=2", {"nohz_full": "2", "rcu_nocbs": "2"}, []),
    (
        "isolcpus=nohz,domain,2-7 nohz_full=2-5",
        {"domain": "2-7", "nohz_full": "2-7", "rcu_nocbs": "2-7"},
        ["mask_mismatch"],
    ),
    (
        "isolcpus=domain,2-7 nohz_full=2-5",
        {"domain": "2-7", "nohz_full": "2-5", "rcu_nocbs": "2-5"},
        [],
    ),
    ("isolcpus=2-3 isolcpus=managed_irq,domain,4-5", {"domain": "2-3"}, ["mask_mismatch"]),
    (
        "isolcpus=2-3 isolcpus=managed_irq,2-5",
        {"domain": "2-3", "managed_irq": "2-5"},
        ["domain_not_isolated"],
    ),
    ("rcu_nocbs=all", {"rcu_nocbs": "0-7"}, []),
    ("rcu_nocbs=3-99", {"rcu_nocbs": "0-7"}, ["cpu_out_of_range"]),
    ("rcu_nocbs=1 nohz_full=5-6", {"rcu_nocbs": "1,5-6", "nohz_full": "5-6"}, []),
    ("rcu_nocbs=1 rcu_nocbs=2", {"rcu_nocbs": "2"}, []),
    ("rcu_nocbs", {}, []),
    ("irqaffinity=0-3", {"irqaffinity": "0-3"}, []),
    ("irqaffinity=4-7", {"irqaffinity": "0,4-7"}, ["boot_cpu_added"]),
    ("irqaffinity=2,99,4", {"irqaffinity": "0,2"}, ["cpu_out_of_range", "boot_cpu_added"]),
    ("nr_cpus=4 isolcpus=2-7", {"irqaffinity": "0-3"}, ["cpu_out_of_range"]),
    ("isolcpus=2-N nr_cpus=4", {"irqaffinity": "0-3", "domain": "2-3"}, []),
    ("maxcpus=2 isolcpus=0-1", {"domain": "1"}, ["no_housekeeping_cpu"]),
    ("possible_cpus=4 isolcpus=2-N", {"irqaffinity": "0-3", "domain": "2-3"}, []),
]


@pytest.mark.parametrize(("line", "expected", "why"), ISOLATION, ids=[row[0] for row in ISOLATION])
def test_isolation(line: str, expected: dict[str, str], why: list[str]) -> None:
    assert isolation(line) == expected
    assert reasons(line) == why


TWO = {"nr_cpu_ids": 2, "possible": frozenset((0, 1)), "present": frozenset((0, 1)), "online": frozenset((0, 1))}


@pytest.mark.parametrize(
    ("running", "line", "domain", "irqaffinity", "why"),
    [
        # The limit stays, or gets tighter: what the kernel shows holds.
        ("nr_cpus=2", "nr_cpus=2 isolcpus=1", "1", "0-1", []),
        ("nr_cpus=2", "nr_cpus=2 isolcpus=3", "", "0-1", ["cpu_out_of_range"]),
        ("nr_cpus=2", "nr_cpus=1 isolcpus=1", "", "0", ["cpu_out_of_range"]),
        # It goes, or is widened: CPU 3 may be there.
        ("nr_cpus=2", "isolcpus=1,3", "1,3", "", ["cpu_count_unknown"]),
        ("nr_cpus=2", "nr_cpus=4 isolcpus=3", "3", "", ["cpu_count_unknown"]),
        ("possible_cpus=2", "isolcpus=3", "3", "", ["cpu_count_unknown"]),
        # No limit, one that did not bind (the machine is smaller), one that init reads.
        ("quiet", "isolcpus=3", "", "0-1", ["cpu_out_of_range"]),
        ("nr_cpus=4", "isolcpus=3", "", "0-1", ["cpu_out_of_range"]),
        ("quiet -- nr_cpus=2", "isolcpus=3", "", "0-1", ["cpu_out_of_range"]),
        # A new limit.
        ("quiet", "nr_cpus=1 isolcpus=1", "", "0", ["cpu_out_of_range"]),
    ],
)
def test_limits_of_the_running_kernel_are_not_the_machine(
    running: str, line: str, domain: str, irqaffinity: str, why: list[str]
) -> None:
    found = predict(line, facts(running=running, **TWO))
    isolated = found.as_dict()["isolation"]
    assert (isolated["domain"], isolated["irqaffinity"]) == (domain, irqaffinity)
    assert [warn.reason for warn in found.warnings] == why


def test_one_cpu_by_nosmp_is_not_the_machine() -> None:
    one = {name: frozenset((0,)) for name in ("possible", "present", "online")}
    found = predict("isolcpus=3", facts(running="nosmp", nr_cpu_ids=1, **one))
    assert found.isolation.domain == {3} and [warn.token for warn in found.warnings] == ["nosmp"]


def test_cpus_that_a_limit_hides_are_known_where_the_kernel_lists_them(tmp_path: Path) -> None:
    cpu = "/sys/devices/system/cpu"
    for name in ("possible", "present", "online"):
        put(tmp_path, f"{cpu}/{name}", "0-1\n")
    put(tmp_path, f"{cpu}/offline", "2-3\n")
    put(tmp_path, "/proc/cmdline", "ro nr_cpus=2\n")
    known = KernelFacts.from_sysroot(str(tmp_path), "6.1")
    found = predict("isolcpus=3", known)
    assert found.as_dict()["cpus"] == {"nr_cpu_ids": 4, "possible": "0-3"}
    assert found.isolation.domain == {3} and not found.warnings
    assert [warn.reason for warn in predict("isolcpus=4", known).warnings] == ["cpu_out_of_range"]
    assert predict("nr_cpus=2", known).as_dict()["cpus"]["possible"] == "0-1"


@pytest.mark.parametrize(
    ("running", "line", "online"),
    [
        ("maxcpus=2", "maxcpus=2 isolcpus=1-7", "1"),
        ("maxcpus=2", "isolcpus=1-7", "1-7"),
        ("maxcpus=2", "maxcpus=4 isolcpus=1-7", "1-3"),
    ],
)
def test_cpus_that_maxcpus_leaves_down_come_up_without_it(running: str, line: str, online: str) -> None:
    found = predict(line, facts(running=running, online=frozenset((0, 1))))
    assert found.as_dict()["isolation"]["domain_online"] == online
    assert found.isolation.domain == frozenset(range(1, 8))


def test_maxcpus_of_the_next_boot_keeps_cpus_down() -> None:
    isolated = predict("maxcpus=2 isolcpus=1-7", EIGHT).as_dict()["isolation"]
    assert isolated["domain_online"] == "1"


def test_flags_are_listed_as_written() -> None:
    assert predict("isolcpus=managed_irq,domain,", EIGHT).isolation.flags == ["managed_irq", "domain"]
    assert predict("isolcpus=4", EIGHT).isolation.flags == ["domain"]
    assert predict("", EIGHT).isolation.flags == []


def test_one_mask_for_all_types_before_5_18() -> None:
    line = "isolcpus=domain,2-7 nohz_full=2-5"
    assert isolation(line, old(5, 15)) == {"domain": "2-7"}
    assert isolation("isolcpus=domain,2-7 nohz_full=2-7", old(5, 15))["nohz_full"] == "2-7"


def test_lists_as_wide_as_nr_cpus() -> None:
    config = {"CONFIG_NR_CPUS": "64", "CONFIG_RCU_NOCB_CPU": "y"}
    assert isolation("isolcpus=4-20", old(6, 1, config=config)) == {"domain": "4-7"}
    assert isolation("isolcpus=4-20", old(5, 15, config=config)) == {}
    assert reasons("isolcpus=4-20", old(5, 15, config=config)) == ["cpu_out_of_range"]
    assert isolation("isolcpus=4-20", old(6, 3, config=config)) == {}
    assert isolation("isolcpus=4-20", old(6, 1, config={**config, "CONFIG_CPUMASK_OFFSTACK": "y"})) == {}


def test_an_empty_list_does_not_count_as_the_first() -> None:
    for version in ((5, 10), (6, 1), (6, 12)):
        assert isolation("isolcpus=domain, isolcpus=2-3", old(*version)) == {"domain": "2-3"}
    assert predict("isolcpus=domain,", EIGHT).ignored() == ["isolcpus=domain,"]


def test_words_of_cpu_lists_by_version() -> None:
    assert isolation("isolcpus=4-N", old(5, 12)) == {}
    assert isolation("isolcpus=4-N", old(5, 13)) == {"domain": "4-7"}
    assert isolation("nohz_full=all", old(5, 13)) == {}
    assert isolation("nohz_full=all", old(5, 14))["nohz_full"] == "1-7"
    assert isolation("rcu_nocbs=all", old(5, 4)) == {"rcu_nocbs": "0-7"}
    assert isolation("rcu_nocbs=2-3", old(5, 4)) == {"rcu_nocbs": "2-3"}


def test_unknown_flags_void_the_argument_before_5_8() -> None:
    assert isolation("isolcpus=foo,4-5", old(5, 7)) == {}
    assert isolation("isolcpus=managed_irq,domain,4-5", old(5, 4)) == {}


def test_kernels_built_without_the_feature() -> None:
    assert isolation("isolcpus=2 nohz_full=2", facts(nohz_full_supported=False)) == {"domain": "2"}
    assert isolation("isolcpus=2", facts(isolation_supported=False)) == {}
    assert isolation("rcu_nocbs=2", facts(config={})) == {}
    assert predict("nohz_full=2", facts(nohz_full_supported=False)).ignored() == ["nohz_full=2"]
    assert predict("rcu_nocbs=2", facts(config={})).ignored() == ["rcu_nocbs=2"]
    assert predict("isolcpus=2", facts(isolation_supported=False)).ignored() == ["isolcpus=2"]


def test_hot_pluggable_cpus_count() -> None:
    known = facts(nr_cpu_ids=32, possible=frozenset(range(32)), present=frozenset(range(16)))
    assert isolation("isolcpus=4-N", known)["domain"] == "4-31"
    assert predict("isolcpus=4-N", known).as_dict()["isolation"]["domain_online"] == "4-7"
    # All present CPUs are listed, though others may come: the boot CPU stays out.
    assert isolation("isolcpus=0-15", known)["domain"] == "1-15"


def test_possible_cpus_only_lowers_from_6_9() -> None:
    assert predict("possible_cpus=16", old(6, 8)).as_dict()["cpus"] == {"nr_cpu_ids": 16, "possible": "0-15"}
    assert predict("possible_cpus=16", old(6, 9)).as_dict()["cpus"] == {"nr_cpu_ids": 8, "possible": "0-7"}
    assert predict("possible_cpus=4", old(6, 8)).as_dict()["cpus"] == {"nr_cpu_ids": 4, "possible": "0-3"}


def test_unknown_cpus_are_not_refused() -> None:
    known = KernelFacts()
    assert predict("isolcpus=2-7", known).as_dict()["isolation"]["domain"] == "2-7"
    assert reasons("isolcpus=2-N", known) == ["unknown_n"]


def test_behind_a_double_dash_nothing_is_read() -> None:
    line = "isolcpus=2-3 -- hugepages=512 nohz-full=2 --port 80"
    assert (pools(line), isolation(line)) == ({}, {"domain": "2-3"})
    assert reasons(line) == ["after_double_dash", "after_double_dash"]
    assert predict(line, EIGHT).ignored() == ["hugepages=512", "nohz-full=2"]


def test_the_end_of_a_long_line_is_lost() -> None:
    line = f"{'x' * 2031} hugepages=123456 nohz_full=2"
    assert pools(line) == {"2048kB": 12345}
    assert set(reasons(line)) == {"line_too_long"}
    assert "nohz_full=2" in predict(line, EIGHT).ignored()
    assert reasons("x" * 2047) == []
    assert reasons("x" * 2047 + "\n") == []


GIB = 1 << 30
MEMORY = [
    ("", None, None),
    ("mem=4G", 4 * GIB, None),
    ("mem=4G mem=8G", 4 * GIB, None),
    ("mem=nopentium", None, None),
    ("crashkernel=256M", None, GIB // 4),
    ("crashkernel=256M@16M", None, GIB // 4),
    ("crashkernel=128M crashkernel=256M", None, GIB // 4),
    ("-- crashkernel=256M", None, GIB // 4),
    ("crashkernel=1G-8G:128M,8G-:512M", None, GIB // 2),
    ("crashkernel=1G-8G:128M,8G-64G:512M@16M", None, GIB // 2),
    ("crashkernel=1G-8G:128M", None, 0),
    ("mem=4G crashkernel=1G-8G:128M,8G-:512M", 4 * GIB, GIB // 8),
    ("crashkernel=1G,high", None, GIB + GIB // 4),
    ("crashkernel=1G,high crashkernel=64M,low", None, GIB + GIB // 16),
    ("crashkernel=64M,low", None, 0),
    ("crashkernel=256M crashkernel=1G,high", None, GIB // 4),
    ("crashkernel=auto", None, 0),
    ("crashkernel=256Mx", None, 0),
    ("crashkernel=", None, 0),
]


@pytest.mark.parametrize(("line", "limit", "crash"), MEMORY, ids=[row[0] for row in MEMORY])
def test_memory(line: str, limit: int | None, crash: int | None) -> None:
    memory = predict(line, EIGHT).as_dict()["memory"]
    assert (memory["mem_limit_bytes"], memory["crashkernel_bytes"]) == (limit, crash)


def test_memory_of_unknown_size_is_reckoned_with_the_largest_range() -> None:
    known = facts(memory_bytes=None)
    assert predict("crashkernel=1G-8G:128M,8G-:512M", known).memory.crashkernel == GIB // 2


def test_crashkernel_auto_of_rhel_8() -> None:
    assert predict("crashkernel=auto", old(4, 18)).memory.crashkernel == 192 << 20


def test_other_memory_that_goes_away() -> None:
    doc = predict("memmap=64M$3G,1G!4G memmap=2G@0 cma=128M hugetlb_cma=0:1G,1:2G", EIGHT).as_dict()["memory"]
    assert doc["memmap_reserved_bytes"] == GIB + (64 << 20)
    assert doc["cma_bytes"] == 128 << 20
    assert doc["hugetlb_cma_bytes"] == 3 * GIB
    assert reasons("movablecore=2G") == ["movable_zone"]


def test_hugetlb_bytes_per_node() -> None:
    doc = predict("hugepages=5 hugepagesz=1G hugepages=1:2", EIGHT).as_dict()["memory"]
    assert doc["hugetlb_bytes"] == 5 * (2 << 20) + 2 * GIB
    assert doc["hugetlb_bytes_per_node"] == {"0": 3 * (2 << 20), "1": 2 * (2 << 20) + 2 * GIB}


@given(st.text(alphabet='hugepags=sz0123:,MG -"isolcpu', max_size=40))
def test_never_raises(text: str) -> None:
    for line in (text, f"hugepages={text}", f"isolcpus={text}", f"hugepagesz=2M hugepages={text} {text}"):
        for known in (EIGHT, KernelFacts(), old(5, 4)):
            doc = predict(line, known).as_dict()
            assert all(pool["total"] >= 0 for pool in doc["pools"].values())
            assert set(doc["isolation"]["domain"]) <= set("0123456789-,")


@pytest.mark.parametrize(
    ("text", "kb", "short"),
    [
        ("2M", 2048, "2M"),
        ("2m", 2048, "2M"),
        ("1G", 1048576, "1G"),
        ("1GB", 1048576, "1G"),
        ("1GiB", 1048576, "1G"),
        ("2048kB", 2048, "2M"),
        ("1048576K", 1048576, "1G"),
        ("64K", 64, "64K"),
        ("512MB", 524288, "512M"),
        ("16G", 16777216, "16G"),
        ("2097152", 2048, "2M"),
    ],
)
def test_sizes(text: str, kb: int, short: str) -> None:
    assert parse_size(text) == kb
    assert format_size(kb) == short
    assert parse_size(short) == kb


@pytest.mark.parametrize("text", ["", "M", "2X", "-2M", "2.5M", "0", "0M", "100", "2MM", "2 2M", "0x2M"])
def test_sizes_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"kB|page size"):
        parse_size(text)


def test_facts_of_a_sysroot(tmp_path: Path) -> None:
    put(tmp_path, "/proc/sys/kernel/osrelease", "6.1.0-18-amd64\n")
    put(tmp_path, "/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu lm pdpe1gb\n")
    put(tmp_path, "/proc/meminfo", "MemTotal:       1024 kB\nHugepagesize:    1048576 kB\n")
    put(tmp_path, "/sys/devices/system/cpu/possible", "0-31\n")
    put(tmp_path, "/sys/devices/system/cpu/online", "0-15\n")
    put(tmp_path, "/sys/devices/system/node/online", "0-1\n")
    put(tmp_path, "/sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:  0 kB\n")
    put(tmp_path, "/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:  1024 kB\n")
    put(tmp_path, "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0\n")
    put(tmp_path, "/boot/config-6.1.0-18-amd64", "CONFIG_NR_CPUS=64\n# CONFIG_NO_HZ_FULL is not set\n")
    found = KernelFacts.from_sysroot(str(tmp_path))
    assert found.version == (6, 1) and found.version_known and found.node_format
    assert (found.nr_cpu_ids, len(found.possible), len(found.online)) == (32, 32, 16)
    assert (found.nodes, found.memory_nodes) == ((0, 1), (1,))
    assert (found.memory_bytes, found.default_huge_kb) == (1024 * 1024, 2048)
    assert (found.huge_sizes_kb, found.sizes_shown_kb) == ((2048, 1048576), (2048,))
    assert not found.nohz_full_supported and not found.isolation_supported
    # NR_CPUS is the width of a list below 6.3 where masks are not allocated.
    assert found.list_bits == 64
    other = KernelFacts.from_sysroot(str(tmp_path), version="5.10.0-28-amd64")
    assert other.version == (5, 10) and not other.node_format and other.config is None


def test_facts_of_cpus_without_1g(tmp_path: Path) -> None:
    put(tmp_path, "/proc/cpuinfo", "processor\t: 3\nflags\t\t: fpu lm\n")
    found = KernelFacts.from_sysroot(str(tmp_path))
    assert found.huge_sizes_kb == (2048,)
    assert (found.possible, found.nr_cpu_ids) == (frozenset({3}), 4)


def test_facts_of_an_empty_sysroot_are_not_invented(tmp_path: Path) -> None:
    found = KernelFacts.from_sysroot(str(tmp_path))
    assert (found.nr_cpu_ids, found.possible, found.nodes, found.memory_bytes) == (
        None,
        frozenset(),
        (),
        None,
    )
    assert not found.version_known


def test_facts_from_installed_kernels_of_an_offline_tree(tmp_path: Path) -> None:
    for name in ("5.15.0-9", "6.1.0-18-amd64", "6.1.0-9-amd64"):
        put(tmp_path, f"/lib/modules/{name}/modules.dep", "")
    assert KernelFacts.from_sysroot(str(tmp_path)).release == "6.1.0-18-amd64"


def test_a_version_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="kernel release"):
        KernelFacts.from_sysroot(str(tmp_path), version="amd64")
