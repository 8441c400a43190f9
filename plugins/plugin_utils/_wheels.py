# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The wheels of the runtime, on the controller: ours made of its source, the others chosen for the host's Python.

Our own package is pure Python, so its wheel is a zip file that this file writes byte for byte the same each time:
no build backend, no index. A check run and the real run thus name the same digest.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
import subprocess
import sys
import tempfile
import typing as t
import zipfile
from dataclasses import dataclass
from pathlib import Path

# Told when it is needed: who only lists the collection's modules need not have it.
MISSING = ""
try:
    import tomllib
    from packaging.requirements import Requirement
    from packaging.tags import Tag, compatible_tags, cpython_tags
    from packaging.utils import canonicalize_name, parse_wheel_filename
    from packaging.version import Version
except ImportError as exc:
    MISSING = exc.name or str(exc)

VARIABLE = "firsttouch_wheels_dir"
# Checksums at the speed of memory: taken where a wheel is to be had, not missed where not.
OPTIONAL = ("xxhash>=3.4", "ml-dtypes>=0.4")
_EPOCH = (1980, 1, 1, 0, 0, 0)
_OLDEST_GLIBC = 5
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_PIP_SECONDS = 600


class WheelError(ValueError):
    """No set of wheels for this host; the text says why and what to do, `reason` is a code."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True)
class Host:
    """What decides which wheels run on a host."""

    python: tuple[int, int]
    machine: str
    glibc: tuple[int, int] | None

    @property
    def platforms(self) -> list[str]:
        """Platform tags, best first."""
        rows = []
        if self.glibc and self.glibc[0] == 2:
            for minor in range(self.glibc[1], _OLDEST_GLIBC - 1, -1):
                rows.append(f"manylinux_2_{minor}_{self.machine}")
                if minor in _LEGACY:
                    rows.append(f"{_LEGACY[minor]}_{self.machine}")
        return [*rows, f"linux_{self.machine}"]

    @property
    def tags(self) -> list[Tag]:
        """Wheel tags, best first."""
        short = f"cp{self.python[0]}{self.python[1]}"
        native = cpython_tags(self.python, abis=[short], platforms=self.platforms)
        return [*native, *compatible_tags(self.python, interpreter=short, platforms=self.platforms)]

    @property
    def word(self) -> str:
        """For names of folders and for people."""
        libc = "no-glibc" if self.glibc is None else f"glibc{self.glibc[0]}.{self.glibc[1]}"
        return f"cp{self.python[0]}{self.python[1]}-{self.machine}-{libc}"


@dataclass(frozen=True)
class Wheel:
    """One wheel: its file name, and its content or where it lies."""

    name: str
    path: Path | None = None
    data: bytes = b""

    def read(self) -> bytes:
        """The file's content. Raises OSError."""
        return self.path.read_bytes() if self.path else self.data

    @property
    def sha256(self) -> str:
        """The digest of its content."""
        return hashlib.sha256(self.read()).hexdigest()


def wheel_set(source: Path, host: Host, wheels_dir: Path | None, cache: Path) -> tuple[str, list[Wheel]]:
    """(id, wheels) of the runtime whose project folder is SOURCE, for HOST.

    The others come from WHEELS_DIR; without it from CACHE, which pip fills once. Raises WheelError, OSError.
    """
    _check_controller()
    project = _project(source)
    if host.python < _least_python(project):
        text = f"the runtime needs Python {project['requires-python']}, the host has {host.python[0]}.{host.python[1]}"
        raise WheelError("python_too_old", f"{text}; name another with ansible_python_interpreter")
    ours = build_wheel(source)
    needed = [Requirement(text) for text in project["dependencies"]]
    wanted = [*needed, *map(Requirement, OPTIONAL)]
    folder = wheels_dir or cache / host.word
    chosen, missing = choose(folder, wanted, host)
    if wheels_dir is None and any(row in missing for row in needed):
        _download(folder, wanted, host)
        chosen, missing = choose(folder, wanted, host)
    short = [str(row) for row in missing if row in needed]
    if short:
        where = f"{folder} has no wheel" if wheels_dir else f"no wheel could be had into {folder}"
        text = f"{VARIABLE}: {where} of {', '.join(short)} for {host.word}"
        raise WheelError("wheel_missing", f"{text}; put it there (pip download --only-binary :all:)")
    every = [ours, *chosen]
    listed = "\n".join(sorted(f"{wheel.name} {wheel.sha256}" for wheel in every))
    digest = hashlib.sha256(f"{host.word}\n{listed}".encode()).hexdigest()
    return f"{project['version']}-{digest[:12]}", every


def _check_controller() -> None:
    """Raises WheelError where the controller's Python lacks a module."""
    if MISSING:
        text = f"{sys.executable} on the controller has no module {MISSING}"
        raise WheelError(
            "controller_lacks_module",
            f"{text}: run ansible with Python 3.11 or newer, and install packaging for it",
        )


