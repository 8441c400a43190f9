# SPDX-License-Identifier: Apache-2.0
"""The record on the host.

/etc/firsttouch/plan.json says what is ours, /var/lib/firsttouch/before.json what was first found. Both are
written before anything else is: `owned` then holds old and new tokens and units, and a value is saved before it
is overwritten. A run that is killed at any moment leaves a record with which the next run, or a revert, finds
everything.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import _files, _irqbalance, _service_state, _services, _thp
from ._boot_types import BACKUP_DIR
from ._intent import GENERAL, SECTIONS, variables
from ._ownership import DROPIN, still_there, with_foreign
from ._plan_document import SCHEMA, compose, named_groups, significant
from ._record import BEFORE, PLAN, SHAPES, StateError, read_before, read_plan, wrong_part
from ._sysctl import COUNTERPART, dotted, normalize, parse_lines
from ._tree import Tree

# Left by kernel_cmdline, which keeps the boot file that was there before its last change.
_BACKUP = f"{BACKUP_DIR}/grub.cfg.before"
_ORDER = (_BACKUP, BEFORE, PLAN)


def dump(document: Mapping[str, Any]) -> str:
    """DOCUMENT as the text of its file."""
    return json.dumps(document, indent=1, ensure_ascii=True) + "\n"


def merge(
    recorded: Mapping[str, Any] | None, plan: Mapping[str, Any], sections: Iterable[str], root: str
) -> Any:
    """RECORDED with SECTIONS of PLAN in the place of its own; None when there is nothing to record.

    Owned tokens and units that are in no plan any more and are gone from the host are dropped on the way.
    """
    chosen = set(sections)
    old: Mapping[str, Any] = (recorded or {}).get("sections") or {}
    merged = {name: (plan["sections"] if name in chosen else old).get(name) for name in SECTIONS}
    if not recorded and not any((row or {}).get("state") == "present" for row in merged.values()):
        return None
    if not chosen:
        return recorded
    document = {
        key: plan.get(key) for key in ("schema", "collection", "host", "topology", "numa", "transport")
    }
    wishes: Mapping[str, Any] = (recorded or {}).get("intent") or {}
    values = {
        name: given[name]
        for section in SECTIONS
        for given in (plan["intent"] if section in chosen else wishes,)
        for name in variables(section)
        if name in given
    }
    general = {name: plan["intent"][name] for name in GENERAL if name in plan["intent"]}
    document["intent"] = {**values, **general}
    document["sections"] = merged
    owned = with_foreign((recorded or {}).get("owned") or {}, merged, root)
    candidate = compose({**document, "owned": owned})
    if recorded and significant(candidate) == significant(recorded):
        return recorded
    return compose({**document, "owned": still_there(owned, root)})


def first_found(before: Mapping[str, Any] | None, plan: Mapping[str, Any], root: str) -> dict[str, Any]:
    """BEFORE with the live value of everything that PLAN is about to change and that it does not hold yet.

    Values of sysctls that are not ours any more go: if they become ours again, what they have then counts.
    """
    tree = Tree(root)
    fresh: dict[str, Any] = {"sysctl": {}, "thp": {}, "services": {}, "pools": {}, "cmdline": None}
    fresh["groups_absent"] = []
    found = {"schema": SCHEMA, **fresh, **(before or {})}
    if before is None or "groups_absent" in before:
        there = _groups(tree)
        gone = {name for name in named_groups(plan) if name not in there}
        found["groups_absent"] = sorted({*found["groups_absent"], *gone})
    found["sysctl"] = _first_sysctls(found["sysctl"], plan, tree)
    found["services"] = _first_services(found["services"], plan, root)
    found["thp"] = _first_thp(found["thp"], plan, tree)
    if found["cmdline"] is None and (plan.get("boot") or {}).get("tokens"):
        found["cmdline"] = tree.text("/proc/cmdline")
    pools = dict(found["pools"])
    for row in ((plan["sections"].get("hugepages") or {}).get("pools")) or ():
        name = f"{row['size_kb']}kB"
        if name not in pools:
            pools[name] = _live_pool(tree, name)
    found["pools"] = pools
    return found


def _first_sysctls(saved: Mapping[str, str], plan: Mapping[str, Any], tree: Tree) -> dict[str, str]:
    """SAVED with the live values of the plan's sysctls, each with the one that writing it zeroes."""
    ours = {row.key for row in parse_lines(tree.text(DROPIN) or "", DROPIN, DROPIN)[0]}
    result = dict(saved)
    for key in plan.get("sysctls") or {}:
        # A live value that our own file has set already is not what was first found.
        if key in result or normalize(key) in ours:
            continue
        for name in _with_counterpart(key):
            value = tree.text(f"/proc/sys/{normalize(name)}")
            if name not in result and value is not None:
                result[name] = " ".join(value.split())
    owned = [key for row in plan["owned"].values() for key in row["sysctls"]]
    still = {name for key in (*(plan.get("sysctls") or {}), *owned) for name in _with_counterpart(key)}
    return {key: value for key, value in result.items() if key in still}


