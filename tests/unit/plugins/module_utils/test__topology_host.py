# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts of the host: architectures, page sizes, and the signs of each hypervisor."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils._topology_host import (
    read_host,
    read_virtualization,
)
from ansible_collections.firsttouch.host.plugins.module_utils._tree import Tree
from support import put

DMI = "/sys/class/dmi/id"
X86 = "flags\t\t: fpu lm\n"


@pytest.mark.parametrize(
    ("files", "hypervisor", "bare_metal"),
    [
        ({}, None, None),
        ({"/proc/cpuinfo": X86}, None, None),
        ({"/proc/cpuinfo": X86, f"{DMI}/sys_vendor": "Dell Inc."}, None, True),
        ({"/proc/cpuinfo": "flags\t\t: fpu hypervisor lm"}, "unknown", False),
        (
            {"/proc/cpuinfo": "flags\t\t: fpu hypervisor", f"{DMI}/sys_vendor": "VMware, Inc."},
            "vmware",
            False,
        ),
        ({"/proc/cpuinfo": X86, f"{DMI}/product_name": "VMware7,1"}, "vmware", False),
        ({f"{DMI}/sys_vendor": "QEMU"}, "qemu", False),
        # What the host calls itself comes before what its CPU model and firmware are called.
        (
            {
                "/proc/cpuinfo": "model name : QEMU TCG CPU version 2.5+",
                f"{DMI}/sys_vendor": "VMware, Inc.",
                f"{DMI}/bios_vendor": "SeaBIOS",
            },
            "vmware",
            False,
        ),
        ({f"{DMI}/product_name": "KVM Virtual Machine"}, "kvm", False),
        ({f"{DMI}/product_name": "CloudStack KVM Hypervisor"}, "kvm", False),
        ({f"{DMI}/sys_vendor": "innotek GmbH"}, "oracle", False),
        ({f"{DMI}/sys_vendor": "Amazon EC2", f"{DMI}/product_name": "c5.large"}, "amazon", False),
        ({f"{DMI}/sys_vendor": "Amazon EC2", f"{DMI}/product_name": "c5.metal"}, None, True),
        (
            {f"{DMI}/sys_vendor": "Microsoft Corporation", f"{DMI}/product_name": "Virtual Machine"},
            "microsoft",
            False,
        ),
        ({f"{DMI}/sys_vendor": "Microsoft Corporation", f"{DMI}/product_name": "Surface Laptop"}, None, True),
        ({f"{DMI}/sys_vendor": "Xen", f"{DMI}/product_name": "HVM domU"}, "xen", False),
        ({"/sys/hypervisor/type": "xen", "/proc/xen/capabilities": "control_d"}, "xen", False),
        ({"/proc/device-tree/hypervisor/compatible": "linux,kvm\0"}, "kvm", False),
        ({"/proc/device-tree/ibm,partition-name": "lpar1"}, "powervm", False),
        (
            {"/proc/device-tree/ibm,partition-name": "x", "/proc/device-tree/compatible": "qemu,pseries\0"},
            "kvm",
            False,
        ),
        ({"/proc/device-tree/fw-cfg@9020000/reg": "x"}, "qemu", False),
        ({"/proc/device-tree/model": "StarFive VisionFive 2"}, None, True),
        ({"/proc/cpuinfo": "platform\t: PowerNV\nmachine\t: PowerNV 8335"}, None, True),
        ({"/proc/cpuinfo": "machine\t: CHRP IBM pSeries (emulated by qemu)"}, "kvm", False),
        ({"/proc/cpuinfo": "machine\t: CHRP IBM,8233-E8B"}, "powervm", False),
        ({"/proc/cpuinfo": "vendor_id\t: User Mode Linux"}, "uml", False),
        ({"/proc/cpuinfo": "vendor_id : IBM/S390\nprocessor 0: version = 00"}, "lpar", False),
        ({"/proc/cpuinfo": "vendor_id : IBM/S390\nprocessor 0: version = FF,"}, "zvm", False),
        (
            {
                "/proc/cpuinfo": "vendor_id : IBM/S390",
                "/proc/sysinfo": "VM00 Control Program: KVM/Linux   \n",
            },
            "kvm",
            False,
        ),
        ({"/proc/bus/pci/devices": "0010\t15ad0405\t10\tf0000008"}, "vmware", False),
        ({"/proc/bus/pci/devices": "0010\t80861237\t10\t15ad0405"}, None, None),
        ({"/sys/bus/vmbus/devices/x/id": "1"}, "microsoft", False),
    ],
)
def test_hypervisors(
    tmp_path: Path, files: dict[str, str], hypervisor: str | None, bare_metal: bool | None
) -> None:
    for path, content in files.items():
        put(tmp_path, path, content)
    found = read_virtualization(Tree(str(tmp_path)))
    assert (found.hypervisor, found.bare_metal) == (hypervisor, bare_metal)
    assert bool(found.evidence) == (hypervisor is not None)


