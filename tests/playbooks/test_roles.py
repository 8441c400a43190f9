# SPDX-License-Identifier: GPL-3.0-or-later
"""A role alone in a play plans its own section, hands nothing else to a module, and ends with boot where it needs one.

That a plan of one section has nothing of the others is tested with host_plan.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

import pytest
import yaml
from support import ROOT

PLAN, BOOT = "firsttouch.host._plan", "firsttouch.host.boot"


class Role(NamedTuple):
    """What a role may use: its modules, and of the plan and of the record."""

    modules: set[str]
    planned: set[str]
    found: set[str]


ROLES = {
    # Mounts and the reservation are the units of a plan, and groups are those of the mounts.
    "hugepages": Role(
        {"ansible.builtin.group", "firsttouch.host.systemd_units", "firsttouch.host.hugepages_release"},
        {"groups", "units", "units_absent", "plan.sections.hugepages.pools"},
        {"pools"},
    ),
    # One file for both, with all that the plan has of them.
    "vm_sysctls": Role(
        {"firsttouch.host.sysctl_dropin"}, {"plan.sysctls", "plan.sections.vm_sysctls"}, {"sysctl"}
    ),
    "rt_scheduling": Role(
        {"firsttouch.host.sysctl_dropin"},
        {"plan.sysctls", "plan.sections.rt_scheduling", "plan.sections.vm_sysctls"},
        {"sysctl"},
    ),
    "cpu_isolation": Role(
        {"firsttouch.host.irqbalance"},
        {f"plan.sections.cpu_isolation{part}" for part in ("", ".irqbalance", ".isolated")},
        {"services"},
    ),
    "thp": Role({"firsttouch.host.thp"}, {"plan.sections.thp", "plan.sections.thp.settings"}, {"thp"}),
    "services": Role(
        {"firsttouch.host.conflicting_services"},
        {"plan.sections.services", "plan.sections.services.stop"},
        {"services"},
    ),
}
WITH_BOOT = ("hugepages", "cpu_isolation", "thp")


def text(role: str, part: str) -> str:
    path = ROOT / "roles" / role / part / "main.yml"
    return path.read_text() if path.exists() else ""


def tasks(role: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(text(role, "tasks"))
    return found


def module(task: dict[str, Any]) -> str:
    (name,) = [key for key in task if "." in key]
    return name


@pytest.mark.parametrize("role", ROLES)
def test_a_role_plans_its_own_section_first(role: str) -> None:
    first = tasks(role)[0]
    assert first["ansible.builtin.include_role"] == {"name": PLAN, "public": True}
    assert first["vars"] == {"__firsttouch_sections": [role]}
    assert "when" not in first


@pytest.mark.parametrize("role", ROLES)
def test_a_role_hands_its_own_section_to_its_own_modules(role: str) -> None:
    allowed = ROLES[role]
    used = text(role, "tasks") + text(role, "vars")
    assert {module(task) for task in tasks(role)} - {"ansible.builtin.include_role"} == allowed.modules
    plan = re.findall(r"__firsttouch_plan\b\.?([\w.]*)", used)
    assert set(plan) == allowed.planned
    assert set(re.findall(r"__firsttouch_record\b\.?((?:before\.)?\w*)", used)) == {
        f"before.{name}" for name in allowed.found
    }
    # The plan has what was asked for; what somebody set for another role is not looked at.
    assert re.findall(r"\bfirsttouch_\w+", used) == []


@pytest.mark.parametrize("role", ROLES)
def test_a_role_with_boot_arguments_ends_with_boot_where_nobody_else_does(role: str) -> None:
    included = [
        (number, task) for number, task in enumerate(tasks(role)[1:], 2) if "include_role" in module(task)
    ]
    if role not in WITH_BOOT:
        assert included == []
        return
    ((number, last),) = included
    assert number == len(tasks(role))
    assert last["ansible.builtin.include_role"] == {"name": BOOT}
    assert last["when"] == "not __firsttouch_boot_follows"


def test_what_was_pushed_goes_after_all_that_may_load_it() -> None:
    """Its unit is stopped, or loads from elsewhere; when one of these fails, the files that it has are still there."""
    work = [(module(task), task[module(task)]) for task in tasks("runtime")]
    order = [(name.rpartition(".")[2], "absent" in given) for name, given in work if "firsttouch." in name]
    assert order == [
        ("model_push", False), ("systemd_units", True), ("runtime_install", False), ("systemd_units", False),
        ("model_push", True),
    ]  # fmt: skip
    assert tasks("runtime")[-1]["when"] == "__firsttouch_plan.runtime.push_absent | length > 0", "of a revert too"


# The roles of a play, whether a playbook of ours leads, and those that leave boot to another.
PLAYS: dict[str, tuple[list[str], bool, set[str]]] = {
    "hugepages alone": (["hugepages"], False, set()),
    "thp alone": (["thp"], False, set()),
    "cpu_isolation alone": (["cpu_isolation"], False, set()),
    "beside others": (["vm_sysctls", "thp", "services", "rt_scheduling"], False, set()),
    "the last of two": (["hugepages", "thp"], False, {"hugepages"}),
    "the last of three": (
        ["cpu_isolation", "thp", "hugepages", "vm_sysctls"],
        False,
        {"cpu_isolation", "thp"},
    ),
    "boot itself": (
        ["thp", "hugepages", "cpu_isolation", "boot"],
        False,
        {"thp", "hugepages", "cpu_isolation"},
    ),
    "our playbook": ([], True, {"thp", "hugepages", "cpu_isolation"}),
}


@pytest.fixture(scope="module")
def left_to_others(ansible_playbook: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """By play, the roles that leave boot to another. Their tasks are skipped: nothing of this machine is looked at."""
    folder = tmp_path_factory.mktemp("roles")
    plays = []
    for name, (roles, led, _left) in PLAYS.items():
        variables = [
            {
                "ansible.builtin.include_vars": {
                    "file": f"{ROOT}/roles/{role}/vars/main.yml",
                    "name": f"of_{role}",
                }
            }
            for role in WITH_BOOT
        ]
        asked = ", ".join(f"'{role}': of_{role}.__firsttouch_boot_follows | bool" for role in WITH_BOOT)
        told = {"ansible.builtin.debug": {"msg": f"{name}={{{{ {{{asked}}} | to_json }}}}"}}
        plays.append(
            {
                "hosts": "all",
                "gather_facts": False,
                "vars": {"__firsttouch_orchestrated": True} if led else {},
                "roles": [{"role": f"firsttouch.host.{role}", "when": False} for role in roles],
                "post_tasks": [*variables, told],
            }
        )
    (folder / "plays.yml").write_text(json.dumps(plays))
    done = ansible_playbook(folder, "-c", "local", "-i", "host,", "plays.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    answers = re.findall(r'"msg": "([\w ]+)=(.*)"$', done.stdout, re.MULTILINE)
    rows = {name: json.loads(json.loads(f'"{row}"')) for name, row in answers}
    return {name: {role for role, left in row.items() if left} for name, row in rows.items()}


@pytest.mark.parametrize("play", PLAYS)
def test_the_last_role_that_needs_it_ends_with_boot(left_to_others: dict[str, set[str]], play: str) -> None:
    roles, led, left = PLAYS[play]
    # Of a role that the play has not, the answer is that of one included by a task.
    assert left_to_others[play] & {*roles, *(WITH_BOOT if led else ())} == left


@pytest.mark.parametrize("playbook", ["provision", "revert"])
def test_a_playbook_of_ours_has_one_boot_after_the_last_that_needs_it(playbook: str) -> None:
    play = yaml.safe_load((ROOT / "playbooks" / f"{playbook}.yml").read_text())[1]
    assert play["vars"]["__firsttouch_orchestrated"] is True
    roles = play["vars"]["__firsttouch_roles"]
    assert sorted(set(roles)) == sorted(roles) and set(ROLES) | {"boot"} <= set(roles)
    assert roles.index("boot") > max(map(roles.index, ROLES))
