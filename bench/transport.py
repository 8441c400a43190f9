# SPDX-License-Identifier: GPL-3.0-or-later
"""Our transports beside what others use: ratios of one run on one machine, medians over interleaved rounds.

A server on one CPU, all clients on another; 48 KiB there, 4 KiB back, both copied. FIRSTTOUCH_BENCH_ROUNDS (5) and
FIRSTTOUCH_BENCH_CALLS (4000) make it shorter or longer. The distribution of each transport is drawn into
build/bench/transport.svg. Peers that are not installed have a row that says so. On a busy machine the figures are
noise.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import operator
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "runtime" / "src"))

import _transport_cdf  # noqa: E402  it imports the runtime, which is used from the checkout
import _transport_faults  # noqa: E402  the same
import _transport_steps  # noqa: E402  the same
from firsttouch import bench  # noqa: E402  the same
from firsttouch.bench import Ours, Peer, Result  # noqa: E402  the same
from firsttouch.errors import FirstTouchError  # noqa: E402  the same

ROUNDS = int(os.environ.get("FIRSTTOUCH_BENCH_ROUNDS", "5"))
CALLS = int(os.environ.get("FIRSTTOUCH_BENCH_CALLS", "4000"))
OUT = ROOT / "build" / "bench"
FLOOR = "C floor"
SHM, TCP = "firsttouch shm", "firsttouch tcp"
PLACE, GATHERED = "firsttouch shm in place", "firsttouch shm gathered"
PICKLE, RAW, NAIVE, ICEORYX = "tcp + pickle", "raw tcp", "naive shm spinning", "iceoryx2 spinning"


@dataclass(frozen=True)
class Case:
    """A load: how many clients, calls of all, pause between the calls of one, idle CPU afterwards."""

    name: str
    clients: int
    calls: int
    pause_s: float = 0.0
    idle: bool = False


ONE = Case("1 client", 1, CALLS, idle=True)
PAUSED = Case("1 ms pauses", 1, max(200, CALLS // 10), 1e-3)
FOUR = Case("4 clients", 4, 2 * CALLS)
SIXTEEN = Case("16 clients", 16, 2 * CALLS)

# Figure of a case, numerator, denominator, what is compared, the bound, whether it is an upper one.
GOALS: tuple[tuple[Case, str, str, str, float, bool], ...] = (
    (ONE, SHM, PICKLE, "p50", 0.20, True),
    (ONE, SHM, RAW, "p50", 0.40, True),
    (ONE, SHM, ICEORYX, "p50", 0.40, True),
    (ONE, SHM, NAIVE, "p50", 0.50, True),
    (ONE, SHM, FLOOR, "p50", 1.8, True),
    (ONE, PLACE, GATHERED, "p50", 0.9, True),
    (ONE, TCP, PICKLE, "p50", 0.5, True),
    (PAUSED, SHM, PICKLE, "p50", 0.35, True),
    (PAUSED, SHM, RAW, "p50", 0.65, True),
    (FOUR, SHM, PICKLE, "rate", 3.5, False),
    (FOUR, SHM, RAW, "rate", 1.6, False),
    (SIXTEEN, SHM, PICKLE, "rate", 3.0, False),
    (SIXTEEN, SHM, RAW, "rate", 1.0, False),
    (SIXTEEN, SHM, PICKLE, "p99.9", 0.4, True),
)
# What no transport that makes both copies can get below, and what no tcp can.
LIMITS = ((ONE, FLOOR, ICEORYX), (ONE, FLOOR, NAIVE), (ONE, RAW, PICKLE))
FIGURES: dict[str, Callable[[Result], float]] = {
    "p50": lambda found: found.us(50),
    "p99.9": lambda found: found.us(99.9),
    "rate": lambda found: found.rate,
}


def peers() -> tuple[dict[str, Callable[[], Peer]], list[str]]:
    """How to make each peer by its name, and the modules that are not installed."""
    # What is compared is measured one after the other: a hypervisor moves CPUs about, and how long a cache line takes
    # from one to the other is then another figure (here by a factor of four) for seconds.
    found: dict[str, Callable[[], Peer]] = {
        SHM: lambda: Ours("shm"),
        PLACE: lambda: Ours("shm", in_place=True),
        GATHERED: lambda: Ours("shm", gathered=True),
    }
    ours: dict[str, Callable[[], Peer]] = {
        TCP: lambda: Ours("tcp"),
        "firsttouch unix": lambda: Ours("unix"),
        "firsttouch shm no spin": lambda: Ours("shm", spin_ns=0),
    }
    missing = []
    for name in ("iceoryx", "naive_shm", "tcp_raw", "tcp_pickle", "mp_pipe", "zmq_ipc", "fifo"):
        try:
            kind = importlib.import_module(f"peers.{name}").Peer
            peer = kind().name
        except ImportError as error:
            missing.append(f"{name}: {error}")
            continue
        found[peer] = kind
        if peer == NAIVE:
            found["naive shm locking each look"] = functools.partial(kind, lock_looks=True)
        if peer == PICKLE:
            found.update(ours)
    return found, missing


@contextlib.contextmanager
def no_leftovers() -> Iterator[None]:
    """Remove what killed peers leave in /dev/shm (iceoryx2 does), nothing that was there before."""
    before = set(os.listdir("/dev/shm"))
    try:
        yield
    finally:
        for name in set(os.listdir("/dev/shm")) - before:
            if name.startswith("iox2_"):
                with contextlib.suppress(OSError):
                    os.unlink(f"/dev/shm/{name}")


def floor(folder: str) -> Callable[[], Result] | None:
    """The floor, compiled into FOLDER; None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    program = Path(folder) / "floor"
    source = ROOT / "bench" / "peers" / "floor.c"
    if subprocess.run([compiler, "-O2", "-o", str(program), str(source)]).returncode:
        return None
    server, client = bench.cpus()

    def measure() -> Result:
        command = [str(program), str(server), str(client), str(CALLS)]
        out = subprocess.run(command, check=True, capture_output=True, timeout=60).stdout
        times = np.array(out.split(), np.int64)
        return Result(times, float(times.sum()) / 1e9, 0.0, 100.0)

    return measure


