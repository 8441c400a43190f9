# SPDX-License-Identifier: Apache-2.0
"""What /etc/default/grub and /etc/default/grub.d/*.cfg say, as grub-mkconfig would read them.

Order: /etc/default/grub, then the drop-ins in the byte order of their names (dash sorts its globs with
strcmp). On Debian the drop-ins are read, on the RHEL family they are not.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ._boot_shell_eval import Evaluator
from ._boot_types import BootError, LineToken, Problem, Setting, Source, Step, Value
from ._cmdline import split
from ._files import exists, list_dir

DEFAULT = "/etc/default/grub"
DROPINS = "/etc/default/grub.d"
LINUX = "GRUB_CMDLINE_LINUX"
LINUX_DEFAULT = "GRUB_CMDLINE_LINUX_DEFAULT"
LINUX_RECOVERY = "GRUB_CMDLINE_LINUX_RECOVERY"
NORMAL = (LINUX, LINUX_DEFAULT)
SHOWN = (
    LINUX,
    LINUX_DEFAULT,
    LINUX_RECOVERY,
    "GRUB_DEFAULT",
    "GRUB_SAVEDEFAULT",
    "GRUB_ENABLE_BLSCFG",
    "GRUB_DISABLE_RECOVERY",
    "GRUB_DISABLE_SUBMENU",
    "GRUB_DISTRIBUTOR",
)
# grub-mkconfig sets it before it reads the files
_PRESET = {"GRUB_DISABLE_OS_PROBER": "true"}


@dataclass
class GrubDefault:
    """The evaluated files: `files` in the order read, every assignment in `steps`, the first refusal."""

    files: list[str] = field(default_factory=list)
    variables: dict[str, Value] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    error: BootError | None = None

    def value(self, name: str) -> Value:
        """The value of NAME, empty when unset. Raises BootError when it cannot be told."""
        if self.error:
            raise self.error
        value = self.variables.get(name, Value())
        problem = _problem(name, value)
        if problem:
            raise BootError(problem.reason, problem.text, problem.file, problem.line)
        return value

    def text(self, name: str) -> str:
        """The text of NAME, empty when unset. Raises BootError when it cannot be told."""
        return self.value(name).text

    def flag(self, name: str) -> bool | None:
        """NAME as true or false, the way grub-mkconfig's scripts compare it; None when it cannot be told."""
        try:
            return self.text(name) == "true"
        except BootError:
            return None

    def tokens(self, name: str, ours: str | None = None) -> list[LineToken]:
        """The kernel tokens of NAME with where each is written; those written in the file OURS are ours."""
        return line_tokens(self.value(name), ours)

    def setting(self, name: str, ours: str | None = None) -> Setting:
        """NAME for a report; its value is None where it is unset or cannot be told."""
        value = self.variables.get(name)
        problem = self.error.problem if self.error else _problem(name, value) if value else None
        if value is None or problem:
            return Setting(name, None, problem=problem, sources=value.sources if value else ())
        return Setting(name, value.text, tuple(line_tokens(value, ours)), _sources(value))


def read_default(root: str = "/", dropins: bool = True, overlay: dict[str, str] | None = None) -> GrubDefault:
    """Evaluate the files of the sysroot ROOT; a refusal is kept in the result, other OSErrors propagate.

    OVERLAY gives files other contents than they have (an empty text stands for no file), to see what a change
    would mean.
    """
    overlay = overlay or {}
    names = set(list_dir(root, DROPINS) or []) if dropins else set()
    for path in overlay:
        if path.startswith(DROPINS + "/"):
            (names.add if overlay[path] else names.discard)(path[len(DROPINS) + 1 :])
    # the glob skips hidden names
    wanted = sorted((n for n in names if n.endswith(".cfg") and not n.startswith(".")), key=_bytes)
    paths = [DEFAULT] + [f"{DROPINS}/{name}" for name in wanted]
    evaluator = Evaluator(root, _PRESET, overlay)
    result = GrubDefault()
    for path in paths:
        if path not in overlay and not exists(root, path):
            continue
        result.files.append(path)
        try:
            if evaluator.source(path) is False:
                # `. file` then returns false, and grub-mkconfig runs under `set -e`
                raise BootError("command_fails", "the last command fails, which ends grub-mkconfig", path)
        except BootError as exc:
            result.error = exc
            break
        except PermissionError as exc:
            result.error = BootError("permission_denied", str(exc.strerror), path)
            break
    result.variables, result.steps = evaluator.variables, evaluator.steps
    return result


def line_tokens(value: Value, ours: str | None = None) -> list[LineToken]:
    """Split VALUE into kernel tokens, each with the place its first traced character is written at."""
    found, at = [], 0
    for token in split(value.text):
        at = value.text.index(token.text, at)
        span = value.chars[at : at + len(token.text)]
        origin = next((origin for _char, origin in span if origin), None)
        source = Source(origin.file, origin.line) if origin else None
        found.append(LineToken(token.text, source, bool(origin and origin.file == ours)))
        at += len(token.text)
    return found


def overridden_by(grub: GrubDefault, wanted: list[str]) -> Step | None:
    """The assignment that took WANTED, or a part of it, off the normal line after all of it was there."""
    current = dict.fromkeys(NORMAL, "")
    had, culprit = False, None
    for step in grub.steps:
        if step.name not in current:
            continue
        current[step.name] = step.value.text
        has = holds(split_texts(" ".join(current[name] for name in NORMAL)), wanted)
        if had and not has:
            culprit = step
        had = has
    return None if had else culprit


def split_texts(line: str) -> list[str]:
    """The texts of the tokens of LINE that the kernel reads (not those behind a bare `--`)."""
    return [token.text for token in split(line) if not token.after_dashes]


def holds(tokens: list[str], wanted: list[str]) -> bool:
    """Whether WANTED is an ordered part of TOKENS."""
    rest = iter(tokens)
    return all(token in rest for token in wanted)


def _problem(name: str, value: Value) -> Problem | None:
    source = value.sources[-1] if value.sources else None
    place = (source.file, source.line) if source else (None, None)
    if value.opaque:
        text = f"{name} depends on what is not evaluated: {value.opaque.text}"
        return Problem(value.opaque.reason, text, value.opaque.file, value.opaque.line)
    bad = next((char for char in value.text if char in "\n\r\0"), None)
    if bad is not None and name in (*NORMAL, LINUX_RECOVERY):
        what = {"\n": "newline", "\r": "carriage return"}.get(bad, "control character")
        return Problem("newline_in_value", f"{name} holds a {what}, which breaks the generated entry", *place)
    return None


def _sources(value: Value) -> tuple[Source, ...]:
    """The places that contributed text, then the assignment that decided."""
    places = [Source(origin.file, origin.line) for _char, origin in value.chars if origin]
    first = [source for source in value.sources if source in set(places)]
    return tuple(dict.fromkeys([*first, *places, *value.sources[-1:]]))


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
