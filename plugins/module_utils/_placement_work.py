# SPDX-License-Identifier: Apache-2.0
"""The work of the child process: put pages on a node and ask where they are, time loads from them.

An answer of the kernel, a refusal included, is a row; nothing here raises for what a host says.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ._placement_chase import BUFFER_BYTES, Chase, image, spread
from ._placement_kernel import Kernel

_PASSES = 7
_LEAST_PASSES = 3
# Zeroing pages at their first touch: slower than any host does it.
_ZEROED_PER_SECOND = 1 << 30
_REASONS = {
    errno.EPERM: "permission_denied",
    errno.EACCES: "permission_denied",
    errno.ENOSYS: "unsupported",
    errno.ENOMEM: "no_memory",
}


@dataclass(frozen=True)
class Job:
    """One thing to do pinned to `cpu`: `place` pages on one node, or time loads (`latency`) from all `nodes`.

    size_kb 0: pages of the ordinary size.
    """

    kind: str
    cpu: int
    nodes: tuple[int, ...]
    size_kb: int = 0
    pages: int = 0


def refused(reason: str, detail: str) -> dict[str, Any]:
    """The answer for what could not be done."""
    return {"status": "not_evaluated", "reason": reason, "detail": detail}


def by_errno(exc: OSError, *, invalid: str = "kernel_refused") -> dict[str, Any]:
    """The answer for a system call that failed; INVALID is what EINVAL means there."""
    number = exc.errno or 0
    reason = invalid if number == errno.EINVAL else _REASONS.get(number, "kernel_refused")
    return refused(reason, f"{errno.errorcode.get(number, number)} from {exc.strerror or exc}")


class Worker:
    """Does jobs in this process, one after the other; it is not fit for anything else afterwards."""

    def __init__(self, kernel: Kernel, page_bytes: int) -> None:
        self._kernel = kernel
        self._page = page_bytes
        self._chase: Chase | None = None
        # Made here, before any job: of no CPU's time, however slow the host is.
        self._image = image(1)

    def work(self, job: Job, seconds: float) -> dict[str, Any]:
        """The answer to JOB, for which there are SECONDS."""
        end = time.monotonic() + seconds
        if job.pages * job.size_kb * 1024 / _ZEROED_PER_SECOND > seconds or seconds <= 0:
            return refused("time_budget", f"{seconds:.2f} s are left for this CPU")
        try:
            os.sched_setaffinity(0, {job.cpu})
        except OSError as exc:
            return by_errno(exc, invalid="cpus_not_allowed")
        if os.sched_getaffinity(0) != {job.cpu}:
            return refused("cpus_not_allowed", f"the kernel did not take CPU {job.cpu}")
        return self._place(job) if job.kind == "place" else self._latency(job, end)

    def _place(self, job: Job) -> dict[str, Any]:
        node, size = job.nodes[0], job.size_kb * 1024 or self._page
        length = size * job.pages
        try:
            base = self._bound(length, node, job.size_kb)
        except OSError as exc:
            return by_errno(exc, invalid="mems_not_allowed")
        pages = [base + number * size for number in range(job.pages)]
        try:
            for page in pages:
                self._kernel.touch(page)
            return judged(node, self._ask_move_pages(pages), self._ask_mempolicy(pages))
        finally:
            self._kernel.unmap(base, length)

    def _bound(self, length: int, node: int, size_kb: int) -> int:
        """A mapping whose pages come from NODE. The task's policy is back to the default afterwards."""
        if size_kb:
            self._kernel.bind_task(node)
        try:
            base = self._kernel.map(length, size_kb)
        finally:
            if size_kb:
                self._kernel.bind_task(None)
        try:
            if not size_kb:
                self._kernel.small_pages(base, length)
            self._kernel.bind(base, length, node)
        except OSError:
            self._kernel.unmap(base, length)
            raise
        return base

    def _ask_move_pages(self, pages: Sequence[int]) -> list[int] | OSError:
        try:
            return self._kernel.nodes_of(pages)
        except OSError as exc:
            return exc

    def _ask_mempolicy(self, pages: Sequence[int]) -> list[int] | OSError:
        try:
            return [self._kernel.node_of(page) for page in pages]
        except OSError as exc:
            return exc

    def _latency(self, job: Job, end: float) -> dict[str, Any]:
        try:
            chase = self._chase = self._chase or Chase(self._kernel, self._image)
        except OSError as exc:
            return by_errno(exc) | {"reason": "no_executable_memory"}
        buffers: dict[int, int] = {}
        trouble: dict[str, Any] = {}
        try:
            for node in job.nodes:
                answer = self._fill(chase, node, buffers)
                if answer:
                    trouble[str(node)] = answer
            return {**self._time(chase, buffers, end), "trouble": trouble}
        finally:
            for base in buffers.values():
                self._kernel.unmap(base, BUFFER_BYTES)

    def _fill(self, chase: Chase, node: int, buffers: dict[int, int]) -> dict[str, Any]:
        """Put a buffer on NODE into BUFFERS once the kernel says that all of it is there; else why not."""
        try:
            base = self._bound(BUFFER_BYTES, node, 0)
        except OSError as exc:
            return by_errno(exc, invalid="mems_not_allowed")
        buffers[node] = base
        self._kernel.write(base, chase.image)
        pages = range(base, base + BUFFER_BYTES, self._page)
        answer = judged(node, self._ask_move_pages(pages), self._ask_mempolicy(pages[::16]))
        if answer["status"] == "placed":
            return {}
        self._kernel.unmap(buffers.pop(node), BUFFER_BYTES)
        return answer

    def _time(self, chase: Chase, buffers: dict[int, int], end: float) -> dict[str, Any]:
        """Passes over all buffers in turn, so that whatever changes meanwhile changes for all of them."""
        if not buffers:
            return refused("no_memory", "no node gave memory to measure")
        for base in buffers.values():
            chase.pass_ns(base)
        times: dict[int, list[float]] = {node: [] for node in buffers}
        cached: list[float] = []
        passes = 0
        while passes < _PASSES and time.monotonic() < end:
            for node, base in buffers.items():
                times[node] += chase.pass_ns(base)
                cached.append(chase.cached_ns(base))
            passes += 1
        if passes < _LEAST_PASSES:
            return refused("time_budget", f"{passes} of {_PASSES} passes in the time for this CPU")
        rows = {
            str(node): {**dict(zip(("ns", "mad"), spread(values))), "samples": len(values)}
            for node, values in times.items()
        }
        return {"status": "measured", "nodes": rows, "cache_ns": spread(cached)[0], "passes": passes}


