# SPDX-License-Identifier: Apache-2.0
"""What the live checks look at: the plan, and a host read once, with every way of not knowing kept apart."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from . import _files
from ._collect_scrub import same
from ._intent import Refusal
from ._kernel_facts import KernelFacts
from ._topology_host import MANIFEST
from ._verdict import Result, skipped

HUGEPAGES = "firsttouch_hugepages"
MOUNTS = "firsttouch_hugetlbfs_mounts"
ISOLATED = "firsttouch_isolated_cpus"
IRQBALANCE = "firsttouch_irqbalance"
VM_SYSCTLS = "firsttouch_vm_sysctls"
EXTRA_FREE = "firsttouch_extra_free_bytes"
RT_RUNTIME = "firsttouch_rt_runtime_us"
NUMA_BALANCING = "firsttouch_numa_balancing"
THP = "firsttouch_thp"
MODELS = "firsttouch_models"
SERVERS = "firsttouch_servers"
SERVICES = "firsttouch_conflicting_services"
REBOOT = "firsttouch_reboot"
CONFLICT = "firsttouch_on_conflict"
FLOOR = "firsttouch_reserve_floor_bytes"
_T = TypeVar("_T")
REMEDIES = {
    "permission_denied": "Run the verification as root.",
    "not_recorded": "The recording does not have it: record it again, as root, with firsttouch.host.collect.",
    "scrubbed": "Addresses and ids were replaced when the host was recorded: record it without scrubbing.",
}


class Unreadable(Exception):
    """PATH is there or may be there, but cannot be read or understood.

    `reason` is permission_denied, not_recorded (a sosreport does not have it) or unreadable.
    """

    def __init__(self, path: str, exc: OSError) -> None:
        super().__init__(f"{path}: {exc.strerror or exc}")
        self.path = path
        denied = exc.errno in (errno.EACCES, errno.EPERM)
        self.reason = "permission_denied" if denied else "not_recorded" if exc.errno == errno.ENODATA else "unreadable"


@dataclass(frozen=True)
class Check:
    """One question. `ask` yields Results; it is only called when one of `layers` is wanted.

    `intended` says whether the plan asks for what it checks, for when it could not be answered at all. What is told
    `always` is told whatever layers and concerns are wanted, and as it is: no other answer counts without it.
    """

    id: str
    layers: tuple[str, ...]
    ask: Callable[[Context], Iterable[Result]]
    intended: Callable[[Context], bool] = lambda ctx: True

    also: tuple[str, ...] = ()
    always: bool = False

    @property
    def concerns(self) -> tuple[str, ...]:
        """The concerns that its results may belong to: that of the id, and those in `also`."""
        return (self.id.split(".", 1)[0], *self.also)

    @property
    def unanswered(self) -> str:
        """The id of the one result that says that it ended early."""
        return f"{self.id}.read"


class Context:
    """A plan, and the host under ROOT that should be like it. Reads only, and each thing once."""

    def __init__(
        self,
        plan: Mapping[str, Any],
        root: str = "/",
        *,
        recorded: Mapping[str, Any] | None = None,
        intent: Mapping[str, Any] | None = None,
        unusable: tuple[str, str] | None = None,
        refusals: Sequence[Refusal] = (),
        is_recorded: bool = False,
        unplanned: Sequence[Refusal] = (),
        made_anew: bool = False,
    ) -> None:
        """PLAN is the host's own plan.json when it IS_RECORDED; else RECORDED is, and UNUSABLE (reason, text) why it
        cannot be used although it is there. With REFUSALS the intent does not fit the host, and PLAN is what is held
        against it instead. UNPLANNED is what a sosreport has too little for, and PLAN does without. One that was
        MADE_ANEW is of the host as it is now."""
        self.plan = plan
        self.root = root
        self.live = os.path.realpath(root) == "/"
        self.recorded = recorded
        self.unusable = unusable
        self.refusals = refusals
        self.is_recorded = is_recorded
        self.unplanned = unplanned
        self.made_anew = made_anew
        self.intent: Mapping[str, Any] = intent if intent is not None else plan.get("intent") or {}
        self._kept: dict[str, Any] = {}

    def keep(self, name: str, read: Callable[[], Any]) -> Any:
        """READ's result, obtained once."""
        if name not in self._kept:
            self._kept[name] = read()
        return self._kept[name]

    def section(self, name: str) -> Mapping[str, Any]:
        """The plan's section NAME; empty when the concern is not managed or its state is absent."""
        found = (self.plan.get("sections") or {}).get(name)
        return found if isinstance(found, Mapping) and found.get("state") != "absent" else {}

    def tokens(self) -> list[str]:
        """All boot tokens of the plan, in order."""
        return [str(token) for token in (self.plan.get("boot") or {}).get("tokens") or []]

    def left_over(self, kind: str) -> list[str]:
        """What of KIND (tokens, units, sysctls) was ours once and is not in the plan any more."""
        owned = [item for row in (self.plan.get("owned") or {}).values() for item in row.get(kind) or []]
        sections = [row for row in (self.plan.get("sections") or {}).values() if row]
        wanted = {str(item) for row in sections for item in row.get(kind) or []}
        return [str(item) for item in dict.fromkeys(owned) if str(item) not in wanted]

    def raw(self, path: str) -> str | None:
        """The text of PATH as it is, None when absent. Raises Unreadable."""
        try:
            return _files.read_text(self.root, path)
        except OSError as exc:
            raise Unreadable(path, exc) from exc

    def text(self, path: str) -> str | None:
        """The stripped text of PATH, None when absent. Raises Unreadable.

        NUL bytes go: recorded sysfs files are often padded to their page.
        """
        found = self.raw(path)
        return None if found is None else found.replace("\0", "").strip()

    def parsed(self, path: str, convert: Callable[[str], _T]) -> _T | None:
        """CONVERT of the stripped text of PATH, None when absent. Raises Unreadable where that is a ValueError."""
        found = self.text(path)
        try:
            return None if found is None else convert(found)
        except ValueError as exc:
            raise Unreadable(path, OSError(0, f"not understood: {str(exc)[:200]}")) from exc

    def unrecorded(self, *directories: str) -> bool:
        """Whether this is a recorded host whose recording holds none of DIRECTORIES: what is not there says nothing."""
        return not self.live and all(self.names(directory) is None for directory in directories)

    def recording(self) -> Mapping[str, Any]:
        """What a recorded host says of its recording; empty for a live one. Raises Unreadable."""
        found = {} if self.live else self.keep("recording", lambda: self.parsed(MANIFEST, json.loads))
        return found if isinstance(found, Mapping) else {}

    def scrubbed(self) -> bool:
        """Whether the host's files may have stand-ins in them. Raises Unreadable."""
        return not self.live and self.recording().get("scrubbed") is not False

    def same(self, path: str, found: str, planned: str, recorded: str | None) -> bool | None:
        """Whether the text FOUND at PATH is the one PLANNED; RECORDED is the one of the host's own plan.json.

        A recording has stand-ins for addresses, ids and the like, the same ones in all of its files: FOUND is right
        where it is that of its plan.json, and that is the one planned but for these. None where there is no such text.
        """
        if found == planned or not self.scrubbed() or self.is_recorded or not same(path, found, planned):
            return found == planned
        return None if recorded is None else found == recorded

    def left_out(self, path: str) -> bool:
        """Whether PATH, or a directory above it, is on the recorded host and could not be read there."""
        try:
            skipped = self.recording().get("skipped")
        except Unreadable:
            return False
        return isinstance(skipped, Mapping) and any(f"{path}/".startswith(f"{name}/") for name in skipped)

    def names(self, path: str) -> list[str] | None:
        """The names in directory PATH, None when absent. Raises Unreadable."""
        try:
            return _files.list_dir(self.root, path)
        except OSError as exc:
            raise Unreadable(path, exc) from exc

    def stat(self, path: str) -> os.stat_result | None:
        """stat() of PATH, None when absent. Raises Unreadable."""
        try:
            return os.stat(_files.resolve(self.root, path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as exc:
            raise Unreadable(path, exc) from exc

    def facts(self) -> KernelFacts:
        """What is known of the running or recorded kernel, its CPUs and its nodes; read once."""
        found: KernelFacts = self.keep("facts", lambda: KernelFacts.from_sysroot(self.root))
        return found


def answered(check: Check, ctx: Context, layer: str | None = None) -> Iterator[Result]:
    """The results of CHECK; a read that fails ends it with not_evaluated, a defect with error.

    That is an answer about LAYER, which must be a wanted one: what broke may not vanish for who looks at others.
    """
    layer = layer or check.layers[0]
    try:
        yield from check.ask(ctx)
    except (Unreadable, OSError) as refused:
        exc = refused if isinstance(refused, Unreadable) else Unreadable(str(refused.filename or ""), refused)
        if ctx.left_out(exc.path):
            exc.reason = "not_recorded"
        yield skipped(
            check.unanswered,
            layer,
            exc.reason,
            observed=str(exc),
            source=exc.path,
            intended=check.intended(ctx),
            remedy=REMEDIES.get(exc.reason, "Look at that file: it is not what the kernel or a package puts there."),
        )
    except Exception as exc:  # noqa: BLE001  a defect in one check must not hide what the others found
        yield Result(check.unanswered, "error", layer, None, f"{type(exc).__name__}: {exc}", "check_broke")
