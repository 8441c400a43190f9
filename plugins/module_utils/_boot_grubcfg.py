# SPDX-License-Identifier: Apache-2.0
"""The entries of a grub.cfg, and the one that boots when nobody touches the keyboard."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ._boot_script_eval import Interpreter, Loaded, Menu
from ._boot_type1 import RESCUE
from ._boot_types import BootError, Entry, LineToken, Problem, Source
from ._cmdline import split


@dataclass(frozen=True)
class GrubCfg:
    """entries: every Linux entry in menu order; `default` the one that boots, or `refusal` why it is unknown.

    notes: what is odd about the choice although GRUB makes one.
    """

    entries: tuple[Entry, ...]
    default: Entry | None
    refusal: BootError | None
    notes: tuple[Problem, ...]
    variables: dict[str, str]
    blscfg: bool


def read_grubcfg(
    root: str,
    prefix: str,
    text: str,
    environment: dict[str, str],
    platform: str | None,
    name: str = "grub.cfg",
) -> GrubCfg:
    """Follow TEXT as the file PREFIX/NAME of the sysroot ROOT. Raises BootError when it cannot be parsed.

    ENVIRONMENT is the environment block, PLATFORM GRUB's name of the firmware (`efi`, `pc`) or None.
    """
    path = f"{prefix}/{name}"
    interpreter = Interpreter(root, prefix, environment, platform)
    interpreter.run(path, text)
    pairs = list(_walk(interpreter.menu, ()))
    entries = [entry for entry, _where in pairs]
    default: Entry | None = None
    refusal: BootError | None = None
    notes: list[Problem] = []
    try:
        chosen, notes = _default(interpreter, path)
        found = next((entry for entry, menu in pairs if menu is chosen), None)
        why = None
        if found is None:
            why = "the default entry starts no Linux kernel"
        elif len({loaded.args for loaded in chosen.loaded}) > 1:
            why = "the command line of the default entry depends on what is only known at boot"
        if why or found is None:
            raise BootError("default_entry_unresolvable", why or "", chosen.file, chosen.line)
        default = found.as_default()
        entries = [default if entry is found else entry for entry in entries]
    except BootError as exc:
        refusal = exc
    known = {
        key: next(iter(value)) for key, value in interpreter.variables.items() if value and len(value) == 1
    }
    return GrubCfg(tuple(entries), default, refusal, tuple(notes), known, interpreter.blscfg)


def loader_cmdline(args: tuple[str, ...]) -> str:
    """The command line GRUB hands to the kernel for ARGS (grub-core/lib/cmdline.c).

    An argument with a space is put in double quotes; backslashes and quotes inside are escaped, which the
    kernel does not undo.
    """
    parts = []
    for arg in args:
        text = re.sub(
            r"\\x[0-9a-fA-F]{2}|([\\'\"])", lambda m: "\\" + m.group(1) if m.group(1) else m.group(), arg
        )
        parts.append(f'"{text}"' if " " in arg else text)
    return " ".join(parts)


def _walk(menu: list[Menu], path: tuple[int, ...]) -> list[tuple[Entry, Menu]]:
    found: list[tuple[Entry, Menu]] = []
    for index, item in enumerate(menu):
        here = (*path, index)
        if item.submenu:
            found.extend(_walk(item.children, here))
        elif item.loaded:
            found.append((_entry(item, item.loaded[-1], here), item))
    return found


def _entry(item: Menu, loaded: Loaded, path: tuple[int, ...]) -> Entry:
    line = loader_cmdline(loaded.args)
    source = Source(item.file, loaded.line)
    tokens = tuple(LineToken(token.text, source) for token in split(line))
    maybe = []
    for name, values in loaded.unresolved:
        maybe.append(f"${name}")
        maybe.extend(token.text for value in sorted(values or ()) for token in split(value))
    # 10_linux and 20_linux_xen say it in the id, whatever arguments the settings give to all entries
    made = "gnulinux-" in item.id
    recovery = "-recovery-" in item.id if made else any(token.text in RESCUE for token in tokens)
    return Entry(
        id=item.id,
        title=item.title,
        linux=loaded.linux,
        ahead=f"BOOT_IMAGE={loaded.linux}",
        line=line,
        recovery=recovery,
        file=item.file,
        file_line=loaded.line,
        section=item.section,
        path=path,
        version=re.sub(r"^[^0-9]*-", "", loaded.linux.rpartition("/")[2]),
        unresolved=tuple(maybe),
        tokens=tokens,
    )


def _default(interpreter: Interpreter, path: str) -> tuple[Menu, list[Problem]]:
    """The menu item that boots by itself (grub-core/normal/menu.c), with what is odd about it."""
    if interpreter.unfollowed:
        name, line = interpreter.unfollowed
        raise BootError("default_entry_unresolvable", f"the command {name!r} may change the menu", path, line)
    values = interpreter.variables.get("default", frozenset(["0"]))
    if not values:
        raise BootError("default_entry_unresolvable", "the default entry is only known at boot", path)
    choices = [_choose(interpreter.menu, value, path) for value in sorted(values)]
    if any(choice[0] is not choices[0][0] for choice in choices):
        raise BootError("default_entry_unresolvable", "the default entry is only known at boot", path)
    return choices[0]


def _choose(menu: list[Menu], default: str, path: str, named: bool = True) -> tuple[Menu, list[Problem]]:
    if not menu:
        raise BootError("default_entry_unresolvable", "the menu has no entries", path)
    notes: list[Problem] = []
    index = _entry_number(menu, default)
    if not 0 <= index < len(menu):
        if default and named:
            text = f"the default entry {default!r} does not exist; GRUB boots the first one"
            notes.append(Problem("default_entry_not_found", text, path))
        index = 0
    if not all(item.certain for item in menu[: index + 1]):
        raise BootError("default_entry_unresolvable", "whether an entry exists is only known at boot", path)
    item = menu[index]
    if not item.submenu:
        return item, notes
    # without a part for the submenu GRUB looks the same value up in it again
    rest = _after(default)
    chosen, more = _choose(item.children, rest or default, path, bool(rest))
    return chosen, notes or more


def _entry_number(menu: list[Menu], spec: str) -> int:
    """The index SPEC means: what begins with a number is one, anything else is a title or an id."""
    number = re.match(r"\s*(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)", spec)
    if number:
        text = number.group(1)
        base = 16 if text[:2] in ("0x", "0X") else 8 if text.startswith("0") and len(text) > 1 else 10
        return int(text, base)
    first = _first(spec)
    return next((index for index, item in enumerate(menu) if first in (item.title, item.id)), -1)


def _first(spec: str) -> str:
    """SPEC up to the first single `>`, with `>>` as one `>`."""
    return re.split(r"(?<!>)>(?!>)", spec, maxsplit=1)[0].replace(">>", ">")


def _after(spec: str) -> str:
    parts = re.split(r"(?<!>)>(?!>)", spec, maxsplit=1)
    return parts[1] if len(parts) > 1 else ""
