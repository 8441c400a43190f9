# SPDX-License-Identifier: GPL-3.0-or-later
"""Every failure that host_verify can report is provoked here, and names a variable of ours that really exists.

A call that may fail and that nothing here provokes fails the test: whoever adds a check adds the way to break it
to broken_hosts.BROKEN, or to MORE.
"""

from __future__ import annotations

import ast
import importlib
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import verified_host as vh
from ansible_collections.firsttouch.host.plugins.module_utils import _checks, _sched, _verdict
from ansible_collections.firsttouch.host.plugins.module_utils._checks_host import Context
from ansible_collections.firsttouch.host.plugins.module_utils._plan import facts_for, make_plan
from ansible_collections.firsttouch.host.plugins.module_utils._record import read_plan
from broken_hosts import BROKEN
from support import ROOT, put, run_module

UTILS = ROOT / "plugins" / "module_utils"
PACKAGE = "ansible_collections.firsttouch.host.plugins.module_utils"
ROLES = ROOT / "roles" / "_plan"
THP = "/sys/kernel/mm/transparent_hugepage"
# Modules that make a failure without judge(), and those of which an own test provokes all of them.
DIRECT = ("_checks_plan", "_checks_services")
ELSEWHERE = {
    "_placement_report": "test__placement_report.py",
    "_checks_kubelet": "test__checks_kubelet.py",
    "_checks_runtime": "test__checks_runtime.py",
    "_checks_runtime_files": "test__checks_runtime.py",
}
Site = tuple[str, int]


class More(NamedTuple):
    """A way to break a host whose intent is INTENT too; CONCERN: taken for the running host, and only this asked.

    SECTIONS go into the plan as they are, TOP beside its sections; REFUSED: the intent does not fit, and why.
    """

    how: Callable[[Path], object]
    intent: Mapping[str, Any] = MappingProxyType({})
    concern: str = ""
    sections: Mapping[str, Any] = MappingProxyType({})
    top: Mapping[str, Any] = MappingProxyType({})
    refused: Mapping[str, Any] = MappingProxyType({})


def tuned(root: Path) -> None:
    """A tuned that is enabled, and whose profile is against the plan."""
    put(root, "/etc/tuned/active_profile", "mine\n")
    put(root, "/etc/tuned/mine/tuned.conf", "[sysctl]\nvm.swappiness=40\n")
    unit = put(root, "/usr/lib/systemd/system/tuned.service", "[Install]\nWantedBy=multi-user.target\n")
    link = root / "etc/systemd/system/multi-user.target.wants/tuned.service"
    link.symlink_to("/" + str(unit.relative_to(root)))
    (root / "run/systemd/units").mkdir(parents=True)
    (root / "run/systemd/units/invocation:tuned.service").symlink_to("0123456789abcdef")


STOP = {"services": {"state": "present", "variables": ["conflicting_services"], "mode": "stop", "stop": []}}
HELD = {"services": {**STOP["services"], "stop": ["tuned.service"]}}
MODES = {"thp": {"state": "present", "variables": ["thp"], "settings": {"enabled": "madvise"}}}
NO_MODES = {"thp": {"state": "present", "variables": ["thp"], "settings": {}}}
NO_BALANCING = {"vm_sysctls": {"state": "present", "variables": ["numa_balancing"], "sysctls": {}}}
TRANSPORT = {"transport": {"policy": "topology", "latency_target_us": 100, "transport": "tcp"}}
MORE: dict[str, More] = {
    "grub's settings cannot be understood": More(
        lambda root: put(root, "/etc/default/grub", 'GRUB_CMDLINE_LINUX="a\n'), concern="boot"
    ),
    "arguments that are to go are still there": More(
        lambda root: None, {"isolated_cpus": "absent", "irqbalance": "absent"}
    ),
    "the kernel knows no isolation": More(
        lambda root: (root / f"{vh.CPU[1:]}/isolated").unlink(), concern="cpu_isolation"
    ),
    "irqbalance cannot read its list": More(
        lambda root: put(root, "/etc/firsttouch/irqbalance.env", "IRQBALANCE_BANNED_CPULIST=1-\n")
    ),
    "irqbalance bans too few": More(
        lambda root: put(root, "/etc/firsttouch/irqbalance.env", "IRQBALANCE_BANNED_CPULIST=1\n")
    ),
    "irqbalance runs although it is off": More(lambda root: None, {"irqbalance": "off"}),
    "the kernel has NUMA balancing now": More(
        lambda root: put(root, "/proc/sys/kernel/numa_balancing", "1\n"), sections=NO_BALANCING
    ),
    "keys and units that are to go are still there": More(
        lambda root: None, {"hugetlbfs_mounts": "absent", "vm_sysctls": "absent"}
    ),
    "a CPU was lost": More(
        lambda root: put(root, f"{vh.CPU}/online", "0-2\n"), refused={**vh.INTENT, "isolated_cpus": "3"}
    ),
    "SCHED_FIFO is refused": More(lambda root: None, concern="rt_scheduling"),
    "fewer nodes than expected": More(lambda root: None, {"numa": {"nodes": 3}}),
    "the nodes that somebody vouches for are not there": More(
        lambda root: put(root, f"{vh.NODE}/node0/distance", "10 10\n"), {"numa": {"trust": "asserted"}}
    ),
    "another transport follows": More(lambda root: None, top=TRANSPORT),
    "a service that is to be stopped is not": More(tuned, sections=STOP),
    "a service that is held has no drop-in, and runs": More(tuned, sections=HELD),
    "another mode of transparent huge pages": More(
        lambda root: put(root, f"{THP}/enabled", "[always] madvise never\n"), sections=MODES
    ),
    "the kernel has transparent huge pages now": More(
        lambda root: put(root, f"{THP}/enabled", "[always] madvise never\n"), sections=NO_MODES
    ),
    "somebody else sets the mode at boot": More(
        lambda root: put(root, "/etc/tmpfiles.d/zzzz.conf", f"w {THP}/enabled - - - - always\n"),
        sections=MODES,
    ),
}


