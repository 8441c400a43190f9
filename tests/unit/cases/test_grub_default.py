# SPDX-License-Identifier: GPL-3.0-or-later
"""Real troubles with /etc/default/grub, each compared with what the public modules return."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from boot_cases import (
    DEFAULT,
    KEYS,
    LINUX,
    WANT,
    change,
    dash_value,
    hashes,
    info,
    lay_out,
    normal_line,
    put,
    request_of,
    tokens,
    value,
)
from support import CASES, case_expected

ALL = sorted(path.parent.name for path in CASES.glob("grub-*/grub.default"))
GOOD = [case for case in ALL if case != "grub-unquoted-with-space"]


def before_and_after(case: str, root: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Read, change, read again."""
    lay_out(case, root)
    assert request_of(case) == {"managed_keys": KEYS, "want_args": WANT}
    before = info(root)
    result = change(root)
    return before, result, info(root, want=WANT)


@pytest.mark.parametrize("case", GOOD)
def test_the_wanted_tokens_end_up_once_and_in_order(case: str, tmp_path: Path) -> None:
    before, result, after = before_and_after(case, tmp_path)
    assert not result.get("failed"), result
    line = normal_line(after)
    assert [token for token in line if token in WANT] == WANT
    assert [token for token in line if token not in WANT] == [t for t in normal_line(before) if t not in WANT]
    assert after["wanted"]["verdict"] == "pass"
    again = change(tmp_path)
    assert not again["changed"] and again["changes"] == []


@pytest.mark.parametrize("case", GOOD)
def test_foreign_files_stay_byte_identical_and_check_mode_predicts(case: str, tmp_path: Path) -> None:
    lay_out(case, tmp_path)
    before = hashes(tmp_path)
    predicted = change(tmp_path, check=True)
    assert hashes(tmp_path) == before
    real = change(tmp_path)
    assert (predicted["changes"], predicted["diff"]) == (real["changes"], real["diff"])
    after = hashes(tmp_path)
    if real["bootloader"] == "grub":
        assert {path: digest for path, digest in after.items() if path in before} == before
    change(tmp_path, state="absent", owned=WANT if after != before else [])
    assert hashes(tmp_path) == before


@pytest.mark.parametrize("case", [case for case in GOOD if case != "grub-command-substitution"])
def test_dash_agrees_with_the_evaluation(case: str, tmp_path: Path) -> None:
    _, _, after = before_and_after(case, tmp_path)
    for name in (LINUX, DEFAULT):
        shell = dash_value(tmp_path, name)
        if shell is None:
            pytest.skip("no dash")
        assert (value(after, name) or "") == shell


def test_appended_duplicate_wins(tmp_path: Path) -> None:
    expected = case_expected("grub-appended-duplicate-wins")
    before, _, after = before_and_after("grub-appended-duplicate-wins", tmp_path)
    assert tokens(before, DEFAULT) == expected.pop("effective_before")
    assert normal_line(after) == expected.pop("effective_after")
    assert not expected


def test_editing_only_the_first_of_two_assignments_is_detected(tmp_path: Path) -> None:
    lay_out("grub-appended-duplicate-wins", tmp_path)
    path = tmp_path / "etc/default/grub"
    path.write_text(path.read_text().replace('"quiet splash"', f'"quiet splash {" ".join(WANT)}"'))
    wanted = info(tmp_path, want=WANT)["wanted"]
    assert (wanted["verdict"], wanted["reason"]) == ("fail", "overridden_by_later_assignment")
    assert (wanted["file"], wanted["line"]) == ("/etc/default/grub", 12)


def test_command_substitution_is_never_executed(tmp_path: Path) -> None:
    expected = case_expected("grub-command-substitution")
    lay_out("grub-command-substitution", tmp_path)
    path = tmp_path / "etc/default/grub"
    canary = tmp_path / "canary"
    assert expected.pop("canary_must_not_exist") == "/tmp/grub-canary"
    path.write_text(path.read_text().replace("/tmp/grub-canary", str(canary)))
    line = path.read_text().splitlines()[1]
    before = info(tmp_path)
    change(tmp_path, check=True)
    result = change(tmp_path)
    info(tmp_path, want=WANT)
    assert not result.get("failed") and not canary.exists()
    assert tokens(before, LINUX) == expected.pop("effective_before")
    assert value(before, "GRUB_ENABLE_BLSCFG") == str(expected.pop("GRUB_ENABLE_BLSCFG")).lower()
    assert (path.read_text().splitlines()[1] == line) is expected.pop("distributor_line_unchanged")
    assert not expected


