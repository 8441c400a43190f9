# SPDX-License-Identifier: GPL-3.0-or-later
"""The runtime as verify sees it: each fault that can be reported is provoked, and names a variable of ours."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _checks, _checks_runtime, _verdict
from ansible_collections.firsttouch.host.plugins.module_utils._checks_host import Context
from support import ROOT, put

VERSION = "0.1.0-0123456789ab"
SECTION: dict[str, Any] = {
    "state": "present",
    "runtime_state": "present",
    "variables": ["models", "servers"],
    "models": [
        {"name": "m", "mount": "/dev/hp", "policy": "replicate", "nodes": [0, 1]},
        {"name": "i", "mount": "/dev/hp", "policy": "interleave", "nodes": [0, 1]},
        {"name": "b", "mount": "/dev/hp", "policy": "bind", "nodes": [1]},
    ],
    "servers": [
        {"name": "a", "cpus": [3], "node": 1, "transport": "auto", "fifo_priority": 10},
        {"name": "z", "cpus": [1], "node": 0, "transport": "unix", "fifo_priority": None},
    ],
}
PLAN: dict[str, Any] = {
    "sections": {"runtime": SECTION, "cpu_isolation": {"state": "present", "isolated": "1,3"}}
}
IMAGES = [
    {"model": name, "generation": 1, "node": node, "bytes": 4096, "ready": True, "pages_by_node": pages}
    for name, node, pages in (
        ("m", 0, {"0": 2}), ("m", 1, {"1": 2}), ("i", None, {"0": 1, "1": 1}), ("b", None, {"1": 2}),
    )
]  # fmt: skip


def pong(name: str, cpu: int, node: int, pid: int) -> dict[str, Any]:
    """What `firsttouch ping --json` says of a server that is well."""
    transport = "shm" if name == "a" else "unix"
    threads = [
        {"tid": pid, "name": "firsttouch", "cpus": str(cpu), "policy": "fifo 10" if name == "a" else "other"},
        {"tid": pid + 1, "name": "watchdog", "cpus": "0,2", "policy": "other"},
    ]
    return {
        "address": f"{transport}:///run/firsttouch/{name}", "transport": transport, "wanted_transport": transport,
        "calls": 200, "answered": 200, "p50_us": 9.0, "p99_us": 20.0, "max_us": 50.0, "latency_target_us": 100,
        "within_target": True,
        "server": {
            "pid": pid, "pages": {"kind": "4k", "node": node, "bound": True, "pages_on_node": {str(node): 7}},
            "cpus": {"asked": [cpu], "serving": pid, "threads": threads, "refused": []},
        },
    }  # fmt: skip


class Runtime:
    """Stands in for the runtime's command."""

    def __init__(self) -> None:
        self.images = copy.deepcopy(IMAGES)
        self.pongs = {"a": pong("a", 3, 1, 100), "z": pong("z", 1, 0, 200)}
        self.digests: dict[str, tuple[int, dict[str, Any]]] = {}

    def __call__(self, words: Sequence[str]) -> tuple[int, dict[str, Any]]:
        if list(words[:2]) == ["weights", "ls"]:
            return 0, {"images": self.images}
        if list(words[:2]) == ["weights", "verify"]:
            return self.digests.get(words[2], (0, {"image": "x"}))
        assert words[0] == "ping"
        return 0, self.pongs[words[2]]


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    found = Runtime()
    monkeypatch.setattr(_checks_runtime, "ask", found)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "access", lambda path, mode: True)
    return found


def installed(root: Path, version: str = VERSION) -> Path:
    put(root, f"/opt/firsttouch/{version}/firsttouch-version.json", '{"records": {}}')
    link = root / "opt/firsttouch/current"
    link.unlink(missing_ok=True)
    link.symlink_to(version)
    return root


