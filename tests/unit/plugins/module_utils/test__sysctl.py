# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading sysctl files as systemd-sysctl and procps read them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _sysctl
from support import put


def writes(root: Path) -> list[tuple[str, str | None]]:
    return [(item.key, item.value) for item in _sysctl.resolve_sysctls(str(root)).settings()]


# What systemd-sysctl 252 writes for each line (SYSTEMD_LOG_LEVEL=debug), None: it writes nothing.
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("vm.swappiness=10", ("vm/swappiness", "10")),
        ("  vm/dirty_ratio =   8  ", ("vm/dirty_ratio", "8")),
        ("\tvm.swappiness\t=\t1\t", ("vm/swappiness", "1")),
        ("-vm.nosuch = 4", ("vm/nosuch", "4")),
        ("- vm.nosuch = 4", ("vm/nosuch", "4")),
        ("vm..dirty_expire_centisecs=3000", ("vm/dirty_expire_centisecs", "3000")),
        ("/vm/laptop_mode = 0", ("vm/laptop_mode", "0")),
        ("net.ipv4.conf.eth0/100.forwarding = 1", ("net/ipv4/conf/eth0.100/forwarding", "1")),
        ("net/ipv4/conf/eth0.100/forwarding = 1", ("net/ipv4/conf/eth0.100/forwarding", "1")),
        ("kernel.printk = 4 4 1 7 # trailing", ("kernel/printk", "4 4 1 7 # trailing")),
        ("kernel.core_pattern = |/bin/x a=b", ("kernel/core_pattern", "|/bin/x a=b")),
        ("vm.page-cluster = 3 \\", ("vm/page-cluster", "3 \\")),
        ("vm.dirty_bytes = ", ("vm/dirty_bytes", "")),
        ("vm.panic_on_oom=0\r", ("vm/panic_on_oom", "0")),
        ("vm.swappiness==1", ("vm/swappiness", "=1")),
        ("-net.ipv4.conf.lo.rp_filter", ("net/ipv4/conf/lo/rp_filter", None)),
        ("# vm.swappiness=10", None),
        ("  ; vm.swappiness=10", None),
        ("not an assignment", None),
        (" = 5", None),
        ("", None),
    ],
)
def test_one_line(tmp_path: Path, line: str, expected: tuple[str, str | None] | None) -> None:
    put(tmp_path, "/etc/sysctl.d/a.conf", line + "\n")
    assert writes(tmp_path) == ([] if expected is None else [expected])


def test_line_numbers_and_complaints(tmp_path: Path) -> None:
    path = tmp_path / "etc/sysctl.d/a.conf"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"# x\r\n\r\nvm.swappiness=1\rvm.laptop_mode=2\njunk\n\xff.x=\xfe")
    found = _sysctl.resolve_sysctls(str(tmp_path))
    assert [(item.key, item.line) for item in found.lines][:2] == [
        ("vm/swappiness", 3),
        ("vm/laptop_mode", 4),
    ]
    assert found.ignored == [("/etc/sysctl.d/a.conf", 5, "junk")]


def test_same_value_keeps_its_place_another_moves(tmp_path: Path) -> None:
    put(tmp_path, "/etc/sysctl.d/1.conf", "vm.swappiness=1\nvm.laptop_mode=1\nvm.stat_interval=1\n")
    put(tmp_path, "/etc/sysctl.d/2.conf", "vm.swappiness=2\nvm.laptop_mode=1\n")
    assert writes(tmp_path) == [("vm/laptop_mode", "1"), ("vm/stat_interval", "1"), ("vm/swappiness", "2")]


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("net.ipv4.conf.*.rp_filter=2\n", "net/ipv4/conf/eth0/rp_filter", "2"),
        (
            "net.ipv4.conf.*.rp_filter=2\nnet.ipv4.conf.eth0.rp_filter=1\n",
            "net/ipv4/conf/eth0/rp_filter",
            "1",
        ),
        (
            "net.ipv4.conf.eth0.rp_filter=1\nnet.ipv4.conf.*.rp_filter=2\n",
            "net/ipv4/conf/eth0/rp_filter",
            "1",
        ),
        (
            "net.ipv4.conf.*.rp_filter=2\n-net.ipv4.conf.eth0.rp_filter\n",
            "net/ipv4/conf/eth0/rp_filter",
            None,
        ),
        ("net.ipv4.conf.*.rp_filter=2\n-net.ipv4.conf.eth0.rp_filter\n", "net/ipv4/conf/lo/rp_filter", "2"),
        ("net.ipv4.conf.*.rp_filter=2\nnet.ipv4.conf.e*.rp_filter=1\n", "net/ipv4/conf/eth0/rp_filter", "1"),
        ("net.ipv4.*=2\n", "net/ipv4/conf/eth0/rp_filter", None),
        ("net/ipv4/conf/eth[0-3]/rp_filter=2\n", "net/ipv4/conf/eth0/rp_filter", "2"),
        ("vm.swap?iness=2\n", "vm/swappiness", "2"),
        ("*.swappiness=2\n", "vm/swappiness", "2"),
    ],
)
def test_globs(tmp_path: Path, text: str, key: str, value: str | None) -> None:
    put(tmp_path, "/usr/lib/sysctl.d/a.conf", text)
    found = _sysctl.resolve_sysctls(str(tmp_path)).writes(key)
    assert (found[-1].value if found else None) == value


def test_an_excluded_key_can_be_set_later(tmp_path: Path) -> None:
    put(tmp_path, "/etc/sysctl.d/1.conf", "-vm.swappiness\nvm.s*=9\n")
    put(tmp_path, "/etc/sysctl.d/2.conf", "vm.swappiness=3\n")
    assert _sysctl.resolve_sysctls(str(tmp_path)).writes("vm/swappiness")[-1].value == "3"


