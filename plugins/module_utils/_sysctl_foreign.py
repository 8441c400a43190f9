# SPDX-License-Identifier: Apache-2.0
"""Who else writes sysctls or takes back what they allow: tuned, UFW, the command line, real-time cgroups."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from . import _tmpfiles
from ._files import exists, inside, list_dir, read_text, resolve
from ._sysctl import normalize, parse_lines

_TUNED_DIRS = ("/etc/tuned/profiles", "/etc/tuned", "/usr/lib/tuned/profiles", "/usr/lib/tuned")
_CGROUPS = "/sys/fs/cgroup"
_RT_RUNTIME = "/proc/sys/kernel/sched_rt_runtime_us"
_RT_FILE = "cpu.rt_runtime_us"
_MAX_INCLUDES = 16
_TMPFILES_LINE = re.compile(r"\s*(w\S*)\s+/proc/sys/(\S+?)(?:\s+\S+){4}\s+(\S.*?)\s*")


@dataclass(frozen=True)
class Foreign:
    """A setting of a writer other than the sysctl files: `key` in slash form."""

    writer: str
    key: str
    value: str
    file: str
    line: int


def writers(root: str, unreadable: dict[str, OSError]) -> list[Foreign]:
    """Return what the active tuned profile, an enabled UFW, tmpfiles.d and the command line set, one row of a key.

    What cannot be read goes into UNREADABLE: a file or folder of tmpfiles.d hides no other, another file its writer.
    """
    every: list[Foreign] = []
    for rows in (tuned_writers(root), _ufw(root), _tmpfiles_lines(root, unreadable), _command_line(root)):
        try:
            every += rows
        except OSError as exc:
            unreadable[os.fsdecode(exc.filename or "")] = exc
    return list({(item.writer, item.key): item for item in every}.values())


def tuned_writers(root: str) -> Iterator[Foreign]:
    """What the active tuned profile sets, the last of a key. Raises OSError."""
    found: dict[str, Foreign] = {}
    for name, value, path, number in tuned_section(root, "sysctl"):
        if name not in ("type", "enabled", "replace", "priority"):
            key = normalize(name)
            found[key] = Foreign("tuned", key, value.lstrip(">").strip(), path, number)
    yield from found.values()


def tuned_section(root: str, section: str) -> Iterator[tuple[str, str, str, int]]:
    """(name, value, file, line) of SECTION in the active tuned profiles, their includes first (tuned.conf(5)).

    Raises OSError.
    """
    for profile in (read_text(root, "/etc/tuned/active_profile") or "").split():
        yield from _tuned_profile(root, profile, section, 0)


def _tuned_profile(root: str, profile: str, wanted: str, depth: int) -> Iterator[tuple[str, str, str, int]]:
    """The rows of section WANTED of PROFILE, its includes first."""
    if depth > _MAX_INCLUDES or not re.fullmatch(r"[\w.+-]+", profile):
        return
    for directory in _TUNED_DIRS:
        path = f"{directory}/{profile}/tuned.conf"
        text = read_text(root, path)
        if text is not None:
            break
    else:
        return
    section, own = "", []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or line[0] in "#;":
            continue
        if section == "main" and name == "include":
            for parent in re.split(r"[\s,;]+", value):
                yield from _tuned_profile(root, parent.lstrip("-"), wanted, depth + 1)
        elif section == wanted:
            own.append((name, value, path, number))
    yield from own


def _ufw(root: str) -> Iterator[Foreign]:
    enabled = re.search(
        r"^\s*ENABLED\s*=\s*[\"']?yes",
        read_text(root, "/etc/ufw/ufw.conf") or "",
        re.MULTILINE | re.IGNORECASE,
    )
    if not enabled:
        return
    setting = re.search(
        r"^\s*IPT_SYSCTL\s*=\s*[\"']?([^\s\"'#]+)", read_text(root, "/etc/default/ufw") or "", re.MULTILINE
    )
    path = setting[1] if setting else "/etc/ufw/sysctl.conf"
    for item in parse_lines(read_text(root, path) or "", path, path)[0]:
        if item.value is not None:
            yield Foreign("ufw", item.key, item.value, path, item.line)


def _tmpfiles_lines(root: str, unreadable: dict[str, OSError]) -> Iterator[Foreign]:
    """What tmpfiles.d writes into /proc/sys: at boot nothing orders it against systemd-sysctl.

    Of several lines for a key systemd-tmpfiles takes the first and ignores the others, but adds a `w+` to a `w+`.
    """
    found: dict[str, tuple[bool, Foreign]] = {}
    for path in _tmpfiles.files(root, unreadable):
        try:
            text = read_text(root, path) or ""
        except OSError as exc:
            unreadable[path] = exc
            continue
        for number, line in enumerate(text.splitlines(), 1):
            match = _TMPFILES_LINE.fullmatch(line)
            if not match:
                continue
            key, adds = normalize(match[2]), "+" in match[1]
            if key not in found or (adds and found[key][0]):
                found[key] = adds, Foreign("tmpfiles", key, match[3], path, number)
    yield from (item for _adds, item in found.values())


def _command_line(root: str) -> Iterator[Foreign]:
    """sysctl.KEY=VALUE parameters: the kernel applies them just before init (fs/proc/proc_sysctl.c)."""
    for token in (read_text(root, "/proc/cmdline") or "").split():
        if token == "--":
            return
        name, equals, value = token.partition("=")
        if equals and re.match(r"sysctl[./]", name):
            yield Foreign("kernel_command_line", normalize(name[7:]), value, "/proc/cmdline", 1)


def rt_groups(root: str = "/") -> list[dict[str, Any]]:
    """Return a finding for each topmost cgroup (v1) whose share of real-time run time is zero.

    The file exists only with CONFIG_RT_GROUP_SCHED; SCHED_FIFO then fails with EPERM inside the group
    whatever kernel.sched_rt_runtime_us says (Documentation/scheduler/sched-rt-group.rst), unless that is -1, which
    switches the check off (rt_bandwidth_enabled() of kernel/sched). The root group never has zero: where the topmost
    one has, it is that of a container.
    """
    if (read_text(root, _RT_RUNTIME) or "").strip().startswith("-"):
        return []
    findings = []
    for base in _cpu_hierarchies(root):
        for directory, names, files in os.walk(base):
            names.sort()
            if _RT_FILE not in files:
                continue
            value = _read_number(os.path.join(directory, _RT_FILE))
            if value != "0":
                continue
            names.clear()  # a child cannot have more than its parent
            group = directory[len(base) :] or "/"
            findings.append(
                {
                    "verdict": "warn",
                    "reason": "rt_group_zero",
                    "group": group,
                    "value": value,
                    "file": inside(root, os.path.join(directory, _RT_FILE)),
                    "text": f"cgroup {group} has cpu.rt_runtime_us=0: SCHED_FIFO fails with EPERM in it",
                }
            )
    return findings


def _cpu_hierarchies(root: str) -> list[str]:
    """The real paths at which cpu controllers (v1) are mounted: `cpu`, `cpu,cpuacct`, `cpuacct,cpu`, or alone."""
    names = [name for name in list_dir(root, _CGROUPS) or [] if "cpu" in name.split(",")]
    found = [resolve(root, f"{_CGROUPS}/{name}") for name in names]
    if exists(root, f"{_CGROUPS}/{_RT_FILE}"):
        found.append(resolve(root, _CGROUPS))
    return list(dict.fromkeys(found))


def _read_number(path: str) -> str | None:
    try:
        with open(path, encoding="ascii", errors="replace") as handle:
            return handle.read().strip()
    except OSError:
        return None
