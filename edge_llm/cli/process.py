"""The process around a command: its standard streams, Ctrl-C, and its end.

Imports only the standard library, so that Ctrl-C is taken care of before the rest of the program is loaded.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import signal
import sys
from types import FrameType
from typing import Any, NoReturn

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


class _Interrupts:
    """What Ctrl-C does: it raises KeyboardInterrupt in a running command, and ends the process before and after one.

    It also ends the process during an import, which may turn the interrupt into an error of its own.
    """

    def __init__(self) -> None:
        self.running = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self.running or _is_importing(frame):
            os._exit(INTERRUPTED)
        raise KeyboardInterrupt


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


interrupts = _Interrupts()


def prepare() -> None:
    """Take care of Ctrl-C, of standard streams and of the tokenizers' threads; calling it again changes nothing."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a parent wants it to be ignored
        signal.signal(signal.SIGINT, interrupts)
    sys.unraisablehook = _on_unraisable
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # texts come one by one; a pool only costs threads and memory
    _open_standard_streams()
    _keep_answers_apart()


class SignalsThatCameLate:
    """SIGTERM and SIGINT around a command that ends itself on them: what comes behind its end changes no exit code.

    Until `command_has_them` they mean what they meant before.  Nothing is put back after that: the process is about to end.
    """

    def __init__(self) -> None:
        self._before = {number: signal.signal(number, self) for number in (signal.SIGTERM, signal.SIGINT)}
        self._late = False

    def command_has_them(self) -> None:
        """From here on the command takes the signals, and when it gives them back it is too late for them."""
        self._late = True

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._late:
            return
        before = self._before[signal.Signals(number)]
        signal.signal(number, before)
        if callable(before):
            before(number, frame)
        else:
            signal.raise_signal(number)

    def __enter__(self) -> SignalsThatCameLate:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._late:
            for number, before in self._before.items():
                signal.signal(number, before)


def leave(code: int) -> NoReturn:
    """End the process with ``code``, whatever is wrong with its standard streams and wherever its threads are.

    The interpreter is not taken down: threads in native code do not survive that, and Ctrl-C means nothing there.
    """
    interrupts.running = False
    with contextlib.redirect_stdout(sys.stderr):  # what libraries say at their end is no part of an answer
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # its reader went away, or its disk is full
            stream.flush()
    os._exit(code)


def _keep_answers_apart() -> None:
    """Give answers a descriptor of their own, where no person reads them; file descriptor 1 is standard error from here on.

    So what a device's libraries print, and the processes that they start, is not among the answers.  On a terminal it could
    not be told apart, and line editing wants file descriptor 1.
    """
    answers = sys.stdout
    if not isinstance(answers, io.TextIOWrapper) or answers.fileno() != 1 or answers.isatty():
        return
    answers.flush()
    raw = io.FileIO(os.dup(1), "w")
    sys.stdout = io.TextIOWrapper(
        raw if answers.write_through else io.BufferedWriter(raw),
        encoding=answers.encoding,
        errors=answers.errors,
        write_through=answers.write_through,
    )
    os.dup2(2, 1)


def _on_unraisable(failure: Any) -> None:
    """End the process after a Ctrl-C where Python cannot raise: in a destructor or a callback of the import system."""
    if failure.exc_type is not None and issubclass(failure.exc_type, KeyboardInterrupt):
        os._exit(INTERRUPTED)
    sys.__unraisablehook__(failure)


def _open_standard_streams() -> None:
    """Open closed streams, so that no file gets their numbers: stdin is empty, stdout fails, stderr drops everything."""
    for number, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest number that is free
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - open until the end
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
