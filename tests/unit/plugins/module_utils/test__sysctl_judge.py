# SPDX-License-Identifier: GPL-3.0-or-later
"""What sysctl files and kernel come to, key by key."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _sysctl, _sysctl_judge
from support import put

RATIO, BYTES = "vm/dirty_ratio", "vm/dirty_bytes"
BG_RATIO, BG_BYTES = "vm/dirty_background_ratio", "vm/dirty_background_bytes"
OC_RATIO, OC_KB = "vm/overcommit_ratio", "vm/overcommit_kbytes"


# Each row was written to a 6.18 kernel: the write, whether it was taken, then (key, counterpart).
@pytest.mark.parametrize(
    ("state", "key", "value", "taken", "after"),
    [
        ({RATIO: "20", BYTES: "0"}, BYTES, "1073741824", True, {RATIO: "0", BYTES: "1073741824"}),
        ({RATIO: "0", BYTES: "1073741824"}, RATIO, "0", True, {RATIO: "0", BYTES: "1073741824"}),
        ({RATIO: "0", BYTES: "1073741824"}, BYTES, "0", False, {RATIO: "0", BYTES: "1073741824"}),
        ({RATIO: "0", BYTES: "8192"}, RATIO, "20", True, {RATIO: "20", BYTES: "0"}),
        ({BG_RATIO: "0", BG_BYTES: "268435456"}, BG_RATIO, "0", True, {BG_RATIO: "0", BG_BYTES: "0"}),
        ({BG_RATIO: "0", BG_BYTES: "0"}, BG_BYTES, "0", False, {BG_RATIO: "0", BG_BYTES: "0"}),
        ({BG_RATIO: "0", BG_BYTES: "1"}, BG_RATIO, "10", True, {BG_RATIO: "10", BG_BYTES: "0"}),
        ({OC_RATIO: "50", OC_KB: "0"}, OC_KB, "1000", True, {OC_RATIO: "0", OC_KB: "1000"}),
        ({OC_RATIO: "0", OC_KB: "1000"}, OC_RATIO, "0", True, {OC_RATIO: "0", OC_KB: "0"}),
        ({OC_RATIO: "50", OC_KB: "0"}, OC_KB, "0", True, {OC_RATIO: "0", OC_KB: "0"}),
        ({RATIO: "20", BYTES: "0"}, RATIO, "024", True, {RATIO: "20", BYTES: "0"}),
    ],
)
def test_pair_writes(state: dict[str, str], key: str, value: str, taken: bool, after: dict[str, str]) -> None:
    assert _sysctl_judge.write_pair(state, key, value) is taken
    assert state == after


@pytest.mark.parametrize(
    ("text", "ratio", "byte_count"),
    [
        ("vm.dirty_bytes=8192\n", "0", "8192"),
        ("vm.dirty_bytes=8192\nvm.dirty_ratio=0\n", "0", "8192"),
        ("vm.dirty_bytes=8192\nvm.dirty_ratio=20\n", "20", "0"),
        ("vm.dirty_ratio=20\nvm.dirty_bytes=8192\n", "0", "8192"),
        ("vm.dirty_ratio=10\nvm.dirty_bytes=0\n", "10", "0"),
        ("vm.dirty_r*=30\nvm.dirty_bytes=8192\n", "0", "8192"),
    ],
)
def test_pair_at_boot(tmp_path: Path, text: str, ratio: str, byte_count: str) -> None:
    put(tmp_path, "/etc/sysctl.d/a.conf", text)
    found = _sysctl.resolve_sysctls(str(tmp_path))
    assert _sysctl_judge.effect(found, RATIO).value == ratio
    assert _sysctl_judge.effect(found, BYTES).value == byte_count


def judge(root: Path, key: str, value: str) -> dict[str, object]:
    found = _sysctl.resolve_sysctls(str(root))
    return _sysctl_judge.report(found, {_sysctl.normalize(key): value})[key]


def test_overridden_names_file_and_line(tmp_path: Path) -> None:
    put(tmp_path, "/etc/sysctl.d/50-a.conf", "vm.swappiness=1\n")
    put(tmp_path, "/usr/lib/sysctl.d/60-b.conf", "#\n\nvm.swappiness=60\n")
    row = judge(tmp_path, "vm.swappiness", "1")
    assert (row["verdict"], row["reason"], row["winner"], row["line"]) == (
        "fail",
        "overridden_by",
        "/usr/lib/sysctl.d/60-b.conf",
        3,
    )
    assert row["later_definers"] == [{"file": "/usr/lib/sysctl.d/60-b.conf", "line": 3, "value": "60"}]


def test_live_right_boot_wrong_fails(tmp_path: Path) -> None:
    put(tmp_path, "/etc/sysctl.d/50-a.conf", "vm.swappiness=60\n")
    put(tmp_path, "/proc/sys/vm/swappiness", "1\n")
    row = judge(tmp_path, "vm.swappiness", "1")
    assert (row["verdict"], row["reason"], row["got"]) == ("fail", "configured_differs", "1")


def test_boot_right_live_wrong_fails(tmp_path: Path) -> None:
    put(tmp_path, "/etc/sysctl.d/50-a.conf", "vm.swappiness=1\n")
    put(tmp_path, "/proc/sys/vm/swappiness", "60\n")
    row = judge(tmp_path, "vm.swappiness", "1")
    assert (row["verdict"], row["reason"], row["persisted"]) == ("fail", "live_differs", True)


def test_offline_tree_without_the_key_is_unknown(tmp_path: Path) -> None:
    row = judge(tmp_path, "vm.swappiness", "1")
    assert (row["verdict"], row["reason"]) == ("unknown", "not_configured")


def test_unreadable_live_value_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "/etc/sysctl.d/50-a.conf", "vm.swappiness=1\n")
    monkeypatch.setattr(_sysctl_judge, "read_live", lambda *_args: _sysctl.Live("permission_denied"))
    row = judge(tmp_path, "vm.swappiness", "1")
    assert (row["verdict"], row["reason"]) == ("unknown", "permission_denied")
    assert judge(tmp_path, "vm.swappiness", "2")["verdict"] == "fail"


@pytest.mark.parametrize(("name", "verdict"), [("60-x.conf", "unknown"), ("40-x.conf", "pass")])
def test_unreadable_file_counts_when_it_is_later(tmp_path: Path, name: str, verdict: str) -> None:
    put(tmp_path, "/etc/sysctl.d/50-a.conf", "vm.swappiness=1\n")
    found = _sysctl.resolve_sysctls(str(tmp_path))
    found.unreadable[f"/etc/sysctl.d/{name}"] = "permission_denied"
    row = _sysctl_judge.report(found, {"vm/swappiness": "1"})["vm.swappiness"]
    assert row["verdict"] == verdict


def test_unsupported_foreign_keys(tmp_path: Path) -> None:
    text = "net.bridge.x=1\n-net.bridge.y=1\nnet.*.z=1\nvm.swappiness=1\nnet.bridge.ours=1\n-net.bridge.no\n"
    put(tmp_path, "/etc/sysctl.d/50-a.conf", text)
    put(tmp_path, "/proc/sys/vm/swappiness", "60\n")
    found = _sysctl.resolve_sysctls(str(tmp_path))
    items = _sysctl_judge.foreign_unsupported(found, {"net/bridge/ours": "1"})
    assert [(item.key, item.line) for item in items] == [("net/bridge/x", 1)]


@pytest.mark.parametrize(
    ("text", "page_kb", "reasons"),
    [
        ("vm.nr_hugepages=2048\n", 2048, ["nr_hugepages_in_sysctl"]),
        ("vm.nr_hugepages=2048\n", 1048576, ["nr_hugepages_default_size_overcommit"]),
        ("vm.nr_hugepages=0x800\n", 1048576, ["nr_hugepages_default_size_overcommit"]),
        ("vm.nr_hugepages=2048\nvm.nr_hugepages=1\n", 1048576, ["nr_hugepages_in_sysctl"]),
        ("vm.nr_hugepages_mempolicy=65\n", 1048576, ["nr_hugepages_default_size_overcommit"]),
        ("vm.nr_hugepages=64\n", 1048576, ["nr_hugepages_in_sysctl"]),
        ("vm.nr_hugepages=5\n", None, ["nr_hugepages_in_sysctl"]),
        ("vm.nr_overcommit_hugepages=5\n", 1048576, []),
    ],
)
def test_pool_findings(tmp_path: Path, text: str, page_kb: int | None, reasons: list[str]) -> None:
    put(tmp_path, "/etc/sysctl.d/50-a.conf", text)
    found = _sysctl.resolve_sysctls(str(tmp_path))
    rows = _sysctl_judge.pool_findings(found, page_kb, 64 << 20)
    assert [row["reason"] for row in rows] == reasons


@pytest.mark.parametrize(
    ("meminfo", "cmdline", "expected"),
    [
        ("MemTotal:  65850368 kB\nHugepagesize:    2048 kB\n", "default_hugepagesz=1G", (2048, 65850368)),
        ("MemTotal:  10 kB\n", "ro default_hugepagesz=1GB default_hugepagesz=2M", (1048576, 10)),
        ("MemTotal:  10 kB\n", "xdefault_hugepagesz=1G", (None, 10)),
        ("", "default_hugepagesz=junk", (None, None)),
    ],
)
def test_memory_facts(
    tmp_path: Path, meminfo: str, cmdline: str, expected: tuple[int | None, int | None]
) -> None:
    put(tmp_path, "/proc/meminfo", meminfo)
    put(tmp_path, "/proc/cmdline", cmdline)
    assert _sysctl_judge.memory_facts(str(tmp_path)) == expected


def test_overall_is_the_worst() -> None:
    rows = {"a": {"verdict": "pass"}, "b": {"verdict": "skip"}}
    assert _sysctl_judge.overall(rows, []) == "skip"
    assert _sysctl_judge.overall(rows, [{"verdict": "fail"}]) == "fail"
    assert _sysctl_judge.overall({"a": {"verdict": None}}, []) is None
