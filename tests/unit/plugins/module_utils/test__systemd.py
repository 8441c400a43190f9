# SPDX-License-Identifier: GPL-3.0-or-later
"""Unit names and unit texts; the reservation script runs under a real shell."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _systemd


# Answers of systemd-escape 252 --path --suffix=mount.
@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/", "-.mount"),
        ("/.", "-.mount"),
        ("/dev/hugepages", "dev-hugepages.mount"),
        ("/dev/hugepages-2M", "dev-hugepages\\x2d2M.mount"),
        ("//a//b/./c/", "a-b-c.mount"),
        ("/.x/.y", "\\x2ex-.y.mount"),
        ("/mnt/with space", "mnt-with\\x20space.mount"),
        ("/mnt/\u00e9\\a", "mnt-\\xc3\\xa9\\x5ca.mount"),
        ("/a@b%c", "a\\x40b\\x25c.mount"),
        ("/-", "\\x2d.mount"),
        ("/a/..b", "a-..b.mount"),
        ("/a_b:c", "a_b:c.mount"),
    ],
)
def test_unit_names(path: str, name: str) -> None:
    assert _systemd.unit_name_for_path(path) == name
    _systemd.check_unit_name(name)


@pytest.mark.parametrize("path", ["", "mnt/x", "/a/../b", "/..", "/a\0b", "/" + "x" * 250, "/" + "-" * 70])
def test_paths_without_a_name(path: str) -> None:
    with pytest.raises(ValueError, match=r"absolute|component|characters"):
        _systemd.unit_name_for_path(path)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x",
        ".mount",
        "a/b.mount",
        "../x.service",
        "x.conf",
        "a b.mount",
        "x.service\n",
        "a" * 250 + ".mount",
    ],
)
def test_bad_unit_names(name: str) -> None:
    with pytest.raises(ValueError, match="systemd unit"):
        _systemd.check_unit_name(name)


@pytest.mark.parametrize("name", ["a@.service", "a@b\\x2d.service", "x.timer", "dev-x\\x2d1.mount"])
def test_good_unit_names(name: str) -> None:
    _systemd.check_unit_name(name)


def settings(text: str) -> dict[str, str]:
    return dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))


def test_mount_unit() -> None:
    text = _systemd.render_hugetlbfs_mount(
        "//mnt/huge 100%/", "1G", owner=0, group="27", mode="0750", size_bytes=1 << 31, min_size_bytes=1 << 30
    )
    assert _systemd.is_ours(text)
    got = settings(text)
    assert got["Where"] == "/mnt/huge 100%%"
    assert got["Options"] == "pagesize=1G,mode=0750,uid=0,gid=27,size=2147483648,min_size=1073741824,nofail"
    assert (got["Type"], got["What"]) == ("hugetlbfs", "hugetlbfs")
    assert (got["WantedBy"], got["After"]) == ("multi-user.target", "firsttouch-hugepages.service")
    assert "RequiredBy" not in got


def test_mount_unit_leaves_out_what_is_not_asked() -> None:
    assert (
        settings(_systemd.render_hugetlbfs_mount("/mnt/h", "2M"))["Options"] == "pagesize=2M,mode=0770,nofail"
    )


@pytest.mark.parametrize(
    ("owner", "group", "options"),
    [("root", "firsttouch", "uid=root,gid=firsttouch"), ("_svc-a$", 0, "uid=_svc-a$,gid=0"), (7, None, "uid=7")],
)
def test_mount_unit_takes_names_and_ids(owner: str | int, group: str | int | None, options: str) -> None:
    text = _systemd.render_hugetlbfs_mount("/mnt/h", "2M", owner=owner, group=group)
    assert settings(text)["Options"] == f"pagesize=2M,mode=0770,{options},nofail"


@pytest.mark.parametrize(
    ("path", "size", "args"),
    [
        ("/mnt/h", "2MB", {}),
        ("/mnt/h", "2M,uid=0", {}),
        ("/mnt/h", "0M", {}),
        ("/mnt/h", "2M", {"mode": "rwx"}),
        ("/mnt/h", "2M", {"mode": "0770,uid=1"}),
        ("/mnt/h", "2M", {"owner": -1}),
        ("/mnt/h", "2M", {"owner": ""}),
        ("/mnt/h", "2M", {"owner": "Me"}),
        ("/mnt/h", "2M", {"group": "kvm,size=0"}),
        ("/mnt/h", "2M", {"group": "kvm\n"}),
        ("/mnt/h", "2M", {"group": "100%"}),
        ("/mnt/h", "2M", {"min_size_bytes": -1}),
        ("/mnt/h\nOptions=x", "2M", {}),
        ("/mnt/h\\", "2M", {}),
        ("/mnt/h ", "2M", {}),
        ("/mnt/../h", "2M", {}),
        ("mnt", "2M", {}),
    ],
)
def test_mount_units_that_cannot_be(path: str, size: str, args: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        _systemd.render_hugetlbfs_mount(path, size, **args)


POOLS = [{"size_kb": 2048, "nodes": {"0": 300, "1": 200}}, {"size_kb": 1048576, "nodes": {1: 2}}]


def script_of(text: str, sysfs: Path) -> str:
    """The script as the shell gets it from systemd, with ROOT's sysfs and without the pause between tries."""
    command = re.search(r"^ExecStart=/bin/sh -c '(.*)'$", text.replace("\\\n", " "), re.MULTILINE)
    assert command
    assert "'" not in command[1]
    assert not re.search(r"(?<!\$)(\$\$)*\$(?!\$)", command[1]), "a lone $ is expanded by systemd"
    assert "%" not in command[1]
    script = command[1].replace("$$", "$").replace("/sys/devices", f"{sysfs}/sys/devices")
    return script.replace("sleep 1", ":")


