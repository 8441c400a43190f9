# SPDX-License-Identifier: GPL-3.0-or-later
"""Which stage runs which molecule scenario."""

from __future__ import annotations

import re
from pathlib import Path

import commands
import pytest
import stage_logs

# The stages run on the interpreter of the checkout only, which has all of ansible-core.
pytest.importorskip("ansible_test")
import run_tests


def test_each_scenario_is_in_one_stage_and_those_on_uefi_are_none_of_make_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: dict[str, list[str]] = {"molecule": [], "uefi": []}
    monkeypatch.setattr(run_tests, "install_tarball", lambda: None)
    for stage, names in ran.items():
        monkeypatch.setattr(run_tests, "scenario", lambda name, names=names: lambda: names.append(name))
        {**run_tests.STAGES, **run_tests.MORE_STAGES}[stage]()
    there = sorted(path.parent.name for path in commands.ROOT.glob("molecule/[!_]*/molecule.yml"))
    assert sorted(ran["molecule"] + ran["uefi"]) == there
    assert ran["uefi"] == ["systemd_boot"]
    assert "molecule" in run_tests.STAGES and "uefi" not in run_tests.STAGES
    assert re.search(r"run_tests\.py kernel-all .*\buefi\b", (commands.ROOT / "Makefile").read_text())


def test_a_stage_without_a_scenario_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "molecule" / "one").mkdir(parents=True)
    (tmp_path / "molecule" / "one" / "molecule.yml").write_text("platforms: [{name: a, firmware: uefi}]\n")
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    assert run_tests.scenarios("uefi") == ["one"]
    with pytest.raises(commands.CommandError, match="no scenario with a host of firmware bios"):
        run_tests.scenarios("bios")


@pytest.mark.parametrize(
    ("consoles", "statuses", "passes"),
    [
        (["Oops: int3: 0000"], [1, 0], True),
        (["Oops: int3: 0000"], [1, 1], False),
        (["", "Oops: int3: 0000"], [1, 0], True),
        ([""], [1], False),
        ([], [1], False),
        (["Oops: int3: 0000"], [0], True),
    ],
)
def test_a_scenario_runs_once_more_only_where_an_emulated_cpu_slipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, consoles: list[str], statuses: list[int], passes: bool
) -> None:
    (tmp_path / "molecule" / "one").mkdir(parents=True)
    (tmp_path / "molecule" / "one" / "molecule.yml").write_text("platforms: [{name: a}, {name: b}]\n")
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    monkeypatch.setattr(stage_logs, "LOGS", tmp_path)
    # Of an earlier run; a host of another scenario.
    for name in ("a", "b", "other"):
        (tmp_path / f"serial-{name}.log").write_text("Oops: int3: 0000")
    left = list(statuses)

    def ran(*_command: str, **_more: object) -> None:
        for name, text in zip("ab", consoles):
            (tmp_path / f"serial-{name}.log").write_text(text)
        if left.pop(0):
            raise commands.CommandError("molecule -c: status 1")

    monkeypatch.setattr(run_tests, "run", ran)
    if passes:
        run_tests.scenario("one")()
    else:
        with pytest.raises(commands.CommandError):
            run_tests.scenario("one")()
    assert left == []
