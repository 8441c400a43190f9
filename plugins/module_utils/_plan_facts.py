# SPDX-License-Identifier: Apache-2.0
"""What the plan must know about a host besides its topology."""

from __future__ import annotations

import errno
import os
import pwd
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from . import _services, _thp, _watermark
from ._cmdline import split
from ._intent import Judge
from ._kernel_args import KernelFacts
from ._kernel_images import installed_releases
from ._memory_slots import Slots, read_slots
from ._sosreport import UNKNOWN
from ._sysctl import normalize
from ._topology import Topology, read_topology
from ._topology_cpus import CPU_DIR
from ._topology_nodes import NODE_DIR
from ._tree import Tree
from ._trust_signs import Signs, read_signs

if TYPE_CHECKING:  # what few plans need is imported where they do: a module is compiled anew in every run
    from . import _kubelet_host

_NODE_FORMAT_SINCE = (5, 16)
_GIB_KB = 1 << 20
# Smaller pages are found by the buddy allocator; from here on their alignment decides.
SLOT_SIZE_KB = 256 << 10


@dataclass(frozen=True)
class Kernel:
    """An installed kernel. node_format: whether `hugepages=0:N,1:M` is known to work with it; why: the evidence."""

    release: str
    version: tuple[int, int] | None
    node_format: bool
    why: str
    facts: KernelFacts = field(default_factory=KernelFacts, repr=False)


@dataclass(frozen=True)
class Facts:
    """One host as the plan sees it. What is None or empty is not known.

    slots: per page size in kB and node, the aligned windows of gigantic pages. line: the running command line.
    claims_error: why claims is None. unrecorded: the paths that a sosreport does not tell of.
    """

    topology: Topology
    kernels: tuple[Kernel, ...] = ()
    sizes_known: bool = False
    cpu_flags: frozenset[str] | None = None
    slots: Mapping[int, Mapping[int, Slots]] = field(default_factory=dict)
    sysctls: Mapping[str, str | None] = field(default_factory=dict)
    thp: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    claims: tuple[_services.Claim, ...] | None = ()
    claims_error: OSError | None = None
    has_proc_sys: bool = False
    zones: tuple[_watermark.Zone, ...] = ()
    min_free_kbytes: int | None = None
    line: str | None = None
    nohz_full: bool | None = None
    users: frozenset[str] | None = None
    mounts: Mapping[str, str] = field(default_factory=dict)
    full_dirs: frozenset[str] = frozenset()
    signs: Signs = field(default_factory=Signs)
    kubelet: _kubelet_host.Kubelet | None = None
    kubelet_error: _kubelet_host.KubeletError | None = None
    warnings: tuple[str, ...] = ()
    unrecorded: frozenset[str] = frozenset()

    def lack(self, *paths: str) -> bool:
        """Whether a sosreport does not tell of one of PATHS."""
        return not self.unrecorded.isdisjoint(paths)


def refuse_without_nodes(variable: str, facts: Facts, judge: Judge) -> bool:
    """Whether the nodes of the host are not known, which VARIABLE rests on; it is refused then."""
    if facts.topology.source != "unknown":
        return False
    text = f"{NODE_DIR} of this host cannot be read, so its nodes are not known; look at the host itself, as root"
    judge.refuse("nodes_unknown", variable, text, facts.lack(NODE_DIR))
    return True


