# SPDX-License-Identifier: GPL-3.0-or-later
"""Which entry of a grub.cfg boots by itself, and with what command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils._boot_grubcfg import (
    GrubCfg,
    loader_cmdline,
    read_grubcfg,
)
from ansible_collections.firsttouch.host.plugins.module_utils._boot_grubenv import parse, set_variable
from ansible_collections.firsttouch.host.plugins.module_utils._boot_types import BootError
from boot_cases import put

HEADER = """
if [ -s $prefix/grubenv ]; then
  set have_grubenv=true
  load_env
fi
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
   set next_entry=
   save_env next_entry
   set boot_once=true
else
   set default="DEFAULT"
fi
if [ x"${feature_menuentry_id}" = xy ]; then
  menuentry_id_option="--id"
else
  menuentry_id_option=""
fi
export menuentry_id_option
function savedefault {
  if [ -z "${boot_once}" ]; then
    saved_entry="${chosen}"
    save_env saved_entry
  fi
}
"""
MENU = """
### BEGIN /etc/grub.d/10_linux ###
menuentry 'Debian' --class debian $menuentry_id_option 'simple' {
	if [ x$grub_platform = xxen ]; then insmod xzio; fi
	search --no-floppy --fs-uuid --set=root abc
	linux	/vmlinuz-2 root=/dev/a ro top
}
submenu 'Advanced > all' $menuentry_id_option 'advanced' {
	menuentry 'Linux 2' --class debian $menuentry_id_option 'two' {
		savedefault
		linux	/vmlinuz-2 root=/dev/a ro two
	}
	menuentry 'Linux 2 (recovery mode)' $menuentry_id_option 'gnulinux-2-recovery-x' {
		linux	/vmlinuz-2 root=/dev/a ro single
	}
	menuentry 'Linux 1' $menuentry_id_option 'one' {
		linux	/vmlinuz-1 root=/dev/a ro one
	}
}
### END /etc/grub.d/10_linux ###
### BEGIN /etc/grub.d/30_uefi-firmware ###
if [ "$grub_platform" = "efi" ]; then
	menuentry 'UEFI' $menuentry_id_option 'uefi' {
		fwsetup
	}
