# SPDX-License-Identifier: Apache-2.0
"""The segment: its layout, who may write where, what is refused, and the states of a lane."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from conftest import SLOW
from firsttouch import _lanes, _linux, _shm
from firsttouch._lanes import CTL_OFF, CTL_STRIDE, FIXED, LANE, LINE, PAGE, Word, at
from firsttouch._shm_client import ShmLane
from firsttouch._shm_server import MAX_TRIES, Domain, ShmPort
from firsttouch._transport import Address, Poller
from firsttouch._waiting import fence
from firsttouch._wire import Geometry, Schema, Status
from firsttouch.errors import HandlerError, KernelError, ProtocolError, SchemaError, UnsupportedError
from serving import SCHEMA
from weights_host import PAGE as HUGE
from weights_host import available


@contextlib.contextmanager
def domain(n_lanes: int = 4, **chosen: Any) -> Iterator[Domain]:
    """A domain that is closed again."""
    made = Domain.create(SCHEMA, n_lanes, **chosen)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("table", [FIXED, LANE])
def test_words(table: tuple[Word, ...]) -> None:
    """Words are aligned, do not overlap, and no line of 128 bytes has two writers."""
    lines: dict[int, set[str]] = {}
    end = 0
    for word in sorted(table, key=lambda item: item.offset):
        assert word.offset % word.size == 0
        assert word.offset >= end, word
        end = word.offset + word.size
        assert word.offset // LINE == (end - 1) // LINE
        lines.setdefault(word.offset // LINE, set()).add(word.writer)
    assert all(len(writers) == 1 for writers in lines.values())
    assert len({word.name for word in table}) == len(table)


def test_lines_on_real_addresses() -> None:
    """In a real segment no line has words of two writers, of two lanes, or words and data."""
    with domain() as made:
        base = _linux.address_of(made.segment.mapping)
        owners: dict[int, set[str]] = {}
        for word in FIXED:
            owners.setdefault((base + word.offset) // LINE, set()).add(word.writer)
        for lane in range(4):
            start = base + made.segment.control(lane)
            for word in LANE:
                owners.setdefault((start + word.offset) // LINE, set()).add(f"{word.writer} {lane}")
            data = base + made.segment.geometry.data_off + lane * made.segment.geometry.lane_bytes
            parts = _lanes.lane_parts(SCHEMA)
            assert data % PAGE == 0
            owners.setdefault((data + parts.reply - 1) // LINE, set()).add(f"request {lane}")
            owners.setdefault((data + parts.reply) // LINE, set()).add(f"answer {lane}")
        assert all(len(names) == 1 for names in owners.values())
    assert max(word.offset + word.size for word in FIXED) <= _lanes.SCHEMA_OFF
    assert max(word.offset + word.size for word in LANE) <= CTL_STRIDE


def test_no_name() -> None:
    """A segment is in no directory, and its size cannot change under a reader."""
    with domain() as made:
        assert os.fstat(made.segment.fd).st_nlink == 0
        assert os.readlink(f"/proc/self/fd/{made.segment.fd}").startswith("/memfd:firsttouch")
        for size in (0, 1 << 30):
            with pytest.raises(PermissionError):
                os.ftruncate(made.segment.fd, size)
        with pytest.raises(PermissionError):
            fcntl.fcntl(made.segment.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_all_pages_are_there() -> None:
    """Every page has a node before the first request: a lack of memory shows at the start."""
    with domain(8, pages="4k") as made:
        report = made.segment.report
        assert report
        assert sum(report.pages_on_node.values()) == report.size // PAGE
        assert all(node >= 0 for node in report.pages_on_node)


def test_bound_to_a_node() -> None:
    """Pages that are bound to node 0 lie on node 0, as the kernel tells."""
    with domain(8, node=0) as made:
        report = made.segment.report
        assert report
        assert report.bound, report.remarks
        assert report.placed


def test_node_that_is_not_there() -> None:
    """A node without memory is told in the report, and nothing is claimed."""
    with domain(node=900) as made:
        report = made.segment.report
        assert report
        assert not report.bound
        assert not report.placed
        assert any("not bound to node 900" in remark for remark in report.remarks)


def test_page_kinds() -> None:
    """auto says what it did not get and why; a kind that there is not is refused."""
    with domain(pages="auto") as made:
        report = made.segment.report
        assert report
        better = _shm.PAGE_KINDS[: _shm.PAGE_KINDS.index(report.kind)]
        assert [remark.partition(":")[0] for remark in report.remarks] == list(better)
    with pytest.raises(UnsupportedError):
        Domain.create(SCHEMA, 1, pages="1g")


@pytest.mark.parametrize("kind", ["thp", "4k"])
def test_pages_of_a_kind(kind: str) -> None:
    """A kind that is asked for is had; transparent huge pages are refused where the administrator wants none."""
    refused = ""
    try:
        with domain(pages=kind) as made:
            assert made.segment.report
            assert made.segment.report.kind == kind
    except KernelError as error:
        # What is skipped from here keeps the frames of the error, and their descriptors, for good.
        refused = str(error)
    if refused and kind == "thp":
        pytest.skip(f"NO HUGE PAGES: {refused}")
    assert not refused


@pytest.mark.usefixtures("pool")
def test_pages_of_a_pool() -> None:
    """Pages of hugetlb are the pool's, and go back to it."""
    before = available()
    with domain(pages="hugetlb") as made:
        assert made.segment.report
        assert made.segment.report.kind == "hugetlb"
        assert available() == before - made.segment.report.size // HUGE
    del made
    gc.collect()  # the mapping goes with the last view
    assert available() == before


