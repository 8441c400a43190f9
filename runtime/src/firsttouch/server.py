# SPDX-License-Identifier: Apache-2.0
"""InferenceServer: takes all requests that are ready as one batch, and answers them at once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from firsttouch import _ports, plan
from firsttouch._metrics import Metrics
from firsttouch._ports import Options
from firsttouch._tls import context_for
from firsttouch._transport import Poller, Port, Slot, parse_address
from firsttouch._waiting import NET_SECONDS, hush, new_doorbell, ring
from firsttouch._wire import Array, Schema, Status, pack_meta, unpack_meta
from firsttouch.errors import ClosedError, HandlerError, ProtocolError, SchemaError

_clock = time.monotonic_ns
_sched_yield = os.sched_yield
# target[:] as a value: the slice is not made each time.
_ALL = slice(None)


def resolve(address: str | Sequence[str]) -> list[str]:
    """ADDRESS with `auto` made real ones, by the host's plan."""
    found: list[str] = []
    for text in [address] if isinstance(address, str) else address:
        auto = plan.auto_server(text)
        found += auto[0] if auto else [text]
    return found


def _told(text: str) -> bytes:
    """TEXT as a client is told it. A handler's may have what no encoding has: a file's name, for one."""
    return text.encode(errors="replace")[:512]


class Batch:
    """Requests that are answered together.

    arrays: for each field an array [n, *shape], valid until the next batch; metas: metadata of each request or None.
    """

    __slots__ = ("_server", "_slots", "_taken_ns", "arrays", "metas")

    def __init__(
        self,
        server: InferenceServer,
        slots: list[Slot],
        metas: list[dict[str, Any] | None],
        arrays: dict[str, Array],
        taken_ns: int,
    ) -> None:
        self._server = server
        self._slots = slots
        self.metas = metas
        self.arrays = arrays
        self._taken_ns = taken_ns

    def __len__(self) -> int:
        return len(self.metas)

    @property
    def answered(self) -> bool:
        """Whether reply() or fail() was called."""
        return not self._slots

    @property
    def peers(self) -> list[str]:
        """Who asks, for people."""
        return [slot.peer for slot in self._slots]

    def reply(self, arrays: Mapping[str, Array], metas: Sequence[Mapping[str, Any] | None] | None = None) -> None:
        """Answer all: arrays [n, *shape] of the schema's dtypes, and metadata for each if there is any.

        Raises SchemaError when they do not fit; nothing is answered then. Raises ClosedError the second time.
        """
        slots, server = self._slots, self._server
        if not slots:
            raise ClosedError("this batch is answered already")
        rows = server._reply_rows(arrays, len(slots))
        if metas is None:
            blobs = _NO_METAS
        else:
            limit = server.schema.max_meta_bytes
            blobs = [pack_meta(meta, limit) for meta in metas]
            if len(blobs) != len(slots):
                raise SchemaError(f"{len(blobs)} metadata for {len(slots)} requests")
        self._slots = []
        for i, slot in enumerate(slots):
            for field, target in enumerate(slot.reply_fields):
                target[...] = rows[field][i]
            slot.finish(_OK, blobs[i] if blobs else b"")
        # From here on the clients are at work again; what is only counted comes now.
        server._answered(slots, self._taken_ns)

    def fail(self, text: str) -> None:
        """Answer all with HandlerError(TEXT). Raises ClosedError when they are answered already."""
        slots, self._slots = self._slots, []
        if not slots:
            raise ClosedError("this batch is answered already")
        for slot in slots:
            slot.finish(Status.HANDLER, _told(text))
        self._server.counts.failed += len(slots)
        self._server.counts.took(slots, self._taken_ns)


_OK = Status.OK
_NO_METAS: list[bytes] = []
Handler = Callable[[Batch], Mapping[str, Array]]


