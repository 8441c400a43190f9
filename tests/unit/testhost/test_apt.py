# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest
from testhost import apt


@pytest.mark.parametrize(
    ("targets", "mirror"),
    [
        ("http://a.example/debian/|bookworm|main\n", "http://a.example/debian"),
        (
            "https://x.example/node|nodistro|main\nhttp://a.example/debian/|trixie|main",
            "http://a.example/debian",
        ),
        ("http://a.example/debian-security/|bookworm-security|main\n", ""),
        ("http://a.example/debian/|bookworm|contrib\n", ""),
        ("http://u.example/ubuntu/|noble|main\n", ""),
        ("garbage\n\n||\n", ""),
        ("", ""),
    ],
)
def test_the_mirror_is_the_first_debian_main_archive(targets: str, mirror: str) -> None:
    assert apt.pick_mirror(targets) == mirror


def test_only_options_that_reach_the_mirror_are_copied() -> None:
    dump = """\
APT::Install-Recommends "0";
Acquire::Check-Valid-Until "false";
Acquire::http::Proxy "http://127.0.0.1:3142";
Acquire::https::Verify-Peer "false";
Acquire::http::User-Agent "x";
Acquire::http "";
Acquire::http::Proxy::a.example "DIRECT";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
DPkg::Post-Invoke:: "rm -f x || true";
"""
    assert apt.pick_options(dump) == (
        'Acquire::Check-Valid-Until "false";',
        'Acquire::http::Proxy "http://127.0.0.1:3142";',
        'Acquire::https::Verify-Peer "false";',
        'Acquire::http::Proxy::a.example "DIRECT";',
    )
