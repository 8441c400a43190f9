# SPDX-License-Identifier: GPL-3.0-or-later
"""Which files of a model on the controller are pushed, and what of it is refused."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("ansible.plugins.action", reason="runs on the controller only")

from ansible_collections.firsttouch.host.plugins.plugin_utils import _model_source as ms

INDEX = "model.safetensors.index.json"


def shard(path: Path, data: bytes = b"1234") -> Path:
    """A file that begins as a safetensors file does."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


def sharded(folder: Path, names: tuple[str, ...] = ("b.safetensors", "a.safetensors")) -> Path:
    """A folder with an index that names NAMES, and with more."""
    for name in (*names, "other.safetensors"):
        shard(folder / name)
    (folder / "config.json").write_text("{}")
    (folder / INDEX).write_text(json.dumps({"weight_map": {f"t{n}": name for n, name in enumerate(names)}}))
    return folder


def names(push: str, *dirs: Path) -> list[str]:
    return [one.name for one in ms.model_files("toy", push, [str(base) for base in dirs])]


def refusal(push: str, *dirs: Path) -> str:
    with pytest.raises(ms.SourceError) as refused:
        names(push, *dirs)
    text = str(refused.value)
    assert text.startswith(f"firsttouch_models: push of toy is {push!r}"), "variable and value"
    return text


def test_a_file_is_one_file(tmp_path: Path) -> None:
    path = shard(tmp_path / "m" / "model.safetensors")
    (one,) = ms.model_files("toy", str(path), [])
    assert (one.name, one.path, one.size) == ("model.safetensors", str(path), path.stat().st_size)
    assert names(str(path.parent)) == ["model.safetensors"], "the only one of its folder"
    assert ms.digest(str(path)) == hashlib.sha256(path.read_bytes()).hexdigest()


def test_of_a_folder_come_the_files_of_the_index_and_last_the_index(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "m")
    assert names(str(folder)) == ["a.safetensors", "b.safetensors", INDEX]
    assert names(str(folder / INDEX)) == ["a.safetensors", "b.safetensors", INDEX]
    assert names(str(folder / "other.safetensors")) == ["other.safetensors"]


def test_a_relative_path_is_beside_the_inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    monkeypatch.chdir(shard(tmp_path / "here" / "m" / "model.safetensors").parents[1])
    text = refusal("m", first, second)
    assert f"looked for {first}/m, {second}/m" in text, "not where the playbook was started"
    shard(second / "m" / "model.safetensors")
    assert names("m", first, second) == ["model.safetensors"]
    assert "inventory has no directory" in refusal("m")


@pytest.mark.parametrize(
    "name", ["../b.safetensors", "/etc/b.safetensors", "..", ".b.safetensors", "b.bin", "b\n.safetensors", 7]
)
@pytest.mark.parametrize("by_index", [False, True])
def test_an_index_names_files_of_its_folder_alone(tmp_path: Path, name: object, by_index: bool) -> None:
    folder = tmp_path / "m"
    shard(tmp_path / "b.safetensors")
    shard(folder / "a.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"x": name}}))
    assert f"{name!r}, which is no plain name" in refusal(str(folder / INDEX if by_index else folder))


@pytest.mark.parametrize("linked", ["a.safetensors", INDEX])
def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path, linked: str) -> None:
    folder = sharded(tmp_path / "m")
    (folder / linked).rename(tmp_path / "outside")
    (folder / linked).symlink_to("../outside")
    text = refusal(str(folder))
    assert f"{folder}/{linked} is a link out of its folder, to {tmp_path}/outside" in text and "cp -L" in text
    (folder / "blobs").mkdir()
    (tmp_path / "outside").rename(folder / "blobs" / "inside")
    (folder / linked).unlink()
    (folder / linked).symlink_to("blobs/inside")
    assert names(str(folder)) == ["a.safetensors", "b.safetensors", INDEX]


def test_a_link_that_the_operator_names_is_followed(tmp_path: Path) -> None:
    shard(tmp_path / "elsewhere.safetensors")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "model.safetensors").symlink_to("../elsewhere.safetensors")
    assert names(str(tmp_path / "m" / "model.safetensors")) == ["model.safetensors"]
    (tmp_path / "latest").symlink_to(sharded(tmp_path / "v2"))
    assert names(str(tmp_path / "latest"))[-1] == INDEX


def _two(folder: Path) -> None:
    shard(folder / "b.safetensors")


def _two_indexes(folder: Path) -> None:
    for name in "xy":
        (folder / f"{name}.safetensors.index.json").write_text("{}")


def _missing(folder: Path) -> None:
    (folder / INDEX).write_text('{"weight_map": {"x": "gone.safetensors"}}')


def _pointer(folder: Path) -> None:
    (folder / "a.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    )


def _cut(folder: Path) -> None:
    os.truncate(folder / "a.safetensors", 20)


def _empty(folder: Path) -> None:
    os.truncate(folder / "a.safetensors", 0)


def _fifo(folder: Path) -> None:
    (folder / "a.safetensors").unlink()
    os.mkfifo(folder / "a.safetensors")


def _none(folder: Path) -> None:
    (folder / "a.safetensors").unlink()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_two, "no one file, but a.safetensors, b.safetensors"),
        (_two_indexes, "no one index"),
        (_missing, "gone.safetensors is missing, which the index names"),
        (_pointer, "does not begin as a safetensors file"),
        (_cut, "a.safetensors (20 bytes) does not begin"),
        (_empty, "(0 bytes) does not begin"),
        (_fifo, "no regular file"),
        (_none, "no .safetensors file"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path: Path, spoil: Callable[[Path], None], words: str) -> None:
    folder = shard(tmp_path / "m" / "a.safetensors").parent
    spoil(folder)
    assert words in refusal(str(folder))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"x": ["a"]}}', '{"weight_map": {}}', "\xff"]
)
def test_an_index_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    folder = shard(tmp_path / "m" / "a.safetensors").parent
    (folder / INDEX).write_bytes(text.encode("latin-1"))
    assert f"{folder}/{INDEX}" in refusal(str(folder))


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"x")
    assert "no .safetensors file, no index" in refusal(str(tmp_path / "model.bin"))
