# SPDX-License-Identifier: Apache-2.0
"""Counters and histograms of a server, as Prometheus text. Pure; one thread writes, any may read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

# Bucket i counts what is below 2**i ns, from 1 us to 17 s.
_FIRST_BIT: Final = 10
_LAST_BIT: Final = 34
# Bucket i counts batches of up to 2**i requests.
_BATCH_BITS: Final = 12


def _zeros(count: int) -> list[int]:
    return [0] * count


@dataclass
class Histogram:
    """Counts by powers of two of integers, and their sum."""

    counts: list[int] = field(default_factory=lambda: _zeros(65))
    total: int = 0

    def add(self, value: int) -> None:
        """Count VALUE, which is not negative."""
        self.counts[value.bit_length()] += 1
        self.total += value

    def text(self, name: str, first: int, last: int, scale: float) -> list[str]:
        """The lines of a Prometheus histogram with the buckets 2**first to 2**last, times SCALE."""
        lines = [f"# TYPE {name} histogram"]
        running = sum(self.counts[:first])
        for bit in range(first, last + 1):
            running += self.counts[bit]
            lines.append(f'{name}_bucket{{le="{2**bit * scale:.9g}"}} {running}')
        count = sum(self.counts)
        lines.append(f'{name}_bucket{{le="+Inf"}} {count}')
        return [*lines, f"{name}_sum {self.total * scale:.9g}", f"{name}_count {count}"]


class Asked(Protocol):
    """A request that knows when it was sent."""

    submit_ns: int


@dataclass
class Metrics:
    """What a server counts. Times are in ns: queue is from sent to taken, latency from sent to answered."""

    requests: int = 0
    batches: int = 0
    expired: int = 0
    failed: int = 0
    protocol_errors: int = 0
    batch_size: Histogram = field(default_factory=Histogram)
    queue_ns: Histogram = field(default_factory=Histogram)
    latency_ns: Histogram = field(default_factory=Histogram)

    def took(self, requests: Sequence[Asked], taken_ns: int, answered_ns: int | None = None) -> None:
        """Count a batch of REQUESTS, taken at TAKEN_NS; those that failed have no latency."""
        count = len(requests)
        self.requests += count
        self.batches += 1
        # Buckets are of up to 2**i, those of the histogram of below 2**i; the sum is of the requests themselves.
        self.batch_size.add(count - 1)
        self.batch_size.total += 1
        for request in requests:
            # What the client says; one that is ahead of this clock waited for nothing.
            sent = request.submit_ns
            self.queue_ns.add(taken_ns - sent if sent < taken_ns else 0)
            if answered_ns is not None:
                self.latency_ns.add(answered_ns - sent if sent < answered_ns else 0)

    def text(self, gauges: Sequence[tuple[str, str, int]] = ()) -> str:
        """Prometheus text, with GAUGES (name, type, value) of the transports."""
        lines: list[str] = []
        counters = [
            (f"{name}_total", "counter", getattr(self, name))
            for name in ("requests", "batches", "expired", "failed", "protocol_errors")
        ]
        for name, kind, value in (*counters, *gauges):
            lines += [f"# TYPE firsttouch_{name} {kind}", f"firsttouch_{name} {value}"]
        lines += self.batch_size.text("firsttouch_batch_size", 1, _BATCH_BITS, 1)
        lines += self.queue_ns.text("firsttouch_queue_seconds", _FIRST_BIT, _LAST_BIT, 1e-9)
        lines += self.latency_ns.text("firsttouch_latency_seconds", _FIRST_BIT, _LAST_BIT, 1e-9)
        return "\n".join(lines) + "\n"
