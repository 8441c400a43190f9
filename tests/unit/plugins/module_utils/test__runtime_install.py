# SPDX-License-Identifier: GPL-3.0-or-later
"""Versions of the runtime below a sysroot: made, switched, rolled back, removed; what would change is what changes."""

from __future__ import annotations

import base64
import grp
import hashlib
import os
import pwd
import subprocess
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _runtime_install as ri
from support import put

V1, V2, V3 = (f"0.{n}.0-{n:012x}" for n in (1, 2, 3))
USERS = {"root": "root", "firsttouch": ri.COMMENT}
FILES = {"servers/a.json": "{}\n", "samplers/a.env": "X=1\n", "models/m.json": "{}\n"}


def wheel_of(folder: Path, version: str) -> tuple[str, str]:
    """A small wheel in FOLDER: (name, digest)."""
    info = f"toy-{version}.dist-info"
    files = {
        "toy/__init__.py": f"VERSION = {version!r}\n\n\ndef main():\n    print('toy', VERSION)\n",
        f"{info}/entry_points.txt": "[console_scripts]\ntoy = toy:main\n",
    }
    rows = []
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(text)}\n")
    files[f"{info}/RECORD"] = "".join([*rows, f"{info}/RECORD,,\n"])
    path = folder / f"toy-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return path.name, hashlib.sha256(path.read_bytes()).hexdigest()


def wanted(folder: Path, identity: str, state: str = "present", **more: Any) -> ri.Wanted:
    wheel = wheel_of(folder, identity.partition("-")[0])
    return ri.Wanted(state, identity, (wheel,), str(folder), more.pop("files", FILES), **more)


