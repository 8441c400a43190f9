# SPDX-License-Identifier: Apache-2.0
"""Transparent huge pages: what the kernel offers and does, one tmpfiles.d file of ours, and setting both.

At boot the mode comes from the argument transparent_hugepage=: from the first page on, before the sysctls (a write to
`enabled` may raise vm.min_free_kbytes, mm/khugepaged.c), and tuned then leaves the mode alone (its plugin vm looks
for it on /proc/cmdline). defrag and shmem_enabled have no argument that every kernel knows: tmpfiles.d(5) writes them;
of several lines about one path the one in the file with the earliest name counts. The file also says what is ours.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import _tmpfiles
from ._files import atomic_write, list_dir, read_text, remove, resolve
from ._systemd import MARKER

DIRECTORY = "/sys/kernel/mm/transparent_hugepage"
ARGUMENT = "transparent_hugepage"
FILE = "/etc/tmpfiles.d/00-firsttouch-thp.conf"
# Documentation/admin-guide/mm/transhuge.rst; what a kernel really offers is in its own files.
KNOWN: dict[str, tuple[str, ...]] = {
    "enabled": ("always", "madvise", "never"),
    "defrag": ("always", "defer", "defer+madvise", "madvise", "never"),
    "shmem_enabled": ("always", "within_size", "advise", "never", "deny", "force"),
}
_LINE = re.compile(rf"\s*w\S*\s+{DIRECTORY}/(\w+)(?:\s+\S+){{4}}\s+(\S+)\s*")
_BY_ARGUMENT = re.compile(rf"# (enabled): (\S+), by the boot argument {ARGUMENT}=")
_SYSFS_CONF = re.compile(rf"\s*(?:/sys/)?{DIRECTORY[5:]}/(\w+)\s*=\s*(\S+)\s*")


class ThpError(ValueError):
    """Why nothing was changed; `reason` is a code, `path` the file it is about."""

    def __init__(self, reason: str, text: str, path: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.path = path


@dataclass(frozen=True)
class Setting:
    """A line of somebody's file that sets NAME (enabled, defrag, ...) to VALUE."""

    name: str
    value: str
    file: str
    line: int


def choices(text: str) -> tuple[tuple[str, ...], str | None]:
    """What a file like `always [madvise] never` offers, and what is chosen."""
    words = tuple(word.strip("[]") for word in text.split())
    chosen = re.search(r"\[([^\]\s]+)\]", text)
    return words, chosen.group(1) if chosen else None


def check_value(name: str, value: Any) -> str:
    """VALUE of the setting NAME, a word that Linux knows for it. Raises ValueError."""
    if value not in KNOWN[name]:
        raise ValueError(f"{name} is {value!r}, not one of {', '.join(KNOWN[name])}")
    return str(value)


def render(values: Mapping[str, str]) -> str | None:
    """The text of our file for VALUES; None (no file) for none."""
    if not values:
        return None
    lines = [f"w {DIRECTORY}/{name} - - - - {values[name]}\n" for name in KNOWN if name in values]
    if "enabled" in values:
        lines[0] = f"# enabled: {values['enabled']}, by the boot argument {ARGUMENT}=\n"
    return "".join([f"{MARKER}\n", *lines])


def ours(text: str | None) -> dict[str, str]:
    """The modes that the TEXT of our file says are ours."""
    rows = [_BY_ARGUMENT.fullmatch(line) or _LINE.fullmatch(line) for line in (text or "").splitlines()]
    return {match[1]: match[2] for match in rows if match and match[1] in KNOWN}


def _lines(text: str, file: str, pattern: re.Pattern[str]) -> list[Setting]:
    rows = [(number, pattern.fullmatch(line)) for number, line in enumerate(text.splitlines(), 1)]
    return [Setting(match[1], match[2], file, number) for number, match in rows if match]


def winners(root: str) -> Iterator[Setting]:
    """The settings that win over ours at boot, the last of a name over all. Raises OSError.

    Any tmpfiles.d line comes after the boot argument; over our own lines only those in files of an earlier name win.
    sysfsutils comes after them all.
    """
    for path in reversed(_tmpfiles.files(root)):
        for row in reversed(_lines(read_text(root, path) or "", path, _LINE)):
            if os.path.basename(path) < os.path.basename(FILE) or row.name == "enabled":
                yield row
    folder = "/etc/sysfs.d"
    paths = [f"{folder}/{entry}" for entry in list_dir(root, folder) or [] if entry.endswith(".conf")]
    for path in ("/etc/sysfs.conf", *paths):
        yield from _lines(read_text(root, path) or "", path, _SYSFS_CONF)


