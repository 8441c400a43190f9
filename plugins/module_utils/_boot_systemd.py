# SPDX-License-Identifier: Apache-2.0
"""systemd-boot with entries made by kernel-install: the entry files and /etc/kernel/cmdline are edited."""

from __future__ import annotations

import fnmatch
import os
import re
from functools import cmp_to_key
from typing import Any

from ._boot_backend import Backend
from ._boot_carriers import Carrier, one_line, place, put_back_entries
from ._boot_plan import BootPlan, FileChange, Request, check_line, guard
from ._boot_replaced import in_order, lost, record
from ._boot_type1 import Type1, parse, read_entries, systemd_compare, with_options
from ._boot_types import BootError, Entry, LineToken, Problem, Runner, Setting, Source
from ._cmdline import split
from ._files import list_dir, read_bytes, read_text, resolve

KERNEL_CMDLINE = "/etc/kernel/cmdline"
# Where the EFI system partition and the extended boot partition are mounted (bootctl(1)).
PLACES = ("/boot", "/efi", "/boot/efi")
_EFIVARS = "/sys/firmware/efi/efivars"
_LOADER_GUID = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"


class SystemdBootBackend(Backend):
    """See Backend."""

    name = "systemd_boot"
    folder = os.path.dirname(KERNEL_CMDLINE)

    def __init__(self, root: str, live: bool) -> None:
        super().__init__(root, live)
        self._problems: list[Problem] = []
        self._refusal: BootError | None = None
        self.raw: list[Type1] = []
        self._entries: list[Entry] = []
        self.loader: list[tuple[str, str, Source]] = []
        try:
            self._load()
        except PermissionError as exc:
            self._refusal = BootError("permission_denied", str(exc.strerror), exc.filename)
        except BootError as exc:
            self._refusal = exc

    def _load(self) -> None:
        places = loader_places(self.root)
        for place_ in places:
            self.raw.extend(read_entries(self.root, f"{place_}/loader/entries"))
            self.loader.extend(_loader_conf(self.root, f"{place_}/loader/loader.conf"))
        self.raw.sort(key=cmp_to_key(_order))
        usual = split_texts(read_text(self.root, KERNEL_CMDLINE) or "")
        self._entries = [_entry(raw, usual) for raw in self.raw]
        images = [
            f"{p}/EFI/Linux/{name}" for p in places for name in list_dir(self.root, f"{p}/EFI/Linux") or []
        ]
        images = [path for path in images if path.lower().endswith(".efi")]
        index = self._default_index(images)
        if index is not None:
            self._entries[index] = self._entries[index].as_default()

    # -- reading ------------------------------------------------------------------------------------

    def files(self) -> list[str]:
        kernel = [KERNEL_CMDLINE] if read_text(self.root, KERNEL_CMDLINE) is not None else []
        loader = list(dict.fromkeys(source.file for _key, _value, source in self.loader))
        return [*kernel, *loader, *(raw.path for raw in self.raw)]

    def settings(self) -> list[Setting]:
        rows = [Setting(key, value, (), (source,)) for key, value, source in self.loader if key == "default"]
        text = read_text(self.root, KERNEL_CMDLINE)
        if text is not None:
            rows.append(
                Setting(
                    KERNEL_CMDLINE, text.strip(), tuple(_kernel_tokens(text)), (Source(KERNEL_CMDLINE, 1),)
                )
            )
        return rows

    def entries(self) -> list[Entry]:
        return self._entries

    def problems(self) -> list[Problem]:
        return [*self._problems, *([self._refusal.problem] if self._refusal else [])]

    def configured_line(self) -> list[LineToken] | None:
        text = read_text(self.root, KERNEL_CMDLINE)
        return None if text is None else _kernel_tokens(text)

    def _default_index(self, images: list[str]) -> int | None:
        """The entry systemd-boot selects (boot.c config_select_default_entry); None where that is unknown."""
        named = [_efi_variable(self.root, name) for name in ("LoaderEntryOneShot", "LoaderEntryDefault")]
        named.append(next((value for key, value, _source in reversed(self.loader) if key == "default"), None))
        for name in named:
            pattern = _efi_variable(self.root, "LoaderEntryLastBooted") if name == "@saved" else name
            if pattern:
                index = next((i for i, raw in enumerate(self.raw) if _matches(pattern, raw)), None)
                if index is not None and not _matches_image(pattern, images):
                    return index
                text = f"the default entry {pattern!r} is no entry with a command line of its own"
                if _matches_image(pattern, images):
                    raise BootError(
                        "unsupported_bootloader", text + ": unified kernel images are not changed"
                    )
                self._problems.append(Problem("default_entry_not_found", text))
        if images and self.raw:
            raise BootError(
                "unsupported_bootloader",
                "unified kernel images are beside the entries and no default is set, so either may boot",
                images[0],
            )
        return 0 if self.raw else None

    # -- planning -----------------------------------------------------------------------------------

    def put_back(self, request: Request) -> dict[str, str]:
        return put_back_entries(self.root, self._own_entries(), self.text_at, request.owned)

    def plan_over(self, request: Request, running: str | None, back: dict[str, str]) -> BootPlan:
        if self._refusal:
            raise self._refusal
        self.require_default(None)
        facts = self.facts()
        own = self._own_entries()
        raws = {raw.path: parse(raw.path, back[raw.path]) if raw.path in back else raw for raw in own}
        carriers = [Carrier(raw.path, "options", raw.tokens) for raw in raws.values()]
        text = back.get(KERNEL_CMDLINE, read_text(self.root, KERNEL_CMDLINE))
        if text is not None:
            carriers.append(Carrier(KERNEL_CMDLINE, "cmdline", tuple(_kernel_tokens(text))))
        elif not carriers:
            raise BootError(
                "nothing_to_change", "there is no boot entry and no /etc/kernel/cmdline", KERNEL_CMDLINE
            )
        placed, replaced = place(carriers, request, facts)
        plan = BootPlan(request, running=running, replaced=replaced)
        texts = {carrier.path: wanted for carrier, wanted in zip(carriers, placed)}
        for path, wanted in texts.items():
            raw = raws.get(path)
            after = with_options(raw, wanted) if raw else one_line(KERNEL_CMDLINE, text or "", wanted)
            change = FileChange(path, read_text(self.root, path), after)
            plan.files += [change] if change.before != change.after else []
        changed = {change.path: change.after for change in plan.files}
        entries = [carrier.path for carrier in carriers if carrier.name == "options"]
        kept = record(
            self.root, changed, replaced, back, self.text_at, present=bool(request.tokens), entries=entries
        )
        plan.files = in_order(plan.files, kept)
        plan.lost = [] if request.tokens else lost(self.root, self.text_at, back)
        entry = self.default_entry()
        before = entry.line if entry else read_text(self.root, KERNEL_CMDLINE) or ""
        line = " ".join(texts.get(str(entry.file) if entry else KERNEL_CMDLINE, split_texts(before)))
        plan.line_before, plan.line = (before, line) if entry else (None, None)
        plan.before, plan.after = request.about(before), request.about(line)
        if entry:
            check_line(line, list(request.tokens), request, facts, ahead=entry.ahead, file=entry.file)
            plan.memory = guard(line, request, running, facts, self.root)
        return plan

    def _own_entries(self) -> list[Type1]:
        """The entries of this installation that are no rescue entries, and the one that boots by itself."""
        machine = (read_text(self.root, "/etc/machine-id") or "").strip()
        return [
            raw
            for raw, entry in zip(self.raw, self._entries)
            if (entry.default or not entry.recovery)
            and (not raw.machine_id or not machine or raw.machine_id == machine)
        ]

    # -- applying -----------------------------------------------------------------------------------

    def apply(self, plan: BootPlan, run: Runner | None) -> dict[str, Any]:
        writer = self.writer()
        try:
            for change in plan.files:
                writer.write(change)
            entry = SystemdBootBackend(self.root, self.live).default_entry()
            if plan.line is not None and (entry is None or entry.line != plan.line):
                raise BootError(
                    "token_not_generated",
                    f"the default entry boots {entry.line if entry else None!r} instead of {plan.line!r}; "
                    "everything was put back",
                    entry.file if entry else None,
                )
        except BaseException:
            writer.undo()
            raise
        return {"generated": False, "backup": None, "line": plan.line}