def read_facts(
    root: str = "/",
    topology: Topology | None = None,
    kernel: str | None = None,
    keys: Iterable[str] = (),
    paths: Iterable[str] = (),
    users: Iterable[str] = (),
) -> Facts:
    """Read the facts below ROOT; never raises for what a host shows.

    KEYS are the sysctls, PATHS the mount points and USERS the owners that the intent names. KERNEL stands for
    all installed kernels when given.
    """
    tree = Tree(root)
    topo = topology if topology is not None else read_topology(root)
    zones, min_free, trouble = _read_zones(tree)
    cpu_dir = set(tree.names(CPU_DIR))
    tree.names(NODE_DIR)
    tree.text(f"{CPU_DIR}/online")
    claims, claims_error = _claims(tree)
    facts = Facts(
        topology=topo,
        kernels=installed_kernels(tree, topo, kernel),
        sizes_known=bool(topo.hugepage_sizes_kb) or bool(tree.names("/sys/kernel/mm")),
        cpu_flags=_cpu_flags(tree),
        slots=_slots(tree, topo),
        sysctls={key: tree.text(f"/proc/sys/{normalize(key)}") for key in keys},
        thp=_thp_choices(tree),
        claims=claims,
        claims_error=claims_error,
        has_proc_sys=bool(tree.names("/proc/sys/vm")),
        zones=zones,
        min_free_kbytes=min_free,
        line=tree.text("/proc/cmdline"),
        nohz_full="nohz_full" in cpu_dir if "isolated" in cpu_dir else None,
        users=_known_users(tree, users),
        mounts=_mounts(tree),
        full_dirs=frozenset(path for path in paths if tree.names(path)),
        signs=read_signs(root),
        warnings=tuple(trouble),
    )
    return replace(facts, unrecorded=frozenset(path for path, why in tree.trouble.items() if why == UNKNOWN))


def with_kubelet(facts: Facts, root: str) -> Facts:
    """FACTS with the kubelet of the host below ROOT, or with why it cannot be read."""
    from . import _kubelet_host

    try:
        return replace(facts, kubelet=_kubelet_host.read_kubelet(root))
    except _kubelet_host.KubeletError as exc:
        return replace(facts, kubelet_error=exc)
    except OSError as exc:
        text = f"{exc.filename}: {exc.strerror}"
        if isinstance(exc, PermissionError):
            text += "; run as root, or give what the kubelet reserves"
        error = _kubelet_host.KubeletError("kubelet_unknown", text, str(exc.filename))
        error.unrecorded = exc.errno == errno.ENODATA
        return replace(facts, kubelet_error=error)


def _claims(tree: Tree) -> tuple[tuple[_services.Claim, ...] | None, OSError | None]:
    """What services set that may be in the way; None where a file of theirs cannot be read, and why."""
    try:
        return _services.read_claims(tree.root), None
    except OSError as exc:
        return None, exc


def _thp_choices(tree: Tree) -> dict[str, tuple[str, ...]]:
    """What the running kernel offers for transparent huge pages, by setting."""
    found = {}
    for name in _thp.KNOWN:
        path = f"{_thp.DIRECTORY}/{name}"
        text = tree.text(path)
        if text is not None:
            found[name] = _thp.choices(text)[0]
        elif tree.trouble.get(path) == UNKNOWN:
            found[name] = _thp.KNOWN[name]  # nothing tells that this kernel lacks one
    return found


def _read_zones(tree: Tree) -> tuple[tuple[_watermark.Zone, ...], int | None, list[str]]:
    try:
        zones = tuple(_watermark.parse_zones(tree.text("/proc/zoneinfo") or ""))
    except ValueError as exc:
        return (), None, [str(exc)]
    return zones, tree.number("/proc/sys/vm/min_free_kbytes"), []


def installed_kernels(tree: Tree, topology: Topology, override: str | None) -> tuple[Kernel, ...]:
    """Every kernel that may boot next: those that a boot loader can start, and the running one."""
    running = topology.kernel_release
    if override:
        names = {override}
    else:
        names = {name for name in installed_releases(tree) if kernel_version(name)}
        if running:
            names.add(running)
    return tuple(_judge_kernel(tree, topology, name, name == running) for name in sorted(names))


def _slots(tree: Tree, topology: Topology) -> dict[int, dict[int, Slots]]:
    sizes = {size for size in topology.hugepage_sizes_kb if size >= SLOT_SIZE_KB} | {_GIB_KB}
    return {size: read_slots(tree, size * 1024, topology.page_size_bytes or 4096) for size in sizes}


