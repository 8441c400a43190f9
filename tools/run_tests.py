# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the stages of `make test`, each to its end, and close with a table of their times.

A stage that fails does not keep the later ones from running; the run as a whole fails.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import sys
from collections.abc import Callable

import extras
import sanity_home
import stage_logs
import yaml
from collection import COLLECTION, IMPORT, INSTALLED, ansible_env, install_tarball, link_checkout
from commands import BUILD, ROOT, CommandError, NotRun, each, print_table, run, run_stages, scratch

PLUGINS = "ansible_collections.firsttouch.host.plugins"
# Tests read JSON, and use small lambdas for their effect.
RELAXED = (
    "--allow-untyped-defs",
    "--allow-untyped-calls",
    "--allow-subclassing-any",
    "--no-warn-return-any",
    "--disable-error-code=func-returns-value",
)
PYTEST = ("pytest", "-q", "-p", "no:cacheprovider")
# The runtime is a package of its own, with settings of its own.
RUNTIME_MYPY = ("--config-file", "runtime/pyproject.toml")


def lint() -> None:
    """Run ansible-lint's production profile, yamllint, ruff, mypy --strict and the check of the changelog."""
    link_checkout()
    packages = [
        word
        for name in ("module_utils", "modules", "plugin_utils", "action")
        for word in ("-p", f"{PLUGINS}.{name}")
    ]
    profile = ("--offline", "--nocolor", "--strict", "--profile", "production")
    each(
        lambda: run("ruff", "check", "."),
        lambda: run("mypy", *packages, "-p", "testhost", "-p", "guests"),
        lambda: run("mypy", "tools", "bench"),
        lambda: run("mypy", *RELAXED, "tests/unit", "tests/conftest.py"),
        lambda: run("mypy", *RELAXED, "tests/kernel", "tests/guests"),
        lambda: run("mypy", *RELAXED, "tests/browser", "tests/playbooks"),
        lambda: run("mypy", *RELAXED, "tests/testinfra", "molecule"),
        lambda: run("mypy", *RELAXED, "tests/actors"),
        lambda: run("mypy", *RUNTIME_MYPY, "runtime/src"),
        lambda: run("mypy", *RUNTIME_MYPY, *RELAXED, "runtime/tests"),
        lambda: run("yamllint", "--strict", "."),
        lambda: run("antsibull-changelog", "lint"),
        lambda: run("ansible-lint", *profile, env=ansible_env(IMPORT)),
    )


def unit() -> None:
    """Run the unit tests, recorded hosts and recorded cases on this interpreter."""
    with scratch() as env:
        run(*PYTEST, "tests/unit", env=env)


def browser() -> None:
    """Open the HTML report in headless Chromium."""
    sys.path.insert(0, str(ROOT / "tests" / "browser"))
    reason = importlib.import_module("webdriver").missing()
    if reason:
        raise NotRun(f"{reason}; Debian's packages chromium and chromium-driver are what it needs")
    run(*PYTEST, "tests/browser")


def playbooks() -> None:
    """Run the playbook that verifies, from the installed tarball, on recorded hosts and one that is not there."""
    install_tarball()
    with scratch() as env:
        run(*PYTEST, "tests/playbooks", env={**env, "FIRSTTOUCH_COLLECTIONS": str(INSTALLED)})


def runtime() -> None:
    """Run the tests of the Python runtime from the checkout."""
    _runtime({})


def runtime_all() -> None:
    """Run them with their full counts: every kill, longer fuzzing, a million sleep handshakes. Half an hour."""
    _runtime({"FIRSTTOUCH_SLOW": "1"}, "-o", "faulthandler_timeout=1800")


def _runtime(more: dict[str, str], *options: str) -> None:
    path = {"PYTHONPATH": str(ROOT / "runtime" / "src")}
    with scratch() as env:
        run(*PYTEST, "-c", "runtime/pyproject.toml", *options, "runtime/tests", env={**env, **path, **more})


def galaxy() -> None:
    """Install the tarball, and use what it brings by its full name, from outside the checkout."""
    install_tarball()
    env = ansible_env(INSTALLED)
    modules = sorted(
        f"firsttouch.host.{path.stem}" for path in (COLLECTION / "plugins" / "modules").glob("*.py")
    )
    roles = sorted(f"firsttouch.host.{path.name}" for path in (COLLECTION / "roles").iterdir())
    playbooks = sorted(path.stem for path in (COLLECTION / "playbooks").glob("*.yml"))
    if not {"provision", "revert", "verify"} <= set(playbooks):
        raise CommandError(f"the tarball has the playbooks {playbooks} only")
    run("ansible-doc", "-t", "module", *modules, cwd=BUILD, env=env, quiet=True)
    run("ansible-doc", "-t", "role", *roles, cwd=BUILD, env=env, quiet=True)
    for name in playbooks:
        playbook = f"firsttouch.host.{name}"
        run("ansible-playbook", playbook, "--syntax-check", "-i", "localhost,", cwd=BUILD, env=env)


