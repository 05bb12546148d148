"""A real headless Chromium, driven through Debian's chromedriver by the W3C's WebDriver protocol: JSON over HTTP."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final, Self

from tests.kit.ports import free_port
from tests.kit.waiting import wait_until

_ARGUMENTS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
)
_SECONDS: Final = 60.0
_PACKAGES: Final = ("chromium", "chromium-driver", "fonts-dejavu-core")
_TEXT: Final = "((one => one?.innerText ?? one?.textContent ?? '')(document.querySelector(arguments[0])))"
"""The text of an element as it is seen; of a picture, all of its text."""
_ALL_TEXT: Final = "(document.querySelector(arguments[0])?.textContent ?? '')"
"""The same without the line breaks between boxes."""
_ELEMENT: Final = "element-6066-11e4-a52e-4f735466cecf"
KEYS: Final = {
    "ArrowDown": "\ue015",
    "ArrowRight": "\ue014",
    "ArrowLeft": "\ue012",
    "Enter": "\ue007",
    "Tab": "\ue004",
    "End": "\ue010",
}


class BrowserError(AssertionError):
    """What chromedriver answered instead."""


class Browser:
    """Use as a context manager. ``arguments`` are further ones of Chromium."""

    def __init__(self, width: int = 1360, height: int = 900, *, dark: bool = False) -> None:
        self._size = (width, height)
        self._dark = dark
        self._profile = ""
        self._port = free_port()
        self._session = ""

    def __enter__(self) -> Self:
        driver = shutil.which("chromedriver")
        assert driver is not None, "chromedriver is missing: apt-get install chromium chromium-driver"
        self._profile = tempfile.mkdtemp(prefix="seglog-chromium-")
        self._driver = subprocess.Popen(
            [driver, f"--port={self._port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            wait_until(self._is_ready, "chromedriver", _SECONDS)
            options = {
                "binary": shutil.which("chromium"),
                "args": [*_ARGUMENTS, f"--user-data-dir={self._profile}"],
            }
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            self._session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
            self.devices(*self._size)
            self._media(dark=self._dark)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        try:
            if self._session:
                self._ask("DELETE", f"/session/{self._session}")
        finally:
            self._driver.terminate()
            self._driver.wait()
            shutil.rmtree(self._profile, ignore_errors=True)

    def _is_ready(self) -> bool:
        try:
            return bool(self._ask("GET", "/status")["ready"])
        except (OSError, BrowserError):
            return False

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}", data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            found = json.load(error)["value"]
            raise BrowserError(f"{found['error']}: {found['message']}") from None

    def _do(self, method: str, path: str, body: Any = None) -> Any:
        return self._ask(method, f"/session/{self._session}{path}", body)

    # The page

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self._do("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def devices(self, width: int, height: int) -> None:
        """The size of the page's window."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", **size)

    def _media(self, *, dark: bool) -> None:
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.devtools("Emulation.setEmulatedMedia", features=features)

    def open(self, url: str) -> None:
        self._do("POST", "/url", {"url": url})

    @property
    def url(self) -> str:
        return str(self._do("GET", "/url"))

    def run(self, script: str, *arguments: Any) -> Any:
        """The value that a function's body returns."""
        return self._do("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def run_async(self, script: str, *arguments: Any) -> Any:
        """The value that the body passes to its last argument, a function."""
        return self._do("POST", "/execute/async", {"script": script, "args": list(arguments)})

    def wait(self, condition: str, *arguments: Any) -> Any:
        """Until an expression of the page is true; returns it. The page's text is in the error."""
        found: list[Any] = []

        def holds() -> bool:
            found[:] = [self.run(f"return ({condition})", *arguments)]
            return bool(found[0])

        try:
            wait_until(holds, condition, _SECONDS)
        except RuntimeError:
            raise BrowserError(f"never true: {condition}\n{self.text('body')[:3000]}\n{self.logs()}") from None
        return found[0]

    def see(self, text: str, within: str = "body") -> None:
        self.wait(f"[{_TEXT}, {_ALL_TEXT}].some(one => one.includes(arguments[1]))", within, text)

    def text(self, selector: str) -> str:
        return str(self.run(f"return {_TEXT}", selector))

    def count(self, selector: str) -> int:
        return int(self.run("return document.querySelectorAll(arguments[0]).length", selector))

    def _element(self, selector: str) -> str:
        self.wait("document.querySelector(arguments[0]) !== null", selector)
        return str(self._do("POST", "/element", {"using": "css selector", "value": selector})[_ELEMENT])

    def click(self, selector: str) -> None:
        """With the mouse, as soon as the element can be clicked: the page may draw it again meanwhile, or move it."""
        reasons = []

        def is_clicked() -> bool:
            try:
                self._do("POST", f"/element/{self._element(selector)}/click", {})
            except BrowserError as error:
                reasons.append(str(error))
                return False
            return True

        wait_until(is_clicked, lambda: f"a click on {selector}: {reasons[-1]}", _SECONDS)

    def type(self, selector: str, text: str) -> None:
        """Replace a field's text."""
        element = self._element(selector)
        self._do("POST", f"/element/{element}/clear", {})
        self._do("POST", f"/element/{element}/value", {"text": text})

    def press(self, *keys: str) -> None:
        """Keys for the element that has the focus."""
        actions = [{"type": kind, "value": KEYS.get(key, key)} for key in keys for kind in ("keyDown", "keyUp")]
        self._do("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def logs(self) -> list[str]:
        """Errors and warnings of the page since the last call, such as violations of its CSP."""
        found = self._do("POST", "/se/log", {"type": "browser"})
        return [one["message"] for one in found if one["level"] in ("SEVERE", "WARNING")]

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        shot = self.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))


def install() -> None:
    """Debian's Chromium and its driver, if they are missing. RuntimeError says what to install."""
    if shutil.which("chromium") and shutil.which("chromedriver"):
        return
    if shutil.which("apt-get") is None:
        raise RuntimeError("Chromium is not installed, and there is no apt-get: install chromium and chromedriver")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "-y", "--no-install-recommends", *_PACKAGES]):
        command = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environment)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
