# SPDX-License-Identifier: GPL-3.0-or-later
"""When the role boot reboots: its tasks, in check mode, on hosts whose boot arguments are said to be written.

In check mode a reboot is only told. Over a local connection it would be refused, so the hosts have another; nothing
uses it.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from support import ROOT

REFUSED = "Refuse to activate boot arguments that somebody else has staged"
TOLD = "Tell that a reboot is due"
ACCEPT = "firsttouch_reboot_with_foreign_changes"
FOREIGN = ["quiet", "vendor=1"]
# What others have staged, the variables of the host, and the only task that has a result there.
HOSTS: dict[str, tuple[list[str], dict[str, Any], tuple[str, str]]] = {
    "plain": ([], {}, ("Reboot", "changed")),
    "foreign": (FOREIGN, {}, (REFUSED, "fatal")),
    "accepted": (FOREIGN, {ACCEPT: True}, ("Reboot", "changed")),
    # Words, as -e name=word gives them.
    "word_yes": (FOREIGN, {ACCEPT: "true"}, ("Reboot", "changed")),
    "word_no": (FOREIGN, {ACCEPT: "false"}, (REFUSED, "fatal")),
    "never": ([], {"firsttouch_reboot": "never"}, (TOLD, "ok")),
    "never_foreign": (FOREIGN, {"firsttouch_reboot": "never"}, (TOLD, "ok")),
}
PLAY = f"""
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.include_tasks: {ROOT}/roles/boot/tasks/reboot.yml
"""


@pytest.fixture(scope="module")
def printed(ansible_playbook: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("reboot")
    hosts = {}
    for name, (foreign, variables, _result) in HOSTS.items():
        written = {"boot_id": "a", "reboot_due": True, "foreign_staged": foreign}
        hosts[name] = {"__firsttouch_boot": written, **variables}
    common = yaml.safe_load((ROOT / "roles/_plan/defaults/main.yml").read_text())
    common |= {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts, "vars": common}}))
    (folder / "play.yml").write_text(PLAY)
    done = ansible_playbook(folder, "--check", "-i", "hosts.json", "play.yml")
    return str(done.stdout + done.stderr)


def results(printed: str, host: str) -> list[tuple[str, str]]:
    """The tasks that were run on HOST, each with what became of it."""
    found = []
    for part in printed.split("\nTASK [")[1:]:
        status = re.search(rf"^(ok|changed|fatal|failed): \[{host}\]", part, re.MULTILINE)
        found += [(part.partition("]")[0], status[1])] if status else []
    return found


@pytest.mark.parametrize("host", HOSTS)
def test_what_decides_about_the_reboot(printed: str, host: str) -> None:
    assert results(printed, host) == [HOSTS[host][2]], printed


def test_the_refusal_names_the_arguments_and_the_variable(printed: str) -> None:
    refusal = next(line for line in printed.splitlines() if line.startswith("fatal: [foreign]"))
    assert "not ours: quiet, vendor=1. Set firsttouch_reboot_with_foreign_changes to true" in refusal


def test_never_says_that_a_reboot_is_due(printed: str) -> None:
    told = printed.partition(f"TASK [{TOLD}]")[2].partition("\nTASK [")[0]
    assert "A reboot is due, and firsttouch_reboot is 'never'" in told


def test_without_a_reboot_due_nothing_of_it_is_run() -> None:
    tasks = yaml.safe_load((ROOT / "roles/boot/tasks/main.yml").read_text())
    (included,) = [task for task in tasks if task.get("ansible.builtin.include_tasks") == "reboot.yml"]
    assert included["when"] == "__firsttouch_boot.reboot_due"