def kernel_version(release: str) -> tuple[int, int] | None:
    """Major and minor of a release like `6.1.0-25-amd64`; None when it is something else."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else None


def _judge_kernel(tree: Tree, topology: Topology, release: str, running: bool) -> Kernel:
    version = kernel_version(release)
    works, why = _node_format(tree, topology, version, running)
    cpus = topology.cpus
    facts = KernelFacts.from_sysroot(tree.root, release) if version else KernelFacts()
    facts = replace(
        facts,
        possible=cpus.possible,
        present=cpus.present,
        online=cpus.online,
        nr_cpu_ids=max(cpus.possible) + 1 if cpus.possible else None,
        boot_cpu=cpus.boot_cpu or 0,
        nodes=tuple(topology.ids()),
        memory_nodes=tuple(node.id for node in topology.nodes if node.has_memory is not False),
        memory_bytes=topology.memory_bytes,
        node_format=works,
    )
    return Kernel(release, version, works, why, facts)


def _node_format(
    tree: Tree, topology: Topology, version: tuple[int, int] | None, running: bool
) -> tuple[bool, str]:
    arch = topology.arch or ""
    if arch.startswith(("ppc", "powerpc")):
        # arch/powerpc: hugetlb_node_alloc_supported() is false, the kernel then ignores the whole parameter.
        return False, f"{arch} kernels take no node format"
    if version and version >= _NODE_FORMAT_SINCE:
        return True, "mainline since 5.16"
    if running and node_format_seen(tree, topology):
        return True, "the running command line uses it and the pools follow"
    return False, "older than 5.16, and a backport is not proven"


def node_format_seen(tree: Tree, topology: Topology) -> bool:
    """Whether the running line has counts per node for a size and sysfs shows at least one, each as asked."""
    size_kb = topology.default_hugepage_kb
    asked: dict[int, dict[int, int]] = {}
    for token in split(tree.text("/proc/cmdline") or ""):
        value = token.value or ""
        if token.after_dashes:
            break
        if token.key == "hugepagesz" and re.fullmatch(r"\d+[kKmMgG]", value):
            unit = {"K": 1, "M": 1 << 10, "G": 1 << 20}[value[-1].upper()]
            size_kb = int(value[:-1]) * unit
        elif token.key == "hugepages" and size_kb and re.fullmatch(r"\d+:\d+(,\d+:\d+)*", value):
            pairs = (pair.split(":") for pair in value.split(","))
            asked.setdefault(size_kb, {int(node): int(count) for node, count in pairs})
    rows = [(size, node, count) for size, nodes in asked.items() for node, count in nodes.items() if count]
    return bool(rows) and all(_pool(topology, node, size) == count for size, node, count in rows)


def _pool(topology: Topology, number: int, size_kb: int) -> int | None:
    node = topology.node(number)
    return node.pools.get(f"{size_kb}kB", {}).get("total") if node else None


def _cpu_flags(tree: Tree) -> frozenset[str] | None:
    match = re.search(r"(?m)^flags\s*:(.*)$", tree.text("/proc/cpuinfo") or "")
    return frozenset(match[1].split()) if match else None


def _known_users(tree: Tree, users: Iterable[str]) -> frozenset[str] | None:
    """Those of USERS that exist; None when that cannot be told."""
    if os.path.realpath(tree.root) == "/":
        return frozenset(name for name in users if _has_user(name))
    passwd = tree.text("/etc/passwd")
    return None if passwd is None else frozenset(line.partition(":")[0] for line in passwd.splitlines())


def _has_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _mounts(tree: Tree) -> dict[str, str]:
    """Mount point -> file system type of /proc/self/mounts or /proc/mounts; the last mount on a point counts."""
    text = tree.text("/proc/self/mounts") or tree.text("/proc/mounts") or ""
    rows = (line.split() for line in text.splitlines())
    return {re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), row[1]): row[2] for row in rows if len(row) > 2}
