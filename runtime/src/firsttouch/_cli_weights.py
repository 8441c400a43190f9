# SPDX-License-Identifier: Apache-2.0
"""`firsttouch weights`: plan, load, swap, ls, verify, rm, gc, stat.

`--json` prints the object that the text is made of. Results go to stdout, progress and errors to stderr; with --json
an error is the object on stdout.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from firsttouch import _checksums, _loader, _planning, _pool, _progress, _store, _weights, weights
from firsttouch.errors import ArgumentError, FirstTouchError, WeightsError

# The last column of /proc/PID/maps.
_MAPPED = re.compile(r"(/\S+@[0-9a-f]{12}\.[0-9]+(?:\.node[0-9]+)?\.img(?: \(deleted\))?)$", re.MULTILINE)
FIRST_SESSION = """A first session:
  mount -t hugetlbfs -o pagesize=2M,mode=0750 none /dev/hugepages/firsttouch
  firsttouch weights plan MODEL          how many pages it takes, and what is short
  firsttouch weights plan MODEL --apply  have the kernel make the pages that are missing
  firsttouch weights load MODEL          --node, --interleave, --prefer, --replicate choose NUMA nodes
  firsttouch weights ls                  one copy, and how many processes have it mapped
In a worker: firsttouch.weights.open(NAME), or firsttouch.weights.safe_open(FILE, "pt").

"""
EXIT_CODES = """exit status:
   0  done                      7  checksum differs
   1  a system call failed      8  not loaded, or no valid image
   2  usage                     9  a file cannot be read, or changed
   3  pool or mount too small  10  not possible on this machine
   4  node short, fragmented   11  another process is loading it
   5  control group limit      12  another model has the name
   6  no valid model file      13  no hugetlbfs is mounted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ARGV behind `firsttouch weights`; returns the exit status."""
    args = parser().parse_args(argv)
    try:
        document = args.run(args)
    except FirstTouchError as error:
        return _failed(error, args.json)
    except KeyboardInterrupt:
        sys.stderr.write("firsttouch weights: interrupted, nothing is left of it\n")
        return 130
    if args.json:
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    else:
        args.show(document)
    return int(document.get("exit_status", 0)) if isinstance(document, dict) else 0


def parser() -> argparse.ArgumentParser:
    """The parser of all sub-commands."""
    top = argparse.ArgumentParser(
        "firsttouch weights",
        description="Model weights in huge pages: loaded once, mapped read only by all workers.",
        epilog=FIRST_SESSION + EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    for name, function, show, help_text, extras in _COMMANDS:
        command = commands.add_parser(
            name, help=help_text, description=f"{help_text}.", epilog=EXIT_CODES, formatter_class=top.formatter_class
        )
        command.set_defaults(run=function, show=show)
        for extra in extras:
            extra(command)
        command.add_argument("--json", action="store_true", help="print the result as JSON")
        if function is not _stat:
            text = "the hugetlbfs (default: $FIRSTTOUCH_WEIGHTS_DIR, else the first one mounted)"
            command.add_argument("--dir", metavar="DIR", help=text)
    return top


def _model(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", metavar="MODEL", help="a safetensors file, a folder with an index, or the index")
    command.add_argument("--name", help="the name that workers open it by (default: the folder's or file's)")
    command.add_argument("--page", default="2M", help="page size: 2M or 1G (default: 2M)")
    command.add_argument(
        "--fallback",
        choices=["tmpfs-huge"],
        help="load into a tmpfs with huge pages where the pool is short or no hugetlbfs is mounted",
    )
    command.add_argument(
        "--align",
        type=int,
        choices=_planning.ALIGNMENTS,
        default=1,
        help="begin the tensors of each file at a multiple of this, for one more copy in memory (default: as they lie)",
    )
    places = command.add_mutually_exclusive_group()
    places.add_argument("--node", metavar="N,..", help="on these NUMA nodes only")
    places.add_argument("--interleave", metavar="N,..|all", help="page by page over these nodes")
    places.add_argument("--prefer", metavar="N", help="on this node, on others when it is full")
    places.add_argument("--replicate", metavar="N,..|all", help="one image on each of these nodes")


def _loading(command: argparse.ArgumentParser) -> None:
    command.add_argument("--checksum", choices=_checksums.NAMES, default="xxh3", help="of each chunk (default: xxh3)")
    command.add_argument(
        "--expect", action="append", default=[], metavar="[FILE=]sha256:HEX", help="digest that a whole file must have"
    )
    command.add_argument("--threads", type=_positive, default=_loader.THREADS, help="readers (default: 4)")
    command.add_argument("--no-progress", action="store_true", help="print no progress")


def _by_file(command: argparse.ArgumentParser) -> None:
    # For the help: `firsttouch` puts the words of the file in its place before this parser sees them, unless it is
    # shortened.
    text = "load what /etc/firsttouch/models/NAME.json says, or NAME.json below --etc DIR: instead of MODEL"
    command.add_argument("--model", metavar="NAME", type=_shortened, default=argparse.SUPPRESS, help=text)


def _shortened(name: str) -> str:
    raise argparse.ArgumentTypeError(f"not to be shortened, write --model {name}")


def _name(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME", help="the name of a loaded model")


def _apply(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--apply", action="store_true", help="make a pool or node that is short large enough, until the next reboot"
    )


def _evict(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--evict-first", action="store_true", help="remove the old one first, where the pool does not hold both"
    )


def _deep(command: argparse.ArgumentParser) -> None:
    command.add_argument("--deep", action="store_true", help="also the checksum of every chunk in memory")


def _dry(command: argparse.ArgumentParser) -> None:
    command.add_argument("--dry-run", action="store_true", help="only tell")


def _pid(command: argparse.ArgumentParser) -> None:
    command.add_argument("pid", type=_positive, metavar="PID", help="a process")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return value


def _place(args: argparse.Namespace) -> dict[str, Any]:
    """What plan() and load() both take of the options: the image's name, where it lies and in which pages."""
    place = {
        "name": args.name,
        "directory": args.dir,
        "page": args.page,
        "fallback": args.fallback,
        "align": args.align,
    }
    for option in ("node", "interleave", "prefer", "replicate"):
        text = getattr(args, option)
        if text is not None:
            return {**place, "policy": "bind" if option == "node" else option, "nodes": _nodes(text, args.page)}
    return place


