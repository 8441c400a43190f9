# SPDX-License-Identifier: Apache-2.0
"""The files of tmpfiles.d that systemd-tmpfiles reads (tmpfiles.d(5))."""

from __future__ import annotations

from ._files import list_dir

DIRS = ("/etc/tmpfiles.d", "/run/tmpfiles.d", "/usr/local/lib/tmpfiles.d", "/usr/lib/tmpfiles.d")


def files(root: str, unreadable: dict[str, OSError] | None = None) -> list[str]:
    """The files below ROOT, by name: of several with one name that of the first folder counts.

    A folder that cannot be listed goes into UNREADABLE. Raises OSError where there is none.
    """
    found: dict[str, str] = {}
    for folder in DIRS:
        try:
            names = list_dir(root, folder) or []
        except OSError as exc:
            if unreadable is None:
                raise
            unreadable[folder] = exc
            continue
        for name in names:
            if name.endswith(".conf"):
                found.setdefault(name, f"{folder}/{name}")
    return [found[name] for name in sorted(found)]