def test_commented_alternatives(tmp_path: Path) -> None:
    expected = case_expected("grub-commented-alternatives")
    lay_out("grub-commented-alternatives", tmp_path)
    comments = [x for x in (tmp_path / "etc/default/grub").read_text().splitlines() if x.startswith("#")]
    before = info(tmp_path)
    change(tmp_path)
    after = info(tmp_path)
    assert tokens(before, DEFAULT) == expected.pop("effective_before")
    assert tokens(before, LINUX) == expected.pop(LINUX)
    kept = [x for x in (tmp_path / "etc/default/grub").read_text().splitlines() if x.startswith("#")]
    assert kept == comments and len(kept) == expected.pop("comment_lines_unchanged")
    count = expected.pop("wanted_count_each_after")
    assert [normal_line(after).count(token) for token in WANT] == [count] * 3
    assert not expected


def test_compliant_file_is_left_alone(tmp_path: Path) -> None:
    expected = case_expected("grub-compliant-file-loses-quote")
    lay_out("grub-compliant-file-loses-quote", tmp_path)
    before = hashes(tmp_path)
    result = change(tmp_path)
    assert (hashes(tmp_path) != before) is expected.pop("file_changed")
    # a handler is notified by what a task changes
    assert [row["resource"] for row in result["changes"]] == expected.pop("handlers")
    assert not result["changed"] and not expected


def test_escaped_quote_damage(tmp_path: Path) -> None:
    expected = case_expected("grub-escaped-quote-damage")
    before, _, after = before_and_after("grub-escaped-quote-damage", tmp_path)
    assert value(before, LINUX) == expected.pop("effective_string_before")
    assert tokens(before, LINUX) == ['"rhgb quiet"', "clocksource=tsc", "tsc=reliable"]
    assert after["configured_line"]["line"] == expected.pop("effective_string_after")
    assert change(tmp_path)["changed"] is expected.pop("second_run_changed")
    assert not expected


def test_missing_variable_adds_no_none(tmp_path: Path) -> None:
    expected = case_expected("grub-missing-variable-none")
    _, result, after = before_and_after("grub-missing-variable-none", tmp_path)
    line = normal_line(after)
    assert not set(line) & set(expected.pop("forbidden_tokens"))
    assert [token for token in line if token not in WANT] == expected.pop("effective_foreign_in_order")
    assert [line.count(token) for token in WANT] == [expected.pop("wanted_count_each")] * 3
    assert not expected and result["changed"]


@pytest.mark.parametrize("token", ["None", "null", "undefined", "", "hugepages=None", "isolcpus=null"])
def test_undefined_values_are_refused(token: str, tmp_path: Path) -> None:
    lay_out("grub-missing-variable-none", tmp_path)
    before = hashes(tmp_path)
    result = change(tmp_path, tokens=[token], keys=[])
    assert result["failed"] and result["reason"] == "invalid_token"
    assert hashes(tmp_path) == before


def test_only_default_present(tmp_path: Path) -> None:
    expected = case_expected("grub-only-default-present")
    _before, _, after = before_and_after("grub-only-default-present", tmp_path)
    line = normal_line(after)
    assert [token for token in line if token not in WANT] == expected.pop("effective_foreign_in_order")
    assert [line.count(token) for token in WANT] == [expected.pop("wanted_count_each")] * 3
    values = [row["value"] for row in after["configured"] if row["value"] is not None]
    assert all(text == text.strip() for text in values) is expected.pop("no_leading_or_trailing_space")
    assert "" not in line
    assert change(tmp_path)["changed"] is expected.pop("second_run_changed")
    assert not expected


def test_single_quotes_inner_double(tmp_path: Path) -> None:
    expected = case_expected("grub-single-quotes-inner-double")
    before, _, after = before_and_after("grub-single-quotes-inner-double", tmp_path)
    assert tokens(before, DEFAULT) == expected.pop("effective_before")
    assert normal_line(after) == expected.pop("effective_after")
    # in place or by a drop-in of our own: what counts is the value a shell gets from either
    accepted = tmp_path / "accepted"
    put(accepted, "/etc/default/grub", expected.pop("accept_line") + "\n")
    assert value(after, DEFAULT) == value(info(accepted), DEFAULT)
    if dash_value(accepted, DEFAULT) is not None:
        assert dash_value(tmp_path, DEFAULT) == dash_value(accepted, DEFAULT)
    assert change(tmp_path)["changed"] is expected.pop("second_run_changed")
    assert not expected


