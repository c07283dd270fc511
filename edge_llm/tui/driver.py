"""The terminal that the chat runs in: it may send anything, and go away."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
from codecs import getincrementaldecoder
from collections.abc import Iterable
from typing import IO, Any

from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver
from textual.events import Key, Resize
from textual.geometry import Size
from textual.message import Message

LOOK_SECONDS = 0.1
"""How often a silent terminal is looked at for a key like Escape, which may be the beginning of others."""
_AT_A_TIME = 1 << 16
_ASK_BACKGROUND = "\x1b]11;?\x1b\\"
_REPLY = re.compile("\x1b\\][0-9]{1,4};[^\x07\x1b]*(?:\x07|\x1b\\\\)")
_PART_OF_REPLY = re.compile("\x1b\\](?:[0-9]{0,4}|[0-9]{1,4};[^\x07\x1b]{0,1000}\x1b?)\\Z")
"""What has no number in front is the key Alt+] and what was typed behind it."""
_ALT_DIGIT = re.compile("\x1b[0-9]")
_BACKGROUND = re.compile(r"\]11;rgba?:([\da-f]{1,4})/([\da-f]{1,4})/([\da-f]{1,4})", re.IGNORECASE)


class BackgroundSeen(Message):
    """The terminal has told the colour behind its text."""

    def __init__(self, is_light: bool) -> None:
        super().__init__()
        self.is_light = is_light


class TerminalDriver(LinuxDriver):
    """Textual's driver, for terminals that send bytes that are no text, and for those that are closed.

    The first would end the program with a traceback, and after the second its input thread would spin.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._file: IO[str] = _Forgiving(self._file)  # type: ignore[assignment]
        self._part = ""
        """Of a reply whose end has not come."""

    def start_application_mode(self) -> None:
        """Ask for the background too; a terminal that does not answer, or later, keeps nobody waiting."""
        super().start_application_mode()
        if os.environ.get("TERM") != "linux":  # its console has no such question
            self.write(_ASK_BACKGROUND)

    def run_input_thread(self) -> None:
        """Hand on what the terminal sends, until the driver is stopped; SIGHUP is sent for a terminal that is gone."""
        parser = _Parser(self._debug)
        decoder = getincrementaldecoder("utf-8")("replace")
        while not self.exit_event.is_set():
            if select.select([self.fileno], [], [], LOOK_SECONDS)[0]:
                data = self._received()
                if not data:
                    os.kill(os.getpid(), signal.SIGHUP)
                    return
                text = self._without_replies(decoder.decode(data))
            else:
                text = self._taken_part()
            if text:  # nothing would be the end
                for event in parser.feed(text):
                    self.process_message(event)
            for event in parser.tick():
                self.process_message(event)
            self._tell_size()

    def _without_replies(self, text: str) -> str:
        """``text`` without what the terminal answers, which is no key."""
        if self._part or "\x1b]" in text:
            text, self._part = self._part + text, ""
            for reply in _REPLY.findall(text):
                if (is_light := light_background(reply)) is not None:
                    self.process_message(BackgroundSeen(is_light))
            text = _REPLY.sub("", text)
            if part := _PART_OF_REPLY.search(text):
                text, self._part = text[: part.start()], part[0]
        return text

    def _taken_part(self) -> str:
        """What looked like a reply and was the key Alt+], with digits behind it perhaps; half a reply is dropped."""
        part, self._part = self._part, ""
        return "" if ";" in part else part

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


class _Parser(XTermParser):
    """Textual's parser, to which Alt with a digit is the character that a Mac writes so."""

    def _sequence_to_key_events(self, sequence: str, alt: bool = False) -> Iterable[Key]:
        if _ALT_DIGIT.fullmatch(sequence):
            return [Key(f"alt+{sequence[1]}", None)]
        return super()._sequence_to_key_events(sequence, alt)


def light_background(reply: str) -> bool | None:
    """Whether ``reply`` tells of a light background; None where it tells none."""
    if (found := _BACKGROUND.search(reply)) is None:
        return None
    red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in found.groups())
    return 0.299 * red + 0.587 * green + 0.114 * blue > 0.5


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