fi
### END /etc/grub.d/30_uefi-firmware ###
### BEGIN /etc/grub.d/40_custom ###
menuentry "2 Custom" --id=custom --hotkey=c { linux16 /vmlinuz-c root=/dev/c custom; }
menuentry 'Windows' { chainloader +1 }
### END /etc/grub.d/40_custom ###
"""


def read(
    text: str, root: Path, environment: dict[str, str] | None = None, platform: str | None = "pc"
) -> GrubCfg:
    block = "# GRUB Environment Block\n" + "".join(f"{k}={v}\n" for k, v in (environment or {}).items())
    put(root, "/boot/grub/grubenv", block + "#" * (1024 - len(block)))
    return read_grubcfg(str(root), "/boot/grub", text, environment or {}, platform)


def last(cfg: GrubCfg) -> str:
    assert cfg.default is not None, cfg.refusal
    return cfg.default.line.split()[-1]


@pytest.mark.parametrize(
    ("default", "word"),
    [
        ("0", "top"),
        ("", "top"),
        ("1>0", "two"),
        ("1>2", "one"),
        ("1", "single"),  # a submenu without a part of its own: GRUB looks 1 up in it again
        ("advanced>one", "one"),
        ("Advanced >> all>Linux 1", "one"),
        ("advanced>Linux 2", "two"),
        ("advanced", "two"),
        ("simple", "top"),
        ("Debian", "top"),
        ("custom", "custom"),
        ("2", "custom"),
        ("2 Custom", "custom"),  # begins with a number, so it is one
        ("0x2", "custom"),
        ("002", "custom"),
    ],
)
def test_the_default_entry_as_grub_resolves_it(default: str, word: str, tmp_path: Path) -> None:
    cfg = read(HEADER.replace("DEFAULT", default) + MENU, tmp_path)
    assert last(cfg) == word and not cfg.notes
    assert [entry.default for entry in cfg.entries].count(True) == 1


@pytest.mark.parametrize("default", ["gone", "9", "advanced>gone", "two", "1>9"])
def test_a_default_that_does_not_exist_boots_the_first_and_is_noted(default: str, tmp_path: Path) -> None:
    cfg = read(HEADER.replace("DEFAULT", default) + MENU, tmp_path)
    assert last(cfg) == ("two" if ">" in default else "top")
    assert [note.reason for note in cfg.notes] == ["default_entry_not_found"]


@pytest.mark.parametrize(
    ("environment", "word"),
    [
        ({"saved_entry": "advanced>one"}, "one"),
        ({"saved_entry": "custom"}, "custom"),
        ({"saved_entry": "custom", "next_entry": "advanced>two"}, "two"),
        ({}, "top"),
    ],
)
def test_saved_and_next_entry(environment: dict[str, str], word: str, tmp_path: Path) -> None:
    assert last(read(HEADER.replace("DEFAULT", "${saved_entry}") + MENU, tmp_path, environment)) == word


@pytest.mark.parametrize(
    "text",
    [
        HEADER.replace("DEFAULT", "Windows") + MENU,
        HEADER.replace("DEFAULT", "0") + MENU + "if cmostest 1:2; then set default=custom; fi\n",
        HEADER.replace("DEFAULT", "0") + MENU + "eval something\n",
        HEADER.replace("DEFAULT", "0") + MENU + "configfile /other.cfg\n",
        HEADER.replace("DEFAULT", "0") + MENU + "source (hd1)/grub.cfg\n",
        HEADER.replace("DEFAULT", "0") + MENU + "search --set=default --label x\n",
        HEADER.replace("DEFAULT", "0") + MENU + "for x in a b; do set default=$x; done\n",
        HEADER.replace("DEFAULT", "0"),
        "submenu x { }\n",
        "menuentry x { if keystatus --shift; then linux /a a; else linux /a b; fi }\n",
        "if keystatus; then\nmenuentry x { linux /a a; }\nfi\nmenuentry y { linux /b b; }\n",
        "menuentry x { multiboot /a }\n",
    ],
)
def test_what_is_only_known_at_boot_is_unresolvable(text: str, tmp_path: Path) -> None:
    cfg = read(text, tmp_path)
    assert cfg.default is None and cfg.refusal is not None
    assert cfg.refusal.reason == "default_entry_unresolvable"


def test_entries_behind_the_chosen_one_may_be_uncertain(tmp_path: Path) -> None:
    cfg = read(HEADER.replace("DEFAULT", "0") + MENU, tmp_path, platform=None)
    assert last(cfg) == "top"
    assert read(HEADER.replace("DEFAULT", "custom") + MENU, tmp_path, platform=None).default is None
    assert last(read(HEADER.replace("DEFAULT", "3") + MENU, tmp_path, platform="efi")) == "custom"


def test_custom_cfg_is_followed(tmp_path: Path) -> None:
    source = "if [ -f  ${config_directory}/custom.cfg ]; then\n  source ${config_directory}/custom.cfg\nfi\n"
    text = HEADER.replace("DEFAULT", "0") + MENU + source
    assert last(read(text, tmp_path)) == "top"
    put(tmp_path, "/boot/grub/custom.cfg", "menuentry mine { linux /m mine; }\nset default=mine\n")
    assert last(read(text, tmp_path)) == "mine"


def test_sections_recovery_and_places(tmp_path: Path) -> None:
    cfg = read(HEADER.replace("DEFAULT", "0") + MENU, tmp_path)
    rows = {entry.id: entry for entry in cfg.entries}
    assert (
        rows["simple"].section == "/etc/grub.d/10_linux" and rows["custom"].section == "/etc/grub.d/40_custom"
    )
    assert [entry.id for entry in cfg.entries if entry.recovery] == ["gnulinux-2-recovery-x"]
    assert rows["one"].version == "1" and rows["one"].path == (1, 2)
    line = rows["one"].file_line or 0
    assert "ro one" in (HEADER.replace("DEFAULT", "0") + MENU).splitlines()[line - 1]


UBUNTU = """
function gfxmode {
	set gfxpayload="${1}"
	if [ "${1}" = "keep" ]; then
		set vt_handoff=vt.handoff=7
	else
		set vt_handoff=
	fi
}
if [ "${recordfail}" != 1 ]; then
  if hwmatch ${prefix}/gfxblacklist.txt 3; then
    if [ ${match} = 0 ]; then
      set linux_gfx_mode=keep
    else
      set linux_gfx_mode=text
    fi
  else
    set linux_gfx_mode=text
  fi
