# SPDX-License-Identifier: GPL-3.0-or-later
"""One run found every fault that tasks/ broke into the host, named where it is, and changed nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

sys.path.insert(0, str(Path(os.environ["MOLECULE_PROJECT_DIRECTORY"]) / "molecule" / "_shared" / "verifier"))

import records

MOUNT = "/dev/hugepages-ft"
UNIT = r"dev-hugepages\x2dft.mount"
OURS = "/etc/sysctl.d/zz-firsttouch.conf"
POOL = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"
GRUB = "/etc/default/grub.d"


class Fault(NamedTuple):
    """The answer to a fault: the check, its status, reason and source (its beginning), a word of the remedy."""

    check: str
    status: str
    reason: str
    source: str
    remedy: str


FAULTS = {
    "the file is right, the sysctl is not": Fault(
        "vm_sysctls.sysctl.vm.swappiness", "fail", "live_differs", "/proc/sys/vm/swappiness", "firsttouch_vm_sysctls"
    ),
    "real-time tasks are not throttled any more": Fault(
        "rt_scheduling.sysctl.kernel.sched_rt_runtime_us",
        "fail",
        "live_differs",
        "/proc/sys/kernel/sched_rt_runtime_us",
        "firsttouch_rt_runtime_us",
    ),
    "NUMA balancing is on": Fault(
        "vm_sysctls.sysctl.kernel.numa_balancing",
        "fail",
        "live_differs",
        "/proc/sys/kernel/numa_balancing",
        "firsttouch_numa_balancing",
    ),
    "a node reclaims before it takes memory of another": Fault(
        "memory.zone_reclaim", "warn", "zone_reclaim_on", "/proc/sys/vm/zone_reclaim_mode", "vm.zone_reclaim_mode to 0"
    ),
    "transparent huge pages for everybody": Fault(
        "thp.mode", "fail", "wrong_value", "/sys/kernel/mm/transparent_hugepage/enabled", "firsttouch_thp"
    ),
    "new interrupts may go to isolated CPUs": Fault(
        "cpu_isolation.default_irq_affinity",
        "fail",
        "live_differs",
        "/proc/irq/default_smp_affinity",
        "echo 5 > /proc/irq/default_smp_affinity",
    ),
    "the pool of a node was shrunk": Fault(
        "hugepages.pool.2M.node0", "fail", "hugepagesz_specified_twice", POOL, "firsttouch_hugepages"
    ),
    "the first count for a page size wins": Fault(
        "boot.effect.running", "fail", "overridden_by", "/proc/cmdline", "hugepages=0:20 stands against it"
    ),
    "a foreign line asks for a node that is not there": Fault(
        "boot.owner.configured", "warn", "foreign_owner", f"{GRUB}/50-vendor.cfg:1", "Take them out there"
    ),
    "a vendor's drop-in drops our arguments": Fault(
        "boot.tokens.configured",
        "fail",
        "overridden_by_dropin",
        f"{GRUB}/zzzz-vendor.cfg:1",
        "is set again there, without what was there before",
    ),
    "the entry that boots next was edited": Fault(
        "boot.pending_reboot", "fail", "pending_reboot", "/boot/grub/grub.cfg:", "the next boot changes nohz_full"
    ),
    "tuned would add a boot argument": Fault(
        "boot.owner.tuned", "warn", "foreign_owner", "/etc/tuned/vendor/tuned.conf:4", "firsttouch_isolated_cpus"
    ),
    "tuned would set a sysctl": Fault(
        "vm_sysctls.tuned.vm.dirty_background_ratio",
        "warn",
        "foreign_owner",
        "/etc/tuned/vendor/tuned.conf:2",
        "firsttouch_vm_sysctls owns it",
    ),
    "our sysctl file is masked": Fault(
        "vm_sysctls.next_boot.vm.swappiness", "fail", "masked", OURS, "Delete that link"
    ),
    "a later file wins, letters after digits": Fault(
        "vm_sysctls.next_boot.vm.dirty_ratio",
        "fail",
        "overridden_by",
        "/etc/sysctl.d/zzz-vendor.conf:1",
        "Take the line out of that file",
    ),
    "a mount lies over the mount": Fault(
        f"hugepages.mount.{MOUNT}.stacked", "fail", "stacked_mount", "/proc/self/mountinfo", f"umount {MOUNT}"
    ),
    "the mount has another owner": Fault(
        f"hugepages.mount.{MOUNT}.owner", "fail", "wrong_value", MOUNT, "firsttouch_hugetlbfs_mounts"
    ),
    "the mount has another mode": Fault(
        f"hugepages.mount.{MOUNT}.mode", "fail", "wrong_value", MOUNT, "firsttouch_hugetlbfs_mounts"
    ),
    "the unit of the mount was edited": Fault(
        f"units.{UNIT}.file", "fail", "changed_by_hand", f"/etc/systemd/system/{UNIT}", "firsttouch_hugetlbfs_mounts"
    ),
    "a file that nobody uses eats the pool": Fault(
        "hugepages.stale_files", "warn", "stale_file", f"{MOUNT}/stale", "20971520 bytes of firsttouch_hugepages"
    ),
    "interrupts sit on an isolated CPU": Fault(
        "cpu_isolation.irqs", "fail", "irq_on_isolated_cpu", "/proc/irq/", "firsttouch_isolated_cpus"
    ),
    "a thread runs on an isolated CPU": Fault(
        "cpu_isolation.threads", "warn", "user_thread_on_isolated_cpu", "/proc/", "taskset -pc 0,2"
    ),
    "swap is on": Fault("memory.swap", "warn", "swap_active", "/proc/swaps", "swapoff"),
}
# What needs root to be seen: the check, the answer that a user has for it, and the file that was closed to him.
CLOSED = {
    "boot.pending_reboot": ("boot.pending_reboot", "/boot/grub/grub.cfg"),
    "hugepages.stale_files": (f"hugepages.stale_files.{MOUNT}", MOUNT),
}


@pytest.fixture(scope="module")
def name(host: Any) -> str:
    found: str = host.backend.get_hostname()
    return found


@pytest.fixture(scope="module")
def root(name: str) -> dict[str, dict[str, Any]]:
    return records.answers(records.verified(name, "root"))


@pytest.fixture(scope="module")
def user(name: str) -> dict[str, dict[str, Any]]:
    return records.answers(records.verified(name, "user"))


def told(row: dict[str, Any], fault: Fault) -> None:
    assert (row["status"], row["reason"]) == (fault.status, fault.reason), row
    assert row["source"].startswith(fault.source), row
    assert fault.remedy in row["remedy"], row


@pytest.mark.parametrize("fault", FAULTS)
def test_root_is_told_what_where_and_what_to_do(root: dict[str, dict[str, Any]], fault: str) -> None:
    told(root[FAULTS[fault].check], FAULTS[fault])


@pytest.mark.parametrize("fault", FAULTS)
def test_a_user_is_told_the_same_or_what_he_may_not_read(user: dict[str, dict[str, Any]], fault: str) -> None:
    check = FAULTS[fault].check
    if check not in CLOSED:
        told(user[check], FAULTS[fault])
        return
    answer, path = CLOSED[check]
    assert (user[answer]["status"], user[answer]["reason"]) == ("not_evaluated", "permission_denied")
    assert user[answer]["source"] == path
    assert user.get(check, user[answer])["status"] == "not_evaluated"


def test_nothing_that_is_wrong_is_fine_for_a_user(
    root: dict[str, dict[str, Any]], user: dict[str, dict[str, Any]]
) -> None:
    wrong = {check for check, row in root.items() if row["status"] in ("fail", "warn")}
    assert [user[check] for check in sorted(wrong & set(user)) if user[check]["status"] == "pass"] == []


def test_what_a_user_may_not_read_is_named(user: dict[str, dict[str, Any]]) -> None:
    closed = [row for row in user.values() if row["reason"] == "permission_denied"]
    assert len(closed) >= len(CLOSED)
    assert {row["status"] for row in closed} == {"not_evaluated"}
    assert [row for row in closed if not row["source"] and row["id"] != "rt_scheduling.fifo"] == []


def test_no_check_broke(root: dict[str, dict[str, Any]], user: dict[str, dict[str, Any]]) -> None:
    assert [row for row in (*root.values(), *user.values()) if row["status"] == "error"] == []


def test_what_boots_and_what_is_left_of_the_pool_are_told_apart(root: dict[str, dict[str, Any]]) -> None:
    assert root["hugepages.pool.2M.node0"]["observed"] == 15
    assert root["boot.effect.running"]["observed"]["pools"]["2048kB"]["nodes"] == {"0": 20}
    foreign = {row["token"]: row["file"] for row in root["boot.owner.configured"]["observed"]}
    assert foreign["hugepages=7:1"] == f"{GRUB}/50-vendor.cfg:1"


def test_the_interrupt_and_the_thread_are_named(root: dict[str, dict[str, Any]]) -> None:
    irqs = root["cpu_isolation.irqs"]["observed"]
    assert ("virtio1-input", "3") in [(row["name"], row["allowed"]) for row in irqs]
    assert ("i8042", "1") in [(row["name"], row["allowed"]) for row in irqs], "it goes there when it comes next"
    threads = root["cpu_isolation.threads"]["observed"]
    assert [(row["command"], row["cpu"]) for row in threads] == [("sleep", 3)]


@pytest.mark.parametrize("moment", ["after-root", "after-user"])
def test_nothing_was_changed(name: str, moment: str) -> None:
    assert records.changed(name, "broken", moment) == {}
