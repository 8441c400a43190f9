# SPDX-License-Identifier: GPL-3.0-or-later
"""The evaluator against a real shell, and what it says about origins."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils._grub_default import (
    LINUX,
    holds,
    line_tokens,
    overridden_by,
    read_default,
)
from support import put

DASH = shutil.which("dash")
BASH = shutil.which("bash")
NAMES = ["GRUB_CMDLINE_LINUX", "GRUB_CMDLINE_LINUX_DEFAULT", "GRUB_A", "X1"]


def shell_values(shell: list[str], path: Path) -> list[str] | None:
    """What SHELL has in NAMES after it sourced PATH under `set -e`; None when it fails."""
    script = f". '{path}'; printf '%s\\0' " + " ".join(f'"${name}"' for name in NAMES)
    done = subprocess.run([*shell, "-ec", script], env={}, capture_output=True, check=False, cwd="/")
    return done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1] if done.returncode == 0 else None


def our_values(root: Path) -> list[str] | None:
    """What the evaluator has in NAMES; None when it refuses."""
    grub = read_default(str(root), dropins=False)
    values = [grub.variables.get(name) for name in NAMES]
    if grub.error or any(value is not None and value.opaque for value in values):
        return None
    return [value.text if value is not None else "" for value in values]


def test_against_a_real_shell_on_generated_files(tmp_path: Path) -> None:
    hypothesis = pytest.importorskip("hypothesis")
    st = hypothesis.strategies
    if DASH is None:
        pytest.skip("no dash")
    plain = st.text("abZ09_=.,:/@%+-", min_size=1, max_size=4)
    name = st.sampled_from(NAMES)
    inner = st.one_of(plain, st.sampled_from(["", "q r", "'", "#"]))
    brace = st.builds(
        lambda n, op, word: f"${{{n}{op}{word}}}",
        name,
        st.sampled_from(["-", ":-", "+", ":+", "=", ":="]),
        st.one_of(plain, st.just("")),
    )
    param = st.one_of(name.map(lambda n: f"${n}"), name.map(lambda n: f"${{{n}}}"), brace)
    quoted = st.lists(
        st.one_of(
            inner, param, st.sampled_from(['\\"', "\\$", "\\\\", "\\`", "\\n", "\\\n", " ", "\t", "$ ", "é"])
        ),
        max_size=5,
    ).map(lambda parts: '"' + "".join(parts) + '"')
    single = st.text('ab \t$"\\`#;&|()<>{}!*é', max_size=5).map(lambda text: f"'{text}'")
    escape = st.sampled_from(["\\ ", "\\'", '\\"', "\\$", "\\\\", "\\;", "\\#", "\\a", "\\\n"])
    word = st.lists(st.one_of(plain, quoted, single, escape, param), max_size=4).map("".join)
    assign = st.builds(lambda n, w: f"{n}={w}", name, word)
    test = st.builds(
        lambda left, op, right: f"[ {left} {op} {right} ]", quoted, st.sampled_from(["=", "!="]), quoted
    ) | st.builds(lambda op, text: f"[ {op} {text} ]", st.sampled_from(["-n", "-z"]), quoted)
    case = st.builds(
        lambda subject, pattern, yes, no: f"case {subject} in\n {pattern}) {yes} ;;\n *) {no} ;;\nesac",
        quoted,
        st.builds(lambda text: f"*{text}*", quoted),
        assign,
        st.one_of(assign, st.just("")),
    )
    block = st.builds(lambda cond, yes, no: f"if {cond}; then\n {yes}\nelse {no}; fi", test, assign, assign)
    chain = st.builds(
        lambda cond, op, then: f"{cond} {op} {then}", test, st.sampled_from(["&&", "||"]), assign
    )
    statement = st.one_of(
        assign,
        assign,
        assign,
        st.builds(lambda a, b: f"{a} {b}", assign, assign),
        assign.map(lambda a: f"{a} # comment"),
        st.builds(lambda n, w: f"export {n}={w}", name, quoted),
        name.map(lambda n: f"unset {n}"),
        plain.map(lambda text: f"# {text}"),
        case,
        block,
        chain,
        test.map(lambda t: f"! {t}"),
        test.map(lambda t: f"{{ {t} || :; }}"),
    )
    script = st.lists(statement, min_size=1, max_size=6).map(lambda rows: "\n".join(rows) + "\n")
    path = tmp_path / "etc/default/grub"
    path.parent.mkdir(parents=True)

    def compare(text: str) -> None:
        path.write_text(text)
        assert our_values(tmp_path) == shell_values([str(DASH)], path), text

    settings = hypothesis.settings(max_examples=300, deadline=None, database=None)
    settings(hypothesis.given(script)(compare))()


@pytest.mark.parametrize(
    "text",
    [
        "X1=a GRUB_A=$X1\n",
        "X1=a\\\nb\n",
        'X1="a\\\nb"\n',
        "X1='a\\\nb'\n",
        'GRUB_A=a\nX1="$GRUB_A\\\n0"\n',
        "GRUB_A=a\nX1=$GRUB\\\n_A\n",
        "GRUB_A=a\nX1=$\\\nGRUB_A\n",
        "GRUB_A=a\nX1=$GRUB_A\\\n\n",
        'GRUB_A=a\nX1="$\\\n{GRUB\\\n_A\\\n:-b}"\n',
        'X1="${GRUB_A\\\n:-b\\\nc}"\n',
        "GRUB_A=a\nX1='$GRUB_A\\\n0'\n",
        "X1=a\\",
        "X1=a",
        'X1="a"#b\n',
        "X1=a;#b\n",
        "X1=a;;\n",
        "X1='a",
        'X1="${GRUB_A:-"b c"}"\n',
        "X1=\"${GRUB_A:-'b'}\"\n",
        "X1=${GRUB_A:-'b c'}\n",
        'X1="${GRUB_A:-\\}}"\n',
        "case a in a|b) X1=1;; esac\n",
        "case a in (b) X1=1;; *) X1=2\nesac\n",
        'case "" in "") X1=1;; esac\n',
        "case 'a*' in 'a*') X1=1;; esac\ncase ab in 'a*') X1=2;; esac\n",
        "case ab in a?) X1=1;; esac\n",
        "if [ -z ]; then X1=1; fi\n",
        "if [ ! a = b ]; then X1=1; fi\n",
        "if ! [ a = a ]; then X1=1; elif true; then X1=2; fi\n",
        "GRUB_A='a b'\nif [ $GRUB_A ]; then X1=1; fi\n",
        "GRUB_A=''\nif [ -n $GRUB_A ]; then X1=1; fi\n",
        "[ 2 -gt 1 ] && X1=1\n",
        "[ a = b ] && X1=1\n:\n",
        "[ a = b ] && X1=1\n",
        "false\nX1=1\n",
        "false || X1=1\n",
        "! true\nX1=1\n",
        "{ X1=1; GRUB_A=2; }\n",
        "X1=1 && GRUB_A=2 || X1=3\n",
        "fi\n",
        "X1=a )\n",
        "X1=$\n",
        'X1="$"\n',
        'X1="a$-b"\n',
        "export X1\nX1=2\n",
        "export X1=1 GRUB_A=2\n",
        ": ${X1:=5}\n",
        "X1=1\nunset X1 GRUB_A\n",
        "X1=a\\ b=c\n",
        "X1 =a\n",
        "X1= a\n",
        "\tX1=1\n",
        "X1=1\n\n\n# end",
        "if true; then :; fi; X1=1\n",
        'X1="\\a\\"\\$"\n',
        "\\X1=a\n",
    ],
)
@pytest.mark.parametrize("shell", [DASH, BASH])
def test_against_real_shells_on_corners(text: str, shell: str | None, tmp_path: Path) -> None:
    if shell is None:
        pytest.skip("no such shell")
    path = put(tmp_path, "/etc/default/grub", text)
    ours = our_values(tmp_path)
    argv = [shell] if shell == DASH else [shell, "--posix"]
    theirs = shell_values(argv, path)
    if ours is not None or "$-" not in text:
        assert ours == theirs


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("X=$(echo ')' \"$(echo \\) )\" )\nGRUB_CMDLINE_LINUX=a\n", None),
        ("X=$(case a in a) ;; esac)\n", "unsupported_shell_construct"),
        ("f() { X=1; }\n", "unsupported_shell_construct"),
        ("(X=1)\n", "unsupported_shell_construct"),
        ("cat <<EOF\nEOF\n", "unsupported_shell_construct"),
        ("set -- a b\n", "unsupported_shell_construct"),
        (". ./relative\n", "unsupported_shell_construct"),
        (". /etc/absent\n", "file_missing"),
        ("X=$'a'\n", "unsupported_shell_construct"),
        ("sed -i s/a/b/ /etc/default/grub\n", "unsupported_shell_construct"),
        ("exit 0\n", "unsupported_shell_construct"),
        ("if grep -q x /proc/cmdline; then GRUB_TIMEOUT=1; fi\n", None),
    ],
)
def test_refusals_are_about_what_matters(text: str, reason: str | None, tmp_path: Path) -> None:
    put(tmp_path, "/etc/default/grub", text)
    error = read_default(str(tmp_path)).error
    assert (error.reason if error else None) == reason


def test_a_value_under_an_unknown_condition_is_opaque(tmp_path: Path) -> None:
    put(tmp_path, "/etc/default/grub", f"{LINUX}=a\nif grep -q x /proc/cmdline; then\n {LINUX}=b\nfi\n")
    setting = read_default(str(tmp_path)).setting(LINUX)
    assert setting.value is None and setting.problem is not None
    assert (setting.problem.reason, setting.problem.line) == ("unsupported_shell_construct", 2)


def test_sourced_files_are_followed_inside_of_the_root(tmp_path: Path) -> None:
    put(tmp_path, "/etc/default/grub", f'. /etc/site\n{LINUX}="$GRUB_SITE quiet"\n')
    put(tmp_path, "/etc/site", "\nGRUB_SITE=console=tty0\n")
    setting = read_default(str(tmp_path)).setting(LINUX)
    assert setting.value == "console=tty0 quiet"
    assert [str(source) for source in setting.sources] == ["/etc/site:2", "/etc/default/grub:2"]
    assert [str(token.source) for token in setting.tokens] == ["/etc/site:2", "/etc/default/grub:2"]


def test_tokens_know_the_line_they_are_written_on(tmp_path: Path) -> None:
    put(tmp_path, "/etc/default/grub", f'{LINUX}="a \\\nb \\\n c"\n')
    grub = read_default(str(tmp_path))
    assert [(t.text, t.source.line if t.source else 0) for t in line_tokens(grub.value(LINUX))] == [
        ("a", 1),
        ("b", 2),
        ("c", 3),
    ]


def test_bytes_that_are_no_utf8_survive(tmp_path: Path) -> None:
    put(tmp_path, "/etc/default/grub", "")
    (tmp_path / "etc/default/grub").write_bytes(b'GRUB_CMDLINE_LINUX="a=\xff b"\n')
    assert read_default(str(tmp_path)).text(LINUX).encode("utf-8", "surrogateescape") == b"a=\xff b"


def test_a_sourcing_loop_ends(tmp_path: Path) -> None:
    put(tmp_path, "/etc/default/grub", ". /etc/default/grub\n")
    error = read_default(str(tmp_path)).error
    assert error is not None and error.reason == "unsupported_shell_construct"


def test_overridden_by_names_the_assignment_that_took_it_away(tmp_path: Path) -> None:
    put(
        tmp_path,
        "/etc/default/grub",
        f'{LINUX}="a b"\n{LINUX}="${LINUX} c"\n{LINUX}=c\n{LINUX}="${LINUX} d"\n',
    )
    grub = read_default(str(tmp_path))
    step = overridden_by(grub, ["a", "b"])
    assert step is not None and step.line == 3
    assert overridden_by(grub, ["c", "d"]) is None and overridden_by(grub, ["never"]) is None


def test_holds_is_about_order() -> None:
    assert holds(["a", "x", "b"], ["a", "b"]) and not holds(["b", "a"], ["a", "b"])


def test_unreadable_file_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ansible_collections.firsttouch.host.plugins.module_utils import _boot_shell_eval

    def denied(root: str, path: str) -> str:
        raise PermissionError(13, "Permission denied", path)

    put(tmp_path, "/etc/default/grub", "A=1\n")
    monkeypatch.setattr(_boot_shell_eval, "read_text", denied)
    error = read_default(str(tmp_path)).error
    assert error is not None and error.reason == "permission_denied"
