# SPDX-License-Identifier: Apache-2.0
"""What must be known of a kernel and its machine to tell what it makes of a command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ._topology_host import read_host
from ._tree import Tree

KB_PER_GB = 1024 * 1024
# A kernel of which nothing is known is taken for a recent one with the rules that Linux 5.18 to 6.14 share.
DEFAULT_VERSION = (6, 12)
# arch_hugetlb_valid_size() of each architecture by its base page in kB; x86 and s390 also ask the CPU.
_HUGE_SIZES_KB: Mapping[tuple[str, int], tuple[int, ...]] = {
    ("x86_64", 4): (2048, KB_PER_GB),
    ("aarch64", 4): (64, 2048, 32768, KB_PER_GB),
    ("aarch64", 16): (2048, 32768, KB_PER_GB),
    ("aarch64", 64): (2048, 512 * 1024, 16 * KB_PER_GB),
    ("ppc64", 64): (2048, 16384, KB_PER_GB, 16 * KB_PER_GB),
    ("s390x", 4): (1024, 2 * KB_PER_GB),
    ("riscv64", 4): (64, 2048, KB_PER_GB),
}
# HPAGE_SIZE: the pool size that exists without any argument.
_HPAGE_KB: Mapping[tuple[str, int], int] = {
    ("aarch64", 16): 32768,
    ("aarch64", 64): 512 * 1024,
    ("s390x", 4): 1024,
}
# HUGE_MAX_HSTATE; 2 * it + 1 arguments are kept from Linux 6.15 on (HUGE_MAX_CMDLINE_ARGS).
_HUGE_MAX_HSTATE: Mapping[str, int] = {"x86_64": 2, "aarch64": 4, "ppc64": 15, "s390x": 2, "riscv64": 3}
# COMMAND_LINE_SIZE of asm/setup.h, the closing NUL included.
_COMMAND_LINE_SIZE: Mapping[str, int] = {"s390x": 4096, "riscv64": 1024}


@dataclass(frozen=True)
class KernelFacts:
    """Facts of one kernel on one machine. Sizes in kB or bytes as named; empty or None where not known.

    nr_cpu_ids: one more than the last possible CPU. running: the command line of the kernel that showed these CPUs,
    which may have kept some from it; machine_cpus: how many there are without that. nodes: the online ones;
    memory_nodes: those of them that hold memory. huge_sizes_kb: what the kernel accepts as hugepagesz=;
    sizes_shown_kb: the pools that sysfs shows (empty: not readable). config: the CONFIG_ symbols that are set,
    None when its config was not found.
    """

    version: tuple[int, int] = DEFAULT_VERSION
    release: str | None = None
    arch: str = "x86_64"
    nr_cpu_ids: int | None = None
    possible: frozenset[int] = frozenset()
    present: frozenset[int] = frozenset()
    online: frozenset[int] = frozenset()
    boot_cpu: int = 0
    running: str = field(default="", repr=False)
    machine_cpus: int | None = None
    nodes: tuple[int, ...] = ()
    memory_nodes: tuple[int, ...] = ()
    memory_bytes: int | None = None
    page_kb: int = 4
    huge_sizes_kb: tuple[int, ...] = (2048, KB_PER_GB)
    sizes_shown_kb: tuple[int, ...] = ()
    default_huge_kb: int = 2048
    node_format: bool = True
    nohz_full_supported: bool = True
    isolation_supported: bool = True
    config: Mapping[str, str] | None = None

    @property
    def version_known(self) -> bool:
        """Whether the version was read or given, not assumed."""
        return self.release is not None

    @property
    def command_line_size(self) -> int:
        """COMMAND_LINE_SIZE: bytes of command line that this kernel keeps, the closing NUL included."""
        return _COMMAND_LINE_SIZE.get(_family(self.arch), 2048)

    @property
    def hugetlb_arguments(self) -> int | None:
        """How many hugetlb arguments are kept (HUGE_MAX_CMDLINE_ARGS, Linux 6.15); None: all."""
        if self.version < (6, 15):
            return None
        return 2 * _HUGE_MAX_HSTATE.get(_family(self.arch), 2) + 1

    @property
    def list_bits(self) -> int | None:
        """The bits cpulist_parse() works on: nr_cpu_ids, but NR_CPUS below 6.3 without CPUMASK_OFFSTACK."""
        config = self.config or {}
        nr_cpus = config.get("CONFIG_NR_CPUS")
        if self.version >= (6, 3) or not nr_cpus or config.get("CONFIG_CPUMASK_OFFSTACK") == "y":
            return self.nr_cpu_ids
        return int(nr_cpus)

    @property
    def list_words(self) -> tuple[str, ...]:
        """The words this kernel knows in CPU lists: N from Linux 5.13, all from 5.14."""
        return tuple(word for word, since in (("N", (5, 13)), ("all", (5, 14))) if self.version >= since)

    @classmethod
    def from_sysroot(cls, root: str = "/", version: str | tuple[int, int] | None = None) -> KernelFacts:
        """Read the facts below ROOT; VERSION (`6.1`, `6.1.0-18-amd64`) is another kernel than it runs.

        The machine (CPUs, nodes, memory) is that of the running kernel whatever VERSION is. What is absent
        keeps the default. Raises ValueError when VERSION does not begin with two numbers.
        """
        tree = Tree(root)
        host = read_host(tree)
        release = _release(tree, host.kernel_release, version)
        numbers = parse_version(release) if release else DEFAULT_VERSION
        arch = host.arch or "x86_64"
        page_kb = (host.page_size_bytes or _page_bytes(arch)) // 1024
        cpus = _read_cpus(tree)
        nodes, memory_nodes = _read_nodes(tree)
        shown = tuple(tree.numbered_sizes("/sys/kernel/mm/hugepages"))
        config = _read_config(tree, release)
        return cls(
            version=numbers,
            release=release,
            arch=arch,
            nr_cpu_ids=max(cpus["possible"]) + 1 if cpus["possible"] else None,
            possible=cpus["possible"],
            present=cpus["present"],
            online=cpus["online"],
            running=tree.text("/proc/cmdline") or "",
            machine_cpus=_machine_cpus(tree, cpus["possible"]),
            nodes=nodes,
            memory_nodes=memory_nodes,
            memory_bytes=host.memory_bytes,
            page_kb=page_kb,
            huge_sizes_kb=_huge_sizes(tree, arch, page_kb, shown),
            sizes_shown_kb=shown,
            default_huge_kb=_HPAGE_KB.get((_family(arch), page_kb), 16384 if 16384 in shown else 2048),
            node_format=numbers >= (5, 16),
            nohz_full_supported=config is None or config.get("CONFIG_NO_HZ_FULL") == "y",
            isolation_supported=config is None or config.get("CONFIG_CPU_ISOLATION") == "y",
            config=config,
        )


def parse_version(text: str) -> tuple[int, int]:
    """The first two numbers of a kernel release. Raises ValueError."""
    match = re.match(r"(\d+)\.(\d+)", text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a kernel release such as 6.1 or 6.1.0-18-amd64")
    return int(match.group(1)), int(match.group(2))


def _family(arch: str) -> str:
    if arch in ("ppc64le", "ppc64"):
        return "ppc64"
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(arch, arch)


def _page_bytes(arch: str) -> int:
    return 65536 if _family(arch) == "ppc64" else 4096


def _release(tree: Tree, running: str | None, version: str | tuple[int, int] | None) -> str | None:
    """The release asked for, else the running one, else that of the only or newest installed kernel."""
    if version is not None:
        text = version if isinstance(version, str) else ".".join(str(number) for number in version)
        parse_version(text)
        return text
    if running and re.match(r"\d+\.\d+", running):
        return running
    for folder in ("/lib/modules", "/usr/lib/modules"):
        names = [name for name in tree.names(folder) if re.match(r"\d+\.\d+", name)]
        if names:
            return max(names, key=lambda name: [int(part) for part in re.findall(r"\d+", name)])
    return None


def _read_cpus(tree: Tree) -> dict[str, frozenset[int]]:
    """possible, present and online CPUs; a mask that is not there is taken from the next narrower one."""
    base = "/sys/devices/system/cpu"
    online = tree.ids(f"{base}/online") or frozenset()
    if not online:
        listed = re.findall(r"(?m)^processor\s*:\s*(\d{1,5})\s*$", tree.text("/proc/cpuinfo") or "")
        online = frozenset(int(number) for number in listed)
    present = (tree.ids(f"{base}/present") or frozenset()) | online
    possible = (tree.ids(f"{base}/possible") or frozenset()) | present
    return {"possible": possible, "present": present, "online": online}


def _machine_cpus(tree: Tree, possible: frozenset[int]) -> int | None:
    """All CPUs, also those that nr_cpus= hides; None where the kernel does not tell.

    drivers/base/cpu.c print_cpus_offline lists those from nr_cpu_ids to total_cpus. On x86 from Linux 6.9 on,
    total_cpus is cut to nr_cpu_ids as well (topology_init_possible_cpus).
    """
    offline = tree.ids("/sys/devices/system/cpu/offline") or frozenset()
    return max(offline) + 1 if offline and possible and max(offline) > max(possible) else None


def _read_nodes(tree: Tree) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Online nodes, and those that hold memory (N_MEMORY). A kernel without NUMA has node 0 only."""
    base = "/sys/devices/system/node"
    online = tree.ids(f"{base}/online")
    if online is None:
        online = frozenset(tree.numbered(base, "node"))
    memory = tree.ids(f"{base}/has_memory")
    if memory is None:
        totals = {node: _mem_total(tree.text(f"{base}/node{node}/meminfo")) for node in online}
        memory = frozenset(node for node, total in totals.items() if total is None or total > 0)
    return tuple(sorted(online)), tuple(sorted(memory & online))


