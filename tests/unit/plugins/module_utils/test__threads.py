# SPDX-License-Identifier: GPL-3.0-or-later
"""Threads: their CPU, kernel or user, and when it is not known that all were seen."""

from __future__ import annotations

from pathlib import Path

import pytest
import verified_host as vh
from ansible_collections.firsttouch.host.plugins.module_utils import _tree
from ansible_collections.firsttouch.host.plugins.module_utils._threads import (
    allowed_cpus,
    control_group,
    parse_stat,
    read_threads,
)
from ansible_collections.firsttouch.host.plugins.module_utils._tree import Tree
from support import put

KTHREADD = (
    "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 25 0 0 18446744073709551615 0 0 0 0 0 0 0 "
    "2147483647 0 1 0 0 0 1 0 0 0 0 0 0 0 0 0 0 0 0 0"
)


def test_a_line_of_the_kernel() -> None:
    thread = parse_stat(2, KTHREADD)
    assert thread is not None
    assert (thread.command, thread.state, thread.cpu, thread.kernel) == ("kthreadd", "S", 1, True)
    assert thread.stat == "/proc/2/task/2/stat"


@pytest.mark.parametrize("command", ["a b", "x) S 1 (y", ")", "((("])
def test_a_command_may_be_spelled_like_a_line(tmp_path: Path, command: str) -> None:
    vh.thread(tmp_path, 4194300, command, 3, tid=4194301)
    found = read_threads(Tree(str(tmp_path)), False).found
    assert [(t.pid, t.tid, t.command, t.cpu, t.kernel) for t in found] == [(4194300, 4194301, command, 3, False)]


@pytest.mark.parametrize("text", ["", "1 (a) S 1", "x (a) S " + "0 " * 50, "1 a S " + "0 " * 50, "1 (a) " + "x " * 50])
def test_what_is_no_such_line(text: str) -> None:
    assert parse_stat(1, text) is None


def test_nothing_there(tmp_path: Path) -> None:
    assert read_threads(Tree(str(tmp_path)), False).hidden == ("not_recorded", "/proc")
    assert read_threads(Tree(str(tmp_path)), True).hidden == ("not_available", "/proc")


@pytest.mark.parametrize(
    ("pid", "kernel", "hidden"),
    [
        (2, True, None),
        (2, False, ("pid_namespace", "/proc/2/stat")),
        (1, False, ("pid_namespace", "/proc/2/stat")),
        (500, False, ("hidden_processes", "/proc/2/stat")),
    ],
)
def test_without_kthreadd_not_all_were_seen(
    tmp_path: Path, pid: int, kernel: bool, hidden: tuple[str, str] | None
) -> None:
    vh.thread(tmp_path, pid, "x", 0, kernel=kernel)
    assert read_threads(Tree(str(tmp_path)), True).hidden == hidden


@pytest.mark.parametrize(
    ("text", "hidden"),
    [("Permission denied", "permission_denied"), ("No such process", None), ("Input/output error", "unreadable")],
)
def test_a_file_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, hidden: str | None) -> None:
    vh.thread(tmp_path, 2, "kthreadd", 0, kernel=True)
    vh.thread(tmp_path, 7, "secret", 3)
    tree, read = Tree(str(tmp_path)), _tree.Tree.text

    def refusing(self: Tree, path: str) -> str | None:
        if path == "/proc/7/task/7/stat":
            self.trouble[path] = text
            return None
        return read(self, path)

    monkeypatch.setattr(_tree.Tree, "text", refusing)
    threads = read_threads(tree, True)
    assert [thread.pid for thread in threads.found] == [2]
    assert threads.hidden == ((hidden, "/proc/7/task/7/stat") if hidden else None)


@pytest.mark.parametrize(("text", "live", "hidden"), [("", False, True), ("7 (x) S", True, True), ("", True, False)])
def test_a_line_that_is_not_understood_hides_a_thread(tmp_path: Path, text: str, live: bool, hidden: bool) -> None:
    vh.thread(tmp_path, 2, "kthreadd", 0, kernel=True)
    put(tmp_path, "/proc/7/task/7/stat", text)
    found = read_threads(Tree(str(tmp_path)), live).hidden
    assert found == (("unreadable", "/proc/7/task/7/stat") if hidden else None)


def test_what_it_may_and_where_it_belongs(tmp_path: Path) -> None:
    vh.thread(tmp_path, 7, "x", 3)
    put(tmp_path, "/proc/7/cgroup", "12:cpuset:/a\n0::/system.slice/x.service\n")
    tree = Tree(str(tmp_path))
    assert allowed_cpus(tree, read_threads(tree, False).found[0]) == "0-3"
    assert control_group(tree, 7) == "/system.slice/x.service"
    put(tmp_path, "/proc/7/cgroup", "12:cpuset:/a\n")
    assert control_group(tree, 7) == "/a"
    assert control_group(tree, 8) == ""
