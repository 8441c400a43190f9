# SPDX-License-Identifier: Apache-2.0
"""GRUB with Boot Loader Specification entries, as the RHEL family sets it up: grubby changes the entries."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from ._boot_backend import Backend
from ._boot_carriers import Carrier, one_line, place, put_back_entries
from ._boot_edit import append_tokens, drop_tokens
from ._boot_effect import shortfall, token_key
from ._boot_grubby import find_grubby, run_grubby, to_remove
from ._boot_grubcfg import loader_cmdline, read_grubcfg
from ._boot_grubenv import line_of, read_grubenv, set_variable
from ._boot_plan import BootPlan, FileChange, FileWriter, Request, check_line, guard, mark_ours
from ._boot_replaced import REPLACED, in_order, lost, record
from ._boot_script_eval import Interpreter
from ._boot_type1 import Type1, newest_first, parse, read_entries, with_options
from ._boot_types import BACKUP_DIR, BootError, Entry, LineToken, Problem, Runner, Setting, Source
from ._cmdline import split
from ._files import decode, exists, read_bytes, read_text
from ._grub_default import DEFAULT, LINUX, GrubDefault, read_default

PREFIX = "/boot/grub2"
ENTRIES = "/boot/loader/entries"
GRUBENV = f"{PREFIX}/grubenv"
KERNEL_CMDLINE = "/etc/kernel/cmdline"
# Says that /etc/kernel/cmdline did not exist before us.
CREATED = f"{BACKUP_DIR}/kernel-cmdline.created"
_UNREAD = (
    "GRUB does not read this line: it ends an entry at an empty line or one of a single word, and finds no key that "
    "a tab ends where a space follows; put `options` and a space on a line above"
)


@dataclass(frozen=True)
class _Texts:
    """What all places hold, those that get something back as they will."""

    raws: dict[str, Type1]
    kernelopts: str | None
    cmdline: str | None
    grub: GrubDefault
    grub_text: str | None


class BlsBackend(Backend):
    """See Backend."""

    name = "grub_bls"
    folder = ENTRIES

    def __init__(self, root: str, live: bool) -> None:
        super().__init__(root, live)
        self.grub: GrubDefault = read_default(root, dropins=False)
        self._problems: list[Problem] = []
        self._refusal: BootError | None = None
        self.raw: list[Type1] = []
        self.env: dict[str, str] = {}
        self.variables: dict[str, str] = {}
        try:
            self.raw = newest_first(read_entries(root, ENTRIES, first_options=True))
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

    def configured_line_or_none(self) -> list[LineToken]:
        """configured_line(), nothing where it cannot be told."""
        try:
            return self.configured_line() or []
        except (BootError, PermissionError):
            return []

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
        usual = {token.text for token in self.configured_line_or_none()}
        entries = [self._expand(raw, usual) for raw in self.raw]
        if not entries:
            return entries
        index = self._default_index()
        entries[index] = entries[index].as_default()
        raw = self.raw[index]
        if raw.unread_line:  # what another entry lacks is told of that entry, and hides nothing of the next boot
            self._problems.append(Problem("options_not_read", _UNREAD, raw.path, raw.unread_line))
        return entries

    def _expand(self, raw: Type1, usual: set[str]) -> Entry:
        """What the entry boots: blscfg makes a `linux` command of it, in which GRUB expands the variables."""
        tokens = self._line(raw, self.variables)
        return Entry(
            id=raw.id,
            title=raw.title,
            linux=raw.linux,
            ahead=_ahead(raw),
            line=" ".join(token.text for token in tokens),
            recovery=raw.recovery(usual),
            file=raw.path,
            file_line=raw.options_line,
            version=raw.version or raw.linux.rpartition("vmlinuz-")[2],
            tokens=tuple(tokens),
        )

    def _line(self, raw: Type1, variables: dict[str, str]) -> list[LineToken]:
        interpreter = Interpreter(self.root, PREFIX, {}, None)
        interpreter.variables.update({name: frozenset([text]) for name, text in variables.items()})
        options = raw.options if raw.options_lines else "$default_kernelopts"
        interpreter.run(raw.path, f"menuentry 'x' {{\nlinux /x {options}\n}}\n")
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

    def put_back(self, request: Request) -> dict[str, str]:
        return put_back_entries(
            self.root, self.raw, self.text_at, request.owned, lambda words: _expanded(words, self.env)
        )

    def text_at(self, path: str) -> str | None:
        return self.env.get("kernelopts") if path == GRUBENV else read_text(self.root, path)

    def plan_over(self, request: Request, running: str | None, back: dict[str, str]) -> BootPlan:
        if self._refusal:
            raise self._refusal
        if self.grub.error:
            raise self.grub.error
        self.require_default(None)
        facts = self.facts()
        texts = self._texts(back)
        carriers = self._carriers(texts)
        inherited = self._inherited(texts)
        wanted, replaced = place([*carriers, *inherited], request, facts)
        plan = BootPlan(request, running=running, replaced=replaced)
        variables = dict(self.variables)
        for carrier, words in zip(carriers, wanted):
            if carrier.name == "kernelopts":
                variables["kernelopts"] = " ".join(words)
            self._change_carrier(plan, carrier, texts, words)
        for carrier, words in zip(inherited, wanted[len(carriers) :]):
            self._change_inherited(plan, carrier, texts, words)
        made = read_text(self.root, CREATED)
        # somebody has written the file anew since, or removed it
        if made is not None and not request.tokens and all(row.path != CREATED for row in plan.files):
            plan.files.append(FileChange(CREATED, made, None, 0o600))
        by_path = {carrier.path: words for carrier, words in zip(carriers, wanted)}
        self._keep_for_next_kernel(plan, request, by_path)
        self._refuse_entries(plan, request, variables, by_path, texts)
        if plan.extra and self.live:
            find_grubby(self.root)
        changed = {row.path: row.after for row in plan.files if row.path != CREATED}
        changed.update((row.path, row.after) for row in plan.writes if row.path != GRUBENV)
        changed.update((c.path, variables["kernelopts"]) for c in carriers if c.name == "kernelopts")
        entries = [carrier.path for carrier in carriers if carrier.name == "options"]
        kept = record(
            self.root, changed, replaced, back, self.text_at, present=bool(request.tokens), entries=entries
        )
        plan.files = in_order(plan.files, kept)
        plan.lost = [] if request.tokens else lost(self.root, self.text_at, back)
        self._set_lines(plan, request, variables, by_path, texts)
        for raw in self.raw if request.tokens else ():
            if raw.options_lines or raw.path == getattr(self.default_entry(), "file", None):
                line = " ".join(t.text for t in self._line_after(raw, variables, by_path, texts))
                check_line(line, list(request.tokens), request, facts, ahead=_ahead(raw), file=raw.path)
        if plan.line is not None:
            plan.memory = guard(plan.line, request, running, facts, self.root)
        return plan

    def _texts(self, back: dict[str, str]) -> _Texts:
        raws = {raw.path: parse(raw.path, back.get(raw.path, raw.text), first_options=True) for raw in self.raw}
        grub = self.grub
        if DEFAULT in back:
            grub = read_default(self.root, dropins=False, overlay={DEFAULT: back[DEFAULT]})
        return _Texts(
            raws,
            back.get(GRUBENV, self.env.get("kernelopts")),
            back.get(KERNEL_CMDLINE, read_text(self.root, KERNEL_CMDLINE)),
            grub,
            back.get(DEFAULT, read_text(self.root, DEFAULT)),
        )

    def _carriers(self, texts: _Texts) -> list[Carrier]:
        """Where the entries' arguments are stored: in themselves and in the environment block."""
        own = [raw for raw in texts.raws.values() if raw.options_lines and not _uses(raw, "kernelopts")]
        indirect = [raw for raw in texts.raws.values() if _uses(raw, "kernelopts")]
        carriers = [Carrier(raw.path, "options", raw.tokens, self._tail(raw), True) for raw in own]
        if indirect and texts.kernelopts is None:
            raise BootError(
                "kernelopts_missing",
                "the entries use $kernelopts, which the environment block lacks",
                GRUBENV,
            )
        if texts.kernelopts is not None:
            tail = next((self._tail(raw) for raw in indirect if self._tail(raw)), ())
            source = self._env_source("kernelopts")
            tokens = tuple(LineToken(token.text, source) for token in split(texts.kernelopts))
            carriers.append(Carrier(GRUBENV, "kernelopts", tokens, tail, True))
        return carriers

    def _refuse_entries(
        self, plan: BootPlan, request: Request, variables: dict[str, str], wanted: dict[str, list[str]], texts: _Texts
    ) -> None:
        """Raise for entries that grubby would not change as planned."""
        several = next((raw for raw in self.raw if len(raw.options_lines) > 1), None)
        if plan.extra and several:
            raise BootError(
                "unclear_entry",
                "the entry has several `options` lines, of which GRUB reads the first and grubby writes all into "
                "each; make them one",
                several.path,
                several.options_lines[1],
            )
        entry = self.default_entry()
        raw = next((raw for raw in self.raw if entry and raw.path == entry.file), None)
        if raw and not raw.options_lines and request.tokens:
            line = " ".join(t.text for t in self._line_after(raw, variables, wanted, texts))
            if shortfall(line, list(request.tokens), self.facts()):
                if raw.unread_line:
                    raise BootError("options_not_read", _UNREAD, raw.path, raw.unread_line)
                raise BootError(
                    "unclear_entry",
                    "the entry that boots has no `options` line, so there is none to change: give it one, "
                    "`options $default_kernelopts` where grub.cfg sets that",
                    raw.path,
                )

    def _tail(self, raw: Type1) -> tuple[LineToken, ...]:
        return tuple(self._env_tokens("tuned_params")) if _uses(raw, "tuned_params") else ()

    def _inherited(self, texts: _Texts) -> list[Carrier]:
        """Where the entry of the next kernel comes from."""
        found = []
        if texts.cmdline is not None:
            found.append(Carrier(KERNEL_CMDLINE, "cmdline", tuple(self._kernel_tokens(texts.cmdline))))
        if texts.grub_text is not None:
            found.append(Carrier(DEFAULT, LINUX, tuple(texts.grub.tokens(LINUX))))
        return found

    def _change_carrier(self, plan: BootPlan, carrier: Carrier, texts: _Texts, words: list[str]) -> None:
        """Plan for CARRIER, an entry or the environment block, to hold WORDS."""
        if carrier.name == "kernelopts":
            data = read_bytes(self.root, GRUBENV) or b""
            before = self.env.get("kernelopts", "")
            after = texts.kernelopts or "" if words == carrier.texts() else " ".join(words)
            change = FileChange(GRUBENV, decode(data), decode(set_variable(data, "kernelopts", after, GRUBENV)))
            if before == after:
                return
            after = " ".join(words)
        else:
            raw = next(raw for raw in self.raw if raw.path == carrier.path)
            change = FileChange(raw.path, raw.text, with_options(texts.raws[raw.path], words))
            if change.before == change.after:
                return
            before, after = " ".join(token.text for token in raw.tokens), " ".join(words)
        plan.writes.append(change)
        plan.extra.append({"resource": f"file:{carrier.path}", "before": before, "after": after})

    def _change_inherited(self, plan: BootPlan, carrier: Carrier, texts: _Texts, words: list[str]) -> None:
        """Plan for CARRIER, a file that the next kernel's entry comes from, to hold WORDS."""
        now = read_text(self.root, carrier.path)
        if carrier.path == KERNEL_CMDLINE:
            made = exists(self.root, CREATED)
            owned = [t.text for t in mark_ours(list(carrier.tokens), plan.request.owned) if t.ours]
            if made and owned and not plan.request.tokens:
                plan.files.append(FileChange(KERNEL_CMDLINE, now, None))
                plan.files.append(FileChange(CREATED, read_text(self.root, CREATED), None, 0o600))
                return
            after = one_line(KERNEL_CMDLINE, texts.cmdline or "", words)
        elif words == carrier.texts():
            after = texts.grub_text or ""
        else:
            after = self._default_text(carrier, texts, words, plan.request)
        if after != now:
            plan.files.append(FileChange(carrier.path, now, after))

    def _default_text(self, carrier: Carrier, texts: _Texts, words: list[str], request: Request) -> str:
        """/etc/default/grub with its GRUB_CMDLINE_LINUX holding WORDS, edited in place."""
        grub, overlay = texts.grub, {DEFAULT: texts.grub_text or ""}
        gone = list(carrier.tokens)
        for text in (text for text in words if text not in request.tokens):
            gone.remove(next(token for token in gone if token.text == text))
        if gone:
            overlay = drop_tokens(self.root, grub, LINUX, gone, overlay, dropins=False)
            grub = read_default(self.root, dropins=False, overlay=overlay)
        if not request.tokens or not any(text in request.tokens for text in words):
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
        self, plan: BootPlan, request: Request, variables: dict[str, str], wanted: dict[str, list[str]], texts: _Texts
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
        after = self._line_after(raw, variables, wanted, texts)
        plan.line_before, plan.line = entry.line, " ".join(token.text for token in after)
        plan.before, plan.after = request.about(entry.line), request.about(plan.line)

    def _line_after(
        self, raw: Type1, variables: dict[str, str], wanted: dict[str, list[str]], texts: _Texts
    ) -> list[LineToken]:
        """What the entry will boot once every place holds what is WANTED."""
        raw = texts.raws[raw.path]
        text = with_options(raw, wanted[raw.path]) if raw.path in wanted else raw.text
        return self._line(parse(raw.path, text, first_options=True), variables)

    # -- applying -----------------------------------------------------------------------------------

    def apply(self, plan: BootPlan, run: Runner | None) -> dict[str, Any]:
        writer = self.writer()
        early = [change for change in plan.files if change.path == REPLACED and change.after is not None]
        try:
            for change in early:
                writer.write(change)
            if plan.extra and self.live:
                paths = [GRUBENV, DEFAULT, KERNEL_CMDLINE, *(raw.path for raw in self.raw)]
                before = {path: read_text(self.root, path) for path in paths}
                for path in paths:
                    writer.watch(path)
                run_grubby(self.root, plan, run)
                self._tidy(plan, before, writer)
                self._read_back(plan)
            else:
                for change in plan.writes:
                    writer.write(change)
            for change in plan.files:
                if change not in early:
                    writer.write(change)
        except BaseException:
            writer.undo()
            raise
        return {"generated": bool(plan.extra), "backup": None, "line": plan.line}

    def _tidy(self, plan: BootPlan, before: dict[str, str | None], writer: FileWriter) -> None:
        """Bring what grubby left to what was planned, and take back what it did besides.

        It writes the values of variables such as $tuned_params into the entries in the place of their names, or
        $kernelopts in the place of the same words; it makes kernelopts where there was none, moves arguments that
        were right already, and edits /etc/kernel/cmdline and lines of /etc/default/grub that only begin alike.
        What was replaced it does not bring back.
        """
        now = BlsBackend(self.root, self.live)
        planned = {change.path: change for change in plan.writes}
        had, left = self._words(), now._words()
        for path, text in before.items():
            here = read_text(self.root, path)
            if path not in planned:
                if here != text:
                    writer.write(FileChange(path, None, text))
            elif here != planned[path].after:
                wanted = _by_grubby(had.get(path, []), plan.request, self.env)
                if _expanded(left.get(path, []), now.env) == wanted:
                    writer.write(planned[path])

    def _words(self) -> dict[str, list[str]]:
        """The arguments that each place holds which grubby changes."""
        held = {raw.path: [token.text for token in raw.tokens] for raw in self.raw}
        return {**held, GRUBENV: [token.text for token in self._env_tokens("kernelopts")]}

    def _read_back(self, plan: BootPlan) -> None:
        """Raise unless every entry and the environment block hold exactly what was planned."""
        now = BlsBackend(self.root, self.live)
        held = now._words()
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
    """What grubby makes of a place that holds TEXTS: variables first, then it drops the keys of ours and adds them.

    An argument without a value that it is to remove takes every one with that key along.
    """
    rest = [t.text for t in mark_ours([LineToken(text) for text in texts], request.owned) if not t.ours]
    keys = {token_key(text) for text in (*request.tokens, *(gone for gone in to_remove(request) if "=" not in gone))}
    return [*(text for text in _expanded(rest, env) if token_key(text) not in keys), *request.tokens]


def _ahead(raw: Type1) -> str:
    """What GRUB puts in front of the command line: the kernel on its device, the longest usual name of one."""
    return f"BOOT_IMAGE=(hd0,gpt10){raw.linux}"


def _uses(raw: Type1, variable: str) -> bool:
    return any(token.text in (f"${variable}", f"${{{variable}}}") for token in raw.tokens)
