"""The terminal that the chat runs in: it may send anything, and go away."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from codecs import getincrementaldecoder
from typing import IO, Any

from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver
from textual.events import Resize
from textual.geometry import Size

LOOK_SECONDS = 0.1
"""How often a silent terminal is looked at for a key like Escape, which may be the beginning of others."""
_AT_A_TIME = 1 << 16


class TerminalDriver(LinuxDriver):
    """Textual's driver, for terminals that send bytes that are no text, and for those that are closed.

    The first would end the program with a traceback, and after the second its input thread would spin.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._file: IO[str] = _Forgiving(self._file)  # type: ignore[assignment]

    def run_input_thread(self) -> None:
        """Hand on what the terminal sends, until the driver is stopped; SIGHUP is sent for a terminal that is gone."""
        parser = XTermParser(self._debug)
        decoder = getincrementaldecoder("utf-8")("replace")
        while not self.exit_event.is_set():
            if select.select([self.fileno], [], [], LOOK_SECONDS)[0]:
                data = self._received()
                if not data:
                    os.kill(os.getpid(), signal.SIGHUP)
                    return
                for event in parser.feed(decoder.decode(data)):
                    self.process_message(event)
            for event in parser.tick():
                self.process_message(event)
            self._tell_size()

    def _tell_size(self) -> None:
        """Tell the app a size that it does not know: signals that come at once may have told it an earlier one last."""
        size = Size(*self._get_terminal_size())
        if size != self._app.size:
            self.process_message(Resize(size, size))

    def _received(self) -> bytes:
        """What has come; nothing when the terminal is gone."""
        try:
            return os.read(self.fileno, _AT_A_TIME)
        except OSError:
            return b""


class _Forgiving:
    """A terminal's file; what cannot be written to it is lost."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            return self._file.write(text)
        return 0

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._file.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