def pool(root: Path, node: int, size_kb: int) -> Path:
    return root / f"sys/devices/system/node/node{node}/hugepages/hugepages-{size_kb}kB/nr_hugepages"


def test_service_unit() -> None:
    text = _systemd.render_hugepages_service(POOLS)
    got = settings(text)
    assert (got["DefaultDependencies"], got["Type"], got["RemainAfterExit"]) == ("no", "oneshot", "yes")
    assert "sysinit.target" in got["Before"].split()
    assert "local-fs.target" in got["Before"].split()
    assert got["WantedBy"] == "sysinit.target"
    assert "RequiredBy" not in got
    assert "python" not in text


def test_service_reserves_larger_sizes_first(tmp_path: Path) -> None:
    for node, size in ((0, 2048), (1, 2048), (1, 1048576)):
        pool(tmp_path, node, size).parent.mkdir(parents=True)
    script = script_of(_systemd.render_hugepages_service(POOLS), tmp_path)
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "node 1: 2 pages of 1048576 kB",
        "node 0: 300 pages of 2048 kB",
        "node 1: 200 pages of 2048 kB",
    ]
    assert pool(tmp_path, 1, 2048).read_text() == "200\n"


def test_service_reports_a_shortfall_and_goes_on(tmp_path: Path) -> None:
    pool(tmp_path, 0, 2048).parent.mkdir(parents=True)
    pool(tmp_path, 1, 1048576).parent.mkdir(parents=True)
    pool(tmp_path, 1, 1048576).symlink_to("/dev/null")  # takes the write, reads back nothing
    script = script_of(_systemd.render_hugepages_service(POOLS), tmp_path)
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "<3>node 1: none pages of 1048576 kB instead of 2",
        "node 0: 300 pages of 2048 kB",
        "<3>node 1: none pages of 2048 kB instead of 200",
    ]


@pytest.mark.parametrize(
    "pools",
    [
        [],
        [{"size_kb": 2048, "nodes": {}}],
        [{"size_kb": 2048, "nodes": {0: -1}}],
        [{"size_kb": 0, "nodes": {0: 1}}],
    ],
)
def test_service_without_sense(pools: list[dict[str, object]]) -> None:
    with pytest.raises(ValueError, match="page"):
        _systemd.render_hugepages_service(pools)


@pytest.mark.parametrize(
    ("content", "links"),
    [
        ("[Install]\nWantedBy=a.target b.target\n", ["a.target.wants/x.service", "b.target.wants/x.service"]),
        ("[Install]\nWantedBy=a.target\nWantedBy=\nRequiredBy=c.target\n", ["c.target.requires/x.service"]),
        (
            "[Install]\nWantedBy=a.target \\\n# note\n b.target\n",
            ["a.target.wants/x.service", "b.target.wants/x.service"],
        ),
        ("[Install]\nAlias=y.service\nUpheldBy=d.target\n", ["d.target.upholds/x.service", "y.service"]),
        ("[Unit]\nWantedBy=a.target\n[Install]\n# WantedBy=b.target\n", []),
        ("", []),
    ],
)
def test_install_links(content: str, links: list[str]) -> None:
    got = _systemd.install_links("x.service", content)
    assert sorted(got) == [f"/etc/systemd/system/{link}" for link in links]
    assert set(got.values()) <= {"/etc/systemd/system/x.service"}


def test_marker() -> None:
    text = _systemd.with_marker("[Unit]\n\n\n")
    assert text == f"{_systemd.MARKER}\n[Unit]\n"
    assert _systemd.with_marker(text) == text
    assert not _systemd.is_ours(f"# x\n{_systemd.MARKER}\n")
