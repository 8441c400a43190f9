# SPDX-License-Identifier: Apache-2.0
"""Model weights in huge pages: one process loads them once, any number map them read only.

    firsttouch.weights.load("/models/llama")        once per host, as a user who may write the hugetlbfs
    with firsttouch.weights.open("llama") as w:     in each worker
        w["lm_head.weight"]                         a read-only numpy array, no copy; w.torch(name) a tensor

The image outlives its loader. Nothing here can shorten or change a published image; a worker that stores into it
dies of SIGSEGV alone. `safe_open` stands in for the one of safetensors.
"""

from __future__ import annotations

from firsttouch._image import Tensor
from firsttouch._manage import Image, gc, load, ls, rm
from firsttouch._planning import Plan, plan
from firsttouch._pool import Placement
from firsttouch._weights import SafeOpen as safe_open
from firsttouch._weights import TensorSlice, Weights, verify
from firsttouch._weights import open_weights as open  # noqa: A004 - weights.open() reads like the builtin

__all__ = [
    "Image",
    "Placement",
    "Plan",
    "Tensor",
    "TensorSlice",
    "Weights",
    "gc",
    "load",
    "ls",
    "open",
    "plan",
    "rm",
    "safe_open",
    "verify",
]
