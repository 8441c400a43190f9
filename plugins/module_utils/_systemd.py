# SPDX-License-Identifier: Apache-2.0
"""Names and texts of the systemd units of this collection, and what a unit file asks for.

Escaping follows systemd.unit(5), "String Escaping for Inclusion in Unit Names".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

MARKER = "# Managed by firsttouch.host: changes are overwritten."
UNIT_DIR = "/etc/systemd/system"
HUGEPAGES_SERVICE = "firsttouch-hugepages.service"
_TYPES = "service socket device mount automount swap target path timer slice scope"
SUFFIXES = tuple(f".{kind}" for kind in _TYPES.split())
_PLAIN = re.compile(rb"[0-9A-Za-z:_.]")
_UNIT_NAME = re.compile(r"[0-9A-Za-z:_.\\-]+(@[0-9A-Za-z:_.\\@-]*)?\.[a-z]+")
_NAME_MAX = 255
_PAGE_SIZE = re.compile(r"[1-9][0-9]*[KMG]")
_MODE = re.compile(r"0?[0-7]{3,4}")
_ACCOUNT = re.compile(r"[a-z_][a-z0-9_-]{0,30}\$?|[0-9]{1,10}")
_TRIES = 5


def escape_path(path: str) -> str:
    r"""Return PATH as systemd-escape --path gives it (`/dev/huge-1G` is `dev-huge\x2d1G`).

    Raises ValueError for a path that is not absolute or has a `..` component.
    """
    if not path.startswith("/") or "\0" in path:
        raise ValueError(f"{path!r} is not an absolute path")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError(f"{path!r} has a '..' component")
    if not parts:
        return "-"
    out = []
    for i, byte in enumerate("/".join(parts).encode("utf-8", "surrogateescape")):
        char = bytes([byte])
        if char == b"/":
            out.append("-")
        elif _PLAIN.match(char) and not (i == 0 and char == b"."):
            out.append(char.decode())
        else:
            out.append(f"\\x{byte:02x}")
    return "".join(out)


def unit_name_for_path(path: str, suffix: str = "mount") -> str:
    """Return the only name a unit of type SUFFIX for PATH may have. Raises ValueError."""
    name = f"{escape_path(path)}.{suffix}"
    if len(name) > _NAME_MAX:
        raise ValueError(f"{path!r} gives a unit name of {len(name)} characters; systemd allows {_NAME_MAX}")
    return name


def check_unit_name(name: str) -> None:
    """Raise ValueError unless NAME is a plain unit file name (no path, a known type, at most 255 long)."""
    known = any(name.endswith(suffix) and len(name) > len(suffix) for suffix in SUFFIXES)
    if not known or len(name) > _NAME_MAX or not _UNIT_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a systemd unit")


def is_ours(content: str) -> bool:
    """Whether a unit file carries the marker of this collection in its first line."""
    return content.split("\n", 1)[0].rstrip() == MARKER


def with_marker(content: str) -> str:
    """Return CONTENT with the marker as its first line and one newline at its end."""
    text = content if is_ours(content) else f"{MARKER}\n{content}"
    return text.rstrip("\n") + "\n"


def install_links(name: str, content: str) -> dict[str, str]:
    """Return {link path: target} of what enabling the unit creates, from its [Install] section.

    WantedBy=, RequiredBy=, UpheldBy= and Alias= as in systemd.unit(5); an empty assignment clears the list. Raises
    ValueError for what is no unit name, which would lead out of the directory of the units.
    """
    found: dict[str, list[str]] = {}
    section = ""
    for line in logical_lines(content):
        if line.startswith("["):
            section = line
        elif section == "[Install]" and "=" in line:
            key, _equals, value = (part.strip() for part in line.partition("="))
            found[key] = [*found.get(key, []), *value.split()] if value else []
    target = f"{UNIT_DIR}/{name}"
    links = {}
    for unit in (unit for names in found.values() for unit in names if "/" in unit or unit.startswith(".")):
        raise ValueError(f"{name} is to be enabled for {unit!r}, which is not the name of a systemd unit")
    for key, folder in (("WantedBy", "wants"), ("RequiredBy", "requires"), ("UpheldBy", "upholds")):
        for by in found.get(key, []):
            links[f"{UNIT_DIR}/{by}.{folder}/{name}"] = target
    for alias in found.get("Alias", []):
        links[f"{UNIT_DIR}/{alias}"] = target
    return links


def logical_lines(content: str) -> Iterable[str]:
    held = ""
    for raw in content.split("\n"):
        line = raw.strip()
        if line[:1] in ("#", ";"):  # also between the parts of a continued line
            continue
        if line.endswith("\\"):
            held += line[:-1] + " "
            continue
        yield (held + line).strip()
        held = ""
    if held:
        yield held.strip()


def _setting(value: str, what: str) -> str:
    """VALUE as the right side of a unit setting: specifiers off, nothing that would end or join lines."""
    if (
        any(ord(char) < 32 or ord(char) == 127 for char in value)
        or value != value.strip()
        or value.endswith("\\")
    ):
        raise ValueError(f"{what} {value!r} cannot be written into a systemd unit")
    return value.replace("%", "%%")


def render_hugetlbfs_mount(
    path: str,
    page_size: str,
    *,
    owner: str | int | None = None,
    group: str | int | None = None,
    mode: str = "0770",
    size_bytes: int | None = None,
    min_size_bytes: int | None = None,
) -> str:
    """Return the text of the .mount unit (name: unit_name_for_path(path)) of one hugetlbfs.

    PAGE_SIZE is like `2M` or `1G`. OWNER and GROUP are names or ids: hugetlbfs takes numbers only, and mount(8)
    turns names into them when it mounts, so a group may be made after the unit is written. The unit cannot fail
    a boot: nothing requires it, and `nofail` takes it out of local-fs.target. Raises ValueError.
    """
    if not _PAGE_SIZE.fullmatch(page_size):
        raise ValueError(f"page size {page_size!r}: want a number with K, M or G, like 2M")
    if not _MODE.fullmatch(mode):
        raise ValueError(f"mode {mode!r} of {path}: want an octal mode like 0770")
    escape_path(path)
    where = _setting("/" + "/".join(part for part in path.split("/") if part not in ("", ".")), "path")
    options = [f"pagesize={page_size}", f"mode={mode}"]
    for name, account in (("uid", owner), ("gid", group)):
        if account is None:
            continue
        if not _ACCOUNT.fullmatch(str(account)):
            raise ValueError(f"{name}={account} of {path}: want a name or a number")
        options.append(f"{name}={account}")
    for name, number in (("size", size_bytes), ("min_size", min_size_bytes)):
        if number is None:
            continue
        if number < 0:
            raise ValueError(f"{name}={number} of {path}: must not be negative")
        options.append(f"{name}={number}")
    return f"""{MARKER}
