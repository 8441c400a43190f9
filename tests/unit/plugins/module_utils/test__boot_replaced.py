# SPDX-License-Identifier: GPL-3.0-or-later
"""What was replaced comes back with the removal of ours, on every boot loader, live and offline."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _boot_plan
from ansible_collections.firsttouch.host.plugins.module_utils._boot_types import BootError
from ansible_collections.firsttouch.host.plugins.module_utils._files import atomic_write
from boot_cases import KEYS, WANT, change, hashes, put, tree
from boot_hosts import StandInGrubby, StandInMkconfig, debian, el8, entries, rhel, run_live

REPLACED = "var/lib/firsttouch/replaced.json"
BACKUP = "var/lib/firsttouch/grub.cfg.before"
FOREIGN = "hugepages=5"


def plant(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, path
    path.write_text(text.replace(old, new, 1))


def grub(root: Path) -> Path:
    debian(root)
    plant(root / "etc/default/grub", "quiet", f"quiet {FOREIGN}  r")
    config = root / "boot/grub/grub.cfg"
    config.write_text(config.read_text().replace(" quiet\n", f" quiet {FOREIGN}  r\n"))
    return root


def bls(root: Path) -> Path:
    rhel(root)
    for path in entries(root):
        plant(path, " rhgb quiet", f" rhgb  {FOREIGN} quiet")
    plant(root / "etc/kernel/cmdline", " rhgb", f" {FOREIGN}  rhgb")
    plant(root / "etc/default/grub", "rhgb quiet", f"rhgb {FOREIGN}  quiet")
    return root


def el8_with_foreign(root: Path) -> Path:
    el8(root, f"{FOREIGN}  ro")
    (root / "etc/kernel/cmdline").unlink()
    return root


def systemd(root: Path) -> Path:
    tree("debian-13-systemd-boot", root)
    for path in entries(root):
        plant(path, " quiet", f" {FOREIGN}  quiet")
    plant(root / "etc/kernel/cmdline", "quiet", f"{FOREIGN}  quiet")
    return root


HOSTS: dict[str, tuple[Callable[[Path], Path], Any]] = {
    "grub": (grub, StandInMkconfig),
    "bls": (bls, StandInGrubby),
    "el8": (el8_with_foreign, StandInGrubby),
    "systemd": (systemd, None),
}


class Host:
    """One host of HOSTS, changed live (by stand-ins of its tools) or as an offline tree."""

    def __init__(self, name: str, live: bool, root: Path) -> None:
        make, tool = HOSTS[name]
        self.root, self.live, self.name = make(root), live, name
        self.tool = tool(root) if tool else None

    def change(self, check: bool = False, **given: Any) -> dict[str, Any]:
        """kernel_cmdline; a check comes first, and must say the same and change nothing."""
        given = {"tokens": WANT, "keys": [*KEYS, "isolcpus"], "owned": [], **given}
        before = hashes(self.root)
        predicted = self._run(True, given)
        assert hashes(self.root) == before
        result = self._run(False, given)
        assert predicted["changes"] == result["changes"]
        return result

    def _run(self, check: bool, given: dict[str, Any]) -> dict[str, Any]:
        if self.live:
            return dict(run_live(self.root, self.tool, check=check, **given))
        result = change(self.root, check, **given)
        assert not result.get("failed"), result
        return result

    def absent(self, owned: list[str]) -> dict[str, Any]:
        return self.change(state="absent", tokens=[], owned=owned)

    def state(self) -> dict[str, str]:
        return {path: digest for path, digest in hashes(self.root).items() if path != BACKUP}

    def words(self) -> dict[str, list[str]]:
        """The words of every file but comments: grubby writes one blank between them."""
        files = [path for path in self.root.rglob("*") if path.is_file() and not str(path).endswith(BACKUP)]
        rows = {str(path): path.read_text(errors="replace").splitlines() for path in files}
        return {path: [w for row in lines if row[:1] != "#" for w in row.split()] for path, lines in rows.items()}

    def texts(self) -> str:
        files = [*entries(self.root), *(self.root / p for p in ("etc/kernel/cmdline", "etc/default/grub"))]
        texts = [path.read_text() for path in files if path.exists()]
        if self.name == "el8":
            texts.append((self.root / "boot/grub2/grubenv").read_text())
        return "\n".join(texts)


@pytest.fixture(params=[(name, live) for name in HOSTS for live in (True, False)], ids=lambda p: f"{p[0]}-{p[1]}")
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    name, live = request.param
    return Host(name, live, tmp_path)


def test_the_host_is_as_it_was(host: Host) -> None:
    before = host.state()
    result = host.change(on_conflict="replace")
    places = {row["file"] for row in result["replaced"]}
    assert places and {row["token"] for row in result["replaced"]} == {FOREIGN}
    recorded = json.loads((host.root / REPLACED).read_text())
    assert set(recorded) == places and FOREIGN not in host.texts()
    assert not host.change(owned=WANT)["changed"]
    result = host.absent(WANT)
    assert result["not_restored"] == [] and host.state() == before
    assert not host.absent(WANT)["changed"]


def test_other_arguments_of_ours_in_between_change_nothing(host: Host) -> None:
    before = host.state()
    host.change(on_conflict="replace")
    new = [*WANT[:2], "hugepages=7", "isolcpus=1"]
    host.change(tokens=new, owned=WANT)
    assert FOREIGN not in host.texts()
    host.absent([*WANT, *new])
    assert host.state() == before


def test_it_comes_back_as_soon_as_nothing_of_ours_contradicts_it(host: Host) -> None:
    host.change(tokens=[*WANT, "isolcpus=1"], on_conflict="replace")
    result = host.change(tokens=["isolcpus=1"], owned=[*WANT, "isolcpus=1"])
    assert result["changed"] and FOREIGN in host.texts() and not (host.root / REPLACED).exists()
    assert not host.change(tokens=["isolcpus=1"], owned=[*WANT, "isolcpus=1"])["changed"]


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("name", HOSTS)
def test_it_comes_back_although_another_is_replaced(
    name: str, live: bool, both: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What still contradicts goes in the same run, or has gone before, out of the same place."""
    monkeypatch.setattr(sys.modules[__name__], "FOREIGN", f"{FOREIGN} isolcpus=2")
    host = Host(name, live, tmp_path)
    before = host.state()
    first, rest = ([*WANT, "isolcpus=1"] if both else WANT), ["isolcpus=1"]
    host.change(tokens=first, on_conflict="replace")
    assert "hugepages=5" not in host.texts() and ("isolcpus=2" in host.texts()) is not both
    for changed in (True, False):
        result = host.change(tokens=rest, owned=[*first, *rest], on_conflict="replace")
        assert result["changed"] is changed
        assert "hugepages=5" in host.texts() and "isolcpus=2" not in host.texts()
    assert not host.change(tokens=rest, owned=rest, on_conflict="fail")["changed"]
    host.change(tokens=[*WANT, *rest], owned=rest, on_conflict="replace")
    assert "hugepages=5" not in host.texts() and "isolcpus=2" not in host.texts()
    assert host.absent([*WANT, *rest])["not_restored"] == [] and host.state() == before


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("name", ["bls", "systemd"])
def test_a_place_of_which_nothing_comes_back_yet_stays_recorded(name: str, live: bool, tmp_path: Path) -> None:
    host = Host(name, live, tmp_path)
    first = entries(host.root)[-1]
    put(host.root, f"/{first.relative_to(host.root)}".replace(".conf", "x.conf"), first.read_text())
    plant(first, FOREIGN, "isolcpus=2")
    before = host.words()
    both, rest = [*WANT, "isolcpus=1"], ["isolcpus=1"]
    host.change(tokens=both, on_conflict="replace")
    assert host.change(tokens=rest, owned=both, on_conflict="replace")["changed"]
    assert FOREIGN in host.texts() and "isolcpus=2" not in host.texts()
    assert not host.change(tokens=rest, owned=rest, on_conflict="replace")["changed"]
    assert host.absent(rest)["not_restored"] == [] and host.words() == before


