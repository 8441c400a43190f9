# SPDX-License-Identifier: GPL-3.0-or-later
"""The runtime as verify sees it: each fault that can be reported is provoked, and names a variable of ours."""

from __future__ import annotations

import copy
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import (
    _checks,
    _checks_runtime,
    _model_push,
    _runtime_install,
    _verdict,
)
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
        {
            "name": "a", "cpus": [3], "node": 1, "transport": "auto", "fifo_priority": 10, "pages": "4k",
            "latency_target_us": None,
        },
        {
            "name": "z", "cpus": [1], "node": 0, "transport": "unix", "fifo_priority": None, "pages": "auto",
            "latency_target_us": 500,
        },
    ],
    "files": {"models/m.json": "{}\n", "servers/a.json": "{}\n", "samplers/a.env": "X=1\n"},
}  # fmt: skip
PLAN: dict[str, Any] = {
    "sections": {"runtime": SECTION, "cpu_isolation": {"state": "present", "isolated": "1,3"}},
    "transport": {"policy": "topology", "latency_target_us": 100, "transport": "shm"},
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
    kind: dict[str, Any] = (
        {"policy": "fifo", "priority": 10} if name == "a" else {"policy": "other", "priority": 0}
    )
    threads = [
        {"tid": pid, "name": "firsttouch", "cpus": str(cpu), **kind},
        {"tid": pid + 1, "name": "watchdog", "cpus": "0,2", "policy": "other", "priority": 0},
    ]
    return {
        "address": f"{transport}:///run/firsttouch/{name}", "transport": transport, "wanted_transport": transport,
        "calls": 20, "answered": 20, "p50_us": 9.0, "p99_us": 20.0, "max_us": 50.0, "latency_target_us": None,
        "within_target": None, "faults": [], "ok": True,
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
        self.calls: list[list[str]] = []
        self.again: dict[str, Any] | None = None
        self.broken: tuple[int, dict[str, Any]] | None = None

    def __call__(self, words: Sequence[str]) -> tuple[int, dict[str, Any]]:
        self.calls.append(list(words))
        if self.broken is not None:
            return self.broken
        if list(words[:2]) == ["weights", "ls"]:
            return 0, {"images": self.images}
        if list(words[:2]) == ["weights", "verify"]:
            return self.digests.get(words[2], (0, {"image": "x"}))
        assert words[0] == "ping"
        if words[4] == "200" and self.again is not None:
            return 0, self.again
        return 0 if self.pongs[words[2]].get("ok") else 1, self.pongs[words[2]]


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
    put(root, "/usr/bin/python3", "")
    (root / "opt/firsttouch" / version / "bin").mkdir(exist_ok=True)
    python = root / "opt/firsttouch" / version / "bin/python"
    python.unlink(missing_ok=True)
    python.symlink_to("/usr/bin/python3")
    for name, text in SECTION["files"].items():
        put(root, f"/etc/firsttouch/{name}", text)
    put(root, _runtime_install.TMPFILES, _runtime_install.TMPFILES_TEXT)
    return root


def answers(
    root: Path,
    plan: dict[str, Any] | None = None,
    live: bool = True,
    layers: Sequence[str] = _verdict.LAYERS,
) -> dict[str, _verdict.Result]:
    ctx = Context(PLAN if plan is None else plan, str(root))
    ctx.live = live
    rows = _checks.run(ctx, layers, concerns=["runtime"])
    found = {row.id: row for row in rows}
    assert len(rows) == len(found), "an id is there twice"
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
        "runtime.cpus_shared", "runtime.digest.b", "runtime.digest.i", "runtime.digest.m",
        "runtime.file.models/m.json", "runtime.file.samplers/a.env", "runtime.file.servers/a.json",
        "runtime.file.tmpfiles.d/firsttouch.conf", "runtime.integrity", "runtime.python", "runtime.removed",
        "runtime.server.a.answers", "runtime.server.a.cpus", "runtime.server.a.faults", "runtime.server.a.latency",
        "runtime.server.a.memory", "runtime.server.a.pages", "runtime.server.a.policy", "runtime.server.a.threads",
        "runtime.server.a.transport",
        "runtime.server.z.answers", "runtime.server.z.cpus", "runtime.server.z.faults", "runtime.server.z.latency",
        "runtime.server.z.threads", "runtime.server.z.transport", "runtime.version",
        "runtime.weights.b", "runtime.weights.b.nodes",
        "runtime.weights.i", "runtime.weights.i.nodes",
        "runtime.weights.m", "runtime.weights.m.nodes",
    ]  # fmt: skip


PUSHED = {"name": "p", "push": "models/p", "source": "/var/lib/firsttouch/models/p"}


def pushed(root: Path) -> tuple[Path, dict[str, Any]]:
    """The folder of a model that was pushed, as it should be, and the plan with it."""
    installed(root)
    files = [_model_push.File(f"{name}.safetensors", 3, "0" * 64) for name in "ab"]
    for file in files:
        put(root, f"{PUSHED['source']}/{file.name}", "123").chmod(0o640)
    manifest = put(root, f"{PUSHED['source']}/{_model_push.MANIFEST}", _model_push.manifest(files))
    manifest.chmod(0o644)
    for folder in (manifest.parent, manifest.parents[1]):
        folder.chmod(0o755)
    section = {**SECTION, "models": [PUSHED], "servers": []}
    return root / PUSHED["source"][1:], {**PLAN, "sections": {"runtime": section}}


def test_a_model_that_was_pushed_is_there(tmp_path: Path) -> None:
    folder, plan = pushed(tmp_path)
    found = answers(tmp_path, plan, layers=["configured"])
    assert found["runtime.pushed.p"].status == found["runtime.removed"].status == "pass"
    (folder / "a.safetensors").unlink()
    row = answers(tmp_path, plan, layers=["configured"])["runtime.pushed.p"]
    assert (row.status, row.reason, row.source) == ("fail", "missing", PUSHED["source"])
    assert row.observed == [f"{PUSHED['source']}/a.safetensors is missing"]
    put(folder, "/a.safetensors", "12").chmod(0o640)
    (folder / "b.safetensors").chmod(0o660)
    row = answers(tmp_path, plan, layers=["configured"])["runtime.pushed.p"]
    assert (row.status, row.reason) == ("fail", "changed_by_hand")
    assert row.observed == [
        f"{PUSHED['source']}/b.safetensors is 0660, and should be 0640",
        f"{PUSHED['source']}/a.safetensors has 2 bytes, not 3",
    ]


@pytest.mark.parametrize(
    ("path", "mode", "right"),
    [
        (f"{PUSHED['source']}/a.safetensors", 0o600, "0640"),
        (PUSHED["source"], 0o700, "0755"),
        (PUSHED["source"], 0o777, "0755"),
        (f"{PUSHED['source']}/{_model_push.MANIFEST}", 0o666, "0644"),
        (_model_push.TOP, 0o777, "0755"),
    ],
)
def test_who_may_read_and_write_a_model_that_was_pushed(tmp_path: Path, path: str, mode: int, right: str) -> None:
    _folder, plan = pushed(tmp_path)
    (tmp_path / path[1:]).chmod(mode)
    row = answers(tmp_path, plan, layers=["configured"])["runtime.pushed.p"]
    assert (row.status, row.reason) == ("fail", "changed_by_hand")
    assert row.observed == [f"{path} is {mode:04o}, and should be {right}"]


@pytest.mark.parametrize("name", ["a.safetensors", _model_push.MANIFEST])
def test_a_link_is_no_file_of_a_model_that_was_pushed(tmp_path: Path, name: str) -> None:
    folder, plan = pushed(tmp_path)
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to("/elsewhere")
    row = answers(tmp_path, plan, layers=["configured"])["runtime.pushed.p"]
    assert (row.status, row.reason) == ("fail", "changed_by_hand")
    assert row.observed[0].startswith(f"{PUSHED['source']}/{name} is no regular file, and should be 06")


def test_a_model_that_was_pushed_is_of_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _folder, plan = pushed(tmp_path)
    mine, other = (os.getuid(), os.getgid()), (os.getuid() + 1, os.getgid())
    monkeypatch.setattr(_model_push, "_owner", lambda root, planned: other)
    row = answers(tmp_path, plan, layers=["configured"])["runtime.pushed.p"]
    assert (row.status, row.reason) == ("fail", "changed_by_hand")
    told = f"is 0640 {mine[0]}:{mine[1]}, and should be 0640 {other[0]}:{other[1]}"
    assert f"{PUSHED['source']}/a.safetensors {told}" in row.observed


def test_a_model_that_was_never_pushed_is_missing(tmp_path: Path) -> None:
    folder, plan = pushed(tmp_path)
    shutil.rmtree(folder)
    row = answers(tmp_path, plan, layers=["configured"])["runtime.pushed.p"]
    assert (row.status, row.reason) == ("fail", "missing")
    assert row.observed == [f"{PUSHED['source']}/{_model_push.MANIFEST} is missing"]


def test_a_manifest_that_is_none_is_no_answer(tmp_path: Path) -> None:
    folder, plan = pushed(tmp_path)
    (folder / _model_push.MANIFEST).write_text("{}")
    row = answers(tmp_path, plan, layers=["configured"])["runtime.pushed.read"]
    assert (row.status, row.reason) == ("not_evaluated", "unreadable")


def test_recordings_hold_no_weights(tmp_path: Path) -> None:
    folder, plan = pushed(tmp_path)
    shutil.rmtree(folder)
    row = answers(tmp_path, plan, live=False, layers=["configured"])["runtime.pushed.p"]
    assert (row.status, row.reason, row.intended) == ("not_evaluated", "not_recorded", False)


def test_what_is_left_of_models_that_were_pushed_is_told(tmp_path: Path) -> None:
    folder, plan = pushed(tmp_path)
    put(tmp_path, "/var/lib/firsttouch/models/mine/a.safetensors", "not of ours")
    (folder.parent / ".p.part").mkdir()
    plan["sections"]["runtime"]["models"] = []
    row = answers(tmp_path, plan, layers=["configured"])["runtime.removed"]
    assert (row.status, row.reason) == ("fail", "left_over")
    assert row.observed == [f"{_model_push.TOP}/.p.part", f"{_model_push.TOP}/p"]


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
    it.pongs["a"] = {**it.pongs["a"], "answered": 0, "server": None, "faults": ["nobody serves"], "ok": False}


def without_a_file(it: Runtime) -> None:
    it.pongs["a"] = {"error": "config", "message": "no server named a", "hint": ""}


def late(it: Runtime) -> None:
    """As the runtime tells it of a server with a target of its own."""
    it.pongs["z"].update(p50_us=501.0, faults=["p50 is 501.0 us, more than the 500 us of the file"], ok=False)


def fault(it: Runtime) -> None:
    it.pongs["z"].update(faults=["the server z tells nothing of itself"], ok=False)


def other_pages(it: Runtime) -> None:
    it.pongs["a"]["server"]["pages"]["kind"] = "hugetlb"


def on_a_socket(it: Runtime) -> None:
    it.pongs["a"]["transport"] = "unix"


def unpinned(it: Runtime) -> None:
    it.pongs["a"]["server"]["cpus"]["threads"][0]["cpus"] = "0-3"


def helper_strays(it: Runtime) -> None:
    it.pongs["a"]["server"]["cpus"]["threads"][1]["cpus"] = "0-2"


def two_on_one(it: Runtime) -> None:
    it.pongs["z"]["server"]["cpus"]["threads"][0]["cpus"] = "3"


def no_fifo(it: Runtime) -> None:
    it.pongs["a"]["server"]["cpus"]["threads"][0].update(policy="other", priority=0)


def other_priority(it: Runtime) -> None:
    it.pongs["a"]["server"]["cpus"]["threads"][0]["priority"] = 1


def far_memory(it: Runtime) -> None:
    """As where mbind is refused: unbound is how it comes to lie elsewhere."""
    it.pongs["a"]["server"]["pages"].update(bound=False, pages_on_node={"0": 3, "1": 4})


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
        (without_a_file, "server.a.answers", "no_answer"),
        (late, "server.z.latency", "too_slow"),
        (fault, "server.z.faults", "not_as_its_file"),
        (other_pages, "server.a.pages", "other_pages"),
        (on_a_socket, "server.a.transport", "other_transport"),
        (unpinned, "server.a.cpus", "not_pinned"),
        (helper_strays, "server.a.threads", "on_isolated_cpu"),
        (two_on_one, "cpus_shared", "cpu_shared"),
        (no_fifo, "server.a.policy", "refused"),
        (other_priority, "server.a.policy", "other_priority"),
        (far_memory, "server.a.memory", "wrong_node"),
    ],
)
def test_each_fault_is_told(
    tmp_path: Path, runtime: Runtime, breaks: Any, identity: str, reason: str
) -> None:
    breaks(runtime)
    row = answers(installed(tmp_path))[f"runtime.{identity}"]
    assert (row.status, row.reason) == ("fail", reason)


