# SPDX-License-Identifier: GPL-3.0-or-later
"""Planning and applying one owned sysctl file, all or nothing."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _files, _sysctl, _sysctl_dropin
from ansible_collections.firsttouch.host.plugins.module_utils._sysctl_judge import write_pair
from support import put

PATH = "/etc/sysctl.d/zz-firsttouch.conf"
START = {
    "vm/swappiness": "60",
    "vm/dirty_ratio": "20",
    "vm/dirty_bytes": "0",
    "vm/dirty_background_ratio": "10",
    "vm/dirty_background_bytes": "0",
    "kernel/sched_rt_runtime_us": "950000",
}


class Kernel:
    """A /proc/sys below ROOT that behaves like one: pairs zero each other, bad values are refused."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.refuse: Callable[[str, str], int | None] = lambda key, value: None
        self.written: list[tuple[str, str]] = []
        for key, value in START.items():
            put(root, f"/proc/sys/{key}", f"{value}\n")

    def values(self) -> dict[str, str]:
        return {key: (self.root / "proc/sys" / key).read_text().strip() for key in START}

    def write(self, path: str, value: str) -> None:
        key = os.path.relpath(path, self.root.resolve() / "proc/sys")
        code = self.refuse(key, value)
        state = self.values()
        if code is None and not write_pair(state, key, value):
            code = errno.EINVAL
        if code is not None:
            raise OSError(code, os.strerror(code))
        self.written.append((key, value))
        for name, text in state.items():
            put(self.root, f"/proc/sys/{name}", f"{text}\n")


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    fake = Kernel(tmp_path)
    monkeypatch.setattr(_sysctl_dropin, "_write_proc", fake.write)
    return fake


def go(root: Path, values: dict[str, Any], restore: dict[str, str] | None = None, **args: Any) -> Any:
    """Plan and apply; the change set must then be exactly what happened."""
    wanted = _sysctl.check_values(values)
    plan = _sysctl_dropin.make_plan(
        str(root), PATH, wanted, restore=_sysctl.check_values(restore or {}), **args
    )
    _sysctl_dropin.apply_plan(plan)
    return plan


def error(root: Path, values: dict[str, Any], **args: Any) -> _sysctl_dropin.DropinError:
    with pytest.raises(_sysctl_dropin.DropinError) as caught:
        go(root, values, **args)
    return caught.value


def test_writes_and_is_idempotent(kernel: Kernel) -> None:
    values = {"vm.swappiness": 0, "vm.dirty_background_bytes": 1048576, "vm.dirty_ratio": 20}
    plan = go(kernel.root, values)
    text = (kernel.root / PATH[1:]).read_text()
    assert text.splitlines() == [
        _sysctl_dropin.MARKER,
        "vm.swappiness = 0",
        "vm.dirty_background_bytes = 1048576",
        "vm.dirty_ratio = 20",
    ]
    assert kernel.values() == {**START, **plan.after}
    assert plan.changes == [
        {"resource": f"file:{PATH}", "before": None, "after": text},
        {"resource": "sysctl:vm.dirty_background_bytes", "before": "0", "after": "1048576"},
        {"resource": "sysctl:vm.dirty_background_ratio", "before": "10", "after": "0"},
        {"resource": "sysctl:vm.swappiness", "before": "60", "after": "0"},
    ]
    assert plan.status == dict.fromkeys(_sysctl.check_values(values), "applied")
    again = go(kernel.root, values)
    assert again.changes == []
    assert set(again.status.values()) == {"unchanged"}
    assert kernel.written == [("vm/swappiness", "0"), ("vm/dirty_background_bytes", "1048576")]


def test_planning_writes_nothing(kernel: Kernel) -> None:
    plan = _sysctl_dropin.make_plan(str(kernel.root), PATH, {"vm/swappiness": "0"})
    assert len(plan.changes) == 2
    assert kernel.values() == START
    assert not (kernel.root / "etc").exists()


