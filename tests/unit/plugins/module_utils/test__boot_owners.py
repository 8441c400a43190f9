# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose a boot argument is, by the file it stands in and by tuned's own files."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils._boot_owners import (
    TunedArgument,
    owner_of,
    tuned_arguments,
)
from support import put


@pytest.mark.parametrize(
    ("path", "text", "owner"),
    [
        ("/etc/default/grub.d/50-cloudimg-settings.cfg", "X=1\n", "cloud image"),
        ("/etc/default/grub.d/10_cloud.cfg", "X=1\n", "cloud image"),
        ("/etc/default/grub.d/kdump-tools.cfg", "X=1\n", "kdump"),
        ("/etc/default/grub.d/40-x.cfg", "# Ansible managed: grub.j2 modified on\n", "another role grub.j2"),
        ("/etc/default/grub.d/40-x.cfg", "# Ansible managed\n", "another role"),
        ("/etc/default/grub.d/40-x.cfg", "# system_role:bootloader\n", "linux-system-roles bootloader"),
        ("/etc/default/grub.d/40-x.cfg", "# This file is managed by Puppet\n", "Puppet"),
        ("/etc/default/grub.d/40-x.cfg", "\n" * 20 + "# Ansible managed\n", "unknown"),
        ("/etc/default/grub.d/zzz-firsttouch.cfg", "", "firsttouch.host"),
        ("/etc/default/grub", "GRUB_TIMEOUT=1\n", "the host's own settings"),
        ("/etc/default/grub", "# Ansible managed\n", "another role"),
        ("/etc/kernel/cmdline", "quiet\n", "the host's own settings"),
        ("/boot/grub/grub.cfg", "menuentry\n", "unknown"),
        ("/proc/cmdline", "quiet\n", "unknown"),
    ],
)
def test_by_name_then_by_its_first_lines(tmp_path: Path, path: str, text: str, owner: str) -> None:
    put(tmp_path, path, text)
    assert owner_of(str(tmp_path), path) == owner


def test_a_file_that_is_gone_has_no_owner(tmp_path: Path) -> None:
    assert owner_of(str(tmp_path), "/etc/default/grub.d/x.cfg") == owner_of(str(tmp_path), "") == "unknown"


def test_what_tuned_adds(tmp_path: Path) -> None:
    put(tmp_path, "/etc/tuned/active_profile", "mine\n")
    put(
        tmp_path,
        "/etc/tuned/profiles/mine/tuned.conf",
        "[main]\ninclude=base\n[bootloader]\ncmdline_mine=+nohz=on +isolcpus=${isolated_cores} -quiet\n"
        "initrd_add_dir=/x\n[sysctl]\ncmdline=no\n",
    )
    put(tmp_path, "/usr/lib/tuned/base/tuned.conf", "[bootloader]\ncmdline = skew_tick=1\n")
    put(tmp_path, "/etc/tuned/bootcmdline", '# made by tuned\nTUNED_BOOT_CMDLINE="nohz=on isolcpus=2"\n')
    mine, base = "/etc/tuned/profiles/mine/tuned.conf", "/usr/lib/tuned/base/tuned.conf"
    assert tuned_arguments(str(tmp_path)) == [
        TunedArgument("nohz=on", "/etc/tuned/bootcmdline", 2),
        TunedArgument("isolcpus=2", "/etc/tuned/bootcmdline", 2),
        TunedArgument("skew_tick=1", base, 2),
        TunedArgument("nohz=on", mine, 4),
        TunedArgument("isolcpus=${isolated_cores}", mine, 4),
    ]


def test_without_tuned_nothing(tmp_path: Path) -> None:
    assert tuned_arguments(str(tmp_path)) == []