@dataclass
class Plan:
    """Everything that one call changes. `live`: {name: mode} before it, `writes`: those to write."""

    root: str
    before_text: str | None
    after_text: str | None
    live: dict[str, str] = field(default_factory=dict)
    writes: dict[str, str] = field(default_factory=dict)
    not_restored: list[str] = field(default_factory=list)

    @property
    def changes(self) -> list[dict[str, Any]]:
        """The exact change set, as `{resource, before, after}`."""
        rows: list[dict[str, Any]] = [
            {"resource": f"thp:{name}", "before": self.live[name], "after": value}
            for name, value in self.writes.items()
        ]
        if self.before_text != self.after_text:
            row = {"resource": f"file:{FILE}", "before": self.before_text, "after": self.after_text}
            rows.append(row)
        return sorted(rows, key=lambda row: str(row["resource"]))


def make_plan(root: str, values: Mapping[str, str], restore: Mapping[str, str], live: bool) -> Plan:
    """Plan our file below ROOT for VALUES, and with LIVE the running kernel; reads only.

    RESTORE: the modes first found, for what the file names and VALUES no longer does. Raises ThpError
    (`foreign_file`, `unsupported`, `permission_denied`, `read_only`) and OSError.
    """
    before = read_text(root, FILE)
    if before is not None and before.split("\n", 1)[0].rstrip() != MARKER:
        if not values:  # nothing of ours is there
            return Plan(root, before, before)
        raise ThpError("foreign_file", f"{FILE} was not written by this module; move it away first", FILE)
    plan = Plan(root, before, render(values))
    if not live:
        return plan
    for name in (name for name in ours(before) if name not in values):
        # What another kernel had, this one may not offer.
        if not _plan_mode(plan, name, restore.get(name)):
            plan.not_restored.append(name)
    for name, value in values.items():
        if not _plan_mode(plan, name, value):
            _unsupported(name, value, read_text(root, f"{DIRECTORY}/{name}"))
    return plan


def _plan_mode(plan: Plan, name: str, value: str | None) -> bool:
    """Plan to set NAME to VALUE in the running kernel; False, and nothing planned, where it does not offer that."""
    offered, chosen = choices(read_text(plan.root, f"{DIRECTORY}/{name}") or "")
    if value not in offered or value is None or chosen is None:
        return False
    plan.live[name] = chosen
    if chosen != value:
        _check_writable(plan.root, name)
        plan.writes[name] = value
    return True


def _unsupported(name: str, value: str, text: str | None) -> None:
    path = f"{DIRECTORY}/{name}"
    if text is None:
        raise ThpError("unsupported", f"this kernel has no {path}: take {name} out of firsttouch_thp", path)
    offers = f"{path} offers {' '.join(choices(text)[0])}"
    raise ThpError("unsupported", f"{offers}, not {value}: change firsttouch_thp", path)


def _check_writable(root: str, name: str) -> None:
    path = f"{DIRECTORY}/{name}"
    real = resolve(root, path)
    if os.access(real, os.W_OK):
        return
    if os.statvfs(real).f_flag & os.ST_RDONLY:
        text = f"{path} is on a read-only file system, make it writable; nothing was changed"
        raise ThpError("read_only", text, path)
    raise ThpError("permission_denied", f"no permission to write {path}, run this as root; nothing was changed", path)


def apply_plan(plan: Plan) -> None:
    """Set the running kernel, read each mode back, then write the file. Raises ThpError after undoing all of it."""
    done: list[str] = []
    try:
        for name, value in plan.writes.items():
            done.append(name)
            _set(plan.root, name, value)
        if plan.before_text != plan.after_text:
            _write_file(plan)
    except (ThpError, OSError) as exc:
        left = [name for name in reversed(done) if not _put_back(plan, name)]
        if left:
            text = f"{exc}; and {', '.join(left)} could not be put back"
            raise ThpError("not_undone", text, f"{DIRECTORY}/{left[0]}") from exc
        raise


def _put_back(plan: Plan, name: str) -> bool:
    try:
        _set(plan.root, name, plan.live[name])
    except (ThpError, OSError):
        return False
    return True


def _set(root: str, name: str, value: str) -> None:
    path = f"{DIRECTORY}/{name}"
    try:
        _write(resolve(root, path), value)
    except OSError as exc:
        reason = "read_only" if exc.errno == errno.EROFS else "rejected"
        raise ThpError(reason, f"{path}: the kernel refused {value!r} ({exc.strerror})", path) from exc
    chosen = choices(read_text(root, path) or "")[1]
    if chosen != value:
        raise ThpError("readback_differs", f"{path}: wrote {value!r}, the kernel has {chosen!r}", path)


def _write(path: str, value: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def _write_file(plan: Plan) -> None:
    real = resolve(plan.root, FILE)
    if plan.after_text is None:
        remove(real)
    else:
        atomic_write(real, plan.after_text, 0o644)
