# SPDX-License-Identifier: Apache-2.0
"""What a service says to systemd and gets from it: sd_notify(3), its descriptor store, the watchdog. No policy.

The store keeps descriptors under names while the service is dead; the next process gets them as LISTEN_FDS. Their
order there is not promised, so that each has a name of its own.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import re
import socket
import struct
from collections.abc import Mapping, MutableMapping, Sequence

from firsttouch.errors import AddressError, KernelError

# sd_listen_fds(3): the first descriptor that is passed.
LISTEN_FDS_START = 3
_SEND_SECONDS = 5
# systemd, src/basic/fd-util.c, fdname_is_valid(): printable ASCII but the colon, at most 255.
_NAME = re.compile(r"[!-9;-~]{1,255}")


class Notifier:
    """Sends datagrams to the service manager at PATH (`@name` is an abstract socket). Any thread may use it."""

    def __init__(self, path: str) -> None:
        if path[:1] not in ("/", "@") or len(path) < 2:
            raise AddressError(
                f"NOTIFY_SOCKET is {path!r}, neither a path nor an abstract name",
                hint="run it as a unit of systemd with Type=notify, or unset the variable",
            )
        self._address = "\0" + path[1:] if path[0] == "@" else path
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # A manager with a full queue makes us wait, but one that hangs must not hang us. The kernel waits: to poll() a
        # socket that is not connected is writable, so that with settimeout() Python would try again and again.
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_SECONDS, 0))

    def send(self, *lines: str, fds: Sequence[int] = (), wait: bool = True) -> None:
        """Send LINES as one message, with FDS; WAIT while its queue is full. Raises KernelError when it is not sent."""
        data = "\n".join(lines).encode()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self._sock.sendmsg([data], rights, 0 if wait else socket.MSG_DONTWAIT, self._address)
        except OSError as error:
            raise KernelError(
                f"the service manager does not take {lines[0]!r}: {error.strerror or error}",
                hint="look at NotifyAccess= and LimitNOFILE= of the unit",
                facts={"errno": error.errno},
            ) from error

    def ready(self, status: str) -> None:
        """The service serves."""
        self.send("READY=1", _status(status))

    def stopping(self) -> None:
        """The service is about to end by itself."""
        self.send("STOPPING=1")

    def beat(self) -> None:
        """The service is alive. Waits for nothing: clients wait for the thread that says so."""
        self.send("WATCHDOG=1", wait=False)

    def keep(self, name: str, fd: int, *, wait: bool = True) -> None:
        """Have FD kept under NAME, also when its other end hangs up: the next process sees that. Raises KernelError."""
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot name a descriptor")
        # Without FDPOLL=0 the manager would watch each of a hundred doorbells.
        self.send("FDSTORE=1", f"FDNAME={name}", "FDPOLL=0", fds=[fd], wait=wait)

    def forget(self, name: str, *, wait: bool = True) -> None:
        """Have the descriptor that is kept under NAME closed."""
        self.send("FDSTOREREMOVE=1", f"FDNAME={name}", wait=wait)

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()


def _status(text: str) -> str:
    return "STATUS=" + text.replace("\n", "; ")


def notifier(environment: MutableMapping[str, str] | None = None) -> Notifier | None:
    """The service manager's, None when there is none. Children must not take themselves for the service."""
    path = (os.environ if environment is None else environment).pop("NOTIFY_SOCKET", "")
    return Notifier(path) if path else None


def watchdog_seconds(environment: Mapping[str, str] | None = None) -> float | None:
    """After how many seconds without a beat the manager kills this process, None when it does not."""
    found = os.environ if environment is None else environment
    with contextlib.suppress(ValueError):
        if int(found.get("WATCHDOG_PID") or os.getpid()) == os.getpid():
            return int(found.get("WATCHDOG_USEC", "")) / 1e6 or None
    return None


def inherited(environment: MutableMapping[str, str] | None = None) -> dict[str, int]:
    """The descriptors that the manager kept, by name, this process's from now on; a second one of a name is closed."""
    found = os.environ if environment is None else environment
    words = [found.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")]
    # systemd 259 adds a second name of the process.
    found.pop("LISTEN_PIDFDID", None)
    if words[0] != str(os.getpid()) or not words[1].isdigit():
        return {}
    fds = range(LISTEN_FDS_START, LISTEN_FDS_START + int(words[1]))
    names = words[2].split(":") if words[2] else []
    kept: dict[str, int] = {}
    for fd, name in zip(fds, [*names, *[""] * (len(fds) - len(names))], strict=False):
        fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
        if name in kept:
            os.close(fd)
        else:
            kept[name] = fd
    return kept
