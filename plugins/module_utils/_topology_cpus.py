# SPDX-License-Identifier: Apache-2.0
"""CPUs of a host: which are online, which share a core, a last-level cache, a package."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ._cpulist import format_list
from ._tree import Tree, id_list

CPU_DIR = "/sys/devices/system/cpu"
Warnings = list[dict[str, str]]
_COUNTS = ("sockets", "cores", "cores_per_socket", "threads_per_core")
_CPUINFO_IDS = {"physical id": "package", "package": "package", "core id": "core", "core": "core"}


@dataclass(frozen=True)
class Package:
    """A socket as the kernel shows it: its id, online CPUs and number of cores; None where it has no such."""

    id: int | None
    cpus: frozenset[int]
    cores: int | None


@dataclass(frozen=True)
class Cpus:
    """The CPUs of a host as sets; `siblings` maps each online CPU to the online CPUs it shares a core with.

    `counts`: sockets, cores, cores_per_socket, threads_per_core as far as they are known and the same
    everywhere; a text may state them without naming any set.
    """

    online: frozenset[int]
    possible: frozenset[int]
    present: frozenset[int]
    isolated: frozenset[int] = frozenset()
    nohz_full: frozenset[int] = frozenset()
    siblings: dict[int, frozenset[int]] = field(default_factory=dict)
    packages: tuple[Package, ...] = ()
    l3: tuple[frozenset[int], ...] = ()
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def offline(self) -> frozenset[int]:
        """Possible CPUs that are not online (the kernel's own `offline` also counts impossible ones)."""
        return self.possible - self.online

    @property
    def boot_cpu(self) -> int | None:
        """The first online CPU: the one that keeps housekeeping when everything else is given away."""
        return min(self.online) if self.online else None

    def core(self, cpu: int) -> frozenset[int]:
        """The online CPUs that share the core of CPU, itself included."""
        return self.siblings.get(cpu, frozenset((cpu,)))

    def as_dict(self) -> dict[str, Any]:
        """CPU lists in the kernel's notation; counts; `null` where the kernel does not say."""
        return {
            "online": format_list(self.online),
            "offline": format_list(self.offline),
            "possible": format_list(self.possible),
            "present": format_list(self.present),
            "isolated": format_list(self.isolated),
            "nohz_full": format_list(self.nohz_full),
            "boot_cpu": self.boot_cpu,
            "siblings": {str(cpu): format_list(self.siblings[cpu]) for cpu in sorted(self.siblings)},
            **{key: self.counts.get(key) for key in _COUNTS},
            "packages": [
                {"id": package.id, "cpus": format_list(package.cpus), "cores": package.cores}
                for package in self.packages
            ],
        }

    @classmethod
    def from_dict(cls, doc: Mapping[str, Any], l3: Iterable[frozenset[int]]) -> Cpus:
        """The inverse of as_dict(); L3 domains stand elsewhere in the document."""
        sets = {key: id_list(doc[key]) for key in ("online", "possible", "present", "isolated", "nohz_full")}
        packages = (Package(row["id"], id_list(row["cpus"]), row["cores"]) for row in doc["packages"])
        return cls(
            **sets,
            siblings={int(cpu): id_list(text) for cpu, text in doc["siblings"].items()},
            packages=tuple(packages),
            l3=tuple(l3),
            counts={key: doc[key] for key in _COUNTS if doc[key] is not None},
        )


@dataclass
class _Raw:
    """What each online CPU says about itself; a set is None where it says nothing."""

    core: dict[int, frozenset[int] | None] = field(default_factory=dict)
    package: dict[int, frozenset[int] | None] = field(default_factory=dict)
    l3: dict[int, frozenset[int] | None] = field(default_factory=dict)
    package_id: dict[int, int | None] = field(default_factory=dict)
    core_id: dict[int, int | None] = field(default_factory=dict)


def read_cpus(tree: Tree, warnings: Warnings) -> Cpus:
    """Read the CPUs below TREE, each file once; what is contradictory goes to WARNINGS."""
    numbers = frozenset(tree.numbered(CPU_DIR, "cpu"))
    info = _cpuinfo_ids(tree.text("/proc/cpuinfo") or "")
    online = _online(tree, numbers, frozenset(info), warnings)
    present = tree.ids(f"{CPU_DIR}/present") or numbers | online
    possible = tree.ids(f"{CPU_DIR}/possible") or present
    if not online <= possible & present:
        text = f"online CPUs {format_list(online - (possible & present))} are not in present or possible"
        warnings.append({"reason": "online_cpu_not_present", "text": text})
    raw = _read_raw(tree, online, info)
    siblings = _siblings(raw, online, warnings)
    packages = _packages(raw, online, siblings, warnings)
    return Cpus(
        online=online,
        possible=possible | present | online,
        present=present | online,
        isolated=tree.ids(f"{CPU_DIR}/isolated") or frozenset(),
        nohz_full=tree.ids(f"{CPU_DIR}/nohz_full") or frozenset(),
        siblings=siblings,
        packages=packages,
        l3=_l3(raw, warnings),
        counts=_counts(siblings, packages),
    )


def _counts(siblings: dict[int, frozenset[int]], packages: tuple[Package, ...]) -> dict[str, int]:
    distinct = set(siblings.values())
    counts = {
        "sockets": len(packages) or None,
        "cores": len(distinct) or None,
        "cores_per_socket": _same(package.cores for package in packages),
        "threads_per_core": _same(map(len, distinct)),
    }
    return {key: number for key, number in counts.items() if number is not None}


def _online(
    tree: Tree, numbers: frozenset[int], from_cpuinfo: frozenset[int], warnings: Warnings
) -> frozenset[int]:
    """cpu/online, else each CPU's own `online` file (absent where a CPU cannot go offline), else cpuinfo."""
    own = {cpu: tree.text(f"{CPU_DIR}/cpu{cpu}/online") for cpu in sorted(numbers)}
    down = frozenset(cpu for cpu, text in own.items() if text == "0")
    listed = tree.ids(f"{CPU_DIR}/online")
    if listed:
        if listed & down:
            text = f"cpu/online lists {format_list(listed & down)}, whose own online file says 0"
            warnings.append({"reason": "cpu_online_disagrees", "text": text})
        return listed
    found = (numbers - down) or from_cpuinfo
    if not found:
        warnings.append({"reason": "no_cpu_list", "text": "neither sysfs nor /proc/cpuinfo names a CPU"})
    return found


def _read_raw(tree: Tree, online: frozenset[int], info: dict[int, dict[str, int]]) -> _Raw:
    raw = _Raw()
    for cpu in sorted(online):
        base = f"{CPU_DIR}/cpu{cpu}/topology"
        raw.core[cpu] = _set(tree, base, ("core_cpus", "thread_siblings"))
        raw.package[cpu] = _set(tree, base, ("package_cpus", "core_siblings"))
        raw.package_id[cpu] = _id(tree.number(f"{base}/physical_package_id"), info, cpu, "package")
        raw.core_id[cpu] = _id(tree.number(f"{base}/core_id"), info, cpu, "core")
        raw.l3[cpu] = _l3_of(tree, cpu)
    return raw


def _id(value: int | None, info: dict[int, dict[str, int]], cpu: int, key: str) -> int | None:
    """-1 is the kernel's "unknown" (s390, sparc, POWER guests)."""
    if value is None:
        value = info.get(cpu, {}).get(key)
    return value if value is not None and value >= 0 else None


def _set(tree: Tree, base: str, names: Iterable[str]) -> frozenset[int] | None:
    """The first of the files NAME_list, NAME (a mask) that is there: newer and older names of one set."""
    for name in names:
        stem = name
        for found in (tree.ids(f"{base}/{stem}_list"), tree.mask(f"{base}/{stem}")):
            if found:
                return found
    return None


def _l3_of(tree: Tree, cpu: int) -> frozenset[int] | None:
    base = f"{CPU_DIR}/cpu{cpu}/cache"
    for index in tree.numbered(base, "index"):
        if tree.number(f"{base}/index{index}/level") == 3:
            shared = tree.ids(f"{base}/index{index}/shared_cpu_list")
            shared = shared or tree.mask(f"{base}/index{index}/shared_cpu_map")
            # Old ia64 kernels print an empty mask for a cache that is the CPU's own.
            return shared or frozenset((cpu,))
    return None


def _siblings(raw: _Raw, online: frozenset[int], warnings: Warnings) -> dict[int, frozenset[int]]:
    """Each CPU's core: its sibling set where all members agree on it, else same package and core id."""
    sets, broken = _agreed(raw.core, online)
    if broken:
        text = f"CPUs {format_list(broken)} do not agree with their siblings about who shares a core"
        warnings.append({"reason": "siblings_disagree", "text": text})
    if any(len({raw.core_id[cpu] for cpu in group}) > 1 for group in sets.values()):
        text = "siblings have core ids of their own (AMD compute units): each counts as a thread of one core"
        warnings.append({"reason": "siblings_with_core_ids", "text": text})
    by_id: dict[tuple[int | None, int | None], set[int]] = {}
    for cpu in online - sets.keys():
        by_id.setdefault((raw.package_id[cpu], raw.core_id[cpu]), set()).add(cpu)
    guess = {cpu: frozenset(group) for key, group in by_id.items() if None not in key for cpu in group}
    if not any(raw.core.values()) and not guess:
        return {}
    return {cpu: sets.get(cpu) or guess.get(cpu) or frozenset((cpu,)) for cpu in sorted(online)}


def _packages(
    raw: _Raw, online: frozenset[int], siblings: dict[int, frozenset[int]], warnings: Warnings
) -> tuple[Package, ...]:
    """Packages by the CPU sets where these agree, else by physical_package_id; none when neither is known."""
    sets, broken = _agreed(raw.package, online)
    groups = {group: raw.package_id.get(min(group)) for group in sets.values()}
    ids = {cpu: number for cpu, number in raw.package_id.items() if number is not None}
    if broken or (not groups and ids):
        by_id: dict[int, set[int]] = {}
        for cpu, number in ids.items():
            by_id.setdefault(number, set()).add(cpu)
        if broken:
            text = f"the package CPU sets of CPUs {format_list(broken)} contradict others"
            warnings.append({"reason": "package_sets_disagree", "text": text})
        if by_id and (not groups or len(ids) == len(online)):
            groups = {frozenset(group): number for number, group in by_id.items()}
    repeated = [
        number for number, times in Counter(groups.values()).items() if number is not None and times > 1
    ]
    if repeated:
        text = f"package id {', '.join(map(str, sorted(repeated)))} names CPUs of different package sets"
        warnings.append({"reason": "package_id_repeated", "text": text})
    return tuple(
        Package(groups[group], group, len({siblings[cpu] for cpu in group}) if siblings else None)
        for group in sorted(groups, key=min)
    )


def _l3(raw: _Raw, warnings: Warnings) -> tuple[frozenset[int], ...]:
    sets, broken = _agreed(raw.l3, frozenset(raw.l3))
    if broken:
        text = f"CPUs {format_list(broken)} do not agree with others about who shares a level 3 cache"
        warnings.append({"reason": "l3_sets_disagree", "text": text})
    return tuple(sorted(set(sets.values()), key=min))


def _agreed(
    said: Mapping[int, frozenset[int] | None], online: frozenset[int]
) -> tuple[dict[int, frozenset[int]], frozenset[int]]:
    """Sets that hold the CPU itself, that each online member repeats, and that overlap with no other; and the
    CPUs whose set does not.

    Offline CPUs are taken out first: some kernels leave them in.
    """
    own = {cpu: group & online for cpu, group in said.items() if group}
    claims: dict[frozenset[int], set[int]] = {}
    for cpu, group in own.items():
        claims.setdefault(group, set()).add(cpu)
    named = Counter(cpu for group in claims for cpu in group)
    agreed = {
        group
        for group, cpus in claims.items()
        if cpus == group & own.keys() and all(named[cpu] == 1 for cpu in group)
    }
    good = {cpu: group for group in agreed for cpu in group}
    return good, frozenset(own) - frozenset(good)


def _cpuinfo_ids(text: str) -> dict[int, dict[str, int]]:
    """Per processor number the package and core ids of /proc/cpuinfo, whatever the architecture prints.

    s390 writes `processor 3: version = ...`, sparc `CPU6: online`, most others `processor : 3`.
    """
    found: dict[int, dict[str, int]] = {}
    current: dict[str, int] = {}
    for line in text.splitlines():
        other = re.match(r"processor (\d+):|CPU(\d+)\s*:\s*online", line)
        if other:
            found[int(other.group(1) or other.group(2))] = {}
            continue
        key, colon, value = (part.strip() for part in line.partition(":"))
        if not colon or not re.fullmatch(r"-?\d{1,6}", value):
            continue
        if key == "processor":
            current = found.setdefault(int(value), {})
        elif key in _CPUINFO_IDS:
            current[_CPUINFO_IDS[key]] = int(value)
    return found


def _same(values: Iterable[int | None]) -> int | None:
    """The one value that all VALUES have, else None."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None
