# SPDX-License-Identifier: Apache-2.0
"""Opens a client's end of an address."""

from __future__ import annotations

from dataclasses import dataclass

from firsttouch import _linux
from firsttouch._shm_client import ShmLink
from firsttouch._stream_client import StreamLink
from firsttouch._tls import Tls
from firsttouch._transport import Address, Link
from firsttouch._wire import Hello, Schema
from firsttouch.errors import SchemaError


@dataclass(frozen=True)
class Dial:
    """Whom a client calls: the address, how many lanes, the schema it insists on, seconds for a try, its name."""

    address: Address
    lanes: int = 1
    schema: Schema | None = None
    seconds: float = 5.0
    name: str = ""
    tls: Tls | None = None


def open_link(dial: Dial, schema: Schema | None = None) -> Link:
    """Connect. SCHEMA is what the connection before this one had.

    Raises BrokenError when nobody serves there, BusyError, RefusedError, SchemaError, ProtocolError, ExpiredError,
    UnsupportedError.
    """
    wanted = dial.schema or schema
    hello = Hello(
        transport="shm" if dial.address.scheme == "shm" else "stream",
        lanes=dial.lanes,
        digest=wanted.digest if wanted else "",
        name=dial.name,
        start=_linux.start_ticks("self"),
    )
    link: Link
    if dial.address.scheme == "shm":
        link = ShmLink(dial.address, hello, dial.seconds)
    else:
        link = StreamLink(dial.address, hello, dial.lanes, dial.seconds, dial.tls)
    if wanted and link.schema.digest != wanted.digest:
        link.close()
        raise SchemaError(f"{link.peer} has another schema than this client")
    return link
