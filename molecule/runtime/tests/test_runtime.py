# SPDX-License-Identifier: GPL-3.0-or-later
"""What is live after provision: the model on each node, a server that answers a sampler, and goes on when it is killed.

Nothing here asks the collection: pages are read from the kernel, answers come to a process of another user.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"])
sys.path[:0] = [str(ROOT / "molecule" / "_shared" / "verifier"), str(ROOT / "tests" / "testinfra")]

import rawhost  # noqa: E402  the path above is only known at run time
import records  # noqa: E402  the path above is only known at run time

NODES = "/sys/devices/system/node/node[0-9]*/hugepages/hugepages-2048kB"
SERVER = "firsttouch-server@policy.service"
PYTHON = "/opt/firsttouch/current/bin/python"
# A sampler knows nothing but its environment. It asks until it is told to end, one request after the other.
SAMPLER = """
import json, os, sys, time
import numpy as np
from firsttouch import InferenceClient
with InferenceClient(os.environ["FIRSTTOUCH_ADDRESS"]) as client:
    rng, sums, late = np.random.default_rng(int(sys.argv[1])), [], 0.0
    end = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < end:
        obs = rng.standard_normal(12288).astype(np.float32)
        began = time.monotonic()
        arrays, _meta = client.infer({"obs": obs})
        late = max(late, time.monotonic() - began)
        again, _meta = client.infer({"obs": obs})
        assert np.array_equal(arrays["act"], again["act"]), "an answer of another request"
        sums.append(hash(arrays["act"].tobytes()))
    print(json.dumps({"peer": str(client.peer), "answers": len(sums), "distinct": len(set(sums)), "late": late}))
"""


def sampler(seconds: float, seed: int = 1) -> str:
    """A shell command that runs SAMPLER as a user of the group firsttouch, with the environment of the file alone."""
    environment = "$(grep -v '^#' /etc/firsttouch/samplers/policy.env)"
    command = f"env -i {environment} {PYTHON} /tmp/sampler.py {seed} {seconds}"
    return (
        f"setpriv --reuid=nobody --regid=nogroup --groups=$(getent group firsttouch | cut -d: -f3) {command}"
    )


def shell(host: Any, script: str) -> str:
    text = SAMPLER.replace("'", "'\\''")
    return rawhost.run(host, f"printf %s '{text}' > /tmp/sampler.py\n{script}")


def test_the_model_is_resident_on_each_node(host: Any) -> None:
    files = rawhost.read_files(host, [f"{NODES}/free_hugepages", f"{NODES}/nr_hugepages"])
    taken = {
        node: int(files[f"{base}/nr_hugepages"]) - int(files[f"{base}/free_hugepages"])
        for node in (0, 1)
        for base in [f"/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB"]
    }
    # 4 MiB of tensors, and what describes them.
    assert taken[0] >= 3 and taken[1] >= 3, taken


def test_a_sampler_of_another_user_gets_answers_over_shared_memory(host: Any) -> None:
    found = json.loads(shell(host, sampler(3)))
    assert "shm" in found["peer"], found
    assert found["answers"] > 3 and found["distinct"] == found["answers"], found


def test_the_serving_thread_has_its_cpu_alone(host: Any) -> None:
    script = f"for t in /proc/$(systemctl show -P MainPID {SERVER})/task/*; do grep Cpus_allowed_list $t/status; done"
    lists = [line.split()[1] for line in rawhost.run(host, script).splitlines()]
    assert lists.count("3") == 1, lists
    assert all(not rawhost.cpu_list(text) & {1, 3} for text in lists if text != "3"), lists


def test_a_killed_server_answers_what_waits(host: Any) -> None:
    """A sampler keeps asking while its server is killed twice; every request is answered."""
    kill = f"kill -9 $(systemctl show -P MainPID {SERVER})"
    script = (
        f"{sampler(12, 2)} > /tmp/answers & sleep 5; {kill}; sleep 4; {kill}; wait $! && cat /tmp/answers"
    )
    found = json.loads(shell(host, f"{script}; systemctl show -P NRestarts {SERVER} >&2"))
    assert found["answers"] > 3 and found["distinct"] == found["answers"], found
    assert rawhost.run(host, f"systemctl show -P NRestarts {SERVER}") == "2"


def test_units_are_hardened_as_this_systemd_sees_it(host: Any) -> None:
    script = f"systemd-analyze security {SERVER} firsttouch-weights@toy.service --no-pager | grep Overall"
    scores = [float(line.split(": ")[1].split()[0]) for line in rawhost.run(host, script).splitlines()]
    assert len(scores) == 2 and max(scores) < 2.0, scores


@pytest.mark.parametrize("kind", ["check", "run"])
def test_the_runtime_is_in_the_change_set(host: Any, kind: str) -> None:
    resources = {row[0] for row in records.change_sets(host.backend.get_hostname(), kind)[0]}
    for resource in ("file:/opt/firsttouch/current", "user:firsttouch", f"unit:{SERVER}"):
        assert resource in resources
    assert any(resource.startswith("runtime:/opt/firsttouch/0.1.0-") for resource in resources)
