# SPDX-License-Identifier: GPL-3.0-or-later
"""The recorded CPU list troubles through host_plan, kernel_cmdline_info and host_verify, and neighbours of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from support import CASES, case_expected, put, run_module, sysroot_from_tsv

CPU = "/sys/devices/system/cpu"


def lay_out(root: Path, case: str) -> Path:
    """The recorded files of CASE below ROOT."""
    folder = CASES / case
    if (folder / "sysfs.tsv").exists():
        sysroot_from_tsv(root, folder / "sysfs.tsv")
    if (folder / "cmdline").exists():
        put(root, "/proc/cmdline", (folder / "cmdline").read_text())
    return root


def plan(root: Path, isolated: Any) -> dict[str, Any]:
    return run_module("host_plan", {"sysroot": str(root), "intent": {"isolated_cpus": isolated}})


def predicted(root: Path, line: str | None = None) -> dict[str, Any]:
    """What the kernel makes of LINE, or of the line that is there."""
    if line is not None:
        put(root, "/proc/cmdline", line)
    result = run_module("kernel_cmdline_info", {"sysroot": str(root)})
    assert not result.get("failed"), result
    found: dict[str, Any] = result["predicted"]["running"]
    return found


def verify(
    root: Path, isolated: str, tokens: list[str] | None = None, irqbalance: str = "keep"
) -> dict[str, Any]:
    """host_verify of a host whose plan isolates ISOLATED, the isolation alone; results by id."""
    section = {"state": "present", "isolated": isolated, "tokens": tokens or [], "irqbalance": irqbalance}
    document = {"schema": 1, "sections": {"cpu_isolation": section}, "boot": {"tokens": [], "keys": []}}
    result = run_module(
        "host_verify", {"sysroot": str(root), "plan": document, "concerns": ["cpu_isolation"]}
    )
    assert not result.get("failed"), result
    return {row["id"]: row for row in result["results"]}


def status(result: dict[str, Any]) -> str:
    return "fail" if result.get("failed") else "pass"


def test_all_cpus(tmp_path: Path) -> None:
    case = "isolcpus-all-cpus"
    lay_out(tmp_path, case)
    want = case_expected(case)
    requests = (CASES / case / "requests.txt").read_text().split()
    results = {request: plan(tmp_path, request) for request in requests}
    assert {request: status(result) for request, result in results.items()} == want["rows"]
    for request, verdict in want["rows"].items():
        if verdict == "fail":
            assert results[request]["reason"] == want["reason_class"]
    assert sorted(results) == sorted(want["rows"])


def test_all_cpus_in_nohz_full(tmp_path: Path) -> None:
    lay_out(tmp_path, "isolcpus-all-cpus")
    doc = predicted(tmp_path, "isolcpus=1-15 nohz_full=0-15")
    assert (doc["isolation"]["domain"], doc["isolation"]["nohz_full"]) == ("1-15", "1-15")
    rows = [(row["token"], row["reason"]) for row in doc["warnings"]]
    assert rows == [("nohz_full=0-15", "no_housekeeping_cpu")]


def test_beyond_the_last_cpu(tmp_path: Path) -> None:
    case = "isolcpus-beyond-last-cpu"
    lay_out(tmp_path, case)
    request = yaml.safe_load((CASES / case / "request.yml").read_text())["isolated_cpus"]
    result = plan(tmp_path, request)
    doc = predicted(tmp_path)
    assert case_expected(case) == {
        "preflight": status(result),
        "reason_class": result["reason"],
        "first_bad_cpu": result["refusals"][0]["cpu"],
        "predicted_isolated": doc["isolation"]["domain"],
        "predicted_nohz_full": doc["isolation"]["nohz_full"],
    }
    assert "16-300" in result["msg"] and "firsttouch_isolated_cpus" in result["msg"]
    assert doc["ignored"] == ["isolcpus=2-300"]


def test_empty_list(tmp_path: Path) -> None:
    case = "isolcpus-empty-list"
    lay_out(tmp_path, case)
    isolation = predicted(tmp_path)["isolation"]
    row = verify(tmp_path, "4-7")["cpu_isolation.isolated"]
    want = case_expected(case)
    assert want == {
        "flags": isolation["flags"],
        "cpus": isolation["domain"],
        "nohz_full": isolation["nohz_full"],
        "rcu_nocbs": isolation["rcu_nocbs"],
        "verdict_for_4-7": row["status"],
        "args_emitted_for_empty_request": plan(tmp_path, [])["plan"]["boot"]["tokens"],
    }
    assert isolation["managed_irq"] == row["observed"] == ""
    for nothing in ("absent", ""):
        assert plan(tmp_path, nothing)["plan"]["boot"]["tokens"] == []


def test_half_a_core(tmp_path: Path) -> None:
    case = "isolcpus-half-a-core"
    lay_out(tmp_path, case)
    rows = {}
    for request in (CASES / case / "requests.txt").read_text().split():
        result = plan(tmp_path, request)
        rows[request] = {"verdict": status(result)}
        if result.get("failed"):
            assert result["reason"] == "split_core"
            rows[request]["missing_siblings"] = result["refusals"][0]["missing_siblings"]
    assert {"rows": rows} == case_expected(case)


def test_n_includes_hotplug_cpus(tmp_path: Path) -> None:
    case = "isolcpus-n-includes-hotplug-cpus"
    lay_out(tmp_path, case)
    request = yaml.safe_load((CASES / case / "request.yml").read_text())["isolated_cpus"]
    isolation = predicted(tmp_path)["isolation"]
    row = verify(tmp_path, request)["cpu_isolation.isolated"]
    assert case_expected(case) == {
        "kernel_mask": isolation["domain"],
        "online_isolated": isolation["domain_online"],
        "verdict": row["status"],
    }
    assert row["observed"] == "4-15 (and 16-31, not online)"
    assert verify(tmp_path, "4-14")["cpu_isolation.isolated"]["status"] == "fail"


def test_n_of_another_host(tmp_path: Path) -> None:
    case = "isolcpus-n-token-wrong-host"
    lay_out(tmp_path, case)
    put(tmp_path, "/etc/default/irqbalance", (CASES / case / "irqbalance.env").read_text())
    isolation = predicted(tmp_path)["isolation"]
    reversed_range = plan(tmp_path, "4-3")
    row = verify(tmp_path, "4-15")["cpu_isolation.irqbalance"]
    assert case_expected(case) == {
        "4-3": "error" if reversed_range.get("failed") else "ok",
        "4-N": isolation["domain"],
        "irqbalance_verdict": row["status"],
    }
    assert reversed_range["refusals"][0]["cause"] == "reversed_range"
    assert plan(tmp_path, "4-N")["plan"]["sections"]["cpu_isolation"]["isolated"] == "4-15"
    assert (row["reason"], row["source"]) == ("reversed_range", "/etc/default/irqbalance:1")
    assert isolation["nohz_full"] == isolation["rcu_nocbs"] == isolation["managed_irq"] == "4-15"


def test_nohz_mismatch(tmp_path: Path) -> None:
    case = "isolcpus-nohz-mismatch"
    rows = []
    for line in (CASES / case / "cmdlines.txt").read_text().splitlines():
        doc = predicted(tmp_path, line)
        isolation = doc["isolation"]
        rows.append(
            {"domain": isolation["domain"], "nohz": isolation["nohz_full"], "ignored": doc["ignored"]}
        )
    assert {"lines": rows} == case_expected(case)


# Neighbours, on 16 CPUs.
PREFLIGHT = [
    ("0-N:1/1", "fail", "no_housekeeping_cpu"),
    ("0-14,15", "fail", "no_housekeeping_cpu"),
    ("0,1-N", "fail", "no_housekeeping_cpu"),
    ("0", "fail", "boot_cpu_isolated"),
    ("0-3", "fail", "boot_cpu_isolated"),
    ("16", "fail", "cpu_out_of_range"),
    ("1,2,99999999999", "fail", "cpu_out_of_range"),
    ("5-2", "fail", "bad_value"),
    ("a", "fail", "bad_value"),
    ("1-", "fail", "bad_value"),
    ("1;reboot", "fail", "bad_value"),
    ("2-7 nohz_full=2", "fail", "bad_value"),
    (",", "fail", "bad_value"),
    ("2-N", "pass", "2-15"),
    ("8-N,2", "pass", "2,8-15"),
    ("1-15:2/4", "pass", "1-2,5-6,9-10,13-14"),
    ("  4-7 , 9 ", "pass", "4-7,9"),
    ("15,14,13", "pass", "13-15"),
    ([4, 5, "6-7"], "pass", "4-7"),
    (7, "pass", "7"),
]


@pytest.mark.parametrize(
    ("request_", "verdict", "outcome"), PREFLIGHT, ids=[str(row[0]) for row in PREFLIGHT]
)
def test_neighbours_before_any_edit(tmp_path: Path, request_: Any, verdict: str, outcome: str) -> None:
    lay_out(tmp_path, "isolcpus-all-cpus")
    result = plan(tmp_path, request_)
    assert status(result) == verdict, result
    if verdict == "fail":
        assert result["reason"] == outcome
        return
    section = result["plan"]["sections"]["cpu_isolation"]
    assert section["isolated"] == outcome
    assert f"isolcpus=managed_irq,domain,{outcome}" in result["plan"]["boot"]["tokens"]


@pytest.mark.parametrize(
    ("line", "domain", "nohz", "ignored"),
    [
        ("isolcpus=16", "", "", ["isolcpus=16"]),
        ("isolcpus=15 nohz_full=15-16", "15", "", ["nohz_full=15-16"]),
        ("isolcpus=2-3,300 isolcpus=4-5", "4-5", "", ["isolcpus=2-3,300"]),
        ("isolcpus=7-2", "", "", ["isolcpus=7-2"]),
        ("isolcpus=managed_irq,2-3", "", "", []),
        ("isolcpus=managed_irq,domain,2-3,", "2-3", "", []),
        ("isolcpus=managed_irq,,2-3", "", "", []),
        ("nohz_full=2-5 isolcpus=nohz,domain,2-7", "", "2-5", ["isolcpus=nohz,domain,2-7"]),
        ("nohz_full=2-5 isolcpus=domain,2-7", "2-7", "2-5", []),
        ("isolcpus=nohz,2-7 nohz_full=2-7", "", "2-7", []),
        ("isolcpus=2-3 isolcpus=2-3", "2-3", "", []),
        ("isolcpus=2,3 isolcpus=2-3", "2-3", "", []),
        ("isolcpus=domain,1-15 nohz_full=1-N", "1-15", "1-15", []),
        ("isolcpus=0-N", "1-15", "", []),
        ("isolcpus=all", "", "", ["isolcpus=all"]),
        ("isolcpus=4-3 nohz_full=4-N", "", "4-15", ["isolcpus=4-3"]),
    ],
)
def test_neighbours_as_the_kernel_reads_them(
    tmp_path: Path, line: str, domain: str, nohz: str, ignored: list[str]
) -> None:
    lay_out(tmp_path, "isolcpus-all-cpus")
    doc = predicted(tmp_path, line)
    assert (doc["isolation"]["domain"], doc["isolation"]["nohz_full"]) == (domain, nohz)
    assert doc["ignored"] == ignored


@pytest.mark.parametrize(
    ("siblings", "request_", "missing"),
    [
        ({0: "0-1", 2: "2-3"}, "2", "3"),
        ({0: "0-1", 2: "2-3"}, "2-3", None),
        ({0: "0,2", 1: "1,3"}, "3", "1"),
        ({0: "0,2", 1: "1,3"}, "1,3", None),
        ({0: "0-3", 4: "4-7"}, "5-6", "4,7"),
    ],
)
def test_neighbours_of_half_a_core(
    tmp_path: Path, siblings: dict[int, str], request_: str, missing: str | None
) -> None:
    cpus = range(4) if max(siblings) < 4 else range(8)
    put(tmp_path, f"{CPU}/online", f"0-{cpus[-1]}\n")
    for text in siblings.values():
        group = predicted_cpus(text)
        for cpu in group:
            put(tmp_path, f"{CPU}/cpu{cpu}/topology/thread_siblings_list", f"{text}\n")
    result = plan(tmp_path, request_)
    if missing is None:
        assert status(result) == "pass", result
        return
    assert (result["reason"], result["refusals"][0]["missing_siblings"]) == ("split_core", missing)


def predicted_cpus(text: str) -> list[int]:
    """The CPUs of `a-b` or `a,b`."""
    if "-" in text:
        low, high = map(int, text.split("-"))
        return list(range(low, high + 1))
    return [int(part) for part in text.split(",")]


@pytest.mark.parametrize(
    ("text", "status_", "reason"),
    [
        ("IRQBALANCE_BANNED_CPULIST=4-15\n", "pass", ""),
        ("# x\nIRQBALANCE_BANNED_CPULIST=0-15\n", "pass", ""),
        ('IRQBALANCE_BANNED_CPULIST="4-14"\n', "fail", "irq_on_isolated_cpu"),
        ("IRQBALANCE_BANNED_CPULIST=4-N\n", "fail", "syntax"),
        ("IRQBALANCE_BANNED_CPULIST=all\n", "fail", "syntax"),
        ("IRQBALANCE_BANNED_CPUS=fff0\n", "pass", ""),
        ("IRQBALANCE_BANNED_CPUS=0000fff0,\n", "fail", "syntax"),
        ("IRQBALANCE_BANNED_CPUS=ff\nIRQBALANCE_BANNED_CPULIST=4-15\n", "pass", ""),
        ("#IRQBALANCE_BANNED_CPULIST=4-3\nIRQBALANCE_ARGS=\n", "not_applicable", "no_setting"),
        ("IRQBALANCE_BANNED_CPULIST=\n", "not_applicable", "no_setting"),
        (" IRQBALANCE_BANNED_CPULIST = 4-14 \n", "fail", "irq_on_isolated_cpu"),
        ("IRQBALANCE_BANNED_CPULIST=4-14,\\\n15\n", "pass", ""),
        ("IRQBALANCE_BANNED_CPULIST=4-14,\\\n", "fail", "irq_on_isolated_cpu"),
        ("; x\nIRQBALANCE_BANNED_CPULIST='4-14'\",15\"\n", "pass", ""),
        ("IRQBALANCE_ARGS='\nIRQBALANCE_BANNED_CPULIST=4\n'\n", "not_applicable", "no_setting"),
    ],
)
def test_neighbours_of_the_irqbalance_list(tmp_path: Path, text: str, status_: str, reason: str) -> None:
    lay_out(tmp_path, "isolcpus-n-token-wrong-host")
    put(tmp_path, "/etc/sysconfig/irqbalance", text)
    row = verify(tmp_path, "4-15")["cpu_isolation.irqbalance"]
    assert (row["status"], row["reason"]) == (status_, reason)