[Unit]
Description=Huge pages of {page_size} at {where}
Documentation=https://docs.kernel.org/admin-guide/mm/hugetlbpage.html
ConditionPathExists=/sys/kernel/mm/hugepages
After={HUGEPAGES_SERVICE}

[Mount]
What=hugetlbfs
Where={where}
Type=hugetlbfs
Options={",".join(options)},nofail

[Install]
WantedBy=multi-user.target
"""


def render_hugepages_service(pools: Iterable[Mapping[str, Any]], tries: int = _TRIES) -> str:
    """Return the text of the early oneshot unit that reserves huge pages per node through sysfs.

    POOLS are `{size_kb, nodes: {node: count}}`. Each count is written, read back and tried up to TRIES times
    a second apart; a shortfall is an error line in the journal and a failed unit, never a failed boot. Larger
    sizes come first, while memory is least fragmented. Raises ValueError.
    """
    wants = []
    for pool in sorted(pools, key=lambda pool: -int(pool["size_kb"])):
        for node, count in sorted((int(node), int(count)) for node, count in pool["nodes"].items()):
            if node < 0 or count < 0 or int(pool["size_kb"]) <= 0:
                raise ValueError(f"node {node}: {count} pages of {pool['size_kb']} kB")
            wants.append(f"pages {node} {int(pool['size_kb'])} {count}; \\")
    if not wants:
        raise ValueError("no node is given any huge page")
    body = "\n  ".join(wants)
    # $$ is a literal $ to systemd; the script is one single-quoted argument, so it holds no such quote
    return f"""{MARKER}
[Unit]
Description=Reserve huge pages per NUMA node
Documentation=https://docs.kernel.org/admin-guide/mm/hugetlbpage.html
DefaultDependencies=no
Conflicts=shutdown.target
Before=local-fs.target sysinit.target shutdown.target
ConditionPathIsReadWrite=/sys
ConditionVirtualization=!container

[Service]
Type=oneshot
RemainAfterExit=yes
TimeoutStartSec=600
ExecStart=/bin/sh -c ' \\
  failed=0; \\
  pages() {{ \\
    file=/sys/devices/system/node/node$$1/hugepages/hugepages-$$2kB/nr_hugepages; \\
    try=1; got=none; \\
    while :; do \\
      echo $$3 > $$file; \\
      read got < $$file || got=none; \\
      if [ "$$got" = $$3 ]; then echo "node $$1: $$got pages of $$2 kB"; return; fi; \\
      [ $$try -lt {tries} ] || break; \\
      try=$$((try + 1)); sleep 1; \\
    done; \\
    echo "<3>node $$1: $$got pages of $$2 kB instead of $$3"; \\
    failed=1; \\
  }}; \\
  {body}
  exit $$failed'

[Install]
WantedBy=sysinit.target
"""
