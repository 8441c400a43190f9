# SPDX-License-Identifier: Apache-2.0
"""The files below /etc/firsttouch that say what a host serves and loads: servers/NAME.json and models/NAME.json.

Every fault names the file, the key, the value and the remedy; an unknown key is one, since it is a misspelt one.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from firsttouch import _checksums, plan
from firsttouch._lanes import MAX_LANES
from firsttouch._shm import PAGE_KINDS
from firsttouch._tls import Tls
from firsttouch._transport import parse_address
from firsttouch.errors import AddressError, ConfigError

ETC: Final = Path("/etc/firsttouch")
ETC_ENV: Final = "FIRSTTOUCH_ETC"
DEFAULT_HANDLER: Final = "firsttouch._policy:Policy"
SCHEMA_VERSION: Final = 1
MAX_SPIN_US: Final = 1_000_000
MAX_BATCH: Final = 65536
MAX_FIFO: Final = 99
_MAX_BYTES: Final = 1 << 20
_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")
_POLICIES: Final = ("any", "bind", "interleave", "prefer", "replicate")
_REPLACE: Final = ("never", "swap", "evict_first")


@dataclass(frozen=True)
class ServerFile:
    """servers/NAME.json. addresses: where it listens, with `auto://NAME` for the plan's choice."""

    source: str
    name: str
    handler: str
    transport: str
    addresses: tuple[str, ...]
    node: int | None
    cpus: tuple[int, ...]
    fifo_priority: int | None
    lanes: int
    max_batch: int
    spin_us: float
    pages: str
    socket_mode: int
    uids: frozenset[int]
    gids: frozenset[int]
    tls: Tls | None
    latency_target_us: float | None
    metrics: str | None


@dataclass(frozen=True)
class ModelFile:
    """models/NAME.json."""

    source: str
    name: str
    model: str
    page_size: str
    policy: str
    nodes: tuple[int, ...]
    mount: str | None
    checksum: str
    expect: str | Mapping[str, str] | None
    fallback: str | None
    threads: int
    replace: str


def etc(folder: str | os.PathLike[str] | None = None) -> Path:
    """The folder of the files: FOLDER, $FIRSTTOUCH_ETC, /etc/firsttouch."""
    return Path(folder or os.environ.get(ETC_ENV) or ETC)


def read_server(name: str, folder: str | os.PathLike[str] | None = None) -> ServerFile:
    """The server NAME's file. Raises ConfigError."""
    keys = _Keys.of("servers", name, folder)
    address = keys.take("address", None, _text)
    transport = keys.take("transport", "auto" if address is None else address.partition("://")[0], _one_of(*_LISTEN))
    tls = keys.take("tls", None, _tls)
    cpus = keys.take("cpus", (), _cpus)
    found = ServerFile(
        source=keys.source,
        name=name,
        handler=keys.take("handler", DEFAULT_HANDLER, _handler),
        transport=transport,
        addresses=_addresses(keys, name, transport, address),
        node=keys.take("node", None, _whole(0)),
        cpus=cpus,
        fifo_priority=keys.take("fifo_priority", None, _whole(1, MAX_FIFO)),
        lanes=keys.take("lanes", 64, _whole(1, MAX_LANES)),
        max_batch=keys.take("max_batch", 64, _whole(1, MAX_BATCH)),
        spin_us=keys.take("spin_us", 50.0, _spin),
        pages=keys.take("pages", "auto", _one_of("auto", *PAGE_KINDS)),
        socket_mode=keys.take("socket_mode", 0o660, _mode),
        uids=keys.take("users", frozenset(), _ids(lambda text: pwd.getpwnam(text).pw_uid, "user")),
        gids=keys.take("groups", frozenset({os.getegid()}), _ids(lambda text: grp.getgrnam(text).gr_gid, "group")),
        tls=tls,
        latency_target_us=keys.take("latency_target_us", None, _number),
        metrics=keys.take("metrics", None, _absolute),
    )
    keys.end()
    if found.fifo_priority is not None and not cpus:
        raise keys.fault("fifo_priority", found.fifo_priority, "a real-time thread has a CPU of its own", "give cpus")
    if tls is not None and not any(text.startswith("tcp://") for text in found.addresses):
        raise keys.fault("tls", "given", "only tcp has TLS", "leave it out, or give a tcp:// address")
    return found


