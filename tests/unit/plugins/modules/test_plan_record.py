# SPDX-License-Identifier: GPL-3.0-or-later
"""plan_record: what is ours and what was first found, written before anything is applied."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from boot_hosts import StandInMkconfig, debian, run_live
from plan_host import make_host, plan, record
from support import put, run_module

PLAN = "/etc/firsttouch/plan.json"
BEFORE = "/var/lib/firsttouch/before.json"
DROPIN = "/etc/sysctl.d/zz-firsttouch.conf"
POOL = {"size": "2M", "nodes": {"0": 30, "1": 20}}
INTENT: dict[str, Any] = {
    "hugepages": [POOL],
    "hugetlbfs_mounts": [{"path": "/mnt/a"}],
    "vm_sysctls": {"vm.swappiness": 0},
    "isolated_cpus": "1,3",
    "rt_runtime_us": 900000,
}


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def load(root: Path, path: str) -> Any:
    return json.loads((root / path.lstrip("/")).read_text())


def test_check_mode_predicts_and_writes_nothing(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    before = files(root)
    result = plan(root, INTENT)
    predicted = record(root, result, check=True)
    assert files(root) == before and not (root / "etc/firsttouch").exists()
    done = record(root, result)
    for key in ("changed", "changes", "diff", "plan", "before"):
        assert predicted[key] == done[key]
    assert [row["resource"] for row in done["changes"]] == [f"file:{PLAN}", f"file:{BEFORE}"]
    assert all(row["before"] is None and row["after"].startswith("sha256:") for row in done["changes"])
    assert set(files(root)) - set(before) == {PLAN[1:], BEFORE[1:]}


def test_the_second_time_nothing_changes(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    record(root, plan(root, INTENT))
    stamp = (root / PLAN[1:]).stat().st_mtime_ns
    again = record(root, plan(root, INTENT))
    assert again["changed"] is False and again["changes"] == [] and again["diff"] == []
    assert again["before"]["sysctl"]["vm.swappiness"] == "60"
    assert (root / PLAN[1:]).stat().st_mtime_ns == stamp


def test_modes_and_directories(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    old = os.umask(0o077)
    try:
        record(root, plan(root, INTENT))
    finally:
        os.umask(old)
    for path, mode in (
        (PLAN, 0o644),
        (BEFORE, 0o644),
        ("/etc/firsttouch", 0o755),
        ("/var/lib/firsttouch", 0o755),
    ):
        assert stat.S_IMODE((root / path[1:]).stat().st_mode) == mode


def test_what_was_first_found_is_written_once(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    found = record(root, plan(root, INTENT))["before"]
    assert found["sysctl"] == {"vm.swappiness": "60", "kernel.sched_rt_runtime_us": "950000"}
    assert found["pools"] == {"2048kB": {"0": 0, "1": 0}} and found["cmdline"] == "ro quiet"
    put(root, "/proc/sys/vm/swappiness", "0\n")
    put(root, "/proc/cmdline", "ro quiet isolcpus=1\n")
    later = record(root, plan(root, {**INTENT, "vm_sysctls": {"vm.swappiness": 5, "vm.dirty_ratio": 8}}))[
        "before"
    ]
    assert later["sysctl"] == {**found["sysctl"], "vm.dirty_ratio": "20"} and later["cmdline"] == "ro quiet"


def test_the_other_one_of_a_pair_is_saved_with_it(tmp_path: Path) -> None:
    """Writing vm.dirty_ratio zeroes vm.dirty_bytes: a revert must find the one that was in use."""
    root = make_host(tmp_path)
    put(root, "/proc/sys/vm/dirty_ratio", "0\n")
    put(root, "/proc/sys/vm/dirty_bytes", "268435456\n")
    intent = {"vm_sysctls": {"vm.dirty_ratio": 8}}
    pair = {"vm.dirty_ratio": "0", "vm.dirty_bytes": "268435456"}
    result = plan(root, intent)
    assert record(root, result)["before"]["sysctl"] == pair
    values = result["plan"]["sysctls"]
    run_module("sysctl_dropin", {"values": values, "restore": pair, "sysroot": str(root)})
    put(root, "/proc/sys/vm/dirty_bytes", "0\n")  # what the kernel does
    assert (root / "proc/sys/vm/dirty_ratio").read_text() == "8\n"
    back = record(root, plan(root, {"vm_sysctls": "absent"}))["before"]["sysctl"]
    assert back == pair
    run_module("sysctl_dropin", {"state": "absent", "restore": back, "sysroot": str(root)})
    assert (root / "proc/sys/vm/dirty_bytes").read_text() == "268435456\n"


def test_of_a_pair_that_is_ours_already_nothing_is_saved(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    put(root, DROPIN, "# ours\nvm.dirty_ratio = 8\n")
    put(root, "/proc/sys/vm/dirty_bytes", "0\n")
    assert record(root, plan(root, {"vm_sysctls": {"vm.dirty_ratio": 9}}))["before"]["sysctl"] == {}


def test_a_value_of_ours_is_not_taken_for_the_first_one(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    put(root, DROPIN, "# ours\nvm.swappiness = 0\n")
    put(root, "/proc/sys/vm/swappiness", "0\n")
    assert "vm.swappiness" not in record(root, plan(root, INTENT))["before"]["sysctl"]


def test_values_can_be_given(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    given: dict[str, Any] = {"sysctl": {"vm.swappiness": "33"}}
    assert record(root, plan(root, INTENT), before=given)["before"]["sysctl"]["vm.swappiness"] == "33"
    given = {"sysctl": {"vm.swappiness": "44"}}
    assert record(root, plan(root, INTENT), before=given)["before"]["sysctl"]["vm.swappiness"] == "33"


def test_sections_are_merged(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    record(root, plan(root, INTENT))
    other = plan(root, {"hugepages": [{"size": "2M", "nodes": {"0": 1}}], "rt_runtime_us": 1000})
    record(root, other, sections=["rt_scheduling"])
    document = load(root, PLAN)
    assert document["sections"]["rt_scheduling"]["sysctls"] == {"kernel.sched_rt_runtime_us": "1000"}
    assert document["sections"]["hugepages"]["pools"][0]["nodes"] == POOL["nodes"]
    assert document["intent"]["hugepages"] == [POOL] and document["intent"]["rt_runtime_us"] == 1000
    assert "hugepages=0:30,1:20" in document["boot"]["tokens"]


def test_nothing_managed_leaves_no_record(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    before = files(root)
    for result in (plan(root, {}), plan(root, INTENT, sections=[]), plan(root, {}, revert=True)):
        assert record(root, result)["changed"] is False
    assert files(root) == before


def test_without_a_section_the_record_stays_whatever_the_host_shows(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    record(root, plan(root, INTENT))
    put(root, "/sys/devices/system/cpu/online", "0-2\n")
    assert record(root, plan(root, INTENT, sections=[]))["changed"] is False


def units(root: Path, *names: str) -> None:
    for name in names:
        put(root, f"/etc/systemd/system/{name}", "[Mount]\n")


def test_what_was_ours_is_owned_until_it_is_gone(tmp_path: Path) -> None:
    """A run that is killed between record and apply leaves old and new things; both must be removable."""
    root = make_host(tmp_path)
    record(root, plan(root, INTENT))
    put(
        root,
        "/etc/default/grub.d/zzz-firsttouch.cfg",
        "x hugepages=0:30,1:20 isolcpus=managed_irq,domain,1,3 x\n",
    )
    units(root, "mnt-a.mount")
    changed = {
        **INTENT,
        "hugepages": [{"size": "2M", "nodes": {"0": 8}}],
        "hugetlbfs_mounts": [{"path": "/mnt/b"}],
    }
    record(root, plan(root, changed))
    reverted = plan(root, {}, revert=True)
    assert {"hugepages=0:30,1:20", "hugepages=0:8"} <= set(reverted["plan"]["boot"]["owned"])
    assert reverted["units_absent"] == ["mnt-a.mount", "mnt-b.mount"]
    assert reverted["plan"]["boot"]["keys"][:3] == ["default_hugepagesz", "hugepagesz", "hugepages"]
    record(root, reverted)
    again = plan(root, {}, revert=True)
    assert again["units_absent"] == ["mnt-a.mount"], "killed again; mnt-b.mount was never written"
    assert "hugepages=0:30,1:20" in again["plan"]["boot"]["owned"]


def test_what_is_gone_is_forgotten_at_the_next_change(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    put(root, "/etc/default/grub", "GRUB_CMDLINE_LINUX=quiet\n")
    record(root, plan(root, INTENT))
    record(root, plan(root, {**INTENT, "hugetlbfs_mounts": [], "isolated_cpus": "1"}))
    assert load(root, PLAN)["owned"]["hugepages"]["units"] == []
    assert "isolcpus=managed_irq,domain,1,3" not in load(root, PLAN)["boot"]["owned"]
    assert "vm.swappiness" in load(root, BEFORE)["sysctl"]


def test_nothing_is_forgotten_where_no_boot_configuration_can_be_read(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    record(root, plan(root, INTENT))
    record(root, plan(root, {**INTENT, "isolated_cpus": "1"}))
    assert "isolcpus=managed_irq,domain,1,3" in load(root, PLAN)["boot"]["owned"]


def test_a_first_value_goes_when_the_setting_is_given_back(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    record(root, plan(root, INTENT))
    put(root, DROPIN, "vm.swappiness = 0\nkernel.sched_rt_runtime_us = 900000\n")
    without = {**INTENT, "vm_sysctls": []}
    assert record(root, plan(root, without))["before"]["sysctl"]["vm.swappiness"] == "60", (
        "needed to give it back"
    )
    put(root, DROPIN, "kernel.sched_rt_runtime_us = 900000\n")
    assert record(root, plan(root, without))["changed"] is False
    later = record(root, plan(root, {**without, "isolated_cpus": "1"}))["before"]["sysctl"]
    assert later == {"kernel.sched_rt_runtime_us": "950000"}


def test_absent_removes_files_and_empty_directories(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    before = files(root)
    record(root, plan(root, INTENT))
    args = {"state": "absent", "sysroot": str(root)}
    predicted = run_module("plan_record", args, check=True)
    done = run_module("plan_record", args)
    assert predicted["changes"] == done["changes"] and len(done["changes"]) == 2 and done["changed"]
    assert files(root) == before
    assert not (root / "etc/firsttouch").exists() and not (root / "var/lib/firsttouch").exists()
    assert run_module("plan_record", args)["changed"] is False


def test_absent_removes_the_backup_of_the_boot_file(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    record(root, plan(root, INTENT))
    put(root, "/var/lib/firsttouch/grub.cfg.before", "menuentry\n")
    done = run_module("plan_record", {"state": "absent", "sysroot": str(root)})
    assert len(done["changes"]) == 3 and len(done["diff"]) == 2
    assert not (root / "var/lib/firsttouch").exists()


def test_a_revert_in_check_mode_predicts_what_it_forgets(tmp_path: Path) -> None:
    """The run writes plan.json and the copy of grub.cfg once more before it removes them."""
    root = debian(make_host(tmp_path))
    given = {"tokens": record(root, plan(root, INTENT))["plan"]["boot"]["tokens"]}
    run_live(root, StandInMkconfig(root), **given)

    def revert(check: bool) -> list[Any]:
        recorded = record(root, plan(root, {}, revert=True), check=check)
        run = None if check else StandInMkconfig(root)
        boot: Any = run_live(root, run, check=check, state="absent", tokens=[])
        steps = [*recorded["changes"], *boot["changes"]]
        args = {"state": "absent", "sysroot": str(root), "predicted": steps}
        return [*steps, *run_module("plan_record", args, check=check)["changes"]]

    before = files(root)
    predicted = revert(check=True)
    assert files(root) == before
    assert predicted == revert(check=False)
    removed = {row["resource"] for row in predicted if row["after"] is None}
    copy = "/var/lib/firsttouch/grub.cfg.before"
    assert {f"file:{path}" for path in (PLAN, BEFORE, copy)} <= removed
    assert not (root / "etc/firsttouch").exists() and not (root / "var/lib/firsttouch").exists()


def test_what_is_predicted_means_nothing_to_a_real_run(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    record(root, plan(root, INTENT))
    wrong = [{"resource": f"file:{PLAN}", "before": None, "after": "sha256:0"}]
    done = run_module("plan_record", {"state": "absent", "sysroot": str(root), "predicted": wrong})
    assert "sha256:0" not in [row["before"] for row in done["changes"]] and len(done["changes"]) == 2


BLS = "options root=/dev/vda1 ro default_hugepagesz=2M nohz_full=1,3\n"


def test_a_boot_argument_that_was_there_before_us_does_not_become_ours(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    put(root, "/etc/os-release", "ID=rhel\n")
    put(root, "/boot/grub2/grubenv", "# GRUB Environment Block\n" + "#" * 999)
    put(
        root,
        "/etc/default/grub",
        "# isolcpus=managed_irq,domain,1,3 was here once\nGRUB_ENABLE_BLSCFG=true\n",
    )
    put(root, "/boot/loader/entries/one.conf", f"title One\nversion 6.1\nlinux /vmlinuz\n{BLS}")
    result = plan(root, INTENT)
    done = record(root, result)["plan"]
    assert done["boot"]["tokens"] == result["plan"]["boot"]["tokens"]
    missing = [token for token in done["boot"]["tokens"] if token not in done["boot"]["owned"]]
    assert missing == ["default_hugepagesz=2M", "nohz_full=1,3"]
    assert record(root, plan(root, INTENT))["changed"] is False
    reverted = plan(root, {}, revert=True)["plan"]["boot"]
    assert "hugepagesz=2M" in reverted["owned"] and "default_hugepagesz=2M" not in reverted["owned"]


def test_our_own_file_is_not_somebody_elses(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    put(root, "/etc/os-release", "ID=debian\n")
    put(root, "/etc/default/grub", 'GRUB_CMDLINE_LINUX_DEFAULT="quiet nohz_full=1,3"\n')
    line = 'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT rcu_nocbs=1,3"\n'
    put(root, "/etc/default/grub.d/zzz-firsttouch.cfg", line)
    line = "linux /vmlinuz root=/dev/vda1 ro quiet nohz_full=1,3 rcu_nocbs=1,3"
    put(root, "/boot/grub/grub.cfg", f"menuentry 'Debian' {{\n\t{line}\n}}\n")
    owned = record(root, plan(root, INTENT))["plan"]["boot"]["owned"]
    assert "rcu_nocbs=1,3" in owned and "nohz_full=1,3" not in owned


def test_absent_leaves_foreign_files_alone(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    record(root, plan(root, INTENT))
    put(root, "/etc/firsttouch/notes", "mine\n")
    assert run_module("plan_record", {"state": "absent", "sysroot": str(root)})["changed"]
    assert sorted(path.name for path in (root / "etc/firsttouch").iterdir()) == ["notes"]


def test_absent_removes_a_record_that_cannot_be_read(tmp_path: Path) -> None:
    put(tmp_path, PLAN, "{")
    assert run_module("plan_record", {"state": "absent", "sysroot": str(tmp_path)})["changed"]
    assert not (tmp_path / PLAN[1:]).exists()


@pytest.mark.parametrize(("path", "text"), [(PLAN, "{"), (BEFORE, "nonsense"), (BEFORE, '{"schema": 9}')])
def test_a_record_that_cannot_be_read_is_not_replaced(tmp_path: Path, path: str, text: str) -> None:
    root = make_host(tmp_path)
    result = plan(root, INTENT)
    put(root, path, text)
    before = files(root)
    failed = run_module("plan_record", {"plan": result["plan"], "sysroot": str(root)})
    assert (
        failed["failed"]
        and failed["reason"] in ("record_unreadable", "record_newer")
        and path in failed["msg"]
    )
    assert files(root) == before


@pytest.mark.parametrize(
    "wrong", [{}, {"schema": 1}, {"schema": 1, "sections": []}, {"schema": 2, "sections": {}}]
)
def test_what_is_no_plan_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    failed = run_module("plan_record", {"plan": wrong, "sysroot": str(tmp_path)})
    assert failed["failed"] and failed["reason"] == "bad_plan"


def test_before_is_written_before_the_plan(tmp_path: Path) -> None:
    """A kill between the two must not leave a plan whose first-found values were never saved."""
    root = make_host(tmp_path)
    result = plan(root, INTENT)
    real = os.rename
    seen: list[str] = []

    def rename(source: str, target: str) -> None:
        seen.append(os.path.basename(target))
        if len(seen) == 2:
            raise OSError(28, "No space left on device", target)
        real(source, target)

    with mock.patch("os.rename", rename):
        failed = run_module("plan_record", {"plan": result["plan"], "sysroot": str(root)})
    assert failed["failed"] and failed["reason"] == "record_not_written" and "No space left" in failed["msg"]
    assert seen == ["before.json", "plan.json"] and not (root / PLAN[1:]).exists()
    assert record(root, plan(root, INTENT))["before"]["sysctl"]["vm.swappiness"] == "60"


def test_a_group_made_for_us_goes_when_nobody_is_in_it(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    put(root, "/etc/passwd", "root:x:0:0::/root:/bin/sh\n")
    put(root, "/etc/group", "root:x:0:\n")
    assert record(root, plan(root, INTENT))["before"]["groups_absent"] == ["firsttouch"]
    put(root, "/etc/group", "root:x:0:\nfirsttouch:x:990:\n")
    assert record(root, plan(root, INTENT))["groups_unused"] == ["firsttouch"]
    put(root, "/etc/group", "root:x:0:\nfirsttouch:x:990:alice\n")
    assert record(root, plan(root, INTENT))["groups_unused"] == []
    put(root, "/etc/group", "root:x:0:\nfirsttouch:x:990:\n")
    put(root, "/etc/passwd", "root:x:0:0::/root:/bin/sh\nserver:x:990:990::/:/bin/false\n")
    assert record(root, plan(root, INTENT))["groups_unused"] == []


def test_a_group_that_was_there_before_us_stays(tmp_path: Path) -> None:
    root = make_host(tmp_path)
    put(root, "/etc/group", "root:x:0:\nfirsttouch:x:990:\n")
    result = record(root, plan(root, INTENT))
    assert result["before"]["groups_absent"] == [] and result["groups_unused"] == []


@pytest.mark.parametrize(
    "spelling", ["vm.dirty_ratio_x = 5", "vm/dirty_ratio_x=5", "# vm.dirty_ratio = 5", "x.vm.dirty_ratio = 5"]
)
def test_a_key_of_ours_that_only_looks_alike_hides_no_first_value(spelling: str, tmp_path: Path) -> None:
    root = make_host(tmp_path)
    put(root, "/proc/sys/vm/dirty_ratio", "20\n")
    put(root, "/proc/sys/vm/dirty_bytes", "0\n")
    put(root, DROPIN, f"# Managed by firsttouch.host: changes are overwritten.\n{spelling}\n")
    saved = record(root, plan(root, {"vm_sysctls": {"vm.dirty_ratio": 8}}))["before"]["sysctl"]
    assert saved == {"vm.dirty_ratio": "20", "vm.dirty_bytes": "0"}


@pytest.mark.parametrize("spelling", ["vm.dirty_ratio = 8", "vm/dirty_ratio=8", "-vm.dirty_ratio = 8"])
def test_a_value_that_our_own_file_has_set_is_no_first_value(spelling: str, tmp_path: Path) -> None:
    root = make_host(tmp_path)
    put(root, "/proc/sys/vm/dirty_ratio", "8\n")
    put(root, DROPIN, f"# Managed by firsttouch.host: changes are overwritten.\n{spelling}\n")
    assert record(root, plan(root, {"vm_sysctls": {"vm.dirty_ratio": 8}}))["before"]["sysctl"] == {}
