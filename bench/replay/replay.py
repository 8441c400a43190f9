# SPDX-License-Identifier: GPL-3.0-or-later
"""A connection for benchmarks of the controller: each distinct run of a module is made once and replayed then."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import tempfile
from typing import Any

from ansible.plugins.connection.local import Connection as Local

DOCUMENTATION = """
name: replay
short_description: The local connection, with recorded answers
description:
  - Runs a module like ansible.builtin.local does, and keeps what it printed below C(FIRSTTOUCH_REPLAY_DIR). A later
    run of the same module with the same arguments gets that, from a process too, C(cat) in place of Python.
  - With C(FIRSTTOUCH_REPLAY=0) everything is run, and kept too.
extends_documentation_fragment:
  - connection_pipelining
"""
# What of the file that is sent to a host says which module it is and what it is asked; the rest has the time in it.
_ASKED = re.compile(rb"^(?:module_fqn|params)=.*$", re.MULTILINE)


class Connection(Local):  # type: ignore[misc]  # ansible-core has no types
    """The local connection, with recorded answers."""

    transport = "replay"

    def exec_command(
        self, cmd: str, in_data: bytes | None = None, sudoable: bool = True
    ) -> tuple[int, bytes, bytes]:
        """Run CMD, or print what the same module with the same arguments printed before."""
        asked = _ASKED.findall(in_data or b"")
        if len(asked) != 2:
            return self._run(cmd, in_data, sudoable)
        name = hashlib.sha256(b"\n".join(asked)).hexdigest()
        path = os.path.join(os.environ["FIRSTTOUCH_REPLAY_DIR"], name)
        if os.environ.get("FIRSTTOUCH_REPLAY") != "0" and os.path.exists(path):
            return self._run(f"cat {shlex.quote(path)}", b"", sudoable)
        status, out, err = self._run(cmd, in_data, sudoable)
        if status == 0:
            keep(path, out)
        return status, out, err

    def _run(self, cmd: str, in_data: bytes | None, sudoable: bool) -> tuple[int, bytes, bytes]:
        done: Any = super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        return done[0], done[1], done[2]


def keep(path: str, data: bytes) -> None:
    """Write PATH as a whole: forks of one run may keep the same answer at once."""
    handle, temp = tempfile.mkstemp(dir=os.path.dirname(path))
    with os.fdopen(handle, "wb") as out:
        out.write(data)
    os.rename(temp, path)
