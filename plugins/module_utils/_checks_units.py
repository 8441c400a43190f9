# SPDX-License-Identifier: Apache-2.0
"""Our systemd units by their files: installed as planned, enabled, and active."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from . import _files
from ._checks_host import HUGEPAGES, MODELS, MOUNTS, REMEDIES, SERVERS, Check, Context, Unreadable
from ._checks_mounts import read_mounts
from ._systemd import UNIT_DIR, install_links, with_marker
from ._verdict import Result, judge, skipped

_RUN = "/run/systemd/units"
_SETTING = re.compile(r"(?m)^[ \t]*([A-Za-z]+)[ \t]*=[ \t]*(.*?)[ \t]*$")
# What a second line adds to; an empty one takes all before it away.
_ADDED = frozenset(
    (
        *("After", "Before", "Wants", "Requires", "BindsTo", "WantedBy", "SupplementaryGroups", "Environment"),
        *("ReadWritePaths", "ReadOnlyPaths", "Description"),
        *("EnvironmentFile", "OnFailure", "Conflicts", "Documentation"),
    )
)
# What is below a path of the other may not be as that says: the one that is closer to a file decides, and of two for
# one path ReadOnlyPaths= does.
_AGAINST = {"ReadOnlyPaths": "ReadWritePaths", "ReadWritePaths": "ReadOnlyPaths"}
# What `systemd-analyze syscall-filter` has outside of @system-service: denied it takes nothing away from our units.
_NOT_GRANTED = frozenset(
    (
        *("@clock", "@cpu-emulation", "@debug", "@module", "@mount", "@obsolete", "@pkey", "@raw-io", "@reboot"),
        *("@swap", "bpf", "chroot", "delete_module", "finit_module", "init_module", "kexec_file_load", "kexec_load"),
        *("mount", "perf_event_open", "pivot_root", "ptrace", "reboot", "swapoff", "swapon", "umount", "umount2"),
    )
)
# Values with several spellings (systemd.syntax(7), systemd.time(7)).
_SWITCH = {"yes": ("1", "yes", "y", "true", "t", "on"), "no": ("0", "no", "n", "false", "f", "off")}
_SPAN = re.compile(r"([0-9]+(?:\.[0-9]+)?)[ \t]*([A-Za-zµμ]*)")
_MICROSECONDS = {
    unit: microseconds
    for units, microseconds in (
        ("us usec µs μs", 1),
        ("ms msec", 1000),
        ("s sec second seconds", 10**6),
        ("m min minute minutes", 60 * 10**6),
        ("h hr hour hours", 3600 * 10**6),
        ("d day days", 86400 * 10**6),
        ("w week weeks", 604800 * 10**6),
    )
    for unit in units.split()
}
_MICROSECONDS[""] = _MICROSECONDS["s"]
_ADDED_KINDS = ("Exec", "Condition", "Assert")
# Where `systemctl set-property` and `edit --runtime` write: a unit here is read before ours (systemd.unit(5)).
_CONTROL = ("/etc/systemd/system.control", "/run/systemd/system.control")
_OWN_FOLDERS = (*_CONTROL, "/etc/systemd/system", "/run/systemd/system")
_VENDOR_FOLDERS = ("/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")


def _planned(ctx: Context) -> dict[str, str]:
    return _units_of(ctx.plan)


def _units_of(plan: Mapping[str, Any]) -> dict[str, str]:
    units: dict[str, str] = {}
    for section in (plan.get("sections") or {}).values():
        if isinstance(section, Mapping) and section.get("state") != "absent":
            units.update({str(name): str(text) for name, text in (section.get("units") or {}).items()})
    return units


def _remedy(name: str) -> str:
    variable = MOUNTS if name.endswith(".mount") else HUGEPAGES
    if name.startswith(("firsttouch-server@", "firsttouch-weights@", "firsttouch.slice")):
        variable = MODELS if "weights" in name else SERVERS
    return f"Run provision with {variable}; to see more: systemctl status '{name}'."


def check_units(ctx: Context) -> Iterator[Result]:
    """Content, enablement and state of every unit of the plan, read from files only."""
    for name, content in sorted(_planned(ctx).items()):
        path = f"{UNIT_DIR}/{name}"
        if ctx.unrecorded(UNIT_DIR):
            yield skipped(f"units.{name}.file", "configured", "not_recorded", source=path)
            continue
        raw = ctx.raw(path)
        text = None if raw is None else raw.strip()
        recorded = _units_of(ctx.recorded or {}).get(name)
        own = None if recorded is None else with_marker(recorded).strip()
        as_planned = text is not None and ctx.same(path, text, with_marker(content).strip(), own)
        if as_planned is None:
            yield skipped(f"units.{name}.file", "configured", "scrubbed", source=path, remedy=REMEDIES["scrubbed"])
            continue
        found = None if text is None else "as planned" if as_planned else "different"
        yield judge(
            f"units.{name}.file",
            "configured",
            "as planned",
            found,
            reason="not_configured" if text is None else "changed_by_hand",
            source=path,
            remedy=_remedy(name),
        )
        yield from _dropins(ctx, name, content)
        yield from _enabled(ctx, name, content)
        if not name.endswith(".slice"):  # systemd keeps no mark of those; what runs in it has its own
            yield _active(ctx, name)


def _dropins(ctx: Context, name: str, content: str) -> Iterator[Result]:
    """What is read after our file: what sets a setting of ours takes its place, anything else is only told."""
    found = dict(beside(ctx, name))
    taking = [place for path, text in found.items() if (place := _taken(path, text, name, content))]
    if found:
        yield judge(
            f"units.{name}.dropins",
            "configured",
            [],
            list(found),
            reason="overridden_by",
            source=[*taking, *found][0],
            remedy=f"Take it out there. {_remedy(name)}",
            soft=not taking,
        )


def _taken(path: str, text: str, name: str, content: str) -> str | None:
    """FILE or FILE:LINE of the first line of TEXT that changes what CONTENT, our unit NAME, sets."""
    if path.endswith(f"/{name}"):
        return path
    settings = _SETTING.findall(content)
    ours = dict(settings)
    variables = dict(pair for key, value in settings if key == "Environment" for pair in _assignments(value))
    for number, line in enumerate(text.splitlines(), 1):
        match = _SETTING.fullmatch(line)
        key, value = match.groups() if match else ("", "")
        if key not in ours and _AGAINST.get(key) not in ours:
            continue
        same_variable = key == "Environment" and any(
            variables.get(variable, other) != other for variable, other in _assignments(value)
        )
        # Only a oneshot may have two commands: systemd refuses any other unit that does, also when they are the same.
        second = key == "ExecStart" and ours.get("Type") != "oneshot"
        said = any(key == own and _means_the_same(key, planned, value) for own, planned in settings)
        if second or not (said or (_adds(key, value, ours) and not same_variable)):
            return f"{path}:{number}"
    return None


def _means_the_same(key: str, ours: str, value: str) -> bool:
    """Whether systemd takes VALUE of setting KEY as OURS."""
    if ours in _SWITCH:
        return value.lower() in _SWITCH[ours]
    span = _microseconds(value) if key.endswith("Sec") else None
    return ours == value or (span is not None and _microseconds(ours) == span)


def _microseconds(value: str) -> Fraction | None:
    """A span of time as systemd reads it, like `1min 30s`; None for what is none."""
    parts = _SPAN.findall(value)
    if not parts or _SPAN.sub("", value).strip() or any(unit not in _MICROSECONDS for _number, unit in parts):
        return None
    return sum((Fraction(number) * _MICROSECONDS[unit] for number, unit in parts), Fraction())


def _adds(key: str, value: str, settings: Mapping[str, str]) -> bool:
    """Whether VALUE of setting KEY takes nothing of our SETTINGS away."""
    ours = settings.get(key, "")
    denied = {word.partition(":")[0] for word in value[1:].split()} if value.startswith("~") else set()
    if key == "CapabilityBoundingSet":  # ours is empty; a `~` alone is all of them
        return bool(denied)
    if key == "SystemCallFilter":
        return bool(value) and denied <= _NOT_GRANTED
    if key == "RestrictAddressFamilies":
        return value not in ("", "none") and not denied & set(ours.split())
    if key == "RestartPreventExitStatus":  # with any other the unit stays down after what it is started again for
        return bool(value) and set(value.split()) <= set(ours.split())
    if key in _AGAINST:
        others = _folders(settings.get(_AGAINST[key], ""))
        within = any(f"{path}/".startswith(f"{other}/") for path in _folders(value) for other in others)
        return not within and (bool(value) or not ours)
    return bool(value) and (key in _ADDED or key.startswith(_ADDED_KINDS))


def _folders(value: str) -> list[str]:
    """The paths of VALUE without the signs before them and what is of no meaning in them."""
    return [os.path.normpath(word.strip("\"'").lstrip("-+")).rstrip("/") for word in value.split()]


def _assignments(value: str) -> list[tuple[str, str]]:
    """The (variable, value) pairs of VALUE, which one line of Environment= may have several of."""
    try:
        words = shlex.split(value)
    except ValueError:  # an open quote: systemd leaves that line out
        return []
    return [(name, text) for name, equals, text in (word.partition("=") for word in words) if equals]


def _names(prefix: str, instance: str, kind: str) -> Iterator[str]:
    """The units whose drop-ins PREFIX[@INSTANCE].KIND has too, first those that count first.

    The order is that of systemd's unit_file_find_dirs(): foo-bar@x, foo-bar@, foo-, foo-@x, foo-@.
    """
    yield f"{prefix}{instance}.{kind}"
    if len(instance) > 1:
        yield from _names(prefix, "@", kind)
    dash = prefix[:-1].rfind("-")
    if dash > 0:
        yield from _names(prefix[: dash + 1], "" if instance == "@" else instance, kind)


def beside(ctx: Context, name: str) -> Iterator[tuple[str, str]]:
    """(path, text) of each drop-in of unit NAME, and of a unit of that name that systemd reads instead of ours."""
    stem, _dot, kind = name.rpartition(".")
    prefix, at, instance = stem.partition("@")
    units = [*dict.fromkeys(_names(prefix, at + instance, kind))]
    folders = [(folder, units) for folder in (*_OWN_FOLDERS, *_VENDOR_FOLDERS)]
    # Those for all units of a kind come after all others; what a distribution ships there is no affair of ours.
    folders += [(folder, [kind]) for folder in _OWN_FOLDERS]
    seen: set[str] = set()
    for folder, names in folders:
        try:
            if folder in _CONTROL and names[0] == name and ctx.raw(f"{folder}/{name}"):
                yield f"{folder}/{name}", ""
            for unit in names:
                for entry in ctx.names(f"{folder}/{unit}.d") or []:
                    if entry.endswith(".conf") and entry not in seen:
                        seen.add(entry)  # one of the same name hides those after it, also when it is empty
                        text = ctx.raw(f"{folder}/{unit}.d/{entry}")
                        if text:
                            yield f"{folder}/{unit}.d/{entry}", text
        except Unreadable as exc:
            if exc.reason != "not_recorded":
                raise


def check_removed_units(ctx: Context) -> Iterator[Result]:
    """Units that were ours and are not asked for any more must be gone."""
    for name in ctx.left_over("units"):
        path = f"{UNIT_DIR}/{name}"
        yield judge(
            f"units.{name}.removed",
            "configured",
            None,
            path if ctx.text(path) is not None else None,
            reason="not_removed",
            source=path,
            remedy=_remedy(name),
        )


def _enabled(ctx: Context, name: str, content: str) -> Iterator[Result]:
    for link in sorted(install_links(name, content)):
        target = link_target(ctx, link)
        yield judge(
            f"units.{name}.enabled",
            "next_boot",
            link,
            None if target is None else f"{link} -> {target}" if target == "/dev/null" else link,
            reason="not_enabled" if target is None else "masked",
            source=link,
            remedy=_remedy(name),
        )
    mask = link_target(ctx, f"{UNIT_DIR}/{name}")
    if mask == "/dev/null":
        yield judge(
            f"units.{name}.masked",
            "next_boot",
            None,
            mask,
            reason="masked",
            source=f"{UNIT_DIR}/{name}",
            remedy=_remedy(name),
        )


def link_target(ctx: Context, path: str) -> str | None:
    """Where the symbolic link PATH points to; None when it is none. Raises Unreadable."""
    parent, name = os.path.split(path)
    try:
        return os.readlink(os.path.join(_files.resolve(ctx.root, parent), name))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        if isinstance(exc, PermissionError):
            raise Unreadable(path, exc) from exc
        return None


def _is_link(ctx: Context, path: str) -> bool:
    return link_target(ctx, path) is not None


def _active(ctx: Context, name: str) -> Result:
    """A mount is active when it is mounted; a service while systemd keeps its invocation mark."""
    identity = f"units.{name}.active"
    if name.endswith(".mount"):
        where = _where(_planned(ctx)[name])
        mounts = read_mounts(ctx)
        if mounts is None or where is None:
            return skipped(
                identity, "running", "not_available", expected="active", source="/proc/self/mountinfo"
            )
        active, source = any(mount.path == where for mount in mounts), where
    else:
        source = f"{_RUN}/invocation:{name}"
        try:
            there = ctx.names(_RUN) is not None
        except Unreadable as exc:  # of what the others are made is known all the same
            return skipped(identity, "running", exc.reason, expected="active", source=_RUN)
        if not there:
            return skipped(identity, "running", "not_available", expected="active", source=_RUN)
        active = _is_link(ctx, source)
    return judge(
        identity,
        "running",
        "active",
        "active" if active else "inactive",
        reason="inactive",
        source=source,
        remedy=_remedy(name),
    )


def _where(content: str) -> str | None:
    for line in content.splitlines():
        key, _equals, value = line.partition("=")
        if key.strip() == "Where":
            return value.strip().replace("%%", "%")
    return None


CHECKS = (
    Check("units", ("configured", "next_boot", "running"), check_units, lambda ctx: bool(_planned(ctx))),
    Check("units.removed", ("configured",), check_removed_units, lambda ctx: bool(ctx.left_over("units"))),
)
