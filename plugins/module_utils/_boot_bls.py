# SPDX-License-Identifier: Apache-2.0
"""GRUB with Boot Loader Specification entries, as the RHEL family sets it up: grubby changes the entries."""

from __future__ import annotations

import os
from typing import Any

from ._boot_backend import BACKUP_DIR, Backend
from ._boot_carriers import Carrier, one_line, place
from ._boot_edit import append_tokens, drop_tokens
from ._boot_effect import token_key
from ._boot_grubby import run_grubby
from ._boot_grubcfg import loader_cmdline, read_grubcfg
from ._boot_grubenv import line_of, read_grubenv, set_variable
from ._boot_plan import BootPlan, FileChange, FileWriter, Request, check_line, guard, mark_ours
from ._boot_script_eval import Interpreter
from ._boot_type1 import Type1, newest_first, parse, read_entries, with_options
from ._boot_types import BootError, Entry, LineToken, Problem, Runner, Setting, Source
from ._cmdline import split
from ._files import decode, exists, read_bytes, read_text
from ._grub_default import DEFAULT, LINUX, GrubDefault, read_default

PREFIX = "/boot/grub2"
ENTRIES = "/boot/loader/entries"
GRUBENV = f"{PREFIX}/grubenv"
KERNEL_CMDLINE = "/etc/kernel/cmdline"
# Says that /etc/kernel/cmdline did not exist before us.
CREATED = f"{BACKUP_DIR}/kernel-cmdline.created"


