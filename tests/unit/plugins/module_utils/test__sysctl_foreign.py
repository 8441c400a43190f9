# SPDX-License-Identifier: GPL-3.0-or-later
"""Writers of sysctls beside the sysctl files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _sysctl_foreign
from support import put


def found(root: Path) -> list[tuple[str, str, str]]:
    return [(item.writer, item.key, item.value) for item in _sysctl_foreign.writers(str(root), {})]


@pytest.mark.parametrize(
    ("enabled", "default", "expected"),
    [
        ("yes", "", [("ufw", "net/ipv4/tcp_sack", "1")]),
        ("no", "", []),
        ('"yes"', "IPT_SYSCTL=/etc/ufw/other.conf\n", [("ufw", "vm/swappiness", "5")]),
    ],
)
def test_ufw(tmp_path: Path, enabled: str, default: str, expected: list[tuple[str, str, str]]) -> None:
    put(tmp_path, "/etc/ufw/ufw.conf", f"# x\nENABLED={enabled}\n")
    put(tmp_path, "/etc/default/ufw", default)
    put(tmp_path, "/etc/ufw/sysctl.conf", "#net/ipv4/x=1\nnet/ipv4/tcp_sack=1\n")
    put(tmp_path, "/etc/ufw/other.conf", "vm.swappiness = 5\n")
    assert found(tmp_path) == expected


def test_command_line(tmp_path: Path) -> None:
    put(
        tmp_path,
        "/proc/cmdline",
        "ro sysctl.vm.swappiness=5 sysctl/vm/laptop_mode=1 x.sysctl.a=1 -- sysctl.vm.x=1\n",
    )
    assert found(tmp_path) == [
        ("kernel_command_line", "vm/swappiness", "5"),
        ("kernel_command_line", "vm/laptop_mode", "1"),
    ]


def test_tuned_child_wins_and_loops_end(tmp_path: Path) -> None:
    put(tmp_path, "/etc/tuned/active_profile", "one two\n")
    put(tmp_path, "/etc/tuned/one/tuned.conf", "[main]\ninclude=one\n[sysctl]\nvm.swappiness=1\n")
    put(
        tmp_path,
        "/usr/lib/tuned/profiles/two/tuned.conf",
        "[sysctl]\n# c\nvm.swappiness = >2\n[vm]\nvm.x=1\n",
    )
    assert found(tmp_path) == [("tuned", "vm/swappiness", "2")]


def test_profile_name_cannot_leave_its_folder(tmp_path: Path) -> None:
    put(tmp_path, "/etc/tuned/active_profile", "../../secret\n")
    put(tmp_path, "/secret/tuned.conf", "[sysctl]\nvm.swappiness=1\n")
    assert found(tmp_path) == []


def test_nothing_there(tmp_path: Path) -> None:
    assert found(tmp_path) == []
    assert _sysctl_foreign.rt_groups(str(tmp_path)) == []


def test_a_closed_file_of_tmpfiles_hides_no_other(tmp_path: Path) -> None:
    (tmp_path / "etc/tmpfiles.d/x.conf").mkdir(parents=True)
    (tmp_path / "etc/tuned/active_profile").mkdir(parents=True)
    put(tmp_path, "/usr/lib/tmpfiles.d/y.conf", "".join(f"w /proc/sys/vm/swappiness - - - - {n}\n" for n in (4, 5)))
    hidden: dict[str, OSError] = {}
    rows = _sysctl_foreign.writers(str(tmp_path), hidden)
    assert [(row.key, row.value, row.line) for row in rows] == [("vm/swappiness", "4", 1)]
    assert list(hidden) == ["/etc/tuned/active_profile", "/etc/tmpfiles.d/x.conf"]


@pytest.mark.parametrize(
    ("first", "second", "value"),
    [
        ("w KEY - - - - 4\nw KEY - - - - 5\n", "w KEY - - - - 6\n", "4"),
        ("  w! KEY - - - - 4\n", "w KEY - - - - 6\n", "4"),
        ("w+ KEY - - - - 4\n", "w+ KEY - - - - 6\n", "6"),
        ("w KEY - - - - 4\n", "w+ KEY - - - - 6\n", "4"),
        ("w+ KEY - - - - 4\n", "w KEY - - - - 6\n", "4"),
    ],
)
@pytest.mark.parametrize("real", [False, True])
def test_of_several_lines_of_tmpfiles_the_first_counts_but_w_plus_adds(
    first: str, second: str, value: str, real: bool, tmp_path: Path
) -> None:
    """As systemd-tmpfiles does it to a file, where it is there."""
    tool = shutil.which("systemd-tmpfiles") if real else None
    if real and not tool:
        pytest.skip("no systemd-tmpfiles")
    target = put(tmp_path, "/target", "") if real else "/proc/sys/vm/swappiness"
    for name, text in (("10-a", first), ("20-b", second)):
        put(tmp_path, f"/etc/tmpfiles.d/{name}.conf", text.replace("KEY", str(target)))
    if tool:
        confs = sorted(map(str, (tmp_path / "etc/tmpfiles.d").iterdir()))
        subprocess.run([tool, "--boot", "--create", *confs], check=False, capture_output=True)
        assert (tmp_path / "target").read_text()[-1:] == value
    else:
        assert [row.value for row in _sysctl_foreign.writers(str(tmp_path), {})] == [value]


def test_a_folder_of_tmpfiles_that_cannot_be_listed_hides_no_other(tmp_path: Path) -> None:
    loop = tmp_path / "run/tmpfiles.d"
    loop.parent.mkdir()
    loop.symlink_to("tmpfiles.d")
    put(tmp_path, "/usr/lib/tmpfiles.d/y.conf", "w /proc/sys/vm/swappiness - - - - 4\n")
    hidden: dict[str, OSError] = {}
    assert [row.value for row in _sysctl_foreign.writers(str(tmp_path), hidden)] == ["4"]
    assert list(hidden) == ["/run/tmpfiles.d"]
