# SPDX-License-Identifier: Apache-2.0
"""A stand-in for systemd: runs one service, takes its notifications over a real socket, keeps its descriptors while it
is dead, and starts it again with them. As systemd does it (src/core/service.c): names are not unique, the order is not
promised, what hangs up is dropped unless FDPOLL=0, and nothing beyond FileDescriptorStoreMax is kept.
"""

from __future__ import annotations

import array
import contextlib
import os
import random
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from serving import eventually

_HUNG_UP = select.EPOLLHUP | select.EPOLLERR


class Manager:
    """Runs COMMAND. messages: what came, line by line; said: the newest value of each key."""

    def __init__(
        self, command: list[str], cwd: Path, *, store_max: int = 512, watchdog_us: int = 0, abstract: bool = False
    ) -> None:
        self.command, self.cwd, self.store_max, self.watchdog_us = command, cwd, store_max, watchdog_us
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        path = f"{cwd}/notify"
        self.name = f"@firsttouch-{os.getpid()}-{id(self)}" if abstract else path
        self.sock.bind("\0" + self.name[1:] if abstract else path)
        self.messages: list[str] = []
        self.said: dict[str, str] = {}
        self.store: list[tuple[str, int]] = []
        self.refused = 0
        self.pid = 0
        self._epoll = select.epoll()
        self._stopping = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def start(self) -> None:
        """Start the service with what is in the store."""
        with self._lock:
            kept = list(self.store)
        random.Random(len(kept)).shuffle(kept)
        self.said.clear()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            try:
                self._exec(kept)
            finally:
                os._exit(127)
        self.pid = pid

    def _exec(self, kept: list[tuple[str, int]]) -> None:
        """In the child: descriptors from 3 on, and the environment."""
        os.chdir(self.cwd)
        high = [os.dup(fd) for _, fd in kept]
        top = max([*high, 64]) + len(kept) + 8
        spare = [os.dup2(fd, top + i) for i, fd in enumerate(high)]
        log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 2)
        for i, fd in enumerate(spare):
            os.dup2(fd, 3 + i, inheritable=True)
        os.closerange(3 + len(kept), top + len(kept) + 1)
        env = {
            **os.environ,
            "NOTIFY_SOCKET": self.name,
            "LISTEN_PID": str(os.getpid()),
            "LISTEN_FDS": str(len(kept)),
            "LISTEN_FDNAMES": ":".join(name for name, _ in kept),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        if self.watchdog_us:
            env |= {"WATCHDOG_USEC": str(self.watchdog_us), "WATCHDOG_PID": str(os.getpid())}
        os.execve(self.command[0], self.command, env)

    def _listen(self) -> None:
        """Take notifications until stopped."""
        self._epoll.register(self.sock.fileno(), select.EPOLLIN)
        while not self._stopping:
            for fd, events in self._epoll.poll(0.02):
                if fd == self.sock.fileno():
                    self._take()
                elif events & _HUNG_UP:
                    with self._lock:
                        self._remove([row for row in self.store if row[1] == fd])

    def _take(self) -> None:
        room = socket.CMSG_SPACE(4 * 253)
        data, ancillary, _, _ = self.sock.recvmsg(65536, room, socket.MSG_CMSG_CLOEXEC)
        fds = array.array("i")
        for _, _, payload in ancillary:
            fds.frombytes(payload[: len(payload) // 4 * 4])
        lines = data.decode().split("\n")
        values = dict(line.split("=", 1) for line in lines)
        with self._lock:
            self.messages += lines
            self.said.update(values)
            if values.get("FDSTORE") == "1":
                for fd in fds:
                    self._keep(values.get("FDNAME", "stored"), fd, poll=values.get("FDPOLL") != "0")
            elif values.get("FDSTOREREMOVE") == "1":
                self._remove([row for row in self.store if row[0] == values["FDNAME"]])

    def _keep(self, name: str, fd: int, *, poll: bool) -> None:
        if len(self.store) >= self.store_max:
            self.refused += 1
            os.close(fd)
            return
        self.store.append((name, fd))
        if poll:
            with contextlib.suppress(PermissionError):
                self._epoll.register(fd, 0)

    def _remove(self, rows: list[tuple[str, int]]) -> None:
        for row in rows:
            self.store.remove(row)
            with contextlib.suppress(FileNotFoundError, PermissionError, OSError):
                self._epoll.unregister(row[1])
            os.close(row[1])

    @property
    def log(self) -> str:
        """What the service wrote to stderr."""
        with contextlib.suppress(FileNotFoundError):
            return (self.cwd / "log").read_text()
        return ""

    def ready(self, seconds: float = 30.0) -> None:
        """Wait until the service says so."""
        assert eventually(lambda: self.said.get("READY") == "1", seconds), self.log

    def kill(self, sig: int = signal.SIGKILL) -> int:
        """Send SIG to the service and collect it: its wait status."""
        os.kill(self.pid, sig)
        pid, self.pid = self.pid, 0
        return os.waitpid(pid, 0)[1]

    def restart(self) -> None:
        """Kill the service and start it again, as Restart=on-failure does."""
        self.kill()
        self.start()

    def drop(self) -> None:
        """Give the service up: close what is kept."""
        with self._lock:
            self._remove(list(self.store))

    def close(self) -> None:
        """End the service, drop the store."""
        if self.pid:
            self.kill()
        self._stopping = True
        self._thread.join()
        self.drop()
        self.sock.close()
        self._epoll.close()


@contextlib.contextmanager
def managed(
    cwd: Path, *words: str, store_max: int = 512, watchdog_us: int = 0, abstract: bool = False
) -> Iterator[Manager]:
    """`firsttouch serve WORDS` under a manager, once it is ready."""
    command = [sys.executable, "-m", "firsttouch.cli", "serve", *words]
    manager = Manager(command, cwd, store_max=store_max, watchdog_us=watchdog_us, abstract=abstract)
    try:
        manager.start()
        manager.ready()
        yield manager
    finally:
        manager.close()


def soon(seconds: float) -> None:
    """A moment for what must NOT happen."""
    time.sleep(seconds)
