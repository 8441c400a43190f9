# SPDX-License-Identifier: Apache-2.0
"""What both ends of a stream share: frames in a buffer of fixed size, read into place and written at once.

A frame lies in its buffer as it goes over the wire: header, row, metadata. Arrays are views of the row, so that neither
side copies on the way from or to the socket. A connection carries one request at a time.
"""

from __future__ import annotations

import socket
import ssl

import numpy as np

from firsttouch._wire import ALIGN, HEADER_BYTES, Header, Rows, pack_header, padded

# Bytes of a socket's buffers: a frame of the usual size goes out in one call.
BUFFER_BYTES = 256 << 10
WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Frame:
    """A buffer for one frame of ROWS with up to META_BYTES of metadata."""

    __slots__ = ("body", "done", "end", "memory", "rows")

    def __init__(self, rows: Rows, meta_bytes: int) -> None:
        size = HEADER_BYTES + rows.nbytes + meta_bytes
        # Aligned, so that views are; a page more than malloc gives would be wasted on small frames.
        store = np.zeros(padded(size, ALIGN) + ALIGN, np.uint8)
        skip = -store.ctypes.data % ALIGN
        self.memory: memoryview = store.data[skip : skip + size]
        self.rows = rows
        self.body = self.memory[HEADER_BYTES : HEADER_BYTES + rows.nbytes]
        # How much of the frame went out or came in, and where it ends.
        self.done = self.end = 0

    def fill(self, header: Header, meta: bytes) -> None:
        """Make it a frame to send. The row is there already, or left out if HEADER says no body."""
        pack_header(self.memory, header)
        start = HEADER_BYTES + header.body_len
        if meta:
            self.memory[start : start + len(meta)] = meta
        self.done, self.end = 0, start + len(meta)

    def send(self, sock: socket.socket) -> bool:
        """Send on. Whether all is out. Raises OSError but for a socket that is full."""
        while self.done < self.end:
            try:
                self.done += sock.send(self.memory[self.done : self.end])
            except WOULD_BLOCK:
                return False
        return True

    def meta(self, header: Header) -> bytes:
        """The metadata of a frame that came in."""
        start = HEADER_BYTES + header.body_len
        return bytes(self.memory[start : start + header.meta_len]) if header.meta_len else b""


def tune(sock: socket.socket) -> None:
    """Set what a round trip of one frame each way wants."""
    sock.setblocking(False)
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