Rounds = list[dict[tuple[str, str], Result]]


def run_rounds(
    made: dict[str, Callable[[], Peer]], bottom: Callable[[], Result] | None
) -> tuple[Rounds, list[dict[str, list[float]]]]:
    """All measurements, interleaved: each round has one of each. And what faults took in each."""
    needed = {(case, name) for case, ours, other, *_ in GOALS for name in (ours, other)}
    rounds: Rounds = []
    faults = []
    for number in range(ROUNDS):
        found: dict[tuple[str, str], Result] = {}
        for case in (ONE, PAUSED, FOUR, SIXTEEN):
            for name, make in made.items():
                if case is not ONE and (case, name) not in needed:
                    continue
                # A second of sleep for each: once is enough, it does not scatter.
                idle = case.idle and number == 0
                with no_leftovers(), contextlib.suppress(FirstTouchError):
                    found[case.name, name] = bench.measure(
                        make(), calls=case.calls, clients=case.clients, pause_s=case.pause_s, idle=idle
                    )
                if bottom is not None and (case, name) == (ONE, SHM):
                    found[ONE.name, FLOOR] = bottom()
        rounds.append(found)
        faults.append(_transport_faults.samples())
        print(f"  round {number + 1} of {ROUNDS}", flush=True)
    return rounds, faults


def median(rounds: Rounds, case: Case, name: str, figure: Callable[[Result], float]) -> float | None:
    """The median of FIGURE over the rounds that have it."""
    values = [figure(found[case.name, name]) for found in rounds if (case.name, name) in found]
    return statistics.median(values) if values else None


def row(figure: str, value: Any, unit: str, goal: str | None = None, met: bool | None = None) -> dict[str, Any]:
    """One row for tools/run_bench.py."""
    return {"figure": figure, "value": value, "unit": unit, "goal": goal, "met": met}


def ratio_rows(rounds: Rounds) -> list[dict[str, Any]]:
    """The goals: ratios within a round, their median over the rounds."""
    rows = []
    for case, ours, other, figure, bound, upper in GOALS:
        value = ratio(rounds, case, ours, other, figure)
        goal = f"at {'most' if upper else 'least'} {bound:g}"
        met = None if value is None else (value <= bound if upper else value >= bound)
        rows.append(row(f"{case.name}, {figure}: {ours} / {other}", value, "ratio", goal, met))
    for case, least, other in LIMITS:
        value = ratio(rounds, case, least, other, "p50")
        rows.append(row(f"{case.name}, p50, the limit: {least} / {other}", value, "ratio"))
    return rows


def ratio(rounds: Rounds, case: Case, ours: str, other: str, figure: str) -> float | None:
    """The median over the rounds of FIGURE of OURS to that of OTHER in the same round."""
    get = FIGURES[figure]
    values = [
        get(found[case.name, ours]) / get(found[case.name, other])
        for found in rounds
        if (case.name, ours) in found and (case.name, other) in found
    ]
    return statistics.median(values) if values else None


def plain_rows(rounds: Rounds, names: list[str]) -> list[dict[str, Any]]:
    """What each transport took."""
    rows = []
    for name in names:
        for percent in (50, 99, 99.9):
            value = median(rounds, ONE, name, operator.methodcaller("us", percent))
            rows.append(row(f"1 client, p{percent:g}: {name}", value, "us"))
        idle = median(rounds[:1], ONE, name, lambda found: found.idle_percent)
        ours = name == SHM
        goal, met = ("at most 0.2", None if idle is None else idle <= 0.2) if ours else (None, None)
        rows.append(row(f"idle CPU after 100 ms: {name}", idle, "%", goal, met))
    return rows


def measure() -> list[dict[str, Any]]:
    """All rows. The distributions go to build/bench/transport.svg."""
    made, missing = peers()
    with tempfile.TemporaryDirectory(prefix="firsttouch-") as folder:
        rounds, faults = run_rounds(made, floor(folder))
    names = [*made, *([FLOOR] if (ONE.name, FLOOR) in rounds[0] else [])]
    rows = ratio_rows(rounds)
    rows += [row(*values) for values in _transport_faults.rows(faults)]
    rows += plain_rows(rounds, names)
    rows += [row(*values) for values in _transport_steps.rows()]
    rows += [row(f"not measured: {text}", None, "") for text in missing]
    if FLOOR not in names:
        rows.append(row("not measured: the C floor, there is no compiler", None, ""))
    curves = {
        name: np.concatenate([found[ONE.name, name].ns for found in rounds if (ONE.name, name) in found])
        for name in names
        if any((ONE.name, name) in found for found in rounds)
    }
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "transport.svg").write_text(_transport_cdf.svg(curves))
    return rows
