# SPDX-License-Identifier: Apache-2.0
"""The policy that `firsttouch serve` runs when it is given no other: two dense layers with fixed weights, in numpy."""

from __future__ import annotations

import numpy as np

from firsttouch._wire import Array, Schema
from firsttouch.server import Batch

OBSERVATION, HIDDEN, ACTION = 12288, 64, 1024


class Policy:
    """Actions for observations: tanh(obs @ first) @ second."""

    # A second one costs 3 MB.
    spare = True
    schema = Schema.of({"obs": ("float32", (OBSERVATION,))}, {"act": ("float32", (ACTION,))})

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self._first = (rng.standard_normal((OBSERVATION, HIDDEN)) / OBSERVATION**0.5).astype(np.float32)
        self._second = (rng.standard_normal((HIDDEN, ACTION)) / HIDDEN**0.5).astype(np.float32)

    def __call__(self, batch: Batch) -> dict[str, Array]:
        """act: float32[n, ACTION] for batch.arrays["obs"]: float32[n, OBSERVATION]."""
        return {"act": np.tanh(batch.arrays["obs"] @ self._first) @ self._second}