@pytest.mark.parametrize(
    ("code", "reason"),
    [(errno.EINVAL, "rejected"), (errno.EROFS, "read_only"), (errno.EACCES, "permission_denied")],
)
def test_refused_value_rolls_everything_back(kernel: Kernel, code: int, reason: str) -> None:
    go(kernel.root, {"vm.swappiness": 5})
    before = kernel.values(), (kernel.root / PATH[1:]).read_text()
    kernel.refuse = lambda key, value: code if key.startswith("kernel/") and value == "1" else None
    values = {
        "vm.swappiness": 1,
        "vm.dirty_bytes": 8192,
        "vm.dirty_background_bytes": 1,
        "kernel.sched_rt_runtime_us": 1,
    }
    problem = error(kernel.root, values)
    assert problem.reason == reason
    assert "kernel.sched_rt_runtime_us" in str(problem)
    assert (kernel.values(), (kernel.root / PATH[1:]).read_text()) == before


def test_value_that_reads_back_differently_is_refused(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def clamp(path: str, value: str) -> None:
        kernel.write(path, "100" if value == "200" else value)

    monkeypatch.setattr(_sysctl_dropin, "_write_proc", clamp)
    assert error(kernel.root, {"vm.swappiness": 200}).reason == "readback_differs"
    assert kernel.values() == START


def test_file_that_cannot_be_written_rolls_the_kernel_back(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: Any, **_kwargs: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(_sysctl_dropin, "atomic_write", refuse)
    assert error(kernel.root, {"vm.swappiness": 1, "vm.dirty_bytes": 8192}).reason == "read_only"
    assert kernel.values() == START


@pytest.mark.parametrize("old", [{}, {"vm.swappiness": 10}])
def test_file_that_cannot_be_made_durable_goes_back_too(
    kernel: Kernel, old: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    go(kernel.root, old)
    before, path = kernel.values(), kernel.root / PATH[1:]
    text = path.read_text() if old else None
    (kernel.root / "etc/sysctl.d").mkdir(parents=True, exist_ok=True)
    failing = iter([OSError(errno.EIO, "Input/output error")])

    def fsync_dir(_path: str) -> None:
        for exc in failing:
            raise exc

    monkeypatch.setattr(_files, "fsync_dir", fsync_dir)
    exc = error(kernel.root, {"vm.swappiness": 0})
    assert exc.reason == "write_error" and "nothing was changed" in str(exc)
    assert kernel.values() == before and (path.read_text() if path.exists() else None) == text


def test_read_only_mount_is_named_before_anything_is_written(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    class ReadOnly:
        f_flag = os.ST_RDONLY

    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(os, "statvfs", lambda path: ReadOnly())
    problem = error(kernel.root, {"vm.swappiness": 1})
    assert problem.reason == "read_only"
    assert "mounted read-only" in str(problem)
    assert problem.details["mount"]
    assert kernel.values() == START
    assert not (kernel.root / "etc").exists()
    assert go(kernel.root, {"vm.swappiness": 60}).status == {"vm/swappiness": "applied"}


def test_missing_keys_are_all_named(kernel: Kernel) -> None:
    problem = error(kernel.root, {"vm.swappiness": 1, "vm.nope": 1, "net.nope.x": 1})
    assert problem.reason == "unknown_key"
    assert problem.details["names"] == ["vm.nope", "net.nope.x"]
    plan = go(kernel.root, {"vm.nope": 1}, optional=["vm/nope"])
    assert plan.status == {"vm/nope": "unsupported"}
    assert plan.changes == []
    assert not (kernel.root / PATH[1:]).exists()


@pytest.mark.parametrize(
    ("path", "text", "by"),
    [
        ("/etc/sysctl.d/zzz-vendor.conf", "vm.dirty_ratio = 9\n", "/etc/sysctl.d/zzz-vendor.conf"),
        ("/usr/lib/sysctl.d/zzz-vendor.conf", "vm.dirty_bytes = 8192\n", "/usr/lib/sysctl.d/zzz-vendor.conf"),
        ("/etc/sysctl.conf", "vm/dirty_ratio=9\n", "/etc/sysctl.conf"),
        ("/run/sysctl.d/\u00e9.conf", "vm.dirty_ratio = 09\n", "/run/sysctl.d/\u00e9.conf"),
    ],
)
def test_later_file(kernel: Kernel, path: str, text: str, by: str) -> None:
    put(kernel.root, path, text)
    problem = error(kernel.root, {"vm.dirty_ratio": 8})
    assert problem.reason == "overridden_by"
    assert problem.details["file"] == by
    assert by in str(problem)
    assert kernel.values() == START
    assert not (kernel.root / PATH[1:]).exists()
    plan = go(kernel.root, {"vm.dirty_ratio": 8, "vm.swappiness": 1}, on_override="warn")
    assert plan.status == {"vm/dirty_ratio": "overridden", "vm/swappiness": "applied"}
    assert plan.overridden == {"vm/dirty_ratio": by}
    assert kernel.values()["vm/dirty_ratio"] == "8"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/etc/sysctl.d/10-early.conf", "vm.dirty_bytes = 8192\nvm.swappiness = 9\n"),
        ("/etc/sysctl.d/zzz-late.conf", "vm.dirty_ratio = 0x8\n"),
        ("/etc/sysctl.d/zzz-late.conf", "vm.*_ratio = 9\n"),
    ],
)
def test_files_that_do_not_win(kernel: Kernel, path: str, text: str) -> None:
    put(kernel.root, path, text)
    assert go(kernel.root, {"vm.dirty_ratio": 8}).status == {"vm/dirty_ratio": "applied"}


def test_masked_place(kernel: Kernel) -> None:
    put(kernel.root, "/etc/sysctl.d/50-x.conf", "")
    with pytest.raises(_sysctl_dropin.DropinError) as caught:
        _sysctl_dropin.make_plan(str(kernel.root), "/usr/lib/sysctl.d/50-x.conf", {"vm/swappiness": "1"})
    assert caught.value.reason == "overridden_by"
    assert caught.value.details["file"] == "/etc/sysctl.d/50-x.conf"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"vm.dirty_ratio": 8, "vm.dirty_bytes": 8192}, "counterpart_conflict"),
        ({"vm.dirty_background_bytes": 0, "vm.dirty_background_ratio": 3}, "counterpart_conflict"),
        ({"vm.nr_hugepages": 8}, "nr_hugepages_in_sysctl"),
        ({"vm.nr_hugepages_mempolicy": 8}, "nr_hugepages_in_sysctl"),
    ],
)
def test_combinations_that_cannot_be(kernel: Kernel, values: dict[str, Any], reason: str) -> None:
    assert error(kernel.root, values).reason == reason


