# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from testhost import image, qemu, recipe, steps
from testhost.errors import HostError

Eventually = Callable[[Callable[[], object]], None]


@pytest.mark.skipif(not shutil.which("sfdisk", path="/usr/sbin:/sbin:/usr/bin"), reason="there is no sfdisk")
@pytest.mark.parametrize("name", sorted(recipe.FIRMWARES))
def test_the_root_partition_is_where_its_file_system_is_written(name: str, tmp_path: Path) -> None:
    firmware = recipe.FIRMWARES[name]
    disk = tmp_path / "disk"
    recipe.partition(disk, firmware)
    sfdisk = qemu.find_tools("sfdisk")["sfdisk"]
    shown = subprocess.run([sfdisk, "--json", disk], check=True, capture_output=True, text=True).stdout
    table = json.loads(shown)["partitiontable"]
    assert table["label"] == {"bios": "dos", "uefi": "gpt"}[name]
    root = table["partitions"][firmware.root_number - 1]
    assert (root["start"] * 512, root["size"] * 512) == (firmware.root_at_mib << 20, firmware.root_mib << 20)
    assert disk.stat().st_size == recipe.DISK_MIB << 20


def test_a_changed_recipe_is_another_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def keys() -> list[str]:
        return [recipe.key(*one) for one in (("trixie", "bios"), ("bookworm", "bios"), ("trixie", "uefi"))]

    before = keys()
    assert before == keys()
    assert len(set(before)) == 3
    copy = tmp_path / "image"
    shutil.copytree(recipe.CUSTOMIZE, copy)
    monkeypatch.setattr(recipe, "CUSTOMIZE", copy)
    assert keys() == before
    (copy / "uefi" / "finish").write_text("#!/bin/sh\n")
    assert [new == old for new, old in zip(keys(), before, strict=True)] == [True, True, False]
    (copy / "finish").write_text("#!/bin/sh\n")
    assert not set(keys()) & set(before)


def test_an_unknown_release_is_refused() -> None:
    with pytest.raises(HostError, match="bookworm"):
        image.image_of("buster")
    with pytest.raises(HostError, match="bios, uefi"):
        image.image_of("trixie", "coreboot")


def test_a_build_that_is_there_is_kept() -> None:
    built = image.image_of("trixie")
    built.directory.mkdir(parents=True)
    assert image.build("trixie", pytest.fail) == built


def test_old_images_go_unless_a_host_stands_on_them(own_cache: Path) -> None:
    for name in ("trixie-aaa", "trixie-bbb", "bookworm-aaa", "uefi-trixie-aaa", "uefi-bookworm-aaa"):
        (own_cache / "images" / name).mkdir(parents=True)
    state = own_cache / "hosts" / "h" / "state.json"
    state.parent.mkdir(parents=True)
    state.write_text(json.dumps({"image": str(own_cache / "images" / "trixie-bbb")}))
    left = ["bookworm-aaa", "trixie-bbb", "uefi-bookworm-aaa", "uefi-trixie-aaa"]
    image._remove_old("trixie", "bios")
    assert sorted(path.name for path in (own_cache / "images").iterdir()) == left
    image._remove_old("trixie", "uefi")
    assert sorted(path.name for path in (own_cache / "images").iterdir()) == left[:-1]


def test_a_failed_build_leaves_nothing(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    def fail(_release: str, _firmware: recipe.Firmware, work: Path, _say: image.Say) -> None:
        (work / "root").mkdir()
        raise HostError("no mirror")

    monkeypatch.setattr(qemu, "find_tools", lambda *names: dict.fromkeys(names, "/bin/true"))
    monkeypatch.setattr(recipe, "make", fail)
    stale = own_cache / "images" / ".build-gone"
    stale.mkdir(parents=True)
    with pytest.raises(HostError, match="no mirror"):
        image.build("trixie", lambda _: None)
    assert [path.name for path in (own_cache / "images").iterdir()] == [".lock"]


def test_a_build_needs_room_and_leaves_nothing_without(
    monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    monkeypatch.setattr(qemu, "find_tools", lambda *names: dict.fromkeys(names, "/bin/true"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("usage", (), {"free": 1 << 30}))
    with pytest.raises(HostError, match=r"building an image takes up to 3072 MiB, and .* has 1024 MiB left"):
        image.build("trixie", pytest.fail)
    assert not own_cache.exists()


def test_the_end_of_the_log_is_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"step failed with status 3:\nwhy"):
        steps.run(
            ["sh", "-c", "echo why; exit 3"], tmp_path / "log", "step", lambda _: None, {"PATH": "/bin"}
        )


@pytest.mark.parametrize("interrupt", ["default_int_handler", "SIG_IGN"])
def test_an_interrupted_step_may_clean_up_and_ends(
    tmp_path: Path, eventually: Eventually, interrupt: str
) -> None:
    """The child has a session of its own; SIGTERM to the builder reaches it as an interrupt.

    Also where the builder itself ignores interrupts, as in the background of a script.
    """
    marker = tmp_path / "cleaned"
    ready, waits = tmp_path / "ready", tmp_path / "waits"
    script = f"trap 'echo yes >{marker}; exit 1' INT; : >{ready}; while :; do sleep 0.1; done"
    program = (
        "import signal, sys, time; from pathlib import Path; from testhost import steps\n"
        "nap = time.sleep\n"
        f"time.sleep = lambda seconds: (Path({str(waits)!r}).touch(), nap(seconds))\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))\n"
        f"signal.signal(signal.SIGINT, signal.{interrupt})\n"
        f"log = Path({str(tmp_path / 'log')!r})\n"
        f"steps.run(['sh', '-c', {script!r}], log, 'x', print, {{'PATH': '/bin:/usr/bin'}})\n"
    )
    builder = subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).resolve().parents[2])
    # A signal before the builder waits for its child would end it without a word to that.
    eventually(lambda: ready.exists() and waits.exists())
    builder.send_signal(signal.SIGTERM)
    assert builder.wait(timeout=20) == 1
    assert marker.read_text() == "yes\n"
