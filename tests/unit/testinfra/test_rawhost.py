# SPDX-License-Identifier: GPL-3.0-or-later
"""The verifier's own readers: they must not take a wrong host for a right one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "testinfra"))

import rawhost


class Local:
    """A testinfra host that is this machine."""

    def check_output(self, command: str) -> str:
        return subprocess.run(["sh", "-c", command], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rawhost, "as_root", lambda script: script)


def test_files_come_in_one_command(tmp_path: Path, as_root: None) -> None:
    (tmp_path / "a1").write_text("one\ntwo\n")
    (tmp_path / "a2").write_text("")
    (tmp_path / "b").write_text("no end of line")
    host: Any = Local()
    found = rawhost.read_files(host, [f"{tmp_path}/a*", f"{tmp_path}/b", f"{tmp_path}/absent"])
    assert found == {f"{tmp_path}/a1": "one\ntwo", f"{tmp_path}/a2": "", f"{tmp_path}/b": "no end of line"}


def test_the_script_reaches_the_shell_as_one_word() -> None:
    assert rawhost.as_root("echo 'a b' $HOME").endswith("""sh -c 'echo '"'"'a b'"'"' $HOME'""")


@pytest.mark.parametrize(
    ("text", "cpus"), [("", set()), ("(null)", set()), ("1,3", {1, 3}), ("0-2,5\n", {0, 1, 2, 5})]
)
def test_cpu_list(text: str, cpus: set[int]) -> None:
    assert rawhost.cpu_list(text) == cpus


@pytest.mark.parametrize(("text", "cpus"), [("5", {0, 2}), ("00000001,00000000", {32}), ("0", set())])
def test_cpu_mask(text: str, cpus: set[int]) -> None:
    assert rawhost.cpu_mask(text) == cpus


def test_surplus_pages_do_not_count() -> None:
    base = "/sys/devices/system/node/node1/hugepages/hugepages-2048kB"
    files = {f"{base}/nr_hugepages": "160", f"{base}/surplus_hugepages": "20"}
    assert rawhost.persistent_pages(files) == {"2048kB": {"1": 140}}


def test_watermarks_of_all_zones() -> None:
    dma = "Node 0, zone DMA\n        min      10\n        low      15\n"
    text = f"{dma}Node 0, zone Normal\n        min      100\n        low      300\n"
    assert rawhost.low_minus_min(text) == 205


def test_mounts_that_are_stacked_are_all_seen() -> None:
    lines = [
        "40 25 0:33 / /dev/hugepages-ft rw - hugetlbfs hugetlbfs rw,gid=990,pagesize=2M",
        "41 25 0:34 / /dev/hugepages-ft rw shared:3 master:1 - tmpfs none rw,size=4k",
        "42 25 0:35 / /tmp rw - tmpfs none rw",
    ]
    mounts = rawhost.hugetlbfs_mounts("\n".join(lines))
    assert list(mounts) == ["/dev/hugepages-ft"]
    assert [row["fstype"] for row in mounts["/dev/hugepages-ft"]] == ["hugetlbfs", "tmpfs"]
    assert mounts["/dev/hugepages-ft"][0]["pagesize"] == "2M"


@pytest.mark.parametrize(
    ("text", "size"), [("2M", 2 << 20), ("1024M", 1 << 30), ("1G", 1 << 30), ("209715200", 209715200)]
)
def test_size_bytes(text: str, size: int) -> None:
    assert rawhost.size_bytes(text) == size


@pytest.mark.parametrize(
    ("line", "good"),
    [
        ("ro hugepagesz=2M hugepages=5 quiet hugepagesz=1G hugepages=1", True),
        ("ro hugepagesz=1G hugepages=1 hugepagesz=2M hugepages=5", False),
        ("ro hugepagesz=2M hugepages=5", False),
        ("", False),
    ],
)
def test_in_order(line: str, good: bool) -> None:
    assert rawhost.in_order(["hugepagesz=2M", "hugepages=5", "hugepagesz=1G", "hugepages=1"], line) is good


def test_grub_entries_have_their_own_title() -> None:
    cfg = """
menuentry 'Debian GNU/Linux' --class debian {
\tlinux\t/boot/vmlinuz root=UUID=1 ro quiet isolcpus=1
\tinitrd\t/boot/initrd.img
}
submenu 'Advanced options' {
\tmenuentry "Debian, with Linux 6.12 (recovery mode)" --class debian {
\t\tlinux\t/boot/vmlinuz root=UUID=1 ro single
\t}
}
menuentry 'UEFI Firmware Settings' {
\tfwsetup
}
"""
    assert rawhost.grub_entries(cfg) == [
        ("Debian GNU/Linux", "root=UUID=1 ro quiet isolcpus=1"),
        ("Debian, with Linux 6.12 (recovery mode)", "root=UUID=1 ro single"),
    ]