def test_unquoted_value_with_space(tmp_path: Path) -> None:
    expected = case_expected("grub-unquoted-with-space")
    lay_out("grub-unquoted-with-space", tmp_path)
    before = hashes(tmp_path)
    wanted = info(tmp_path, want=WANT)["wanted"]
    result = change(tmp_path)
    assert wanted["verdict"] == expected.pop("verdict")
    assert wanted["reason"] == result["reason"] == expected["reason_class"]
    assert wanted["line"] == result["line"] == expected.pop("line")
    assert (hashes(tmp_path) != before) is expected.pop("file_changed")
    assert expected.pop("reason_class") in str(result["reason"]) and result["failed"]
    assert not expected
    assert os.path.basename(wanted["file"]) == "grub"


REFUSED = [
    ('GRUB_CMDLINE_LINUX="quiet\nGRUB_TIMEOUT=1\n', "unterminated_quote", 1),
    ("GRUB_TIMEOUT=1\nGRUB_CMDLINE_LINUX='quiet\n", "unterminated_quote", 2),
    ('A="1"\nGRUB_CMDLINE_LINUX="$(cat /etc/hostname)"\n', "command_substitution", 2),
    ("GRUB_CMDLINE_LINUX=`hostname`\n", "command_substitution", 1),
    ('GRUB_CMDLINE_LINUX="a"\nGRUB_CMDLINE_LINUX+=" b"\n', "unsupported_shell_construct", 2),
    ("GRUB_CMDLINE_LINUX=(a b)\n", "unsupported_shell_construct", 1),
    ("for x in a b; do GRUB_CMDLINE_LINUX=$x; done\n", "unsupported_shell_construct", 1),
    ("GRUB_CMDLINE_LINUX= quiet\n", "unquoted_value_with_space", 1),
    ("GRUB_CMDLINE_LINUX = quiet\n", "unsupported_shell_construct", 1),
    ('GRUB_CMDLINE_LINUX="quiet\nsplash"\n', "newline_in_value", 1),
    ('GRUB_CMDLINE_LINUX="quiet"\r\n', "newline_in_value", 1),
    ("GRUB_CMDLINE_LINUX=quiet&splash\n", "unsupported_shell_construct", 1),
    ("GRUB_CMDLINE_LINUX=quiet;splash\n", "unsupported_shell_construct", 1),
    ('if [ "$HOME" = /root ]; then\nGRUB_CMDLINE_LINUX=a\nfi\n', "unsupported_shell_construct", 1),
    ("if true; then GRUB_CMDLINE_LINUX=a\n", "syntax_error", 1),
    ("eval GRUB_CMDLINE_LINUX=a\n", "unsupported_shell_construct", 1),
    ('GRUB_CMDLINE_LINUX="a ${HOME}"\n', "unsupported_shell_construct", 1),
    ('GRUB_CMDLINE_LINUX="a=b;reboot"\n', "grub_metacharacter", 1),
    ("GRUB_CMDLINE_LINUX='console=\"tty0'\n", "grub_metacharacter", 1),
]


@pytest.mark.parametrize(("text", "reason", "line"), REFUSED)
def test_what_is_not_safe_is_refused_and_left_alone(
    text: str, reason: str, line: int, tmp_path: Path
) -> None:
    put(tmp_path, "/etc/default/grub", "")
    (tmp_path / "etc/default/grub").write_bytes(text.encode())
    before = hashes(tmp_path)
    result = change(tmp_path)
    assert result["failed"] and (result["reason"], result["line"]) == (reason, line), result
    assert result["file"] == "/etc/default/grub" and "/etc/default/grub" in result["msg"]
    assert hashes(tmp_path) == before
    assert info(tmp_path, want=WANT)["wanted"]["verdict"] == "fail"


def test_what_grub_would_drop_is_not_called_fine(tmp_path: Path) -> None:
    """In grub.cfg a `#` begins a comment, so the kernel never sees what follows."""
    put(tmp_path, "/etc/default/grub", f'{DEFAULT}="quiet #was: {" ".join(WANT)}"\n')
    wanted = info(tmp_path, want=WANT)["wanted"]
    assert (wanted["verdict"], wanted["reason"], wanted["line"]) == ("fail", "grub_metacharacter", 1)