class BlsBackend(Backend):
    """See Backend."""

    name = "grub_bls"

    def __init__(self, root: str, live: bool) -> None:
        super().__init__(root, live)
        self.grub: GrubDefault = read_default(root, dropins=False)
        self._problems: list[Problem] = []
        self._refusal: BootError | None = None
        self.raw: list[Type1] = []
        self.env: dict[str, str] = {}
        self.variables: dict[str, str] = {}
        try:
            self.raw = newest_first(read_entries(root, ENTRIES))
            self.env = read_grubenv(root, GRUBENV)
            self.variables = self._variables()
        except PermissionError as exc:
            self._refusal = BootError("permission_denied", str(exc.strerror), exc.filename)
        except BootError as exc:
            self._refusal = exc
        self._entries = self._expand_all()

    def _variables(self) -> dict[str, str]:
        """GRUB's variables when the menu is shown: the environment block, and what grub.cfg falls back to."""
        text = read_text(self.root, f"{PREFIX}/grub.cfg")
        known = dict(self.env)
        if text is not None:
            for name, value in read_grubcfg(self.root, PREFIX, text, self.env, None).variables.items():
                known.setdefault(name, value)
                if name == "default":
                    known[name] = value
        return known

    # -- reading ------------------------------------------------------------------------------------

    def files(self) -> list[str]:
        extra = [path for path in (KERNEL_CMDLINE, GRUBENV) if exists(self.root, path)]
        return [*self.grub.files, *extra, *(entry.path for entry in self.raw)]

    def settings(self) -> list[Setting]:
        found = [self.grub.setting(name) for name in (LINUX, "GRUB_DEFAULT", "GRUB_ENABLE_BLSCFG")]
        rows = [row for row in found if row.value is not None or (row.problem and row.name == LINUX)]
        text = read_text(self.root, KERNEL_CMDLINE)
        if text is not None:
            source = Source(KERNEL_CMDLINE, 1)
            rows.append(Setting(KERNEL_CMDLINE, text.strip(), tuple(self._kernel_tokens(text)), (source,)))
        for name in ("kernelopts", "tuned_params", "saved_entry"):
            if name in self.env:
                tokens = tuple(self._env_tokens(name))
                rows.append(Setting(name, self.env[name], tokens, (self._env_source(name),)))
        return rows

    def entries(self) -> list[Entry]:
        return self._entries

    def problems(self) -> list[Problem]:
        found = list(self._problems)
        if self._refusal:
            found.append(self._refusal.problem)
        if self.grub.error:
            found.append(self.grub.error.problem)
        return list(dict.fromkeys(found))

    def configured_line(self) -> list[LineToken] | None:
        text = read_text(self.root, KERNEL_CMDLINE)
        if text is not None:
            return self._kernel_tokens(text)
        if "kernelopts" in self.env:
            return self._env_tokens("kernelopts")
        return self.grub.tokens(LINUX) if LINUX in self.grub.variables or self.grub.error else None

    def _kernel_tokens(self, text: str) -> list[LineToken]:
        return [LineToken(token.text, Source(KERNEL_CMDLINE, 1)) for token in split(text)]

    def _env_source(self, name: str) -> Source:
        return Source(GRUBENV, line_of(read_bytes(self.root, GRUBENV) or b"", name))

    def _env_tokens(self, name: str) -> list[LineToken]:
        source = self._env_source(name) if name in self.env else None
        return [LineToken(token.text, source) for token in split(self.env.get(name, ""))]

    def _expand_all(self) -> list[Entry]:
        entries = [self._expand(raw) for raw in self.raw]
        if not entries:
            return entries
        index = self._default_index()
        entries[index] = entries[index].as_default()
        return entries

    def _expand(self, raw: Type1) -> Entry:
        """What the entry boots: blscfg makes a `linux` command of it, in which GRUB expands the variables."""
        tokens = self._line(raw, self.variables)
        return Entry(
            id=raw.id,
            title=raw.title,
            linux=raw.linux,
            ahead=_ahead(raw),
            line=" ".join(token.text for token in tokens),
            recovery=raw.recovery,
            file=raw.path,
            file_line=raw.options_line,
            version=raw.version or raw.linux.rpartition("vmlinuz-")[2],
            tokens=tuple(tokens),
        )

    def _line(self, raw: Type1, variables: dict[str, str]) -> list[LineToken]:
        interpreter = Interpreter(self.root, PREFIX, {}, None)
        interpreter.variables.update({name: frozenset([text]) for name, text in variables.items()})
        interpreter.run(raw.path, f"menuentry 'x' {{\nlinux /x {raw.options}\n}}\n")
        line = loader_cmdline(interpreter.menu[0].loaded[0].args)
        places: dict[str, Source | None] = {token.text: token.source for token in raw.tokens}
        for name in ("kernelopts", "tuned_params"):
            if f"${name}" in raw.options or f"${{{name}}}" in raw.options:
                places.update({token.text: token.source for token in self._env_tokens(name)})
        fallback = Source(raw.path, raw.options_line)
        return [LineToken(token.text, places.get(token.text) or fallback) for token in split(line)]

    def _default_index(self) -> int:
        """The entry that the RHEL family's menu.c chooses: an id, a title, a number, else the first."""
        wanted = (
            self.env.get("next_entry") or self.variables.get("default") or self.env.get("saved_entry") or ""
        )
        if not wanted:
            return 0
        for index, raw in enumerate(self.raw):
            if wanted.split()[0] == raw.id:
                return index
        for index, raw in enumerate(self.raw):
            if wanted == raw.title:
                return index
        if wanted.isdigit() and int(wanted) < len(self.raw):
            return int(wanted)
        text = f"the default entry {wanted!r} does not exist; GRUB boots the first one, {self.raw[0].id!r}"
        self._problems.append(
            Problem("default_entry_not_found", text, GRUBENV, self._env_source("saved_entry").line)
        )
        return 0

    # -- planning -----------------------------------------------------------------------------------

    def plan(self, request: Request, running: str | None) -> BootPlan:
        if self._refusal:
            raise self._refusal
        if self.grub.error:
            raise self.grub.error
        self.require_default(None)
        facts = self.facts()
        literal = [raw for raw in self.raw if not _uses(raw, "kernelopts")]
        indirect = [raw for raw in self.raw if _uses(raw, "kernelopts")]
        carriers = [Carrier(raw.path, "options", raw.tokens, self._tail(raw), True) for raw in literal]
        if indirect and "kernelopts" not in self.env:
            raise BootError(
                "kernelopts_missing",
                "the entries use $kernelopts, which the environment block lacks",
                GRUBENV,
            )
        if "kernelopts" in self.env:
            tail = next((self._tail(raw) for raw in indirect if self._tail(raw)), ())
            carriers.append(Carrier(GRUBENV, "kernelopts", tuple(self._env_tokens("kernelopts")), tail, True))
        inherited = self._inherited()
        wanted, replaced = place([*carriers, *inherited], request, facts)
        plan = BootPlan(request, running=running, replaced=replaced)
        variables = dict(self.variables)
        for carrier, texts in zip(carriers, wanted):
            if carrier.name == "kernelopts":
                variables["kernelopts"] = " ".join(texts)
            if texts != carrier.texts():
                self._change_carrier(plan, carrier, texts)
        for carrier, texts in zip(inherited, wanted[len(carriers) :]):
            if texts != carrier.texts():
                self._change_inherited(plan, carrier, texts)
        self._keep_for_next_kernel(plan, request, dict(zip([c.path for c in carriers], wanted)))
        self._set_lines(plan, request, variables, {c.path: w for c, w in zip(carriers, wanted)})
        for raw in self.raw if request.tokens else ():
            line = self._line_after(raw, variables, {c.path: w for c, w in zip(carriers, wanted)})
            text = " ".join(t.text for t in line)
            check_line(text, list(request.tokens), request, facts, ahead=_ahead(raw), file=raw.path)
        if plan.line is not None:
            plan.memory = guard(plan.line, request, running, facts, self.root)
        return plan

    def _tail(self, raw: Type1) -> tuple[LineToken, ...]:
        return tuple(self._env_tokens("tuned_params")) if _uses(raw, "tuned_params") else ()

    def _inherited(self) -> list[Carrier]:
        """Where the entry of the next kernel comes from."""
        found = []
        text = read_text(self.root, KERNEL_CMDLINE)
        if text is not None:
            found.append(Carrier(KERNEL_CMDLINE, "cmdline", tuple(self._kernel_tokens(text))))
        if exists(self.root, DEFAULT):
            found.append(Carrier(DEFAULT, LINUX, tuple(self.grub.tokens(LINUX))))
        return found

    def _change_carrier(self, plan: BootPlan, carrier: Carrier, texts: list[str]) -> None:
        before, after = " ".join(carrier.texts()), " ".join(texts)
        if carrier.name == "kernelopts":
            data = read_bytes(self.root, GRUBENV) or b""
            block = set_variable(data, "kernelopts", after, GRUBENV)
            if not self.live:
                plan.writes.append(FileChange(GRUBENV, decode(data), decode(block)))
        elif not self.live:
            raw = next(raw for raw in self.raw if raw.path == carrier.path)
            plan.writes.append(FileChange(raw.path, raw.text, with_options(raw, texts)))
        plan.extra.append({"resource": f"file:{carrier.path}", "before": before, "after": after})

    def _change_inherited(self, plan: BootPlan, carrier: Carrier, texts: list[str]) -> None:
        old = read_text(self.root, carrier.path) or ""
        if carrier.path == KERNEL_CMDLINE:
            made = exists(self.root, CREATED)
            owned = [t.text for t in mark_ours(list(carrier.tokens), plan.request.owned) if t.ours]
            if made and owned and not plan.request.tokens:
                plan.files.append(FileChange(KERNEL_CMDLINE, old, None))
                plan.files.append(FileChange(CREATED, read_text(self.root, CREATED), None, 0o600))
                return
            plan.files.append(FileChange(KERNEL_CMDLINE, old, one_line(KERNEL_CMDLINE, old, texts)))
            return
        plan.files.append(FileChange(DEFAULT, old, self._default_text(carrier, texts, plan.request)))

    def _default_text(self, carrier: Carrier, texts: list[str], request: Request) -> str:
        """/etc/default/grub with its GRUB_CMDLINE_LINUX holding TEXTS, edited in place."""
        grub, overlay = self.grub, {}
        gone = list(carrier.tokens)
        for text in (text for text in texts if text not in request.tokens):
            gone.remove(next(token for token in gone if token.text == text))
        if gone:
            overlay = drop_tokens(self.root, grub, LINUX, gone, {}, dropins=False)
            grub = read_default(self.root, dropins=False, overlay=overlay)
        if not request.tokens or not any(text in request.tokens for text in texts):
            return overlay[DEFAULT]
        return append_tokens(self.root, grub, LINUX, list(request.tokens), False, overlay)[1]

    def _keep_for_next_kernel(self, plan: BootPlan, request: Request, wanted: dict[str, list[str]]) -> None:
        """Make /etc/kernel/cmdline where kernel-install would else copy what runs at that moment."""
        entry = self.default_entry()
        ours = request.tokens and entry and entry.file in wanted and plan.extra
        if not ours or exists(self.root, KERNEL_CMDLINE) or entry is None:
            return
        texts = [text for text in wanted[str(entry.file)] if not text.startswith("$")]
        plan.files.append(FileChange(KERNEL_CMDLINE, None, " ".join(texts) + "\n"))
        plan.files.append(FileChange(CREATED, None, "made by firsttouch.host\n", 0o600))

    def _set_lines(
        self, plan: BootPlan, request: Request, variables: dict[str, str], wanted: dict[str, list[str]]
    ) -> None:
        entry = self.default_entry()
        if entry is None:
            configured = self.configured_line() or []
            before = " ".join(token.text for token in configured)
            inherited = next((row for row in plan.files if row.path in (KERNEL_CMDLINE, DEFAULT)), None)
            now = with_tokens(configured, request) if inherited else [token.text for token in configured]
            plan.before, plan.after = request.about(before), request.about(" ".join(now))
            return
        raw = next(raw for raw in self.raw if raw.path == entry.file)
        after = self._line_after(raw, variables, wanted)
        plan.line_before, plan.line = entry.line, " ".join(token.text for token in after)
        plan.before, plan.after = request.about(entry.line), request.about(plan.line)

    def _line_after(
        self, raw: Type1, variables: dict[str, str], wanted: dict[str, list[str]]
    ) -> list[LineToken]:
        """What the entry will boot once every place holds what is WANTED."""
        text = with_options(raw, wanted[raw.path]) if raw.path in wanted else raw.text
        return self._line(parse(raw.path, text), variables)

    # -- applying -----------------------------------------------------------------------------------

    def apply(self, plan: BootPlan, run: Runner | None) -> dict[str, Any]:
        writer = self.writer()
        try:
            if plan.extra and self.live:
                paths = [GRUBENV, DEFAULT, KERNEL_CMDLINE, *(raw.path for raw in self.raw)]
                before = {path: read_text(self.root, path) for path in paths}
                for path in paths:
                    writer.watch(path)
                run_grubby(self.root, plan, run)
                self._tidy(plan, before, writer)
                self._read_back(plan)
            for change in [*plan.writes, *plan.files]:
                writer.write(change)
        except BaseException:
            writer.undo()
            raise
        return {"generated": bool(plan.extra), "backup": None, "line": plan.line}

    def _tidy(self, plan: BootPlan, before: dict[str, str | None], writer: FileWriter) -> None:
        """Take back what grubby does besides what it was asked for.

        It writes the values of variables such as $tuned_params into the entries in the place of their names, or
        $kernelopts in the place of the same words; it makes kernelopts where there was none, moves arguments that
        were right already, and edits /etc/kernel/cmdline and lines of /etc/default/grub that only begin alike.
        """
        now = BlsBackend(self.root, self.live)
        planned = {row["resource"][len("file:") :]: row["after"] for row in plan.extra}
        for path, text in before.items():
            if path not in planned:
                if read_text(self.root, path) != text:
                    writer.write(FileChange(path, None, text))
                continue
            old = next((raw for raw in self.raw if raw.path == path), None)
            new = next((raw for raw in now.raw if raw.path == path), None)
            if old is None or new is None:
                continue
            texts = [token.text for token in split(planned[path])]
            left = [token.text for token in new.tokens]
            if left != texts and _expanded(left, now.env) == _by_grubby(texts, plan.request, self.env):
                writer.write(FileChange(path, new.text, with_options(old, texts)))

    def _read_back(self, plan: BootPlan) -> None:
        """Raise unless every entry and the environment block hold exactly what was planned."""
        now = BlsBackend(self.root, self.live)
        held = {raw.path: [token.text for token in raw.tokens] for raw in now.raw}
        held[GRUBENV] = [token.text for token in now._env_tokens("kernelopts")]
        for row in plan.extra:
            path = row["resource"][len("file:") :]
            if " ".join(held.get(path) or []) != row["after"]:
                raise BootError(
                    "token_not_generated",
                    f"grubby left {' '.join(held.get(path) or [])!r} there instead of {row['after']!r}; "
                    "everything was put back",
                    path,
                )
        entry = now.default_entry()
        if plan.line is not None and (entry is None or entry.line != plan.line):
            raise BootError(
                "token_not_generated",
                f"the default entry boots {entry.line if entry else None!r} instead of {plan.line!r}; "
                "everything was put back",
                entry.file if entry else os.path.join(ENTRIES, "*.conf"),
            )


