# SPDX-License-Identifier: Apache-2.0
"""Make grub.cfg anew beside the old one, look at the entry that would boot, and only then put it in place.

update-grub writes over grub.cfg while it is in use: a crash or a full disk in between leaves a host that
does not boot.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

from ._boot_effect import shortfall
from ._boot_grubcfg import GrubCfg
from ._boot_plan import BootPlan, check_line, guard
from ._boot_types import BACKUP_DIR, BootError, Entry, Runner
from ._files import atomic_write, copy_attributes, encode, fsync_dir, read_bytes, read_text, remove, resolve

if TYPE_CHECKING:
    from ._boot_grub import GrubBackend

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BACKUP = f"{BACKUP_DIR}/grub.cfg.before"
_TITLES = ("LANG", "LANGUAGE", "LC_MESSAGES", "LC_ALL")


class Generator:
    """One generation for `plan`; backup and line are set by generate()."""

    def __init__(self, backend: GrubBackend, plan: BootPlan, run: Runner | None) -> None:
        self.backend = backend
        self.plan = plan
        self.run = run
        self.backup: str | None = None
        self.line: str | None = None
        self.path = plan.generated_path or ""
        self._old: bytes | None = None

    def generate(self) -> None:
        """Make, check and install grub.cfg. Raises BootError; the old grub.cfg is then untouched."""
        real = resolve(self.backend.root, self.path)
        temp = f"{real}.firsttouch"
        try:
            self._command("grub-mkconfig", "-o", temp)
            self._command("grub-script-check", temp)
            text = read_text("/", temp)
            if not text:
                raise BootError("generation_failed", "grub-mkconfig made no grub.cfg", self.path)
            self._judge(self.backend.parse(text))
            self._install(temp, real)
        except BaseException:
            self._put_back(real)
            raise
        finally:
            for path in (temp, f"{temp}.new"):
                remove(path)

    def _command(self, name: str, *arguments: str) -> None:
        tool = _tool(self.backend.root, name)
        if tool is None or self.run is None:
            raise BootError("tool_missing", f"{name} cannot be run here; install it")
        status, out, err = self.run([tool, *arguments], _environment(self.backend.root))
        if status:
            last = (err or out).strip().splitlines()[-8:]
            raise BootError(
                "generation_failed",
                f"{name} failed with status {status}; nothing was changed: {' | '.join(last)}",
                self.path,
            )

    def _judge(self, cfg: GrubCfg) -> None:
        """Raise unless every normal entry of 10_linux has our tokens and no recovery entry has them."""
        if cfg.default is None:
            raise cfg.refusal or BootError("default_entry_unresolvable", "nothing boots by itself", self.path)
        if cfg.notes:
            raise BootError(cfg.notes[0].reason, cfg.notes[0].text, self.path)
        request, facts = self.plan.request, self.backend.facts()
        wanted = list(request.tokens)
        for entry in cfg.entries:
            if wanted and not entry.recovery and (entry.default or _by_distribution(entry)):
                missing = shortfall(entry.whole, wanted, facts)
                if missing:
                    raise self._lost(entry, missing[1])
        check_line(cfg.default.line, wanted, request, facts, ahead=cfg.default.ahead, file=self.path)
        guard(cfg.default.line, request, self.plan.running, facts, self.backend.root)
        about = request.about(cfg.default.line)
        if not wanted and any(token in about for token in self.plan.before if token not in self.plan.after):
            raise self._lost(cfg.default, f"still there: {' '.join(about)}")
        shared = request.about(self.backend.shared_line())
        for entry in cfg.entries:
            if entry.recovery and any(text not in shared for text in request.about(entry.line)):
                raise BootError(
                    "recovery_entry_touched",
                    f"the recovery entry {entry.title!r} would have our tokens",
                    entry.section or self.path,
                )
        self.line = cfg.default.line

    def _lost(self, entry: Entry, text: str) -> BootError:
        return BootError(
            "token_not_generated",
            f"the entry {entry.title!r}, written by {entry.section or 'an unknown script'}, does not have "
            f"what the settings ask for ({text}); nothing was changed",
            entry.section or self.path,
            entry=entry.id,
        )

    def _install(self, temp: str, real: str) -> None:
        old = read_bytes("/", real)
        if old is not None:
            self.backup = BACKUP
            atomic_write(resolve(self.backend.root, self.backup), old, 0o600)
            self._old = old
        copy_attributes(real if old is not None else None, temp, 0o600)
        fd = os.open(temp, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temp, real)
        fsync_dir(os.path.dirname(real))

    def _put_back(self, real: str) -> None:
        """Undo a replacement after which something failed, such as making it durable."""
        if self._old is not None and read_bytes("/", real) != self._old:
            atomic_write(real, self._old)


def require_tools(root: str) -> None:
    """Raise BootError `tool_missing` where grub.cfg could not be made."""
    for tool in ("grub-mkconfig", "grub-script-check"):
        if _tool(root, tool) is None:
            raise BootError("tool_missing", f"{tool} is not installed, so grub.cfg cannot be made; install it")


def _tool(root: str, name: str) -> str | None:
    for directory in _PATH.split(":"):
        real = resolve(root, f"{directory}/{name}")
        if os.access(real, os.X_OK) and os.path.isfile(real):
            return real
    return None


def backup_rows(root: str, path: str) -> list[dict[str, Any]]:
    """The row for the copy of PATH, the old grub.cfg; both sides are digests, as plan_record gives them."""
    before, after = (_digest(read_bytes(root, name)) for name in (BACKUP, path))
    return [{"resource": f"file:{BACKUP}", "before": before, "after": after}] if after not in (None, before) else []


def _digest(data: bytes | None) -> str | None:
    return None if data is None else "sha256:" + hashlib.sha256(data).hexdigest()


def _by_distribution(entry: Entry) -> bool:
    return bool(entry.section and entry.section.endswith("/10_linux"))


def _environment(root: str) -> dict[str, str]:
    """A clean environment with the language of the system, in which the menu titles are written."""
    result = {"PATH": _PATH, "HOME": "/root", "LC_COLLATE": "C"}
    for path in ("/etc/default/locale", "/etc/locale.conf"):
        for line in (read_text(root, path) or "").splitlines():
            name, equals, value = line.partition("=")
            if equals and name in _TITLES and name not in result:
                value = value.strip().strip("\"'")
                result["LANG" if name == "LC_ALL" else name] = encode(value).decode("ascii", "replace")
    return result