ACCEPTED = [
    ("GRUB_CMDLINE_LINUX=quiet\n", "quiet"),
    ("GRUB_CMDLINE_LINUX=\n", ""),
    ("GRUB_CMDLINE_LINUX=''\n", ""),
    ('GRUB_CMDLINE_LINUX="a \\\n b"\n', "a  b"),
    ("GRUB_CMDLINE_LINUX=a\\ b\n", "a b"),
    ('X="a b"\nGRUB_CMDLINE_LINUX="$X c"\n', "a b c"),
    ('GRUB_CMDLINE_LINUX="a"\nGRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX b"\n', "a b"),
    ("GRUB_CMDLINE_LINUX=\"${GRUB_EXTRA:-a}\"'b'c\n", "abc"),
    ('GRUB_CMDLINE_LINUX="${GRUB_EXTRA:+a}b"\n', "b"),
    ("export GRUB_CMDLINE_LINUX=a GRUB_X=1\n", "a"),
    ("# GRUB_CMDLINE_LINUX=x\nGRUB_CMDLINE_LINUX=a # b\n", "a"),
    ("GRUB_CMDLINE_LINUX=a#b\n", "a#b"),
    ('GRUB_CMDLINE_LINUX=a; GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX b"\n', "a b"),
    ("if [ -f /etc/nothing ]; then GRUB_CMDLINE_LINUX=a; else GRUB_CMDLINE_LINUX=b; fi\n", "b"),
    ('GRUB_CMDLINE_LINUX=a\n[ -n "$GRUB_CMDLINE_LINUX" ] && GRUB_CMDLINE_LINUX=b\n', "b"),
    ("GRUB_DISTRIBUTOR=`( . /etc/os-release && echo ${NAME} )`\nGRUB_CMDLINE_LINUX=a\n", "a"),
    ("GRUB_DISTRIBUTOR=$(if [ a ]; then echo ')'; fi)\nGRUB_CMDLINE_LINUX=a\n", "a"),
    ('GRUB_CMDLINE_LINUX="a"\nunset GRUB_CMDLINE_LINUX\n', None),
    ("GRUB_CMDLINE_LINUX=a\nif [ -n b ]; then [ c = d ] && GRUB_CMDLINE_LINUX=b; fi\n:\n", "a"),
    ("GRUB_CMDLINE_LINUX=a\n{ [ c = d ] && GRUB_CMDLINE_LINUX=b; }\n:\n", "a"),
    ("if true; then GRUB_CMDLINE_LINUX=a; fi\\\n", "a"),
    ("case a in a) GRUB_CMDLINE_LINUX=a ;; esac\\\n\n", "a"),
    ('GRUB_CMDLINE_LINUX=a\nif [ "$GRUB_TIMEOUT" -gt 5 ]; then GRUB_CMDLINE_LINUX=b; fi\n', "a"),
    *(
        (f"GRUB_CMDLINE_LINUX=a\nif [ {test} ]; then GRUB_CMDLINE_LINUX=b; fi\n", "a")
        for test in ('! "" -gt 1', "! abc -gt 1", "99999999999999999999 -gt 1", "! abc def", f"! {'9' * 5000} -gt 1")
    ),
    ("[ -r /etc/no/local ] && . /etc/no/local\nGRUB_CMDLINE_LINUX=a\n", "a"),
    ("GRUB_CMDLINE_LINUX=a\nif [ -x /etc/no/tool ]; then GRUB_CMDLINE_LINUX=b; fi\n", "a"),
    ('GRUB_CMDLINE_LINUX="hugepages=$((512*2)) ro"\n', "hugepages=1024 ro"),
    (
        "N=8\nGRUB_CMDLINE_LINUX=isolcpus=2-$(( N - 1 )),$((${N}/3)),$(( ($N+010) % 0x5 ))\n",
        "isolcpus=2-7,2,1",
    ),
    ("GRUB_CMDLINE_LINUX=$(( -7 / 2 )),$((-7%2)),$((UNSET+1))\n", "-3,-1,1"),
    ('GRUB_CMDLINE_LINUX="ro quiet"\nGRUB_CMDLINE_LINUX="${GRUB_CMDLINE_LINUX% quiet}"\n', "ro"),
    ("X='a=1 b=2 a=3'\nGRUB_CMDLINE_LINUX=${X#*=}+${X##*=}+${X%=*}+${X%%=*}\n", "1 b=2 a=3+3+a=1 b=2 a+a"),
    ("GRUB_CMDLINE_LINUX=abc\nGRUB_CMDLINE_LINUX=${GRUB_CMDLINE_LINUX%'*'}${UNSET%x}\n", "abc"),
    ("echo ${GRUB_NEW:=a} >/dev/null\nGRUB_CMDLINE_LINUX=$GRUB_NEW\n", "a"),
    ("if command -v no-such-tool >/dev/null 2>&1; then GRUB_TIMEOUT=1; fi\nGRUB_CMDLINE_LINUX=a\n", "a"),
]