@pytest.mark.parametrize(
    ("facts", "hypervisor"),
    [
        ({"virtualization_role": "guest", "virtualization_type": "kvm"}, "kvm"),
        ({"ansible_virtualization_role": "guest", "ansible_virtualization_type": "VirtualPC"}, "VirtualPC"),
        ({"virtualization_role": "host", "virtualization_type": "kvm"}, None),
        ({"virtualization_role": "guest"}, "unknown"),
    ],
)
def test_facts_count_as_evidence(tmp_path: Path, facts: dict[str, str], hypervisor: str | None) -> None:
    assert read_virtualization(Tree(str(tmp_path)), facts).hypervisor == hypervisor


@pytest.mark.parametrize(
    ("cpuinfo", "arch"),
    [
        ("arch : IA-64\n", "ia64"),
        ("vendor_id       : IBM/S390\n", "s390x"),
        ("CPU Family\t\t: Loongson-64bit\n", "loongarch64"),
        ("isa\t\t: rv64imafdc\n", "riscv64"),
        ("type\t\t: sun4u\n", "sparc64"),
        ("cpu : POWER9\nrevision : 2.2 (pvr 004e 1202)\n", "ppc64"),
        ("CPU architecture: 8\n", "aarch64"),
        ("CPU architecture: 7\n", "arm"),
        ("flags : fpu lm\n", "x86_64"),
        ("vendor_id : GenuineIntel\nflags : fpu\n", "i686"),
        ("", None),
    ],
)
def test_architecture_of_a_recorded_tree(tmp_path: Path, cpuinfo: str, arch: str | None) -> None:
    put(tmp_path, "/proc/cpuinfo", cpuinfo)
    assert read_host(Tree(str(tmp_path))).arch == arch


@pytest.mark.parametrize(
    ("files", "page"),
    [
        ({"/proc/cpuinfo": X86}, 4096),
        ({"/proc/sys/kernel/arch": "aarch64", "/proc/meminfo": "Hugepagesize: 524288 kB"}, 65536),
        ({"/proc/sys/kernel/arch": "aarch64", "/proc/meminfo": "Hugepagesize: 2048 kB"}, 4096),
        ({"/proc/sys/kernel/arch": "aarch64"}, None),
        (
            {
                "/proc/sys/kernel/arch": "loongarch64",
                "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size": "33554432",
            },
            16384,
        ),
        (
            {"/proc/sys/kernel/arch": "ppc64le", "/firsttouch-recording.json": '{"page_size_bytes": 65536}'},
            65536,
        ),
        ({"/proc/cpuinfo": X86, "/firsttouch-recording.json": "{broken"}, 4096),
        ({"/proc/cpuinfo": X86, "/firsttouch-recording.json": "[1]"}, 4096),
    ],
)
def test_page_size_of_a_recorded_tree(tmp_path: Path, files: dict[str, str], page: int | None) -> None:
    for path, content in files.items():
        put(tmp_path, path, content)
    assert read_host(Tree(str(tmp_path))).page_size_bytes == page


def test_this_host() -> None:
    facts = read_host(Tree("/"))
    assert facts.arch and facts.kernel_release and facts.page_size_bytes and facts.memory_bytes


def test_sizes_come_from_the_directories_then_from_meminfo(tmp_path: Path) -> None:
    put(tmp_path, "/proc/meminfo", "MemTotal: 10 kB\nHugepagesize: 16384 kB\n")
    assert read_host(Tree(str(tmp_path))).hugepage_sizes_kb == (16384,)
    put(tmp_path, "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0")
    put(tmp_path, "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0")
    facts = read_host(Tree(str(tmp_path)))
    assert (facts.hugepage_sizes_kb, facts.default_hugepage_kb) == ((2048, 1048576), 16384)
