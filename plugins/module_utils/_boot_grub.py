# SPDX-License-Identifier: Apache-2.0
"""GRUB as Debian and Ubuntu set it up: a drop-in of our own, and grub.cfg made by grub-mkconfig."""

from __future__ import annotations

import os
import re
from typing import Any

from ._boot_backend import Backend
from ._boot_edit import drop_tokens
from ._boot_effect import shortfall
from ._boot_grub_generate import Generator, backup_rows, require_tools
from ._boot_grubcfg import GrubCfg, loader_cmdline, read_grubcfg
from ._boot_grubenv import read_grubenv
from ._boot_plan import BootPlan, FileChange, Request, check_line, guard, settle
from ._boot_replaced import in_order, lost, record
from ._boot_script import Command, ScriptParser
from ._boot_script_eval import Interpreter
from ._boot_types import BootError, Entry, LineToken, Problem, Runner, Setting, Step
from ._cmdline import split
from ._files import exists, read_text
from ._grub_default import (
    LINUX,
    LINUX_DEFAULT,
    LINUX_RECOVERY,
    NORMAL,
    SHOWN,
    GrubDefault,
    overridden_by,
    read_default,
)

DROPIN = "/etc/default/grub.d/zzz-firsttouch.cfg"
PREFIX = "/boot/grub"
GRUB_CFG = f"{PREFIX}/grub.cfg"
GRUBENV = f"{PREFIX}/grubenv"
_HEADER = (
    "# Managed by firsttouch.host: changes are overwritten.\n"
    f"# Appended to {LINUX_DEFAULT}, so recovery entries stay free of it.\n"
)