def test_without_a_target_no_latency_is_fine(tmp_path: Path, runtime: Runtime) -> None:
    row = answers(installed(tmp_path), {"sections": PLAN["sections"]})["runtime.server.a.latency"]
    assert (row.status, row.reason) == ("not_evaluated", "no_target")


def test_a_server_that_tells_nothing_of_itself_is_not_fine(tmp_path: Path, runtime: Runtime) -> None:
    runtime.pongs["a"].update(server={}, faults=["the server a tells nothing of itself"], ok=False)
    found = answers(installed(tmp_path))
    missing = {
        name for name, row in found.items() if (row.status, row.reason) == ("not_evaluated", "no_status")
    }
    assert missing == {f"runtime.server.a.{row}" for row in ("cpus", "threads", "policy", "memory", "pages")}
    assert found["runtime.server.a.faults"].status == "fail"


@pytest.mark.parametrize(
    ("status", "reason"), [(127, "does_not_start"), (124, "timed_out"), (1, "no_answer")]
)
def test_a_command_that_does_not_answer_is_not_a_model_that_is_not_there(
    tmp_path: Path, runtime: Runtime, status: int, reason: str
) -> None:
    runtime.broken = (status, {})
    found = answers(installed(tmp_path))
    asked = {
        name: row
        for name, row in found.items()
        if name.split(".")[1] in ("weights", "digest", "server", "cpus_shared")
    }
    assert {(row.status, row.reason) for row in asked.values()} == {("not_evaluated", reason)}
    assert {
        f"runtime.{kind}" for kind in ("weights.m", "digest.m", "server.a", "server.a.place")
    } <= asked.keys()


