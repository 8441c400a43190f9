# SPDX-License-Identifier: Apache-2.0
"""Which file and line decides a sysctl at boot, and what the running kernel says.

Files, their order and their syntax follow sysctl.d(5) and systemd-sysctl (src/sysctl/sysctl.c); the same
files as procps reads them for `sysctl --system` follow sysctl(8). Keys are kept in the slash form
(`net/ipv4/conf/eth0.100/forwarding`); people see the dot form.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ._files import inside, list_dir, read_text, resolve

DIRECTORIES = (
    "/etc/sysctl.d",
    "/run/sysctl.d",
    "/usr/local/lib/sysctl.d",
    "/usr/lib/sysctl.d",
    "/lib/sysctl.d",
)
SYSCTL_CONF = "/etc/sysctl.conf"
PROC_SYS = "/proc/sys"
# Writing one of a pair zeroes the other (mm/page-writeback.c, mm/util.c).
_PAIRS = (
    ("vm/dirty_ratio", "vm/dirty_bytes"),
    ("vm/dirty_background_ratio", "vm/dirty_background_bytes"),
    ("vm/overcommit_ratio", "vm/overcommit_kbytes"),
)
COUNTERPART = {**dict(_PAIRS), **{right: left for left, right in _PAIRS}}
_SPACE = " \t\n\r"
_SWAP = str.maketrans("/.", "./")
_EOL = re.compile("\r\n|\n\r|[\n\r\0]")  # what systemd's read_line() takes for the end of a line
_GLOB = re.compile(r"[*?\[]")
_C_INT = re.compile(r"([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")


class SysctlError(ValueError):
    """A key or value that must not be used; `reason` is a code, `key` the dotted key."""

    def __init__(self, reason: str, text: str, key: str = "") -> None:
        super().__init__(text)
        self.reason = reason
        self.key = key


@dataclass(frozen=True)
class Assignment:
    """One line of one file. `value` None: `-key` alone, which only takes the key out of globs."""

    key: str
    value: str | None
    file: str
    real: str
    line: int
    ignore_failure: bool = False

    @property
    def is_glob(self) -> bool:
        return _GLOB.search(self.key) is not None

    def as_dict(self) -> dict[str, Any]:
        return {"file": self.real, "line": self.line, "value": self.value}


@dataclass(frozen=True)
class Resolution:
    """All sysctl files of one tree, read.

    `order`: the files that apply, in order. `masked`: {hidden file: the file that hides it}. `lines`: all
    assignments as systemd reads them, `procps_lines`: as `sysctl --system` does. `unreadable`: files that
    could not be read, with the reason. `ignored`: lines that are no assignment, as (file, line, text).
    """

    root: str
    order: list[str]
    masked: dict[str, str]
    lines: list[Assignment]
    procps_lines: list[Assignment]
    masked_lines: list[Assignment]
    unreadable: dict[str, str]
    ignored: list[tuple[str, int, str]] = field(default_factory=list)

    def settings(self) -> list[Assignment]:
        """What systemd-sysctl writes, in the order it writes: one entry per key or glob.

        A key that is set again to the same value keeps its earlier place, to another value moves to the end.
        """
        kept: dict[str, Assignment] = {}
        for item in self.lines:
            old = kept.get(item.key)
            if old is not None and old.value != item.value:
                del kept[item.key]
            kept[item.key] = item
        return list(kept.values())

    def writes(self, key: str, procps: bool = False) -> list[Assignment]:
        """The lines that write KEY (slash form), in order; the last one is the value it ends with."""
        lines = self.procps_lines if procps else self.settings()
        explicit = [item for item in lines if item.key == key and not item.is_glob]
        if explicit:
            return [item for item in explicit if item.value is not None]
        return [
            item for item in lines if item.is_glob and item.value is not None and glob_matches(item.key, key)
        ]

    def definers(self, key: str) -> list[Assignment]:
        """Every line that names KEY or a glob that would set it, in reading order."""
        explicit = [item for item in self.lines if item.key == key]
        if explicit:
            return [item for item in explicit if item.value is not None]
        return [
            item
            for item in self.lines
            if item.is_glob and item.value is not None and glob_matches(item.key, key)
        ]

    def keys(self) -> list[str]:
        """All plain keys of the files in force and of masked ones, in reading order."""
        seen = dict.fromkeys(item.key for item in [*self.lines, *self.masked_lines] if not item.is_glob)
        return list(seen)


def normalize(key: str) -> str:
    """Return KEY in slash form: behind a first dot, dots and slashes change places (sysctl.d(5))."""
    first = re.search(r"[/.]", key)
    text = key.translate(_SWAP) if first and first[0] == "." else key
    return "/".join(part for part in text.split("/") if part not in ("", "."))


def dotted(key: str) -> str:
    """Return a slash-form key in dot form."""
    return key.translate(_SWAP)


def glob_matches(pattern: str, key: str) -> bool:
    """Whether glob(3) on /proc/sys/PATTERN gives KEY: a star stays within one path component."""
    want, have = pattern.split("/"), key.split("/")
    return len(want) == len(have) and all(
        fnmatch.fnmatchcase(part, glob) and (not part.startswith(".") or glob.startswith("."))
        for glob, part in zip(want, have)
    )


def parse_lines(text: str, file: str, real: str) -> tuple[list[Assignment], list[tuple[str, int, str]]]:
    """Parse one file: its assignments, and the lines that are none as (file, line, text)."""
    found, ignored = [], []
    for number, raw in enumerate(_EOL.split(text), 1):
        line = raw.strip(_SPACE)
        if not line or line[0] in "#;":
            continue
        name, equals, right = line.partition("=")
        minus = name.startswith("-")
        if not equals and not minus:
            ignored.append((real, number, line))
            continue
        key = normalize((name[1:] if minus else name).strip(_SPACE))
        if not key:
            ignored.append((real, number, line))
            continue
        value = right.strip(_SPACE) if equals else None
        found.append(Assignment(key, value, file, real, number, minus and bool(equals)))
    return found, ignored


def resolve_sysctls(root: str = "/", overlay: Mapping[str, str | None] | None = None) -> Resolution:
    """Read all sysctl files below ROOT. OVERLAY: {path: text, or None for absent} as if it were on disk."""
    layer = dict(overlay or {})
    result = Resolution(root, [], {}, [], [], [], {})
    winners, masked = _winners(root, layer, result)
    by_file: dict[str, list[Assignment]] = {}
    for path in winners:
        by_file[path] = _read(root, path, layer, result)
        if path in result.order:
            result.lines.extend(by_file[path])
    for hidden, by in masked:
        result.masked[hidden] = by
        result.masked_lines.extend(_read(root, hidden, layer, None))
    lines: list[Assignment] = []
    for path in _winners(root, layer, result, hidden_too=True)[0]:
        lines.extend(by_file[path] if path in by_file else _read(root, path, layer, None))
    lines.extend(_read(root, SYSCTL_CONF, layer, None))
    # procps drops `key =`, which systemd writes as an empty value
    result.procps_lines.extend(item for item in lines if item.value != "")
    return result


def _winners(
    root: str, layer: Mapping[str, str | None], into: Resolution, hidden_too: bool = False
) -> tuple[list[str], list[tuple[str, str]]]:
    """The file that counts for each name, by name in byte order, and (masked file, masking file) pairs."""
    chosen: dict[str, str] = {}
    masked: list[tuple[str, str]] = []
    seen: set[str] = set()
    for directory in DIRECTORIES:
        try:
            real = resolve(root, directory)
            there = [] if real in seen else list_dir(root, directory) or []
        except OSError as exc:
            if exc.errno != errno.ENODATA:
                raise
            into.unreadable[directory] = _why(exc)
            continue
        if real in seen:  # /lib is /usr/lib
            continue
        seen.add(real)
        added = [path for path in layer if os.path.dirname(path) == directory]
        gone = {os.path.basename(path) for path in added if layer[path] is None}
        names = set(there) | {os.path.basename(path) for path in added}
        for name in names - gone:
            if not name.endswith(".conf") or (name.startswith(".") and not hidden_too):
                continue
            path = f"{directory}/{name}"
            if name in chosen:
                masked.append((path, chosen[name]))
            else:
                chosen[name] = path
    ordered = sorted(chosen, key=os.fsencode)
    return [chosen[name] for name in ordered], sorted(masked)


def _read(root: str, path: str, layer: Mapping[str, str | None], into: Resolution | None) -> list[Assignment]:
    real = path
    try:
        if path in layer:
            text = layer[path]
        else:
            target = resolve(root, path)
            real = inside(root, target)
            text = read_text(root, path) if stat.S_ISREG(os.stat(target).st_mode) else None
    except FileNotFoundError:
        text = None
    except OSError as exc:
        if into is not None:
            into.unreadable[path] = _why(exc)
        return []
    if not text:  # an empty file and /dev/null apply nothing, they only mask
        return []
    found, ignored = parse_lines(text, path, real)
    if into is not None:
        into.order.append(path)
        into.ignored.extend(ignored)
    return found


def _why(exc: OSError) -> str:
    if exc.errno == errno.ENODATA:
        return "not_recorded"
    denied = exc.errno in (errno.EACCES, errno.EPERM)
    return "permission_denied" if denied else (exc.strerror or "error").lower()


@dataclass(frozen=True)
class Live:
    """The running value of a key. `state`: value, unknown_key, permission_denied, read_error, no_proc."""

    state: str
    value: str | None = None


def proc_path(root: str, key: str) -> str:
    """Return the real path below ROOT/proc/sys of KEY (any spelling). Raises SysctlError for a bad key."""
    return resolve(root, f"{PROC_SYS}/{check_key(key)}")


def has_proc(root: str) -> bool:
    """Whether ROOT has a /proc/sys at all (an offline tree has none)."""
    return bool(list_dir(root, PROC_SYS))


def read_live(root: str, key: str) -> Live:
    """Read KEY (any spelling) from ROOT/proc/sys; unreadable and absent are different answers."""
    try:
        text = read_text(root, f"{PROC_SYS}/{check_key(key)}")
    except IsADirectoryError:
        text = None
    except OSError as exc:
        return Live("permission_denied" if exc.errno in (errno.EACCES, errno.EPERM) else "read_error")
    if text is None:
        return Live("unknown_key" if has_proc(root) else "no_proc")
    return Live("value", clean(text))


def clean(value: str) -> str:
    """Return VALUE with its blanks collapsed, as values are shown and compared here."""
    return " ".join(value.split())


def canonical(value: str) -> str:
    """Return VALUE with every C integer in decimal: the kernel reads base 8, 10 and 16 (kernel/sysctl.c)."""
    return " ".join(_decimal(part) for part in value.split())


def _decimal(part: str) -> str:
    match = _C_INT.fullmatch(part)
    if not match:
        return part
    digits = match[2]
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits.startswith("0") and digits != "0" else 10
    number = int(digits, base)
    return str(-number if match[1] == "-" else number)


def same_value(wanted: str, got: str) -> bool:
    """Whether the kernel makes the same of both; a `# comment` behind a number is not read by it."""
    left, right = canonical(wanted).split(), canonical(got).split()
    if left == right:
        return True
    numbers = bool(left) and all(re.fullmatch(r"-?\d+", part) for part in left)
    rest = right[len(left) :]
    return numbers and right[: len(left)] == left and bool(rest) and rest[0].startswith(("#", ";"))


def check_key(key: str) -> str:
    """Return KEY in slash form. Raises SysctlError(`bad_key`) unless it names one file below /proc/sys."""
    slash = normalize(key)
    parts = slash.split("/")
    bad = any(ord(char) <= 32 or ord(char) == 127 for char in key) or _GLOB.search(key) or "=" in key
    if len(parts) < 2 or ".." in parts or bad or key[:1] in "-#;":
        raise SysctlError("bad_key", f"{key!r} is not the name of one sysctl", key)
    return slash


def check_values(values: Mapping[str, Any], optional: Iterable[str] = ()) -> dict[str, str]:
    """Return {slash key: text} of a request, in its order.

    Raises SysctlError with reason `bad_key`, `bad_value` (not text or a whole number, empty, a line break),
    `duplicate_key` (one key spelled twice).
    """
    result: dict[str, str] = {}
    for key, value in values.items():
        slash = check_key(key)
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise SysctlError(
                "bad_value", f"{key}: {value!r} is not a number or text; quote it or write 0 or 1", key
            )
        text = str(value)
        if any(char in text for char in "\n\r\0") or not text.strip(_SPACE):
            raise SysctlError(
                "bad_value", f"{key}: {text!r} cannot be written as one line of a sysctl file", key
            )
        if slash in result:
            raise SysctlError("duplicate_key", f"{dotted(slash)} is given twice, in two spellings", key)
        result[slash] = text.strip(_SPACE)
    for key in optional:
        check_key(key)
    return result
