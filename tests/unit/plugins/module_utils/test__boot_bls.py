# SPDX-License-Identifier: GPL-3.0-or-later
"""GRUB with boot loader entries, against a stand-in for grubby."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils._boot_bls import BlsBackend
from ansible_collections.firsttouch.host.plugins.module_utils._boot_types import BootError
from ansible_collections.firsttouch.host.plugins.module_utils._kernel_facts import KernelFacts
from boot_cases import KEYS, WANT, change, hashes, info, put
from boot_hosts import StandInGrubby, el8, rhel, run_live

DEFAULT = "etc/default/grub"
CMDLINE = "etc/kernel/cmdline"
CREATED = "var/lib/firsttouch/kernel-cmdline.created"


def lines(root: Path) -> dict[str, str]:
    """The command line of every entry."""
    return {entry.id[-20:]: entry.line for entry in BlsBackend(str(root), True).entries()}


@pytest.mark.parametrize("age", ["", "plain"])
def test_one_call_carries_all_tokens_and_the_next_kernel_inherits(age: str, tmp_path: Path) -> None:
    root = rhel(tmp_path)
    others = [row for row in (root / DEFAULT).read_text().splitlines() if "CMDLINE" not in row]
    run = StandInGrubby(root, age)
    result = run_live(root, run, tokens=WANT, keys=KEYS, owned=[])
    changing = [argv for argv in run.runs if argv != ["--help"]]
    option = [] if age else ["--no-etc-grub-update"]
    assert changing == [["--update-kernel=ALL", f"--args={' '.join(WANT)}", *option]]
    assert result["changed"] and result["reboot_due"] and result["foreign_staged"] == []
    for line in lines(root).values():
        assert [token for token in line.split() if token in WANT] == WANT
    rows = (root / DEFAULT).read_text().splitlines()
    assert [row for row in rows if "CMDLINE" not in row] == others
    assert f'rhgb quiet {" ".join(WANT)}"' in (root / DEFAULT).read_text()
    assert (root / CMDLINE).read_text().endswith(f"quiet {' '.join(WANT)}\n")
    assert not (root / CREATED).exists()


AGES = ["", "plain", "el8", "new"]


@pytest.mark.parametrize("age", AGES)
def test_what_grubby_does_besides_is_taken_back(age: str, tmp_path: Path) -> None:
    """It writes the values of variables into entries, makes kernelopts, and edits lines that only begin alike."""
    root = rhel(tmp_path)
    rows = (root / DEFAULT).read_text().splitlines()
    others = ['GRUB_CMDLINE_LINUX_DEFAULT="splash"', 'GRUB_CMDLINE_LINUX_RECOVERY="single"']
    (root / DEFAULT).write_text("\n".join([*rows, *others]) + "\n")
    block = (root / "boot/grub2/grubenv").read_bytes()
    predicted = run_live(root, None, check=True, tokens=WANT, keys=KEYS, owned=[])
    assert run_live(root, StandInGrubby(root, age), tokens=WANT, keys=KEYS, owned=[]) == predicted
    for path in (root / "boot/loader/entries").glob("*el9*.conf"):
        assert f"quiet $tuned_params {' '.join(WANT)}\n" in path.read_text()
    assert (root / "boot/grub2/grubenv").read_bytes() == block
    now = (root / DEFAULT).read_text().splitlines()
    assert [row for row in now if "LINUX=" not in row] == [r for r in [*rows, *others] if "LINUX=" not in r]
    assert (root / CMDLINE).read_text().count("hugepages=1024") == 1


@pytest.mark.parametrize("age", AGES)
def test_places_that_are_right_already_stay_as_they_are(age: str, tmp_path: Path) -> None:
    """grubby changes all entries at once, and moves the arguments of those that have them."""
    root = rhel(tmp_path)
    run_live(root, StandInGrubby(root), tokens=WANT, keys=KEYS, owned=[])
    wanted = hashes(root)
    path = next((root / "boot/loader/entries").glob("*427.9.1*"))
    path.write_text(path.read_text().replace(f" {' '.join(WANT)}", ""))
    (root / CMDLINE).write_text((root / CMDLINE).read_text().replace(" rhgb", "").rstrip("\n"))
    kept = hashes(root)[CMDLINE]
    result: Any = run_live(root, StandInGrubby(root, age), tokens=WANT, keys=KEYS, owned=WANT)
    assert [row["resource"] for row in result["changes"]] == [f"file:/{path.relative_to(root)}"]
    assert hashes(root) == {**wanted, CMDLINE: kept}


def test_the_values_of_a_variable_that_have_our_keys_stay_where_they_are(tmp_path: Path) -> None:
    """tuned asks for the same: grubby would take it out of the values that it writes into the entry."""
    root = rhel(tmp_path)
    block = root / "boot/grub2/grubenv"
    block.write_text(block.read_text().replace("tuned_params=", "tuned_params=rcu_nocbs=1 ")[:1024])
    before = block.read_bytes()
    run_live(root, StandInGrubby(root), tokens=["rcu_nocbs=1"], keys=["rcu_nocbs"], owned=[])
    for name, line in lines(root).items():
        assert line.split()[-3:] == ["rcu_nocbs=1", "skew_tick=1", "rcu_nocbs=1"] or "rescue" in name
    assert block.read_bytes() == before


@pytest.mark.parametrize("age", AGES)
def test_second_run_and_removal(age: str, tmp_path: Path) -> None:
    root = rhel(tmp_path)
    before = hashes(root)
    run_live(root, StandInGrubby(root, age), tokens=WANT, keys=KEYS, owned=[])
    run = StandInGrubby(root, age)
    assert not run_live(root, run, tokens=WANT, keys=KEYS, owned=WANT)["changed"] and not run.runs
    result = run_live(root, run, state="absent", tokens=[], keys=KEYS, owned=WANT)
    assert result["changed"] and not result["reboot_due"]
    assert hashes(root) == before
    assert not run_live(root, run, state="absent", tokens=[], keys=KEYS, owned=WANT)["changed"]


def test_new_tokens_take_the_place_of_old_ones(tmp_path: Path) -> None:
    root = rhel(tmp_path)
    run_live(root, StandInGrubby(root), tokens=[*WANT, "isolcpus=1"], keys=[*KEYS, "isolcpus"], owned=[])
    new = ["hugepagesz=2M", "hugepages=7"]
    run = StandInGrubby(root)
    result = run_live(root, run, tokens=new, keys=KEYS, owned=[*WANT, "isolcpus=1", *new])
    assert run.runs[-1][1] == "--remove-args=default_hugepagesz=2M hugepages=1024 isolcpus=1"
    for line in [*lines(root).values(), (root / CMDLINE).read_text()]:
        assert [t for t in line.split() if "huge" in t or "isol" in t] == new
    gone = [row["resource"] for row in result["changes"] if row["after"] is None]
    assert gone == ["token:default_hugepagesz=2M", "token:hugepages=1024", "token:isolcpus=1"]


def test_check_mode_predicts_exactly_and_writes_nothing(tmp_path: Path) -> None:
    root = rhel(tmp_path)
    before = hashes(root)
    predicted = run_live(root, None, check=True, tokens=WANT, keys=KEYS, owned=[])
    assert hashes(root) == before
    real = run_live(root, StandInGrubby(root), tokens=WANT, keys=KEYS, owned=[])
    assert predicted == real


def test_a_failed_grubby_is_undone(tmp_path: Path) -> None:
    root = rhel(tmp_path)
    before = hashes(root)
    with pytest.raises(BootError) as caught:
        run_live(root, StandInGrubby(root, "broken"), tokens=WANT, keys=KEYS, owned=[])
    assert caught.value.reason == "generation_failed" and hashes(root) == before


def test_what_grubby_left_is_read_back(tmp_path: Path) -> None:
    """Two counts for two sizes: an old grubby, which replaces by substring, writes nonsense."""
    root = rhel(tmp_path)
    before = hashes(root)
    tokens = ["hugepagesz=2M", "hugepages=4", "hugepagesz=1G", "hugepages=2"]
    with pytest.raises(BootError) as caught:
        run_live(root, StandInGrubby(root, "old"), tokens=tokens, keys=KEYS, owned=[])
    assert caught.value.reason == "token_not_generated" and hashes(root) == before
    run_live(root, StandInGrubby(root), tokens=tokens, keys=KEYS, owned=[])
    assert all(line.count("hugepages=") == 2 for line in lines(root).values())


def test_kernelopts_in_the_environment_block(tmp_path: Path) -> None:
    root = el8(tmp_path)
    (root / CMDLINE).unlink()
    result = run_live(root, StandInGrubby(root), tokens=WANT, keys=KEYS, owned=[])
    line = "root=/dev/mapper/vg-root ro quiet " + " ".join(WANT) + " skew_tick=1"
    assert result["next_boot_line"] == line
    assert len((root / "boot/grub2/grubenv").read_bytes()) == 1024
    assert not (root / CMDLINE).exists()  # new entries say $kernelopts as well
    assert not run_live(root, StandInGrubby(root), tokens=WANT, keys=KEYS, owned=WANT)["changed"]


def test_every_entry_must_end_up_right(tmp_path: Path) -> None:
    """Behind $kernelopts an entry can say something of its own that comes first in effect."""
    root = el8(tmp_path)
    (root / CMDLINE).unlink()
    path = next((root / "boot/loader/entries").glob("*427.9.1*"))
    path.write_text(path.read_text().replace("$kernelopts", "hugepages=3 $kernelopts"))
    before = hashes(root)
    with pytest.raises(BootError) as caught:
        run_live(root, StandInGrubby(root), tokens=WANT, keys=KEYS, owned=[])
    assert caught.value.problem.file == "/" + str(path.relative_to(root)) and hashes(root) == before


def test_kernel_cmdline_is_made_where_it_is_missing_and_goes_again(tmp_path: Path) -> None:
    root = rhel(tmp_path)
    (root / CMDLINE).unlink()
    before = hashes(root)
    run_live(root, StandInGrubby(root), tokens=WANT, keys=KEYS, owned=[])
    text = (root / CMDLINE).read_text()
    assert text.startswith("root=/dev/mapper/vg-root ro ") and text.endswith(f"quiet {' '.join(WANT)}\n")
    assert (root / CREATED).exists()
    run_live(root, StandInGrubby(root), state="absent", tokens=[], keys=KEYS, owned=WANT)
    assert hashes(root) == before


@pytest.mark.parametrize("text", [None, "root=/dev/mapper/vg-root ro audit=1\n"])
def test_the_mark_of_our_kernel_cmdline_goes_when_the_file_is_not_ours_any_more(
    text: str | None, tmp_path: Path
) -> None:
    root = rhel(tmp_path)
    (root / CMDLINE).unlink()
    before = hashes(root)
    run_live(root, StandInGrubby(root), tokens=WANT, keys=KEYS, owned=[])
    (root / CMDLINE).unlink()
    if text is not None:
        put(root, f"/{CMDLINE}", text)
        before = {**before, CMDLINE: hashes(root)[CMDLINE]}
    run_live(root, StandInGrubby(root), state="absent", tokens=[], keys=KEYS, owned=WANT)
    assert hashes(root) == before


@pytest.mark.parametrize("conflict", ["hugepages=5", "hugepagesz=1G", "default-hugepagesz=1G"])
@pytest.mark.parametrize("place", ["entry", "tuned", "inherited"])
def test_a_foreign_token_that_grubby_would_drop_is_a_conflict(
    conflict: str, place: str, tmp_path: Path
) -> None:
    root = rhel(tmp_path)
    path = next((root / "boot/loader/entries").glob("*427.9.1*"))
    if place == "entry":
        path.write_text(path.read_text().replace(" rhgb quiet", f" rhgb {conflict} quiet"))
    elif place == "inherited":
        path = root / CMDLINE
        path.write_text(f"{conflict} {path.read_text()}")
    else:
        path = root / "boot/grub2/grubenv"
        path.write_text(path.read_text().replace("tuned_params=", f"tuned_params={conflict} ")[:1024])
    before = hashes(root)
    if place != "entry" and conflict == "hugepagesz=1G":
        # another size is no matter of ours, and grubby does not touch that place
        assert run_live(root, StandInGrubby(root), tokens=WANT, keys=KEYS, owned=[])["changed"]
        return
    with pytest.raises(BootError) as caught:
        run_live(root, StandInGrubby(root), tokens=WANT, keys=KEYS, owned=[])
    assert caught.value.reason == "foreign_token" and caught.value.problem.line
    assert caught.value.problem.file == "/" + str(path.relative_to(root)) and hashes(root) == before


def test_replace_takes_the_foreign_token_away(tmp_path: Path) -> None:
    root = rhel(tmp_path)
    path = root / DEFAULT
    path.write_text(path.read_text().replace("rhgb quiet", "hugepages=5 rhgb quiet"))
    for entry in (root / "boot/loader/entries").glob("*.conf"):
        entry.write_text(entry.read_text().replace(" rhgb quiet", " hugepages=5 rhgb quiet"))
    run_live(root, StandInGrubby(root), tokens=WANT, keys=KEYS, owned=[], on_conflict="replace")
    for line in [*lines(root).values(), path.read_text()]:
        assert "hugepages=5" not in line and " ".join(WANT) in line


def test_offline_the_entries_are_edited_in_place(tmp_path: Path) -> None:
    root = rhel(tmp_path)
    texts = {p: p.read_text() for p in (root / "boot/loader/entries").glob("*.conf")}
    result = change(root, owned=[])
    assert (
        not result.get("failed") and info(root, want=WANT)["wanted"]["verdict"] == "fail"
    )  # it does not run
    for path, text in texts.items():
        old, new = text.splitlines(), path.read_text().splitlines()
        assert [row for row in new if not row.startswith("options")] == [
            row for row in old if not row.startswith("options")
        ]
    again = change(root, owned=WANT)
    assert not again["changed"]
    change(root, state="absent", owned=WANT)
    assert {path: path.read_text() for path in texts} == texts


def test_the_running_default_comes_from_the_environment_block(tmp_path: Path) -> None:
    root = rhel(tmp_path)
    assert "427.13.1" in info(root)["default_entry"]
    block = root / "boot/grub2/grubenv"

    def saved(value: str) -> Any:
        rows = [f"saved_entry={value}" if r.startswith("saved") else r for r in block.read_text().split("\n")]
        text = "\n".join(rows).rstrip("#")
        block.write_text(text + "#" * (1024 - len(text)))
        return info(root)

    assert "427.9.1" in saved("1")["default_entry"]
    title = "Example Linux (5.14.0-427.9.1.el9_4.x86_64) 9.4"
    assert "427.9.1" in saved(title)["default_entry"]
    gone = saved("gone")
    assert "427.13.1" in gone["default_entry"] and gone["problems"][0]["reason"] == "default_entry_not_found"


@pytest.mark.parametrize("block", ["not a block\n", ""])
def test_an_environment_block_that_is_none_is_refused(block: str, tmp_path: Path) -> None:
    root = rhel(tmp_path)
    put(root, "/boot/grub2/grubenv", block)
    before = hashes(root)
    with pytest.raises(BootError) as caught:
        run_live(root, StandInGrubby(root), tokens=WANT, keys=KEYS, owned=[])
    assert caught.value.reason == "grubenv_invalid" and hashes(root) == before
    assert info(root, want=WANT)["wanted"]["reason"] == "grubenv_invalid"


def test_missing_grubby_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    root = rhel(tmp_path)
    (root / "usr/sbin/grubby").unlink()
    before = hashes(root)
    with pytest.raises(BootError) as caught:
        run_live(root, StandInGrubby(root), tokens=WANT, keys=KEYS, owned=[])
    assert caught.value.reason == "tool_missing" and hashes(root) == before


def test_facts_are_those_of_the_kernel_that_boots(tmp_path: Path) -> None:
    backend = BlsBackend(str(rhel(tmp_path)), True)
    assert backend.facts().version == (5, 14) and not backend.facts().node_format
    assert KernelFacts.from_sysroot(str(tmp_path)).release != backend.facts().release


def test_comments_of_the_next_kernels_arguments_are_never_joined_with_them(tmp_path: Path) -> None:
    """systemd 257 and later skip lines that begin with `#`: root= behind one would be lost."""
    root = rhel(tmp_path)
    old = (root / CMDLINE).read_text()
    (root / CMDLINE).write_text(f"# from the installer\n{old}")
    before = hashes(root)
    for check in (True, False):
        with pytest.raises(BootError) as caught:
            run_live(root, StandInGrubby(root), check=check, tokens=WANT, keys=KEYS, owned=[])
        problem = caught.value.problem
        assert (problem.reason, problem.file, problem.line) == ("cannot_edit", f"/{CMDLINE}", 1)
        assert hashes(root) == before
