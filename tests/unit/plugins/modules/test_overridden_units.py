# SPDX-License-Identifier: GPL-3.0-or-later
"""Units of ours that systemd would read otherwise than planned: by drop-ins of any folder, by masks, by other units."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import verified_host as vh
from ansible_collections.firsttouch.host.plugins.module_utils._collect import collect
from ansible_collections.firsttouch.host.plugins.module_utils._systemd import with_marker
from support import put, run_module

ETC = "/etc/systemd/system"
SERVER, MOUNT = "firsttouch-server@policy.service", "dev-hugepages\\x2dft.mount"
SLICE, WEIGHTS = "firsttouch.slice", "firsttouch-weights@toy.service"
FAR = "firsttouch-server@far.service"  # has a python_path
WANTED = f"{ETC}/multi-user.target.wants/{SERVER}"
TAKES = "[Service]\nExecStart=\nExecStart=/bin/true\n"


def rows(root: Path) -> dict[str, dict[str, Any]]:
    layers = ["configured", "next_boot", "running"]
    result = run_module("host_verify", {"sysroot": str(root), "concerns": ["units", "hugepages"], "layers": layers})
    return {row["id"]: row for row in result["results"] if row["status"] not in ("pass", "not_applicable")}


def recorded(root: Path, target: Path) -> Path:
    with tarfile.open(fileobj=io.BytesIO(collect(str(root)).archive)) as tar:
        options: Any = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
        tar.extractall(target, **options)
    return target


@pytest.mark.parametrize("folder", [
    f"/etc/systemd/system.control/{SERVER}.d", f"/run/systemd/system.control/{SERVER}.d", f"{ETC}/{SERVER}.d",
    f"/run/systemd/system/{SERVER}.d", f"/usr/lib/systemd/system/{SERVER}.d", f"{ETC}/firsttouch-server@.service.d",
    f"{ETC}/firsttouch-.service.d", f"{ETC}/firsttouch-@.service.d", f"{ETC}/firsttouch-@policy.service.d",
    f"{ETC}/service.d",
])  # fmt: skip
def test_a_dropin_that_takes_our_command_away_fails_wherever_it_lies(tmp_path: Path, folder: str) -> None:
    root = tmp_path / "host"
    vh.whole_host(root)
    put(root, f"{folder}/x.conf", TAKES)
    for tree in (root, recorded(root, tmp_path / "copy")):
        row = rows(tree)[f"units.{SERVER}.dropins"]
        assert (row["status"], row["reason"], row["source"]) == ("fail", "overridden_by", f"{folder}/x.conf:2")
        assert "firsttouch_servers" in row["remedy"]


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("[Service]\nMemoryMax=1G\n", "warn"),
        ("[Service]\nEnvironment=HF_HOME=/x\nSupplementaryGroups=video\n", "warn"),
        ("[Service]\nSupplementaryGroups=\n", "fail"),
        ("[Service]\nCPUAffinity=0-3\n", "fail"),
        ("# ExecStart=\n", "warn"),
        ("", None),
    ],
)
def test_only_what_changes_a_setting_of_ours_fails(tmp_path: Path, text: str, status: str | None) -> None:
    vh.whole_host(tmp_path)
    put(tmp_path, f"{ETC}/{SERVER}.d/x.conf", text)
    row = rows(tmp_path).get(f"units.{SERVER}.dropins")
    assert (row and row["status"]) == status


@pytest.mark.parametrize(
    ("unit", "text", "status"),
    [
        (SERVER, "[Service]\nNoNewPrivileges=yes\n", "warn"),
        (SERVER, "[Service]\nNoNewPrivileges=no\n", "fail"),
        (SERVER, "[Service]\nExecStart={ExecStart}\n", "fail"),
        (SERVER, "[Service]\nNoNewPrivileges=true\nPrivateTmp=1\nLockPersonality=On\nPrivateDevices=f\n", "warn"),
        (SERVER, "[Service]\nPrivateTmp=disconnected\n", "fail"),
        (SERVER, "[Service]\nTimeoutStartSec=5min\nTimeoutStopSec=15.0 s\nRestartSec=0ms\n", "warn"),
        (SERVER, "[Service]\nTimeoutStartSec=5 min 1\n", "fail"),
        (SERVER, "[Service]\nTimeoutStartSec=infinity\n", "fail"),
        (SERVER, "[Service]\nRestartPreventExitStatus=10\n[Unit]\nConflicts=x.service\nDocumentation=man:x\n", "warn"),
        (SERVER, "[Service]\nRestartPreventExitStatus=SIGKILL SIGTERM 1\n", "fail"),
        (SERVER, "[Service]\nRestartPreventExitStatus=2 3\n", "fail"),
        (SERVER, "[Service]\nReadWritePaths=/srv/logs -/run\nReadOnlyPaths=/run /run/firsttouch2\n", "warn"),
        (SERVER, "[Service]\nReadOnlyPaths=/srv -/run/firsttouch/\n", "fail"),
        (SERVER, "[Service]\nReadWritePaths=+/dev/hugepages-ft/toy\n", "fail"),
        (WEIGHTS, "[Service]\nReadOnlyPaths=\"/dev/hugepages-ft\"\n", "fail"),
        (WEIGHTS, "[Service]\nReadOnlyPaths=\nReadOnlyPaths=/srv\n", "warn"),
        (SERVER, "[Service]\nRestartPreventExitStatus=\n", "fail"),
        (SERVER, "[Service]\nSystemCallFilter=~@mount @swap ptrace:EPERM\n", "warn"),
        (SERVER, "[Service]\nSystemCallFilter=~@mount @resources\n", "fail"),
        (SERVER, "[Service]\nSystemCallFilter=~mbind:EPERM\n", "fail"),
        (SERVER, "[Service]\nSystemCallFilter=\n", "fail"),
        (SERVER, "[Service]\nRestrictAddressFamilies=~AF_PACKET AF_NETLINK\n", "warn"),
        (SERVER, "[Service]\nRestrictAddressFamilies=~AF_UNIX\n", "fail"),
        (SERVER, "[Service]\nRestrictAddressFamilies=none\n", "fail"),
        (SERVER, "[Service]\nCapabilityBoundingSet=~CAP_SYS_PTRACE\n", "warn"),
        (SERVER, "[Service]\nCapabilityBoundingSet=~\n", "fail"),
        (SERVER, "[Service]\nCapabilityBoundingSet=CAP_SYS_PTRACE\n", "fail"),
        (SERVER, "[Service]\nAmbientCapabilities=~CAP_SYS_PTRACE\n", "fail"),
        (SLICE, "[Slice]\nMemoryAccounting=yes\n", "warn"),
        (WEIGHTS, "[Service]\nExecStart=/bin/true\nExecStop=-/bin/logger x\nExecStartPre=/bin/true\n", "warn"),
        (WEIGHTS, "[Service]\nExecStop=\n", "fail"),
        (WEIGHTS, "[Unit]\nConditionPathExists=/x\nAssertPathExists=/x\nOnFailure=mail@%n.service\n", "warn"),
    ],
)
def test_what_says_the_same_or_only_adds_is_told(tmp_path: Path, unit: str, text: str, status: str) -> None:
    vh.whole_host(tmp_path)
    ours = dict(re.findall(r"(?m)^(\w+)=(.*)$", (tmp_path / ETC[1:] / unit).read_text()))
    text = text.format_map(ours)
    put(tmp_path, f"/etc/systemd/system.control/{unit}.d/x.conf", text)
    assert rows(tmp_path)[f"units.{unit}.dropins"]["status"] == status


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ("PYTHONPATH=/evil", "fail"), ("A=1 PYTHONPATH=/evil", "fail"), ("A=1 'PYTHONPATH=/evil'", "fail"),
        ('A="x PYTHONPATH=/evil"', "warn"), ("A=1 PYTHONPATH=/srv/10.1.2.3/handlers", "warn"),
    ],
)  # fmt: skip
def test_every_variable_of_a_line_is_looked_at(tmp_path: Path, value: str, status: str) -> None:
    vh.whole_host(tmp_path)
    put(tmp_path, f"{ETC}/{FAR}.d/x.conf", f"[Service]\nEnvironment={value}\n")
    assert rows(tmp_path)[f"units.{FAR}.dropins"]["status"] == status


def test_a_dropin_is_hidden_by_an_empty_one_of_its_name_in_a_folder_that_comes_first(tmp_path: Path) -> None:
    vh.whole_host(tmp_path)
    put(tmp_path, f"/usr/lib/systemd/system/{SERVER}.d/x.conf", TAKES)
    put(tmp_path, f"{ETC}/{SERVER}.d/x.conf", "")
    put(tmp_path, "/usr/lib/systemd/system/service.d/10-timeout-abort.conf", "[Service]\nTimeoutStopSec=15\n")
    assert rows(tmp_path) == {}


@pytest.mark.parametrize(
    ("read", "hidden"),
    [
        (f"/run/systemd/system/{SERVER}.d", f"{ETC}/service.d"),
        ("/usr/lib/systemd/system/firsttouch-.service.d", f"{ETC}/service.d"),
        (f"{ETC}/firsttouch-@.service.d", f"/run/systemd/system/{SERVER}.d"),
        (f"{ETC}/firsttouch-server@.service.d", f"{ETC}/firsttouch-.service.d"),
        (f"{ETC}/firsttouch-.service.d", f"{ETC}/firsttouch-@policy.service.d"),
        (f"{ETC}/firsttouch-@policy.service.d", f"{ETC}/service.d"),
    ],
)
def test_of_two_dropins_of_one_name_systemd_reads_one(tmp_path: Path, read: str, hidden: str) -> None:
    """As `systemd-analyze verify` of systemd 252 reads them; that of all services counts last, whatever its folder."""
    vh.whole_host(tmp_path)
    put(tmp_path, f"{hidden}/x.conf", "[Service]\nRestartSec=1\n")
    put(tmp_path, f"{read}/x.conf", TAKES)
    row = rows(tmp_path)[f"units.{SERVER}.dropins"]
    assert row["observed"] == [f"{read}/x.conf"] and row["source"] == f"{read}/x.conf:2"


def _relink(root: Path, path: str, target: str) -> None:
    (root / path.lstrip("/")).unlink()
    (root / path.lstrip("/")).symlink_to(target)


def _read_only(root: Path) -> None:
    mounts = (root / "proc/self/mountinfo").read_text()
    put(root, "/proc/self/mountinfo", mounts.replace("hugepages-ft rw,", "hugepages-ft ro,"))


@pytest.mark.parametrize(
    ("break_it", "identity", "reason", "source"),
    [
        (lambda root: _relink(root, WANTED, "/dev/null"), f"units.{SERVER}.enabled", "masked", WANTED),
        (
            lambda root: put(root, f"/etc/systemd/system.control/{SERVER}", TAKES), f"units.{SERVER}.dropins",
            "overridden_by", f"/etc/systemd/system.control/{SERVER}",
        ),
        (
            lambda root: put(root, f"{ETC}/{MOUNT}.d/x.conf", "[Mount]\nOptions=size=1M\n"), f"units.{MOUNT}.dropins",
            "overridden_by", f"{ETC}/{MOUNT}.d/x.conf:2",
        ),
        (
            lambda root: put(root, f"{ETC}/dev-.mount.d/x.conf", "[Mount]\nOptions=ro\n"), f"units.{MOUNT}.dropins",
            "overridden_by", f"{ETC}/dev-.mount.d/x.conf:2",
        ),
        (_read_only, "hugepages.mount./dev/hugepages-ft.writable", "read_only", "/proc/self/mountinfo"),
    ],
)  # fmt: skip
def test_what_keeps_a_unit_from_what_is_planned_fails(
    tmp_path: Path, break_it: Callable[[Path], Any], identity: str, reason: str, source: str
) -> None:
    root = tmp_path / "host"
    vh.whole_host(root)
    break_it(root)
    for tree in (root, recorded(root, tmp_path / "copy")):
        row = rows(tree)[identity]
        assert (row["status"], row["reason"], row["source"]) == ("fail", reason, source)
        assert "firsttouch_" in row["remedy"]


def test_a_mount_of_any_name_is_recorded_and_one_of_others_is_not(tmp_path: Path) -> None:
    root = tmp_path / "host"
    vh.bare_host(root)
    intent = {"hugepages": [{"size": "2M", "nodes": {"0": 1, "1": 1}}],
              "hugetlbfs_mounts": [{"path": "/mnt/big", "pagesize": "2M"}]}  # fmt: skip
    plan = vh.plan_for(root, intent)
    (name,) = plan["sections"]["hugepages"]["units"]
    put(root, f"{ETC}/{name}", with_marker(plan["sections"]["hugepages"]["units"][name]))
    put(root, f"{ETC}/{name}.d/x.conf", "[Mount]\nOptions=ro\n")
    put(root, f"{ETC}/data.mount", "[Mount]\nWhat=nas:/x\nWhere=/data\nType=nfs\n")
    put(root, "/etc/firsttouch/plan.json", json.dumps(plan))
    copy = recorded(root, tmp_path / "copy")
    assert (copy / f"{ETC[1:]}/{name}").is_file() and not (copy / f"{ETC[1:]}/data.mount").exists()
    found = rows(copy)
    assert f"units.{name}.file" not in found and found[f"units.{name}.dropins"]["status"] == "fail"


@pytest.mark.parametrize(("limit", "status"), [("0", "fail"), ("2097152", "warn"), ("max", None), (str(1 << 63), None)])
@pytest.mark.parametrize("group", ["", "/firsttouch-weights@toy.service"])
def test_a_limit_of_huge_pages_on_our_groups_is_found(
    tmp_path: Path, limit: str, status: str | None, group: str
) -> None:
    root = tmp_path / "host"
    vh.whole_host(root)
    file = f"/sys/fs/cgroup/firsttouch.slice{group}/hugetlb.2MB.max"
    # toy has no pages of that size
    put(root, "/sys/fs/cgroup/firsttouch.slice/hugetlb.1GB.max", "0\n")
    put(root, "/sys/fs/cgroup/firsttouch.slice/firsttouch-weights@toy.service/hugetlb.1GB.max", "0\n")
    put(root, file, f"{limit}\n")
    for tree in (root, recorded(root, tmp_path / "copy")):
        result = run_module("host_verify", {"sysroot": str(tree), "concerns": ["runtime"], "layers": ["running"]})
        (row,) = [row for row in result["results"] if row["id"] == "runtime.hugetlb_limit"]
        source = file if status else "/sys/fs/cgroup/firsttouch.slice"
        assert (row["status"], row["source"]) == (status or "pass", source)
        assert not status or "firsttouch_models" in row["remedy"]
