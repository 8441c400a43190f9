# SPDX-License-Identifier: GPL-3.0-or-later
"""Raw reads of a live host for the verifier, in as few commands as possible.

Nothing here uses the collection's own code: a defect there must not be able to vouch for itself.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import Any

_MARK = "@@firsttouch@@"


def as_root(script: str) -> str:
    """SCRIPT as a command line that runs it with sh as root, with sudo only where that is needed."""
    return f"$([ $(id -u) = 0 ] || echo sudo -n) sh -c {shlex.quote(script)}"


def read_files(host: Any, patterns: Iterable[str]) -> dict[str, str]:
    """Content of every file that a shell pattern of PATTERNS matches on HOST, in one command."""
    script = (
        f'for f in {" ".join(patterns)}; do [ -f "$f" ] && echo "{_MARK}$f" && cat "$f" && echo; done; true'
    )
    return split_files(host.check_output(as_root(script)))


def split_files(text: str) -> dict[str, str]:
    """The output of read_files()'s script as {path: stripped content}."""
    files = {}
    for part in text.split(_MARK)[1:]:
        path, _, content = part.partition("\n")
        files[path] = content.strip()
    return files


def run(host: Any, script: str) -> str:
    """Standard output of SCRIPT run as root on HOST; a failing script fails the test."""
    return str(host.check_output(as_root(script))).strip()


def cpu_list(text: str) -> set[int]:
    """`0-1,3` as a set; empty and the kernel's `(null)` are no CPU."""
    found: set[int] = set()
    for part in filter(None, text.replace("(null)", "").strip().split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def cpu_mask(text: str) -> set[int]:
    """A hexadecimal mask, in groups of 32 bits or not, as a set."""
    bits = int(text.strip().replace(",", ""), 16)
    return {cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1}


def persistent_pages(files: dict[str, str]) -> dict[str, dict[str, int]]:
    """{"2048kB": {"0": pages}} from per-node sysfs: nr_hugepages without the surplus."""
    pools: dict[str, dict[str, int]] = {}
    for path, text in files.items():
        found = re.fullmatch(r".*/node(\d+)/hugepages/hugepages-(\d+kB)/nr_hugepages", path)
        if found:
            surplus = files[path.replace("/nr_hugepages", "/surplus_hugepages")]
            pools.setdefault(found.group(2), {})[found.group(1)] = int(text) - int(surplus)
    return pools


def low_minus_min(zoneinfo: str) -> int:
    """Pages between the min and low watermarks, summed over all zones of /proc/zoneinfo."""
    lows = re.findall(r"^\s+low\s+(\d+)$", zoneinfo, re.MULTILINE)
    mins = re.findall(r"^\s+min\s+(\d+)$", zoneinfo, re.MULTILINE)
    assert lows and len(lows) == len(mins)
    return sum(map(int, lows)) - sum(map(int, mins))


def hugetlbfs_mounts(mountinfo: str) -> dict[str, list[dict[str, str]]]:
    """{mount point: [superblock options of each mount stacked there, in order]}, every type counted."""
    mounts: dict[str, list[dict[str, str]]] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fstype, _, options = right.split(" ", 2)
        pairs = dict(option.partition("=")[::2] for option in options.split(","))
        mounts.setdefault(left.split(" ")[4], []).append({"fstype": fstype, **pairs})
    return {path: stack for path, stack in mounts.items() if any(m["fstype"] == "hugetlbfs" for m in stack)}


def size_bytes(text: str) -> int:
    """`2M`, `1024M`, `1G` or plain bytes as bytes."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1].upper()] if text[-1].upper() in units else int(text)


def in_order(wanted: list[str], line: str) -> bool:
    """Whether the tokens WANTED are all in LINE, in that order (others may stand between)."""
    rest = iter(line.split())
    return all(token in rest for token in wanted)


def grub_entries(cfg: str) -> list[tuple[str, str]]:
    """(title, kernel command line) of each menu entry of a grub.cfg that loads a kernel."""
    entries = []
    title = ""
    for line in cfg.splitlines():
        head = re.match(r"\s*menuentry\s+(?:'([^']*)'|\"([^\"]*)\")", line)
        if head:
            title = head.group(1) or head.group(2) or ""
        words = line.split(None, 2)
        if title and len(words) == 3 and words[0] in ("linux", "linux16", "linuxefi"):
            entries.append((title, words[2]))
    return entries
