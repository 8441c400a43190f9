# SPDX-License-Identifier: GPL-3.0-or-later
"""The page of three hosts, one as planned, one broken, one whose topology is hidden, made by the playbook itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support import ROOT, put
from verified_host import irq, pool, provisioned_host, thread
from webdriver import Browser

HIDDEN = ROOT / "tests" / "fixtures" / "hosts" / "testhost-hidden.tar.xz"
# For who wants to see what the tests saw.
PICTURES = ROOT / "build" / "browser"
ASKED = {
    "firsttouch_hugepages": [{"size": "2M", "nodes": {"0": 512}}],
    "firsttouch_vm_sysctls": {"vm.swappiness": 0},
    "firsttouch_rt_runtime_us": 950000,
}


class Fleet(NamedTuple):
    """The page, the document beside it, and the inventory."""

    page: Path
    document: dict[str, Any]
    inventory: Path


def break_it(root: Path) -> None:
    """One page short, a sysctl overridden, an interrupt and a thread on an isolated CPU."""
    pool(root, 1, "2048kB", 159)
    put(root, "/proc/sys/vm/swappiness", "60\n")
    put(root, "/etc/sysctl.d/zzz-vendor.conf", "vm.swappiness = 60\n")
    irq(root, 25, "0-3", "1")
    thread(root, 700, "python3", 1)


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    base = tmp_path_factory.mktemp("three")
    for name in ("good", "broken"):
        provisioned_host(base / name)
    break_it(base / "broken")
    with tarfile.open(HIDDEN) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(base / "hidden", filter="tar")
        else:
            archive.extractall(base / "hidden")
    roots: dict[str, dict[str, Any]] = {
        name: {"firsttouch_verify_sysroot": str(base / name)} for name in ("good", "broken", "hidden")
    }
    hosts = {**roots, "hidden": {**roots["hidden"], **ASKED}}
    common = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    inventory = base / "hosts.json"
    inventory.write_text(json.dumps({"all": {"hosts": hosts, "vars": common}}))
    collections = os.environ.get("FIRSTTOUCH_COLLECTIONS", str(ROOT / "build" / "import"))
    env = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
    env |= {"ANSIBLE_HOME": str(base / "home"), "ANSIBLE_COLLECTIONS_PATH": collections}
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(inventory), "firsttouch.host.verify"]
    done = subprocess.run(
        command, env=env, cwd=base, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stdout + done.stderr
    reports = base / "firsttouch-report"
    return Fleet(reports / "report.html", json.loads((reports / "report.json").read_text()), inventory)


def eventually(chrome: Browser, script: str, wanted: Any) -> bool:
    """Whether SCRIPT returns WANTED within five seconds."""
    deadline = time.monotonic() + 5
    while chrome.run(script) != wanted:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_a_few_hosts_are_seen_at_a_glance_the_failed_ones_first(chrome: Browser, fleet: Fleet) -> None:
    chrome.open(fleet.page)
    assert chrome.run("return document.querySelector('h1').textContent") == "2 of 3 hosts are not as planned"
    rows: list[list[str]] = chrome.run(
        "return [...document.querySelectorAll('.fleet tbody tr')].map((r) => "
        "[r.dataset.s, r.querySelector('.name').textContent])"
    )
    assert rows == [["fail", "broken"], ["fail", "hidden"], ["pass", "good"]]
    cells: dict[str, dict[str, str]] = chrome.run(
        "return Object.fromEntries([...document.querySelectorAll('.fleet tbody tr')].map((r) => ["
        "r.querySelector('.name').textContent, Object.fromEntries([...r.querySelectorAll('td.c')].map((c) => ["
        "c.dataset.l, c.className.replace('c s-', '')]))]))"
    )
    for host in fleet.document["hosts"]:
        failed = {row["concern"].replace("_", " ") for row in host["results"] if row["status"] == "fail"}
        assert {name for name, status in cells[host["name"]].items() if status == "fail"} == failed
    assert {"hugepages", "vm sysctls"} <= {name for name, status in cells["broken"].items() if status == "fail"}
    assert cells["good"]["hugepages"] == "pass"
    bottom = "return document.querySelector('.fleet').getBoundingClientRect().bottom < innerHeight"
    assert chrome.run(bottom), "the matrix does not fit the first screen"


def test_every_failure_has_its_remedy_and_hosts_with_the_same_share_a_command(chrome: Browser, fleet: Fleet) -> None:
    chrome.open(fleet.page)
    shown: list[str] = chrome.run(
        "return [...document.querySelectorAll('#t-failures ~ .group .problem')].map((p) => "
        "p.querySelector('.id').textContent + '|' + p.querySelector('.layer').textContent.split(',')[0] + '|' + "
        "(p.querySelector('.remedy') || {}).textContent)"
    )
    failing = [row for row in fleet.document["problems"] if row["fails"]]
    assert len(shown) == len(failing) > 8
    for row in failing:
        layer = row["layer"].replace("_", " ")
        assert f"{row['id']}|{layer}|{row['remedy']}" in shown
    commands: list[str] = chrome.run(
        "return [...document.querySelectorAll('#t-failures ~ .group .copy')].map((b) => b.dataset.copy)"
    )
    assert len(commands) == len(set(commands)) <= 3
    start = f"ansible-playbook -i {fleet.inventory} firsttouch.host.provision --limit"
    assert all(command.startswith(start) for command in commands)
    chrome.click("#t-failures ~ .group .copy")
    copied = "return document.querySelector('#t-failures ~ .group .copy').firstChild.textContent"
    assert eventually(chrome, copied, "Copied")
    assert chrome.run("return navigator.clipboard.readText()") == commands[0]


def test_the_hidden_host_is_drawn_and_its_topology_doubted(chrome: Browser, fleet: Fleet) -> None:
    chrome.open(fleet.page, "#h2")
    label = chrome.run("return document.querySelector('.detail svg.topo').getAttribute('aria-label')")
    assert label == "1 socket, 1 node, 8 CPUs; isolated: none"
    drawn = "return document.querySelectorAll('.detail svg.topo .house').length"
    assert chrome.run(drawn) == 8
    text: str = chrome.run("return document.querySelector('.detail').innerText")
    assert "hidden: the guest shows one node" in text and "Transport unix" in text and "512 short" in text
    assert text.index("hugepages.pool.2M") < text.index("Sockets, nodes, CPUs")
    side = chrome.run(
        "const at = (s) => document.querySelector(s).getBoundingClientRect();"
        "return at('.detail svg.topo').left > at('.detail .group').right && at('.detail svg.topo').top < innerHeight"
    )
    assert side, "the picture is not beside the failures"


def test_the_hosts_open_without_a_mouse(chrome: Browser, fleet: Fleet) -> None:
    chrome.open(fleet.page)
    chrome.press("Tab", "Enter", "Tab")
    assert chrome.run("return document.activeElement.textContent.includes('broken')")
    chrome.press("Enter", "Tab")
    assert chrome.run("return document.querySelectorAll('.detail').length") == 1
    within = "return document.activeElement.closest('.detail') !== null"
    seen: list[str] = []
    while chrome.run(within) and len(seen) < 20:
        seen.append(chrome.run("return document.activeElement.textContent"))
        chrome.press("Tab")
    assert any(text.startswith("Copy") for text in seen) and any(text.startswith("All ") for text in seen)
    assert chrome.run("return document.activeElement.textContent.includes('hidden')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_and_is_pictured(chrome: Browser, fleet: Fleet, width: int, scheme: str) -> None:
    chrome.view(width, scheme)
    for fragment in ("", "#h1", "#h2"):
        chrome.open(fleet.page, fragment)
        wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert chrome.run(wide) <= 0
        cut: list[str] = chrome.run(
            "return [...document.querySelectorAll('dd, .remedy, h3, .cmd code')].filter((e) => e.checkVisibility() && "
            "e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline').map((e) => e.textContent)"
        )
        assert cut == []
        PICTURES.mkdir(parents=True, exist_ok=True)
        picture = PICTURES / f"fleet-{scheme}-{width}{fragment.replace('#', '-')}.png"
        chrome.screenshot(picture)
        assert picture.stat().st_size > 10_000