def test_absolute_link_stays_inside(tmp_path: Path) -> None:
    put(tmp_path, "/opt/x.conf", "vm.swappiness=5\n")
    (tmp_path / "etc/sysctl.d").mkdir(parents=True)
    (tmp_path / "etc/sysctl.d/50-x.conf").symlink_to("/opt/x.conf")
    item = _sysctl.resolve_sysctls(str(tmp_path)).lines[0]
    assert (item.value, item.file, item.real) == ("5", "/etc/sysctl.d/50-x.conf", "/opt/x.conf")


def test_procps_reads_hidden_names_and_drops_empty_values(tmp_path: Path) -> None:
    put(tmp_path, "/etc/sysctl.d/.h.conf", "vm.laptop_mode=1\n")
    put(tmp_path, "/etc/sysctl.d/a.conf", "vm.swappiness=5\n")
    put(tmp_path, "/etc/sysctl.d/b.conf", "vm.swappiness=\n")
    found = _sysctl.resolve_sysctls(str(tmp_path))
    assert [item.key for item in found.procps_lines] == ["vm/laptop_mode", "vm/swappiness"]
    assert found.writes("vm/swappiness")[-1].value == ""


def test_overlay_is_as_on_disk(tmp_path: Path) -> None:
    put(tmp_path, "/usr/lib/sysctl.d/50-x.conf", "vm.swappiness=5\n")
    put(tmp_path, "/etc/sysctl.d/60-y.conf", "vm.swappiness=6\n")
    layer = {"/etc/sysctl.d/50-x.conf": "vm.laptop_mode=1\n", "/etc/sysctl.d/60-y.conf": None}
    seen = _sysctl.resolve_sysctls(str(tmp_path), layer)
    for path, text in layer.items():
        (tmp_path / path[1:]).unlink() if text is None else put(tmp_path, path, text)
    real = _sysctl.resolve_sysctls(str(tmp_path))
    assert (seen.lines, seen.order, seen.masked) == (real.lines, real.order, real.masked)


def test_unreadable_file_is_not_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "/etc/sysctl.d/50-x.conf", "vm.swappiness=5\n")

    def refuse(root: str, path: str) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(_sysctl, "read_text", refuse)
    found = _sysctl.resolve_sysctls(str(tmp_path))
    assert found.unreadable == {"/etc/sysctl.d/50-x.conf": "permission_denied"}
    assert found.order == []


def test_live_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(tmp_path)
    assert _sysctl.read_live(root, "vm.swappiness").state == "no_proc"
    put(tmp_path, "/proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n")
    assert _sysctl.read_live(root, "vm.swappiness").state == "unknown_key"
    assert _sysctl.read_live(root, "net.ipv4").state == "unknown_key"
    assert _sysctl.read_live(root, "net/ipv4/tcp_rmem") == _sysctl.Live("value", "4096 131072 6291456")

    def refuse(*_args: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(_sysctl, "read_text", refuse)
    assert _sysctl.read_live(root, "net.ipv4.tcp_rmem") == _sysctl.Live("permission_denied")


@pytest.mark.parametrize(
    ("wanted", "got", "same"),
    [
        ("16", "0x10", True),
        ("8", "010", True),
        ("-1", "-0x1", True),
        ("0", "00", True),
        ("08", "8", False),
        ("4 4 1 7", "4\t4\t1\t7", True),
        ("4 4 1 7", "4", False),
        ("4", "4 4 1 7", False),
        ("10", "10 # trailing", True),
        ("1", "10", False),
        ("core # x", "core", False),
        ("core", "core # x", False),
        ("|/bin/x %p", "|/bin/x %p", True),
    ],
)
def test_same_value(wanted: str, got: str, same: bool) -> None:
    assert _sysctl.same_value(wanted, got) is same


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"vm.swappiness": True}, "bad_value"),
        ({"vm.swappiness": 0.5}, "bad_value"),
        ({"vm.swappiness": None}, "bad_value"),
        ({"vm.swappiness": [1]}, "bad_value"),
        ({"vm.swappiness": ""}, "bad_value"),
        ({"vm.swappiness": " \t"}, "bad_value"),
        ({"vm.swappiness": "1\nvm.laptop_mode = 1"}, "bad_value"),
        ({"vm.swappiness": "1\r"}, "bad_value"),
        ({"swappiness": 1}, "bad_key"),
        ({"vm.*": 1}, "bad_key"),
        ({"-vm.swappiness": 1}, "bad_key"),
        ({"vm.swappiness=1": 1}, "bad_key"),
        ({"vm.swappi ness": 1}, "bad_key"),
        ({"../../etc/passwd": 1}, "bad_key"),
        ({"vm/../../../etc/x": 1}, "bad_key"),
        ({"": 1}, "bad_key"),
        ({"vm.swappiness": 1, "vm/swappiness": 2}, "duplicate_key"),
    ],
)
def test_bad_requests(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(_sysctl.SysctlError) as error:
        _sysctl.check_values(values)
    assert error.value.reason == reason


def test_good_request_keeps_order() -> None:
    got = _sysctl.check_values(
        {"vm.swappiness": 0, "net/ipv4/conf/eth0.1/rp_filter": " 1 ", "vm.laptop_mode": "-1"}
    )
    assert list(got.items()) == [
        ("vm/swappiness", "0"),
        ("net/ipv4/conf/eth0.1/rp_filter", "1"),
        ("vm/laptop_mode", "-1"),
    ]


@pytest.mark.parametrize("key", ["vm/swappiness", "net/ipv4/conf/eth0.100/forwarding", "vm/page-cluster"])
def test_dotted_and_back(key: str) -> None:
    assert _sysctl.normalize(_sysctl.dotted(key)) == key
