# SPDX-License-Identifier: Apache-2.0
"""Facts of the whole host: kernel, architecture, page sizes, memory, and what says that it is a guest."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ._tree import Tree

# Written by _collect: what a recorded tree cannot show by itself.
MANIFEST = "/firsttouch-recording.json"
DMI_DIR = "/sys/class/dmi/id"
DMI_FILES = ("product_name", "sys_vendor", "board_vendor", "bios_vendor", "product_version")
# The table of systemd's detect_vm_dmi_vendor() (src/basic/virt.c) and some that it learns by CPUID only.
_DMI_VENDORS = (
    ("KVM", "kvm"),
    ("OpenStack", "kvm"),
    ("KubeVirt", "kvm"),
    ("CloudStack KVM", "kvm"),
    ("RHEV", "kvm"),
    ("oVirt", "kvm"),
    ("Nutanix AHV", "kvm"),
    ("AHV", "kvm"),
    ("Amazon EC2", "amazon"),
    ("Google Compute Engine", "google"),
    ("Alibaba Cloud ECS", "alibaba"),
    ("DigitalOcean", "kvm"),
    ("QEMU", "qemu"),
    ("Standard PC (", "qemu"),
    ("VMware", "vmware"),
    ("VMW", "vmware"),
    ("innotek GmbH", "oracle"),
    ("VirtualBox", "oracle"),
    ("Xen", "xen"),
    ("HVM domU", "xen"),
    ("Bochs", "bochs"),
    ("SeaBIOS", "qemu"),
    ("Parallels", "parallels"),
    ("BHYVE", "bhyve"),
    ("Hyper-V", "microsoft"),
    ("Virtual Machine", "microsoft"),
    ("Apple Virtualization", "apple"),
)
_X86 = ("x86_64", "i386", "i486", "i586", "i686", "amd64")


@dataclass(frozen=True)
class HostFacts:
    """Bytes for page and memory, kB for huge page sizes; None where the tree does not say."""

    arch: str | None
    kernel_release: str | None
    page_size_bytes: int | None
    hugepage_sizes_kb: tuple[int, ...]
    default_hugepage_kb: int | None
    memory_bytes: int | None


@dataclass(frozen=True)
class Virtualization:
    """The hypervisor's name, `unknown` for one that hides its name, None for no evidence of any.

    bare_metal is True only where something that would show a hypervisor was read and showed none; None
    where nothing was readable that could tell.
    """

    hypervisor: str | None = None
    bare_metal: bool | None = None
    evidence: tuple[tuple[str, str, str], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """`evidence` as a list of {hypervisor, source, value}: what each sign takes it for."""
        rows = [
            {"hypervisor": name, "source": source, "value": value} for name, source, value in self.evidence
        ]
        return {"hypervisor": self.hypervisor, "bare_metal": self.bare_metal, "evidence": rows}

    @classmethod
    def from_dict(cls, doc: Mapping[str, Any]) -> Virtualization:
        """The inverse of as_dict()."""
        evidence = tuple((row["hypervisor"], row["source"], row["value"]) for row in doc["evidence"])
        return cls(doc["hypervisor"], doc["bare_metal"], evidence)


def read_host(tree: Tree) -> HostFacts:
    """The host-wide facts below TREE."""
    meminfo = _fields(tree.text("/proc/meminfo") or "")
    cpuinfo = tree.text("/proc/cpuinfo") or ""
    recorded = _recorded(tree)
    arch = recorded.get("arch") or _arch(tree, cpuinfo)
    sizes = tree.numbered_sizes("/sys/kernel/mm/hugepages")
    default = _kb(meminfo.get("Hugepagesize"))
    memory = _kb(meminfo.get("MemTotal"))
    return HostFacts(
        arch=arch,
        kernel_release=_release(tree),
        page_size_bytes=recorded.get("page_size_bytes") or _page_size(tree, arch, default),
        hugepage_sizes_kb=tuple(sizes) or ((default,) if default else ()),
        default_hugepage_kb=default,
        memory_bytes=None if memory is None else memory * 1024,
    )


def _recorded(tree: Tree) -> dict[str, Any]:
    try:
        found = json.loads(tree.text(MANIFEST) or "{}")
    except ValueError as exc:
        tree.trouble[MANIFEST] = f"not understood: {exc}"
        return {}
    return found if isinstance(found, dict) else {}


def _fields(text: str) -> dict[str, str]:
    rows = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, colon, value in rows if colon}


def _kb(text: str | None) -> int | None:
    match = re.fullmatch(r"(\d+)\s*kB", text or "")
    return int(match.group(1)) if match else None


def _release(tree: Tree) -> str | None:
    release = tree.text("/proc/sys/kernel/osrelease")
    if release:
        return release
    match = re.match(r"Linux version (\S+)", tree.text("/proc/version") or "")
    return match.group(1) if match else None


def _arch(tree: Tree, cpuinfo: str) -> str | None:
    """/proc/sys/kernel/arch (since 6.1), this kernel's own answer for `/`, else the shape of cpuinfo."""
    arch = tree.text("/proc/sys/kernel/arch")
    if arch:
        return arch
    if os.path.realpath(tree.root) == "/":
        return os.uname().machine
    signs = (
        (r"(?m)^arch\s*: IA-64", "ia64"),
        (r"(?m)^vendor_id\s*: IBM/S390", "s390x"),
        (r"(?mi)^CPU Family\s*: Loongson-64bit", "loongarch64"),
        (r"(?m)^isa\s*: rv64", "riscv64"),
        (r"(?m)^isa\s*: rv32", "riscv32"),
        (r"(?m)^type\s*: sun4[uv]", "sparc64"),
        (r"(?m)^revision\s*: .*\(pvr ", "ppc64"),
        (r"(?m)^cpu family\s*: PA-RISC", "parisc"),
        (r"(?m)^CPU architecture\s*: 8|^CPU architecture\s*: AArch64", "aarch64"),
        (r"(?m)^CPU architecture\s*: ", "arm"),
        (r"(?m)^cpu model\s*: .*(MIPS|Loongson|Cavium)", "mips64"),
        (r"(?m)^flags\s*:.*\blm\b", "x86_64"),
        (r"(?m)^(flags\s*:|vendor_id\s*: (GenuineIntel|AuthenticAMD))", "i686"),
    )
    return next((name for pattern, name in signs if re.search(pattern, cpuinfo)), None)