def _nodes(text: str, page: str) -> list[int]:
    """Node numbers, or `all` that have a pool."""
    if text == "all":
        return sorted(_pool.read_pool(_page_bytes(page)).nodes)
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise ArgumentError(f"{text!a} is no list of nodes", hint="write 0 or 0,1 or all") from None


def _page_bytes(page: str) -> int:
    try:
        return _pool.parse_bytes(page)
    except ValueError as error:
        raise ArgumentError(str(error)) from error


def _plan(args: argparse.Namespace) -> dict[str, Any]:
    plan = weights.plan(
        args.model,
        apply=args.apply,
        **_place(args),
    )
    document = {
        key: value for key, value in vars(plan).items() if key not in ("facts", "problem", "placement", "warnings")
    }
    problem = None if plan.problem is None else _described(plan.problem)
    return {
        **document,
        "ok": plan.ok,
        "placement": dataclasses.asdict(plan.placement),
        "facts": plan.facts.as_dict(),
        "warnings": list(plan.warnings),
        "problem": problem,
        "exit_status": plan.problem.exit_status if plan.problem else 0,
    }


def _show_plan(found: dict[str, Any]) -> None:
    size = _pool.size_text(found["page_bytes"])
    copies = f" for each of {found['images']} nodes" if found["images"] > 1 else ""
    _say(f"{found['model']}: {found['tensors']} tensors, {human(found['model_bytes'])}, from {found['source']}")
    _say(f"  takes  {found['pages']} pages of {size}{copies}, in {found['directory']} ({found['backend']})")
    facts = found["facts"]
    if found["backend"] == _pool.HUGETLBFS:
        nodes = "".join(f", node {node} {free}" for node, free in facts["nodes"].items())
        _say(f"  pool   {facts['total']} pages, {facts['free']} free{nodes}, {facts['reserved']} of them reserved")
    if facts["mount_free"] is not None:
        _say(f"  mount  {facts['mount_free']} pages left of its size")
    for row in facts["cgroup"]:
        _say(f"  group  {row['room']} pages left in {row['file']}")
    for file, row in found["applied"].items():
        _say(f"  grown  {file}: {row['before']} -> {row['after']}, until the next reboot")
    _show_warnings(found)
    if found["problem"]:
        _say(f"  NO: {found['problem']['message']}")
        _say(f"  fix: {found['problem']['hint']}")
    else:
        _say("  fits")


