"""A headless Chromium for tests of pages, spoken to over two pipes in the language of its own debugger (CDP)."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
    "--mute-audio",
)
_QUIET = ("--disable-background-networking", "--disable-component-update", "--no-first-run", "--disable-dev-shm-usage")


class Browser:
    """A browser with one page at a time. `problems` are errors of the page, `requests` all that it asked for."""

    def __init__(self, profile: Path) -> None:
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        theirs = [fcntl.fcntl(each, fcntl.F_DUPFD, 10) for each in (to_read, to_write)]  # away from 3 and 4

        def take_pipes() -> None:  # in the new process: the debugger reads from 3 and writes to 4
            os.dup2(theirs[0], 3)
            os.dup2(theirs[1], 4)

        command = [CHROMIUM, *_FLAGS, *_QUIET, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            command, pass_fds=(3, 4), preexec_fn=take_pipes, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for each in (to_read, to_write, *theirs):
            os.close(each)
        self._buffer, self._count, self._session = b"", 0, ""
        self.problems: list[str] = []
        self.requests: list[str] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with contextlib.suppress(Exception):
            self._call("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        os.close(self._read)
        os.close(self._write)

    def open(
        self, path: Path, *, width: int = 1400, height: int = 900, phone: bool = False, dark: bool = False
    ) -> None:
        """Show a file, and wait until its graphs are laid out."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.problems, self.requests = [], []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        scale = 2 if phone else 1
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[theme])
        self.send("Page.navigate", url=path.resolve().as_uri())
        self.wait("document.documentElement?.dataset.ready !== undefined", 60)

    def send(self, method: str, **params: Any) -> Any:
        """Ask the page's debugger for something."""
        return self._call(method, session=self._session, **params)

    def run(self, code: str) -> Any:
        """The value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{code}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, code: str, seconds: float = 20) -> None:
        """Until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(code):
            assert time.monotonic() < end, f"{code} did not come true. {self.problems}"
            time.sleep(0.05)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """A screenshot, of what is in view or of the whole page."""
        answer = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _call(self, method: str, session: str = "", **params: Any) -> Any:
        self._count += 1
        message = {"id": self._count, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self._write, json.dumps(message).encode() + b"\0")
        for answer in self._answers():
            if answer.get("id") == message["id"]:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
        raise AssertionError(f"{method}: the browser went away")

    def _answers(self) -> Iterator[Any]:
        while True:
            while b"\0" in self._buffer:
                text, _, self._buffer = self._buffer.partition(b"\0")
                answer = json.loads(text)
                self._note(answer)
                yield answer
            if not select.select([self._read], [], [], 60)[0]:
                raise AssertionError("the browser does not answer")
            part = os.read(self._read, 1 << 20)
            if not part:
                return
            self._buffer += part

    def _note(self, answer: dict[str, Any]) -> None:
        method, params = answer.get("method"), answer.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(params["exceptionDetails"].get("exception", params["exceptionDetails"])))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(each.get("value", each)) for each in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
