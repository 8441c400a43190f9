# SPDX-License-Identifier: Apache-2.0
"""Clients of a server that is killed again and again, beside a real systemd: prints what came of their requests.

kill_load.py NAME ADDRESS KILLS: the process is the one that /run/firsttouch/NAME.status.json tells of.
kill_load.py NAME ADDRESS -KILLS: clients are killed instead.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import sys
import time

import numpy as np

from firsttouch import InferenceClient

CLIENTS = 3
LIMIT_S = 120.0
STOP, WRONG, ANSWERS, RECONNECTS = 0, 1, 8, 16
BOARD = mmap.mmap(-1, 4096)


def get(at: int) -> int:
    """A number that a child reported."""
    return int(struct.unpack_from("q", BOARD, 8 * at)[0])


def put(at: int, value: int) -> None:
    """Report a number."""
    struct.pack_into("q", BOARD, 8 * at, value)


def ask(address: str, i: int) -> None:
    """Ask until told to stop; every answer must be this client's own, and whole."""
    number = i << 16
    obs = np.zeros(1024, np.float32)
    try:
        with InferenceClient(address, timeout=LIMIT_S) as client:
            while not get(STOP):
                number += 1
                obs[:] = number
                reply = client.infer({"obs": obs})[0]["act"]
                if reply.shape != (64,) or not (reply == np.float32(2 * number)).all():
                    put(WRONG, 1 + i)
                put(ANSWERS + i, get(ANSWERS + i) + 1)
                put(RECONNECTS + i, client.reconnects)
    except BaseException:
        put(WRONG, 100 + i)
        raise


def start(address: str, i: int) -> int:
    """Client I in a child: its pid."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            ask(address, i)
            status = 0
        finally:
            os._exit(status)
    return pid


def progressed() -> None:
    """Wait until every client got two answers from now on: one may have been under way. Exits when that takes long."""
    before = [get(ANSWERS + i) for i in range(CLIENTS)]
    end = time.monotonic() + LIMIT_S
    while not all(get(ANSWERS + i) >= before[i] + 2 for i in range(CLIENTS)):
        if time.monotonic() > end or get(WRONG):
            sys.exit(f"no progress: {before}, now {[get(ANSWERS + i) for i in range(CLIENTS)]}, wrong {get(WRONG)}")
        time.sleep(0.001)


def server(name: str) -> int:
    """The pid of the process that serves."""
    with open(f"/run/firsttouch/{name}.status.json", encoding="utf-8") as file:
        return int(json.load(file)["pid"])


def main() -> None:
    """Kill, and count."""
    name, address, kills = sys.argv[1], sys.argv[2], int(sys.argv[3])
    pids = [start(address, i) for i in range(CLIENTS)]
    progressed()
    seconds = []
    for kill in range(abs(kills)):
        began = time.monotonic()
        if kills > 0:
            os.kill(server(name), signal.SIGKILL)
        else:
            i = kill % CLIENTS
            os.kill(pids[i], signal.SIGKILL)
            os.waitpid(pids[i], 0)
            pids[i] = start(address, i)
        progressed()
        seconds.append(round(time.monotonic() - began, 3))
    put(STOP, 1)
    statuses = [os.waitpid(pid, 0)[1] for pid in pids]
    found = {
        "kills": abs(kills),
        "answers": sum(get(ANSWERS + i) for i in range(CLIENTS)),
        "wrong": get(WRONG),
        "reconnects": sum(get(RECONNECTS + i) for i in range(CLIENTS)),
        "statuses": statuses,
        "seconds": seconds,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