def _load(args: argparse.Namespace) -> dict[str, Any]:
    return _loaded(args)


def _swap(args: argparse.Namespace) -> dict[str, Any]:
    return _loaded(args, replace=True, evict_first=args.evict_first)


def _loaded(args: argparse.Namespace, **more: Any) -> dict[str, Any]:
    quiet = args.no_progress
    with _progress.Progress(sys.stderr, quiet) as progress:
        image = weights.load(
            args.model,
            checksum=args.checksum,
            expect=_expected(args.expect),
            threads=args.threads,
            progress=progress,
            **_place(args),
            **more,
        )
    return {**dataclasses.asdict(image), "bytes_per_s": round(image.model_bytes / max(image.seconds, 1e-9))}


def _expected(words: list[str]) -> str | dict[str, str] | None:
    """`sha256:HEX` alone, or one for each FILE=."""
    if not words:
        return None
    if len(words) == 1 and "=" not in words[0]:
        return words[0]
    pairs = [word.partition("=") for word in words]
    bad = [word for word, (_, mark, _) in zip(words, pairs, strict=True) if not mark]
    if bad:
        raise ArgumentError(f"--expect {bad[0]} names no file", hint="write FILE=sha256:HEX")
    return {name: digest for name, _, digest in pairs}


def _show_image(found: dict[str, Any]) -> None:
    if not found["loaded"]:
        _say(f"{found['model']}: loaded before, generation {found['generation']}, nothing done")
    else:
        took = f"in {found['seconds']:.2f} s, {human(found['bytes_per_s'])}/s"
        _say(f"{found['model']}: {human(found['model_bytes'])} {took}, generation {found['generation']}")
    for path in found["paths"]:
        _say(f"  image    {path}")
    nodes = ", ".join(f"node {node} {count}" for node, count in found["nodes"].items())
    _say(f"  pages    {found['pages']} ({nodes or 'nodes not known'}), checksum {found['checksum']}")
    for path in found["removed"]:
        _say(f"  removed  {path}")
    if found["loaded"]:
        _show_warnings(found)


def _show_warnings(found: dict[str, Any]) -> None:
    for text in found["warnings"]:
        _say(f"  warning: {text}")


def _ls(args: argparse.Namespace) -> dict[str, Any]:
    rows = weights.ls(args.dir)
    users, hidden = _store.mappers(rows)
    found = [
        {
            "model": row.name.model,
            "generation": row.name.generation,
            "digest": row.name.digest,
            "node": row.name.node,
            "path": row.path,
            "bytes": row.bytes,
            "page_bytes": row.block.page_bytes if row.block else None,
            "pages_by_node": None if row.trouble else _weights.nodes_now(row),
            "ready": not row.trouble,
            "trouble": row.trouble,
            "mappers": users[row.path],
            "source": row.manifest.get("source"),
            "created": row.manifest.get("created"),
        }
        for row in rows
    ]
    return {"images": found, "processes_not_seen": hidden}


