# SPDX-License-Identifier: GPL-3.0-or-later
"""systemd-boot: the order and choice of entries, and their edit in place."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from functools import cmp_to_key
from pathlib import Path

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils._boot_systemd import SystemdBootBackend
from ansible_collections.firsttouch.host.plugins.module_utils._boot_type1 import (
    parse,
    rpm_compare,
    systemd_compare,
    with_options,
)
from ansible_collections.firsttouch.host.plugins.module_utils._boot_types import BootError
from boot_cases import KEYS, WANT, change, hashes, info, put, tree
from boot_hosts import run_live

MACHINE = "0123456789abcdef0123456789abcdef"
ENTRIES = "/boot/efi/loader/entries"
GUID = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"


def host(root: Path) -> Path:
    return tree("debian-13-systemd-boot", root)


def entry(root: Path, name: str, *rows: str) -> None:
    put(root, f"{ENTRIES}/{name}.conf", "\n".join(["linux /k", f"options word={name}", *rows]) + "\n")


def efi_variable(root: Path, name: str, value: str) -> None:
    path = put(root, f"/sys/firmware/efi/efivars/{name}-{GUID}", "")
    path.write_bytes(b"\x06\0\0\0" + f"{value}\0".encode("utf-16-le"))


def test_tokens_reach_every_entry_and_the_next_kernel(tmp_path: Path) -> None:
    root = host(tmp_path)
    before = hashes(root)
    predicted = run_live(root, None, check=True, tokens=WANT, keys=KEYS, owned=[])
    assert hashes(root) == before
    result = run_live(root, None, tokens=WANT, keys=KEYS, owned=[])
    assert predicted == result and result["reboot_due"] and result["foreign_staged"] == []
    for path in (root / ENTRIES.lstrip("/")).iterdir():
        text = path.read_text()
        assert f"systemd.machine_id={MACHINE} {' '.join(WANT)}\nlinux      /" in text
        assert "options    root=UUID" in text and text.startswith("# Boot Loader Specification")
    assert (root / "etc/kernel/cmdline").read_text().endswith(f"quiet {' '.join(WANT)}\n")
    assert not run_live(root, None, tokens=WANT, keys=KEYS, owned=WANT)["changed"]
    run_live(root, None, state="absent", tokens=[], keys=KEYS, owned=WANT)
    assert hashes(root) == before


def test_the_newest_matching_entry_is_the_default(tmp_path: Path) -> None:
    root = host(tmp_path)
    document = info(root, want=WANT)
    assert document["bootloader"] == "systemd_boot"
    assert document["default_entry"] == f"{MACHINE}-6.12.48+deb13-amd64.conf"
    assert document["wanted"]["reason"] == "missing_tokens"
    assert document["wanted"]["file"] == f"{ENTRIES}/{document['default_entry']}"
    put(root, "/boot/efi/loader/loader.conf", f"default {MACHINE}-6.12.9*\n")
    assert info(root)["default_entry"] == f"{MACHINE}-6.12.9+deb13-amd64.conf"
    put(root, "/boot/efi/loader/loader.conf", "default gone.conf\n")
    document = info(root)
    assert "6.12.48" in document["default_entry"]
    assert [row["reason"] for row in document["problems"]] == ["default_entry_not_found"]


def test_firmware_variables_come_before_the_file(tmp_path: Path) -> None:
    root = host(tmp_path)
    efi_variable(root, "LoaderEntryDefault", f"{MACHINE}-6.12.9+deb13-amd64.conf")
    assert "6.12.9" in info(root)["default_entry"]
    efi_variable(root, "LoaderEntryOneShot", f"{MACHINE}-6.12.48+deb13-amd64.conf")
    assert "6.12.48" in info(root)["default_entry"]
    efi_variable(root, "LoaderEntryOneShot", "gone.conf")
    assert "6.12.9" in info(root)["default_entry"], "one that is not there is as good as none"


@pytest.mark.parametrize("where", ["variable", "file"])
def test_the_entry_that_booted_last_boots_again_where_that_is_asked_for(where: str, tmp_path: Path) -> None:
    root = host(tmp_path)
    if where == "variable":
        efi_variable(root, "LoaderEntryDefault", "@saved")
    else:
        put(root, "/boot/efi/loader/loader.conf", "default @saved\n")
    assert "6.12.48" in info(root)["default_entry"]
    efi_variable(root, "LoaderEntryLastBooted", f"{MACHINE}-6.12.9+deb13-amd64.conf")
    assert "6.12.9" in info(root)["default_entry"]


@pytest.mark.parametrize(
    ("names", "first"),
    [
        ([("a-1.9", []), ("a-1.10", [])], "a-1.10"),
        ([("a", ["sort-key x", "version 1"]), ("z", [])], "a"),
        ([("a", ["sort-key x", "version 1"]), ("b", ["sort-key x", "version 2"])], "b"),
        ([("a", ["sort-key y", "version 9"]), ("b", ["sort-key x", "version 1"])], "b"),
        ([("a-2+0-3", []), ("a-1", [])], "a-1"),
        ([("a-2+1-2", []), ("a-1+3", [])], "a-2"),
        ([("a-1~rc1", []), ("a-1", [])], "a-1"),
    ],
)
def test_the_order_of_the_menu(names: list[tuple[str, list[str]]], first: str, tmp_path: Path) -> None:
    put(tmp_path, "/boot/efi/loader/loader.conf", "timeout 3\n")
    for name, rows in names:
        entry(tmp_path, name, *rows)
    assert info(tmp_path)["default_entry"] == f"{first}.conf"


def test_of_two_with_the_same_name_the_one_with_more_tries_boots(tmp_path: Path) -> None:
    put(tmp_path, "/boot/efi/loader/loader.conf", "timeout 3\n")
    for name in ("a+1-2", "a+3", "a+2-1"):
        entry(tmp_path, name)
    assert info(tmp_path)["next_boot"]["line"] == "word=a+3"


def test_entries_of_others_and_rescue_entries_are_left_alone(tmp_path: Path) -> None:
    root = host(tmp_path)
    entry(root, "other", "machine-id ffffffffffffffffffffffffffffffff")
    put(root, f"{ENTRIES}/rescue.conf", "linux /k\noptions root=/dev/a single\n")
    put(root, f"{ENTRIES}/windows.conf", "title Windows\nefi /EFI/w.efi\n")
    kept = {
        name: (root / ENTRIES.lstrip("/") / f"{name}.conf").read_text()
        for name in ("other", "rescue", "windows")
    }
    assert not change(root, owned=[]).get("failed")
    assert kept == {n: (root / ENTRIES.lstrip("/") / f"{n}.conf").read_text() for n in kept}


def test_entries_named_by_another_token_and_counted_ones_are_of_this_host(tmp_path: Path) -> None:
    root = host(tmp_path)
    put(root, "/etc/kernel/entry-token", "debian\n")
    for path in list((root / ENTRIES.lstrip("/")).iterdir()):
        rows = [row for row in path.read_text().splitlines() if not row.startswith("machine-id")]
        name = path.name.replace(MACHINE, "debian").replace("48+deb13-amd64.conf", "48+deb13-amd64+3-1.conf")
        put(root, f"{ENTRIES}/{name}", "\n".join(rows).replace(f" systemd.machine_id={MACHINE}", "") + "\n")
        path.unlink()
    names = sorted(path.name for path in (root / ENTRIES.lstrip("/")).iterdir())
    assert names == ["debian-6.12.48+deb13-amd64+3-1.conf", "debian-6.12.9+deb13-amd64.conf"]
    before = hashes(root)
    assert info(root)["default_entry"] == "debian-6.12.48+deb13-amd64.conf"
    run_live(root, None, tokens=WANT, keys=KEYS, owned=[])
    for name in names:
        text = (root / ENTRIES.lstrip("/") / name).read_text()
        assert f" {' '.join(WANT)}\nlinux " in text
    run_live(root, None, state="absent", tokens=[], keys=KEYS, owned=WANT)
    assert hashes(root) == before


@pytest.mark.parametrize("default", [None, "debian*.efi"])
def test_unified_kernel_images_are_refused(default: str | None, tmp_path: Path) -> None:
    root = host(tmp_path)
    put(root, "/boot/efi/loader/loader.conf", f"default {default}\n" if default else "timeout 1\n")
    put(root, "/boot/efi/EFI/Linux/debian-6.12.efi", "")
    before = hashes(root)
    result = change(root, owned=[])
    assert result["reason"] == "unsupported_bootloader" and hashes(root) == before
    assert info(root, want=WANT)["wanted"]["reason"] == "unsupported_bootloader"


@pytest.mark.parametrize(
    "left",
    [
        {"/etc/os-release": 'ID="opensuse-tumbleweed"\nID_LIKE="opensuse suse"\n'},
        {"/usr/sbin/grub2-mkconfig": "#!/bin/sh\n. /etc/default/grub\n"},
        {"/etc/os-release": 'ID="fedora"\n', "/etc/default/grub": "GRUB_ENABLE_BLSCFG=false\n"},
    ],
)
def test_a_grub_that_is_left_over_is_no_matter_where_systemd_boot_ran(left: dict[str, str], tmp_path: Path) -> None:
    root = host(tmp_path)
    for path, text in {"/etc/default/grub": "GRUB_TIMEOUT=8\n", **left}.items():
        put(root, path, text)
    assert [row["reason"] for row in info(root)["problems"]] == ["unsupported_bootloader"]  # nothing tells which one
    efi_variable(root, "LoaderInfo", "GRUB 2.12")
    assert [row["reason"] for row in info(root)["problems"]] == ["unsupported_bootloader"]
    efi_variable(root, "LoaderInfo", "systemd-boot 257")
    assert info(root)["bootloader"] == "systemd_boot" and not info(root)["problems"]


def test_a_foreign_token_in_one_entry_is_named(tmp_path: Path) -> None:
    root = host(tmp_path)
    path = root / f"{ENTRIES.lstrip('/')}/{MACHINE}-6.12.9+deb13-amd64.conf"
    path.write_text(path.read_text().replace(" quiet", " hugepages=3 quiet"))
    before = hashes(root)
    result = change(root, owned=[])
    assert (result["reason"], result["file"], result["line"]) == (
        "foreign_token",
        f"{ENTRIES}/{path.name}",
        7,
    )
    assert hashes(root) == before
    replaced = change(root, owned=[], on_conflict="replace")
    assert not replaced.get("failed") and "hugepages=3" not in path.read_text()


def test_a_comment_of_the_next_kernels_arguments_is_never_joined_with_them(tmp_path: Path) -> None:
    root = host(tmp_path)
    path = root / "etc/kernel/cmdline"
    path.write_text(f"{path.read_text()}  # from the installer\n")
    before = hashes(root)
    with pytest.raises(BootError) as caught:
        run_live(root, None, tokens=WANT, keys=KEYS, owned=[])
    assert (caught.value.reason, caught.value.problem.line) == ("cannot_edit", 2) and hashes(root) == before


def test_a_write_that_fails_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ansible_collections.firsttouch.host.plugins.module_utils import _boot_plan
    from ansible_collections.firsttouch.host.plugins.module_utils._files import atomic_write

    root = host(tmp_path)
    before = hashes(root)
    calls: list[str] = []

    def failing(path: str, text: str, mode: int) -> None:
        calls.append(path)
        if len(calls) == 2:
            raise OSError(28, "No space left on device", path)
        atomic_write(path, text, mode)

    monkeypatch.setattr(_boot_plan, "atomic_write", failing)
    with pytest.raises(OSError, match="No space"):
        run_live(root, None, tokens=WANT, keys=KEYS, owned=[])
    assert hashes(root) == before


def test_no_entry_on_a_running_host_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "/boot/efi/loader/loader.conf", "timeout 3\n")
    put(tmp_path, "/boot/efi/EFI/systemd/systemd-bootx64.efi", "")
    put(tmp_path, "/etc/kernel/cmdline", "ro\n")
    with pytest.raises(BootError) as caught:
        run_live(tmp_path, None, tokens=WANT, keys=KEYS, owned=[])
    assert caught.value.reason == "default_entry_unresolvable"
    assert not change(tmp_path, owned=[]).get("failed")  # an image may get its entries later
    assert (tmp_path / "etc/kernel/cmdline").read_text() == f"ro {' '.join(WANT)}\n"


def test_options_on_several_lines_stay_on_them() -> None:
    text = "title A\noptions a b\nlinux /k\n\toptions\tc  d\n"
    one = parse("/e/x.conf", text)
    assert one.options == "a b c  d" and [t.source.line for t in one.tokens if t.source] == [2, 2, 4, 4]
    assert with_options(one, ["a", "b", "c", "d"]) == text
    assert (
        with_options(one, ["a", "b", "c", "d", "e"]) == "title A\noptions a b\nlinux /k\n\toptions\tc d e\n"
    )
    assert with_options(one, ["a", "d"]) == "title A\noptions a\nlinux /k\n\toptions\td\n"
    assert with_options(one, ["c"]) == "title A\nlinux /k\n\toptions\tc\n"
    assert with_options(parse("/e/y.conf", "linux /k\n"), ["a"]) == "linux /k\noptions a\n"


VERSIONS = [
    "", "~1", "1~rc1", "1", "1-1", "1.1", "1^1", "1.0", "1.9", "1.10", "1.10~x", "01.10", "a", "ab", "a.1",
    "6.12.9+deb13", "6.12.48+deb13", "6.1.0-10", "6.1.0-9", "123^post1", "123~rc1-1", "123_x",
]  # fmt: skip


def test_systemd_version_order_against_systemd_analyze() -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("no systemd-analyze")
    for a, b in itertools.combinations([version for version in VERSIONS if version], 2):
        done = subprocess.run([tool, "compare-versions", a, b], capture_output=True, text=True, check=False)
        wanted = {0: 0, 11: 1, 12: -1}.get(done.returncode)
        if wanted is None:
            pytest.skip("an old systemd-analyze")
        assert systemd_compare(a, b) == wanted, (a, b)
        assert systemd_compare(b, a) == -wanted


@pytest.mark.parametrize(
    ("a", "b", "result"),
    [
        ("1.0", "1.0", 0),
        ("1.10", "1.9", 1),
        ("1.0~rc1", "1.0", -1),
        ("1.0.1", "1.0", 1),
        ("a", "1", -1),
        ("1a", "1", 1),
        ("1.001", "1.1", 0),
        ("x-427.13.1.el9", "x-427.9.1.el9", 1),
        ("m-0-rescue", "m-5.14.0", -1),
    ],
)
def test_rpm_version_order(a: str, b: str, result: int) -> None:
    assert (rpm_compare(a, b), rpm_compare(b, a)) == (result, -result)


def test_both_orders_are_orders() -> None:
    for compare in (systemd_compare, rpm_compare):
        ranked = sorted(VERSIONS, key=cmp_to_key(compare))
        assert all(compare(a, b) <= 0 for a, b in itertools.combinations(ranked, 2))


def test_a_backend_without_any_entry_has_no_default(tmp_path: Path) -> None:
    put(tmp_path, "/boot/efi/loader/loader.conf", "timeout 3\n")
    assert SystemdBootBackend(str(tmp_path), False).default_entry() is None
