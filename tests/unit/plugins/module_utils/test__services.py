# SPDX-License-Identifier: GPL-3.0-or-later
"""Services that fight the plan: only installed ones of the table, only what they set against it, with file and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _services
from support import put

UNITS = "/usr/lib/systemd/system"
THP_UNIT = """[Unit]
Description=Disable Transparent Huge Pages (THP)
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'echo never | tee /sys/kernel/mm/transparent_hugepage/enabled > /dev/null'
ExecStart=/bin/sh -c 'echo "defer" > /sys/kernel/mm/transparent_hugepage/defrag'
[Install]
WantedBy=basic.target
"""


def install(root: Path, unit: str, text: str = "[Service]\nExecStart=/usr/sbin/x\n") -> Path:
    return put(root, f"{UNITS}/{unit}", text)


def sections(**rows: dict[str, Any]) -> dict[str, Any]:
    return {name: {"state": "present", **row} for name, row in rows.items()}


def fights(root: Path, **rows: dict[str, Any]) -> list[tuple[str, str, str]]:
    found = _services.fights(_services.read_claims(str(root)), sections(**rows))
    return [(fight.claim.unit, fight.variable, fight.claim.source) for fight in found]


def tuned(root: Path, text: str) -> None:
    install(root, "tuned.service")
    put(root, "/etc/tuned/active_profile", "ours\n")
    put(root, "/etc/tuned/ours/tuned.conf", text)


def test_nothing_is_installed_nothing_fights(tmp_path: Path) -> None:
    assert _services.read_claims(str(tmp_path)) == ()


def test_a_masked_service_sets_nothing(tmp_path: Path) -> None:
    install(tmp_path, "ksm.service")
    assert fights(tmp_path, thp={"settings": {"enabled": "madvise"}})
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    (tmp_path / "etc/systemd/system/ksm.service").symlink_to("/dev/null")
    assert _services.read_claims(str(tmp_path)) == ()


def test_tuned_fights_where_its_profile_differs(tmp_path: Path) -> None:
    tuned(tmp_path, "[sysctl]\nvm.swappiness=10\nvm.dirty_ratio=8\nnet.core.somaxconn=5\n")
    values = {"vm.swappiness": "0", "vm.dirty_ratio": "8"}
    vm = {"sysctls": values, "by_variable": {"vm_sysctls": values}}
    assert fights(tmp_path, vm_sysctls=vm) == [
        ("tuned.service", "vm_sysctls", "/etc/tuned/ours/tuned.conf:2")
    ]
    assert fights(tmp_path, vm_sysctls={**vm, "state": "absent"}) == []
    (tmp_path / UNITS[1:] / "tuned.service").unlink()
    assert fights(tmp_path, vm_sysctls=vm) == []


@pytest.mark.parametrize(
    ("profile", "rows", "variable"),
    [
        ("[vm]\ndirty_bytes=1000\n", {"vm_sysctls": {"sysctls": {"vm.dirty_ratio": "8"}}}, "vm_sysctls"),
        ("[vm]\ndirty_bytes=0\n", {"vm_sysctls": {"sysctls": {"vm.dirty_ratio": "8"}}}, None),
        (
            "[sysctl]\nkernel.numa_balancing=1\n",
            {
                "vm_sysctls": {
                    "sysctls": {"kernel.numa_balancing": "0"},
                    "by_variable": {"numa_balancing": {"kernel.numa_balancing": "0"}},
                }
            },
            "numa_balancing",
        ),
        (
            "[sysctl]\nkernel.sched_rt_runtime_us=-1\n",
            {"rt_scheduling": {"sysctls": {"kernel.sched_rt_runtime_us": "950000"}}},
            "rt_runtime_us",
        ),
        ("[vm]\ntransparent_hugepage.defrag=never\n", {"thp": {"settings": {"defrag": "defer"}}}, "thp"),
        # tuned leaves the mode alone where the argument is on the command line.
        ("[vm]\ntransparent_hugepages=always\n", {"thp": {"settings": {"enabled": "never"}}}, None),
        (
            "[bootloader]\ncmdline=isolcpus=2-3 audit=0\n",
            {"cpu_isolation": {"tokens": ["isolcpus=managed_irq,domain,1,3"]}},
            "isolated_cpus",
        ),
        ("[bootloader]\ncmdline=nohz_full=1\n", {"cpu_isolation": {"tokens": ["nohz-full=1", "nohz_full=1"]}}, None),
    ],
)
def test_what_tuned_sets(tmp_path: Path, profile: str, rows: dict[str, Any], variable: str | None) -> None:
    tuned(tmp_path, profile)
    assert [row[1] for row in fights(tmp_path, **rows)] == ([variable] if variable else [])


def test_a_unit_that_writes_modes(tmp_path: Path) -> None:
    unit = "disable-transparent-huge-pages.service"
    install(tmp_path, unit, THP_UNIT)
    assert fights(tmp_path, thp={"settings": {"enabled": "never"}}) == []
    found = fights(tmp_path, thp={"settings": {"enabled": "madvise", "defrag": "never"}})
    assert found == [(unit, "thp", f"{UNITS}/{unit}:5"), (unit, "thp", f"{UNITS}/{unit}:6")]


@pytest.mark.parametrize(
    ("unit", "rows", "fight"),
    [
        ("ksmtuned.service", {"thp": {"settings": {"enabled": "always"}}}, True),
        ("ksmtuned.service", {"thp": {"settings": {"enabled": "never"}}}, False),
        ("ksm.service", {"vm_sysctls": {"sysctls": {"vm.swappiness": "0"}}}, False),
        ("numad.service", {"cpu_isolation": {"isolated": "2-3"}}, True),
        ("numad.service", {"cpu_isolation": {"isolated": ""}}, False),
        ("systemd-oomd.service", {"cpu_isolation": {"isolated": "2-3"}}, False),
        ("irqbalance.service", {"cpu_isolation": {"isolated": "2-3"}}, False),
    ],
)
def test_only_what_really_conflicts(tmp_path: Path, unit: str, rows: dict[str, Any], fight: bool) -> None:
    install(tmp_path, unit)
    assert [row[0] for row in fights(tmp_path, **rows)] == ([unit] if fight else [])


def test_the_text_says_both_sides(tmp_path: Path) -> None:
    tuned(tmp_path, "[sysctl]\nvm.swappiness=10\n[bootloader]\ncmdline=isolcpus=2\n")
    rows = sections(
        vm_sysctls={"sysctls": {"vm.swappiness": "0"}}, cpu_isolation={"tokens": ["isolcpus=domain,3"]}
    )
    found = _services.fights(_services.read_claims(str(tmp_path)), rows)
    assert [fight.text for fight in found] == [
        "vm.swappiness=10 against vm.swappiness=0",
        "isolcpus=2 against isolcpus=domain,3",
    ]
