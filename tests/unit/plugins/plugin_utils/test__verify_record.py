# SPDX-License-Identifier: GPL-3.0-or-later
"""What the controller keeps and shows of one host, whatever the host is called and says."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jinja2", reason="runs on the controller only")

from ansible_collections.firsttouch.host.plugins.plugin_utils import _verify_record as r
from verify_records import HOSTILE, answer, broken, verified

PASS, FAIL = answer("boot.a"), answer("vm_sysctls.b", "fail")
WARN = answer("thp.mode", "warn", intended=False)
OPEN = answer("boot.c", "not_evaluated", reason="permission_denied")
UNASKED = answer("boot.d", "not_evaluated", reason="offline", intended=False)


@pytest.mark.parametrize("host", ["web1", "web1.example.org", "10.0.0.1", "a_b-c"])
def test_a_plain_name_is_its_file_name(host: str) -> None:
    assert r.file_name(host) == f"{host}.json"


@pytest.mark.parametrize(
    "host",
    [HOSTILE, "..", ".", "", ".hidden", "a/b", "/etc/passwd", "-rf", "a\nb", "a\0b", "x" * 300, "\udcff", "été"],
)
def test_any_other_name_stays_one_harmless_file_of_its_own(host: str) -> None:
    name = r.file_name(host)
    assert name == os.path.basename(name) and name.isascii() and name.isprintable() and len(name) < 120
    assert not name.startswith((".", "-0")) and name.endswith(".json")
    assert name != r.file_name(host + "x") and r.file_name(name.removesuffix(".json")) != name


def test_a_file_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "a.json"
    r.write(str(path), "one")
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    r.write(str(path), "two\udc80")
    assert path.read_text() == "two\\udc80" and synced and [p.name for p in path.parent.iterdir()] == ["a.json"]
    assert path.stat().st_mode & 0o777 == 0o644

    def refuse(_old: str, _new: str) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(OSError, match="no space"):
        r.write(str(path), "three")
    assert path.read_text() == "two\\udc80" and [p.name for p in path.parent.iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    "value", ["\x1b]0;title\x07", "a\x9b31mb", "x\u202ey", "\u200b", "a\nb\r\nc\td", "\udc80", "\x7f", "\u2066\ue000"]
)
def test_nothing_of_a_host_drives_a_terminal(value: str) -> None:
    text = r.clean(value)
    assert text.isprintable() and "\n" not in text and len(text) <= 240
    assert r.clean({"key": value}).isprintable()


def test_long_texts_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(r.clean("x" * 10**6, 20)) == 20 and r.clean("x" * 30, 20).endswith("\u2026")


@pytest.mark.parametrize(
    ("rows", "fail_on", "failed"),
    [
        ((PASS,), (), False),
        ((PASS, FAIL), (), True),
        ((PASS, answer("a.b", "error", intended=False)), (), True),
        ((PASS, WARN), ("fail",), False),
        ((PASS, WARN), ("warn",), True),
        ((PASS, OPEN), ("fail",), False),
        ((PASS, OPEN), ("not_evaluated",), True),
        ((PASS, UNASKED), ("not_evaluated",), False),
        ((OPEN,), ("fail",), True),  # nothing that is asked for could be confirmed
        ((UNASKED,), ("fail",), True),  # nothing is asked for, as with tags that chose nothing
        ((), ("fail",), True),
    ],
)
def test_when_a_host_fails(rows: tuple[dict[str, Any], ...], fail_on: tuple[str, ...], failed: bool) -> None:
    assert r.failed(verified("h", *rows), fail_on) is failed


def test_no_answer_is_never_a_pass() -> None:
    dark = broken("h", unreachable=True, msg="no route")
    assert dark["state"] == "unreachable" and not r.failed(dark, ())
    for result in ({}, {"msg": "crash", "module_stderr": "Traceback\nKeyError: 'x'"}, {"verdict": "pass"}):
        entry = broken("h", **result)
        assert entry["state"] == "error" and r.failed(entry, ()) and entry["message"]
    assert "KeyError: 'x'" in broken("h", msg="crash", module_stderr="Traceback\nKeyError: 'x'")["message"]
    assert verified("h", PASS, verdict="fine")["state"] == "error"


def test_the_terminal_shows_failures_with_remedy_and_counts_the_rest() -> None:
    entry = verified("web1", PASS, FAIL, WARN, OPEN, UNASKED)
    text = "\n".join(r.lines(entry))
    assert text.splitlines()[0] == "FAIL        web1: 1 pass, 1 fail, 1 warn, 2 not evaluated"
    assert "wanted 1, found 0" in text and "firsttouch_vm_sysctls" in text and "[/proc/sys/vm/swappiness]" in text
    assert "boot.c" in text and "boot.d" not in text and "thp.mode" not in text and "boot.a" not in text
    assert "thp.mode" in "\n".join(r.lines(entry, warnings=True))
    assert "thp.mode" in "\n".join(r.lines(entry, ["warn"]))


def test_a_hostile_host_prints_like_any_other() -> None:
    row = answer("vm_sysctls.\x1b[2J", "fail", observed=HOSTILE, source="/etc/\x1b[1m", remedy="firsttouch_x \x07")
    entries = [verified(HOSTILE, row), broken(HOSTILE, msg=HOSTILE, reason=HOSTILE)]
    for entry in entries:
        shown = r.lines(entry)
        assert all(line.isprintable() for line in shown), shown
    assert len(r.lines(entries[0])) == 3


def test_records_are_json(tmp_path: Path) -> None:
    entry = verified(HOSTILE, PASS, FAIL)
    assert json.loads(json.dumps(entry)) == entry
