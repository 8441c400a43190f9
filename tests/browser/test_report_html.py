# SPDX-License-Identifier: GPL-3.0-or-later
"""The page of a fleet in a real browser: safe, quick, readable, and usable without a mouse."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.plugin_utils._verify_html import html
from ansible_collections.firsttouch.host.plugins.plugin_utils._verify_report import report
from verify_records import HOSTILE, PLAN, VIEW, WHEN, answer, broken, verified
from webdriver import Browser

EVIL = "</script><script>window.owned=1</script><img src=x onerror=window.owned=2>\u2028\u202e"
CONCERNS = ("boot", "cpu_isolation", "hugepages", "memory", "numa_balancing", "plan", "rt_scheduling", "thp", "units")
FLEET = 1000
LOAD_SECONDS = 20
OPEN_MILLISECONDS = 1500
CONTRAST = 4.5


def written(path: Path, entries: list[dict[str, Any]]) -> Path:
    document = report(entries, ["fail"], written=WHEN, inventory=["/srv/hosts.yml"])
    path.write_text(html(document, ["fail"]), encoding="utf-8")
    return path


def answers(swappiness: str = "pass") -> list[dict[str, Any]]:
    rows = [answer(f"{concern}.check{n}") for concern in CONCERNS for n in range(6)]
    return [*rows, answer("vm_sysctls.vm.swappiness", swappiness)]


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    evil = answer(f"vm_sysctls.{EVIL}", "fail", observed=EVIL, source=EVIL, remedy=EVIL, reason=EVIL)
    other = {**PLAN, "digest": "other", "intent": {"rt_runtime_us": EVIL}}
    entries = [
        verified("good", *answers()),
        verified("bad", *answers("fail"), answer("thp.mode", "warn", intended=False)),
        verified(HOSTILE, evil, host={**VIEW, "kernel": EVIL, "warnings": [EVIL]}, plan_used=other),
        verified("shut", answer("boot.a"), answer("boot.b", "not_evaluated", reason="permission_denied")),
        broken(EVIL, msg=EVIL),
        broken("dark", unreachable=True, msg="no route to host"),
    ]
    return written(tmp_path_factory.mktemp("small") / "report.html", entries)


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    entries = [verified(f"node{n:04}", *answers("fail" if n % 100 == 7 else "pass")) for n in range(FLEET)]
    for n, entry in enumerate(entries):
        entry["view"]["memory_bytes"] += n << 20
        entry["results"].append(answer("memory.available", observed={"available_bytes": n}))
    return written(tmp_path_factory.mktemp("large") / "report.html", entries)


def open_all(chrome: Browser) -> int:
    number: int = chrome.run(
        "const all = [...document.querySelectorAll('.open')]; all.forEach((b) => b.click()); return all.length"
    )
    chrome.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    return number


def eventually(chrome: Browser, script: str, wanted: Any) -> bool:
    """Whether SCRIPT returns WANTED within five seconds."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if chrome.run(script) == wanted:
            return True
        time.sleep(0.05)
    return False


def test_nothing_hostile_runs_or_becomes_markup(chrome: Browser, small: Path) -> None:
    chrome.open(small)
    assert open_all(chrome) == 6
    assert chrome.run("return typeof window.owned") == "undefined"
    assert chrome.run("return [document.images.length, document.scripts.length]") == [0, 2]
    text: str = chrome.run("return document.body.innerText")
    assert "window.owned=1" in text and "\u202e" not in text and "\x1b" not in text
    assert chrome.run("return performance.getEntriesByType('resource').length") == 0


def test_the_policy_of_the_page_stops_a_script_that_gets_in(chrome: Browser, small: Path) -> None:
    chrome.open(small)
    chrome.run("const s = document.createElement('script'); s.append('window.owned = 3'); document.body.append(s)")
    assert chrome.run("return typeof window.owned") == "undefined"
    assert any("Content Security Policy" in line for line in chrome.log())


