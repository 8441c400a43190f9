# SPDX-License-Identifier: GPL-3.0-or-later
"""Another version and back; a model that is pushed anew; the model that a boot loads; a model that does not fit."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"])
sys.path[:0] = [str(ROOT / "molecule" / "_shared" / "verifier"), str(ROOT / "tests" / "testinfra")]

import rawhost  # noqa: E402  the path above is only known at run time
import records  # noqa: E402  the path above is only known at run time

# What verify tells of a server.
PARTS = ("answers", "latency", "transport", "faults", "cpus", "threads", "memory")


def test_each_version_is_switched_to_and_serves() -> None:
    versions = records.kept("changes-seen")["versions"]
    first, second, third = (versions[step] for step in ("before", "present", "rollback"))
    assert {rows[-1] for rows in (first, second, third)} == {"serves"}
    old, new = first[0], second[0]
    assert old != new and second[1] == old
    assert third[:2] == [old, new]
    # The process runs the version, not only the link leads there.
    assert [rows[-2].split("/bin/")[0] for rows in (first, second, third)] == [
        f"/opt/firsttouch/{version}" for version in (old, new, old)
    ]


def test_a_model_that_changed_on_the_controller_is_pushed_and_loaded_anew(host: Any) -> None:
    versions = records.kept("changes-seen")["versions"]
    images = [
        [row for row in versions[step] if row.startswith("sent@")] for step in ("before", "present", "rollback")
    ]
    assert [len(rows) for rows in images] == [1, 1, 1] and images[0] != images[1] == images[2]
    lines = rawhost.run(host, "cd /var/lib/firsttouch/models/sent && sha256sum model*").splitlines()
    there = {name: digest for digest, name in (line.split() for line in lines)}
    local = (records.state_dir() / "sent").glob("model*")
    assert there == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in local}
    assert rawhost.run(host, "ls -A /var/lib/firsttouch/models").split() == ["sent"]


def test_the_boot_loaded_the_model_and_started_the_server() -> None:
    booted = records.kept("changes-seen")["booted"]
    assert booted["ok"] is True and booted["transport"] == "shm"


def test_a_short_pool_fails_the_unit_with_the_numbers(host: Any) -> None:
    journal = records.kept("changes-seen")["journal"]
    # The lines of the load that failed: those of earlier ones tell of pages and nodes too.
    told = journal.rpartition("Starting firsttouch-weights@toy.service")[2]
    assert "4 pages of 2M are needed" in told and "node 1 1 free" in told, journal
    assert "Failed to start firsttouch-weights@toy.service" in told, journal
    answers = records.answers(records.verified(host.backend.get_hostname(), "short"))
    assert answers["runtime.weights.toy"]["status"] == "fail"
    assert answers["runtime.weights.toy"]["reason"] == "not_resident"
    assert answers["units.firsttouch-weights@toy.service.active"]["status"] == "fail"
    assert answers["runtime.server.policy.answers"]["status"] == "fail"
    assert answers["hugepages.pool.2M.node1"]["status"] == "fail"


def test_with_its_pages_back_all_is_well(host: Any) -> None:
    entry = records.verified(host.backend.get_hostname(), "mended")
    assert [row for row in entry["results"] if row["status"] == "fail"] == []
    answers = records.answers(entry)
    weights = ("weights.toy", "weights.toy.nodes", "digest.toy", "pushed.sent", "weights.sent.nodes", "digest.sent")
    checks = (*weights, *(f"server.policy.{part}" for part in PARTS))
    assert {answers[f"runtime.{check}"]["status"] for check in checks} == {"pass"}
