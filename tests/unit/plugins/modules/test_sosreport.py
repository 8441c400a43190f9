# SPDX-License-Identifier: GPL-3.0-or-later
"""A host of which there is an sosreport only: what the report has is judged, and of the rest nothing is confirmed."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import verified_host as vh
from ansible_collections.firsttouch.host.plugins.module_utils import _files, _sosreport
from ansible_collections.firsttouch.host.plugins.module_utils._plan import facts_for, make_plan
from ansible_collections.firsttouch.host.plugins.module_utils._tree import Tree
from sosreport_tree import PLUGINS, sosreport
from support import put, run_module

Rows = dict[tuple[str, str], dict[str, Any]]


def verify(root: Path, **more: Any) -> tuple[dict[str, Any], Rows]:
    result = run_module("host_verify", {"sysroot": str(root), **more})
    return result, {(row["id"], row["layer"]): row for row in result.get("results", ())}


@pytest.fixture
def host(tmp_path: Path) -> Path:
    root = tmp_path / "host"
    vh.provisioned_host(root)
    for name, text in (("sys_vendor", "QEMU"), ("product_name", "Standard PC (Q35 + ICH9, 2009)")):
        put(root, f"/sys/devices/virtual/dmi/id/{name}", f"{text}\n")
    (root / "lib").symlink_to("usr/lib")
    (root / "sys/class/dmi").mkdir(parents=True)
    (root / "sys/class/dmi/id").symlink_to("../../devices/virtual/dmi/id")
    return root


JUDGED = {
    "boot.accepted.isolated", "boot.effect.next_boot", "boot.newest_kernel", "boot.tokens.configured",
    "boot.tokens.next_boot", "boot.tokens.running", "cpu_isolation.half_cores", "cpu_isolation.irqbalance.dropin",
    "cpu_isolation.irqs", "cpu_isolation.isolated", "hugepages.mount./dev/hugepages-ft.mode",
    "hugepages.mount./dev/hugepages-ft.page_size", "hugepages.pool.2M.node1", "memory.available", "memory.swap",
    "numa.trust", "units.dev-hugepages\\x2dft.mount.enabled", "units.dev-hugepages\\x2dft.mount.file",
    "vm_sysctls.sysctl.vm.swappiness", "vm_sysctls.watermark_distance",
}  # fmt: skip


# What passes on the host and is not told of in the report: the answer that says why.
ENDED = {
    "boot.reboot_required": ("boot.reboot_required.read", "next_boot"),
    "cpu_isolation.irqbalance": ("cpu_isolation.irqbalance.read", "configured"),
    "cpu_isolation.irqbalance.running": ("cpu_isolation.irqbalance.mode.read", "configured"),
    "cpu_isolation.workqueues": ("cpu_isolation.workqueues.read", "running"),
    "hugepages.stale_files": ("hugepages.stale_files.read", "running"),
    "rt_scheduling.groups": ("rt_scheduling.groups.read", "running"),
}


def test_by_its_documented_layout_what_a_sosreport_has_is_judged_and_nothing_else_passes(
    host: Path, tmp_path: Path
) -> None:
    report = sosreport(host, tmp_path / "sosreport-web-2026-11-30-abcdefg")
    (_there, whole), (result, rows) = verify(host, intent=vh.INTENT), verify(report, intent=vh.INTENT)
    assert not result.get("failed") and result["verdict"] == "incomplete"
    assert {row["status"] for row in rows.values()} <= {"pass", "not_evaluated", "not_applicable"}
    assert {row["id"] for row in rows.values() if row["status"] == "pass"} >= JUDGED
    for key, row in rows.items():
        if row["status"] == "pass" and key in whole:
            assert whole[key]["status"] == "pass" and whole[key]["observed"] == row["observed"], key
        if row["status"] == "not_evaluated" and row["reason"] == "not_recorded":
            path = row["source"].partition(":")[0]
            assert path.startswith("/") and not (report / path[1:]).is_file(), row
    lost = {key[0] for key, row in whole.items() if row["status"] == "pass" and key not in rows}
    assert lost == set(ENDED)
    why = {(rows[read]["status"], rows[read]["reason"]) for read in ENDED.values()}
    assert why == {("not_evaluated", "not_recorded")}


@pytest.mark.parametrize("without", sorted(PLUGINS))
def test_a_plugin_that_did_not_run_takes_its_answers_with_it(host: Path, tmp_path: Path, without: str) -> None:
    put(host, "/proc/cpuinfo", (host / "proc/cpuinfo").read_text().replace(" pse ", " lm pse "))
    whole = {key: row for key, row in verify(host, intent=vh.INTENT)[1].items() if row["status"] == "pass"}
    report = sosreport(host, tmp_path / "report", without=(without,))
    result, rows = verify(report, intent=vh.INTENT)
    assert not [row for row in rows.values() if row["status"] in ("error", "fail", "warn")]
    passed = {key for key, row in rows.items() if row["status"] == "pass" and row["intended"]}
    assert passed <= set(whole)
    # No other plan is held against the host either: arguments of what is left out are the only ones that lack.
    other = {key[0] for key in passed if rows[key]["expected"] != whole[key]["expected"]}
    left_out = {row["id"] for row in rows.values() if row["id"].startswith("plan.refused.")}
    assert all(name.startswith(("boot.", "memory.available")) for name in other) and (left_out or not other), other
    assert result.get("failed") or result["verdict"] != "pass"


BY_NODE: dict[str, Any] = {
    "hugepages by node": {"hugepages": [{"size": "2M", "nodes": {0: 100, 1: 160}}]},
    "hugepages of all nodes": {"hugepages": [{"size": "2M", "count": 260}]},
    "isolated_cpus": {"isolated_cpus": {"housekeeping_per_node": 1}},
    "models": {"models": [{"name": "toy", "source": "/m/toy", "policy": "bind", "nodes": [1]}]},
    "servers": {"servers": [{"name": "policy", "node": 1, "threads": 0, "handler": "m.a:b"}]},
}


@pytest.mark.parametrize("name", BY_NODE)
def test_without_the_plugin_for_nodes_nothing_is_made_up_about_them(host: Path, tmp_path: Path, name: str) -> None:
    report = sosreport(host, tmp_path / "report", without=("numa",))
    intent = {"vm_sysctls": {"vm.swappiness": 0}, **BY_NODE[name]}
    _result, rows = verify(report, intent=intent)
    row = rows[f"plan.refused.{name.split(maxsplit=1)[0]}", "configured"]
    assert (row["status"], row["reason"]) == ("not_evaluated", "not_recorded")
    assert "/sys/devices/system/node" in row["observed"]
    assert not [row for row in rows.values() if row["status"] == "fail"]
    assert {row["id"] for row in rows.values() if row["status"] == "pass" and row["concern"] == "numa"} == set()
    assert rows["vm_sysctls.sysctl.vm.swappiness", "running"]["status"] == "pass"


def test_what_is_planned_from_what_is_not_recorded_is_left_out_with_it(tmp_path: Path) -> None:
    """A mount that reserves pages, without them, or servers without CPUs would be refused: `fail` on a right host."""
    intent = {**vh.EVERYTHING, "isolated_cpus": {"housekeeping_per_node": 1}}
    intent["hugetlbfs_mounts"] = [{"path": "/dev/hugepages-ft", "min_size": "2M"}]
    vh.whole_host(tmp_path / "host")
    report = sosreport(tmp_path / "host", tmp_path / "report", without=("numa",))
    _result, rows = verify(report, intent=intent)
    refused = {row["id"]: (row["status"], row["reason"]) for row in rows.values() if "refused" in row["id"]}
    assert set(refused.values()) == {("not_evaluated", "not_recorded")}
    names = ("hugepages", "hugetlbfs_mounts", "extra_free_bytes", "isolated_cpus", "irqbalance", "models", "servers")
    assert {f"plan.refused.{name}" for name in names} <= set(refused)


def test_a_plan_by_node_has_no_node_too_many_where_the_nodes_are_not_recorded(host: Path, tmp_path: Path) -> None:
    plan = run_module("host_plan", {"sysroot": str(host), "intent": vh.INTENT})["plan"]
    _result, rows = verify(sosreport(host, tmp_path / "report", without=("numa",)), plan=plan)
    row = rows["hugepages.pool.2M", "running"]
    assert (row["status"], row["reason"]) == ("not_evaluated", "unreadable")
    assert rows["numa.planned", "running"]["status"] == "not_evaluated"


def test_what_the_report_shows_to_be_wrong_is_not_excused_as_not_recorded(host: Path, tmp_path: Path) -> None:
    """/proc/sys is in it, so that a sysctl that is not there is none of this kernel, whatever else is missing."""
    intent = {**vh.INTENT, "vm_sysctls": {"vm.swapiness": 0}}
    _result, rows = verify(sosreport(host, tmp_path / "report", without=("numa",)), intent=intent)
    row = rows["plan.refused.vm_sysctls", "configured"]
    assert (row["status"], row["reason"]) == ("fail", "sysctl_unknown")
    row = rows["plan.refused.hugepages", "configured"]
    assert (row["status"], row["reason"]) == ("not_evaluated", "not_recorded")


def test_a_kubelet_that_cannot_be_understood_is_no_gap_of_the_recording(tmp_path: Path) -> None:
    vh.whole_host(tmp_path / "host")
    report = sosreport(tmp_path / "host", tmp_path / "report")
    put(tmp_path / "host", "/etc/systemd/system/kubelet.service", "[Service]\nExecStart=/usr/bin/something\n")
    for root, gap in ((report, True), (tmp_path / "host", False)):
        (refusal,) = make_plan({"kubelet": "present"}, facts_for({"kubelet": "present"}, str(root))).refusals
        assert (refusal.reason, refusal.unrecorded) == ("kubelet_unknown", gap)


def test_the_topology_says_that_it_does_not_know_the_nodes(host: Path, tmp_path: Path) -> None:
    report = sosreport(host, tmp_path / "report", without=("numa",))
    found = run_module("numa_topology_info", {"sysroot": str(report), "expect_nodes": 2})
    assert (found["verdict"], found["reason"]) == ("not_evaluated", "nodes_unknown")
    assert (found["topology"]["source"], found["topology"]["nodes"]) == ("unknown", [])
    assert set(found["node_count"].values()) == {None}
    (warning,) = found["topology"]["warnings"]
    assert warning["reason"] == "not_recorded"


def test_without_any_plugin_nothing_passes(host: Path, tmp_path: Path) -> None:
    result, rows = verify(sosreport(host, tmp_path / "report", without=tuple(PLUGINS)), intent=vh.INTENT)
    assert not [row for row in rows.values() if row["status"] == "pass" and row["intended"]]
    assert result["verdict"] != "pass"


FAULTS: dict[str, tuple[Callable[[Path], Any], str, str, str]] = {
    "a pool is short on a node": (
        lambda root: vh.pool(root, 1, "2048kB", 150), "hugepages.pool.2M.node1", "allocation_short",
        "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages",
    ),
    "nothing is isolated": (
        lambda root: put(root, f"{vh.CPU}/isolated", "\n"), "cpu_isolation.isolated", "kernel_refused",
        f"{vh.CPU}/isolated",
    ),
    "a unit was edited": (
        lambda root: put(root, "/etc/systemd/system/dev-hugepages\\x2dft.mount", "[Mount]\n"),
        "units.dev-hugepages\\x2dft.mount.file", "changed_by_hand", "/etc/systemd/system/dev-hugepages\\x2dft.mount",
    ),
    "the drop-in for GRUB is gone": (
        lambda root: (root / vh.DROPIN[1:]).unlink(), "boot.tokens.configured", "not_configured", "/etc/default/grub",
    ),
    "a sysctl was changed": (
        lambda root: put(root, "/proc/sys/vm/swappiness", "60\n"), "vm_sysctls.sysctl.vm.swappiness", "live_differs",
        vh.SYSCTL,
    ),
    "an interrupt sits on an isolated CPU": (
        lambda root: vh.irq(root, 25, "0-3", "3"), "cpu_isolation.irqs", "irq_on_isolated_cpu",
        "/proc/irq/25/effective_affinity_list",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_shows_in_a_sosreport_as_on_the_host(host: Path, tmp_path: Path, name: str) -> None:
    break_it, identity, reason, source = FAULTS[name]
    break_it(host)
    _result, rows = verify(sosreport(host, tmp_path / "report"), intent=vh.INTENT)
    (row,) = [row for row in rows.values() if row["id"] == identity]
    assert (row["status"], row["reason"], row["source"].partition(":")[0]) == ("fail", reason, source)
    assert "firsttouch_" in row["remedy"]


def test_the_environment_block_that_sos_does_not_copy_leaves_the_next_boot_open(host: Path, tmp_path: Path) -> None:
    """Of Debian's GRUB sos copies grub.cfg and not grubenv, which may name another entry for once."""
    text = (host / vh.GRUB_CFG[1:]).read_text()
    load = "if [ -s $prefix/grubenv ]; then\n  load_env\nfi\n"
    load += 'if [ "${next_entry}" ] ; then\n  set default="${next_entry}"\nfi\n'
    put(host, vh.GRUB_CFG, text.replace('set default="0"\n', f'set default="0"\n{load}'))
    put(host, "/boot/grub/grubenv", "# GRUB Environment Block\n".ljust(1024, "#"))
    _result, rows = verify(sosreport(host, tmp_path / "report"), intent=vh.INTENT)
    row = rows["boot.tokens.next_boot", "next_boot"]
    assert (row["status"], row["source"]) == ("not_evaluated", "/boot/grub/grubenv")
    (host / "boot/grub/grubenv").unlink()
    _result, rows = verify(sosreport(host, tmp_path / "without"), intent=vh.INTENT)
    assert rows["boot.tokens.next_boot", "next_boot"]["status"] == "pass"  # `ls` of /boot says that there is none


