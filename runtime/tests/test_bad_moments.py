# SPDX-License-Identifier: Apache-2.0
"""What comes at a bad moment: a signal in a fork, an end in a reconnect, a number that is given anew."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from firsttouch import Options, _holder
from firsttouch._holder import Holder
from serving import SCHEMA, address_of, child, serve


class Stopped(Holder):
    """It is told to stop while it forks its server."""

    def _fork(self, *, spare: bool) -> Any:
        made = super()._fork(spare=spare)
        self.stop()
        return made


def test_signal_to_a_server_in_its_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM that a server gets before it is Python again ends it; it need not be killed."""

    sent: list[int] = []
    kill = os.kill

    def noted(pid: int, number: int) -> None:
        sent.append(number)
        kill(pid, number)

    def run() -> None:
        # On one CPU, and with a child that may not push it aside, the holder is done before the child has begun.
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        for turn in range(1, 11):
            holder = Stopped([address_of("unix", tmp_path)], SCHEMA, serve, Options(lanes=1))
            signal.signal(signal.SIGTERM, holder.stop)
            holder.run()
            assert sent == [signal.SIGTERM] * turn

    monkeypatch.setattr(os, "kill", noted)
    monkeypatch.setattr(_holder, "_STOP_SECONDS", 20.0)
    with child(run) as pid:
        assert os.waitpid(pid, 0)[1] == 0
