# SPDX-License-Identifier: GPL-3.0-or-later
"""The recorded command line troubles through kernel_cmdline_info and hugepages_info, and neighbours of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from support import CASES, case_expected, put, run_module

POOL = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"


def running(tmp_path: Path, line: str, **options: Any) -> dict[str, Any]:
    """kernel_cmdline_info on a host that runs with LINE."""
    put(tmp_path, "/proc/cmdline", line)
    result = run_module("kernel_cmdline_info", {"sysroot": str(tmp_path), **options})
    assert not result.get("failed"), result
    return result


def case_line(case: str) -> str:
    return (CASES / case / "cmdline").read_text()


def value(result: dict[str, Any], key: str) -> str | None:
    """The value of KEY among the arguments that the kernel reads, None when it reads none."""
    tokens = result["running"]["tokens"]
    count = next((index for index, token in enumerate(tokens) if token == ["--", None]), len(tokens))
    return next((token[1] for token in tokens[:count] if token[0] == key), None)


def test_quote_corners(tmp_path: Path) -> None:
    result = running(tmp_path, case_line("cmdline-quote-corners"))
    assert {"tokens": result["running"]["tokens"]} == case_expected("cmdline-quote-corners")


def test_newline_and_tabs(tmp_path: Path) -> None:
    case = "cmdline-newline-and-tabs"
    result = running(tmp_path, case_line(case), want=["isolcpus=2-3", "hugepages=512"])
    want = case_expected(case)
    assert {key: value(result, key) for key in want} == want
    predicted = result["predicted"]["running"]
    assert predicted["pools"]["2048kB"]["total"] == int(want["hugepages"])
    assert predicted["isolation"]["domain"] == want["isolcpus"]
    assert result["wanted"]["layers"]["running"] == "pass"


def test_double_dash(tmp_path: Path) -> None:
    case = "cmdline-double-dash"
    want = case_expected(case)
    put(tmp_path, POOL, "0\n")
    result = running(tmp_path, case_line(case), want=["hugepages=512"])
    pools = yaml.safe_load((CASES / case / "request.yml").read_text())["pools"]
    judged = run_module("hugepages_info", {"sysroot": str(tmp_path), "pools": pools})
    assert want == {
        "isolcpus": value(result, "isolcpus"),
        "hugepages": value(result, "hugepages"),
        "verdict": judged["verdict"],
        "reason_class": judged["reason"],
    }
    assert (result["wanted"]["verdict"], result["wanted"]["reason"]) == (
        want["verdict"],
        want["reason_class"],
    )
    predicted = result["predicted"]["running"]
    assert predicted["isolation"]["domain"] == want["isolcpus"]
    assert predicted["pools"]["2048kB"]["total"] == 0
    assert predicted["ignored"] == ["hugepages=512"]
    assert "hugepages=512" not in result["running"]["kernel_tokens"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("ro -- hugepages=512", "after_double_dash"),
        ('ro "--" hugepages=512', "after_double_dash"),
        ("ro -- -- hugepages=512", "after_double_dash"),
        ("ro --\thugepages=512\n", "after_double_dash"),
        ("ro -- huge-pages=512", "missing_tokens"),
        ("ro", "missing_tokens"),
        ("ro hugepages=5120", "missing_tokens"),
        ("ro xhugepages=512", "missing_tokens"),
        ("ro 'hugepages=512'", "missing_tokens"),
        ('ro x="hugepages=512"', "missing_tokens"),
        ("ro hugepages=4 hugepages=512", "different_effect"),
    ],
)
def test_an_argument_that_is_there_but_not_for_the_kernel(tmp_path: Path, line: str, reason: str) -> None:
    result = running(tmp_path, line, want=["hugepages=512"])
    assert (result["wanted"]["verdict"], result["wanted"]["reason"]) == ("fail", reason)
    assert result["wanted"]["live"] is False


@pytest.mark.parametrize(
    "line",
    [
        "hugepages=512",
        "--x hugepages=512 -- y",
        "--=1 hugepages=512",
        "\thugepages=512 \n",
        "ro\nhugepages=512",
        'x="a -- b" hugepages=512',
        "hugepages=512 hugepages=512",
        'hugepages="512"',
        '"hugepages=512"',
        '"hugepages=512',
    ],
)
def test_an_argument_that_the_kernel_reads(tmp_path: Path, line: str) -> None:
    result = running(tmp_path, line, want=["hugepages=512"])
    assert result["wanted"]["live"] is True
    assert result["predicted"]["running"]["pools"]["2048kB"]["total"] == 512


@pytest.mark.parametrize(
    ("want", "line", "live"),
    [
        ("default_hugepagesz=2M", "default-hugepagesz=2M", True),
        ('dyndbg="file a +p"', '"dyndbg=file a +p"', True),
        ("dyndbg=", 'dyndbg=""', True),
        ("quiet", '"quiet"', True),
        ("quiet", "quiet=", False),
        ("a-b=c-d", "a_b=c_d", False),
        ("Quiet", "quiet", False),
    ],
)
def test_arguments_are_the_same_as_the_kernel_compares_them(
    want: str, line: str, live: bool, tmp_path: Path
) -> None:
    assert running(tmp_path, f"ro {line}\n", want=[want])["wanted"]["live"] is live


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("hugepagesz=1048576K hugepages=2 hugepagesz=2048kB hugepages=512", None),
        ("hugepagesz=0x40000000 hugepages=2 hugepagesz=2048k hugepages=512", None),
        ("hugepagesz=2048K hugepages=512 hugepagesz=1048576K hugepages=2", "wrong_order"),
        ("hugepagesz=2048M hugepages=2 hugepagesz=2048K hugepages=512", "missing_tokens"),
        ("default_hugepagesz=1048576K hugepages=2 hugepagesz=2048K hugepages=512", "missing_tokens"),
        ("hugepagesz=1G hugepagesz=1048576K hugepages=2 hugepagesz=2M hugepages=512", "different_effect"),
    ],
)
def test_a_page_size_is_the_same_however_it_is_written(tmp_path: Path, line: str, reason: str | None) -> None:
    want = ["hugepagesz=1G", "hugepages=2", "hugepagesz=2M", "hugepages=512"]
    judged = running(tmp_path, line, want=want)["wanted"]
    assert (judged["layers"]["running"], judged["live"]) == ("fail" if reason else "pass", not reason)
    if reason:
        assert judged["reason"] == reason


def test_an_unterminated_quote_swallows_the_rest(tmp_path: Path) -> None:
    result = running(tmp_path, 'ro x="a b hugepages=512', want=["hugepages=512"])
    assert result["running"]["tokens"] == [["ro", None], ["x", "a b hugepages=512"]]
    assert result["wanted"]["reason"] == "missing_tokens"


def test_a_no_break_space_is_a_blank_to_the_kernel(tmp_path: Path) -> None:
    result = running(tmp_path, "isolcpus=2-3\u00a0nohz_full=2-3 quiet")
    isolation = result["predicted"]["running"]["isolation"]
    assert isolation["nohz_full"] == "2-3"
    # The first byte of that blank stays with the list and voids it.
    assert isolation["domain"] == ""


def test_no_running_line_is_unknown_not_empty(tmp_path: Path) -> None:
    result = run_module("kernel_cmdline_info", {"sysroot": str(tmp_path), "want": ["hugepages=512"]})
    assert result["running"] is None and result["predicted"]["running"] is None
    assert result["wanted"]["layers"]["running"] == "unknown"
    assert result["wanted"]["verdict"] == "fail"


def test_a_line_longer_than_the_kernel_keeps(tmp_path: Path) -> None:
    result = running(tmp_path, f"{'x' * 2040} hugepages=512")
    assert result["predicted"]["running"]["pools"]["2048kB"]["total"] == 0
    assert {row["reason"] for row in result["predicted"]["running"]["warnings"]} == {"line_too_long"}