def test_everything_of_ours_is_judged_as_far_as_it_goes(tmp_path: Path) -> None:
    vh.whole_host(tmp_path / "host")
    unit = "/etc/systemd/system/firsttouch-server@far.service"
    put(tmp_path / "host", unit, "[Service]\n")
    report = sosreport(tmp_path / "host", tmp_path / "report")
    result, rows = verify(report, intent=vh.EVERYTHING)
    assert [row["source"] for row in rows.values() if row["status"] == "fail"] == [unit]
    assert rows["units.firsttouch-weights@toy.service.file", "configured"]["status"] == "pass"
    for identity in ("plan.refused.kubelet", "plan.refused.conflicting_services", "runtime.removed.read",
                     "runtime.file.models/toy.json"):  # fmt: skip
        (row,) = [row for row in rows.values() if row["id"] == identity]
        assert (row["status"], row["reason"]) == ("not_evaluated", "not_recorded"), identity
    assert result["verdict"] == "fail"


def test_without_variables_there_is_nothing_to_hold_it_against(host: Path, tmp_path: Path) -> None:
    result, _rows = verify(sosreport(host, tmp_path / "report"))
    assert result["failed"] and result["reason"] == "not_recorded"
    assert "/etc/firsttouch/plan.json is not in the sosreport" in result["msg"]


