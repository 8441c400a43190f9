# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line: one function per subcommand."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from . import apt, ask, hosts, image, recipe, supervisor, topology
from .errors import HostError
from .paths import cache_dir

DESCRIPTION = """\
A real Debian under QEMU: GRUB or systemd-boot, systemd, NUMA nodes, reboots. No KVM needed, no root on the way in.

A first session:
  testhost up                    build the image if it is not there, boot a two-node host (1 to 2 minutes)
  testhost ssh                   log in and look
  testhost inventory > inv.json  an Ansible inventory of what runs
  testhost down --all            end it; nothing stays but the cached image
"""
NAME_HELP = "name of the host; may be left out when there is only one"


def say(text: str) -> None:
    """Progress goes to stderr, so that stdout holds nothing but the answer."""
    print(text, file=sys.stderr, flush=True)


def cmd_build(args: argparse.Namespace) -> int:
    for release in args.release or [apt.RELEASES[0]]:
        built = image.build(release, say, args.force, args.firmware)
        print(built.directory)
    return 0


def cmd_up(args: argparse.Namespace) -> int:
    name = args.name or args.topology.replace("_", "-")
    host = hosts.up(name, args.topology, args.release, say, args.limit, args.firmware)
    print(f"{host.name} is up on 127.0.0.1:{host.port}; log in: testhost ssh {host.name}")
    return 0


def cmd_down(args: argparse.Namespace) -> int:
    names = [host.name for host in hosts.all_hosts()] if args.all else [hosts.get(args.name).name]
    for name in names:
        if args.keep_log:
            hosts.keep_log(hosts.get(name), Path(args.keep_log))
        say(f"{name}: {'ended' if hosts.down(name) else 'was not running; its files are removed'}")
    return 0


def cmd_ssh(args: argparse.Namespace) -> int:
    host = hosts.get(args.name)
    if not hosts.is_running(host):
        raise HostError(f"{host.name} is not running; start it again: testhost reset {host.name}")
    argv = hosts.ssh_argv(host, args.command)
    return subprocess.call(argv)


def cmd_reset(args: argparse.Namespace) -> int:
    host = hosts.reset(hosts.get(args.name), say, args.limit)
    print(f"{host.name} is up on 127.0.0.1:{host.port}")
    return 0


def cmd_freeze(args: argparse.Namespace) -> int:
    if not 1 <= args.milliseconds <= 60000:
        raise HostError(f"{args.milliseconds} ms: must be from 1 to 60000")
    took = hosts.freeze(hosts.get(args.name), args.milliseconds)
    print(f"{took:.1f} ms")
    return 0


def cmd_status(args: argparse.Namespace) -> int:
    rows = [
        {
            "name": host.name,
            "state": hosts.status_of(host),
            "release": host.release,
            "firmware": host.firmware,
            "topology": host.topology,
            "accel": host.accel,
            "port": host.port,
            "pid": host.pid,
            "key": str(host.key),
            "serial_log": str(host.serial_log),
        }
        for host in hosts.all_hosts()
    ]
    if args.json:
        print(json.dumps(rows, indent=2))
        return 0
    columns = ("name", "state", "release", "firmware", "topology", "accel", "port", "pid")
    table = [columns, *(tuple(str(row[column]) for column in columns) for row in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(columns))]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    return 0


def cmd_logs(args: argparse.Namespace) -> int:
    log = hosts.get(args.name).serial_log
    if not log.exists():
        raise HostError(f"{log} is not there: the host has not been started")
    with log.open("rb") as stream, contextlib.suppress(KeyboardInterrupt):
        lines = stream.read().splitlines(keepends=True)
        sys.stdout.buffer.write(b"".join(lines[-args.lines :] if args.lines else lines))
        sys.stdout.buffer.flush()
        while args.follow and log.exists():
            sys.stdout.buffer.write(stream.read())
            sys.stdout.buffer.flush()
            time.sleep(0.3)
    return 0


def cmd_inventory(args: argparse.Namespace) -> int:
    chosen = [hosts.get(name) for name in dict.fromkeys(args.name)] or hosts.all_hosts()
    running = [host for host in chosen if hosts.is_running(host)]
    if not running and not args.name:
        raise HostError("no host is running; start one: testhost up")
    dead = [host.name for host in chosen if host not in running]
    if args.name and dead:
        raise HostError(f"{', '.join(dead)} is not running; start it again: testhost reset {dead[0]}")
    text = json.dumps(hosts.inventory(running), indent=2)
    if args.output:
        Path(args.output).write_text(text + "\n")
    else:
        print(text)
    return 0


