# SPDX-License-Identifier: GPL-3.0-or-later
"""The recorded check mode troubles: every module that the roles call, in their order; then what cannot be read.

That a whole playbook does the same is in the molecule scenarios.
"""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path
from typing import Any

import pytest
import verified_host as vh
from ansible_collections.firsttouch.host.plugins.module_utils import _files, _sysctl_dropin
from support import CASES, case_expected, put, run_module

SKIPPED = "checkmode-command-skipped"
UNREADABLE = "checkmode-unreadable-proc-files"
PROBES = [line.split("\t") for line in (CASES / UNREADABLE / "probes.tsv").read_text().splitlines()]


def provision(root: Path, *, check: bool) -> list[dict[str, Any]]:
    """What the roles do to the host below ROOT for the intent, module by module."""
    where = {"sysroot": str(root)}
    planned = run_module("host_plan", {**where, "intent": vh.INTENT})
    assert not planned.get("failed"), planned
    plan = planned["plan"]
    record = run_module(
        "plan_record", {**where, "plan": plan, "sections": planned["planned"]}, check=check
    )
    cpus = plan["sections"]["cpu_isolation"]
    steps: list[tuple[str, dict[str, Any]]] = [
        ("systemd_units", {"units": planned["units"], "absent": planned["units_absent"]}),
        ("sysctl_dropin", {"values": plan["sysctls"], "restore": record["before"].get("sysctl", {})}),
        ("irqbalance", {"mode": cpus["irqbalance"], "isolated": cpus["isolated"]}),
        ("kernel_cmdline", {"tokens": plan["boot"]["tokens"], "keys": plan["boot"]["keys"]}),
    ]
    done = [run_module(name, {**where, **args}, check=check) for name, args in steps]
    return [planned, record, *done]


def rebooted(root: Path) -> None:
    """Let the host run what is configured, as after the reboot of a real one."""
    tokens = " ".join(vh.plan_for(root)["boot"]["tokens"])
    vh.grub_cfg(root, f"quiet {tokens}")
    put(root, "/proc/cmdline", f"BOOT_IMAGE=/boot/vmlinuz-{vh.RELEASE} {vh.ROOT_UUID} ro quiet {tokens}\n")


def state(root: Path) -> dict[str, tuple[str, int]]:
    """{path: (sha256, mtime)} of every file below ROOT."""
    return {
        str(path.relative_to(root)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.is_file()
    }


def test_a_configured_host_has_nothing_to_change(tmp_path: Path) -> None:
    vh.provisioned_host(tmp_path)
    (tmp_path / vh.SYSCTL[1:]).unlink()  # laid out by hand, it would be somebody else's
    assert [row["msg"] for row in provision(tmp_path, check=False) if row.get("failed")] == []
    rebooted(tmp_path)
    before = state(tmp_path)
    results = provision(tmp_path, check=True)
    assert case_expected(SKIPPED)["configured"] == {
        "failed": sum(bool(row.get("failed")) for row in results),
        "changed": sum(bool(row["changed"]) for row in results),
    }
    assert state(tmp_path) == before
    verified = run_module("host_verify", {"sysroot": str(tmp_path)}, check=True)
    assert verified["verdict"] == "pass", verified["table"]


def test_a_bare_host_is_told_what_it_lacks_and_stays_as_it_is(tmp_path: Path) -> None:
    vh.bare_host(tmp_path)
    before = state(tmp_path)
    results = provision(tmp_path, check=True)
    verified = run_module("host_verify", {"sysroot": str(tmp_path), "intent": vh.INTENT}, check=True)
    assert case_expected(SKIPPED)["unconfigured"] == {
        "verdict": verified["verdict"],
        "host_changed": state(tmp_path) != before,
    }
    assert [row.get("msg") for row in results if row.get("failed")] == []
    assert [row["changed"] for row in results[1:]] == [True] * 5
    assert all(row["reason"] for row in verified["results"] if row["status"] == "fail")


def by_id(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in result["results"]}


def test_missing_unreadable_and_read_only_are_three_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (missing, _enoent), (closed, _eacces), (_write, _erofs) = PROBES
    assert [row[1] for row in PROBES] == ["ENOENT", "EACCES", "EROFS"]
    plan = vh.provisioned_host(tmp_path)
    (tmp_path / missing[1:]).unlink()
    refuse(monkeypatch, tmp_path, closed)
    result = run_module("host_verify", {"sysroot": str(tmp_path)})
    rows = by_id(result)
    absent, unread = rows["hugepages.counter"], rows["boot.tokens.next_boot"]
    monkeypatch.undo()

    bare = vh.bare_host(tmp_path / "bare")
    before = state(bare)
    monkeypatch.setattr(_sysctl_dropin, "_write_proc", read_only)
    applied = run_module("sysctl_dropin", {"sysroot": str(bare), "values": plan["sysctls"]})
    assert case_expected(UNREADABLE) == {
        "missing": absent["reason"],
        "eacces": unread["reason"],
        "erofs": applied["reason"],
    }
    assert (absent["status"], absent["source"]) == ("not_evaluated", missing)
    assert (unread["status"], unread["source"]) == ("not_evaluated", closed)
    assert result["verdict"] != "pass" and not result["ok"]
    assert applied["failed"] and applied["mount"] and state(bare) == before


def read_only(path: str, value: str) -> None:
    raise OSError(errno.EROFS, "Read-only file system", path)


def refuse(monkeypatch: pytest.MonkeyPatch, root: Path, path: str) -> None:
    """Let PATH below ROOT refuse to be read, as it does to another user."""
    read = _files.read_bytes

    def refusing(base: str, name: str) -> bytes | None:
        if _files.resolve(base, name) == str(root / path[1:]):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return read(base, name)

    monkeypatch.setattr(_files, "read_bytes", refusing)
