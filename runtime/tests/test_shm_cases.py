# SPDX-License-Identifier: Apache-2.0
"""The recorded cases of shared memory: what went wrong elsewhere does not here."""

from __future__ import annotations

import errno
import json
import mmap
import socket
from pathlib import Path
from typing import Any

import pytest

from firsttouch import InferenceClient, InferenceServer, Options
from firsttouch.errors import AddressError, BrokenError, BusyError, KernelError
from serving import SCHEMA, check, request, served

CASES = Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "cases"


def expected(case: str) -> Any:
    """What the case demands."""
    return json.loads((CASES / case / "expected.json").read_text())


def test_failed_attach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client whose mmap fails gets an error; the memory is there afterwards, and the next attach works."""
    demand = expected("shm-failed-attach-destroys-block")

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with served(f"shm://{tmp_path}/n", options=Options(lanes=2)) as (where, _):
        with monkeypatch.context() as patch:
            patch.setattr(mmap, "mmap", refuse)
            try:
                InferenceClient(where)
                raises = False
            except KernelError:
                raises = True
        with InferenceClient(where) as client:
            check(1, client.infer(request(1))[0])
            exists = True
    assert {"raises": raises, "exists_after": exists} == demand


def test_name_already_exists(tmp_path: Path) -> None:
    """A file of somebody else under the wanted name is named in the error, and neither side uses its content."""
    demand = expected("shm-name-already-exists")
    stale = tmp_path / "n"
    stale.write_bytes(b"\xff" * 16 + bytes(4080))
    with pytest.raises(AddressError, match=str(stale)):
        InferenceServer(f"shm://{stale}", SCHEMA)
    with pytest.raises(BrokenError):
        InferenceClient(f"shm://{stale}")
    assert demand == {"silent_reuse": stale.stat().st_size != 4096, "client_attach": "error"}


def test_leaked_names(tmp_path: Path) -> None:
    """A name is taken over exactly when its server is dead, even if its pid lives on in another process.

    The case demands that a check reports `bytes`, what the names to be reclaimed hold: 96 MiB of segments that a dead
    server left. Here a name is a socket, which holds none, and the segment has no name, so that the kernel frees it
    with its last process: there are no bytes to report, which is asserted in place of the sum.
    """
    demand = expected("shm-leaked-segments-reclaim")
    live = {line.split("\t")[0]: line.split("\t")[1] for line in _lines("live.tsv")}
    kept: list[socket.socket] = []
    sizes = {}
    for line in _lines("listing.tsv"):
        name, size, owner = line.split("\t")
        sizes[name] = int(size)
        if not owner:
            (tmp_path / name).write_bytes(b"foreign")
            continue
        pid, start = (word.partition("=")[2] for word in owner.split())
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind(str(tmp_path / name))
        if live.get(pid) == start:
            sock.listen()
            kept.append(sock)
        else:
            sock.close()
    found: dict[str, list[str]] = {"reclaim": [], "keep": [], "foreign": []}
    held = {name: (tmp_path / name).stat().st_blocks for name in sizes}
    for name in sorted(sizes):
        try:
            InferenceServer(f"shm://{tmp_path}/{name}", SCHEMA, options=Options(lanes=1, pages="4k")).close()
            found["reclaim"].append(name)
        except BusyError:
            found["keep"].append(name)
        except AddressError:
            assert (tmp_path / name).read_bytes() == b"foreign"
            found["foreign"].append(name)
    for sock in kept:
        sock.close()
    assert found == {key: sorted(demand[key]) for key in found}
    assert sum(sizes[name] for name in found["reclaim"]) == demand["bytes"]
    assert sum(held[name] for name in found["reclaim"]) == 0


def _lines(name: str) -> list[str]:
    """The lines of a file of the case."""
    return (CASES / "shm-leaked-segments-reclaim" / name).read_text().splitlines()
