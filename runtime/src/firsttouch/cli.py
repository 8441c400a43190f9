# SPDX-License-Identifier: Apache-2.0
"""The command `firsttouch`: serve, bench, weights, doctor.

The only place that prints, exits, and maps errors to a status. Results go to stdout, everything else to stderr;
`--json` prints the object that the text is made of.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from firsttouch import __version__
from firsttouch.errors import ArgumentError, FirstTouchError

_HANDLER = "firsttouch._policy:Policy"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ARGV; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["weights"]:
        from firsttouch import _cli_weights

        return _cli_weights.main(words[1:])
    args = _parser().parse_args(words)
    try:
        return int(args.run(args))
    except FirstTouchError as error:
        if getattr(args, "json", False):
            print(json.dumps({"error": error.code, "message": error.message, "hint": error.hint}))
        print(f"firsttouch {args.command}: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    """The parser of all sub-commands but weights, which has its own."""
    top = argparse.ArgumentParser("firsttouch", description=__doc__.partition("\n")[0] if __doc__ else None)
    top.add_argument("--version", action="version", version=f"firsttouch {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)

    serve = commands.add_parser("serve", help="serve a handler; keeps the memory while the server is restarted")
    serve.add_argument("--address", action="append", help="shm:///path, unix:///path, tcp://host:port, auto (default)")
    serve.add_argument("--handler", default=_HANDLER, metavar="MODULE:NAME", help="a callable with .schema, or a class")
    serve.add_argument("--lanes", type=int, default=64, help="requests that can be under way")
    serve.add_argument("--max-batch", type=int, default=64)
    serve.add_argument("--pages", default="auto", choices=("auto", "hugetlb", "thp", "4k"))
    serve.add_argument("--cpu", type=int, help="pin the server to this CPU, and its memory to the CPU's node")
    serve.add_argument("--fifo", type=int, metavar="PRIORITY", help="real-time priority of the server, with --cpu")
    serve.add_argument("--spin-us", type=float, default=50.0, help="how long to wait on the CPU before sleeping")
    serve.add_argument("--metrics", type=Path, metavar="FILE", help="for Prometheus text, on SIGUSR1 and at the end")
    for name in ("cert", "key", "authority"):
        serve.add_argument(f"--tls-{name}", metavar="FILE", help="PEM; all three are a must off loopback")
    serve.set_defaults(run=_serve)

    bench = commands.add_parser("bench", help="measure round trips on this machine")
    bench.add_argument("what", choices=("transport",))
    bench.add_argument("--calls", type=int, default=5000)
    bench.add_argument("--json", action="store_true")
    bench.set_defaults(run=_bench)

    doctor = commands.add_parser("doctor", help="which transport, pages, node and pinning would be used here, and why")
    doctor.add_argument("--plan", help="another file than the host's own")
    doctor.add_argument("--latency-target-us", type=float)
    doctor.add_argument("--json", action="store_true")
    doctor.set_defaults(run=_doctor)

    commands.add_parser("weights", help="model weights in huge pages (firsttouch weights --help)", add_help=False)
    return top


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
    """Hold the memory, and run the handler in a child."""
    from firsttouch import affinity
    from firsttouch._holder import Holder
    from firsttouch._ports import Options
    from firsttouch.server import InferenceServer

    handler = load_handler(args.handler)

    def worker(server: InferenceServer) -> None:
        # Whatever threads the handler has, the one that serves gets the interpreter soon.
        sys.setswitchinterval(affinity.SERVER_SWITCH_SECONDS)
        if args.cpu is not None:
            seconds = affinity.SERVER_SWITCH_SECONDS
            for step in affinity.pin(args.cpu, fifo_priority=args.fifo, switch_seconds=seconds).refused:
                _say(f"{step.name} {step.wanted} refused: {step.reason}")
        if args.metrics is not None:
            signal.signal(signal.SIGUSR1, lambda *_: _write_metrics(args.metrics, server.metrics()))
        # A class is made here, in the process that serves: weights are loaded once per server.
        answer = handler() if isinstance(handler, type) else handler
        server.serve(answer)
        if args.metrics is not None:
            _write_metrics(args.metrics, server.metrics())

    options = Options(
        lanes=args.lanes,
        spin_ns=int(args.spin_us * 1000),
        pages=args.pages,
        node=affinity.node_of(args.cpu) if args.cpu is not None else None,
        tls=_tls(args),
    )
    holder = Holder(
        args.address or ["auto"], handler.schema, worker, options, max_batch=args.max_batch, say=_say
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, holder.stop)
    signal.signal(signal.SIGUSR1, lambda *_: os.kill(holder.pid, signal.SIGUSR1) if holder.pid else None)
    for line in holder.describe():
        print(line, flush=True)
    holder.run()
    return 0


def _tls(args: argparse.Namespace) -> Any:
    """The TLS files, all or none. Raises ArgumentError."""
    from firsttouch._tls import Tls

    names = (args.tls_cert, args.tls_key, args.tls_authority)
    if not any(names):
        return None
    if not all(names):
        raise ArgumentError("TLS needs --tls-cert, --tls-key and --tls-authority")
    return Tls(*names)


def _write_metrics(path: Path, text: str) -> None:
    """Replace PATH at once, so that a reader sees a whole file."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(text)
    os.replace(scratch, path)


def _bench(args: argparse.Namespace) -> int:
    """Measure our transports side by side."""
    from firsttouch import bench

    rows = bench.transports(args.calls)
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
