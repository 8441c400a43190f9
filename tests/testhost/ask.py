# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask a stock kernel what it makes of a command line: a boot that ends as soon as it has answered."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from . import cpio, image, probe, qemu
from . import topology as topologies
from .errors import HostError
from .paths import PACKAGE_DIR, cache_dir

# A kernel that was left no memory can hang without a word; a healthy one takes 4 to 10 s under TCG.
ASK_LIMIT = 60.0
# What a bzImage takes: COMMAND_LINE_SIZE of x86, with the final NUL.
CMDLINE_MAX = 2047
# Before the asked line, so that a "--" or an open quote in it cannot swallow them.
_OWN = "console=ttyS0,115200 panic=-1 quiet rdinit=/init"
_COMPLAINTS = re.compile(
    r"HugeTLB|hugetlb|isolcpus|[Hh]ousekeeping|NO_HZ|nohz|rcu.*(?:Offload|nonexistent|NO_HZ|nocbs)|Unknown kernel"
    r"|Malformed|.*invalid for parameter|.*parameter|.*Unknown parameter|.*crashkernel|.*user-defined|.*irqaffinity"
)
# Said of every boot, of no interest for a command line.
_NOISE = re.compile(r"(?:Kernel c|C)ommand line:|HugeTLB: \d+ KiB vmemmap|.*vmalloc hugepage")
_POOL = re.compile(r"/hugepages-(\d+kB)/nr_hugepages$")
_NODE = re.compile(r"/node(\d+)/")
_STAMP = re.compile(r"^(?:<\d+>)?\[\s*\d+\.\d+\]\s?")

Say = Callable[[str], None]


def split_report(text: str) -> list[tuple[str, str]]:
    """The parts of what ask-init printed, in order."""
    parts: list[tuple[str, list[str]]] = []
    for line in text.replace("\r", "").split("\n"):
        if line.startswith("== "):
            parts.append((line[3:], []))
        elif parts:
            parts[-1][1].append(line)
    return [(name, "\n".join(lines).strip("\n")) for name, lines in parts]