def _page_size(tree: Tree, arch: str | None, default_kb: int | None) -> int | None:
    """The base page: asked of this kernel for `/`, else from the size of a PMD huge page.

    A page table of one page holds page/8 entries of 8 bytes, so a PMD maps page * page / 8 (4K: 2M, 16K: 32M,
    64K: 512M) on the architectures with such tables.
    """
    if os.path.realpath(tree.root) == "/":
        return os.sysconf("SC_PAGE_SIZE")
    if arch in (*_X86, "s390x", "s390"):
        return 4096
    pmd = tree.number("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
    if pmd is None and default_kb and arch in ("aarch64", "riscv64", "loongarch64"):
        pmd = default_kb * 1024
    return next((page for page in (4096, 16384, 65536) if page * page // 8 == pmd), None)


def read_virtualization(tree: Tree, facts: Mapping[str, Any] | None = None) -> Virtualization:
    """Every sign of a hypervisor below TREE; FACTS are Ansible's own virtualization facts, if gathered."""
    cpuinfo = tree.text("/proc/cpuinfo") or ""
    found = [
        *_from_dmi(tree),
        *_from_cpuinfo(cpuinfo),
        *_from_firmware(tree),
        *_from_devices(tree),
        *_from_s390(tree, cpuinfo),
        *_from_facts(facts or {}),
    ]
    return virtualization_of(found, _would_show(tree, cpuinfo))


def virtualization_of(found: list[tuple[str, str, str]], would_show: bool = False) -> Virtualization:
    """Sum up what was FOUND, (name, source, value) each; WOULD_SHOW: a guest could not have gone unseen."""
    names = [name for name, _source, _value in found]
    named = [name for name in names if name != "unknown"]
    hypervisor = named[0] if named else names[0] if names else None
    return Virtualization(hypervisor, False if found else True if would_show else None, tuple(found))


def _would_show(tree: Tree, cpuinfo: str) -> bool:
    """Whether a guest would have been seen: x86 has CPUID's flag and DMI, others DMI or a device tree."""
    dmi = bool(tree.text(f"{DMI_DIR}/sys_vendor") or tree.text(f"{DMI_DIR}/product_name"))
    if re.search(r"(?m)^flags\s*:", cpuinfo):
        return dmi
    return dmi or bool(tree.names("/proc/device-tree")) or "PowerNV" in cpuinfo


def _from_cpuinfo(text: str) -> list[tuple[str, str, str]]:
    found = []
    if re.search(r"(?m)^flags\s*:.*\bhypervisor\b", text):
        found.append(("unknown", "/proc/cpuinfo", "CPUID hypervisor flag"))
    for pattern, name in (
        (r"(?m)^vendor_id\s*: User Mode Linux", "uml"),
        (r"(?m)^(?:model name|cpu)\s*: .*\b(?:QEMU|KVM)\b.*", "kvm"),
        (r"(?m)^(?:machine|model)\s*: .*emulated by qemu.*", "kvm"),
        (r"(?m)^machine\s*: CHRP IBM,.*", "powervm"),
        (r"(?m)^platform\s*: PS3", "lv1"),
    ):
        match = re.search(pattern, text)
        if match:
            found.append((name, "/proc/cpuinfo", match.group(0)[:120]))
            break
    return found


def _from_dmi(tree: Tree) -> list[tuple[str, str, str]]:
    found = []
    values = {name: tree.text(f"{DMI_DIR}/{name}") or "" for name in DMI_FILES}
    metal = re.search(r"\.metal\b|^Google Compute Engine Bare Metal|-metal$", values["product_name"])
    for name, value in values.items():
        vendor = next((vendor for prefix, vendor in _DMI_VENDORS if value.startswith(prefix)), None)
        # "Virtual Machine" is Hyper-V's product name, and no vendor but Microsoft means it by that.
        if value == "Virtual Machine" and not values["sys_vendor"].startswith("Microsoft"):
            vendor = "unknown"
        if vendor and not metal:
            found.append((vendor, f"{DMI_DIR}/{name}", value))
    return found


def _from_firmware(tree: Tree) -> list[tuple[str, str, str]]:
    found = []
    kind = tree.text("/sys/hypervisor/type")
    if kind:
        dom0 = "control_d" in (tree.text("/proc/xen/capabilities") or "")
        found.append((kind, "/sys/hypervisor/type", f"{kind}, the control domain" if dom0 else kind))
    base = "/proc/device-tree"
    compatible = tree.data(f"{base}/hypervisor/compatible")
    if compatible:
        value = compatible.split(b"\0")[0].decode("utf-8", "replace")
        name = next((name for name in ("kvm", "xen", "vmware") if name in value), "unknown")
        found.append((name, f"{base}/hypervisor/compatible", value))
    partition = tree.text(f"{base}/ibm,partition-name")
    if partition is not None:
        emulated = b"qemu" in (tree.data(f"{base}/compatible") or b"")
        found.append(("kvm" if emulated else "powervm", f"{base}/ibm,partition-name", "present"))
    elif any("fw-cfg" in name for name in tree.names(base)):
        found.append(("qemu", base, "a fw-cfg node"))
    return found


def _from_devices(tree: Tree) -> list[tuple[str, str, str]]:
    """PCI vendors that only make virtual devices, as lscpu looks for them; Hyper-V's bus."""
    vendors = {"15ad": "vmware", "80ee": "oracle", "5853": "xen"}
    found = []
    for line in (tree.text("/proc/bus/pci/devices") or "").splitlines():
        columns = line.split()
        name = vendors.get(columns[1][:4].lower()) if len(columns) > 1 and len(columns[1]) == 8 else None
        if name:
            found.append((name, "/proc/bus/pci/devices", f"vendor {columns[1][:4]}"))
            break
    if tree.names("/sys/bus/vmbus/devices"):
        found.append(("microsoft", "/sys/bus/vmbus/devices", "devices on Hyper-V's bus"))
    return found


def _from_s390(tree: Tree, cpuinfo: str) -> list[tuple[str, str, str]]:
    """A mainframe runs below PR/SM at least; z/VM or KVM on it are VM00 in sysinfo, version FF in cpuinfo."""
    if "IBM/S390" not in cpuinfo:
        return []
    sysinfo = tree.text("/proc/sysinfo") or ""
    match = re.search(r"(?m)^VM00 Control Program:\s*(\S.*?)\s*$", sysinfo)
    if match:
        name = "kvm" if match.group(1).startswith("KVM") else "zvm"
        return [(name, "/proc/sysinfo", match.group(0).strip())]
    if re.search(r"(?m)^processor \d+: version = FF", cpuinfo):
        return [("zvm", "/proc/cpuinfo", "processor version FF")]
    return [("lpar", "/proc/cpuinfo", "vendor_id IBM/S390: a logical partition")]


def _from_facts(facts: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    plain = {key.removeprefix("ansible_"): value for key, value in facts.items()}
    if plain.get("virtualization_role") != "guest":
        return []
    kind = str(plain.get("virtualization_type") or "unknown")
    return [(kind, "facts", f"virtualization_role guest, virtualization_type {kind}")]