def _first_thp(saved: Mapping[str, str], plan: Mapping[str, Any], tree: Tree) -> dict[str, str]:
    """SAVED with the live modes of transparent huge pages that the plan sets, without those that are not ours."""
    ours = _thp.ours(tree.text(_thp.FILE))
    wanted = (plan["sections"].get("thp") or {}).get("settings") or {}
    result = {name: mode for name, mode in saved.items() if name in ours or name in wanted}
    for name in wanted:
        chosen = _thp.choices(tree.text(f"{_thp.DIRECTORY}/{name}") or "")[1]
        if name not in result and name not in ours and chosen is not None:
            result[name] = chosen
    return result


def _first_services(saved: Mapping[str, Any], plan: Mapping[str, Any], root: str) -> dict[str, Any]:
    """SAVED with the state of the services that the plan stops, without those that are not held any more."""
    sections = plan["sections"]
    wanted = list((sections.get("services") or {}).get("stop") or ())
    if (sections.get("cpu_isolation") or {}).get("irqbalance") == "off":
        wanted.append(_irqbalance.SERVICE)
    held = _services.held(root)
    if _files.read_text(root, _irqbalance.DROPIN) == _services.DROPIN_TEXT:
        held.append(_irqbalance.SERVICE)
    result = {unit: row for unit, row in saved.items() if unit in wanted or unit in held}
    for unit in wanted:
        if unit not in result and unit not in held and _services.unit_file(root, unit):
            state = _service_state
            result[unit] = {"enabled": state.is_enabled(root, unit), "active": state.is_active(root, unit)}
    return result


def _with_counterpart(key: str) -> tuple[str, ...]:
    """KEY, dotted, and the other of its pair where it has one (vm.dirty_ratio and vm.dirty_bytes)."""
    other = COUNTERPART.get(normalize(key))
    return (key, dotted(other)) if other else (key,)


def groups_unused(before: Mapping[str, Any], root: str) -> list[str]:
    """The groups that were not there before us and that have no member and are nobody's primary group now."""
    tree = Tree(root)
    primary = {row[3] for row in _colons(tree, "/etc/passwd") if len(row) > 3}
    there = _groups(tree)
    return [
        name
        for name in before.get("groups_absent") or ()
        if name in there and not there[name][1] and there[name][0] not in primary
    ]


def _groups(tree: Tree) -> dict[str, tuple[str, str]]:
    """{name: (gid, members)} of /etc/group, group(5)."""
    return {row[0]: (row[2], row[3]) for row in _colons(tree, "/etc/group") if len(row) > 3}


def _colons(tree: Tree, path: str) -> list[list[str]]:
    return [line.split(":") for line in (tree.text(path) or "").splitlines()]


