# SPDX-License-Identifier: GPL-3.0-or-later
"""host_verify on a recorded host: right as planned, then broken in one way at a time."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any, Callable

import pytest
import verified_host as vh
from ansible_collections.firsttouch.host.plugins.module_utils import _sched
from ansible_collections.firsttouch.host.plugins.module_utils._collect import collect
from broken_hosts import BROKEN, UNIT, remove, replace
from support import put, run_module


@pytest.fixture(scope="session")
def provisioned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("provisioned")
    vh.provisioned_host(root)
    return root


@pytest.fixture
def host(provisioned: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(provisioned, tmp_path, symlinks=True, dirs_exist_ok=True))


def verify(root: Path, **args: Any) -> dict[str, Any]:
    return run_module("host_verify", {"sysroot": str(root), **args})


def by_id(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    rows = {row["id"]: row for row in result["results"]}
    assert len(rows) == len(result["results"]), "two results have one id"
    return rows


def of_status(result: dict[str, Any], *statuses: str) -> list[str]:
    return [row["id"] for row in result["results"] if row["status"] in statuses]


def test_a_host_as_planned_passes(host: Path) -> None:
    result = verify(host)
    assert of_status(result, "fail", "warn", "error") == []
    assert (result["verdict"], result["ok"], result["changed"]) == ("pass", True, False)
    assert {row["layer"] for row in result["results"] if row["status"] == "pass"} == {
        "configured",
        "next_boot",
        "running",
    }


def test_offline_nothing_is_measured(host: Path) -> None:
    row = by_id(verify(host))["rt_scheduling.fifo"]
    assert (row["status"], row["reason"], row["layer"]) == ("not_evaluated", "offline", "measured")


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_broken_in_one_way(host: Path, name: str) -> None:
    how, expected = BROKEN[name]
    how(host)
    result = verify(host)
    rows = by_id(result)
    assert {key: (rows[key]["status"], rows[key]["reason"]) for key in expected if key in rows} == expected
    failed = any(status == "fail" for status, _reason in expected.values())
    assert (result["verdict"] == "fail") is failed
    assert of_status(result, "error") == []
    for row in result["results"]:
        if row["status"] == "fail":
            assert row["source"] or row["reason"] == "not_configured", row


@pytest.mark.parametrize(
    ("text", "reason"), [("", "record_unreadable"), ('{"schema": 1, "int', "record_unreadable"), (None, "record_newer")]
)
def test_a_record_that_cannot_be_used_is_told_beside_an_intent(host: Path, text: str | None, reason: str) -> None:
    plan = json.loads((host / "etc/firsttouch/plan.json").read_text())
    put(host, "/etc/firsttouch/plan.json", json.dumps({**plan, "schema": 99}) if text is None else text)
    assert verify(host)["reason"] == reason
    result = verify(host, intent=vh.INTENT)
    row = by_id(result)["plan.drift"]
    assert (row["status"], row["reason"], row["source"]) == ("not_evaluated", reason, "/etc/firsttouch/plan.json")
    assert result["verdict"] == "incomplete"


@pytest.mark.parametrize("chosen", [{}, {"layers": ["running"], "concerns": ["vm_sysctls"]}])
def test_a_lost_cpu_is_told_and_ends_nothing(host: Path, chosen: dict[str, Any]) -> None:
    put(host, f"{vh.CPU}/online", "0-2\n")
    put(host, f"{vh.CPU}/offline", "3\n")
    put(host, "/proc/sys/vm/swappiness", "60\n")
    result = verify(host, intent=vh.INTENT, **chosen)
    rows = by_id(result)
    refused = rows["plan.refused.isolated_cpus"]
    assert (refused["status"], refused["reason"], refused["source"]) == ("fail", "cpu_offline", "the inventory")
    assert "3" in refused["remedy"] and "firsttouch_isolated_cpus" in refused["remedy"]
    assert rows["vm_sysctls.sysctl.vm.swappiness"]["status"] == "fail", "against the plan that is recorded"
    assert "plan.drift" not in rows
    assert ("hugepages.pool.2M.node0" in rows) is (not chosen)
    assert result["verdict"] == "fail"


def test_two_refusals_on_a_host_without_a_record_are_two_answers(host: Path) -> None:
    (host / "etc/firsttouch/plan.json").unlink()
    wrong = {"vm_sysctls": {"vm.swappiness": "much", "vm.dirty_ratio": "more"}, "isolated_cpus": "7"}
    rows = by_id(verify(host, intent={**vh.INTENT, **wrong}))
    refused = [name for name in rows if name.startswith("plan.refused.")]
    assert {"plan.refused.isolated_cpus", "plan.refused.vm_sysctls", "plan.refused.vm_sysctls.2"} <= set(refused)
    assert {rows[name]["status"] for name in refused} == {"fail"}
    assert rows["plan.sections"]["status"] == "not_evaluated"
    assert "plan.refused" in rows["plan.sections"]["remedy"]


def test_a_refused_variable_counts_although_the_record_calls_it_orphaned(host: Path) -> None:
    plan = json.loads((host / "etc/firsttouch/plan.json").read_text())
    plan["sections"]["cpu_isolation"]["orphaned"] = ["isolated_cpus"]
    put(host, "/etc/firsttouch/plan.json", json.dumps(plan))
    rows = by_id(verify(host, intent={**vh.INTENT, "isolated_cpus": "7"}))
    assert rows["plan.refused.isolated_cpus"]["status"] == "fail"


def test_looking_at_no_layer_is_refused(host: Path) -> None:
    assert (verify(host, layers=[])["failed"], verify(host, layers=[])["reason"]) == (True, "no_layers")


def test_a_sysroot_that_is_not_there_is_no_host(tmp_path: Path) -> None:
    result = verify(tmp_path / "nowhere", intent=vh.INTENT)
    assert (result["failed"], result["reason"]) == (True, "no_sysroot")
    assert str(tmp_path / "nowhere") in result["msg"]


_UNREADABLE = {
    "/proc/irq/default_smp_affinity": "cpu_isolation.default_irq_affinity",
    "/proc/sys/kernel/sched_rt_runtime_us": "rt_scheduling.throttling",
    "/proc/sys/vm/nr_hugepages": "hugepages.counter",
    "/sys/devices/virtual/workqueue/cpumask": "cpu_isolation.workqueues",
    f"{vh.CPU}/isolated": "cpu_isolation.isolated",
    f"{vh.CPU}/cpu1/topology/thread_siblings_list": "cpu_isolation.half_cores",
    "/proc/meminfo": "memory.available",
    "/proc/zoneinfo": "vm_sysctls.watermark_distance",
    "/proc/swaps": "memory.swap",
    "/proc/31/task/31/stat": "cpu_isolation.threads",
    "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages": "hugepages.overcommit.2M",
}


@pytest.mark.parametrize("damage", ["garbage", "loop"])
def test_what_cannot_be_understood_is_neither_right_nor_a_defect(host: Path, damage: str) -> None:
    for path in _UNREADABLE:
        file = host / path[1:]
        file.unlink()
        if damage == "loop":
            file.symlink_to(file.name)
        else:
            file.write_bytes(bytes(range(256)))
    result = verify(host)
    rows = by_id(result)
    for path, name in _UNREADABLE.items():
        row = rows.get(name) or rows[f"{name}.read"]
        assert (row["status"], row["reason"] in ("unreadable", "not_available")) == ("not_evaluated", True), (path, row)
        assert row["source"], row
    assert of_status(result, "error") == []
    assert "as root" not in str([row["remedy"] for row in result["results"] if row["reason"] == "unreadable"])
    assert result["verdict"] != "pass"


@pytest.mark.parametrize("path", [f"{vh.CPU}/online", f"{vh.CPU}/cpu1/topology/thread_siblings_list"])
def test_an_empty_file_about_cpus_confirms_no_whole_core(host: Path, path: str) -> None:
    put(host, f"{vh.CPU}/cpu3/topology/thread_siblings_list", "2-3\n")
    put(host, path, "\n")
    row = by_id(verify(host))["cpu_isolation.half_cores"]
    assert row["status"] == ("fail" if path.endswith("online") else "not_evaluated")


@pytest.mark.parametrize(
    ("running", "following", "siblings", "taking"),
    [
        ("nosmt", "nosmt nosmt", True, []),
        ("quiet", "quiet nosmt", False, []),
        ("quiet", "quiet nosmt", True, ["nosmt"]),
        ('"mem=64G"', "mem=64G", False, []),
        ("quiet", "quiet mem=512G", False, []),
        ("quiet", "quiet mem=4G", False, ["mem=4G"]),
        ("mem=3G", "mem=4G", False, []),
        ("maxcpus=2", "maxcpus=64", False, []),
        ("maxcpus=2", "maxcpus=1", False, ["maxcpus=1"]),
        ("quiet", "nr_cpus=512 possible_cpus=256 maxcpus=4", False, []),
        ("quiet", "nr_cpus=3 possible_cpus=256 maxcpus=2", False, ["nr_cpus=3", "maxcpus=2"]),
    ],
)
def test_only_a_staged_argument_that_takes_hardware_away_fails(
    host: Path, running: str, following: str, siblings: bool, taking: list[str]
) -> None:
    replace(host, "/proc/cmdline", " quiet", f" {running}")
    replace(host, vh.GRUB_CFG, " quiet", f" {following}")
    if siblings:
        for cpu in range(4):
            put(host, f"{vh.CPU}/cpu{cpu}/topology/thread_siblings_list", f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}\n")
    row = by_id(verify(host))["boot.hardware"]
    assert (row["status"], row["observed"]) == ("fail" if taking else "pass", taking)


_SMT_AWAY = (
    *("mitigations=auto,nosmt", "mitigations=auto,nosmt;no_user_user", "l1tf=full", "l1tf=full,force"),
    *("l1tf=flush,nosmt", "mds=full,nosmt", "retbleed=auto,nosmt", "tsx_async_abort=full,nosmt"),
    "mmio-stale-data=full,nosmt",
)
_MEMORY_AWAY = ("memmap=64G$64G", "memmap=4G!12G", "memmap=1M@2M,4K$1M", "memmap=exactmap")
_KEEPS = ("mitigations=auto", "l1tf=flush", "mds=full", "spectre_v2=nosmt", "nosmtx", "memmap=1G@4G")


@pytest.mark.parametrize(
    ("staged", "siblings", "status"),
    [
        *((text, True, "warn") for text in (*_SMT_AWAY, *_MEMORY_AWAY)),
        *((text, True, "pass") for text in _KEEPS),
        *((text, False, "pass") for text in _SMT_AWAY),
        *((text, False, "fail") for text in ("nosmp", "nolapic", "disableapic")),
        ("l1tf=full maxcpus=2", True, "fail"),
    ],
)
def test_what_only_may_take_hardware_away_warns(host: Path, staged: str, siblings: bool, status: str) -> None:
    """By a flaw that not each CPU has, or a range of memory that may be a small one."""
    replace(host, vh.GRUB_CFG, " quiet", " quiet " + staged.replace("$", "\\$").replace(";", "\\;"))
    if siblings:
        for cpu in range(4):
            put(host, f"{vh.CPU}/cpu{cpu}/topology/thread_siblings_list", f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}\n")
    row = by_id(verify(host))["boot.hardware"]
    assert (row["status"], row["observed"]) == (status, staged.split() if status != "pass" else [])


def test_the_source_is_file_and_line(host: Path) -> None:
    put(host, "/etc/sysctl.d/zzz-vendor.conf", "# vendor\n\nvm.swappiness = 10\n")
    row = by_id(verify(host))["vm_sysctls.next_boot.vm.swappiness"]
    assert row["source"] == "/etc/sysctl.d/zzz-vendor.conf:3"
    assert (row["expected"], row["observed"]) == ("0", "10")


@pytest.mark.parametrize(
    ("path", "text", "key", "source"),
    [
        (
            "/etc/default/grub.d/zzzz-vendor.cfg",
            '# vendor\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"\n',
            "boot.tokens.configured",
            "/etc/default/grub.d/zzzz-vendor.cfg:2",
        ),
        (
            "/etc/default/grub",
            'GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX="a\n',
            "boot.problem.1",
            "/etc/default/grub:2",
        ),
    ],
)
def test_the_boot_file_to_blame_is_named(host: Path, path: str, text: str, key: str, source: str) -> None:
    put(host, path, text)
    result = verify(host)
    assert by_id(result)[key]["source"] == source
    assert not result["ok"]


def test_a_contradicting_token_is_named_with_its_place(host: Path) -> None:
    replace(host, vh.GRUB_CFG, "default_hugepagesz=2M", "hugepages=7 default_hugepagesz=2M")
    row = by_id(verify(host))["boot.effect.next_boot"]
    assert "hugepages=7" in row["remedy"]
    assert re.fullmatch(re.escape(vh.GRUB_CFG) + r":\d+", row["source"])


def test_threads_there_are_named_unless_they_are_the_runtime_s_or_the_kernel_s(host: Path) -> None:
    vh.thread(host, 700, "worker", 1)
    vh.thread(host, 700, "worker-io", 3, tid=701)
    put(host, "/proc/700/cgroup", "0::/system.slice/firsttouch-serve@a.service\n")
    vh.thread(host, 800, "may run there", 2)
    assert by_id(verify(host))["cpu_isolation.threads"]["status"] == "pass"
    vh.thread(host, 900, "stress", 3, tid=901)
    put(host, "/proc/900/task/901/status", "Cpus_allowed_list:\t3\n")
    put(host, "/proc/900/cgroup", "0::/user.slice\n")
    row = by_id(verify(host))["cpu_isolation.threads"]
    assert row["observed"] == [
        {"pid": 900, "tid": 901, "command": "stress", "state": "S", "cpu": 3, "allowed": "3"}
    ]
    assert (row["status"], row["source"]) == ("warn", "/proc/900/task/901/stat")
    assert "901" in row["remedy"]


def test_an_interrupt_that_the_kernel_holds_there_is_a_warning(host: Path) -> None:
    vh.irq(host, 25, "0-3", "3")
    vh.irq(host, 24, "3", "3")
    for number in (24, 25):
        put(host, f"/sys/kernel/debug/irq/irqs/{number}", "dstate:   0x1\n  IRQD_AFFINITY_MANAGED\n")
    rows = by_id(verify(host))
    held = rows["cpu_isolation.irqs.held"]
    assert (held["status"], held["reason"], held["observed"][0]["irq"]) == ("warn", "irq_cannot_be_moved", 25)
    managed = rows["cpu_isolation.irqs.managed"]
    assert (managed["status"], managed["observed"][0]["irq"]) == ("pass", 24)
    assert rows["cpu_isolation.irqs"]["status"] == "pass"


def test_an_interrupt_there_is_named_with_the_way_to_move_it(host: Path) -> None:
    vh.irq(host, 25, "0-3", "3")
    row = by_id(verify(host))["cpu_isolation.irqs"]
    assert row["observed"] == [{"irq": 25, "name": "eth0-rx-0, eth0-tx-0", "cpus": "3", "allowed": "0-3"}]
    assert row["source"] == "/proc/irq/25/effective_affinity_list"
    assert "echo 0,2 > /proc/irq/25/smp_affinity_list" in row["remedy"]


def test_what_was_not_recorded_of_the_isolated_cpus_is_not_fine(host: Path) -> None:
    for path in (host / "proc").iterdir():
        if path.name.isdigit():
            shutil.rmtree(path)
    for path in (host / "proc/irq").glob("[0-9]*"):
        shutil.rmtree(path)
    rows = by_id(verify(host))
    for key in ("cpu_isolation.irqs", "cpu_isolation.threads", "boot.accepted.rcu_nocbs"):
        assert (rows[key]["status"], rows[key]["reason"]) == ("not_evaluated", "not_recorded"), key


def test_what_the_running_line_does_not_ask_for_the_kernel_did_not_refuse(host: Path) -> None:
    shutil.rmtree(host / "proc/23")
    replace(host, "/proc/cmdline", " rcu_nocbs=1,3 ", " ")
    replace(host, "/proc/cmdline", " nohz_full=1,3 ", " ")
    rows = by_id(verify(host))
    assert rows["cpu_isolation.rcu_nocbs"]["status"] == "fail"
    assert "boot.accepted.rcu_nocbs" not in rows


def test_files_that_nobody_uses_are_listed_with_what_they_keep(host: Path) -> None:
    for path in (host / "proc").glob("[0-9]*"):
        vh.uses(host, int(path.name))
    left = vh.huge_file(host, "/dev/hugepages-ft/rtemap_0", 4 << 20)
    used = vh.huge_file(host, "/dev/hugepages-ft/used", 2 << 20)
    model = vh.huge_file(host, "/dev/hugepages-ft/model.1", 2 << 20)
    with model.open("r+b") as stream:
        stream.write(b"FTWEIGHT")
    vh.uses(host, 612, used)
    rows = by_id(verify(host))
    stale = rows["hugepages.stale_files"]
    row = {"path": "/dev/hugepages-ft/rtemap_0", "bytes": 4 << 20, "pages": 2, "uid": left.stat().st_uid}
    assert (stale["status"], stale["observed"], stale["source"]) == ("warn", [row], row["path"])
    assert str(4 << 20) in stale["remedy"]
    models = rows["hugepages.stale_files.models"]
    assert (models["status"], [found["path"] for found in models["observed"]]) == (
        "pass",
        ["/dev/hugepages-ft/model.1"],
    )
    left.unlink()
    assert by_id(verify(host))["hugepages.stale_files"]["status"] == "pass"


def test_files_are_not_called_stale_while_a_process_cannot_be_asked(host: Path) -> None:
    vh.huge_file(host, "/dev/hugepages-ft/rtemap_0", 4 << 20)
    row = by_id(verify(host))["hugepages.stale_files"]
    assert (row["status"], row["reason"], row["source"]) == ("not_evaluated", "not_recorded", "/proc/1/maps")
    assert row["observed"][0]["path"] == "/dev/hugepages-ft/rtemap_0"


def test_a_mount_of_a_container_is_told_and_not_looked_into(host: Path) -> None:
    mount = "70 60 0:99 / /huge rw - hugetlbfs none rw,pagesize=2M\n"
    put(host, "/proc/612/mountinfo", mount)
    (host / "proc/612/ns").mkdir()
    (host / "proc/612/ns/mnt").symlink_to("mnt:[4026532000]")
    row = by_id(verify(host))["hugepages.stale_files.pid612:/huge"]
    assert (row["status"], row["reason"], row["source"]) == (
        "not_evaluated",
        "other_mount_namespace",
        "/proc/612/mountinfo",
    )


def test_where_nothing_is_isolated_nothing_sits_there(host: Path) -> None:
    put(host, f"{vh.CPU}/isolated", "\n")
    rows = by_id(verify(host))
    for key in ("cpu_isolation.irqs", "cpu_isolation.threads", "cpu_isolation.workqueues"):
        assert (rows[key]["status"], rows[key]["reason"]) == ("not_evaluated", "not_isolated"), key
    remove(host, "/etc/firsttouch/plan.json")
    rows = by_id(verify(host, plan=vh.plan_for(host, {"vm_sysctls": {"vm.swappiness": 0}})))
    assert rows["cpu_isolation.irqs"]["status"] == "not_applicable"


def test_the_owner_of_a_foreign_argument_is_named_in_each_layer(host: Path) -> None:
    path = "/etc/default/grub.d/40-isolate.cfg"
    put(host, path, '# Ansible managed: isolate.j2\nGRUB_CMDLINE_LINUX="isolcpus=domain,2 skew_tick=1"\n')
    rows = by_id(verify(host))
    mine = {"token": "isolcpus=domain,2", "file": f"{path}:2", "owner": "another role isolate.j2"}
    assert rows["boot.owner.configured"]["observed"] == [mine]
    assert rows["boot.owner.configured"]["source"] == f"{path}:2"
    assert rows["boot.drift.next_boot"]["observed"] == {
        "only_configured": [mine, {**mine, "token": "skew_tick=1"}]
    }
    assert rows["boot.drift.running"]["observed"] == {}


@pytest.mark.parametrize("path", ["/proc/cmdline", vh.GRUB_CFG])
def test_a_page_size_in_other_units_is_no_other_one(host: Path, path: str) -> None:
    replace(host, path, "hugepagesz=2M", "hugepagesz=2048K")
    replace(host, path, "hugepagesz=1G", "hugepagesz=1048576kB")
    assert of_status(verify(host), "fail", "warn") == []
    replace(host, path, "hugepagesz=2048K", "hugepagesz=4096K")
    rows = {name: row["status"] for name, row in by_id(verify(host)).items() if name.startswith("boot.")}
    layer = "running" if path == "/proc/cmdline" else "next_boot"
    assert rows[f"boot.tokens.{layer}"] == rows["boot.pending_reboot"] == "fail", rows
    assert rows[f"boot.drift.{layer}"] == "warn", rows


def test_our_own_drift_names_the_variable(host: Path) -> None:
    replace(host, "/proc/cmdline", " nohz_full=1,3", "")
    row = by_id(verify(host))["boot.drift.running"]
    assert [(found["token"], found["owner"]) for found in row["observed"]["only_next_boot"]] == [
        ("nohz_full=1,3", "firsttouch.host")
    ]
    assert "firsttouch_isolated_cpus" in row["remedy"]


def test_without_a_readable_entry_nothing_is_said_of_packages(host: Path) -> None:
    remove(host, vh.GRUB_CFG)
    put(host, "/var/lib/dkms/zfs/2.1/6.1.0/x86_64/module/zfs.ko", "")
    rows = by_id(verify(host))
    for key in ("boot.newest_kernel", "boot.initrd", "boot.driver.zfs", "boot.drift.next_boot"):
        assert rows[key]["status"] == "not_evaluated", key


def test_zone_reclaim_that_the_plan_asks_for_is_a_sysctl_like_others(host: Path) -> None:
    put(host, "/proc/sys/vm/zone_reclaim_mode", "1\n")
    plan = vh.plan_for(host, {**vh.INTENT, "vm_sysctls": {"vm.zone_reclaim_mode": 0}})
    rows = by_id(verify(host, plan=plan))
    assert "memory.zone_reclaim" not in rows
    assert rows["vm_sysctls.sysctl.vm.zone_reclaim_mode"]["status"] == "fail"
    put(host, f"{vh.NODE}/has_memory", "0\n")
    assert by_id(verify(host))["memory.zone_reclaim"]["status"] == "not_applicable"


def test_minus_one_is_a_value(host: Path) -> None:
    plan = vh.plan_for(host, {"rt_runtime_us": -1})
    put(host, "/proc/sys/kernel/sched_rt_runtime_us", "-1\n")
    put(host, vh.SYSCTL, "kernel.sched_rt_runtime_us = -1\n")
    result = verify(host, plan=plan)
    rows = by_id(result)
    assert rows["rt_scheduling.sysctl.kernel.sched_rt_runtime_us"]["status"] == "pass"
    note = rows["rt_scheduling.throttling"]
    assert (note["status"], note["reason"]) == ("pass", "rt_throttling_off")


def test_an_unmanaged_concern_never_fails(host: Path) -> None:
    remove(host, "/etc/firsttouch/plan.json")
    plan = vh.plan_for(host, {"vm_sysctls": {"vm.swappiness": 0}})
    put(host, f"{vh.CPU}/cpu0/topology/thread_siblings_list", "0-1\n")
    put(host, f"{vh.CPU}/cpu1/topology/thread_siblings_list", "0-1\n")
    put(host, "/proc/sys/kernel/sched_rt_runtime_us", "-1\n")
    put(host, "/proc/irq/default_smp_affinity", "f\n")
    rows = by_id(verify(host, plan=plan))
    assert [key for key, row in rows.items() if row["status"] == "fail"] == []
    for key in ("cpu_isolation.half_cores", "rt_scheduling.throttling", "cpu_isolation.default_irq_affinity"):
        assert rows[key]["status"] == "warn", key


def test_what_is_to_go_must_be_gone(host: Path) -> None:
    absent = {**vh.INTENT, "isolated_cpus": "absent", "irqbalance": "absent"}
    rows = by_id(verify(host, intent=absent))
    for layer in ("configured", "next_boot", "running"):
        row = rows[f"boot.removed.{layer}"]
        assert (row["status"], row["reason"]) == ("fail", "not_removed")
        assert row["observed"] == [
            "isolcpus=managed_irq,domain,1,3",
            "nohz_full=1,3",
            "rcu_nocbs=1,3",
            "irqaffinity=0,2",
        ]
    tokens = " ".join(vh.plan_for(host, absent)["boot"]["tokens"])
    vh.grub_cfg(host, f"quiet {tokens}")
    put(host, vh.DROPIN, f'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT {tokens}"\n')
    rows = by_id(verify(host, intent=absent))
    assert rows["boot.removed.next_boot"]["status"] == "pass"
    assert rows["boot.removed.running"]["reason"] == "pending_reboot"
    assert rows["boot.pending_reboot"]["status"] == "fail"
    replace(
        host,
        "/proc/cmdline",
        " isolcpus=managed_irq,domain,1,3 nohz_full=1,3 rcu_nocbs=1,3 irqaffinity=0,2",
        "",
    )
    rows = by_id(verify(host, intent=absent))
    assert {rows[f"boot.removed.{layer}"]["status"] for layer in ("configured", "next_boot", "running")} == {
        "pass"
    }
    assert rows["boot.pending_reboot"]["status"] == "pass"


def test_units_and_keys_that_are_to_go_must_be_gone(host: Path) -> None:
    absent = {**vh.INTENT, "hugetlbfs_mounts": "absent", "vm_sysctls": "absent"}
    keys = {"units.dev-hugepages\\x2dft.mount.removed", "vm_sysctls.removed.vm.swappiness"}
    rows = by_id(verify(host, intent=absent))
    assert {
        key for key in keys if (rows[key]["status"], rows[key]["reason"]) == ("fail", "not_removed")
    } == keys
    assert rows["vm_sysctls.removed.vm.swappiness"]["source"].startswith(f"{vh.SYSCTL}:")
    remove(host, UNIT)
    remove(host, vh.SYSCTL)
    rows = by_id(verify(host, intent=absent))
    assert {rows[key]["status"] for key in keys} == {"pass"}


def test_what_no_variable_asks_for_any_more_is_at_most_a_warning(host: Path) -> None:
    vh.pool(host, 1, "2048kB", 0)
    put(host, f"{vh.CPU}/isolated", "\n")
    put(host, "/proc/sys/vm/swappiness", "60\n")
    result = verify(host, intent={"vm_sysctls": vh.INTENT["vm_sysctls"]})
    rows = by_id(result)
    assert of_status(result, "fail") == ["vm_sysctls.sysctl.vm.swappiness"]
    assert rows["hugepages.pool.2M.node1"]["status"] == "warn"
    assert rows["cpu_isolation.isolated"]["status"] == "warn"
    assert rows["plan.orphaned.hugepages"]["observed"] == [
        "firsttouch_hugepages",
        "firsttouch_hugetlbfs_mounts",
    ]


def test_without_plan_and_intent_nothing_is_ok(tmp_path: Path) -> None:
    result = verify(vh.bare_host(tmp_path))
    row = by_id(result)["plan.sections"]
    assert (row["status"], row["reason"], row["source"]) == (
        "not_evaluated",
        "no_plan",
        "/etc/firsttouch/plan.json",
    )
    assert (result["ok"], result["verdict"]) == (False, "incomplete")


def test_an_empty_tree_is_not_ok(tmp_path: Path) -> None:
    plan = vh.plan_for(vh.bare_host(tmp_path / "host"), vh.INTENT)
    empty = tmp_path / "empty"
    empty.mkdir()
    result = verify(empty, plan=plan)
    assert not result["ok"]
    assert [row["id"] for row in result["results"] if row["intended"] and row["status"] == "pass"] == []
    assert of_status(result, "error") == []


def test_what_a_recording_left_out_is_not_wrong(host: Path) -> None:
    plan = json.loads((host / "etc/firsttouch/plan.json").read_text())
    shutil.rmtree(host / "etc")
    shutil.rmtree(host / "usr")
    result = verify(host, plan=plan)
    rows = by_id(result)
    for key in (
        "units.dev-hugepages\\x2dft.mount.file",
        "vm_sysctls.next_boot.vm.swappiness",
        "cpu_isolation.irqbalance.mode",
        "hugepages.mount./dev/hugepages-ft.group",
        "boot.tokens.configured",
    ):
        assert (rows[key]["status"], rows[key]["reason"]) == ("not_evaluated", "not_recorded"), key
    assert of_status(result, "fail") == []
    assert not result["ok"]


def test_a_bare_host_fails_without_an_error(tmp_path: Path) -> None:
    result = verify(vh.bare_host(tmp_path), intent=vh.INTENT)
    assert result["verdict"] == "fail"
    assert of_status(result, "error") == []
    assert by_id(result)["hugepages.pool.2M.node1"]["observed"] == 0


def test_the_intent_gives_the_same_answers_as_the_record(host: Path) -> None:
    result, recorded = verify(host, intent=vh.INTENT), verify(host)
    assert by_id(result)["plan.drift"]["status"] == "pass"
    rest = [row for row in result["results"] if row["id"] != "plan.drift"]
    assert rest == recorded["results"]


def test_what_manages_nothing_is_added_to_the_recorded_intent(host: Path) -> None:
    recorded = verify(host)
    result = verify(host, intent={"numa": {"nodes": 7}})
    found = by_id(result)
    assert (found["numa.nodes"]["status"], found["numa.nodes"]["expected"]) == ("fail", 7)
    same = [row for row in recorded["results"] if row["concern"] == "vm_sysctls"]
    assert same and [row for row in result["results"] if row["concern"] == "vm_sysctls"] == same


def test_another_intent_than_the_record_is_drift(host: Path) -> None:
    result = verify(host, intent={**vh.INTENT, "vm_sysctls": {"vm.swappiness": 1}})
    row = by_id(result)["plan.drift"]
    assert (row["status"], row["reason"], row["observed"]) == ("warn", "plan_drift", ["vm_sysctls"])
    assert by_id(result)["vm_sysctls.sysctl.vm.swappiness"]["status"] == "fail"


def test_an_intent_that_does_not_fit_fails_where_that_is_asked_for(host: Path) -> None:
    result = verify(host, intent={"isolated_cpus": "0-99"}, fail=True)
    assert (result["failed"], result["reason"]) == (True, "verification_failed")
    assert "fail plan.refused.isolated_cpus" in result["msg"] and "firsttouch_isolated_cpus" in result["msg"]


def test_a_record_that_is_no_json_is_an_error(host: Path) -> None:
    put(host, "/etc/firsttouch/plan.json", "{")
    result = verify(host)
    assert (result["failed"], result["reason"]) == (True, "record_unreadable")


def test_layers_and_concerns_are_filters(host: Path) -> None:
    result = verify(host, layers=["running"], concerns=["rt_scheduling", "hugepages"])
    assert {row["layer"] for row in result["results"]} == {"running"}
    assert {row["concern"] for row in result["results"]} == {"rt_scheduling", "hugepages"}


def test_fail_is_asked_for(host: Path) -> None:
    vh.pool(host, 1, "2048kB", 159)
    assert not verify(host).get("failed")
    result = verify(host, fail=True)
    assert (result["failed"], result["reason"]) == (True, "verification_failed")
    assert "hugepages.pool.2M.node1" in result["msg"]
    assert "159" in result["msg"]
    assert result["results"]


def test_warnings_fail_only_when_asked(host: Path) -> None:
    put(host, "/proc/swaps", "Filename Type Size Used Priority\n/swapfile file 1 0 -2\n")
    assert not verify(host, fail=True).get("failed")
    assert verify(host, fail=True, fail_on=["fail", "warn"])["failed"]


def test_what_was_asked_for_and_could_not_be_read_can_fail(host: Path) -> None:
    strict = ["fail", "not_evaluated"]
    assert of_status(verify(host), "not_evaluated")
    assert not verify(host, fail=True, fail_on=strict).get("failed")
    remove(host, "/proc/irq/default_smp_affinity")
    assert not verify(host, fail=True).get("failed")
    assert verify(host, fail=True, fail_on=strict)["failed"]


def test_a_check_that_breaks_is_an_error_and_ends_nothing(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ansible_collections.firsttouch.host.plugins.module_utils import _hugepages

    def broken(root: str) -> Any:
        raise KeyError("surprise")

    whole = verify(host)
    monkeypatch.setattr(_hugepages, "read_pools", broken)
    result = verify(host, fail=True)
    assert (result["verdict"], result["failed"]) == ("fail", True)
    assert "surprise" in by_id(result)["hugepages.pool.read"]["observed"]
    missing = {row["id"] for row in whole["results"]} - set(by_id(result))
    kinds = {"pool", "available", "surplus", "overcommit", "counter"}
    assert all(key.split(".")[:1] == ["hugepages"] and key.split(".")[1] in kinds for key in missing)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to drop privileges")
def test_what_an_unprivileged_user_cannot_read_is_not_evaluated(host: Path) -> None:
    irq, thread = "/proc/irq/25/effective_affinity_list", "/proc/612/task/612/stat"
    closed = ["/boot/grub/grub.cfg", "/proc/sys/vm/swappiness", vh.SYSCTL, "/proc/self/mountinfo", irq, thread]
    for directory in [host, *host.parents]:
        if Path(tempfile.gettempdir()) in directory.parents:
            directory.chmod(0o755)
    for path in closed:
        (host / path.lstrip("/")).chmod(0)
    result = _as_nobody(lambda: verify(host))
    rows = by_id(result)
    assert result["verdict"] in ("fail", "incomplete")
    assert of_status(result, "error") == []
    for key, path in (
        ("vm_sysctls.sysctl.vm.swappiness", "/proc/sys/vm/swappiness"),
        ("vm_sysctls.next_boot.vm.swappiness", vh.SYSCTL),
        ("hugepages.mount.read", "/proc/self/mountinfo"),
        ("boot.tokens.next_boot", "/boot/grub/grub.cfg"),
        ("boot.pending_reboot", "/boot/grub/grub.cfg"),
        ("boot.newest_kernel", "/boot/grub/grub.cfg"),
        ("hugepages.stale_files.read", "/proc/self/mountinfo"),
        ("cpu_isolation.irqs", irq),
        ("cpu_isolation.threads", thread),
    ):
        assert (rows[key]["status"], rows[key]["reason"]) == ("not_evaluated", "permission_denied"), key
        assert rows[key]["source"] == path


FIFOS = (
    "/etc/sysctl.d/50-x.conf",
    "/etc/sysctl.conf",
    "/etc/default/grub",
    "/etc/default/grub.d/50-x.cfg",
    "/etc/tmpfiles.d/x.conf",
    "/etc/systemd/system/x.service",
    "/etc/systemd/system/dev-hugepages\\x2dft.mount",
    "/etc/tuned/active_profile",
    "/etc/fstab",
    "/etc/group",
    "/etc/firsttouch/plan.json",
    "/boot/grub/grub.cfg",
    "/boot/grub/grubenv",
    "/proc/sys/vm/swappiness",
    "/proc/cmdline",
    "/proc/meminfo",
    "/proc/zoneinfo",
    "/proc/self/mountinfo",
    "/proc/612/environ",
    "/proc/612/maps",
    "/sys/devices/system/cpu/isolated",
    "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
    "/var/lib/dpkg/status",
)


class Waited(BaseException):
    """No check may catch it, as it does an OSError."""


@pytest.mark.parametrize("path", FIFOS)
def test_no_reader_waits_for_what_is_no_file(host: Path, path: str) -> None:
    def waited(_signal: int, _frame: object) -> None:
        raise Waited(path)

    target = host / path.lstrip("/")
    target.unlink(missing_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(target)
    before = signal.signal(signal.SIGALRM, waited)
    signal.alarm(20)
    try:
        result = verify(host)
        recording = collect(str(host))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert result.get("failed") or not [row for row in result["results"] if row["status"] == "error"]
    assert recording.archive


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to drop privileges")
def test_what_is_closed_hides_neither_a_drop_in_nor_stale_files(host: Path) -> None:
    put(host, "/etc/default/grub.d/zzzz-vendor.cfg", 'GRUB_CMDLINE_LINUX_DEFAULT="quiet"\n')
    put(host, "/dev/hugepages-ft/stale", "x")
    for directory in [host, *host.parents]:
        if Path(tempfile.gettempdir()) in directory.parents:
            directory.chmod(0o755)
    for path in ("boot/grub/grub.cfg", "dev/hugepages-ft"):
        (host / path).chmod(0)
    rows = by_id(_as_nobody(lambda: verify(host)))
    row = rows["boot.tokens.configured"]
    assert (row["reason"], row["source"]) == ("overridden_by_dropin", "/etc/default/grub.d/zzzz-vendor.cfg:1")
    stale = [row for name, row in rows.items() if name.startswith("hugepages.stale_files")]
    assert ("not_evaluated", "permission_denied") in [(row["status"], row["reason"]) for row in stale]
    assert "pass" not in [row["status"] for row in stale]


@pytest.mark.parametrize("path", ["/etc/tmpfiles.d/x.conf", "/run/tmpfiles.d", "/etc/tuned/active_profile"])
def test_a_file_of_another_writer_that_cannot_be_read_hides_no_sysctl(host: Path, path: str) -> None:
    closed = host / path.lstrip("/")
    closed.parent.mkdir(parents=True, exist_ok=True)
    closed.symlink_to(closed.name)
    rows = by_id(verify(host))
    assert rows["vm_sysctls.next_boot.vm.swappiness"]["status"] == "pass"
    kind = "tmpfiles" if "tmpfiles" in path else "other_writers"
    row = rows[f"vm_sysctls.{kind}.vm.swappiness"]
    assert (row["status"], row["source"], row["intended"]) == ("not_evaluated", path, False)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to drop privileges")
def test_a_sysroot_that_cannot_be_listed_is_looked_into_all_the_same(tmp_path: Path) -> None:
    for directory in [tmp_path, *tmp_path.parents]:
        if Path(tempfile.gettempdir()) in directory.parents:
            directory.chmod(0o711)
    listed = verify(tmp_path, plan={"sections": {}})
    result = _as_nobody(lambda: verify(tmp_path, plan={"sections": {}}))
    assert (result.get("failed"), result["verdict"]) == (listed.get("failed"), "incomplete")


def _as_nobody(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """CALL's result, made in a child that runs as an unprivileged user."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            os.write(writer, json.dumps(call()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        data = stream.read()
    os.waitpid(child, 0)
    result: dict[str, Any] = json.loads(data)
    return result


