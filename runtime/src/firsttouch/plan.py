# SPDX-License-Identifier: Apache-2.0
"""The host's plan as the collection wrote it, and which transport follows from it. Reads one file, computes the rest.

Nothing here derives CPU lists, page counts or the transport anew: they are the plan's. Without a plan nothing is
trusted.
"""

from __future__ import annotations

import json
import os
import platform
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from firsttouch._cpulist import CpuListError, parse
from firsttouch._transport import Address
from firsttouch._transport_choice import Choice, choose_by_plan
from firsttouch._waiting import check_machine
from firsttouch.errors import AddressError, PlanError, UnsupportedError

PLAN_PATH: Final = Path("/etc/firsttouch/plan.json")
RUN_FOLDER: Final = Path("/run/firsttouch")
DEFAULT_NAME: Final = "default"
_SCHEMA: Final = 1
_MAX_BYTES: Final = 16 << 20


@dataclass(frozen=True)
class Plan:
    """A plan and where it is from. An empty document is that of a host without one."""

    document: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""

    def cpus(self, node: int, kind: str = "isolated") -> frozenset[int]:
        """The CPUs of NODE that are `isolated` or `housekeeping`; none when the plan has no such node."""
        nodes = (self.document.get("topology") or {}).get("nodes") or {}
        text = (nodes.get(str(node)) or {}).get(kind) or ""
        try:
            return parse(text)
        except CpuListError as error:
            raise PlanError(f"{self.source}: {kind} of node {node} is {text!r}: {error}") from error

    @property
    def nodes(self) -> list[int]:
        """The nodes of the plan's topology."""
        return sorted(int(node) for node in (self.document.get("topology") or {}).get("nodes") or {})


def load_plan(path: str | os.PathLike[str] | None = None) -> Plan:
    """The plan at PATH, by default the host's own; an empty one when the host has none.

    Raises PlanError for one that cannot be read, or that is none: it is never taken for an absent one.
    """
    place = Path(path) if path is not None else PLAN_PATH
    try:
        with open(place, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        if path is None:
            return Plan()
        raise PlanError(f"there is no plan {place}", hint="run the provision playbook, or name another file") from None
    except OSError as error:
        raise PlanError(f"plan {place} cannot be read: {error.strerror}") from error
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"plan {place} is no JSON: {error}", hint="run the provision playbook again") from error
    if len(data) > _MAX_BYTES or not isinstance(document, dict) or document.get("schema") != _SCHEMA:
        told = document.get("schema") if isinstance(document, dict) else type(document).__name__
        raise PlanError(f"plan {place} has schema {told!r}, this version reads {_SCHEMA}")
    return Plan(document, str(place))


def is_this_host(peer: str) -> bool:
    """Whether PEER, a host name or address, is this host; empty is."""
    return peer in ("", "localhost", socket.gethostname()) or Address("tcp", host=peer).is_loopback


def choose_transport(
    plan: Plan | None = None, peer: str = "", latency_target_us: float | None = None, *, descriptors: bool = True
) -> Choice:
    """The transport to a process on PEER (a host, empty for this one), and why, in words.

    PLAN is the host's own by default. LATENCY_TARGET_US goes before the plan's. DESCRIPTORS: whether both reach one
    unix socket. Raises PlanError.
    """
    plan = plan if plan is not None else load_plan()
    try:
        choice = choose_by_plan(
            plan.document, same_host=is_this_host(peer), descriptors=descriptors, latency_target_us=latency_target_us
        )
    except ValueError as error:
        raise PlanError(f"plan {plan.source}: {error}") from error
    if choice.transport == "shm":
        try:
            check_machine(platform.machine())
        except UnsupportedError as error:
            return Choice("unix", "machine", str(error))
    return choice


def run_folders() -> list[Path]:
    """Where servers with a name listen, the host's folder before the user's."""
    folders = [RUN_FOLDER]
    if os.environ.get("XDG_RUNTIME_DIR"):
        folders.append(Path(os.environ["XDG_RUNTIME_DIR"]) / "firsttouch")
    return folders


def auto_name(address: str) -> str | None:
    """The name in `auto` or `auto://NAME`, None for another address. Raises AddressError."""
    if address == "auto":
        return DEFAULT_NAME
    if not address.startswith("auto://"):
        return None
    name = address[len("auto://") :]
    if not name or not all(letter.isalnum() or letter in "-_." for letter in name) or name.startswith("."):
        raise AddressError(f"{address!r} has no name of letters, digits, - and _", hint="write auto://policy")
    return name


def auto_server(
    address: str, plan: Plan | None = None, latency_target_us: float | None = None
) -> tuple[list[str], Choice] | None:
    """Where a server at ADDRESS listens, and the choice; None for an address that is not automatic.

    It listens at a unix socket in any case, so that a client whose own target allows that finds it; in shared memory
    too when that is the choice. Raises AddressError when there is no folder to listen in.
    """
    name = auto_name(address)
    if name is None:
        return None
    choice = choose_transport(plan, latency_target_us=latency_target_us)
    folder = run_folder()
    places = [f"unix://{folder}/{name}.sock"]
    return ([f"shm://{folder}/{name}.shm", *places] if choice.transport == "shm" else places), choice


def run_folder() -> Path:
    """The folder in which a server of this user listens. Raises AddressError when there is none."""
    for folder in run_folders():
        if _writable(folder):
            return folder
    raise AddressError(
        f"none of {', '.join(map(str, run_folders()))} can be written",
        hint="make /run/firsttouch for this user (tmpfiles.d, or RuntimeDirectory=), or name an address",
    )


def _writable(folder: Path) -> bool:
    """Whether sockets can be made in FOLDER; makes it where its parent is this user's."""
    if not folder.is_dir() and os.access(folder.parent, os.W_OK):
        folder.mkdir(mode=0o755, exist_ok=True)
    return os.access(folder, os.W_OK | os.X_OK)


def auto_client(
    address: str, plan: Plan | None = None, latency_target_us: float | None = None
) -> tuple[str, Choice] | None:
    """The address of the server that `auto` means, and why; None for an address that is not automatic.

    Raises AddressError when no server listens under that name.
    """
    name = auto_name(address)
    if name is None:
        return None
    choice = choose_transport(plan, latency_target_us=latency_target_us)
    for folder in run_folders():
        paths = {"shm": folder / f"{name}.shm", "unix": folder / f"{name}.sock"}
        if paths[choice.transport].exists():
            return f"{choice.transport}://{paths[choice.transport]}", choice
        if paths["unix"].exists():
            words = f"the choice was {choice.transport} ({choice.words}), but the server does not offer it"
            return f"unix://{paths['unix']}", Choice("unix", "not_offered", words)
    raise AddressError(
        f"{address}: no server named {name} in {', '.join(map(str, run_folders()))}",
        hint="start one with `firsttouch serve`, or name its address",
    )
