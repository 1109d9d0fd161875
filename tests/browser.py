"""A real Chromium, driven over its debugging pipe: no package is needed, and no port is open.

``with Browser() as browser`` gives one tab. Tests that use it skip where there is no Chromium.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

CHROMIUM = shutil.which("chromium")
_SECONDS = 60.0
_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)
_CODES = {"Enter": 13, "Escape": 27, "ArrowUp": 38, "ArrowDown": 40}


class Browser:
    """A tab of its own Chromium.

    Attributes:
        requests: The addresses that the tab requested.
    """

    def __init__(self, width: int = 1200, height: int = 800, *, dark: bool = False) -> None:
        self._folder = tempfile.mkdtemp(prefix="chromium-")
        there, self._out = os.pipe()
        self._in, back = os.pipe()
        command = f'exec "$@" 3<&{there} 4>&{back}'
        chromium = [
            str(CHROMIUM),
            *_OPTIONS,
            f"--user-data-dir={self._folder}",
            "--remote-debugging-pipe",
        ]
        self._process = subprocess.Popen(  # noqa: S603
            ["/bin/bash", "-c", command, "bash", *chromium],
            pass_fds=(there, back), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(there)
        os.close(back)
        self._rest, self._count, self._session = b"", 0, ""
        self.requests: list[str] = []
        tab = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        self.call("Page.enable")
        self.call("Network.enable")
        colours = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=colours)
        self.resize(width, height)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self._folder, ignore_errors=True)

    def call(self, method: str, **values: Any) -> dict[str, Any]:
        """Call a method of the debugging protocol."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": values}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            received = self._read()
            if received.get("method") == "Network.requestWillBeSent":
                self.requests.append(received["params"]["request"]["url"])
            if received.get("id") == self._count:
                if "error" in received:
                    raise RuntimeError(f"{method}: {received['error']}")
                return dict(received["result"])

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._in, 1 << 20)
            if not part:
                raise RuntimeError("Chromium has ended")
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))

    def resize(self, width: int, height: int) -> None:
        """Give the window another size."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def go(self, url: str) -> None:
        """Open an address in a fresh page."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)

    def eval(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def wait(self, script: str) -> None:
        """Wait until an expression in the page is true."""
        end = time.monotonic() + _SECONDS
        while not self.eval(f"!!({script})"):
            if time.monotonic() > end:
                raise TimeoutError(f"{script}: {self.eval('document.body.innerText')}")
            time.sleep(0.05)

    def type(self, text: str) -> None:
        """Type letters, one by one."""
        for letter in text:
            self.call(
                "Input.dispatchKeyEvent",
                type="keyDown",
                text=letter,
                key=letter,
                unmodifiedText=letter,
            )
            self.call("Input.dispatchKeyEvent", type="keyUp", key=letter)

    def key(self, name: str, *, control: bool = False) -> None:
        """Press a key that types no letter."""
        values = {
            "key": name,
            "code": name,
            "windowsVirtualKeyCode": _CODES[name],
            "modifiers": 2 if control else 0,
        }
        text = {"text": "\r"} if name == "Enter" and not control else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **values, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **values)

    def screenshot(self, file: Path) -> None:
        """Write what is seen as a PNG."""
        file.write_bytes(
            base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        )
