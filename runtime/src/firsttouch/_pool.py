# SPDX-License-Identifier: Apache-2.0
"""What a load may take: pool of huge pages, nodes, mount, control group. _shortage.py says which of them is short.

Readers take a ROOT for recorded hosts. All counts are in pages of the size that is asked about.

The collection's readers (plugins/module_utils: _hugepages, _mounts, _hugetlb_cgroup) cannot serve here as the same
files: they import its topology, plan and intent; for a report, they answer None where a load must stop with an error;
and they know neither a tmpfs with huge pages nor the device of a mount, by which a folder is matched to its options.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from firsttouch.errors import MountMissingError, PoolTooSmallError

Mode = Literal["any", "bind", "interleave", "prefer"]
HUGETLBFS, TMPFS_HUGE = "hugetlbfs", "tmpfs-huge"
DIRECTORY_ENV = "FIRSTTOUCH_WEIGHTS_DIR"
_SIZE = re.compile(r"([0-9]+)([kmgt]?)i?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
# mm/page_counter.c, PAGE_COUNTER_MAX in pages of 4K: what a v1 group without a limit shows.
_NO_LIMIT = 1 << 62


@dataclass(frozen=True)
class Placement:
    """Where pages shall lie: any, bind (these nodes only), interleave (page by page), prefer (others if full)."""

    mode: Mode = "any"
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Pool:
    """A pool of huge pages, and `nodes`: free pages of each node."""

    page_bytes: int
    total: int
    free: int
    reserved: int
    surplus: int
    overcommit: int
    nodes: dict[int, int] = field(default_factory=dict)

    @property
    def available(self) -> int:
        """Free and not promised to a mapping."""
        return max(self.free - self.reserved, 0)

    @property
    def growable(self) -> int:
        """Surplus pages that the settings still allow; the kernel may fail to make them."""
        return max(self.overcommit - self.surplus, 0)


@dataclass(frozen=True)
class Mount:
    """A place for images; size and min_size are its options, in bytes, None where there is no such option."""

    path: str
    backend: str
    device: str
    page_bytes: int
    size: int | None = None
    min_size: int | None = None


@dataclass(frozen=True)
class Limit:
    """A hugetlb limit of a control group of this process or one above it."""

    file: str
    limit: int
    used: int

    @property
    def room(self) -> int:
        """Pages below the limit."""
        return max(self.limit - self.used, 0)


@dataclass(frozen=True)
class Facts:
    """All that bounds a load. `mount_free` is None on a mount without a size."""

    pool: Pool
    mount: Mount
    mount_free: int | None
    limits: tuple[Limit, ...]

    def as_dict(self) -> dict[str, Any]:
        """The facts of an error or a plan, in pages."""
        pool = asdict(self.pool)
        return {
            **{key: pool[key] for key in ("page_bytes", "total", "free", "reserved", "surplus", "overcommit")},
            "available": self.pool.available,
            "nodes": {str(node): free for node, free in self.pool.nodes.items()},
            "mount": self.mount.path,
            "mount_free": self.mount_free,
            "cgroup": [{**asdict(row), "room": row.room} for row in self.limits],
        }


def parse_bytes(text: str) -> int:
    """A size such as 2M, 1G or 2048k in bytes. Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is no size; write 2M or 1G")
    return int(match[1]) * _UNITS[match[2].lower()]


def size_text(count: int) -> str:
    """BYTES as the kernel names page sizes: 2M, 1G."""
    for unit in ("t", "g", "m", "k"):
        if count and count % _UNITS[unit] == 0:
            return f"{count // _UNITS[unit]}{unit.upper()}"
    return str(count)


def read_pool(page_bytes: int, root: str = "/") -> Pool:
    """The pool of pages of PAGE_BYTES. Raises PoolTooSmallError when this kernel has no such pages."""
    name = f"hugepages-{page_bytes // 1024}kB"
    base = Path(root, "sys/kernel/mm/hugepages", name)
    try:
        total, free, reserved, surplus, overcommit = (_count(base / file) for file in _POOL_FILES)
    except OSError as error:
        raise PoolTooSmallError(
            f"this kernel has no huge pages of {size_text(page_bytes)}: {error}",
            hint="choose another page size",
            facts={"page_bytes": page_bytes},
        ) from error
    nodes = {}
    for node in sorted(Path(root, "sys/devices/system/node").glob("node[0-9]*")):
        file = node / "hugepages" / name / "free_hugepages"
        if file.exists():
            nodes[int(node.name[4:])] = _count(file)
    return Pool(page_bytes, total, free, reserved, surplus, overcommit, nodes)


