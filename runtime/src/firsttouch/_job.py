# SPDX-License-Identifier: Apache-2.0
"""What one server is to do, from the command line or from a file, and what its process does besides answering."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from firsttouch import _shm, affinity, plan
from firsttouch._configs import ServerFile
from firsttouch._guests import Guests
from firsttouch._lookout import Lookout
from firsttouch._ports import Options
from firsttouch._shm_server import ShmPort
from firsttouch._transport_choice import Choice
from firsttouch.errors import AddressError
from firsttouch.server import Handler, InferenceServer

METRICS_SECONDS = 15.0
_SWEEP_SECONDS = 1.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """NAME is empty for a server without a file; choice is that of the plan where the address left it to that."""

    handler: Any
    addresses: tuple[str, ...]
    options: Options
    name: str = ""
    transport: str = ""
    choice: Choice | None = None
    cpus: tuple[int, ...] = ()
    fifo_priority: int | None = None
    max_batch: int = 64
    metrics: Path | None = None

    @property
    def node(self) -> int | None:
        """The node of the memory."""
        return self.options.node


def resolved(job: Job, latency_target_us: float | None = None) -> Job:
    """JOB with `auto` addresses made real ones. Raises AddressError, PlanError."""
    found: list[str] = []
    choice = job.choice
    for text in job.addresses:
        auto = plan.auto_server(text, None, latency_target_us)
        if auto is not None:
            choice = auto[1]
        found += auto[0] if auto is not None else [text]
    return replace(job, addresses=tuple(found), choice=choice)


def from_file(file: ServerFile, handler: Any) -> Job:
    """The job of a server's file. Raises AddressError, PlanError."""
    node = file.node if file.node is not None or not file.cpus else affinity.node_of(file.cpus[0])
    options = Options(
        lanes=file.lanes,
        spin_ns=int(file.spin_us * 1000),
        pages=file.pages,
        node=node,
        socket_mode=file.socket_mode,
        guests=Guests(file.uids, file.gids),
        tls=file.tls,
    )
    job = Job(
        handler,
        file.addresses,
        options,
        name=file.name,
        transport=file.transport,
        cpus=file.cpus,
        fifo_priority=file.fifo_priority,
        max_batch=file.max_batch,
        metrics=Path(file.metrics) if file.metrics else None,
    )
    return resolved(job, file.latency_target_us)


class Worker:
    """In the process that serves: pins it, makes the handler, answers, tells how it is. home: CPUs of other threads."""

    def __init__(self, job: Job, say: Say) -> None:
        self.job, self._say = job, say
        self._answer: Handler | None = None
        self._refused: list[str] = []
        self._fifo_due = False
        allowed = os.sched_getaffinity(0)
        # Without isolation the serving thread's CPU is among those of all.
        self.home = allowed - set(job.cpus) or allowed
        self._since = time.time()

    def prepare(self, spare: bool = False) -> None:
        """Pin this thread, then make the handler: what that touches first lies on the CPU's node.

        A SPARE makes none unless that says `spare = True`: the handler of the server beside it has its memory too.
        Nor has it that one's priority before it serves.
        """
        job = self.job
        # Whatever threads the handler has, the one that serves gets the interpreter soon.
        sys.setswitchinterval(affinity.SERVER_SWITCH_SECONDS)
        if job.cpus:
            seconds = affinity.SERVER_SWITCH_SECONDS
            fifo = None if spare else job.fifo_priority
            pinned = affinity.pin(job.cpus[0], worker_cpus=job.cpus, fifo_priority=fifo, switch_seconds=seconds)
            self._refuse(pinned.refused)
            self._fifo_due = spare
        if not spare or getattr(job.handler, "spare", False):
            self._make()

    def _refuse(self, steps: Sequence[affinity.Step]) -> None:
        """Tell of STEPS that could not be done."""
        for step in steps:
            self._refused.append(f"{step.name} {step.wanted}: {step.reason}")
            self._say(f"refused: {self._refused[-1]}")

    def _make(self) -> Handler:
        """The handler. A class is made here, in the process that serves: weights are loaded once per server."""
        answer: Handler = self.job.handler() if isinstance(self.job.handler, type) else self.job.handler
        self._answer = answer
        return answer

    def serve(self, server: InferenceServer, lookout: Lookout) -> None:
        """Answer until the server is stopped; LOOKOUT runs meanwhile."""
        job = self.job
        if self._fifo_due and job.fifo_priority is not None:
            step = affinity.set_fifo(job.fifo_priority)
            self._refuse([] if step.done else [step])
        answer = self._answer or self._make()
        if job.metrics is not None:
            signal.signal(signal.SIGUSR1, lambda *_: self._write_metrics(server))
            lookout.every(METRICS_SECONDS, lambda: self._write_metrics(server))
        if job.cpus:
            serving = threading.get_native_id()
            lookout.every(_SWEEP_SECONDS, lambda: affinity.spread(job.cpus, self.home, (serving, lookout.tid)))
        self._write_status(server)
        server.serve(answer)
        if job.metrics is not None:
            self._write_metrics(server)
        if job.name:
            with contextlib.suppress(OSError, AddressError):
                status_path(job.name).unlink()

    def _write_metrics(self, server: InferenceServer) -> None:
        assert self.job.metrics is not None
        with contextlib.suppress(OSError):
            write_whole(self.job.metrics, server.metrics())

    def _write_status(self, server: InferenceServer) -> None:
        """What `firsttouch ping --server` shows of a server."""
        if not self.job.name:
            return
        try:
            write_whole(status_path(self.job.name), json.dumps(self._status(server), indent=1) + "\n")
        except (OSError, AddressError) as error:
            # It serves all the same.
            self._say(f"the status of {self.job.name} cannot be written: {error}")

    def _status(self, server: InferenceServer) -> dict[str, Any]:
        from firsttouch import __version__

        job = self.job
        domains = [port.domain for port in server.ports if isinstance(port, ShmPort)]
        report = domains[0].segment.report if domains else None
        return {
            "name": job.name,
            "pid": os.getpid(),
            "version": __version__,
            "since_s": round(self._since, 3),
            "addresses": server.addresses,
            "transport": job.transport,
            "choice": job.choice.as_dict() if job.choice else None,
            "restarts": domains[0].segment.words[_shm.index("srv_epoch")] - 1 if domains else 0,
            "pages": report.as_dict() if report is not None else None,
            "cpus": {
                "asked": list(job.cpus),
                "serving": threading.get_native_id(),
                "fifo_priority": job.fifo_priority,
                "refused": self._refused,
            },
        }


def status_path(name: str) -> Path:
    """Where the server NAME says how it is. Raises AddressError when there is no such folder."""
    return plan.run_folder() / f"{name}.status.json"


def write_whole(path: Path, text: str) -> None:
    """Replace PATH at once, so that a reader sees a whole file. Raises OSError."""
    # A signal's handler may come while another thread of this process writes.
    scratch = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}")
    scratch.write_text(text)
    os.chmod(scratch, 0o644)
    os.replace(scratch, path)
