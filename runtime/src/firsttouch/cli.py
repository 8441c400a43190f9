# SPDX-License-Identifier: Apache-2.0
"""The command `firsttouch`: serve, ping, check, bench, weights, doctor.

The only place that prints, exits, and maps errors to a status. Results go to stdout, everything else to stderr;
`--json` prints the object that the text is made of.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firsttouch import __version__
from firsttouch.errors import ArgumentError, FirstTouchError

if TYPE_CHECKING:
    from firsttouch._job import Job

_HANDLER = "firsttouch._policy:Policy"
_BENCH = """48 KiB there and 4 KiB back, a server on the last allowed CPU and one client on the first. Takes some ten
seconds, in which nothing else should run. Beside other transports: `make bench` in the repository."""
# No more than that: there are libraries which go through all that are allowed.
_OPEN_FILES = 65536


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ARGV; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["weights"]:
        from firsttouch import _cli_weights

        try:
            named = words[1:2] == ["load"] and any(word.partition("=")[0] == "--model" for word in words[2:])
            return _cli_weights.main(_model_words(words[2:]) if named else words[1:])
        except FirstTouchError as error:
            return _failed("weights load", error, "--json" in words)
    args = _parser().parse_args(words)
    try:
        return int(args.run(args))
    except FirstTouchError as error:
        return _failed(args.command, error, getattr(args, "json", False))
    except KeyboardInterrupt:
        return 130


def _failed(command: str, error: FirstTouchError, as_json: bool) -> int:
    """Tell of ERROR; its exit status."""
    if as_json:
        print(json.dumps({"error": error.code, "message": error.message, "hint": error.hint}))
    print(f"firsttouch {command}: {error}", file=sys.stderr)
    return error.exit_status


def _parser() -> argparse.ArgumentParser:
    """The parser of all sub-commands but weights, which has its own."""
    top = argparse.ArgumentParser("firsttouch", description=__doc__.partition("\n")[0] if __doc__ else None)
    top.add_argument("--version", action="version", version=f"firsttouch {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)

    serve = commands.add_parser("serve", help="serve a handler; keeps the memory while the server is restarted")
    serve.add_argument("--server", metavar="NAME", help="as /etc/firsttouch/servers/NAME.json says; no other option")
    _add_etc(serve)
    serve.add_argument("--address", action="append", help="shm:///path, unix:///path, tcp://host:port, auto (default)")
    serve.add_argument("--handler", default=_HANDLER, metavar="MODULE:NAME", help="a callable with .schema, or a class")
    serve.add_argument("--lanes", type=int, default=64, help="requests that can be under way, 64 by default")
    serve.add_argument("--max-batch", type=int, default=64, help="of them the handler gets at once, 64 by default")
    serve.add_argument(
        "--pages", default="auto", choices=("auto", "hugetlb", "thp", "4k"), help="of shared memory; auto by default"
    )
    serve.add_argument("--cpu", type=int, help="pin the server to this CPU, and its memory to the CPU's node")
    serve.add_argument("--fifo", type=int, metavar="PRIORITY", help="real-time priority of the server, with --cpu")
    serve.add_argument("--spin-us", type=float, default=50.0, help="wait on the CPU before sleeping, 50 by default")
    serve.add_argument("--metrics", type=Path, metavar="FILE", help="for Prometheus text, each 15 s and on SIGUSR1")
    for name in ("cert", "key", "authority"):
        serve.add_argument(f"--tls-{name}", metavar="FILE", help="PEM; all three are a must off loopback")
    serve.set_defaults(run=_serve)

    ping = commands.add_parser("ping", help="ask a server for real, and tell how long it takes and how it serves")
    ping.add_argument("address", nargs="?", help="as of serve; or --server")
    ping.add_argument("--server", metavar="NAME", help="that of /etc/firsttouch/servers/NAME.json, held against it")
    _add_etc(ping)
    ping.add_argument("--calls", type=int, default=200, help="0: send none, only look at how it serves")
    ping.add_argument("--timeout", type=float, default=5.0, help="seconds for each call")
    ping.add_argument("--json", action="store_true")
    ping.set_defaults(run=_ping)

    check = commands.add_parser("check", help="validate all files below /etc/firsttouch")
    _add_etc(check)
    check.add_argument("--json", action="store_true")
    check.set_defaults(run=_check)

    words = "measure round trips on this machine"
    bench = commands.add_parser("bench", help=words, description=f"{words}: {_BENCH}")
    bench.add_argument("what", choices=("transport",), help="shm, shm in place, unix and tcp, one after the other")
    bench.add_argument("--calls", type=int, default=5000, help="of each, 5000 by default")
    schemes = ("shm", "unix", "tcp")
    bench.add_argument("--only", action="append", default=[], choices=schemes, help="measure this; may be repeated")
    words = "how long both sides wait on the CPU before sleeping, 50 by default; more where a wake-up takes long"
    bench.add_argument("--spin-us", type=float, default=50.0, help=words)
    bench.add_argument("--json", action="store_true")
    bench.set_defaults(run=_bench)

    doctor = commands.add_parser("doctor", help="which transport, pages, node and pinning would be used here, and why")
    doctor.add_argument("--plan", help="another file than the host's own")
    doctor.add_argument("--latency-target-us", type=float)
    doctor.add_argument("--json", action="store_true")
    doctor.set_defaults(run=_doctor)

    commands.add_parser("weights", help="model weights in huge pages (firsttouch weights --help)", add_help=False)
    return top


def _add_etc(command: argparse.ArgumentParser) -> None:
    command.add_argument("--etc", metavar="DIR", help="another folder than /etc/firsttouch (or $FIRSTTOUCH_ETC)")


def load_handler(text: str) -> Any:
    """The object that MODULE:NAME names. Raises ArgumentError when it is not there or cannot be a handler."""
    module, colon, name = text.partition(":")
    if not colon:
        raise ArgumentError(f"--handler {text!r} names no function", hint="write module:function")
    sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ArgumentError(f"--handler {text}: {error}", hint="name an installed module's function") from error
    finally:
        del sys.path[0]
    from firsttouch._wire import Schema

    if not callable(found) or not isinstance(getattr(found, "schema", None), Schema):
        raise ArgumentError(
            f"--handler {text} has no schema", hint="give the function or class an attribute `schema = Schema.of(...)`"
        )
    return found


def _serve(args: argparse.Namespace) -> int:
    """Under systemd as one process whose memory the manager keeps; else hold the memory, and serve in a child."""
    from firsttouch import _systemd

    _raise_open_files()
    # Both are taken from the environment: a child is neither this service nor its heir.
    notifier, found = _systemd.notifier(), _systemd.inherited()
    job = _job_of(args)
    if notifier is not None:
        from firsttouch._service import Service

        Service(job, notifier, found, _say).run()
        return 0
    return _hold(job)


def _raise_open_files() -> None:
    """Allow as many descriptors as may be needed: two for each lane, and two for each client."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _hold(job: Job) -> int:
    """Hold the memory, and serve in a child."""
    from firsttouch import affinity
    from firsttouch._holder import Holder
    from firsttouch._job import Worker
    from firsttouch._lookout import Lookout
    from firsttouch.server import InferenceServer

    # What no restart mends is told at once.
    affinity.try_cpus(job.cpus)
    worker = Worker(job, _say)

    def serve(server: InferenceServer) -> None:
        lookout = Lookout()
        if job.cpus or job.metrics:
            lookout.start(worker.home)
        try:
            worker.serve(server, lookout)
        finally:
            lookout.stop()

    holder = Holder(
        job.addresses,
        job.handler.schema,
        serve,
        job.options,
        max_batch=job.max_batch,
        prepare=worker.prepare,
        say=_say,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, holder.stop)
    signal.signal(signal.SIGUSR1, lambda *_: _ask_for_metrics(holder.pid))
    for line in holder.describe():
        print(line, flush=True)
    if job.choice is not None:
        print(f"auto: {job.choice.words}", flush=True)
        if job.choice.warning:
            _say(job.choice.warning)
    holder.run()
    return 0


