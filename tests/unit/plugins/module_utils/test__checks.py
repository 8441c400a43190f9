# SPDX-License-Identifier: GPL-3.0-or-later
"""The list of checks is whole: no id twice, every one documented with its layers."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import NoReturn

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _checks
from ansible_collections.firsttouch.host.plugins.module_utils._checks import CHECKS, CONCERNS, run
from ansible_collections.firsttouch.host.plugins.module_utils._checks_host import Context
from ansible_collections.firsttouch.host.plugins.module_utils._verdict import LAYERS, STATUSES
from support import ROOT

PAGE = (ROOT / "docs" / "checks.md").read_text()
ROWS = re.findall(r"^\| `([\w.]+)` \| ([\w, ]+) \| (\w+) \| (.+) \|$", PAGE, re.MULTILINE)


# Asked on the controller, which alone knows the variables of the inventory.
ELSEWHERE = {"plan.variables": {"configured"}}


def test_every_check_is_documented_with_its_layers() -> None:
    asked = {check.id: set(check.layers) for check in CHECKS}
    assert {name: set(layers.split(", ")) for name, layers, _worst, _text in ROWS} == {**asked, **ELSEWHERE}
    assert len(ROWS) == PAGE.count("\n| `") == len(CHECKS) + len(ELSEWHERE)


def test_every_check_has_one_id_and_known_layers() -> None:
    assert [name for name, count in Counter(check.id for check in CHECKS).items() if count > 1] == []
    assert {layer for check in CHECKS for layer in check.layers} == set(LAYERS)
    assert {worst for _name, _layers, worst, _text in ROWS} <= set(STATUSES)


def test_every_concern_has_checks() -> None:
    assert {concern for check in CHECKS for concern in check.concerns} == set(CONCERNS)


@pytest.mark.parametrize(
    ("fault", "status"), [(ValueError("broke"), "error"), (PermissionError(13, "closed", "/x"), "not_evaluated")]
)
def test_a_check_that_broke_is_told_whatever_layer_or_concern_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, fault: Exception, status: str
) -> None:
    def ask(_ctx: Context) -> NoReturn:
        raise fault

    for check in CHECKS:
        monkeypatch.setattr(_checks, "CHECKS", (replace(check, ask=ask),))
        for layer in check.layers:
            for concern in check.concerns:
                rows = run(Context({}), [layer], [concern])
                assert [(row.id, row.layer, row.status) for row in rows] == [(check.unanswered, layer, status)]
