# SPDX-License-Identifier: GPL-3.0-or-later
"""Boot a bare two-node Debian under QEMU, provision it with one reboot, verify it, ask its server and time it."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
STATE = ROOT / "build" / "demo"
REPORT = STATE / "report"
VARIABLES = {
    "host.yml": ROOT / "molecule" / "default" / "group_vars" / "all.yml",
    "runtime.yml": ROOT / "tools" / "demo_runtime.yml",
}
MODEL = ROOT / "molecule" / "runtime" / "tasks" / "make_model.py"
TESTHOST = [sys.executable, str(ROOT / "tests" / "testhost")]
NAME = "demo"
SERVER = "policy"
FIRSTTOUCH = "/opt/firsttouch/current/bin/firsttouch"
CALLS = 2000
EMULATED_SPIN_US = 20000
PERCENTILES = {"p50": "p50_us", "p90": "p90_us", "p99": "p99_us", "p99.9": "p999_us"}
# A command that prints nothing for this long is said to be still at work.
QUIET_SECONDS = 20.0
POLL_SECONDS = 1.0
# What a command gets to clean up behind itself after Ctrl-C.
END_SECONDS = 30.0
STARTED = time.monotonic()


class DemoError(Exception):
    """The demo cannot go on; the text says which command failed."""


def say(text: str) -> None:
    """Print one step with the time since the start."""
    print(f"\n[{time.monotonic() - STARTED:6.1f} s] {text}", flush=True)


def run(command: Sequence[str], env: Mapping[str, str] | None = None, feed: Path | None = None) -> None:
    """Run COMMAND with its output on this terminal and FEED as its input. Raises DemoError for a status but 0."""
    with _started(command, env, feed, subprocess.STDOUT) as process:
        _copy(process, sys.stdout.buffer.write)
        status = process.wait()
    if status:
        raise DemoError(f"{shlex.join(command)} ended with status {status}")


def answer(command: Sequence[str]) -> str:
    """What COMMAND prints on stdout. Raises DemoError for another status than 0."""
    parts: list[bytes] = []
    with _started(command, None, None, None) as process:
        _copy(process, parts.append)
        status = process.wait()
    if status:
        raise DemoError(f"{shlex.join(command)} ended with status {status}")
    return b"".join(parts).decode()


@contextlib.contextmanager
def _started(
    command: Sequence[str], env: Mapping[str, str] | None, feed: Path | None, stderr: int | None
) -> Iterator[subprocess.Popen[bytes]]:
    """COMMAND in a group of its own: Ctrl-C reaches it once, from here, and it has time to clean up."""
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(feed.open("rb")) if feed else subprocess.DEVNULL
        process = stack.enter_context(
            subprocess.Popen(
                command,
                cwd=STATE,
                env=env,
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        )
        try:
            yield process
        except BaseException:
            _end(process)
            raise


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt PROCESS and wait until it is gone."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            # What it prints meanwhile must not block it.
            process.communicate(timeout=END_SECONDS)
            return


def _copy(process: subprocess.Popen[bytes], write: Callable[[bytes], object]) -> None:
    """Give WRITE what PROCESS prints as it comes, until it has ended; say that it is at work when nothing comes."""
    assert process.stdout is not None
    pipe, heard = process.stdout.fileno(), time.monotonic()
    while True:
        # Asked before the pipe: what a command leaves behind, as a connection that ssh keeps, may hold that open.
        ended = process.poll() is not None
        readable, _, _ = select.select([pipe], [], [], 0 if ended else POLL_SECONDS)
        data = os.read(pipe, 1 << 16) if readable else b""
        if data:
            write(data)
            sys.stdout.flush()
            heard = time.monotonic()
        elif ended:
            return
        elif readable:
            process.wait()
        elif time.monotonic() - heard > QUIET_SECONDS:
            print(f"[{time.monotonic() - STARTED:6.1f} s] ... still at work", flush=True)
            heard = time.monotonic()


def on_host(command: str) -> list[str]:
    """The words that run the shell COMMAND on the demo host."""
    return [*TESTHOST, "ssh", NAME, command]


def ansible_env(collections: Path) -> dict[str, str]:
    """The environment of the ansible runs: this venv's programs, the collection at COLLECTIONS, quiet output."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ANSIBLE_COLLECTIONS_PATH": str(collections),
        "ANSIBLE_CALLBACK_RESULT_FORMAT": "yaml",
        "ANSIBLE_DISPLAY_SKIPPED_HOSTS": "false",
        "ANSIBLE_DISPLAY_OK_HOSTS": "true",
        "ANSIBLE_FORCE_COLOR": str(sys.stdout.isatty()),
        "ANSIBLE_HOST_KEY_CHECKING": "false",
        "ANSIBLE_INJECT_FACT_VARS": "false",
        "ANSIBLE_PIPELINING": "true",
        "ANSIBLE_RETRY_FILES_ENABLED": "false",
        "PYTHONUNBUFFERED": "1",
    }


