# SPDX-License-Identifier: GPL-3.0-or-later
"""Real troubles with /etc/default/grub.d, each compared with what the public modules return."""

from __future__ import annotations

from pathlib import Path

import pytest
from boot_cases import (
    DEFAULT,
    DROPIN,
    LINUX,
    WANT,
    change,
    dash_value,
    hashes,
    info,
    lay_out,
    normal_line,
    put,
    tokens,
    value,
)
from support import case_expected


def test_conditional_dropin_is_evaluated_or_refused(tmp_path: Path) -> None:
    expected = case_expected("grubd-conditional-dropin")
    lay_out("grubd-conditional-dropin", tmp_path)
    before = hashes(tmp_path)
    document = info(tmp_path)
    assert tokens(document, LINUX) == expected.pop("effective_if_evaluated")
    assert not [row for row in document["problems"] if row["reason"] == expected["or_verdict"]]
    expected.pop("or_verdict")
    change(tmp_path)
    after = hashes(tmp_path)
    after.pop(DROPIN.lstrip("/"))
    assert (after != before) is expected.pop("file_changed")
    assert normal_line(info(tmp_path)) == ["ro", "ipv6.disable=1", *WANT]
    assert not expected


@pytest.mark.parametrize(
    ("start", "result"),
    [
        ("", "ipv6.disable=1"),
        ("ro", "ro ipv6.disable=1"),
        ("ro ipv6.disable=10", "ro ipv6.disable=10 ipv6.disable=1"),
        ("ipv6.disable=1 ro", "ipv6.disable=1 ro"),
    ],
)
def test_the_same_dropin_over_other_values(start: str, result: str, tmp_path: Path) -> None:
    lay_out("grubd-conditional-dropin", tmp_path)
    put(tmp_path, "/etc/default/grub", f'{LINUX}="{start}"\n')
    assert value(info(tmp_path), LINUX) == result
    assert dash_value(tmp_path, LINUX) in (None, result)


@pytest.mark.parametrize(
    "condition",
    [
        f'! echo "${LINUX}" | grep -q ipv6.disable=1',
        f'! echo "${LINUX}" | grep -qw "ipv6.disable=1" 2>/dev/null',
        f"! printf '%s\\n' \"${LINUX}\" | grep -F -q ipv6.disable=1 >/dev/null",
        f'! echo " ${LINUX} " | grep -qE " ipv6.disable=1 "',
        f'[ "${{{LINUX}#*ipv6.disable=1}}" = "${LINUX}" ]',
    ],
)
@pytest.mark.parametrize(
    ("start", "result"), [("ro", "ro ipv6.disable=1"), ("ro ipv6.disable=1 x", "ro ipv6.disable=1 x")]
)
def test_other_ways_to_add_an_argument_once(condition: str, start: str, result: str, tmp_path: Path) -> None:
    put(tmp_path, "/etc/default/grub", f'{LINUX}="{start}"\n')
    text = f'if {condition}; then\n  {LINUX}="${LINUX} ipv6.disable=1"\nfi\n'
    put(tmp_path, "/etc/default/grub.d/60-ipv4only.cfg", text)
    document = info(tmp_path)
    assert (value(document, LINUX), document["problems"]) == (result, [])
    assert dash_value(tmp_path, LINUX) in (None, result)


@pytest.mark.parametrize(
    "condition",
    [
        f'echo "${LINUX}" | grep -q "[i]pv6"',
        f'echo "${LINUX}" | grep -qv ipv6',
        f'echo -n "${LINUX}" | grep -q ipv6',
        f'echo "${LINUX}" | sed s/a/b/ | grep -q ipv6',
        "grep -q hypervisor /proc/cpuinfo",
        "cat /proc/cpuinfo | grep -q hypervisor",
        f'echo "${LINUX}" | grep -q ipv6 /etc/hosts',
        f'echo "${LINUX}" | grep -q ro < /dev/null',
        f'echo "${LINUX}" | grep -q ro >/dev/null <&3',
        f'echo "a\\nipv6${LINUX}" | grep -q ^ipv6',
    ],
)
def test_a_search_that_is_not_plain_is_not_guessed(condition: str, tmp_path: Path) -> None:
    text = f'{LINUX}="ro"\nif {condition}; then {LINUX}="x"; fi\n'
    put(tmp_path, "/etc/default/grub", text)
    assert [(row["reason"], row["line"]) for row in info(tmp_path)["problems"]] == [
        ("unsupported_shell_construct", 2)
    ]


def test_a_construct_that_cannot_be_evaluated_names_file_and_line(tmp_path: Path) -> None:
    lay_out("grubd-conditional-dropin", tmp_path)
    dropin = "/etc/default/grub.d/60-ipv4only.cfg"
    put(tmp_path, dropin, f'\nwhile read -r x; do {LINUX}="$x"; done\n')
    before = hashes(tmp_path)
    wanted = info(tmp_path, want=WANT)["wanted"]
    result = change(tmp_path)
    for row in (wanted, result):
        assert (row["reason"], row["file"], row["line"]) == ("unsupported_shell_construct", dropin, 2)
    assert wanted["verdict"] == "fail" and hashes(tmp_path) == before


