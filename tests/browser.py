"""A real Chromium without a window, driven by its own DevTools protocol over two pipes: no driver and no socket is needed.

    with Browser() as browser:
        tab = browser.profile().tab(url)         # a profile has storage of its own, tabs of one profile share it
        tab.click("#send")
        tab.wait("document.title == 'x'")        # JavaScript that becomes true
"""

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

SECONDS = 120.0
"""For which a test waits: on a machine that has much else to do, too."""
SLICE_MS = 2000
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
WHY_NOT = "there is no Chromium here to open the page in"
_FLAGS = (
    "--headless=new", "--no-sandbox", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--in-process-gpu",
    "--disable-extensions", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--disable-features=Translate,OptimizationHints,MediaRouter",
    "--disable-background-timer-throttling", "--disable-backgrounding-occluded-windows", "--disable-renderer-backgrounding",
    "--password-store=basic", "--mute-audio",
)  # fmt: skip
_START = "import os, sys; a, b = map(int, sys.argv[1:3]); os.dup2(a, 3); os.dup2(b, 4); os.execv(sys.argv[3], sys.argv[3:])"
_KEYS = {
    "Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, ""), "ArrowUp": (38, ""), "ArrowDown": (40, ""), "Delete": (46, ""),
    "F2": (113, ""), "Home": (36, ""),
}  # fmt: skip
_LOOK = """new Promise(seen => {
  const look = async () => {
    let found;
    try { found = await (%s); } catch { /* a page that comes lacks its parts */ }
    if (found) seen([found]);
    else if (performance.now() > until) seen(null);
    else setTimeout(look, 5);
  };
  const until = performance.now() + %d;
  look();
})"""
_MODIFIERS = {"Alt": 1, "Ctrl": 2, "Shift": 8}


