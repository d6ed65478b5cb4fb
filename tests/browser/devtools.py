"""A browser without a window, driven by its DevTools protocol over a pipe. Needs no package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)

# The browser reads file descriptor 3 and writes 4.
_START = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Page:
    """One page, with what its console said and what it asked for.

    Args:
      profile: an empty directory.
      width, height: of the window, pixels.
    """

    def __init__(self, profile: Path, width: int = 1280, height: int = 900):
        assert CHROMIUM is not None
        to_browser, from_browser = os.pipe(), os.pipe()
        ends = to_browser[0], from_browser[1]
        command = [sys.executable, "-c", _START, *map(str, ends), CHROMIUM, *_FLAGS]
        command.append(f"--user-data-dir={profile}")
        self._process = subprocess.Popen(command, pass_fds=ends, stderr=subprocess.DEVNULL)
        for end in ends:
            os.close(end)
        self._in, self._out = os.fdopen(to_browser[1], "wb"), os.fdopen(from_browser[0], "rb")
        self._number, self._session = 0, ""
        self.console: list[str] = []  # errors, warnings and what was logged
        self.requests: list[str] = []
        self._loaded = False
        try:
            self._attach()
            self.resize(width, height)
        except BaseException:
            self.close()
            raise

    def _attach(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def resize(self, width: int, height: int) -> None:
        """Gives the window another size."""
        sizes = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **sizes)

    def open(self, path: Path) -> None:
        """Loads a file, and waits for it."""
        self._loaded = False
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not self._loaded:
            self._read()

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression.

        Raises:
          RuntimeError: it throws.
        """
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(json.dumps(found["exceptionDetails"])[:2000])
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """Presses a key, where the focus is."""
        codes = {"Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        how = {"key": key, "code": key, "windowsVirtualKeyCode": codes.get(key, 0)}
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, **how)

    def mouse(self, x: float, y: float, kinds: tuple[str, ...]) -> None:
        """Mouse events at a place of the window: mouseMoved, mousePressed, mouseReleased."""
        for kind in kinds:
            button = "none" if kind == "mouseMoved" else "left"
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=1)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """What a method of the protocol returns.

        Raises:
          RuntimeError: the browser refuses it.
        """
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._in.write(json.dumps(message).encode() + b"\0")
        self._in.flush()
        while (answer := self._read()).get("id") != self._number:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def close(self) -> None:
        """Ends the browser."""
        self._process.terminate()
        self._process.wait()
        self._in.close()
        self._out.close()

    def _read(self) -> dict[str, Any]:
        """The next message, of which events are noted."""
        raw = bytearray()
        while (byte := self._out.read(1)) != b"\0":
            if not byte:
                raise RuntimeError("the browser has gone")
            raw += byte
        message = json.loads(raw)
        params = message.get("params", {})
        match message.get("method"):
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown" | "Log.entryAdded":
                self.console.append(json.dumps(params)[:2000])
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Page.loadEventFired":
                self._loaded = True
        return message