def test_letter_named_file_sorts_last(tmp_path: Path) -> None:
    expected = case_expected("grubd-letter-named-file-sorts-last")
    lay_out("grubd-letter-named-file-sorts-last", tmp_path)
    wanted = info(tmp_path, want=WANT)["wanted"]
    assert wanted["verdict"] == expected.pop("verdict")
    assert wanted["reason"] == expected.pop("reason_class")
    assert wanted["file"] == "/etc/default/" + expected.pop("file")
    assert wanted["line"] == 2
    assert wanted["effective"] == expected.pop("effective")
    for name in ("99-opennebula-settings.cfg", "50-cloudimg-settings.cfg"):
        put(tmp_path, f"/etc/default/grub.d/{name}", "# nothing\n")
    put(tmp_path, "/etc/default/grub.d/zz.conf", "not read\n")
    put(tmp_path, "/etc/default/grub.d/.hidden.cfg", "not read either\n")
    files = info(tmp_path)["files"]
    assert files == ["/etc/default/grub", *(f"/etc/default/grub.d/{name}" for name in expected.pop("order"))]
    assert not expected


def test_our_own_dropin_sorts_behind_all_of_them(tmp_path: Path) -> None:
    lay_out("grubd-letter-named-file-sorts-last", tmp_path)
    result = change(tmp_path)
    assert not result.get("failed"), result
    assert normal_line(info(tmp_path)) == ["consoleblank=0", *WANT]
    assert not change(tmp_path)["changed"]


@pytest.mark.parametrize("name", ["zzzz.cfg", "zzz-g.cfg", "zzz-firsttouch.cfgx.cfg", "zzz_site.cfg"])
def test_a_later_file_that_assigns_is_a_named_error(name: str, tmp_path: Path) -> None:
    put(tmp_path, "/etc/default/grub", f'{DEFAULT}="quiet"\n')
    put(tmp_path, f"/etc/default/grub.d/{name}", f'# site\n{DEFAULT}="consoleblank=0"\n')
    before = hashes(tmp_path)
    result = change(tmp_path)
    assert (result["reason"], result["line"]) == ("overridden_by_dropin", 2), result
    assert result["file"] == f"/etc/default/grub.d/{name}" and result["file"] in result["msg"]
    assert hashes(tmp_path) == before


def test_a_later_file_that_appends_is_fine(tmp_path: Path) -> None:
    put(tmp_path, "/etc/default/grub", f'{DEFAULT}="quiet"\n')
    put(tmp_path, "/etc/default/grub.d/zzzz.cfg", f'{DEFAULT}="${DEFAULT} splash"\n')
    result = change(tmp_path)
    assert not result.get("failed"), result
    assert normal_line(info(tmp_path)) == ["quiet", *WANT, "splash"]


def test_sources_name_every_file_that_contributed(tmp_path: Path) -> None:
    put(tmp_path, "/etc/default/grub", f'\n{DEFAULT}="quiet"\n')
    put(tmp_path, "/etc/default/grub.d/50-a.cfg", f'{DEFAULT}="${DEFAULT} splash"\n')
    put(tmp_path, "/etc/default/grub.d/60-b.cfg", f'{LINUX}="never"\n{LINUX}="net.ifnames=0"\n')
    rows = {row["name"]: row for row in info(tmp_path)["configured"]}
    assert rows[DEFAULT]["sources"] == [
        {"file": "/etc/default/grub", "line": 2},
        {"file": "/etc/default/grub.d/50-a.cfg", "line": 1},
    ]
    assert rows[LINUX]["sources"] == [{"file": "/etc/default/grub.d/60-b.cfg", "line": 2}]


def test_tokens_go_before_a_bare_double_dash(tmp_path: Path) -> None:
    put(tmp_path, "/etc/default/grub", f'{LINUX}="ro"\n{DEFAULT}="quiet -- --port 2024"\n')
    assert not change(tmp_path).get("failed")
    document = info(tmp_path, want=WANT)
    assert document["wanted"]["verdict"] == "pass"
    assert normal_line(document) == ["ro", *WANT, "quiet", "--", "--port", "2024"]
    assert not change(tmp_path)["changed"]


def test_a_double_dash_in_the_shared_variable_leaves_no_place(tmp_path: Path) -> None:
    put(tmp_path, "/etc/default/grub", f'{DEFAULT}="quiet"\n{LINUX}="ro -- --port 2024"\n')
    before = hashes(tmp_path)
    result = change(tmp_path)
    assert (result["reason"], result["file"], result["line"]) == ("after_double_dash", "/etc/default/grub", 2)
    assert hashes(tmp_path) == before