class GrubBackend(Backend):
    """See Backend."""

    name = "grub"
    folder = PREFIX

    def __init__(self, root: str, live: bool) -> None:
        super().__init__(root, live)
        self.grub: GrubDefault = read_default(root)
        self.cfg: GrubCfg | None = None
        self._refusal: BootError | None = None
        self.cfg_text: str | None = None
        try:
            self.cfg_text = read_text(root, GRUB_CFG)
            if self.cfg_text is not None:
                self.cfg = self.parse(self.cfg_text)
                self._refusal = self.cfg.refusal
        except PermissionError as exc:
            self._refusal = BootError("permission_denied", str(exc.strerror), GRUB_CFG)
        except BootError as exc:
            self._refusal = exc

    def parse(self, text: str) -> GrubCfg:
        """Follow TEXT in the place of grub.cfg. Raises BootError."""
        return read_grubcfg(self.root, PREFIX, text, read_grubenv(self.root, GRUBENV), self._platform())

    def _platform(self) -> str | None:
        """GRUB's name of the firmware it starts from; None where that is not known."""
        if self.live and exists(self.root, "/sys/firmware/efi"):
            return "efi"
        return "pc" if exists(self.root, f"{PREFIX}/i386-pc/normal.mod") else None

    # -- reading ------------------------------------------------------------------------------------

    def files(self) -> list[str]:
        return list(self.grub.files)

    def settings(self) -> list[Setting]:
        found = [self.grub.setting(name, DROPIN) for name in SHOWN]
        needed = (*NORMAL, LINUX_RECOVERY)
        return [row for row in found if row.value is not None or (row.problem and row.name in needed)]

    def entries(self) -> list[Entry]:
        return list(self.cfg.entries) if self.cfg else []

    def problems(self) -> list[Problem]:
        found = [row.problem for row in self.settings() if row.problem and row.name in NORMAL]
        if self._refusal:
            found.append(self._refusal.problem)
        found.extend(self.cfg.notes if self.cfg else ())
        return list(dict.fromkeys(found))

    def overriding(self, wanted: list[str]) -> Step | None:
        return overridden_by(self.grub, wanted)

    def configured_line(self) -> list[LineToken] | None:
        tokens = _normal_tokens(self.grub)
        self._through_grub(" ".join(self.grub.text(name) for name in NORMAL), tokens)
        return tokens

    def shared_line(self) -> str:
        """What the settings, read anew, give to recovery entries."""
        grub = read_default(self.root)
        return " ".join((grub.text(LINUX_RECOVERY), grub.text(LINUX)))

    def boot_tokens(self, grub: GrubDefault) -> list[LineToken]:
        """The tokens of the normal entry that grub-mkconfig would make from GRUB: root=, ro, the configured.

        10_linux writes the values into grub.cfg as they are, so GRUB takes them apart once more.
        """
        configured = _normal_tokens(grub)
        texts = self._through_grub(" ".join(grub.text(name) for name in NORMAL), configured)
        entry = self.cfg.default if self.cfg else None
        base, end = _made_by_script(entry, texts) if entry else ([], [])
        if len(texts) == len(configured):
            middle = [LineToken(text, t.source, t.ours) for text, t in zip(texts, configured)]
        else:
            middle = [LineToken(text) for text in texts]
        place = entry.tokens[0].source if entry and entry.tokens else None
        return [LineToken(text, place) for text in base] + middle + [LineToken(text, place) for text in end]

    def _through_grub(self, value: str, tokens: list[LineToken] | None) -> list[str]:
        """The kernel tokens that GRUB makes of VALUE. Raises BootError where VALUE ends the command."""
        interpreter = Interpreter(self.root, PREFIX, {}, None)
        for name in re.findall(r"\$\{?([A-Za-z_]\w*)", value):
            interpreter.variables[name] = None
        script = f"menuentry 'x' {{\nlinux /x {value}\n}}\n"
        why = ""
        try:
            commands = ScriptParser(script, GRUB_CFG).parse().statements
            block = commands[0].block if isinstance(commands[0], Command) else None
            if len(commands) != 1 or block is None or len(block) != 1:
                why = "it ends the command it is put in"
            elif any(token.text.startswith("#") for token in split(value)):
                why = "`#` begins a comment there"
            interpreter.run(GRUB_CFG, script)
        except BootError as exc:
            why = exc.problem.text
        if why:
            source = tokens[-1].source if tokens else None
            raise BootError(
                "grub_metacharacter",
                f"GRUB would not take {value!r} as one command line: {why}",
                source.file if source else None,
                source.line if source else None,
            )
        loaded = interpreter.menu[0].loaded
        line = loader_cmdline(loaded[0].args) if loaded else ""
        return [token.text for token in split(line)]

    # -- planning -----------------------------------------------------------------------------------

    def plan_over(self, request: Request, running: str | None, back: dict[str, str]) -> BootPlan:
        broken = self.grub.error is not None and self.grub.error.problem.file == DROPIN
        if self.grub.error and not broken:
            raise self.grub.error
        self.require_default(self._refusal)
        if self._refusal:
            raise self._refusal
        if self.cfg and self.cfg.notes:
            note = self.cfg.notes[0]
            raise BootError(note.reason, note.text, note.file, note.line)
        self._refuse_default(request)
        bare = read_default(self.root, overlay={DROPIN: "", **back})
        if bare.error:
            raise bare.error
        facts = self.facts()
        ours, replaced = settle(self.boot_tokens(bare), request, facts)
        bare, overlay = self._without(bare, replaced, {DROPIN: "", **back})
        plan = self._complete(request, running, ours, replaced, bare, overlay)
        edited = {path: text for path, text in overlay.items() if path != DROPIN}
        change = record(self.root, edited, replaced, back, self.text_at, present=bool(request.tokens))
        plan.files = in_order(plan.files, change)
        plan.lost = [] if request.tokens else lost(self.root, self.text_at, back)
        self._set_generation(plan)
        return plan

    def _refuse_default(self, request: Request) -> None:
        """Raise where the entry that boots by itself is one that the settings do not reach."""
        entry = self.cfg.default if self.cfg else None
        if entry is None or not request.tokens:
            return
        fixed = (entry.section or "").rpartition("/")[2].endswith("_custom")
        if (entry.recovery or fixed) and shortfall(entry.whole, list(request.tokens), self.facts()):
            kind = f"is written in {entry.section}" if fixed else "is a recovery entry"
            raise BootError(
                "token_not_generated",
                f"the entry that boots by itself, {entry.title!r}, {kind}, so the settings do not reach it; choose "
                "another (GRUB_DEFAULT, grub-set-default)",
                entry.section if fixed else entry.file,
                None if fixed else entry.file_line,
            )

    def _without(
        self, bare: GrubDefault, replaced: list[LineToken], overlay: dict[str, str]
    ) -> tuple[GrubDefault, dict[str, str]]:
        """BARE (with OVERLAY in the place of some files) without the foreign tokens REPLACED, and its overlay."""
        left = list(replaced)
        for name in NORMAL:
            names = {(token.text, token.source) for token in _tokens(bare, name)}
            mine = [token for token in left if (token.text, token.source) in names]
            if mine:
                overlay = drop_tokens(self.root, bare, name, mine, overlay, True)
                bare = read_default(self.root, overlay=overlay)
                left = [token for token in left if token not in mine]
        if left:
            text = f"{left[0].text} is not written in the files that are read"
            raise BootError("cannot_replace", text, *_where(left[0]))
        return bare, overlay

    def _complete(
        self,
        request: Request,
        running: str | None,
        ours: list[str],
        replaced: list[LineToken],
        bare: GrubDefault,
        overlay: dict[str, str],
    ) -> BootPlan:
        """The plan for having OURS in the drop-in over the files BARE (with OVERLAY in place of some)."""
        before_text = read_text(self.root, DROPIN)
        after_text = _content(bare, ours) if ours else None
        after = read_default(self.root, overlay={**overlay, DROPIN: after_text or ""})
        if after.error:
            raise after.error
        self._check_overridden(after, ours)
        _check_foreign(bare, after, ours)
        facts = self.facts()
        line = " ".join(token.text for token in self.boot_tokens(after))
        entry = self.cfg.default if self.cfg else None
        ahead = max((e.ahead for e in self.entries() if not e.recovery), key=len, default="")
        check_line(line, list(request.tokens), request, facts, ahead=ahead, file=DROPIN)
        plan = BootPlan(request, line=line, replaced=replaced, running=running)
        plan.line_before = entry.line if entry else None
        plan.memory = guard(line, request, running, facts, self.root)
        if before_text != after_text:
            plan.files.append(FileChange(DROPIN, before_text, after_text))
        for path, text in overlay.items():
            if path != DROPIN:
                plan.files.append(FileChange(path, read_text(self.root, path), text))
        current = bare if self.grub.error else self.grub
        now = " ".join(token.text for token in self.boot_tokens(current))
        if entry and self.live:
            now = entry.line  # which may be older than the settings
        # what stands in the drop-in is ours whatever it is, so it is not judged as a request
        about = Request((), request.keys, (*request.owned, *request.tokens, *_own_texts(current)))
        plan.before, plan.after = about.about(now), about.about(line)
        return plan

    def _set_generation(self, plan: BootPlan) -> None:
        """Whether grub.cfg is to be made anew, on a running host."""
        if self.live:
            plan.generate = bool(plan.files) or plan.before != plan.after
            plan.generated_path = GRUB_CFG
            if plan.generate:
                require_tools(self.root)
                plan.kept = backup_rows(self.root, GRUB_CFG)

    def _check_overridden(self, after: GrubDefault, ours: list[str]) -> None:
        if not ours or _own_texts(after) == ours:
            return
        step = overridden_by(after, ours)
        later = step or next(
            (step for step in reversed(after.steps) if step.name == LINUX_DEFAULT and step.file != DROPIN),
            None,
        )
        raise BootError(
            "overridden_by_dropin",
            f"{later.file if later else 'another file'} is read after {DROPIN} and sets {LINUX_DEFAULT} "
            "again, so our tokens would be lost: let it append, or give it a name that sorts before",
            later.file if later else None,
            later.line if later else None,
        )

    # -- applying -----------------------------------------------------------------------------------

    def apply(self, plan: BootPlan, run: Runner | None) -> dict[str, Any]:
        generator = Generator(self, plan, run) if plan.generate else None
        self._write(plan, generator)
        return {
            "generated": generator is not None,
            "backup": generator.backup if generator else None,
            "line": generator.line if generator else plan.line,
        }

    def _write(self, plan: BootPlan, generator: Generator | None) -> None:
        writer = self.writer()
        try:
            for change in plan.files:
                writer.write(change)
            if generator:
                generator.generate()
        except BaseException:
            writer.undo()
            raise


