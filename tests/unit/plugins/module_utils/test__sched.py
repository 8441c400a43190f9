# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _sched
from support import put


def test_the_attempt_leaves_this_process_alone() -> None:
    before = os.sched_getscheduler(0), os.sched_getaffinity(0), sorted(os.listdir("/proc/self/fd"))
    attempt = _sched.try_fifo()
    after = os.sched_getscheduler(0), os.sched_getaffinity(0), sorted(os.listdir("/proc/self/fd"))
    assert before == after
    assert attempt.granted in (True, False)
    assert attempt.granted or attempt.error
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_refusal_is_reported_by_its_errno(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, policy: int, param: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    attempt = _sched.try_fifo()
    assert (attempt.granted, attempt.error) == (False, "EPERM")


def test_a_policy_that_did_not_stick_is_no_grant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_setscheduler", lambda pid, policy, param: None)
    monkeypatch.setattr(os, "sched_getscheduler", lambda pid: os.SCHED_OTHER)
    attempt = _sched.try_fifo()
    assert (attempt.granted, attempt.error) == (False, "policy_not_taken")


def test_a_child_that_hangs_is_ended_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_setscheduler", lambda pid, policy, param: time.sleep(60))
    start = time.monotonic()
    attempt = _sched.try_fifo(timeout=0.2)
    assert (attempt.granted, attempt.error) == (None, "timeout")
    assert time.monotonic() - start < 5
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_the_child_leaves_the_cpus_it_is_told_to_avoid(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("one CPU")
    avoided = {min(allowed)}

    def check(pid: int, policy: int, param: Any) -> None:
        if os.sched_getaffinity(0) & avoided:
            raise OSError(errno.EBUSY, "on an isolated CPU")
        raise OSError(errno.EAGAIN, "elsewhere")

    monkeypatch.setattr(os, "sched_setscheduler", check)
    assert _sched.try_fifo(avoid_cpus=avoided).error == "EAGAIN"


def test_fair_server(tmp_path: Path) -> None:
    assert _sched.fair_server(str(tmp_path)) is None
    put(tmp_path, f"{_sched.FAIR_SERVER_DIR}/cpu0/runtime", "50000000\n")
    put(tmp_path, f"{_sched.FAIR_SERVER_DIR}/cpu0/period", "1000000000\n")
    put(tmp_path, f"{_sched.FAIR_SERVER_DIR}/cpu1/runtime", "0\n")
    assert _sched.fair_server(str(tmp_path)) == {0: (50000000, 1000000000)}
