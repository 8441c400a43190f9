# SPDX-License-Identifier: GPL-3.0-or-later
"""What is live after provision: the model on each node, a server that answers a sampler, and goes on when it is killed.

Nothing here asks the collection: pages are read from the kernel, answers come to a process of another user.
"""

from __future__ import annotations

import hashlib
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
PUSHED = "/var/lib/firsttouch/models/sent"
MANIFEST = "firsttouch-push.json"
PYTHON = "/opt/firsttouch/current/bin/python"
# A sampler knows nothing but its environment. It asks one request after the other, until its time or /tmp/enough comes.
SAMPLER = """
import json, os, sys, time
import numpy as np
from firsttouch import InferenceClient
late = 0.0
def ask(obs):
    global late
    began = time.monotonic()
    arrays, _meta = client.infer({"obs": obs})
    late = max(late, time.monotonic() - began)
    return arrays["act"].tobytes()
with InferenceClient(os.environ["FIRSTTOUCH_ADDRESS"]) as client:
    rng, sums = np.random.default_rng(int(sys.argv[1])), []
    end = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < end and not os.path.exists("/tmp/enough"):
        obs = rng.standard_normal(12288).astype(np.float32)
        act = ask(obs)
        assert ask(obs) == act, "an answer of another request"
        if not sums:
            print("asking", flush=True)
        sums.append(hash(act))
    print(json.dumps({"peer": str(client.peer), "answers": len(sums), "distinct": len(set(sums)), "late": late}))
"""


def sampler(seconds: float, seed: int = 1) -> str:
    """A shell command that runs SAMPLER as a user of the group firsttouch, with the environment of the file alone."""
    environment = "$(grep -v '^#' /etc/firsttouch/samplers/policy.env)"
    command = f"env -i {environment} {PYTHON} /tmp/sampler.py {seed} {seconds}"
    return (
        f"setpriv --reuid=nobody --regid=nogroup --groups=$(getent group firsttouch | cut -d: -f3) {command}"
    )


def answers(host: Any, script: str) -> dict[str, Any]:
    """What the sampler that SCRIPT runs tells in the end, when every request was answered over shared memory."""
    text = SAMPLER.replace("'", "'\\''")
    told = rawhost.run(host, f"rm -f /tmp/enough /tmp/answers; printf %s '{text}' > /tmp/sampler.py\n{script}")
    found: dict[str, Any] = json.loads(told.splitlines()[-1])
    assert "shm" in found["peer"], found
    assert found["answers"] > 3 and found["distinct"] == found["answers"], found
    return found


def test_the_model_is_resident_on_each_node(host: Any) -> None:
    files = rawhost.read_files(host, [f"{NODES}/free_hugepages", f"{NODES}/nr_hugepages"])
    taken = {
        node: int(files[f"{base}/nr_hugepages"]) - int(files[f"{base}/free_hugepages"])
        for node in (0, 1)
        for base in [f"/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB"]
    }
    # 4 MiB of tensors, and what describes them.
    assert taken[0] >= 3 and taken[1] >= 3, taken


def on_the_controller() -> dict[str, str]:
    """The digests of the files that the model `sent` is made of."""
    folder = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]) / "sent"
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("model*")}
    assert len(found) == 3
    return found


def test_the_pushed_model_is_what_the_controller_has_and_nothing_else(host: Any) -> None:
    lines = rawhost.run(host, f"cd {PUSHED} && sha256sum $(ls -A)").splitlines()
    there = {name: digest for digest, name in (line.split() for line in lines)}
    assert there.pop(MANIFEST)
    assert there == on_the_controller()
    assert rawhost.run(host, "ls -A /var/lib/firsttouch/models").split() == ["sent"]