def cmd_ask(args: argparse.Namespace) -> int:
    cmdlines = list(args.cmdline)
    if args.file:
        text = sys.stdin.read() if args.file == "-" else Path(args.file).read_text()
        cmdlines += [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not cmdlines:
        raise HostError('nothing to ask; give a command line, in quotes: testhost ask "hugepages=100"')
    answers = ask.ask_many(cmdlines, args.topology, args.release, say, args.limit)
    if not args.dmesg:
        for answer in answers:
            answer.pop("dmesg", None)
    print(json.dumps(answers if len(answers) > 1 or args.file else answers[0], indent=2))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="testhost",
        description=DESCRIPTION,
        epilog=f"Everything is kept under {cache_dir()} (FIRSTTOUCH_TESTHOST_DIR overrides it).",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="subcommand", required=True, metavar="COMMAND")
    _add_host_commands(commands)
    _add_view_commands(commands)
    _add_ask_command(commands)
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, brief: str, text: str
) -> argparse.ArgumentParser:
    return commands.add_parser(
        name, help=brief, description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def _add_firmware(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--firmware", choices=list(recipe.FIRMWARES), default="bios",
        help="bios has GRUB, uefi has systemd-boot; default %(default)s")  # fmt: skip


def _add_host_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    bootable = [name for name, one in topology.load().items() if not one.ask_only]
    sub = _command(
        commands,
        "build",
        "build an image, once",
        "Build Debian images; one that is there is kept.\n\n\
The mirror is the one that this machine's apt uses. A changed recipe builds again.",
    )
    sub.add_argument(
        "--release", action="append", choices=apt.RELEASES, help="default trixie; may be repeated"
    )
    _add_firmware(sub)
    sub.add_argument("--force", action="store_true", help="build even if the image is there")
    sub.set_defaults(run=cmd_build)

    sub = _command(commands, "up", "start a host and wait for its SSH",
        "Start a host on a fresh overlay of the image and wait until a login works.\n\n"
        "Example: testhost up db1 --topology two_node --release bookworm --firmware uefi")  # fmt: skip
    sub.add_argument("name", nargs="?", help="name of the new host; default: its topology")
    sub.add_argument("--topology", choices=bootable, default=bootable[0], help="default %(default)s")
    sub.add_argument("--release", choices=apt.RELEASES, default=apt.RELEASES[0], help="default %(default)s")
    _add_firmware(sub)
    sub.add_argument("--limit", type=float, default=hosts.BOOT_LIMIT, metavar="S",
        help="seconds to wait for SSH; default %(default)s")  # fmt: skip
    sub.set_defaults(run=cmd_up)

    sub = _command(commands, "down", "end a host and remove its files",
        "End exactly the QEMU of this host, without a shutdown, and remove its overlay, key and logs.")  # fmt: skip
    sub.add_argument("name", nargs="?", help=NAME_HELP)
    sub.add_argument("--all", action="store_true", help="every host")
    sub.add_argument("--keep-log", metavar="DIR", help="copy the serial console to DIR/serial-NAME.log first")
    sub.set_defaults(run=cmd_down)

    sub = _command(commands, "reset", "the same host from a clean image again",
        "End the host and boot it again from a fresh overlay; name, port and key stay.")  # fmt: skip
    sub.add_argument("name", nargs="?", help=NAME_HELP)
    sub.add_argument("--limit", type=float, default=hosts.BOOT_LIMIT, metavar="S",
        help="seconds to wait for SSH; default %(default)s")  # fmt: skip
    sub.set_defaults(run=cmd_reset)

    sub = _command(commands, "freeze", "stop all vCPUs for some milliseconds",
        "Play a hypervisor stall: SIGSTOP the QEMU, wait, SIGCONT. Every vCPU sees the same gap.\n\n"
        "Example: testhost freeze 250")  # fmt: skip
    sub.add_argument("milliseconds", type=int, metavar="MS", help="how long, in milliseconds (1 to 60000)")
    sub.add_argument("name", nargs="?", help=NAME_HELP)
    sub.set_defaults(run=cmd_freeze)


def _add_view_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sub = _command(
        commands,
        "ssh",
        "log in, or run a command",
        "Log in as root, or run a command there; ssh joins\n\
its words with spaces for the remote shell.\n\nExample: testhost ssh two-node 'cat /proc/cmdline'",
    )
    sub.add_argument("name", nargs="?", help=f"{NAME_HELP} and no command")
    sub.add_argument("command", nargs=argparse.REMAINDER, help="command and arguments; none gives a shell")
    sub.set_defaults(run=cmd_ssh)

    sub = _command(
        commands,
        "status",
        "what runs",
        "List the hosts. A host is running, frozen (its QEMU is stopped by a signal) or dead\n\
(its QEMU is gone; down removes what is left of it).\n\nExample: testhost status --json",
    )
    sub.add_argument("--json", action="store_true", help="as JSON, with paths of keys and logs")
    sub.set_defaults(run=cmd_status)

    sub = _command(commands, "logs", "the serial console of a host",
        "Print the serial console: boot loader, kernel, login prompt; of all boots since the start.")  # fmt: skip
    sub.add_argument("name", nargs="?", help=NAME_HELP)
    sub.add_argument("-n", "--lines", type=int, default=0, help="only the last lines; default all")
    sub.add_argument("-f", "--follow", action="store_true", help="go on as the log grows")
    sub.set_defaults(run=cmd_logs)

    sub = _command(commands, "inventory", "an Ansible inventory of running hosts",
        "Print an Ansible inventory (JSON, which is YAML too) with the hosts named, or all running ones, in group\n"
        "testhosts. A host that is named and does not run is an error.\n\n"
        "Example: testhost inventory db1 -o inv.yml; ansible -i inv.yml testhosts -m ping")  # fmt: skip
    sub.add_argument("name", nargs="*", help="only these hosts; default: all that run")
    sub.add_argument("-o", "--output", help="write to this file instead of stdout")
    sub.set_defaults(run=cmd_inventory)


def _add_ask_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    machines = "\n".join(f"  {name:10}  {one.description}" for name, one in topology.load().items())
    sub = _command(commands, "ask", "what the kernel makes of a command line",
        "Boot the stock kernel with a command line and print, as JSON, what it made of it: hugepage pools per\n"
        "size and node, isolated and nohz_full CPUs, default IRQ affinity and its complaints. 10 s under TCG.\n\n"
        'Example: testhost ask "hugepagesz=2M hugepages=0:100,1:50 isolcpus=1,3" --topology two_node\n\n'
        f"Topologies:\n{machines}")  # fmt: skip
    sub.add_argument("cmdline", nargs="*", metavar="CMDLINE", help="in quotes; several are asked in a row")
    sub.add_argument(
        "--file", help="read more of them from a file, one a line (- for stdin); prints an array"
    )
    sub.add_argument("--dmesg", action="store_true", help="add the whole kernel log to each answer")
    sub.add_argument(
        "--topology", choices=list(topology.load()), default="two_node", help="default %(default)s"
    )
    sub.add_argument("--release", choices=apt.RELEASES, default=apt.RELEASES[0], help="default %(default)s")
    sub.add_argument("--limit", type=float, default=ask.ASK_LIMIT, metavar="S",
        help="seconds until a kernel counts as hanging; default %(default)s")  # fmt: skip
    sub.set_defaults(run=cmd_ask)


def _on_signal(number: int, _frame: FrameType | None) -> None:
    # Unwinds through every finally, as Ctrl-C does.
    raise SystemExit(128 + number)


def main(argv: list[str]) -> int:
    """Run one subcommand; returns the exit status."""
    if argv[:1] == [supervisor.COMMAND]:
        # Not for people: what `up` leaves behind.
        return supervisor.supervise(Path(argv[1]), Path(argv[2]), argv[3:])
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _on_signal)
    args = _parser().parse_args(argv)
    try:
        return int(args.run(args))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (HostError, OSError) as error:
        # An OSError has the file and the reason; a disk that is full, most of all.
        say(f"testhost: {error}")
        return 1
    except KeyboardInterrupt:
        say("testhost: interrupted; what was started is ended")
        return 130