def with_tokens(configured: list[LineToken], request: Request) -> list[str]:
    """The texts of CONFIGURED without ours, and then those asked for."""
    rest = [t.text for t in mark_ours(configured, request.owned) if not t.ours]
    return [*(text for text in rest if text not in request.tokens), *request.tokens]


def _expanded(texts: list[str], env: dict[str, str]) -> list[str]:
    """TEXTS as grubby reads them: `$name` is what the environment block says, if it says anything."""
    words: list[str] = []
    for text in texts:
        value = env.get(text[1:], "") if text.startswith("$") else ""
        words += [token.text for token in split(value)] or [text]
    return words


def _by_grubby(texts: list[str], request: Request, env: dict[str, str]) -> list[str]:
    """What grubby makes of an entry that is to hold TEXTS: variables first, then it drops the keys of ours."""
    ours = [text for text in texts if text in request.tokens]
    keys = {token_key(text) for text in request.tokens}
    rest = _expanded([text for text in texts if text not in request.tokens], env)
    return [*(text for text in rest if token_key(text) not in keys), *ours]


def _ahead(raw: Type1) -> str:
    """What GRUB puts in front of the command line: the kernel on its device, the longest usual name of one."""
    return f"BOOT_IMAGE=(hd0,gpt10){raw.linux}"


def _uses(raw: Type1, variable: str) -> bool:
    return any(token.text in (f"${variable}", f"${{{variable}}}") for token in raw.tokens)