def choose(
    folder: Path, wanted: t.Iterable[Requirement], host: Host
) -> tuple[list[Wheel], list[Requirement]]:
    """For each of WANTED the newest wheel in FOLDER that runs on HOST, and those without one. Raises OSError."""
    ranks = {tag: rank for rank, tag in enumerate(host.tags)}
    found: dict[str, list[tuple[Version, int, Path]]] = {}
    for path in sorted(folder.glob("*.whl")) if folder.is_dir() else ():
        try:
            name, version, _build, tags = parse_wheel_filename(path.name)
        except ValueError:
            continue
        rank = min((ranks[tag] for tag in tags if tag in ranks), default=None)
        if rank is not None:
            found.setdefault(name, []).append((version, -rank, path))
    chosen, missing = [], []
    for requirement in wanted:
        rows = found.get(canonicalize_name(requirement.name), [])
        fit = [row for row in rows if requirement.specifier.contains(row[0])]
        if fit:
            path = max(fit)[2]
            chosen.append(Wheel(path.name, path))
        else:
            missing.append(requirement)
    return chosen, missing


def build_wheel(source: Path) -> Wheel:
    """The wheel of the pure Python project SOURCE (pyproject.toml, src/), the same bytes for the same source.

    Raises WheelError for a folder that is none, OSError.
    """
    _check_controller()
    project = _project(source)
    name, version = project["name"], project["version"]
    top = source / "src"
    info = f"{name}-{version}.dist-info"
    files: dict[str, bytes] = {}
    for path in sorted((top / name).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            files[path.relative_to(top).as_posix()] = path.read_bytes()
    if not files:
        raise WheelError("source_missing", f"{top / name} holds no package: install the collection again")
    scripts = "".join(f"{script} = {target}\n" for script, target in sorted(project["scripts"].items()))
    needs = [f"Requires-Dist: {row}" for row in project["dependencies"]]
    for extra, rows in sorted(project.get("optional-dependencies", {}).items()):
        needs.append(f"Provides-Extra: {extra}")
        needs += [f'Requires-Dist: {row}; extra == "{extra}"' for row in rows]
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        f"Summary: {project['description']}",
        f"License: {project['license']['text']}",
        f"Requires-Python: {project['requires-python']}",
        *needs,
    ]
    files[f"{info}/METADATA"] = ("\n".join(lines) + "\n").encode()
    tag = "Wheel-Version: 1.0\nGenerator: firsttouch.host\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/WHEEL"] = tag.encode()
    files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{scripts}".encode()
    record = [f"{path},sha256={_b64(data)},{len(data)}" for path, data in files.items()]
    files[f"{info}/RECORD"] = ("\n".join([*record, f"{info}/RECORD,,"]) + "\n").encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, _EPOCH)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, data)
    return Wheel(f"{name}-{version}-py3-none-any.whl", data=out.getvalue())


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _project(source: Path) -> dict[str, t.Any]:
    try:
        with open(source / "pyproject.toml", "rb") as handle:
            project: dict[str, t.Any] = tomllib.load(handle)["project"]
    except FileNotFoundError:
        text = f"{source} does not hold the runtime's source: install the collection again"
        raise WheelError("source_missing", text) from None
    return project


def _least_python(project: t.Mapping[str, t.Any]) -> tuple[int, int]:
    match = re.search(r">=\s*(\d+)\.(\d+)", project["requires-python"])
    return (int(match[1]), int(match[2])) if match else (3, 0)


def _download(folder: Path, wanted: t.Sequence[Requirement], host: Host) -> None:
    """Fill FOLDER by pip; what is optional and not to be had is left out. Raises WheelError, OSError."""
    os.makedirs(folder, exist_ok=True)
    base = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    base += ["--only-binary", ":all:", "--implementation", "cp"]
    base += ["--python-version", f"{host.python[0]}.{host.python[1]}"]
    for platform in host.platforms:
        base += ["--platform", platform]
    optional = {str(Requirement(row)) for row in OPTIONAL}
    for requirement in wanted:
        # pip writes in place and keeps a file that is there: half a wheel of a run that was killed, or of another that
        # goes on for the next host.
        with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as scratch:
            complaint = _pip([*base, "--dest", scratch, str(requirement)])
            if complaint is None:
                for path in Path(scratch).glob("*.whl"):
                    os.replace(path, folder / path.name)
            elif str(requirement) not in optional:
                text = f"{VARIABLE} is not set, and pip on the controller gets no wheel of {requirement}"
                text += f" for {host.word}"
                raise WheelError(
                    "index_unreachable", f"{text}: {complaint}; set {VARIABLE} to a directory with the wheels"
                )


def _pip(command: list[str]) -> str | None:
    """Why COMMAND failed; None when it did not. Raises WheelError where it cannot run."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_PIP_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise WheelError("index_unreachable", f"{VARIABLE} is not set, and pip cannot run: {exc}") from exc
    return " ".join(done.stderr.split())[-300:] if done.returncode else None