@pytest.mark.parametrize(
    "expression",
    ["2**3", "7//2", "1/0", "08", "x++", "1<<2", "a=5", "$X+1", "9223372036854775807+1", "1 2"],
)
def test_arithmetic_that_shells_do_not_agree_on_is_not_guessed(expression: str, tmp_path: Path) -> None:
    put(tmp_path, "/etc/default/grub", f'GRUB_CMDLINE_LINUX="a=$(({expression}))"\nGRUB_X=1\n')
    assert [(row["reason"], row["line"]) for row in info(tmp_path)["problems"]] == [
        ("arithmetic_expansion", 1)
    ]


@pytest.mark.parametrize("word", ["${X%[a-c]}", "${X#~}", "\"${X%'b'}\"", "${X/b/c}", "${X%$(date)}"])
def test_a_pattern_that_shells_do_not_agree_on_is_not_guessed(word: str, tmp_path: Path) -> None:
    put(tmp_path, "/etc/default/grub", f"X=ab\nGRUB_CMDLINE_LINUX={word}\n")
    assert [row["line"] for row in info(tmp_path)["problems"]] == [2]


def test_what_is_computed_is_not_edited_in_place(tmp_path: Path) -> None:
    put(tmp_path, "/etc/default/grub", f'{LINUX}="hugepages=$((2*3)) ro"\n')
    before = hashes(tmp_path)
    assert change(tmp_path)["reason"] == "foreign_token" and hashes(tmp_path) == before
    assert not change(tmp_path, tokens=["quiet"], keys=[]).get("failed")
    assert normal_line(info(tmp_path)) == ["hugepages=6", "ro", "quiet"]


def test_an_exported_default_is_evaluated_once(tmp_path: Path) -> None:
    put(tmp_path, "/etc/default/grub", f'X=\nexport {LINUX}="a$X"${{X:=b}}\n')
    assert value(info(tmp_path), LINUX) == "ab"


def test_a_block_that_fails_where_nothing_tests_it_ends_grub_mkconfig(tmp_path: Path) -> None:
    put(tmp_path, "/etc/default/grub", "if true; then\n[ a = b ]\nfi\nGRUB_CMDLINE_LINUX=a\n")
    assert [(row["reason"], row["line"]) for row in info(tmp_path)["problems"]] == [("command_fails", 2)]


@pytest.mark.parametrize(("mode", "wanted"), [(0o644, "r"), (0o755, "r x")])
def test_a_file_that_is_there_may_be_read_and_executed_by_its_mode(
    mode: int, wanted: str, tmp_path: Path
) -> None:
    put(tmp_path, "/etc/site/tool", "").chmod(mode)
    lines = "".join(
        f'if [ -{flag} /etc/site/tool ]; then {LINUX}="${{{LINUX}:+${LINUX} }}{flag}"; fi\n' for flag in "rx"
    )
    put(tmp_path, "/etc/default/grub", lines)
    assert value(info(tmp_path), LINUX) == wanted


RECORDING = {"/firsttouch-recording.json": "{}"}


@pytest.mark.parametrize(
    ("test", "there", "known"),
    [
        ("-x /usr/bin/systemd-detect-virt", {}, False),
        ("-f /etc/default/site", {}, False),
        ("-d /opt/vendor", {}, False),
        ("-x /usr/sbin/update-grub", {"/usr/sbin/update-grub": ""}, False),
        ("-s /usr/sbin/update-grub", {"/usr/sbin/update-grub": ""}, False),
        ("-e /usr/sbin/update-grub", {"/usr/sbin/update-grub": ""}, True),
        ("-s /etc/default/grub", {}, True),
        ("-f /etc/default/grub.d/site.cfg", {}, True),
        ("-d /sys/firmware/efi", {}, True),
        *((f"-f {path}/custom.cfg", {}, True) for path in ("/boot/grub2", "/boot/efi/EFI/debian", "/grub")),
        ("-s /boot/grub2/grubenv", {}, True),
    ],
)
def test_what_a_recording_has_not_may_be_on_the_host(
    test: str, there: dict[str, str], known: bool, tmp_path: Path
) -> None:
    """Programs are recorded empty or not at all, so that the argument behind the test may be on the line."""
    for path, text in {**RECORDING, **there}.items():
        put(tmp_path, path, text)
    put(tmp_path, "/etc/default/grub", f'{LINUX}=quiet\nif [ {test} ]; then {LINUX}="${LINUX} isolcpus=9"; fi\n')
    problems = info(tmp_path)["problems"]
    assert [row["line"] for row in problems] == ([] if known else [2])
    (tmp_path / "firsttouch-recording.json").unlink()
    assert not info(tmp_path)["problems"]