class InferenceServer:
    """Serves SCHEMA at one or more addresses. One thread calls batches() or serve(); stop() is for any thread."""

    def __init__(
        self,
        address: str | Sequence[str],
        schema: Schema | None = None,
        *,
        max_batch: int = 64,
        options: Options | None = None,
    ) -> None:
        """Begin to listen. SCHEMA may be left out when OPTIONS bring a kept domain that has it.

        Raises AddressError, BusyError, RefusedError (no TLS off loopback), UnsupportedError, KernelError.
        """
        self._open = False
        options = options or Options()
        addresses = [parse_address(text) for text in resolve(address)]
        if not any(place.scheme == "tcp" for place in addresses):
            context_for(addresses[0], options.tls, server=True)
        self.counts = Metrics()
        self._max_batch = max_batch
        self.on_first_answer: Callable[[], None] | None = None
        self._poller = Poller()
        self._stop = new_doorbell()
        self._pidfd = -1
        self._stopping = False
        self._poller.add(self._stop, lambda _: hush(self._stop))
        self._ports: list[Port] = []
        self._open = True
        try:
            for place in addresses:
                self._ports.append(_ports.open_port(place, schema, options, self._poller))
        except BaseException:
            self.close()
            raise
        # In the order that was asked for: the ports take turns.
        self._addresses = [str(port.address) for port in self._ports]
        self.schema = self._ports[0].schema
        self._spin_ns = options.spin_ns
        self._alone = self._ports[0] if len(self._ports) == 1 else None
        self._has_streams = any(port.address.scheme != "shm" for port in self._ports)
        self._make_buffers()

    def _make_buffers(self) -> None:
        """The arrays of a batch, touched here: by the thread that will use them, on its node."""
        fields = self.schema.request.fields
        count = self._max_batch
        self._stacks = {item.name: np.zeros((count, *item.shape), item.dtype) for item in fields}
        for stack in self._stacks.values():
            stack.fill(0)
        flat = [stack.reshape(-1).view(np.uint8).data for stack in self._stacks.values()]
        self._rows = [
            [data[i * item.nbytes : (i + 1) * item.nbytes] for data, item in zip(flat, fields, strict=True)]
            for i in range(count)
        ]
        self._views = [{name: stack[:n] for name, stack in self._stacks.items()} for n in range(count + 1)]
        # What an answer to n requests must be, field by field.
        self._reply_checks = [
            [(item.name, np.dtype(item.dtype), (n, *item.shape)) for item in self.schema.reply.fields]
            for n in range(count + 1)
        ]

    @property
    def addresses(self) -> list[str]:
        """Where this server listens; a tcp port that was asked for as 0 is the real one."""
        return list(self._addresses)

    @property
    def ports(self) -> list[Port]:
        """The server's ends of its addresses."""
        return list(self._ports)

    def batches(self) -> Iterator[Batch]:
        """Wait for requests and yield all that are ready, until stop().

        A batch that was not answered when the next one is asked for is answered with HandlerError.
        """
        while not self._stopping:
            if not self._open:
                raise ClosedError("this server is closed")
            batch = self._take(self._wait())
            if batch is None:
                continue
            try:
                yield batch
            finally:
                if not batch.answered:
                    batch.fail("the server gave no answer")

    def serve(self, handler: Handler) -> None:
        """Answer each batch with what HANDLER returns for it, until stop(). What it raises is told to the clients."""
        for batch in self.batches():
            try:
                batch.reply(handler(batch))
            except Exception as error:  # noqa: BLE001  a handler may raise anything, and the server goes on
                if not batch.answered:
                    batch.fail(f"{type(error).__name__}: {error}")

    def stop(self) -> None:
        """Make batches() and serve() end after the batch they are at. From any thread or a signal handler."""
        self._stopping = True
        if self._open:
            ring(self._stop)

    def begin(self) -> None:
        """Take over from a server that is gone by now: for one that was made with Options.standby."""
        for port in self._ports:
            port.begin()

    def stop_with(self, pid: int) -> None:
        """Also stop when process PID ends. Raises OSError when it is gone already."""
        self._pidfd = os.pidfd_open(pid)
        self._poller.add(self._pidfd, lambda _: self.stop())

    def watch(self, fd: int, call: Callable[[], None]) -> None:
        """Call CALL in the serving thread when FD is readable, once it has no request to look after."""
        self._poller.add(fd, lambda _: call())

    def metrics(self) -> str:
        """Counters and histograms as Prometheus text."""
        sums: dict[tuple[str, str], int] = {}
        for port in self._ports:
            for name, kind, value in port.gauges():
                sums[name, kind] = sums.get((name, kind), 0) + value
        return self.counts.text([(*key, value) for key, value in sums.items()])

    def close(self) -> None:
        """Hang up on all clients and give everything back."""
        if not self._open:
            return
        self._open, self._stopping = False, True
        for port in self._ports:
            port.close()
        self._poller.close()
        os.close(self._stop)
        if self._pidfd >= 0:
            os.close(self._pidfd)

    def __enter__(self) -> InferenceServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ready(self) -> list[Slot]:
        """What is ready now, at most a batch."""
        if self._has_streams:
            self._poller.run(0)
        if len(self._ports) == 1:
            return self._ports[0].ready(self._max_batch)
        found: list[Slot] = []
        for port in self._ports:
            room = self._max_batch - len(found)
            if not room:
                break
            if port.cautious:
                # What comes now is taken alone: in this round when nothing else came, else in one that begins there.
                if found:
                    continue
                found += port.ready(room)
                break
            found += port.ready(room)
        # The next round begins with another port.
        self._ports.append(self._ports.pop(0))
        return found

    def _wait(self) -> list[Slot]:
        """Requests, or nothing after stop() or a while. Spins first, then sleeps."""
        if self._spin_ns:
            alone = self._alone
            found = alone.spin(self._max_batch, self._spin_ns) if alone is not None else self._spin()
            if found:
                return found
        while not self._stopping:
            if any(port.arm() for port in self._ports):
                break
            woken = self._poller.run(NET_SECONDS)
            if woken:
                break
        for port in self._ports:
            port.disarm()
        return self._ready()

    def _spin(self) -> list[Slot]:
        """Look at all ports in turn for a while."""
        end = _clock() + self._spin_ns
        while True:
            found = self._ready()
            if found:
                return found
            _sched_yield()
            if _clock() > end:
                return []

    def _take(self, slots: list[Slot]) -> Batch | None:
        """Accept SLOTS and copy their rows; those that are too late or wrong are answered here."""
        if not slots:
            return None
        counts, now, rows, n = self.counts, _clock(), self._rows, 0
        taken: list[Slot] = []
        metas: list[dict[str, Any] | None] = []
        for slot in slots:
            try:
                raw = slot.accept()
                meta = unpack_meta(raw) if raw else None
            except ProtocolError as error:
                counts.protocol_errors += 1
                slot.finish(Status.PROTOCOL, _told(str(error)))
                continue
            except HandlerError as error:
                counts.failed += 1
                slot.finish(Status.HANDLER, _told(str(error)))
                continue
            if slot.deadline_ns < now:
                counts.expired += 1
                slot.finish(Status.EXPIRED, b"the deadline was over before the request was taken")
                continue
            row = rows[n]
            for field, source in enumerate(slot.fields):
                row[field][_ALL] = source
            n += 1
            taken.append(slot)
            metas.append(meta)
        return Batch(self, taken, metas, self._views[n], now) if n else None

    def _reply_rows(self, arrays: Mapping[str, Array], count: int) -> list[Array]:
        """ARRAYS in the schema's order. Raises SchemaError."""
        found = []
        checks = self._reply_checks[count]
        for name, dtype, shape in checks:
            array = arrays.get(name)
            if array is None or array.dtype != dtype or array.shape != shape:
                told = "missing" if array is None else f"{array.dtype}{list(array.shape)}"
                raise SchemaError(f"answer {name} is {told}; the schema wants {dtype}{list(shape)}")
            found.append(array)
        if len(arrays) != len(found):
            raise SchemaError(f"answer has {sorted(arrays)}; the schema wants {[item[0] for item in checks]}")
        return found

    def _answered(self, slots: list[Slot], taken_ns: int) -> None:
        """Count SLOTS, which were taken together at TAKEN_NS and are answered now."""
        if self.on_first_answer is not None:
            self.on_first_answer()
            self.on_first_answer = None
        self.counts.took(slots, taken_ns, _clock())