def answers(root: Path, plan: dict[str, Any] | None = None, live: bool = True) -> dict[str, _verdict.Result]:
    ctx = Context(PLAN if plan is None else plan, str(root))
    ctx.live = live
    found = {row.id: row for row in _checks.run(ctx, concerns=["runtime"])}
    known = set(
        re.findall(r"^(firsttouch_\w+):", (ROOT / "roles/_plan/defaults/main.yml").read_text(), re.MULTILINE)
    )
    for row in found.values():
        assert row.status != "error", row
        named = set(re.findall(r"\bfirsttouch_\w+", row.remedy))
        assert named <= known and (named or row.status != "fail"), row
    return found


def test_a_host_that_is_as_planned_passes(tmp_path: Path, runtime: Runtime) -> None:
    found = answers(installed(tmp_path))
    assert {row.status for row in found.values()} == {"pass"}
    assert sorted(found) == [
        "runtime.cpus_shared", "runtime.digest.b", "runtime.digest.i", "runtime.digest.m", "runtime.integrity",
        "runtime.server.a.answers", "runtime.server.a.cpus", "runtime.server.a.latency", "runtime.server.a.memory",
        "runtime.server.a.policy", "runtime.server.a.threads", "runtime.server.a.transport",
        "runtime.server.z.answers", "runtime.server.z.cpus", "runtime.server.z.latency", "runtime.server.z.threads",
        "runtime.server.z.transport", "runtime.version",
        "runtime.weights.b", "runtime.weights.b.nodes",
        "runtime.weights.i", "runtime.weights.i.nodes",
        "runtime.weights.m", "runtime.weights.m.nodes",
    ]  # fmt: skip


def not_resident(it: Runtime) -> None:
    it.images = [row for row in it.images if row["model"] != "b"]


def half_loaded(it: Runtime) -> None:
    it.images[3]["ready"] = False


def one_replica(it: Runtime) -> None:
    del it.images[1]


def not_interleaved(it: Runtime) -> None:
    it.images[2]["pages_by_node"] = {"0": 2}


def not_bound(it: Runtime) -> None:
    it.images[3]["pages_by_node"] = {"0": 1, "1": 1}


def flipped(it: Runtime) -> None:
    it.digests["m"] = (7, {"error": {"code": "checksum", "message": "chunk 3 differs"}})


def silent(it: Runtime) -> None:
    it.pongs["a"] = {}


def late(it: Runtime) -> None:
    it.pongs["a"].update(within_target=False, p50_us=1200.0)


def on_a_socket(it: Runtime) -> None:
    it.pongs["a"]["transport"] = "unix"


def unpinned(it: Runtime) -> None:
    it.pongs["a"]["server"]["cpus"]["threads"][0]["cpus"] = "0-3"


def helper_strays(it: Runtime) -> None:
    it.pongs["a"]["server"]["cpus"]["threads"][1]["cpus"] = "0-2"


def two_on_one(it: Runtime) -> None:
    it.pongs["z"]["server"]["cpus"]["threads"][0]["cpus"] = "3"


def no_fifo(it: Runtime) -> None:
    it.pongs["a"]["server"]["cpus"]["threads"][0]["policy"] = "other"


def far_memory(it: Runtime) -> None:
    it.pongs["a"]["server"]["pages"]["pages_on_node"] = {"0": 3, "1": 4}


@pytest.mark.parametrize(
    ("breaks", "identity", "reason"),
    [
        (not_resident, "weights.b", "not_resident"),
        (half_loaded, "weights.b", "not_resident"),
        (one_replica, "weights.m.nodes", "wrong_node"),
        (not_interleaved, "weights.i.nodes", "wrong_node"),
        (not_bound, "weights.b.nodes", "wrong_node"),
        (flipped, "digest.m", "checksum"),
        (silent, "server.a.answers", "no_answer"),
        (late, "server.a.latency", "too_slow"),
        (on_a_socket, "server.a.transport", "other_transport"),
        (unpinned, "server.a.cpus", "not_pinned"),
        (helper_strays, "server.a.threads", "on_isolated_cpu"),
        (two_on_one, "cpus_shared", "cpu_shared"),
        (no_fifo, "server.a.policy", "refused"),
        (far_memory, "server.a.memory", "wrong_node"),
    ],
)
def test_each_fault_is_told(
    tmp_path: Path, runtime: Runtime, breaks: Any, identity: str, reason: str
) -> None:
    breaks(runtime)
    row = answers(installed(tmp_path))[f"runtime.{identity}"]
    assert (row.status, row.reason) == ("fail", reason)