def read_model(name: str, folder: str | os.PathLike[str] | None = None) -> ModelFile:
    """The model NAME's file. Raises ConfigError."""
    keys = _Keys.of("models", name, folder)
    found = ModelFile(
        source=keys.source,
        name=name,
        model=keys.must("source", _absolute),
        page_size=keys.take("page_size", "2M", _one_of("2M", "1G")),
        policy=keys.take("policy", "any", _one_of(*_POLICIES)),
        nodes=keys.take("nodes", (), _nodes),
        mount=keys.take("mount", None, _absolute),
        checksum=keys.take("checksum", "xxh3", _one_of(*_checksums.NAMES)),
        expect=keys.take("expect", None, _expect),
        fallback=keys.take("fallback", None, _one_of("tmpfs-huge")),
        threads=keys.take("threads", 4, _whole(1, 256)),
        replace=keys.take("replace", "never", _one_of(*_REPLACE)),
    )
    keys.end()
    if (found.policy == "any") != (not found.nodes):
        text = f"policy {found.policy} takes {'no nodes' if found.policy == 'any' else 'a list of nodes'}"
        raise keys.fault("nodes", list(found.nodes), text, "give both, or neither")
    if found.policy == "prefer" and len(found.nodes) != 1:
        raise keys.fault("nodes", list(found.nodes), "policy prefer takes one node", "give one")
    return found


def check_all(folder: str | os.PathLike[str] | None = None) -> list[ConfigError]:
    """The faults of all files of FOLDER, one for each file that has any."""
    faults = []
    for kind, read in (("servers", read_server), ("models", read_model)):
        for path in sorted((etc(folder) / kind).glob("*.json")):
            try:
                read(path.stem, folder)
            except ConfigError as error:
                faults.append(error)
    return faults


_T = TypeVar("_T")
_Reader = Callable[[Any], _T]


class _Keys:
    """The keys of one file, taken one after the other."""

    def __init__(self, source: str, document: dict[str, Any]) -> None:
        self.source, self._left = source, document

    @classmethod
    def of(cls, kind: str, name: str, folder: str | os.PathLike[str] | None) -> _Keys:
        """Read the file of NAME. Raises ConfigError."""
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{name[:100]!a} names no {kind[:-1]}", hint="use letters, digits, `.`, `_` and `-`, at most 64"
            )
        path = etc(folder) / kind / f"{name}.json"
        try:
            with open(path, "rb") as file:
                data = file.read(_MAX_BYTES + 1)
        except OSError as error:
            known = ", ".join(sorted(other.stem for other in path.parent.glob("*.json"))) or "none"
            raise ConfigError(
                f"{path} cannot be read: {error.strerror}",
                hint=f"there are: {known}; the role `runtime` writes them",
                facts={"file": str(path)},
            ) from error
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            facts = {"file": str(path)}
            raise ConfigError(f"{path} is no JSON: {error}", hint="write it again", facts=facts) from error
        if len(data) > _MAX_BYTES or not isinstance(document, dict):
            raise ConfigError(f"{path} is no JSON object of at most {_MAX_BYTES} bytes", facts={"file": str(path)})
        keys = cls(str(path), document)
        version = document.pop("schema_version", None)
        if type(version) is not int or version != SCHEMA_VERSION:
            raise keys.fault("schema_version", version, f"this version reads {SCHEMA_VERSION}", "write the file again")
        if document.get("name") != name:
            raise keys.fault("name", document.get("name"), f"the file is {name}'s", "let both be the same")
        del document["name"]
        return keys

    def fault(self, key: str, value: Any, why: str, remedy: str) -> ConfigError:
        """The error for the VALUE of KEY."""
        facts = {"file": self.source, "key": key, "value": value}
        return ConfigError(f"{self.source}: {key} is {value!r:.200}: {why}", hint=remedy, facts=facts)

    def take(self, key: str, default: Any, read: _Reader[Any]) -> Any:
        """The value of KEY as READ has it; DEFAULT when it is absent, or null where that is the default."""
        if key not in self._left:
            return default
        value = self._left.pop(key)
        if value is None and default is None:
            return None
        try:
            return read(value)
        except (ValueError, TypeError, KeyError) as error:
            why, _, remedy = str(error.args[0] if error.args else error).partition("; ")
            raise self.fault(key, value, why, remedy or "correct it in the file, or leave it out") from error

    def must(self, key: str, read: _Reader[Any]) -> Any:
        """The value of a KEY without a default."""
        if self._left.get(key) is None:
            raise self.fault(key, None, "it is missing", "give it")
        return self.take(key, None, read)

    def end(self) -> None:
        """Raise ConfigError when there is a key that nobody took."""
        if self._left:
            key = min(self._left)
            raise self.fault(key, self._left[key], "no such key", "leave it out, or correct its name")