def loader_places(root: str) -> list[str]:
    """The mount points that hold a `loader` directory, each once."""
    found: dict[str, str] = {}
    for place_ in PLACES:
        if list_dir(root, f"{place_}/loader") is not None:
            found.setdefault(resolve(root, f"{place_}/loader"), place_)
    return list(found.values())


def efi_loader(root: str) -> str | None:
    """What the boot loader that ran calls itself (LoaderInfo of the Boot Loader Interface)."""
    return _efi_variable(root, "LoaderInfo")


def split_texts(line: str) -> list[str]:
    """The texts of all tokens of LINE."""
    return [token.text for token in split(line)]


def _entry(raw: Type1, usual: list[str]) -> Entry:
    return Entry(
        id=f"{raw.id}.conf",
        title=raw.title,
        linux=raw.linux,
        ahead=" ".join(f"initrd={path}" for path in raw.initrd),
        line=" ".join(token.text for token in raw.tokens),
        recovery=raw.recovery(usual),
        file=raw.path,
        file_line=raw.options_line,
        version=raw.version,
        tokens=raw.tokens,
    )


def _order(a: Type1, b: Type1) -> int:
    """boot.c boot_entry_compare: exhausted entries last, sort keys first, then the newest version."""
    exhausted = (a.tries_left == 0) - (b.tries_left == 0)
    if exhausted:
        return exhausted
    if bool(a.sort_key) != bool(b.sort_key):
        return -1 if a.sort_key else 1
    if a.sort_key:
        for left, right in ((a.sort_key, b.sort_key), (a.machine_id, b.machine_id)):
            if left != right:
                return 1 if left > right else -1
        version = systemd_compare(a.version, b.version)
        if version:
            return -version
    newer = systemd_compare(a.id.lower(), b.id.lower())
    if newer or a.tries_left is None or b.tries_left is None:
        return -newer
    return (b.tries_left - a.tries_left) or (a.tries_done - b.tries_done)


