# SPDX-License-Identifier: GPL-3.0-or-later
"""The module conflicting_services: exact check mode, choices that are the table, nothing of others touched."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible_collections.firsttouch.host.plugins.module_utils import _services
from ansible_collections.firsttouch.host.plugins.modules import conflicting_services
from support import put, run_module

TUNED = "tuned.service"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    put(tmp_path, f"/usr/lib/systemd/system/{TUNED}", "[Service]\nExecStart=/usr/sbin/tuned\n")
    return tmp_path


def files(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def test_check_mode_predicts_and_writes_nothing(host: Path) -> None:
    args = {"stop": [TUNED], "sysroot": str(host)}
    before = files(host)
    predicted = run_module("conflicting_services", args, check=True)
    assert files(host) == before
    done = run_module("conflicting_services", args)
    assert predicted["changes"] == done["changes"] and predicted["diff"] == done["diff"] and done["changed"]
    assert not run_module("conflicting_services", args)["changed"]
    assert run_module("conflicting_services", {"sysroot": str(host)})["changed"]
    assert files(host) == before


def test_a_foreign_dropin_is_refused_unchanged(host: Path) -> None:
    put(host, _services.dropin(TUNED), "[Service]\nNice=5\n")
    before = files(host)
    result = run_module("conflicting_services", {"stop": [TUNED], "sysroot": str(host)})
    assert result["failed"] and result["reason"] == "foreign_file" and result["unit"] == TUNED
    assert files(host) == before


def test_a_service_outside_the_table_is_refused(host: Path) -> None:
    put(host, "/usr/lib/systemd/system/ssh.service", "[Service]\n")
    before = files(host)
    assert run_module("conflicting_services", {"stop": ["ssh.service"], "sysroot": str(host)})["failed"]
    assert files(host) == before


def test_the_documented_choices_are_the_table() -> None:
    documented = yaml.safe_load(conflicting_services.DOCUMENTATION)["options"]["stop"]["choices"]
    assert documented == list(_services.TABLE)
