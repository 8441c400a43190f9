# SPDX-License-Identifier: Apache-2.0
"""The runtime on a host: its versions below /opt/firsttouch, its user, its files; what would change, and doing it.

A version is a virtual environment that is made here of wheels, which are zip files: no pip, no ensurepip (Debian
splits it off), no compiler. It is unpacked beside, tried, and renamed; then the link `current` is replaced at once.
`previous` is what was current before. A version that is there is never written to again; one that was damaged is
made again beside, and takes its place.
"""

from __future__ import annotations

import base64
import configparser
import contextlib
import errno
import grp
import hashlib
import json
import os
import platform
import pwd
import re
import shutil
import stat
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ._files import atomic_write, fsync_dir, list_dir, make_dirs, read_text, remove, resolve
from ._systemd import MARKER

TOP = "/opt/firsttouch"
ETC = "/etc/firsttouch"
RUN = "/run/firsttouch"
TMPFILES = "/etc/tmpfiles.d/firsttouch.conf"
TMPFILES_TEXT = f"{MARKER}\nd {RUN} 0755 firsttouch firsttouch -\n"
MANIFEST = "firsttouch-version.json"
# "LEFT CURRENT", written by a rollback: it is done while CURRENT is the current version.
ROLLED_BACK = f"{TOP}/rolled_back"
ACCOUNT = "firsttouch"
# Tells our user from one that was there before.
COMMENT = "First Touch runtime"
# nogroup of Debian, nobody of others.
_NOBODY = "65534"
FOLDERS = ("models", "servers", "samplers")
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+_]*-[0-9a-f]{12}")
# What a run that was killed leaves.
_LEFT_OVER = re.compile(rf"\.({_VERSION.pattern}|current|previous)\.(new|gone)")
_OURS = re.compile(rf"{_VERSION.pattern}|current|previous|{os.path.basename(ROLLED_BACK)}|{_LEFT_OVER.pattern}")
_FILE = re.compile(rf"({'|'.join(FOLDERS)})/[A-Za-z0-9_-][A-Za-z0-9_.-]*\.(json|env)")
_TRIAL = "import firsttouch.cli, firsttouch.client, firsttouch.server, firsttouch.weights"
_BROKEN = (zipfile.BadZipFile, zlib.error, configparser.Error, UnicodeDecodeError, EOFError, RuntimeError)
Run = Callable[[Sequence[str]], "tuple[int, str, str]"]