def test_what_comes_back_later_is_replaced_and_restored_once_more(host: Host) -> None:
    """As a configuration tool does that writes its text every night."""
    before = host.state()
    texts = {p: p.read_bytes() for p in host.root.rglob("*") if p.is_file() and "firsttouch" not in str(p)}
    host.change(on_conflict="replace")
    for path, data in texts.items():
        path.write_bytes(data)
    if host.name == "grub":
        (host.root / "etc/default/grub.d/zzz-firsttouch.cfg").unlink()
    host.change(on_conflict="replace", owned=WANT)
    assert host.absent(WANT)["not_restored"] == [] and host.state() == before


@pytest.mark.parametrize("when", ["replace", "absent"])
def test_a_run_that_is_killed_anywhere_loses_nothing(
    when: str, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = host.words()
    if when == "absent":
        host.change(on_conflict="replace")
    real, left = atomic_write, [0]

    def dying(path: str, text: str, mode: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        real(path, text, mode)

    for limit in range(1, 12):
        left[0] = limit
        with monkeypatch.context() as patch:
            patch.setattr(_boot_plan, "atomic_write", dying)
            patch.setattr(_boot_plan.FileWriter, "undo", lambda self: None)
            try:
                if when == "replace":
                    host._run(False, {"tokens": WANT, "keys": KEYS, "owned": [], "on_conflict": "replace"})
                else:
                    given = {"tokens": [], "keys": KEYS, "owned": WANT, "state": "absent"}
                    host._run(False, given)
            except KeyboardInterrupt:
                continue
        break
    assert host.absent(WANT)["not_restored"] == [] and host.words() == before


def test_what_somebody_else_changed_since_stays_and_is_told(host: Host) -> None:
    host.change(on_conflict="replace")
    places = list(json.loads((host.root / REPLACED).read_text()))
    for place in places:
        path = host.root / place.lstrip("/")
        if place.endswith("grubenv"):
            plant(path, " quiet ", " audit ")
        else:
            plant(path, "quiet", "audit=1 quiet")
    result = host.absent(WANT)
    assert {row["file"] for row in result["not_restored"]} == set(places)
    assert {row["token"] for row in result["not_restored"]} == {FOREIGN}
    assert FOREIGN not in host.texts() and not (host.root / REPLACED).exists()
    assert "hugepages=1024" not in host.texts()


@pytest.mark.parametrize("name", ["bls", "systemd"])
@pytest.mark.parametrize("live", [True, False])
def test_a_kernel_that_was_installed_since_gets_it_too(name: str, live: bool, tmp_path: Path) -> None:
    host = Host(name, live, tmp_path)
    host.change(on_conflict="replace")
    old = entries(host.root)[-1]
    new = put(host.root, f"/{old.parent.relative_to(host.root)}/{old.name.replace('.conf', 'x.conf')}", old.read_text())
    other = entries(host.root)[0]
    other.write_text(other.read_text() + "# by hand\n")
    host.absent(WANT)
    assert f"{FOREIGN} quiet" in new.read_text() and "hugepages=1024" not in new.read_text()
    assert f"{FOREIGN} quiet" in other.read_text() and "# by hand" in other.read_text()


@pytest.mark.parametrize("name", ["bls", "systemd"])
@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("before_ours", [True, False])
def test_an_entry_that_never_had_it_does_not_get_it(name: str, live: bool, before_ours: bool, tmp_path: Path) -> None:
    """As after `grubby --update-kernel=DEFAULT`: one kernel has the argument, before ours came or since."""
    host = Host(name, live, tmp_path)
    for path in host.root.rglob("*"):
        if path.is_file() and f" {FOREIGN}" in (text := path.read_text(errors="replace")):
            path.write_text(text.replace(f" {FOREIGN} ", ""))
    first, owned = entries(host.root)[-1], [] if before_ours else WANT
    for number in "xy":
        put(host.root, f"/{first.relative_to(host.root)}".replace(".conf", f"{number}.conf"), first.read_text())
    clean = host.words()
    if owned:
        host.change()
    plant(first, " quiet", f" {FOREIGN} quiet")
    host.change(owned=owned, on_conflict="replace")
    assert FOREIGN not in host.texts()
    host.change(tokens=[*WANT, "isolcpus=1"], owned=WANT)
    assert host.absent([*WANT, "isolcpus=1"])["not_restored"] == []
    now = host.words()
    assert FOREIGN in now.pop(str(first)) and clean.pop(str(first))
    assert now == clean


def test_a_place_that_is_gone_is_no_loss(tmp_path: Path) -> None:
    host = Host("bls", True, tmp_path)
    host.change(on_conflict="replace")
    entries(host.root)[-1].unlink()
    assert host.absent(WANT)["not_restored"] == []


@pytest.mark.parametrize("name", ["bls", "systemd"])
def test_a_second_run_at_the_same_time_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(name, True, tmp_path)
    seen: list[str] = []
    real = atomic_write

    def during(path: str, text: str, mode: int) -> None:
        monkeypatch.setattr(_boot_plan, "atomic_write", real)
        before = hashes(host.root)
        with pytest.raises(BootError) as caught:
            host._run(False, {"tokens": ["nosmt"], "keys": ["nosmt"], "owned": []})
        assert hashes(host.root) == before
        seen.append(caught.value.reason)
        real(path, text, mode)

    monkeypatch.setattr(_boot_plan, "atomic_write", during)
    assert host._run(False, {"tokens": WANT, "keys": KEYS, "owned": [], "on_conflict": "replace"})["changed"]
    assert seen == ["busy"] and "nosmt" not in host.texts()
    assert host._run(False, {"tokens": WANT, "keys": KEYS, "owned": WANT})["changed"] is False
