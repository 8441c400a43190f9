# SPDX-License-Identifier: Apache-2.0
"""InferenceClient and AsyncInferenceClient: send arrays, wait for the answer. Two thin shells over one session.

A request is answered at least once: when the server died before the answer came, the client comes back and asks again
until the deadline. A request that three servers had as they died may be the reason, and is given up: BrokenError, over
shared memory HandlerError. What only waited meanwhile does not count. Inference is a function of its input, so that
this does no harm; say reconnect=False where it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from firsttouch import plan
from firsttouch._links import Dial
from firsttouch._session import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    SHORTEST_TRY_SECONDS,
    Connector,
    Session,
    answer,
    check_outcome,
    deadline,
    expired,
)
from firsttouch._tls import Tls
from firsttouch._transport import Lane, Link, parse_address
from firsttouch._transport_choice import Choice
from firsttouch._wire import Array, Schema, pack_meta
from firsttouch.errors import BrokenError, BusyError

ADDRESS_ENV = "FIRSTTOUCH_ADDRESS"
Answer = tuple[dict[str, Array], dict[str, Any] | None]
_clock = time.monotonic_ns
# A sleeper looks again after this time, whatever happened to its doorbell.
_NET_NS = 200_000_000
# A request that so many servers had as the connection broke may be the reason: it is not sent again.
_MAX_TRIES = 3


def _resolve(address: str | None, latency_target_us: float | None = None) -> tuple[str, Choice | None]:
    """ADDRESS, by default $FIRSTTOUCH_ADDRESS or `auto`, with `auto` made a real one, and why that."""
    address = address or os.environ.get(ADDRESS_ENV) or "auto"
    return plan.auto_client(address, None, latency_target_us) or (address, None)


def _wait(lane: Lane, deadline_ns: int) -> bool:
    """Wait asleep for LANE's answer. False when the deadline passed. Raises BrokenError, ProtocolError."""
    while True:
        try:
            if lane.arm():
                return True
            left = deadline_ns - _clock()
            if left <= 0:
                return False
            lane.sleep(min(left, _NET_NS) / 1e9)
        finally:
            lane.disarm()
        if lane.ready():
            return True


def _next_try(error: BrokenError, tries: int, pause: float, deadline_ns: int) -> tuple[int, float]:
    """How many tries of a request count after TRIES did and ERROR came, and the seconds until the next one.

    What the server had not taken is no try. It comes back after a PAUSE that grows: connecting may succeed each time.
    Raises ERROR when there is no other try.
    """
    if error.tried:
        if tries + 1 == _MAX_TRIES:
            raise error
        return tries + 1, 0.0
    pause = min(2 * pause, LONGEST_PAUSE_SECONDS) or FIRST_PAUSE_SECONDS
    if _clock() + pause * 1e9 > deadline_ns:
        raise error
    return tries, pause


def _patience(timeout: float) -> float:
    """How many seconds one attempt to connect takes at the most; with a timeout of 0 it is still one attempt."""
    return max(SHORTEST_TRY_SECONDS, min(timeout, 5.0))


class LeasedLane:
    """A lane that is yours: write into request, call infer(), read reply. Views live as long as the `with` block."""

    __slots__ = ("_lane", "_session", "_timeout", "pending", "reply", "request")

    def __init__(self, session: Session, lane: Lane, timeout: float) -> None:
        self._session, self._lane, self._timeout = session, lane, timeout
        self.request: dict[str, Array] = lane.request
        self.reply: dict[str, Array] = lane.reply
        self.pending = False

    def infer(self, meta: Mapping[str, Any] | None = None, timeout: float | None = None) -> dict[str, Any] | None:
        """Send what is in `request`; the answer's arrays are in `reply` afterwards, its metadata is returned.

        Raises ExpiredError after TIMEOUT seconds, BrokenError, HandlerError.
        """
        # submit() and result() at once: one deadline, and few calls.
        if self.pending:
            raise BusyError("this lane waits for an answer already", hint="call result() first")
        lane, session = self._lane, self._session
        until = _clock() + int((self._timeout if timeout is None else timeout) * 1e9)
        data = pack_meta(meta, session.schema.max_meta_bytes) if meta is not None else b""
        lane.submit(data, until)
        self.pending = True
        if not (lane.spin() or _wait(lane, until)):
            raise expired(session.link)
        self.pending = False
        return check_outcome(lane)

    def submit(self, meta: Mapping[str, Any] | None = None, timeout: float | None = None) -> None:
        """Send what is in `request` and go on; do not touch it before result(). Raises BusyError, BrokenError."""
        if self.pending:
            raise BusyError("this lane waits for an answer already", hint="call result() first")
        until = deadline(self._timeout if timeout is None else timeout)
        self._lane.submit(pack_meta(meta, self._session.schema.max_meta_bytes), until)
        self.pending = True

    def result(self, timeout: float | None = None) -> dict[str, Any] | None:
        """Wait for the answer of submit(). After ExpiredError it may be called again."""
        lane = self._lane
        until = deadline(self._timeout if timeout is None else timeout)
        if not (lane.ready() or lane.spin() or _wait(lane, until)):
            raise expired(self._session.link)
        self.pending = False
        return check_outcome(self._lane)

    def done(self) -> bool:
        """Whether result() would not wait."""
        return self._lane.ready()


