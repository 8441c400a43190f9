# SPDX-License-Identifier: Apache-2.0
"""The shared segment: anonymous memory that is sealed in size and lives as long as one descriptor or mapping of it.

There is no name in /dev/shm, so that nothing can be found by a stranger, left behind, or unlinked by the wrong one. The
seal keeps another process from turning a read of ours into SIGBUS by a truncation (for holes, see _pages.py); all pages
are faulted in at the start, where a lack of memory is an error and not a signal.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from firsttouch import _linux, _pages
from firsttouch._lanes import (
    CTL_OFF,
    CTL_STRIDE,
    FIXED,
    LAYOUT,
    PAGE,
    SCHEMA_OFF,
    SEGMENT_MAGIC,
    at,
    check_geometry,
    geometry,
)
from firsttouch._wire import Geometry, Schema
from firsttouch.errors import KernelError, ProtocolError, UnsupportedError

HUGE: Final = 2 << 20
SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
PAGE_KINDS: Final = _pages.KINDS
_SHMEM_THP: Final = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")


@dataclass
class PageReport:
    """What the pages of a segment are, and why: KIND of PAGE_KINDS, pages per node as the kernel tells, remarks."""

    kind: str
    size: int
    node: int | None = None
    pages_on_node: dict[int, int] = field(default_factory=dict)
    bound: bool = False
    remarks: list[str] = field(default_factory=list)

    @property
    def placed(self) -> bool:
        """Whether every page lies on the node that was asked for."""
        return self.node is not None and set(self.pages_on_node) == {self.node}

    def as_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "pages_on_node": {str(node): count for node, count in self.pages_on_node.items()}}


@dataclass
class Segment:
    """A mapped segment. words and quads are its memory as u32 and u64: an aligned item is one store or load."""

    fd: int
    geometry: Geometry
    schema: Schema
    mapping: mmap.mmap
    report: PageReport | None = None
    memory: memoryview = field(init=False)
    words: memoryview = field(init=False)
    quads: memoryview = field(init=False)

    def __post_init__(self) -> None:
        self.memory = memoryview(self.mapping)
        whole = self.memory[: self.geometry.size // 8 * 8]
        self.words = whole.cast("I")
        self.quads = whole.cast("Q")

    def control(self, lane: int) -> int:
        """The offset of LANE's control block in bytes."""
        return CTL_OFF + lane * CTL_STRIDE

    def block(self, lane: int) -> memoryview:
        """LANE's data block."""
        start = self.geometry.data_off + lane * self.geometry.lane_bytes
        return self.memory[start : start + self.geometry.lane_bytes]

    def close(self) -> None:
        """Close the descriptor. The memory stays mapped while arrays of it are in use; the last one takes it along."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)


def index(name: str) -> int:
    """The index of fixed word NAME in `words`."""
    return at(FIXED, name) // 4


def create(
    schema: Schema,
    n_lanes: int,
    *,
    pages: str = "auto",
    node: int | None = None,
    spin_ns: int = 0,
    strangers: bool = False,
) -> Segment:
    """Make a segment for SCHEMA with N_LANES, all of it faulted in.

    PAGES is a kind of PAGE_KINDS, which must then be had, or auto: the best that nobody else counts on. NODE binds the
    pages to a memory node; what could not be done is in the report. STRANGERS: whether users other than this one and
    root may attach. Raises UnsupportedError, KernelError.
    """
    if pages != "auto" and pages not in PAGE_KINDS:
        raise UnsupportedError(f"pages={pages!r}", hint=f"use auto or one of {', '.join(PAGE_KINDS)}")
    kinds, remarks = _pages.kinds(pages, geometry(schema, n_lanes, HUGE).size, node, strangers=strangers)
    for kind in kinds:
        try:
            segment = _create(schema, n_lanes, kind, node)
        except OSError as error:
            remarks.append(f"{kind}: {error.strerror or error}")
            continue
        assert segment.report is not None
        segment.report.remarks[:0] = remarks
        _write_header(segment, spin_ns)
        return segment
    raise KernelError(
        f"no memory for {n_lanes} lanes: {'; '.join(remarks)}", hint="ask for fewer lanes, or another kind of pages"
    )


def _create(schema: Schema, n_lanes: int, kind: str, node: int | None) -> Segment:
    """A segment of pages of KIND. Raises OSError."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    unit = PAGE
    if kind == "hugetlb":
        flags |= os.MFD_HUGETLB | os.MFD_HUGE_2MB
        unit = HUGE
    elif kind == "thp":
        unit = HUGE
        _check_thp()
    shape = geometry(schema, n_lanes, unit)
    fd = os.memfd_create("firsttouch", flags)
    try:
        os.ftruncate(fd, shape.size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
        mapping = mmap.mmap(fd, shape.size)
        report = PageReport(kind, shape.size, node)
        address = _linux.address_of(mapping)
        if kind == "thp":
            mapping.madvise(mmap.MADV_HUGEPAGE)
        _bind(report, address, shape.size)
        # An error here is the SIGBUS or the out-of-memory kill that somebody would have had later.
        mapping.madvise(_linux.MADV_POPULATE_WRITE)
        if kind == "thp":
            _check_huge(address)
        _verify(report, address, shape.size)
    except BaseException:
        os.close(fd)
        raise
    return Segment(fd, shape, schema, mapping, report)


def _check_thp() -> None:
    """Raise OSError when the kernel gives no huge pages to shared memory that asks."""
    try:
        chosen = _SHMEM_THP.read_text()
    except OSError:
        chosen = "[never]"
    if "[never]" in chosen or "[deny]" in chosen:
        raise OSError(errno.EOPNOTSUPP, f"{_SHMEM_THP} gives none")


def _check_huge(address: int) -> None:
    """Raise OSError unless the mapping at ADDRESS has at least one huge page, as the kernel tells."""
    for line in _smaps(address):
        if line.startswith("ShmemPmdMapped:") and int(line.split()[1]) > 0:
            return
    raise OSError(errno.EOPNOTSUPP, "the kernel gave small pages")


def _smaps(address: int) -> Iterator[str]:
    """The lines of /proc/self/smaps of the mapping that begins at ADDRESS."""
    inside = False
    with open("/proc/self/smaps", encoding="utf-8", errors="replace") as file:
        for line in file:
            head = line.split(" ", 1)[0]
            if not head.endswith(":"):
                start, _, end = head.partition("-")
                inside = int(start, 16) <= address < int(end, 16)
            elif inside:
                yield line


def _bind(report: PageReport, address: int, length: int) -> None:
    """Bind the pages to the report's node, before the first touch; say so when it cannot be done."""
    if report.node is None:
        return
    try:
        _linux.mbind(
            address, length, _linux.Mpol.BIND, [report.node], _linux.MpolFlag.STRICT | _linux.MpolFlag.MOVE
        )
        report.bound = True
    except (OSError, UnsupportedError) as error:
        report.remarks.append(f"not bound to node {report.node}: {error}")


def _verify(report: PageReport, address: int, length: int) -> None:
    """Ask the kernel where the pages lie."""
    try:
        report.pages_on_node = _linux.nodes_of_pages(address, length, HUGE if report.kind == "hugetlb" else PAGE)
    except (OSError, UnsupportedError) as error:
        report.remarks.append(f"placement not verified: {error}")
        return
    if report.node is not None and not report.placed:
        report.remarks.append(f"pages per node are {report.pages_on_node}, not all on node {report.node}")


def report_of(segment: Segment, node: int | None) -> PageReport:
    """What the pages of a SEGMENT are that another process made, bound to NODE now if they were not. Raises OSError."""
    kind = "4k"
    if _linux.filesystem_magic(segment.fd) == _linux.HUGETLBFS_MAGIC:
        kind = "hugetlb"
    else:
        with contextlib.suppress(OSError):
            _check_huge(_linux.address_of(segment.mapping))
            kind = "thp"
    report = PageReport(kind, segment.geometry.size, node)
    address = _linux.address_of(segment.mapping)
    _bind(report, address, segment.geometry.size)
    _verify(report, address, segment.geometry.size)
    return report


def _write_header(segment: Segment, spin_ns: int) -> None:
    """What the segment says about itself. The magic comes last."""
    shape, blob = segment.geometry, segment.schema.blob
    segment.memory[SCHEMA_OFF : SCHEMA_OFF + len(blob)] = blob
    values = {"layout": LAYOUT, "n_lanes": shape.n_lanes, "schema_len": len(blob), "spin_ns": spin_ns}
    for name, value in values.items():
        segment.words[index(name)] = value
    for name, value in {"data_off": shape.data_off, "lane_bytes": shape.lane_bytes, "size": shape.size}.items():
        segment.quads[at(FIXED, name) // 8] = value
    segment.quads[at(FIXED, "magic") // 8] = SEGMENT_MAGIC


def attach(fd: int, told: Geometry | None = None) -> Segment:
    """Map the segment of FD, which becomes the segment's, and hold what it says against what a server TOLD.

    Raises ProtocolError for anything but a whole and sealed segment of this layout, KernelError when it cannot be
    mapped. FD is closed then; the segment is as it was.
    """
    try:
        return _attach(fd, told)
    except OSError as error:
        os.close(fd)
        raise KernelError(f"the segment cannot be mapped: {error.strerror}", facts={"errno": error.errno}) from error
    except BaseException:
        os.close(fd)
        raise


def _attach(fd: int, told: Geometry | None) -> Segment:
    """See attach()."""
    size = os.fstat(fd).st_size
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise ProtocolError("the descriptor is no memfd: its size cannot be sealed") from error
    if seals & (fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW) != fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW:
        raise ProtocolError("the segment's size is not sealed: a truncation would kill this process")
    if size < CTL_OFF:
        raise ProtocolError(f"a segment of {size} bytes has no header")
    mapping = mmap.mmap(fd, size)
    with contextlib.suppress(OSError):
        mapping.madvise(_linux.MADV_POPULATE_WRITE)
    memory = memoryview(mapping)
    words, quads = memory[:CTL_OFF].cast("I"), memory[:CTL_OFF].cast("Q")
    if quads[at(FIXED, "magic") // 8] != SEGMENT_MAGIC or words[index("layout")] != LAYOUT:
        raise ProtocolError("the segment has another layout", hint="use the same firsttouch on both sides")
    length = words[index("schema_len")]
    if length > CTL_OFF - SCHEMA_OFF:
        raise ProtocolError(f"the segment tells of a schema of {length} bytes")
    schema = Schema.parse(bytes(memory[SCHEMA_OFF : SCHEMA_OFF + length]))
    fixed = [quads[at(FIXED, name) // 8] for name in ("data_off", "lane_bytes", "size")]
    found = Geometry(words[index("n_lanes")], *fixed)
    if told is not None and told != found:
        raise ProtocolError(f"the segment is laid out as {found}, the server tells of {told}")
    check_geometry(found, schema, [0], size)
    return Segment(fd, found, schema, mapping)
