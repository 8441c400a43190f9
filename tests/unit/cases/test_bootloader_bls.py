# SPDX-License-Identifier: GPL-3.0-or-later
"""Real troubles with boot loader entries and the environment block, compared with what the modules return."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from boot_cases import KEYS, WANT, change, hashes, info, lay_out, put, request_of
from support import CASES, case_expected


def test_el8_kernelopts_in_the_environment_block(tmp_path: Path) -> None:
    expected = case_expected("bls-el8-kernelopts-grubenv")
    lay_out("bls-el8-kernelopts-grubenv", tmp_path)
    request = request_of("bls-el8-kernelopts-grubenv")
    document = info(tmp_path, want=request["want_args"])
    assert document["bootloader"] == "grub_bls"
    assert document["wanted"]["verdict"] == expected.pop("verdict")
    assert document["wanted"]["effective"] == expected.pop("effective")
    assert not expected
    # saved_entry names no entry, so GRUB boots the first one
    assert [row["reason"] for row in document["problems"]] == ["default_entry_not_found"]
    before = hashes(tmp_path)
    assert not change(tmp_path)["changed"] and hashes(tmp_path) == before


def test_mixed_entries(tmp_path: Path) -> None:
    expected = case_expected("bls-mixed-entries")
    lay_out("bls-mixed-entries", tmp_path)
    document = info(tmp_path, want=request_of("bls-mixed-entries")["want_args"])
    wanted = document["wanted"]
    assert wanted["verdict"] == expected.pop("verdict")
    assert wanted["entries"] == expected.pop("entries")
    assert document["default_entry"] == expected.pop("default_entry")
    assert not expected
    assert wanted["file"] == "/boot/loader/entries/id-b.conf" and wanted["line"] == 3
    assert "id-b" in wanted["text"]


def test_mixed_entries_are_all_brought_to_it(tmp_path: Path) -> None:
    lay_out("bls-mixed-entries", tmp_path)
    grubenv = (tmp_path / "boot/grub2/grubenv").read_bytes()
    result = change(tmp_path, owned=[])
    assert not result.get("failed"), result
    wanted = info(tmp_path, want=WANT)["wanted"]
    assert wanted["verdict"] == "pass" and set(wanted["entries"].values()) == {"pass"}
    assert (tmp_path / "boot/grub2/grubenv").read_bytes() == grubenv
    assert not change(tmp_path, owned=[])["changed"]


def expanded(case: str) -> tuple[dict[str, Any], list[str]]:
    request = request_of(case)
    return request, [f"{name}={request['isolated_cpus']}" for name in request["args"]]


def block_bytes(tokens: list[str], options: str) -> int:
    """The size the environment block needs for OPTIONS and TOKENS, without padding."""
    return len(f"# GRUB Environment Block\nkernelopts={' '.join([options, *tokens])}\n")


def el8_tree(case: str, root: Path) -> Path:
    """The environment block of CASE with the entry that uses it, on a host of 112 CPUs."""
    lay_out(case, root)
    put(root, "/boot/loader/entries/a.conf", "title A\nlinux /vmlinuz-a\noptions $kernelopts\n")
    for name in ("possible", "present", "online"):
        put(root, f"/sys/devices/system/cpu/{name}", "0-111\n")
    return root


def test_environment_block_limit(tmp_path: Path) -> None:
    case = "grubenv-1024-byte-limit"
    expected = case_expected(case)
    request, tokens = expanded(case)
    root = el8_tree(case, tmp_path)
    cpus = request["isolated_cpus"]
    assert len(cpus) == expected.pop("expanded_list_bytes")
    put(root, "/proc/cmdline", f"ro isolcpus=domain,{cpus}\n")
    domain = info(root)["predicted"]["running"]["isolation"]["domain"]
    assert domain == expected.pop("canonical_list")
    assert len(cpus.split(",")) == expected.pop("cpu_count") == 83
    (root / "proc/cmdline").unlink()
    grubenv = root / "boot/grub2/grubenv"
    assert len(grubenv.read_bytes()) == expected.pop("limit")
    # The case says that three such lists do not fit. They do: 849 bytes are needed, grub-editenv agrees
    # (below), and so does the module. What does not fit is refused, see the next test.
    assert expected.pop("three_expanded_lists_fit") is False
    assert block_bytes(tokens, "root=/dev/mapper/vg-root ro") == 849
    result = change(root, tokens=tokens, keys=request["args"])
    assert not result.get("failed"), result
    assert len(grubenv.read_bytes()) == 1024
    assert not expected


def test_grub_editenv_proves_that_three_lists_fit(tmp_path: Path) -> None:
    editenv = shutil.which("grub-editenv") or shutil.which("grub2-editenv")
    if editenv is None:
        pytest.skip("no grub-editenv")
    _, tokens = expanded("grubenv-1024-byte-limit")
    block = tmp_path / "grubenv"
    shutil.copyfile(CASES / "grubenv-1024-byte-limit" / "grubenv", block)
    options = " ".join(["kernelopts=root=/dev/mapper/vg-root ro", *tokens])
    subprocess.run([editenv, str(block), "set", options], check=True)
    assert len(block.read_bytes()) == 1024 and options.encode() in block.read_bytes()
    again = subprocess.run([editenv, str(block), "set", "x=" + "y" * 174], capture_output=True, check=False)
    assert again.returncode != 0


@pytest.mark.parametrize("check", [True, False])
def test_what_does_not_fit_is_refused_before_writing(check: bool, tmp_path: Path) -> None:
    case = "grubenv-1024-byte-limit"
    request, tokens = expanded(case)
    root = el8_tree(case, tmp_path)
    before = hashes(root)
    tokens = [*tokens, f"irqaffinity={request['isolated_cpus']}"]
    result = change(root, check, tokens=tokens, keys=[*request["args"], "irqaffinity"])
    assert (result["reason"], result["limit"]) == ("grubenv_full", 1024), result
    assert result["needed"] == block_bytes(tokens, "root=/dev/mapper/vg-root ro") > 1024
    assert result["file"] == "/boot/grub2/grubenv" and hashes(root) == before


@pytest.mark.parametrize("spare", [0, 1])
def test_the_limit_is_exact(spare: int, tmp_path: Path) -> None:
    root = el8_tree("grubenv-1024-byte-limit", tmp_path)
    used = block_bytes(["x="], "root=/dev/mapper/vg-root ro")
    result = change(root, tokens=["x=" + "y" * (1024 - used + spare)], keys=["x"])
    assert result.get("failed", False) is bool(spare), result


@pytest.mark.parametrize("host", ["a", "b", "c"])
def test_pending_reboot_versus_failed(host: str, tmp_path: Path) -> None:
    case = "pending-reboot-vs-failed"
    expected = case_expected(case)[host]
    given = json.loads((CASES / case / "hosts.json").read_text())[host]
    request = request_of(case)
    assert (request["managed_keys"], request["want_args"]) == (KEYS, WANT)
    put(tmp_path, "/etc/default/grub", f'GRUB_CMDLINE_LINUX="{given["staged"]}"\n')
    put(tmp_path, "/proc/cmdline", f"BOOT_IMAGE=/vmlinuz {given['cmdline']}\n")
    wanted = info(tmp_path, want=WANT)["wanted"]
    assert {name: wanted[name] for name in expected} == expected
    assert wanted["verdict"] == "fail"
    assert (wanted["reason"] == "pending_reboot") is (host == "a")
    predicted = change(tmp_path, check=True)
    assert predicted["changed"] is expected["edit"]


@pytest.mark.parametrize("host", ["a", "b", "c"])
def test_pending_reboot_with_a_generated_entry(host: str, tmp_path: Path) -> None:
    expected = case_expected("pending-reboot-vs-failed")[host]
    given = json.loads((CASES / "pending-reboot-vs-failed" / "hosts.json").read_text())[host]
    put(tmp_path, "/boot/loader/entries/a.conf", f"title A\nlinux /vmlinuz-a\noptions {given['staged']}\n")
    put(tmp_path, "/boot/grub2/grub.cfg", "blscfg\n")
    put(tmp_path, "/proc/cmdline", given["cmdline"] + "\n")
    wanted = info(tmp_path, want=WANT)["wanted"]
    assert {name: wanted[name] for name in expected} == expected
    result = change(tmp_path, owned=[])
    assert result["reboot_due"] is (host != "b")


GIVEN = "root=/dev/mapper/vg-root ro default_hugepagesz=2M hugepagesz=2M hugepages=1024"
HEAD = "title A\nlinux /vmlinuz-a\n"


def one_entry(root: Path, text: str, grubenv: str = "") -> dict[str, Any]:
    """What is said of a host of the RHEL family with the entry TEXT and the variables GRUBENV."""
    (root / "boot/grub2").mkdir(parents=True, exist_ok=True)
    (root / "boot/loader/entries").mkdir(parents=True, exist_ok=True)
    block = f"# GRUB Environment Block\n{grubenv}".encode()
    (root / "boot/grub2/grubenv").write_bytes(block + b"#" * (1024 - len(block)))
    (root / "boot/loader/entries/a.conf").write_bytes(text.encode())
    return info(root, want=WANT)


@pytest.mark.parametrize(
    "text",
    [
        f"{HEAD}options {GIVEN}\n",
        f"{HEAD}options {GIVEN}",
        f"{HEAD}options {GIVEN}\n".replace("\n", "\r\n"),
        f"{HEAD}# a comment\n  #\n  options   {GIVEN}  \n\ninitrd /i\n",
        f"options {GIVEN}\n{HEAD}version\t1\n",
        "title\tA\nlinux\t/vmlinuz-a\n" + f"options {GIVEN}\n",
    ],
)
def test_an_entry_as_grub_reads_it(text: str, tmp_path: Path) -> None:
    document = one_entry(tmp_path, text)
    assert document["next_boot"]["line"] == GIVEN
    assert (document["wanted"]["verdict"], document["problems"]) == ("pass", [])
    before = hashes(tmp_path)
    assert not change(tmp_path, owned=[])["changed"] and hashes(tmp_path) == before


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"{HEAD}\noptions {GIVEN}\n", 4),
        (f"{HEAD}initrd\noptions {GIVEN}\n", 4),
        (f"{HEAD}options\t{GIVEN}\n", 3),
        (f"{HEAD}   \r\noptions {GIVEN}\r\n", 4),
    ],
)
def test_an_options_line_that_grub_does_not_read(text: str, line: int, tmp_path: Path) -> None:
    document = one_entry(tmp_path, text)
    assert document["next_boot"]["line"] == "" and document["wanted"]["verdict"] == "fail"
    path = "/boot/loader/entries/a.conf"
    assert [(r["reason"], r["file"], r["line"]) for r in document["problems"]] == [
        ("options_not_read", path, line)
    ]
    before = hashes(tmp_path)
    result = change(tmp_path)
    assert (result["failed"], result["reason"], result["file"], result["line"]) == (
        True,
        "options_not_read",
        path,
        line,
    )
    assert hashes(tmp_path) == before


@pytest.mark.parametrize("name", ["b", "0123-0-rescue"])
@pytest.mark.parametrize("gap", ["\noptions ", "initrd\noptions ", "options\t"])
def test_an_options_line_that_grub_does_not_read_is_no_problem_of_another_entry(
    gap: str, name: str, tmp_path: Path
) -> None:
    path = tmp_path / f"boot/loader/entries/{name}.conf"
    path.parent.mkdir(parents=True)
    path.write_text(f"{HEAD}{gap}{GIVEN}\n")
    document = one_entry(tmp_path, f"{HEAD}options {GIVEN}\n", "saved_entry=a\n")
    assert (document["wanted"]["verdict"], document["problems"]) == ("pass", [])
    other = next(row for row in document["entries"] if row["id"] == name)
    assert (other["args"], other["recovery"]) == ("", "rescue" in name)


def test_of_a_variable_that_is_in_the_block_twice_the_last_counts(tmp_path: Path) -> None:
    twice = f"kernelopts=ro hugepages=4\nsaved_entry=a\nkernelopts={GIVEN}\n"
    document = one_entry(tmp_path, f"{HEAD}options $kernelopts\n", twice)
    assert document["wanted"]["verdict"] == "pass"
    row = next(row for row in document["configured"] if row["name"] == "kernelopts")
    assert (row["value"], row["sources"]) == (GIVEN, [{"file": "/boot/grub2/grubenv", "line": 4}])
    result = change(tmp_path, tokens=["quiet"], keys=[])
    assert not result.get("failed") and len((tmp_path / "boot/grub2/grubenv").read_bytes()) == 1024
    after = info(tmp_path)["next_boot"]["line"]
    assert after == f"{GIVEN} quiet"
