# SPDX-License-Identifier: Apache-2.0
"""How the kubelet of a host is started and configured: its unit, its flags, its files, and what they reserve.

Who wins (cmd/kubelet/app/server.go): a flag over every file; among the files of --config-dir, which end in .conf, the
last in lexical order; mappings are merged key by key, lists are replaced. The default of evictionHard holds only where
the file of --config has no evictionHard at all, or asks for the defaults with mergeDefaultEvictionSettings.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import _env_file, _files, _systemd, _yaml_text
from ._kubelet import quantity
from ._services import UNIT_DIRS, unit_file

UNIT = "kubelet.service"
ROOT_DIR = "/var/lib/kubelet"
CONFIG_DIR = "/etc/kubernetes/kubelet.conf.d"
# After every name of others that starts with a digit or a letter before z.
DROPIN_NAME = "zz-firsttouch.conf"
# Fields that are ours, each with the flag that would win over it.
OURS: dict[str, str] = {
    "cpuManagerPolicy": "cpu-manager-policy",
    "cpuManagerPolicyOptions": "cpu-manager-policy-options",
    "topologyManagerPolicy": "topology-manager-policy",
    "memoryManagerPolicy": "memory-manager-policy",
    "reservedSystemCPUs": "reserved-cpus",
    "reservedMemory": "reserved-memory",
}
RESERVING: dict[str, str] = {
    "kubeReserved": "kube-reserved",
    "systemReserved": "system-reserved",
    "evictionHard": "eviction-hard",
}
# Not to be had together with reservedSystemCPUs (pkg/kubelet/apis/config/validation).
CGROUPS: dict[str, str] = {
    "kubeReservedCgroup": "kube-reserved-cgroup",
    "systemReservedCgroup": "system-reserved-cgroup",
}
_EVICTION_KEY = "memory.available"
_EVICTION_DEFAULT = "100Mi"
_WORD_VARIABLE = re.compile(r"\$\{(\w+)\}")


class KubeletError(ValueError):
    """Why a kubelet's configuration is not known; `reason` is a code, `path` the file.

    `unrecorded`: a sosreport does not tell of it.
    """

    unrecorded = False

    def __init__(self, reason: str, text: str, path: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.path = path


@dataclass(frozen=True)
class Kubelet:
    """A kubelet as its unit starts it. files: (path, top level) of --config and then of --config-dir, in order."""

    unit: str
    flags: Mapping[str, str] = field(default_factory=dict)
    files: tuple[tuple[str, Mapping[str, Any]], ...] = ()

    @property
    def root_dir(self) -> str:
        return self.flags.get("root-dir") or ROOT_DIR

    @property
    def config_dir(self) -> str | None:
        return self.flags.get("config-dir") or None

    @property
    def dropin(self) -> str | None:
        """Where a file of ours takes effect; None without --config-dir."""
        return f"{self.config_dir.rstrip('/')}/{DROPIN_NAME}" if self.config_dir else None

    def others(self) -> list[tuple[str, Mapping[str, Any]]]:
        """The files that are not ours."""
        return [(path, top) for path, top in self.files if path != self.dropin]

    def after_ours(self) -> list[tuple[str, Mapping[str, Any]]]:
        """The files of --config-dir that win over ours."""
        if not self.dropin:
            return []
        base = self.config_dir or ""
        return [row for row in self.files if row[0].startswith(f"{base.rstrip('/')}/")
                and _walk_key(row[0]) > _walk_key(self.dropin)]  # fmt: skip


@dataclass(frozen=True)
class Reserved:
    """Bytes of memory that one setting keeps from pods, and where that is written."""

    bytes: int
    source: str


def read_kubelet(root: str) -> Kubelet | None:
    """The kubelet below ROOT; None where there is no unit of it. Raises KubeletError and OSError."""
    path = unit_file(root, UNIT)
    if path is None:
        return None
    flags = _flags(root, path)
    files = []
    if flags.get("config"):
        files.append((flags["config"], _read(root, flags["config"])))
    if flags.get("config-dir"):
        files += [(name, _read(root, name)) for name in _walk(root, flags["config-dir"])]
    return Kubelet(path, flags, tuple(files))


def reserved(kubelet: Kubelet, setting: str) -> Reserved:
    """The memory of SETTING (kubeReserved, systemReserved or evictionHard) as KUBELET has it without a file of ours.

    Raises KubeletError where that cannot be told.
    """
    flag = RESERVING[setting]
    if flag in kubelet.flags:
        source = f"{kubelet.unit}: --{flag}"
        table: Mapping[str, Any] = _pairs(
            kubelet.flags[flag], "<" if setting == "evictionHard" else "=", source
        )
        return Reserved(_bytes(setting, table, source), source)
    merged: dict[str, Any] = {}
    source = ""
    for path, top in kubelet.others():
        value = top.get(setting)
        if isinstance(value, _yaml_text.Opaque):
            text = f"{path}:{value.line}: {setting} cannot be read; write it as a plain mapping, or give its memory"
            raise KubeletError("kubelet_unknown", f"{text} in firsttouch_kubelet", path)
        if setting in top and value is None and path != kubelet.flags.get("config"):
            text = f"{path}: {setting} without a value takes away what other files say; write it out, or take it out"
            raise KubeletError("kubelet_unknown", text, path)
        if value is None:
            continue
        if not isinstance(value, Mapping):
            raise KubeletError("kubelet_unknown", f"{path}: {setting} is {value!r}, no mapping", path)
        if _key(setting) in value or not source:
            source = path
        merged.update(value)
    if setting == "evictionHard" and _eviction_defaults(kubelet):
        merged.setdefault(_EVICTION_KEY, _EVICTION_DEFAULT)
    return Reserved(
        _bytes(setting, merged, source or "the kubelet's default"), source or "the kubelet's default"
    )


def settings(kubelet: Kubelet, names: Mapping[str, str]) -> list[tuple[str, str, Any]]:
    """(setting, where, value) of every flag and every file of others that sets one of NAMES (field: flag)."""
    found = [
        (name, f"{kubelet.unit}: --{flag}", kubelet.flags[flag])
        for name, flag in names.items()
        if kubelet.flags.get(flag)
    ]
    rows = [(name, path, top.get(name)) for path, top in kubelet.others() for name in names]
    return [*found, *(row for row in rows if row[2])]


def _key(setting: str) -> str:
    return _EVICTION_KEY if setting == "evictionHard" else "memory"


def _bytes(setting: str, table: Mapping[str, Any], source: str) -> int:
    value = table.get(_key(setting))
    if value is None or value == "":
        return 0
    if str(value).endswith("%"):
        text = (
            f"{source}: {setting} {_key(setting)} is {value} of a memory whose size differs from kernel to kernel, and "
            f"reservedMemory must be equal to the byte: give eviction_hard in bytes in firsttouch_kubelet"
        )
        raise KubeletError("eviction_percent", text, source)
    try:
        found = quantity(value)
    except ValueError as exc:
        raise KubeletError("kubelet_unknown", f"{source}: {setting} {_key(setting)}: {exc}", source) from None
    if found < 0:
        raise KubeletError("kubelet_unknown", f"{source}: {setting} {_key(setting)} is {value}", source)
    return found


def _eviction_defaults(kubelet: Kubelet) -> bool:
    config = kubelet.flags.get("config")
    base = next((top for path, top in kubelet.files if path == config), {})
    # A drop-in comes after the defaults are in: it changes single keys of them, or takes one out with null.
    return base.get("evictionHard") is None or base.get("mergeDefaultEvictionSettings") is True


def _pairs(text: str, sign: str, source: str) -> dict[str, str]:
    table = {}
    for pair in filter(None, text.split(",")):
        key, found, value = pair.partition(sign)
        if not found:
            raise KubeletError("kubelet_unknown", f"{source}: {pair!r} is no pair", source)
        table[key.strip()] = value.strip()
    return table


def _read(root: str, path: str) -> dict[str, Any]:
    text = _files.read_text(root, path)
    if text is None:
        return {}  # kubeadm writes it when the node joins
    try:
        return _yaml_text.read(text)
    except _yaml_text.YamlError as exc:
        raise KubeletError("kubelet_unknown", f"{path}: {exc}", path) from None


def _walk(root: str, folder: str) -> list[str]:
    """The .conf files of FOLDER and of those below it, in the order of filepath.WalkDir."""
    found = []
    for name in _files.list_dir(root, folder) or []:
        path = f"{folder.rstrip('/')}/{name}"
        real = os.path.join(_files.resolve(root, folder), name)
        if os.path.isdir(real) and not os.path.islink(real):
            found += _walk(root, path)
        elif name.endswith(".conf"):
            found.append(path)
    return found


def _walk_key(path: str) -> list[bytes]:
    return [os.fsencode(part) for part in path.split("/")]


def _flags(root: str, unit: str) -> dict[str, str]:
    """The flags of the kubelet that UNIT and its drop-ins start. Raises KubeletError."""
    words: list[str] = []
    environment: dict[str, str] = {}
    files: list[str] = []
    for path in [unit, *_dropins(root)]:
        section = ""
        for line in _systemd.logical_lines(_files.read_text(root, path) or ""):
            key, equals, value = (part.strip() for part in line.partition("="))
            if line.startswith("["):
                section = line
            elif section != "[Service]" or not equals:
                continue
            elif key == "ExecStart":
                words = _split(value, path)
            elif key == "Environment":
                pairs = (word.partition("=") for word in _split(value, path))
                environment = {**environment, **{name: text for name, _sign, text in pairs}} if value else {}
            elif key == "EnvironmentFile":
                files = [*files, value] if value else []
    for name in files:
        environment.update(_environment_file(root, name))
    program, arguments = (words[0].lstrip("@-:+!") if words else "", words[1:])
    if os.path.basename(program) not in ("kubelet", "hyperkube"):
        text = f"{unit} starts {program or 'nothing'}, so the flags of the kubelet are not known"
        raise KubeletError("kubelet_unknown", text, unit)
    return _parse_flags([part for word in arguments for part in _expand(word, environment, unit)])


def _dropins(root: str) -> list[str]:
    found: dict[str, str] = {}
    for folder in UNIT_DIRS:
        for name in _files.list_dir(root, f"{folder}/{UNIT}.d") or []:
            if name.endswith(".conf"):
                found.setdefault(name, f"{folder}/{UNIT}.d/{name}")
    return [found[name] for name in sorted(found)]


def _split(text: str, path: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as exc:
        raise KubeletError("kubelet_unknown", f"{path}: {text!r}: {exc}", path) from None


def _environment_file(root: str, name: str) -> dict[str, str]:
    """The assignments of an EnvironmentFile=; none where it is not there (systemd fails then, unless it has a `-`)."""
    text = _files.read_text(root, name.lstrip("-")) or ""
    return {key: value for key, value, _line in _env_file.assignments(text)}


def _expand(word: str, environment: Mapping[str, str], unit: str) -> list[str]:
    """WORD of ExecStart= as systemd passes it: $NAME alone is split as a shell would, ${NAME} is put in as it is."""
    if word.startswith("$") and not word.startswith(("${", "$$")):
        return _split(environment.get(word[1:], ""), unit)
    return [_WORD_VARIABLE.sub(lambda match: environment.get(match[1], ""), word)]


def _parse_flags(words: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if not word.startswith("-"):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if not equals and position < len(words) and not words[position].startswith("-"):
            value = words[position]
            position += 1
        found[name.replace("_", "-")] = value
    return found
