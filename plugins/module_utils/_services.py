# SPDX-License-Identifier: Apache-2.0
"""Services that fight settings of ours: which there are, what each of them sets, and what of it contradicts a plan.

irqbalance is not among them, it has a variable of its own. Nor is systemd-oomd: it ends processes when memory is
short, but changes nothing that we set. ufw sets sysctls too, but stopping a firewall is no remedy.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from . import _files, _thp
from ._boot_owners import tuned_arguments
from ._cmdline import make, normal_key
from ._sysctl import COUNTERPART, dotted, normalize, same_value
from ._sysctl_foreign import tuned_section, tuned_writers
from ._systemd import MARKER, UNIT_DIR, is_ours

# Each service that may be stopped, and why it may have to be.
TABLE: dict[str, str] = {
    "tuned.service": "sets the sysctls, huge page modes and boot arguments of its profile again whenever it starts",
    "ksm.service": "switches KSM on, which breaks transparent huge pages up to merge parts of them (mm/ksm.c)",
    "ksmtuned.service": "switches KSM on when memory runs short, which breaks transparent huge pages up",
    "numad.service": "binds processes to all CPUs of a node, isolated ones too, and moves their memory between nodes",
    # Units under the names that MongoDB's manual gives them, and others after it.
    "disable-transparent-huge-pages.service": "writes a mode of transparent huge pages at every boot",
    "enable-transparent-huge-pages.service": "writes a mode of transparent huge pages at every boot",
    "disable-thp.service": "writes a mode of transparent huge pages at every boot",
}
MODES = ("report", "stop")
IRQBALANCE_MODES = ("keep", "ban_isolated", "off")
UNIT_DIRS = (UNIT_DIR, "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system",
             "/lib/systemd/system")  # fmt: skip
# A condition that never holds: the unit stays installed and enabled, and is itself again without this file.
DROPIN_TEXT = f"{MARKER}\n[Unit]\nConditionPathExists=!/\n"
_KSM_RUN = "/sys/kernel/mm/ksm/run"
_SCALING = ("enabled", "defrag", "shmem_enabled")
_ECHO = re.compile(r"echo\s+[\"']?([\w+]+)[\"']?\s*(?:>|\|\s*tee\b)[^;&]*?transparent_hugepage/(\w+)")
_THP_OF_TUNED = {
    "transparent_hugepages": "enabled",
    "transparent_hugepage": "enabled",
    "transparent_hugepage.defrag": "defrag",
}
_VM_OF_TUNED = ("dirty_ratio", "dirty_bytes", "dirty_background_ratio", "dirty_background_bytes")
_VARIABLES = {"rt_scheduling": "rt_runtime_us", "cpu_isolation": "isolated_cpus", "thp": "thp"}


@dataclass(frozen=True)
class Claim:
    """What an installed service of the table sets. kind: sysctl, thp, token, merge or placement."""

    unit: str
    kind: str
    key: str
    value: str
    file: str
    line: int = 0

    @property
    def source(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True)
class Fight:
    """A claim against what VARIABLE (without the prefix) asks for, WANTED."""

    claim: Claim
    variable: str
    wanted: str

    @property
    def text(self) -> str:
        claim = self.claim
        key = dotted(claim.key) if claim.kind == "sysctl" else claim.key
        said = claim.value if claim.kind == "token" else f"{key}={claim.value}"
        return f"{said} against {self.wanted}"


def dropin(unit: str) -> str:
    """The file of ours that keeps UNIT from running."""
    return f"{UNIT_DIR}/{unit}.d/zz-firsttouch.conf"


def unit_file(root: str, unit: str) -> str | None:
    """Where UNIT is installed below ROOT; None when it is not, or masked. Raises OSError."""
    unknown: OSError | None = None
    for folder in UNIT_DIRS:
        try:
            real = os.path.join(_files.resolve(root, folder), unit)
        except OSError as exc:
            if exc.errno != errno.ENODATA:
                raise
            unknown = exc  # a sosreport lacks this folder: it matters where no other one has the unit
            continue
        if os.path.islink(real) and os.readlink(real) == "/dev/null":
            return None
        text = _files.read_text(root, f"{folder}/{unit}")
        if text is not None:
            return f"{folder}/{unit}" if text else None
    if unknown is not None:
        raise unknown
    return None


def held(root: str) -> list[str]:
    """The services of the table that a file of ours keeps from running. Raises OSError."""
    return [unit for unit in TABLE if is_ours(_files.read_text(root, dropin(unit)) or "")]


def read_claims(root: str) -> tuple[Claim, ...]:
    """What the installed services of the table set, whether they run or not. Raises OSError."""
    found: list[Claim] = []
    for unit in TABLE:
        path = unit_file(root, unit)
        if path is None:
            continue
        if unit == "tuned.service":
            found += _tuned(root)
        elif unit.startswith("ksm"):
            found.append(Claim(unit, "merge", _KSM_RUN, "1", path))
        elif unit == "numad.service":
            found.append(Claim(unit, "placement", "CPU affinity", "all CPUs of a node", path))
        else:
            found += _thp_unit(root, unit, path)
    return tuple(found)


def _tuned(root: str) -> Iterator[Claim]:
    unit = "tuned.service"
    for item in tuned_writers(root):
        yield Claim(unit, "sysctl", item.key, item.value, item.file, item.line)
    last: dict[str, Claim] = {}
    for name, value, path, line in tuned_section(root, "vm"):
        if name in _THP_OF_TUNED:
            last[name] = Claim(unit, "thp", _THP_OF_TUNED[name], value, path, line)
        elif name in _VM_OF_TUNED:
            last[name] = Claim(unit, "sysctl", f"vm/{name}", value, path, line)
    yield from last.values()
    for token in tuned_arguments(root):
        yield Claim(unit, "token", normal_key(make(token.text).key), token.text, token.file, token.line)


def _thp_unit(root: str, unit: str, path: str) -> Iterator[Claim]:
    for number, line in enumerate((_files.read_text(root, path) or "").splitlines(), 1):
        if line.strip().startswith("Exec"):
            for value, name in _ECHO.findall(line):
                if name in _SCALING:
                    yield Claim(unit, "thp", name, value, path, number)


def fights(claims: Iterable[Claim], sections: Mapping[str, Any]) -> list[Fight]:
    """Those of CLAIMS that contradict the SECTIONS of a plan."""
    present = {
        name: row for name, row in sections.items() if row and row.get("state", "present") == "present"
    }
    found = [_fight(claim, present) for claim in claims]
    return [fight for fight in dict.fromkeys(found) if fight is not None]


def _fight(claim: Claim, sections: Mapping[str, Any]) -> Fight | None:
    if claim.kind == "sysctl":
        return _sysctl_fight(claim, sections)
    if claim.kind == "token":
        return _token_fight(claim, sections)
    modes = (sections.get("thp") or {}).get("settings") or {}
    if claim.kind == "thp":
        wanted = modes.get(claim.key)
        # tuned's plugin vm leaves the mode alone where transparent_hugepage= is on the command line, as ours will be.
        yields = claim.unit == "tuned.service" and claim.key == "enabled"
        if wanted is None or wanted == claim.value or yields:
            return None
        return Fight(claim, "thp", f"{_thp.DIRECTORY}/{claim.key}={wanted}")
    if claim.kind == "merge":
        mode = modes.get("enabled")
        return Fight(claim, "thp", f"{mode} transparent huge pages") if mode in ("always", "madvise") else None
    isolated = (sections.get("cpu_isolation") or {}).get("isolated")
    return Fight(claim, "isolated_cpus", f"isolated CPUs {isolated}") if isolated else None


def _sysctl_fight(claim: Claim, sections: Mapping[str, Any]) -> Fight | None:
    for name, section in sections.items():
        for key, value in (section.get("sysctls") or {}).items():
            slash, text = normalize(key), str(value)
            against = slash == claim.key and not same_value(text, claim.value)
            zeroes = COUNTERPART.get(slash) == claim.key and not same_value("0", claim.value)
            if against or zeroes:
                return Fight(claim, _variable(name, section, key), f"{dotted(slash)}={text}")
    return None


def _variable(name: str, section: Mapping[str, Any], key: str) -> str:
    for variable, values in (section.get("by_variable") or {}).items():
        if key in values:
            return str(variable)
    return _VARIABLES.get(name, name)


def _token_fight(claim: Claim, sections: Mapping[str, Any]) -> Fight | None:
    for name, section in sections.items():
        same = [token for token in section.get("tokens") or () if normal_key(make(token).key) == claim.key]
        if same and claim.value not in same:
            return Fight(claim, _VARIABLES.get(name, name), " ".join(same))
    return None