def _live_pool(tree: Tree, name: str) -> dict[str, int]:
    base = "/sys/devices/system/node"
    counts = {
        str(node): tree.number(f"{base}/node{node}/hugepages/hugepages-{name}/nr_hugepages")
        for node in tree.numbered(base, "node")
    }
    return {node: count for node, count in counts.items() if count is not None}


@dataclass(frozen=True)
class Record:
    """What plan_record is about to write: new texts by path (None: remove), with the documents as they are then."""

    root: str
    texts: dict[str, str | None]
    old: dict[str, str | None]
    plan: dict[str, Any]
    before: dict[str, Any]
    # The digest that a file will have by then, by path, where the run predicts another one than it has now.
    then: dict[str, str | None] = field(default_factory=dict)

    @property
    def changes(self) -> list[dict[str, Any]]:
        """The files that change, each with the SHA-256 of its content before and after."""
        rows = [
            {
                "resource": f"file:{path}",
                "before": self.then[path] if path in self.then else _digest(self.old[path]),
                "after": _digest(self.texts[path]),
            }
            for path in sorted(self.texts)
        ]
        return [row for row in rows if row["before"] != row["after"]]

    @property
    def diff(self) -> list[dict[str, str]]:
        """Both documents before and after, as whole texts, where they change."""
        return [
            {
                "before_header": path,
                "after_header": path,
                "before": self.old[path] or "",
                "after": self.texts[path] or "",
            }
            for path in (PLAN, BEFORE)
            if self.texts[path] != self.old[path]
        ]

    def apply(self) -> None:
        """Write before.json, then plan.json, or remove them in the same order; durable. Raises OSError."""
        for path in _ORDER:
            if path not in self.texts:
                continue
            text = self.texts[path]
            real = _files.resolve(self.root, path)
            if text is None:
                _files.remove(real)
                _remove_empty(os.path.dirname(real))
            elif text != self.old[path]:
                _files.atomic_write(real, text, 0o644)


def recording(
    root: str, plan: Mapping[str, Any], sections: Iterable[str], found: Mapping[str, Any]
) -> Record:
    """Merge SECTIONS of PLAN into the record below ROOT. FOUND: sysctls to save instead of live values.

    Raises StateError, and OSError where a file cannot be read.
    """
    wrong = wrong_part(plan, SHAPES[PLAN])
    if wrong is not None:
        raise StateError("bad_plan", f"plan is no result of host_plan: {wrong}")
    chosen = list(sections)
    recorded, before = read_plan(root), read_before(root)
    merged = merge(recorded, plan, chosen, root)
    saved = before
    if merged is not None and chosen:
        given = (
            {**(before or {}), "sysctl": {**found, **((before or {}).get("sysctl") or {})}}
            if found
            else before
        )
        saved = first_found(given, merged, root)
    old = {path: _files.read_text(root, path) for path in (PLAN, BEFORE)}
    texts = {PLAN: old[PLAN], BEFORE: old[BEFORE]}
    if merged is not None and merged != recorded:
        texts[PLAN] = dump(merged)
    if saved is not None and saved != before:
        texts[BEFORE] = dump(saved)
    return Record(root, texts, old, merged or {}, saved or {})


def removal(root: str, predicted: Iterable[Mapping[str, Any]] = ()) -> Record:
    """Remove the record below ROOT, also one that cannot be read. Raises OSError.

    PREDICTED are the changes that the run predicts before this one: what they leave is what is removed then.
    """
    old = {path: _files.read_text(root, path) for path in _ORDER}
    then = {
        path: row.get("after")
        for row in predicted
        for path in _ORDER
        if row.get("resource") == f"file:{path}"
    }
    return Record(root, dict.fromkeys(_ORDER), old, {}, {}, then)


def _digest(text: str | None) -> str | None:
    return None if text is None else "sha256:" + hashlib.sha256(_files.encode(text)).hexdigest()


def _remove_empty(path: str) -> None:
    try:
        os.rmdir(path)
    except OSError as exc:
        if exc.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
            raise