def test_nothing_is_written(host: Path) -> None:
    def state() -> dict[str, tuple[str, float]]:
        return {
            str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime)
            for path in host.rglob("*")
            if path.is_file()
        }

    before = state()
    verify(host)
    run_module("host_verify", {"sysroot": str(host), "intent": vh.INTENT}, check=True)
    assert state() == before


def test_check_mode_gives_the_same(host: Path) -> None:
    vh.pool(host, 1, "2048kB", 159)
    assert run_module("host_verify", {"sysroot": str(host)}, check=True)["results"] == verify(host)["results"]


FIFO_PLAN = {
    "sections": {"rt_scheduling": {"state": "present", "sysctls": {"kernel.sched_rt_runtime_us": "950000"}}}
}


@pytest.mark.parametrize(
    ("attempt", "status", "reason"),
    [
        (_sched.FifoAttempt(True, "", "/", True), "pass", ""),
        (_sched.FifoAttempt(False, "EPERM", "/user.slice", True), "fail", "fifo_refused"),
        (_sched.FifoAttempt(False, "EPERM", "/user.slice", False), "not_evaluated", "permission_denied"),
        (_sched.FifoAttempt(None, "timeout", "/", True), "not_evaluated", "timeout"),
    ],
)
def test_the_attempt_decides(
    monkeypatch: pytest.MonkeyPatch, attempt: _sched.FifoAttempt, status: str, reason: str
) -> None:
    monkeypatch.setattr(_sched, "try_fifo", lambda **kwargs: attempt)
    result = verify(Path("/"), plan=FIFO_PLAN, layers=["measured"], concerns=["rt_scheduling"])
    assert [(row["id"], row["status"], row["reason"]) for row in result["results"]] == [
        ("rt_scheduling.fifo", status, reason)
    ]
    assert result["results"][0]["observed"]["cgroup"] == attempt.cgroup


def test_nothing_is_tried_when_the_measured_layer_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    def tried(**kwargs: Any) -> Any:
        raise AssertionError("the host was disturbed")

    monkeypatch.setattr(_sched, "try_fifo", tried)
    result = verify(Path("/"), plan=FIFO_PLAN, layers=["configured", "next_boot", "running"])
    assert of_status(result, "error") == []