def test_the_service_reads_the_pushed_model_and_cannot_write_it(host: Any) -> None:
    lines = rawhost.run(host, f"cd {PUSHED} && stat -c '%a %U:%G %n' . *").splitlines()
    modes = {line.split()[2]: line.split()[:2] for line in lines}
    assert modes.pop(".") == ["755", "root:root"] and modes.pop(MANIFEST) == ["644", "root:root"]
    assert len(modes) == 3 and all(row == ["640", "root:firsttouch"] for row in modes.values()), modes
    service = "setpriv --reuid=firsttouch --regid=firsttouch --clear-groups"
    tests = " && ".join(f"test -r {name} && ! test -w {name}" for name in (*modes, MANIFEST))
    assert rawhost.run(host, f"cd {PUSHED} && {service} sh -c '{tests} && ! test -w . && echo so'") == "so"


def test_the_pushed_model_is_what_is_loaded(host: Any) -> None:
    script = """
import hashlib, json, sys
from firsttouch import weights
with weights.open("sent", directory="/dev/hugepages-ft") as model:
    print(json.dumps([hashlib.sha256(model[name].tobytes()).hexdigest() for name in ("w0", "w1")]))
"""
    told = json.loads(rawhost.run(host, f"{PYTHON} -c '{script}'"))
    folder = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]) / "sent"
    shards = [path.read_bytes() for path in sorted(folder.glob("model-*.safetensors"))]
    assert told == [hashlib.sha256(data[-(4 << 20) :]).hexdigest() for data in shards]


def test_a_sampler_of_another_user_gets_answers_over_shared_memory(host: Any) -> None:
    assert answers(host, sampler(3))


def test_the_serving_thread_has_its_cpu_alone(host: Any) -> None:
    script = f"for t in /proc/$(systemctl show -P MainPID {SERVER})/task/*; do grep Cpus_allowed_list $t/status; done"
    lists = [line.split()[1] for line in rawhost.run(host, script).splitlines()]
    assert lists.count("3") == 1, lists
    assert all(not rawhost.cpu_list(text) & {1, 3} for text in lists if text != "3"), lists


def test_a_killed_server_answers_what_waits(host: Any) -> None:
    """A sampler keeps asking while its server is killed twice; every request is answered.

    The server is stopped before it dies, so that a request waits in its memory then.
    """
    script = f"""
        {sampler(120, 2)} > /tmp/answers & asks=$!
        until grep -q asking /tmp/answers; do kill -0 $asks || exit 1; sleep 0.2; done
        before=$(systemctl show -P NRestarts {SERVER})
        for restarts in $((before + 1)) $((before + 2)); do
            pid=$(systemctl show -P MainPID {SERVER})
            kill -STOP $pid; sleep 1; kill -9 $pid
            until [ $(systemctl show -P NRestarts {SERVER}) = $restarts ] && systemctl -q is-active {SERVER}; do
                kill -0 $asks || exit 1; sleep 0.5
            done
            sleep 1
        done
        touch /tmp/enough; wait $asks && cat /tmp/answers"""
    assert answers(host, script)["late"] > 1


def test_units_are_hardened_as_this_systemd_sees_it(host: Any) -> None:
    script = f"systemd-analyze security {SERVER} firsttouch-weights@toy.service --no-pager | grep Overall"
    scores = [float(line.split(": ")[1].split()[0]) for line in rawhost.run(host, script).splitlines()]
    assert len(scores) == 2 and max(scores) < 2.0, scores


@pytest.mark.parametrize("kind", ["check", "run"])
def test_the_runtime_is_in_the_change_set(host: Any, kind: str) -> None:
    resources = {row[0] for row in records.change_sets(host.backend.get_hostname(), kind)[0]}
    for resource in ("file:/opt/firsttouch/current", "user:firsttouch", f"unit:{SERVER}"):
        assert resource in resources
    for name in (*on_the_controller(), MANIFEST):
        assert f"file:{PUSHED}/{name}" in resources
    assert any(resource.startswith("runtime:/opt/firsttouch/0.1.0-") for resource in resources)


def test_the_check_run_predicts_the_change_set(host: Any) -> None:
    predicted, done = (records.change_sets(host.backend.get_hostname(), kind)[0] for kind in ("check", "run"))
    assert predicted == done
