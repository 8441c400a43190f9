# SPDX-License-Identifier: Apache-2.0
"""The runtime of the plan: which models are loaded where, which servers run on which CPUs.

One CPU for each thread: isolated CPUs are not load-balanced, so two threads on one of them would take turns. What
the runtime reads (models/NAME.json, servers/NAME.json) and the units that start it are made here, as texts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from . import _model_push, _runtime_units, _transport_choice
from ._cpulist import CpuListError, format_list, parse
from ._intent import (
    PREFIX,
    IntentError,
    Judge,
    format_size,
    integer,
    is_absent,
    listing,
    mapping,
    page_size_kb,
)
from ._plan_facts import Facts, refuse_without_nodes
from ._topology import Topology

STATES = ("present", "rollback")
STATE, MODELS, SERVERS = "runtime_state", "models", "servers"
VARIABLES = (STATE, MODELS, SERVERS)
POLICIES = ("any", "bind", "interleave", "prefer", "replicate")
TRANSPORTS = ("auto", "shm", "unix", "tcp")
CHECKSUMS = ("xxh3", "crc32", "sha256", "blake3", "none")
REPLACE = ("never", "swap", "evict_first")
PAGES = ("auto", "hugetlb", "thp", "4k")
_MODEL_KEYS = (
    "name", "source", "push", "page_size", "policy", "nodes", "mount", "checksum", "expect", "threads", "replace",
    "load_timeout_s",
)  # fmt: skip
_SERVER_KEYS = (
    "name", "handler", "python_path", "transport", "address", "node", "cpus", "threads", "fifo_priority", "lanes",
    "max_batch", "spin_us", "pages", "socket_mode", "users", "groups", "tls", "latency_target_us", "metrics", "models",
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")
_PATH = re.compile(r"/[A-Za-z0-9_.,:=@/+-]*")
# On the controller, whose names no unit has to spell.
_PUSH = re.compile(r"[^\x00-\x1f\x7f]+")
_HANDLER = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_ADDRESS = re.compile(r"(tcp://[^\s/]+:\d{1,5}|(shm|unix):///[A-Za-z0-9_./-]+)")
_ACCOUNT = re.compile(r"[a-z_][a-z0-9_-]{0,30}\$?|[0-9]{1,10}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MOST_LANES = 1024
# What the runtime puts before the files of a model in its image, at least.
_IMAGE_HEAD = 2 << 20
Row = dict[str, Any]


def plan_state(value: Any, judge: Judge) -> str:
    """firsttouch_runtime_state, checked."""
    if value not in STATES:
        judge.refuse("bad_value", STATE, f"{value!r} is not one of {', '.join((*STATES, 'absent'))}")
    return str(value)


def plan_models(value: Any, facts: Facts, hugepages: Mapping[str, Any], judge: Judge) -> list[Row]:
    """The rows of firsttouch_models; HUGEPAGES is that section of the plan, with pools and mounts."""
    if refuse_without_nodes(MODELS, facts, judge):
        return []
    return _rows(MODELS, value, judge, lambda row, what: _model(row, what, facts, hugepages))


def plan_servers(
    value: Any, facts: Facts, isolation: Mapping[str, Any], models: Iterable[Row], judge: Judge
) -> list[Row]:
    """The rows of firsttouch_servers; ISOLATION is that section of the plan. CPUs that are not named are given here."""
    if refuse_without_nodes(SERVERS, facts, judge):
        return []
    known = {row["name"] for row in models}
    isolated = parse(isolation.get("isolated") or "")
    rows = _rows(SERVERS, value, judge, lambda row, what: _server(row, what, facts.topology, isolated, known))
    if judge.refusals:
        return []
    taken: dict[int, str] = {}
    for row in rows:
        for cpu in row["cpus"]:
            if cpu in taken:
                text = f"cpus of {row['name']}: CPU {cpu} has a thread of {taken[cpu]} already; one thread, one CPU"
                judge.refuse("cpu_taken", SERVERS, f"{text}: name another, or leave cpus out", cpu=cpu)
            taken[cpu] = row["name"]
    for row in rows:
        _give_cpus(row, facts.topology, isolated, taken, judge)
    return rows


def _give_cpus(
    row: Row, topology: Topology, isolated: frozenset[int], taken: dict[int, str], judge: Judge
) -> None:
    """Give ROW the lowest free isolated CPUs of its node, as many as it has threads."""
    count = row.pop("threads")
    if row["cpus"] or not count:
        return
    node = row.get("node")
    for number in [node] if node is not None else topology.ids("cpu"):
        place = topology.node(number)
        free = sorted((place.cpus if place else frozenset()) & isolated - set(taken))
        if len(free) >= count:
            row["cpus"], row["node"] = free[:count], number
            taken.update(dict.fromkeys(free[:count], str(row["name"])))
            return
    where = "no node has" if node is None else f"node {node} has not"
    isolated_text = format_list(isolated) or "none"
    text = (
        f"threads of {row['name']}: {where} {count} isolated CPUs that are free (isolated: {isolated_text})"
    )
    judge.refuse(
        "cpus_short", SERVERS, f"{text}; isolate more with {PREFIX}isolated_cpus, or ask for fewer threads"
    )


def check_transport(rows: Iterable[Row], document: Mapping[str, Any], judge: Judge) -> None:
    """Refuse shared memory that is asked for where the rule does not give it. DOCUMENT has numa and transport."""
    for row in rows:
        if row["transport"] != "shm":
            continue
        choice = _transport_choice.choose_by_plan(document, latency_target_us=row.get("latency_target_us"))
        if choice.transport != "shm":
            text = f"transport of {row['name']} is shm, but {choice.words}"
            remedy = f"write auto, or set {PREFIX}transport_policy: fastest"
            judge.refuse("transport_not_given", SERVERS, f"{text}; {remedy}", rule=choice.rule)


def check_mounts(runtime: Mapping[str, Any], hugepages: Mapping[str, Any], judge: Judge) -> None:
    """Refuse to take the mount from under models of the section RUNTIME that are kept as they are recorded.

    HUGEPAGES is that section of the plan, with the mounts that are there afterwards. Models that a variable asks for
    have theirs already.
    """
    there = {(mount["path"], mount["page_size"]) for mount in hugepages.get("mounts") or ()}
    lost: dict[str, list[str]] = {}
    for row in runtime.get("models") or () if runtime.get("state") == "present" else ():
        if (row["mount"], row["page_size"]) not in there:
            lost.setdefault(f"{row['mount']} with pages of {row['page_size']}", []).append(str(row["name"]))
    for mount, names in sorted(lost.items()):
        text = f"{mount} would be gone, where the record has {', '.join(names)} of {PREFIX}{MODELS}"
        remedy = f"keep the mount, or set {PREFIX}{MODELS} and {PREFIX}{SERVERS} to others or absent"
        judge.refuse("mount_of_model", "hugetlbfs_mounts", f"{text}; {remedy}", models=names)


def check_pools(
    rows: Iterable[Row], pools: list[Row], recorded: list[Row], facts: Facts, sizes: Mapping[str, int], judge: Judge
) -> None:
    """Refuse models that together do not fit into the POOLS of the plan. SIZES: bytes of those that are known, by name.

    That is the least they take: what others and the servers take is not known before they run. RECORDED are the pools
    of the record.
    """
    known = [row for row in rows if row["name"] in sizes]
    everywhere = dict.fromkeys(facts.topology.ids("hugepage"), 0)
    # Pages of a size that is not planned may be there all the same, by another tool's boot argument, and how many is
    # not ours to say. Where we manage none, that is how it must be; where we do, the host shows whether it is.
    others = {int(name[:-2]) for node in facts.topology.nodes for name, pool in node.pools.items() if pool.get("total")}
    others -= {pool["size_kb"] for pool in recorded}
    asked = {page_size_kb(row["page_size"]) for row in known} if pools and facts.sizes_known else set()
    none = [{"size_kb": size, "nodes": {}} for size in sorted(asked - others - {pool["size_kb"] for pool in pools})]
    for pool in [*pools, *none]:
        page_kb, size = pool["size_kb"], format_size(pool["size_kb"])
        room = {**everywhere, **{int(node): count for node, count in pool["nodes"].items()}}
        pages = {
            row["name"]: -(-(_IMAGE_HEAD + sizes[row["name"]]) // (page_kb * 1024))
            for row in known
            if row["page_size"] == size
        }
        asking = [row for row in known if row["name"] in pages]
        bound = [tuple(row["nodes"]) for row in asking if row["policy"] == "bind"]
        for nodes in dict.fromkeys([*((node,) for node in sorted(room)), *bound, tuple(sorted(room))]):
            takes = {row["name"]: pages[row["name"]] * _copies(row, nodes, room) for row in asking}
            need, there = sum(takes.values()), sum(room.get(node, 0) for node in nodes)
            if need > there:
                names = ", ".join(name for name, count in takes.items() if count)
                where = f"on node {', '.join(map(str, nodes))}, where the pool has {there}"
                text = f"{names}: at least {need} pages of {size} {where}"
                remedy = f"ask for more with {PREFIX}hugepages, or name other nodes"
                judge.refuse("models_exceed_pool", MODELS, f"{text}; {remedy}", asked=need, available=there)
                break


def _copies(row: Row, nodes: tuple[int, ...], room: Mapping[int, int]) -> int:
    """How often all pages of the model of ROW are on NODES, whatever the kernel decides."""
    if row["policy"] == "replicate":
        return len(set(row["nodes"]) & set(nodes))
    may = row["nodes"] if row["policy"] == "bind" else room
    return int(set(may) <= set(nodes))


def render(models: list[Row], servers: list[Row], housekeeping: str) -> dict[str, Any]:
    """The `files` and `units` of the section."""
    files: dict[str, str] = {}
    units: dict[str, str] = {_runtime_units.SLICE: _runtime_units.render_slice()} if models or servers else {}
    named = {row["name"]: row for row in models}
    for row in models:
        files[f"models/{row['name']}.json"] = _runtime_units.model_file(row)
        units[_runtime_units.weights_unit(row["name"])] = _runtime_units.render_weights(row, housekeeping)
    for row in servers:
        files[f"servers/{row['name']}.json"] = _runtime_units.server_file(row)
        files[f"samplers/{row['name']}.env"] = _runtime_units.sampler_file(row)
        opened = [named[name] for name in row["models"] if name in named]
        units[_runtime_units.server_unit(row["name"])] = _runtime_units.render_server(
            row, opened, housekeeping
        )
    return {"files": files, "units": units}


def work(plan: Mapping[str, Any], intent: Mapping[str, Any]) -> dict[str, Any]:
    """What the role `runtime` does for PLAN of INTENT: state, files, rows of systemd_units, units to remove, models to
    push by name with their paths on the controller, and those of which the files go.
    """
    section: Mapping[str, Any] = plan["sections"].get("runtime") or {}
    removes = any(is_absent(intent.get(name)) for name in ("models", "servers"))
    unset = not set(section.get("variables") or ()) - set(section.get("orphaned") or ())
    if section.get("state") == "present" and unset and not removes:
        # No variable of it is set: what is recorded is kept, not brought to the version of today.
        return {"state": None, "files": {}, "units": [], "units_absent": [], "push": {}, "push_absent": []}
    texts: Mapping[str, str] = section.get("units") or {}
    owned: Mapping[str, list[str]] = plan["owned"].get("runtime") or {}
    pushed = {row["name"]: row["push"] for row in section.get("models") or () if row.get("push")}
    rows = []
    for name, text in texts.items():
        row: Row = {"name": name, "content": text, "restart_on_change": True}
        if name != _runtime_units.SLICE:
            row["enabled"] = True
        rows.append(row)
    state = None
    if section:
        state = section.get("runtime_state") or "present" if section.get("state") == "present" else "absent"
    return {
        "state": state,
        "files": dict(section.get("files") or {}),
        "units": rows,
        "units_absent": [name for name in owned.get("units") or () if name not in texts],
        # Those that no variable asks for any more are kept as they are: their paths may be those of long ago.
        "push": {} if "models" in (section.get("orphaned") or ()) else pushed,
        "push_absent": [name for name in owned.get("pushed") or () if name not in pushed],
    }


def _rows(variable: str, value: Any, judge: Judge, parse_one: Callable[[Any, str], Row]) -> list[Row]:
    """Each entry of the list VALUE by PARSE_ONE; a refusal names the entry by its name where it has one."""
    try:
        entries = listing(value, "mappings")
    except IntentError as exc:
        judge.refuse("bad_value", variable, str(exc))
        return []
    rows: list[Row] = []
    for number, entry in enumerate(entries, 1):
        name = entry.get("name") if isinstance(entry, Mapping) else None
        what = f"entry {number}" if name is None else f"entry {name!r}"
        try:
            row = parse_one(entry, what)
            if row["name"] in {other["name"] for other in rows}:
                raise IntentError(f"{what}: the name is there twice; give each its own")
            rows.append(row)
        except IntentError as exc:
            judge.refuse("bad_value", variable, str(exc))
    return rows


def _model(entry: Any, what: str, facts: Facts, hugepages: Mapping[str, Any]) -> Row:
    given = mapping(entry, _MODEL_KEYS, what)
    row: Row = {"name": _text(given, "name", what, _NAME)}
    row.update(_source(given, what, row["name"]))
    size = page_size_kb(given["page_size"]) if "page_size" in given else 2048
    row["page_size"] = format_size(size)
    mounts = [mount for mount in hugepages.get("mounts") or () if mount["page_size"] == row["page_size"]]
    path = given.get("mount")
    found = [mount for mount in mounts if path in (None, mount["path"])]
    if not found:
        named = f" at {path}" if path else ""
        text = f"{what}: no planned mount of {row['page_size']} pages{named}"
        raise IntentError(f"{text}; add one to {PREFIX}hugetlbfs_mounts")
    row.update(mount=found[0]["path"], mount_unit=found[0]["unit"], mount_group=found[0]["group"])
    row["policy"] = _choice(given, "policy", what, POLICIES, "any")
    nodes = _nodes(given.get("nodes"), what, facts.topology)
    if (row["policy"] == "any") != (not nodes):
        text = f"{what}: policy {row['policy']} with nodes {nodes}"
        raise IntentError(
            f"{text}; name nodes with bind, interleave, prefer and replicate, and with no other"
        )
    row["nodes"] = nodes
    row["checksum"] = _choice(given, "checksum", what, CHECKSUMS, "xxh3")
    row["expect"] = _expect(given.get("expect"), what)
    row["threads"] = _number(given, "threads", what, 1, 64, 4)
    row["replace"] = _choice(given, "replace", what, REPLACE, "never")
    row["load_timeout_s"] = _number(given, "load_timeout_s", what, 1, 86400, 1800)
    return row


def _source(given: Mapping[str, Any], what: str, name: str) -> Row:
    """Where the files of the model lie on the host, and on the controller when they are pushed from there."""
    if "push" not in given:
        if "source" not in given:
            raise IntentError(
                f"{what}: source is missing; name a path on the host, or with push one on the controller"
            )
        source = _text(given, "source", what, _PATH)
        if f"{os.path.normpath(source)}/".startswith(f"{_model_push.TOP}/"):
            raise IntentError(
                f"{what}: source is {source!r}, but what is in {_model_push.TOP} was pushed and goes with its row;"
                " move it elsewhere (mv), or name the files of the controller with push"
            )
        return {"source": source}
    push = _text(given, "push", what, _PUSH)
    if "source" in given:
        raise IntentError(
            f"{what}: source is {given['source']!r} and push is {push!r}; leave out push for files on the host,"
            " source for those of the controller"
        )
    return {"source": _model_push.folder(name), "push": push}


def _server(entry: Any, what: str, topology: Topology, isolated: frozenset[int], models: set[str]) -> Row:
    given = mapping(entry, _SERVER_KEYS, what)
    row: Row = {"name": _text(given, "name", what, _NAME)}
    if "handler" in given:
        row["handler"] = _text(given, "handler", what, _HANDLER)
    if "python_path" in given:
        row["python_path"] = _text(given, "python_path", what, _PATH)
    row.update(_transport(given, what))
    row["node"] = _node(given, what, topology)
    row["cpus"] = _cpus(given, what, row, topology, isolated)
    row["threads"] = _number(given, "threads", what, 0, 1024, 1 if isolated else 0)
    if row["cpus"] and "threads" in given and row["threads"] != len(row["cpus"]):
        raise IntentError(
            f"{what}: threads is {row['threads']}, cpus has {len(row['cpus'])}; leave one of them out"
        )
    row["fifo_priority"] = _number(given, "fifo_priority", what, 1, 99, None)
    if row["fifo_priority"] and not row["cpus"] and not row["threads"]:
        raise IntentError(f"{what}: fifo_priority without a CPU of its own starves others; name cpus")
    row["lanes"] = _number(given, "lanes", what, 1, _MOST_LANES, 64)
    row["max_batch"] = _number(given, "max_batch", what, 1, 1 << 16, 64)
    row["spin_us"] = _number(given, "spin_us", what, 0, 1_000_000, 50)
    row["pages"] = _choice(given, "pages", what, PAGES, "auto")
    row["socket_mode"] = _text(
        {"socket_mode": "0660", **given}, "socket_mode", what, re.compile(r"0?[0-7]{3}")
    )
    for key in ("users", "groups"):
        if key in given:
            row[key] = [_account(one, key, what) for one in listing(given[key], "accounts")]
    row["latency_target_us"] = _number(given, "latency_target_us", what, 1, 10_000_000, None)
    if "metrics" in given:
        row["metrics"] = _text(given, "metrics", what, _PATH)
    for key in ("address", "metrics"):
        if re.match(r"((unix|shm)://)?/(var/)?tmp/", str(row.get(key))):
            text = f"{what}: {key} is {row[key]}, and a service has a /tmp of its own that nobody else sees"
            raise IntentError(f"{text}; write it below /run/firsttouch")
    row["models"] = [str(name) for name in listing(given.get("models", []), "names of models")]
    unknown = sorted(set(row["models"]) - models)
    if unknown:
        raise IntentError(f"{what}: models has {unknown[0]!r}, which {PREFIX}models does not")
    return row


def _transport(given: Mapping[str, Any], what: str) -> Row:
    """transport, address and tls, which belong together."""
    row: Row = {}
    address = _text(given, "address", what, _ADDRESS) if "address" in given else None
    scheme = address.partition(":")[0] if address else None
    row["transport"] = _choice(given, "transport", what, TRANSPORTS, scheme or "auto")
    if scheme and row["transport"] != scheme:
        raise IntentError(
            f"{what}: transport is {row['transport']}, address is {address}; leave transport out"
        )
    if row["transport"] == "tcp" and not address:
        raise IntentError(f"{what}: tcp needs an address; write address: tcp://HOST:PORT")
    if address:
        row["address"] = address
    tls = given.get("tls")
    if tls is not None:
        files = mapping(tls, ("cert", "key", "authority"), f"{what}: tls")
        row["tls"] = {key: _text(files, key, f"{what}: tls", _PATH) for key in ("cert", "key", "authority")}
    loopback = address is None or re.match(r"tcp://(127\.|localhost:|\[::1\])", address)
    if scheme == "tcp" and not loopback and tls is None:
        raise IntentError(
            f"{what}: {address} is reached from other hosts and needs tls: cert, key, authority"
        )
    return row


def _node(given: Mapping[str, Any], what: str, topology: Topology) -> int | None:
    if "node" not in given:
        return None
    node: int = _number(given, "node", what, 0, 1 << 16, None)
    if node not in topology.ids("cpu"):
        raise IntentError(f"{what}: node {node} has no CPU; nodes with CPUs are {topology.ids('cpu')}")
    return node


def _cpus(
    given: Mapping[str, Any], what: str, row: Row, topology: Topology, isolated: frozenset[int]
) -> list[int]:
    """The CPUs as a list in the order given: the first is the serving thread's."""
    value = given.get("cpus")
    if value is None:
        return []
    if isinstance(value, (list, tuple)):
        cpus = [_number({"cpus": one}, "cpus", what, 0, 1 << 16, None) for one in value]
    else:
        try:
            cpus = sorted(parse(str(value)))
        except CpuListError as exc:
            raise IntentError(f"{what}: cpus is {value!r}: {exc}") from exc
    if len(set(cpus)) != len(cpus):
        raise IntentError(f"{what}: cpus {cpus} has a CPU twice; one thread, one CPU")
    strange = sorted(set(cpus) - isolated)
    if strange:
        text = (
            f"{what}: CPU {strange[0]} of cpus is not isolated (isolated: {format_list(isolated) or 'none'})"
        )
        raise IntentError(f"{text}; name others, or isolate it with {PREFIX}isolated_cpus")
    places = {topology.node_of(cpu) for cpu in cpus}
    if len(places) > 1:
        raise IntentError(f"{what}: cpus {cpus} lie on several nodes; one server, one node")
    node = next(iter(places), None)
    if row["node"] is not None and cpus and node != row["node"]:
        raise IntentError(f"{what}: cpus {cpus} lie on node {node}, node is {row['node']}")
    row["node"] = node if row["node"] is None else row["node"]
    return cpus


