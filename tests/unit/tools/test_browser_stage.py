# SPDX-License-Identifier: GPL-3.0-or-later
"""Where no browser can be had, its stage says that it was not run; where it can be had, it is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import bootstrap
import commands
import pytest
import stage_logs

WEBDRIVER = Path(__file__).resolve().parents[2] / "browser" / "webdriver.py"


def webdriver() -> Any:
    spec = importlib.util.spec_from_file_location("webdriver_of_the_browser_tests", WEBDRIVER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_stage_that_cannot_run_is_neither_passed_nor_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stage_logs, "LOGS", tmp_path / "logs")

    def left_out() -> None:
        raise commands.NotRun("chromium is not installed")

    (row,) = commands.run_stages({"browser": left_out}, ["browser"])
    assert row.outcome == "NOT RUN: chromium is not installed" and not row.failed
    commands.print_table("stage", [row])
    assert "NOT RUN: chromium is not installed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("release", "wanted"),
    [("ID=debian\nVERSION_ID=13\n", True), ("ID=ubuntu\nID_LIKE=debian\n", False), ("ID_LIKE=debian\n", False)],
)
def test_only_debian_has_a_chromium_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, wanted: bool
) -> None:
    (tmp_path / "os-release").write_text(release)
    monkeypatch.setattr(bootstrap, "OS_RELEASE", tmp_path / "os-release")
    assert bool(bootstrap.browser_needs()) is wanted
    monkeypatch.setattr(bootstrap, "OS_RELEASE", tmp_path / "nothing")
    assert bootstrap.browser_needs() == ()


def test_a_missing_browser_and_a_stub_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = webdriver()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert driver.missing() == "chromium is not installed"
    for name, text in (("chromium", "#!/bin/sh\nexec snap run chromium\n"), ("chromedriver", "#!/bin/sh\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    assert driver.missing() == "chromium is a snap"
    (tmp_path / "chromium").write_text("#!/bin/sh\nexec /usr/lib/chromium/chromium\n")
    assert driver.missing() == ""