def mask_to_list(mask: str) -> str:
    """A kernel CPU mask (comma-separated 32-bit hex words, highest first) as a CPU list."""
    value = int(mask.replace(",", "") or "0", 16)
    cpus = [cpu for cpu in range(value.bit_length()) if value >> cpu & 1]
    runs: list[list[int]] = []
    for cpu in cpus:
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _meminfo_bytes(text: str, field: str) -> int | None:
    found = re.search(rf"\b{re.escape(field)}:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else None


def read_pools(files: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Pages per size and node from the sysfs files that were read, nodes without pages included."""
    pools: dict[str, dict[str, Any]] = {}
    for path, value in files.items():
        size = _POOL.search(path)
        if not size:
            continue
        pool = pools.setdefault(size[1], {"total": 0, "nodes": {}})
        node = _NODE.search(path)
        if node:
            pool["nodes"][node[1]] = int(value)
        else:
            pool["total"] = int(value)
    return dict(sorted(pools.items(), key=lambda item: int(item[0][:-2])))


def parse_report(text: str) -> dict[str, Any]:
    """The answer out of what ask-init printed."""
    parts = split_report(text)
    named = dict(parts)
    files = dict(line.split("=", 1) for line in named["files"].splitlines() if "=" in line)
    cpu = "/sys/devices/system/cpu/"
    node = "/sys/devices/system/node/"
    nohz = files.get(f"{cpu}nohz_full", "").strip()
    mask = files.get("/proc/irq/default_smp_affinity", "")
    dmesg = [_STAMP.sub("", line) for line in named["dmesg"].splitlines()]
    nr_cpu_ids = re.search(r"\bnr_cpu_ids:(\d+)", named["dmesg"])
    nodes: dict[str, dict[str, Any]] = {}
    for name, body in parts:
        found = re.match(r"Node (\d+) ", body) if name == "node_meminfo" else None
        if found:
            nodes[found[1]] = {
                "memory_bytes": _meminfo_bytes(body, "MemTotal"),
                "cpus": files.get(f"{node}node{found[1]}/cpulist", ""),
            }
    return {
        "cmdline": named["cmdline"].strip("\n"),
        "release": named["release"].strip(),
        "pools": read_pools(files),
        "default_kb": (_meminfo_bytes(named["meminfo"], "Hugepagesize") or 0) // 1024,
        "isolated": files.get(f"{cpu}isolated", ""),
        # The kernel prints a null pointer where nohz_full= is not in force.
        "nohz_full": "" if nohz == "(null)" else nohz,
        "default_irq_affinity": mask_to_list(mask),
        "default_irq_affinity_mask": mask,
        "online": files.get(f"{cpu}online", ""),
        "possible": files.get(f"{cpu}possible", ""),
        "present": files.get(f"{cpu}present", ""),
        "nr_cpu_ids": int(nr_cpu_ids[1]) if nr_cpu_ids else None,
        "memory_bytes": _meminfo_bytes(named["meminfo"], "MemTotal"),
        "nodes": nodes,
        "nodes_with_memory": files.get(f"{node}has_memory", ""),
        "nodes_with_normal_memory": files.get(f"{node}has_normal_memory", ""),
        "transparent_hugepage": files.get("/sys/kernel/mm/transparent_hugepage/enabled", ""),
        "complaints": [line for line in dmesg if _COMPLAINTS.match(line) and not _NOISE.match(line)],
        "dmesg": dmesg,
    }


def initramfs() -> Path:
    """The initramfs that asks, made once per version of its parts."""
    busybox = Path(qemu.find_tools("busybox")["busybox"]).resolve()
    data = busybox.read_bytes()
    if cpio.is_dynamic(data):
        raise HostError(
            f"{busybox} is not linked statically; on Debian or Ubuntu: apt-get install busybox-static"
        )
    entries = [
        cpio.Entry("bin", 0o040755),
        cpio.Entry("dev", 0o040755),
        cpio.Entry("bin/busybox", 0o100755, data),
        cpio.Entry("init", 0o100755, (PACKAGE_DIR / "ask-init").read_bytes()),
        # The kernel opens the console for PID 1 before devtmpfs is there.
        cpio.Entry("dev/console", 0o020600, rdev=(5, 1)),
    ]
    archive = cpio.pack(entries)
    target = cache_dir() / f"ask-{cpio.digest(archive)}.cpio"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        for old in target.parent.glob("ask-*.cpio"):
            old.unlink(missing_ok=True)
        beside = target.with_suffix(f".{os.getpid()}")
        beside.write_bytes(archive)
        beside.rename(target)
    return target


def boot_argv(
    kernel: Path, cmdline: str, machine: list[str], accel: str, console: Path, answer: Path
) -> list[str]:
    """The QEMU command line of one question. A panic ends it: panic=-1 reboots, -no-reboot exits."""
    argv = [qemu.find_tools(qemu.QEMU)[qemu.QEMU], *qemu.machine_args(accel), *machine, "-no-reboot"]
    argv += qemu.serial_args(console, "console") + qemu.serial_args(answer, "answer")
    argv += ["-kernel", str(kernel), "-initrd", str(initramfs())]
    return [*argv, "-append", f"{_OWN} {cmdline}"]


def _ask_once(kernel: Path, cmdline: str, machine: list[str], accel: str, limit: float) -> dict[str, Any]:
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="testhost-ask-") as work:
        console, answer = Path(work, "console"), Path(work, "answer")
        outcome = "booted"
        with qemu.foreground(boot_argv(kernel, cmdline, machine, accel, console, answer)) as guest:
            try:
                qemu.await_exit(guest, limit, console, "the kernel that was asked", lambda _: None)
            except qemu.TimeLimitError:
                outcome = "hang"
        text = answer.read_text("utf-8", "replace") if answer.exists() else ""
        result: dict[str, Any] = {"asked": cmdline, "seconds": round(time.monotonic() - begin, 1)}
        if "\n== end" in text and outcome == "booted":
            return {**result, "outcome": outcome, **parse_report(text)}
        return {
            **result,
            "outcome": "panic" if outcome == "booted" else outcome,
            "console": qemu.tail(console, 60),
        }


def ask_kernel(kernel: Path, cmdline: str, machine: list[str], accel: str, limit: float) -> dict[str, Any]:
    """One question to one kernel. ``outcome`` is ``booted``, ``panic`` or ``hang``; only a booted kernel
    has the other answers, the others come with the end of the ``console``."""
    if len(f"{_OWN} {cmdline}") > CMDLINE_MAX or "\n" in cmdline or "\0" in cmdline:
        raise HostError(
            f"the command line must be one line of at most {CMDLINE_MAX - len(_OWN) - 1} characters"
        )
    answer = _ask_once(kernel, cmdline, machine, accel, limit)
    if "Oops: int3" in answer.get("console", ""):
        # TCG ran a stale breakpoint of the kernel's own text patching: no answer to the question.
        answer = _ask_once(kernel, cmdline, machine, accel, limit)
    return answer


def ask_many(
    cmdlines: Iterable[str],
    topology: str = "two_node",
    release: str = "trixie",
    say: Say = lambda _: None,
    limit: float = ASK_LIMIT,
) -> list[dict[str, Any]]:
    """Answers to several command lines, asked one after the other."""
    kernel = image.build(release, say).kernel
    accel = probe.accelerator(kernel, say)
    machine = topologies.qemu_args(topologies.get(topology))
    answers = []
    for cmdline in cmdlines:
        answers.append(ask_kernel(kernel, cmdline, machine, accel, limit))
        say(f"{answers[-1]['outcome']} after {answers[-1]['seconds']} s: {cmdline}")
    return answers


def ask(
    cmdline: str, topology: str = "two_node", release: str = "trixie", say: Say = lambda _: None
) -> dict[str, Any]:
    """What the stock kernel of a release makes of a command line on a topology."""
    return ask_many([cmdline], topology, release, say)[0]
