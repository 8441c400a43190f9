# SPDX-License-Identifier: GPL-3.0-or-later
"""What check mode says of a change of the command line is what the run does, refusals included."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils._boot_types import BootError
from boot_cases import KEYS, WANT, change, hashes, tree
from boot_hosts import StandInGrubby, StandInMkconfig, debian, el8, entries, rhel, run_live

Make = Callable[[Path], Path]
BARE = ["1", "single", "s", "S", "emergency", "rescue", "systemd.unit=rescue.target"]


HOSTS: dict[str, tuple[Make, Any]] = {
    "debian-12": (lambda root: debian(root, "debian-12"), StandInMkconfig),
    "debian-13": (debian, StandInMkconfig),
    "rhel-9": (rhel, StandInGrubby),
    "el8": (el8, StandInGrubby),
    "systemd-boot": (lambda root: tree("debian-13-systemd-boot", root), None),
}
TYPE1 = ("rhel-9", "el8", "systemd-boot")


def edit(path: Path, change_text: Callable[[str], str]) -> None:
    if path.exists():
        path.write_text(change_text(path.read_text()))


def each_entry(change_text: Callable[[str], str], which: slice) -> Callable[[Path], None]:
    def mutate(root: Path) -> None:
        for path in entries(root)[which]:
            edit(path, change_text)

    return mutate


def without_options(text: str) -> str:
    return "\n".join(row for row in text.split("\n") if not row.startswith("options"))


def two_options(text: str) -> str:
    rows = [f"{row}\noptions audit=1" if row.startswith("options") else row for row in text.split("\n")]
    return "\n".join(rows)


def everywhere(token: str) -> Callable[[Path], None]:
    """TOKEN on every normal line, as the settings would put it there."""

    def mutate(root: Path) -> None:
        for path in [*entries(root), root / "etc/kernel/cmdline", root / "etc/default/grub"]:
            edit(path, lambda text: text.replace("quiet", f"quiet {token}"))
        edit(root / "boot/grub/grub.cfg", lambda text: text.replace(" quiet\n", f" quiet {token}\n"))
        block = root / "boot/grub2/grubenv"
        edit(block, lambda text: text.replace(" quiet\n", f" quiet {token}\n")[:1024])

    return mutate


def default_entry(spec: str) -> Callable[[Path], None]:
    return lambda root: edit(root / "boot/grub/grub.cfg", lambda text: text.replace('default="0"', f'default="{spec}"'))


def custom(line: str) -> Callable[[Path], None]:
    """A hand-written entry is the default."""

    def mutate(root: Path) -> None:
        text = f"### BEGIN /etc/grub.d/40_custom ###\nmenuentry 'own' {{\nlinux /v {line}\n}}\n"
        edit(root / "boot/grub/grub.cfg", lambda old: old.replace('default="0"', 'default="own"') + text)

    return mutate


def remove(*paths: str) -> Callable[[Path], None]:
    def mutate(root: Path) -> None:
        for path in paths:
            (root / path).unlink(missing_ok=True)

    return mutate


FIRST, LAST, ALL = slice(0, 1), slice(-2, None), slice(None)
MUTATIONS: dict[str, Callable[[Path], None]] = {
    "as recorded": lambda root: None,
    "no options in one": each_entry(without_options, FIRST),
    "no options in the last two": each_entry(without_options, LAST),
    "no options at all": each_entry(without_options, ALL),
    "two options lines in one": each_entry(two_options, FIRST),
    "two options lines in all": each_entry(two_options, ALL),
    "empty options": each_entry(lambda text: text.replace("options ", "options\n#"), ALL),
    **{f"bare {token}": everywhere(token) for token in BARE},
    "foreign count": everywhere("hugepages=5"),
    "foreign size": everywhere("hugepagesz=1G"),
    "dashes": everywhere("--"),
    "recovery is the default": default_entry("1>1"),
    "own entry is the default": custom("ro quiet"),
    "own entry that has it": custom(f"ro {' '.join(WANT)}"),
    "no tool": remove("usr/sbin/grubby", "usr/sbin/grub-mkconfig"),
    "no script check": remove("usr/bin/grub-script-check"),
    "comment": lambda root: edit(root / "etc/kernel/cmdline", lambda text: f"# x\n{text}"),
    "no settings": remove("etc/kernel/cmdline", "etc/default/grub"),
}
REQUESTS: dict[str, dict[str, Any]] = {
    "present": {},
    "replace": {"on_conflict": "replace"},
    "absent": {"state": "absent", "tokens": [], "owned": WANT},
    "bare key": {"tokens": ["nosmt"], "keys": ["nosmt"], "owned": ["quiet"]},
}


def outcome(root: Path, host: str, live: bool, check: bool, given: dict[str, Any]) -> tuple[Any, ...]:
    """(refusal, change set, reboot due) of one run."""
    given = {"tokens": WANT, "keys": KEYS, "owned": [], **given}
    if live:
        tool = HOSTS[host][1]
        try:
            result = dict(run_live(root, tool(root) if tool else None, check=check, **given))
        except BootError as exc:
            return (exc.reason, exc.problem.file, exc.problem.line)
    else:
        result = change(root, check, **given)
        if result.get("failed"):
            return (result["reason"], result["file"], result["line"])
    return ("", result["changes"], result["reboot_due"], result["next_boot_line"], result["replaced"])


@pytest.mark.parametrize("mutation", MUTATIONS)
@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("live", [True, False], ids=["live", "offline"])
def test_check_and_run_agree(live: bool, host: str, mutation: str, tmp_path: Path) -> None:
    for name, given in REQUESTS.items():
        root = HOSTS[host][0](tmp_path / name.replace(" ", "_"))
        MUTATIONS[mutation](root)
        before = hashes(root)
        predicted = outcome(root, host, live, True, given)
        assert hashes(root) == before, name
        done = outcome(root, host, live, False, given)
        assert predicted == done, name
        if done[0]:
            assert hashes(root) == before, name
        else:
            again = outcome(root, host, live, True, {**given, "owned": [*given.get("owned", []), *WANT, "nosmt"]})
            assert again[:2] == ("", []), name


@pytest.mark.parametrize("host", HOSTS)
def test_a_tool_that_nothing_needs_may_be_missing(host: str, tmp_path: Path) -> None:
    root = HOSTS[host][0](tmp_path)
    MUTATIONS["no tool"](root)
    for check in (True, False):
        assert outcome(root, host, True, check, REQUESTS["absent"])[:2] == ("", [])


@pytest.mark.parametrize("token", BARE)
@pytest.mark.parametrize("host", HOSTS)
def test_an_argument_that_every_entry_has_makes_none_a_recovery_entry(host: str, token: str, tmp_path: Path) -> None:
    root = HOSTS[host][0](tmp_path)
    everywhere(token)(root)
    done = outcome(root, host, True, False, {})
    assert done[0] == "" and done[3].count("hugepages=1024") == 1, done
