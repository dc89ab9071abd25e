"""A real Chromium, driven as its developer tools drive it: over two pipes, without a port.

Messages are JSON, each with a zero byte at its end: commands go to the browser's descriptor 3,
answers and events come from its descriptor 4.
"""

import fcntl
import itertools
import json
import os
import select
import shutil
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "chrome-headless-shell")
SECONDS = 60
MISSING = "no Chromium: install one, or name it with OPFORGE_TEST_CHROMIUM"


def find_chromium():
    """The command, or None."""
    named = os.environ.get("OPFORGE_TEST_CHROMIUM")
    return next(filter(None, map(shutil.which, [named] if named else NAMES)), None)


class BrowserFailed(Exception):
    """What the browser did not do."""


class Browser:
    """One page of a browser; `close` ends it."""

    def __init__(self, command, profile):
        to_browser, self._commands = os.pipe()
        self._answers, from_browser = os.pipe()
        flags = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--disable-background-networking", "--disable-component-update", "--no-first-run",
            "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank",
        ]  # fmt: skip
        # Away from 3 and 4, which are taken by what is duplicated first.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (to_browser, from_browser)]
        actions = [
            *((os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)),
            *((os.POSIX_SPAWN_DUP2, fd, number) for fd, number in zip(high, (3, 4), strict=True)),
        ]
        self._pid = os.posix_spawn(command, [command, *flags], os.environ, file_actions=actions)
        for fd in (to_browser, from_browser, *high):
            os.close(fd)
        self._numbers, self._left, self._session = itertools.count(1), b"", None
        self.events = []
        (page,) = [
            one for one in self.do("Target.getTargets")["targetInfos"] if one["type"] == "page"
        ]
        found = self.do("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.do(f"{domain}.enable")

    def do(self, method, **params):
        """Ask for something, and wait for the answer."""
        number = next(self._numbers)
        asked = {"id": number, "method": method, "params": params}
        if self._session is not None:
            asked["sessionId"] = self._session
        os.write(self._commands, json.dumps(asked).encode() + b"\0")
        while True:
            told = self._next()
            if told.get("id") == number:
                if "error" in told:
                    raise BrowserFailed(f"{method}: {told['error']['message']}")
                return told["result"]
            self.events.append(told)

    def _next(self):
        end = time.monotonic() + SECONDS
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._answers], [], [], max(0, end - time.monotonic()))
            read = os.read(self._answers, 1 << 20) if ready else b""
            if not read:
                raise BrowserFailed("it has ended" if ready else f"no answer in {SECONDS} s")
            self._left += read
        message, _, self._left = self._left.partition(b"\0")
        return json.loads(message)

    def open(self, url):
        """Load a page, and wait until its scripts have run."""
        self.events.clear()
        self.do("Page.navigate", url=url)
        while not any(one.get("method") == "Page.loadEventFired" for one in self.events):
            self.events.append(self._next())

    def ask(self, script):
        """The value of an expression in the page, or of what it promises."""
        found = self.do(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise BrowserFailed(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def look(self):
        """On a large light screen."""
        features = [{"name": "prefers-color-scheme", "value": "light"}]
        self.do("Emulation.setEmulatedMedia", media="screen", features=features)
        self.do(
            "Emulation.setDeviceMetricsOverride",
            width=1400, height=900, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def click(self, selector):
        """With the mouse, in the middle of what the selector finds, wherever on the page it is."""
        at = self.ask(f"""(() => {{
            const found = document.querySelector({json.dumps(selector)});
            found.scrollIntoView({{block: "center"}});
            const box = found.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        }})()""")
        for kind in ("mousePressed", "mouseReleased"):
            self.do(
                "Input.dispatchMouseEvent",
                type=kind, x=at[0], y=at[1], button="left", clickCount=1,
            )  # fmt: skip

    def press(self, text):
        """Every key that writes the text."""
        for key in text:
            self.do("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
            self.do("Input.dispatchKeyEvent", type="keyUp", key=key)

    def close(self):
        try:
            self._session = None
            self.do("Browser.close")
        finally:
            # Without its pipe it ends in any case.
            os.close(self._commands)
            os.close(self._answers)
            os.waitpid(self._pid, 0)
