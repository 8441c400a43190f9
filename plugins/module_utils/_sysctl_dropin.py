# SPDX-License-Identifier: Apache-2.0
"""One owned sysctl file: what writing it changes, on disk and in the kernel, all or nothing."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import _sysctl
from ._files import atomic_write, read_text, remove, resolve
from ._sysctl import COUNTERPART, canonical, clean, dotted, same_value
from ._sysctl_judge import POOL_KEYS, effect, write_pair

MARKER = "# Managed by firsttouch.host: changes are overwritten."


class DropinError(ValueError):
    """Why nothing was changed; `reason` is a code, `details` go into the result of the module."""

    def __init__(self, reason: str, text: str, **details: Any) -> None:
        super().__init__(text)
        self.reason = reason
        self.details = details


@dataclass(frozen=True)
class Write:
    """One value for one key (slash form), and what the key reads as afterwards."""

    key: str
    value: str


@dataclass
class Plan:
    """Everything that one call changes. `live` and `after`: {slash key: text} before and after it."""

    root: str
    path: str
    before_text: str | None
    after_text: str | None
    status: dict[str, str] = field(default_factory=dict)
    overridden: dict[str, str] = field(default_factory=dict)
    not_restored: list[str] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    live: dict[str, str] = field(default_factory=dict)
    after: dict[str, str] = field(default_factory=dict)

    @property
    def changes(self) -> list[dict[str, Any]]:
        """The exact change set, as `{resource, before, after}`."""
        rows: list[dict[str, Any]] = [
            {"resource": f"sysctl:{dotted(key)}", "before": self.live[key], "after": value}
            for key, value in self.after.items()
            if value != self.live[key]
        ]
        if self.before_text != self.after_text:
            row = {"resource": f"file:{self.path}", "before": self.before_text, "after": self.after_text}
            rows.append(row)
        return sorted(rows, key=lambda row: str(row["resource"]))


def render(values: Mapping[str, str]) -> str | None:
    """Return the text of the file for {slash key: value}, in that order; None (no file) for none."""
    if not values:
        return None
    return "".join([f"{MARKER}\n", *(f"{dotted(key)} = {value}\n" for key, value in values.items())])


def make_plan(
    root: str,
    path: str,
    values: Mapping[str, str],
    *,
    optional: Iterable[str] = (),
    restore: Mapping[str, str] | None = None,
    on_override: str = "fail",
) -> Plan:
    """Plan the file PATH below ROOT for VALUES ({slash key: text}; empty removes it); reads only.

    OPTIONAL and RESTORE are in slash form; RESTORE holds the values first found, for keys the file no longer
    names. Raises DropinError: `bad_path`, `symlink`, `foreign_file`, `nr_hugepages_in_sysctl`,
    `counterpart_conflict`, `unknown_key`, `permission_denied`, `read_only`, `overridden_by`.
    """
    before = _owned_text(root, path)
    _check_combination(values)
    applies = _sysctl.has_proc(root) and not (
        os.path.realpath(root) != "/" and os.path.ismount(resolve(root, "/proc"))
    )
    optional_keys = set(optional)
    missing = [key for key in values if applies and _live(root, key).state == "unknown_key"]
    needed = [key for key in missing if key not in optional_keys]
    if needed:
        names = [dotted(key) for key in needed]
        listed = ", ".join(names)
        text = f"this kernel has no {listed}; take it out of firsttouch_vm_sysctls, or name it as optional"
        raise DropinError("unknown_key", text, names=names)
    kept = {key: value for key, value in values.items() if key not in missing}
    plan = Plan(root, path, before, render(kept))
    plan.status = dict.fromkeys(missing, "unsupported")
    _find_overrides(plan, kept, on_override)
    old = {item.key: item.value or "" for item in _sysctl.parse_lines(before or "", path, path)[0]}
    if applies:
        _plan_live(plan, kept, old, restore or {})
    for key, value in kept.items():
        written = any(item.key == key for item in plan.writes)
        done = "applied" if applies else "persisted"
        same = not written and key in old and same_value(value, old[key])
        plan.status[key] = "overridden" if key in plan.overridden else "unchanged" if same else done
    plan.status = {key: plan.status[key] for key in values}
    return plan


def _owned_text(root: str, path: str) -> str | None:
    directory, name = os.path.split(path)
    if directory not in _sysctl.DIRECTORIES or not name.endswith(".conf") or name.startswith("."):
        text = f"{path}: systemd-sysctl reads only NAME.conf in {', '.join(_sysctl.DIRECTORIES)}"
        raise DropinError("bad_path", text, file=path)
    try:
        mode = os.lstat(_real(root, path)).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(mode):
        raise DropinError("symlink", f"{path} is a symbolic link; remove it or give another path", file=path)
    if not stat.S_ISREG(mode):
        raise DropinError("foreign_file", f"{path} is not a regular file", file=path)
    found = read_text(root, path) or ""
    if found.split("\n", 1)[0].rstrip() != MARKER:
        text = f"{path} was not written by this module; move it away or give another path"
        raise DropinError("foreign_file", text, file=path)
    return found


def _real(root: str, path: str) -> str:
    """The real path of the file itself, its directory resolved, the file not."""
    directory, name = os.path.split(path)
    return os.path.join(resolve(root, directory), name)


def _check_combination(values: Mapping[str, str]) -> None:
    for key in values:
        name = dotted(key)
        if key in POOL_KEYS:
            text = f"{name} fights the pages reserved at boot; use firsttouch_hugepages"
            raise DropinError("nr_hugepages_in_sysctl", text, names=[name])
        other = COUNTERPART.get(key)
        if other is not None and other in values:
            names = sorted([name, dotted(other)])
            text = f"{names[0]} and {names[1]} zero each other; give only one of them"
            raise DropinError("counterpart_conflict", text, names=names)


def _find_overrides(plan: Plan, kept: Mapping[str, str], on_override: str) -> None:
    resolution = _sysctl.resolve_sysctls(plan.root, {plan.path: plan.after_text})
    if kept and resolution.unreadable:
        path, why = min(resolution.unreadable.items())
        raise DropinError(
            "permission_denied", f"{path} cannot be read ({why}) and may override ours", file=path
        )
    texts = []
    for key, value in kept.items():
        for procps in (False, True):
            got = effect(resolution, key, procps)
            if got.value is not None and same_value(value, got.value):
                continue
            by = got.zeroed_by or got.by
            where = f"{by.real}:{by.line}" if by else resolution.masked.get(plan.path, "another file")
            plan.overridden[key] = by.real if by else where
            how = "under `sysctl --system`" if procps else "at boot"
            texts.append(f"{dotted(key)} = {value} would be {got.value} {how}, by {where}")
            break
    if texts and on_override == "fail":
        files = sorted(set(plan.overridden.values()))
        text = (
            f"{'; '.join(texts)}. Remove the setting there, or take the key out of the firsttouch_* variable"
        )
        keys = [dotted(key) for key in plan.overridden]
        raise DropinError("overridden_by", text, file=files[0], files=files, names=keys)


def _live(root: str, key: str) -> _sysctl.Live:
    return _sysctl.read_live(root, key)


def _plan_live(
    plan: Plan, kept: Mapping[str, str], old: Mapping[str, str], restore: Mapping[str, str]
) -> None:
    touched = [*_restorable(plan, kept, old, restore), *kept.items()]
    state: dict[str, str] = {}
    for key, _value in touched:
        for name in (key, COUNTERPART.get(key)):
            live = _live(plan.root, name) if name else _sysctl.Live("unknown_key")
            if name and live.state == "value":
                state[name] = canonical(live.value or "")
            elif name == key:
                text = f"/proc/sys/{key} cannot be read back ({live.state}), so it is not set"
                raise DropinError("permission_denied", text, names=[dotted(key)])
    plan.live, plan.after = dict(state), state
    for key, value in touched:
        if same_value(value, state[key]):
            continue
        _check_writable(plan.root, key)
        if not write_pair(state, key, clean(value)):
            raise DropinError(
                "rejected", f"{dotted(key)}: the kernel takes no 0; set its counterpart instead"
            )
        plan.writes.append(Write(key, value))
    for name in state.keys() - plan.live.keys():
        del state[name]  # the other of a pair, which this kernel lacks or does not show


def _restorable(
    plan: Plan, kept: Mapping[str, str], old: Mapping[str, str], restore: Mapping[str, str]
) -> list[tuple[str, str]]:
    """The values to put back for keys that the file no longer names.

    Of a pair only the side that was in use is written, which zeroes the other: a 0 alone would leave both at
    0, or the kernel refuses it.
    """
    result: dict[str, str] = {}
    for key in old:
        if key in kept or key in plan.status or COUNTERPART.get(key) in kept:
            continue
        found = {name: restore[name] for name in (key, COUNTERPART.get(key)) if name and name in restore}
        if key in COUNTERPART:
            found = {name: value for name, value in found.items() if canonical(value) != "0"}
        found = {name: value for name, value in found.items() if _live(plan.root, name).state == "value"}
        if not found:
            plan.not_restored.append(key)
        result.update(found)
    return list(result.items())


def _check_writable(root: str, key: str) -> None:
    path = _sysctl.proc_path(root, key)
    if os.access(path, os.W_OK):
        return
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        mount = _mount_of(path)
        text = f"{dotted(key)} cannot be set: {mount} is mounted read-only; nothing was changed"
        raise DropinError("read_only", text, mount=mount, names=[dotted(key)])
    text = f"{dotted(key)} cannot be set: no permission to write {path}, run this as root; nothing was changed"
    raise DropinError("permission_denied", text, names=[dotted(key)])


def _mount_of(path: str) -> str:
    here = os.path.realpath(path)
    while not os.path.ismount(here):
        here = os.path.dirname(here)
    return here


def apply_plan(plan: Plan) -> None:
    """Write the kernel values, read each back, then the file. Raises DropinError after undoing all of it."""
    done: list[str] = []
    try:
        for item in plan.writes:
            done.append(item.key)
            _write_live(plan.root, item)
        if plan.before_text != plan.after_text:
            _write_file(plan)
    except DropinError as exc:
        left = _undo(plan, done)
        if left:
            names = ", ".join(dotted(key) for key in left)
            exc.details["not_undone"] = left
            raise DropinError(exc.reason, f"{exc}; and {names} could not be put back", **exc.details) from exc
        raise


def _write_live(root: str, item: Write) -> None:
    name = dotted(item.key)
    try:
        _write_proc(_sysctl.proc_path(root, item.key), item.value)
    except OSError as exc:
        reasons = {
            errno.EROFS: "read_only",
            errno.EACCES: "permission_denied",
            errno.EPERM: "permission_denied",
        }
        text = f"{name}: the kernel refused {item.value!r} ({exc.strerror}); nothing was changed"
        details = {"mount": _mount_of(_sysctl.proc_path(root, item.key))} if exc.errno == errno.EROFS else {}
        raise DropinError(reasons.get(exc.errno or 0, "rejected"), text, names=[name], **details) from exc
    got = _live(root, item.key)
    if got.state != "value" or not same_value(item.value, got.value or ""):
        text = f"{name}: wrote {item.value!r}, the kernel has {got.value!r}; nothing was changed"
        raise DropinError("readback_differs", text, names=[name])


def _write_proc(path: str, value: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC)
    try:
        os.write(fd, value.encode("utf-8", "surrogateescape") + b"\n")
    finally:
        os.close(fd)


def _write_file(plan: Plan) -> None:
    path = _real(plan.root, plan.path)
    try:
        if plan.after_text is None:
            remove(path)
        else:
            atomic_write(path, plan.after_text, 0o644)
    except OSError as exc:
        reason = "read_only" if exc.errno == errno.EROFS else "write_error"
        done = "nothing was changed" if _file_put_back(plan, path) else "it could not be put back"
        text = f"{plan.path} cannot be written ({exc.strerror}); {done}"
        raise DropinError(reason, text, file=plan.path) from exc


def _file_put_back(plan: Plan, path: str) -> bool:
    """Whether the file is as it was; it is put back where it was replaced and making that durable failed."""
    with contextlib.suppress(OSError):
        if read_text(plan.root, plan.path) == plan.before_text:
            return True
        if plan.before_text is None:
            remove(path)
        else:
            atomic_write(path, plan.before_text, 0o644)
    with contextlib.suppress(OSError):
        return read_text(plan.root, plan.path) == plan.before_text
    return False


def _undo(plan: Plan, done: list[str]) -> list[str]:
    """Put the values first found back, the last write first; return the keys for which that failed."""
    left = []
    for key in reversed(done):
        other, name = COUNTERPART.get(key), key
        if other and plan.live[key] == "0" and plan.live.get(other, "0") != "0":
            name = other
        try:
            if _live(plan.root, name).value != plan.live[name]:
                _write_proc(_sysctl.proc_path(plan.root, name), plan.live[name])
        except OSError:
            left.append(name)
    return left