def test_the_folder_above_an_unpacked_report_is_told_from_it(host: Path, tmp_path: Path) -> None:
    (tmp_path / "unpacked").mkdir()
    report = sosreport(host, tmp_path / "unpacked/sosreport-web")
    result, _rows = verify(report.parent, intent=vh.INTENT)
    assert result["failed"] and result["reason"] == "no_sysroot" and str(report) in result["msg"]


def test_absent_and_not_copied_are_two_answers(host: Path, tmp_path: Path) -> None:
    report = str(sosreport(host, tmp_path / "report"))
    assert _files.read_text(report, "/etc/sysctl.d/none.conf") is None
    assert _files.read_text(report, "/proc/self/mounts") is None
    assert not _files.exists(report, "/boot/vmlinuz-1")  # by the listing
    assert _files.list_dir(report, "/efi/loader") is None  # nothing is mounted there
    for path in ("/etc/passwd", "/opt/firsttouch/current", "/run/sysctl.d/x.conf", "/etc/firsttouch", "/proc/1/task"):
        with pytest.raises(OSError, match=_sosreport.UNKNOWN) as caught:
            _files.read_text(report, path)
        assert caught.value.errno == errno.ENODATA, path
    with pytest.raises(OSError, match=_sosreport.UNKNOWN):
        _files.exists(report, f"/boot/vmlinuz-{vh.RELEASE}")
    assert vh.RELEASE in "".join(_files.list_dir(report, "/boot") or ())
    tree = Tree(report)
    assert tree.text("/sys/devices/virtual/workqueue/cpumask") is None and tree.names("/etc") == []
    assert {tree.reason(path) for path in tree.trouble} == {"not_recorded"}


def test_a_cpu_that_the_limit_of_bytes_left_out_is_not_known(host: Path, tmp_path: Path) -> None:
    report = sosreport(host, tmp_path / "report")
    shutil.rmtree(report / "sys/devices/system/cpu/cpu3/topology")
    with pytest.raises(OSError, match=_sosreport.UNKNOWN):
        _files.read_text(str(report), f"{vh.CPU}/cpu3/topology/thread_siblings_list")


@pytest.mark.parametrize("text", ["", "something\n", "sos: 4\n"])
def test_another_tree_is_no_sosreport(tmp_path: Path, text: str) -> None:
    (tmp_path / "sos_commands").mkdir()
    put(tmp_path, "/version.txt", text)
    assert _sosreport.of(str(tmp_path.resolve())) is None
