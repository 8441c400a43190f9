# SPDX-License-Identifier: GPL-3.0-or-later
"""Boot a bare two-node Debian under QEMU, provision it with one reboot, verify it and show what is live."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STATE = ROOT / "build" / "demo"
REPORT = STATE / "report"
VARIABLES = ROOT / "molecule" / "default" / "group_vars" / "all.yml"
TESTHOST = [sys.executable, str(ROOT / "tests" / "testhost")]
NAME = "demo"
STARTED = time.monotonic()


def say(text: str) -> None:
    """Print one step with the time since the start."""
    print(f"\n[{time.monotonic() - STARTED:6.1f} s] {text}", flush=True)


def run(command: list[str], env: dict[str, str] | None = None) -> None:
    """Run COMMAND with its output on this terminal; end the demo with its status when it fails."""
    status = subprocess.run(command, cwd=STATE, env=env, stdin=subprocess.DEVNULL, check=False).returncode
    if status:
        print(f"\nThe demo stopped: {' '.join(command)} ended with status {status}.", file=sys.stderr)
        testhost = " ".join(TESTHOST)
        print(f"Look at the host: {testhost} logs {NAME}   end it: {testhost} down {NAME}", file=sys.stderr)
        raise SystemExit(status)


def ansible_env(collections: Path) -> dict[str, str]:
    """The environment of the ansible runs: this venv's programs, the collection at COLLECTIONS, quiet output."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ANSIBLE_COLLECTIONS_PATH": str(collections),
        "ANSIBLE_CALLBACK_RESULT_FORMAT": "yaml",
        "ANSIBLE_DISPLAY_SKIPPED_HOSTS": "false",
        "ANSIBLE_DISPLAY_OK_HOSTS": "true",
        "ANSIBLE_HOST_KEY_CHECKING": "false",
        "ANSIBLE_INJECT_FACT_VARS": "false",
        "ANSIBLE_PIPELINING": "true",
        "ANSIBLE_RETRY_FILES_ENABLED": "false",
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


def main() -> None:
    """Run the demo from a bare image to a provisioned host."""
    parser = argparse.ArgumentParser(description=__doc__)
    releases = ["bookworm", "trixie"]
    parser.add_argument("--release", default="trixie", choices=releases, help="Debian release of the host")
    parser.add_argument("--keep", action="store_true", help="take the demo host that is up already, as it is")
    options = parser.parse_args()
    STATE.mkdir(parents=True, exist_ok=True)

    if not options.keep:
        say("Boot a bare Debian with two NUMA nodes (built and cached the first time)")
        subprocess.run([*TESTHOST, "down", NAME], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        run([*TESTHOST, "up", NAME, "--topology", "two_node", "--release", options.release])
    inventory = subprocess.run([*TESTHOST, "inventory", NAME], check=True, capture_output=True, text=True).stdout
    (STATE / "inventory.yml").write_text(inventory)
    (STATE / "group_vars").mkdir(exist_ok=True)
    shutil.copyfile(VARIABLES, STATE / "group_vars" / "all.yml")

    say("Build the collection and install its tarball")
    env = ansible_env(install_collection())
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    playbook = [program, "-i", str(STATE / "inventory.yml"), "--limit", NAME]

    say("Predict: a check run prints the plan of the host and changes nothing")
    run([*playbook, "firsttouch.host.provision", "--check"], env)

    say("Provision: hugepages per node, vm sysctls, isolated CPUs, RT runtime, and one reboot")
    run([*playbook, "firsttouch.host.provision"], env)

    say("Verify: changes nothing, and writes the report that an SRE reads every morning")
    run([*playbook, "firsttouch.host.verify", "--become", "-e", f"firsttouch_report_dir={REPORT}"], env)

    say("Done. The lines above are what was found; the page has all of it. The host is still up:")
    ssh, host = " ".join([*TESTHOST, "ssh", NAME]), os.path.relpath(STATE, Path.cwd())
    report = os.path.relpath(REPORT, Path.cwd())
    print(f"""
  log in      {ssh}
  look        {ssh} 'cat /proc/cmdline; cat /sys/devices/system/node/node*/hugepages/*/nr_hugepages'
              {ssh} cat /etc/firsttouch/plan.json
  report      {report}/report.html
  variables   {host}/group_vars/all.yml   change one and run it again: make demo ARGS=--keep
  revert      ANSIBLE_COLLECTIONS_PATH={STATE / 'collections'} ANSIBLE_HOST_KEY_CHECKING=false \\
                {' '.join(playbook)} firsttouch.host.revert
  end it      {' '.join([*TESTHOST, 'down', NAME])}
""")


if __name__ == "__main__":
    main()