def test_a_thousand_hosts_load_and_open_quickly(chrome: Browser, large: Path) -> None:
    began = time.monotonic()
    chrome.open(large)
    assert chrome.run("return document.querySelectorAll('.fleet > tbody > tr').length") == FLEET
    took = time.monotonic() - began
    size = large.stat().st_size / 1e6
    print(f"1000 hosts: {size:.1f} MB, {took:.1f} s")
    assert took < LOAD_SECONDS and size < 12
    # The best of three: the machine may be busy, the page may not be slow.
    opened = chrome.run(
        "return [0, 1, 2].map((n) => { const t = performance.now(); document.querySelectorAll('.open')[n].click();"
        "document.body.getBoundingClientRect(); return performance.now() - t; })"
    )
    assert min(opened) < OPEN_MILLISECONDS
    assert chrome.run("return document.querySelectorAll('.detail svg.topo').length") == 3
    sieved = chrome.run(
        "return ['node0041', '', 'node0042'].map((text) => {"
        "const t = performance.now(), f = document.getElementById('f-name'); f.value = text;"
        "f.dispatchEvent(new Event('input')); document.body.getBoundingClientRect();"
        "return [performance.now() - t, document.getElementById('shown').textContent]; })"
    )
    assert min(took for took, _shown in sieved) < OPEN_MILLISECONDS
    assert [shown for _took, shown in sieved] == ["1 of 1000", "1000", "1 of 1000"]


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
@pytest.mark.parametrize("opened", [False, True])
def test_the_page_never_scrolls_sideways(chrome: Browser, small: Path, width: int, opened: bool) -> None:
    chrome.view(width)
    chrome.open(small)
    if opened:
        open_all(chrome)
    assert chrome.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0


def test_the_keyboard_reaches_and_opens_a_host(chrome: Browser, small: Path) -> None:
    chrome.open(small)
    chrome.run("document.getElementById('fleet').focus()")
    seen = []
    for _ in range(12):
        chrome.press("Tab")
        seen.append(chrome.run("return document.activeElement.className || document.activeElement.id"))
        if seen[-1] == "open":
            break
    assert seen[-1] == "open" and seen[:2] == ["f-name", "f-state"]
    outline = chrome.run("const s = getComputedStyle(document.activeElement); return [s.outlineStyle, s.outlineWidth]")
    assert outline == ["solid", "3px"]
    for key, state in (("Enter", "true"), ("Space", "false"), ("Space", "true")):
        chrome.press(key)
        assert chrome.run("return document.activeElement.getAttribute('aria-expanded')") == state
    chrome.press("Tab")
    assert chrome.run("return document.activeElement.closest('.detail') !== null")
    chrome.open(small)
    chrome.press("Tab", "Enter")
    assert chrome.run("return [location.hash, document.activeElement.id]") == ["#fleet", "fleet"]


def test_a_link_to_a_host_opens_it(chrome: Browser, small: Path) -> None:
    chrome.open(small)
    chrome.click('#t-failures ~ article a[href="#h1"]')
    state = (
        "const r = document.getElementById('h1'), at = r.getBoundingClientRect().top;"
        "return [r.querySelector('.open').getAttribute('aria-expanded'), at >= 0 && at < innerHeight]"
    )
    assert eventually(chrome, state, ["true", True])
    chrome.open(small, "#h0")
    assert chrome.run("return document.querySelector('#h0 .open').getAttribute('aria-expanded')") == "true"


def test_a_command_is_copied_as_it_is_shown(chrome: Browser, small: Path) -> None:
    chrome.open(small)
    chrome.click(".cmd .copy")
    shown = chrome.run("return document.querySelector('.cmd code').textContent")
    assert shown == "ansible-playbook -i /srv/hosts.yml firsttouch.host.provision --limit bad"
    assert eventually(chrome, "return document.querySelector('.copy').firstChild.textContent", "Copied")
    assert chrome.run("return document.getElementById('said').textContent") == "Copied to the clipboard"
    chrome.run("const a = document.createElement('textarea'); a.id = 'paste'; document.body.append(a); a.focus()")
    chrome.devtools("Input.dispatchKeyEvent", type="keyDown", key="v", code="KeyV", modifiers=2, commands=["paste"])
    assert chrome.run("return document.getElementById('paste').value") == shown


def test_failures_come_first_in_a_host_and_pictures_have_words(chrome: Browser, small: Path) -> None:
    chrome.open(small, "#h1")
    panel = chrome.run("return document.querySelector('.detail').innerText")
    assert panel.index("vm_sysctls.vm.swappiness") < panel.index("thp.mode") < panel.index("Sockets, nodes, CPUs")
    assert "asked 160, got 159, free 159, 1 short" in panel and "not asked per node" in panel
    labels = chrome.run("return [...document.querySelectorAll('.detail svg')].map((s) => s.getAttribute('aria-label'))")
    assert "exposed: bare metal whose sources agree." in panel and "Transport shm: same host, bound memory." in panel
    assert "Co-scheduling risk: 88 vCPUs in node 0, a socket has 84 cores." in panel
    mend = chrome.run("return document.querySelector('.detail .cmd code').textContent")
    assert mend == "ansible-playbook -i /srv/hosts.yml firsttouch.host.provision --limit bad"
    assert labels[0] == "2 sockets, 2 nodes, 8 CPUs; isolated: 2-3,6-7" and all(labels)
    titles = chrome.run("return [...document.querySelectorAll('.topo title')].map((t) => t.textContent)")
    assert len(titles) == 8 and "CPU 2: isolated, nohz_full, shares its core with 6" in titles
    assert chrome.run("return document.querySelectorAll('.topo .core').length") == 4
    table = chrome.run("return [...document.querySelectorAll('.dist td')].map((c) => c.textContent)")
    assert table == ["10", "21", "21", "10"]


