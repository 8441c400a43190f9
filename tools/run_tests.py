# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the stages of `make test`, each to its end, and close with a table of their times.

Stages run in the order below; a stage that fails does not keep the later ones from running.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
BUILD = ROOT / "build"
INSTALLED = BUILD / "collections"
COLLECTION = INSTALLED / "ansible_collections" / "firsttouch" / "host"
PYTHON_TREES = ["plugins", "tests", "tools", "molecule"]


class StageError(Exception):
    """A stage did not pass; the message says which command."""


def run(*command: str | Path, cwd: Path = ROOT, **extra: str) -> None:
    """Run COMMAND with this venv's programs first on PATH. Raises StageError when it fails."""
    words = [str(word) for word in command]
    print(f"$ {' '.join(words)}", flush=True)
    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1", **extra}
    status = subprocess.run(words, cwd=cwd, env=env, stdin=subprocess.DEVNULL, check=False).returncode
    if status:
        raise StageError(f"{words[0]} {words[1] if len(words) > 1 else ''}: status {status}")


def run_all(*commands: Callable[[], None]) -> None:
    """Run each of COMMANDS even when an earlier one failed. Raises StageError with all that failed."""
    failed = []
    for command in commands:
        try:
            command()
        except StageError as exc:
            failed.append(str(exc))
    if failed:
        raise StageError("; ".join(failed))


def install_tarball() -> None:
    """Build the collection and install the tarball below build/collections."""
    dist = BUILD / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    shutil.rmtree(INSTALLED, ignore_errors=True)
    run("ansible-galaxy", "collection", "build", ROOT, "--output-path", dist, "--force")
    (tarball,) = dist.glob("firsttouch-host-*.tar.gz")
    with tarfile.open(tarball) as archive:
        stray = [n for n in archive.getnames() if re.match(r"(tests|molecule|runtime|build|tools|\.)", n) and n != "."]
    if stray:
        raise StageError(f"the tarball holds what is not for hosts: {', '.join(stray[:5])}")
    run("ansible-galaxy", "collection", "install", tarball, "-p", INSTALLED, "--offline", "--no-deps",
        ANSIBLE_COLLECTIONS_PATH=str(INSTALLED))  # fmt: skip


def lint() -> None:
    """ansible-lint (production profile), yamllint, ruff, mypy --strict, changelog fragments."""
    tree = BUILD / "import" / "ansible_collections" / "firsttouch"
    tree.mkdir(parents=True, exist_ok=True)
    if not (tree / "host").is_symlink():
        (tree / "host").symlink_to(ROOT)
    run_all(
        lambda: run("ruff", "check", *PYTHON_TREES),
        lambda: run("mypy", "plugins/module_utils"),
        lambda: run("mypy", "-p", "testhost", MYPYPATH="tests"),
        lambda: run("mypy", "tools"),
        lambda: run("yamllint", "--strict", "."),
        lambda: run("antsibull-changelog", "lint"),
        lambda: run("ansible-lint", "--offline", "--strict", "--profile", "production",
                    ANSIBLE_COLLECTIONS_PATH=str(BUILD / "import")),  # fmt: skip
    )


def unit() -> None:
    """Unit tests, the recorded hosts and the recorded cases, on this interpreter."""
    run("pytest", "-q", "-p", "no:cacheprovider", "tests/unit")


def galaxy() -> None:
    """The tarball installs, and what it brings works by its full name."""
    install_tarball()
    paths = {"ANSIBLE_COLLECTIONS_PATH": str(INSTALLED)}
    modules = sorted(path.stem for path in (COLLECTION / "plugins" / "modules").glob("*.py"))
    playbooks = sorted(path.stem for path in (COLLECTION / "playbooks").glob("*.yml"))
    if not {"provision", "revert"} <= set(playbooks):
        raise StageError(f"the tarball has the playbooks {playbooks} only")
    run("ansible-doc", "-t", "module", *[f"firsttouch.host.{name}" for name in modules], "--json", cwd=BUILD, **paths)
    for name in playbooks:
        run("ansible-playbook", f"firsttouch.host.{name}", "--syntax-check", "-i", "localhost,", cwd=BUILD, **paths)


