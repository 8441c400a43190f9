# SPDX-License-Identifier: GPL-3.0-or-later
"""Unit tests on each supported Python and ansible-core, as far as interpreters are found on this machine.

Python 3.9 and 3.10 run modules on hosts, but no ansible-core; there only ansible.module_utils can be imported. The
runtime runs from Python 3.10 on: its formats, and every transport, are tested on each.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import interpreters
import stage_logs
from collection import IMPORT, ansible_env, link_checkout
from commands import ROOT, CommandError, Row, print_table, scratch

# ansible-core -> the oldest Python of hosts, and of controllers.
CORES = {"2.19": ("3.9", "3.11"), "2.20": ("3.9", "3.12"), "2.21": ("3.9", "3.12")}
OLDEST, *_, NEWEST = CORES
PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13")
REQUIREMENTS = ROOT / "tests" / "requirements-matrix.txt"
RUNTIME_PYTHONS = ("3.10", "3.11", "3.12", "3.13")
RUNTIME_REQUIREMENTS = ROOT / "tests" / "requirements-matrix-runtime.txt"
# What a version of Python can break: buffers, sockets, asyncio, enums and dataclasses; not the minutes of kills.
RUNTIME_TESTS = ("conformance", "wire", "image", "safetensors", "plan", "configs", "errors")
VENVS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "firsttouch" / "venvs"
# The test host and the verifier run on the developer's own Python only.
ELSEWHERE = ("tests/unit/testhost", "tests/unit/testinfra", "tests/unit/tools")
CONTROLLER_ONLY = ("tests/unit/plugins/action", "tests/unit/plugins/plugin_utils")
# What a module finds of ansible-core on a host; the package itself is as bare there.
KEPT_ON_HOSTS = ("release.py", "module_utils")
BARE_PACKAGE = "from ansible.release import __author__, __version__\n"


class Cell(NamedTuple):
    """One run of the matrix."""

    python: str
    core: str
    controller: bool

    @property
    def name(self) -> str:
        """How the closing table calls it."""
        return f"Python {self.python}, {'ansible-core' if self.controller else 'module_utils'} {self.core}"


def version_key(version: str) -> tuple[int, ...]:
    """A version as numbers, for comparison."""
    return tuple(map(int, version.split(".")))


def cells(python: str) -> list[Cell]:
    """The runs of one interpreter."""
    found = []
    for core, (host, controller) in CORES.items():
        on_controller = version_key(python) >= version_key(controller)
        # A host's Python that no ansible-core of ours runs on; a newer one is tested with the whole of it.
        on_host = version_key(host) <= version_key(python) < version_key("3.11") and core in (OLDEST, NEWEST)
        if on_controller or on_host:
            found.append(Cell(python, core, on_controller))
    return found


def call(command: list[str | Path], env: Mapping[str, str] | None = None) -> str:
    """Run COMMAND in the checkout and return what it prints. Raises CommandError with the end of its output."""
    merged = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(env or {})}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env=merged,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        words = " ".join(map(str, command[:6]))
        out = done.stdout
        shown = out if len(out) < 12000 else f"{out[:6000]}\n[...]\n{out[-6000:]}"
        raise CommandError(f"{words} ...: status {done.returncode}\n{shown}")
    return done.stdout


def place(family: str, made_of: str) -> tuple[Path, Path]:
    """The folder of the virtual environment MADE_OF these words, and the file that says it is complete.

    Others of its FAMILY are removed when it is not there.
    """
    folder = VENVS / (family + hashlib.sha256(made_of.encode()).hexdigest()[:12])
    if not (folder / "complete").exists():
        for old in VENVS.glob(f"{family}*"):
            shutil.rmtree(old)
    return folder, folder / "complete"


def pip_install(python: Path) -> list[str | Path]:
    """The words of an installation for PYTHON."""
    return [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]


def runtime_environment(version: str, interpreter: Path) -> Path:
    """The Python of the virtual environment in which the runtime is tested."""
    made_of = "\n".join([version, interpreters.identity(interpreter), RUNTIME_REQUIREMENTS.read_text()])
    folder, complete = place(f"python{version}-runtime-", made_of)
    python = folder / "bin" / "python"
    if not complete.exists():
        call([interpreter, "-m", "venv", folder])
        call([*pip_install(python), "--requirement", RUNTIME_REQUIREMENTS])
        complete.touch()
    return python


def environment(cell: Cell, interpreter: Path) -> Path:
    """The Python of CELL's virtual environment, which is kept for as long as nothing that it is made of changes."""
    identity = interpreters.identity(interpreter)
    made_of = "\n".join([cell.name, identity, REQUIREMENTS.read_text(), *KEPT_ON_HOSTS, BARE_PACKAGE])
    folder, complete = place(f"python{cell.python}-core{cell.core}-", made_of)
    python = folder / "bin" / "python"
    if complete.exists():
        return python
    call([interpreter, "-m", "venv", folder])
    pip = pip_install(python)
    core = f"ansible-core=={cell.core}.*"
    if cell.controller:
        call([*pip, "--requirement", REQUIREMENTS, core])
    else:
        call([*pip, "--requirement", REQUIREMENTS])
        whole = folder / "whole"
        call([*pip, "--no-deps", "--ignore-requires-python", "--target", whole, core])
        (packages,) = folder.glob("lib/python*/site-packages")
        (packages / "ansible").mkdir()
        (packages / "ansible" / "__init__.py").write_text(BARE_PACKAGE)
        for name in KEPT_ON_HOSTS:
            (whole / "ansible" / name).rename(packages / "ansible" / name)
        shutil.rmtree(whole)
    complete.touch()
    return python


