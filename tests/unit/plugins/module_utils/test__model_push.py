# SPDX-License-Identifier: GPL-3.0-or-later
"""Pushed models below a sysroot: what is missing, how it takes its place, what is removed."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _model_push as mp
from support import put

A, B, INDEX = "a.safetensors", "b.safetensors", "model.safetensors.index.json"
FIRST = {A: b"first a", B: b"first b", INDEX: b"{}"}
SECOND = {A: b"other a", B: b"first b", INDEX: b"{}"}


def files(content: Mapping[str, bytes]) -> list[mp.File]:
    return [mp.File(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in content.items()]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "host" / "var" / "lib").mkdir(parents=True)
    return tmp_path / "host"


def send(root: Path, plan: mp.Plan, content: Mapping[str, Mapping[str, bytes]], most: int = 99) -> list[str]:
    """Place what PLAN has missing, at most MOST files; their names."""
    sent = []
    for name, file in plan.missing[:most]:
        path = put(root.parent, f"/arrives/{file.sha256}", "")
        path.write_bytes(content[name][file.name])
        mp.place(str(root), name, file, str(path))
        assert not path.exists(), "it takes room twice"
        sent.append(file.name)
    return sent


def push(root: Path, content: Mapping[str, Mapping[str, bytes]], absent: Sequence[str] = ()) -> mp.Plan:
    """All steps; afterwards nothing is left to do."""
    models = {name: files(rows) for name, rows in content.items()}
    plan = mp.make_plan(str(root), models, absent)
    send(root, plan, content)
    mp.finish(str(root), models, plan.make, absent)
    again = mp.make_plan(str(root), models, absent)
    assert (again.rows, again.missing, again.make, again.texts) == ([], [], [], {})
    return plan


def there(root: Path, name: str = "toy") -> dict[str, bytes]:
    folder = root / mp.folder(name)[1:]
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != mp.MANIFEST}


def top(root: Path) -> list[str]:
    return sorted(path.name for path in (root / mp.TOP[1:]).iterdir())


def changes(plan: mp.Plan) -> dict[str, tuple[Any, Any]]:
    """By file name of the model toy."""
    base = f"file:{mp.folder('toy')}/"
    return {row["resource"].replace(base, ""): (row["before"], row["after"]) for row in plan.rows}


def sha(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def test_a_model_comes_whole_and_with_nothing_beside(root: Path) -> None:
    plan = push(root, {"toy": FIRST})
    assert there(root) == FIRST and top(root) == ["toy"]
    found = changes(plan)
    assert {name: found[name] for name in FIRST} == {name: (None, sha(data)) for name, data in FIRST.items()}
    text = (root / mp.folder("toy")[1:] / mp.MANIFEST).read_text()
    assert found[mp.MANIFEST] == (None, text) and mp.parse_manifest(text) == files(FIRST)
    assert plan.texts == {f"{mp.folder('toy')}/{mp.MANIFEST}": (None, text)}
    assert plan.restart == ["firsttouch-weights@toy.service"]
    assert mp.make_plan(str(root), {"toy": files(FIRST)}).restart == []


def test_nobody_but_the_owner_writes_and_others_do_not_read(root: Path) -> None:
    umask = os.umask(0o077)
    try:
        push(root, {"toy": FIRST})
    finally:
        os.umask(umask)
    folder = root / mp.folder("toy")[1:]
    modes = {path.name: path.stat().st_mode & 0o7777 for path in [folder, *folder.iterdir()]}
    assert modes == {"toy": 0o755, A: 0o640, B: 0o640, INDEX: 0o640, mp.MANIFEST: 0o644}


def test_a_shard_that_changed_is_sent_and_the_others_are_not(root: Path) -> None:
    push(root, {"toy": FIRST})
    inode = (root / mp.folder("toy")[1:] / B).stat().st_ino
    models = {"toy": files(SECOND)}
    plan = mp.make_plan(str(root), models)
    assert [file.name for _name, file in plan.missing] == [A]
    assert set(changes(plan)) == {A, mp.MANIFEST}
    assert changes(plan)[A] == (mp._OTHER, sha(SECOND[A]))
    push(root, {"toy": SECOND})
    assert there(root) == SECOND and (root / mp.folder("toy")[1:] / B).stat().st_ino == inode


def test_the_folder_before_stays_whole_until_all_has_arrived(root: Path) -> None:
    push(root, {"toy": FIRST})
    new = {A: b"other a", B: b"other b", INDEX: b"{ }"}
    models = {"toy": files(new)}
    assert send(root, mp.make_plan(str(root), models), {"toy": new}, most=2) == [A, B]
    assert there(root) == FIRST
    with pytest.raises(mp.PushError, match=f"{INDEX} of toy has not arrived"):
        mp.finish(str(root), models, ["toy"])
    assert there(root) == FIRST
    plan = mp.make_plan(str(root), models)
    assert [file.name for _name, file in plan.missing] == [INDEX], "what had arrived is not sent again"
    assert set(changes(plan)) == {*new, mp.MANIFEST}, "but it is still to take its place"
    push(root, {"toy": new})
    assert there(root) == new and top(root) == ["toy"]


@pytest.mark.parametrize("moment", [1, 2])
def test_the_folder_before_comes_back_when_the_next_one_cannot_take_its_place(
    root: Path, moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(root, {"toy": FIRST})
    models = {"toy": files(SECOND)}
    plan = mp.make_plan(str(root), models)
    send(root, plan, {"toy": SECOND})
    real, calls = os.rename, []

    def rename(old: str, new: str) -> None:
        if os.path.dirname(new) == str(root / mp.TOP[1:]):
            calls.append(new)
            if len(calls) == moment:
                raise OSError(5, "Input/output error", new)
        real(old, new)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(OSError, match="Input/output"):
        mp.finish(str(root), models, plan.make)
    monkeypatch.undo()
    assert there(root) == FIRST
    assert mp.make_plan(str(root), models).missing == []
    push(root, {"toy": SECOND})
    assert there(root) == SECOND and top(root) == ["toy"]


def test_a_run_that_was_killed_between_its_renames_is_mended(root: Path) -> None:
    push(root, {"toy": FIRST})
    (root / mp.TOP[1:] / "toy").rename(root / mp.TOP[1:] / ".toy.gone")
    put(root, f"{mp.TOP}/.toy.new/{A}", "")
    push(root, {"toy": FIRST})
    assert there(root) == FIRST and top(root) == ["toy"]


def test_what_arrives_broken_is_refused_and_gone(root: Path) -> None:
    (file,) = files({A: b"right"})
    path = put(root.parent, "/arrives", "wrong")
    with pytest.raises(mp.PushError, match=r"a\.safetensors of toy arrived with sha256 .*run again"):
        mp.place(str(root), "toy", file, str(path))
    assert list((root / mp.TOP[1:] / ".toy.part").iterdir()) == []


def test_a_link_in_the_place_where_files_arrive_is_not_followed(root: Path) -> None:
    (file,) = files({A: b"right"})
    put(root.parent, "/secret", "right")
    (root.parent / "arrives").symlink_to("secret")
    with pytest.raises(OSError, match="symbolic links"):
        mp.place(str(root), "toy", file, str(root.parent / "arrives"))


@pytest.mark.parametrize("how", ["content", "length", "gone", "mode", "link", "manifest"])
def test_what_was_changed_by_hand_is_told_and_mended(root: Path, how: str) -> None:
    push(root, {"toy": FIRST})
    folder = root / mp.folder("toy")[1:]
    path = folder / A
    expected: dict[str, tuple[Any, Any]] = {A: (mp._OTHER, sha(FIRST[A]))}
    if how == "content":
        path.write_bytes(FIRST[B])
    elif how == "length":
        path.write_bytes(b"longer than it was")
    elif how == "gone":
        path.unlink()
        expected = {A: (None, sha(FIRST[A]))}
    elif how == "mode":
        path.chmod(0o666)
        expected = {A: ("0666", "0640")}
    elif how == "link":
        path.rename(root / "elsewhere")
        path.symlink_to(root / "elsewhere")
    else:
        (folder / mp.MANIFEST).write_text("?")
        expected = {mp.MANIFEST: ("?", mp.manifest(files(FIRST)))}
    plan = push(root, {"toy": FIRST})
    assert changes(plan) == expected
    assert there(root) == FIRST and not path.is_symlink() and path.stat().st_mode & 0o777 == 0o640


ATTRIBUTES = [
    (mp.TOP, 0o777, "0755"),
    (mp.folder("toy"), 0o700, "0755"),
    (mp.folder("toy"), 0o777, "0755"),
    (f"{mp.folder('toy')}/{mp.MANIFEST}", 0o666, "0644"),
    (f"{mp.folder('toy')}/{A}", 0o600, "0640"),
]


@pytest.mark.parametrize(("path", "mode", "right"), ATTRIBUTES)
def test_a_mode_that_was_changed_is_told_and_mended_and_nothing_is_made_anew(
    root: Path, path: str, mode: int, right: str
) -> None:
    models = {name: files(FIRST) for name in ("toy", "other")}
    push(root, {"toy": FIRST, "other": FIRST})
    before = everything(root)
    real = root / path[1:]
    real.chmod(mode)
    plan = push(root, {"toy": FIRST, "other": FIRST})
    assert plan.rows == [{"resource": f"file:{path}", "before": f"{mode:04o}", "after": right}]
    assert (plan.make, plan.missing, plan.restart, plan.texts) == ([], [], [], {})
    assert everything(root) == before and f"{real.stat().st_mode & 0o7777:04o}" == right
    real.chmod(mode)
    push(root, {"toy": SECOND, "other": FIRST})
    assert not mp.differing(str(root), "toy", files(SECOND)) and not mp.differing(str(root), "other", models["other"])


class Owners:
    """Owners of files, as root would see and set them, by inode."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of: dict[int, tuple[int, int]] = {}
        real = os.lstat

        def lstat(path: Any, **more: Any) -> os.stat_result:
            row = list(real(path, **more))
            row[4:6] = self.of.get(int(row[1]), (12, 34))
            return os.stat_result(row)

        def chown(path: Any, uid: int, gid: int) -> None:
            self.of[os.stat(path).st_ino] = (uid, gid)

        monkeypatch.setattr(os, "lstat", lstat)
        monkeypatch.setattr(os, "chown", chown)
        monkeypatch.setattr(os, "fchown", chown)
        monkeypatch.setattr(mp, "_owner", lambda root, planned=False: (0, 777))