else
  set linux_gfx_mode=text
fi
menuentry 'Ubuntu' {
	gfxmode $linux_gfx_mode
	linux	/vmlinuz root=/dev/a ro quiet splash $vt_handoff
}
"""


def test_a_variable_that_is_only_known_at_boot_stays_on_the_line(tmp_path: Path) -> None:
    cfg = read(UBUNTU, tmp_path)
    assert cfg.default is not None
    assert cfg.default.line == "root=/dev/a ro quiet splash $vt_handoff"
    assert cfg.default.unresolved == ("$vt_handoff", "vt.handoff=7")
    always = UBUNTU.replace("hwmatch ${prefix}/gfxblacklist.txt 3", "false")
    cfg = read(always, tmp_path)
    assert cfg.default is not None and cfg.default.line == "root=/dev/a ro quiet splash"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("a b", "a b"),
        ('a="b c"', '"a=b c"'),
        ("a='b c' d", '"a=b c" d'),
        ('acpi_osi="!Linux"', "acpi_osi=!Linux"),
        ('acpi_osi=\\"!Linux\\"', 'acpi_osi=\\"!Linux\\"'),
        ('"a  b"', '"a  b"'),
        ("a\\ b", '"a b"'),
        ("a=$unset b", "a= b"),
        ("a$unset", "a"),
        ("$unset", ""),
        ('"$unset" a', " a"),
        ("a \\\n b", "a b"),
        ("x\\x41", "xx41"),
    ],
)
def test_the_line_that_grub_hands_over(words: str, line: str, tmp_path: Path) -> None:
    cfg = read(f"menuentry x {{\nlinux /v {words}\n}}\n", tmp_path)
    assert cfg.default is not None and cfg.default.line == line


def test_loader_cmdline_keeps_hexadecimal_escapes() -> None:
    assert loader_cmdline(("a\\x41b", "c\\d", "e'f")) == "a\\x41b c\\\\d e\\'f"


@pytest.mark.parametrize(
    "text",
    ["menuentry x {\n", "if true; then\n", "menuentry 'x\n", "}\n", "a | b\n", 'set a="b\n', "fi x {\n"],
)
def test_broken_scripts_name_file_and_line(text: str, tmp_path: Path) -> None:
    with pytest.raises(BootError) as caught:
        read(text, tmp_path)
    assert caught.value.reason == "grub_script_syntax" and caught.value.problem.file == "/boot/grub/grub.cfg"
    assert caught.value.problem.line


def block(*rows: str) -> bytes:
    text = "# GRUB Environment Block\n" + "".join(f"{row}\n" for row in rows)
    return text.encode() + b"#" * (1024 - len(text))


def test_environment_block() -> None:
    data = block("# WARNING", "a=1", "b=x\\\\y\\\nz", "c=")
    assert parse(data, "p") == {"a": "1", "b": "x\\y\nz", "c": ""}
    changed = set_variable(data, "a", "2\\3", "p")
    assert len(changed) == 1024 and parse(changed, "p") == {"a": "2\\3", "b": "x\\y\nz", "c": ""}
    assert parse(set_variable(data, "new", "v", "p"), "p")["new"] == "v"
    assert b"# WARNING\n" in changed
    with pytest.raises(BootError) as caught:
        parse(b"a=1\n", "p")
    assert caught.value.reason == "grubenv_invalid"