class Commands:
    """Runs nothing; a trial ends with STATUS."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.calls: list[list[str]] = []

    def __call__(self, words: Sequence[str]) -> tuple[int, str, str]:
        self.calls.append([os.path.basename(words[0]), *words[1:]])
        return (self.status if words[0].endswith("python") else 0), "", "no module named numpy"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "host" / "run" / "firsttouch").mkdir(parents=True)
    return tmp_path / "host"


def bring(
    root: Path, what: ri.Wanted, run: Commands | None = None, users: Any = None
) -> list[dict[str, Any]]:
    plan = ri.make_plan(str(root), what, USERS if users is None else users)
    ri.apply_plan(plan, what, run or Commands())
    again = ri.make_plan(str(root), what, USERS if what.state != "absent" else {"root": "root"})
    assert again.changes == []
    return plan.changes


def links(root: Path) -> tuple[str | None, str | None]:
    return ri.link(str(root), "current"), ri.link(str(root), "previous")


def tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def test_a_version_is_made_tried_and_switched_to(root: Path, tmp_path: Path) -> None:
    run = Commands()
    changes = bring(root, wanted(tmp_path, V1), run)
    assert [row["resource"] for row in changes] == [
        "file:/etc/firsttouch/models/m.json",
        "file:/etc/firsttouch/samplers/a.env",
        "file:/etc/firsttouch/servers/a.json",
        "file:/etc/tmpfiles.d/firsttouch.conf",
        "file:/opt/firsttouch/current",
        f"runtime:/opt/firsttouch/{V1}",
    ]
    assert links(root) == (V1, None)
    assert [call[0] for call in run.calls] == ["python"]
    version = root / "opt/firsttouch" / V1
    done = subprocess.run(
        [str(version / "bin/python"), str(version / "bin/toy")], capture_output=True, text=True, check=True
    )
    assert done.stdout == "toy 0.1.0\n"
    assert (version / "bin/toy").read_text().startswith(f"#!/opt/firsttouch/{V1}/bin/python\n")
    probe = "import sys; print(sys.prefix, [p for p in sys.path if 'dist-packages' in p])"
    done = subprocess.run(
        [str(version / "bin/python"), "-c", probe], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{version} []\n", "the host's own packages are seen"


def test_another_user_can_run_a_version_whatever_the_umask_was(root: Path, tmp_path: Path) -> None:
    what = wanted(tmp_path, V1)
    plan = ri.make_plan(str(root), what, USERS)
    umask = os.umask(0o077)
    try:
        ri.apply_plan(plan, what, Commands())
        assert os.umask(0o077) == 0o077, "the umask is as it was"
    finally:
        os.umask(umask)
    for top in (root / "opt", root / "etc"):
        for path in (top, *top.rglob("*")):
            mode = path.stat().st_mode & 0o777
            assert mode & 0o055 == (0o055 if path.is_dir() else mode & 0o011 | 0o044), path


def test_the_trial_runs_nothing_of_the_directory_that_it_is_called_from(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "toy.py").write_text("open('ran', 'w')\n")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "here"))
    monkeypatch.setattr(ri, "_TRIAL", "import toy")

    def run(words: Sequence[str]) -> tuple[int, str, str]:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    what = wanted(tmp_path, V1)
    ri.apply_plan(ri.make_plan(str(root), what, USERS), what, run)
    assert ri.versions(str(root)) == [V1]
    assert not (tmp_path / "here" / "ran").exists()


def test_a_plan_alone_writes_nothing(root: Path, tmp_path: Path) -> None:
    before = tree(root)
    assert ri.make_plan(str(root), wanted(tmp_path, V1), {}).changes
    assert tree(root) == before


def test_a_version_that_does_not_start_changes_nothing(root: Path, tmp_path: Path) -> None:
    bring(root, wanted(tmp_path, V1))
    before = tree(root)
    what = wanted(tmp_path, V2, files={})
    with pytest.raises(ri.InstallError, match="no module named numpy") as told:
        ri.apply_plan(ri.make_plan(str(root), what, USERS), what, Commands(status=1))
    assert told.value.reason == "does_not_start"
    assert tree(root) == before and links(root) == (V1, None)


def test_upgrade_rollback_and_upgrade_again(root: Path, tmp_path: Path) -> None:
    bring(root, wanted(tmp_path, V1))
    bring(root, wanted(tmp_path, V2))
    assert links(root) == (V2, V1)
    bring(root, wanted(tmp_path, V2, "rollback"))
    assert links(root) == (V1, V2)
    changes = bring(root, wanted(tmp_path, V2))
    assert links(root) == (V2, V1)
    assert not [row for row in changes if row["resource"].startswith("runtime:")], "it was there already"
    bring(root, wanted(tmp_path, V3))
    assert links(root) == (V3, V2) and ri.versions(str(root)) == [V2, V3], "the one before the last goes"


def test_rollback_asks_nothing_of_the_controller_and_stays_until_present(root: Path, tmp_path: Path) -> None:
    bring(root, wanted(tmp_path, V1))
    bring(root, wanted(tmp_path, V2))
    back = ri.Wanted("rollback", files=FILES)
    assert {"resource": "file:/opt/firsttouch/current", "before": f"-> {V2}", "after": f"-> {V1}"} in bring(
        root, back
    )
    assert links(root) == (V1, V2)
    assert bring(root, back) == [] and links(root) == (V1, V2), "a second rollback does not go forward"
    bring(root, wanted(tmp_path, V3))
    assert links(root) == (V3, V1)
    bring(root, back)
    assert links(root) == (V1, V3), "present ends a rollback, so that the next one is one"
    bring(root, ri.Wanted("absent"))
    assert not (root / "opt/firsttouch").exists()


@pytest.mark.parametrize("most", range(6))
def test_a_rollback_that_was_interrupted_ends_at_the_version_before(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    bring(root, wanted(tmp_path, V1))
    bring(root, wanted(tmp_path, V2))
    back = ri.Wanted("rollback", files=FILES)
    steps = interrupt(monkeypatch, most)
    try:
        ri.apply_plan(ri.make_plan(str(root), back, USERS), back, Commands())
    except KeyboardInterrupt:
        assert most < 3
    else:
        assert len(steps) == 3, "the mark and two links"
    monkeypatch.undo()
    bring(root, back)
    assert links(root) == (V1, V2) and ri.versions(str(root)) == [V1, V2]


def interrupt(monkeypatch: pytest.MonkeyPatch, most: int) -> list[str]:
    """End what is done after MOST files and links; those that were written."""
    done: list[str] = []

    def counted(name: str) -> None:
        real = getattr(ri, name)

        def call(*args: Any) -> Any:
            if len(done) >= most:
                raise KeyboardInterrupt
            done.append(name)
            return real(*args)

        monkeypatch.setattr(ri, name, call)

    for name in ("atomic_write", "remove", "_set_link"):
        counted(name)
    return done


def test_a_rollback_to_what_is_not_complete_is_refused(root: Path, tmp_path: Path) -> None:
    bring(root, wanted(tmp_path, V1))
    bring(root, wanted(tmp_path, V2))
    back = ri.Wanted("rollback", files=FILES)
    (root / "opt/firsttouch" / V1 / ri.MANIFEST).unlink()
    with pytest.raises(ri.InstallError, match=f"{V1}.*not complete.*present") as told:
        ri.make_plan(str(root), back, USERS)
    assert told.value.reason == "no_previous"


def test_rollback_without_a_version_before_is_refused(root: Path, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ri.InstallError, match="firsttouch_runtime_state: rollback") as told:
            ri.make_plan(str(root), wanted(tmp_path, V1, "rollback"), USERS)
        assert told.value.reason == "no_previous"
        bring(root, wanted(tmp_path, V1))


def test_servers_restart_on_another_version_and_each_on_its_file(root: Path, tmp_path: Path) -> None:
    bring(root, wanted(tmp_path, V1))
    server, model = "firsttouch-server@a.service", "firsttouch-weights@m.service"
    assert ri.make_plan(str(root), wanted(tmp_path, V1), USERS).restart(FILES) == []
    assert ri.make_plan(str(root), wanted(tmp_path, V2), USERS).restart(FILES) == [server]
    files = {**FILES, "models/m.json": "{ }\n"}
    assert ri.make_plan(str(root), wanted(tmp_path, V1, files=files), USERS).restart(files) == [model]


def started(root: Path, unit: str, seconds_ago: float) -> None:
    """As systemd leaves it: a link without a target that is made when UNIT starts."""
    folder = root / "run/systemd/units"
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / f"invocation:{unit}"
    link.unlink(missing_ok=True)
    link.symlink_to("0123")
    when = time.time() - seconds_ago
    os.utime(link, (when, when), follow_symlinks=False)


def aged(path: Path, seconds_ago: float) -> None:
    when = time.time() - seconds_ago
    os.utime(path, (when, when), follow_symlinks=False)


def test_a_restart_that_a_run_did_not_get_to_is_due_in_the_next(root: Path, tmp_path: Path) -> None:
    server, model = "firsttouch-server@a.service", "firsttouch-weights@m.service"
    what = wanted(tmp_path, V1)
    bring(root, what)

    def due() -> list[str]:
        return ri.make_plan(str(root), what, USERS).restart(FILES)

    current, etc = root / "opt/firsttouch/current", root / "etc/firsttouch"
    for path in (current, etc / "servers/a.json", etc / "models/m.json"):
        aged(path, 100)
    started(root, server, 50)
    started(root, model, 50)
    assert due() == []
    aged(current, 20)
    assert due() == [server], "a model stays when the version changes"
    started(root, server, 10)
    assert due() == []
    aged(etc / "models/m.json", 20)
    assert due() == [model]
    aged(etc / "servers/a.json", 5)
    assert due() == [model, server]
    for path in (etc / "servers/a.json", etc / "models/m.json", current):
        aged(path, -1000)
    assert due() == [], "a clock that was set back would restart them in each run"


def test_files_that_are_not_asked_for_go(root: Path, tmp_path: Path) -> None:
    bring(root, wanted(tmp_path, V1))
    put(root, "/etc/firsttouch/plan.json", "{}")
    bring(root, wanted(tmp_path, V1, files={}))
    assert not list((root / "etc/firsttouch").glob("*/*"))
    assert (root / "etc/firsttouch/plan.json").exists()
    for name in ("../passwd", "servers/../x.json", "servers/.x.json", "plan.json"):
        with pytest.raises(ri.InstallError, match="is no file of"):
            ri.make_plan(str(root), wanted(tmp_path, V1, files={name: ""}), USERS)


def test_absent_leaves_nothing(root: Path, tmp_path: Path) -> None:
    (root / "run/firsttouch").rmdir()
    before = tree(root)
    (root / "run/firsttouch").mkdir()
    bring(root, wanted(tmp_path, V1))
    bring(root, wanted(tmp_path, V2))
    run = Commands()
    changes = bring(root, ri.Wanted("absent"), run)
    assert {"resource": "user:firsttouch", "before": "present", "after": None} in changes
    assert run.calls == [["usermod", "--gid", "65534", "firsttouch"], ["userdel", "firsttouch"]]
    rest = tree(root) - before
    assert rest == {"opt", "etc", "etc/firsttouch", "etc/tmpfiles.d"}, "folders that are not ours alone"


def halve(version: Path) -> None:
    """Leave of VERSION what a removal that was killed leaves."""
    (version / ri.MANIFEST).unlink()
    (version / "bin" / "python").unlink()


def test_a_version_that_was_half_removed_comes_back_whole(root: Path, tmp_path: Path) -> None:
    bring(root, wanted(tmp_path, V1))
    halve(root / "opt/firsttouch" / V1)
    bring(root, wanted(tmp_path, V1))
    assert ri.damage(str(root), V1) == [] and (root / "opt/firsttouch" / V1 / "bin/python").is_symlink()


def test_what_a_killed_run_left_goes_and_is_told(root: Path, tmp_path: Path) -> None:
    top = root / "opt/firsttouch"

    def litter() -> list[dict[str, Any]]:
        names = [f".{V3}.new", f".{V2}.gone", V2, ".current.new"]
        for name in names[:3]:
            put(root, f"/opt/firsttouch/{name}/bin/x", "")
        (top / names[3]).symlink_to(V3)
        return [
            {"resource": f"runtime:/opt/firsttouch/{name}", "before": "left over", "after": None}
            for name in sorted(names)
        ]

    bring(root, wanted(tmp_path, V1))
    put(root, "/opt/firsttouch/notes/a", "not ours")
    rows = litter()
    assert bring(root, wanted(tmp_path, V1)) == rows
    assert sorted(os.listdir(top)) == [V1, "current", "notes"]
    rows = litter()
    changes = bring(root, ri.Wanted("absent"))
    assert [row for row in changes if row in rows] == rows
    assert os.listdir(top) == ["notes"]


def test_a_version_before_that_is_not_complete_is_none(root: Path, tmp_path: Path) -> None:
    bring(root, wanted(tmp_path, V1))
    halve(root / "opt/firsttouch" / V1)
    bring(root, wanted(tmp_path, V2))
    assert links(root) == (V2, None) and not (root / "opt/firsttouch" / V1).exists()


@pytest.mark.parametrize(
    ("members", "primary", "goes"),
    [
        ((), {"firsttouch": 990}, True),
        (("firsttouch",), {}, True),
        (("ada",), {}, False),
        ((), {"ada": 990}, False),
    ],
)
def test_the_group_goes_where_nobody_else_is_in_it(
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    members: tuple[str, ...],
    primary: dict[str, int],
    goes: bool,
) -> None:
    group = grp.struct_group(("firsttouch", "x", 990, list(members)))
    people = [pwd.struct_passwd((name, "x", 1, gid, "", "/", "/bin/sh")) for name, gid in primary.items()]
    monkeypatch.setattr(grp, "getgrnam", lambda name: group)
    monkeypatch.setattr(pwd, "getpwall", lambda: people)
    bring(root, wanted(tmp_path, V1))
    run = Commands()
    changes = bring(root, ri.Wanted("absent", drop_group=True), run)
    assert ("group:firsttouch" in [row["resource"] for row in changes]) is goes
    assert ("groupdel" in [call[0] for call in run.calls]) is goes
    assert ("usermod" in [call[0] for call in run.calls]) is not goes


def test_a_user_that_was_there_before_stays(root: Path, tmp_path: Path) -> None:
    run = Commands()
    theirs = {"firsttouch": "Somebody else"}
    what = wanted(tmp_path, V1)
    ri.apply_plan(ri.make_plan(str(root), what, theirs), what, run)
    gone = ri.Wanted("absent", drop_group=True)
    ri.apply_plan(ri.make_plan(str(root), gone, theirs), gone, run)
    assert [call[0] for call in run.calls] == ["python"]


def test_the_user_is_made_once(root: Path, tmp_path: Path) -> None:
    run = Commands()
    changes = bring(root, wanted(tmp_path, V1), run, users={"root": "root"})
    assert {"resource": "user:firsttouch", "before": None, "after": "present"} in changes
    (call,) = [call for call in run.calls if call[0] == "useradd"]
    assert "--system" in call and call[call.index("--gid") + 1] == "firsttouch"


def test_what_is_not_ours_is_not_replaced(root: Path, tmp_path: Path) -> None:
    (root / "opt/firsttouch/current").mkdir(parents=True)
    with pytest.raises(ri.InstallError, match="move it away") as told:
        ri.make_plan(str(root), wanted(tmp_path, V1), USERS)
    assert told.value.reason == "foreign_file"


def test_a_wheel_that_arrived_broken_is_refused(root: Path, tmp_path: Path) -> None:
    what = wanted(tmp_path, V1)
    (tmp_path / what.wheels[0][0]).write_bytes(b"not this")
    with pytest.raises(ri.InstallError, match=r"not [0-9a-f]{64}") as told:
        ri.apply_plan(ri.make_plan(str(root), what, USERS), what, Commands())
    assert told.value.reason == "wheel_broken"
    assert ri.versions(str(root)) == []


@pytest.mark.parametrize("how", ["cut", "no zip", "bad script", "no text"])
def test_a_wheel_that_is_broken_at_its_source_is_named(root: Path, tmp_path: Path, how: str) -> None:
    name, _digest = wheel_of(tmp_path, "0.1.0")
    path = tmp_path / name
    data = path.read_bytes()
    if how == "cut":
        data = data[: len(data) // 2]
    elif how == "no zip":
        data = b""
    else:
        text = b"[console_scripts" if how == "bad script" else b"\xff\xfe"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("toy-0.1.0.dist-info/entry_points.txt", text)
        data = path.read_bytes()
    path.write_bytes(data)
    what = ri.Wanted("present", V1, ((name, hashlib.sha256(data).hexdigest()),), str(tmp_path), FILES)
    with pytest.raises(ri.InstallError) as told:
        ri.apply_plan(ri.make_plan(str(root), what, USERS), what, Commands())
    assert told.value.reason == "wheel_broken"
    assert name in str(told.value) and "firsttouch_wheels_dir" in str(told.value)
    assert os.listdir(root / "opt/firsttouch") == []


@pytest.mark.parametrize("name", ["../x.py", "/x.py", "toy/../../x.py", "toy\\x.py"])
def test_no_path_leads_out_of_a_version(name: str) -> None:
    with pytest.raises(ri.InstallError, match="leads out of it"):
        ri._place(name, "/v", "/v/site", "toy.whl")


def test_damage_is_found(root: Path, tmp_path: Path) -> None:
    bring(root, wanted(tmp_path, V1))
    assert ri.damage(str(root), V1) == []
    (module,) = root.rglob("toy/__init__.py")
    text = module.read_text()
    module.write_text(text + "# more\n")
    assert ri.damage(str(root), V1) == [f"/{module.relative_to(root)} was changed"]
    module.unlink()
    assert ri.damage(str(root), V1) == [f"/{module.relative_to(root)} is missing"]
    module.write_text(text)
    (record,) = root.rglob("RECORD")
    record.write_text("")
    assert ri.damage(str(root), V1) == [f"/{record.relative_to(root)} was changed"]
    assert ri.damage(str(root), V2) == [f"/opt/firsttouch/{V2}/{ri.MANIFEST} is missing"]


def spoiled(path: Path) -> None:
    path.write_text(path.read_text() + "# more\n")


def led_away(path: Path) -> None:
    path.unlink()
    path.symlink_to("/bin/sh")


def put_in_its_place(path: Path) -> None:
    path.unlink()
    path.write_text("#!/bin/sh\n")


@pytest.mark.parametrize(
    ("name", "breaks", "word"),
    [
        ("bin/toy", spoiled, "was changed"),
        ("bin/toy", Path.unlink, "is missing"),
        ("bin/toy", led_away, "is missing"),
        ("pyvenv.cfg", spoiled, "was changed"),
        ("bin/python", led_away, "was changed"),
        ("bin/python", put_in_its_place, "was changed"),
        ("bin/python3", Path.unlink, "is missing"),
    ],
)
def test_what_no_record_lists_is_found_and_mended(
    root: Path, tmp_path: Path, name: str, breaks: Callable[[Path], None], word: str
) -> None:
    bring(root, wanted(tmp_path, V1))
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and "opt" in path.parts}
    breaks(root / "opt/firsttouch" / V1 / name)
    assert ri.damage(str(root), V1) == [f"/opt/firsttouch/{V1}/{name} {word}"]
    assert ri.query(str(root))["installed"] == []
    plan = ri.make_plan(str(root), wanted(tmp_path, V1), USERS)
    assert plan.changes == [
        {"resource": f"runtime:/opt/firsttouch/{V1}", "before": "damaged", "after": "installed"}
    ]
    assert plan.restart(FILES) == ["firsttouch-server@a.service"], "what runs may have read what was changed"
    bring(root, wanted(tmp_path, V1))
    assert ri.damage(str(root), V1) == [] and ri.query(str(root))["installed"] == [V1]
    after = {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and "opt" in path.parts}
    assert after == before and links(root) == (V1, None)
    assert sorted(os.listdir(root / "opt/firsttouch")) == [V1, "current"]


def test_a_damaged_version_stays_when_the_new_one_does_not_start(root: Path, tmp_path: Path) -> None:
    bring(root, wanted(tmp_path, V1))
    spoiled(root / "opt/firsttouch" / V1 / "bin/toy")
    before = tree(root)
    what = wanted(tmp_path, V1)
    with pytest.raises(ri.InstallError, match="no module named numpy"):
        ri.apply_plan(ri.make_plan(str(root), what, USERS), what, Commands(status=1))
    assert tree(root) == before


def test_a_damaged_version_comes_back_when_its_place_cannot_be_taken(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(root, wanted(tmp_path, V1))
    spoiled(root / "opt/firsttouch" / V1 / "bin/toy")
    before, rename = tree(root), os.rename

    def full(old: str, new: str) -> None:
        if old.endswith(".new") and new.endswith(V1):
            raise OSError(28, "No space left on device", new)
        rename(old, new)

    what = wanted(tmp_path, V1)
    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(OSError, match="No space left"):
        ri.apply_plan(ri.make_plan(str(root), what, USERS), what, Commands())
    assert tree(root) == before


@pytest.mark.parametrize("text", ["{}", "[]", "no json", '{"records": 1}'])
def test_a_manifest_that_tells_nothing_is_damage(root: Path, tmp_path: Path, text: str) -> None:
    bring(root, wanted(tmp_path, V1))
    (root / "opt/firsttouch" / V1 / ri.MANIFEST).write_text(text)
    assert ri.damage(str(root), V1) == [f"/opt/firsttouch/{V1}/{ri.MANIFEST} was changed"]
    assert ri.query(str(root))["installed"] == []
    bring(root, wanted(tmp_path, V1))
    assert ri.query(str(root))["installed"] == [V1]