def _show_ls(found: dict[str, Any]) -> None:
    rows = [("MODEL", "GEN", "SIZE", "PAGES", "NODES", "MAPPERS", "STATE")]
    for row in found["images"]:
        nodes = " ".join(f"{node}:{count}" for node, count in (row["pages_by_node"] or {}).items())
        page = row["page_bytes"]
        pages = f"{row['bytes'] // page}x{_pool.size_text(page)}" if page else ""
        name = row["model"] if row["node"] is None else f"{row['model']} (node {row['node']})"
        state = "ready" if row["ready"] else f"NOT READY: {row['trouble']}"
        rows.append((name, str(row["generation"]), human(row["bytes"]), pages, nodes, str(len(row["mappers"])), state))
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    for row in rows:
        _say("  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[6]]).rstrip())
    if found["images"] and found["processes_not_seen"]:
        _say(f"{found['processes_not_seen']} processes could not be looked at: MAPPERS may be more")


def _verify(args: argparse.Namespace) -> dict[str, Any]:
    return weights.verify(args.name, deep=args.deep, directory=args.dir)


def _show_verify(found: dict[str, Any]) -> None:
    chunks = f", {found['chunks']} chunks by {found['checksum']}" if found["chunks"] else ""
    for path in found["images"]:
        _say(f"{path}: ok: {found['tensors']} tensors in {found['shards']} files{chunks}")


def _rm(args: argparse.Namespace) -> dict[str, Any]:
    return {"removed": weights.rm(args.name, directory=args.dir)}


def _show_rm(found: dict[str, Any]) -> None:
    for path in found["removed"]:
        _say(f"removed  {path}")


def _gc(args: argparse.Namespace) -> dict[str, Any]:
    return {"dry_run": args.dry_run, **weights.gc(directory=args.dir, dry_run=args.dry_run)}


def _show_gc(found: dict[str, Any]) -> None:
    word = "would remove" if found["dry_run"] else "removed"
    rows = [(reason, path) for reason, paths in found.items() if reason != "dry_run" for path in paths]
    for reason, path in rows:
        _say(f"busy, left alone  {path}" if reason == "busy" else f"{word}  {path}  ({reason})")
    if not rows:
        _say("nothing to remove")


def _stat(args: argparse.Namespace) -> dict[str, Any]:
    """Page faults, page tables and mapped images of a process (proc(5))."""
    folder = Path("/proc", str(args.pid))
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        status = dict(re.findall(r"^(\w+):\s+(\d+) kB$", (folder / "status").read_text(), re.MULTILINE))
        maps = (folder / "maps").read_text(errors="replace")
    except OSError as error:
        raise WeightsError(f"process {args.pid} cannot be looked at: {error.strerror}") from error
    images = sorted(set(_MAPPED.findall(maps)))
    return {
        "pid": args.pid,
        "minor_faults": int(fields[7]),
        "major_faults": int(fields[9]),
        "page_tables_kb": int(status.get("VmPTE", 0)),
        "rss_kb": int(status.get("VmRSS", 0)),
        # With shared page tables this is 0 for all but the first mapper.
        "hugetlb_kb": int(status.get("HugetlbPages", 0)),
        "images": images,
    }


def _show_stat(found: dict[str, Any]) -> None:
    _say(f"process {found['pid']}: {found['minor_faults']} minor and {found['major_faults']} major faults")
    _say(f"  page tables  {found['page_tables_kb']} kB")
    _say(f"  resident     {found['rss_kb']} kB, and {found['hugetlb_kb']} kB in huge pages by its own page tables")
    for path in found["images"]:
        _say(f"  image        {path}")


def _described(error: FirstTouchError) -> dict[str, Any]:
    return {"code": error.code, "message": error.message, "hint": error.hint, "facts": error.facts}


def _failed(error: FirstTouchError, as_json: bool) -> int:
    if as_json:
        document = {"error": _described(error), "exit_status": error.exit_status}
        sys.stdout.write(json.dumps(document, indent=1, default=str) + "\n")
    else:
        _say(f"firsttouch weights: {error.code}: {error.message}", sys.stderr)
        if error.hint:
            _say(f"  fix: {error.hint}", sys.stderr)
    return error.exit_status


def _say(text: str, out: TextIO | None = None) -> None:
    """Print a line; what a file or tensor is called may hold anything, and a terminal must not obey it."""
    safe = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
    (out or sys.stdout).write(f"{safe}\n")


def human(count: float) -> str:
    """Bytes with a unit of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


_Extra = Callable[[argparse.ArgumentParser], None]
_COMMANDS: tuple[tuple[str, Callable[..., Any], Callable[..., None], str, tuple[_Extra, ...]], ...] = (
    ("plan", _plan, _show_plan, "Tell how many pages a model takes, and whether they can be had", (_model, _apply)),
    ("load", _load, _show_image, "Load a model into huge pages", (_model, _loading, _by_file)),
    ("swap", _swap, _show_image, "Load the next generation of a model, remove the old", (_model, _loading, _evict)),
    ("ls", _ls, _show_ls, "List what is loaded, and how many processes have it mapped", ()),
    ("verify", _verify, _show_verify, "Check a loaded model", (_name, _deep)),
    ("rm", _rm, _show_rm, "Remove a loaded model; who has it mapped keeps it until then", (_name,)),
    ("gc", _gc, _show_gc, "Remove superseded, incomplete and damaged images", (_dry,)),
    ("stat", _stat, _show_stat, "Show faults, page tables and images of a process", (_pid,)),
)
