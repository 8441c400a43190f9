# SPDX-License-Identifier: GPL-3.0-or-later
"""A recorded two-node Debian host exactly as its plan wants it, for tests that break one thing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import fake_kubelet
from ansible_collections.firsttouch.host.plugins.module_utils import _runtime_install
from ansible_collections.firsttouch.host.plugins.module_utils._systemd import install_links, with_marker
from support import put, run_module

INTENT: dict[str, Any] = {
    "hugepages": [{"size": "2M", "nodes": {"0": 100, "1": 160}}, {"size": "1G", "nodes": {"1": 1}}],
    "hugetlbfs_mounts": [
        {"path": "/dev/hugepages-ft", "pagesize": "2M", "size": "200M", "group": "firsttouch", "mode": "0770"}
    ],
    "isolated_cpus": "1,3",
    "irqbalance": "ban_isolated",
    "vm_sysctls": {"vm.swappiness": 0, "vm.dirty_ratio": 8},
    "extra_free_bytes": 64 << 20,
    "rt_runtime_us": 950000,
}
# Every concern, with addresses, ids and words in it that a recording has to replace, and some that it must leave alone.
EVERYTHING: dict[str, Any] = {
    **INTENT,
    "hugetlbfs_mounts": [
        {"path": "/dev/hugepages-ft", "pagesize": "2M", "size": "200M", "group": "firsttouch", "mode": "0770"}
    ],
    "numa_balancing": False,
    "thp": {"enabled": "madvise", "defrag": "defer+madvise"},
    "conflicting_services": "stop",
    "models": [
        {"name": "toy", "source": "/m/3f2b8e1c-9d47-4c11-8a55-0123456789ab/toy", "policy": "replicate", "nodes": "all"}
    ],
    "servers": [
        {"name": "policy", "models": ["toy"], "node": 1, "fifo_priority": 10, "handler": "m.secret_token:serve"},
        {
            "name": "far", "address": "tcp://10.0.0.1:5555", "threads": 0, "python_path": "/srv/10.1.2.3/handlers",
            "tls": {name: f"/etc/private/{name}.pem" for name in ("cert", "key", "authority")},
        },
    ],
    "kubelet": "present",
}  # fmt: skip
RELEASE = "6.12.0-1-amd64"
GRUB_CFG = "/boot/grub/grub.cfg"
DROPIN = "/etc/default/grub.d/zzz-firsttouch.cfg"
SYSCTL = "/etc/sysctl.d/zz-firsttouch.conf"
CPU = "/sys/devices/system/cpu"
IRQBALANCE_GROUP = "/sys/fs/cgroup/system.slice/irqbalance.service"
NODE = "/sys/devices/system/node"
POOLS = {"2048kB": {"0": 100, "1": 160}, "1048576kB": {"0": 0, "1": 1}}
ROOT_UUID = "root=UUID=6f0c4c4e-0000-4000-8000-000000000001"
MOUNT = (
    "41 25 0:33 / /dev/hugepages-ft rw,relatime shared:9 - "
    "hugetlbfs hugetlbfs rw,gid=990,mode=770,pagesize=2M,size=209715200"
)

_ZONES = """Node {node}, zone   Normal
  per-node stats
      nr_inactive_anon 100
  pages free     200000
        boost    0
        min      {min}
        low      {low}
        high     {high}
        spanned  {managed}
        present  {managed}
        managed  {managed}
  start_pfn:           {start}
