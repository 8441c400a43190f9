# SPDX-License-Identifier: GPL-3.0-or-later
"""host_verify on a recorded host: right as planned, then broken in one way at a time."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any, Callable

import pytest
import verified_host as vh
from ansible_collections.firsttouch.host.plugins.module_utils import _sched
from support import put, run_module

UNIT = "/etc/systemd/system/dev-hugepages\\x2dft.mount"
WANTS = "/etc/systemd/system/multi-user.target.wants/dev-hugepages\\x2dft.mount"
VOCABULARY = Path(__file__).resolve().parents[4] / "roles" / "_plan" / "defaults" / "main.yml"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    vh.provisioned_host(tmp_path)
    return tmp_path


def verify(root: Path, **args: Any) -> dict[str, Any]:
    return run_module("host_verify", {"sysroot": str(root), **args})


def by_id(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    rows = {row["id"]: row for row in result["results"]}
    assert len(rows) == len(result["results"]), "two results have one id"
    return rows


def of_status(result: dict[str, Any], *statuses: str) -> list[str]:
    return [row["id"] for row in result["results"] if row["status"] in statuses]


def replace(root: Path, path: str, old: str, new: str) -> Path:
    text = (root / path.lstrip("/")).read_text()
    assert old in text
    return put(root, path, text.replace(old, new))


def remove(root: Path, path: str) -> Path:
    target = root / path.lstrip("/")
    target.unlink()
    return target


def mask(root: Path, path: str) -> Path:
    target = remove(root, path)
    target.symlink_to("/dev/null")
    return target


def drop_pool(root: Path, size: str) -> None:
    for path in [
        *root.glob(f"sys/kernel/mm/hugepages/*-{size}"),
        *root.glob(f"sys/**/node*/hugepages/*-{size}"),
    ]:
        shutil.rmtree(path)


def test_a_host_as_planned_passes(host: Path) -> None:
    result = verify(host)
    assert of_status(result, "fail", "warn", "error") == []
    assert (result["verdict"], result["ok"], result["changed"]) == ("pass", True, False)
    assert {row["layer"] for row in result["results"] if row["status"] == "pass"} == {
        "configured",
        "next_boot",
        "running",
    }


def test_offline_nothing_is_measured(host: Path) -> None:
    row = by_id(verify(host))["rt_scheduling.fifo"]
    assert (row["status"], row["reason"], row["layer"]) == ("not_evaluated", "offline", "measured")


# what is broken: (how, {id: (status, reason)} that must be among the answers)
Break = Callable[[Path], object]
Expected = dict[str, tuple[str, str]]
BROKEN: dict[str, tuple[Break, Expected]] = {
    "one page short on one node": (
        lambda root: vh.pool(root, 1, "2048kB", 159),
        {
            "hugepages.pool.2M": ("fail", "allocation_short"),
            "hugepages.pool.2M.node1": ("fail", "allocation_short"),
            "hugepages.pool.2M.node0": ("pass", ""),
        },
    ),
    "the total is right, the nodes are not": (
        lambda root: (vh.pool(root, 0, "2048kB", 160), vh.pool(root, 1, "2048kB", 100)),
        {
            "hugepages.pool.2M": ("pass", ""),
            "hugepages.pool.2M.node0": ("fail", "wrong_node"),
            "hugepages.pool.2M.node1": ("fail", "wrong_node"),
        },
    ),
    "surplus pages fill the pool": (
        lambda root: vh.pool(root, 0, "2048kB", 100, surplus=20),
        {
            "hugepages.pool.2M.node0": ("fail", "surplus_counted"),
            "hugepages.surplus.2M": ("warn", "surplus_pages"),
        },
    ),
    "a page on a node where none was asked": (
        lambda root: vh.pool(root, 0, "1048576kB", 1),
        {"hugepages.pool.1G.node0": ("fail", "more_than_asked")},
    ),
    "the kernel has no 1G pool": (
        lambda root: [drop_pool(root, "1048576kB")],
        {"hugepages.pool.1G": ("fail", "pool_directory_missing")},
    ),
    "not mounted": (
        lambda root: replace(root, "/proc/self/mountinfo", vh.MOUNT + "\n", ""),
        {
            "hugepages.mount./dev/hugepages-ft": ("fail", "not_mounted"),
            "units.dev-hugepages\\x2dft.mount.active": ("fail", "inactive"),
        },
    ),
    "mounted twice": (
        lambda root: replace(root, "/proc/self/mountinfo", vh.MOUNT, f"{vh.MOUNT}\n{vh.MOUNT}"),
        {"hugepages.mount./dev/hugepages-ft.stacked": ("fail", "stacked_mount")},
    ),
    "covered by a tmpfs": (
        lambda root: replace(
            root,
            "/proc/self/mountinfo",
            vh.MOUNT,
            f"{vh.MOUNT}\n42 25 0:34 / /dev/hugepages-ft rw - tmpfs none rw",
        ),
        {"hugepages.mount./dev/hugepages-ft.stacked": ("fail", "stacked_mount")},
    ),
    "mounted with another page size": (
        lambda root: replace(root, "/proc/self/mountinfo", "pagesize=2M", "pagesize=1024M"),
        {"hugepages.mount./dev/hugepages-ft.page_size": ("fail", "wrong_value")},
    ),
    "mounted without the group, the mode and the limit": (
        lambda root: replace(
            root, "/proc/self/mountinfo", ",gid=990,mode=770,pagesize=2M,size=209715200", ""
        ),
        {
            "hugepages.mount./dev/hugepages-ft.group": ("fail", "wrong_value"),
            "hugepages.mount./dev/hugepages-ft.mode": ("fail", "wrong_value"),
            "hugepages.mount./dev/hugepages-ft.size": ("fail", "wrong_value"),
            "hugepages.mount./dev/hugepages-ft.page_size": ("pass", ""),
        },
    ),
    "the group does not exist": (
        lambda root: put(root, "/etc/group", "root:x:0:\n"),
        {"hugepages.mount./dev/hugepages-ft.group": ("fail", "unknown_name")},
    ),
    "the unit was edited": (
        lambda root: replace(root, UNIT, "pagesize=2M", "pagesize=1G"),
        {"units.dev-hugepages\\x2dft.mount.file": ("fail", "changed_by_hand")},
    ),
    "the unit is not enabled": (
        lambda root: remove(root, WANTS),
        {"units.dev-hugepages\\x2dft.mount.enabled": ("fail", "not_enabled")},
    ),
    "the unit is masked": (
        lambda root: mask(root, UNIT),
        {"units.dev-hugepages\\x2dft.mount.masked": ("fail", "masked")},
    ),
    "the unit has a drop-in": (
        lambda root: put(root, f"{UNIT}.d/override.conf", "[Mount]\nOptions=pagesize=1G\n"),
        {"units.dev-hugepages\\x2dft.mount.dropins": ("warn", "overridden_by")},
    ),
    "staged, not rebooted yet": (
        lambda root: (
            put(root, "/proc/cmdline", f"BOOT_IMAGE=/boot/vmlinuz {vh.ROOT_UUID} ro quiet\n"),
            vh.pool(root, 0, "2048kB", 0),
            vh.pool(root, 1, "2048kB", 0),
            put(root, f"{vh.CPU}/isolated", "\n"),
        ),
        {
            "boot.tokens.configured": ("pass", ""),
            "boot.tokens.next_boot": ("pass", ""),
            "boot.tokens.running": ("fail", "pending_reboot"),
            "boot.effect.running": ("fail", "pending_reboot"),
            "boot.pending_reboot": ("fail", "pending_reboot"),
            "hugepages.pool.2M": ("fail", "pending_reboot"),
            "hugepages.pool.2M.node1": ("fail", "pending_reboot"),
            "cpu_isolation.isolated": ("fail", "pending_reboot"),
        },
    ),
    "the next boot loses them": (
        lambda root: (remove(root, vh.DROPIN), vh.grub_cfg(root, "quiet")),
        {
            "boot.tokens.configured": ("fail", "not_configured"),
            "boot.tokens.next_boot": ("fail", "not_configured"),
            "boot.tokens.running": ("pass", ""),
            "boot.pending_reboot": ("fail", "pending_reboot"),
        },
    ),
    "grub.cfg is older than the settings": (
        lambda root: vh.grub_cfg(root, "quiet"),
        {
            "boot.tokens.configured": ("pass", ""),
            "boot.tokens.next_boot": ("fail", "not_generated"),
            "boot.tokens.running": ("pass", ""),
        },
    ),
    "a later drop-in takes them away": (
        lambda root: (
            put(
                root, "/etc/default/grub.d/zzzz-vendor.cfg", '# vendor\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"\n'
            ),
            vh.grub_cfg(root, "quiet"),
        ),
        {
            "boot.tokens.configured": ("fail", "overridden_by_dropin"),
            "boot.tokens.next_boot": ("fail", "overridden_by_dropin"),
        },
    ),
    "a foreign count stands first and wins": (
        lambda root: [
            replace(root, path, "default_hugepagesz=2M", "hugepages=7 default_hugepagesz=2M")
            for path in ("/proc/cmdline", vh.GRUB_CFG)
        ],
        {
            "boot.tokens.running": ("pass", ""),
            "boot.effect.running": ("fail", "overridden_by"),
            "boot.effect.next_boot": ("fail", "overridden_by"),
        },
    ),
    "a foreign list of isolated CPUs stands first": (
        lambda root: [
            replace(root, path, "default_hugepagesz=2M", "isolcpus=domain,2 default_hugepagesz=2M")
            for path in ("/proc/cmdline", vh.GRUB_CFG)
        ],
        {
            "boot.effect.running": ("fail", "overridden_by"),
            "boot.effect.next_boot": ("fail", "overridden_by"),
        },
    ),
    "the order was sorted": (
        lambda root: replace(
            root,
            "/proc/cmdline",
            "default_hugepagesz=2M hugepagesz=2M hugepages=0:100,1:160 hugepagesz=1G hugepages=1:1",
            "default_hugepagesz=2M hugepages=0:100,1:160 hugepages=1:1 hugepagesz=1G hugepagesz=2M",
        ),
        {"boot.tokens.running": ("fail", "wrong_order"), "boot.tokens.next_boot": ("pass", "")},
    ),
    "behind the double dash": (
        lambda root: replace(root, "/proc/cmdline", "default_hugepagesz", "-- default_hugepagesz"),
        {"boot.tokens.running": ("fail", "after_double_dash")},
    ),
    "another normal entry boots without them": (
        lambda root: replace(
            root,
            vh.GRUB_CFG,
            "submenu",
            "menuentry 'Old' $menuentry_id_option 'old' {\n"
            f"\tlinux /boot/vmlinuz-6.1.0-1-amd64 {vh.ROOT_UUID} ro\n}}\nsubmenu",
        ),
        {"boot.entries": ("warn", "entry_without_tokens"), "boot.tokens.next_boot": ("pass", "")},
    ),
    "somebody else staged an argument": (
        lambda root: replace(root, vh.GRUB_CFG, " ro quiet", " ro quiet mitigations=off"),
        {"boot.foreign_staged": ("warn", "foreign_staged"), "boot.pending_reboot": ("pass", "")},
    ),
    "packages want a reboot": (
        lambda root: (
            put(root, "/run/reboot-required", "*** System restart required ***\n"),
            put(root, "/run/reboot-required.pkgs", "linux-image-amd64\n"),
        ),
        {"boot.reboot_required": ("warn", "packages_want_reboot")},
    ),
    "nothing is isolated": (
        lambda root: put(root, f"{vh.CPU}/isolated", "\n"),
        {
            "cpu_isolation.isolated": ("fail", "kernel_refused"),
            "boot.accepted.isolated": ("fail", "kernel_refused"),
        },
    ),
    "the tick runs everywhere": (
        lambda root: put(root, f"{vh.CPU}/nohz_full", " (null)\n"),
        {"cpu_isolation.nohz_full": ("fail", "kernel_refused")},
    ),
    "new interrupts go to isolated CPUs": (
        lambda root: put(root, "/proc/irq/default_smp_affinity", "00000000,0000000f\n"),
        {"cpu_isolation.default_irq_affinity": ("fail", "kernel_refused")},
    ),
    "irqbalance runs without our list": (
        lambda root: put(root, "/proc/612/environ", "LANG=C\0IRQBALANCE_BANNED_CPULIST=1\0"),
        {"cpu_isolation.irqbalance.running": ("fail", "wrong_value")},
    ),
    "irqbalance's list was edited": (
        lambda root: replace(root, "/etc/firsttouch/irqbalance.env", "=1,3", "=1"),
        {"cpu_isolation.irqbalance.environment": ("fail", "changed_by_hand")},
    ),
    "irqbalance's drop-in is gone": (
        lambda root: remove(root, "/etc/systemd/system/irqbalance.service.d/zz-firsttouch.conf"),
        {
            "cpu_isolation.irqbalance.dropin": (
                "fail",
                "not_configured",
            )
        },
    ),
    "an interrupt sits on an isolated CPU": (
        lambda root: vh.irq(root, 25, "0-3", "3"),
        {"cpu_isolation.irqs": ("fail", "irq_on_isolated_cpu")},
    ),
    "an interrupt that may be managed sits there": (
        lambda root: vh.irq(root, 25, "3", "3"),
        {"cpu_isolation.irqs.unsure": ("warn", "irq_may_be_managed"), "cpu_isolation.irqs": ("pass", "")},
    ),
    "nobody says where an interrupt goes, and it came there": (
        lambda root: (
            remove(root, "/proc/irq/24/effective_affinity_list"),
            vh.irq(root, 24, "0-3", None),
        ),
        {"cpu_isolation.irqs.unsure": ("warn", "irq_may_be_managed")},
    ),
    "a user thread runs on an isolated CPU": (
        lambda root: vh.thread(root, 612, "irq (x) balance", 3, tid=1234567),
        {"cpu_isolation.threads": ("warn", "user_thread_on_isolated_cpu")},
    ),
    "the kernel has no threads for rcu_nocbs": (
        lambda root: shutil.rmtree(root / "proc/23"),
        {"boot.accepted.rcu_nocbs": ("fail", "kernel_refused")},
    ),
    "unbound kernel work runs everywhere": (
        lambda root: put(root, "/sys/devices/virtual/workqueue/cpumask", "f\n"),
        {"cpu_isolation.workqueues": ("warn", "kernel_work_on_isolated_cpu")},
    ),
    "files that nobody uses eat the pool": (
        lambda root: (
            vh.huge_file(root, "/dev/hugepages-ft/rtemap_0", 4 << 20),
            [vh.uses(root, int(path.name)) for path in (root / "proc").glob("[0-9]*")],
        ),
        {"hugepages.stale_files": ("warn", "stale_file")},
    ),
    "the two counters of the default size disagree": (
        lambda root: put(root, "/proc/sys/vm/nr_hugepages", "7\n"),
        {"hugepages.counter": ("warn", "counters_disagree"), "hugepages.pool.2M": ("pass", "")},
    ),
    "no page can be had": (
        lambda root: put(root, "/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "260\n"),
        {"hugepages.available.2M": ("warn", "pool_exhausted"), "hugepages.pool.2M": ("pass", "")},
    ),
    "pages beyond the pool are allowed": (
        lambda root: put(root, "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages", "64\n"),
        {"hugepages.overcommit.2M": ("warn", "overcommit_allowed")},
    ),
    "a newer kernel is installed than boots": (
        lambda root: put(root, "/boot/vmlinuz-6.12.0-10-amd64", ""),
        {"boot.newest_kernel": ("warn", "newer_kernel_installed")},
    ),
    "the initrd is older than its modules": (
        lambda root: (
            os.utime(put(root, f"/boot/initrd.img-{vh.RELEASE}", ""), (1000, 1000)),
            os.utime(put(root, f"/lib/modules/{vh.RELEASE}/modules.dep", ""), (1001, 1001)),
        ),
        {"boot.initrd": ("warn", "initrd_older_than_modules")},
    ),
    "the kernel that boots has no initrd": (
        lambda root: put(root, "/boot/initrd.img-6.1.0-1-amd64", ""),
        {"boot.initrd": ("warn", "initrd_missing")},
    ),
    "a kernel package is half installed": (
        lambda root: put(
            root,
            "/var/lib/dpkg/status",
            f"Package: linux-image-{vh.RELEASE}\nStatus: install ok half-configured\nVersion: 6.12.1-1\n",
        ),
        {"boot.packages": ("warn", "package_half_done")},
    ),
    "the driver is not built for the kernel that boots": (
        lambda root: put(root, "/var/lib/dkms/nvidia/550.54/6.1.0-1-amd64/x86_64/module/nvidia.ko", ""),
        {"boot.driver.nvidia": ("warn", "driver_not_built")},
    ),
    "another driver is loaded than the next boot loads": (
        lambda root: (
            put(root, f"/var/lib/dkms/nvidia/550.54/{vh.RELEASE}/x86_64/module/nvidia.ko", ""),
            put(root, "/sys/module/nvidia/version", "535.104\n"),
        ),
        {
            "boot.driver.nvidia": ("pass", ""),
            "boot.driver.nvidia.loaded": ("warn", "driver_changes"),
        },
    ),
    "somebody else's settings were not generated": (
        lambda root: put(
            root,
            "/etc/default/grub.d/50-cloudimg-settings.cfg",
            'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT mitigations=off"\n',
        ),
        {"boot.drift.next_boot": ("warn", "not_generated"), "boot.drift.running": ("pass", "")},
    ),
    "somebody edited grub.cfg": (
        lambda root: replace(root, vh.GRUB_CFG, " ro quiet", " ro quiet skew_tick=1"),
        {
            "boot.drift.next_boot": ("warn", "not_generated"),
            "boot.drift.running": ("warn", "pending_reboot"),
        },
    ),
    "another role asks for our keys": (
        lambda root: put(
            root,
            "/etc/default/grub.d/40-isolate.cfg",
            '# Ansible managed: isolate.j2\nGRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX isolcpus=domain,2"\n',
        ),
        {"boot.owner.configured": ("warn", "foreign_owner"), "boot.owner.next_boot": ("pass", "")},
    ),
    "tuned asks for our keys": (
        lambda root: (
            put(root, "/etc/tuned/active_profile", "mine\n"),
            put(root, "/etc/tuned/mine/tuned.conf", "[bootloader]\ncmdline_x=+isolcpus=2 quiet\n"),
        ),
        {"boot.owner.tuned": ("warn", "foreign_owner")},
    ),
    "memory is reclaimed on its node first": (
        lambda root: put(root, "/proc/sys/vm/zone_reclaim_mode", "5\n"),
        {"memory.zone_reclaim": ("warn", "zone_reclaim_on")},
    ),
    "half a core is isolated": (
        lambda root: [put(root, f"{vh.CPU}/cpu{n}/topology/thread_siblings_list", "0-1\n") for n in (0, 1)],
        {"cpu_isolation.half_cores": ("fail", "split_core")},
    ),
    "a sysctl was changed": (
        lambda root: put(root, "/proc/sys/vm/swappiness", "60\n"),
        {
            "vm_sysctls.sysctl.vm.swappiness": ("fail", "live_differs"),
            "vm_sysctls.next_boot.vm.swappiness": ("pass", ""),
        },
    ),
    "the kernel lacks the key": (
        lambda root: remove(root, "/proc/sys/vm/swappiness"),
        {"vm_sysctls.sysctl.vm.swappiness": ("fail", "unknown_key")},
    ),
    "another file wins at the next boot": (
        lambda root: put(root, "/etc/sysctl.d/zzz-vendor.conf", "# vendor\nvm.swappiness = 10\n"),
        {
            "vm_sysctls.sysctl.vm.swappiness": ("pass", ""),
            "vm_sysctls.next_boot.vm.swappiness": ("fail", "overridden_by"),
        },
    ),
    "the counterpart zeroes a ratio": (
        lambda root: (
            put(root, "/etc/sysctl.d/zzz-vendor.conf", "vm.dirty_bytes = 1048576\n"),
            put(root, "/proc/sys/vm/dirty_ratio", "0\n"),
            put(root, "/proc/sys/vm/dirty_bytes", "1048576\n"),
        ),
        {
            "vm_sysctls.sysctl.vm.dirty_ratio": ("fail", "counterpart_set"),
            "vm_sysctls.next_boot.vm.dirty_ratio": ("fail", "counterpart_set"),
        },
    ),
    "our sysctl file is masked": (
        lambda root: mask(root, vh.SYSCTL),
        {"vm_sysctls.next_boot.vm.swappiness": ("fail", "not_configured")},
    ),
    "procps would undo it": (
        lambda root: put(root, "/etc/sysctl.conf", "vm.swappiness=30\n"),
        {"vm_sysctls.procps.vm.swappiness": ("warn", "procps_overrides")},
    ),
    "tuned sets it too": (
        lambda root: (
            put(root, "/etc/tuned/active_profile", "mine\n"),
            put(root, "/etc/tuned/mine/tuned.conf", "[sysctl]\nvm.swappiness=40\n"),
        ),
        {"vm_sysctls.tuned.vm.swappiness": ("warn", "foreign_owner")},
    ),
    "a file sets vm.nr_hugepages": (
        lambda root: put(root, "/etc/sysctl.d/10-old.conf", "vm.nr_hugepages = 40\n"),
        {"hugepages.sysctl.vm.nr_hugepages": ("fail", "nr_hugepages_in_sysctl")},
    ),
    "the watermarks moved together": (
        lambda root: replace(root, "/proc/zoneinfo", "low      11000", "low      1100"),
        {"vm_sysctls.watermark_distance": ("fail", "watermark_short")},
    ),
    "RT throttling is off": (
        lambda root: put(root, "/proc/sys/kernel/sched_rt_runtime_us", "-1\n"),
        {
            "rt_scheduling.sysctl.kernel.sched_rt_runtime_us": ("fail", "live_differs"),
            "rt_scheduling.throttling": ("fail", "rt_throttling_off"),
        },
    ),
    "a cgroup without RT time": (
        lambda root: (
            put(root, "/sys/fs/cgroup/cpu/cpu.rt_runtime_us", "950000\n"),
            put(root, "/sys/fs/cgroup/cpu/docker/cpu.rt_runtime_us", "0\n"),
        ),
        {
            "rt_scheduling.sysctl.kernel.sched_rt_runtime_us": ("pass", ""),
            "rt_scheduling.groups./docker": ("warn", "rt_group_zero"),
        },
    ),
    "RT group scheduling under cgroup v2": (
        lambda root: put(
            root,
            f"/boot/config-{vh.RELEASE}",
            "CONFIG_NO_HZ_FULL=y\nCONFIG_CPU_ISOLATION=y\nCONFIG_RT_GROUP_SCHED=y\n",
        ),
        {"rt_scheduling.groups": ("warn", "rt_group_sched")},
    ),
    "the fair server takes another share": (
        lambda root: (
            put(root, "/sys/kernel/debug/sched/fair_server/cpu0/runtime", "200000000\n"),
            put(root, "/sys/kernel/debug/sched/fair_server/cpu0/period", "1000000000\n"),
        ),
        {"rt_scheduling.fair_server": ("warn", "fair_server_differs")},
    ),
    "THP always": (
        lambda root: put(root, "/sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n"),
        {"thp.mode": ("warn", "thp_always")},
    ),
    "NUMA balancing": (
        lambda root: put(root, "/proc/sys/kernel/numa_balancing", "1\n"),
        {"numa_balancing.mode": ("warn", "numa_balancing_on")},
    ),
    "swap": (
        lambda root: put(root, "/proc/swaps", "Filename Type Size Used Priority\n/swapfile file 1 0 -2\n"),
        {"memory.swap": ("warn", "swap_active")},
    ),
    "no memory left": (
        lambda root: replace(root, "/proc/meminfo", "MemAvailable: 3500000", "MemAvailable: 76000"),
        {"memory.available": ("fail", "memory_short")},
    ),
    "little memory left": (
        lambda root: replace(root, "/proc/meminfo", "MemAvailable: 3500000", "MemAvailable: 500000"),
        {"memory.available": ("warn", "memory_short")},
    ),
    "a section that no variable asks for": (
        lambda root: _edit_plan(
            root, lambda plan: plan["sections"]["hugepages"].update(orphaned=["hugepages"])
        ),
        {"plan.orphaned.hugepages": ("warn", "orphaned")},
    ),
    "pages of a size that nobody planned": (
        lambda root: (vh.pool(root, 0, "64kB", 3), vh.pool(root, 1, "64kB", 0)),
        {"hugepages.other_pool.64kB": ("warn", "foreign_owner")},
    ),
}


def _edit_plan(root: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    path = root / "etc/firsttouch/plan.json"
    plan = json.loads(path.read_text())
    edit(plan)
    path.write_text(json.dumps(plan))


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_broken_in_one_way(host: Path, name: str) -> None:
    how, expected = BROKEN[name]
    how(host)
    result = verify(host)
    rows = by_id(result)
    assert {key: (rows[key]["status"], rows[key]["reason"]) for key in expected if key in rows} == expected
    failed = any(status == "fail" for status, _reason in expected.values())
    assert (result["verdict"] == "fail") is failed
    assert of_status(result, "error") == []
    for row in result["results"]:
        if row["status"] == "fail":
            assert row["source"] or row["reason"] == "not_configured", row


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_every_failure_is_mended_by_a_variable_that_exists(host: Path, name: str) -> None:
    known = set(re.findall(r"^(firsttouch_\w+):", VOCABULARY.read_text(), re.MULTILINE))
    BROKEN[name][0](host)
    for row in verify(host)["results"]:
        named = set(re.findall(r"firsttouch_\w+", row["remedy"]))
        assert named <= known, row
        assert named or row["status"] != "fail", row


def test_variables_named_anywhere_in_the_checks_exist() -> None:
    known = set(re.findall(r"^(firsttouch_\w+):", VOCABULARY.read_text(), re.MULTILINE))
    utils = VOCABULARY.parents[3] / "plugins" / "module_utils"
    for path in utils.glob("_checks*.py"):
        assert set(re.findall(r'"(firsttouch_\w+)"', path.read_text())) <= known, path.name


def test_the_source_is_file_and_line(host: Path) -> None:
    put(host, "/etc/sysctl.d/zzz-vendor.conf", "# vendor\n\nvm.swappiness = 10\n")
    row = by_id(verify(host))["vm_sysctls.next_boot.vm.swappiness"]
    assert row["source"] == "/etc/sysctl.d/zzz-vendor.conf:3"
    assert (row["expected"], row["observed"]) == ("0", "10")


@pytest.mark.parametrize(
    ("path", "text", "key", "source"),
    [
        (
            "/etc/default/grub.d/zzzz-vendor.cfg",
            '# vendor\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"\n',
            "boot.tokens.configured",
            "/etc/default/grub.d/zzzz-vendor.cfg:2",
        ),
        (
            "/etc/default/grub",
            'GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX="a\n',
            "boot.problem.1",
            "/etc/default/grub:2",
        ),
    ],
)
def test_the_boot_file_to_blame_is_named(host: Path, path: str, text: str, key: str, source: str) -> None:
    put(host, path, text)
    result = verify(host)
    assert by_id(result)[key]["source"] == source
    assert not result["ok"]


def test_a_contradicting_token_is_named_with_its_place(host: Path) -> None:
    replace(host, vh.GRUB_CFG, "default_hugepagesz=2M", "hugepages=7 default_hugepagesz=2M")
    row = by_id(verify(host))["boot.effect.next_boot"]
    assert "hugepages=7" in row["remedy"]
    assert re.fullmatch(re.escape(vh.GRUB_CFG) + r":\d+", row["source"])


def test_threads_there_are_named_unless_they_are_the_runtime_s_or_the_kernel_s(host: Path) -> None:
    vh.thread(host, 700, "worker", 1)
    vh.thread(host, 700, "worker-io", 3, tid=701)
    put(host, "/proc/700/cgroup", "0::/system.slice/firsttouch-serve@a.service\n")
    vh.thread(host, 800, "may run there", 2)
    assert by_id(verify(host))["cpu_isolation.threads"]["status"] == "pass"
    vh.thread(host, 900, "stress", 3, tid=901)
    put(host, "/proc/900/task/901/status", "Cpus_allowed_list:\t3\n")
    put(host, "/proc/900/cgroup", "0::/user.slice\n")
    row = by_id(verify(host))["cpu_isolation.threads"]
    assert row["observed"] == [
        {"pid": 900, "tid": 901, "command": "stress", "state": "S", "cpu": 3, "allowed": "3"}
    ]
    assert (row["status"], row["source"]) == ("warn", "/proc/900/task/901/stat")
    assert "901" in row["remedy"]


def test_an_interrupt_there_is_named_with_the_way_to_move_it(host: Path) -> None:
    vh.irq(host, 25, "0-3", "3")
    row = by_id(verify(host))["cpu_isolation.irqs"]
    assert row["observed"] == [{"irq": 25, "name": "eth0-rx-0, eth0-tx-0", "cpus": "3", "allowed": "0-3"}]
    assert row["source"] == "/proc/irq/25/effective_affinity_list"
    assert "echo 0,2 > /proc/irq/25/smp_affinity_list" in row["remedy"]


def test_what_was_not_recorded_of_the_isolated_cpus_is_not_fine(host: Path) -> None:
    for path in (host / "proc").iterdir():
        if path.name.isdigit():
            shutil.rmtree(path)
    for path in (host / "proc/irq").glob("[0-9]*"):
        shutil.rmtree(path)
    rows = by_id(verify(host))
    for key in ("cpu_isolation.irqs", "cpu_isolation.threads", "boot.accepted.rcu_nocbs"):
        assert (rows[key]["status"], rows[key]["reason"]) == ("not_evaluated", "not_recorded"), key


def test_where_nothing_is_isolated_nothing_sits_there(host: Path) -> None:
    put(host, f"{vh.CPU}/isolated", "\n")
    rows = by_id(verify(host))
    for key in ("cpu_isolation.irqs", "cpu_isolation.threads", "cpu_isolation.workqueues"):
        assert (rows[key]["status"], rows[key]["reason"]) == ("not_evaluated", "not_isolated"), key
    remove(host, "/etc/firsttouch/plan.json")
    rows = by_id(verify(host, plan=vh.plan_for(host, {"vm_sysctls": {"vm.swappiness": 0}})))
    assert rows["cpu_isolation.irqs"]["status"] == "not_applicable"


def test_the_owner_of_a_foreign_argument_is_named_in_each_layer(host: Path) -> None:
    path = "/etc/default/grub.d/40-isolate.cfg"
    put(host, path, '# Ansible managed: isolate.j2\nGRUB_CMDLINE_LINUX="isolcpus=domain,2 skew_tick=1"\n')
    rows = by_id(verify(host))
    mine = {"token": "isolcpus=domain,2", "file": f"{path}:2", "owner": "another role isolate.j2"}
    assert rows["boot.owner.configured"]["observed"] == [mine]
    assert rows["boot.owner.configured"]["source"] == f"{path}:2"
    assert rows["boot.drift.next_boot"]["observed"] == {
        "only_configured": [mine, {**mine, "token": "skew_tick=1"}]
    }
    assert rows["boot.drift.running"]["observed"] == {}


def test_our_own_drift_names_the_variable(host: Path) -> None:
    replace(host, "/proc/cmdline", " nohz_full=1,3", "")
    row = by_id(verify(host))["boot.drift.running"]
    assert [(found["token"], found["owner"]) for found in row["observed"]["only_next_boot"]] == [
        ("nohz_full=1,3", "firsttouch.host")
    ]
    assert "firsttouch_isolated_cpus" in row["remedy"]


def test_without_a_readable_entry_nothing_is_said_of_packages(host: Path) -> None:
    remove(host, vh.GRUB_CFG)
    put(host, "/var/lib/dkms/zfs/2.1/6.1.0/x86_64/module/zfs.ko", "")
    rows = by_id(verify(host))
    for key in ("boot.newest_kernel", "boot.initrd", "boot.driver.zfs", "boot.drift.next_boot"):
        assert rows[key]["status"] == "not_evaluated", key


def test_zone_reclaim_that_the_plan_asks_for_is_a_sysctl_like_others(host: Path) -> None:
    put(host, "/proc/sys/vm/zone_reclaim_mode", "1\n")
    plan = vh.plan_for(host, {**vh.INTENT, "vm_sysctls": {"vm.zone_reclaim_mode": 0}})
    rows = by_id(verify(host, plan=plan))
    assert "memory.zone_reclaim" not in rows
    assert rows["vm_sysctls.sysctl.vm.zone_reclaim_mode"]["status"] == "fail"
    put(host, f"{vh.NODE}/has_memory", "0\n")
    assert by_id(verify(host))["memory.zone_reclaim"]["status"] == "not_applicable"


def test_minus_one_is_a_value(host: Path) -> None:
    plan = vh.plan_for(host, {"rt_runtime_us": -1})
    put(host, "/proc/sys/kernel/sched_rt_runtime_us", "-1\n")
    put(host, vh.SYSCTL, "kernel.sched_rt_runtime_us = -1\n")
    result = verify(host, plan=plan)
    rows = by_id(result)
    assert rows["rt_scheduling.sysctl.kernel.sched_rt_runtime_us"]["status"] == "pass"
    note = rows["rt_scheduling.throttling"]
    assert (note["status"], note["reason"]) == ("pass", "rt_throttling_off")


def test_an_unmanaged_concern_never_fails(host: Path) -> None:
    remove(host, "/etc/firsttouch/plan.json")
    plan = vh.plan_for(host, {"vm_sysctls": {"vm.swappiness": 0}})
    put(host, f"{vh.CPU}/cpu0/topology/thread_siblings_list", "0-1\n")
    put(host, f"{vh.CPU}/cpu1/topology/thread_siblings_list", "0-1\n")
    put(host, "/proc/sys/kernel/sched_rt_runtime_us", "-1\n")
    put(host, "/proc/irq/default_smp_affinity", "f\n")
    rows = by_id(verify(host, plan=plan))
    assert [key for key, row in rows.items() if row["status"] == "fail"] == []
    for key in ("cpu_isolation.half_cores", "rt_scheduling.throttling", "cpu_isolation.default_irq_affinity"):
        assert rows[key]["status"] == "warn", key


def test_what_is_to_go_must_be_gone(host: Path) -> None:
    absent = {**vh.INTENT, "isolated_cpus": "absent", "irqbalance": "absent"}
    rows = by_id(verify(host, intent=absent))
    for layer in ("configured", "next_boot", "running"):
        row = rows[f"boot.removed.{layer}"]
        assert (row["status"], row["reason"]) == ("fail", "not_removed")
        assert row["observed"] == [
            "isolcpus=managed_irq,domain,1,3",
            "nohz_full=1,3",
            "rcu_nocbs=1,3",
            "irqaffinity=0,2",
        ]
    tokens = " ".join(vh.plan_for(host, absent)["boot"]["tokens"])
    vh.grub_cfg(host, f"quiet {tokens}")
    put(host, vh.DROPIN, f'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT {tokens}"\n')
    rows = by_id(verify(host, intent=absent))
    assert rows["boot.removed.next_boot"]["status"] == "pass"
    assert rows["boot.removed.running"]["reason"] == "pending_reboot"
    assert rows["boot.pending_reboot"]["status"] == "fail"
    replace(
        host,
        "/proc/cmdline",
        " isolcpus=managed_irq,domain,1,3 nohz_full=1,3 rcu_nocbs=1,3 irqaffinity=0,2",
        "",
    )
    rows = by_id(verify(host, intent=absent))
    assert {rows[f"boot.removed.{layer}"]["status"] for layer in ("configured", "next_boot", "running")} == {
        "pass"
    }
    assert rows["boot.pending_reboot"]["status"] == "pass"


def test_units_and_keys_that_are_to_go_must_be_gone(host: Path) -> None:
    absent = {**vh.INTENT, "hugetlbfs_mounts": "absent", "vm_sysctls": "absent"}
    keys = {"units.dev-hugepages\\x2dft.mount.removed", "vm_sysctls.removed.vm.swappiness"}
    rows = by_id(verify(host, intent=absent))
    assert {
        key for key in keys if (rows[key]["status"], rows[key]["reason"]) == ("fail", "not_removed")
    } == keys
    assert rows["vm_sysctls.removed.vm.swappiness"]["source"].startswith(f"{vh.SYSCTL}:")
    remove(host, UNIT)
    remove(host, vh.SYSCTL)
    rows = by_id(verify(host, intent=absent))
    assert {rows[key]["status"] for key in keys} == {"pass"}


def test_what_no_variable_asks_for_any_more_is_at_most_a_warning(host: Path) -> None:
    vh.pool(host, 1, "2048kB", 0)
    put(host, f"{vh.CPU}/isolated", "\n")
    put(host, "/proc/sys/vm/swappiness", "60\n")
    result = verify(host, intent={"vm_sysctls": vh.INTENT["vm_sysctls"]})
    rows = by_id(result)
    assert of_status(result, "fail") == ["vm_sysctls.sysctl.vm.swappiness"]
    assert rows["hugepages.pool.2M.node1"]["status"] == "warn"
    assert rows["cpu_isolation.isolated"]["status"] == "warn"
    assert rows["plan.orphaned.hugepages"]["observed"] == [
        "firsttouch_hugepages",
        "firsttouch_hugetlbfs_mounts",
    ]


def test_without_plan_and_intent_nothing_is_ok(tmp_path: Path) -> None:
    result = verify(vh.bare_host(tmp_path))
    row = by_id(result)["plan.sections"]
    assert (row["status"], row["reason"], row["source"]) == (
        "not_evaluated",
        "no_plan",
        "/etc/firsttouch/plan.json",
    )
    assert (result["ok"], result["verdict"]) == (False, "incomplete")


def test_an_empty_tree_is_not_ok(tmp_path: Path) -> None:
    plan = vh.plan_for(vh.bare_host(tmp_path / "host"), vh.INTENT)
    empty = tmp_path / "empty"
    empty.mkdir()
    result = verify(empty, plan=plan)
    assert not result["ok"]
    assert [row["id"] for row in result["results"] if row["intended"] and row["status"] == "pass"] == []
    assert of_status(result, "error") == []


def test_what_a_recording_left_out_is_not_wrong(host: Path) -> None:
    plan = json.loads((host / "etc/firsttouch/plan.json").read_text())
    shutil.rmtree(host / "etc")
    shutil.rmtree(host / "usr")
    result = verify(host, plan=plan)
    rows = by_id(result)
    for key in (
        "units.dev-hugepages\\x2dft.mount.file",
        "vm_sysctls.next_boot.vm.swappiness",
        "cpu_isolation.irqbalance.mode",
        "hugepages.mount./dev/hugepages-ft.group",
        "boot.tokens.configured",
    ):
        assert (rows[key]["status"], rows[key]["reason"]) == ("not_evaluated", "not_recorded"), key
    assert of_status(result, "fail") == []
    assert not result["ok"]


def test_a_bare_host_fails_without_an_error(tmp_path: Path) -> None:
    result = verify(vh.bare_host(tmp_path), intent=vh.INTENT)
    assert result["verdict"] == "fail"
    assert of_status(result, "error") == []
    assert by_id(result)["hugepages.pool.2M.node1"]["observed"] == 0


def test_the_intent_gives_the_same_answers_as_the_record(host: Path) -> None:
    result, recorded = verify(host, intent=vh.INTENT), verify(host)
    assert by_id(result)["plan.drift"]["status"] == "pass"
    rest = [row for row in result["results"] if row["id"] != "plan.drift"]
    assert rest == recorded["results"]


def test_another_intent_than_the_record_is_drift(host: Path) -> None:
    result = verify(host, intent={**vh.INTENT, "vm_sysctls": {"vm.swappiness": 1}})
    row = by_id(result)["plan.drift"]
    assert (row["status"], row["reason"], row["observed"]) == ("warn", "plan_drift", ["vm_sysctls"])
    assert by_id(result)["vm_sysctls.sysctl.vm.swappiness"]["status"] == "fail"


def test_an_intent_that_does_not_fit_is_an_error(host: Path) -> None:
    result = verify(host, intent={"isolated_cpus": "0-99"})
    assert result["failed"]
    assert "firsttouch_isolated_cpus" in result["msg"]


def test_a_record_that_is_no_json_is_an_error(host: Path) -> None:
    put(host, "/etc/firsttouch/plan.json", "{")
    result = verify(host)
    assert (result["failed"], result["reason"]) == (True, "record_unreadable")


def test_layers_and_concerns_are_filters(host: Path) -> None:
    result = verify(host, layers=["running"], concerns=["rt_scheduling", "hugepages"])
    assert {row["layer"] for row in result["results"]} == {"running"}
    assert {row["concern"] for row in result["results"]} == {"rt_scheduling", "hugepages"}


def test_fail_is_asked_for(host: Path) -> None:
    vh.pool(host, 1, "2048kB", 159)
    assert not verify(host).get("failed")
    result = verify(host, fail=True)
    assert (result["failed"], result["reason"]) == (True, "verification_failed")
    assert "hugepages.pool.2M.node1" in result["msg"]
    assert "159" in result["msg"]
    assert result["results"]


def test_warnings_fail_only_when_asked(host: Path) -> None:
    put(host, "/proc/swaps", "Filename Type Size Used Priority\n/swapfile file 1 0 -2\n")
    assert not verify(host, fail=True).get("failed")
    assert verify(host, fail=True, fail_on=["fail", "warn"])["failed"]


def test_what_was_asked_for_and_could_not_be_read_can_fail(host: Path) -> None:
    strict = ["fail", "not_evaluated"]
    assert of_status(verify(host), "not_evaluated")
    assert not verify(host, fail=True, fail_on=strict).get("failed")
    remove(host, "/proc/irq/default_smp_affinity")
    assert not verify(host, fail=True).get("failed")
    assert verify(host, fail=True, fail_on=strict)["failed"]


def test_a_check_that_breaks_is_an_error_and_ends_nothing(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ansible_collections.firsttouch.host.plugins.module_utils import _hugepages

    def broken(root: str) -> Any:
        raise KeyError("surprise")

    whole = verify(host)
    monkeypatch.setattr(_hugepages, "read_pools", broken)
    result = verify(host, fail=True)
    assert (result["verdict"], result["failed"]) == ("fail", True)
    assert "surprise" in by_id(result)["hugepages.pool.read"]["observed"]
    missing = {row["id"] for row in whole["results"]} - set(by_id(result))
    kinds = {"pool", "available", "surplus", "overcommit", "counter"}
    assert all(key.split(".")[:1] == ["hugepages"] and key.split(".")[1] in kinds for key in missing)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to drop privileges")
def test_what_an_unprivileged_user_cannot_read_is_not_evaluated(host: Path) -> None:
    closed = ["/boot/grub/grub.cfg", "/proc/sys/vm/swappiness", vh.SYSCTL, "/proc/self/mountinfo"]
    for directory in [host, *host.parents]:
        if Path(tempfile.gettempdir()) in directory.parents:
            directory.chmod(0o755)
    for path in closed:
        (host / path.lstrip("/")).chmod(0)
    result = _as_nobody(lambda: verify(host))
    rows = by_id(result)
    assert result["verdict"] in ("fail", "incomplete")
    assert of_status(result, "error") == []
    for key, path in (
        ("vm_sysctls.sysctl.vm.swappiness", "/proc/sys/vm/swappiness"),
        ("vm_sysctls.next_boot.vm.swappiness", vh.SYSCTL),
        ("hugepages.mount.read", "/proc/self/mountinfo"),
        ("boot.tokens.next_boot", "/boot/grub/grub.cfg"),
        ("boot.pending_reboot", "/boot/grub/grub.cfg"),
    ):
        assert (rows[key]["status"], rows[key]["reason"]) == ("not_evaluated", "permission_denied"), key
        assert rows[key]["source"] == path


def _as_nobody(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """CALL's result, made in a child that runs as an unprivileged user."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            os.write(writer, json.dumps(call()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        data = stream.read()
    os.waitpid(child, 0)
    result: dict[str, Any] = json.loads(data)
    return result


