# SPDX-License-Identifier: GPL-3.0-or-later
"""What the provisioning modules answer where a file is none: a FIFO, a directory, a loop, gigabytes, odd bytes.

No module may wait or fail with a traceback, check mode and run must answer the same, and a refusal must name the
path, the system's words and a remedy, and change nothing.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _hugepages_release
from plan_host import make_host
from support import put, run_module

UNIT = "[Unit]\nDescription=x\n[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"
UNITS = "/etc/systemd/system"
MARKER = "# Managed by firsttouch.host: changes are overwritten.\n"
PAGES = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB"
PLAN: dict[str, Any] = {"schema": 1, "boot": {"tokens": []}, "owned": {}, "sysctls": {"vm.swappiness": 0}}
PLAN.update({name: {} for name in ("intent", "topology", "sections")})

# module, parameters, the files that it reads below the sysroot
MODULES: list[tuple[str, dict[str, Any], list[str]]] = [
    (
        "systemd_units",
        {"units": [{"name": "firsttouch-a.service", "content": UNIT, "enabled": True}]},
        [f"{UNITS}/firsttouch-a.service", f"{UNITS}/multi-user.target.wants/firsttouch-a.service"],
    ),
    ("systemd_units", {"absent": ["firsttouch-a.service"]}, ["/etc/systemd/system/firsttouch-a.service"]),
    (
        "hugepages_release",
        {"before": {"2048kB": {"0": 0}}},
        ["/etc/systemd/system/firsttouch-hugepages.service", f"{PAGES}/nr_hugepages", f"{PAGES}/free_hugepages"],
    ),
    ("thp", {"values": {"enabled": "never"}}, ["/etc/tmpfiles.d/00-firsttouch-thp.conf"]),
    ("thp", {"values": {}}, ["/etc/tmpfiles.d/00-firsttouch-thp.conf"]),
    (
        "irqbalance",
        {"mode": "ban_isolated", "isolated": "1"},
        ["/usr/lib/systemd/system/irqbalance.service", "/etc/systemd/system/irqbalance.service.d/zz-firsttouch.conf"],
    ),
    (
        "conflicting_services",
        {"stop": ["tuned.service"]},
        ["/usr/lib/systemd/system/tuned.service", "/etc/systemd/system/tuned.service.d/zz-firsttouch.conf"],
    ),
    (
        "numa_topology_info",
        {},
        ["/sys/devices/system/node/online", "/proc/cpuinfo", "/sys/devices/system/node/node0/meminfo"],
    ),
    (
        "plan_record",
        {"plan": PLAN, "sections": ["vm_sysctls"]},
        ["/etc/firsttouch/plan.json", "/var/lib/firsttouch/before.json", "/etc/sysctl.d/zz-firsttouch.conf",
         "/proc/sys/vm/swappiness", "/etc/group"],
    ),
    ("plan_record", {"state": "absent"}, ["/etc/firsttouch/plan.json", "/var/lib/firsttouch/before.json"]),
    (
        "sysctl_dropin",
        {"values": {"vm.swappiness": 0}},
        ["/etc/sysctl.d/zz-firsttouch.conf", "/etc/sysctl.conf", "/proc/sys/vm/swappiness"],
    ),
    ("sysctl_info", {}, ["/etc/sysctl.conf", "/usr/lib/sysctl.d/50-x.conf"]),
    (
        "kernel_cmdline",
        {"tokens": ["nosmt"], "keys": ["nosmt"]},
        ["/etc/default/grub", "/etc/default/grub.d/a.cfg", "/boot/grub/grub.cfg", "/etc/firsttouch/plan.json",
         "/var/lib/firsttouch/replaced.json", "/proc/cmdline", "/boot/grub/grubenv", "/etc/os-release"],
    ),
    ("kernel_cmdline", {"tokens": ["nosmt"], "keys": ["nosmt"], "on_conflict": "replace"},
     ["/boot/loader/entries/a.conf", "/etc/kernel/cmdline", "/etc/machine-id", "/boot/grub2/grubenv"]),
]  # fmt: skip


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link_to_fifo(path: Path) -> None:
    os.mkfifo(path.parent / "pipe")
    path.symlink_to("pipe")


def directory(path: Path) -> None:
    path.mkdir()


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def odd_bytes(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\0\0[\x80\n=\x01\r\n\0")


def nothing(path: Path) -> None:
    path.write_bytes(b"")


def deep_json(path: Path) -> None:
    path.write_text("[" * 100_000)


KINDS: list[Callable[[Path], None]] = [
    fifo,
    link_to_fifo,
    directory,
    loop,
    huge,
    odd_bytes,
    nothing,
    deep_json,
]
CASES = [(name, args, path) for name, args, paths in MODULES for path in paths]


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """A module that waits is interrupted."""

    def late(number: int, frame: object) -> None:
        raise TimeoutError("the module waits")

    old = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, old)


def host(root: Path) -> Path:
    make_host(root)
    put(root, f"{UNITS}/firsttouch-hugepages.service", f"{MARKER}pages 0 2048 30; \\\n")
    put(root, "/usr/lib/systemd/system/tuned.service", "[Unit]\n")
    put(root, "/usr/lib/systemd/system/irqbalance.service", "[Unit]\n")
    return root


def state(root: Path) -> dict[str, str]:
    """Every file, link, FIFO and directory below ROOT."""
    found = {}
    for path in sorted(root.rglob("*")):
        what = "other"
        if path.is_symlink():
            what = os.readlink(path)
        elif path.is_file():
            size = path.stat().st_size
            what = str(size) if size > 1 << 20 else hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(root))] = what
    return found


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    ("name", "args", "path"), CASES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_no_module_waits_or_breaks(
    name: str, args: dict[str, Any], path: str, kind: Callable[[Path], None], tmp_path: Path
) -> None:
    root = host(tmp_path / "root")
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_dir():
        pytest.skip("a directory there")
    target.unlink(missing_ok=True)
    kind(target)
    before = state(root)
    given = {**args, "sysroot": str(root)}
    predicted = run_module(name, given, check=True)
    assert state(root) == before
    done = run_module(name, given)
    told = [
        {key: row.get(key) for key in ("failed", "msg", "reason", "changes")} for row in (predicted, done)
    ]
    assert told[0] == told[1] and "exception" not in done
    if done.get("failed"):
        assert done.get("reason"), done
        assert state(root) == before
    else:
        json.dumps(done)
        again = run_module(name, given)
        assert not again.get("changed") and not again.get("failed"), again


REFUSED = [
    (name, args, paths[0])
    for name, args, paths in MODULES
    if name in ("thp", "conflicting_services", "irqbalance")
]


@pytest.mark.parametrize(
    ("name", "args", "path"), REFUSED, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_refusal_names_path_words_and_remedy(
    name: str, args: dict[str, Any], path: str, tmp_path: Path
) -> None:
    root = host(tmp_path)
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    target.mkdir()
    told = run_module(name, {**args, "sysroot": str(root)})
    assert told["failed"] and told["file"].endswith(path), told
    assert "Is a directory" in told["msg"] and "move the directory away" in told["msg"]


@pytest.mark.parametrize(
    ("code", "reason", "remedy"),
    [
        (errno.EROFS, "read_only", "writable"),
        (errno.EACCES, "permission_denied", "become"),
        (errno.EPERM, "permission_denied", "become"),
        (errno.ENOSPC, "no_space", "room"),
        (errno.EIO, "write_error", "kernel's log"),
        (errno.ENODEV, "write_error", "run this again"),
    ],
)
@pytest.mark.parametrize(
    ("name", "args"),
    [(name, args) for name, args, _paths in MODULES if "absent" not in args and name in (
        "systemd_units", "thp", "irqbalance", "conflicting_services")],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_write_that_fails_is_told_with_the_file_itself(
    name: str,
    args: dict[str, Any],
    code: int,
    reason: str,
    remedy: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not with the copy beside it, nor with None as a flush would have it."""
    root = host(tmp_path)
    if not run_module(name, {**args, "sysroot": str(root)}, check=True)["changed"]:
        return
    before = state(root)

    def failing(fd: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", failing)
    told = run_module(name, {**args, "sysroot": str(root)})
    assert told["failed"] and told["reason"] == reason and remedy in told["msg"], told
    assert (
        told["file"].startswith(str(root)) and ".tmp" not in told["msg"] and os.strerror(code) in told["msg"]
    )
    left = {path: what for path, what in state(root).items() if what != "other"}
    assert left == {path: what for path, what in before.items() if what != "other"}


@pytest.mark.parametrize("code", [errno.EROFS, errno.EIO])
def test_pages_that_cannot_be_given_back(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = host(tmp_path)
    put(root, f"{PAGES}/nr_hugepages", "30\n")
    put(root, f"{PAGES}/free_hugepages", "30\n")
    for count in ("resv_hugepages", "surplus_hugepages"):
        put(root, f"{PAGES}/{count}", "0\n")
        put(root, f"/sys/kernel/mm/hugepages/hugepages-2048kB/{count}", "0\n")
    for count in ("nr_hugepages", "free_hugepages"):
        put(root, f"/sys/kernel/mm/hugepages/hugepages-2048kB/{count}", "30\n")
    given = {"before": {"2048kB": {"0": 0}}, "sysroot": str(root)}
    assert run_module("hugepages_release", given, check=True)["changes"]
    if code == errno.EROFS:  # told in check mode already
        monkeypatch.setattr(os, "access", lambda *args, **names: False)
        monkeypatch.setattr(os, "statvfs", lambda path: type("V", (), {"f_flag": os.ST_RDONLY})())
    else:

        class Handle:
            def __enter__(self) -> Any:
                return self

            def __exit__(self, *args: object) -> None:
                raise OSError(code, os.strerror(code))

            def write(self, text: str) -> None:
                pass

        monkeypatch.setattr(_hugepages_release, "open", lambda *args, **names: Handle(), raising=False)
    for check in (True, False) if code == errno.EROFS else (False,):
        told = run_module("hugepages_release", given, check=check)
        assert told["failed"] and told["file"].endswith(f"{PAGES}/nr_hugepages"), told
        assert os.strerror(code) in told["msg"] and "None" not in told["msg"]
        assert told["reason"] == ("read_only" if code == errno.EROFS else "write_error")


WRITERS = [row for row in MODULES if row[0] not in ("numa_topology_info", "sysctl_info", "kernel_cmdline")]


@pytest.mark.parametrize(("name", "args"), [row[:2] for row in WRITERS], ids=lambda v: v if isinstance(v, str) else "")
def test_a_misspelt_sysroot_is_no_host(name: str, args: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in ("none/below", "file"):
        for check in (True, False):
            told = run_module(name, {**args, "sysroot": str(tmp_path / path)}, check=check)
            assert told["failed"] and str(tmp_path / path) in told["msg"], told
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


SECTION = {"state": "present", "variables": [], "orphaned": []}


def recorded(name: str, **parts: Any) -> dict[str, Any]:
    return {"plan": {**PLAN, "sections": {name: {**SECTION, **parts}}}}


ODD: list[tuple[str, dict[str, Any], str]] = [
    ("hugepages_release", {"before": {"2048kB": 3}}, "2048kB is 3"),
    ("hugepages_release", {"before": {"2048kB": {"0": "x"}}}, "2048kB is"),
    ("hugepages_release", {"before": {"2048kB": {"0": -5}}}, "2048kB is"),
    ("hugepages_release", {"pools": [{}]}, "no pool of host_plan"),
    ("hugepages_release", {"pools": [{"size_kb": "a", "nodes": {"x": 1}}]}, "no pool of host_plan"),
    ("systemd_units", {"units": [{"name": "firsttouch-a.service", "content": "\0"}]}, "NUL"),
    ("plan_record", recorded("hugepages", pools=[1]), "pools of section hugepages"),
    ("plan_record", recorded("hugepages", pools=[{}]), "pools of section hugepages"),
    ("plan_record", recorded("hugepages", mounts=[3]), "mounts of section hugepages"),
    ("plan_record", recorded("hugepages", units={"a": 1}), "units of section hugepages"),
    ("plan_record", recorded("services", stop=[{}]), "stop of section services"),
    ("plan_record", recorded("thp", settings={"enabled": []}), "settings of section thp"),
]
ODD += [
    (
        "systemd_units",
        {"units": [{"name": "firsttouch-a.service", "content": f"[Install]\n{key}={value}\n", "enabled": True}]},
        f"{value!r}, which is not the name",
    )
    for key in ("WantedBy", "RequiredBy", "Alias")
    for value in ("../../../etc/cron.d/x", "/x", "..")
]


@pytest.mark.parametrize(("name", "args", "text"), ODD, ids=lambda value: value if isinstance(value, str) else "")
def test_parameters_of_another_shape_are_refused(name: str, args: dict[str, Any], text: str, tmp_path: Path) -> None:
    root = host(tmp_path)
    before = state(root)
    for check in (True, False):
        told = run_module(name, {**args, "sysroot": str(root)}, check=check)
        assert told["failed"] and text in told["msg"] and told["reason"], told
    assert state(root) == before