class Browser:
    """One process of Chromium."""

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        commands, self._out = os.pipe()
        self._in, answers = os.pipe()
        for end in (commands, answers):
            os.set_inheritable(end, True)
        shifted = [os.dup(end) if end in (3, 4) else end for end in (commands, answers)]
        command = [CHROMIUM, *_FLAGS, f"--user-data-dir={self._folder.name}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, *map(str, shifted), *command], pass_fds=shifted, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env={**os.environ, "HOME": self._folder.name},
        )  # fmt: skip
        for end in {commands, answers, *shifted}:
            os.close(end)
        self._news = threading.Condition()
        self._number = 0
        self._answers = {}
        self._ended = False
        self.tabs = {}
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait(60)
        self._folder.cleanup()

    def tell(self, method, session=None, **parameters):
        """Send a command; its number."""
        with self._news:
            self._number += 1
            number = self._number
        message = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        data = json.dumps(message).encode() + b"\0"
        while data and not self._ended:
            data = data[os.write(self._out, data) :]
        return number

    def call(self, method, session=None, **parameters):
        """The result of a command; what is wrong with it is an `AssertionError`."""
        number = self.tell(method, session, **parameters)
        with self._news:
            self._news.wait_for(lambda: number in self._answers or self._ended, SECONDS)
            assert number in self._answers, f"Chromium does not answer {method}"
            answer = self._answers.pop(number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def profile(self, script=""):
        """Storage of its own, as if nobody had been here before; ``script`` runs in each of its pages before all others."""
        return Profile(self, self.call("Target.createBrowserContext")["browserContextId"], script)

    def _read(self):
        rest = b""
        while piece := os.read(self._in, 1 << 20):
            *whole, rest = (rest + piece).split(b"\0")
            for message in map(json.loads, whole):
                with self._news:
                    if "id" in message:
                        self._answers[message["id"]] = message
                    elif tab := self.tabs.get(message.get("sessionId")):
                        tab.hear(message["method"], message["params"])
                    self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()


class Profile:
    def __init__(self, browser, context, script):
        self.browser = browser
        self._context = context
        self._script = script

    def tab(self, url=None, **size):
        """A tab that shows ``url``."""
        target = self.browser.call("Target.createTarget", url="about:blank", browserContextId=self._context)["targetId"]
        tab = Tab(self.browser, target)
        tab.call("Page.addScriptToEvaluateOnNewDocument", source=self._script)
        tab.resize(**size)
        if url is not None:
            tab.go(url)
        return tab

    def close(self):
        self.browser.call("Target.disposeBrowserContext", browserContextId=self._context)


class Tab:
    """A tab, and what it complained about and asked for."""

    def __init__(self, browser, target):
        self._browser = browser
        self.target = target
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.complaints = []
        self.said = []
        """What the page wrote to the console as an error."""
        self.requests = []
        browser.tabs[self._session] = self
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        return self._browser.call(method, self._session, **parameters)

    def hear(self, event, found):
        if event == "Runtime.exceptionThrown":
            details = found["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description") or details["text"])
        elif event == "Runtime.consoleAPICalled" and found["type"] == "error":
            self.said += [one.get("description") or str(one.get("value")) for one in found["args"]]
        elif event == "Log.entryAdded" and found["entry"]["level"] == "error":
            self.complaints.append(f"{found['entry']['text']} {found['entry'].get('url', '')}")
        elif event == "Network.requestWillBeSent":
            self.requests.append((found["documentURL"], found["request"]["url"]))

    def asked(self, url):
        """What the page at ``url`` asked for."""
        return [asked for page, asked in self.requests if page.startswith(url)]

    def close(self):
        self._browser.call("Target.closeTarget", targetId=self.target)

    def crash(self):
        """End the process of the page, and of all other pages of its profile."""
        self._browser.tell("Page.crash", self._session)

    def go(self, url):
        """Show ``url``, and forget what was heard of the page before."""
        self._run_out()
        self.requests.clear()
        self.complaints.clear()
        self.said.clear()
        self.call("Page.navigate", url=url)
        self.wait(f"location.href.startsWith({json.dumps(url)}) && document.body?.classList.contains('ready')")

    def _run_out(self):
        """The page that is shown is not ready, nor any more what a wait is for."""
        self.call("Runtime.evaluate", expression="document.body?.classList.remove('ready')")

    def reload(self):
        self._run_out()
        self.call("Page.reload")
        self.wait("document.body?.classList.contains('ready')")

    def resize(self, width=1100, height=760, mobile=False, scale=1):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile)

    def touch(self, on):
        """Whether there is a finger on the screen, and no mouse."""
        self.call("Emulation.setTouchEmulationEnabled", enabled=on, maxTouchPoints=1)
        features = [{"name": "hover", "value": "none"}, {"name": "pointer", "value": "coarse"}] if on else []
        self.call("Emulation.setEmulatedMedia", features=features)

    def run(self, code):
        """What the expression ``code`` gives."""
        found = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, code, seconds=SECONDS):
        """What ``code`` gives when it is true of the page, which looks itself."""
        until = time.monotonic() + seconds
        while not (found := self._try(_LOOK % (code, SLICE_MS))):
            assert time.monotonic() < until, f"never true: {code}\n{self._seen()}"
            time.sleep(0.01)  # a page that comes has not been there to look
        return found[0]

    def _seen(self):
        """What a person who looks for the reason wants to know."""
        return "\n".join((*self.complaints, *self.said, str(self._try("document.body.innerText"))))

    def _try(self, code):
        found = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        return None if "exceptionDetails" in found else found["result"].get("value")  # a page that comes lacks its parts

    def click(self, selector):
        """Press the mouse in the middle of an element, which no longer moves and which nothing lies upon."""
        code = """(async () => {
          const middle = () => {
            const one = document.querySelector(%s);
            one?.scrollIntoView({block: "nearest"});
            const box = one?.getBoundingClientRect();
            const found = box?.width ? [box.x + box.width / 2, box.y + box.height / 2] : null;
            return found && one.contains(document.elementFromPoint(...found)) ? found : null;
          };
          const before = middle();
          await new Promise((done) => setTimeout(done, 20));
          const now = middle();
          return before && now && before[0] === now[0] && before[1] === now[1] ? now : null;
        })()"""
        x, y = self.wait(code % json.dumps(selector))
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text):
        """Put ``text`` where the cursor is."""
        self.call("Input.insertText", text=text)

    def press(self, keys):
        """``Enter``, ``Ctrl+k`` and the like."""
        *held, key = keys.split("+")
        code, text = _KEYS.get(key) or (ord(key.upper()), key)
        modifiers = sum(_MODIFIERS[name] for name in held)
        text = "" if modifiers & ~8 else text
        shared = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        self.call("Input.dispatchKeyEvent", **down, **shared)
        self.call("Input.dispatchKeyEvent", type="keyUp", **shared)

    def screenshot(self, path):
        Path(path).write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def text(self, selector):
        """The text that is seen of the first such element, None if there is none."""
        return self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? null")

    def texts(self, selector):
        return self.run(f"[...document.querySelectorAll({json.dumps(selector)})].map(one => one.innerText)")
