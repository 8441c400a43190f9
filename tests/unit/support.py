# SPDX-License-Identifier: GPL-3.0-or-later
"""Shared by the unit tests: run a module in process, lay a recorded case out as a sysroot."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "tests" / "fixtures" / "cases"


def run_module(name: str, args: dict[str, Any], *, check: bool = False, diff: bool = True) -> dict[str, Any]:
    """Run plugins/modules/NAME.py in this process with ARGS and return what it prints as its result.

    The result of a module that called fail_json has failed=True, as on a host.
    """
    from ansible.module_utils import basic

    module = importlib.import_module(f"ansible_collections.firsttouch.host.plugins.modules.{name}")
    payload = {
        "ANSIBLE_MODULE_ARGS": {
            **args,
            "_ansible_check_mode": check,
            "_ansible_diff": diff,
            "_ansible_remote_tmp": "/tmp",
            "_ansible_keep_remote_files": False,
        }
    }
    out = io.StringIO()
    patches: list[Any] = [mock.patch.object(basic, "_ANSIBLE_ARGS", json.dumps(payload).encode())]
    if hasattr(basic, "_ANSIBLE_PROFILE"):
        patches.append(mock.patch.object(basic, "_ANSIBLE_PROFILE", "legacy"))
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        stack.enter_context(contextlib.redirect_stdout(out))
        with contextlib.suppress(SystemExit):
            module.main()
    text = out.getvalue().strip().splitlines()
    if not text:
        raise AssertionError(f"{name} printed no result")
    result: dict[str, Any] = json.loads(text[-1])
    return result


def case_expected(case: str) -> Any:
    """The parsed expected.json of tests/fixtures/cases/CASE."""
    return json.loads((CASES / case / "expected.json").read_text())


def put(root: Path, path: str, text: str) -> Path:
    """Write TEXT at the absolute PATH inside the sysroot ROOT; return the real path."""
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    return target


def sysroot_from_tsv(root: Path, tsv: Path) -> Path:
    """Lay out a case's PATH<TAB>CONTENT table as files under ROOT; return ROOT."""
    for line in tsv.read_text().splitlines():
        if line.strip():
            path, _, content = line.partition("\t")
            put(root, path, content + "\n")
    return root