def sanity() -> None:
    """ansible-test sanity on the installed collection, in a virtual environment of its own."""
    if not COLLECTION.is_dir():
        install_tarball()
    shutil.copytree(ROOT / "tests" / "sanity", COLLECTION / "tests" / "sanity", dirs_exist_ok=True)
    bootstrap_pip()
    # ansible-test keeps its output in the tree that it looks at; as a git tree it knows what to ignore.
    (COLLECTION / ".gitignore").write_text("tests/output\n")
    run("git", "init", "-q", cwd=COLLECTION)
    run("git", "add", "-A", cwd=COLLECTION)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    run("ansible-test", "sanity", "--venv", "--python", version, "--color", "no", cwd=COLLECTION)


def bootstrap_pip() -> None:
    """Give ansible-test the pip that Python itself brings, instead of a script fetched from elsewhere."""
    from ansible_test._util.target.setup import requirements  # type: ignore[import-untyped]  # has no types

    source = Path(requirements.__file__).parents[3] / "_internal" / "python_requirements.py"
    listing = Path(requirements.__file__).parents[3] / "_data" / "requirements" / "ansible-test.txt"
    versions = set(re.findall(r"pip[=' :\"]+(\d+\.\d+(?:\.\d+)?)", source.read_text() + listing.read_text()))
    cache = Path("~/.ansible/test/cache").expanduser()
    cache.mkdir(parents=True, exist_ok=True)
    for version in versions:
        script = cache / f"get_pip_{version.replace('.', '_')}.py"
        if not script.exists():
            script.write_text("import ensurepip\nensurepip.bootstrap(upgrade=True, default_pip=True)\n")


def kernel(sample: bool = True) -> None:
    """Predictions held against the real kernel, booted with each command line."""
    run("pytest", "-q", "-p", "no:cacheprovider", "tests/kernel", *(["--sample"] if sample else []))


def molecule() -> None:
    """The scenarios, one booted host at a time, from the installed tarball."""
    if not COLLECTION.is_dir():
        install_tarball()
    run_all(*[lambda name=path.parent.name: scenario(name) for path in sorted(ROOT.glob("molecule/[!_]*/molecule.yml"))])


def scenario(name: str, boots: int = 1) -> None:
    """Run one molecule scenario. Raises StageError."""
    run("molecule", "-c", "molecule/_shared/base.yml", "test", "-s", name, "--destroy", "always", cwd=ROOT,
        FIRSTTOUCH_COLLECTIONS=str(INSTALLED), ANSIBLE_FORCE_COLOR="0", FIRSTTOUCH_BOOTS=str(boots))  # fmt: skip


def boots() -> None:
    """Five boots in a row of the default scenario's host: the 1 GiB page is there every time."""
    if not COLLECTION.is_dir():
        install_tarball()
    scenario("default", boots=5)


STAGES: dict[str, Callable[[], None]] = {
    "lint": lint,
    "unit": unit,
    "galaxy": galaxy,
    "sanity": sanity,
    "kernel": kernel,
    "molecule": molecule,
}
EXTRA: dict[str, Callable[[], None]] = {"kernel-all": lambda: kernel(sample=False), "boots": boots}


def main() -> None:
    """Run the stages named, or all of `make test`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"one of {', '.join([*STAGES, *EXTRA])}")
    names = parser.parse_args().stages or list(STAGES)
    unknown = [name for name in names if name not in {**STAGES, **EXTRA}]
    if unknown:
        parser.error(f"no stage {', '.join(unknown)}; there are {', '.join([*STAGES, *EXTRA])}")
    rows: list[tuple[str, float, str]] = []
    for name in names:
        print(f"\n=== {name}", flush=True)
        began = time.monotonic()
        try:
            {**STAGES, **EXTRA}[name]()
            outcome = "passed"
        except StageError as exc:
            outcome = f"FAILED: {exc}"
            print(outcome, flush=True)
        rows.append((name, time.monotonic() - began, outcome))
    print(f"\n{'stage':12}{'seconds':>9}  outcome")
    for name, seconds, outcome in rows:
        print(f"{name:12}{seconds:9.0f}  {outcome}")
    print(f"{'total':12}{sum(row[1] for row in rows):9.0f}")
    raise SystemExit(any(row[2] != "passed" for row in rows))


if __name__ == "__main__":
    main()
