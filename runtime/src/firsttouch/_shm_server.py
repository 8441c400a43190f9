# SPDX-License-Identifier: Apache-2.0
"""The server's end of shared memory: a domain (segment and doorbells), and the port that scans its lanes."""

from __future__ import annotations

import os
import select
import time
from dataclasses import dataclass

from firsttouch import _shm
from firsttouch._lanes import LANE, at, lane_parts, reply_meta_room
from firsttouch._transport import Address, Poller, Port, Slot
from firsttouch._waiting import ALONE_NS, LOOKS_ALONE, LOOKS_SHARED, fence, new_doorbell, ring
from firsttouch._wire import Array, Rows, Schema, Status
from firsttouch.errors import HandlerError, KernelError, ProtocolError

_clock = time.monotonic_ns
_sched_yield = os.sched_yield
# A request that was under way in so many deaths of servers is not tried again.
MAX_TRIES = 3


@dataclass
class Domain:
    """What outlives a server: the segment, and two doorbells per lane (bell: to the server, chime: to the client).

    A client shares the bells of its lanes, which are only waited for on this side; of a chime it gets the edges, so
    that whoever rings one cannot be hung.
    """

    segment: _shm.Segment
    bells: list[int]
    chimes: list[int]

    @classmethod
    def create(
        cls,
        schema: Schema,
        n_lanes: int,
        *,
        pages: str = "auto",
        node: int | None = None,
        spin_ns: int = 0,
        strangers: bool = False,
    ) -> Domain:
        """A new domain; see _shm.create(). Raises KernelError, UnsupportedError, SchemaError."""
        fence()
        segment = _shm.create(schema, n_lanes, pages=pages, node=node, spin_ns=spin_ns, strangers=strangers)
        made = cls(segment, [], [])
        try:
            for _ in range(n_lanes):
                made.bells.append(new_doorbell())
                made.chimes.append(new_doorbell())
        except OSError as error:
            made.close()
            raise KernelError(
                f"no doorbells of {n_lanes} lanes: {error.strerror}",
                hint="ask for fewer lanes, or raise the limit of open files (LimitNOFILE=, ulimit -n)",
                facts={"call": "eventfd", "errno": error.errno},
            ) from error
        return made

    def close(self) -> None:
        """Close all descriptors."""
        self.segment.close()
        for fd in (*self.bells, *self.chimes):
            os.close(fd)
        self.bells, self.chimes = [], []


def field_bytes(rows: Rows, row: memoryview) -> list[memoryview]:
    """The bytes of each field in ROW."""
    return [row[at : at + item.nbytes] for item, at in zip(rows.fields, rows.offsets, strict=True)]


def field_arrays(rows: Rows, row: memoryview) -> list[Array]:
    """The array of each field in ROW."""
    return list(rows.views(row).values())