def judged(node: int, moved: Sequence[int] | OSError, policy: Sequence[int] | OSError) -> dict[str, Any]:
    """`placed` when each page is on NODE for every source that answered, `wrong` when one says otherwise.

    MOVED and POLICY: per page a node, or minus an errno, or the error of the call itself.
    """
    found: dict[str, dict[str, int]] = {}
    silent: dict[str, dict[str, Any]] = {}
    for source, answer in (("move_pages", moved), ("get_mempolicy", policy)):
        if isinstance(answer, OSError):
            silent[source] = by_errno(answer)
            continue
        failed = [-value for value in answer if value < 0]
        if failed:
            silent[source] = by_errno(OSError(failed[0], f"{source}: {os.strerror(failed[0])}"))
            continue
        found[source] = {str(value): list(answer).count(value) for value in sorted(set(answer))}
    details = {source: row["detail"] for source, row in silent.items()}
    if not found:
        first = next(iter(silent.values()))
        return refused(first["reason"], "; ".join(details.values()))
    good = [set(counts) == {str(node)} for counts in found.values()]
    row: dict[str, Any] = {"status": "placed", "found": found, "silent": details}
    if not all(good):
        reason = "contradictory_sources" if any(good) else "wrong_node"
        row.update(status="wrong", reason=reason, detail=f"asked for node {node}, got {found}")
    return row
