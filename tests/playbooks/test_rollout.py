# SPDX-License-Identifier: GPL-3.0-or-later
"""firsttouch.host.provision and revert batch by batch. A hook ends each host before anything of it is looked at, and no
host has a Python, so that nothing can be changed whatever happens."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml
from support import ROOT

HOSTS = [f"n{number:02}" for number in range(1, 21)]
HOOK = """
- name: Tell the batch
  ansible.builtin.debug:
    msg: "batch={{ ansible_play_batch | join(',') }}="
- name: Break one host
  ansible.builtin.fail:
    msg: broken
  when: inventory_hostname in broken | default([])
- name: Leave the others alone
  ansible.builtin.meta: end_host
"""


@pytest.fixture
def rollout(ansible_playbook: Any, tmp_path: Path) -> Any:
    """Run a playbook of the collection; the answer is the status, the batches in their order, and what was printed."""
    folder = tmp_path / "inventory"
    (folder / "hooks").mkdir(parents=True)
    (folder / "hooks/before.yml").write_text(HOOK)

    def run(
        *words: str, playbook: str = "provision", own: Any = MappingProxyType({}), **variables: Any
    ) -> tuple[int, list[list[str]], str]:
        common = {
            "ansible_connection": "local",
            "ansible_python_interpreter": "/bin/false",
            "ansible_become": False,
            "firsttouch_hook_before": "hooks/before.yml",
            **variables,
        }
        inventory = {"all": {"hosts": {host: own.get(host, {}) for host in HOSTS}, "vars": common}}
        (folder / "hosts.json").write_text(json.dumps(inventory))
        hosts = ["-f", "4", "-i", str(folder / "hosts.json")]
        done = ansible_playbook(tmp_path, *hosts, f"firsttouch.host.{playbook}", *words)
        batches = list(dict.fromkeys(re.findall(r"batch=([\w,]*)=", done.stdout)))
        return done.returncode, [batch.split(",") for batch in batches], done.stdout + done.stderr

    return run


@pytest.mark.parametrize("playbook", ["provision", "revert"])
def test_the_batches_are_literally_these(playbook: str) -> None:
    checked, rolled = yaml.safe_load((ROOT / "playbooks" / f"{playbook}.yml").read_text())
    assert checked["ansible.builtin.import_playbook"] == "rollout_check.yml"
    assert rolled["serial"] == "{{ firsttouch_serial | default([1, '10%', '25%']) }}"
    assert rolled["max_fail_percentage"] == 0


def test_one_host_then_a_tenth_then_quarters(rollout: Any) -> None:
    status, batches, out = rollout()
    assert status == 0, out
    assert [len(batch) for batch in batches] == [1, 2, 5, 5, 5, 2]
    assert [host for batch in batches for host in batch] == HOSTS


def test_a_host_that_fails_stops_the_rollout_after_its_batch(rollout: Any) -> None:
    """The fifth host is of the third batch: its neighbours go through their hook, the batches after it do not begin."""
    status, batches, out = rollout(broken=["n05"])
    assert status == 2, out
    assert batches == [HOSTS[:1], HOSTS[1:3], HOSTS[3:8]]
    assert "Run the hook before a host" not in out.rpartition("Stop the rollout at a failed host")[2]
    assert "broken. The host stays out of service; the hosts of later batches are untouched." in out


@pytest.mark.parametrize(
    ("words", "sizes"),
    [(["-e", "firsttouch_serial=7"], [7, 7, 6]), (["-e", '{"firsttouch_serial": ["50%"]}'], [10, 10])],
)
def test_the_command_line_sets_other_batches(rollout: Any, words: list[str], sizes: list[int]) -> None:
    status, batches, out = rollout(*words)
    assert status == 0, out
    assert [len(batch) for batch in batches] == sizes


@pytest.mark.parametrize("playbook", ["provision", "revert"])
@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"firsttouch_serial": 7}, "firsttouch_serial is set in the inventory (of n01, n02, n03, n04, n05)"),
        (
            {"firsttouch_hook_after": "hooks/after.yml"},
            "firsttouch_hook_after: 'hooks/after.yml' is not a file",
        ),
    ],
)
def test_the_first_task_refuses(rollout: Any, playbook: str, variables: dict[str, Any], reason: str) -> None:
    status, batches, out = rollout(playbook=playbook, **variables)
    assert status == 2, out
    assert batches == []
    assert reason in " ".join(out.split())
    assert "PLAY [Provision]" not in out and "PLAY [Revert]" not in out


@pytest.mark.parametrize("playbook", ["provision", "revert"])
def test_a_host_runs_its_own_hook_whatever_the_first_host_has(rollout: Any, playbook: str) -> None:
    """Without one of its own a host goes on to its roles, where it fails for want of a Python."""
    own = {"n02": {"firsttouch_hook_before": "hooks/before.yml"}, "n03": {"firsttouch_hook_before": ""}}
    limit = ["--limit", "n01,n02,n03", "-e", "firsttouch_serial=3"]
    status, batches, out = rollout(*limit, playbook=playbook, own=own, firsttouch_hook_before=None)
    assert status == 2 and batches == [["n01", "n02", "n03"]], out
    told = re.findall(r"ok: \[(n\d+)\] => \{\s*.msg.: .batch=", out)
    assert told == ["n02"], out
    failed = re.findall(r"fatal: \[(n\d+)\]: FAILED! => .*The hosts of later batches are untouched", out)
    assert sorted(failed) == ["n01", "n03"] and "out of service" not in out, out


def test_what_is_refused_is_told_by_the_task_that_refuses_and_to_the_failure_hook(rollout: Any, tmp_path: Path) -> None:
    """In check mode, and refused before anything else: of this machine only the memory is looked at."""
    asked = {
        "firsttouch_hugepages": [{"size": "1G", "count": 1 << 40}],
        "firsttouch_hook_before": None,
        "firsttouch_hook_failed": "hooks/failed.yml",
    }
    (tmp_path / "inventory/hooks/failed.yml").write_text(
        "- name: Page\n  ansible.builtin.debug:\n    msg: 'page={{ __firsttouch_failure }}='\n"
    )
    words = ["--check", "--limit", "n01"]
    status, _batches, out = rollout(*words, **asked, ansible_python_interpreter=sys.executable)
    told, stopped = " ".join(out.split()).split("TASK [Stop the rollout at a failed host]")
    assert status == 2 and f"{1 << 40} pages of 1G" in told, out
    assert f"{1 << 40} pages of 1G" not in stopped, out
    reasons = "refused for pages_exceed_node, no_aligned_slots"
    assert f"{reasons}. The hosts of later batches are not looked at." in stopped, out
    assert "out of service" not in out
    (page,) = re.findall("page=(.*)=", told)
    assert "firsttouch_hugepages: " in page and f"{1 << 40} pages of 1G" in page and "ask for fewer pages" in page, page


@pytest.mark.parametrize("playbook", ["provision", "revert"])
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["-e", "firsttouch_hosts=nobody"], "firsttouch_hosts: no host matches nobody"),
        (["-e", "firsttouch_hosts=n01", "--limit", "n02"], "--limit: no host of n01 matches n02"),
        (["-i", "/dev/null"], "the inventory has no hosts"),
        (["-e", "firsttouch_serial=abc"], "firsttouch_serial: 'abc' is no batch size"),
        (["-e", "firsttouch_serial=0"], "firsttouch_serial: '0' is no batch size"),
    ],
)
def test_a_rollout_over_no_host_or_in_no_batches_is_no_success(
    rollout: Any, ansible_playbook: Any, tmp_path: Path, playbook: str, words: list[str], text: str
) -> None:
    if words[0] == "-i":
        done = ansible_playbook(tmp_path, *words, f"firsttouch.host.{playbook}")
        status, out = done.returncode, done.stdout + done.stderr
    else:
        status, batches, out = rollout(*words, playbook=playbook)
        assert batches == []
    assert status != 0 and text in " ".join(out.split()), out
    assert "PLAY [Provision]" not in out and "PLAY [Revert]" not in out


@pytest.mark.parametrize("playbook", ["provision", "revert", "verify"])
@pytest.mark.parametrize(
    ("hosts", "limit", "chosen"),
    [
        (["n01", "n03"], None, ["n01", "n03"]),
        (["gpu", "!n03"], None, ["n02"]),
        ("gpu:!n03", None, ["n02"]),
        ("n01,n02", None, ["n01", "n02"]),
        (["n01", "gpu"], "n0*:!n02", ["n01", "n03"]),
    ],
)
def test_hosts_are_chosen_by_one_pattern_or_a_list(
    ansible_playbook: Any, tmp_path: Path, playbook: str, hosts: Any, limit: str | None, chosen: list[str]
) -> None:
    (tmp_path / "hosts.ini").write_text("n01\nn02\nn03\n[gpu]\nn02\nn03\n")
    words = ["-i", "hosts.ini", "--list-hosts", "-e", json.dumps({"firsttouch_hosts": hosts})]
    done = ansible_playbook(tmp_path, *words, *(["--limit", limit] if limit else []), f"firsttouch.host.{playbook}")
    assert done.returncode == 0, done.stdout + done.stderr
    plays = done.stdout.split("\n  play #")[1:]
    assert [sorted(re.findall(r"(?m)^ +(n\d+)$", play)) for play in plays] == [chosen] * len(plays) and plays