_POOL_FILES = ("nr_hugepages", "free_hugepages", "resv_hugepages", "surplus_hugepages", "nr_overcommit_hugepages")


def parse_mounts(mountinfo: str, pools: Mapping[int, int] | None = None) -> list[Mount]:
    """Mounts that can hold images, of /proc/self/mountinfo (proc_pid_mountinfo(5)).

    POOLS is the total of each pool, which `size=50%` is a part of.
    """
    found = []
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(" - ")
        words, kind = fields.split(), rest.split()
        if len(words) < 5 or len(kind) < 3 or kind[0] not in ("hugetlbfs", "tmpfs"):
            continue
        options = dict(option.partition("=")[::2] for option in kind[2].split(","))
        if kind[0] == "tmpfs" and options.get("huge", "never") == "never":
            continue
        backend = HUGETLBFS if kind[0] == "hugetlbfs" else TMPFS_HUGE
        page = parse_bytes(options.get("pagesize", "2M")) if backend == HUGETLBFS else 2 << 20
        total = (pools or {}).get(page, 0) * page
        size, low = (_share(options.get(key), total) for key in ("size", "min_size"))
        found.append(Mount(_unescape(words[4]), backend, words[2], page, size, low))
    return found


def find_mount(directory: str | None, page_bytes: int, backend: str = HUGETLBFS, root: str = "/") -> Mount:
    """The mount that DIRECTORY is on (with DIRECTORY as its path), else the first one that fits, one of ours first.

    Raises MountMissingError.
    """
    mounts = parse_mounts(Path(root, "proc/self/mountinfo").read_text(), _pool_totals(root))
    directory = directory or (os.environ.get(DIRECTORY_ENV) if backend == HUGETLBFS else None)
    if directory is None:
        fitting = [
            row for row in mounts if row.backend == backend and row.page_bytes == page_bytes and _reached(row, root)
        ]
        fitting.sort(key=lambda row: "firsttouch" not in row.path)
        if fitting:
            return fitting[0]
        raise _missing(f"no {backend} with pages of {size_text(page_bytes)} is mounted", page_bytes, backend)
    try:
        number = os.stat(directory).st_dev
    except OSError as error:
        raise _missing(f"{directory}: {error.strerror}", page_bytes, backend) from error
    device = _device(number)
    for row in mounts:
        if row.device == device and row.backend == backend and row.page_bytes == page_bytes:
            return Mount(directory, row.backend, device, page_bytes, row.size, row.min_size)
    text = f"{directory} is on no {backend} with pages of {size_text(page_bytes)}"
    raise _missing(text, page_bytes, backend)


def _device(number: int) -> str:
    """A device number as mountinfo writes it."""
    return f"{os.major(number)}:{os.minor(number)}"


def _reached(mount: Mount, root: str) -> bool:
    """Whether the path of MOUNT leads to it: another filesystem may be mounted over it. Of a recorded host it is."""
    if root != "/":
        return True
    try:
        return _device(os.stat(mount.path).st_dev) == mount.device
    except OSError:
        return False


def directories(directory: str | None) -> list[str]:
    """DIRECTORY alone, or every folder that may hold images."""
    return [directory] if directory else image_directories()


def image_directories(root: str = "/") -> list[str]:
    """Every folder that may hold images: of the environment, then all mounts, ours first."""
    own = os.environ.get(DIRECTORY_ENV)
    mounts = parse_mounts(Path(root, "proc/self/mountinfo").read_text())
    reached = [row.path for row in mounts if _reached(row, root)]
    paths = sorted(reached, key=lambda path: "firsttouch" not in path)
    return list(dict.fromkeys([*([own] if own else []), *paths]))


