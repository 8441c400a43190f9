# SPDX-License-Identifier: GPL-3.0-or-later
"""A headless Chromium, driven over the W3C WebDriver protocol with nothing but the standard library.

It has a profile of its own that goes with it, and no reason to talk to the network.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromedriver")
START_SECONDS = 30
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
FLAGS = (
    "--headless=new",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-domain-reliability",
    "--disable-extensions",
    "--disable-features=MediaRouter,OptimizationHints,Translate",
    "--disable-gpu",
    "--disable-sync",
    "--metrics-recording-only",
    "--no-default-browser-check",
    "--no-first-run",
    "--no-pings",
    "--no-proxy-server",
)
KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Space": " "}


class BrowserError(Exception):
    """The browser answered with an error, or did not start."""


def missing() -> str:
    """Which program is not there; empty when the tests can run.

    Ubuntu's chromium is a stub for a snap, which sees neither /tmp nor a profile of ours.
    """
    for name in PROGRAMS:
        path = shutil.which(name)
        if path is None:
            return f"{name} is not installed"
        if "/snap/" in os.path.realpath(path) or b"snap run" in Path(path).read_bytes()[:4096]:
            return f"{name} is a snap"
    return ""


class Browser:
    """One session; see `browser()`."""

    def __init__(self, port: int, profile: str) -> None:
        self._port = port
        flags = [*FLAGS, f"--user-data-dir={profile}"]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")
        options = {"binary": shutil.which("chromium"), "args": flags}
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._base = f"/session/{session['sessionId']}"

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            value = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        if isinstance(value, dict) and "error" in value:
            raise BrowserError(f"{value['error']}: {value.get('message')}")
        return value

    def open(self, page: Path, fragment: str = "") -> None:
        """Load PAGE from its file, anew, to its end.

        On a loaded machine chromedriver can answer while the page before is still shown.
        """
        self._call("POST", f"{self._base}/url", {"url": "about:blank"})
        self._call("POST", f"{self._base}/url", {"url": page.as_uri() + fragment})
        end = time.monotonic() + START_SECONDS
        shown = "return document.readyState + ' ' + location.href.split('#')[0]"
        while self.run(shown) != f"complete {page.as_uri()}":
            if time.monotonic() > end:
                raise BrowserError(f"{page} is not shown: {self.run(shown)}")
            time.sleep(0.02)

    def run(self, script: str, *args: Any) -> Any:
        """What SCRIPT, the body of a function, returns."""
        return self._call("POST", f"{self._base}/execute/sync", {"script": script, "args": args})

    def devtools(self, command: str, **parameters: Any) -> Any:
        """Run a command of the DevTools protocol."""
        body = {"cmd": command, "params": parameters}
        return self._call("POST", f"{self._base}/goog/cdp/execute", body)

    def press(self, *keys: str) -> None:
        """Press and release KEYS one after the other."""
        actions: list[dict[str, str]] = []
        for key in keys:
            actions += [{"type": kind, "value": KEYS.get(key, key)} for kind in ("keyDown", "keyUp")]
        source = {"type": "key", "id": "keyboard", "actions": actions}
        self._call("POST", f"{self._base}/actions", {"actions": [source]})

    def click(self, selector: str) -> None:
        """Click the first element of SELECTOR as a person would: it has to be in view and on top."""
        found = self._call("POST", f"{self._base}/element", {"using": "css selector", "value": selector})
        self._call("POST", f"{self._base}/element/{found[ELEMENT]}/click", {})

    def view(self, width: int, scheme: str = "light", height: int = 900) -> None:
        """Make the window WIDTH wide and the system's colours SCHEME; nothing moves by itself."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.devtools("Emulation.setDeviceMetricsOverride", **size)
        wishes = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in wishes.items()]
        self.devtools("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, path: Path) -> None:
        """Write what is in view to PATH as PNG."""
        path.write_bytes(base64.b64decode(self._call("GET", f"{self._base}/screenshot")))

    def log(self) -> list[str]:
        """What the console has got since it was last asked."""
        return [row["message"] for row in self._call("POST", f"{self._base}/se/log", {"type": "browser"})]

    def quit(self) -> None:
        """End the session."""
        self._call("DELETE", self._base)


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A browser that is gone afterwards, with all its processes and files."""
    with tempfile.TemporaryDirectory(prefix="firsttouch-browser-", ignore_cleanup_errors=True) as folder:
        home = {**os.environ, "HOME": folder, "TMPDIR": folder, "XDG_CONFIG_HOME": folder}
        driver = subprocess.Popen(
            ["chromedriver", "--port=0"], env=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            session = Browser(_port(driver), folder)
            try:
                yield session
            finally:
                session.quit()
        finally:
            driver.terminate()
            driver.wait(10)


def _port(driver: subprocess.Popen[str]) -> int:
    """The port that chromedriver has chosen, as it says."""
    assert driver.stdout is not None
    end, said = time.monotonic() + START_SECONDS, []
    for line in driver.stdout:
        said.append(line)
        match = re.search(r"started successfully on port (\d+)", line)
        if match:
            return int(match[1])
        if time.monotonic() > end:
            break
    raise BrowserError(f"chromedriver did not start: {''.join(said)}")
