# SPDX-License-Identifier: Apache-2.0
"""Follow a grub.cfg as GRUB would at boot, over sets of possible values.

A variable has the set of values it can have at boot (None: anything). A condition that depends on the
firmware or the console is followed both ways and the sets are united. Commands other than the few below
change nothing that is looked at here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ._boot_script import Branch, Command, Function, Loop, ScriptParser, Statement
from ._boot_script_words import (
    EMPTY,
    Possible,
    Variables,
    argument_lists,
    assigned_names,
    assignment,
    kept_fields,
    value_of,
)
from ._boot_shell_test import evaluate_test
from ._boot_types import BootError
from ._files import read_text

# Paths below $prefix are written with this device, so that they can be told from others.
DEVICE = "(prefix)"
_LINUX = ("linux", "linux16", "linuxefi")
_OTHER_SYSTEMS = (
    "chainloader",
    "multiboot",
    "multiboot2",
    "xen_hypervisor",
    "kfreebsd",
    "ntldr",
    "halt",
    "reboot",
)
_UNFOLLOWED = ("eval", "configfile", "legacy_configfile", "syslinux_configfile", "extract_entries_source")
# Set by GRUB itself; everything else that is not set is empty.
_BUILTIN = (
    "root",
    "grub_platform",
    "grub_cpu",
    "cmdpath",
    "lockdown",
    "shim_lock",
    "secureboot",
    "chosen",
    "?",
)
_FEATURES = (
    "feature_chainloader_bpb",
    "feature_ntldr",
    "feature_platform_search_hint",
    "feature_default_font_path",
    "feature_all_video_module",
    "feature_menuentry_id",
    "feature_menuentry_options",
    "feature_200_final",
    "feature_nativedisk_cmd",
    "feature_timeout_style",
)
_MAX_DEPTH = 16


@dataclass(frozen=True)
class Loaded:
    """A linux command: the path, the arguments as GRUB splits them, the variables left in them."""

    linux: str
    args: tuple[str, ...]
    unresolved: tuple[tuple[str, Possible], ...]
    line: int


@dataclass
class Menu:
    """One menu entry or submenu."""

    title: str
    id: str
    line: int
    section: str | None
    file: str
    certain: bool
    submenu: bool
    children: list[Menu] = field(default_factory=list)
    loaded: list[Loaded] = field(default_factory=list)
    other_system: bool = False


class Interpreter:
    """run() follows a file; the menu is then in `menu`, the variables in `variables`."""

    def __init__(self, root: str, prefix: str, environment: dict[str, str], platform: str | None) -> None:
        self.root, self.prefix, self.environment = root, prefix, environment
        base = DEVICE + prefix
        known = dict.fromkeys(_FEATURES, "y")
        known.update(prefix=base, config_directory=base, config_file=f"{base}/grub.cfg")
        self.variables: Variables = {name: frozenset([value]) for name, value in known.items()}
        self.variables.update(dict.fromkeys(_BUILTIN))
        if platform:
            self.variables["grub_platform"] = frozenset([platform])
        self.functions: dict[str, list[Statement]] = {}
        self.menu: list[Menu] = []
        self.blscfg = False
        self.unfollowed: tuple[str, int] | None = None
        self._certain = True
        self._entry: Menu | None = None
        self._depth = 0
        self._file = ""
        self._section: Callable[[int], str | None] = lambda line: None

    def run(self, path: str, text: str) -> None:
        """Follow TEXT, the content of the file PATH. Raises BootError when it cannot be parsed."""
        script = ScriptParser(text, path).parse()
        outer, self._file, self._section = (self._file, self._section), path, script.section
        try:
            self._block(script.statements)
        finally:
            self._file, self._section = outer

    # -- statements ---------------------------------------------------------------------------------

    def _block(self, statements: list[Statement]) -> bool | None:
        self._depth += 1
        status: bool | None = True
        try:
            if self._depth > _MAX_DEPTH:
                raise BootError("grub_script_syntax", "blocks are nested too deeply", self._file)
            for statement in statements:
                status = self._statement(statement)
        finally:
            self._depth -= 1
        return status

    def _statement(self, node: Statement) -> bool | None:
        if isinstance(node, Function):
            self.functions[node.name] = node.body
            return True
        if isinstance(node, Branch):
            return self._branch(node, 0)
        if isinstance(node, Loop):
            self._either([node.body, []])
            for name in assigned_names(node.body):
                self.variables[name] = None
            return None
        return self._command(node)

    def _branch(self, node: Branch, index: int) -> bool | None:
        if index >= len(node.branches):
            return self._block(node.otherwise)
        condition, body = node.branches[index]
        status = self._block(condition)
        if status is True:
            return self._block(body)
        if status is False:
            return self._branch(node, index + 1)
        rest = Branch(node.branches[index + 1 :], node.otherwise, node.line)
        self._either([body, [rest]])
        return None

    def _either(self, bodies: list[list[Statement]]) -> None:
        certain, self._certain = self._certain, False
        before, outcomes = dict(self.variables), []
        for body in bodies:
            self.variables = dict(before)
            self._block(body)
            outcomes.append(self.variables)
        self._certain = certain
        merged: Variables = {}
        for name in {name for outcome in outcomes for name in outcome}:
            values = [outcome.get(name, EMPTY) for outcome in outcomes]
            known = [value for value in values if value is not None]
            merged[name] = frozenset().union(*known) if len(known) == len(values) else None
        self.variables = merged

    def _command(self, node: Command) -> bool | None:
        name = node.name()
        if name in ("menuentry", "submenu") and node.block is not None:
            return self._add(node, name == "submenu")
        if name in _LINUX:
            return self._linux(node)
        if name in _OTHER_SYSTEMS and self._entry is not None:
            self._entry.other_system = True
            return None
        if name in _UNFOLLOWED and self._entry is None:
            self.unfollowed = self.unfollowed or (name, node.line)
            return None
        if name in self.functions:
            return self._call(node, name)
        handler = {
            "set": self._set,
            "unset": self._unset,
            "load_env": self._load_env,
            "source": self._source,
            ".": self._source,
            "[": self._test,
            "test": self._test,
            "blscfg": self._blscfg,
        }.get(name)
        if handler:
            return handler(node)
        if name in ("true", "false"):
            return name == "true"
        pair = assignment(node.words[0]) if node.words else None
        if pair:
            self.variables[pair[0]] = value_of(pair[1], self.variables)
            return True
        self._forget_results(node)
        return None

    def _call(self, node: Command, name: str) -> bool | None:
        saved = {key: value for key, value in self.variables.items() if key.isdigit()}
        for number, word in enumerate(node.words[1:], 1):
            self.variables[str(number)] = value_of(word, self.variables)
        status = self._block(self.functions[name])
        for key in [key for key in self.variables if key.isdigit()]:
            del self.variables[key]
        self.variables.update(saved)
        return status

    def _set(self, node: Command) -> bool:
        pair = assignment(node.words[1]) if len(node.words) > 1 else None
        if pair:
            self.variables[pair[0]] = value_of(pair[1], self.variables)
        return True

    def _unset(self, node: Command) -> bool:
        for word in node.words[1:]:
            for name in value_of(word, self.variables) or ():
                self.variables.pop(name, None)
        return True

    def _load_env(self, node: Command) -> bool | None:
        words = [value_of(word, self.variables) for word in node.words[1:]]
        if any(word is None or any(text.startswith(("-f", "--file")) for text in word) for word in words):
            for name in ("default", "saved_entry", "next_entry", "prev_saved_entry", "kernelopts"):
                self.variables[name] = None
            return None
        wanted = {text for word in words for text in (word or ()) if not text.startswith("-")}
        for name, value in self.environment.items():
            if not wanted or name in wanted:
                self.variables[name] = frozenset([value])
        return True

    def _source(self, node: Command) -> bool | None:
        values = value_of(node.words[1], self.variables) if len(node.words) > 1 else None
        path = next(iter(values)) if values is not None and len(values) == 1 else ""
        text = read_text(self.root, path[len(DEVICE) :]) if path.startswith(DEVICE) else None
        if text is None:
            self.unfollowed = self.unfollowed or ("source", node.line)
            return None
        self.run(path[len(DEVICE) :], text)
        return True

    def _blscfg(self, node: Command) -> bool:
        self.blscfg = True
        return True

    def _test(self, node: Command) -> bool | None:
        results = set()
        for fields in argument_lists(node.words[1:], self.variables):
            closed: list[str | None] = fields[:-1] if fields and fields[-1] == "]" else [None]
            results.add(self._judge(closed if node.name() == "[" else fields))
        return results.pop() if len(results) == 1 else None

    def _judge(self, fields: list[str | None]) -> bool | None:
        for joint, absorbing in (("-o", True), ("-a", False)):
            if joint in fields[1:-1]:
                at = fields.index(joint, 1)
                sides = {self._judge(fields[:at]), self._judge(fields[at + 1 :])}
                return absorbing if absorbing in sides else None if None in sides else not absorbing
        if fields and fields[0] == "!" and len(fields) > 1:
            inner = self._judge(fields[1:])
            return None if inner is None else not inner
        if len(fields) == 2 and fields[0] in ("-e", "-f", "-s", "-d"):
            path = fields[1] or ""
            if not path.startswith(DEVICE):
                return None
            return evaluate_test([fields[0], path[len(DEVICE) :]], self.root)
        if len(fields) == 3 and fields[1] == "==":
            fields = [fields[0], "=", fields[2]]
        return evaluate_test(fields, self.root)

    def _forget_results(self, node: Command) -> None:
        """A command that stores what it finds (search, regexp, probe, hwmatch, read) makes the variable unknown."""
        words = ["".join(piece.text for piece in word) for word in node.words]
        for index, word in enumerate(words[1:], 1):
            if word.startswith("--set="):
                self.variables[word[6:].rpartition(":")[2]] = None
            elif word in ("--set", "-s") and index + 1 < len(words):
                self.variables[words[index + 1]] = None
        if words and words[0] == "hwmatch":
            self.variables["match"] = None
        if words and words[0] == "read" and len(words) > 1:
            self.variables[words[-1]] = None

    # -- the menu -----------------------------------------------------------------------------------

    def _add(self, node: Command, submenu: bool) -> bool:
        argv = next(iter(argument_lists(node.words[1:], self.variables)), [])
        title, identifier = _menu_names([field or "" for field in argv])
        entry = Menu(
            title, identifier, node.line, self._section(node.line), self._file, self._certain, submenu
        )
        menu = self._entry.children if self._entry is not None else self.menu
        menu.append(entry)
        outer, self._entry = self._entry, entry
        certain, self._certain = self._certain, True
        before = dict(self.variables)
        try:
            self._block(node.block or [])
        finally:
            # what an entry does happens after the menu is built, in a scope of its own
            self._entry, self._certain, self.variables = outer, certain, before
        return True

    def _linux(self, node: Command) -> bool:
        if self._entry is None:
            return True
        argv: list[str] = []
        unresolved: Variables = {}
        for word in node.words[1:]:
            argv.extend(kept_fields(word, self.variables, unresolved))
        if argv:
            self._entry.loaded.append(Loaded(argv[0], tuple(argv[1:]), tuple(unresolved.items()), node.line))
        return True


def _menu_names(argv: list[str]) -> tuple[str, str]:
    """Title and id of a menuentry's arguments; the title is the id where none is given."""
    title, identifier, index = "", "", 0
    valued = ("--class", "--users", "--hotkey", "--source", "--id")
    while index < len(argv):
        name, equals, value = argv[index].partition("=")
        if name in valued:
            if not equals:
                index += 1
                value = argv[index] if index < len(argv) else ""
            identifier = value if name == "--id" else identifier
        elif not argv[index].startswith("--") and not title:
            title = argv[index]
        index += 1
    return title, identifier or title
