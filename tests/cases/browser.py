"""A headless Chromium on a pipe: opens one page from disk and says what it did. Nothing but the
standard library.
"""

import json
import os
import shutil
import subprocess
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find():
    """The path of a Chromium, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """With `Browser(folder) as browser:`; its profile is in the folder."""

    def __init__(self, folder):
        own_read, its_write = os.pipe()
        its_read, own_write = os.pipe()
        words = [
            *(
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
            ),
            *("--remote-debugging-pipe", f"--user-data-dir={folder / 'profile'}", "about:blank"),
        ]
        # It reads commands from descriptor 3 and writes answers to 4.
        script = f'exec "$0" "$@" 3<&{its_read} 4>&{its_write}'
        self.process = subprocess.Popen(
            ["bash", "-c", script, find(), *words],
            pass_fds=(its_read, its_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(its_read)
        os.close(its_write)
        self.reading, self.writing = own_read, own_write
        self.number, self.rest, self.events = 0, b"", []
        os.set_blocking(self.reading, False)
        (page,) = [
            one for one in self.ask("Target.getTargets")["targetInfos"] if one["type"] == "page"
        ]
        attached = self.ask("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self.session = attached["sessionId"]

    session = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(30)
        os.close(self.reading)
        os.close(self.writing)

    def ask(self, method, **params):
        """Sends a command and returns its result; events that come meanwhile are kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.writing, json.dumps(message).encode() + b"\0")
        number = self.number
        return self.wait(lambda told: told.get("id") == number)["result"]

    def wait(self, wanted, seconds=60):
        """The first message that is wanted; raises TimeoutError."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            while b"\0" in self.rest:
                one, _, self.rest = self.rest.partition(b"\0")
                told = json.loads(one)
                self.events.append(told)
                if wanted(told):
                    return told
            try:
                self.rest += os.read(self.reading, 1 << 16)
            except BlockingIOError:
                time.sleep(0.01)
        raise TimeoutError("the browser does not answer")

    def open(self, path, *, width, dark=False):
        """Opens a file at a width; everything that happened from there on is in `events`."""
        self.events.clear()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", features=scheme)
        self.ask("Page.navigate", url=path.absolute().as_uri())
        self.wait(lambda told: told.get("method") == "Page.loadEventFired")

    def value(self, expression):
        """Of a JavaScript expression on the page."""
        return self.ask("Runtime.evaluate", expression=expression, returnByValue=True)[
            "result"
        ].get("value")

    def requests(self):
        """Addresses of everything that the page asked for."""
        sent = [one for one in self.events if one.get("method") == "Network.requestWillBeSent"]
        return [one["params"]["request"]["url"] for one in sent]

    def complaints(self):
        """What a person would find in the console: messages, errors, what was blocked."""
        names = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [one["params"] for one in self.events if one.get("method") in names]