def test_an_owner_that_was_changed_is_told_and_mended(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owners = Owners(monkeypatch)
    push(root, {"toy": FIRST})
    here = mp.folder("toy")
    right = {
        mp.TOP: "0755 0:0", here: "0755 0:0", f"{here}/{mp.MANIFEST}": "0644 0:0",
        f"{here}/{A}": "0640 0:777", f"{here}/{B}": "0640 0:777",
    }  # fmt: skip
    for path in right:
        owners.of[(root / path[1:]).stat().st_ino] = (1000, 777)
    plan = push(root, {"toy": FIRST})
    assert (plan.make, plan.missing, plan.restart) == ([], [], [])
    assert {row["resource"]: (row["before"], row["after"]) for row in plan.rows} == {
        f"file:{path}": (f"{text.partition(' ')[0]} 1000:777", text) for path, text in right.items()
    }


def test_a_link_in_place_of_the_manifest_is_replaced(root: Path) -> None:
    push(root, {"toy": FIRST})
    path = root / mp.folder("toy")[1:] / mp.MANIFEST
    text = path.read_text()
    path.rename(root / "elsewhere")
    path.symlink_to("/elsewhere")
    put(root, f"{mp.folder('toy')}/x", "")
    with pytest.raises(mp.PushError, match="x was not pushed"):
        mp.make_plan(str(root), {"toy": files(FIRST)})
    (path.parent / "x").unlink()
    assert changes(push(root, {"toy": FIRST})) == {mp.MANIFEST: ("no regular file", text)}
    assert not path.is_symlink() and path.read_text() == text


def test_the_place_of_all_models_behind_a_link_keeps_its_mode(root: Path) -> None:
    put(root, "/var/lib/firsttouch/x", "")
    (root / "data").mkdir(mode=0o700)
    (root / mp.TOP[1:]).symlink_to("/data")
    push(root, {"toy": FIRST})
    assert (root / "data").stat().st_mode & 0o7777 == 0o700


def in_the_way(root: Path, how: str) -> tuple[str, str]:
    """Put something of somebody else into the folder of toy; what is told, with its path on the host."""
    name = {"folder": A, "mounted": A, "below": "cache", "beside": ".toy.gone"}.get(how, "lora.safetensors")
    folder = root / mp.folder("toy")[1:]
    words = "was not pushed by us"
    if how == "beside":
        path, name = put(folder.parent, "/.toy.gone/lora.safetensors", "mine"), "../.toy.gone/lora.safetensors"
    elif how == "file":
        path = put(folder, f"/{name}", "mine")
    elif how == "link":
        path = folder / name
        path.symlink_to(put(root.parent, "/elsewhere", "mine"))
    elif how == "mounted":
        path, words = folder / name, "is mounted there"
        put(root, "/proc/self/mountinfo", f"40 30 0:30 /x {mp.folder('toy')}/{name} rw - ext4 /dev/x rw\n")
    else:
        if how == "folder":
            (folder / name).unlink()
        path, words = put(folder, f"/{name}/model", "mine").parent, "is a folder, which no push makes"
    return f"{os.path.normpath(os.path.join(mp.folder('toy'), name))} {words}", str(path)


IN_THE_WAY = ["file", "link", "folder", "below", "mounted", "beside"]


def everything(root: Path) -> dict[str, Any]:
    """What is below ROOT, with what is in it and where it is."""
    return {
        str(path): (path.lstat().st_ino, path.read_bytes() if path.is_file() else None) for path in root.rglob("*")
    }


@pytest.mark.parametrize("how", IN_THE_WAY)
def test_a_push_is_refused_where_something_of_somebody_else_is_in_the_folder(root: Path, how: str) -> None:
    push(root, {"toy": FIRST})
    told, _path = in_the_way(root, how)
    before = everything(root)
    for content in (FIRST, SECOND):
        with pytest.raises(mp.PushError) as refused:
            mp.make_plan(str(root), {"toy": files(content)})
        assert refused.value.reason == "foreign_file"
        way = "unmount it" if how == "mounted" else "move it elsewhere"
        assert f"firsttouch_models: {told}; {way}, or name" in str(refused.value)
    assert everything(root) == before


@pytest.mark.parametrize("how", IN_THE_WAY)
def test_what_comes_into_the_folder_while_files_are_sent_is_not_lost(root: Path, how: str) -> None:
    push(root, {"toy": FIRST})
    models = {"toy": files(SECOND)}
    plan = mp.make_plan(str(root), models)
    send(root, plan, {"toy": SECOND})
    told, _path = in_the_way(root, how)
    before = everything(root)
    with pytest.raises(mp.PushError, match=told):
        mp.finish(str(root), models, plan.make)
    assert everything(root) == before


@pytest.mark.parametrize("how", IN_THE_WAY)
def test_a_model_that_goes_leaves_what_is_of_somebody_else(root: Path, how: str) -> None:
    push(root, {"toy": FIRST})
    told, path = in_the_way(root, how)
    before = {name: row for name, row in everything(root).items() if name.startswith(path)}
    assert before
    plan = push(root, {}, absent=["toy"])
    assert plan.left == [told] and plan.rows
    assert {name: row for name, row in everything(root).items() if name.startswith(path)} == before
    rest = [found for found in (root / mp.TOP[1:]).rglob("*") if not str(found).startswith(path)]
    assert rest == [Path(path).parent], "all that is ours is gone"


def test_what_cannot_be_removed_is_told_by_its_path(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    push(root, {"toy": FIRST})
    real = os.unlink

    def unlink(path: Any, **more: Any) -> None:
        if os.fspath(path).endswith(A):
            raise OSError(16, "Device or resource busy", path)
        real(path, **more)

    monkeypatch.setattr(os, "unlink", unlink)
    with pytest.raises(OSError, match=f"busy.*/toy/{A}"):
        mp.finish(str(root), {}, [], ["toy"])
    monkeypatch.undo()
    push(root, {}, absent=["toy"])
    assert not (root / mp.TOP[1:]).exists(), "its manifest was there for another run to go on"


def test_a_folder_that_was_being_made_when_all_was_killed_is_known_as_ours(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when another push comes after it, of other files."""
    models = {"toy": files(FIRST)}
    plan = mp.make_plan(str(root), models)
    send(root, plan, {"toy": FIRST})
    monkeypatch.setattr(mp, "_FILE_MODE", None)
    with pytest.raises(TypeError):
        mp.finish(str(root), models, plan.make)
    monkeypatch.undo()
    assert (root / mp.TOP[1:] / ".toy.new" / A).exists()
    put(root, f"{mp.TOP}/.toy.new/.{mp.MANIFEST}.x1.tmp", "")
    other = {"c.safetensors": b"c"}
    push(root, {"toy": other})
    assert there(root) == other and top(root) == ["toy"]


def test_a_model_that_goes_takes_all_of_it_along(root: Path) -> None:
    put(root, "/var/lib/firsttouch/before.json", "{}")
    push(root, {"toy": FIRST, "other": FIRST})
    plan = push(root, {"other": FIRST}, absent=["toy"])
    assert set(changes(plan)) == {*FIRST, mp.MANIFEST}
    assert all(row["after"] is None for row in plan.rows) and plan.restart == []
    assert top(root) == ["other"]
    push(root, {}, absent=["toy", "other"])
    assert sorted(path.name for path in (root / "var/lib/firsttouch").iterdir()) == ["before.json"]


@pytest.mark.parametrize("how", ["link", "link above", "mount", "mount below a link"])
def test_the_place_of_all_models_stays_where_it_is_not_our_folder(root: Path, how: str) -> None:
    top = root / mp.TOP[1:]
    if "mount" in how:
        top.mkdir(parents=True)
        if how != "mount":
            (root / "var").rename(root / "disk")
            (root / "var").symlink_to("disk")
        place = os.path.realpath(top)[len(os.path.realpath(root)) :]
        put(root, "/proc/self/mountinfo", f"40 30 0:30 / {place} rw - ext4 /dev/x rw\n")
    else:
        path = top.parent if how == "link above" else top
        path.parent.mkdir(exist_ok=True)
        (root / "data" / "models").mkdir(parents=True)
        path.symlink_to("/data" if how == "link above" else "/data/models")
    real = top if "mount" in how else root / "data" / "models"
    push(root, {"toy": FIRST})
    assert (real / "toy").is_dir()
    push(root, {}, absent=["toy"])
    assert list(real.iterdir()) == []


def test_a_push_that_was_cut_off_goes_with_its_model(root: Path) -> None:
    plan = mp.make_plan(str(root), {"toy": files(FIRST)})
    send(root, plan, {"toy": FIRST}, most=1)
    assert mp.is_left_over(str(root), ".toy.part", ["toy"])
    plan = push(root, {}, absent=["toy"])
    assert [(row["resource"], row["before"], row["after"]) for row in plan.rows] == [
        (f"file:{mp.TOP}/.toy.part", "left over", None)
    ]
    assert not (root / mp.TOP[1:]).exists()


def test_what_is_left_beside_a_folder_that_is_right_goes(root: Path) -> None:
    push(root, {"toy": FIRST})
    put(root, f"{mp.TOP}/.toy.gone/{A}", "")
    plan = push(root, {"toy": FIRST})
    assert [row["resource"] for row in plan.rows] == [f"file:{mp.TOP}/.toy.gone"]
    assert plan.make == [] and plan.restart == [], "what runs need not be started again for it"
    assert top(root) == ["toy"]


def test_a_folder_of_somebody_else_is_left_alone(root: Path) -> None:
    put(root, f"{mp.folder('toy')}/{A}", "mine")
    with pytest.raises(
        mp.PushError, match="/var/lib/firsttouch/models/toy is there and was not pushed by us; move it"
    ) as refused:
        mp.make_plan(str(root), {"toy": files(FIRST)})
    assert refused.value.reason == "foreign_file"
    push(root, {}, absent=["toy"])
    assert there(root) == {A: b"mine"} and not mp.is_left_over(str(root), "toy", [])


@pytest.mark.parametrize("target", ["other", "nowhere", None])
def test_a_link_or_a_file_of_somebody_else_is_left_alone(root: Path, target: str | None) -> None:
    push(root, {"other": FIRST})
    path = root / mp.folder("toy")[1:]
    if target is None:
        path.write_text("mine")
    else:
        path.symlink_to(target)
    with pytest.raises(mp.PushError, match="not pushed by us"):
        mp.make_plan(str(root), {"toy": files(FIRST)})
    push(root, {"other": FIRST}, absent=["toy"])
    assert there(root, "other") == FIRST and os.path.lexists(path)


@pytest.mark.parametrize("name", ["../a.safetensors", "a/b", "..", ".hidden", "", mp.MANIFEST, "a\nb"])
def test_names_that_lead_elsewhere_are_refused(root: Path, name: str) -> None:
    (file,) = files({name: b"x"})
    with pytest.raises(mp.PushError) as refused:
        mp.make_plan(str(root), {"toy": [file]})
    assert refused.value.reason == "bad_file"
    with pytest.raises(mp.PushError):
        mp.place(str(root), "toy", file, str(put(root.parent, "/arrives", "x")))


@pytest.mark.parametrize("name", ["..", "../toy", ".toy", ""])
def test_models_whose_names_lead_elsewhere_are_refused(root: Path, name: str) -> None:
    for models, absent in (({name: files(FIRST)}, []), ({}, [name])):
        with pytest.raises(mp.PushError):
            mp.make_plan(str(root), models, absent)
    with pytest.raises(mp.PushError):
        mp.place(str(root), name, mp.File(A, 1, "0" * 64), "/nowhere")


class Disks:
    """Free bytes by directory; each with a device of its own, or all on one, or with SUBVOLUMES both."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, free: dict[str, int], one_disk: bool, subvolumes: bool = False
    ) -> None:
        self.free, self.one = free, one_disk and not subvolumes
        real = os.stat

        def statvfs(path: str) -> Any:
            blocks = 1000 if one_disk else 1000 + hash(path)
            return SimpleNamespace(f_bavail=self.free[path], f_bfree=50, f_blocks=blocks, f_frsize=1)

        def stat(path: Any, **more: Any) -> Any:
            if path not in self.free:
                return real(path, **more)
            return SimpleNamespace(st_dev=1 if self.one else hash(path), st_mode=real(path).st_mode)

        monkeypatch.setattr(os, "statvfs", statvfs)
        monkeypatch.setattr(os, "stat", stat)


@pytest.mark.parametrize("subvolumes", [False, True])
@pytest.mark.parametrize(
    ("one_disk", "place", "temporary", "short"),
    [
        (False, 16, 7, None),
        (False, 15, 7, "place"),
        (False, 16, 6, "temporary"),
        (True, 23, 23, None),
        (True, 22, 22, "place"),
    ],
)
def test_too_little_room_is_told_with_numbers_before_anything_is_sent(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    one_disk: bool,
    place: int,
    temporary: int,
    short: str | None,
    subvolumes: bool,
) -> None:
    """16 bytes are missing, 7 of them in the largest file; the place is the nearest folder that is there."""
    plan = mp.make_plan(str(root), {"toy": files(FIRST)})
    places = {"place": str(root / "var" / "lib"), "temporary": str(root.parent)}
    Disks(monkeypatch, {places["place"]: place, places["temporary"]: temporary}, one_disk, subvolumes)
    if short is None:
        mp.check_space(str(root), plan, places["temporary"])
        return
    with pytest.raises(mp.PushError) as refused:
        mp.check_space(str(root), plan, places["temporary"])
    need = 7 if short == "temporary" else 23 if one_disk else 16
    free = place if short == "place" else temporary
    assert refused.value.reason == "no_space"
    assert f"need {need} bytes on the file system of {places[short]}, and {free} bytes are free" in str(
        refused.value
    )
    assert "firsttouch_models: the files of toy" in str(refused.value) and "source" in str(refused.value)
    assert "rm -r" not in str(refused.value)


def test_what_a_push_left_that_was_cut_off_is_named_where_there_is_too_little_room(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root, f"{mp.TOP}/.toy.part/{'0' * 64}", "of a model that changed since")
    plan = mp.make_plan(str(root), {"toy": files(FIRST)})
    Disks(monkeypatch, {str(root / mp.TOP[1:]): 1}, one_disk=False)
    with pytest.raises(mp.PushError, match=rf"{mp.TOP}/\.toy\.part holds what a push that was cut off left: rm -r it"):
        mp.check_space(str(root), plan, None)


def test_what_is_there_needs_no_room(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    push(root, {"toy": FIRST})
    plan = mp.make_plan(str(root), {"toy": files(SECOND)})
    Disks(monkeypatch, {str(root / mp.TOP[1:]): 7}, one_disk=False)
    mp.check_space(str(root), plan, None)
    mp.check_space(str(root), mp.make_plan(str(root), {"toy": files(FIRST)}), None)


def test_sizes_are_readable() -> None:
    assert [mp._human(size) for size in (0, 1023, 1536, 3 << 30)] == [
        "0 bytes", "1023 bytes", "1.5 KiB (1536 bytes)", "3.0 GiB (3221225472 bytes)"
    ]  # fmt: skip


def test_two_files_of_one_content_are_sent_once(root: Path) -> None:
    content = {"toy": {A: b"same", B: b"same"}}
    assert len(push(root, content).missing) == 1
    assert there(root) == content["toy"]


def test_a_unit_that_started_before_its_files_came_is_started_again(root: Path) -> None:
    """A run was killed after the files took their place, and before the unit was started again."""
    push(root, {"toy": FIRST})
    mark = put(root, "/run/systemd/units/invocation:firsttouch-weights@toy.service", "")
    now = time.time()
    for ago, expected in ((100, ["firsttouch-weights@toy.service"]), (-100, [])):
        os.utime(mark, (now - ago, now - ago))
        plan = mp.make_plan(str(root), {"toy": files(FIRST)})
        assert plan.restart == expected and plan.rows == []


@pytest.mark.parametrize(
    "text", ["", "[]", '{"files": [{}]}', '{"files": 1}', '{"files": [{"name": "a", "bytes": "x", "sha256": "0"}]}']
)
def test_a_manifest_that_is_none_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="no manifest of a push"):
        mp.parse_manifest(text)