def test_a_list_that_cannot_be_had_is_told_in_its_words(tmp_path: Path, runtime: Runtime) -> None:
    runtime.broken = (
        1,
        {"error": {"code": "weights", "message": "/dev/hp cannot be listed"}, "exit_status": 1},
    )
    row = answers(installed(tmp_path))["runtime.weights.m"]
    assert (row.status, row.observed) == ("not_evaluated", "/dev/hp cannot be listed")


def test_a_server_without_its_file_is_told_in_the_words_of_the_runtime(
    tmp_path: Path, runtime: Runtime
) -> None:
    without_a_file(runtime)
    found = answers(installed(tmp_path), layers=["running"])
    (row,) = [row for name, row in found.items() if name.startswith("runtime.server.a")]
    assert (row.id, row.status) == ("runtime.server.a.place", "not_evaluated")
    assert row.observed == "no server named a"


def test_a_server_without_a_target_of_its_own_is_warned_of(tmp_path: Path, runtime: Runtime) -> None:
    """The plan's target is that of a message: a handler may take longer, and no rollout stops for it."""
    runtime.pongs["a"].update(p50_us=101.0)
    row = answers(installed(tmp_path))["runtime.server.a.latency"]
    assert (row.status, row.reason) == ("warn", "too_slow")


@pytest.mark.parametrize(
    ("again", "status"),
    [({"p50_us": 20.0}, "pass"), ({"p50_us": 501.0}, "fail"), ({}, "fail"), ({"p50_us": None}, "fail")],
)
def test_a_few_slow_requests_are_confirmed_by_more(
    tmp_path: Path, runtime: Runtime, again: dict[str, Any], status: str
) -> None:
    late(runtime)
    runtime.again = again
    found = answers(installed(tmp_path))
    assert found["runtime.server.z.latency"].status == status
    assert found["runtime.server.z.faults"].status == "pass", "it is told once"
    asked = [(words[2], words[4]) for words in runtime.calls if words[0] == "ping"]
    assert sorted(asked) == [("a", "20"), ("z", "20"), ("z", "200")], "only of the one that is slow"