def test_what_a_recording_sources_may_be_on_the_host(tmp_path: Path) -> None:
    put(tmp_path, "/firsttouch-recording.json", "{}")
    put(tmp_path, "/etc/default/grub", f"{LINUX}=a\n[ -r /etc/site/grub ] && . /etc/site/grub\n:\n")
    assert {(row["reason"], row["file"]) for row in info(tmp_path)["problems"]} == {("not_recorded", "/etc/site/grub")}


def test_which_shell_reads_the_file_is_not_guessed_of_a_recording(tmp_path: Path) -> None:
    put(tmp_path, "/firsttouch-recording.json", "{}")
    put(tmp_path, "/etc/default/grub", f'{LINUX}="ro"\n{LINUX}+=" quiet"\n')
    assert {(row["reason"], row["file"]) for row in info(tmp_path)["problems"]} == {("not_recorded", "/bin/sh")}


@pytest.mark.parametrize(
    "command",
    [
        ": $((N=5))", ": $((N+=2))", "X=$((N<<=1))", "echo $((N=5))", "if no-such-tool $((N=5)); then :; fi",
        "X=N=5\n: $(($X))", "if echo $((N=5)) >/dev/null; then :; fi", "if false $((N=5)); then :; fi",
    ],
)  # fmt: skip
def test_what_arithmetic_assigns_is_not_what_it_was(command: str, tmp_path: Path) -> None:
    put(tmp_path, "/etc/default/grub", f'N=1\n{command}\n{LINUX}="maxcpus=$N"\n')
    assert {row["reason"] for row in info(tmp_path)["problems"]} == {"arithmetic_expansion"}
    put(tmp_path, "/etc/default/grub", f'N=1\n: $((N==5))\n{LINUX}="maxcpus=$N"\n')
    assert value(info(tmp_path), LINUX) == "maxcpus=1"


def test_a_part_of_a_pipeline_that_ends_ends_nothing_else(tmp_path: Path) -> None:
    text = f"{LINUX}=a\nif echo ${{X?}} 2>/dev/null | grep -q y; then GRUB_NEW=b; fi\n"
    put(tmp_path, "/etc/default/grub", text)
    assert not info(tmp_path)["problems"] and value(info(tmp_path), LINUX) == "a"


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_an_appended_value_where_sh_is_bash(shell: str, tmp_path: Path) -> None:
    put(tmp_path, f"/usr/bin/{shell}", "")
    (tmp_path / "bin").symlink_to("usr/bin")
    (tmp_path / "usr/bin/sh").symlink_to(shell)
    text = f'{LINUX}="ro"\n{LINUX}+=" quiet"\nexport {LINUX}+=\' x=1\'\nGRUB_NEW+=a\n'
    put(tmp_path, "/etc/default/grub", text)
    document = info(tmp_path)
    if shell == "dash":
        assert [row["line"] for row in document["problems"]] == [2]
        return
    assert value(document, LINUX) == "ro quiet x=1" and not document["problems"]
    real = shutil.which("bash")
    if real:
        script = f". '{tmp_path}/etc/default/grub'; printf %s \"${LINUX}\""
        told = subprocess.run(
            [real, "--posix", "-ec", script], env={}, capture_output=True, text=True, check=True
        )
        assert told.stdout == "ro quiet x=1"
    assert not change(tmp_path).get("failed")
    assert normal_line(info(tmp_path)) == ["ro", "quiet", "x=1", *WANT]


@pytest.mark.parametrize(("text", "wanted"), ACCEPTED)
def test_what_a_shell_makes_of_it(text: str, wanted: str | None, tmp_path: Path) -> None:
    put(tmp_path, "/etc/default/grub", text)
    document = info(tmp_path)
    assert not document["problems"]
    assert value(document, LINUX) == wanted
    if "`" not in text and "$(" not in text and dash_value(tmp_path, LINUX) is not None:
        assert dash_value(tmp_path, LINUX) == (wanted or "")
