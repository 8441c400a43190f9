# SPDX-License-Identifier: GPL-3.0-or-later
"""Foreign arguments against ours."""

from __future__ import annotations

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils._boot_effect import beyond, contradicting
from ansible_collections.firsttouch.host.plugins.module_utils._boot_types import LineToken
from ansible_collections.firsttouch.host.plugins.module_utils._kernel_facts import KernelFacts

THP = "transparent_hugepage"


@pytest.mark.parametrize("text", [f'{THP}="madvise"', f'"{THP}=madvise"', f"{THP}=madvise"])
def test_the_same_argument_in_another_form_contradicts_nothing(text: str) -> None:
    assert contradicting([LineToken(text)], [f"{THP}=madvise", "nohz_full=1"], KernelFacts()) == []


@pytest.mark.parametrize("text", [f"{THP}=never", f'"{THP}=never"', THP])
def test_another_value_does(text: str) -> None:
    assert [row.text for row in contradicting([LineToken(text)], [f"{THP}=madvise"], KernelFacts())] == [text]


@pytest.mark.parametrize(
    ("line", "ours", "left"),
    [
        ("hugepagesz=2048K hugepages=50 hugepagesz=2M hugepages=100", "hugepagesz=2M hugepages=100",
         "hugepagesz=2048K hugepages=50"),
        ("hugepagesz=2M hugepages=100 hugepagesz=2048K hugepages=50", "hugepagesz=2M hugepages=100",
         "hugepagesz=2048K hugepages=50"),
        ("hugepagesz=2048K hugepages=100", "hugepagesz=2M hugepages=100", ""),
        ("hugepagesz=2048K hugepagesz=2M", "hugepagesz=2M hugepagesz=2048K", ""),
        ("hugepagesz=2048K hugepagesz=2M hugepagesz=2m", "hugepagesz=2M hugepagesz=2048k", "hugepagesz=2m"),
        ("quiet quiet nohz=on", "quiet", "quiet nohz=on"),
        ("quiet", "quiet quiet", ""),
    ],
)  # fmt: skip
def test_of_two_of_one_page_size_the_one_in_our_words_is_ours(line: str, ours: str, left: str) -> None:
    assert beyond(line.split(), ours.split()) == left.split()


def test_the_foreign_one_of_two_of_our_page_size_is_blamed() -> None:
    ours = ["hugepagesz=2M", "hugepages=100"]
    line = f"hugepagesz=1G hugepages=3 hugepagesz=2048K hugepages=50 {' '.join(ours)}"
    foreign = [LineToken(text) for text in beyond(line.split(), ours)]
    blamed = [row.text for row in contradicting(foreign, ours, KernelFacts())]
    assert blamed == ["hugepagesz=2048K"]
