# SPDX-License-Identifier: GPL-3.0-or-later
"""firsttouch.host.verify as a user runs it: no ansible.cfg, recorded hosts, one host that is not there."""

from __future__ import annotations

import json
import socket
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

import pytest
from sosreport_tree import sosreport
from support import ROOT, put
from verified_host import CPU, INTENT, pool, provisioned_host
from verify_records import HOSTILE

HIDDEN = ROOT / "tests" / "fixtures" / "hosts" / "testhost-hidden.tar.xz"


class Done(NamedTuple):
    """A run of the playbook: its status, what it printed, and the reports' directory."""

    status: int
    out: str
    reports: Path

    @property
    def document(self) -> dict[str, Any]:
        """The report as data."""
        document: dict[str, Any] = json.loads((self.reports / "report.json").read_text())
        return document

    @property
    def states(self) -> dict[str, str]:
        """The state of each host."""
        return {host["name"]: host["state"] for host in self.document["hosts"]}


def files_of(root: Path) -> dict[str, tuple[int, bytes]]:
    """Time and content of every file below ROOT."""
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def unpack(archive: Path, target: Path) -> None:
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(target, filter="tar")
        else:
            tar.extractall(target)


@pytest.fixture(scope="session")
def closed_port() -> Iterator[int]:
    """A loopback port on which nobody listens, held so that nobody else can."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory, closed_port: int) -> Path:
    """A script that prints an inventory: names that no file could hold are possible there."""
    base = tmp_path_factory.mktemp("fleet")
    roots = {name: base / name for name in ("good", "bad", "hidden", "bare", "shut")}
    for name in ("good", "bad", "shut"):
        provisioned_host(roots[name])
    shut = roots["shut"] / "proc/zoneinfo"
    shut.unlink()
    shut.mkdir()  # root reads everything; this it cannot
    pool(roots["bad"], 1, "2048kB", 159)
    put(roots["bad"], "/proc/sys/vm/swappiness", "60\n")
    put(roots["bad"], f"{CPU}/isolated", "1\n")
    unpack(HIDDEN, roots["hidden"])
    roots["bare"].mkdir()
    sleeper = base / "sleeper"
    sleeper.write_text("#!/bin/sh\nexec sleep 20\n")
    sleeper.chmod(0o755)
    ssh = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": closed_port}
    hosts: dict[str, dict[str, Any]] = {
        "good": {"root": str(roots["good"])},
        "same": {"root": str(roots["good"]), **{f"firsttouch_{key}": value for key, value in INTENT.items()}},
        "bad": {"root": str(roots["bad"])},
        "hidden": {"root": str(roots["hidden"]), "firsttouch_rt_runtime_us": 950000},
        "bare": {"root": str(roots["bare"])},
        "shut": {"root": str(roots["shut"])},
        "misspelt": {"root": str(roots["good"]), "firsttouch_hugepage": [{"size": "2M", "count": 1}]},
        "refused": {"root": str(roots["good"]), "firsttouch_hugepages": [{"size": "1G", "count": 4000}]},
        "undefined": {"root": str(roots["good"]), "firsttouch_vm_sysctls": "{{ nobody_set_this }}"},
        "templated": {"root": "{{ nobody_set_this }}"},
        "crash": {"root": str(roots["good"]), "ansible_python_interpreter": "/bin/false"},
        "hangs": {"root": "/", "ansible_python_interpreter": str(sleeper), "firsttouch_verify_timeout": 5},
        HOSTILE: {"root": str(roots["bad"])},
        "dark": {"root": "/", "ansible_ssh_common_args": "-o BatchMode=yes -F none", **ssh},
        "moredark": {"root": "/", "ansible_ssh_common_args": "-o BatchMode=yes -F none", **ssh},
    }
    common = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "firsttouch_verify_sysroot": "{{ root }}",
    }
    inventory = {"_meta": {"hostvars": hosts}, "all": {"hosts": list(hosts), "vars": common}}
    script = base / "inventory" / "hosts.py"
    script.parent.mkdir()
    (base / "inventory.json").write_text(json.dumps(inventory))
    script.write_text(f"#!/bin/sh\nexec cat {base}/inventory.json\n")
    script.chmod(0o755)
    return script


@pytest.fixture
def verify(fleet: Path, ansible_playbook: Any, tmp_path: Path) -> Any:
    def run(
        *arguments: str,
        reports: Path | None = None,
        limit: str = "",
        inventory: bool = True,
        playbook: str = "firsttouch.host.verify",
    ) -> Done:
        where = reports or tmp_path / "reports"
        given = [] if reports else ["-e", f"firsttouch_report_dir={where}"]
        narrow = ["--limit", limit] if limit else []
        hosts = ["-i", str(fleet)] if inventory else []
        done = ansible_playbook(tmp_path, "-f", "6", *hosts, playbook, *narrow, *given, *arguments)
        return Done(done.returncode, done.stdout + done.stderr, where)

    return run


@pytest.mark.parametrize(
    ("limit", "status", "outcome"),
    [
        ("good,same", 0, "pass"),
        ("good,bare", 2, "failed"),
        ("good,shut", 2, "failed"),
        ("dark", 4, "unreachable"),
        ("good,dark", 4, "unreachable"),
        ("bad,good,dark", 2, "failed_and_unreachable"),
    ],
)
def test_the_exit_code_tells_the_outcome(verify: Any, limit: str, status: int, outcome: str) -> None:
    done: Done = verify(limit=limit)
    assert done.status == status, done.out
    assert (done.document["outcome"], done.document["exit_code"]) == (outcome, status)
    assert set(done.states) == set(limit.split(","))


def test_no_host_keeps_another_from_its_answer(verify: Any) -> None:
    done: Done = verify()
    assert done.status == 2, done.out
    assert done.states == {
        "good": "pass",
        "same": "pass",
        "bad": "fail",
        "hidden": done.states["hidden"],
        "bare": done.states["bare"],
        "shut": "incomplete",
        "misspelt": "fail",
        "refused": "fail",
        "undefined": "error",
        "templated": "error",
        "crash": "error",
        "hangs": "error",
        HOSTILE: "fail",
        "dark": "unreachable",
        "moredark": "unreachable",
    }
    by_name = {host["name"]: host for host in done.document["hosts"]}
    assert by_name["bare"]["failed"] and by_name["bare"]["state"] != "pass"
    assert by_name["hidden"]["results"] and by_name["hidden"]["origin"] == "variables"
    assert by_name["good"]["origin"] == "plan.json" and by_name["same"]["origin"] == "variables"
    assert "nobody_set_this" in by_name["undefined"]["message"] + by_name["templated"]["message"]
    refused = {row["id"]: row for row in by_name["refused"]["results"] if row["status"] == "fail"}
    assert "firsttouch_hugepages" in refused["plan.refused.hugepages"]["remedy"]
    assert len(by_name["refused"]["results"]) > 50
    assert "5 second" in by_name["hangs"]["message"]
    failed = {row["id"] for row in by_name["bad"]["results"] if row["status"] == "fail"}
    assert {"hugepages.pool.2M.node1", "cpu_isolation.isolated", "vm_sysctls.sysctl.vm.swappiness"} <= failed
    assert all(row["remedy"] for row in by_name["bad"]["results"] if row["status"] == "fail")
    kept = sorted(path.name for path in (done.reports / "hosts").iterdir())
    assert len(kept) == 15 and all(name.isascii() and "/" not in name for name in kept)
    suites = {suite.get("name"): suite for suite in ET.parse(done.reports / "report.junit.xml").getroot()}
    assert len(suites) == 15 and suites["dark"].get("errors") == "1" and suites["good"].get("failures") == "0"
    page = (done.reports / "report.html").read_text()
    assert "<script>document.title" not in page
    assert "9 of 15 hosts are not as planned, 2 could not be looked at in full, 2 could not be reached" in page
    states = ("PASS", "FAIL", "ERROR", "UNREACHABLE", "INCOMPLETE")
    own = [line for line in done.out.splitlines() if line.startswith(states)]
    assert len(own) == 13 and all(line.isprintable() for line in own)
    assert "Run provision with firsttouch_vm_sysctls" in done.out and str(done.reports / "report.html") in done.out
    assert '"results":' not in done.out


def test_tags_check_their_concerns_only_in_check_mode_too(verify: Any, fleet: Path) -> None:
    before = files_of(fleet.parents[1] / "bad")
    done: Done = verify("--tags", "hugepages", limit="bad")
    (host,) = done.document["hosts"]
    assert done.status == 2 and done.document["concerns"] == ["hugepages"]
    assert {row["concern"] for row in host["results"]} == {"hugepages"}
    dry: Done = verify("--tags", "hugepages", "--check", limit="bad")
    assert dry.status == 2 and dry.document["hosts"][0]["results"] == host["results"]
    assert len(before) > 50 and files_of(fleet.parents[1] / "bad") == before


def test_a_verification_of_no_host_is_no_success(verify: Any, tmp_path: Path) -> None:
    done: Done = verify("-e", "firsttouch_hosts=nobody")
    assert done.status != 0 and "firsttouch_hosts: no host matches nobody" in done.out
    (tmp_path / "empty").write_text("")
    empty: Done = verify("-i", str(tmp_path / "empty"), inventory=False)
    assert empty.status == 2 and "the inventory has no hosts" in empty.out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--skip-tags", "always"), "leave no task"),
        (("--skip-tags", "thp,tagged"), "leave no task"),
        (("-e", "firsttouch_hosts=good", "--limit", "bad"), "no host of good matches bad"),
    ],
)
def test_a_run_without_a_task_or_a_host_is_no_success(verify: Any, arguments: tuple[str, ...], text: str) -> None:
    done: Done = verify(*arguments)
    assert done.status != 0 and text in done.out and not (done.reports / "report.json").exists()


def test_tags_that_choose_nothing_that_is_asked_for_are_no_success(verify: Any) -> None:
    done: Done = verify("--tags", "thp", limit="good")
    assert done.status == 2 and done.states == {"good": "incomplete"}, done.out
    assert "nothing was asked for that could be confirmed" in done.out


def test_what_could_not_be_looked_at_fails_its_host_unless_that_is_allowed(verify: Any) -> None:
    done: Done = verify(limit="shut")
    assert done.status == 2 and done.states == {"shut": "incomplete"}
    assert "INCOMPLETE  shut" in done.out and "could not be evaluated" in done.out
    assert "the host could not be looked at in full" in (done.reports / "report.html").read_text()
    lenient: Done = verify("-e", '{"firsttouch_verify_fail_on": ["fail"]}', limit="shut")
    assert lenient.status == 0 and "Incomplete is not as planned" in lenient.out


def test_an_sosreport_is_verified_by_one_command(verify: Any, fleet: Path, tmp_path: Path) -> None:
    """Made by its documented layout; the variables are those of the host in the inventory."""
    report = sosreport(fleet.parent.parent / "good", tmp_path / "sosreport-same-2026-11-30-abcdefg")
    before = files_of(report)
    arguments = ("-e", f"firsttouch_verify_sysroot={report}")
    done: Done = verify(*arguments, limit="same")
    assert (done.status, done.states) == (2, {"same": "incomplete"}), done.out
    (host,) = done.document["hosts"]
    assert host["counts"]["pass"] > 40 and not host["counts"]["fail"] and not host["counts"]["error"]
    assert "not_recorded [/etc/passwd]" in done.out
    lenient: Done = verify(*arguments, "-e", '{"firsttouch_verify_fail_on": ["fail"]}', limit="same")
    assert lenient.status == 0, lenient.out
    assert files_of(report) == before


def test_a_misspelt_variable_is_named_and_stops_a_rollout_before_its_first_host(verify: Any) -> None:
    done: Done = verify(limit="misspelt")
    (row,) = [row for row in done.document["hosts"][0]["results"] if row["status"] == "fail"]
    assert done.status == 2 and row["id"] == "plan.variables" and row["reason"] == "unknown_variable"
    assert "firsttouch_hugepage (is firsttouch_hugepages meant?)" in row["remedy"]
    rollout: Done = verify(limit="good,misspelt", playbook="firsttouch.host.provision")
    assert rollout.status == 2 and "firsttouch_hugepage (is firsttouch_hugepages meant?)" in rollout.out
    assert "Set for misspelt" in rollout.out and "Plan the host" not in rollout.out


def test_a_misspelt_tag_asks_no_host(verify: Any) -> None:
    done: Done = verify("--tags", "hugepags", limit="bad")
    assert done.status == 2 and "no concern hugepags" in done.out and not (done.reports / "report.json").exists()


def test_warnings_fail_a_host_where_they_shall_and_reports_lie_beside_the_inventory(verify: Any, fleet: Path) -> None:
    variables = {"firsttouch_rt_runtime_us": 950000, "firsttouch_verify_fail_on": ["fail", "warn"]}
    beside = fleet.parent / "firsttouch-report"
    done: Done = verify("-e", json.dumps(variables), limit="hidden", reports=beside)
    (host,) = done.document["hosts"]
    warned, failed = (sum(row["status"] == status for row in host["results"]) for status in ("warn", "fail"))
    assert done.status == 2 and warned and host["failures"] == warned + failed
    assert str(beside / "report.json") in done.out
