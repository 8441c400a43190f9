# SPDX-License-Identifier: GPL-3.0-or-later
"""Which files of a model on the controller are pushed, and what of it is refused."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

pytest.importorskip("ansible.plugins.action", reason="runs on the controller only")

from ansible_collections.firsttouch.host.plugins.plugin_utils import _model_source as ms

INDEX = "model.safetensors.index.json"


def shard(path: Path, tensors: Sequence[str] = ("w",)) -> Path:
    """A safetensors file with TENSORS of four bytes."""
    rows = {
        name: {"dtype": "U8", "shape": [4], "data_offsets": [4 * at, 4 * at + 4]} for at, name in enumerate(tensors)
    }
    return write(path, {"__metadata__": {"format": "pt"}, **rows}, 4 * len(tensors))


def write(path: Path, header: object, data: int) -> Path:
    """A file with HEADER and DATA bytes after it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"x" * data)
    return path


def sharded(folder: Path, names: tuple[str, ...] = ("b.safetensors", "a.safetensors")) -> Path:
    """A folder with an index that names NAMES, and with more."""
    for n, name in enumerate((*names, "other.safetensors")):
        shard(folder / name, [f"t{n}"])
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


def _later(folder: Path) -> None:
    path = folder / "a.safetensors"
    os.truncate(path, path.stat().st_size - 1)


def _longer(folder: Path) -> None:
    path = folder / "a.safetensors"
    os.truncate(path, path.stat().st_size + 1)


def _no_offsets(folder: Path) -> None:
    write(folder / "a.safetensors", {"w": {"dtype": "U8"}}, 4)


def _no_json(folder: Path) -> None:
    write(folder / "a.safetensors", b"{" + b"?" * 99, 4)


def _text_offsets(folder: Path) -> None:
    write(folder / "a.safetensors", {"w": {"data_offsets": ["0", "4"]}}, 4)


def _huge(folder: Path) -> None:
    """A header as long as no runtime reads; it would be all of the file."""
    with open(folder / "a.safetensors", "wb") as file:
        file.write((100_000_001).to_bytes(8, "little") + b"{")
        file.truncate(100_000_009)


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
        (_cut, "a.safetensors (20 bytes) is cut off: its header alone has "),
        (_later, "is cut off: by its header it has "),
        (_longer, "is too long: by its header it has "),
        (_no_offsets, "has no header of a safetensors file (KeyError('data_offsets'))"),
        (_no_json, "has no header of a safetensors file (JSONDecodeError"),
        (_text_offsets, "has no header of a safetensors file (TypeError"),
        (_huge, "does not begin as a safetensors file"),
        (_empty, "(0 bytes) does not begin"),
        (_fifo, "no regular file"),
        (_none, "no .safetensors file"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path: Path, spoil: Callable[[Path], None], words: str) -> None:
    folder = shard(tmp_path / "m" / "a.safetensors").parent
    spoil(folder)
    text = refusal(str(folder))
    assert words in text
    if "header" in words:
        path = folder / "a.safetensors"
        assert f"{path} ({path.stat().st_size} bytes)" in text and text.endswith("; fetch it again")


def test_a_file_without_tensors_is_one(tmp_path: Path) -> None:
    write(tmp_path / "a.safetensors", {}, 0)
    assert names(str(tmp_path)) == ["a.safetensors"]


@pytest.mark.parametrize(
    ("tensors", "words"),
    [([], "has no tensor 't1', other than"), (["w"], "has no tensor 't1'"), (["t1", "t0"], "has the tensor 't0'")],
)
def test_an_index_and_its_files_are_of_one_model(tmp_path: Path, tensors: list[str], words: str) -> None:
    folder = sharded(tmp_path / "m")
    shard(folder / "a.safetensors", tensors)
    text = refusal(str(folder))
    assert f"{folder}/a.safetensors {words}" in text and f"{folder}/{INDEX}" in text


def test_a_shard_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "m")
    _later(folder)
    assert f"{folder}/a.safetensors" in refusal(str(folder)) and "cut off" in refusal(str(folder))


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"weight_map": []}', '{"weight_map": [["t", "a.safetensors"]]}',
        '{"weight_map": {"x": ["a"]}}', '{"weight_map": {}}', "\xff",
    ],
)  # fmt: skip
def test_an_index_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    folder = shard(tmp_path / "m" / "a.safetensors").parent
    (folder / INDEX).write_bytes(text.encode("latin-1"))
    assert f"{folder}/{INDEX}" in refusal(str(folder))


def _zero(index: Path) -> None:
    index.symlink_to("/dev/zero")


def _to_fifo(index: Path) -> None:
    os.mkfifo(index.parent / "pipe")
    index.symlink_to("pipe")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_zero, "is a link out of its folder, to /dev/zero"),
        (os.mkfifo, "is no regular file"),
        (_to_fifo, "is no regular file"),
    ],
)
def test_an_index_is_not_opened_before_it_is_known_to_be_a_file_of_its_folder(
    tmp_path: Path, make: Callable[[Path], None], words: str
) -> None:
    folder = sharded(tmp_path / "m")
    (folder / INDEX).unlink()
    make(folder / INDEX)
    assert f"{folder}/{INDEX} {words}" in refusal(str(folder))
    assert "is no regular file" in refusal(str(folder / INDEX))


def test_an_index_longer_than_any_is_refused(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "m")
    os.truncate(folder / INDEX, (64 << 20) + 1)
    assert f"{folder}/{INDEX} is longer than 64 MiB" in refusal(str(folder))


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"x")
    assert "no .safetensors file, no index" in refusal(str(tmp_path / "model.bin"))