def run_runtime(version: str, interpreter: Path) -> Row:
    """Run a part of the runtime's tests on one interpreter."""

    def tested() -> str:
        python = runtime_environment(version, interpreter)
        paths = [f"runtime/tests/test_{name}.py" for name in RUNTIME_TESTS]
        with scratch() as env:
            words = [
                "-m",
                "pytest",
                "-q",
                "--tb=short",
                "-p",
                "no:cacheprovider",
                "-c",
                "runtime/pyproject.toml",
            ]
            out = call([python, *words, *paths], {**env, "PYTHONPATH": str(ROOT / "runtime" / "src")})
        return out.strip().splitlines()[-1].strip("= ")

    return row(f"Python {version}, runtime", tested)


def run_cell(cell: Cell, interpreter: Path) -> Row:
    """Run the unit tests of CELL, and the syntax checks where it can control hosts."""

    def tested() -> str:
        python = environment(cell, interpreter)
        skipped = ELSEWHERE if cell.controller else (*ELSEWHERE, *CONTROLLER_ONLY)
        pytest: list[str | Path] = [python, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
        with scratch() as env:
            out = call([*pytest, *(f"--ignore={path}" for path in skipped), "tests/unit"], env)
        outcome = out.strip().splitlines()[-1].strip("= ")
        if cell.controller:
            playbooks = sorted(f"firsttouch.host.{path.stem}" for path in (ROOT / "playbooks").glob("*.yml"))
            program = python.with_name("ansible-playbook")
            call([program, "--syntax-check", "-i", "localhost,", *playbooks], ansible_env(IMPORT))
            outcome += f"; syntax of {len(playbooks)} playbooks"
        return outcome

    return row(cell.name, tested)


def row(name: str, tested: Callable[[], str]) -> Row:
    """The row NAME of the closing table: what TESTED returns, or that it failed."""
    began = time.monotonic()
    try:
        outcome = tested()
    except CommandError as error:
        summary = next(
            (line for line in str(error).splitlines()[::-1] if " failed" in line or " error" in line), ""
        )
        outcome = f"FAILED: {summary.strip('= ') or 'see above'}"
        print(f"\n{name}: {error}", flush=True)
        stage_logs.write(name, str(error))
        stage_logs.mark_failed(name, outcome)
    print(f"{name}: {outcome}", flush=True)
    return Row(name, time.monotonic() - began, outcome)


def main() -> int:
    """Run the matrix, two runs at a time, and close with its table."""
    link_checkout()
    began = time.monotonic()
    found = {version: interpreters.find(version) for version in PYTHONS}
    for version, interpreter in found.items():
        print(f"Python {version}: {interpreter or 'not found'}", flush=True)
    print("Virtual environments are made once, below ~/.cache/firsttouch/venvs.\n", flush=True)
    with ThreadPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
        work = {
            version: [
                *(pool.submit(run_cell, cell, interpreter) for cell in cells(version)),
                *(pool.submit(run_runtime, version, interpreter) for _ in {version} & {*RUNTIME_PYTHONS}),
            ]
            for version, interpreter in found.items()
            if interpreter is not None
        }
    rows: list[Row] = []
    for version in PYTHONS:
        runs = [future.result() for future in work.get(version, [])]
        rows += runs or [Row(f"Python {version}", 0, "not run: no interpreter")]
    print_table("matrix", rows)
    print(f"{time.monotonic() - began:.0f} s by the clock", flush=True)
    if not work:
        print("No interpreter was found, so nothing was tested.", file=sys.stderr)
        return 1
    return int(any(row.failed for row in rows))


if __name__ == "__main__":
    sys.exit(main())