"""


def bare_host(root: Path) -> Path:
    """A host as before provisioning: its topology, its kernel, its boot loader."""
    put(root, "/proc/sys/kernel/osrelease", RELEASE + "\n")
    put(root, "/proc/version", f"Linux version {RELEASE} (debian-kernel@lists.debian.org)\n")
    put(
        root,
        "/proc/meminfo",
        "MemTotal: 5000000 kB\nMemAvailable: 3500000 kB\nHugetlb: 0 kB\nHugepagesize: 2048 kB\n",
    )
    put(root, "/proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n")
    put(root, "/proc/cpuinfo", "".join(f"processor\t: {n}\nflags\t\t: fpu pse pdpe1gb\n\n" for n in range(4)))
    put(
        root,
        f"/boot/config-{RELEASE}",
        "CONFIG_NO_HZ_FULL=y\nCONFIG_CPU_ISOLATION=y\nCONFIG_RCU_NOCB_CPU=y\nCONFIG_NUMA=y\n",
    )
    put(root, f"/boot/vmlinuz-{RELEASE}", "")
    for name in ("online", "possible", "present"):
        put(root, f"{CPU}/{name}", "0-3\n")
    put(root, f"{CPU}/offline", "\n")
    put(root, f"{CPU}/isolated", "\n")
    put(root, f"{CPU}/nohz_full", "(null)\n")
    for cpu in range(4):
        put(root, f"{CPU}/cpu{cpu}/topology/thread_siblings_list", f"{cpu}\n")
        put(root, f"{CPU}/cpu{cpu}/topology/physical_package_id", f"{cpu // 2}\n")
        put(root, f"{CPU}/cpu{cpu}/topology/core_id", f"{cpu % 2}\n")
    zones = []
    for node, (cpus, kilobytes) in enumerate((("0-1", 1572864), ("2-3", 3670016))):
        put(root, f"{NODE}/node{node}/cpulist", cpus + "\n")
        put(root, f"{NODE}/node{node}/distance", ("10 21\n", "21 10\n")[node])
        put(root, f"{NODE}/node{node}/meminfo", f"Node {node} MemTotal: {kilobytes} kB\n")
        start, pages = ((256, kilobytes // 4), (1048576, kilobytes // 4))[node]
        zones.append(_ZONES.format(node=node, min=1000, low=11000, high=21000, managed=pages, start=start))
        for size in POOLS:
            pool(root, node, size, 0)
    put(root, "/proc/zoneinfo", "".join(zones))
    for name in ("online", "possible", "has_cpu", "has_memory", "has_normal_memory"):
        put(root, f"{NODE}/{name}", "0-1\n")
    put(root, "/proc/irq/default_smp_affinity", "f\n")
    put(root, "/proc/cmdline", f"BOOT_IMAGE=/boot/vmlinuz-{RELEASE} {ROOT_UUID} ro quiet\n")
    put(root, "/proc/self/mountinfo", "25 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n")
    for key, value in (
        ("swappiness", 60),
        ("dirty_ratio", 20),
        ("dirty_bytes", 0),
        ("watermark_scale_factor", 10),
    ):
        put(root, f"/proc/sys/vm/{key}", f"{value}\n")
    put(root, "/proc/sys/vm/min_free_kbytes", "8000\n")
    put(root, "/proc/sys/kernel/sched_rt_runtime_us", "950000\n")
    put(root, "/proc/sys/kernel/sched_rt_period_us", "1000000\n")
    put(root, "/etc/group", "root:x:0:\nfirsttouch:x:990:\n")
    put(root, "/etc/passwd", "root:x:0:0:root:/root:/bin/bash\n")
    put(
        root,
        "/etc/default/grub",
        'GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"\nGRUB_CMDLINE_LINUX=""\n',
    )
    put(root, "/etc/debian_version", "13.0\n")
    put(root, "/usr/lib/systemd/system/irqbalance.service", "[Service]\nExecStart=/usr/sbin/irqbalance\n")
    put(root, "/usr/sbin/update-grub", "#!/bin/sh\n").chmod(0o755)
    grub_cfg(root, "quiet")
    return root


def pool(root: Path, node: int, size: str, pages: int, surplus: int = 0) -> Path:
    """Give NODE a pool and keep the sums of all nodes right; return the file of its count."""
    count = put(root, f"{NODE}/node{node}/hugepages/hugepages-{size}/nr_hugepages", f"{pages}\n")
    put(root, f"{NODE}/node{node}/hugepages/hugepages-{size}/free_hugepages", f"{pages}\n")
    put(root, f"{NODE}/node{node}/hugepages/hugepages-{size}/surplus_hugepages", f"{surplus}\n")
    nodes = [root / f"{NODE[1:]}/node{n}/hugepages/hugepages-{size}" for n in (0, 1)]
    for name in ("nr_hugepages", "free_hugepages", "surplus_hugepages"):
        total = sum(int((path / name).read_text()) for path in nodes if (path / name).exists())
        put(root, f"/sys/kernel/mm/hugepages/hugepages-{size}/{name}", f"{total}\n")
    if size == "2048kB":
        default = (root / f"sys/kernel/mm/hugepages/hugepages-{size}/nr_hugepages").read_text()
        put(root, "/proc/sys/vm/nr_hugepages", default)
    for name in ("resv_hugepages", "nr_overcommit_hugepages"):
        put(root, f"/sys/kernel/mm/hugepages/hugepages-{size}/{name}", "0\n")
    return count


def grub_cfg(root: Path, arguments: str) -> Path:
    """A grub.cfg as update-grub makes it: the entry that boots, and its recovery entry."""
    linux = f"\tlinux\t/boot/vmlinuz-{RELEASE} {ROOT_UUID} ro "
    text = f"""set default="0"