def known_variables() -> set[str]:
    return set(re.findall(r"^(firsttouch_\w+):", (ROLES / "defaults" / "main.yml").read_text(), re.MULTILINE))


def modules() -> list[str]:
    """The modules that make failures, but for those that are provoked by their own tests."""
    names = (path.stem for path in UTILS.glob("_*.py"))
    return sorted(name for name in names if name not in ELSEWHERE and list(sites(name)))


def sites(name: str) -> Iterator[Site]:
    """(module, line) of each call of _verdict.judge() or Result() in module NAME that can end as `fail`."""
    text = (UTILS / f"{name}.py").read_text()
    if not re.search(r"^from \._verdict import ", text, re.MULTILINE):
        return
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        given = {word.arg: word.value for word in node.keywords}
        if node.func.id == "judge" and len(node.args) > 3:
            if not _is(given.get("intended"), False) and not _is(given.get("soft"), True):
                yield name, node.lineno
        elif node.func.id == "Result" and (not isinstance(node.args[1], ast.Constant) or _is(node.args[1], "fail")):
            yield name, node.lineno


def _is(node: ast.AST | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value == value


class Recorder:
    """Stands in for judge() and Result where failures are made; keeps the lines that they came from."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: set[Site] = set()
        for name in modules():
            module = importlib.import_module(f"{PACKAGE}.{name}")
            if hasattr(module, "judge"):
                monkeypatch.setattr(module, "judge", self.keep(name, _verdict.judge))
            if name in DIRECT:
                monkeypatch.setattr(module, "Result", self.keep(name, _verdict.Result))

    def keep(self, name: str, make: Callable[..., _verdict.Result]) -> Callable[..., _verdict.Result]:
        def stand_in(*args: Any, **kwargs: Any) -> _verdict.Result:
            result = make(*args, **kwargs)
            if result.status == "fail":
                self.seen.add((name, sys._getframe(1).f_lineno))
            return result

        return stand_in


def results(root: Path, more: More | None) -> list[_verdict.Result]:
    """What verify says of the host below ROOT, broken by MORE or already broken."""
    if more is None:
        return _checks.run(Context(read_plan(str(root)) or {}, str(root), is_recorded=True))
    plan = vh.plan_for(root, {**vh.INTENT, **more.intent})
    plan["sections"].update(more.sections)
    plan.update(more.top)
    more.how(root)
    refused = make_plan(more.refused, facts_for(more.refused, str(root))).refusals
    ctx = Context(plan, str(root), refusals=refused)
    ctx.live = bool(more.concern)
    return _checks.run(ctx, concerns=[more.concern] if more.concern else [])


def test_every_failure_is_provoked_and_mended_by_a_variable_that_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, known = tmp_path / "base", known_variables()
    vh.provisioned_host(base)
    refused = _sched.FifoAttempt(False, "EPERM", "/system.slice", True)
    monkeypatch.setattr(_sched, "try_fifo", lambda **kwargs: refused)
    recorder = Recorder(monkeypatch)
    ways: dict[str, More | None] = {**dict.fromkeys(BROKEN), **MORE}
    for number, (name, more) in enumerate(ways.items()):
        root = Path(shutil.copytree(base, tmp_path / str(number), symlinks=True))
        if more is None:
            BROKEN[name][0](root)
        found = results(root, more)
        assert [row for row in found if row.status == "error"] == [], name
        if more:
            assert any(row.status == "fail" for row in found), name
        for row in found:
            named = set(re.findall(r"firsttouch_\w+", row.remedy))
            assert named <= known, (name, row)
            assert named or row.status != "fail", (name, row)
        shutil.rmtree(root)
    run_module("numa_topology_verify", {"sysroot": str(base), "accept": ["exposed"]})
    possible = {site for name in modules() for site in sites(name)}
    assert len(possible) > 40
    assert sorted(possible - recorder.seen) == []


@pytest.mark.parametrize("module", sorted(ELSEWHERE))
def test_what_is_provoked_elsewhere_is_held_to_the_same(module: str) -> None:
    text = (ROOT / "tests/unit/plugins/module_utils" / ELSEWHERE[module]).read_text()
    assert list(sites(module))
    assert '"fail"' in text
    assert "firsttouch_" in text


def test_variables_named_anywhere_in_the_checks_exist() -> None:
    known = known_variables()
    for path in UTILS.glob("_checks*.py"):
        assert set(re.findall(r'"(firsttouch_\w+)"', path.read_text())) <= known, path.name


def test_every_variable_that_is_named_is_described() -> None:
    specs = (ROLES / "meta" / "argument_specs.yml").read_text()
    assert known_variables() <= set(re.findall(r"^      (firsttouch_\w+):", specs, re.MULTILINE))