def _nodes(value: Any, what: str, topology: Topology) -> list[int]:
    there = topology.ids("hugepage")
    if value is None:
        return []
    if value == "all":
        return there
    nodes = [_number({"nodes": one}, "nodes", what, 0, 1 << 16, None) for one in listing(value, "node ids")]
    strange = sorted(set(nodes) - set(there))
    if strange or len(set(nodes)) != len(nodes):
        raise IntentError(
            f"{what}: nodes is {value!r}; nodes with memory for huge pages are {there}, each once"
        )
    return nodes


def _expect(value: Any, what: str) -> Any:
    """A digest, or one for each file."""
    rows = value if isinstance(value, Mapping) else {"": value} if value is not None else {}
    for digest in rows.values():
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise IntentError(f"{what}: expect is {digest!r}; write sha256: and 64 hexadecimal digits")
    return dict(value) if isinstance(value, Mapping) else value


def _text(given: Mapping[str, Any], key: str, what: str, pattern: re.Pattern[str]) -> str:
    value = given.get(key)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        told = "is missing" if value is None else f"is {value!r}"
        raise IntentError(f"{what}: {key} {told}; it must be like {_EXAMPLES.get(key, pattern.pattern)}")
    return value


def _account(value: Any, key: str, what: str) -> str | int:
    """A name, or a number as one."""
    text = _text({key: str(value)}, key, what, _ACCOUNT)
    return int(text) if text.isdigit() else text


_EXAMPLES = {
    "name": "policy-7 (letters, digits, - _ .)", "source": "/srv/models/llama", "push": "models/llama",
    "handler": "module:function", "python_path": "/srv/handlers",
    "address": "tcp://10.0.0.1:5555", "socket_mode": "'0660', quoted",
    "cert": "/etc/ssl/policy.pem", "key": "/etc/ssl/policy.key", "authority": "/etc/ssl/fleet.pem",
    "metrics": "/run/firsttouch/policy.prom", "users": "a name or number", "groups": "a name or number",
}  # fmt: skip


def _choice(given: Mapping[str, Any], key: str, what: str, known: tuple[str, ...], default: str) -> str:
    value = given.get(key, default)
    if value not in known:
        raise IntentError(f"{what}: {key} is {value!r}, not one of {', '.join(known)}")
    return str(value)


def _number(given: Mapping[str, Any], key: str, what: str, least: int, most: int, default: Any) -> Any:
    if given.get(key) is None:
        return default
    try:
        return integer(given[key], least, most)
    except IntentError as exc:
        raise IntentError(f"{what}: {key}: {exc}") from exc