class ShmSlot(Slot):
    """One lane, as the server sees it. Nothing of it is trusted but where it lies."""

    def __init__(self, domain: Domain, lane: int, always_ring: bool) -> None:
        segment = domain.segment
        parts = lane_parts(segment.schema)
        block = segment.block(lane)
        base = segment.control(lane)
        self.lane = lane
        self._words, self._quads = segment.words, segment.quads
        self.req, self._cli_sleep, self._req_meta = (
            (base + at(LANE, name)) // 4 for name in ("req_seq", "cli_sleep", "req_meta")
        )
        self._rsp, self._taken, self._status, self._rsp_meta, self._tries = (
            (base + at(LANE, name)) // 4 for name in ("rsp_seq", "taken_seq", "status", "rsp_meta", "tries")
        )
        self._deadline, self._submit = ((base + at(LANE, name)) // 8 for name in ("deadline_ns", "submit_ns"))
        self._owner = (base + at(LANE, "owner_pid")) // 4
        self.fields = field_bytes(segment.schema.request, block[: parts.request_meta].toreadonly())
        self.reply_fields = field_arrays(segment.schema.reply, block[parts.reply : parts.reply_meta])
        self._meta_in = block[parts.request_meta : parts.request_meta + segment.schema.max_meta_bytes]
        self._meta_out = block[parts.reply_meta : parts.reply_meta + reply_meta_room(segment.schema)]
        self._chime = domain.chimes[lane]
        self._always_ring = always_ring
        self.seen = 0
        self.suspect = False
        self.deadline_ns = self.submit_ns = 0
        # Whether `tries` may be other than 1, and `status` and `rsp_meta` other than 0: what is so already is not
        # stored again.
        self._tried = self._told = True

    def look_back(self) -> None:
        """What was pending when the server before this one died is pending for this one."""
        words = self._words
        self.seen = words[self._rsp]
        # That one died with this request, and perhaps of it.
        self.suspect = words[self._taken] == words[self.req] != self.seen

    # The contract has a plain attribute; here the holder of the lane changes, so that it is read each time.
    @property
    def peer(self) -> str:  # type: ignore[override]
        """The client that has the lane now."""
        return f"lane {self.lane}, process {self._words[self._owner]}"

    def accept(self) -> bytes:
        words, quads = self._words, self._quads
        self.seen = seq = words[self.req]
        if words[self._taken] == seq:
            self._tried = True
            tries = words[self._tries]
            if tries >= MAX_TRIES:
                raise HandlerError(f"{MAX_TRIES} servers died while they had this request")
            words[self._tries] = tries + 1
        else:
            if self._tried:
                words[self._tries] = 1
                self._tried = False
            words[self._taken] = seq
        self.deadline_ns = quads[self._deadline]
        self.submit_ns = quads[self._submit]
        # Read once: the client can still change it.
        length = words[self._req_meta]
        if not length:
            return b""
        if length > len(self._meta_in):
            raise ProtocolError(f"{self.peer} tells of {length} bytes of metadata in {len(self._meta_in)}")
        return bytes(self._meta_in[:length])

    def finish(self, status: Status, meta: bytes) -> None:
        words = self._words
        if meta or status or self._told:
            meta = meta[: len(self._meta_out)]
            self._meta_out[: len(meta)] = meta
            words[self._rsp_meta] = len(meta)
            words[self._status] = status
            self._told = bool(meta or status)
        words[self._rsp] = self.seen
        if words[self._cli_sleep] or self._always_ring:
            ring(self._chime)


def _awake(_: int) -> None:
    """A bell rang; what for, the lanes' words say."""


class ShmPort(Port):
    """Scans the lanes that are leased. What the lanes' words say is all there is: a restart loses nothing."""

    def __init__(self, address: Address, domain: Domain, poller: Poller, *, standby: bool = False) -> None:
        """STANDBY: another server is at work; this one follows it at begin()."""
        self.address = address
        self.domain = domain
        self.schema = domain.segment.schema
        self._poller = poller
        self._fence = fence()
        self._words = domain.segment.words
        self._leases_at, self._sleep = _shm.index("leases"), _shm.index("srv_sleep")
        self._all = [ShmSlot(domain, lane, self._fence.always_ring) for lane in range(len(domain.bells))]
        self._slots: list[ShmSlot] = []
        self._suspects: list[ShmSlot] = []
        self._leases = -1
        self._last = -1
        # An edge: each ring wakes, and nothing has to be read back.
        for bell in domain.bells:
            poller.add(bell, _awake, select.EPOLLIN | select.EPOLLET)
        if not standby:
            self.begin()

    def begin(self) -> None:
        for slot in self._all:
            slot.look_back()
        # Taken one by one, so that a request that kills its server takes no other one along.
        self._suspects = [slot for slot in self._all if slot.suspect]
        words = self._words
        words[_shm.index("srv_pid")] = os.getpid()
        words[_shm.index("srv_epoch")] = (words[_shm.index("srv_epoch")] + 1) & 0xFFFFFFFF
        words[self._sleep] = int(self._fence.always_ring)

    @property
    def cautious(self) -> bool:
        return bool(self._suspects)

    def spin(self, limit: int, span_ns: int) -> list[Slot]:
        words, leases_at, looks = self._words, self._leases_at, LOOKS_ALONE
        now = _clock()
        end = now + span_ns
        while True:
            if self._suspects or words[leases_at] != self._leases:
                found = self.ready(limit)
                if found:
                    return found
            slots = self._slots
            if len(slots) == 1:
                # Where most of the time is spent, and every look counts.
                (slot,) = slots
                req, seen = slot.req, slot.seen
                for _ in looks:
                    if words[req] != seen:
                        # A list of the subclass; whoever gets it only reads it.
                        return slots  # type: ignore[return-value]
            else:
                found = self.ready(limit)
                if found:
                    return found
            _sched_yield()
            began, now = now, _clock()
            if now > end:
                return []
            looks = LOOKS_ALONE if now - began < ALONE_NS else LOOKS_SHARED

    def ready(self, limit: int) -> list[Slot]:
        words = self._words
        if words[self._leases_at] != self._leases:
            self._look_at_leases()
        if self._suspects:
            return [self._suspects.pop()]
        found = [slot for slot in self._slots if words[slot.req] != slot.seen]
        if len(found) > limit:
            # The round goes on after the lane that was last in the one before.
            found = [slot for slot in found if slot.lane > self._last] + [
                slot for slot in found if slot.lane <= self._last
            ]
            del found[limit:]
            self._last = found[-1].lane
        # A list of the subclass; whoever gets it only reads it.
        return found  # type: ignore[return-value]

    def _look_at_leases(self) -> None:
        """Scan the lanes that have an owner. One that died stays until its request is answered."""
        self._leases = self._words[self._leases_at]
        self._slots = [slot for slot in self._all if self._words[slot._owner]]

    def arm(self) -> bool:
        barrier = self._fence.barrier
        if barrier is not None:
            self._words[self._sleep] = 1
            barrier()
        words = self._words
        if self._suspects or words[self._leases_at] != self._leases:
            return True
        return any(words[slot.req] != slot.seen for slot in self._slots)

    def disarm(self) -> None:
        if self._fence.barrier is not None:
            self._words[self._sleep] = 0

    def gauges(self) -> list[tuple[str, str, int]]:
        words = self._words
        return [
            ("clients", "gauge", words[_shm.index("attached")]),
            ("deaths_total", "counter", words[_shm.index("deaths")]),
            ("refused_total", "counter", words[_shm.index("refused")]),
        ]

    def close(self) -> None:
        for bell in self.domain.bells:
            self._poller.drop(bell)
        self._words[_shm.index("srv_pid")] = 0