def install_collection() -> Path:
    """Build the collection and install its tarball under build/demo, as a user would have it."""
    target = STATE / "collections"
    galaxy = str(Path(sys.executable).with_name("ansible-galaxy"))
    shutil.rmtree(target, ignore_errors=True)
    run([galaxy, "collection", "build", str(ROOT), "--output-path", str(STATE), "--force"])
    tarball = max(STATE.glob("firsttouch-host-*.tar.gz"), key=lambda path: path.stat().st_mtime)
    run([galaxy, "collection", "install", str(tarball), "-p", str(target), "--offline", "--no-deps"],
        env=ansible_env(target))  # fmt: skip
    return target


def write_variables(keep: bool) -> Path:
    """The folder of the demo's variables; what KEEP finds there is the user's and stays."""
    folder = STATE / "group_vars" / "all"
    if not keep:
        shutil.rmtree(STATE / "group_vars", ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in VARIABLES.items():
        if not (folder / name).exists():
            shutil.copyfile(source, folder / name)
    return folder


def boot(release: str) -> None:
    """Start the host anew, bare, and put a model on it as its owner would."""
    subprocess.run([*TESTHOST, "down", NAME], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    run([*TESTHOST, "up", NAME, "--topology", "two_node", "--release", release])
    run(on_host("python3 - /srv/models/toy"), feed=MODEL)


def bench_command(plan: Mapping[str, Any], accel: str) -> str:
    """The benchmark on two CPUs of the server's node: its own, and one that keeps the house for the clients.

    Emulated, to put a process to sleep and wake it takes ms, and would be all that is seen: both sides spin longer.
    """
    servers = plan["sections"].get("runtime", {}).get("servers", [])
    words = [FIRSTTOUCH, "bench", "transport", "--calls", str(CALLS), "--only", "shm", "--only", "unix", "--json"]
    if accel == "tcg":
        words += ["--spin-us", str(EMULATED_SPIN_US)]
    for server in servers:
        if server["name"] == SERVER and server["cpus"]:
            house = re.match(r"\d+", plan["topology"]["nodes"][str(server["node"])]["housekeeping"])
            if house:
                words = ["taskset", "-c", f"{house[0]},{server['cpus'][0]}", *words]
    return shlex.join(words)


def latency_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Percentiles of shared memory and a unix socket side by side, and the ratio. Raises DemoError without either."""
    found = {str(row["transport"]): row for row in rows}
    try:
        shm, unix = found["firsttouch shm"], found["firsttouch unix"]
    except KeyError as error:
        raise DemoError(f"the benchmark measured {', '.join(found) or 'nothing'}, and not {error}") from error
    lines = [f"  {'us':8}{'shm':>10}{'unix':>10}{'unix/shm':>10}"]
    for name, key in PERCENTILES.items():
        lines.append(f"  {name:8}{shm[key]:10.0f}{unix[key]:10.0f}{unix[key] / max(shm[key], 0.1):10.1f}")
    return lines


def who_measured(command: str, accel: str) -> str:
    """One line: what the figures come from, and what they are worth."""
    worth = "only the ratio says something" if accel == "tcg" else "a guest's figures, of this machine alone"
    how = "QEMU's emulation (tcg)" if accel == "tcg" else f"QEMU with {accel}"
    load = f"{os.getloadavg()[0]:.1f} for {os.cpu_count()} CPUs"
    return f"  Measured by `{command}` on the host, under {how}, with a load here of {load}: {worth}."


def serve() -> None:
    """Ask the server that was deployed, show the model, and time the transports beside each other."""
    say("Serve: requests to the deployed server, over the transport that the plan gives it")
    run(on_host(f"{FIRSTTOUCH} ping --server {SERVER} --calls 50"))
    run(on_host(f"{FIRSTTOUCH} weights ls"))
    say(f"Latency: {CALLS} requests of 48 KiB over each transport, answers of 4 KiB (a minute when emulated)")
    hosts = json.loads(answer([*TESTHOST, "status", "--json"]))
    accel = next(host["accel"] for host in hosts if host["name"] == NAME)
    command = bench_command(json.loads(answer(on_host("cat /etc/firsttouch/plan.json"))), accel)
    rows = json.loads(answer(on_host(command)))
    print("\n".join([*latency_table(rows), who_measured(command, accel)]), flush=True)


def demo(options: argparse.Namespace) -> None:
    """From a bare image to a host that serves. Raises DemoError."""
    if not options.keep:
        say("Boot a bare Debian with two NUMA nodes (built and cached the first time)")
        boot(options.release)
    (STATE / "inventory.yml").write_text(answer([*TESTHOST, "inventory", NAME]))
    variables = write_variables(options.keep)

    say("Build the collection and install its tarball")
    env = ansible_env(install_collection())
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    playbook = [program, "-i", str(STATE / "inventory.yml"), "--limit", NAME]

    say("Predict: a check run prints the plan of the host and changes nothing")
    run([*playbook, "firsttouch.host.provision", "--check"], env)

    say("Provision: hugepages per node, vm sysctls, isolated CPUs, RT runtime, one reboot; then weights and a server")
    # YAML would break the lines of the table.
    env["ANSIBLE_CALLBACK_RESULT_FORMAT"] = "json"
    run([*playbook, "firsttouch.host.provision"], env)

    say("Verify: changes nothing, and writes the report that an SRE reads every morning")
    run([*playbook, "firsttouch.host.verify", "--become", "-e", f"firsttouch_report_dir={REPORT}"], env)

    serve()

    say("Done. The host is still up:")
    ssh = " ".join([*TESTHOST, "ssh", NAME])
    print(f"""
  log in      {ssh}
  look        {ssh} 'cat /proc/cmdline; cat /sys/devices/system/node/node*/hugepages/*/nr_hugepages'
              {ssh} systemctl status 'firsttouch-*'
  variables   {os.path.relpath(variables)}/*.yml   change one and run it again: make demo ARGS=--keep
  revert      ANSIBLE_COLLECTIONS_PATH={STATE / "collections"} ANSIBLE_HOST_KEY_CHECKING=false \\
                {" ".join(playbook)} firsttouch.host.revert
  end it      {" ".join([*TESTHOST, "down", NAME])}
  report      {os.path.relpath(REPORT)}/report.html
""")


def _interrupted(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def main() -> int:
    """Run the demo; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    releases = ["bookworm", "trixie"]
    parser.add_argument("--release", default="trixie", choices=releases, help="Debian release of the host")
    parser.add_argument("--keep", action="store_true", help="take the demo host that is up already, as it is")
    options = parser.parse_args()
    STATE.mkdir(parents=True, exist_ok=True)
    # Also where a script ignores it: what is started from here could not be asked to clean up then.
    signal.signal(signal.SIGINT, _interrupted)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _interrupted)
    try:
        demo(options)
    except DemoError as error:
        testhost = " ".join(TESTHOST)
        print(f"\nThe demo stopped: {error}.", file=sys.stderr)
        print(f"Look at the host: {testhost} logs {NAME}   end it: {testhost} down {NAME}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        # A second Ctrl-C must not leave half of it.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if options.keep:
            print("\nInterrupted; the host that was up is left as it is.", file=sys.stderr)
        else:
            subprocess.run([*TESTHOST, "down", NAME], capture_output=True, check=False)
            print(f"\nInterrupted; the host {NAME} is ended and removed.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