def _matches(pattern: str, raw: Type1) -> bool:
    """efi_fnmatch over the file name without the boot counter; FAT names carry no case."""
    return _glob(pattern, f"{raw.id}.conf")


def _matches_image(pattern: str, images: list[str]) -> bool:
    return any(_glob(pattern, path.rpartition("/")[2]) for path in images)


def _glob(pattern: str, name: str) -> bool:
    return fnmatch.fnmatchcase(name.lower(), pattern.lower())


def _kernel_tokens(text: str) -> list[LineToken]:
    return [LineToken(token.text, Source(KERNEL_CMDLINE, 1)) for token in split(text)]


def _loader_conf(root: str, path: str) -> list[tuple[str, str, Source]]:
    rows = []
    for number, line in enumerate((read_text(root, path) or "").split("\n"), 1):
        match = re.match(r"[ \t]*([^#\s]\S*)[ \t]+(.*?)[ \t]*$", line)
        if match:
            rows.append((match.group(1), match.group(2), Source(path, number)))
    return rows


def _efi_variable(root: str, name: str) -> str | None:
    """A string variable of the Boot Loader Interface; None when it is not set or not readable."""
    try:
        data = read_bytes(root, f"{_EFIVARS}/{name}-{_LOADER_GUID}")
    except OSError:
        return None
    if data is None or len(data) < 6:
        return None
    return data[4:].decode("utf-16-le", "replace").rstrip("\0") or None
