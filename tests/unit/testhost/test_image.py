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


def test_the_boot_record_names_the_partition() -> None:
    record = recipe.mbr(8386560)
    assert len(record) == 512
    assert record[510:] == b"\x55\xaa"
    assert record[446] == 0x80
    assert record[450] == 0x83
    assert int.from_bytes(record[454:458], "little") * 512 == recipe.PARTITION_OFFSET
    assert int.from_bytes(record[458:462], "little") == 8386560


def test_a_changed_recipe_is_another_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = recipe.key("trixie")
    assert before == recipe.key("trixie")
    assert before != recipe.key("bookworm")
    copy = tmp_path / "image"
    shutil.copytree(recipe.CUSTOMIZE, copy)
    monkeypatch.setattr(recipe, "CUSTOMIZE", copy)
    assert recipe.key("trixie") == before
    (copy / "finish").write_text("#!/bin/sh\n")
    changed = recipe.key("trixie")
    assert changed != before


def test_an_unknown_release_is_refused() -> None:
    with pytest.raises(HostError, match="bookworm"):
        image.image_of("buster")


def test_a_build_that_is_there_is_kept() -> None:
    built = image.image_of("trixie")
    built.directory.mkdir(parents=True)
    assert image.build("trixie", pytest.fail) == built


def test_old_images_go_unless_a_host_stands_on_them(own_cache: Path) -> None:
    for name in ("trixie-aaa", "trixie-bbb", "bookworm-aaa"):
        (own_cache / "images" / name).mkdir(parents=True)
    state = own_cache / "hosts" / "h" / "state.json"
    state.parent.mkdir(parents=True)
    state.write_text(json.dumps({"image": str(own_cache / "images" / "trixie-bbb")}))
    image._remove_old("trixie")
    assert sorted(path.name for path in (own_cache / "images").iterdir()) == ["bookworm-aaa", "trixie-bbb"]


def test_a_failed_build_leaves_nothing(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    def fail(_release: str, work: Path, _say: image.Say) -> None:
        (work / "root").mkdir()
        raise HostError("no mirror")

    monkeypatch.setattr(qemu, "find_tools", lambda *names: dict.fromkeys(names, "/bin/true"))
    monkeypatch.setattr(recipe, "make", fail)
    stale = own_cache / "images" / ".build-gone"
    stale.mkdir(parents=True)
    with pytest.raises(HostError, match="no mirror"):
        image.build("trixie", lambda _: None)
    assert [path.name for path in (own_cache / "images").iterdir()] == [".lock"]


def test_the_end_of_the_log_is_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"step failed with status 3:\nwhy"):
        steps.run(
            ["sh", "-c", "echo why; exit 3"], tmp_path / "log", "step", lambda _: None, {"PATH": "/bin"}
        )


def test_an_interrupted_step_may_clean_up_and_ends(tmp_path: Path, eventually: Eventually) -> None:
    """The child has a session of its own; SIGTERM to the builder reaches it as an interrupt."""
    marker = tmp_path / "cleaned"
    ready = tmp_path / "ready"
    script = f"trap 'echo yes >{marker}; exit 1' INT; : >{ready}; while :; do sleep 0.1; done"
    program = (
        "import signal, sys; from pathlib import Path; from testhost import steps\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))\n"
        f"log = Path({str(tmp_path / 'log')!r})\n"
        f"steps.run(['sh', '-c', {script!r}], log, 'x', print, {{'PATH': '/bin:/usr/bin'}})\n"
    )
    builder = subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).resolve().parents[2])
    eventually(ready.exists)
    builder.send_signal(signal.SIGTERM)
    assert builder.wait(timeout=20) == 1
    assert marker.read_text() == "yes\n"
