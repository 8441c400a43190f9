# SPDX-License-Identifier: GPL-3.0-or-later
"""Wheels on the controller: ours is valid and the same each time, the others are those that run on the host."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import io
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tomllib", reason="runs on the controller only")

from ansible_collections.firsttouch.host.plugins.plugin_utils import _wheels
from packaging.requirements import Requirement
from support import ROOT

RUNTIME = ROOT / "runtime"
TRIXIE = _wheels.Host((3, 13), "x86_64", (2, 41))


def offer(folder: Path, *names: str) -> Path:
    """A directory of wheels; what is in them does not matter."""
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_bytes(name.encode())
    return folder


def test_our_wheel_is_the_same_each_time_and_tells_the_truth() -> None:
    first, again = _wheels.build_wheel(RUNTIME), _wheels.build_wheel(RUNTIME)
    assert first.name == "firsttouch-0.1.0-py3-none-any.whl"
    assert first.data == again.data
    with zipfile.ZipFile(io.BytesIO(first.data)) as archive:
        record = archive.read("firsttouch-0.1.0.dist-info/RECORD").decode()
        rows = [row for row in csv.reader(record.splitlines()) if row[1]]
        assert {row[0] for row in rows} | {"firsttouch-0.1.0.dist-info/RECORD"} == set(archive.namelist())
        assert "firsttouch/py.typed" in archive.namelist()
        for name, digest, size in rows:
            data = archive.read(name)
            found = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert (digest, size) == (f"sha256={found}", str(len(data)))


def test_pip_takes_our_wheel(tmp_path: Path) -> None:
    """An installer that is not ours is content with it."""
    wheel = _wheels.build_wheel(RUNTIME)
    (tmp_path / wheel.name).write_bytes(wheel.data)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    target = tmp_path / "there"
    done = subprocess.run(
        [*command, "--target", str(target), str(tmp_path / wheel.name)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (target / "firsttouch" / "cli.py").read_bytes() == (
        RUNTIME / "src" / "firsttouch" / "cli.py"
    ).read_bytes()
    assert (target / "bin" / "firsttouch").exists()


def test_the_newest_wheel_that_runs_on_the_host_is_taken(tmp_path: Path) -> None:
    offer(
        tmp_path,
        "numpy-2.1.0-cp313-cp313-manylinux_2_28_x86_64.whl",
        "numpy-2.9.0-cp313-cp313-manylinux_2_42_x86_64.whl",  # newer than the host's C library
        "numpy-2.8.0-cp312-cp312-manylinux_2_28_x86_64.whl",
        "numpy-2.8.0-cp313-cp313-manylinux_2_28_aarch64.whl",
        "numpy-1.0.0-cp313-cp313-manylinux_2_28_x86_64.whl",
        "msgspec-0.19.0-cp313-cp313-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        "readme.whl",
    )
    wanted = [Requirement("numpy>=1.26"), Requirement("msgspec>=0.18"), Requirement("xxhash")]
    chosen, missing = _wheels.choose(tmp_path, wanted, TRIXIE)
    assert [wheel.name[:13] for wheel in chosen] == ["numpy-2.1.0-c", "msgspec-0.19."]
    assert [row.name for row in missing] == ["xxhash"]


def test_the_version_names_the_whole_set(tmp_path: Path) -> None:
    names = (
        "numpy-2.1.0-cp313-cp313-manylinux_2_28_x86_64.whl",
        "msgspec-0.19.0-cp313-cp313-manylinux2014_x86_64.whl",
    )
    folder = offer(tmp_path / "wheels", *names)
    first, wheels = _wheels.wheel_set(RUNTIME, TRIXIE, folder, tmp_path / "cache")
    assert first.startswith("0.1.0-") and [wheel.name.partition("-")[0] for wheel in wheels] == [
        "firsttouch", "numpy", "msgspec",
    ]  # fmt: skip
    assert _wheels.wheel_set(RUNTIME, TRIXIE, folder, tmp_path / "cache")[0] == first
    (folder / names[0]).write_bytes(b"another build")
    assert _wheels.wheel_set(RUNTIME, TRIXIE, folder, tmp_path / "cache")[0] != first
    assert not (tmp_path / "cache").exists()


def test_a_directory_without_what_is_needed_is_named(tmp_path: Path) -> None:
    folder = offer(tmp_path / "wheels", "numpy-2.1.0-cp313-cp313-manylinux_2_28_x86_64.whl")
    with pytest.raises(_wheels.WheelError) as told:
        _wheels.wheel_set(RUNTIME, TRIXIE, folder, tmp_path)
    assert told.value.reason == "wheel_missing"
    for word in ("firsttouch_wheels_dir", str(folder), "msgspec", "cp313-x86_64-glibc2.41"):
        assert word in str(told.value)


class Pip:
    """In the place of pip: `pip download` leaves a wheel in --dest where none is, and its STATUS."""

    def __init__(self, folder: Path, status: int = 0) -> None:
        self.folder, self.status = folder, status
        self.seen: list[list[str]] = []

    def __call__(self, words: list[str], **_more: Any) -> subprocess.CompletedProcess[str]:
        dest = Path(words[words.index("--dest") + 1])
        name = Requirement(words[-1]).name.replace("-", "_")
        wheel = dest / f"{name}-99.0-cp313-cp313-manylinux2014_x86_64.whl"
        if not wheel.exists():
            wheel.write_bytes(b"whole" if self.status == 0 else b"cu")
        self.seen.append(sorted(path.name for path in self.folder.glob("*.whl")))
        return subprocess.CompletedProcess(words, self.status, "", "killed")


def test_what_pip_brings_is_in_the_cache_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    folder = cache / TRIXIE.word
    monkeypatch.setattr(subprocess, "run", Pip(folder, status=1))
    with pytest.raises(_wheels.WheelError, match="killed") as told:
        _wheels.wheel_set(RUNTIME, TRIXIE, None, cache)
    assert told.value.reason == "index_unreachable"
    assert list(folder.iterdir()) == [], "half a wheel would be taken from then on"
    pip = Pip(folder)
    monkeypatch.setattr(subprocess, "run", pip)
    _identity, wheels = _wheels.wheel_set(RUNTIME, TRIXIE, None, cache)
    assert {wheel.name.partition("-")[0] for wheel in wheels[1:]} == {
        "numpy",
        "msgspec",
        "xxhash",
        "ml_dtypes",
    }
    assert {wheel.read() for wheel in wheels[1:]} == {b"whole"}
    assert sorted(path.name for path in folder.iterdir()) == sorted(wheel.name for wheel in wheels[1:])
    assert all(name in pip.seen[-1] for name in pip.seen[0]) and pip.seen[0] == []


def test_a_wheel_of_another_run_meanwhile_is_replaced_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / TRIXIE.word
    offer(folder, "numpy-99.0-cp313-cp313-manylinux2014_x86_64.whl")
    monkeypatch.setattr(subprocess, "run", Pip(folder))
    _identity, wheels = _wheels.wheel_set(RUNTIME, TRIXIE, None, tmp_path)
    assert {wheel.read() for wheel in wheels[1:]} == {b"whole"}


def test_a_python_that_is_too_old_is_named(tmp_path: Path) -> None:
    with pytest.raises(_wheels.WheelError, match=r"needs Python >=3\.10, the host has 3\.9") as told:
        _wheels.wheel_set(RUNTIME, _wheels.Host((3, 9), "x86_64", (2, 31)), tmp_path, tmp_path)
    assert told.value.reason == "python_too_old"


def test_a_host_without_glibc_gets_no_manylinux_wheel() -> None:
    assert _wheels.Host((3, 13), "x86_64", None).platforms == ["linux_x86_64"]
    assert "manylinux2014_x86_64" in TRIXIE.platforms and "manylinux_2_42_x86_64" not in TRIXIE.platforms


@pytest.mark.parametrize("module", ["packaging.requirements", "tomllib"])
def test_a_controller_without_a_module_is_told_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    """Importing the collection's files needs neither; making wheels does."""
    monkeypatch.setitem(sys.modules, module, None)
    spec = importlib.util.spec_from_file_location("_wheels_alone", _wheels.__file__)
    assert spec is not None and spec.loader is not None
    alone = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "_wheels_alone", alone)
    spec.loader.exec_module(alone)
    host = alone.Host((3, 13), "x86_64", (2, 41))
    for call in (
        lambda: alone.wheel_set(RUNTIME, host, tmp_path, tmp_path),
        lambda: alone.build_wheel(RUNTIME),
    ):
        with pytest.raises(alone.WheelError, match=f"no module {module}: .* install packaging") as told:
            call()
        assert told.value.reason == "controller_lacks_module"
