# SPDX-License-Identifier: Apache-2.0
"""Files of servers and models: what they say, and every fault with file, key, value and remedy."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from firsttouch import _configs, cli
from firsttouch.errors import ConfigError

HEX = "sha256:" + "0" * 64


def write(folder: Path, kind: str, name: str = "x", **keys: Any) -> Path:
    """A file of KIND with KEYS."""
    path = folder / kind / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"schema_version": 1, "name": name, **keys}))
    return path


def test_server_defaults(tmp_path: Path) -> None:
    """A server of its name alone serves the embedded policy where the plan says."""
    write(tmp_path, "servers")
    found = _configs.read_server("x", tmp_path)
    assert (found.handler, found.transport, found.addresses) == (_configs.DEFAULT_HANDLER, "auto", ("auto://x",))
    assert (found.node, found.cpus, found.lanes, found.socket_mode) == (None, (), 64, 0o660)
    assert found.gids == {os.getegid()}


def test_server_addresses(tmp_path: Path) -> None:
    """An address of its own, or below /run/firsttouch; a socket is beside shared memory."""
    write(tmp_path, "servers", transport="shm", users=["root", 7], groups=[])
    found = _configs.read_server("x", tmp_path)
    assert found.addresses == ("shm:///run/firsttouch/x.shm", "unix:///run/firsttouch/x.sock")
    assert found.uids == {0, 7}
    assert not found.gids
    tls = {"cert": "/c", "key": "/k", "authority": "/a"}
    write(tmp_path, "servers", address="tcp://10.0.0.1:5555", tls=tls, cpus=[3, 2], fifo_priority=10)
    found = _configs.read_server("x", tmp_path)
    assert (found.transport, found.addresses, found.cpus) == ("tcp", ("tcp://10.0.0.1:5555",), (3, 2))
    assert found.tls is not None
    assert found.tls.cert == "/c"


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"schema_version": 2}, "schema_version is 2: this version reads 1; write the file again"),
        ({"schema_version": True}, "schema_version is True"),
        ({"name": "y"}, "name is 'y': the file is x's; let both be the same"),
        ({"cpu": 3}, "cpu is 3: no such key; leave it out, or correct its name"),
        ({"cpus": [1, 1]}, "cpus is [1, 1]: one of the CPU numbers is there twice; each thread has one of its own"),
        ({"cpus": "1-3"}, "cpus is '1-3': it must be a list of CPU numbers"),
        ({"handler": "policy"}, "handler is 'policy': it names no function; write module:function"),
        ({"transport": "rdma"}, "transport is 'rdma': there is auto, shm, unix, tcp"),
        ({"transport": "tcp"}, "address is None: transport tcp has no address of its own; write tcp://127.0.0.1:5555"),
        ({"transport": "shm", "address": "unix:///a"}, "transport is 'shm': the address is unix:///a"),
        ({"address": "udp://a"}, "address is 'udp://a': 'udp://a' is no address; write shm:///path"),
        ({"address": "unix://a"}, "address is 'unix://a': "),
        ({"node": -1}, "node is -1: it must be a whole number from 0"),
        ({"lanes": 0}, "lanes is 0: it must be a whole number from 1 to 4096"),
        ({"lanes": True}, "lanes is True: it must be"),
        ({"fifo_priority": 100, "cpus": [1]}, "fifo_priority is 100: it must be a whole number from 1 to 99"),
        ({"fifo_priority": 5}, "fifo_priority is 5: a real-time thread has a CPU of its own; give cpus"),
        ({"spin_us": "fast"}, "spin_us is 'fast': it must be a number"),
        ({"spin_us": 5e6}, "spin_us is 5000000.0: that is a busy core; at most 1000000 us"),
        ({"pages": "1g"}, "pages is '1g': there is auto, hugetlb, thp, 4k"),
        ({"socket_mode": 432}, "socket_mode is 432: it must be a text"),
        ({"socket_mode": "888"}, "socket_mode is '888': it is no mode of a file; write it like 0660, as a text"),
        ({"users": ["nobody-here"]}, "users is ['nobody-here']: "),
        ({"groups": "staff"}, "groups is 'staff': it must be a list of names or numbers of groups"),
        ({"tls": {"cert": "/c"}}, "tls is {'cert': '/c'}: it must have cert, key and authority"),
        ({"tls": {"cert": "/c", "key": "/k", "authority": "/a"}}, "tls is 'given': only tcp has TLS"),
        ({"metrics": "metrics.prom"}, "metrics is 'metrics.prom': it is no absolute path"),
    ],
)
def test_server_faults(keys: dict[str, Any], told: str, tmp_path: Path) -> None:
    """Each fault names the file, the key, the value and the remedy."""
    path = write(tmp_path, "servers", **keys) if "name" not in keys else tmp_path / "servers" / "x.json"
    if "name" in keys:
        write(tmp_path, "servers").write_text(json.dumps({"schema_version": 1, **keys}))
    with pytest.raises(ConfigError) as caught:
        _configs.read_server("x", tmp_path)
    assert f"{path}: {told}" in str(caught.value)
    assert caught.value.hint
    assert caught.value.facts["file"] == str(path)


@pytest.mark.parametrize(
    ("text", "told"),
    [("{", "is no JSON"), ("[]", "is no JSON object"), ("{}" + " " * (1 << 20), "is no JSON object")],
)
def test_no_document(text: str, told: str, tmp_path: Path) -> None:
    """What is no JSON object is told as that."""
    write(tmp_path, "servers").write_text(text)
    with pytest.raises(ConfigError, match=told):
        _configs.read_server("x", tmp_path)


def test_no_file(tmp_path: Path) -> None:
    """A name without a file is told with those that there are; a path is no name."""
    write(tmp_path, "servers", "policy")
    with pytest.raises(ConfigError, match="there are: policy"):
        _configs.read_server("x", tmp_path)
    with pytest.raises(ConfigError, match="names no server"):
        _configs.read_server("../x", tmp_path)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({}, "source is None: it is missing; give it"),
        ({"source": "models/x"}, "source is 'models/x': it is no absolute path"),
        ({"source": "/m", "page_size": "4K"}, "page_size is '4K': there is 2M, 1G"),
        ({"source": "/m", "policy": "bind"}, "nodes is []: policy bind takes a list of nodes; give both, or neither"),
        ({"source": "/m", "nodes": [0]}, "nodes is [0]: policy any takes no nodes"),
        ({"source": "/m", "policy": "prefer", "nodes": [0, 1]}, "nodes is [0, 1]: policy prefer takes one node"),
        ({"source": "/m", "expect": "md5:1"}, "expect is 'md5:1': it is no digest"),
        ({"source": "/m", "replace": "always"}, "replace is 'always': there is never, swap, evict_first"),
    ],
)
def test_model_faults(keys: dict[str, Any], told: str, tmp_path: Path) -> None:
    """The same for models."""
    path = write(tmp_path, "models", **keys)
    with pytest.raises(ConfigError) as caught:
        _configs.read_model("x", tmp_path)
    assert f"{path}: {told}" in str(caught.value)


def test_model_words(tmp_path: Path) -> None:
    """`weights load --model` is `weights load` with what the file says."""
    write(
        tmp_path,
        "models",
        source="/models/x",
        page_size="1G",
        policy="interleave",
        nodes=[0, 1],
        mount="/mnt/h",
        expect={"a.safetensors": HEX},
        fallback="tmpfs-huge",
        replace="evict_first",
    )
    words = cli._model_words(["--model", "x", "--etc", str(tmp_path), "--json"])
    assert words == [
        *("swap", "--evict-first", "/models/x", "--name", "x", "--page", "1G", "--checksum", "xxh3"),
        *("--threads", "4", "--interleave", "0,1", "--dir", "/mnt/h", "--fallback", "tmpfs-huge"),
        *("--expect", f"a.safetensors={HEX}", "--json"),
    ]
    write(tmp_path, "models", "y", source="/models/y", policy="bind", nodes=[1], expect=HEX)
    words = cli._model_words(["--model=y", f"--etc={tmp_path}"])
    assert words[:2] == ["load", "/models/y"]
    assert words[-4:] == ["--node", "1", "--expect", HEX]


def test_load_by_name_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file with a fault ends the unit with status 2."""
    write(tmp_path, "models", source="/m", size=3)
    assert cli.main(["weights", "load", "--model", "x", "--etc", str(tmp_path), "--json"]) == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["error"] == "config"
    assert "size is 3: no such key" in err


def test_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`check` tells of every file with a fault, and of the plan."""
    write(tmp_path, "models", source="/m")
    write(tmp_path, "servers")
    assert cli.main(["check", "--etc", str(tmp_path)]) == 0
    assert "are valid" in capsys.readouterr().out
    write(tmp_path, "models", source="m")
    write(tmp_path, "servers", lanes=0)
    (tmp_path / "plan.json").write_text("{")
    assert cli.main(["check", "--etc", str(tmp_path), "--json"]) == 2
    rows = [(row["code"], row.get("key")) for row in json.loads(capsys.readouterr().out)["faults"]]
    assert rows == [("config", "lanes"), ("config", "source"), ("plan", None)]