def _made_by_script(entry: Entry, configured: list[str]) -> tuple[list[str], list[str]]:
    """What 10_linux itself puts in front of and behind the configured tokens of ENTRY.

    The rest of the entry may be older than the settings. In front: root= and ro, rootflags= on btrfs; behind:
    a variable of GRUB ($vt_handoff on Ubuntu).
    """
    texts = [token.text for token in entry.tokens]
    at = next((index + 1 for index, text in enumerate(texts) if text in ("ro", "rw")), 1 if texts else 0)
    while at < len(texts) and texts[at].startswith("rootflags=") and texts[at] not in configured:
        at += 1
    end = len(texts)
    while end > at and texts[end - 1].startswith("$") and texts[end - 1] not in configured:
        end -= 1
    return texts[:at], texts[end:]


def _normal_tokens(grub: GrubDefault) -> list[LineToken]:
    return [token for name in NORMAL for token in _tokens(grub, name)]


def _tokens(grub: GrubDefault, name: str) -> list[LineToken]:
    return grub.tokens(name, DROPIN)


def _own_texts(grub: GrubDefault) -> list[str]:
    if grub.error:
        return []
    return [token.text for token in _normal_tokens(grub) if token.ours]


def _check_foreign(bare: GrubDefault, after: GrubDefault, ours: list[str]) -> None:
    """Raise where having OURS changes the tokens of others: a later file may ask whether a variable is empty."""
    before = [token.text for token in _normal_tokens(bare)] if ours else []
    left = [token.text for token in _normal_tokens(after) if not token.ours] if ours else []
    if before == left:
        return
    names = [os.path.basename(path) for path in after.files]
    later = after.files[names.index(os.path.basename(DROPIN)) + 1 :]
    step = next((s for s in reversed(bare.steps) if s.name in NORMAL and s.file in later), None)
    raise BootError(
        "foreign_tokens_changed",
        f"{step.file if step else 'a file'} is read after {DROPIN} and depends on whether arguments are there: "
        f"with ours those of others would be {' '.join(left)!r} instead of {' '.join(before)!r}; give it a name "
        "that sorts before, or write the value without a condition",
        step.file if step else None,
        step.line if step else None,
    )


def _content(bare: GrubDefault, ours: list[str]) -> str:
    """The text of the drop-in that adds OURS to what the files BARE configure.

    The entry reads `root=... ro LINUX LINUX_DEFAULT`. Behind a bare `--` the kernel reads nothing, so ours go
    in front of LINUX_DEFAULT where that holds one; a `--` in LINUX leaves no place.
    """
    dashes = [token for token in bare.tokens(LINUX) if token.text == "--"]
    if dashes:
        raise BootError(
            "after_double_dash",
            f"{LINUX} holds a bare `--`, behind which the kernel reads nothing; move it to {LINUX_DEFAULT}",
            *_where(dashes[0]),
        )
    added = " ".join(ours)
    if any(token.text == "--" for token in bare.tokens(LINUX_DEFAULT)):
        value = f"{added}${{{LINUX_DEFAULT}:+ ${LINUX_DEFAULT}}}"
    else:
        value = f"${{{LINUX_DEFAULT}:+${LINUX_DEFAULT} }}{added}"
    return f'{_HEADER}{LINUX_DEFAULT}="{value}"\n'


def _where(token: LineToken) -> tuple[str | None, int | None]:
    return (token.source.file, token.source.line) if token.source else (None, None)
