# SPDX-License-Identifier: Apache-2.0
"""A client's connection as both shells use it: which lanes are free, which are late, and how to come back."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from firsttouch._links import Dial, open_link
from firsttouch._transport import Lane, Link
from firsttouch._wire import Array, failure, unpack_meta
from firsttouch.errors import BrokenError, BusyError, ClosedError, ExpiredError

FIRST_PAUSE_SECONDS = 0.001
LONGEST_PAUSE_SECONDS = 0.1
# A server that is there answers in this time.
SHORTEST_TRY_SECONDS = 0.1
_clock = time.monotonic_ns


class Session:
    """One link, its lanes and who has them. Any thread may call it."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.schema = link.schema
        self.broken = False
        self.free: deque[Lane] = deque(link.lanes)
        # Whose caller gave up before the answer came: to be used again once it is in.
        self._late: list[Lane] = []
        self._lock = threading.Condition()
        # How many threads want to hear of a lane that is given back; close() is one of them.
        self._waiters = 0
        self._closing = False
        self._lanes = len(link.lanes)
        _open_sessions.add(self)

    def lease(self) -> Lane | None:
        """A lane that is free now, or None. Raises BrokenError when all are late and the server is gone."""
        try:
            return self.free.pop()
        except IndexError:
            return self._late_lane() if self._late else None

    def wait_for_lane(self, deadline_ns: int) -> Lane:
        """A lane, when one is given back before the deadline. Raises BusyError, BrokenError."""
        with self._lock:
            self._waiters += 1
            try:
                while True:
                    if self._closing:
                        raise BrokenError("the connection is closed")
                    lane = self.lease()
                    if lane is not None:
                        return lane
                    left = deadline_ns - _clock()
                    if left <= 0:
                        raise BusyError(
                            f"all {self._lanes} lanes of this client are in use", hint="ask for more lanes"
                        )
                    # A late lane becomes free without a notice.
                    self._lock.wait(min(left / 1e9, 0.01 if self._late else 1.0))
            finally:
                self._waiters -= 1

    def release(self, lane: Lane) -> None:
        """Give LANE back, answered or not used."""
        self.free.append(lane)
        if self._waiters:
            with self._lock:
                self._lock.notify()
                self._let_go()

    def abandon(self, lane: Lane) -> None:
        """Give LANE back while its answer is under way."""
        with self._lock:
            self._late.append(lane)
            self._let_go()

    def _late_lane(self) -> Lane | None:
        """A late lane whose answer came. Raises BrokenError."""
        with self._lock:
            try:
                for i, lane in enumerate(self._late):
                    if lane.ready():
                        del self._late[i]
                        return lane
                    # Nobody else waits on it, to see whether its answer will ever come.
                    lane.sleep(0)
            except BrokenError:
                self.broken = True
                raise
        return None

    def close(self) -> None:
        """Hang up. Who waits on a lane gets BrokenError; the last of them closes the descriptors.

        Closed at once they would be given to the next connection, while an event loop still waits for the old ones.
        """
        with self._lock:
            if self._closing:
                return
            self.broken = self._closing = True
            self._waiters += 1
            self.link.hang_up()
            self._lock.notify_all()
            self._let_go()

    def _let_go(self) -> None:
        """Close the link when that is due and nobody uses a lane of it."""
        if self._closing and len(self.free) + len(self._late) == self._lanes:
            _open_sessions.discard(self)
            self.link.close()

    def after_fork(self) -> None:
        """In a child: close the copies. Threads that used lanes, or had the lock, are not there."""
        self._lock = threading.Condition()
        self.broken = self._closing = True
        self.link.close()


_open_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _after_fork() -> None:
    """A child gives back what it inherited: one lane must not have two writers, nor a dead parent seem alive."""
    for session in list(_open_sessions):
        session.after_fork()


os.register_at_fork(after_in_child=_after_fork)


class Connector:
    """Makes the session, and another one when it broke. DIAL says whom to call and for how long to try."""

    def __init__(self, dial: Dial) -> None:
        self.dial = dial
        self._lock = threading.Lock()
        self._session: Session | None = Session(open_link(dial))
        self._closed = False
        self.reconnects = 0

    def session(self) -> Session:
        """The session that is in use. Raises ClosedError."""
        session = self._session
        if session is None:
            raise ClosedError("this client is closed")
        return session

    def renew(self, old: Session, deadline_ns: int, pause: Callable[[float], None] = time.sleep) -> Session:
        """A session in place of OLD, which broke; tries until the deadline. Raises what the last try raised, and
        ClosedError when this client is closed meanwhile.

        One thread tries, maybe for longer than another one has time: ExpiredError for that.
        """
        if not self._lock.acquire(timeout=min(max(0.0, _seconds_to(deadline_ns)), threading.TIMEOUT_MAX)):
            raise ExpiredError(f"{old.link.peer} is gone, and was not reached again before the deadline")
        try:
            if self._session is not old:
                return self.session()
            old.close()
            seconds = FIRST_PAUSE_SECONDS
            while True:
                try:
                    left = max(SHORTEST_TRY_SECONDS, min(self.dial.seconds, _seconds_to(deadline_ns)))
                    made = Session(open_link(replace(self.dial, seconds=left), old.schema))
                except (BrokenError, BusyError, ExpiredError):
                    if _clock() + seconds * 1e9 > deadline_ns:
                        raise
                    pause(seconds)
                    seconds = min(2 * seconds, LONGEST_PAUSE_SECONDS)
                    self.session()
                    continue
                self._session = made
                if self._closed:
                    # Meanwhile: close() does not wait for a try, and need not have seen what this one made.
                    self.close()
                self.reconnects += 1
                return self.session()
        finally:
            self._lock.release()

    def close(self) -> None:
        """Hang up, for good."""
        # First: renew() looks at it last.
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            session.close()


def _seconds_to(deadline_ns: int) -> float:
    return (deadline_ns - _clock()) / 1e9


def deadline(seconds: float) -> int:
    """SECONDS from now on the monotonic clock, in ns."""
    return _clock() + int(seconds * 1e9)


def answer(lane: Lane) -> tuple[dict[str, Array], dict[str, object] | None]:
    """Copies of the arrays of LANE's answer, and its metadata. Raises what the server failed with."""
    meta = check_outcome(lane)
    # No comprehension: before Python 3.12 it is a call.
    arrays = {}
    for name, view in lane.answer:
        arrays[name] = view.copy()
    return arrays, meta


def check_outcome(lane: Lane) -> dict[str, object] | None:
    """The metadata of LANE's answer. Raises what the server failed with."""
    status, data = lane.outcome()
    if status:
        raise failure(status, data.decode(errors="replace"))
    return unpack_meta(data) if data else None


def expired(link: Link) -> ExpiredError:
    """The error of a deadline that passed."""
    return ExpiredError(f"no answer from {link.peer} before the deadline")