@pytest.mark.parametrize("kind", ["foreign", "empty", "link", "dangling", "directory"])
def test_what_is_not_ours_stays(kernel: Kernel, kind: str) -> None:
    target = kernel.root / PATH[1:]
    target.parent.mkdir(parents=True)
    other = put(kernel.root, "/etc/other", f"{_sysctl_dropin.MARKER}\n")
    if kind == "link":
        target.symlink_to("../other")
    elif kind == "dangling":
        target.symlink_to("/nowhere")
    elif kind == "directory":
        target.mkdir()
    else:
        target.write_text(
            "" if kind == "empty" else f"# theirs\n{_sysctl_dropin.MARKER}\nvm.swappiness = 1\n"
        )
    for values in ({"vm.swappiness": 1}, {}):
        problem = error(kernel.root, values)
        assert problem.reason == ("symlink" if "link" in kind or kind == "dangling" else "foreign_file")
    assert other.read_text() == f"{_sysctl_dropin.MARKER}\n"
    assert kernel.values() == START


@pytest.mark.parametrize(
    "path", ["/etc/x.conf", "/etc/sysctl.d/x", "/etc/sysctl.d/.x.conf", "/etc/sysctl.d/a/x.conf"]
)
def test_path_that_systemd_does_not_read(kernel: Kernel, path: str) -> None:
    with pytest.raises(_sysctl_dropin.DropinError) as caught:
        _sysctl_dropin.make_plan(str(kernel.root), path, {"vm/swappiness": "1"})
    assert caught.value.reason == "bad_path"