def _ask_for_metrics(pid: int) -> None:
    """Pass SIGUSR1 on to the server PID, 0 when there is none."""
    # One that was collected a moment ago: what a signal's handler raises would end the holder.
    with contextlib.suppress(ProcessLookupError):
        if pid:
            os.kill(pid, signal.SIGUSR1)


def _job_of(args: argparse.Namespace) -> Job:
    """What `serve` is asked for. Raises ArgumentError, ConfigError, AddressError, PlanError."""
    from firsttouch import _configs, _job, affinity
    from firsttouch._lanes import MAX_LANES
    from firsttouch._ports import Options

    if args.server is not None:
        given = [name for name in ("address", "metrics", "cpu", "fifo", "tls_cert") if getattr(args, name) is not None]
        if given:
            name = given[0].replace("_", "-")
            raise ArgumentError(f"--{name} and --server do not go together", hint="write it into the server's file")
        file = _configs.read_server(args.server, args.etc)
        return _job.from_file(file, load_handler(file.handler))
    if not 0 <= args.spin_us <= _configs.MAX_SPIN_US:
        raise ArgumentError(f"--spin-us {args.spin_us:g} is not between 0 and {_configs.MAX_SPIN_US}")
    limits = (("lanes", 1, MAX_LANES), ("max-batch", 1, _configs.MAX_BATCH), ("fifo", 1, _configs.MAX_FIFO))
    for name, least, most in limits:
        value = getattr(args, name.replace("-", "_"))
        if value is not None and not least <= value <= most:
            raise ArgumentError(f"--{name} {value} is not between {least} and {most}")
    if args.fifo is not None and args.cpu is None:
        raise ArgumentError(
            f"--fifo {args.fifo}: a real-time thread has a CPU of its own", hint="give --cpu, or leave --fifo out"
        )
    options = Options(
        lanes=args.lanes,
        spin_ns=int(args.spin_us * 1000),
        pages=args.pages,
        node=affinity.node_of(args.cpu) if args.cpu is not None else None,
        tls=_tls(args),
    )
    job = _job.Job(
        load_handler(args.handler),
        tuple(args.address or ["auto"]),
        options,
        cpus=(args.cpu,) if args.cpu is not None else (),
        fifo_priority=args.fifo,
        max_batch=args.max_batch,
        metrics=args.metrics,
    )
    return _job.resolved(job)