@pytest.mark.parametrize("pages", [None, {}])
def test_nodes_that_the_kernel_does_not_tell_are_not_fine(
    tmp_path: Path, runtime: Runtime, pages: Any
) -> None:
    for image in runtime.images:
        image["pages_by_node"] = pages
    found = answers(installed(tmp_path))
    status = "not_evaluated" if pages is None else "fail"
    assert {found[f"runtime.weights.{name}.nodes"].status for name in "mib"} == {status}


def test_no_request_is_sent_unless_something_is_to_be_measured(tmp_path: Path, runtime: Runtime) -> None:
    """And a user without root is told so, in whichever layer he asks."""
    found = answers(installed(tmp_path), layers=["configured", "running"])
    assert [words for words in runtime.calls if words[0] == "ping"] == [
        ["ping", "--server", name, "--calls", "0", "--json"] for name in "az"
    ]
    assert "runtime.server.a.cpus" in found and "runtime.server.a.answers" not in found
    runtime.calls.clear()
    answers(installed(tmp_path))
    assert [words for words in runtime.calls if words[0] == "ping"] == [
        ["ping", "--server", name, "--calls", "20", "--json"] for name in "az"
    ]


@pytest.mark.parametrize("layer", ["running", "measured"])
def test_each_layer_says_that_it_was_not_permitted(
    tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, layer: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = answers(installed(tmp_path), layers=[layer])
    told = [row for name, row in found.items() if name.startswith("runtime.server.a")]
    assert [(row.status, row.reason, row.layer) for row in told] == [
        ("not_evaluated", "permission_denied", layer)
    ]


def test_an_interpreter_that_is_gone_is_named(tmp_path: Path, runtime: Runtime) -> None:
    installed(tmp_path)
    (tmp_path / "usr/bin/python3").unlink()
    row = answers(tmp_path)["runtime.python"]
    assert (row.status, row.reason, row.source) == ("fail", "interpreter_gone", "/usr/bin/python3")


def test_files_of_the_plan_are_compared_word_for_word(tmp_path: Path, runtime: Runtime) -> None:
    installed(tmp_path)
    put(tmp_path, "/etc/firsttouch/servers/a.json", '{"pages": "thp"}\n')
    (tmp_path / "etc/firsttouch/samplers/a.env").unlink()
    put(tmp_path, _runtime_install.TMPFILES, "d /run/firsttouch 0777\n")
    found = answers(tmp_path)
    told = {name: row.reason for name, row in found.items() if row.status == "fail"}
    assert told == {
        "runtime.file.servers/a.json": "changed_by_hand",
        "runtime.file.samplers/a.env": "missing",
        "runtime.file.tmpfiles.d/firsttouch.conf": "changed_by_hand",
    }


@pytest.mark.parametrize(
    ("in_plan_json", "recorded", "status", "reason"),
    [
        ("192.0.2.7:5555", "192.0.2.7:5555", "pass", ""),
        ("192.0.2.7:5555", "192.0.2.8:5555", "fail", "changed_by_hand"),
        ("192.0.2.7:5555", "192.0.2.7:5556", "fail", "changed_by_hand"),
        ("192.0.2.7:5556", "192.0.2.7:5556", "fail", "changed_by_hand"),
        (None, "192.0.2.7:5555", "not_evaluated", "scrubbed"),
        (None, "192.0.2.7:5556", "fail", "changed_by_hand"),
    ],
)
def test_a_recording_without_addresses_is_held_against_its_own_plan(
    tmp_path: Path, in_plan_json: str | None, recorded: str, status: str, reason: str
) -> None:
    def plan(address: str) -> dict[str, Any]:
        files = {"servers/a.json": f'{{"address": "tcp://{address}"}}\n'}
        return {"sections": {"runtime": {**SECTION, "files": files}}}

    put(tmp_path, "/etc/firsttouch/servers/a.json", f'{{"address": "tcp://{recorded}"}}\n')
    ctx = Context(plan("10.1.2.3:5555"), str(tmp_path), recorded=plan(in_plan_json) if in_plan_json else None)
    rows = {row.id: row for row in _checks.run(ctx, concerns=["runtime"])}
    row = rows["runtime.file.servers/a.json"]
    assert (row.status, row.reason) == (status, reason)


def test_nothing_that_a_recording_cannot_hold_makes_it_incomplete(tmp_path: Path, runtime: Runtime) -> None:
    for name, text in SECTION["files"].items():
        put(tmp_path, f"/etc/firsttouch/{name}", text)
    put(tmp_path, _runtime_install.TMPFILES, _runtime_install.TMPFILES_TEXT)
    assert _verdict.verdict(list(answers(tmp_path, live=False).values())) == "pass"


@pytest.mark.parametrize("absent", [False, True])
def test_what_is_left_over_is_named(tmp_path: Path, runtime: Runtime, absent: bool) -> None:
    installed(tmp_path)
    put(tmp_path, "/etc/firsttouch/servers/old.json", "{}\n")
    put(tmp_path, "/opt/firsttouch/of-others/README", "a folder that somebody else has here\n")
    plan = {"sections": {"runtime": {"state": "absent"} if absent else SECTION}}
    row = answers(tmp_path, plan)["runtime.removed"]
    etc = "/etc/firsttouch"
    files = ["models/m.json", "servers/a.json", "servers/old.json", "samplers/a.env"]
    all_of_it = [f"{etc}/{name}" for name in files]
    all_of_it += [_runtime_install.TMPFILES, f"/opt/firsttouch/{VERSION}", "/opt/firsttouch/current"]
    assert (row.status, row.reason) == ("fail", "left_over")
    assert row.observed == (all_of_it if absent else [f"{etc}/servers/old.json"])
    if absent:
        bare = answers(tmp_path / "bare", plan)
        assert {name: row.status for name, row in bare.items()} == {"runtime.removed": "pass"}


def test_the_version_is_judged(tmp_path: Path, runtime: Runtime) -> None:
    assert answers(tmp_path)["runtime.version"].reason == "not_installed"
    row = answers(installed(tmp_path, "0.0.9-0123456789ab"))["runtime.version"]
    assert (row.status, row.reason) == ("fail", "other_version")


def test_a_rollback_is_held_against_the_version_that_it_wrote_down(tmp_path: Path, runtime: Runtime) -> None:
    back = {"sections": {"runtime": {**SECTION, "runtime_state": "rollback"}}}
    old = "0.0.9-0123456789ab"

    def row() -> _verdict.Result:
        return answers(tmp_path, back)["runtime.version"]

    installed(tmp_path, old)
    assert (row().status, row().reason) == ("fail", "not_rolled_back"), "nobody has gone back to it"
    put(tmp_path, _runtime_install.ROLLED_BACK, f"{VERSION} {old}\n")
    assert (row().status, row().expected) == ("pass", old)
    installed(tmp_path)
    assert (row().status, row().expected, row().observed) == ("fail", old, VERSION)
    kept = {"sections": {"runtime": {**SECTION, "runtime_state": "rollback", "orphaned": SECTION["variables"]}}}
    assert answers(tmp_path, kept)["runtime.version"].status == "pass"


def test_a_changed_file_is_named(tmp_path: Path, runtime: Runtime) -> None:
    installed(tmp_path)
    (tmp_path / "opt/firsttouch" / VERSION / "firsttouch-version.json").write_text(
        '{"records": {"x/RECORD": "0"}}'
    )
    row = answers(tmp_path)["runtime.integrity"]
    assert (row.status, row.reason) == ("fail", "changed_by_hand")
    assert row.source == f"/opt/firsttouch/{VERSION}/x/RECORD"
    assert "present" not in row.remedy
    back = {"sections": {"runtime": {**SECTION, "runtime_state": "rollback"}}}
    assert "firsttouch_runtime_state: present" in answers(tmp_path, back)["runtime.integrity"].remedy


def test_what_cannot_be_asked_is_not_fine(
    tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rest() -> set[tuple[str, str, bool]]:
        return {
            (row.status, row.reason, row.intended)
            for row in answers(installed(tmp_path), live=live).values()
            if row.id.startswith(("runtime.weights", "runtime.digest", "runtime.server"))
        }

    live = False
    assert rest() == {("not_evaluated", "offline", False)}
    live = True
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert rest() == {("not_evaluated", "permission_denied", True)}
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert rest() == {("not_evaluated", "not_installed", True)}


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
        ('echo "{\\"a\\": $PYTHONDONTWRITEBYTECODE}"', (0, {"a": 1})),
        (None, (127, {})),
    ):
        command.write_text("#!/no/such/python3.11\n" if script is None else f"#!/bin/sh\n{script}\n")
        os.chmod(command, 0o755)
        monkeypatch.setattr(_checks_runtime, "COMMAND", str(command))
        monkeypatch.setattr(_checks_runtime, "_SECONDS", 0.5 if script == "sleep 9" else 60)
        assert _checks_runtime.ask(["x"]) == wanted


@pytest.mark.parametrize(("pages", "size", "status"), [
    ("auto", "1GB", "fail"), ("auto", "2MB", "pass"), ("hugetlb", "2MB", "fail"), ("hugetlb", "64KB", "pass"),
])  # fmt: skip
def test_a_limit_counts_for_the_page_sizes_of_models_and_servers(
    tmp_path: Path, runtime: Runtime, pages: str, size: str, status: str
) -> None:
    plan = copy.deepcopy(PLAN)
    section = plan["sections"]["runtime"]
    section["models"] = [{**row, "page_size": "1G"} for row in section["models"]]
    section["servers"][0]["pages"] = pages
    put(installed(tmp_path), f"/sys/fs/cgroup/firsttouch.slice/hugetlb.{size}.max", "0\n")
    assert answers(tmp_path, plan)["runtime.hugetlb_limit"].status == status


@pytest.mark.parametrize("models", [True, False])
@pytest.mark.parametrize(("pages", "status"), [("hugetlb", "fail"), ("auto", None)])
def test_a_limit_on_the_group_of_a_server_counts_where_it_takes_huge_pages(
    tmp_path: Path, runtime: Runtime, pages: str, status: str | None, models: bool
) -> None:
    plan = copy.deepcopy(PLAN)
    section = plan["sections"]["runtime"]
    section["servers"][0]["pages"] = pages
    unit = f"firsttouch-server@{section['servers'][0]['name']}.service"
    if not models:
        section["models"] = []
    file = f"/sys/fs/cgroup/firsttouch.slice/{unit}/hugetlb.2MB.max"
    put(installed(tmp_path), file, "0\n")
    row = answers(tmp_path, plan).get("runtime.hugetlb_limit")
    if status:
        assert row and (row.status, row.source) == (status, file) and "firsttouch_servers" in row.remedy
    else:
        assert (row and row.status) == ("pass" if models else None)
