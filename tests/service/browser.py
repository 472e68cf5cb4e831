"""A headless Chromium that a test clicks in: its developer tools over a pipe, without a port or a library."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PATIENCE_S = 60.0


class Browser:
    """One page of it."""

    def __init__(self, reader: Any, writer: Any) -> None:
        self._reader, self._writer, self._number = reader, writer, 0
        self.complaints: list[str] = []
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._send(f"{domain}.enable")

    _session: str | None = None

    def _send(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        self._writer.write(json.dumps(message).encode() + b"\0")
        self._writer.flush()
        while True:
            answer = json.loads(self._read())
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return dict(answer["result"])
            if answer.get("method") == "Log.entryAdded" and answer["params"]["entry"]["level"] == "error":
                self.complaints.append(answer["params"]["entry"]["text"])
            if answer.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(str(answer["params"]["exceptionDetails"]))

    def _read(self) -> bytes:
        received = bytearray()
        while (byte := self._reader.read(1)) != b"\0":
            assert byte, "the browser has ended"
            received += byte
        return bytes(received)

    def open(self, address: str) -> None:
        """Go to a page."""
        self._send("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str) -> Any:
        """Run a script in the page and return what it is worth."""
        done = self._send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True
        )
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def wait(self, script: str) -> Any:
        """Wait until a script is worth something; between two pages there is none to ask."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(AssertionError):
                if value := self.run(f"Boolean({script})"):
                    return value
            assert time.monotonic() < deadline, f"never so: {script}\n{self.text()}"
            time.sleep(0.1)

    def click(self, selector: str) -> None:
        """Click what a selector names, where it is, once it is there."""
        self.wait(f"document.querySelector({selector!r})")
        place = self.run(
            f"(() => {{ const one = document.querySelector({selector!r}); one.scrollIntoView({{block: 'center'}});"
            "const box = one.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2] })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            where = {"x": place[0], "y": place[1]}
            self._send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **where)

    def type(self, selector: str, text: str) -> None:
        """Type into a field."""
        self.click(selector)
        self._send("Input.insertText", text=text)

    def choose(self, selector: str, value: str) -> None:
        """Choose an option of a list."""
        self.run(
            f"(() => {{ const one = document.querySelector({selector!r}); one.value = {value!r};"
            "one.dispatchEvent(new Event('change', {bubbles: true})) })()"
        )

    def resize(self, width: int, height: int = 800) -> None:
        """Have a window of another size, as a phone's."""
        self._send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, scheme: str) -> None:
        """Have the reader prefer a ``dark`` or ``light`` page."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._send("Emulation.setEmulatedMedia", features=features)

    def text(self) -> str:
        """What a person reads."""
        return str(self.run("document.body ? document.body.innerText : ''"))

    def shoot(self, path: Path, size: tuple[int, int] | None = None) -> None:
        """Take a picture of the whole page, or of so many pixels from its top left corner."""
        import base64

        clip = {"clip": {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}} if size else {}
        done = self._send("Page.captureScreenshot", captureBeyondViewport=True, **clip)
        path.write_bytes(base64.b64decode(done["data"]))


@contextlib.contextmanager
def open_browser(profile: Path) -> Iterator[Browser]:
    """Start one, or skip the test where there is none."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not program:
        pytest.skip("no Chromium on this machine: apt install chromium")
    to_read, to_write = os.pipe(), os.pipe()
    flags = ("--headless", "--no-sandbox", "--disable-background-networking", "--remote-debugging-pipe")
    words = [program, *flags, f"--user-data-dir={profile}"]
    # It reads from 3 and writes to 4.
    shell = f'exec "$@" 3<&{to_read[0]} 4>&{to_write[1]}'
    process = subprocess.Popen(
        ["/bin/bash", "-c", shell, "bash", *words], pass_fds=(to_read[0], to_write[1]), stderr=subprocess.DEVNULL
    )
    os.close(to_read[0])
    os.close(to_write[1])
    with os.fdopen(to_write[0], "rb") as reader, os.fdopen(to_read[1], "wb") as writer:
        try:
            yield Browser(reader, writer)
        finally:
            process.terminate()
            process.wait(20)
