# SPDX-License-Identifier: Apache-2.0
"""First Touch: inference over shared memory or sockets, and weights shared from hugepages.

client     InferenceClient: infer(), lanes to write into, an asyncio client
server     InferenceServer: batches() of all requests that are ready
plan       the host's plan, and choose_transport() with its reason
affinity   pin() the calling thread, and take it back
weights    load() and open() read-only weights
errors     everything that is raised here
cli        the command `firsttouch`
"""

from __future__ import annotations

from firsttouch import affinity, errors, weights
from firsttouch._guests import Guests
from firsttouch._ports import Options
from firsttouch._tls import Tls
from firsttouch._wire import Schema
from firsttouch.client import AsyncInferenceClient, InferenceClient
from firsttouch.plan import choose_transport, load_plan
from firsttouch.server import Batch, InferenceServer

__version__ = "0.1.0"
__all__ = [
    "AsyncInferenceClient",
    "Batch",
    "Guests",
    "InferenceClient",
    "InferenceServer",
    "Options",
    "Schema",
    "Tls",
    "affinity",
    "choose_transport",
    "errors",
    "load_plan",
    "weights",
]
