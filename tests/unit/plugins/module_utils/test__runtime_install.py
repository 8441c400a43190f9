# SPDX-License-Identifier: GPL-3.0-or-later
"""Versions of the runtime below a sysroot: made, switched, rolled back, removed; what would change is what changes."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import zipfile
from collections.abc import Sequence
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
        self.status, self.calls = status, []  # type: ignore[var-annotated]

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