def test_the_version_is_judged(tmp_path: Path, runtime: Runtime) -> None:
    assert answers(tmp_path)["runtime.version"].reason == "not_installed"
    row = answers(installed(tmp_path, "0.0.9-0123456789ab"))["runtime.version"]
    assert (row.status, row.reason) == ("fail", "other_version")
    back = {"sections": {"runtime": {**SECTION, "runtime_state": "rollback"}}}
    assert answers(tmp_path, back)["runtime.version"].status == "pass"


def test_a_changed_file_is_named(tmp_path: Path, runtime: Runtime) -> None:
    installed(tmp_path)
    (tmp_path / "opt/firsttouch" / VERSION / "firsttouch-version.json").write_text(
        '{"records": {"x/RECORD": "0"}}'
    )
    row = answers(tmp_path)["runtime.integrity"]
    assert (row.status, row.reason) == ("fail", "changed_by_hand")
    assert row.source == f"/opt/firsttouch/{VERSION}/x/RECORD"


def test_what_cannot_be_asked_is_not_fine(
    tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rest() -> set[tuple[str, str]]:
        return {
            (row.status, row.reason)
            for row in answers(installed(tmp_path), live=live).values()
            if row.id.startswith(("runtime.weights", "runtime.digest", "runtime.server"))
        }

    live = False
    assert rest() == {("not_evaluated", "offline")}
    live = True
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert rest() == {("not_evaluated", "permission_denied")}
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert rest() == {("not_evaluated", "not_installed")}


def test_a_large_model_is_not_read_through(tmp_path: Path, runtime: Runtime) -> None:
    runtime.images[0]["bytes"] = 70 << 30
    row = answers(installed(tmp_path))["runtime.digest.m"]
    assert (row.status, row.reason, row.intended) == ("not_evaluated", "too_large", False)


def test_units_of_models_and_servers_are_active_or_their_variable_is_named(tmp_path: Path) -> None:
    text = "[Service]\nExecStart=/bin/true\n"
    units = {f"firsttouch-{name}": text for name in ("weights@m.service", "server@a.service")}
    plan = {"sections": {"runtime": {**SECTION, "units": {**units, "firsttouch.slice": "[Slice]\n"}}}}
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    (tmp_path / "run/systemd/units").mkdir(parents=True)
    (tmp_path / "run/systemd/units/invocation:firsttouch-server@a.service").symlink_to("0123")
    found = {row.id: row for row in _checks.run(Context(plan, str(tmp_path)), concerns=["units"])}
    assert found["units.firsttouch-server@a.service.active"].status == "pass"
    row = found["units.firsttouch-weights@m.service.active"]
    assert row.status == "fail" and "firsttouch_models" in row.remedy
    assert "firsttouch_servers" in found["units.firsttouch-server@a.service.file"].remedy
    # systemd marks no slice as active.
    assert "units.firsttouch.slice.active" not in found


def test_a_host_without_the_runtime_is_not_asked(tmp_path: Path, runtime: Runtime) -> None:
    assert answers(tmp_path, {"sections": {}}) == {}


def test_the_command_answers_in_json_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "firsttouch"
    for script, wanted in (
        ("echo '{\"a\": 1}'", (0, {"a": 1})),
        ("echo no json; exit 3", (3, {})),
        ("echo '[1]'", (0, {})),
        ("sleep 9", (124, {})),
    ):
        command.write_text(f"#!/bin/sh\n{script}\n")
        os.chmod(command, 0o755)
        monkeypatch.setattr(_checks_runtime, "COMMAND", str(command))
        monkeypatch.setattr(_checks_runtime, "_SECONDS", 0.5)
        assert _checks_runtime.ask(["x"]) == wanted
