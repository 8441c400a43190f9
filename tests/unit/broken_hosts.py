# SPDX-License-Identifier: GPL-3.0-or-later
"""Ways to break the host of verified_host.py, and what verify must then answer."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, Callable

import verified_host as vh
from support import put

UNIT = "/etc/systemd/system/dev-hugepages\\x2dft.mount"
WANTS = "/etc/systemd/system/multi-user.target.wants/dev-hugepages\\x2dft.mount"


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


def edit_plan(root: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    path = root / "etc/firsttouch/plan.json"
    plan = json.loads(path.read_text())
    edit(plan)
    path.write_text(json.dumps(plan))


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
        {"units.dev-hugepages\\x2dft.mount.dropins": ("fail", "overridden_by")},
    ),
    "the unit has a drop-in that changes nothing of ours": (
        lambda root: put(root, f"{UNIT}.d/override.conf", "[Mount]\nTimeoutSec=9\n"),
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
    "somebody staged an argument that takes nodes away": (
        lambda root: replace(root, vh.GRUB_CFG, " ro quiet", " ro quiet numa=off"),
        {"boot.hardware": ("fail", "foreign_token"), "boot.foreign_staged": ("warn", "foreign_staged")},
    ),
    "somebody staged an argument that takes CPUs away": (
        lambda root: replace(root, vh.GRUB_CFG, " ro quiet", " ro quiet nosmt maxcpus=2"),
        {"boot.hardware": ("fail", "foreign_token")},
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
        {"cpu_isolation.default_irq_affinity": ("fail", "live_differs")},
    ),
    "irqbalance runs without our list": (
        lambda root: put(root, "/proc/612/environ", "LANG=C\0IRQBALANCE_BANNED_CPULIST=1\0"),
        {"cpu_isolation.irqbalance.running": ("fail", "wrong_value")},
    ),
    "irqbalance's list was edited": (
        lambda root: replace(root, "/etc/firsttouch/irqbalance.env", "=1,3", "=1"),
        {"cpu_isolation.irqbalance.environment": ("fail", "changed_by_hand")},
    ),
    "a later drop-in takes irqbalance's list away": (
        lambda root: put(root, "/etc/systemd/system/irqbalance.service.d/zzz.conf", "[Service]\nEnvironmentFile=\n"),
        {"cpu_isolation.irqbalance.overridden": ("fail", "overridden_by")},
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
    "an interrupt that nobody can tell managed will go to an isolated CPU": (
        lambda root: vh.irq(root, 25, "3", "0"),
        {"cpu_isolation.irqs.unsure": ("warn", "irq_may_be_managed")},
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
        {"vm_sysctls.next_boot.vm.swappiness": ("fail", "masked")},
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
    "a line of tmpfiles.d writes it too": (
        lambda root: put(root, "/etc/tmpfiles.d/vm.conf", "# x\nw /proc/sys/vm/swappiness - - - - 60\n"),
        {"vm_sysctls.tmpfiles.vm.swappiness": ("warn", "foreign_owner")},
    ),
    "the mount is read-only": (
        lambda root: replace(root, "/proc/self/mountinfo", "hugepages-ft rw,", "hugepages-ft ro,"),
        {"hugepages.mount./dev/hugepages-ft.writable": ("fail", "read_only")},
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
    "the firmware numbers the CPUs of the nodes anew": (
        lambda root: [put(root, f"{vh.NODE}/node{n}/cpulist", f"{cpus}\n") for n, cpus in enumerate(("2-3", "0-1"))],
        {"numa.planned": ("fail", "nodes_changed")},
    ),
    "a node without CPUs came online": (
        lambda root: [
            put(root, f"{vh.NODE}/online", "0-2\n"), put(root, f"{vh.NODE}/possible", "0-2\n"),
            put(root, f"{vh.NODE}/node2/cpulist", "\n"),
            put(root, f"{vh.NODE}/node2/meminfo", "Node 2 MemTotal: 100000 kB\n"),
        ],
        {"numa.planned": ("warn", "nodes_changed")},
    ),
    "a planned node is gone": (
        lambda root: [put(root, f"{vh.NODE}/online", "0\n"), put(root, f"{vh.NODE}/has_cpu", "0\n")],
        {"numa.planned": ("fail", "nodes_changed")},
    ),
    "the nodes are farther apart": (
        lambda root: [put(root, f"{vh.NODE}/node{n}/distance", f"{far}\n") for n, far in enumerate(("10 40", "40 10"))],
        {"numa.planned": ("pass", ""), "numa.planned.distances": ("warn", "nodes_changed")},
    ),
    "a unit has a byte in it that ends its line": (
        lambda root: replace(root, UNIT, "[Mount]", "[Mou\0nt]"),
        {"units.dev-hugepages\\x2dft.mount.file": ("fail", "changed_by_hand")},
    ),
    "the boot arguments of the record were emptied": (
        lambda root: edit_plan(root, lambda plan: plan["boot"].update(tokens=[])),
        {"plan.record.boot.tokens": ("fail", "changed_by_hand")},
    ),
    "the sections of the record were emptied": (
        lambda root: edit_plan(root, lambda plan: plan.update(sections=dict.fromkeys(plan["sections"]))),
        {"plan.record.boot.tokens": ("fail", "changed_by_hand"), "plan.record.sysctls": ("fail", "changed_by_hand")},
    ),
    "a sysctl of the record was changed": (
        lambda root: edit_plan(root, lambda plan: plan["sysctls"].update({"vm.swappiness": "60"})),
        {"plan.record.sysctls": ("fail", "changed_by_hand")},
    ),
    "a section that no variable asks for": (
        lambda root: edit_plan(
            root, lambda plan: plan["sections"]["hugepages"].update(orphaned=["hugepages"])
        ),
        {"plan.orphaned.hugepages": ("warn", "orphaned")},
    ),
    "pages of a size that nobody planned": (
        lambda root: (vh.pool(root, 0, "64kB", 3), vh.pool(root, 1, "64kB", 0)),
        {"hugepages.other_pool.64kB": ("warn", "foreign_owner")},
    ),
}