class InferenceClient:
    """Asks the server at an address. Threads may share it; LANES bounds how many requests are under way."""

    def __init__(
        self,
        address: str | None = None,
        *,
        schema: Schema | None = None,
        lanes: int = 1,
        timeout: float = 30.0,
        reconnect: bool = True,
        name: str = "",
        tls: Tls | None = None,
        latency_target_us: float | None = None,
    ) -> None:
        """Connect. SCHEMA is what the server must have, if given; TIMEOUT is in seconds, for each request.

        ADDRESS may be `auto` or `auto://NAME`: the host's plan decides, `choice` says why, and LATENCY_TARGET_US goes
        before the plan's. Without one it is that of the environment, FIRSTTOUCH_ADDRESS, else `auto`.

        Raises AddressError, BrokenError when nobody serves there, BusyError, RefusedError,
        SchemaError, ProtocolError.
        """
        address, self.choice = _resolve(address, latency_target_us)
        self._connector = Connector(
            Dial(parse_address(address), lanes=lanes, schema=schema, seconds=_patience(timeout), name=name, tls=tls)
        )
        self._timeout = timeout
        self._reconnect = reconnect

    @property
    def schema(self) -> Schema:
        """The server's schema."""
        return self._connector.session().schema

    @property
    def link(self) -> Link:
        """The connection that is in use."""
        return self._connector.session().link

    @property
    def peer(self) -> str:
        """The server, for people."""
        return self._connector.session().link.peer

    @property
    def reconnects(self) -> int:
        """How often this client had to come back."""
        return self._connector.reconnects

    def infer(
        self, arrays: Mapping[str, Array], meta: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Answer:
        """Send ARRAYS and META, return copies of the answer's arrays, and its metadata.

        Raises SchemaError or TooLargeError when they do not fit (nothing was sent), ExpiredError after TIMEOUT
        seconds, BusyError when all lanes are in use until then, BrokenError when the server is gone, HandlerError when
        it failed.
        """
        until = deadline(self._timeout if timeout is None else timeout)
        session = self._connector.session()
        tries, pause = 0, 0.0
        while True:
            try:
                return self._infer(session, arrays, meta, until, tries > 0)
            except BrokenError as error:
                session.broken = True
                if not self._reconnect:
                    raise
                tries, pause = _next_try(error, tries, pause, until)
                time.sleep(pause)
                session = self._connector.renew(session, until)

    def _infer(
        self,
        session: Session,
        arrays: Mapping[str, Array],
        meta: Mapping[str, Any] | None,
        until: int,
        again: bool,
    ) -> Answer:
        """One try on one session."""
        lane = session.lease() or session.wait_for_lane(until)
        pending = False
        try:
            data = pack_meta(meta, session.schema.max_meta_bytes) if meta is not None else b""
            lane.write(arrays)
            lane.submit(data, until, again)
            pending = True
            if not (lane.spin() or _wait(lane, until)):
                raise expired(session.link)
            pending = False
            return answer(lane)
        except BrokenError as error:
            error.tried = lane.tried
            raise
        finally:
            if pending:
                session.abandon(lane)
            else:
                session.release(lane)

    @contextlib.contextmanager
    def lane(self, timeout: float | None = None) -> Iterator[LeasedLane]:
        """A lane to write into without a copy, for as long as the `with` block lasts. Raises BusyError, BrokenError."""
        seconds = self._timeout if timeout is None else timeout
        until = deadline(seconds)
        session = self._connector.session()
        if session.broken and self._reconnect:
            session = self._connector.renew(session, until)
        lane = session.lease() or session.wait_for_lane(until)
        leased = LeasedLane(session, lane, seconds)
        try:
            yield leased
        except BrokenError:
            session.broken = True
            raise
        finally:
            if leased.pending:
                session.abandon(lane)
            else:
                session.release(lane)

    def close(self) -> None:
        """Hang up. Requests under way in other threads end with BrokenError, or ClosedError where they try again."""
        self._connector.close()

    def __enter__(self) -> InferenceClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncInferenceClient:
    """The same for asyncio: waits on descriptors, never spins, one event loop."""

    def __init__(self, connector: Connector, timeout: float, reconnect: bool) -> None:
        """Use connect()."""
        self._connector, self._timeout, self._reconnect = connector, timeout, reconnect
        self._free = asyncio.Semaphore(len(connector.session().link.lanes))

    @classmethod
    async def connect(
        cls,
        address: str | None = None,
        *,
        schema: Schema | None = None,
        lanes: int = 8,
        timeout: float = 30.0,
        reconnect: bool = True,
        name: str = "",
        tls: Tls | None = None,
    ) -> AsyncInferenceClient:
        """Connect, in a thread. See InferenceClient for the arguments and what it raises."""
        dial = Dial(parse_address(_resolve(address)[0]), lanes, schema, _patience(timeout), name, tls)
        return cls(await asyncio.to_thread(Connector, dial), timeout, reconnect)

    async def infer(
        self, arrays: Mapping[str, Array], meta: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Answer:
        """As InferenceClient.infer(). When cancelled, the lane is used again once its answer came."""
        until = deadline(self._timeout if timeout is None else timeout)
        try:
            await asyncio.wait_for(self._free.acquire(), max(0.0, (until - _clock()) / 1e9))
        except asyncio.TimeoutError:
            raise BusyError("all lanes of this client are in use", hint="ask for more lanes") from None
        try:
            return await self._infer(arrays, meta, until)
        finally:
            self._free.release()

    async def _infer(self, arrays: Mapping[str, Array], meta: Mapping[str, Any] | None, until: int) -> Answer:
        """Try until it is answered."""
        session = self._connector.session()
        tries, pause = 0, 0.0
        while True:
            try:
                return await self._try(session, arrays, meta, until, tries > 0)
            except BrokenError as error:
                session.broken = True
                if not self._reconnect:
                    raise
                tries, pause = _next_try(error, tries, pause, until)
                await asyncio.sleep(pause)
                session = await asyncio.to_thread(self._connector.renew, session, until)

    async def _try(
        self,
        session: Session,
        arrays: Mapping[str, Array],
        meta: Mapping[str, Any] | None,
        until: int,
        again: bool,
    ) -> Answer:
        """One try on one session."""
        lane = session.lease()
        while lane is None:
            # Only a lane whose caller gave up can be missing; the server answers it soon.
            if _clock() > until:
                raise BusyError("all lanes of this client wait for late answers")
            await asyncio.sleep(0.001)
            lane = session.lease()
        pending = False
        try:
            lane.write(arrays)
            lane.submit(pack_meta(meta, session.schema.max_meta_bytes), until, again)
            pending = True
            if not await _wait_async(lane, until):
                raise expired(session.link)
            pending = False
            return answer(lane)
        except BrokenError as error:
            error.tried = lane.tried
            raise
        finally:
            if pending:
                session.abandon(lane)
            else:
                session.release(lane)

    async def close(self) -> None:
        """Hang up."""
        self._connector.close()

    async def __aenter__(self) -> AsyncInferenceClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def _wait_async(lane: Lane, deadline_ns: int) -> bool:
    """Wait for LANE's answer in the event loop. False when the deadline passed."""
    loop = asyncio.get_running_loop()
    fd = lane.fileno()
    try:
        while not lane.arm():
            left = deadline_ns - _clock()
            if left <= 0:
                return False
            woken = loop.create_future()
            loop.add_reader(fd, _wake, woken)
            try:
                await asyncio.wait_for(woken, min(left, _NET_NS) / 1e9)
            except asyncio.TimeoutError:
                pass
            finally:
                loop.remove_reader(fd)
            # What woke us is taken away here, so that a level does not wake us again.
            lane.sleep(0)
            if lane.ready():
                return True
        return True
    finally:
        lane.disarm()


def _wake(future: asyncio.Future[None]) -> None:
    """Wake who waits for FUTURE."""
    if not future.done():
        future.set_result(None)
