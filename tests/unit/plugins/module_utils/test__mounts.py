# SPDX-License-Identifier: GPL-3.0-or-later
"""hugetlbfs mounts: which of them can be reached, and what their options say."""

from __future__ import annotations

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils._mounts import parse_mounts, size_bytes

HUGE = "30 27 0:30 / /mnt/a/huge rw - hugetlbfs none rw,pagesize=2M"


@pytest.mark.parametrize(
    ("lines", "covered"),
    [
        ((HUGE,), False),
        (("27 1 8:1 / / rw - ext4 /dev/sda rw", HUGE), False),
        ((HUGE, "27 1 8:1 / / rw - ext4 /dev/sda rw"), False),
        ((HUGE, "31 27 0:31 / /mnt/b rw - tmpfs t rw"), False),
        ((HUGE, "31 27 0:31 / /mnt/a/hug rw - tmpfs t rw"), False),
        ((HUGE, "31 27 0:31 / /mnt/a rw - tmpfs t rw"), True),
        ((HUGE, "31 30 0:31 / /mnt/a/huge rw - tmpfs t rw"), True),
        (("28 27 0:28 / /mnt/a rw - tmpfs t rw", HUGE.replace("30 27", "30 28")), False),
        (("28 27 0:28 / /mnt/a rw - tmpfs t rw", HUGE), True),
        (
            ("27 1 8:1 / / rw - ext4 d rw", "40 27 8:2 / / rw - ext4 e rw", HUGE.replace("30 27", "30 40")),
            False,
        ),
        (("30 30 8:1 / / rw - ext4 d rw", HUGE.replace("30 27", "31 30")), False),
    ],
)
def test_covered_mounts(lines: tuple[str, ...], covered: bool) -> None:
    mounts = parse_mounts("\n".join(lines), None)
    assert [mount.covered for mount in mounts] == [covered]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2M", 2 << 20),
        ("2048kB", 2 << 20),
        ("1GiB", 1 << 30),
        ("0x200000", 2 << 20),
        ("0400", 256),
        ("1t", 1 << 40),
    ],
)
def test_sizes(text: str, value: int) -> None:
    assert size_bytes(text) == value


@pytest.mark.parametrize("text", ["", "M", "1.5G", "-1", "08", "2 M"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        size_bytes(text)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "# comment of a table",
        "none /huge",
        "1 2 3 - hugetlbfs",
        "30 27 0:30 / /x rw - ",
        "none /huge tmpfs rw,pagesize=2M 0 0",
    ],
)
def test_lines_that_are_no_hugetlbfs(line: str) -> None:
    assert parse_mounts(line, 2048) == []


def test_a_mountinfo_without_super_options_and_with_optional_fields() -> None:
    line = "30 27 0:30 / /x rw,relatime shared:1 master:2 - hugetlbfs none"
    assert parse_mounts(line, 2048)[0].page_size == 2 << 20


def test_a_percentage_of_a_pool_that_is_not_known_is_a_problem() -> None:
    line = "none /x hugetlbfs rw,pagesize=2M,size=50%,uid=me 0 0"
    mount = parse_mounts(line, None, {1 << 30: 4})[0]
    assert (mount.size, mount.uid, mount.problem) == (None, None, "size=50%, uid=me")