def test_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that cannot be had are an error that says so, and nothing stays open."""
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(_linux, "MADV_POPULATE_WRITE", 9999)
    with pytest.raises(KernelError, match="no memory"):
        Domain.create(SCHEMA, 1, pages="4k")
    assert len(os.listdir("/proc/self/fd")) == before


def test_attach_again() -> None:
    """A failed attach leaves the segment to others; a good one sees the same memory."""
    with domain() as made:
        told = made.segment.geometry
        with pytest.raises(ProtocolError):
            _shm.attach(os.dup(made.segment.fd), Geometry(told.n_lanes + 1, *list(_fields(told))[1:]))
        again = _shm.attach(os.dup(made.segment.fd), told)
        made.segment.words[CTL_OFF // 4] = 77
        assert again.words[CTL_OFF // 4] == 77
        assert again.schema == SCHEMA
        again.close()


def _fields(shape: Geometry) -> Iterator[int]:
    yield from (shape.n_lanes, shape.data_off, shape.lane_bytes, shape.size)


def memfd(size: int, seals: int = _shm.SEALS, content: bytes = b"") -> int:
    """A memfd of SIZE with CONTENT."""
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    os.pwrite(fd, content, 0)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def test_what_is_no_segment(tmp_path: Path) -> None:
    """A file, memory that can shrink, an empty, an old and a foreign segment are refused, and closed."""
    magic = _lanes.SEGMENT_MAGIC.to_bytes(8, "little")
    plain = tmp_path / "file"
    plain.write_bytes(bytes(1 << 20))
    before = len(os.listdir("/proc/self/fd"))
    for fd, words in (
        (os.open(plain, os.O_RDWR), "no memfd|not sealed"),
        (memfd(1 << 20, fcntl.F_SEAL_GROW), "not sealed"),
        (memfd(100), "no header"),
        (memfd(1 << 20), "another layout"),
        (memfd(1 << 20, content=b"old content" * 100), "another layout"),
        (memfd(1 << 20, content=magic + (2).to_bytes(4, "little")), "another layout"),
        (memfd(1 << 20, content=magic + (1).to_bytes(4, "little") + b"\xff" * 200), "schema of"),
        (memfd(1 << 20, content=magic + (1).to_bytes(4, "little")), "no schema"),
    ):
        with pytest.raises(ProtocolError, match=words):
            _shm.attach(fd)
    assert len(os.listdir("/proc/self/fd")) == before


def test_geometry_that_lies() -> None:
    """A header that tells of lanes outside of the segment is refused."""
    with domain() as made:
        quads, words = made.segment.quads, made.segment.words
        there = os.fstat(made.segment.fd).st_size
        for table, name, size in (
            (quads, "size", 8),
            (quads, "lane_bytes", 8),
            (quads, "data_off", 8),
            (words, "n_lanes", 4),
        ):
            index = at(FIXED, name) // size
            true = table[index]
            for lie in (0, 1, 64, true + PAGE, there + PAGE, 2 ** (8 * size - 1)):
                table[index] = lie
                if name == "n_lanes" and lie == 1:
                    # Fewer lanes than there are stay within the segment.
                    _shm.attach(os.dup(made.segment.fd)).close()
                    continue
                if name == "size" and lie <= there and lie > true // 2:
                    continue
                with pytest.raises(ProtocolError):
                    _shm.attach(os.dup(made.segment.fd))
            table[index] = true
        _shm.attach(os.dup(made.segment.fd)).close()


@pytest.mark.parametrize("lanes", [[], [0, 0], [4], [-1], [0, 99]])
def test_lanes_that_are_not_there(lanes: list[int]) -> None:
    """A server that grants lanes outside of its segment is refused."""
    with domain() as made, pytest.raises(ProtocolError):
        _lanes.check_geometry(made.segment.geometry, SCHEMA, lanes, made.segment.geometry.size)


def test_too_large() -> None:
    """A segment beyond the limits is refused before memory is taken."""
    big = Schema.of({"a": ("uint8", (60 << 20,))}, {})
    for schema, lanes in ((big, 4096), (SCHEMA, 0), (SCHEMA, 5000)):
        with pytest.raises(SchemaError):
            _lanes.geometry(schema, lanes, PAGE)


class _Link:
    """What a ShmLane needs of its link."""

    def __init__(self, made: Domain) -> None:
        self.segment, self.schema, self.fence = made.segment, SCHEMA, fence()
        self.death_fds: list[int] = []
        self.closed, self.spin_ns = False, 0


class LaneMachine(RuleBasedStateMachine):
    """Clients and servers of three lanes that ask, take, answer and die in any order.

    What a client gets is the answer to its own request, whole, and it gets one whenever the server has worked.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made = Domain.create(SCHEMA, 3, pages="4k")
        self.poller = Poller()
        self.number = 0
        self.taken: list[tuple[Any, int]] = []
        self.words = self.made.segment.words

    @initialize()
    def start(self) -> None:
        self.lanes = [self.client(i) for i in range(3)]
        self.asked: list[int | None] = [None] * 3
        self.tries = [0] * 3
        self.port = ShmPort(Address("shm", "/x"), self.made, self.poller)

    def client(self, lane: int) -> ShmLane:
        self.words[(self.made.segment.control(lane) + at(LANE, "owner_pid")) // 4] = 1
        self.words[_shm.index("leases")] += 1
        link: Any = _Link(self.made)
        return ShmLane(link, lane, self.made.bells[lane], self.made.chimes[lane])

    @rule(lane=st.integers(0, 2))
    def ask(self, lane: int) -> None:
        if self.asked[lane] is not None:
            return
        self.number += 1
        self.lanes[lane].request["obs"][...] = self.number
        self.lanes[lane].request["id"][...] = self.number
        self.lanes[lane].submit(b"", 2**63)
        self.asked[lane], self.tries[lane] = self.number, 0

    @rule(limit=st.integers(1, 3))
    def take(self, limit: int) -> None:
        ready: list[Any] = self.port.ready(limit)
        for slot in ready:
            lane = slot.lane
            self.tries[lane] += 1
            try:
                assert slot.accept() == b""
            except HandlerError:
                assert self.tries[lane] > MAX_TRIES
                slot.finish(Status.HANDLER, b"no more")
                continue
            assert self.tries[lane] <= MAX_TRIES
            self.taken.append((slot, int(np.frombuffer(slot.fields[1], "i8")[0])))

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        slot, number = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        np.frombuffer(slot.reply_fields[0], "f4")[:] = 2 * number
        np.frombuffer(slot.reply_fields[1], "i8")[:] = number
        slot.finish(Status.OK, b"")

    @rule()
    def server_dies(self) -> None:
        self.taken = []
        for bell in self.made.bells:
            self.poller.drop(bell)
        self.port = ShmPort(Address("shm", "/x"), self.made, self.poller)

    @rule(lane=st.integers(0, 2))
    def client_dies_when_idle(self, lane: int) -> None:
        if self.asked[lane] is None:
            self.lanes[lane].close()
            self.lanes[lane] = self.client(lane)

    @invariant()
    def answers_belong(self) -> None:
        for lane, number in enumerate(getattr(self, "asked", ())):
            if number is None:
                assert self.lanes[lane].ready()
            elif self.lanes[lane].ready():
                status, _ = self.lanes[lane].outcome()
                if status == Status.OK:
                    assert self.lanes[lane].reply["id"] == number
                    assert (self.lanes[lane].reply["act"] == np.float32(2 * number)).all()
                else:
                    assert self.tries[lane] > MAX_TRIES
                self.asked[lane] = None

    def teardown(self) -> None:
        for _ in range(2):
            while self.taken:
                slot, number = self.taken.pop()
                np.frombuffer(slot.reply_fields[0], "f4")[:] = 2 * number
                np.frombuffer(slot.reply_fields[1], "i8")[:] = number
                slot.finish(Status.OK, b"")
            for _ in range(8):
                self.take(3)
        while self.taken:
            slot, number = self.taken.pop()
            np.frombuffer(slot.reply_fields[0], "f4")[:] = 2 * number
            np.frombuffer(slot.reply_fields[1], "i8")[:] = number
            slot.finish(Status.OK, b"")
        self.answers_belong()
        assert all(number is None for number in self.asked), "a request was lost"
        for lane in self.lanes:
            lane.close()
        self.poller.close()
        self.made.close()


LaneMachine.TestCase.settings = settings(max_examples=300 if SLOW else 25, stateful_step_count=30, deadline=None)
TestLaneMachine = LaneMachine.TestCase


def test_views_outlive_the_segment() -> None:
    """An array of a closed segment can still be read: the mapping goes with the last view."""
    with domain() as made:
        view = SCHEMA.request.views(made.segment.block(0))["obs"]
        view[...] = 3
    assert (view == 3).all()


def test_mapping_is_shared() -> None:
    """The mapping is of the descriptor, not a private copy."""
    with domain() as made:
        with mmap.mmap(made.segment.fd, PAGE) as other:
            other[0x110:0x118] = (5).to_bytes(8, "little")
        assert made.segment.quads[0x110 // 8] == 5