_LISTEN: Final = ("auto", "shm", "unix", "tcp")


def _addresses(keys: _Keys, name: str, transport: str, address: str | None) -> tuple[str, ...]:
    """Where the server listens."""
    if address is not None:
        try:
            parsed = parse_address(address)
        except AddressError as error:
            raise keys.fault("address", address, error.message, error.hint) from error
        if parsed.scheme != transport:
            raise keys.fault("transport", transport, f"the address is {address}", "leave transport out")
        return (address,)
    if transport == "auto":
        return (f"auto://{name}",)
    if transport == "tcp":
        raise keys.fault("address", None, "transport tcp has no address of its own", "write tcp://127.0.0.1:5555")
    sockets = [f"unix://{plan.RUN_FOLDER}/{name}.sock"]
    return (f"shm://{plan.RUN_FOLDER}/{name}.shm", *sockets) if transport == "shm" else tuple(sockets)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("it must be a text")
    return value


def _absolute(value: Any) -> str:
    if not _text(value).startswith("/"):
        raise ValueError("it is no absolute path")
    return str(value)


def _handler(value: Any) -> str:
    module, _, attribute = _text(value).partition(":")
    if not module or not attribute:
        raise ValueError("it names no function; write module:function")
    return str(value)


def _one_of(*words: str) -> _Reader[str]:
    def read(value: Any) -> str:
        if value not in words:
            raise ValueError(f"there is {', '.join(words)}")
        return str(value)

    return read


def _whole(least: int, most: int = 1 << 31) -> _Reader[int]:
    def read(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"it must be a whole number from {least}" + (f" to {most}" if most < 1 << 31 else ""))
        return value

    return read


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise ValueError("it must be a number that is not negative")
    return float(value)


def _spin(value: Any) -> float:
    if _number(value) > MAX_SPIN_US:
        raise ValueError(f"that is a busy core; at most {MAX_SPIN_US} us")
    return float(value)


def _mode(value: Any) -> int:
    if not re.fullmatch(r"0?[0-7]{3}", _text(value)):
        raise ValueError("it is no mode of a file; write it like 0660, as a text")
    return int(value, 8)


def _numbers(value: Any, what: str) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(item) is not int or item < 0 for item in value):
        raise ValueError(f"it must be a list of {what}")
    if len(set(value)) != len(value):
        raise ValueError(f"one of the {what} is there twice; each thread has one of its own")
    return tuple(value)


def _cpus(value: Any) -> tuple[int, ...]:
    return _numbers(value, "CPU numbers")


def _nodes(value: Any) -> tuple[int, ...]:
    return _numbers(value, "node numbers")


def _ids(number: Callable[[str], int], what: str) -> _Reader[frozenset[int]]:
    def read(value: Any) -> frozenset[int]:
        if not isinstance(value, list) or any(type(item) not in (int, str) for item in value):
            raise ValueError(f"it must be a list of names or numbers of {what}s")
        try:
            return frozenset(item if isinstance(item, int) else number(item) for item in value)
        except KeyError as error:
            raise ValueError(f"{error.args[0]}; make the {what} first") from error

    return read


def _tls(value: Any) -> Tls:
    if not isinstance(value, dict) or set(value) != {"cert", "key", "authority"}:
        raise ValueError("it must have cert, key and authority")
    return Tls(*(_absolute(value[name]) for name in ("cert", "key", "authority")))


def _expect(value: Any) -> str | dict[str, str]:
    values = list(value.values()) if isinstance(value, dict) else [value]
    if not values or not all(isinstance(item, str) and re.fullmatch(r"sha256:[0-9a-f]{64}", item) for item in values):
        raise ValueError("it is no digest; write sha256: and 64 hex digits, or one for each file")
    found: str | dict[str, str] = value
    return found
