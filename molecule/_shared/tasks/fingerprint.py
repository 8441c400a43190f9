# SPDX-License-Identifier: GPL-3.0-or-later
"""Print, as JSON, a digest of everything that a check run must leave alone and a revert must give back."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import sys

FOLDERS = ("/etc", "/boot", "/opt", "/usr/lib/sysctl.d", "/usr/lib/systemd", "/var/lib/firsttouch")
# Written by the running system and by the account tools (their backups) themselves, whatever we set.
VOLATILE = (
    *("/etc/adjtime", "/etc/resolv.conf", "/etc/machine-id", "/etc/mtab"),
    *("/etc/group-", "/etc/gshadow-", "/etc/passwd-", "/etc/shadow-"),
)
SYSCTLS = ("/proc/sys/vm/*", "/proc/sys/kernel/sched_*", "/proc/sys/kernel/numa_balancing*")
THP = ("/sys/kernel/mm/transparent_hugepage/*enabled", "/sys/kernel/mm/transparent_hugepage/defrag")
# systemd-boot makes it anew at every boot.
RANDOM_SEED = "/boot/efi/loader/random-seed"
# Counters and one-shot triggers, no settings.
NOT_SETTINGS = ("/proc/sys/vm/compact_memory", "/proc/sys/vm/drop_caches", "/proc/sys/vm/stat_refresh")
POOLS = (
    "/sys/devices/system/node/node*/hugepages/*/nr_hugepages",
    "/sys/kernel/mm/hugepages/*/nr_overcommit_hugepages",
)


def digest(path: str) -> str:
    """sha256 of a file with its mode and owner, or the target of a symlink."""
    if os.path.islink(path):
        return "link " + os.readlink(path)
    status = os.stat(path)
    with open(path, "rb") as handle:
        data = hashlib.sha256(handle.read()).hexdigest()
    return f"{data} {status.st_mode:o} {status.st_uid}:{status.st_gid}"


def main() -> None:
    """Print {files, settings, boot_id, cmdline}."""
    files: dict[str, str] = {}
    for folder in FOLDERS:
        for top, _folders, names in os.walk(folder):
            files.update({os.path.join(top, name): digest(os.path.join(top, name)) for name in names})
    files.pop(RANDOM_SEED, None)
    settings = {}
    for pattern in SYSCTLS + POOLS + THP:
        for path in glob.glob(pattern):
            if path not in NOT_SETTINGS:
                try:
                    with open(path, encoding="utf-8") as handle:
                        settings[path] = handle.read().strip()
                except OSError:
                    continue
    result: dict[str, object] = {
        "files": {k: v for k, v in files.items() if k not in VOLATILE},
        "settings": settings,
    }
    for key, path in (("boot_id", "/proc/sys/kernel/random/boot_id"), ("cmdline", "/proc/cmdline")):
        with open(path, encoding="utf-8") as handle:
            result[key] = handle.read().strip()
    json.dump(result, sys.stdout, sort_keys=True)


if __name__ == "__main__":
    main()