class InstallError(ValueError):
    """The runtime cannot be brought to its state; `reason` is a code."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True)
class Wanted:
    """What is asked for. state: present, rollback or absent; files: texts by path below /etc/firsttouch.

    drop_group: whether the group goes with the user.
    """

    state: str
    identity: str = ""
    wheels: tuple[tuple[str, str], ...] = ()
    wheels_at: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    drop_group: bool = False


@dataclass
class Plan:
    """All steps of one call: links after, versions to make and to remove, texts by path (None: remove)."""

    root: str
    install: str | None = None
    # Whether what is installed is there already, damaged.
    again: bool = False
    links: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)
    drop: list[str] = field(default_factory=list)
    left_over: list[str] = field(default_factory=list)
    texts: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)
    make_user: bool = False
    drop_user: bool = False
    drop_group: bool = False
    make_run: bool = False

    @property
    def changes(self) -> list[dict[str, Any]]:
        """The change set as `{resource, before, after}`, sorted."""
        rows: list[dict[str, Any]] = []
        if self.install:
            before = "damaged" if self.again else None
            rows.append({"resource": f"runtime:{TOP}/{self.install}", "before": before, "after": "installed"})
        rows += [
            {"resource": f"runtime:{TOP}/{name}", "before": "installed", "after": None} for name in self.drop
        ]
        rows += [
            {"resource": f"runtime:{TOP}/{name}", "before": "left over", "after": None}
            for name in self.left_over
        ]
        for name, (before, after) in self.links.items():
            rows.append({"resource": f"file:{TOP}/{name}", "before": _arrow(before), "after": _arrow(after)})
        for path, (old, new) in self.texts.items():
            rows.append({"resource": f"file:{path}", "before": old, "after": new})
        if self.make_run:
            rows.append({"resource": f"file:{RUN}", "before": None, "after": "directory"})
        if self.make_user or self.drop_user:
            words = (None, "present") if self.make_user else ("present", None)
            rows.append({"resource": f"user:{ACCOUNT}", "before": words[0], "after": words[1]})
        if self.drop_group:
            rows.append({"resource": f"group:{ACCOUNT}", "before": "present", "after": None})
        return sorted(
            (row for row in rows if row["before"] != row["after"]), key=lambda row: str(row["resource"])
        )

    @property
    def switched(self) -> bool:
        """Whether another version becomes the current one."""
        before, after = self.links.get("current", (None, None))
        return before != after

    def restart(self, files: Mapping[str, str]) -> list[str]:
        """Units that run on something that changes: the servers on another version (or the same, made again because it
        was damaged), each on its file of FILES.

        Also on what has changed since they were started, by a run that did not get as far as to restart them. Models
        stay when the version changes: their images do.
        """
        units = []
        for name in sorted(files):
            kind = {"models/": "weights", "servers/": "server"}.get(name[: name.find("/") + 1])
            other = self.switched or (self.again and self.install == self.links.get("current", ("", ""))[1])
            changes = f"{ETC}/{name}" in self.texts or (kind == "server" and other)
            unit = f"firsttouch-{kind}@{os.path.basename(name).rpartition('.')[0]}.service"
            reads = [f"{ETC}/{name}", *([f"{TOP}/current"] if kind == "server" else [])]
            if kind and (changes or changed_since(self.root, unit, reads)):
                units.append(unit)
        return units


def changed_since(root: str, unit: str, paths: Sequence[str]) -> bool:
    """Whether UNIT was started before one of PATHS was written, by the mark that systemd keeps of each start.

    What is of the future tells nothing: the clock was set back.
    """
    start = _written(root, f"/run/systemd/units/invocation:{unit}")
    return start is not None and any(start < (_written(root, path) or 0) <= time.time() for path in paths)


def _written(root: str, path: str) -> float | None:
    folder, name = os.path.split(path)
    try:
        return os.lstat(os.path.join(resolve(root, folder), name)).st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return None


def _arrow(target: str | None) -> str | None:
    return None if target is None else f"-> {target}"


def query(root: str = "/") -> dict[str, Any]:
    """What the controller needs to choose wheels, and the versions that are there."""
    libc, version = platform.libc_ver()
    match = re.match(r"(\d+)\.(\d+)", version) if libc == "glibc" else None
    return {
        "python": list(sys.version_info[:3]),
        "machine": platform.machine(),
        "glibc": [int(match[1]), int(match[2])] if match else None,
        # A damaged one is not there for who decides whether wheels are needed.
        "installed": [name for name in versions(root) if not damage(root, name, 1)],
        "current": link(root, "current"),
        "previous": link(root, "previous"),
    }


def versions(root: str) -> list[str]:
    """The versions below /opt/firsttouch that were completed."""
    names = list_dir(root, TOP) or []
    return [
        name
        for name in names
        if _VERSION.fullmatch(name) and read_text(root, f"{TOP}/{name}/{MANIFEST}") is not None
    ]


def is_ours(name: str) -> bool:
    """Whether NAME of /opt/firsttouch is ours: an `absent` removes that, and leaves what others put there."""
    return _OURS.fullmatch(name) is not None


def rolled_back(root: str) -> tuple[str, str] | None:
    """(version left, version reached) of the last rollback that no `present` has ended; None without one."""
    left, _blank, reached = (read_text(root, ROLLED_BACK) or "").strip().partition(" ")
    return (left, reached) if reached else None


def link(root: str, name: str) -> str | None:
    """Where the link NAME (current, previous) leads; None without one. Raises InstallError for another thing there."""
    path = os.path.join(resolve(root, TOP), name)
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return None
    except OSError:
        raise InstallError(
            "foreign_file", f"{TOP}/{name} is no symbolic link of ours; move it away first"
        ) from None


def make_plan(root: str, wanted: Wanted, users: Mapping[str, str] | None = None) -> Plan:
    """Plan WANTED below ROOT; reads only. USERS: comments by name, those of the host when None.

    Raises InstallError (`foreign_file`, `no_previous`, `bad_file`), OSError.
    """
    plan = Plan(root)
    known = versions(root)
    current, previous = link(root, "current"), link(root, "previous")
    after: tuple[str | None, str | None] = (None, None)
    mark = None
    if wanted.state == "present":
        others = (name for name in (current, previous) if name in known and name != wanted.identity)
        after = (wanted.identity, next(others, None))
        plan.again = wanted.identity in known and bool(damage(root, wanted.identity, 1))
        plan.install = wanted.identity if plan.again or wanted.identity not in known else None
    elif wanted.state == "rollback":
        after, mark = _roll_back(root, current, previous, known)
    plan.links = {"current": (current, after[0]), "previous": (previous, after[1])}
    plan.drop = [name for name in known if name not in after]
    plan.left_over = [
        name
        for name in list_dir(root, TOP) or []
        if _LEFT_OVER.fullmatch(name) or (_VERSION.fullmatch(name) and name not in (*known, plan.install))
    ]
    _plan_files(plan, wanted, mark)
    there = _comments() if users is None else users
    if wanted.state == "absent":
        plan.drop_user = there.get(ACCOUNT) == COMMENT
        plan.drop_group = wanted.drop_group and plan.drop_user and _alone_in_group()
    else:
        plan.make_user = ACCOUNT not in there
        plan.make_run = not os.path.isdir(resolve(root, RUN))
    return plan


def _roll_back(
    root: str, current: str | None, previous: str | None, known: Sequence[str]
) -> tuple[tuple[str | None, str | None], str]:
    """((current, previous) after a rollback, the text of its mark). Raises InstallError `no_previous`, OSError.

    The mark, and not the version that the controller would install, tells whether it is done: controllers differ.
    """
    if current is None:
        text = f"firsttouch_runtime_state: rollback has nothing to go back from: {TOP} holds no version"
        raise InstallError("no_previous", text)
    left, reached = rolled_back(root) or (None, None)
    done = reached == current
    target = current if done else previous
    if target is None:
        text = f"firsttouch_runtime_state: rollback has nothing to go to: {TOP} has none before {current}"
        raise InstallError("no_previous", text)
    if target not in known:
        text = f"firsttouch_runtime_state: rollback leads to {target}, which is not complete in {TOP}"
        raise InstallError("no_previous", f"{text}; set present")
    left = left if done else current
    return (target, left if left in known else None), f"{left} {target}\n"


def _alone_in_group() -> bool:
    """Whether the group is there, and nobody but our user in it."""
    try:
        group = grp.getgrnam(ACCOUNT)
    except KeyError:
        return False
    people = {row.pw_name for row in pwd.getpwall() if row.pw_gid == group.gr_gid}
    return not {*group.gr_mem, *people} - {ACCOUNT}


def _plan_files(plan: Plan, wanted: Wanted, mark: str | None) -> None:
    """Files of ours: those asked for, and all others in their folders, which hold nothing else. MARK: of a rollback."""
    for name in wanted.files:
        if not _FILE.fullmatch(name):
            raise InstallError("bad_file", f"{name!r} is no file of {', '.join(FOLDERS)} below {ETC}")
    texts: dict[str, str | None] = {f"{ETC}/{name}": text for name, text in wanted.files.items()}
    texts[TMPFILES] = None if wanted.state == "absent" else TMPFILES_TEXT
    texts[ROLLED_BACK] = mark
    for folder in FOLDERS:
        for name in list_dir(plan.root, f"{ETC}/{folder}") or []:
            texts.setdefault(f"{ETC}/{folder}/{name}", None)
    for path, text in sorted(texts.items()):
        old = read_text(plan.root, path)
        if old != text:
            plan.texts[path] = (old, text)


def _comments() -> dict[str, str]:
    return {row.pw_name: row.pw_gecos.partition(",")[0] for row in pwd.getpwall()}


def apply_plan(plan: Plan, wanted: Wanted, run: Run) -> None:
    """Carry PLAN out. A version that does not start leaves everything as it was. Raises InstallError, OSError."""
    if plan.install:
        _install(plan.root, plan.install, wanted, run)
    if plan.make_user:
        nologin = next((p for p in ("/usr/sbin/nologin", "/sbin/nologin") if os.path.exists(p)), "/bin/false")
        words = ["useradd", "--system", "--gid", ACCOUNT, "--no-create-home", "--home-dir", "/nonexistent"]
        _call(run, [*words, "--shell", nologin, "--comment", COMMENT, ACCOUNT])
    # The mark is there before a rollback, and goes after another version has come: it is right whenever this is killed.
    texts = {path: text for path, (_old, text) in plan.texts.items()}
    late = [ROLLED_BACK] if texts.get(ROLLED_BACK, "") is None else []
    for path, text in texts.items():
        if path not in late:
            _put(plan.root, path, text)
    for name, (before, after) in plan.links.items():
        if before != after:
            _set_link(plan.root, name, after)
    for path in late:
        _put(plan.root, path, None)
    if plan.make_run:
        _make_run(plan.root)
    for name in (*plan.drop, *plan.left_over):
        _drop(resolve(plan.root, TOP), name)
    if wanted.state == "absent":
        _remove_rest(plan, run)


def _put(root: str, path: str, text: str | None) -> None:
    real = resolve(root, path)
    if text is None:
        remove(real)
    else:
        atomic_write(real, text, 0o644)


def _drop(top: str, name: str) -> None:
    """Remove NAME of the directory TOP; a version loses its name first, so that no half of one keeps it."""
    path = os.path.join(top, name)
    if os.path.islink(path) or os.path.isfile(path):
        os.unlink(path)
        return
    if not name.startswith("."):
        gone = os.path.join(top, f".{name}.gone")
        shutil.rmtree(gone, ignore_errors=True)
        os.rename(path, gone)
        path = gone
    with contextlib.suppress(FileNotFoundError):  # went with the version of its name
        shutil.rmtree(path)


def _remove_rest(plan: Plan, run: Run) -> None:
    """What only we made, where nothing of others is in it."""
    run_folder = resolve(plan.root, RUN)
    if plan.drop_user and os.path.isdir(run_folder):
        shutil.rmtree(run_folder)
    for path in (*(f"{ETC}/{folder}" for folder in FOLDERS), TOP):
        with contextlib.suppress(OSError):
            os.rmdir(resolve(plan.root, path))
    if plan.drop_user:
        if not plan.drop_group:  # userdel takes the group along that has the user's name and is his first one
            _call(run, ["usermod", "--gid", _NOBODY, ACCOUNT])
        _call(run, ["userdel", ACCOUNT])
    if plan.drop_group:
        with contextlib.suppress(KeyError):
            grp.getgrnam(ACCOUNT)
            _call(run, ["groupdel", ACCOUNT])


def _call(run: Run, words: Sequence[str]) -> None:
    code, out, err = run(words)
    if code != 0:
        raise InstallError("account_failed", f"{' '.join(words[:1])} {ACCOUNT}: {(err or out).strip()}")


def _set_link(root: str, name: str, target: str | None) -> None:
    """Replace a link below /opt/firsttouch at once, or remove it."""
    top = resolve(root, TOP)
    path = os.path.join(top, name)
    if target is None:
        remove(path)
        return
    scratch = os.path.join(top, f".{name}.new")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(scratch)
    os.symlink(target, scratch)
    os.rename(scratch, path)
    fsync_dir(top)


def _make_run(root: str) -> None:
    real = resolve(root, RUN)
    make_dirs(real, 0o755)
    if os.path.realpath(root) == "/":
        row = pwd.getpwnam(ACCOUNT)
        os.chown(real, row.pw_uid, row.pw_gid)


def _install(root: str, identity: str, wanted: Wanted, run: Run) -> None:
    """Make the version beside, try it, and give it its name."""
    top = resolve(root, TOP)
    make_dirs(top)
    scratch = os.path.join(top, f".{identity}.new")
    shutil.rmtree(scratch, ignore_errors=True)
    # Another user runs it, whatever the umask of who installs it is.
    umask = os.umask(0o022)
    try:
        make_version(scratch, f"{TOP}/{identity}", identity, wanted)
        # As root: the services cannot write the byte code that this leaves. Isolated: no module of the directory that
        # this is called from runs.
        code, out, err = run([os.path.join(scratch, "bin", "python"), "-I", "-c", _TRIAL])
        if code != 0:
            tail = (err or out).strip()[-400:]
            raise InstallError("does_not_start", f"{identity} cannot be imported on this host: {tail}")
        os.sync()
        _take_place(top, identity)
        fsync_dir(top)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    finally:
        os.umask(umask)


def _take_place(top: str, identity: str) -> None:
    """Give the version that was made beside its name. One that has it is damaged, or half of one: it is away for the
    time of two renames, and comes back when the second fails.
    """
    scratch, old, final = (
        os.path.join(top, name) for name in (f".{identity}.new", f".{identity}.gone", identity)
    )
    if not os.path.lexists(final):
        os.rename(scratch, final)
        return
    shutil.rmtree(old, ignore_errors=True)
    os.rename(final, old)
    try:
        os.rename(scratch, final)
    except BaseException:
        os.rename(old, final)
        raise
    shutil.rmtree(old, ignore_errors=True)


def make_version(folder: str, final: str, identity: str, wanted: Wanted) -> None:
    """Lay out the virtual environment FOLDER of the wheels, to be used at FINAL. Raises InstallError, OSError."""
    python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    short = f"{sys.version_info[0]}.{sys.version_info[1]}"
    site = os.path.join(folder, "lib", f"python{short}", "site-packages")
    for path in (os.path.join(folder, "bin"), site):
        os.makedirs(path, 0o755)
    os.symlink(python, os.path.join(folder, "bin", "python"))
    os.symlink("python", os.path.join(folder, "bin", "python3"))
    lines = [
        f"home = {os.path.dirname(python)}",
        "include-system-site-packages = false",
        f"version = {short}",
    ]
    _write(os.path.join(folder, "pyvenv.cfg"), ("\n".join(lines) + "\n").encode())
    records = {}
    for name, digest in wanted.wheels:
        path = os.path.join(wanted.wheels_at or "", name)
        with open(path, "rb") as handle:
            found = hashlib.sha256(handle.read()).hexdigest()
        if found != digest:
            raise InstallError("wheel_broken", f"{name} arrived with sha256 {found}, not {digest}; run again")
        try:
            records.update(_unpack(path, folder, site, final))
        except _BROKEN as exc:
            text = f"{name} cannot be unpacked, and is like that on the controller: {exc}; remove it from"
            text += " firsttouch_wheels_dir, or where that is not set from ~/.cache/firsttouch/wheels, and run again"
            raise InstallError("wheel_broken", text) from exc
    document = {
        "id": identity, "python": short, "wheels": [list(row) for row in wanted.wheels], "records": records,
        **_unlisted(folder),
    }  # fmt: skip
    _write(os.path.join(folder, MANIFEST), (json.dumps(document, indent=1, sort_keys=True) + "\n").encode())


def _unlisted(folder: str) -> dict[str, dict[str, str]]:
    """What no RECORD lists as it is here: digests of programs and of pyvenv.cfg, targets of links."""
    files, links = {}, {}
    for name in ("pyvenv.cfg", *(f"bin/{name}" for name in sorted(os.listdir(os.path.join(folder, "bin"))))):
        path = os.path.join(folder, name)
        if os.path.islink(path):
            links[name] = os.readlink(path)
        elif os.path.isfile(path):
            with open(path, "rb") as handle:
                files[name] = hashlib.sha256(handle.read()).hexdigest()
    return {"files": files, "links": links}


def _unpack(wheel: str, folder: str, site: str, final: str) -> dict[str, str]:
    """Unpack one wheel as its specification says; {RECORD file: its digest}."""
    records = {}
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            if entry.is_dir():
                continue
            target = _place(entry.filename, folder, site, wheel)
            data = archive.read(entry)
            if data.startswith(b"#!python") and f"{os.sep}bin{os.sep}" in target:
                data = f"#!{final}/bin/python".encode() + data[len(b"#!python") :]
            executable = (entry.external_attr >> 16) & 0o111 or f"{folder}/bin/" in target
            _write(target, data, 0o755 if executable else 0o644)
            if entry.filename.endswith(".dist-info/RECORD"):
                records[os.path.relpath(target, folder)] = hashlib.sha256(data).hexdigest()
            if entry.filename.endswith(".dist-info/entry_points.txt"):
                _scripts(data.decode(), folder, final)
    if not records:
        raise InstallError("wheel_broken", f"{os.path.basename(wheel)} has no RECORD: it is no wheel")
    return records


def _place(name: str, folder: str, site: str, wheel: str) -> str:
    """Where the entry NAME of a wheel goes."""
    parts = name.split("/")
    if name.startswith("/") or ".." in parts or "\\" in name:
        raise InstallError(
            "wheel_broken", f"{os.path.basename(wheel)} has the path {name!r}, which leads out of it"
        )
    if parts[0].endswith(".data") and len(parts) > 2:
        rest = os.path.join(*parts[2:])
        tops = {"purelib": site, "platlib": site, "scripts": os.path.join(folder, "bin"), "data": folder}
        return os.path.join(tops.get(parts[1], os.path.join(folder, "include")), rest)
    return os.path.join(site, *parts)


def _scripts(text: str, folder: str, final: str) -> None:
    """The programs of [console_scripts]."""
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    # Names keep their case; the documentation sets this method so, and typeshed takes no other function for it.
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    for name, target in parser.items("console_scripts") if parser.has_section("console_scripts") else ():
        module, _colon, function = target.partition("[")[0].strip().partition(":")
        body = (
            f"#!{final}/bin/python\nimport sys\n\nfrom {module} import {function.split('.')[0]}\n\n"
            f"sys.exit({function}())\n"
        )
        _write(os.path.join(folder, "bin", os.path.basename(name)), body.encode(), 0o755)


def _write(path: str, data: bytes, mode: int = 0o644) -> None:
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    with open(path, "wb") as handle:
        handle.write(data)
    os.chmod(path, mode)


def damage(root: str, version: str, most: int = 5) -> list[str]:
    """What of VERSION is not as it was installed: at most MOST lines; empty when all is. Raises OSError."""
    base = f"{TOP}/{version}"
    text = read_text(root, f"{base}/{MANIFEST}")
    if text is None:
        return [f"{base}/{MANIFEST} is missing"]
    try:
        return _damage(root, base, json.loads(text))[:most]
    except (AttributeError, KeyError, TypeError, ValueError):
        # Neither it nor a RECORD that it vouches for is like this when it was written.
        return [f"{base}/{MANIFEST} was changed"]


def _damage(root: str, base: str, manifest: Any) -> list[str]:
    found: list[str] = []
    for name, target in sorted((manifest.get("links") or {}).items()):
        is_ = _target(root, f"{base}/{name}")
        if is_ != target:
            found.append(f"{base}/{name} {'is missing' if is_ is None else 'was changed'}")
    for name, digest in sorted((manifest.get("files") or {}).items()):
        data = _content(root, f"{base}/{name}")
        if data is None or hashlib.sha256(data).hexdigest() != digest:
            found.append(f"{base}/{name} {'is missing' if data is None else 'was changed'}")
    for record, digest in sorted(manifest["records"].items()):
        data = _content(root, f"{base}/{record}")
        if data is None or hashlib.sha256(data).hexdigest() != digest:
            found.append(f"{base}/{record} {'is missing' if data is None else 'was changed'}")
            continue
        site = os.path.dirname(os.path.dirname(record))
        found += _damaged_files(root, base, site, data.decode())
    return found


def _target(root: str, path: str) -> str | None:
    """Where the link PATH leads, an empty text for what is no link; None when it is not there."""
    folder, name = os.path.split(path)
    try:
        return os.readlink(os.path.join(resolve(root, folder), name))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        if exc.errno != errno.EINVAL:
            raise
        return ""


def _damaged_files(root: str, base: str, site: str, record: str) -> list[str]:
    found = []
    for line in record.splitlines():
        name, digest, _size = line.rsplit(",", 2)
        name = name.strip('"')
        if not digest.startswith("sha256=") or ".data/" in name:
            continue
        path = os.path.normpath(f"{base}/{site}/{name}")
        data = _content(root, path)
        if data is None:
            found.append(f"{path} is missing")
        elif (
            base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            != digest[len("sha256=") :]
        ):
            found.append(f"{path} was changed")
    return found


def _content(root: str, path: str) -> bytes | None:
    real = resolve(root, path)
    try:
        if not stat.S_ISREG(os.lstat(real).st_mode):
            return None
        with open(real, "rb") as handle:
            return handle.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
