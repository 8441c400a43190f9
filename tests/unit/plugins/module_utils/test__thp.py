# SPDX-License-Identifier: GPL-3.0-or-later
"""Transparent huge pages: set in the kernel and in a file, read back, undone, and put back when they go."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _thp
from support import put

SYSFS = _thp.DIRECTORY
OFFERED = {"enabled": "always madvise never", "defrag": "always defer defer+madvise madvise never"}


def chosen(root: Path) -> dict[str, str | None]:
    return {name: _thp.choices((root / f"{SYSFS[1:]}/{name}").read_text())[1] for name in OFFERED}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree whose sysfs files take one of their words, as the kernel's do."""

    def write(path: str, value: str) -> None:
        words = OFFERED[Path(path).name].split()
        if value not in words:
            raise OSError(errno.EINVAL, "Invalid argument", path)
        Path(path).write_text(" ".join(f"[{word}]" if word == value else word for word in words) + "\n")

    monkeypatch.setattr(_thp, "_write", write)
    for name in OFFERED:
        write(str(put(tmp_path, f"{SYSFS}/{name}", "")), "always")
    return tmp_path


def run(root: Path, values: dict[str, str], restore: dict[str, str] | None = None) -> _thp.Plan:
    plan = _thp.make_plan(str(root), values, restore or {}, live=True)
    _thp.apply_plan(plan)
    return plan


def refuse(monkeypatch: pytest.MonkeyPatch, *values: str) -> None:
    """Let the kernel refuse what ends so, as FILE=VALUE."""
    real = _thp._write

    def write(path: str, value: str) -> None:
        if f"{path}={value}".endswith(values):
            raise OSError(errno.EPERM, "Operation not permitted", path)
        real(path, value)

    monkeypatch.setattr(_thp, "_write", write)


def test_both_are_set_and_the_second_time_nothing(host: Path) -> None:
    plan = run(host, {"defrag": "defer", "enabled": "madvise"})
    assert chosen(host) == {"enabled": "madvise", "defrag": "defer"}
    text = (host / _thp.FILE[1:]).read_text()
    assert text.splitlines()[1:] == [
        "# enabled: madvise, by the boot argument transparent_hugepage=",
        f"w {SYSFS}/defrag - - - - defer",
    ]
    assert [(row["resource"], row["before"]) for row in plan.changes] == [
        (f"file:{_thp.FILE}", None),
        ("thp:defrag", "always"),
        ("thp:enabled", "always"),
    ]
    assert run(host, {"defrag": "defer", "enabled": "madvise"}).changes == []


def test_a_mode_that_was_changed_by_hand_is_set_again(host: Path) -> None:
    run(host, {"enabled": "never"})
    _thp._write(str(host / SYSFS[1:] / "enabled"), "always")
    assert [row["resource"] for row in run(host, {"enabled": "never"}).changes] == ["thp:enabled"]
    assert chosen(host)["enabled"] == "never"


def test_what_goes_is_put_back(host: Path) -> None:
    run(host, {"enabled": "never", "defrag": "never"})
    plan = run(host, {"enabled": "never"}, {"defrag": "always", "enabled": "always"})
    assert chosen(host) == {"enabled": "never", "defrag": "always"} and plan.not_restored == []
    plan = run(host, {}, {})
    assert plan.not_restored == ["enabled"] and not (host / _thp.FILE[1:]).exists()
    assert run(host, {}, {"enabled": "always"}).changes == []


def test_what_this_kernel_cannot_be_given_back_stops_nothing(host: Path) -> None:
    run(host, {"enabled": "never"})
    plan = run(host, {}, {"enabled": "sometimes"})
    assert plan.not_restored == ["enabled"] and not (host / _thp.FILE[1:]).exists()


def test_what_cannot_be_undone_is_said(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _thp.make_plan(str(host), {"enabled": "never", "defrag": "never"}, {}, live=True)
    refuse(monkeypatch, "/defrag=never", "=always")
    with pytest.raises(_thp.ThpError, match="enabled could not be put back") as info:
        _thp.apply_plan(plan)
    assert info.value.reason == "not_undone"


def test_a_word_that_the_kernel_does_not_offer_changes_nothing(host: Path) -> None:
    with pytest.raises(_thp.ThpError, match="offers always madvise never") as info:
        run(host, {"defrag": "never", "enabled": "force"})
    assert info.value.reason == "unsupported" and info.value.path == f"{SYSFS}/enabled"
    with pytest.raises(_thp.ThpError, match="this kernel has no") as info:
        run(host, {"shmem_enabled": "never"})
    assert info.value.reason == "unsupported"
    assert set(chosen(host).values()) == {"always"} and not (host / "etc").exists()


def test_a_refused_write_undoes_the_others(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _thp.make_plan(str(host), {"enabled": "never", "defrag": "never"}, {}, live=True)
    refuse(monkeypatch, "/defrag=never")
    with pytest.raises(_thp.ThpError, match="Operation not permitted"):
        _thp.apply_plan(plan)
    assert chosen(host) == {"enabled": "always", "defrag": "always"} and not (host / "etc").exists()


def test_a_mode_that_does_not_stay_is_an_error(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _thp.make_plan(str(host), {"enabled": "never"}, {}, live=True)
    monkeypatch.setattr(_thp, "_write", lambda path, value: None)
    with pytest.raises(_thp.ThpError) as info:
        _thp.apply_plan(plan)
    assert info.value.reason == "readback_differs"


def test_who_wins_at_boot(tmp_path: Path) -> None:
    """Over our line an earlier name wins, over the boot argument any; a hidden file does not; sysfsutils comes last."""
    line = f"w {SYSFS}/{{}} - - - - {{}}\n".format
    put(tmp_path, _thp.FILE, _thp.render({"enabled": "never", "defrag": "never"}) or "")
    put(tmp_path, "/usr/lib/tmpfiles.d/00-b.conf", line("defrag", "never"))
    put(tmp_path, "/etc/tmpfiles.d/00-a.conf", "# x\n  " + line("defrag", "always") + line("defrag", "madvise"))
    put(tmp_path, "/usr/lib/tmpfiles.d/00-a.conf", line("defrag", "hidden"))
    put(tmp_path, "/etc/tmpfiles.d/zz.conf", line("enabled", "always") + line("defrag", "defer"))
    found = {row.name: row for row in _thp.winners(str(tmp_path))}
    assert found == {
        "defrag": _thp.Setting("defrag", "always", "/etc/tmpfiles.d/00-a.conf", 2),
        "enabled": _thp.Setting("enabled", "always", "/etc/tmpfiles.d/zz.conf", 1),
    }
    put(tmp_path, "/etc/sysfs.conf", "# c\nkernel/mm/transparent_hugepage/enabled = madvise\n")
    found = {row.name: row for row in _thp.winners(str(tmp_path))}
    assert found["enabled"] == _thp.Setting("enabled", "madvise", "/etc/sysfs.conf", 2)