def test_dropped_keys_get_their_old_values(kernel: Kernel) -> None:
    first = go(kernel.root, {"vm.swappiness": 1, "vm.dirty_bytes": 8192, "kernel.sched_rt_runtime_us": 1000})
    found = {_sysctl.dotted(key): value for key, value in first.live.items()}
    plan = go(kernel.root, {"vm.swappiness": 2}, found)
    assert kernel.values() == {**START, "vm/swappiness": "2"}
    assert {row["resource"] for row in plan.changes} == {
        f"file:{PATH}",
        "sysctl:vm.swappiness",
        "sysctl:vm.dirty_bytes",
        "sysctl:vm.dirty_ratio",
        "sysctl:kernel.sched_rt_runtime_us",
    }
    go(kernel.root, {}, found)
    assert kernel.values() == START
    assert not (kernel.root / PATH[1:]).exists()
    assert go(kernel.root, {}, found).changes == []


def test_pair_that_was_in_bytes_comes_back_in_bytes(kernel: Kernel) -> None:
    put(kernel.root, "/proc/sys/vm/dirty_ratio", "0\n")
    put(kernel.root, "/proc/sys/vm/dirty_bytes", "8192\n")
    first = go(kernel.root, {"vm.dirty_ratio": 8})
    assert kernel.values()["vm/dirty_bytes"] == "0"
    found = {_sysctl.dotted(key): value for key, value in first.live.items()}
    go(kernel.root, {}, found)
    assert (kernel.values()["vm/dirty_ratio"], kernel.values()["vm/dirty_bytes"]) == ("0", "8192")


@pytest.mark.parametrize(
    ("restore", "left"),
    [({"vm.dirty_ratio": "0"}, ["vm/dirty_ratio"]), ({}, ["vm/dirty_ratio"]), ({"vm.dirty_ratio": "20"}, [])],
)
def test_half_a_pair_is_never_set_to_zero(kernel: Kernel, restore: dict[str, str], left: list[str]) -> None:
    go(kernel.root, {"vm.dirty_ratio": 8})
    plan = go(kernel.root, {}, restore)
    assert plan.not_restored == left
    assert kernel.values()["vm/dirty_ratio"] == ("8" if left else "20")


def test_changing_sides_of_a_pair(kernel: Kernel) -> None:
    go(kernel.root, {"vm.dirty_ratio": 8})
    plan = go(kernel.root, {"vm.dirty_bytes": 8192}, {"vm.dirty_ratio": "20", "vm.dirty_bytes": "0"})
    assert kernel.values()["vm/dirty_bytes"] == "8192"
    assert plan.not_restored == []
    assert kernel.written[-1] == ("vm/dirty_bytes", "8192")
    assert len(kernel.written) == 2


def test_offline_tree_gets_only_the_file(tmp_path: Path) -> None:
    plan = go(tmp_path, {"vm.swappiness": 1, "vm.whatever": 2})
    assert plan.status == {"vm/swappiness": "persisted", "vm/whatever": "persisted"}
    assert [row["resource"] for row in plan.changes] == [f"file:{PATH}"]
    assert go(tmp_path, {"vm.swappiness": 1, "vm.whatever": 2}).changes == []


def test_mounted_proc_of_the_running_host_is_left_alone(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os.path, "ismount", lambda path: str(path).endswith("/proc"))
    assert go(kernel.root, {"vm.swappiness": 1}).status == {"vm/swappiness": "persisted"}
    assert kernel.values() == START


def test_drift_of_the_kernel_is_put_right(kernel: Kernel) -> None:
    go(kernel.root, {"vm.swappiness": 1})
    put(kernel.root, "/proc/sys/vm/swappiness", "10\n")
    plan = go(kernel.root, {"vm.swappiness": 1})
    assert plan.changes == [{"resource": "sysctl:vm.swappiness", "before": "10", "after": "1"}]
    assert plan.status == {"vm/swappiness": "applied"}
