# SPDX-License-Identifier: GPL-3.0-or-later
"""A worker in a control group that has half of the model as memory: GROUP ARM FILE STORE, twice over all pages.

Prints one line for each pass when told to go on: seconds, and bytes that were read from the disk meanwhile.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import _weights_arm as arms
import numpy as np


def from_disk() -> int:
    """Bytes that this process made the disk read so far."""
    text = Path("/proc/self/io").read_text()
    return int(text.split("read_bytes:")[1].split()[0])


def main() -> None:
    """Join the group, then touch everything twice."""
    group, arm, path, store = sys.argv[1:]
    Path(group, "cgroup.procs").write_text("0")
    if arm == "hugetlb":
        found = arms.ours("weights").open(arms.NAME, directory=store)
        data = np.frombuffer(found.buffer(), np.uint8)
    else:
        data = np.frombuffer(arms.map_file(path), np.uint8)
    print("{}", flush=True)
    for _ in range(2):
        sys.stdin.readline()
        read, began = from_disk(), time.perf_counter()
        arms.touch(data)
        seconds = time.perf_counter() - began
        print(json.dumps({"seconds": seconds, "read_bytes": from_disk() - read}), flush=True)


if __name__ == "__main__":
    main()
