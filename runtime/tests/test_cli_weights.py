# SPDX-License-Identifier: Apache-2.0
"""The sub-commands of `firsttouch weights`: text and JSON say the same, and every error has a status and a remedy."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from firsttouch import _cli_weights, _linux, _progress, cli, errors, weights
from weights_host import Mounter, make_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model(tmp_path / "m")


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr."""
    status = _cli_weights.main(argv)
    out = capsys.readouterr()
    return status, out.out, out.err


def run_json(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, Any]]:
    status, out, _ = run(capsys, *argv, "--json")
    return status, json.loads(out)


def test_the_help_of_load_tells_of_the_files(capsys: pytest.CaptureFixture[str]) -> None:
    """What the units run, `weights load --model NAME`, is found where people look for it; swap has no such option."""
    with pytest.raises(SystemExit):
        cli.main(["weights", "load", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert "--model NAME" in told and "/etc/firsttouch/models/NAME.json" in told and "instead of MODEL" in told
    with pytest.raises(SystemExit):
        cli.main(["weights", "swap", "--help"])
    assert "--model" not in capsys.readouterr().out


@pytest.mark.parametrize("words", [["m", "--mod", "toy"], ["--mode=toy"]])
def test_model_by_file_is_not_shortened(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """An option that stands in the place of MODEL is not passed over because it is not written in full."""
    with pytest.raises(SystemExit) as caught:
        cli.main(["weights", "load", *words])
    assert caught.value.code == 2
    assert "argument --model: not to be shortened, write --model toy" in capsys.readouterr().err


def test_a_life(
    capsys: pytest.CaptureFixture[str], store: str, run_directory: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """plan, load, ls, verify, stat, swap, gc, rm, in words."""
    monkeypatch.setenv("FIRSTTOUCH_WEIGHTS_DIR", store)
    assert "fits" in run(capsys, "plan", str(model))[1]
    status, text, _ = run(capsys, "load", str(model))
    assert status == 0 and "generation 1" in text and "node 0" in text
    assert "nothing done" in run(capsys, "load", str(model))[1]
    with weights.open("m"):
        lines = run(capsys, "ls")[1].splitlines()
        assert lines[0].split() == ["MODEL", "GEN", "SIZE", "PAGES", "NODES", "MAPPERS", "STATE"]
        assert lines[1].split()[0] == "m" and lines[1].split()[-2:] == ["1", "ready"]
        shown = run(capsys, "stat", str(os.getpid()))[1]
        assert "m@" in shown and "page tables" in shown
    assert "1 chunks by xxh3" in run(capsys, "verify", "m", "--deep")[1]
    status, text, _ = run(capsys, "swap", str(model), "--node", "0")
    assert status == 0 and "generation 2" in text and "removed" in text
    assert "nothing to remove" in run(capsys, "gc")[1]
    assert "removed" in run(capsys, "rm", "m")[1]
    assert run(capsys, "rm", "m")[0] == 8


def test_json(capsys: pytest.CaptureFixture[str], store: str, run_directory: str, model: Path) -> None:
    """The same as objects."""
    status, plan = run_json(capsys, "plan", str(model), "--dir", store)
    assert status == 0 and plan["ok"] and plan["exit_status"] == 0
    status, image = run_json(capsys, "load", str(model), "--dir", store, "--replicate", "all", "--checksum", "sha256")
    assert status == 0 and image["pages"] == plan["pages"] * len(image["paths"]) and image["bytes_per_s"] > 0
    status, listed = run_json(capsys, "ls", "--dir", store)
    assert [row["path"] for row in listed["images"]] == image["paths"] and listed["images"][0]["ready"]
    status, checked = run_json(capsys, "verify", "m", "--deep", "--dir", store)
    assert checked["checksum"] == "sha256" and checked["chunks"] == 1
    status, found = run_json(capsys, "stat", str(os.getpid()))
    assert found["pid"] == os.getpid() and found["minor_faults"] > 0 and found["page_tables_kb"] > 0
    status, found = run_json(capsys, "gc", "--dry-run", "--dir", store)
    assert found["dry_run"] and found["superseded"] == []
    assert run_json(capsys, "rm", "m", "--dir", store)[1] == {"removed": image["paths"]}


def test_ls_asks_the_kernel_where_the_pages_are(
    capsys: pytest.CaptureFixture[str],
    store: str,
    run_directory: str,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The manifest tells of the time of the load; pages may have been moved since, or not be told of at all."""
    image = run_json(capsys, "load", str(model), "--dir", store)[1]
    (row,) = run_json(capsys, "ls", "--dir", store)[1]["images"]
    assert row["pages_by_node"] == image["nodes"] == {"0": image["pages"]}
    asked: list[int] = []

    def moved(addresses: Sequence[int]) -> list[int]:
        asked.extend(addresses)
        return [1] * len(addresses)

    monkeypatch.setattr(_linux, "page_nodes", moved)
    (row,) = run_json(capsys, "ls", "--dir", store)[1]["images"]
    assert row["pages_by_node"] == {"1": image["pages"]} and len(set(asked)) == image["pages"]
    for hidden in (lambda addresses: [-2] * len(addresses), _no_such_call):
        monkeypatch.setattr(_linux, "page_nodes", hidden)
        assert run_json(capsys, "ls", "--dir", store)[1]["images"][0]["pages_by_node"] is None
        assert run(capsys, "ls", "--dir", store)[0] == 0
    assert run(capsys, "rm", "m", "--dir", store)[0] == 0


def _no_such_call(addresses: Sequence[int]) -> list[int]:
    raise OSError(38, "move_pages: Function not implemented")


def test_errors(
    capsys: pytest.CaptureFixture[str], mounter: Mounter, run_directory: str, model: Path, tmp_path: Path
) -> None:
    """Each kind of failure has its status, one line and the remedy; with --json an object."""
    store = mounter(2)
    (tmp_path / "bad.safetensors").write_bytes(b"<!DOCTYPE html>")
    (tmp_path / "there").mkdir()
    rows = [
        (2, "argument", ["load", str(model), "--node", "x"]),
        (2, "argument", ["load", str(model), "--name", "../m"]),
        (2, "argument", ["load", str(model), "--page", "two"]),
        (2, "argument", ["load", str(model), "--expect", "a=sha256:00", "--expect", "b"]),
        (3, "mount_too_small", ["load", str(model)]),
        (6, "invalid_safetensors", ["load", str(tmp_path / "bad.safetensors")]),
        (8, "not_ready", ["verify", "m"]),
        (9, "weights", ["load", str(tmp_path / "absent")]),
    ]
    for status, code, argv in rows:
        found = run(capsys, *argv, "--dir", store)
        assert found[0] == status and found[1] == "" and found[2].startswith(f"firsttouch weights: {code}: ")
        found_status, document = run_json(capsys, *argv, "--dir", store)
        assert (found_status, document["exit_status"], document["error"]["code"]) == (status, status, code)
    assert run(capsys, "load", str(model), "--dir", str(tmp_path / "there"))[0] == 13
    status, document = run_json(capsys, "plan", str(model), "--dir", store)
    assert status == 3 and not document["ok"] and document["problem"]["facts"]["mount_free"] == 2
    assert "NO:" in run(capsys, "plan", str(model), "--dir", store)[1]


def test_names_do_not_reach_the_terminal(
    capsys: pytest.CaptureFixture[str], store: str, run_directory: str, tmp_path: Path
) -> None:
    """What a folder is called is shown escaped: a terminal obeys none of it, and no encoding fails on it."""
    model = make_model(tmp_path / "m\x1b[31m\udcff")
    status, text, _ = run(capsys, "plan", str(model), "--dir", store)
    assert status == 0 and "m\\x1b[31m\\udcff" in text and "\x1b" not in text
    assert "\\x1b" in run(capsys, "plan", f"{model}x", "--dir", store)[2]
    assert run_json(capsys, "load", str(model), "--dir", store)[1]["model"] == "m--31m-"
    assert "m--31m-" in run(capsys, "ls", "--dir", store)[1]


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong options are status 2, and the help lists all statuses that errors have."""
    for argv in ([], ["load"], ["load", "m", "--threads", "0"], ["load", "m", "--node", "0", "--prefer", "1"]):
        with pytest.raises(SystemExit) as caught:
            _cli_weights.main(argv)
        assert caught.value.code == 2
    capsys.readouterr()
    with pytest.raises(SystemExit):
        _cli_weights.main(["--help"])
    shown = capsys.readouterr().out
    assert all(f"firsttouch weights {word}" in shown for word in ("plan", "load", "ls"))
    assert _cli_weights.EXIT_CODES in shown
    kinds: list[Any] = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    more = (errors.KernelError, errors.UnsupportedError, errors.ArgumentError)
    for kind in (*more, *(kind for kind in kinds if issubclass(kind, errors.WeightsError))):
        assert f" {kind.exit_status}  " in _cli_weights.EXIT_CODES
    capsys.readouterr()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal() -> None:
    """One line that is written over, at most ten times a second, and always at the end."""
    out, now = Terminal(), [0.0]
    with _progress.Progress(out, clock=lambda: now[0]) as progress:
        for done in range(101):
            now[0] = done / 50
            progress(done << 20, 100 << 20)
    parts = out.getvalue().split("\r")[1:]
    assert 15 <= len(parts) <= 22 and parts[-1].startswith(f"[{'#' * 24}] 100 % 100 of 100 MiB, 50 MiB/s, 0 s left")
    assert out.getvalue().endswith("\n")


def test_progress_elsewhere() -> None:
    """Plain lines, 5 s apart; nothing for a short load, nothing at all when it is not wanted."""
    out, now = io.StringIO(), [0.0]
    progress = _progress.Progress(out, clock=lambda: now[0])
    for second in range(21):
        now[0] = float(second)
        progress(second << 20, 20 << 20)
    lines = out.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["25", "50", "75", "100"] and "\r" not in out.getvalue()
    quiet = _progress.Progress(out, quiet=True, clock=lambda: now[0] + 100)
    quiet(1, 1)
    assert len(out.getvalue().splitlines()) == 4


def test_progress_text() -> None:
    """Before the first byte the time to go is not known."""
    assert _progress.progress_text(0, 10 << 20, 0.0) == "  0 % 0 of 10 MiB, 0 MiB/s, ? s left"
    assert _progress.progress_text(5 << 20, 10 << 20, 2.5) == " 50 % 5 of 10 MiB, 2 MiB/s, 2 s left"


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")])
def test_human(count: int, text: str) -> None:
    """Sizes for people."""
    assert _cli_weights.human(count) == text
