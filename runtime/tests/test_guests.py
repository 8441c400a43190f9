# SPDX-License-Identifier: Apache-2.0
"""Who may connect to a unix socket: by group too, also when that is not the first of a process."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from firsttouch import Guests, InferenceClient, Options
from firsttouch.errors import RefusedError
from serving import address_of, child, served

GROUP, USER = 54321, 54320


def visitor(address: str, groups: list[int], welcome: bool) -> Callable[[], None]:
    """A client of another user that is in GROUPS besides its first, and expects to be WELCOME or not."""

    def visit() -> None:
        os.setgroups(groups)
        os.setgid(USER)
        os.setuid(USER)
        if welcome:
            InferenceClient(address, timeout=20).close()
        else:
            with pytest.raises(RefusedError, match=f"user {USER}"):
                InferenceClient(address, timeout=20)

    return visit


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
@pytest.mark.parametrize("transport", ["shm", "unix"])
def test_supplementary_group(transport: str, open_folder: Path) -> None:
    """A member of the group may connect, whichever of its groups that is; another user may not."""
    options = Options(lanes=2, socket_mode=0o666, guests=Guests(gids=frozenset({GROUP})))
    with served(address_of(transport, open_folder), options=options) as (where, _):
        for groups, welcome in (([GROUP, 5], True), ([5], False), ([], False)):
            with child(visitor(where, groups, welcome)) as pid:
                assert os.waitpid(pid, 0)[1] == 0
