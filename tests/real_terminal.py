"""The command in a real pseudo-terminal, with `pyte` as the screen; a test waits for what is to be seen, never for a time.

    with Terminal("chat", home=folder) as terminal:
        terminal.wait_for("builtin")            # is on the screen
        terminal.write("hello\r")
        terminal.resize(200, 60)
        terminal.signal(signal.SIGTERM)
        assert terminal.wait_end() == 0
        terminal.check_left()                   # the terminal is as it was before

`raw` has every byte that the program wrote.
"""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import threading
import time
import warnings
from pathlib import Path

import pyte

SECONDS = 240.0
"""What is waited at most for something to be seen."""

_MODE = re.compile(rb"\x1b\[([?>=<]?)([0-9;]*)([hlum])")
_SWITCHED = {
    "1049": "alternate screen",
    "1000": "mouse", "1002": "mouse", "1003": "mouse", "1006": "mouse", "1015": "mouse", "1016": "mouse",
    "2004": "bracketed paste", "1004": "focus reports", "2048": "size reports",
}  # fmt: skip

_ASKS_FOR_FRAMES, _HAS_FRAMES = b"\x1b[?2026$p", b"\x1b[?2026;1$y"
_FRAME_BEGINS, _FRAME_ENDS = b"\x1b[?2026h", b"\x1b[?2026l"

PASTE = "\x1b[200~{}\x1b[201~"
KEYS = {
    "enter": "\r", "escape": "\x1b", "up": "\x1b[A", "down": "\x1b[B", "pageup": "\x1b[5~", "pagedown": "\x1b[6~",
    "f1": "\x1bOP", "f2": "\x1bOQ", "f3": "\x1bOR", "f4": "\x1bOS", "f5": "\x1b[15~", "wheel up": "\x1b[<64;10;5M",
    "wheel down": "\x1b[<65;10;5M", "ctrl+c": "\x03", "ctrl+j": "\n", "ctrl+q": "\x11", "ctrl+z": "\x1a", "ctrl+n": "\x0e",
    "shift+tab": "\x1b[Z", "tab": "\t",
}  # fmt: skip
"""What a terminal sends."""


