# SPDX-License-Identifier: GPL-3.0-or-later
"""firsttouch_models and firsttouch_servers on a host: what is planned and refused, and the texts of it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from plan_host import make_host, plan, record, refused, zone
from support import ROOT, put

PAGES: dict[str, Any] = {
    "hugepages": [{"size": "2M", "nodes": {0: 100, 1: 160}}],
    "hugetlbfs_mounts": [{"path": "/dev/hp", "pagesize": "2M", "group": "inference"}],
    "isolated_cpus": "1,3",
}
UNMANAGED: dict[str, Any] = {
    "state": None, "files": {}, "units": [], "units_absent": [], "push": {}, "push_absent": [],
}  # fmt: skip
MODEL = {"name": "toy", "source": "/srv/toy", "policy": "replicate", "nodes": "all"}
PUSHED = {"name": "sent", "push": "models/sent model"}
SERVER = {"name": "policy", "models": ["toy"], "node": 1, "fifo_priority": 10}


@pytest.fixture
def host(tmp_path: Path) -> Path:
    return make_host(tmp_path)


def settings(unit: str) -> list[tuple[str, str]]:
    """Every KEY=VALUE of a unit file, in order."""
    rows = (line.partition("=") for line in unit.splitlines() if "=" in line and not line.startswith("#"))
    return [(key, value) for key, _equals, value in rows]


def of(unit: str, key: str) -> list[str]:
    return [value for name, value in settings(unit) if name == key]


def whole(host: Path) -> dict[str, Any]:
    return plan(host, {**PAGES, "models": [MODEL], "servers": [SERVER]})


def unit(result: dict[str, Any], name: str) -> str:
    (row,) = [row for row in result["runtime"]["units"] if row["name"] == name]
    return str(row["content"])


def test_a_model_and_a_server_become_files_and_units(host: Path) -> None:
    result = whole(host)
    assert result["runtime"]["state"] == "present"
    assert {row["name"]: row.get("enabled") for row in result["runtime"]["units"]} == {
        "firsttouch.slice": None,
        "firsttouch-weights@toy.service": True,
        "firsttouch-server@policy.service": True,
    }
    assert sorted(result["runtime"]["files"]) == [
        "models/toy.json",
        "samplers/policy.env",
        "servers/policy.json",
    ]
    model = json.loads(result["runtime"]["files"]["models/toy.json"])
    assert (model["nodes"], model["policy"], model["mount"]) == ([0, 1], "replicate", "/dev/hp")
    server = json.loads(result["runtime"]["files"]["servers/policy.json"])
    assert (server["cpus"], server["node"], server["transport"]) == ([3], 1, "auto")
    assert "FIRSTTOUCH_ADDRESS=auto://policy\n" in result["runtime"]["files"]["samplers/policy.env"]
    assert result["groups"] == ["firsttouch", "inference"]


def test_the_units_follow_the_plan(host: Path) -> None:
    result = whole(host)
    weights, server = (
        unit(result, f"firsttouch-{name}.service") for name in ("weights@toy", "server@policy")
    )
    assert of(weights, "BindsTo") == ["dev-hp.mount"]
    assert of(weights, "CPUAffinity") == of(server, "CPUAffinity") == ["0,2"]
    assert of(weights, "SupplementaryGroups") == of(server, "SupplementaryGroups") == ["inference"]
    assert of(server, "Requires") == ["firsttouch-weights@toy.service"]
    assert of(server, "LimitRTPRIO") == ["10"] and not of(server, "RestrictRealtime")
    assert of(server, "NUMAMask") == ["1"]
    assert int(of(server, "FileDescriptorStoreMax")[0]) >= 3 * 64 + 8


def test_a_path_means_the_same_to_systemd(host: Path) -> None:
    """% is a specifier in each setting, $ a variable in a command."""
    pages = {**PAGES, "hugetlbfs_mounts": [{"path": "/dev/100%i/$HOME", "pagesize": "2M"}]}
    result = plan(host, {**pages, "models": [MODEL], "servers": [SERVER]})
    weights, server = (
        unit(result, f"firsttouch-{name}.service") for name in ("weights@toy", "server@policy")
    )
    assert of(weights, "ExecStop")[0].endswith(" --dir /dev/100%%i/$$HOME")
    assert of(weights, "ReadWritePaths") == ["/dev/100%%i/$HOME -/run/firsttouch"]
    assert of(server, "ReadOnlyPaths") == ["/dev/100%%i/$HOME"]
    assert json.loads(result["runtime"]["files"]["models/toy.json"])["mount"] == "/dev/100%i/$HOME"
    for text in (weights, server):
        assert not re.search("(?<!%)%(?!%)", text.replace("%%", ""))


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze on this machine")
def test_systemd_understands_each_setting_and_finds_them_hardened(host: Path, tmp_path: Path) -> None:
    folder = tmp_path / "units"
    folder.mkdir()
    (folder / "dev-hp.mount").write_text("[Mount]\nWhat=hugetlbfs\nWhere=/dev/hp\nType=hugetlbfs\n")
    result = whole(host)
    for row in result["runtime"]["units"]:
        # The command is not on this machine, and systemd looks for it.
        text = row["content"].replace("/opt/firsttouch/current/bin/firsttouch", "/bin/true")
        (folder / row["name"]).write_text(text)
    names = [
        str(folder / row["name"]) for row in result["runtime"]["units"] if row["name"].endswith(".service")
    ]
    done = subprocess.run(["systemd-analyze", "verify", *names], capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if "firsttouch" in line]
    assert (complaints, done.returncode) == ([], 0)
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-300:]


def test_the_runtime_takes_its_files(host: Path, tmp_path: Path) -> None:
    """Each key that the variables know, as the runtime itself reads it."""
    pytest.importorskip("numpy")
    pytest.importorskip("msgspec")
    if sys.version_info < (3, 10):
        pytest.skip("the runtime needs Python 3.10")
    tls = {name: f"/etc/ssl/{name}.pem" for name in ("cert", "key", "authority")}
    digest = "sha256:" + 64 * "0"
    models = [
        {**MODEL, "expect": digest, "threads": 2, "checksum": "crc32", "replace": "swap"},
        {"name": "any", "source": "/srv/any", "expect": {"a.safetensors": digest}, "load_timeout_s": 9},
    ]
    servers = [
        {
            **SERVER, "users": ["nobody"], "groups": ["video", 44], "metrics": "/run/firsttouch/p.prom", "lanes": 8,
            "max_batch": 4, "spin_us": 0, "pages": "thp", "socket_mode": "0600", "latency_target_us": 50,
            "python_path": "/srv/handlers",
        },
        {"name": "far", "address": "tcp://10.0.0.1:5555", "tls": tls, "threads": 0, "handler": "policies.far:serve"},
        {"name": "near", "address": "unix:///run/near/near.sock", "threads": 0},
    ]  # fmt: skip
    result = plan(host, {**PAGES, "models": models, "servers": servers, "transport_policy": "fastest"})
    etc = tmp_path / "firsttouch"
    put(etc, "/plan.json", json.dumps(result["plan"]))
    for name, text in result["runtime"]["files"].items():
        put(etc, f"/{name}", text)

    def check() -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "firsttouch.cli", "check", "--etc", str(etc)],
            capture_output=True, text=True, check=False, env={"PYTHONPATH": str(ROOT / "runtime" / "src")},
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    assert check()[0] == 0, check()[1]
    assert "FIRSTTOUCH_ADDRESS=tcp://10.0.0.1:5555\n" in result["runtime"]["files"]["samplers/far.env"]
    put(etc, "/servers/near.json", '{"schema_version": 1, "name": "near", "nearest": 1}')
    assert check()[0] == 2 and "nearest" in check()[1]


def test_the_same_intent_plans_the_same_again(host: Path) -> None:
    first = whole(host)
    record(host, first)
    again = whole(host)
    assert again["runtime"] == first["runtime"]
    assert again["plan"]["sections"] == first["plan"]["sections"]


def test_a_server_that_is_not_asked_for_any_more_goes(host: Path) -> None:
    record(host, whole(host))
    rest = plan(host, {**PAGES, "models": [MODEL], "servers": []})
    assert rest["runtime"]["units_absent"] == ["firsttouch-server@policy.service"]
    assert sorted(rest["runtime"]["files"]) == ["models/toy.json"]


def test_a_variable_that_is_unset_keeps_what_is_recorded(host: Path) -> None:
    first = whole(host)
    record(host, first)
    kept = plan(host, {**PAGES, "servers": [SERVER]})
    assert kept["runtime"]["files"] == first["runtime"]["files"]
    assert kept["plan"]["sections"]["runtime"]["orphaned"] == ["models"]


def test_a_runtime_without_a_variable_is_left_alone(host: Path) -> None:
    first = whole(host)
    record(host, first)
    kept = plan(host, PAGES)
    assert kept["runtime"] == UNMANAGED
    section = kept["plan"]["sections"]["runtime"]
    assert section["orphaned"] == ["models", "servers"]
    assert section["units"] == first["plan"]["sections"]["runtime"]["units"], "it stays in the record"
    assert kept["plan"]["owned"]["runtime"] == first["plan"]["owned"]["runtime"]
    assert plan(host, PAGES, revert=True)["runtime"]["state"] == "absent"


def test_an_empty_list_removes_also_where_nothing_else_is_set(host: Path) -> None:
    record(host, whole(host))
    rest = plan(host, {**PAGES, "servers": []})
    assert rest["runtime"]["state"] == "present"
    assert rest["runtime"]["units_absent"] == ["firsttouch-server@policy.service"]
    assert sorted(rest["runtime"]["files"]) == ["models/toy.json"]


def test_revert_removes_all_of_it(host: Path) -> None:
    record(host, whole(host))
    gone = plan(host, {}, revert=True)
    assert gone["runtime"]["state"] == "absent"
    assert gone["runtime"]["files"] == {} and gone["runtime"]["units"] == []
    assert len(gone["runtime"]["units_absent"]) == 3
    assert gone["groups"] == []


def test_without_a_variable_nothing_is_managed(host: Path) -> None:
    result = plan(host, PAGES)
    assert result["runtime"] == UNMANAGED


@pytest.mark.parametrize(
    ("servers", "words"),
    [
        ([{"name": "a", "cpus": [1]}, {"name": "b", "cpus": [1]}], ("cpus of b", "CPU 1", "a already")),
        ([{"name": "a", "cpus": [1, 1]}], ("'a'", "twice")),
        ([{"name": "a", "cpus": [0]}], ("CPU 0", "not isolated", "firsttouch_isolated_cpus")),
        ([{"name": "a", "cpus": "1,3"}], ("several nodes",)),
        ([{"name": "a", "cpus": [1], "node": 1}], ("node 0, node is 1",)),
        ([{"name": x} for x in "abc"], ("threads of c", "isolated: 1,3", "firsttouch_isolated_cpus")),
        ([{"name": "a", "threads": 2, "node": 0}], ("node 0 has not 2",)),
        ([{"name": "a"}, {"name": "a"}], ("twice", "'a'")),
        ([{"name": "a", "transport": "shm"}], ("transport of a", "unknown", "firsttouch_transport_policy")),
        ([{"name": "a", "transport": "tcp"}], ("tcp needs an address",)),
        ([{"name": "a", "address": "tcp://10.0.0.1:5"}], ("tls", "10.0.0.1")),
        ([{"name": "a", "transport": "unix", "address": "tcp://127.0.0.1:5"}], ("leave transport out",)),
        ([{"name": "a", "metrics": "/tmp/x.prom"}], ("metrics", "/run/firsttouch")),
        ([{"name": "a", "models": ["other"]}], ("other", "firsttouch_models")),
        ([{"name": "a", "nod": 1}], ("'nod'", "known are")),
        ([{"name": "../a"}], ("name is '../a'",)),
        ([{"name": "a", "handler": "os.system"}], ("handler", "module:function")),
        ([{"name": "a", "fifo_priority": 100}], ("fifo_priority", "100")),
        ("policy", ("not a list",)),
    ],
)  # fmt: skip
def test_servers_that_cannot_be_are_refused(host: Path, servers: Any, words: tuple[str, ...]) -> None:
    text = " ".join(row["text"] for row in refused(host, {**PAGES, "servers": servers}))
    assert "firsttouch_servers" in text
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"source": "toy"}, ("source is 'toy'", "/srv/models")),
        ({"page_size": "1G"}, ("1G", "firsttouch_hugetlbfs_mounts")),
        ({"mount": "/dev/other"}, ("/dev/other",)),
        ({"policy": "any"}, ("policy any",)),
        ({"policy": "bind", "nodes": [7]}, ("[7]", "[0, 1]")),
        ({"expect": "abc"}, ("expect", "sha256:")),
        ({"checksum": "md5"}, ("md5", "xxh3")),
    ],
)
def test_models_that_cannot_be_are_refused(
    host: Path, change: dict[str, Any], words: tuple[str, ...]
) -> None:
    text = " ".join(row["text"] for row in refused(host, {**PAGES, "models": [{**MODEL, **change}]}))
    assert "firsttouch_models" in text
    for word in words:
        assert word in text


def test_a_model_that_is_pushed_is_loaded_from_its_place_on_the_host(host: Path) -> None:
    result = plan(host, {**PAGES, "models": [MODEL, PUSHED]})
    assert result["runtime"]["push"] == {"sent": "models/sent model"}, "of the other there is nothing to push"
    assert result["runtime"]["push_absent"] == []
    model = json.loads(result["runtime"]["files"]["models/sent.json"])
    assert model["source"] == "/var/lib/firsttouch/models/sent"
    assert "push" not in model, "the runtime knows no such key"
    assert result["plan"]["owned"]["runtime"]["pushed"] == ["sent"]


def test_what_was_pushed_of_a_model_that_is_dropped_goes(host: Path) -> None:
    record(host, plan(host, {**PAGES, "models": [MODEL, PUSHED]}))
    put(host, "/var/lib/firsttouch/models/sent/firsttouch-push.json", "{}")
    on_the_host = {"name": "sent", "source": "/srv/sent"}
    for models in ([MODEL], [MODEL, on_the_host], []):
        rest = plan(host, {**PAGES, "models": models})
        assert (rest["runtime"]["push"], rest["runtime"]["push_absent"]) == ({}, ["sent"])
    gone = plan(host, {}, revert=True)
    assert (gone["runtime"]["push"], gone["runtime"]["push_absent"]) == ({}, ["sent"])
    record(host, rest)
    assert plan(host, {**PAGES, "models": []})["runtime"]["push_absent"] == ["sent"], "killed before it was done"


def test_what_is_gone_from_the_host_is_forgotten(host: Path) -> None:
    record(host, plan(host, {**PAGES, "models": [MODEL, PUSHED]}))
    rest = plan(host, {**PAGES, "models": [MODEL]})
    assert "pushed" not in record(host, rest)["plan"]["owned"]["runtime"]
    put(host, "/var/lib/firsttouch/models/.sent.part/0", "")
    record(host, plan(host, {**PAGES, "models": [MODEL, PUSHED]}))
    rest = plan(host, {**PAGES, "models": [MODEL]})
    assert record(host, rest)["plan"]["owned"]["runtime"]["pushed"] == ["sent"], "a part of it is there"


def test_a_pushed_model_that_no_variable_asks_for_any_more_is_kept_as_it_is(host: Path) -> None:
    record(host, plan(host, {**PAGES, "models": [PUSHED]}))
    kept = plan(host, {**PAGES, "servers": [{"name": "a"}]})
    assert (kept["runtime"]["push"], kept["runtime"]["push_absent"]) == ({}, [])
    assert "models/sent.json" in kept["runtime"]["files"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"name": "a"}, ("'a'", "source is missing", "push")),
        ({"name": "a", "source": "/srv/a", "push": "b"}, ("'/srv/a'", "'b'", "leave out push", "source for")),
        *(
            ({"name": "a", "source": path}, (repr(path), "goes with its row", "mv"))
            for path in ("/var/lib/firsttouch/models/sent", "/var/lib/firsttouch//models")
        ),
        ({"name": "a", "push": ""}, ("push is ''", "models/llama")),
        ({"name": "a", "push": "b\nc"}, ("push is 'b\\nc'",)),
        ({"name": "a", "push": ["b"]}, ("push is ['b']",)),
    ],
)  # fmt: skip
def test_a_model_comes_from_one_place(host: Path, row: dict[str, Any], words: tuple[str, ...]) -> None:
    (refusal,) = refused(host, {**PAGES, "models": [row]})
    for word in ("firsttouch_models", *words):
        assert word in refusal["text"]


OTHER_MOUNT = [{"path": "/dev/other", "pagesize": "2M"}]


@pytest.mark.parametrize("change", [
    {"hugetlbfs_mounts": OTHER_MOUNT},
    {"hugetlbfs_mounts": "absent"},
    {"hugepages": "absent", "hugetlbfs_mounts": "absent"},
    {"hugetlbfs_mounts": OTHER_MOUNT, "servers": [{"name": "other"}]},
    {"hugetlbfs_mounts": OTHER_MOUNT, "servers": "absent"},
])  # fmt: skip
@pytest.mark.parametrize("sections", [None, ["hugepages"]])
def test_the_mount_of_a_model_that_is_kept_does_not_go(
    host: Path, change: dict[str, Any], sections: list[str] | None
) -> None:
    record(host, whole(host))
    more = {"sections": sections} if sections else {}
    (row,) = refused(host, {**PAGES, **change}, **more)
    assert (row["reason"], row["variable"]) == ("mount_of_model", "firsttouch_hugetlbfs_mounts")
    for word in ("/dev/hp with pages of 2M would be gone", "toy", "firsttouch_models", "firsttouch_servers"):
        assert word in row["text"]


def test_the_mount_of_a_model_may_go_with_the_model(host: Path) -> None:
    record(host, whole(host))
    other = {**PAGES, "hugetlbfs_mounts": OTHER_MOUNT}
    plan(host, {**other, "models": "absent", "servers": [{"name": "other"}]})
    plan(host, {**other, "models": [MODEL], "servers": [SERVER]})
    plan(host, {**other, "runtime_state": "absent", "models": "absent", "servers": "absent"})
    plan(host, PAGES)
    plan(host, {"isolated_cpus": "1"}, sections=["cpu_isolation"])
    plan(host, {}, revert=True)


MIB = 1 << 20
BOUND = {"policy": "bind", "nodes": [0]}


@pytest.mark.parametrize(
    ("rows", "sizes", "words"),
    [
        # An image is 2 MiB longer, so that 100 pages hold 198 MiB.
        ([BOUND], [198 * MIB], None),
        ([BOUND], [198 * MIB + 1], ("a: at least 101 pages of 2M on node 0, where the pool has 100",)),
        ([BOUND, BOUND], [98 * MIB, 99 * MIB], ("a, b: at least 101 pages of 2M on node 0",)),
        ([BOUND, {"policy": "replicate", "nodes": "all"}], [98 * MIB, 99 * MIB], ("a, b: at least 101 pages",)),
        ([BOUND, {"policy": "bind", "nodes": [1]}], [198 * MIB, 318 * MIB], None),
        ([{"policy": "bind", "nodes": [0, 1]}, {}], [300 * MIB, 216 * MIB], None),
        ([{"policy": "bind", "nodes": [0, 1]}, {}], [300 * MIB, 217 * MIB], ("a, b: at least 261", "0, 1", "260")),
        ([{"policy": "interleave", "nodes": "all"}], [519 * MIB], ("a: at least 261",)),
        ([{}], [1 << 40], ("firsttouch_hugepages",)),
        ([{"page_size": "1G"}], [1 << 20], ("a: at least 1 pages of 1G on node 0, 1, where the pool has 0",)),
    ],
)  # fmt: skip
def test_models_that_do_not_fit_the_pool_together_are_refused(
    host: Path, rows: list[dict[str, Any]], sizes: list[int], words: tuple[str, ...] | None
) -> None:
    pages = {**PAGES, "hugetlbfs_mounts": [*PAGES["hugetlbfs_mounts"], {"path": "/dev/1g", "pagesize": "1G"}]}
    models = [{"name": name, "push": "m", **row} for name, row in zip("ab", rows)]
    given = {"push_bytes": dict(zip("ab", sizes))}
    if words is None:
        plan(host, {**pages, "models": models}, **given)
        return
    (row,) = refused(host, {**pages, "models": models}, **given)
    assert row["reason"] == "models_exceed_pool" and row["asked"] > row["available"]
    for word in words:
        assert word in row["text"]


@pytest.mark.parametrize(
    "row",
    [
        {"policy": "replicate", "nodes": "all"},
        {"policy": "replicate", "nodes": [1]},
        {"policy": "bind", "nodes": [1]},
    ],
)
def test_a_node_that_the_pool_has_no_page_on_is_refused(host: Path, row: dict[str, Any]) -> None:
    pages = {**PAGES, "hugepages": [{"size": "2M", "nodes": {0: 100}}]}
    models = [{"name": "a", "push": "m", **row}]
    (found,) = refused(host, {**pages, "models": models}, push_bytes={"a": 10 * MIB})
    assert found["reason"] == "models_exceed_pool"
    assert "a: at least 6 pages of 2M on node 1, where the pool has 0" in found["text"]
    plan(host, {**pages, "models": [{**models[0], "policy": "prefer", "nodes": [1]}]}, push_bytes={"a": 10 * MIB})


def test_pages_of_a_size_that_is_not_planned_may_be_there_from_others(host: Path) -> None:
    both = [*PAGES["hugetlbfs_mounts"], {"path": "/dev/1g", "pagesize": "1G"}]
    models = [{"name": "a", "push": "m", "page_size": "1G"}]
    intent = {**PAGES, "hugetlbfs_mounts": both, "models": models}
    size = {"push_bytes": {"a": 1 << 40}}
    # Who has no pool of ours has what others reserve, now or by the next boot.
    plan(host, {**intent, "hugepages": []}, **size)
    assert refused(host, intent, **size)[0]["available"] == 0
    put(host, "/sys/devices/system/node/node1/hugepages/hugepages-1048576kB/nr_hugepages", "1\n")
    plan(host, intent, **size)
    # They are ours, and go.
    mine = [{"size": "1G", "nodes": {1: 1}}, *PAGES["hugepages"]]
    record(host, plan(host, {**PAGES, "hugepages": mine}))
    assert refused(host, intent, **size)[0]["reason"] == "models_exceed_pool"


def test_nodes_that_models_are_bound_to_count_together(tmp_path: Path) -> None:
    pages = 500_000
    zones = "".join(zone(node, "Normal", 1048576 + node * pages, pages) for node in range(3))
    nodes = {node: (str(node), 4 * pages) for node in range(3)}
    host = make_host(tmp_path, nodes, cpus="0-2", siblings="012", zones=zones)
    intent = {
        "hugepages": [{"size": "2M", "nodes": {0: 10, 1: 10, 2: 100}}],
        "hugetlbfs_mounts": PAGES["hugetlbfs_mounts"],
        "models": [{"name": name, "push": "m", "policy": "bind", "nodes": [0, 1]} for name in "ab"],
    }
    plan(host, intent, push_bytes={"a": 18 * MIB, "b": 18 * MIB})
    (row,) = refused(host, intent, push_bytes={"a": 18 * MIB, "b": 19 * MIB})
    assert "a, b: at least 21 pages of 2M on node 0, 1, where the pool has 20" in row["text"]


def test_of_models_on_the_host_the_size_is_not_known(host: Path) -> None:
    plan(host, {**PAGES, "models": [MODEL]}, push_bytes={"other": 1 << 40})


def test_absent_with_a_server_is_a_contradiction(host: Path) -> None:
    (row,) = refused(host, {**PAGES, "servers": [{"name": "a"}], "runtime_state": "absent"})
    assert row["reason"] == "runtime_needed" and "firsttouch_servers" in row["text"]
    (row,) = refused(host, {"runtime_state": "newest"})
    assert "rollback" in row["text"]


def test_the_examples_of_the_readme_go_together(tmp_path: Path) -> None:
    """On a host that is large enough nothing of the quick start and of the runtime's example is refused."""
    text = (ROOT / "README.md").read_text()
    given: dict[str, Any] = {}
    for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL):
        given.update(yaml.safe_load(block))
    assert {"firsttouch_hugepages", "firsttouch_models", "firsttouch_servers"} <= given.keys()
    size = 200 << 20  # in kB
    pages = size // 4
    zones = zone(0, "DMA32", 4096, 389120) + zone(0, "Normal", 1048576, pages)
    zones += zone(1, "Normal", 1048576 + pages, pages)
    host = make_host(
        tmp_path, {0: ("0-3", size), 1: ("4-7", size)}, cpus="0-7", siblings=map(str, range(8)), zones=zones
    )
    for key in given["firsttouch_vm_sysctls"]:
        put(host, f"/proc/sys/{key.replace('.', '/')}", "1\n")
    result = plan(host, {name.removeprefix("firsttouch_"): value for name, value in given.items()})
    assert "servers/policy.json" in result["runtime"]["files"]
    assert json.loads(result["runtime"]["files"]["models/llama.json"])["page_size"] == "1G"
