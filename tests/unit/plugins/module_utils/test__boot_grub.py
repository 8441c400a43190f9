# SPDX-License-Identifier: GPL-3.0-or-later
"""GRUB on Debian: generation beside the old grub.cfg, its proof, and everything put back when it fails."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _boot_grub_generate, _files
from ansible_collections.firsttouch.host.plugins.module_utils._boot_grub import GRUB_CFG, GrubBackend
from ansible_collections.firsttouch.host.plugins.module_utils._boot_types import BootError
from boot_cases import DROPIN, KEYS, WANT, hashes, put
from boot_hosts import StandInMkconfig, debian, run_live

CFG = GRUB_CFG.lstrip("/")
BACKUP = "var/lib/firsttouch/grub.cfg.before"


def refused(root: Path, edit: Any = None, failing: str = "", **given: Any) -> str:
    """The reason of a refusal, which leaves every file as it was."""
    before = hashes(root)
    with pytest.raises(BootError) as caught:
        run_live(root, StandInMkconfig(root, edit, failing), **{"tokens": WANT, "keys": KEYS, **given})
    assert hashes(root) == before
    return caught.value.reason


@pytest.mark.parametrize("name", ["debian-12", "debian-13"])
def test_tokens_reach_normal_entries_and_no_recovery_entry(name: str, tmp_path: Path) -> None:
    root = debian(tmp_path, name)
    before = (root / CFG).read_bytes()
    (root / CFG).chmod(0o640)
    run = StandInMkconfig(root)
    result = run_live(root, run, tokens=WANT, keys=KEYS)
    assert result["changed"] and result["generated"] and result["reboot_due"]
    assert [argv[0] for argv in run.runs] == ["grub-mkconfig", "grub-script-check"]
    entries = GrubBackend(str(root), True).entries()
    for entry in entries:
        texts = [token.text for token in entry.tokens]
        assert [t for t in texts if t in WANT] == ([] if entry.recovery else WANT)
    assert sum(entry.recovery for entry in entries) == 1 and sum(entry.default for entry in entries) == 1
    assert result["next_boot_line"] == entries[0].line and result["foreign_staged"] == []
    assert (root / BACKUP).read_bytes() == before and result["backup"] == f"/{BACKUP}"
    assert os.stat(root / CFG).st_mode & 0o777 == 0o640
    assert not list((root / "boot/grub").glob("*firsttouch*"))


def test_second_run_changes_nothing_and_runs_nothing(tmp_path: Path) -> None:
    root = debian(tmp_path)
    run_live(root, StandInMkconfig(root), tokens=WANT, keys=KEYS)
    before = hashes(root)
    run = StandInMkconfig(root)
    result = run_live(root, run, tokens=WANT, keys=KEYS)
    assert not result["changed"] and not run.runs and hashes(root) == before
    # it is staged, but does not run yet
    assert result["reboot_due"]
    put(root, "/proc/cmdline", f"BOOT_IMAGE=/boot/vmlinuz-6.12 {result['next_boot_line']}\n")
    assert not run_live(root, run, tokens=WANT, keys=KEYS)["reboot_due"]


def test_check_mode_predicts_exactly_and_writes_nothing(tmp_path: Path) -> None:
    root = debian(tmp_path)
    before = hashes(root)
    predicted = run_live(root, None, check=True, tokens=WANT, keys=KEYS)
    assert hashes(root) == before
    real = run_live(root, StandInMkconfig(root), tokens=WANT, keys=KEYS)
    for name in ("changes", "diff", "changed", "reboot_due", "next_boot_line", "foreign_staged", "generated"):
        assert predicted[name] == real[name], name
    resources = [row["resource"] for row in real["changes"]]
    files = [f"file:{GRUB_CFG}", f"file:{DROPIN}", f"file:/{BACKUP}"]
    assert resources == [*files, *(f"token:{token}" for token in sorted(WANT))]
    again = run_live(root, None, check=True, state="absent", tokens=[], keys=KEYS)
    row = next(row for row in again["changes"] if row["resource"] == f"file:/{BACKUP}")
    digests = [hashlib.sha256((root / name).read_bytes()).hexdigest() for name in (BACKUP, CFG)]
    assert [row["before"], row["after"]] == [f"sha256:{digest}" for digest in digests]


def test_absent_takes_it_back_exactly(tmp_path: Path) -> None:
    root = debian(tmp_path)
    before = hashes(root)
    run_live(root, StandInMkconfig(root), tokens=WANT, keys=KEYS)
    put(root, "/proc/cmdline", GrubBackend(str(root), True).entries()[0].line)
    result = run_live(root, StandInMkconfig(root), state="absent", tokens=[], keys=KEYS)
    assert result["changed"] and result["reboot_due"]
    after = hashes(root)
    after.pop(BACKUP)
    after.pop("proc/cmdline"), before.pop("proc/cmdline")
    assert after == before
    assert not run_live(root, StandInMkconfig(root), state="absent", tokens=[], keys=KEYS)["changed"]


def test_an_interrupted_run_is_completed(tmp_path: Path) -> None:
    root = debian(tmp_path)
    old = (root / CFG).read_bytes()
    run_live(root, StandInMkconfig(root), tokens=WANT, keys=KEYS)
    (root / CFG).write_bytes(old)  # the drop-in was written, grub.cfg was not
    predicted = run_live(root, None, check=True, tokens=WANT, keys=KEYS)
    assert f"file:{GRUB_CFG}" in [row["resource"] for row in predicted["changes"]]
    run_live(root, StandInMkconfig(root), tokens=WANT, keys=KEYS)
    assert "hugepages=1024" in GrubBackend(str(root), True).entries()[0].line


def test_an_interrupted_removal_is_completed(tmp_path: Path) -> None:
    root = debian(tmp_path)
    run_live(root, StandInMkconfig(root), tokens=WANT, keys=KEYS)
    (root / DROPIN.lstrip("/")).unlink()
    result = run_live(root, StandInMkconfig(root), state="absent", tokens=[], keys=KEYS)
    assert result["changed"] and "hugepages" not in GrubBackend(str(root), True).entries()[0].line


def lose_tokens(text: str) -> str:
    return text.replace(" " + " ".join(WANT), "")


def other_order(text: str) -> str:
    return text.replace("hugepagesz=2M hugepages=1024", "hugepages=1024 hugepagesz=2M")


def first_count(text: str) -> str:
    return text.replace("default_hugepagesz=2M", "hugepagesz=2M hugepages=5 default_hugepagesz=2M")


def into_recovery(text: str) -> str:
    return text.replace(" ro single", f" ro single {' '.join(WANT)}")


def no_entries(text: str) -> str:
    return text.replace("menuentry ", "echo ")


def default_by_button(text: str) -> str:
    return text + 'if cmostest 1:2 ; then\nset default="1>0"\nelse\nset default="1>1"\nfi\n'


def broken_syntax(text: str) -> str:
    return text + "menuentry 'x' {\n"


def default_is_windows(text: str) -> str:
    return text + "menuentry 'Windows' --id w {\nchainloader +1\n}\nset default=w\n"


def default_is_recovery(text: str) -> str:
    return text + "set default='1>1'\n"


@pytest.mark.parametrize(
    ("edit", "failing", "reason"),
    [
        (None, "grub-mkconfig", "generation_failed"),
        (None, "grub-script-check", "generation_failed"),
        (lambda text: "", "", "generation_failed"),
        (lose_tokens, "", "token_not_generated"),
        (other_order, "", "token_not_generated"),
        (first_count, "", "token_not_generated"),
        (into_recovery, "", "recovery_entry_touched"),
        (no_entries, "", "default_entry_unresolvable"),
        (default_by_button, "", "default_entry_unresolvable"),
        (default_is_windows, "", "default_entry_unresolvable"),
        (default_is_recovery, "", "missing_tokens"),
        (broken_syntax, "", "grub_script_syntax"),
    ],
)
def test_a_failed_generation_leaves_everything_as_it_was(
    edit: Any, failing: str, reason: str, tmp_path: Path
) -> None:
    root = debian(tmp_path)
    assert refused(root, edit, failing) == reason
    # and when the drop-in was there already, it goes back to what it was
    run_live(root, StandInMkconfig(root), tokens=["quiet_boot"], keys=[])
    assert refused(root, edit, failing) == reason


def test_the_lost_token_names_the_script_that_lost_it(tmp_path: Path) -> None:
    root = debian(tmp_path)
    with pytest.raises(BootError) as caught:
        run_live(root, StandInMkconfig(root, lose_tokens), tokens=WANT, keys=KEYS)
    assert caught.value.problem.file == "/etc/grub.d/10_linux"


def test_an_interrupt_during_generation_puts_everything_back(tmp_path: Path) -> None:
    root = debian(tmp_path)
    before = hashes(root)

    def interrupted(argv: list[str], environment: dict[str, str]) -> tuple[int, str, str]:
        Path(f"{argv[2]}.new").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_live(root, interrupted, tokens=WANT, keys=KEYS)
    assert hashes(root) == before


def test_a_replacement_that_cannot_be_made_durable_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = debian(tmp_path)
    before = hashes(root)
    real = _files.fsync_dir

    def failing(path: str) -> None:
        if path.endswith("/boot/grub"):
            raise OSError(errno.EIO, "Input/output error")
        real(path)

    monkeypatch.setattr(_boot_grub_generate, "fsync_dir", failing)
    with pytest.raises(OSError, match="Input/output"):
        run_live(root, StandInMkconfig(root), tokens=WANT, keys=KEYS)
    after = hashes(root)
    after.pop(BACKUP)
    assert after == before


def test_of_two_runs_at_once_the_second_is_refused_and_the_first_completes(tmp_path: Path) -> None:
    root = debian(tmp_path)
    seen: list[str] = []

    def during(text: str) -> str:
        seen.append(refused(root, tokens=["hugepages=7"], on_conflict="replace"))
        return text

    run_live(root, StandInMkconfig(root, during), tokens=WANT, keys=KEYS)
    assert seen == ["busy"] and "hugepages=1024" in GrubBackend(str(root), True).entries()[0].line
    assert not run_live(root, StandInMkconfig(root), tokens=WANT, keys=KEYS)["changed"]


@pytest.mark.parametrize("tool", ["usr/sbin/grub-mkconfig", "usr/bin/grub-script-check"])
def test_a_missing_tool_is_refused_before_anything_is_written(tool: str, tmp_path: Path) -> None:
    root = debian(tmp_path)
    (root / tool).unlink()
    assert refused(root) == "tool_missing"


def test_no_grub_cfg_on_a_running_host_is_refused(tmp_path: Path) -> None:
    root = debian(tmp_path)
    (root / CFG).unlink()
    assert refused(root) == "default_entry_unresolvable"


def test_a_default_entry_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    root = debian(tmp_path)
    text = (root / CFG).read_text().replace('set default="0"', 'set default="Gone>Older"')
    (root / CFG).write_text(text)
    assert refused(root) == "default_entry_not_found"


def test_foreign_changes_that_wait_for_the_reboot_are_listed(tmp_path: Path) -> None:
    root = debian(tmp_path)
    path = root / "etc/default/grub"
    path.write_text(path.read_text().replace('"quiet"', '"mitigations=off"'))
    predicted = run_live(root, None, check=True, tokens=WANT, keys=KEYS)
    result = run_live(root, StandInMkconfig(root), tokens=WANT, keys=KEYS)
    assert predicted["foreign_staged"] == result["foreign_staged"]
    assert [text.split(" (")[0] for text in result["foreign_staged"]] == [
        "only in the next boot: mitigations=off",
        "only in the running kernel: quiet",
    ]


def test_foreign_tokens_of_ours_in_the_shared_variable_may_reach_recovery_entries(tmp_path: Path) -> None:
    root = debian(tmp_path)
    path = root / "etc/default/grub"
    path.write_text(path.read_text().replace('LINUX="console', f'LINUX="{" ".join(WANT)} console'))
    run = StandInMkconfig(root)
    result = run_live(root, run, tokens=WANT, keys=KEYS)
    assert not (root / DROPIN.lstrip("/")).exists()
    assert next(row["resource"] for row in result["changes"]) == f"file:{GRUB_CFG}"


@pytest.mark.parametrize(("spare", "fits"), [(0, True), (-1, False)])
def test_what_grub_puts_in_front_takes_room_too(spare: int, fits: bool, tmp_path: Path) -> None:
    root = debian(tmp_path)
    entry = GrubBackend(str(root), True).entries()[0]
    longest = max(len(e.linux) for e in GrubBackend(str(root), True).entries())
    base = len(f"BOOT_IMAGE= {entry.line} pad= {' '.join(WANT)}") + longest
    pad = f"pad={'x' * (2047 - base - spare)}"
    put(root, "/etc/default/grub.d/a.cfg", f'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {pad}"\n')
    if fits:
        run_live(root, StandInMkconfig(root), tokens=WANT, keys=KEYS)
        assert len(GrubBackend(str(root), True).entries()[0].line) + len("BOOT_IMAGE= ") + longest == 2047
        return
    assert refused(root) == "line_too_long"
