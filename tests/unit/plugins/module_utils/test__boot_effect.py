# SPDX-License-Identifier: GPL-3.0-or-later
"""Foreign arguments against ours."""

from __future__ import annotations

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils._boot_effect import contradicting
from ansible_collections.firsttouch.host.plugins.module_utils._boot_types import LineToken
from ansible_collections.firsttouch.host.plugins.module_utils._kernel_facts import KernelFacts

THP = "transparent_hugepage"


@pytest.mark.parametrize("text", [f'{THP}="madvise"', f'"{THP}=madvise"', f"{THP}=madvise"])
def test_the_same_argument_in_another_form_contradicts_nothing(text: str) -> None:
    assert contradicting([LineToken(text)], [f"{THP}=madvise", "nohz_full=1"], KernelFacts()) == []


@pytest.mark.parametrize("text", [f"{THP}=never", f'"{THP}=never"', THP])
def test_another_value_does(text: str) -> None:
    assert [row.text for row in contradicting([LineToken(text)], [f"{THP}=madvise"], KernelFacts())] == [text]