menuentry 'Debian GNU/Linux' --class debian $menuentry_id_option 'gnulinux-simple' {{
{linux}{arguments}
\tinitrd\t/boot/initrd.img-{RELEASE}
}}
submenu 'Advanced options for Debian GNU/Linux' $menuentry_id_option 'gnulinux-advanced' {{
\tmenuentry 'Debian GNU/Linux (recovery mode)' $menuentry_id_option 'gnulinux-recovery' {{
{linux}single
\t\tinitrd\t/boot/initrd.img-{RELEASE}
\t}}
}}
"""
    return put(root, GRUB_CFG, text)


def plan_for(root: Path, intent: dict[str, Any] | None = None) -> dict[str, Any]:
    """The plan of INTENT for the host below ROOT, as it is in plan.json."""
    result = run_module("host_plan", {"intent": INTENT if intent is None else intent, "sysroot": str(root)})
    assert not result.get("failed"), result
    plan: dict[str, Any] = json.loads(json.dumps(result["plan"]))
    return plan


def irq(root: Path, number: int, allowed: str, effective: str | None) -> Path:
    """An interrupt as /proc/irq shows it; without EFFECTIVE the kernel does not say where it goes."""
    if effective is not None:
        put(root, f"/proc/irq/{number}/effective_affinity_list", f"{effective}\n")
    return put(root, f"/proc/irq/{number}/smp_affinity_list", f"{allowed}\n")


def thread(root: Path, pid: int, command: str, cpu: int, *, tid: int = 0, kernel: bool = False) -> Path:
    """A sleeping thread that ran on CPU last and may run everywhere."""
    tid = tid or pid
    flags = 2129984 if kernel else 4194560
    fields = ["S", "1", "1", "1", "0", "-1", str(flags), *["0"] * 29, str(cpu), *["0"] * 13]
    put(root, f"/proc/{pid}/task/{tid}/status", f"Name:\t{command}\nCpus_allowed_list:\t0-3\n")
    return put(root, f"/proc/{pid}/task/{tid}/stat", f"{tid} ({command}) {' '.join(fields)}\n")


def uses(root: Path, pid: int, *files: Path, mapped: bool = True) -> None:
    """Let process PID have FILES mapped, or only open, and nothing else."""
    fds = root / f"proc/{pid}/fd"
    fds.mkdir(parents=True, exist_ok=True)
    lines = []
    for number, file in enumerate(files, 3):
        if mapped:
            status = file.stat()
            device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
            lines.append(f"7f0000000000-7f0000200000 rw-s 00000000 {device} {status.st_ino}    /else/where\n")
        else:
            (fds / str(number)).symlink_to(f"/{file.relative_to(root)}")
    put(root, f"/proc/{pid}/maps", "".join(lines))


def huge_file(root: Path, path: str, size: int) -> Path:
    """A file of SIZE bytes that takes no memory here."""
    target = put(root, path, "")
    os.truncate(target, size)
    return target


def quiet_cpus(root: Path) -> None:
    """Interrupts and threads, none of them on the isolated CPUs 1 and 3."""
    put(
        root,
        "/proc/interrupts",
        "           CPU0       CPU1       CPU2       CPU3\n"
        " 24:         10          5          0          0  PCI-MSIX-0000:00:02.0   0-edge      nvme0q0\n"
        " 25:          0          0         90          0  PCI-MSIX-0000:00:03.0   1-edge      eth0-rx-0, eth0-tx-0\n"
        "NMI:          0          0          0          0   Non-maskable interrupts\n"
        "ERR:          0\n",
    )
    irq(root, 24, "0,2", "0")
    irq(root, 25, "0,2", "2")
    irq(root, 99, "0-3", "3")  # nobody asked for it
    put(root, "/sys/devices/virtual/workqueue/cpumask", "5\n")
    thread(root, 1, "systemd", 0)
    thread(root, 2, "kthreadd", 0, kernel=True)
    for cpu in (1, 3):
        thread(root, 20 + cpu, f"rcuop/{cpu}", 0, kernel=True)
        thread(root, 30 + cpu, f"ksoftirqd/{cpu}", cpu, kernel=True)
    thread(root, 612, "irqbalance", 2)


def boot_lines(root: Path, plan: dict[str, Any]) -> None:
    """The arguments of PLAN in all three layers."""
    tokens = " ".join(plan["boot"]["tokens"])
    put(root, DROPIN, f'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT {tokens}"\n')
    grub_cfg(root, f"quiet {tokens}")
    put(root, "/proc/cmdline", f"BOOT_IMAGE=/boot/vmlinuz-{RELEASE} {ROOT_UUID} ro quiet {tokens}\n")


def provisioned_host(root: Path) -> dict[str, Any]:
    """Make the bare host below ROOT what INTENT asks for, after its reboot; return the plan."""
    bare_host(root)
    plan = plan_for(root)
    boot_lines(root, plan)
    for size, nodes in POOLS.items():
        for node, pages in nodes.items():
            pool(root, int(node), size, pages)
    put(root, f"{CPU}/isolated", "1,3\n")
    put(root, f"{CPU}/nohz_full", "1,3\n")
    put(root, "/proc/irq/default_smp_affinity", "5\n")
    mounts = (root / "proc/self/mountinfo").read_text()
    put(root, "/proc/self/mountinfo", f"{mounts}{MOUNT}\n")
    put(root, SYSCTL, "".join(f"{key} = {value}\n" for key, value in plan["sysctls"].items()))
    for key, value in plan["sysctls"].items():
        put(root, "/proc/sys/" + key.replace(".", "/"), f"{value}\n")
    for name, text in plan["sections"]["hugepages"]["units"].items():
        unit = put(root, f"/etc/systemd/system/{name}", text)
        link = root / f"etc/systemd/system/multi-user.target.wants/{name}"
        link.parent.mkdir(exist_ok=True)
        link.symlink_to("/" + str(unit.relative_to(root)))
    result = run_module("irqbalance", {"mode": "ban_isolated", "isolated": "1,3", "sysroot": str(root)})
    assert result["changed"], result
    put(root, f"{IRQBALANCE_GROUP}/cgroup.procs", "612\n")
    put(root, "/proc/612/environ", "LANG=C\0IRQBALANCE_BANNED_CPULIST=1,3\0")
    (root / "dev/hugepages-ft").mkdir(parents=True)
    quiet_cpus(root)
    put(root, "/etc/firsttouch/plan.json", json.dumps(plan))
    return plan


def whole_host(root: Path) -> dict[str, Any]:
    """The host of provisioned_host() with models, servers, kubelet and all else of EVERYTHING; return the plan."""
    provisioned_host(root)
    put(root, "/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    put(root, "/sys/kernel/mm/transparent_hugepage/defrag", "always defer [defer+madvise] madvise never\n")
    put(root, "/proc/sys/kernel/numa_balancing", "0\n")
    head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nclusterDNS: [10.96.0.10]\n"
    put(root, "/var/lib/kubelet/config.yaml", head + "kubeReserved: {memory: 256Mi}\n")
    flags = "--config=/var/lib/kubelet/config.yaml --config-dir=/etc/kubernetes/kubelet.conf.d --node-ip=10.9.8.7"
    put(root, "/usr/lib/systemd/system/kubelet.service", f"[Service]\nExecStart=/usr/bin/kubelet {flags}\n")
    plan = plan_for(root, EVERYTHING)
    kubelet = plan["sections"]["kubelet"]
    args = {"file": kubelet["file"], "config": kubelet["config"], "sysroot": str(root)}
    (root / kubelet["file"].lstrip("/")).parent.mkdir(parents=True)
    assert run_module("kubelet_config", args)["changed"]
    fake_kubelet.start(root, {0: 1572864 << 10, 1: 3670016 << 10}, {0: 100, 1: 160})
    boot_lines(root, plan)
    assert run_module("thp", {"values": plan["sections"]["thp"]["settings"], "sysroot": str(root)})["changed"]
    files = {
        f"/etc/systemd/system/{name}": (name, text)
        for section in plan["sections"].values()
        for name, text in (section.get("units") or {}).items()
    }
    (root / "run/systemd/units").mkdir(parents=True, exist_ok=True)
    for path, (name, text) in files.items():
        put(root, path, with_marker(text))
        for link in install_links(name, text):
            target = root / link.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            target.symlink_to(path)
        (root / f"run/systemd/units/invocation:{name}").symlink_to("0123456789abcdef0123456789abcdef")
    for name, text in plan["sections"]["runtime"]["files"].items():
        put(root, f"/etc/firsttouch/{name}", text)
    put(root, _runtime_install.TMPFILES, _runtime_install.TMPFILES_TEXT)
    put(root, SYSCTL, "".join(f"{key} = {value}\n" for key, value in plan["sysctls"].items()))
    put(root, "/etc/firsttouch/plan.json", json.dumps(plan))
    return plan