def _mem_total(text: str | None) -> int | None:
    match = re.search(r"MemTotal:\s*(\d+)\s*kB", text or "")
    return int(match.group(1)) if match else None


def architecture_sizes(arch: str, page_kb: int | None) -> tuple[int, ...]:
    """The sizes in kB that kernels of ARCH know, with any base page when PAGE_KB is None; () when not known here."""
    rows = (
        sizes
        for (family, page), sizes in _HUGE_SIZES_KB.items()
        if family == _family(arch) and page_kb in (None, page)
    )
    return tuple(sorted({size for sizes in rows for size in sizes}))


def _huge_sizes(tree: Tree, arch: str, page_kb: int, shown: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes hugepagesz= accepts. On x86 the CPU decides on 1G (pdpe1gb), elsewhere the kernel does."""
    family = _family(arch)
    known = _HUGE_SIZES_KB.get((family, page_kb), (2048,))
    if family != "x86_64":
        return tuple(sorted(set(shown))) or known
    cpuinfo = tree.text("/proc/cpuinfo") or ""
    flags = re.search(r"(?m)^flags\s*:(.*)$", cpuinfo)
    if flags and "pdpe1gb" not in flags.group(1).split():
        return tuple(size for size in known if size != KB_PER_GB)
    return known


def _read_config(tree: Tree, release: str | None) -> dict[str, str] | None:
    """The CONFIG_ symbols that matter here and are set, from the config file of RELEASE; None without one."""
    if not release:
        return None
    places = (
        f"/boot/config-{release}",
        f"/lib/modules/{release}/config",
        f"/usr/lib/modules/{release}/config",
    )
    text = next(filter(None, (tree.text(place) for place in places)), None)
    if text is None:
        return None
    wanted = (
        "NR_CPUS", "CPUMASK_OFFSTACK", "NO_HZ_FULL", "CPU_ISOLATION", "CMA", "RCU_NOCB_CPU", "CONTIG_ALLOC",
    )  # fmt: skip
    pattern = re.compile(rf"(?m)^(CONFIG_(?:{'|'.join(wanted)}))=(\S+)$")
    return {match.group(1): match.group(2) for match in pattern.finditer(text)}
