# SPDX-License-Identifier: Apache-2.0
"""The errors say what they know, and survive a process boundary."""

from __future__ import annotations

import pickle

import pytest

from firsttouch import errors

KINDS: list[type[errors.FirstTouchError]] = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.FirstTouchError)
]


@pytest.mark.parametrize("kind", KINDS)
def test_pickle(kind: type[errors.FirstTouchError]) -> None:
    """Kind, message, hint and facts are the same on the other side."""
    error = kind("it failed", hint="do that", facts={"pid": 7})
    twin = pickle.loads(pickle.dumps(error))
    assert type(twin) is kind
    assert (str(twin), twin.facts, twin.hint) == ("it failed; do that", {"pid": 7}, "do that")


def test_codes_differ() -> None:
    """A code names one kind."""
    codes = [kind.code for kind in KINDS]
    assert len(set(codes)) == len(codes)