def _ping(args: argparse.Namespace) -> int:
    """Ask a server for real."""
    from firsttouch import _configs, _ping

    if (args.address is None) == (args.server is None):
        raise ArgumentError("ping needs an address or --server, and not both")
    if args.calls < 0:
        raise ArgumentError(f"--calls {args.calls} is negative")
    file = _configs.read_server(args.server, args.etc) if args.server is not None else None
    found = _ping.ping(args.address, file, args.calls, args.timeout)
    print(json.dumps(found, indent=1) if args.json else _ping.text(found))
    return 0 if found["ok"] else 1


def _check(args: argparse.Namespace) -> int:
    """Validate the plan and the files of servers and models."""
    from firsttouch import _configs, plan

    faults: list[FirstTouchError] = list(_configs.check_all(args.etc))
    path = _configs.etc(args.etc) / "plan.json"
    if path.exists():
        try:
            plan.choose_transport(plan.load_plan(path))
        except FirstTouchError as error:
            faults.append(error)
    if args.json:
        rows = [{"code": error.code, "message": error.message, "hint": error.hint, **error.facts} for error in faults]
        print(json.dumps({"ok": not faults, "faults": rows}, indent=1, default=str))
    else:
        print("\n".join(map(str, faults)) or f"the files below {path.parent} are valid")
    return 2 if faults else 0


def _model_words(words: list[str]) -> list[str]:
    """The words of `weights load --model NAME ...` with those of the model's file for it. Raises ConfigError."""
    from firsttouch import _configs

    parser = argparse.ArgumentParser("firsttouch weights load")
    parser.add_argument("--model", required=True, metavar="NAME", help="as /etc/firsttouch/models/NAME.json says")
    _add_etc(parser)
    args, rest = parser.parse_known_args(words)
    file = _configs.read_model(args.model, args.etc)
    found = [file.model, "--name", file.name, "--page", file.page_size]
    found += ["--checksum", file.checksum, "--threads", str(file.threads)]
    if file.policy != "any":
        option = "--node" if file.policy == "bind" else f"--{file.policy}"
        found += [option, ",".join(map(str, file.nodes))]
    for option, value in (("--dir", file.mount), ("--fallback", file.fallback)):
        found += [option, value] if value else []
    digests = file.expect if isinstance(file.expect, Mapping) else {"": file.expect} if file.expect else {}
    for name, digest in digests.items():
        found += ["--expect", f"{name}={digest}" if name else digest]
    command = {"never": ["load"], "swap": ["swap"], "evict_first": ["swap", "--evict-first"]}[file.replace]
    return [*command, *found, *rest]


def _tls(args: argparse.Namespace) -> Any:
    """The TLS files, all or none. Raises ArgumentError."""
    from firsttouch._tls import Tls

    names = (args.tls_cert, args.tls_key, args.tls_authority)
    if not any(names):
        return None
    if not all(names):
        raise ArgumentError("TLS needs --tls-cert, --tls-key and --tls-authority")
    return Tls(*names)


def _bench(args: argparse.Namespace) -> int:
    """Measure our transports side by side."""
    from firsttouch import _configs, bench

    if not 0 <= args.spin_us <= _configs.MAX_SPIN_US:
        raise ArgumentError(f"--spin-us {args.spin_us:g} is not between 0 and {_configs.MAX_SPIN_US}")
    rows = bench.transports(args.calls, args.only, int(args.spin_us * 1000))
    print(json.dumps(rows, indent=1) if args.json else bench.table(rows))
    return 0


def _doctor(args: argparse.Namespace) -> int:
    """Print what would be used here."""
    from firsttouch import _doctor

    found = _doctor.report(args.plan, args.latency_target_us)
    print(json.dumps(found, indent=1) if args.json else _doctor.text(found))
    return 2 if "error" in found["transport"] else 0


def _say(text: str) -> None:
    """A line for people."""
    print(f"firsttouch: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
