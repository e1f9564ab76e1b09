"""Drives Debian's chromium by its DevTools protocol through a pipe, without any network, to check how pages look.

The protocol's evaluation ignores a page's content policy, so tests can measure pages that forbid all scripts.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time
from pathlib import Path
from typing import Any, Self

from patience import PATIENCE_S

NAME = "chromium"
_WAIT_S = PATIENCE_S
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # tests may run as root, which has no sandbox
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--remote-debugging-pipe",
    "about:blank",
)


def find_chromium() -> str | None:
    """Return chromium's path, or None if it is not installed."""
    return shutil.which(NAME)


class Chromium:
    """A browser with one tab.

    Args:
        program: path. profile: an empty folder.

    Attributes:
        events: the tab's events, such as requests and log entries.
    """

    def __init__(self, program: str, profile: Path) -> None:
        self.events: list[dict[str, Any]] = []
        self._buffer, self._last, self._session = b"", 0, ""
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (theirs_in, theirs_out)]  # 3 and 4 are overwritten
        quiet = (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)
        actions = [(os.POSIX_SPAWN_DUP2, fd, place) for place, fd in zip((3, 4), high, strict=True)]
        arguments = [program, *_OPTIONS, f"--user-data-dir={profile}"]
        self._pid = os.posix_spawn(program, arguments, os.environ, file_actions=[*actions, quiet])
        for fd in (theirs_in, theirs_out, *high):
            os.close(fd)

    def __enter__(self) -> Self:
        try:
            self._open_tab()
        except BaseException:
            os.kill(self._pid, signal.SIGKILL)
            self._end()
            raise
        return self

    def _open_tab(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __exit__(self, *_: object) -> None:
        self._session = ""
        self.call("Browser.close")
        self._end()

    def _end(self) -> None:
        os.waitpid(self._pid, 0)
        os.close(self._in)
        os.close(self._out)

    def show(self, page: Path | str, width: int, scheme: str) -> None:
        """Load a file or an address into a window of that width, on a device that prefers "light" or "dark"."""
        self.events.clear()
        self.resize(width, scheme)
        self.call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._receive()

    def resize(self, width: int, scheme: str) -> None:
        """Change the width and the preference."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def press(self, key: str) -> None:
        """Press a key, such as "Tab" or "Enter"."""
        codes = {"Tab": 9, "Enter": 13}
        about = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key], "text": "\r" * (key == "Enter")}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, **about)

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def events_of(self, method: str) -> list[dict[str, Any]]:
        """Return the events of one kind since the page was requested."""
        self.call("Page.enable")  # earlier events have arrived when this is answered
        return [event for event in self.events if event["method"] == method]

    def picture(self) -> bytes:
        """Return the whole page, at half its size, as PNG."""
        width, height = self.evaluate("[innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 0.5}
        taken = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(taken["data"])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call the protocol and wait for the answer."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._last:
            pass
        assert "error" not in answer, answer["error"]
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self) -> dict[str, Any]:
        """Return the next message; keep events, too."""
        deadline = time.monotonic() + _WAIT_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "chromium prints nothing"
            data = os.read(self._in, 1 << 20)
            assert data, "chromium has ended"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        if "method" in found:
            self.events.append(found)
        return found
