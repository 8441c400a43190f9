# SPDX-License-Identifier: Apache-2.0
"""When TLS is a must, and what it is then: both sides show a certificate of the same authority."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from firsttouch._transport import Address
from firsttouch.errors import AddressError, RefusedError


@dataclass(frozen=True)
class Tls:
    """Paths of PEM files: the own certificate (chain), its key, and the authority that the peer's must be from."""

    cert: str
    key: str
    authority: str

    def context(self, server: bool) -> ssl.SSLContext:
        """A context for one side. Raises AddressError when a file cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.cert, self.key)
            context.load_verify_locations(self.authority)
        except (OSError, ssl.SSLError) as error:
            raise AddressError(
                f"TLS files {self.cert}, {self.key}, {self.authority} cannot be used: {error}",
                hint="name PEM files: a certificate, its key, and the authority of both sides",
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
        return context


def context_for(address: Address, tls: Tls | None, *, server: bool) -> ssl.SSLContext | None:
    """The context for ADDRESS, None for a plain socket. Raises RefusedError off loopback without TLS."""
    if tls is not None:
        if address.scheme != "tcp":
            raise AddressError(f"{address} needs no TLS", hint="leave tls out, or use tcp://")
        return tls.context(server)
    if address.scheme == "tcp" and not address.is_loopback:
        raise RefusedError(
            f"{address} is not on loopback: without TLS everyone on the network could read, ask and answer",
            hint="give the TLS files (--tls-cert, --tls-key and --tls-authority, or tls=Tls(...)), or use 127.0.0.1",
        )
    return None