def read_limits(page_bytes: int, root: str = "/") -> tuple[Limit, ...]:
    """The hugetlb limits of this process's control group and those above it, v2 and v1; none without a limit."""
    groups = Path(root, "proc/self/cgroup").read_text()
    mountinfo = Path(root, "proc/self/mountinfo").read_text()
    size = f"{size_text(page_bytes)}B"
    found = []
    for folder in _group_folders(groups, mountinfo, root):
        for high, used in (("max", "current"), ("rsvd.max", "rsvd.current"), *_V1_FILES):
            file = folder / f"hugetlb.{size}.{high}"
            try:
                text = file.read_text().strip()
            except OSError:
                continue
            try:
                now = _count(folder / f"hugetlb.{size}.{used}")
            except OSError:
                now = 0  # a limit without a counter is a limit still
            if text != "max" and int(text) < _NO_LIMIT:
                found.append(Limit(str(file), int(text) // page_bytes, now // page_bytes))
    return tuple(found)


_V1_FILES = (
    ("limit_in_bytes", "usage_in_bytes"),
    ("rsvd.limit_in_bytes", "rsvd.usage_in_bytes"),
)


def read_facts(mount: Mount) -> Facts:
    """What bounds a load onto MOUNT now; on a tmpfs that is its size alone."""
    status = os.statvfs(mount.path)
    # fs/hugetlbfs/inode.c, hugetlbfs_statfs: no counters without size=; -1 reads as the largest number.
    counted = mount.size is not None and 0 < status.f_blocks < 1 << 60
    if mount.backend == TMPFS_HUGE:
        room = status.f_bavail * status.f_frsize // mount.page_bytes if status.f_blocks else None
        return Facts(Pool(mount.page_bytes, 0, 0, 0, 0, 0), mount, room, ())
    pool, free = read_pool(mount.page_bytes), None
    if counted:
        free = status.f_bavail
    return Facts(pool, mount, free, read_limits(mount.page_bytes))


def _missing(text: str, page_bytes: int, backend: str) -> MountMissingError:
    # Pages of each size have a folder of their own: a mount over that of others would hide their models.
    size = "" if page_bytes == 2 << 20 else f"-{size_text(page_bytes)}"
    place = f"/dev/hugepages/firsttouch{size}" if backend == HUGETLBFS else "/mnt/firsttouch"
    pages = f"-t hugetlbfs -o pagesize={size_text(page_bytes)},mode=0750"
    options = pages if backend == HUGETLBFS else "-t tmpfs -o huge=always"
    return MountMissingError(
        text,
        hint=f"mkdir -p {place} && mount {options} none {place}, or name the folder (--dir)",
        facts={"page_bytes": page_bytes, "backend": backend},
    )


def _group_folders(groups: str, mountinfo: str, root: str) -> list[Path]:
    """Folders of the groups that may limit huge pages, from this process's own up to the root of what is mounted."""
    own = {
        controllers: path for _, controllers, path in (line.split(":", 2) for line in groups.splitlines() if line)
    }
    folders: list[Path] = []
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(" - ")
        words, kind = fields.split(), rest.split()
        if len(words) < 5 or len(kind) < 3 or kind[0] not in ("cgroup2", "cgroup"):
            continue
        controllers = "" if kind[0] == "cgroup2" else "hugetlb"
        if controllers and controllers not in kind[2].split(","):
            continue
        path = next((place for names, place in own.items() if controllers in names.split(",")), None)
        if path is None:
            continue
        top = Path(root, _unescape(words[4]).lstrip("/"))
        inside = os.path.relpath(path, _unescape(words[3]))
        folder = top if inside.startswith("..") else top / inside
        folders += [folder, *(above for above in folder.parents if above == top or top in above.parents)]
    return folders


def _pool_totals(root: str) -> dict[int, int]:
    """Total of each pool by page size in bytes."""
    totals = {}
    for folder in Path(root, "sys/kernel/mm/hugepages").glob("hugepages-*kB"):
        totals[int(folder.name[10:-2]) * 1024] = _count(folder / "nr_hugepages")
    return totals


def _share(text: str | None, total: int) -> int | None:
    """A mount option in bytes; a part of TOTAL when it is in per cent."""
    if text is None:
        return None
    if text.endswith("%"):
        return total * int(text[:-1]) // 100
    return parse_bytes(text)


def _count(path: Path) -> int:
    return int(path.read_text())


def _unescape(text: str) -> str:
    """A field of mountinfo: blanks and the like are octal."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