def sanity() -> None:
    """Run ansible-test sanity on the installed collection, in an installation of its own."""
    install_tarball(BUILD / "sanity")
    tree = BUILD / "sanity" / "ansible_collections" / "firsttouch" / "host"
    if (ROOT / "tests" / "sanity").is_dir():
        shutil.copytree(ROOT / "tests" / "sanity", tree / "tests" / "sanity")
    # Inside the checkout's git tree the copy would count as ignored, and every test be skipped. In a tree of its
    # own, what ansible-test writes there must not count.
    (tree / ".gitignore").write_text("/tests/output/\n")
    run("git", "init", "--quiet", cwd=tree)
    run("git", "add", "--all", cwd=tree)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    command = ("ansible-test", "sanity", "--python", version, "--color", "no")
    run(*command, cwd=tree, env={"HOME": str(sanity_home.prepared())})


def kernel() -> None:
    """Hold a sample of predictions against a real kernel, booted with each command line."""
    run(*PYTEST, "tests/kernel", "--sample")


def kernel_all() -> None:
    """Hold the whole table of predictions against real kernels."""
    run(*PYTEST, "tests/kernel")


def molecule() -> None:
    """Run the scenarios on BIOS hosts one after the other, on booted hosts, from the installed tarball."""
    install_tarball()
    each(*map(scenario, scenarios("bios")))


def uefi() -> None:
    """Run the scenarios on UEFI hosts, which take an image of their own and start slower."""
    install_tarball()
    each(*map(scenario, scenarios("uefi")))


def scenarios(firmware: str) -> list[str]:
    """The scenarios whose hosts have FIRMWARE, by name."""
    paths = sorted(ROOT.glob("molecule/[!_]*/molecule.yml"))
    names = [
        path.parent.name for path in paths if platforms(path.parent.name)[0].get("firmware", "bios") == firmware
    ]
    if not names:
        raise CommandError(f"molecule/ has no scenario with a host of firmware {firmware}")
    return names


def platforms(name: str) -> list[dict[str, str]]:
    """The hosts of the scenario NAME."""
    found: list[dict[str, str]] = yaml.safe_load((ROOT / "molecule" / name / "molecule.yml").read_text())["platforms"]
    return found


def scenario(name: str, boots: int = 1) -> Callable[[], None]:
    """A step that runs one scenario; BOOTS is how often the provisioned host is booted.

    One that failed where an emulated CPU ran a stale breakpoint runs once more: a kernel patches its own code, which
    QEMU's translation now and then misses, and the Oops that follows says nothing about what is tested.
    """
    command = ("molecule", "-c", "molecule/_shared/base.yml", "test", "-s", name, "--destroy", "always")
    env = {
        "FIRSTTOUCH_COLLECTIONS": str(INSTALLED),
        "FIRSTTOUCH_BOOTS": str(boots),
        "ANSIBLE_FORCE_COLOR": "0",
    }

    def step() -> None:
        logs = [stage_logs.serial(platform["name"]) for platform in platforms(name)]
        for log in logs:
            log.unlink(missing_ok=True)
        try:
            run(*command, env=env)
        except CommandError:
            if not any(log.exists() and "Oops: int3" in log.read_text(errors="replace") for log in logs):
                raise
            print(f"an emulated CPU ran a stale breakpoint (Oops: int3): {name} runs once more", flush=True)
            run(*command, env=env)

    return step


def boots() -> None:
    """Boot the default scenario's host five times in a row: the 1 GiB page is there every time."""
    install_tarball()
    scenario("default", boots=5)()


def guests() -> None:
    """Run the runtime in booted hosts: where weights lie on two nodes, asked page by page."""
    run(*PYTEST, "tests/guests")


def ray() -> None:
    """Run the actors of Ray on a real local Ray, in a virtual environment of their own."""
    python = extras.python("ray")
    path = {"PYTHONPATH": str(ROOT / "runtime" / "src"), "RAY_memory_monitor_refresh_ms": "0"}
    with scratch() as env:
        # Paths of sockets below TMPDIR are too long for Ray's.
        run(python, "-m", *PYTEST, "tests/actors", env={**env, **path, "RAY_TMPDIR": "/tmp"})


def torch() -> None:
    """Look at weights through a real torch, in a virtual environment of their own: several GB with all of CUDA."""
    python = extras.python("torch")
    options = ("-rA", "-c", "runtime/pyproject.toml")
    with scratch() as env:
        path = {"PYTHONPATH": str(ROOT / "runtime" / "src")}
        tests = ("runtime/tests/test_weights.py", "-k", "test_torch or test_bfloat16_with_ml_dtypes")
        run(python, "-c", "import torch, ml_dtypes", env=env)  # where they are missing the tests would be skipped
        run(python, "-m", *PYTEST, *options, *tests, env={**env, **path})


STAGES: dict[str, Callable[[], None]] = {
    "lint": lint,
    "unit": unit,
    "browser": browser,
    "runtime": runtime,
    "galaxy": galaxy,
    "playbooks": playbooks,
    "sanity": sanity,
    "kernel": kernel,
    "molecule": molecule,
}
MORE_STAGES: dict[str, Callable[[], None]] = {
    "kernel-all": kernel_all,
    "boots": boots,
    "uefi": uefi,
    "guests": guests,
    "ray": ray,
    "torch": torch,
    "runtime-all": runtime_all,
}


def main() -> int:
    """Run the stages that are named, or all of `make test`."""
    known = {**STAGES, **MORE_STAGES}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"one of {', '.join(known)}")
    names = parser.parse_args().stages or list(STAGES)
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"no stage {', '.join(unknown)}; there are {', '.join(known)}")
    rows = run_stages(known, names)
    print_table("stage", rows)
    return int(any(row.failed for row in rows))


if __name__ == "__main__":
    sys.exit(main())