@pytest.mark.parametrize(
    "odd",
    [
        {"sockets": []},
        {"sockets": [], "nodes": [], "cores": [], "cpus": dict.fromkeys(VIEW["cpus"], ""), "pools": []},
        {"nodes": [*VIEW["nodes"], {"id": 7, "cpus": "", "memory_bytes": None, "distances": None}]},
        {"cpus": {**VIEW["cpus"], "online": "0-511"}, "sockets": [{"id": None, "cpus": "0-511"}], "cores": []}
        | {"nodes": [{"id": 0, "cpus": "0-511", "memory_bytes": 1, "distances": {"0": 10}}]},
        {"pools": [{"size": "2M", "node": 0, "asked": 0, "got": None, "free": None, "surplus": None}]},
        {"kernel": None, "arch": None, "memory_bytes": None, "trust": None, "warnings": [EVIL]},
    ],
)
def test_an_odd_topology_is_drawn_too(chrome: Browser, tmp_path: Path, odd: dict[str, Any]) -> None:
    page = written(tmp_path / "odd.html", [verified("odd", answer("boot.a"), host={**VIEW, **odd})])
    for width in (390, 1280):
        chrome.view(width)
        chrome.open(page, "#h0")
        assert chrome.run("return document.querySelectorAll('.detail svg.topo').length") == 1
        wide = chrome.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0


def test_many_silent_hosts_do_not_bury_the_rest(chrome: Browser, tmp_path: Path) -> None:
    silent = [broken(f"dark{n}", unreachable=True, msg="no route") for n in range(40)]
    chrome.open(written(tmp_path / "dark.html", [verified("bad", answer("boot.a", "fail")), *silent]))
    seen = "return [...document.querySelectorAll('.edge-unreachable')].filter((e) => e.checkVisibility()).length"
    assert chrome.run(seen) == 10
    chrome.run("document.querySelector('.rest').open = true")
    assert chrome.run(seen) == 40


def test_a_state_is_never_told_by_colour_alone(chrome: Browser, small: Path) -> None:
    chrome.open(small)
    open_all(chrome)
    bare = chrome.run(
        "return [...document.querySelectorAll('.badge, td.c')].filter((e) => !/[a-z]{4}/.test(e.textContent)).length"
    )
    assert bare == 0


_CONTRASTS = """
const seen = {};
const solid = (node) => {
  const layers = [];
  for (let at = node; at; at = at.parentElement) {
    const color = getComputedStyle(at).backgroundColor;
    if (!/, 0\\)$|transparent/.test(color)) { layers.push(color); break; }
  }
  return layers[0] || 'rgb(255, 255, 255)';
};
for (const node of document.querySelectorAll('body *')) {
  const own = [...node.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  if (!own || !node.checkVisibility() || node.closest('.vh, script, style, svg, option')) continue;
  const pair = `${getComputedStyle(node).color} on ${solid(node)}`;
  seen[pair] = seen[pair] || `${node.tagName}.${node.className}`;
}
return seen
"""


def channels(color: str) -> list[float]:
    """The channels of a CSS colour, 0 to 1."""
    numbers = [float(number) for number in re.findall(r"[\d.]+(?:e-?\d+)?", color.replace("srgb", ""))][:3]
    return numbers if color.startswith("color(") else [number / 255 for number in numbers]


def luminance(color: str) -> float:
    """WCAG 2: relative luminance."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels(color)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(pair: str) -> float:
    """WCAG 2: contrast of `COLOR on COLOR`."""
    light, dark = sorted((luminance(color) for color in pair.split(" on ")), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_every_text_can_be_read(chrome: Browser, small: Path, scheme: str, width: int) -> None:
    chrome.view(width, scheme)
    chrome.open(small)
    open_all(chrome)
    pairs: dict[str, str] = chrome.run(_CONTRASTS)
    assert len(pairs) > 8
    weak = {pair: (where, round(contrast(pair), 2)) for pair, where in pairs.items() if contrast(pair) < CONTRAST}
    assert weak == {}
    ground = chrome.run("return getComputedStyle(document.body).backgroundColor")
    assert (luminance(ground) < 0.1) is (scheme == "dark")