class Terminal:
    """`python -m edge_llm` with ``arguments``, in a terminal of its own, as the leader of its session."""

    def __init__(self, *arguments, columns=100, rows=30, cwd=None, command=None, **env):
        names = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": None, "LINES": None, "NO_COLOR": None}
        names |= {"PYTHONPATH": str(Path(__file__).resolve().parents[1])} | env
        environment = {name: value for name, value in {**os.environ, **names}.items() if value is not None}
        command = command or [sys.executable, "-m", "edge_llm", *arguments]
        self.raw = bytearray()
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self._changed = threading.Condition()
        self._over = False
        self._closing = threading.Event()
        self._status = None
        self.read_at = 0.0
        """When the last bytes came."""
        self.begun_at = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: an exec follows at once
            self.pid, self._fd = pty.fork()
        if self.pid == 0:
            _become(command, environment, cwd, columns, rows)
        self.attributes = termios.tcgetattr(self._fd)
        self._reader = threading.Thread(target=self._read, args=(self._fd,), daemon=True)
        self._reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """End the program, if it has not ended, and the terminal."""
        if not self._ended():
            self.signal(signal.SIGKILL)
        self.wait_end()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def hang_up(self):
        """Close the terminal, as its window is closed: the system sends SIGHUP."""
        self._closing.set()
        self._reader.join(SECONDS)
        fd, self._fd = self._fd, -1
        os.close(fd)

    # -- what the program wrote ---------------------------------------------------------------------------------------

    def _read(self, fd):
        while not self._closing.is_set():
            if not select.select([fd], [], [], 0.05)[0]:
                continue
            try:
                data = os.read(fd, 1 << 16)
            except OSError:  # the program has ended
                data = b""
            at = time.perf_counter()
            with self._changed:
                self._over = not data
                self.raw += data
                self.read_at = at
                self._see(data)
                self._changed.notify_all()
            if _ASKS_FOR_FRAMES in data:
                os.write(fd, _HAS_FRAMES)
            if not data:
                return

    def _see(self, data):
        self._stream.feed(data)

    @property
    def _in_frame(self):
        """The program is drawing; a terminal shows what it drew when it has."""
        return self.raw.rfind(_FRAME_BEGINS) > self.raw.rfind(_FRAME_ENDS)

    @property
    def text(self):
        """The screen as it is now."""
        return self.wait_for(lambda text: True)

    def _text(self):
        return "\n".join(line.rstrip() for line in self.screen.display)

    def wait_for(self, wanted, seconds=SECONDS):
        """The screen, once ``wanted`` (a text, or a condition on the screen's text) is there."""
        found = wanted if callable(wanted) else lambda text: wanted in text
        return self._wait(lambda: not self._in_frame and found(text := self._text()) and [text], seconds, wanted)[0]

    def wait_gone(self, unwanted):
        """The screen, once the text ``unwanted`` is not there."""
        return self.wait_for(lambda text: unwanted not in text)

    def wait_raw(self, wanted, since=0, seconds=SECONDS):
        """When the bytes ``wanted`` had come, behind the first ``since`` ones."""
        return self._wait(lambda: self.raw.find(wanted, since) >= 0 and self.read_at, seconds, wanted)

    def _wait(self, found, seconds, what):
        until = time.monotonic() + seconds
        with self._changed:
            while not (result := found()):
                left = until - time.monotonic()
                assert left > 0 and not self._over, f"{what!r} is not to be seen{' any more' * self._over} on\n{self._text()}"
                self._changed.wait(min(left, 0.1))
            return result

    # -- what the person does -----------------------------------------------------------------------------------------

    def write(self, text):
        """Type ``text``, in one write as far as the terminal takes it."""
        data = text if isinstance(text, bytes) else text.encode()
        while data:
            data = data[os.write(self._fd, data) :]

    def press(self, *names):
        for name in names:
            self.write(KEYS[name])

    def paste(self, text):
        self.write(PASTE.format(text.replace("\n", "\r")))

    def resize(self, columns, rows):
        """Another size, which the system tells the program."""
        with self._changed:
            self.screen.resize(rows, columns)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def signal(self, number):
        os.kill(self.pid, number)

    # -- its end ------------------------------------------------------------------------------------------------------

    def wait_end(self, seconds=SECONDS):
        """The exit code, or minus the signal that ended it."""
        until = time.monotonic() + seconds
        while not self._ended():
            assert time.monotonic() < until, f"the program does not end\n{self._text()}"
            time.sleep(0.01)
        self._reader.join(SECONDS)
        return os.waitstatus_to_exitcode(self._status)

    def _ended(self):
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = status if pid else None
        return self._status is not None

    def wait_stopped(self):
        """Wait until the program is suspended."""
        until = time.monotonic() + SECONDS
        while _state(self.pid) != "T":
            assert time.monotonic() < until, f"the program is not suspended\n{self._text()}"
            time.sleep(0.01)

    def switched_on(self):
        """What the program has switched on in the terminal and not switched off."""
        on = {}
        for kind, numbers, end in _MODE.findall(bytes(self.raw)):
            if kind == b"?" and end in b"hl":
                for number in numbers.decode().split(";"):
                    if number in _SWITCHED:
                        on[number] = end == b"h"
                    elif number == "25":
                        on["hidden cursor"] = end == b"l"
            elif end == b"u" and kind in (b">", b"<"):
                on["keyboard protocol"] = kind == b">"
        return {_SWITCHED.get(name, name) for name, value in on.items() if value}

    def check_left(self):
        """The terminal is as it was before the program: its screen, cursor, mouse, paste, and how lines are read."""
        assert self.switched_on() == set()
        assert b"\x1b[?1049h" in self.raw and self.raw.count(b"\x1b[?1049h") == self.raw.count(b"\x1b[?1049l")
        assert termios.tcgetattr(self._fd) == self.attributes


class BlindTerminal(Terminal):
    """A terminal without a screen, which takes no time to draw: for what waits for bytes."""

    def _see(self, data):
        pass


def _state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _become(command, environment, cwd, columns, rows):
    """In the child: the program, in a terminal of this size."""
    try:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if cwd is not None:
            os.chdir(cwd)
        os.execvpe(command[0], command, environment)
    finally:
        os._exit(127)
