# SPDX-License-Identifier: GPL-3.0-or-later
"""Cores by model name: what a name says, and that a name that says nothing is no guess."""

from __future__ import annotations

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _cpu_models
from ansible_collections.firsttouch.host.plugins.module_utils._cpu_models import (
    cores_per_socket,
    front_side_bus,
)


@pytest.mark.parametrize(
    ("name", "cores"),
    [
        ("AMD EPYC 9634 84-Core Processor", 84),
        ("AMD EPYC 7451 24-Core Processor", 24),
        ("AMD EPYC 7V73X 64-Core Processor", 64),
        ("AMD Ryzen Threadripper PRO 5995WX 64-Cores", 64),
        ("AMD EPYC 9R14", 96),
        ("Hygon C86 7285 32-core Processor", 32),
        ("Intel(R) Xeon(R) Platinum 8480+", 56),
        ("Intel(R) Xeon(R) Platinum 8175M CPU @ 2.50GHz", 24),
        ("Intel(R) Xeon(R) Gold 6230 CPU @ 2.10GHz", 20),
        ("Intel(R) Xeon(R) Gold 6230R CPU @ 2.10GHz", 26),
        ("INTEL(R) XEON(R) PLATINUM 8592+", 64),
        ("Intel(R) Xeon(R) 6980P", 128),
        ("Intel(R) Xeon(R) Max 9480", 56),
        ("Intel(R) Xeon(R) CPU E5-2680 0 @ 2.70GHz", 8),
        ("Intel(R) Xeon(R) CPU E5-2686 v4 @ 2.30GHz", 18),
        ("Intel(R) Xeon(R) CPU E5-2697A v4 @ 2.60GHz", 16),
        ("Intel(R) Xeon(R) CPU E7- 4870  @ 2.40GHz", 10),
        # Parts of which no listing shows the cores.
        ("AMD EPYC 7R13 Processor", None),
        ("AMD EPYC 7B12", None),
        ("Intel(R) Xeon(R) Platinum 8272CL CPU @ 2.60GHz", None),
        # Names that name no part, or were made up by a hypervisor.
        ("Intel(R) Xeon(R) CPU @ 2.20GHz", None),
        ("Intel(R) Xeon(R) Processor @ 2.30GHz", None),
        ("Intel Xeon Processor (Skylake, IBRS)", None),
        ("Intel Core Processor (Skylake, IBRS)", None),
        ("AMD EPYC", None),
        ("AMD EPYC-Milan Processor", None),
        ("AMD EPYC Processor (with IBPB)", None),
        ("QEMU Virtual CPU version 2.5+", None),
        ("QEMU TCG CPU version 2.5+", None),
        ("Dual Core AMD Opteron(tm) Processor 865", None),
        ("AMD EPYC 0000 0-Core Processor", None),
        ("Intel(R) Xeon(R) Platinum 8999Z", None),
        ("Neoverse-V1", None),
        ("", None),
        (None, None),
    ],
)
def test_cores(name: str | None, cores: int | None) -> None:
    assert cores_per_socket(name) == cores


def test_no_part_is_listed_twice() -> None:
    for table in (_cpu_models._AMD, _cpu_models._XEON, _cpu_models._E_SERIES):
        parts = [part for row in table.values() for part in row.split()]
        assert len(parts) == len(set(parts))


@pytest.mark.parametrize(
    ("vendor", "family", "model", "bus"),
    [
        ("GenuineIntel", 15, 6, True),
        ("GenuineIntel", 6, 15, True),
        ("GenuineIntel", 6, 29, True),
        ("GenuineIntel", 6, 26, False),
        ("GenuineIntel", 6, 85, False),
        ("GenuineIntel", 19, 1, False),
        ("AuthenticAMD", 15, 33, False),
        (None, None, None, False),
        ("GenuineIntel", None, 15, False),
    ],
)
def test_the_front_side_bus(vendor: str | None, family: int | None, model: int | None, bus: bool) -> None:
    assert front_side_bus(vendor, family, model) is bus
