# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs in children: what a child dies of is an answer, and nothing of it reaches this process."""

from __future__ import annotations

import errno
import mmap
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _placement_run
from ansible_collections.firsttouch.host.plugins.module_utils._placement_run import run
from ansible_collections.firsttouch.host.plugins.module_utils._placement_work import Job

CPU = min(os.sched_getaffinity(0))
JOBS = [Job("place", CPU, (node,)) for node in range(4)]


def no_child_left() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return True
    return False


def test_answers_come_in_order_from_one_child() -> None:
    answers = run(JOBS, lambda job, seconds: {"node": job.nodes[0], "pid": os.getpid()})
    assert [answer["node"] for answer in answers] == [0, 1, 2, 3]
    assert len({answer["pid"] for answer in answers}) == 1
    assert answers[0]["pid"] != os.getpid()
    assert no_child_left()


def test_this_process_keeps_affinity_signals_limits_and_files() -> None:
    def state() -> tuple[Any, ...]:
        return (
            os.sched_getaffinity(0),
            signal.getsignal(signal.SIGBUS),
            os.nice(0),
            Path("/proc/self/oom_score_adj").read_text(),
            sorted(os.listdir("/proc/self/fd")),
        )

    def work(job: Job, seconds: float) -> dict[str, Any]:
        os.sched_setaffinity(0, {CPU})
        if job.nodes[0] == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"status": "placed"}

    before = state()
    run(JOBS, work)
    assert state() == before


def test_a_sigbus_answers_its_job_and_the_others_are_done(tmp_path: Path) -> None:
    file = tmp_path / "short"
    file.write_bytes(bytes(mmap.PAGESIZE))

    def work(job: Job, seconds: float) -> dict[str, Any]:
        if job.nodes[0] == 1:
            with file.open("r+b") as handle:
                window = mmap.mmap(handle.fileno(), mmap.PAGESIZE)
                os.ftruncate(handle.fileno(), 0)
                window[0] = 1  # behind the end of the file
        return {"status": "placed", "node": job.nodes[0]}

    answers = run(JOBS, work)
    assert [answer.get("node") for answer in answers] == [0, None, 2, 3]
    assert (answers[1]["status"], answers[1]["reason"]) == ("not_evaluated", "sigbus")
    assert no_child_left()


def test_a_child_that_hangs_is_ended_and_its_cpu_has_no_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    # The next child, too, has to be there in time.
    monkeypatch.setattr(_placement_run, "_GRACE", 3)
    other = Job("place", CPU + 1, (9,))

    def work(job: Job, seconds: float) -> dict[str, Any]:
        if job.nodes[0] == 1:
            time.sleep(60)
        return {"status": "placed", "seconds": seconds}

    begin = time.monotonic()
    answers = run([*JOBS[:3], other], work, seconds_per_cpu=0.3)
    assert time.monotonic() - begin < 30
    assert [answer.get("reason") for answer in answers] == [None, "timeout", None, None]
    assert answers[2]["seconds"] <= 0
    assert answers[3]["seconds"] == pytest.approx(0.3, abs=0.05)
    assert no_child_left()


def test_time_of_a_cpu_adds_up_over_its_jobs() -> None:
    def work(job: Job, seconds: float) -> dict[str, Any]:
        time.sleep(0.05)
        return {"seconds": seconds}

    left = [answer["seconds"] for answer in run(JOBS[:3], work, seconds_per_cpu=1.0)]
    assert left[0] == 1.0
    assert left[0] - left[1] >= 0.05
    assert left[1] - left[2] >= 0.05


def test_a_defect_in_one_job_is_an_error_of_that_job() -> None:
    def work(job: Job, seconds: float) -> dict[str, Any]:
        if job.nodes[0] == 2:
            raise ValueError("broken")
        return {"status": "placed"}

    answers = run(JOBS, work)
    assert [answer["status"] for answer in answers] == ["placed", "placed", "error", "placed"]
    assert answers[2]["detail"] == "ValueError: broken"


def test_a_child_that_cannot_begin_ends_the_run_with_reasons() -> None:
    def prepare() -> None:
        raise OSError(errno.EPERM, "no")

    answers = run(JOBS, lambda job, seconds: {"status": "placed"}, prepare=prepare)
    assert [answer["reason"] for answer in answers] == ["child_failed"] * 4


def test_no_child_at_all_is_an_error_that_leaves_no_file_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    before = sorted(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "fork", refuse)
    with pytest.raises(OSError, match="temporarily"):
        run(JOBS, lambda job, seconds: {})
    assert sorted(os.listdir("/proc/self/fd")) == before