def test_nothing_is_written(host: Path) -> None:
    def state() -> dict[str, tuple[str, float]]:
        return {
            str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime)
            for path in host.rglob("*")
            if path.is_file()
        }

    before = state()
    verify(host)
    run_module("host_verify", {"sysroot": str(host), "intent": vh.INTENT}, check=True)
    assert state() == before


def test_check_mode_gives_the_same(host: Path) -> None:
    vh.pool(host, 1, "2048kB", 159)
    assert run_module("host_verify", {"sysroot": str(host)}, check=True)["results"] == verify(host)["results"]


FIFO_PLAN = {
    "sections": {"rt_scheduling": {"state": "present", "sysctls": {"kernel.sched_rt_runtime_us": "950000"}}}
}


@pytest.mark.parametrize(
    ("attempt", "status", "reason"),
    [
        (_sched.FifoAttempt(True, "", "/", True), "pass", ""),
        (_sched.FifoAttempt(False, "EPERM", "/user.slice", True), "fail", "fifo_refused"),
        (_sched.FifoAttempt(False, "EPERM", "/user.slice", False), "not_evaluated", "permission_denied"),
        (_sched.FifoAttempt(None, "timeout", "/", True), "not_evaluated", "timeout"),
    ],
)
def test_the_attempt_decides(
    monkeypatch: pytest.MonkeyPatch, attempt: _sched.FifoAttempt, status: str, reason: str
) -> None:
    monkeypatch.setattr(_sched, "try_fifo", lambda **kwargs: attempt)
    result = verify(Path("/"), plan=FIFO_PLAN, layers=["measured"], concerns=["rt_scheduling"])
    assert [(row["id"], row["status"], row["reason"]) for row in result["results"]] == [
        ("rt_scheduling.fifo", status, reason)
    ]
    assert result["results"][0]["observed"]["cgroup"] == attempt.cgroup


def test_nothing_is_tried_when_the_measured_layer_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    def tried(**kwargs: Any) -> Any:
        raise AssertionError("the host was disturbed")

    monkeypatch.setattr(_sched, "try_fifo", tried)
    result = verify(Path("/"), plan=FIFO_PLAN, layers=["configured", "next_boot", "running"])
    assert of_status(result, "error") == []
